"""A ledger notices by itself that it was restored, copied or made anew from a dump, and sends nothing until it is released."""

import asyncio
import subprocess
from dataclasses import replace
from datetime import timedelta
from typing import LiteralString

import psycopg
import pytest
from psycopg import sql

from activities.dispatch import Claim, Dispatch, Wire
from activities.hold import Hold
from activities.messages import HoldAnswer
from devstack.postgres import find_programs
from ledger.errors import Broken
from ledger.model import Outcome
from ledger.statement import StatementType
from ledger.states import State
from ledger.store import audits, events, holds, incarnation, operations, verify
from ledger.store.database import now
from ledger.trail import EventKind
from providers.port import Classified
from tests.store.conftest import OWNER, WORKER, Book, document, step
from tests.store.test_claims import TOTALS, claim, claimed, unknown

MOVES: dict[str, LiteralString] = {
    "another cluster": "split_part(home, '/', 1)",
    "another database": "split_part(home, '/', 2)",
    "another table": "split_part(home, '/', 3)",
    "another timeline": "split_part(home, '/', 4)",
}


async def lives_elsewhere(book: Book, part: LiteralString = "split_part(home, '/', 2)") -> None:
    """What is recorded is of another home: as after a restore, seen from the other side."""
    async with book.connection("postgres", autocommit=True) as conn:
        await conn.execute("update ledger_identity set home = replace(home, " + part + ", '9')")


async def begin(book: Book) -> int:
    """`effects restored`."""
    async with book.connection(OWNER) as conn:
        number = await incarnation.begin(conn, "mira", "a test")
        await conn.commit()
    return number


async def audited(book: Book, *, complete: bool = True) -> None:
    """An audit that begins and ends now."""
    async with book.ledger.transaction() as conn:
        start = await audits.start(conn)
        await audits.record(conn, start, 1, [] if complete else ["a listing"])


async def release(book: Book, by: str) -> HoldAnswer:
    """The word of one operator."""
    return await book.run(Hold(book.ports).hold, book.hold("restored", by=by, typ=StatementType.RELEASE))


@pytest.mark.parametrize("part", MOVES.values(), ids=MOVES)
async def test_away_from_home_nothing_is_claimed_for_the_first_time(own_book: Book, part: LiteralString) -> None:
    """Red: leave that part out of `ledger_home`; or `not at_home()` out of `holds.in_force` (then the trigger raises)."""
    operation = await own_book.approved()
    await lives_elsewhere(own_book, part)
    await own_book.dispatch(operation)
    stands = await own_book.find(operation)
    assert (stands.state, stands.fence) == (State.APPROVED, 0)
    assert stands.next_step == "dispatch (restored: held until people release it)"
    assert own_book.bank.sent == []
    async with own_book.ledger.transaction() as conn:
        (held,) = await holds.current(conn)
        assert (held.scope, held.reason) == ("restored", holds.UNSAID)
        assert await incarnation.current(conn) == incarnation.Incarnation(1, False)
        told = await verify.verify(conn)
    assert [found.row for found in told.warnings] == ["hold restored"]


async def test_away_from_home_nothing_is_repeated(own_book: Book) -> None:
    """A lost answer is only looked for. Red: leave `not at_home()` out of `holds.in_force` (then the trigger raises)."""
    operation = await unknown(own_book)
    await lives_elsewhere(own_book)
    await own_book.dispatch(operation)
    stands = await own_book.find(operation)
    assert (stands.state, stands.fence, stands.next_step) == (State.UNKNOWN, 1, "wait")
    assert own_book.bank.sent == []


async def test_the_database_itself_refuses_a_claim(own_book: Book) -> None:
    """Whatever a worker believes, and however old its code is. Red: drop the trigger `claims_guard`, or either half of it."""
    operation = await own_book.at(State.APPROVED)
    await lives_elsewhere(own_book)
    for _ in range(2):
        async with own_book.connection(WORKER) as conn:
            with pytest.raises(psycopg.Error) as refused:
                await step(conn, operation, 7, State.IN_FLIGHT)
        assert refused.value.sqlstate == "EL005"
        await begin(own_book)


@pytest.mark.parametrize("how", ["copied", "dumped"])
async def test_a_copy_and_a_dump_are_noticed(own_book: Book, how: str) -> None:
    """In the same cluster: a database made after the template of another, and one made anew from a dump under its old name.

    Red: leave the oid of the database out of `ledger_home`, or that of the table too.
    """
    server, name = own_book.postgres, f"{own_book.name}_{how}"
    await own_book.ledger.close()
    if how == "copied":
        server.create_database(name, template=own_book.name)
    else:
        dump = [find_programs() / "pg_dump", "--format=plain", server.dsn(own_book.name)]
        text = subprocess.run(dump, check=True, capture_output=True).stdout
        server.create_database(name)
        subprocess.run([find_programs() / "psql", "-q", server.dsn(name)], input=text, check=True, capture_output=True)
    with psycopg.connect(server.dsn(own_book.name)) as conn:
        assert conn.execute("select at_home()").fetchone() == (True,)
    with psycopg.connect(server.dsn(name)) as conn:
        assert conn.execute("select at_home()").fetchone() == (False,)
        (was, now_at) = conn.execute("select home, ledger_home() from ledger_identity").fetchone() or ("", "")
    differing = [a != b for a, b in zip(was.split("/"), now_at.split("/"), strict=True)]
    assert differing == [False, True, how == "dumped", False]
    server.drop_database(name)


async def test_a_crash_and_a_restart_are_no_restore(own_book: Book) -> None:
    """A crash of Postgres forgets nothing that was committed. Red: take the redo point into `ledger_home`."""
    before = await own_book.value("select ledger_home()")
    own_book.postgres.kill()
    own_book.postgres.restart()
    assert await own_book.value("select ledger_home()") == before
    assert await own_book.value("select at_home()") is True


async def test_a_restore_that_is_said_waits_for_running_claims_and_stops_their_guard(own_book: Book) -> None:
    """The claim stands inside its transaction. Red: drop `for share` from `holds.in_force`, or that from the guard."""
    operation = await own_book.approved()
    async with own_book.holding(TOTALS):
        claiming = claim(own_book, operation)
        await own_book.waiting(1)
        beginning = asyncio.create_task(begin(own_book))
        await own_book.waiting(2)
    given = await claiming
    assert isinstance(given, Claim)
    assert await beginning == 2
    assert await Dispatch(own_book.ports)._may_still_send(given) is False


async def test_a_worker_that_outlives_a_restore_takes_no_claim_of_the_next_life_for_its_own(own_book: Book) -> None:
    """It was stopped after its claim. The ledger forgot that, was released, and another worker made the same fence again.

    The lease tells them apart; guards are off while it is changed. Red: compare the fence alone, in the guard or where the
    answer is written down: "not sent" would become the proof about a request that another worker has just sent.
    """
    given = await claimed(own_book, await own_book.approved())
    dispatch = Dispatch(own_book.ports)
    assert await dispatch._may_still_send(given) is True
    async with own_book.connection("postgres", autocommit=True) as conn:
        await conn.execute("set session_replication_role = replica")
        for table in ("operations", "attempts"):
            await conn.execute(
                sql.SQL("update {} set lease_until = lease_until + interval '9 s'").format(sql.Identifier(table))
            )
    assert await dispatch._may_still_send(given) is False
    with pytest.raises(Broken):
        await dispatch._record_once(given, Classified(Outcome.NO_EFFECT), Wire())
    assert [attempt.outcome for attempt in await own_book.attempts(given.operation)] == [None]


async def test_a_release_counts_only_if_it_was_signed_after_the_restore_was_said(own_book: Book) -> None:
    """Before that the database is another one; and what was accepted then may be handed in again. Red: drop either refusal."""
    early = own_book.hold("restored", by="oscar", typ=StatementType.RELEASE)
    await lives_elsewhere(own_book)
    await audited(own_book)
    assert (await release(own_book, "olga")).rule == "restore_unsaid"
    await own_book.set_clock(timedelta(seconds=2))  # signatures have whole seconds
    assert await begin(own_book) == 2
    await audited(own_book)
    assert (await own_book.run(Hold(own_book.ports).hold, early)).rule == "release_early"


async def test_an_audit_counts_for_its_own_incarnation_only(own_book: Book) -> None:
    """One that began before the restore was said, and one that could not read everything, let nobody release."""
    operation = await own_book.approved()
    async with own_book.ledger.transaction() as conn:
        start = await audits.start(conn)
    await begin(own_book)
    assert (await release(own_book, "olga")).rule == "audit_missing"
    async with own_book.ledger.transaction() as conn:
        await audits.record(conn, start, 1, [])
    assert (await release(own_book, "olga")).rule == "audit_missing"
    await audited(own_book, complete=False)
    assert (await release(own_book, "olga")).rule == "audit_missing"
    await audited(own_book)
    for by, held in (("olga", True), ("olga", True), ("oscar", False)):
        answer = await release(own_book, by)
        assert (answer.accepted, answer.held, not answer.wake) == (True, held, held)
    assert (await claimed(own_book, operation)).operation.fence == 1
    async with own_book.ledger.transaction() as conn:
        own = await events.read(conn, await operations.namespace(conn))
        assert [e.kind for e in own if e.kind in (EventKind.RESTORED, EventKind.RELEASED)] == ["restored", "released"]
        assert own[-1].body["audit"] == 3 and own[-1].body["incarnation"] == 2
        assert [d for d in (await verify.verify(conn)).differences if d.row.startswith("hold")] == []


async def test_an_audit_counts_only_for_the_configuration_that_it_read(own_book: Book) -> None:
    """A binding that the ledger forgot, and gets back: its account was not listed. Red: drop the check in `_audited`."""
    await begin(own_book)
    await audited(own_book)
    await own_book.apply(document(waived_per_actor=30_000))
    assert (await release(own_book, "olga")).rule == "audit_missing"
    await audited(own_book)
    assert (await release(own_book, "olga")).accepted


async def test_nobody_holds_that_scope_by_hand(own_book: Book) -> None:
    """It would look like a restore. Red: drop the check in `Hold._tenant_of`."""
    answer = await own_book.run(Hold(own_book.ports).hold, own_book.hold("restored"))
    assert (answer.accepted, answer.rule) == (False, "scope_unknown")


async def test_no_audit_is_recorded_for_an_incarnation_to_come(book: Book) -> None:
    """By a worker that wants the next restore released. Red: drop the trigger `audits_guard`."""
    async with book.ledger.transaction() as conn:
        start = replace(await audits.start(conn), incarnation=9)
        assert (await now(conn)) > start.at
        with pytest.raises(psycopg.Error) as refused:
            async with conn.transaction():
                await audits.record(conn, start, 0, [])
    assert refused.value.sqlstate == "EL002"
