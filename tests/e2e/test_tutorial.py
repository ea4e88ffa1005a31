"""CONTRIBUTING's tutorial "Add a provider" is followed, word by word, in a copy of this checkout."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TITLE = "## Add a provider"
LONGEST_COMMAND_SECONDS = 180.0
# What a line in bold over a block tells the reader to do with it. A shell block needs none: it is typed.
VERBS = ("New", "Append to", "Change", "Break", "Prints")
_BOLD = re.compile(r"\*\*([A-Z][a-z ]+):(?: (\S+))?\*\*")


class Unclear(AssertionError):
    """A reader could not know what to do."""


@dataclass(frozen=True)
class Step:
    """One block, and what is to be done with it."""

    line: int
    verb: str  # one of VERBS, or "Type"
    file: str
    text: str

    @property
    def place(self) -> str:
        """For messages."""
        return f"CONTRIBUTING.md:{self.line}: {self.verb} {self.file}"


def section(document: str) -> list[tuple[int, str]]:
    """The numbered lines of the tutorial: to the next heading of its level, or the end."""
    found: list[tuple[int, str]] = []
    fenced = False
    for number, line in enumerate(document.splitlines(), 1):
        fenced ^= line.startswith("```")
        if found and not fenced and line.startswith("## "):
            break
        if found or line == TITLE:
            found.append((number, line))
    return found


def steps(document: str) -> Iterator[Step]:
    """Every block of the tutorial in order. `Unclear` where a block does not say what it is for."""
    above, block = "", None
    for number, line in section(document):
        if block is not None and line == "```":
            yield _step(block[0], block[1], above, "".join(block[2]))
            above, block = "", None
        elif block is not None:
            block[2].append(f"{line}\n")
        elif line.startswith("```"):
            block = (number, line.removeprefix("```"), [])
        elif line:
            above = line
    if block is not None:
        raise Unclear(f"CONTRIBUTING.md:{block[0]}: the block does not end")


def _step(line: int, language: str, above: str, text: str) -> Step:
    told = _BOLD.fullmatch(above)
    if language == "sh":
        if told:
            raise Unclear(f"CONTRIBUTING.md:{line}: a command is typed, and nothing else is done with it")
        return Step(line, "Type", "", text)
    if told is None or told[1] not in VERBS or (told[2] is None) != (told[1] == "Prints"):
        raise Unclear(f"CONTRIBUTING.md:{line}: no line in bold says what to do with this block: {above[:80]!r}")
    if (language == "diff") != (told[1] in ("Change", "Break")):
        raise Unclear(f"CONTRIBUTING.md:{line}: {told[1]} does not go with a block of {language}")
    return Step(line, told[1], told[2] or "", text)


def changed(text: str, diff: str) -> str:
    """The text with every part of the diff applied, each of which fits one place and no other."""
    for part in re.split(r"^@@\n", diff, flags=re.MULTILINE):
        lines = part.splitlines(keepends=True)
        before = "".join(line[1:] for line in lines if line[0] in " -")
        after = "".join(line[1:] for line in lines if line[0] in " +")
        places = len(re.findall(rf"^{re.escape(before)}", text, re.MULTILINE))
        if places != 1:
            raise Unclear(f"this fits {places} places:\n{before}")
        text = re.sub(rf"^{re.escape(before)}", lambda _, after=after: after, text, flags=re.MULTILINE)
    return text


class Copy:
    """A copy of the checkout in which the tutorial is followed, with a `.venv` that is lent to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._broken: dict[Path, str] = {}
        self.printed = ""
        self.red = ""  # what was printed when a broken file was tried
        listed = subprocess.check_output(["git", "ls-files", "-coz", "--exclude-standard"], cwd=ROOT, text=True)
        for name in set(listed.split("\0")) - {""}:
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name)
        self._lend_venv(folder / ".venv")
        where = "import docs.generate, ledger, providers; print(docs.generate.__file__, ledger.__file__, providers.__file__)"
        found = self._run([".venv/bin/python", "-c", where]).stdout.split()
        assert [Path(file).is_relative_to(folder) for file in found] == [True] * 3, found

    def follow(self, every: Sequence[Step]) -> None:
        """Do what each step says. An assertion names the first that cannot be done, or has not come out as told."""
        for step in every:
            file = self.folder / step.file
            match step.verb:
                case "New":
                    assert not file.exists(), f"{step.place}: it is there"
                    file.write_text(step.text)
                case "Append to":
                    empty = "\n\n" if file.suffix == ".py" else "\n"
                    file.write_text(file.read_text() + empty + step.text)
                case "Change" | "Break":
                    before = file.read_text()
                    if step.verb == "Break":
                        self._broken[file] = before
                    try:
                        file.write_text(changed(before, step.text))
                    except Unclear as error:
                        raise Unclear(f"{step.place}: {error}") from None
                case "Type":
                    self._type(step)
                case "Prints":
                    missing = [line for line in _plain(step.text) if not any(line in p for p in _plain(self.printed))]
                    assert not missing, f"{step.place}: not printed: {missing}\n{self.printed[-3000:]}"
        assert not self._broken, "the tutorial leaves a file broken"

    def _type(self, step: Step) -> None:
        """A command ends well, but not while a file is broken; that is put back afterwards."""
        done = self._run(["/bin/sh", "-eu", "-c", step.text])
        self.printed = done.stdout
        assert (done.returncode != 0) == bool(self._broken), (
            f"{step.place}\n{step.text}ended with {done.returncode} while {list(self._broken) or 'nothing'} was broken:\n"
            f"{self.printed[-6000:]}"
        )
        if self._broken:
            self.red = self.printed
        for file, text in self._broken.items():
            file.write_text(text)
        self._broken.clear()

    def _run(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        dropped = ("EFFECTS_", "TEMPORAL_", "PYTHON", "PYTEST", "MAKE", "MFLAGS", "COV")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
        ours = {
            "PYTHONPATH": str(self.folder),  # the package is installed from ROOT: here the copy comes first
            "PATH": f"{self.folder}/.venv/bin:{kept['PATH']}",
            "PYTEST_DEBUG_TEMPROOT": str(self.folder.parent),
            "COLUMNS": "160",
        }
        return subprocess.run(
            command,
            cwd=self.folder,
            env=kept | ours,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=LONGEST_COMMAND_SECONDS,
            check=False,
        )

    def _lend_venv(self, venv: Path) -> None:
        """Everything of the running environment but its stamp, which is newer here than what it depends on.

        Otherwise `make` in the copy could build the lent environment anew.
        """
        venv.mkdir()
        for entry in Path(sys.prefix).iterdir():
            if entry.name != ".installed":
                (venv / entry.name).symlink_to(entry)
        (venv / ".installed").touch()


def _plain(text: str) -> list[str]:
    """The lines that say something, with single blanks."""
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


@pytest.mark.timeout(600)
def test_the_tutorial_can_be_followed_word_by_word(tmp_path: Path) -> None:
    """Each block is written or typed as it stands, and ends as it says: the broken adapter turns the suite red.

    Red: change a word in a block of the tutorial, or rename what it uses.
    """
    every = list(steps((ROOT / "CONTRIBUTING.md").read_text()))
    assert {step.verb for step in every} == {*VERBS, "Type"}
    (tmp_path / "copy").mkdir()
    copy = Copy(tmp_path / "copy")
    copy.follow(every)
    fallen = re.findall(r"^FAILED \S+::(\w+)\[", copy.red, re.MULTILINE)
    assert "test_what_recovery_makes_of_a_lost_answer_never_adds_an_effect" in fallen
    assert "## book_pickup (parcels)" in (copy.folder / "docs" / "contracts.md").read_text()


def test_a_block_that_does_not_say_what_it_is_for_is_unclear() -> None:
    """The reader of blocks itself: it takes what is told, and stops at what is not."""
    document = f"{TITLE}\n\n**New: a/b.py**\n\n```python\n## no heading\n```\n\nThen:\n\n```sh\nmake docs\n```\n\n## Next\n```x\n"
    assert list(steps(document)) == [Step(5, "New", "a/b.py", "## no heading\n"), Step(11, "Type", "", "make docs\n")]
    for unclear in (
        "Here it is:\n\n```python\nx\n```\n",
        "**Move: a.py**\n\n```python\nx\n```\n",
        "**New:**\n\n```python\nx\n```\n",
        "**New: a.py**\n\n```diff\n+x\n```\n",
        "**New: a.sh**\n\n```sh\nx\n```\n",
        "**New: a.py**\n\n```python\nx\n```\n\n```python\ny\n```\n",
        "**New: a.py**\n\n```python\nx\n",
    ):
        with pytest.raises(Unclear):
            list(steps(f"{TITLE}\n\n{unclear}"))


def test_a_change_fits_one_place_only() -> None:
    """Two places, or none: the reader would have to guess."""
    assert changed("a\nb\nc\n", " a\n-b\n+B\n@@\n c\n+d\n") == "a\nB\nc\nd\n"
    for text in ("a\na\n", "ba\n", ""):
        with pytest.raises(Unclear):
            changed(text, " a\n+b\n")
