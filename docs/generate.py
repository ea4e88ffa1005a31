"""Writes the parts of the documents that follow from the code: `python -m docs.generate`; `--check` only compares.

1. A part stands between `<!-- generated:NAME -->` and `<!-- end -->`; everything else belongs to whoever writes.
2. The code is the source: a new setting, command, edge, row or term appears by itself, or stops this program.
3. Nothing depends on the time, the machine or the order of a set: the same code gives the same bytes.
"""

import ast
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from inspect import getsource
from pathlib import Path
from typing import Any

from pydantic_core import PydanticUndefined
from typer.main import get_command

import starter
from activities.metrics import METRICS, TEMPORALS
from activities.settings import Settings
from commands.amounts import lasting
from commands.exits import MEANING
from commands.facts import lost_attempt
from ledger import recovery
from ledger.contract import Source, Timing
from ledger.states import ENDED, RESERVING, TRANSITIONS, BlockReason, State
from providers.port import Provider
from providers.registry import default_registry
from workflows.operation import SEARCH_ATTRIBUTES

ROOT = Path(__file__).parent.parent
REGISTRY = default_registry()
DOCUMENTS = ("README.md", "ARCHITECTURE.md", "docs/contracts.md", "docs/metrics.md")

_PART = re.compile(r"(<!-- generated:([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)

# What the row of each number asks for. The steps and reasons beside it are read from the code.
CONDITIONS: dict[str, str] = {
    "D0": "an attempt is open",
    "D1": "exactly one receipt is known to be ours, not void, and nothing mismatching carries our marker",
    "D2": "two receipts; or something mismatching with our marker; or the provider calls the key misused",
    "D3": "every attempt is proved; or a refusal was stored for our key inside its window, and a complete look agrees",
    "D4": "the one effect of ours is void",
    "D5": "conditional write: a complete look after quiet_at + settling saw another version",
    "D6": "the last answer was busy or no_effect, and the pause is not over",
    "D7": "the key window is open, no answer that would only be repeated, no late send, sending not revoked",
    "D8": "conditional write: a look after the last send saw our version, sending allowed, before review_at",
    "D9": "there are lookup terms; before review_at, or fewer than three looks tried after quiet_at + settling",
    "D10": "nothing else fits",
}

# What the settings without a description of their own mean.


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A markdown table; a bar inside a cell is escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def make_targets() -> str:
    """Every target that `make` alone prints, with its help."""
    found = re.findall(r"^([a-z]+):.*## (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    return table(("target", "what it does"), [(f"`make {name}`", words) for name, words in found])


def settings_table() -> str:
    """Every field of `Settings` as a variable."""
    rows = []
    for name, field in Settings.model_fields.items():
        default = field.default
        shown = "" if default in (None, "", PydanticUndefined) else f"`{str(default).lower()}`"
        rows.append((f"`EFFECTS_{name.upper()}`", shown, field.description or ""))
    return table(("variable", "default", "what it says"), rows)


def each_command() -> Iterator[tuple[str, Any]]:
    """Every command of the command line with the words that call it, in the order of `--help`."""
    waiting: list[tuple[str, Any]] = [("effects", get_command(starter.app))]
    while waiting:
        words, command = waiting.pop(0)
        inner = getattr(command, "commands", None)
        if inner is None:
            yield words, command
        else:
            waiting = [(f"{words} {name}", one) for name, one in inner.items()] + waiting


def commands_table() -> str:
    """Every command with its first sentence."""
    rows = []
    for words, command in each_command():
        arguments = [
            f" {p.metavar or p.name.upper()}" for p in command.params if p.param_type_name == "argument" and p.required
        ]
        rows.append((f"`{words}{''.join(arguments)}`", (command.help or "").split("\n\n")[0].replace("\n", " ")))
    return table(("command", "what it does"), rows)


def exit_codes() -> str:
    """The exit codes of the command line."""
    return table(("code", "meaning"), [(str(code.value), words) for code, words in MEANING.items()])


def states_table() -> str:
    """Every state with its meaning, whether it ends the operation, and whether it reserves its amount."""
    told = dict(re.findall(r'^    [A-Z_]+ = "([a-z_]+)"  # (.*)$', getsource(State), re.MULTILINE))
    rows = []
    for state in State:
        reserves = "yes" if state in RESERVING else ""
        if state is State.SUCCEEDED:
            reserves = "unless its receipt is void"
        rows.append((f"`{state}`", told[state], "yes" if state in ENDED else "", reserves))
    return table(("state", "meaning", "an end", "reserves its amount"), rows)


def block_reasons() -> str:
    """Why an operation may be blocked."""
    return ", ".join(f"`{reason}`" for reason in BlockReason) + "."


def states_picture() -> str:
    """The states and edges as a mermaid diagram, drawn from `states.TRANSITIONS`."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for edge in TRANSITIONS:
        arrows.setdefault((edge.source or "[*]", edge.target), []).append(str(edge.number))
    lines = [f"    {source} --> {target}: {', '.join(numbers)}" for (source, target), numbers in arrows.items()]
    ends = [f"    {state} --> [*]" for state in State if state in ENDED]
    return "\n".join(["```mermaid", "stateDiagram-v2", *lines, *ends, "```"])


def edges_table() -> str:
    """Every edge with its guard."""
    rows = [(str(e.number), f"{e.source or 'none'} → {e.target}", e.guard) for e in TRANSITIONS]
    return table(("edge", "from → to", "guard"), rows)


def decisions_table() -> str:
    """Every row of `recovery.ROWS` in its order, with the steps and reasons that its code can return."""
    rows = []
    for function in recovery.ROWS:
        told = list(_decisions(getsource(function)))
        (number,) = {row for row, _, _ in told}
        steps = "<br>".join(f"**{step}**: {reason}" for _, step, reason in told)
        rows.append((number, CONDITIONS[number], steps))
    if [row[0] for row in rows] != list(CONDITIONS):
        raise SystemExit("docs/generate.py: CONDITIONS and recovery.ROWS have different rows")
    return table(("row", "if", "step and reason"), rows)


def _decisions(source: str) -> Iterator[tuple[str, str, str]]:
    """(row, step, reason) of every Decision that a function makes."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Decision":
            row, step, reason = node.args[:3]
            assert isinstance(row, ast.Constant) and isinstance(step, ast.Attribute)
            assert isinstance(reason, ast.Constant)
            yield str(row.value), step.attr.lower(), str(reason.value)


def search_attributes() -> str:
    """The commands that register what the workflow tells Temporal's visibility."""
    kinds = [(key.name, key.indexed_value_type.name.capitalize()) for key in SEARCH_ATTRIBUTES]
    lines = [f"temporal operator search-attribute create --name {name} --type {kind}" for name, kind in kinds]
    return "\n".join(["```sh", *lines, "```"])


def metrics() -> str:
    """Every number that a worker tells, and those of Temporal's SDK that alerts and dashboard use."""
    rows = [(f"`{m.name}`", m.kind.value, ", ".join(f"`{label}`" for label in m.labels), m.meaning) for m in METRICS]
    told = table(("metric", "kind", "labels", "what it says"), rows)
    return told + "\n\nOf the SDK's own, beside them: " + ", ".join(f"`{name}`" for name in TEMPORALS) + "."


def import_rules() -> str:
    """What import-linter enforces, by name."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    return "\n".join(f"- {contract['name']} ({contract['type']})" for contract in contracts)


def contracts() -> str:
    """The contract of every adapter: each term with its value and what it rests on, and what a person must bring."""
    return "\n\n".join(
        f"{_terms_of(adapter)}\n\n{_bounds_of(adapter)}\n\n{_evidence_for(adapter)}" for adapter in REGISTRY
    )


def _terms_of(adapter: Provider) -> str:
    sources: dict[str, list[Source | None]] = {}
    for source in adapter.contract.sources:
        sources.setdefault(source.term, []).append(source)
    terms = _flat(adapter.contract.model_dump(exclude={"name", "sources"}))
    rows = [
        (f"`{term}`", _value(value), *_basis(term, source))
        for term, value in terms
        for source in sources.get(term) or [None]
    ]
    head = f"## {adapter.action} ({adapter.provider})"
    return f"{head}\n\n{table(('term', 'value', 'basis', 'what it rests on'), rows)}"


def _bounds_of(adapter: Provider) -> str:
    """What the terms come to for one attempt whose answer was lost."""
    contract, claimed_at = adapter.contract, datetime(2026, 1, 1, tzinfo=UTC)
    lost = (lost_attempt(contract, claimed_at),)
    bounds = (
        ("a claim's lease is over", claimed_at + timedelta(seconds=contract.timing.lease)),
        ("the last repeat may be claimed", recovery.key_window_ends(contract, lost)),
        ("`quiet_at`: no request can still be worked on", recovery.quiet_at(contract, lost)),
    )
    told = [f"- {name}: {lasting(at - claimed_at)}" for name, at in bounds if at is not None]
    return "\n".join(["After one claim whose answer was lost:", "", *told])


def _evidence_for(adapter: Provider) -> str:
    told = "\n>\n".join(f"> {line}" for line in adapter.resolution.splitlines())
    return f"What a person must bring to end a review (`effects review OPERATION` prints it too):\n\n{told}"


def _flat(dumped: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in dumped.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return lasting(timedelta(seconds=value))
    return "none" if value is None else f"`{value}`"


def _basis(term: str, source: Source | None) -> tuple[str, str]:
    if source is None and term.startswith("timing."):
        return "ours", Timing.model_fields[term.removeprefix("timing.")].description or "a bound that we keep ourselves"
    if source is None:
        return "not offered", "what a provider does not promise counts as no"
    if source.assumption:
        return f"**assumption**, {source.read_on}", source.text
    if source.measured_on:
        return f"measured on {source.measured_on}, {source.read_on}", source.text
    return f"[documented]({source.url}), read {source.read_on}", source.text


PARTS: dict[str, Callable[[], str]] = {
    "make-targets": make_targets,
    "settings": settings_table,
    "commands": commands_table,
    "exit-codes": exit_codes,
    "states": states_table,
    "block-reasons": block_reasons,
    "states-picture": states_picture,
    "edges": edges_table,
    "decisions": decisions_table,
    "search-attributes": search_attributes,
    "metrics": metrics,
    "import-rules": import_rules,
    "contracts": contracts,
}


def fresh(text: str) -> str:
    """The text with every generated part made anew. Names a part that nobody makes."""

    def made(found: re.Match[str]) -> str:
        if found[2] not in PARTS:
            raise SystemExit(f"nobody makes the part {found[2]}; there are {', '.join(PARTS)}")
        return f"{found[1]}\n{PARTS[found[2]]()}\n\n{found[3]}"

    return _PART.sub(made, text)


def stale() -> list[str]:
    """The documents whose generated parts are not what the code says."""
    return [name for name in DOCUMENTS if fresh(text := (ROOT / name).read_text()) != text]


def main(arguments: Sequence[str]) -> int:
    """Write what is stale; with `--check` only name it, and 1 if there is any."""
    found = stale()
    if "--check" in arguments:
        for name in found:
            print(f"{name}: its generated parts are not what the code says: run `make docs`", file=sys.stderr)
        return int(bool(found))
    for name in found:
        (ROOT / name).write_text(fresh((ROOT / name).read_text()))
        print(f"wrote {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
