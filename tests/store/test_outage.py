"""Our own Postgres goes away: what is said then is `Unavailable`, soon, and a claim that may not stand is never sent on."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import LiteralString
from urllib.parse import urlsplit

import pytest
from temporalio.exceptions import ApplicationError

from activities.dispatch import Claim, Dispatch, Wire
from activities.messages import Next
from devstack.postgres import Postgres
from ledger.errors import Broken, Refused, Unavailable
from ledger.model import Operation, Outcome, Standing
from ledger.states import State
from ledger.store import events, operations
from ledger.store.database import Connection, Ledger, one
from ledger.trail import EventKind
from providers.port import Classified
from tests.store.conftest import PASSWORD, WORKER, Book, ref

TERMINATE: LiteralString = "select pg_terminate_backend(%s)"


@asynccontextmanager
async def pool(dsn: str, *, patience: float = 1.0) -> AsyncIterator[Ledger]:
    """A pool of this test's own, which does not wait long."""
    ledger = Ledger(dsn, max_size=2, timeout=patience)
    await ledger.open()
    try:
        yield ledger
    finally:
        await ledger.close()


async def terminate(book: Book, conn: Connection) -> None:
    """End the session's backend, and return when it is gone."""
    async with book.connection("postgres", autocommit=True) as other:
        # With a second argument it waits, in milliseconds, and is false when the backend still lives.
        (row,) = await book.rows("select pg_terminate_backend(%s, 5000) as gone", conn.info.backend_pid, conn=other)
        assert row["gone"] is True


async def test_a_stopped_postgres_is_unavailable_within_the_pools_patience(postgres: Postgres, book: Book) -> None:
    """Killed as by a crash; the same pool works again when it is back, without being opened anew.

    Red when `transaction` does not translate `PoolTimeout`.
    """
    operation = await book.record()
    async with pool(book.dsn()) as ledger:
        postgres.kill()
        try:
            began = time.monotonic()
            with pytest.raises(Unavailable):
                async with ledger.transaction():
                    pytest.fail("there is no Postgres")
            assert time.monotonic() - began < 3
        finally:
            postgres.restart()
        deadline = time.monotonic() + 15
        while True:
            with suppress(Unavailable):
                async with ledger.transaction() as conn:
                    assert await operations.find(conn, operation.operation_id) == operation
                    break
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)


async def test_opening_is_unavailable_as_soon_as_the_caller_says() -> None:
    """At the start of a worker. Red when `open` waits for psycopg_pool's own half a minute."""
    closed = Ledger(f"postgresql://{WORKER}:{PASSWORD}@127.0.0.1:1/nowhere")
    began = time.monotonic()
    with pytest.raises(Unavailable):
        await closed.open(within=0.5)
    assert time.monotonic() - began < 3


async def test_a_postgres_that_hangs_is_unavailable_too(book: Book) -> None:
    """It is there and does not answer: its process is stopped. psycopg adds five seconds in which it tries to cancel.

    Red when the pool's check is not bounded: it would wait for as long as the process is stopped.
    """
    async with pool(book.dsn(), patience=0.3) as ledger:
        async with ledger.transaction() as conn:
            pid = conn.info.backend_pid
        os.kill(pid, signal.SIGSTOP)
        try:
            async with asyncio.timeout(15):
                with pytest.raises(Unavailable):
                    async with ledger.transaction():
                        pytest.fail("nobody answered")
        finally:
            os.kill(pid, signal.SIGCONT)


async def test_a_backend_killed_between_two_statements_is_unavailable(book: Book) -> None:
    """And what the transaction wrote is not there. Red when `transaction` does not translate OperationalError."""
    operation = await book.at(State.APPROVED)
    with pytest.raises(Unavailable):
        async with book.ledger.transaction() as conn:
            operation = await events.append(conn, operation, EventKind.PREFLIGHT, {})
            await terminate(book, conn)
            await events.append(conn, operation, EventKind.PREFLIGHT, {})
    assert (await book.find(operation)).event_count == operation.event_count - 1


async def test_a_backend_killed_before_the_commit_is_unavailable(book: Book) -> None:
    """The last statement was answered, the commit is not."""
    operation = await book.at(State.APPROVED)
    with pytest.raises(Unavailable):
        async with book.ledger.transaction() as conn:
            await events.append(conn, operation, EventKind.PREFLIGHT, {})
            await terminate(book, conn)
    assert await book.find(operation) == operation


async def test_an_error_of_ours_passes_as_it_is_and_rolls_back(book: Book) -> None:
    """Even when the connection dies with it: what was refused is refused."""
    operation = await book.at(State.APPROVED)
    with pytest.raises(Refused, match="no"):
        async with book.ledger.transaction() as conn:
            await events.append(conn, operation, EventKind.PREFLIGHT, {})
            await terminate(book, conn)
            raise Refused("no", "no")
    assert await book.find(operation) == operation


async def test_a_lock_that_is_not_given_is_unavailable(book: Book) -> None:
    """After lock_timeout, which is shortened here: somebody else's long transaction is no bug of ours."""
    operation = await book.record()
    row: LiteralString = "select 1 from operations where operation_id = %s for update"
    async with book.holding(row, operation.operation_id):
        with pytest.raises(Unavailable):
            async with book.ledger.transaction() as conn:
                assert (await one(conn, "show lock_timeout"))["lock_timeout"] == "10s"
                await conn.execute("set local lock_timeout = '50ms'")
                await operations.lock(conn, operation.operation_id)


async def test_a_deadlock_is_unavailable_and_leaves_one_of_the_two(book: Book) -> None:
    """Two transactions take two operations in opposite orders, which no code of ours does."""
    pair = [await book.record(), await book.record()]
    both_have_one = asyncio.Barrier(2)

    async def take(first: Operation, second: Operation) -> None:
        async with book.ledger.transaction() as conn:
            await operations.lock(conn, first.operation_id)
            await both_have_one.wait()
            await operations.lock(conn, second.operation_id)

    ends = await asyncio.gather(take(*pair), take(*reversed(pair)), return_exceptions=True)
    assert sorted(type(end).__name__ for end in ends) == ["NoneType", "Unavailable"]


async def test_what_the_database_refuses_is_broken(book: Book) -> None:
    """A constraint or trigger that had to step in is a bug above it."""
    operation = await book.at(State.APPROVED)
    with pytest.raises(Broken, match="EL001"):
        async with book.ledger.transaction() as conn:
            await conn.execute("update operations set fence = 5 where operation_id = %s", [operation.operation_id])
    with pytest.raises(Broken, match="23514"):
        async with book.ledger.transaction() as conn:
            await conn.execute(
                "update operations set people_needed = -1 where operation_id = %s", [operation.operation_id]
            )


async def test_a_cancelled_transaction_gives_its_connection_back(book: Book) -> None:
    """Cancelled while it waits for a lock, more often than the pool has connections."""
    operation = await book.record()

    async def wait(ledger: Ledger) -> None:
        async with ledger.transaction() as conn:
            await operations.lock(conn, operation.operation_id)

    row: LiteralString = "select 1 from operations where operation_id = %s for update"
    async with pool(book.dsn(), patience=5.0) as ledger:
        async with book.holding(row, operation.operation_id):
            for _ in range(4):
                waiting = asyncio.create_task(wait(ledger))
                await book.waiting(1)
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
        await wait(ledger)


# The claim's commit ---------------------------------------------------------------------------------------------


class Proxy:
    """Between a pool and Postgres: it carries everything until a commit of a claim, whose answer nobody gets.

    `reaches` says whether the commit itself gets to the server (it stands) or not (it is rolled back).
    """

    def __init__(self, dsn: str, *, reaches: bool) -> None:
        self._dsn = urlsplit(dsn)
        self._reaches = reaches
        self._server: asyncio.Server
        self.cut = 0

    async def __aenter__(self) -> str:
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        login = self._dsn.netloc.rpartition("@")[0]
        return f"postgresql://{login}@127.0.0.1:{port}{self._dsn.path}?sslmode=disable&gssencmode=disable"

    async def __aexit__(self, *problem: object) -> None:
        self._server.close()

    async def _carry(self, client: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        server, requests = await asyncio.open_connection(self._dsn.hostname, self._dsn.port)
        back = asyncio.create_task(self._back(server, answers))
        claiming = False
        try:
            while chunk := await client.read(65_536):
                claiming = claiming or b"attempt_opened" in chunk
                if claiming and b"COMMIT" in chunk and not self.cut:
                    self.cut += 1
                    back.cancel()
                    if self._reaches:
                        requests.write(chunk)
                        await requests.drain()
                        assert b"COMMIT" in await server.read(65_536)  # it stands
                    return
                requests.write(chunk)
                await requests.drain()
        finally:
            back.cancel()
            requests.close()
            answers.close()

    async def _back(self, server: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        while chunk := await server.read(65_536):
            answers.write(chunk)
            await answers.drain()


@pytest.mark.parametrize("reaches", [True, False], ids=["committed", "rolled back"])
async def test_a_claim_whose_commit_was_not_acknowledged_is_never_sent(book: Book, reaches: bool) -> None:
    """The connection is cut at the claim's COMMIT, which the server has carried out in one case and never seen in the other.

    Either way the activity ends as `Unavailable` and nothing leaves; the next try inherits nothing.
    Red when `transaction` swallows the error of its commit, or `dispatch` goes on without a returned claim.
    """
    operation = await book.approved()
    async with Proxy(book.dsn(), reaches=reaches) as dsn, pool(dsn, patience=5.0) as ledger:
        there = Book(book.postgres, book.name, ledger, book.bank)
        with pytest.raises(ApplicationError) as refused:
            await there.dispatch(operation)
        assert refused.value.type == "Unavailable"
        assert book.bank.sent == []
    stands = await book.find(operation)
    assert (stands.state, stands.fence) == ((State.IN_FLIGHT, 1) if reaches else (State.APPROVED, 0))
    assert len(await book.attempts(operation)) == int(reaches)
    again = await book.dispatch(operation)
    if reaches:
        assert (again.state, again.next) == ("in_flight", Next.RECONCILE)
        assert book.bank.sent == []
    else:
        assert again.state == "succeeded"
        assert len(book.bank.sent) == 1


async def test_a_claim_killed_while_it_commits_is_never_sent(own_book: Book) -> None:
    """The backend is terminated inside COMMIT: a deferred trigger of this test waits there for a lock.

    Red as above.
    """
    operation = await own_book.approved()
    async with own_book.connection(autocommit=True) as conn:
        await conn.execute(
            "create function stop_here() returns trigger language plpgsql as"
            " $$ begin perform pg_advisory_xact_lock(7); return null; end $$"
        )
        await conn.execute(
            "create constraint trigger zz_stop after insert on attempts deferrable initially deferred"
            " for each row execute function stop_here()"
        )
    async with own_book.holding("select pg_advisory_xact_lock(7)"):
        sending = asyncio.create_task(own_book.dispatch(operation))
        await own_book.waiting(1)
        async with own_book.connection("postgres", autocommit=True) as conn:
            (session,) = await own_book.rows(
                "select pid, query from pg_stat_activity where wait_event_type = 'Lock'"
                " and datname = current_database()",
                conn=conn,
            )
            assert session["query"] == "COMMIT"
            await conn.execute(TERMINATE, [session["pid"]])
        with pytest.raises(ApplicationError) as refused:
            await sending
    assert refused.value.type == "Unavailable"
    assert own_book.bank.sent == []
    assert await own_book.find(operation) == operation


async def test_a_guard_that_cannot_ask_lets_nothing_pass(postgres: Postgres, book: Book) -> None:
    """Between claim and send, Postgres goes away: any doubt is a no, and within the time that the guard has.

    Red when `_may_still_send` does not catch `Unavailable`.
    """
    operation = await book.approved()
    async with pool(book.dsn()) as ledger:
        there = Book(book.postgres, book.name, ledger, book.bank)
        given = await Dispatch(there.ports)._claim(ref(operation))
        assert isinstance(given, Claim)
        postgres.kill()
        try:
            assert await Dispatch(there.ports)._may_still_send(given) is False
        finally:
            postgres.restart()
    assert book.bank.sent == []


async def test_an_answer_waits_until_the_ledger_is_back(postgres: Postgres, own_book: Book) -> None:
    """It was sent and answered, and Postgres is away: the answer is kept in memory and written when it can be.

    Red when `Dispatch._record` gives up at the first `Unavailable`.
    """
    operation = await own_book.approved()
    async with pool(own_book.dsn(), patience=0.3) as ledger:
        there = Book(own_book.postgres, own_book.name, ledger, own_book.bank)
        given = await Dispatch(there.ports)._claim(ref(operation))
        assert isinstance(given, Claim)
        postgres.kill()
        try:
            applied = Classified(Outcome.APPLIED, receipt="re_kept", standing=Standing.GOOD)
            recording = asyncio.create_task(Dispatch(there.ports)._record(given, applied, Wire()))
            finished, _ = await asyncio.wait([recording], timeout=0.6)
            assert not finished
        finally:
            postgres.restart()
        assert (await recording).state == "succeeded"
        async with ledger.transaction() as conn:
            stands = await operations.find(conn, operation.operation_id)
    assert stands is not None
    assert stands.receipt == "re_kept"
