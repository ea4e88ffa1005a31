"""The fault matrix: which faults there are, to whom each can happen, and docs/faults.md, which is made of what tests saw.

1. `make faults` runs the tests that are marked `matrix`. Each writes down what it knows anyway (tests/matrix.py): how many
   effects the receiver's own records have, how the operation ended, after how long, and by whom.
2. `python -m docs.faults FILE` makes the page of these lines. It knows no outcome of its own.
3. A cell that cannot be has a reason here. One that could be and was not tried says so, and a test fails on it.
"""

import importlib.metadata
import json
import os
import platform
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from ledger.contract import Contract
from providers.port import Provider
from providers.registry import default_registry

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "faults.md"
NOT_TRIED = "**not tried**"
BEFORE, AFTER = "before", "after"


class Trouble(StrEnum):
    """What goes wrong, in the words of the page."""

    RESET = "connection reset (RST)"
    FIN = "connection closed (FIN)"
    HANG = "silence until the deadline"
    LATE = "request delivered late, once its caller is gone"
    DRIP = "answer in drops, longer than the deadline"
    TRUNCATED = "message cut in the middle"
    PAGE_200 = "200 with an HTML page"
    PAGE_502 = "502 or 503 of a gateway, with a page"
    STORED_500 = "500, stored for the key"
    ROLLED_FORWARD = "500, stored for the key, rolled forward later"
    CONFLICT_409 = "409"
    RATE_429 = "429, too many requests"
    LOCK_429 = "429, lock timeout"
    LOGIN_401 = "401, login refused"
    KEY_EXPIRED = "worker killed, found when the key has expired"
    LOOKUP_LAGS = "answer lost, lookup shows the past for a while"
    TWO_OBJECTS = "answer lost, a second object with our marker"
    FOREIGN_EQUAL = "line dead, and somebody does the same by hand"
    UNMARKED = "answer lost, marker edited away"
    SIGKILL = "worker SIGKILL"
    SIGSTOP = "worker SIGSTOP past the lease, then SIGCONT"
    POSTGRES = "Postgres killed and restarted, request under way"
    TEMPORAL = "Temporal killed and restarted, request under way"
    WORKFLOW_RESET = "workflow reset, request under way"
    TERMINATED = "workflow terminated and started again, request under way"


@dataclass(frozen=True)
class Row:
    """A fault at one moment: before the receiver carries it out, or after."""

    fault: Trouble
    when: str
    fits: Callable[[Provider], bool] = lambda provider: True
    why_not: str = ""  # of those that it does not fit


def _keyed(provider: Provider) -> bool:
    return provider.contract.key is not None


def _looks(provider: Provider) -> bool:
    return provider.contract.lookup is not None


def _over_http(provider: Provider) -> bool:
    return provider.provider != "mail"


def _makes_an_object(provider: Provider) -> bool:
    return _looks(provider) and not provider.contract.witness


_NO_KEY = "It has no idempotency keys: nothing is stored for one, locked by one, or outlives one."
_NO_HTTP = "SMTP has no such answer. Its 451 stands in the row of the 429."
_NO_LOOKUP = "Nothing can be looked up, so that nobody sees what stands there; a lost answer is a person's at once."
_ONE_RECORD = (
    "The effect is a change of one record at one version, and the receiver's log tells by whom: there is no second object, "
    "or nothing can be looked up at all."
)

ROWS: tuple[Row, ...] = (
    *(Row(fault, when) for fault in (Trouble.RESET, Trouble.FIN, Trouble.HANG) for when in (BEFORE, AFTER)),
    Row(Trouble.LATE, BEFORE),
    Row(Trouble.DRIP, AFTER),
    *(
        Row(fault, when)
        for fault in (Trouble.TRUNCATED, Trouble.PAGE_200, Trouble.PAGE_502)
        for when in (BEFORE, AFTER)
    ),
    Row(Trouble.STORED_500, BEFORE, _keyed, _NO_KEY),
    Row(Trouble.STORED_500, AFTER, _keyed, _NO_KEY),
    Row(Trouble.ROLLED_FORWARD, BEFORE, _keyed, _NO_KEY),
    Row(Trouble.CONFLICT_409, BEFORE, _over_http, _NO_HTTP),
    Row(Trouble.RATE_429, BEFORE),
    Row(Trouble.LOCK_429, BEFORE, _keyed, _NO_KEY),
    Row(Trouble.LOGIN_401, BEFORE),
    Row(Trouble.KEY_EXPIRED, BEFORE, _keyed, _NO_KEY),
    Row(Trouble.KEY_EXPIRED, AFTER, _keyed, _NO_KEY),
    Row(Trouble.LOOKUP_LAGS, AFTER, _looks, _NO_LOOKUP),
    Row(Trouble.TWO_OBJECTS, AFTER, _makes_an_object, _ONE_RECORD),
    Row(Trouble.FOREIGN_EQUAL, BEFORE, _looks, _NO_LOOKUP),
    Row(Trouble.FOREIGN_EQUAL, AFTER, _looks, _NO_LOOKUP),
    Row(Trouble.UNMARKED, AFTER, _looks, _NO_LOOKUP),
    *(
        Row(fault, when)
        for fault in (
            Trouble.SIGKILL,
            Trouble.SIGSTOP,
            Trouble.POSTGRES,
            Trouble.TEMPORAL,
            Trouble.WORKFLOW_RESET,
            Trouble.TERMINATED,
        )
        for when in (BEFORE, AFTER)
    ),
)

_HEAD = """# What each fault leads to

{origin} Do not edit it.

Each cell is one operation of one action under one fault, played by a test on real processes: real kills, a real Postgres and
Temporal, the real receivers (Stripe's stand-in excepted) behind a proxy that spoils one exchange. It reads: **effects** by the
receiver's own records, never by our ledger · **how it ended** (`review`: nothing safe is left for a machine, and a person is
asked) · **how long** it took from the proposal to that, in ledger time and by order of magnitude (s, min, h, d) · **by whom**.

- *before* and *after* are seen from the receiver: before it carried the request out, or after.
- Our effects are counted. Those that others made in some of these rows are not.
- The tests move the ledger's clock in jumps, so that `h` may be an hour where the contract allows minutes. What a contract
  allows stands in [contracts.md](contracts.md).
- At a mail server, the page of a gateway stands for any answer that is none of SMTP.
- Postgres: the ERP's database dies with the ledger, so that a request on its way to the ERP is lost too.
- SIGSTOP before: the worker stops between claim and send. Another takes over and asks a person where it must; when the first goes
  on, its guard sends nothing and says so, which proves the way free, and it is sent once.
- Where others interfere, a refund's answer is a stored 500: otherwise its key would settle it, whatever they do.
- Two answers in one cell: the fault was played at several points, and they ended differently.
- {not_tried} would be a cell that could be and that no test has played.
"""


def kind_of(contract: Contract) -> str:
    """What kind of contract this is, by what it has; recovery differs by these."""
    told = []
    if contract.key is not None:
        told.append("key")
    if contract.conditional_write:
        told.append("version that can return" if contract.versions_return else "version")
    if contract.lookup is not None:
        told.append("marker")
    if contract.witness:
        told.append("witness")
    return ", ".join(told) or "nothing"


def columns() -> list[Provider]:
    """Every adapter, those with the same kind of contract side by side, those with most to offer first."""
    order = ("key", "version,", "version that", "marker", "nothing")
    return sorted(
        default_registry(),
        key=lambda p: (next(at for at, word in enumerate(order) if kind_of(p.contract).startswith(word)), p.action),
    )


def shown(cells: Sequence[dict[str, Any]]) -> str:
    """What the page has of these outcomes of one cell: those that differ in time only are one, with the longest."""
    longest: dict[tuple[int, str, str], float] = {}
    for cell in cells:
        state = "review" if cell["state"] == "needs_review" else cell["state"]
        by = "**person**" if cell["by"] == "person" else cell["by"]
        came_to = (cell["effects"], state, by)
        longest[came_to] = max(cell["seconds"], longest.get(came_to, 0.0))
    return "<br>or ".join(
        f"{effects} · {state} · {_magnitude(seconds)} · {by}"
        for (effects, state, by), seconds in sorted(longest.items())
    )


def _magnitude(seconds: float) -> str:
    for unit, length in (("d", 86_400.0), ("h", 3_600.0), ("min", 60.0)):
        if seconds >= length:
            return unit
    return "s"


def page(cells: Iterable[dict[str, Any]], origin: str) -> str:
    """The whole page. SystemExit for a cell of no row or no column: its test says something that nobody would read."""
    adapters = columns()
    seen: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    known = {(row.fault.value, row.when, p.action) for row in ROWS for p in adapters if row.fits(p)}
    for cell in cells:
        place = (cell["fault"], cell["when"], cell["action"])
        if place not in known:
            raise SystemExit(f"a test recorded {place}, and docs/faults.py has no such cell")
        seen.setdefault(place, []).append(cell)
    notes: list[str] = []
    lines = [
        f"| fault | effect | {' | '.join(f'`{p.action}`' for p in adapters)} |",
        f"| --- | --- | {' | '.join('---' for _ in adapters)} |",
        f"| *its contract has* |  | {' | '.join(f'*{kind_of(p.contract)}*' for p in adapters)} |",
    ]
    for row in ROWS:
        told = [_cell(row, p, seen.get((row.fault.value, row.when, p.action)), notes) for p in adapters]
        lines.append(f"| {row.fault} | {row.when} | {' | '.join(told)} |")
    footnotes = [f"[^{number}]: {why}" for number, why in enumerate(notes, 1)]
    return "\n".join([_HEAD.format(origin=origin, not_tried=NOT_TRIED), *lines, "", *footnotes, ""])


def _cell(row: Row, provider: Provider, found: Sequence[dict[str, Any]] | None, notes: list[str]) -> str:
    if row.fits(provider):
        return shown(found) if found else NOT_TRIED
    if row.why_not not in notes:
        notes.append(row.why_not)
    return f"—[^{notes.index(row.why_not) + 1}]"


def origin() -> str:
    """By what the page was made, when, and on what. No name or path of a machine."""
    pinned = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]["erp"]
    found = [re.match(r"([a-z-]+)(?:\[.*])?==(.*)", line) for line in pinned]
    receivers = {one[1]: one[2] for one in found if one is not None}
    versions = [
        f"Python {platform.python_version()}",
        f"stripe {importlib.metadata.version('stripe')}",
        f"Tryton {receivers['trytond']}",
        f"Radicale {receivers['radicale']}",
        f"mail-devel {receivers['mail-devel']}",
    ]
    machine = f"{platform.system()} {platform.machine()} with {os.cpu_count()} CPUs"
    today = datetime.now(UTC).date().isoformat()
    return f"Written by `make faults` on {today}, on {machine}: {', '.join(versions)}."


def main(arguments: Sequence[str]) -> int:
    """Write the page from a file of recorded cells; 1 while a cell that could be was not tried."""
    lines = Path(arguments[0]).read_text().splitlines()
    PAGE.write_text(page(map(json.loads, lines), origin()))
    gaps = sum(line.count(NOT_TRIED) for line in PAGE.read_text().splitlines() if line.startswith("|"))
    print(f"wrote {PAGE.relative_to(ROOT)} from {len(lines)} outcomes; {gaps} cells not tried")
    return int(gaps > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
