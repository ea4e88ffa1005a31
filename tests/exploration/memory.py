"""A ledger in memory under the real activities: this file mirrors the SQL of the store, and nothing else.

1. One `Desk` is connection, pool and transaction: each call is one transaction under its locks, so nothing interleaves in it.
2. `operations.move`, `note`, `insert` and `attempts.answer`, `open_attempt`, `record_sighting` are the real ones; here are
   the five statements that they execute, the reads, and the trigger's rule that a claim raises the fence by one.
3. Event numbers and hashes are left out: under the row lock they cannot differ. `test_replay_sql.py` compares with Postgres.
"""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

from activities import approve, dispatch, judgement, reconcile, resolve, settle
from ledger.errors import Broken
from ledger.model import Attempt, Operation, SeenEffect, Sighting, Standing
from ledger.policy import Totals
from ledger.statement import StatementType
from ledger.states import RESERVING, State
from ledger.store import (
    attempts,
    clock,
    configuration,
    dependencies,
    events,
    holds,
    inbox,
    operations,
    statements,
    totals,
)
from ledger.trail import EventKind
from providers.port import Credential
from tests.exploration.shapes import ACCOUNT, document, kid_of

HOLD = holds.Hold("all", held=True, since=None, reason="")
CREDENTIAL = Credential(ACCOUNT, False, "none")
MOVING = [
    *("state", "reason", "people_needed", "fence", "lease_until", "first_claimed_at", "ended_at", "next_step"),
    *("next_step_at", "review_at", "look_again_at", "receipt", "standing"),
]
KEYED = [name for name in MOVING if name not in ("reason", "ended_at")]  # what decides anything


class Rows(NamedTuple):
    """What the ledger holds about one operation. `said` are the people who approved, or `withdrawal`."""

    operation: Operation
    attempts: tuple[Attempt, ...] = ()
    sightings: tuple[Sighting, ...] = ()
    said: tuple[str, ...] = ()
    contradicted: bool = False  # listed for people although it ended
    alarm: str = ""  # the body of its latest contradiction

    def key(self) -> tuple[Any, ...]:
        """Equal for rows that no decision can tell apart, nor an invariant: those ask why something was blocked."""
        blocked = self.operation.reason if self.operation.state is State.BLOCKED else ""
        return (
            blocked,
            tuple(getattr(self.operation, name) for name in KEYED),
            tuple(attempt_key(a) for a in self.attempts),
            tuple(sighting_key(s) for s in self.sightings),
            self.said,
            self.contradicted,
            self.alarm,
        )

    @property
    def last_event(self) -> datetime:
        """The time of the latest event, as far as rows tell it: ledger time is never behind it."""
        told = [self.operation.proposed_at]
        told += [a.answered_at or a.claimed_at for a in self.attempts] + [s.finished_at for s in self.sightings]
        return max(told)


def attempt_key(a: Attempt) -> tuple[Any, ...]:
    """What of an attempt decides anything."""
    return a.number, a.claimed_at, a.outcome, a.hint, a.stored, a.receipt, a.standing, a.answered_at, a.late_send_at


def sighting_key(s: Sighting) -> tuple[Any, ...]:
    """What of a look decides anything."""
    seen = tuple((e.receipt, e.standing, e.marked, e.matching) for e in s.effects)
    return s.began_at, s.finished_at, s.complete, seen, s.version_moved, s.witness_has_marker


class Move(NamedTuple):
    """One move as the trail tells it, with what the ledger held before."""

    edge: int
    source: State
    target: State
    fences: tuple[int, int]
    row: str
    at: datetime
    before: Rows

    @property
    def kind(self) -> tuple[Any, ...]:
        """Equal for moves along the same edge on facts of the same kind."""
        tried = tuple((a.outcome, a.hint, a.stored, a.late_send_at is not None) for a in self.before.attempts)
        looks = [(s.complete, len(s.effects), s.version_moved, s.witness_has_marker) for s in self.before.sightings]
        return self.edge, self.source, self.target, self.fences[1] - self.fences[0], self.row, tried, tuple(looks[-1:])


class Write(NamedTuple):
    """One call of the store that writes, in order, so that it can be made again on the real one."""

    name: str
    arguments: tuple[Any, ...]


class _Found:
    """A cursor."""

    def __init__(self, *rows: dict[str, Any]) -> None:
        self.rowcount, self._rows = len(rows), list(rows)

    async def fetchone(self) -> dict[str, Any] | None:
        """The first row."""
        return self._rows[0] if self._rows else None


@dataclass
class Desk:
    """The ledger while one transaction runs. `times` are what `ledger_now()` says; the last one goes on."""

    rows: Rows
    others: tuple[Rows, ...] = ()
    times: list[datetime] = field(default_factory=list)
    ahead: float = 0.0
    held: bool = False
    config: int = 0
    boot: float = 0.0
    reading: Any = None
    began: datetime | None = None  # when the worker of a claim began: before it had the lock
    moves: list[Move] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)

    @property
    def others_operations(self) -> tuple[Operation, ...]:
        """The other operations of the ledger."""
        return tuple(rows.operation for rows in self.others)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator["Desk"]:
        """What a transaction wrote is gone if it raises."""
        kept = self.rows, list(self.moves), list(self.writes)
        try:
            yield self
        except BaseException:
            self.rows, self.moves, self.writes = kept
            raise

    async def execute(self, query: str, given: Any = None) -> _Found:
        """The writes of the store, by the table that they name."""
        if query.startswith("update operations set state"):
            return self._update_operation(given)
        if query.startswith("update operations set contradicted"):
            self.rows = self.rows._replace(contradicted=True)
            return _Found()
        if query.startswith("insert into operations"):
            return _Found({"operation_id": given["operation_id"]})
        if query.startswith("insert into attempts"):
            _, number, claimed_at, lease_until, _ = given
            if any(a.outcome is None for a in self.rows.attempts):
                raise Broken("one_open_attempt")
            made = Attempt(number=number, claimed_at=claimed_at, lease_until=lease_until)
            self.rows = self.rows._replace(attempts=(*self.rows.attempts, made))
            return _Found()
        if query.startswith("update attempts"):
            return self._update_attempt(given)
        if query.startswith("insert into sightings"):
            _, _, began, finished, complete, effects, moved, witness, _ = given
            seen = tuple(SeenEffect(**{**e, "standing": Standing(e["standing"])}) for e in effects.obj)
            made_look = Sighting(began, finished, complete, seen, moved, witness)
            self.rows = self.rows._replace(sightings=(*self.rows.sightings, made_look))
            return _Found()
        raise AssertionError(f"the mirror has no such statement: {query}")

    def _update_operation(self, given: dict[str, Any]) -> _Found:
        before = self.rows.operation
        if (before.state, before.fence) != (given["expected_state"], given["expected_fence"]):
            return _Found()
        claimed = given["state"] is State.IN_FLIGHT and before.state is not State.IN_FLIGHT
        if claimed and before.state is State.APPROVED and not self.dependencies_stand():
            raise Broken("EL001: it depends on what has not ended as it must")
        if given["fence"] != before.fence + claimed:
            raise Broken("EL001: the fence rises by one with every claim and never otherwise")
        self.rows = self.rows._replace(operation=replace(before, **{name: given[name] for name in MOVING}))
        return _Found({})

    def dependencies_stand(self) -> bool:
        """Whether what it depends on has ended as it must: the trigger's words."""
        found = {str(rows.operation.operation_id): rows for rows in self.others}
        needed = [(need, found[need["operation_id"]]) for need in self.rows.operation.depends_on]
        return not any(
            rows.operation.state != need["state"] or rows.contradicted or rows.operation.standing is Standing.VOID
            for need, rows in needed
        )

    def _update_attempt(self, given: dict[str, Any]) -> _Found:
        def told(a: Attempt) -> Attempt:
            if a.number != given["number"]:
                return a
            if a.outcome in attempts.DEFINITE:
                raise Broken("EL003: a definite outcome changed")
            names = ("outcome", "hint", "stored", "receipt", "standing", "answered_at")
            late = a.late_send_at or given["late_send_at"]
            if "outcome" not in given:
                return replace(a, late_send_at=late)
            return replace(a, late_send_at=late, **{name: given[name] for name in names})

        self.rows = self.rows._replace(attempts=tuple(told(a) for a in self.rows.attempts))
        return _Found({})


class _Said(NamedTuple):
    """A statement, as far as judgement reads it."""

    typ: StatementType
    person: str
    kid: str


async def _now(desk: Desk) -> datetime:
    return desk.times.pop(0) if len(desk.times) > 1 else desk.times[0]


async def _lock(desk: Desk, operation_id: Any, *, known_events: int = 0) -> Operation:
    return desk.rows.operation


async def _read_attempts(desk: Desk, operation_id: Any) -> list[Attempt]:
    return list(desk.rows.attempts)


async def _read_sightings(desk: Desk, operation_id: Any) -> list[Sighting]:
    return list(desk.rows.sightings)


async def _append(desk: Desk, operation: Operation, kind: Any, body: Any) -> Operation:
    if kind is EventKind.CONTRADICTION:
        desk.rows = desk.rows._replace(alarm=json.dumps(body))
    return operation


async def _latest_body(desk: Desk, stream: Any, kind: Any) -> Any:
    return json.loads(desk.rows.alarm or "{}")


async def _append_move(
    desk: Desk, operation_id: Any, edge: int, source: State | None, target: State, fence: int, body: dict[str, Any]
) -> tuple[int, bytes]:
    return 0, b""


async def _said(desk: Desk, operation_id: Any) -> list[_Said]:
    kinds = {"withdrawal": StatementType.WITHDRAWAL}
    return [_Said(kinds.get(name, StatementType.APPROVAL), name, kid_of(name)) for name in desk.rows.said if name]


async def _waived(desk: Desk, operation: Operation, at: datetime) -> Totals:
    holding = [o for o in desk.others_operations if o.people_needed == 0 and o.state in RESERVING]
    total = sum(o.amount_minor or 0 for o in holding if o.standing is not Standing.VOID)
    return Totals(total, total)


async def _needed(desk: Desk, operation_ids: Any) -> dict[Any, dependencies.Needed]:
    return {
        rows.operation.operation_id: _as_needed(rows)
        for rows in desk.others
        if rows.operation.operation_id in operation_ids
    }


def _as_needed(rows: Rows) -> dependencies.Needed:
    o = rows.operation
    named = (o.operation_id, o.business_key, o.actor, o.action, o.target, o.state, o.standing)
    return dependencies.Needed(*named, rows.contradicted, o.receipt, o.people_needed)


def _taken(desk: Desk, operation: Operation, receipt: str) -> bool:
    return receipt in {other.receipt for other in desk.others_operations}


def _answering(value: Any) -> Any:
    async def answer(*_: Any, **__: Any) -> Any:
        return value(*_) if callable(value) else value

    return answer


def _logged(real: Any, name: str) -> Any:
    """The real writing function of the store, noted so that it can be made again on the real SQL."""

    async def write(desk: Desk, *given: Any) -> Any:
        before = desk.rows
        told = await real(desk, *given)
        desk.writes.append(Write(name, given))
        if name == "move":
            old, new, edge, at, body = given
            fences = (old.fence, new.fence)
            desk.moves.append(Move(edge, old.state, new.state, fences, str(body.get("row", "")), at, before))
        return told

    return write


@asynccontextmanager
async def _nothing() -> AsyncIterator[None]:
    yield


@asynccontextmanager
async def _timeout(delay: float) -> AsyncIterator[None]:
    if delay <= 0:
        raise TimeoutError
    yield


@contextmanager
def in_memory() -> Iterator[None]:
    """The activities work on a `Desk` while this lasts."""
    with ExitStack() as stack:
        for holder, name, value in _replaced():
            stack.enter_context(patch.object(holder, name, value))
        yield


def _replaced() -> list[tuple[Any, str, Any]]:
    writes: list[tuple[Any, str]] = [(operations, "move"), (operations, "note"), (operations, "insert")]
    writes += [(operations, "mark_contradicted")]
    writes += [(attempts, "open_attempt"), (attempts, "answer"), (attempts, "record_sighting")]
    return [
        *((module, name, _logged(getattr(module, name), name)) for module, name in writes),
        *((module, "now", _now) for module in (settle, dispatch, reconcile, judgement, approve)),
        *((module, "tell", _answering(None)) for module in (settle, dispatch, reconcile, approve, resolve)),
        *((module, "credential_of", _answering(CREDENTIAL)) for module in (dispatch, reconcile, resolve)),
        (operations, "lock", _lock),
        (operations, "find", _lock),
        (operations, "lock_target", _answering(None)),
        (operations, "on_target", _answering(lambda desk, operation: list(desk.others_operations))),
        (operations, "receipt_taken", _answering(_taken)),
        (attempts, "read_attempts", _read_attempts),
        (attempts, "read_sightings", _read_sightings),
        (events, "append", _append),
        (events, "latest_body", _latest_body),
        (events, "append_move", _append_move),
        (holds, "in_force", _answering(lambda desk, operation: [HOLD] if desk.held else [])),
        (configuration, "in_force", _answering(lambda desk: (1, document(desk.config)))),
        (clock, "ahead_seconds", _answering(lambda desk: desk.ahead)),
        (statements, "of_operation", _said),
        (dependencies, "revised", _answering([])),
        (inbox, "latest_about", _answering("")),
        (dependencies, "read", _needed),
        (totals, "waived", _waived),
        (judgement, "make_sheet", _answering(lambda desk, operation, facts, at: operation)),
        (dispatch, "read_target", _answering(lambda ports, operation: ports.ledger.reading)),
        (dispatch, "asyncio", SimpleNamespace(timeout=_timeout)),
        (reconcile, "translated", _nothing),
        (reconcile, "heartbeating", _nothing),
    ]


def run(work: Any) -> Any:
    """What a coroutine returns that waits for nothing outside."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("a transaction waited for something outside")


def born(operation: Operation) -> Rows:
    """The rows after edge 1, by the real insert."""
    desk = Desk(Rows(operation), times=[operation.proposed_at])
    made = run(operations.insert(desk, operation, {}))  # type: ignore[arg-type]
    return Rows(made)
