"""House style that a machine can check: docstrings, lengths, banned names, bare TODOs, modules that nothing imports."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("ledger", "activities", "workflows", "providers", "inbox", "commands", "devstack")
SCRIPTS = ("worker.py", "starter.py")
LONGEST_FUNCTION, LONGEST_FILE = 70, 400
# Each of these has no one meaning (design, section 2). A provider's own words are exempt.
BANNED = {"failed", "success", "status", "result", "process", "handle", "data", "util", "common", "manager"}
PROVIDERS_WORDS = (
    "devstack/stripe_standin/",
    "devstack/tryton/",
    *(f"providers/{name}" for name in ("wire", "stripe_", "tryton_", "carddav_", "mail")),
)
LIBRARIES_WORDS = {"data_converter"}  # temporalio's name for an argument
# Run by name, imported by nobody.
STARTED = {"worker", "starter"}
# Only starter (lazily) and tests use these.
FOR_TESTS_TOO = "devstack."

FILES = sorted(
    [f for package in PACKAGES for f in (ROOT / package).rglob("*.py")]
    + [ROOT / script for script in SCRIPTS if (ROOT / script).exists()]
)
Function = ast.FunctionDef | ast.AsyncFunctionDef


def name_of(file: Path) -> str:
    """Path from the root, for messages and for `ids`."""
    return file.relative_to(ROOT).as_posix()


def module_of(file: Path) -> str:
    """The name under which this file is imported."""
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@cache
def tree_of(file: Path) -> ast.Module:
    """The syntax of a file."""
    return ast.parse(file.read_text(), str(file))


def public_functions(body: list[ast.stmt], within: str = "") -> Iterator[tuple[str, Function]]:
    """Functions that others call, and the methods of public classes."""
    for node in body:
        if isinstance(node, Function) and not node.name.startswith("_"):
            yield within + node.name, node
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from public_functions(node.body, f"{node.name}.")


def bound_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Every name that this file gives to something: function, class, parameter, variable, attribute of self."""
    for node in ast.walk(tree):
        if isinstance(node, Function | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr
        elif isinstance(node, ast.alias) and node.asname:
            yield node.lineno, node.asname


def words(name: str) -> set[str]:
    """The words of an identifier: `last_status` and `LastStatus` are both (last, status)."""
    return set(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().split("_"))


def imports(tree: ast.Module, module: str, package: bool) -> Iterator[str]:
    """Names of modules that a file may import, wherever the statement stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")
                kept = parts[: len(parts) - node.level + int(package)]
                base = ".".join([*kept, base]).strip(".")
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_modules_and_public_functions_say_what_they_are(file: Path) -> None:
    """A sentence each; an empty file needs none. The stand-in's functions are named after what Stripe calls them."""
    tree = tree_of(file)
    if not tree.body:
        return
    assert ast.get_docstring(tree), f"{name_of(file)} has no docstring"
    if name_of(file).startswith("devstack/stripe_standin/"):
        return
    silent = [f"{f.lineno} {name}" for name, f in public_functions(tree.body) if not ast.get_docstring(f)]
    assert not silent, f"{name_of(file)}: no docstring at {', '.join(silent)}"


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_functions_and_files_fit_the_eye(file: Path) -> None:
    """A function on one screen, a file in one sitting."""
    text = file.read_text()
    assert len(text.splitlines()) <= LONGEST_FILE, f"{name_of(file)} has {len(text.splitlines())} lines"
    long = [
        f"{node.lineno} {node.name} ({node.end_lineno - node.lineno + 1})"
        for node in ast.walk(tree_of(file))
        if isinstance(node, Function)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno + 1 > LONGEST_FUNCTION
    ]
    assert not long, f"{name_of(file)}: longer than {LONGEST_FUNCTION} lines: {', '.join(long)}"


@pytest.mark.parametrize("file", [f for f in FILES if not name_of(f).startswith(PROVIDERS_WORDS)], ids=name_of)
def test_no_banned_name_is_given(file: Path) -> None:
    """One word, one meaning: none of these words is, or is part of, a name that our own code gives."""
    given = {(line, name) for line, name in bound_names(tree_of(file)) if name not in LIBRARIES_WORDS}
    found = sorted((line, name) for line, name in given if words(name) & BANNED)
    assert not found, f"{name_of(file)}: {', '.join(f'{line} {name}' for line, name in found)}"
    assert not words(file.stem) & BANNED, name_of(file)


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_every_todo_names_an_issue(file: Path) -> None:
    """`TODO(#12): …` or none."""
    bare_word = re.compile(r"\b(TODO(?!\(#\d+\): )|FIXME|XXX\b)")
    bare = [n for n, line in enumerate(file.read_text().splitlines(), 1) if bare_word.search(line)]
    assert not bare, f"{name_of(file)}: lines {bare}"


def test_no_module_is_dead() -> None:
    """Something of ours imports every module; tests alone are no use, except of the development stack."""
    used: set[str] = set()
    for file in FILES:
        module = module_of(file)
        used |= {name for name in imports(tree_of(file), module, file.name == "__init__.py") if name != module}
    used_by_tests: set[str] = set()
    for file in sorted((ROOT / "tests").rglob("*.py")):
        used_by_tests |= set(imports(tree_of(file), module_of(file), package=False))
    dead = []
    for file in FILES:
        module = module_of(file)
        if file.name in ("__init__.py", "__main__.py") or module in STARTED or module in used:
            continue
        if module.startswith(FOR_TESTS_TOO) and module in used_by_tests:
            continue
        dead.append(name_of(file))
    assert not dead, f"nothing imports {', '.join(dead)}"


def test_these_rules_see_what_they_look_for() -> None:
    """The checks themselves: each finds its seeded violation, and leaves the neighbouring good line alone."""
    seeded = ast.parse(
        "import a.b\nfrom . import near\nfrom c import d as util\n"
        "class LastStatus:\n    def f(self, data): self.handle = 1\n"
        "def g(): processed = 1\nfor common in (): pass\n"
    )
    found = {name for _, name in bound_names(seeded) if words(name) & BANNED}
    assert found == {"util", "LastStatus", "data", "handle", "common"}
    assert set(imports(seeded, "pkg.mod", package=False)) == {"a.b", "pkg", "pkg.near", "c", "c.d"}
    assert set(imports(ast.parse("from . import near"), "pkg", package=True)) == {"pkg", "pkg.near"}
    silent = [name for name, f in public_functions(seeded.body) if not ast.get_docstring(f)]
    assert silent == ["LastStatus.f", "g"]
    assert len(FILES) > 20
