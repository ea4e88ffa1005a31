"""The inbox in Postgres: what its role can add, what nobody can change, and whom an event is a reason to wake."""

import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, LiteralString

import psycopg
import pytest
from psycopg import sql

from activities.messages import Taken, Taking
from activities.take_events import TakeEvents
from ledger.errors import Broken, Refused
from ledger.model import InboxEvent, Operation
from ledger.states import State
from ledger.store import inbox
from ledger.store.database import Ledger
from tests.store.conftest import ACCOUNT, INBOX, WORKER, Book

TABLES = (
    "attempts", "audit_findings", "audit_places", "audits", "clock", "config_current", "config_versions",
    "edges", "events", "holds", "inbox_events", "ledger_identity", "notices", "operations",
    "schema_migrations", "sheets", "sightings", "statements", "targets",
)  # fmt: skip


def told(event_id: str = "", **changes: Any) -> InboxEvent:
    """A verified event of the account that the tenants of these tests are bound to."""
    made = InboxEvent(
        provider="bank",
        event_id=event_id or f"evt_{uuid.uuid4().hex}",
        account=ACCOUNT,
        livemode=False,
        type="refund.updated",
        created_at=datetime.now(UTC),
        receipt=None,
        target=None,
        marker=None,
        body_digest=b"d" * 32,
    )
    return replace(made, **changes)


async def keep(book: Book, event: InboxEvent) -> bool:
    """As the inbox's login, as the inbox does it."""
    ledger = Ledger(book.dsn(INBOX), max_size=1)
    await ledger.open()
    try:
        async with ledger.transaction() as conn:
            return await inbox.insert(conn, event)
    finally:
        await ledger.close()


async def take(book: Book, looked: list[Operation], at_most: int = 100) -> Taken:
    """The activity, with a list in place of Temporal."""

    async def look_now(operation: Operation) -> None:
        looked.append(operation)

    return await book.run(TakeEvents(replace(book.ports, look_now=look_now)).take_events, Taking(at_most=at_most))


async def test_an_event_is_kept_once(own_book: Book) -> None:
    """Whatever a second delivery of the same id says. Red: no `one_event`, or no `on conflict do nothing`."""
    assert await keep(own_book, told("evt_1", receipt="re_1")) is True
    assert await keep(own_book, told("evt_1", receipt="re_2")) is False
    assert await keep(own_book, told("evt_1", provider="stripe")) is True  # ids are each provider's own
    rows = await own_book.rows(
        "select receipt, received_at is not null as timed, taken_at from inbox_events order by number"
    )
    assert [(r["receipt"], r["timed"], r["taken_at"]) for r in rows] == [("re_1", True, None), (None, True, None)]


@pytest.mark.parametrize(
    "changes",
    [{"account": "acct_other"}, {"livemode": True}, {"provider": "elsewhere"}],
    ids=["account", "mode", "provider"],
)
async def test_an_account_or_mode_that_nobody_is_bound_to_is_refused(own_book: Book, changes: dict[str, Any]) -> None:
    """By the configuration in force, in the transaction that keeps the event. Red: drop that part of `inbox_guard`."""
    with pytest.raises(Refused) as refused:
        await keep(own_book, told(**changes))
    assert refused.value.rule == "account_not_bound"
    assert await own_book.value("select count(*) from inbox_events") == 0


async def test_a_test_clock_moves_what_the_inbox_says_too(own_book: Book) -> None:
    """The time of receipt is the ledger's. Red: `now()` in place of `ledger_now()`."""
    async with own_book.connection(autocommit=True) as conn:
        await conn.execute("update clock set shift = '40 days'")
    await keep(own_book, told())
    assert await own_book.value("select received_at > now() + interval '39 days' from inbox_events") is True


@pytest.mark.parametrize("table", TABLES)
async def test_the_inbox_reads_nothing(book: Book, table: str) -> None:
    """Not even its own table: whoever takes over what faces the internet learns nothing. Red: grant it select."""
    async with book.connection(INBOX) as conn:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            await conn.execute(sql.SQL("select 1 from {}").format(sql.Identifier(table)))


async def test_there_is_no_other_table(book: Book) -> None:
    """So that a new one is asked about here."""
    rows = await book.rows(
        "select relname as n from pg_class where relkind = 'r' and relnamespace = 'public'::regnamespace"
    )
    assert {row["n"] for row in rows} == set(TABLES)


INSERT = "insert into inbox_events (provider, event_id, account, livemode, type, created_at, body_digest"
VALUES = " values ('bank', 'evt_9', 'acct_1', false, 't', now(), sha256('')"
FORBIDDEN: list[LiteralString] = [
    "update inbox_events set type = 'x'",
    "update inbox_events set woken = '{}'",
    "delete from inbox_events",
    "truncate inbox_events",
    INSERT + ", received_at)" + VALUES + ", now())",
    INSERT + ", number) overriding system value" + VALUES + ", 1)",
    INSERT + ", taken_at, woken)" + VALUES + ", now(), '{}')",
    INSERT + ")" + VALUES + ") returning number",
    "insert into events select",
    "insert into operations default values",
    "insert into attempts default values",
    "insert into statements default values",
    "insert into holds (scope) values ('x')",
    "select ledger_now()",
    "select lock_config()",
    "select lock_target('bank', 'acct_1', false, 'pay_1')",
    "create table public.mine (x int)",
    "set role effects_worker",
    "set session_replication_role = replica",
    "copy inbox_events to stdout",
]


@pytest.mark.parametrize("statement", FORBIDDEN)
async def test_the_inbox_can_do_nothing_else(book: Book, statement: LiteralString) -> None:
    """By privilege. Red: grant it `insert` on the whole table, or membership in the worker's role."""
    async with book.connection(INBOX) as conn:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            await conn.execute(statement)


async def test_temporary_tables_of_the_inbox_are_not_believed(book: Book) -> None:
    """A temporary configuration that binds everybody. Red: no pinned search path on `inbox_guard`."""
    async with book.connection(INBOX) as conn:
        await conn.execute("create temp table config_current as select 1 as version")
        await conn.execute(
            'create temp table config_versions as select 1 as version, convert_to(\'{"bindings": [{"provider": "bank",'
            ' "account": "acct_x", "livemode": false}]}\', \'UTF8\') as document'
        )
        await conn.execute("grant all on config_current, config_versions to public")
        with pytest.raises(Refused) as refused:
            await inbox.insert(conn, told(account="acct_x"))
        assert refused.value.rule == "account_not_bound"


KEPT: list[LiteralString] = [
    "update inbox_events set type = 'x'",
    "update inbox_events set receipt = 're_9'",
    "update inbox_events set received_at = now()",
    "update inbox_events set body_digest = sha256('x')",
    "update inbox_events set woken = '{}', marker = gen_random_uuid()",
    "update inbox_events set taken_at = now()",
    "delete from inbox_events",
    "truncate inbox_events",
]


@pytest.mark.parametrize("statement", KEPT)
async def test_nobody_changes_what_was_received(own_book: Book, statement: LiteralString) -> None:
    """The owner neither. Red: drop the comparison in `inbox_guard`, or one of the triggers."""
    await keep(own_book, told())
    async with own_book.connection() as conn:
        with pytest.raises(psycopg.Error) as refused:
            await conn.execute(statement)
        assert refused.value.sqlstate in ("EL002", "23514")


async def test_an_event_is_taken_once(own_book: Book) -> None:
    """The second taker changes nothing, by accident or by intent; the worker's role cannot add events."""
    await keep(own_book, told())
    first, second = uuid.uuid4(), uuid.uuid4()
    async with own_book.ledger.transaction() as conn:
        (one,) = await inbox.untaken(conn, 10)
        await inbox.take(conn, one.number, [first])
        await inbox.take(conn, one.number, [second])
        assert await inbox.untaken(conn, 10) == []
    assert await own_book.value("select woken = array[%s] and taken_at >= received_at from inbox_events", first) is True
    with pytest.raises(Broken, match="append-only"):
        async with own_book.ledger.transaction() as conn:
            await conn.execute("update inbox_events set woken = '{}'")
    async with own_book.connection(WORKER) as conn:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            await inbox.insert(conn, told())


async def test_whom_an_event_wakes(own_book: Book) -> None:
    """Whoever the effect names; else whose receipt it is; else everything open on the target; in account and mode only.

    Red: each `return` of `inbox.concerned` moved one step, or its comparison with account and mode dropped.
    """
    done = await own_book.at(State.SUCCEEDED, key="done", target="pay_1")
    waiting = await own_book.at(State.APPROVED, key="waiting", target="pay_1")
    unknown = await own_book.at(State.UNKNOWN, key="unknown", target="pay_1")
    await own_book.at(State.UNKNOWN, key="elsewhere", target="pay_2")
    receipt = (await own_book.find(done)).receipt
    expected: list[tuple[dict[str, Any], set[str]]] = [
        ({"marker": done.operation_id, "receipt": "re_x", "target": "pay_1"}, {"done"}),
        ({"receipt": receipt, "target": "pay_1"}, {"done"}),
        ({"marker": uuid.uuid4(), "receipt": receipt, "target": "pay_1"}, {"done"}),
        ({"marker": uuid.uuid4(), "receipt": "re_foreign", "target": "pay_1"}, {"waiting", "unknown"}),
        ({"target": "pay_1"}, {"waiting", "unknown"}),
        ({"marker": uuid.uuid4(), "receipt": "re_foreign", "target": "pay_3"}, set()),
        ({}, set()),
        ({"marker": done.operation_id, "account": "acct_other"}, set()),
        ({"marker": done.operation_id, "livemode": True}, set()),
        ({"receipt": receipt, "account": "acct_other"}, set()),
        ({"receipt": receipt, "livemode": True}, set()),
        ({"target": "pay_1", "account": "acct_other"}, set()),
    ]
    async with own_book.ledger.transaction() as conn:
        for fields, keys in expected:
            concerned = await inbox.concerned(conn, told(**fields))
            assert {o.business_key for o in concerned} == keys, fields
    assert {waiting.business_key, unknown.business_key} == {"waiting", "unknown"}


async def test_events_are_taken_in_order_and_one_look_answers_all_of_a_batch(own_book: Book) -> None:
    """Three events of one operation and one of nobody's: one look, and four events taken. Red: no set of the woken."""
    operation = await own_book.at(State.UNKNOWN)
    for number in range(3):
        await keep(own_book, told(f"evt_{number}", marker=operation.operation_id))
    await keep(own_book, told("evt_foreign", receipt="re_foreign"))
    looked: list[Operation] = []
    assert await take(own_book, looked, at_most=2) == Taken(taken=2, woken=1, left=True)
    assert [r["event_id"] for r in await own_book.rows("select event_id from inbox_events where taken_at is null")] == [
        "evt_2",
        "evt_foreign",
    ]
    assert await take(own_book, looked) == Taken(taken=2, woken=1, left=False)
    assert await take(own_book, looked) == Taken()
    assert [o.operation_id for o in looked] == [operation.operation_id] * 2
    woken = [r["woken"] for r in await own_book.rows("select woken from inbox_events order by number")]
    assert woken == [[operation.operation_id]] * 3 + [[]]


async def test_an_event_that_woke_nobody_yet_stays_and_stops_no_other(own_book: Book) -> None:
    """Temporal refuses one of two; later it takes both. Red: mark before waking, or leave the loop at the first error."""
    first, second = (
        await own_book.at(State.UNKNOWN, key="first"),
        await own_book.at(State.UNKNOWN, key="second", target="pay_2"),
    )
    for operation in (first, second):
        await keep(own_book, told(marker=operation.operation_id))
    looked: list[Operation] = []

    async def look_now(operation: Operation) -> None:
        if operation.business_key == "first":
            raise refusal()
        looked.append(operation)

    with pytest.raises(type(refusal())):
        await own_book.run(TakeEvents(replace(own_book.ports, look_now=look_now)).take_events, Taking())
    assert [o.business_key for o in looked] == ["second"]
    assert await own_book.value("select count(*) from inbox_events where taken_at is null") == 1
    assert (await take(own_book, looked)).taken == 1
    assert [o.business_key for o in looked] == ["second", "first"]


def refusal() -> Exception:
    """What Temporal's client raises when nobody answers."""
    from temporalio.service import RPCError, RPCStatusCode

    return RPCError("away", RPCStatusCode.UNAVAILABLE, b"")


async def test_an_event_moves_nothing(own_book: Book) -> None:
    """Whatever it says of whatever operation: taking it writes to no table but its own."""
    operation = await own_book.at(State.UNKNOWN)
    before = await own_book.find(operation)
    await keep(own_book, told(marker=operation.operation_id, type="refund.failed"))
    await take(own_book, [])
    assert await own_book.find(operation) == before
    assert before.next_step_at is None or before.next_step_at < datetime.now(UTC) + timedelta(days=1)
