"""The states move only along the design's edges, whoever writes the SQL: the trigger is asked here, not the Python."""

from dataclasses import replace
from datetime import timedelta
from typing import Any, LiteralString

import psycopg
import pytest

from ledger.errors import Broken
from ledger.model import Operation
from ledger.states import ENDED, TRANSITIONS, State
from ledger.store import events, operations
from ledger.store.database import Connection, now
from tests.store.conftest import WORKER, Book, arrived, path_to, step

PAIRS = {(edge.source, edge.target) for edge in TRANSITIONS}
ILLEGAL = [(s, t) for s in State for t in State if s is not t and (s, t) not in PAIRS]
# Everything that the target state needs is set, so that nothing but the edge can be the objection.
FORCE: LiteralString = (
    "update operations set state = %(target)s, fence = %(fence)s, lease_until = %(lease_until)s,"
    " receipt = coalesce(receipt, %(receipt)s), standing = coalesce(standing, %(standing)s),"
    " ended_at = case when %(ended)s then ledger_now() end where operation_id = %(operation_id)s"
)


async def force(conn: Connection, operation: Operation, target: State, **changed: Any) -> None:
    """The move by raw SQL: no compare, no event, no Python that knows the edges."""
    after = arrived(operation, target)
    await conn.execute(
        FORCE,
        {
            "operation_id": operation.operation_id,
            "target": target,
            "fence": after.fence,
            "lease_until": after.lease_until if target is State.IN_FLIGHT else None,
            "receipt": after.receipt,
            "standing": after.standing,
            "ended": target in ENDED,
            **changed,
        },
    )


async def row_of(conn: Connection, operation: Operation) -> dict[str, Any]:
    """The whole row."""
    found = await (
        await conn.execute("select * from operations where operation_id = %s", [operation.operation_id])
    ).fetchone()
    assert found is not None
    return found


async def test_the_table_holds_exactly_the_designs_edges(book: Book) -> None:
    """Breaks when any row of `edges` or of TRANSITIONS is dropped, added or renumbered."""
    rows = await book.rows("select number, source, target from edges")
    in_sql = sorted((row["number"], row["source"] or "", row["target"]) for row in rows)
    assert in_sql == sorted((e.number, e.source or "", e.target) for e in TRANSITIONS)


async def test_every_legal_edge_can_be_walked(book: Book) -> None:
    """As the worker, through `operations.move`. Breaks when a row of `edges` is missing."""
    for edge in TRANSITIONS:
        if edge.source is None:
            operation = await book.record()
        else:
            operation = await book.at(edge.source)
            before = operation
            operation = await book.step(operation, edge.number, edge.target)
            assert operation.fence == before.fence + (edge.target is State.IN_FLIGHT)
        found = await book.find(operation)
        assert found == operation
        assert found.state is edge.target
        last = (await book.trail(operation))[-1]
        assert (last.edge, last.source, last.target) == (edge.number, edge.source, edge.target)


@pytest.mark.parametrize("source", list(State))
async def test_every_other_move_is_refused_and_changes_nothing(book: Book, source: State) -> None:
    """Raw SQL of the owner, into every state that no edge leads to.

    Red when `operations_guard` no longer asks `edges`: drop its `if new.state <> old.state and not exists …`.
    """
    operation = await book.at(source)
    async with book.connection() as conn:
        before = await row_of(conn, operation)
        for target in [t for s, t in ILLEGAL if s is source]:
            with pytest.raises(psycopg.Error) as refused:
                async with conn.transaction():
                    await force(conn, operation, target)
            assert refused.value.sqlstate == "EL001", target
            assert "no edge from" in str(refused.value)
            assert await row_of(conn, operation) == before


async def test_an_ended_operation_never_moves(book: Book) -> None:
    """No edge leaves an end, and the loop above has tried every target. Red when `edges` gets a row from an end."""
    assert not [edge for edge in TRANSITIONS if edge.source in ENDED]
    assert await book.value("select count(*) from edges where source = any(%s)", [s.value for s in ENDED]) == 0
    assert {(s, t) for s, t in ILLEGAL if s in ENDED} == {(s, t) for s in ENDED for t in State if s is not t}


@pytest.mark.parametrize("state", [s for s in State if s is not State.PROPOSED])
async def test_an_operation_begins_as_proposed_only(book: Book, state: State) -> None:
    """Red when the INSERT branch of `operations_guard` returns without asking `edges`."""
    proposed = await book.record()
    with pytest.raises(psycopg.Error) as refused:
        async with book.connection() as conn:
            await copy(conn, proposed, state=state)
    assert refused.value.sqlstate == "EL001"
    assert "cannot begin as" in str(refused.value)


BORN: list[tuple[str, LiteralString]] = [
    ("fence", "7"),
    ("event_count", "7"),
    ("head_hash", "'\\x00'::bytea"),
    ("receipt", "'re_1'"),
    ("standing", "'good'"),
    ("frozen_request", "'{}'"),
    ("frozen_contract", "'{}'"),
    ("first_claimed_at", "now()"),
    ("people_needed", "0"),
    ("waived_at", "now()"),
    ("contradicted", "true"),
]


@pytest.mark.parametrize(("column", "forged"), BORN, ids=[column for column, _ in BORN])
async def test_an_operation_is_born_with_nothing_done(book: Book, column: str, forged: LiteralString) -> None:
    """A worker's insert brings no past with it: no number of events, no head, no fence, no receipt.

    Red when the INSERT branch of `operations_guard` looks at the state only.
    """
    proposed = await book.record()
    with pytest.raises(psycopg.Error) as refused:
        async with book.connection(WORKER) as conn:
            await copy(conn, proposed, **{column: forged})
    assert refused.value.sqlstate == "EL001"
    assert "nothing done" in str(refused.value)


async def copy(conn: Connection, like: Operation, **forged: str) -> None:
    """Insert a second operation like this one, with some columns as SQL says."""
    values = {
        "operation_id": "gen_random_uuid()",
        "business_key": "business_key || '-copy'",
        "idempotency_key": "idempotency_key || '-copy'",
    }
    given = {column: f"'{text}'" if isinstance(text, State) else text for column, text in forged.items()}
    kept = (
        "tenant actor requested_by action provider account livemode target arguments amount_minor currency evidence"
        " distinct_from depends_on equivalence_key policy_version config_version canonical request_digest fingerprint"
        " approval_expires_at proposed_at kid"
    )
    values |= {name: name for name in kept.split()} | {"state": "'proposed'"} | given
    text = (
        f"insert into operations ({', '.join(values)}) select {', '.join(values.values())}"
        " from operations where operation_id = %s"
    )
    await conn.execute(text.encode(), [like.operation_id])


@pytest.mark.parametrize(
    ("source", "target", "by"),
    [
        (State.APPROVED, State.IN_FLIGHT, 0),
        (State.APPROVED, State.IN_FLIGHT, 2),
        (State.UNKNOWN, State.IN_FLIGHT, 0),
        (State.UNKNOWN, State.IN_FLIGHT, -1),
        (State.APPROVED, State.BLOCKED, 1),
        (State.IN_FLIGHT, State.UNKNOWN, 1),
        (State.IN_FLIGHT, State.UNKNOWN, -1),
        (State.UNKNOWN, State.NEEDS_REVIEW, 1),
        (State.IN_FLIGHT, State.IN_FLIGHT, 1),
        (State.APPROVED, State.APPROVED, 1),
    ],
)
async def test_the_fence_rises_by_one_with_a_claim_and_never_otherwise(
    book: Book, source: State, target: State, by: int
) -> None:
    """Along legal edges and in place, with another fence. Red when `operations_guard` drops `if new.fence <> …`."""
    operation = await book.at(source)
    lease = operation.approval_expires_at if target is State.IN_FLIGHT else None
    with pytest.raises(psycopg.Error) as refused:
        async with book.connection() as conn:
            await force(conn, operation, target, fence=operation.fence + by, lease_until=lease)
    assert refused.value.sqlstate == "EL001"
    assert (await book.find(operation)) == operation


async def test_a_move_without_its_event_is_refused_at_commit(book: Book) -> None:
    """Legal, but silent. Red when the trigger `operations_told` is gone."""
    operation = await book.at(State.APPROVED)
    async with book.connection(WORKER) as conn:
        await force(conn, operation, State.BLOCKED)
        with pytest.raises(psycopg.Error, match="moved without an event") as refused:
            await conn.commit()
    assert refused.value.sqlstate == "EL001"
    assert await book.find(operation) == operation


async def test_an_insert_without_its_event_is_refused_at_commit(book: Book) -> None:
    """Red when the trigger `operations_told` does not fire after insert."""
    proposed = await book.record()
    async with book.connection(WORKER) as conn:
        await copy(conn, proposed)
        with pytest.raises(psycopg.Error, match="moved without an event"):
            await conn.commit()
    copies = "select count(*) from operations where business_key = %s"
    assert await book.value(copies, f"{proposed.business_key}-copy") == 0


async def test_two_moves_in_one_transaction_need_two_events(book: Book) -> None:
    """The first is silent, the second is told: the trail would jump.

    Red when `events_chain` does not compare the source of a move with where the last one ended.
    """
    operation = await book.at(State.IN_FLIGHT)
    async with book.connection(WORKER) as conn:
        await force(conn, operation, State.UNKNOWN)
        with pytest.raises(psycopg.Error) as refused:
            await force(conn, operation, State.NEEDS_REVIEW)
            await events.append_move(conn, operation.operation_id, 18, "unknown", "needs_review", 1, {})
            await conn.commit()
    assert refused.value.sqlstate == "EL001"
    assert await book.find(operation) == operation


@pytest.mark.parametrize(
    ("edge", "source", "target"),
    [
        (10, "in_flight", "succeeded"),  # joins on, but the operation does not stand there
        (12, "in_flight", "approved"),  # stands there, but does not join on
        (99, "awaiting_approval", "approved"),  # no such edge
        (3, "awaiting_approval", "approved"),  # no such edge between these states
        (2, None, "approved"),
    ],
)
async def test_an_event_tells_no_move_that_was_not_made(book: Book, edge: int, source: str | None, target: str) -> None:
    """The worker's role inserts the event of a move and moves nothing.

    Red when `events_chain` lets kind `moved` pass without asking `edges` and the operation.
    """
    operation = await book.at(State.APPROVED)
    async with book.connection(WORKER) as conn:
        with pytest.raises(psycopg.Error) as refused:
            await events.append_move(conn, operation.operation_id, edge, source, target, 0, {})
            await conn.commit()
    assert refused.value.sqlstate == "EL001"
    assert await book.find(operation) == operation  # its number of events included


async def test_several_moves_in_one_transaction_are_fine_with_their_events(book: Book) -> None:
    """As `settle` does when it closes an attempt and decides again."""
    operation = await book.at(State.IN_FLIGHT)
    async with book.ledger.transaction() as conn:
        operation = await step(conn, operation, 13, State.UNKNOWN)
        operation = await step(conn, operation, 18, State.NEEDS_REVIEW)
    assert await book.find(operation) == operation


async def test_only_flight_has_a_lease_and_only_ends_have_an_end(book: Book) -> None:
    """Checks of the row, whatever the way there: each is broken once by the owner."""
    approved, flying = await book.at(State.APPROVED), await book.at(State.IN_FLIGHT)
    broken: list[tuple[LiteralString, Operation]] = [
        ("update operations set lease_until = now() where operation_id = %s", approved),
        ("update operations set lease_until = null where operation_id = %s", flying),
        ("update operations set ended_at = now() where operation_id = %s", flying),
    ]
    for query, operation in broken:
        with pytest.raises(psycopg.errors.CheckViolation):
            async with book.connection() as conn:
                await conn.execute(query, [operation.operation_id])
    with pytest.raises(psycopg.errors.CheckViolation):
        async with book.connection() as conn:
            await force(conn, flying, State.SUCCEEDED, receipt=None, standing=None)
    with pytest.raises(psycopg.errors.CheckViolation):
        async with book.connection() as conn:
            await force(conn, flying, State.REJECTED, ended=False)


async def test_move_refuses_an_edge_that_the_design_has_not(book: Book) -> None:
    """`Broken` before any SQL, with nothing written."""
    operation = await book.at(State.APPROVED)
    async with book.ledger.transaction() as conn:
        with pytest.raises(Broken, match="there is no edge 10"):
            await step(conn, operation, 10, State.SUCCEEDED)
        after = replace(operation, state=State.APPROVED, approval_expires_at=operation.approval_expires_at)
        with pytest.raises(Broken, match="a note moves nothing"):
            await operations.note(conn, operation, replace(after, state=State.BLOCKED))
        assert (await now(conn)) - operation.proposed_at < timedelta(minutes=5)
    assert await book.find(operation) == operation


def test_paths_are_what_the_states_need() -> None:
    """The helper's own check: every state can be reached, and nothing in less than it takes."""
    assert [edge for edge, _ in path_to(State.UNDETERMINED)] == [1, 3, 7, 13, 18, 21]
    assert all(path_to(state) for state in State)
