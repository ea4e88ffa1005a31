"""Saved bundles and what the auditor's script says to every change of them; tests/e2e/test_cli_evidence.py made them."""

import ast
import copy
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.fingerprint import to_base64url
from ledger.statement import new_private_key, public_x
from ledger.states import TRANSITIONS

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "tests" / "unit" / "evidence"
SCRIPT = ROOT / "docs" / "verify_evidence.py"
BUNDLES = ("found", "settled")
KNOWN = json.loads((KEPT / "known.json").read_text())
Json = Any
Place = tuple[str | int, ...]


@cache
def script() -> Any:
    """The script, as a module of its own."""
    spec = importlib.util.spec_from_file_location("verify_evidence", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def objections(
    bundle: Json, *, known: tuple[str, ...] = (), checkpoint: Path | None = None, key: str = KNOWN["key"]
) -> dict[str, str]:
    """What does not hold, by check."""
    found = script().objections(json.dumps(bundle), list(known), [str(checkpoint), key] if checkpoint else [])
    return {words: why for words, why in found.items() if why}


def believed(bundle: Json) -> bool:
    """Whether every check holds; asks only until one does not."""
    module = script()
    try:
        read = module.Bundle(json.dumps(bundle), [], [])
        for check in module.CHECKS[:-1]:
            check(read)
    except module.UNBELIEVED:
        return False
    return True


@cache
def text(name: str) -> str:
    """A saved bundle."""
    return (KEPT / f"{name}.json").read_text()


def saved(name: str) -> Json:
    """A copy of a saved bundle, to be tampered with."""
    return json.loads(text(name))


def places(part: Json, at: Place = ()) -> Iterator[Place]:
    """Where every value stands: leaves, lists and objects."""
    yield at
    inner = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
    for key, value in inner:
        yield from places(value, (*at, key))


def put(bundle: Json, place: Place, change: Callable[[Json, str | int], None]) -> Json:
    """The bundle with something done to the holder of this place."""
    holder = bundle
    for key in place[:-1]:
        holder = holder[key]
    change(holder, place[-1])
    return bundle


def others(value: Json) -> list[Json]:
    """Values that are not this one, of its type and of others."""
    if isinstance(value, bool):
        return [not value, None, int(value)]
    if isinstance(value, int):
        return [value + 1, value - 1, None, str(value), float(value), bool(value)]
    if isinstance(value, str):
        changed = [value[:-1], value + " ", value[: len(value) // 2] + "\u0430" + value[len(value) // 2 + 1 :], None]
        return [*changed, value.swapcase()] if value.swapcase() != value else changed
    return ["", 0, "x", False] if value is None else [None, {}, []]


def covered(name: str) -> list[Place]:
    """Every place but what the bundle itself says that nothing covers."""
    return [place for place in places(saved(name)) if place and place[0] != "unproved"]


@pytest.mark.parametrize("name", BUNDLES)
def test_a_saved_bundle_holds_with_everything_that_an_auditor_may_know(name: str) -> None:
    """Configuration and checkpoint included."""
    assert objections(saved(name), known=(KNOWN["config"],), checkpoint=KEPT / "checkpoint.jsonl") == {}
    assert len(covered(name)) > 200


@pytest.mark.parametrize("name", BUNDLES)
def test_every_changed_value_is_found(name: str) -> None:
    """Each leaf, list and object of the bundle, replaced by several others, one at a time.

    Red: leave any comparison out of the script, like that of `standing`, of `contradicted` or of an empty `source`.
    """
    for place in covered(name):
        at = saved(name)
        for key in place:
            at = at[key]
        for other in others(at):
            changed = put(saved(name), place, lambda holder, key, other=other: holder.__setitem__(key, other))
            if changed != saved(name) or type(other) is not type(at):
                assert not believed(changed), (place, other)


@pytest.mark.parametrize("name", BUNDLES)
def test_everything_missing_repeated_or_moved_is_found(name: str) -> None:
    """Each field and each item taken out; each item of a list doubled, and exchanged with the next one.

    Red: compare sets of statements or sheets instead of their order in the trail.
    """

    def exchange(holder: Json, key: Any) -> None:
        holder[key : key + 2] = holder[key + 1 : key - 1 : -1] if key else holder[1::-1]

    for place in covered(name):
        assert not believed(put(saved(name), place, lambda holder, key: holder.pop(key))), place
        if isinstance(place[-1], int):
            doubled = put(saved(name), place, lambda holder, key: holder.insert(key, copy.deepcopy(holder[key])))
            assert not believed(doubled), place
            exchanged = put(saved(name), place, exchange)
            if exchanged != saved(name):
                assert not believed(exchanged), place


def texts() -> list[tuple[str, Place]]:
    """Every text of both bundles that something covers."""
    found = []
    for name in BUNDLES:
        for place in covered(name):
            at = saved(name)
            for key in place:
                at = at[key]
            found += [(name, place)] if isinstance(at, str) else []
    return found


@given(st.sampled_from(texts()), st.integers(min_value=0), st.characters(codec="utf-8"))
def test_any_changed_character_is_found(where: tuple[str, Place], position: int, character: str) -> None:
    """At any position of any text: of a statement, a sheet, a body, a frozen request, a configuration, a proof."""
    name, place = where

    def change(holder: Json, key: Any) -> None:
        at = position % max(len(holder[key]), 1)
        holder[key] = holder[key][:at] + character + holder[key][at + 1 :]

    changed = put(saved(name), place, change)
    assert changed == saved(name) or not believed(changed), (place, position)


def test_the_usual_forgeries_are_found_by_the_check_that_is_for_them() -> None:
    """Each with the check that names it, whatever else objects."""
    for forge, words in (
        (another_amount, "is told by event 1"),
        (lambda b: b["operation"]["events"].pop(), "Both trails are whole"),
        (swapped_statement, "Every accepted statement is there"),
        (another_key, "Every configuration in force meanwhile"),
        (another_request, "Each claim opened one attempt"),
        (lambda b: b["operation"].update(state="succeeded", receipt="re_1", standing="good"), "Every move goes along"),
        (lambda b: b["ledger"].update(namespace="00000000-0000-4000-8000-000000000000"), "named after ledger"),
    ):
        bundle = saved("settled")
        forge(bundle)
        assert any(words in check for check in objections(bundle)), words


def another_amount(bundle: Json) -> None:
    """Ten times as much, wherever it stands."""
    kept = bundle["operation"]["canonical"]
    changed = kept.replace('"amount_minor":5000', '"amount_minor":50000')
    assert changed != kept
    bundle["operation"]["canonical"] = changed
    bundle["sheets"] = [sheet.replace(kept, changed) for sheet in bundle["sheets"]]


def another_request(bundle: Json) -> None:
    """Frozen with another amount."""
    kept = bundle["operation"]["frozen_request"]
    bundle["operation"]["frozen_request"] = kept.replace("5000", "50000")
    assert kept != bundle["operation"]["frozen_request"]


def another_key(bundle: Json) -> None:
    """Somebody puts a key of their own into the configuration, under alice's name."""
    for one in bundle["configurations"]:
        document = json.loads(one["document"])
        alice = next(person for person in document["people"] if person["name"] == "alice")
        alice["keys"][0]["x"] = public_x(new_private_key())
        one["document"] = json.dumps(document, separators=(",", ":"), sort_keys=True)


def swapped_statement(bundle: Json) -> None:
    """One operator's statement with the proof of the other."""
    first, second = bundle["statements"][1:]
    first["proof"], second["proof"] = second["proof"], first["proof"]


def cut(bundle: Json, count: int, state: str) -> Json:
    """As it truly was at an earlier event, head and all."""
    operation = bundle["operation"]
    operation["events"] = operation["events"][:count]
    operation |= {"event_count": count, "head_hash": operation["events"][-1]["hash"], "state": state}
    operation |= {"receipt": None, "standing": None, "contradicted": False}
    bundle["statements"] = bundle["statements"][: sum('"jti"' in e["body"] for e in operation["events"])]
    return bundle


def test_an_older_trail_holds_by_itself_and_not_beside_a_checkpoint() -> None:
    """Cut after event 17 it is what it was then, before the second operator's word moved it: only what is kept elsewhere
    knows of more.

    Red: leave out the comparison of heads in `check_checkpoint`.
    """
    bundle = saved("settled")
    ends = [e["number"] for e in bundle["operation"]["events"] if e["kind"] == "moved"][-1]
    earlier = cut(bundle, ends - 1, "needs_review")
    assert objections(earlier) == {}
    (why,) = objections(earlier, checkpoint=KEPT / "checkpoint.jsonl").values()
    assert "was cut or made anew" in why


def test_a_configuration_that_nobody_knows_is_found() -> None:
    """Whoever makes everything anew, keys included, is found by the digest that an auditor has from elsewhere."""
    (why,) = objections(saved("found"), known=("00" * 32,)).values()
    assert KNOWN["config"] in why


@pytest.mark.parametrize("line", range(4))
def test_a_changed_checkpoint_is_found(line: int, tmp_path: Path) -> None:
    """A line of it, or what was signed; and one that is not named in it."""
    lines = (KEPT / "checkpoint.jsonl").read_text().splitlines(keepends=True)
    assert len(lines) == 4
    changed = tmp_path / "checkpoint.jsonl"
    for text_of_it in (
        [*lines[:line], lines[line].replace("1", "2", 1), *lines[line + 1 :]],
        [*lines[:line], *lines[line + 1 :]],
        [*lines[: line + 1], *lines[line:]],
    ):
        changed.write_text("".join(text_of_it))
        assert objections(saved("found"), checkpoint=changed)


def test_another_key_under_the_checkpoint_is_found() -> None:
    """The key is the auditor's to know; the one in the bundle does not count."""
    for key, words in ((public_x(new_private_key()), "InvalidSignature"), (to_base64url(bytes(32)), "weak")):
        (why,) = objections(saved("found"), checkpoint=KEPT / "checkpoint.jsonl", key=key).values()
        assert words in why


def test_the_script_knows_every_edge_and_nothing_of_ours() -> None:
    """It is a second opinion only as long as it imports none of what it judges."""
    drawn = {(e.number, e.source.value if e.source else "-", e.target.value) for e in TRANSITIONS}
    assert drawn == script().MOVES
    tree = ast.parse(SCRIPT.read_text())
    named = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    named |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in named} <= {*sys.stdlib_module_names, "cryptography"}
    assert len(SCRIPT.read_text().splitlines()) <= 400


@pytest.mark.parametrize("junk", ["", "[]", "{}", '{"kind": 1}', "[" * 100_000, "\x00", "nonsense"])
def test_what_is_no_bundle_does_not_hold(junk: str, tmp_path: Path) -> None:
    """And is said to be none, without a traceback."""
    assert any(script().objections(junk, [], []).values())


def test_what_the_script_says_and_how_it_ends(tmp_path: Path) -> None:
    """Exit codes 0, 1 and 2; nothing that a bundle says acts on the terminal."""

    def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-I", str(SCRIPT), *map(str, words)]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)

    good = run(KEPT / "found.json")
    assert (good.returncode, good.stderr) == (0, "") and f"configuration 1 is {KNOWN['config']}" in good.stdout
    bundle = saved("found")
    bundle["operation"]["state"] = "\x1b[2Jsucceeded"
    (tmp_path / "bad.json").write_text(json.dumps(bundle))
    bad = run("bad.json")
    assert bad.returncode == 1 and "NO  " in bad.stdout and "\x1b" not in bad.stdout and "It holds" not in bad.stdout
    assert run(KEPT / "found.json", "--checkpoint", KEPT / "checkpoint.jsonl").returncode == 2  # and by whose key?
