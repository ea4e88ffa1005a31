"""How an unknown came to be known stands in the move that ends it, and whoever counts hears of what was committed, only."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from activities.messages import OperationRef
from activities.reconcile import Reconcile
from ledger.model import Operation, Outcome, SeenEffect, Standing
from ledger.states import State
from ledger.store import attempts, events, operations
from ledger.store.database import Ledger, now
from ledger.store.facts import Fact
from ledger.trail import EventKind
from tests.store.bank import CONTRACT
from tests.store.conftest import WORKER, Book
from tests.store.test_gauges import LOST, sent
from tests.store.test_inbox import keep, told


async def last_move(book: Book, operation: Operation) -> dict[str, Any]:
    """What the newest move says."""
    return next(e.body for e in reversed(await book.trail(operation)) if e.kind is EventKind.MOVED)


def exists(operation: Operation) -> SeenEffect:
    """Its effect, as a look shows it."""
    return SeenEffect(f"re_{operation.operation_id.hex}", Standing.GOOD, marked=True, matching=True)


@pytest.mark.parametrize("way", ["lookup", "webhook", "webhook of another", "answer"])
async def test_the_move_says_what_settled_it(own_book: Book, way: str) -> None:
    """A look, a look after a webhook that named the operation, or the answer itself, later than its lease.

    Red: leave `told_by` out of the sighting in `reconcile.look`, or the comparison with the attempts in `settle._settled`.
    """
    operation = await sent(own_book, LOST, contract=CONTRACT.model_copy(update={"key": None}))
    own_book.bank.effects = (exists(operation),)
    if way.startswith("webhook"):
        other = await own_book.record()
        marker = other.operation_id if way == "webhook of another" else operation.operation_id
        assert await keep(own_book, told(marker=marker))
    if way == "answer":
        async with own_book.ledger.transaction() as conn:
            locked = await operations.lock(conn, operation.operation_id)
            (lost,) = await attempts.read_attempts(conn, operation.operation_id)
            applied = {"outcome": Outcome.APPLIED, "receipt": exists(operation).receipt, "standing": Standing.GOOD}
            await attempts.answer(conn, locked, replace(lost, answered_at=await now(conn), **applied))
    ref = OperationRef(operation_id=str(operation.operation_id), look_now=True)
    assert (await own_book.run(Reconcile(own_book.ports).reconcile, ref)).state == "succeeded"
    moved = await last_move(own_book, operation)
    assert moved["settled_by"] == ("lookup" if way == "webhook of another" else way)
    assert 0 < moved["unknown_seconds"] < 60


async def test_what_was_never_unknown_was_settled_by_nothing(own_book: Book) -> None:
    """The usual case: one request, one answer. Red: call every success in flight a repeat."""
    operation = await own_book.approved()
    assert (await own_book.dispatch(operation)).state == "succeeded"
    assert "settled_by" not in await last_move(own_book, operation)


async def test_only_what_was_committed_is_counted(own_book: Book) -> None:
    """In the order in which it was told. What is rolled back was not told, whatever else the same task commits.

    Red: call the listener before the commit, or keep what an earlier transaction told.
    """
    heard: list[Fact] = []
    ledger = Ledger(own_book.dsn(WORKER), max_size=1, count=heard.extend)
    await ledger.open()
    operation = await own_book.record()
    try:
        with pytest.raises(RuntimeError):
            async with ledger.transaction() as conn:
                await events.append(conn, operation, EventKind.JUNK_REFUSED, {"rule": "x", "count": 1})
                raise RuntimeError("it does not come to its commit")
        assert heard == []
        async with ledger.transaction() as conn:
            at = await now(conn)
            waiting = replace(operation, state=State.AWAITING_APPROVAL)
            moved = await operations.move(conn, operation, waiting, 2, at, {})
            moved = await events.append(conn, moved, EventKind.JUNK_REFUSED, {"rule": "x", "count": 1})
            assert heard == []
        assert [(f.kind, f.edge, f.source) for f in heard] == [
            (EventKind.MOVED, 2, State.PROPOSED),
            (EventKind.JUNK_REFUSED, None, None),
        ]
        assert _subject(heard) == [moved.operation_id] * 2
    finally:
        await ledger.close()


async def test_the_pool_counts_who_had_to_wait_under_the_names_that_are_told(own_book: Book) -> None:
    """One connection, two who want it. Red: ask the pool for `get_stats`, which counts the same waits again and again."""
    ledger = Ledger(own_book.dsn(WORKER), max_size=1)
    await ledger.open()

    async def use() -> None:
        async with ledger.transaction():
            pass

    try:
        ledger.pool_numbers()
        async with ledger.transaction():
            second = asyncio.create_task(use())
            while not (found := ledger.pool_numbers()).get("requests_waiting"):
                await asyncio.sleep(0.01)
        await second
        assert found["requests_queued"] == 1
        after = ledger.pool_numbers()
        assert after.get("requests_queued", 0) == 0 and after["requests_wait_ms"] >= 0
        assert "requests_wait_ms" not in ledger.pool_numbers()
    finally:
        await ledger.close()


def _subject(heard: Sequence[Fact]) -> list[Any]:
    return [f.operation.operation_id for f in heard if f.operation is not None]
