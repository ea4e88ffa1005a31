"""The trail in SQL: numbers without gaps, the chain, and the ledger's clock, under concurrency and a clock that steps back."""

import asyncio
from datetime import timedelta
from typing import LiteralString

import psycopg
import pytest

from ledger.errors import Broken, Refused, Unavailable
from ledger.states import State
from ledger.store import clock, events, operations, statements
from ledger.store.database import now
from ledger.trail import EventKind, chain_hash, verify_bodies, verify_chain, verify_state
from tests.store.conftest import OWNER, WORKER, Book, step

MICROSECOND = timedelta(microseconds=1)


async def test_concurrent_appends_are_numbered_without_gaps_and_chained(book: Book) -> None:
    """Twenty transactions wait for the stream that this test holds; a third of them is rolled back afterwards.

    Red when `events_chain` reads the stream's count without `for update`.
    """
    operation = await book.record()

    async def append(number: int) -> None:
        async with book.ledger.transaction() as conn:
            await events.append(conn, operation, EventKind.PREFLIGHT, {"writer": number})
            if number % 3 == 0:
                raise Unavailable("given up")

    async with book.holding("select 1 from operations where operation_id = %s for update", operation.operation_id):
        writers = [asyncio.create_task(append(number)) for number in range(20)]
        await book.waiting(20)
    ends = await asyncio.gather(*writers, return_exceptions=True)
    assert [type(end) for end in ends].count(Unavailable) == 7
    trail, stands = await book.trail(operation), await book.find(operation)
    assert [event.number for event in trail] == list(range(1, 15))
    verify_chain(trail, stands.event_count, stands.head_hash)
    assert {event.body["writer"] for event in trail[1:]} == {n for n in range(20) if n % 3}
    assert [event.at for event in trail] == sorted({event.at for event in trail})


async def test_the_ledgers_own_stream_is_numbered_and_chained_as_well(book: Book) -> None:
    """Appends from many transactions at once to the stream of configuration and holds."""

    async def append(number: int) -> None:
        async with book.ledger.transaction() as conn:
            await events.append_to_ledger(conn, EventKind.HELD, {"scope": str(number)})

    async with book.holding("select 1 from ledger_identity for update"):
        writers = [asyncio.create_task(append(number)) for number in range(10)]
        await book.waiting(10)
    await asyncio.gather(*writers)
    (identity,) = await book.rows("select namespace, event_count, head_hash from ledger_identity")
    async with book.ledger.transaction() as conn:
        trail = await events.read(conn, identity["namespace"])
    verify_chain(trail, identity["event_count"], identity["head_hash"])
    assert len(trail) >= 11


async def test_postgres_chains_as_python_does(book: Book) -> None:
    """Every kind of event of one whole life, with bodies of every script, hashed again in Python.

    Red when either side leaves a field out of the hash (tried with `new.fence`), or joins them otherwise.
    """
    operation = await book.at(State.UNDETERMINED)
    async with book.ledger.transaction() as conn:
        body = {"why": 'naïve \u202e 😀 \u0001 "quoted" \\', "n": 2**53 - 1, "none": None, "deep": [{"a": [1, True]}]}
        operation = await events.append(conn, operation, EventKind.CONTRADICTION, body)
    trail = await book.trail(operation)
    for event, before in zip(trail, [None, *trail], strict=False):
        assert event.hash == chain_hash(event)
        assert event.previous_hash == (b"" if before is None else before.hash)
    assert trail[-1].body == body
    verify_chain(trail, operation.event_count, operation.head_hash)
    verify_state(trail, operation.state)
    async with book.ledger.transaction() as conn:
        verify_bodies(await events.bodies(conn, operation.operation_id))


async def test_what_an_event_says_of_itself_is_overwritten(book: Book) -> None:
    """Number, time, digest and hashes are the database's, whatever the worker inserts.

    Red when `events_chain` keeps any of the five.
    """
    operation = await book.record()
    async with book.connection(WORKER) as conn:
        await conn.execute(
            "insert into events (stream, number, at, kind, body, body_digest, previous_hash, hash) values"
            " (%s, 77, '2000-01-01', 'junk_refused', '{}', 'forged', 'forged', 'forged')",
            [operation.operation_id],
        )
        await conn.commit()
    trail, stands = await book.trail(operation), await book.find(operation)
    assert trail[-1].number == 2
    assert trail[-1].at >= trail[0].at
    verify_chain(trail, stands.event_count, stands.head_hash)


async def test_an_event_needs_a_stream(book: Book) -> None:
    """An operation or the ledger itself; anything else would be a trail that nobody verifies."""
    with pytest.raises(psycopg.Error, match="no stream") as refused:
        async with book.connection(WORKER) as conn:
            await conn.execute(
                "insert into events (stream, number, at, kind, body, body_digest, previous_hash, hash) values"
                " (gen_random_uuid(), 1, now(), 'junk_refused', '{}', '', '', '')"
            )
    assert refused.value.sqlstate == "EL002"


@pytest.mark.parametrize("user", [OWNER, "postgres"])
async def test_no_event_is_changed_deleted_or_truncated(book: Book, user: str) -> None:
    """By the owner and by the superuser: only dropping the triggers would do, and that shows.

    Red when `events_append_only` or `events_no_truncate` is dropped.
    """
    operation = await book.record()
    before = await book.trail(operation)
    changes: list[LiteralString] = [
        "update events set body = '{}'",
        "update events set number = number",
        "delete from events",
        "truncate events",
        "truncate events cascade",
        "insert into events select * from events on conflict (stream, number) do update set body = '{}'",
    ]
    async with book.connection(user) as conn:
        for change in changes:
            with pytest.raises(psycopg.Error) as refused:
                async with conn.transaction():
                    await conn.execute(change)
            assert refused.value.sqlstate in ("EL002", "EL001"), change
    assert await book.trail(operation) == before


async def test_a_signer_has_seen_the_trail_up_to_a_head_of_this_stream(book: Book) -> None:
    """A head of another stream is no head; evidence after a head is counted, and nothing else is."""
    operation, other = await book.at(State.IN_FLIGHT), await book.at(State.IN_FLIGHT)
    kinds = [EventKind.SIGHTING.value]
    async with book.ledger.transaction() as conn:
        assert await events.evidence_since(conn, operation.operation_id, other.head_hash, kinds) is None
        assert await events.evidence_since(conn, operation.operation_id, b"", kinds) is None
        seen = operation.head_hash
        operation = await events.append(conn, operation, EventKind.SIGHTING_SAME, {})
        assert await events.evidence_since(conn, operation.operation_id, seen, kinds) == 0
        operation = await events.append(conn, operation, EventKind.SIGHTING, {"complete": True})
        assert await events.evidence_since(conn, operation.operation_id, seen, kinds) == 1
        assert await events.latest_body(conn, operation.operation_id, EventKind.SIGHTING) == {"complete": True}
        assert await events.latest_body(conn, operation.operation_id, EventKind.HELD) == {}


async def test_the_clock_is_never_behind_the_last_event(own_book: Book) -> None:
    """The wall clock steps back by an hour, which the owner's clock row imitates: time goes on from the last event.

    Red when `ledger_now` loses its `select at … from events`, or the microsecond after it.
    """
    operation = await own_book.record()
    last = (await own_book.trail(operation))[-1].at
    await own_book.set_clock(timedelta(hours=-1))
    assert await own_book.value("select ledger_now() < clock_timestamp()") is True  # it did step back
    async with own_book.ledger.transaction() as conn:
        assert await now(conn) == last + MICROSECOND
        operation = await step(conn, operation, 4, State.BLOCKED)
        assert operation.ended_at == last + MICROSECOND
        assert await now(conn) == last + 2 * MICROSECOND
    trail = await own_book.trail(operation)
    assert trail[-1].at == last + MICROSECOND
    verify_chain(trail, operation.event_count, operation.head_hash)
    await own_book.set_clock(timedelta(hours=1))
    async with own_book.ledger.transaction() as conn:
        assert await now(conn) > last + timedelta(minutes=59)


async def test_the_clock_is_read_after_the_locks(book: Book) -> None:
    """A second transaction waits for the operation, and then asks for the time: it is later than the lock's release.

    Red when `ledger_now` takes `now()` (the transaction's beginning) in place of `clock_timestamp()`.
    """
    operation = await book.record()

    async def lock_and_ask() -> object:
        async with book.ledger.transaction() as conn:
            await operations.lock(conn, operation.operation_id)
            return await now(conn)

    lock: LiteralString = "select 1 from operations where operation_id = %s for update"
    async with book.holding(lock, operation.operation_id) as holder:
        asking = asyncio.create_task(lock_and_ask())
        await book.waiting(1)
        (row,) = await book.rows("select clock_timestamp() as released", conn=holder)
    assert (await asking) > row["released"]


async def test_the_clock_moves_only_where_there_is_a_test_clock_and_only_forward(own_book: Book) -> None:
    """`advance` is the owner's, is told in the trail, and is `Refused` without the row."""
    async with own_book.connection() as conn:
        assert await clock.is_test_clock(conn)
        before = await now(conn)
        await clock.advance(conn, 3_600)
        assert (await now(conn)) - before >= timedelta(hours=1)
        with pytest.raises(Refused, match="only moves forward"):
            await clock.advance(conn, -1)
        await conn.execute("delete from clock")
        assert not await clock.is_test_clock(conn)
        with pytest.raises(Refused, match="no test clock"):
            await clock.advance(conn, 1)
        (last,) = await own_book.rows("select kind, body from events order by at desc limit 1", conn=conn)
        assert (last["kind"], last["body"]) == ("clock_moved", '{"seconds":3600}')


MINUTE, HOUR = 60, 3_600


@pytest.mark.parametrize(
    ("iat", "exp", "why"),
    [
        (0, HOUR, ""),
        (5 - HOUR, 5, ""),
        (-30, 30, ""),
        (118, 118 + MINUTE, ""),  # the signer's clock is up to two minutes ahead …
        (125, 125 + MINUTE, "not_yet_valid"),
        (-HOUR, -110, ""),  # … or the bearer late by as much
        (-HOUR, -121, "expired"),
        (0, HOUR + 1, "lives_too_long"),
        (-HOUR, 1, "lives_too_long"),
        (-10 * HOUR, -9 * HOUR, "expired"),
        (10 * HOUR, 11 * HOUR, "not_yet_valid"),
        (-10 * HOUR, 10 * HOUR, "lives_too_long"),
    ],
)
async def test_token_times(book: Book, iat: int, exp: int, why: str) -> None:
    """Seconds from the ledger's now; at most an hour long, two minutes of leeway either way.

    Red when a leeway in `token_refusal` is dropped or doubled, or its third `when` is.
    """
    async with book.ledger.transaction() as conn:
        at = int((await now(conn)).timestamp())
        assert await statements.token_refusal(conn, at + iat, at + exp, HOUR) == why


async def test_token_times_follow_the_ledgers_clock(own_book: Book) -> None:
    """Not the host's: moved by a day, what was signed this morning is expired."""
    async with own_book.ledger.transaction() as conn:
        at = int((await now(conn)).timestamp())
        assert await statements.token_refusal(conn, at, at + 60, HOUR) == ""
    await own_book.set_clock(timedelta(days=1))
    async with own_book.ledger.transaction() as conn:
        assert await statements.token_refusal(conn, at, at + 60, HOUR) == "expired"


async def test_a_ledger_that_knows_less_than_was_seen_is_broken(book: Book) -> None:
    """Restored from an older backup: the count that a message carries is higher than the row's.

    Red when `operations.lock` drops its comparison.
    """
    operation = await book.record()
    async with book.ledger.transaction() as conn:
        await operations.lock(conn, operation.operation_id, known_events=1)
        with pytest.raises(Broken, match="restored from an older backup"):
            await operations.lock(conn, operation.operation_id, known_events=2)
