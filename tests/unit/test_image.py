"""The image as it is written: what the Dockerfile copies makes our wheel, pinned by hash, and root runs none of it."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

from activities.settings import Settings

ROOT = Path(__file__).parents[2]
TEXT = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE))
LINES = [line for line in TEXT.splitlines() if line]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def copied() -> list[str]:
    """What of this checkout reaches the build."""
    words = [line.split()[1:-1] for line in LINES if line.startswith("COPY ") and "--from" not in line]
    return [path.rstrip("/") for paths in words for path in paths]


def test_the_base_is_pinned_and_is_the_python_that_we_are_written_for() -> None:
    """Both stages by tag and digest; the page names the tag."""
    bases = {line.split()[1] for line in LINES if line.startswith("FROM ")}
    (base,) = bases
    tag, _, digest = base.partition("@sha256:")
    assert re.fullmatch(r"[0-9a-f]{64}", digest)
    least = PROJECT["requires-python"].removeprefix(">=")
    assert re.fullmatch(rf"python:{re.escape(least)}\.\d+-slim-bookworm", tag)
    assert f"`{tag}`" in (ROOT / "README.md").read_text()


def test_it_does_not_run_as_root_and_holds_no_setting() -> None:
    """A number, so that an orchestrator can tell; in the stage that runs. Red: drop USER."""
    last = LINES[max(n for n, line in enumerate(LINES) if line.startswith("FROM ")) :]
    (user,) = [line for line in last if line.startswith("USER ")]
    assert re.fullmatch(r"USER [1-9]\d{3,}:[1-9]\d{3,}", user)
    assert last.index(user) < last.index('CMD ["python", "-m", "worker"]')
    assert not [line for line in last if line.startswith(("RUN", "ADD", "EXPOSE"))]
    assert not {name for name in Settings.model_fields if f"EFFECTS_{name.upper()}" in TEXT}


def test_everything_is_installed_by_hash_or_from_what_was_copied() -> None:
    """Red: drop --require-hashes, or let pip fetch what builds our wheel."""
    calls = [call.strip() for line in LINES if line.startswith("RUN ") for call in line[4:].split("&&")]
    pip = [call for call in calls if "/pip " in call]
    assert len(pip) == 4
    for call in pip:
        hashed = "--require-hashes" in call and "--only-binary :all:" in call
        offline = "--no-index" in call and "--no-deps" in call
        assert hashed != offline, call
    for name in re.findall(r"-r (\S+)", TEXT):
        pins = re.findall(r"^[a-z].*?(?=^[a-z]|\Z)", (ROOT / name).read_text(), re.MULTILINE | re.DOTALL)
        assert pins and all("==" in pin and "--hash=sha256:" in pin for pin in pins), name


def test_what_is_copied_makes_a_wheel_that_works_alone(tmp_path: Path) -> None:
    """With the package's data, without the development stack; from it, and nothing else of this checkout, commands run.

    Red: leave `workflows/` out of the Dockerfile, or the migrations out of pyproject's package data.
    """
    source = tmp_path / "source"
    for name in copied():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, source / name)
    wheels = tmp_path / "wheels"
    made = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps"]
        + ["--no-build-isolation", "--wheel-dir", str(wheels), str(source)],
        capture_output=True,
        text=True,
    )
    assert made.returncode == 0, made.stderr
    (wheel,) = wheels.glob(f"effect_ledger-{PROJECT['version']}-*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "alone")
    there = {path.relative_to(tmp_path / "alone").as_posix() for path in (tmp_path / "alone").rglob("*")}
    migrations = {f"ledger/store/migrations/{p.name}" for p in (ROOT / "ledger" / "store" / "migrations").glob("*.sql")}
    assert migrations and migrations <= there and "devstack" not in there
    program = (
        # this environment knows the checkout by a finder of its own: without that, the wheel is alone
        "import sys; sys.path.insert(0, sys.argv[1]);"
        "sys.meta_path[:] = [f for f in sys.meta_path if '__editable__' not in getattr(f, '__module__', '')];"
        "import starter, worker, ledger.store.migrate as m;"
        "assert starter.__file__.startswith(sys.argv[1]), starter.__file__;"
        "print([one.version for one in m.migrations()]);"
        "assert starter.main(['demo']) == 3;"
        "sys.exit(starter.main(['explain', 'refund', '--lost-answer']))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "alone")],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "HOME": "/"},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0 and ran.stdout.startswith("[1, 2"), ran
    assert "run it in a checkout" in ran.stderr


def test_a_build_is_given_only_what_it_copies() -> None:
    """No secret, key, cache or history of a checkout. Red: drop the first `*`."""
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    assert lines[0] == "*"
    let_in = {line[1:] for line in lines if line.startswith("!")}
    assert let_in == {name.split("/")[0] for name in copied()}
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert {".env", "deploy/secrets/"} <= set(ignored)
