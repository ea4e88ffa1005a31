"""What the search reached in memory is made again on the real SQL: every kind of move once, by the path that led to it.

The rows must come out the same, and whoever read before a move must find it `Superseded`: so the mirror in `memory.py` says
about compare-and-set, fence and evidence what Postgres says.
"""

from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest

from ledger.errors import Superseded
from ledger.model import Attempt, Operation, Sighting
from ledger.states import TRANSITIONS
from ledger.store import attempts, dependencies, operations
from ledger.store.database import Connection
from tests.exploration.bench import bench_of
from tests.exploration.caught import CAUGHT, At
from tests.exploration.environment import Step
from tests.exploration.memory import KEYED, MOVING, Rows, Write, attempt_key, in_memory, sighting_key
from tests.exploration.search import Search
from tests.exploration.system import System
from tests.store.conftest import Book, book, postgres, shared, template

FIXTURES = (book, postgres, shared, template)  # named, so that they are used
EXPLORED = {
    name: at for name, at in CAUGHT.items() if name.startswith(("edge", "row", "receipts")) and len(at.amounts) == 1
}
MOVED = [*MOVING, "frozen_request", "frozen_contract"]


@lru_cache
def _paths(where: At) -> list[tuple[list[Step], Rows]]:
    """The shortest path to each kind of move that was reached, without those that another path passes."""
    search = Search(System(where.scenario, bench_of(where.shape)))
    assert search.run() is None
    with in_memory():
        found = []
        for state, which in search.reached.values():
            steps = [*search.path(state), search.system.steps(search.states[state])[which]]
            found.append(([s for s in steps if s.told is not None], search.system.bench.rows[steps[-1].after.rows[0]]))
    found.sort(key=lambda path: -len(path[0]))
    passed: set[Any] = set()
    kept = []
    for steps, rows in found:
        kinds = {kind for step in steps for kind in step.kinds}
        if not kinds <= passed:
            passed |= kinds
            kept.append((steps, rows))
    return kept


@pytest.mark.parametrize("name", EXPLORED)
async def test_every_kind_of_move_is_the_same_in_postgres(book: Book, name: str) -> None:  # noqa: F811
    """Path by path, transaction by transaction, as the worker's role."""
    for steps, rows in _paths(EXPLORED[name]):
        operation = await book.record(rows.operation.amount_minor or 0)
        for step in steps:
            assert step.told is not None
            async with book.ledger.transaction() as conn:
                for write in step.told.writes:
                    await _again(conn, operation, write)
        async with book.ledger.transaction() as conn:
            await _same(conn, operation, rows)


def test_the_replayed_scenarios_make_every_move() -> None:
    """All edges but the first, which `book.record` makes."""
    edges = {move.edge for at in EXPLORED.values() for steps, _ in _paths(at) for step in steps for move in step.moves}
    assert edges == {edge.number for edge in TRANSITIONS} - {1}


async def _again(conn: Connection, operation: Operation, write: Write) -> None:
    """One call of the store, with the row as it is locked now instead of the model's."""
    now = await operations.lock(conn, operation.operation_id)
    match write.name, write.arguments:
        case "move", (before, after, edge, at, body):
            assert (now.state, now.fence) == (before.state, before.fence)
            await operations.move(conn, now, _as(now, after), edge, at, dict(body))
            with pytest.raises(Superseded):
                await operations.note(conn, now, replace(now, next_step="of somebody who read before"))
        case "note", (_, after):
            await operations.note(conn, now, _as(now, after))
        case "open_attempt", (_, attempt, worker):
            await attempts.open_attempt(conn, now, attempt, worker)
        case "answer", (_, attempt):
            await attempts.answer(conn, now, _own(now, attempt))
        case "mark_contradicted", (operation_id,):
            assert operation_id is not None
            await operations.mark_contradicted(conn, operation.operation_id)
        case "record_sighting", (_, sighting):
            await attempts.record_sighting(conn, now, _seen(now, sighting))
        case _:
            raise AssertionError(f"nothing replays {write.name}")


async def _same(conn: Connection, operation: Operation, rows: Rows) -> None:
    found = await operations.lock(conn, operation.operation_id)
    want = _as(found, rows.operation)
    assert {name: getattr(found, name) for name in KEYED} == {name: getattr(want, name) for name in KEYED}
    needed = (await dependencies.read(conn, [operation.operation_id]))[operation.operation_id]
    assert (needed.contradicted, needed.standing) == (rows.contradicted, rows.operation.standing)
    tried = await attempts.read_attempts(conn, operation.operation_id)
    assert [attempt_key(a) for a in tried] == [attempt_key(_own(found, a)) for a in rows.attempts]
    looks = await attempts.read_sightings(conn, operation.operation_id)
    assert [sighting_key(s) for s in looks] == [sighting_key(_seen(found, s)) for s in rows.sightings]


def _as(now: Operation, model: Operation) -> Operation:
    """The locked row with what the model moved. A receipt belongs to one operation of the ledger: each has its own."""
    fields = {name: getattr(model, name) for name in MOVED}
    fields["frozen_request"] = now.frozen_request or model.frozen_request
    fields["frozen_contract"] = now.frozen_contract or model.frozen_contract
    return replace(now, **{**fields, "receipt": _receipt(now, model.receipt)})


def _own(now: Operation, attempt: Attempt) -> Attempt:
    return replace(attempt, receipt=_receipt(now, attempt.receipt))


def _seen(now: Operation, sighting: Sighting) -> Sighting:
    effects = tuple(replace(e, receipt=_receipt(now, e.receipt) or "") for e in sighting.effects)
    return replace(sighting, effects=effects)


def _receipt(now: Operation, receipt: str | None) -> str | None:
    return None if receipt is None else f"{receipt}_{now.operation_id.hex}"
