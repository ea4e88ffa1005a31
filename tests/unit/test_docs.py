"""The documents say what the code does: generated parts, commands, targets, links and named tests are all there."""

import ast
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.exceptions import TyperException
from typer.main import get_command

import starter
from docs import generate

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
COMMAND_LINE = get_command(starter.app)

# Where packages come from is each machine's own business, and where this checkout lies too.
FOREIGN = re.compile(
    r"pypi\.org|pythonhosted\.org|npmjs\.(?:org|com)|deb\.debian\.org|ghcr\.io|docker\.io|index-url|trusted-host"
    r"|/root\b|/work/|/home/\w|BEGIN (?:ENCRYPTED )?PRIVATE KEY|\b(?:sk|rk|whsec)_(?:live|test)_\w"
)


def name_of(document: Path) -> str:
    """Path from the root, for messages and for `ids`."""
    return document.relative_to(ROOT).as_posix()


def blocks(text: str, *languages: str) -> Iterator[str]:
    """The fenced blocks in one of these languages."""
    for language, body in re.findall(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        if language in languages:
            yield body


def typed(text: str) -> Iterator[str]:
    """Every `effects …` that a reader is told to type, continued lines joined and comments dropped."""
    for block in blocks(text, "sh", "console"):
        for line in block.replace("\\\n", " ").splitlines():
            words = line.strip().removeprefix("$ ").removeprefix(".venv/bin/")
            if words.startswith("effects "):
                yield words


def inline(text: str) -> Iterator[str]:
    """Every `effects …` inside a sentence."""
    outside = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    yield from re.findall(r"`(?:\.venv/bin/)?(effects [^`]+)`", outside)


def command_of(words: list[str]) -> tuple[Any, list[str]]:
    """The command (or group) that these words name, and its arguments; KeyError where there is none."""
    command: Any = COMMAND_LINE
    while (inner := getattr(command, "commands", None)) is not None and words and not words[0].startswith("-"):
        command, words = inner[words[0]], words[1:]
    return command, words


@cache
def named_in(file: Path) -> frozenset[str]:
    """The names of the tests in a file."""
    tree = ast.parse(file.read_text())
    names = (node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(name for name in names if name.startswith("test_"))


def test_the_generated_parts_are_what_the_code_says() -> None:
    """Otherwise: `make docs`."""
    assert generate.stale() == []


def test_every_part_that_can_be_made_stands_somewhere() -> None:
    """And a marker of a part that nobody makes is an error, not a silence."""
    found = {name for d in generate.DOCUMENTS for name in re.findall(r"generated:([a-z-]+)", (ROOT / d).read_text())}
    assert found == set(generate.PARTS)
    with pytest.raises(SystemExit, match="nobody makes"):
        generate.fresh("<!-- generated:weather -->\n<!-- end -->")


def test_a_stale_part_is_made_anew_and_the_rest_is_left_alone() -> None:
    """What people wrote around it stays, to the byte; a second time changes nothing."""
    text = "before\n\n<!-- generated:exit-codes -->\nold\n<!-- end -->\nafter  \n"
    made = generate.fresh(text)
    assert made.startswith("before\n\n") and made.endswith("after  \n") and "old" not in made
    assert generate.fresh(made) == made


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_every_command_line_can_be_typed(document: Path) -> None:
    """Command, arguments and options exist, and what the command needs is given."""
    for line in typed(document.read_text()):
        words = shlex.split(line, comments=True)[1:]
        try:
            command, arguments = command_of(words)
            assert not hasattr(command, "commands"), f"{line}: that is a group of commands"
            command.make_context(line, arguments)
        except (KeyError, TyperException) as error:
            raise AssertionError(f"{name_of(document)}: {line}: {error}") from error
        except typer.Exit:
            assert "--help" in arguments, line


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_every_command_in_a_sentence_exists(document: Path) -> None:
    """With the options that it is said to have."""
    for words in map(str.split, inline(document.read_text())):
        try:
            command, rest = command_of(words[1:])
        except KeyError as error:
            raise AssertionError(f"{name_of(document)}: {' '.join(words)}: no command {error}") from error
        known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
        unknown = {word for word in rest if word.startswith("--")} - known
        assert not unknown, f"{name_of(document)}: {' '.join(words)}: {', '.join(unknown)}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_every_make_target_exists(document: Path) -> None:
    """In blocks and in sentences."""
    text = document.read_text()
    named = set(re.findall(r"`make ([a-z]+)", text))
    named |= {name for block in blocks(text, "sh", "console") for name in re.findall(r"^make ([a-z]+)", block, re.M)}
    there = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert named <= there, f"{name_of(document)}: {', '.join(named - there)}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_every_relative_link_leads_somewhere(document: Path) -> None:
    """To a file of this checkout, and to a heading of it where one is named."""
    for target in re.findall(r"\]\(([^)\s]+)\)", document.read_text()):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, heading = target.partition("#")
        file = (document.parent / path).resolve() if path else document
        assert file.exists(), f"{name_of(document)}: {target}"
        assert not heading or heading in headings(file), f"{name_of(document)}: {target}"


@cache
def headings(file: Path) -> frozenset[str]:
    """The anchors of a document's headings, as GitHub makes them."""
    found = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", file.read_text(), flags=re.M | re.S), re.MULTILINE)
    return frozenset(re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in found)


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_every_named_file_exists(document: Path) -> None:
    """`ledger/states.py` and the like, wherever they are named."""
    named = set(re.findall(r"`((?:[a-z_]+/)+[a-z0-9_-]+\.(?:py|sql|toml|md|txt))`", document.read_text()))
    gone = {name for name in named if not (ROOT / name).exists()}
    assert not gone, f"{name_of(document)}: {', '.join(sorted(gone))}"


def test_every_threat_names_tests_that_exist() -> None:
    """docs/threats.md claims nothing that no test shows; every row of its table names at least one."""
    text = (ROOT / "docs" / "threats.md").read_text()
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)
    gone = [f"{file}::{test}" for file, test in named if test not in named_in(ROOT / file)]
    assert not gone, ", ".join(gone)
    claims = [line for line in text.splitlines() if re.match(r"\| (?!---|cannot|guarantee)", line)]
    silent = [line[:80] for line in claims if "::test_" not in line]
    assert len(claims) > 25 and not silent, silent


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_no_document_holds_a_machine_a_registry_or_a_secret(document: Path) -> None:
    """A path of somebody's machine helps nobody else, and a registry is for pip's own configuration to know."""
    found = [line for line in document.read_text().splitlines() if FOREIGN.search(line)]
    assert not found, f"{name_of(document)}: {found}"


def test_these_rules_see_what_they_look_for() -> None:
    """The checks themselves, each on a seeded mistake."""
    shell = "```sh\n$ effects show \\\n  acme/k  # comment\nmake demo\n```\nSay `effects keys test --as bob`.\n"
    assert [shlex.split(line, comments=True) for line in typed(shell)] == [["effects", "show", "acme/k"]]
    assert list(inline(shell)) == ["effects keys test --as bob"]
    with pytest.raises(KeyError):
        command_of(["keys", "burn"])
    with pytest.raises(TyperException):
        command_of(["show"])[0].make_context("show", ["--nonsense"])
    assert FOREIGN.search("pip install --index-url x") and not FOREIGN.search("docs.stripe.com")
    assert "the-two-commands" in headings(ROOT / "README.md")
