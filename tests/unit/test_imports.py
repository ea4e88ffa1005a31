"""The import rules of pyproject.toml hold, and each of them bites: a seeded violation of every contract is found."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("ledger", "activities", "workflows", "providers", "inbox", "devstack", "commands")
# (file, import to seed, the contract that must break)
SEEDS = (
    ("ledger/store/clock.py", "import activities.messages", "activities use store and providers, never the other way"),
    ("providers/registry.py", "import ledger.store.clock", "store and providers do not know each other"),
    ("ledger/recovery.py", "import httpx", "the pure ledger does no I/O and knows no engine"),
    ("workflows/hold.py", "import ledger.policy", "workflows order and wait: messages only, no rules, no I/O"),
    ("activities/ports.py", "import commands.exits", "nobody builds on the command line"),
    ("activities/errors.py", "import inbox.app", "nothing that works knows the inbox: it faces the internet"),
    ("ledger/trail.py", "import devstack.ports", "only the command line and tests know the dev stack"),
)


def _lint(folder: Path) -> str:
    done = subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-cache"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages and their rules, in a folder that may be spoiled."""
    folder = tmp_path_factory.mktemp("imports")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def test_every_rule_holds_and_every_rule_bites(copy: Path) -> None:
    """One clean run, then one with a violation of each contract."""
    clean = _lint(copy)
    for *_, contract in SEEDS:
        assert f"{contract} KEPT" in clean, clean
    for file, seed, _ in SEEDS:
        with (copy / file).open("a") as text:
            text.write(f"\n{seed}\n")
    spoiled = _lint(copy)
    for file, seed, contract in SEEDS:
        assert f"{contract} BROKEN" in spoiled, (file, seed)
