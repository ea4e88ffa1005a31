"""What the triggers let an erasure do, and nothing more: each change is tried by the owner, on what ended and on what did not."""

from dataclasses import replace
from datetime import timedelta
from typing import Any, LiteralString

import psycopg
import pytest

from activities.messages import OperationRef
from activities.reconcile import Reconcile
from ledger.errors import Refused
from ledger.model import Attempt, Hint, Operation, Outcome, SeenEffect, Sighting, Standing
from ledger.statement import sheet_digest
from ledger.states import State
from ledger.store import attempts, erasure, inbox, operations, statements
from ledger.store.database import now
from ledger.trail import EventKind
from providers.port import Look
from tests.store.conftest import OWNER, Book, statement, step
from tests.store.test_inbox import told

ERASED: LiteralString = (
    "requested_by = '', token = '', arguments = '{}', evidence = '[]', distinct_from = '[]', canonical = '',"
    " frozen_request = null, erased_at = now()"
)


async def ended(book: Book) -> Operation:
    """One that succeeded, with an attempt, a look, a statement and a sheet that all say something."""
    operation = await book.at(State.IN_FLIGHT)
    async with book.ledger.transaction() as conn:
        at = await now(conn)
        operation = await operations.lock(conn, operation.operation_id)
        assert operation.lease_until is not None
        attempt = Attempt(number=1, claimed_at=at, lease_until=operation.lease_until)
        operation = await attempts.open_attempt(conn, operation, attempt, "w")
        answered = replace(attempt, outcome=Outcome.UNKNOWN, hint=Hint.LOST, answered_at=at, detail={"said": "mia"})
        operation = await attempts.answer(conn, operation, answered)
        seen = SeenEffect("re_1", Standing.GOOD, marked=True, matching=True, summary={"name": "mia"})
        operation = await attempts.record_sighting(
            conn, operation, Sighting(at, at, True, (seen,), detail={"a": "mia"})
        )
        await statements.accept(conn, statement(operation, b"mia", at, jti=f"said-{operation.operation_id}"))
        sheet = b"mia in " + operation.operation_id.bytes
        await statements.add_sheet(conn, operation.operation_id, sheet_digest(sheet), sheet, at)
        return await step(conn, operation, 10, State.SUCCEEDED)


async def erased(book: Book, operation: Operation) -> None:
    """By the owner."""
    async with book.connection(OWNER) as conn:
        await erasure.erase(conn, operation, "mira", "a test")
        await conn.commit()


FORBIDDEN: dict[str, LiteralString] = {
    "a column is left": "update operations set canonical = '', erased_at = now() where operation_id = %s",
    "another column": "update operations set " + ERASED + ", amount_minor = 1 where operation_id = %s",
    "a state": "update operations set " + ERASED + ", state = 'rejected' where operation_id = %s",
    "without erasing": "update operations set canonical = '' where operation_id = %s",
    "an event": "update events set body = '{}' where stream = %s",
    "an attempt": "update attempts set detail = '{}' where operation_id = %s",
    "a look": "update sightings set detail = '{}' where operation_id = %s",
    "a sheet": "update sheets set document = '' where operation_id = %s",
    "a statement": "update statements set statement = '', proof = '' where operation_id = %s",
}
LATER: dict[str, LiteralString] = {
    "again": "update operations set erased_at = now() where operation_id = %s",
    "back": "update operations set erased_at = null where operation_id = %s",
    "the asker comes back": "update operations set requested_by = 'mia' where operation_id = %s",
    "an event says more": """update events set body = '{"why": "x"}' where stream = %s and number = 1""",
    "an event moves": "update events set target = 'blocked' where stream = %s and number = 1",
    "a digest of an event": "update events set body_digest = '' where stream = %s and number = 1",
    "an event goes": "delete from events where stream = %s",
    "an outcome": "update attempts set outcome = 'applied', detail = '{}' where operation_id = %s",
    "a look says more": """update sightings set detail = '{"a": 1}' where operation_id = %s""",
    "a look sees another": "update sightings set complete = false where operation_id = %s",
    "a look goes": "delete from sightings where operation_id = %s",
    "a sheet says more": "update sheets set document = 'x' where operation_id = %s",
    "a statement of another": "update statements set person = 'bob' where operation_id = %s",
    "a statement says more": "update statements set statement = 'x' where operation_id = %s",
}


@pytest.mark.parametrize("change", FORBIDDEN.values(), ids=FORBIDDEN)
async def test_nothing_is_emptied_but_by_a_whole_erasure(book: Book, change: LiteralString) -> None:
    """Of an operation that ended. Red: drop a condition of `erasure_guard`, `erased_is_empty` or `facts_emptied`."""
    await refused(book, await ended(book), change)


@pytest.mark.parametrize("change", LATER.values(), ids=LATER)
async def test_what_was_erased_only_loses(book: Book, change: LiteralString) -> None:
    """Red: drop a condition of `facts_emptied`, or the append-only trigger of a table."""
    operation = await ended(book)
    await erased(book, operation)
    await refused(book, operation, change)


async def refused(book: Book, operation: Operation, change: LiteralString) -> None:
    """By a trigger or a check, not by privilege: the owner tries."""
    async with book.connection(OWNER) as conn:
        with pytest.raises(psycopg.Error) as found:
            await conn.execute(change, [operation.operation_id])
        assert found.value.sqlstate in ("EL001", "EL002", "EL003", "23514", "22P02"), found.value


async def test_what_has_not_ended_is_not_erased(book: Book) -> None:
    """Nor what is followed at its provider. Red: drop the check in `erasure.erase` (then the trigger refuses)."""
    for operation in [await book.at(state) for state in (State.APPROVED, State.UNKNOWN, State.NEEDS_REVIEW)]:
        with pytest.raises(Refused):
            await erased(book, operation)
        change: LiteralString = "update operations set " + ERASED + " where operation_id = %s"
        await refused(book, operation, change)


async def test_an_erasure_empties_everything_and_keeps_the_digests(book: Book) -> None:
    """And says what they were. Red: drop a line of `_empty_facts` or `_digests`."""
    operation = await ended(book)
    before, trail = await book.find(operation), await book.trail(operation)
    await erased(book, operation)
    after, left = await book.find(operation), await book.trail(operation)
    assert (after.fingerprint, after.request_digest, after.receipt) == (
        before.fingerprint,
        before.request_digest,
        before.receipt,
    )
    assert [e.hash for e in left[:-1]] == [e.hash for e in trail]
    assert (left[-1].kind, left[-1].body["by"]) == (EventKind.ERASED, "mira")
    assert len(left[-1].body["digests"]) == 2
    for table in ("attempts", "sightings", "sheets", "statements", "operations"):
        query: Any = f"select {table}::text as row from {table} where operation_id = %s"  # noqa: S608
        for row in await book.rows(query, operation.operation_id):
            assert "mia" not in row["row"] and b"mia".hex() not in row["row"], table


async def test_a_look_that_an_erasure_overtakes_brings_nothing_back(own_book: Book) -> None:
    """The operation was rejected; its effect is seen while it is erased. That it is there is told, what it says is not.

    Red: record the look as it is. An erased operation is never erased again.
    """
    operation = await own_book.at(State.REJECTED)

    async def erase_meanwhile(*about: object) -> Look:
        await erased(own_book, operation)
        seen = SeenEffect("re_1", Standing.GOOD, marked=True, matching=True, summary={"name": "mia"})
        return Look(complete=True, effects=(seen,), detail={"said": "mia"})

    own_book.bank.look = erase_meanwhile  # type: ignore[method-assign]
    look = OperationRef(operation_id=str(operation.operation_id), look_now=True)
    await own_book.run(Reconcile(own_book.ports).reconcile, look)
    (row,) = await own_book.rows("select effects, detail from sightings")
    assert (row["effects"][0]["receipt"], row["effects"][0]["summary"], row["detail"]) == ("re_1", {}, {})
    bodies = await own_book.rows("select body from events where stream = %s", operation.operation_id)
    assert not any('"mia"' in row["body"] for row in bodies)
    assert (await own_book.trail(operation))[-1].kind == EventKind.CONTRADICTION


async def test_events_of_the_inbox_are_forgotten_after_a_month_and_once_taken(own_book: Book) -> None:
    """Red: drop a condition of `inbox_kept`."""
    async with own_book.connection(OWNER) as conn:
        for _ in range(2):
            assert await inbox.insert(conn, told())
        (first, _) = await inbox.untaken(conn, 10)
        await inbox.take(conn, first.number, [])
        await conn.commit()
        for change in ("delete from inbox_events where taken_at is null", "delete from inbox_events"):
            with pytest.raises(psycopg.Error):
                async with conn.transaction():
                    await conn.execute(change)
        assert await inbox.forget(conn, await now(conn)) == 0
        await conn.commit()
        await own_book.set_clock(timedelta(days=31))
        assert await inbox.forget(conn, await now(conn)) == 1
        with pytest.raises(psycopg.Error):
            await conn.execute("delete from inbox_events")
