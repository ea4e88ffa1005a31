"""What each login can and cannot do, statement by statement, in SQL of its own making. The inbox's: tests/store/test_inbox.py."""

import asyncio
from dataclasses import replace
from typing import LiteralString

import psycopg
import pytest
from psycopg import sql

from ledger.model import Attempt, Outcome, Standing
from ledger.states import State
from ledger.store import attempts, clock, configuration, events, gauges, operations, statements
from ledger.store.database import now
from ledger.trail import EventKind, verify_chain, verify_state
from tests.store.conftest import INBOX, OWNER, PASSWORD, READER, WORKER, Book, document, statement
from tests.store.test_facts import IDENTITY

FORBIDDEN: list[LiteralString] = [
    "update events set body = '{}'",
    "delete from events",
    "truncate events",
    "update operations set event_count = 0",
    "update operations set head_hash = ''",
    "update operations set waived_at = null",
    "update operations set state_since = now()",
    "update operations set erased_at = now()",
    "delete from operations",
    "truncate operations cascade",
    "delete from attempts",
    "update attempts set claimed_at = now()",
    "update attempts set lease_until = now()",
    "update attempts set worker = 'x'",
    "update attempts set number = 9",
    "update sightings set complete = true",
    "delete from sightings",
    "update statements set person = 'bob'",
    "update statements set statement = ''",
    "delete from statements",
    "update sheets set document = ''",
    "delete from sheets",
    "update holds set scope = 'x'",
    "delete from holds",
    "insert into edges values (24, 'succeeded', 'approved')",
    "update edges set target = 'approved'",
    "delete from edges",
    "insert into config_versions values (2, sha256(''), '', 'x', now())",
    "update config_versions set document = ''",
    "update inbox_events set type = 'x'",
    "update inbox_events set received_at = now()",
    "delete from inbox_events",
    "insert into inbox_events (provider, event_id) values ('bank', 'evt_1')",
    "delete from audit_findings",
    "truncate audit_findings",
    "update audit_findings set name = 'x'",
    "update audits set complete = true",
    "delete from audits",
    "delete from audit_places",
    "insert into notices (operation_id, kind, event_number, due_at) select operation_id, 'review', 9, now() from operations",
    "update notices set kind = 'review'",
    "delete from notices",
    "insert into config_current (version) values (1)",
    "update config_current set version = 1",
    "delete from config_current",
    "select 1 from config_current for update",
    "select 1 from config_current for share",
    "insert into clock default values",
    "update clock set shift = '1 hour'",
    "delete from clock",
    "update ledger_identity set namespace = gen_random_uuid()",
    "update ledger_identity set event_count = 0",
    "update ledger_identity set incarnation = 2",
    "update ledger_identity set home = ledger_home()",
    "insert into audits (number, incarnation, began_at, listed, complete) overriding system value values (9, 1, now(), 0, true)",
    "insert into ledger_identity default values",
    "insert into targets values ('bank', 'acct_1', false, 'pay_1')",
    "delete from targets",
    "insert into schema_migrations values (2, 'x', 'x')",
    "delete from schema_migrations",
    "drop trigger events_append_only on events",
    "alter table events disable trigger all",
    "alter table events add column x int",
    "drop table events cascade",
    "create trigger x before insert on events for each row execute function refuse_change()",
    "create rule x as on insert to events do instead nothing",
    "create or replace function ledger_now() returns timestamptz language sql as 'select now()'",
    "alter function ledger_now() set timezone = 'UTC'",
    "create function public.mine() returns int language sql as 'select 1'",
    "create table public.mine (x int)",
    "create schema mine",
    "set session_replication_role = replica",
    "set role effects_owner",
    "alter role effects_worker_login createrole",
    "create role mine",
    "copy events to program 'true'",
]


@pytest.mark.parametrize("statement", FORBIDDEN)
async def test_the_worker_is_refused(book: Book, statement: LiteralString) -> None:
    """By privilege, before any trigger is asked. Red when the migration grants it."""
    async with book.connection(WORKER) as conn:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            await conn.execute(statement)


async def test_the_worker_updates_no_identity_column(book: Book) -> None:
    """Column by column. Red when the migration grants `update` on the whole table."""
    await book.record()
    async with book.connection(WORKER) as conn:
        for column, value in IDENTITY.items():
            text = sql.SQL("update operations set {} = " + value.replace("{", "{{").replace("}", "}}"))
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                async with conn.transaction():
                    await conn.execute(text.format(sql.Identifier(column)))


# What a session may make for itself stands before `public` in its search path, unless a function says otherwise.
SHADOWS: list[tuple[str, LiteralString, LiteralString]] = [
    (
        "edges",
        "create temp table edges as select 99 as number, 'succeeded' as source, 'approved' as target",
        "update operations set state = 'approved', ended_at = null where state = 'succeeded'",
    ),
    (
        "events",
        "create temp table events as select operation_id as stream, 'moved' as kind, 'blocked' as target, 9 as number"
        " from operations",
        "update operations set state = 'blocked', ended_at = now() where state = 'approved';"
        " set constraints all immediate",
    ),
]


@pytest.mark.parametrize(("name", "made", "tried"), SHADOWS, ids=[name for name, _, _ in SHADOWS])
async def test_a_temporary_table_of_the_worker_is_not_believed(
    book: Book, name: str, made: LiteralString, tried: LiteralString
) -> None:
    """A temporary `edges` that allows everything, and temporary `events` in which every move was told.

    Red when `operations_guard` or `operations_told` does not pin its search path with pg_temp last.
    """
    await book.at(State.SUCCEEDED)
    await book.at(State.APPROVED)
    async with book.connection(WORKER) as conn:
        await conn.execute(made)
        with pytest.raises(psycopg.Error) as refused:
            await conn.execute(tried)
        assert refused.value.sqlstate == "EL001"


async def test_a_temporary_clock_of_the_worker_is_not_believed(book: Book) -> None:
    """Neither by the clock nor by token times nor by events. Red when `ledger_now` does not pin its search path."""
    operation = await book.record()
    async with book.connection(WORKER) as conn:
        await conn.execute("create temp table clock as select interval '10 years' as shift")
        (row,) = await book.rows("select ledger_now() - clock_timestamp() < interval '1 day' as real", conn=conn)
        assert row["real"] is True
        at = int((await now(conn)).timestamp())
        assert await statements.token_refusal(conn, at, at + 60, 3_600) == ""
        await events.append(conn, operation, EventKind.PREFLIGHT, {})
        await conn.commit()
    assert (await book.trail(operation))[-1].at.year == (await book.trail(operation))[0].at.year


async def test_temporary_streams_of_the_worker_give_no_numbers(book: Book) -> None:
    """A temporary `operations` whose count and head are forged would give an event any number and any past.

    Red when `events_chain` does not pin its search path.
    """
    operation = await book.record()
    async with book.connection(WORKER) as conn:
        await conn.execute(
            "create temp table operations as select operation_id, 41::bigint as event_count, 'forged'::bytea as"
            " head_hash, 'proposed' as state, 0 as fence from public.operations"
        )
        await conn.execute("grant all on operations to public")
        await events.append(conn, operation, EventKind.PREFLIGHT, {})
        await conn.commit()
    stands = await book.find(operation)
    assert stands.event_count == 2
    verify_chain(await book.trail(operation), stands.event_count, stands.head_hash)


async def test_a_temporary_lock_of_the_worker_locks_nothing_of_its_own(book: Book) -> None:
    """Target and configuration locks are the real rows'. Red when `lock_target` or `lock_config` does not pin its path."""
    operation = await book.record()
    async with book.connection(WORKER) as conn:
        await conn.execute("create temp table targets (like public.targets including all)")
        await conn.execute("create temp table config_current as select 7 as version")
        await conn.execute("grant all on targets, config_current to public")
        (row,) = await book.rows("select lock_config() as version", conn=conn)
        assert row["version"] == 1
        await operations.lock_target(conn, operation)
        await conn.commit()
    assert await book.value("select count(*) from targets where target = %s", operation.target) == 1


async def test_a_stranger_reads_nothing_and_holds_no_lock(book: Book) -> None:
    """Another login of the same server. Red when the migration leaves the two definer functions to everybody."""
    async with book.connection("postgres", autocommit=True) as conn:
        await conn.execute(f"create role stranger login password '{PASSWORD}'".encode())
    tried: list[LiteralString] = [
        "select lock_config()",
        "select lock_target('bank', 'acct_1', false, 'pay_1')",
        "select 1 from operations",
        "select 1 from statements",
        "select ledger_now()",
        "insert into events select * from events",
    ]
    async with book.connection("stranger") as conn:
        for query in tried:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                async with conn.transaction():
                    await conn.execute(query)


async def test_the_worker_takes_an_operation_from_proposed_to_its_end(book: Book) -> None:
    """All that it must be able to do, in one life: record, judge, claim, send, look, answer, settle, hold, read.

    Red when any grant of the migration is missing.
    """
    operation = await book.approved()
    progress = await book.dispatch(operation)
    assert progress.state == "succeeded", progress
    done = await book.find(operation)
    assert (done.receipt, done.standing) == (f"re_{operation.operation_id.hex}", Standing.GOOD)
    assert len(book.bank.sent) == 1
    trail = await book.trail(operation)
    assert [event.edge for event in trail if event.edge is not None] == [1, 3, 7, 10]
    verify_chain(trail, done.event_count, done.head_hash)
    verify_state(trail, done.state)
    async with book.ledger.transaction() as conn:
        at = await now(conn)
        assert await clock.is_test_clock(conn)
        assert await statements.accept(conn, statement(done, b"said", at, jti="worker-said"))
        await operations.mark_contradicted(conn, done.operation_id)


async def test_the_worker_writes_the_whole_way_of_an_unknown(book: Book) -> None:
    """Unknown, repeated, reviewed: the other columns that it may write."""
    operation = await book.at(State.IN_FLIGHT)
    async with book.ledger.transaction() as conn:
        at = await now(conn)
        assert operation.lease_until is not None
        attempt = Attempt(number=1, claimed_at=at, lease_until=operation.lease_until)
        operation = await attempts.open_attempt(conn, operation, attempt, "w")
        lost = replace(attempt, outcome=Outcome.UNKNOWN, answered_at=at, late_send_at=at)
        operation = await attempts.answer(conn, operation, lost)
    operation = await book.step(operation, 13, State.UNKNOWN)
    async with book.ledger.transaction() as conn:
        noted = replace(operation, next_step="look", next_step_at=at, review_at=at, look_again_at=at)
        operation = await operations.note(conn, operation, noted)
    operation = await book.step(operation, 18, State.NEEDS_REVIEW)
    assert await book.find(operation) == operation


READ: list[LiteralString] = [
    "operations", "attempts", "sightings", "sheets", "statements", "holds", "events", "edges", "config_versions",
    "config_current", "ledger_identity", "clock", "schema_migrations", "audits", "audit_findings",
]  # fmt: skip
HIDDEN: list[LiteralString] = ["targets", "inbox_events", "notices", "audit_places"]


async def test_the_reader_reads_what_people_decide_on_and_nothing_else(book: Book) -> None:
    """Every table is on one of two lists, so a new one is nobody's by accident. Red: grant `all tables` to the reader."""
    rows = await book.rows("select tablename from pg_tables where schemaname = 'public'")
    assert {row["tablename"] for row in rows} == {*READ, *HIDDEN}
    async with book.connection(READER) as conn:
        for table in READ:
            await conn.execute("select * from " + table + " limit 1")
        await conn.execute("select ledger_now()")
        for table in HIDDEN:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                async with conn.transaction():
                    await conn.execute("select * from " + table + " limit 1")


async def test_doctor_works_for_the_reader(book: Book) -> None:
    """It counts webhooks and notices that wait, of which the reader may read no more. Red: leave out migration 0008."""
    async with book.connection(READER) as conn:
        assert (await gauges.read(conn)).inbox_waiting == 0
        assert await gauges.oldest_unknown(conn) is None


async def test_the_reader_changes_and_locks_nothing(book: Book) -> None:
    """All that a worker may write or lock, and all that not even a worker may. Red: grant it anything but `select`."""
    tried: list[LiteralString] = [
        *FORBIDDEN,
        "insert into operations select * from operations",
        "update operations set reason = 'x'",
        "insert into events select * from events",
        "insert into statements select * from statements",
        "insert into sheets select * from sheets",
        "insert into attempts select * from attempts",
        "insert into sightings select * from sightings",
        "insert into holds (scope) values ('x')",
        "update holds set held = false",
        "update attempts set outcome = null",
        "select 1 from operations for update",
        "select 1 from operations for share",
        "select 1 from holds for share",
        "lock table operations in row share mode",
        "select lock_config()",
        "select lock_target('bank', 'acct_1', false, 'pay_1')",
    ]
    async with book.connection(READER) as conn:
        for query in tried:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                async with conn.transaction():
                    await conn.execute(query)


@pytest.mark.parametrize("user", [INBOX, READER])
async def test_no_login_stops_a_waiver_by_a_lock_that_everybody_may_take(own_book: Book, user: str) -> None:
    """Advisory locks are everybody's in Postgres, and the inbox faces the internet. Red: lock the actor's total by one."""
    operation = await own_book.record()
    waived = f"waived/{operation.tenant}/{operation.actor}"
    async with own_book.connection(user) as conn:
        await conn.execute("select pg_advisory_lock(hashtextextended(%s, 0))", [waived])
        assert (await asyncio.wait_for(own_book.judge(operation), 8)).state == "approved"


@pytest.mark.parametrize("user", [WORKER, INBOX, READER])
async def test_nobody_but_the_owner_applies_a_configuration(own_book: Book, user: str) -> None:
    """By the store's own function, under each of the other logins: nothing is in force that was not, and nothing is told.

    Red: grant the worker insert on config_versions and insert and update on config_current.
    """
    before = await own_book.rows("select version from config_current")
    async with own_book.connection(user) as conn:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            await configuration.apply(conn, document(waived_per_actor=30_000), "mallory")
    assert await own_book.rows("select version from config_current") == before
    assert await own_book.value("select count(*) from events where kind = 'config_applied'") == 1
    assert await own_book.apply(document(waived_per_actor=30_000)) == 2


@pytest.mark.parametrize(
    "kind", [EventKind.CONFIG_APPLIED, EventKind.CLOCK_MOVED, EventKind.RESTORED, EventKind.ERASED]
)
async def test_a_worker_does_not_tell_of_what_only_the_owner_does(own_book: Book, kind: EventKind) -> None:
    """It adds events, but none that says that a configuration was applied or a clock moved; the owner's is taken.

    Red: drop the trigger `events_of_the_owner`.
    """
    told = "select count(*) from events where kind = %s"
    before = await own_book.value(told, kind.value)
    async with own_book.connection(WORKER) as conn:
        with pytest.raises(psycopg.Error, match="is for the owner to tell") as refused:
            await events.append_to_ledger(conn, kind, {"version": 2, "applied_by": "mira"})
        assert refused.value.sqlstate == "EL002"
    async with own_book.connection(OWNER) as conn:
        await events.append_to_ledger(conn, kind, {"version": 1, "applied_by": "mira"})
        await conn.commit()
    assert await own_book.value(told, kind.value) == before + 1
