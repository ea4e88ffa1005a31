"""Claims against each other, against revocation and against holds: every race is made certain by a lock that the test holds.

How: the test takes a lock that both sides need, starts them, waits until Postgres says that they wait for it, and lets go.
Where one side must come first, it is stopped inside its transaction by a lock that only it needs (the lock of
waiver totals, which a claim takes after holds and configuration), or its transaction is the test's own, not committed.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any, LiteralString
from uuid import UUID

import psycopg
import pytest

from activities.approve import Approve
from activities.dispatch import Claim, Dispatch, Wire
from activities.hold import Hold
from activities.messages import Next
from activities.settle import close_attempt_as_unknown, settle
from ledger.config import Document
from ledger.errors import Broken, Superseded
from ledger.model import Attempt, Hint, Operation, Outcome, Standing
from ledger.statement import StatementType
from ledger.states import State
from ledger.store import attempts, configuration, events, holds, operations, statements
from ledger.store.database import now
from ledger.trail import EventKind
from providers.port import Classified
from tests.store.bank import nothing
from tests.store.conftest import WORKER, Book, arrived, document, ref, step

ROW: LiteralString = "select 1 from operations where operation_id = %s for update"
TARGET: LiteralString = (
    "select lock_target(provider, account, livemode, target) from operations where operation_id = %s"
)
TOTALS: LiteralString = "select lock_target('waived', 'acme', false, 'support-bot')"


def claim(book: Book, operation: Operation) -> asyncio.Task[object]:
    """The claim of the activity `dispatch`, begun."""
    return asyncio.create_task(Dispatch(book.ports)._claim(ref(operation)))


async def claimed(book: Book, operation: Operation) -> Claim:
    """The claim, which must be given."""
    found = await claim(book, operation)
    assert isinstance(found, Claim), found
    return found


async def unknown(book: Book) -> Operation:
    """An operation whose first attempt was lost, and whose pause before a repeat is over."""
    operation = await book.approved()
    first = await claimed(book, operation)
    lost = Classified(Outcome.UNKNOWN, Hint.LOST)
    assert (await Dispatch(book.ports)._record(first, lost, Wire())).state == "unknown"
    await book.set_clock(timedelta(seconds=60))
    return await book.find(operation)


@pytest.mark.parametrize("lock", [ROW, TARGET], ids=["operation", "target"])
async def test_of_two_claims_exactly_one_wins(book: Book, lock: LiteralString) -> None:
    """Both wait for the operation (nobody has looked at it yet), or for its target (both have read the provider).

    Red when `Dispatch._claim` drops `locked.state is State.APPROVED and`, or reads before it locks.
    """
    operation = await book.approved()
    async with book.holding(lock, operation.operation_id):
        both = [claim(book, operation), claim(book, operation)]
        await book.waiting(2)
    ends = await asyncio.gather(*both)
    (won,) = [end for end in ends if isinstance(end, Claim)]
    (lost,) = [end for end in ends if not isinstance(end, Claim)]
    assert (lost.state, lost.next) == ("in_flight", Next.RECONCILE)  # type: ignore[attr-defined]
    assert won.operation.fence == 1
    assert [a.number for a in await book.attempts(operation)] == [1]
    assert await book.find(operation) == won.operation  # the loser left not even a note
    assert [e.edge for e in await book.trail(operation) if e.edge is not None] == [1, 3, 7]


async def test_of_two_repeats_exactly_one_wins(own_book: Book) -> None:
    """Both wait for the target; the second then finds the operation in flight again.

    Red when `Dispatch._claim` drops `if locked.state is State.UNKNOWN`.
    """
    operation = await unknown(own_book)
    async with own_book.holding(TARGET, operation.operation_id):
        both = [claim(own_book, operation), claim(own_book, operation)]
        await own_book.waiting(2)
    ends = await asyncio.gather(*both)
    (won,) = [end for end in ends if isinstance(end, Claim)]
    assert won.operation.fence == 2
    assert won.request.idempotency_key == operation.idempotency_key
    assert await own_book.find(operation) == won.operation
    assert [(a.number, a.outcome) for a in await own_book.attempts(operation)] == [(1, Outcome.UNKNOWN), (2, None)]
    assert [e.edge for e in await own_book.trail(operation) if e.edge is not None] == [1, 3, 7, 13, 14]


async def test_dispatched_twice_at_once_it_is_sent_once(book: Book) -> None:
    """The whole activity, from claim to answer, as Temporal may run it twice at the same moment."""
    operation = await book.approved()
    async with book.holding(TARGET, operation.operation_id):
        both = [asyncio.create_task(book.dispatch(operation)) for _ in range(2)]
        await book.waiting(2)
    states = [progress.state for progress in await asyncio.gather(*both)]
    assert len(book.bank.sent) == 1
    assert "succeeded" in states
    assert (await book.find(operation)).state is State.SUCCEEDED


# Compare-and-set ------------------------------------------------------------------------------------------------


async def test_two_moves_from_the_same_reading_one_is_superseded(book: Book) -> None:
    """Neither locked before it wrote: both updates wait for the row that the test holds.

    Red when `_write` drops its expectations of state, fence and events.
    """
    operation = await book.at(State.APPROVED)

    async def move() -> Operation:
        async with book.ledger.transaction() as conn:
            return await step(conn, operation, 7, State.IN_FLIGHT)

    async with book.holding(ROW, operation.operation_id):
        both = [asyncio.create_task(move()) for _ in range(2)]
        await book.waiting(2)
    ends = await asyncio.gather(*both, return_exceptions=True)
    assert sorted(type(end).__name__ for end in ends) == ["Operation", "Superseded"]
    assert (await book.find(operation)).fence == 1
    assert len(await book.trail(operation)) == operation.event_count + 1


@pytest.mark.parametrize("stale", ["state", "fence", "event_count"])
async def test_each_expectation_alone_stops_a_stale_writer(book: Book, stale: str) -> None:
    """One of the three differs, the other two are as they are; nothing is written, by a move or by a note.

    Red when `_write` drops ` and <stale> = …` (tried for each).
    """
    operation = await book.at(State.UNKNOWN)
    stale_values: dict[str, Any] = {"state": State.NEEDS_REVIEW, "fence": 0, "event_count": 3}
    before = replace(operation, **{stale: stale_values[stale]})
    async with book.ledger.transaction() as conn:
        with pytest.raises(Superseded):
            if before.state is State.UNKNOWN:
                after = replace(operation, state=State.NEEDS_REVIEW, reason="stale")
                await operations.move(conn, before, after, 18, await now(conn), {})
            else:
                # The row stands at unknown; by what the stale writer saw, 20 is legal, and so it is from unknown by 16.
                after = replace(operation, state=State.REJECTED, reason="stale")
                await operations.move(conn, before, after, 20, await now(conn), {})
        with pytest.raises(Superseded):
            await operations.note(conn, before, replace(before, next_step="stale"))
    assert await book.find(operation) == operation
    assert len(await book.trail(operation)) == operation.event_count


async def test_evidence_between_reading_and_deciding_supersedes_the_decision(book: Book) -> None:
    """Evidence changes neither state nor fence, only the number of events. Red when `_write` drops the event count."""
    seen = await book.at(State.UNKNOWN)
    async with book.ledger.transaction() as conn:
        await events.append(conn, seen, EventKind.SIGHTING, {"complete": True})
    with pytest.raises(Superseded, match="no longer unknown at fence 1"):
        await book.step(seen, 18, State.NEEDS_REVIEW)
    assert (await book.find(seen)).state is State.UNKNOWN


async def test_a_superseded_transaction_leaves_nothing(book: Book) -> None:
    """What stood before the lost compare in the same transaction is rolled back with it."""
    operation = await book.at(State.APPROVED)
    with pytest.raises(Superseded):
        async with book.ledger.transaction() as conn:
            await events.append(conn, operation, EventKind.PREFLIGHT, {})
            await operations.move(
                conn, operation, arrived(operation, State.BLOCKED), 8, await now(conn), {}
            )  # with the count as it was before the append
    assert await book.find(operation) == operation


async def test_a_late_answer_of_a_lost_lease_is_recorded_and_moves_nothing(own_book: Book) -> None:
    """The lease was lost and taken over: the first worker's answer comes when the second attempt is open.

    Red when `Dispatch._record_once` settles without `operation.fence == number`, or `answer` drops late answers.
    """
    operation = await own_book.approved()
    first = await claimed(own_book, operation)
    await own_book.set_clock(timedelta(seconds=60))
    async with own_book.ledger.transaction() as conn:
        locked = await operations.lock(conn, operation.operation_id)
        await close_attempt_as_unknown(conn, locked, await now(conn))
    await own_book.set_clock(timedelta(seconds=120))
    second = await claimed(own_book, operation)
    assert (first.operation.fence, second.operation.fence) == (1, 2)
    before = await own_book.find(operation)
    refused = Classified(Outcome.NO_EFFECT, detail={"late": True})
    progress = await Dispatch(own_book.ports)._record(first, refused, Wire())
    after = await own_book.find(operation)
    assert (progress.state, progress.next) == ("in_flight", Next.RECONCILE)
    assert after == replace(before, event_count=after.event_count, head_hash=after.head_hash)
    assert [(a.number, a.outcome) for a in await own_book.attempts(operation)] == [(1, Outcome.NO_EFFECT), (2, None)]
    last = (await own_book.trail(operation))[-1]
    assert (last.kind, last.body["attempt"]) == (EventKind.LATE_ANSWER, 1)
    # and the owner of the lease ends as if nothing had been
    applied = Classified(Outcome.APPLIED, receipt="re_2", standing=Standing.GOOD)
    assert (await Dispatch(own_book.ports)._record(second, applied, Wire())).state == "succeeded"


async def test_a_late_answer_after_the_end_contradicts_nothing_that_agrees(own_book: Book) -> None:
    """An answer of an attempt that was closed as unknown comes after the operation ended on it: recorded, no move."""
    operation = await own_book.approved()
    first = await claimed(own_book, operation)
    await own_book.set_clock(timedelta(seconds=60))
    async with own_book.ledger.transaction() as conn:
        locked = await operations.lock(conn, operation.operation_id)
        moved = await close_attempt_as_unknown(conn, locked, await now(conn))
        assert moved.state is State.UNKNOWN
    applied = Classified(Outcome.APPLIED, receipt="re_1", standing=Standing.GOOD)
    progress = await Dispatch(own_book.ports)._record(first, applied, Wire())
    assert (progress.state, progress.next) == ("unknown", Next.RECONCILE)
    async with own_book.ledger.transaction() as conn:
        locked = await operations.lock(conn, operation.operation_id)
        settled, _ = await settle(conn, own_book.ports, locked)
    assert (settled.state, settled.receipt) == (State.SUCCEEDED, "re_1")


async def test_a_claim_checks_the_fingerprint_again(book: Book) -> None:
    """The constraint is dropped by the owner and the bytes are changed: the claim is `Broken`, nothing is sent.

    Red when `_first_claim` drops `operations.check_fingerprint`.
    """
    operation = await book.approved()
    async with book.connection("postgres", autocommit=True) as conn:
        await conn.execute("alter table operations disable trigger operations_guard")
        await conn.execute("alter table operations drop constraint fingerprint_of_canonical")
        await conn.execute(
            "update operations set canonical = canonical || ' '::bytea where operation_id = %s",
            [operation.operation_id],
        )
    with pytest.raises(Broken, match="fingerprint"):
        await claim(book, operation)
    async with book.connection("postgres", autocommit=True) as conn:
        await conn.execute(
            "update operations set canonical = %s where operation_id = %s",
            [operation.canonical, operation.operation_id],
        )
        await conn.execute("alter table operations enable trigger operations_guard")
        await conn.execute(
            "alter table operations add constraint fingerprint_of_canonical check (fingerprint ="
            " sha256(convert_to(E'effect-ledger/operation/v1\\n', 'UTF8') || canonical))"
        )
    assert await book.find(operation) == operation


# Revocation -----------------------------------------------------------------------------------------------------


async def approved_by_alice(book: Book) -> Operation:
    """Above the waiver, signed by alice."""
    operation = await book.asked()
    await book.run(Approve(book.ports).record, await book.approval(operation, by="alice"))
    assert (await book.judge(operation)).state == "approved"
    return await book.find(operation)


async def approved_by_rule(book: Book) -> Operation:
    """Within the waiver."""
    return await book.approved()


REVOCATIONS = [
    (approved_by_rule, document(grant_revoked=True), State.BLOCKED, "authority_revoked"),
    (approved_by_alice, document(revoked="alice"), State.AWAITING_APPROVAL, "authority_revoked"),
]


@pytest.mark.parametrize(
    ("made", "revoked", "state", "reason"), REVOCATIONS, ids=["the proposer's key", "the approver"]
)
async def test_a_revocation_before_the_claim_binds_it(
    own_book: Book, made: Callable[[Book], Awaitable[Operation]], revoked: Document, state: State, reason: str
) -> None:
    """The configuration is being applied, not committed, when the claim comes, which has read everything else already.

    The claim waits for the row in force and then sees the new version.
    Red when `lock_config` drops `for share`: the claim does not wait, and goes by what was in force before.
    """
    operation = await made(own_book)
    async with own_book.connection() as conn:

        async def revoke() -> None:
            await configuration.apply(conn, revoked, "a test")

        own_book.bank.while_asked = revoke
        claiming = claim(own_book, operation)
        await own_book.waiting(1)
        await conn.commit()
    progress = await claiming
    assert not isinstance(progress, Claim)
    stands = await own_book.find(operation)
    assert (stands.state, stands.reason, stands.fence) == (state, reason, 0)
    assert await own_book.attempts(operation) == []


@pytest.mark.parametrize(
    ("made", "revoked", "state", "reason"), REVOCATIONS, ids=["the proposer's key", "the approver"]
)
async def test_a_revocation_after_the_claim_waits_for_it_and_stops_its_guard(
    own_book: Book, made: Callable[[Book], Awaitable[Operation]], revoked: Document, state: State, reason: str
) -> None:
    """The claim stands inside its transaction (it waits for the totals, held here) when the configuration is applied.

    Red when `apply` drops `select 1 from config_current for update` and its upsert's wait with it, or `lock_config`
    its `for share`; and, for the guard, when `_may_still_send` drops `authority_gone`.
    """
    operation = await made(own_book)
    async with own_book.holding(TOTALS):
        claiming = claim(own_book, operation)
        await own_book.waiting(1)
        applying = asyncio.create_task(own_book.apply(revoked))
        await own_book.waiting(2)
    given = await claiming
    assert isinstance(given, Claim)
    assert await applying == 2
    claimed_at = (await own_book.attempts(operation))[0].claimed_at
    applied_at = await own_book.value("select applied_at from config_versions where version = 2")
    assert claimed_at < applied_at
    assert await Dispatch(own_book.ports)._may_still_send(given) is False


async def test_a_revocation_binds_a_repeat(own_book: Book) -> None:
    """No first send any more: it does not end the operation, and nothing is sent. Waits as a first claim does.

    Red when `evidence` does not ask `authority_gone`.
    """
    operation = await unknown(own_book)
    async with own_book.connection() as conn:
        await configuration.apply(conn, document(grant_revoked=True), "a test")
        claiming = claim(own_book, operation)
        await own_book.waiting(1)
        await conn.commit()
    progress = await claiming
    assert not isinstance(progress, Claim)
    stands = await own_book.find(operation)
    assert (stands.state, stands.fence) == (State.UNKNOWN, 1)


# Holds ----------------------------------------------------------------------------------------------------------


def scope_of(operation: Operation, scope: str) -> str:
    """The scope with this operation's id where it needs one."""
    return scope.replace("{}", str(operation.operation_id))


SCOPES = ["all", "tenant:acme", "provider:bank", "operation:{}"]


@pytest.mark.parametrize("scope", SCOPES)
async def test_a_hold_before_the_claim_makes_it_wait(own_book: Book, scope: str) -> None:
    """The hold is accepted, not committed, when the claim comes. Released by two, the operation goes on.

    Red when `holds.in_force` drops its `ensure` (a scope never held before has no row to wait for), or when `Hold` does
    not take the operation's lock for a scope of one operation. (`for share` is what the next test needs.)
    """
    operation = await own_book.approved()
    scope = scope_of(operation, scope)
    async with own_book.connection(WORKER) as conn:

        async def hold() -> None:
            assert (await Hold(own_book.ports)._apply(conn, own_book.hold(scope))).held

        own_book.bank.while_asked = hold
        claiming = claim(own_book, operation)
        await own_book.waiting(1)
        await conn.commit()
    progress = await claiming
    assert not isinstance(progress, Claim)
    stands = await own_book.find(operation)
    assert (stands.state, stands.fence, stands.next_step) == (State.APPROVED, 0, "dispatch (held)")
    async with own_book.ledger.transaction() as conn:
        assert [h.scope for h in await holds.current(conn)] == [scope]
    own_book.bank.while_asked = nothing
    release = Hold(own_book.ports)
    for by, held in (("olga", True), ("olga", True), ("oscar", False)):
        answer = await own_book.run(release.hold, own_book.hold(scope, by=by, typ=StatementType.RELEASE))
        assert (answer.accepted, answer.held) == (True, held)
    assert (await claimed(own_book, operation)).operation.fence == 1


@pytest.mark.parametrize("scope", SCOPES)
async def test_a_hold_after_the_claim_waits_for_it_and_stops_its_guard(own_book: Book, scope: str) -> None:
    """The claim stands inside its transaction when the hold comes.

    Red when `holds.in_force` drops `for share`; and, for the guard, when `_may_still_send` drops `holds.in_force`.
    """
    operation = await own_book.approved()
    scope = scope_of(operation, scope)
    async with own_book.holding(TOTALS):
        claiming = claim(own_book, operation)
        await own_book.waiting(1)
        holding = asyncio.create_task(own_book.run(Hold(own_book.ports).hold, own_book.hold(scope)))
        await own_book.waiting(2)
    given = await claiming
    assert isinstance(given, Claim)
    assert (await holding).held
    async with own_book.ledger.transaction() as conn:
        (in_force,) = await holds.current(conn)
    assert in_force.since is not None
    assert given.operation.first_claimed_at is not None
    assert in_force.since > given.operation.first_claimed_at
    assert await Dispatch(own_book.ports)._may_still_send(given) is False


async def test_a_hold_of_another_scope_stops_nothing(own_book: Book) -> None:
    """Another tenant's, another provider's, another operation's."""
    operation, other = await own_book.approved(), await own_book.approved()
    for scope in ("tenant:globex", "provider:stripe", f"operation:{other.operation_id}"):
        assert (await own_book.run(Hold(own_book.ports).hold, own_book.hold(scope))).held
    given = await claimed(own_book, operation)
    assert await Dispatch(own_book.ports)._may_still_send(given) is True
    assert not isinstance(await claim(own_book, other), Claim)


async def test_a_hold_on_nothing_is_refused(own_book: Book) -> None:
    """A slip of the pen would let somebody believe that sending is stopped. Red: drop the checks in `Hold._tenant_of`."""
    for scope in ("tenant:globx", "provider:strype"):
        answer = await own_book.run(Hold(own_book.ports).hold, own_book.hold(scope))
        assert (answer.accepted, answer.held, answer.rule) == (False, False, "scope_unknown")


async def test_a_release_from_before_the_hold_counts_for_nothing(own_book: Book) -> None:
    """Even in the same microsecond, as when the wall clock was set back and ledger time stands at the last event.

    Red when `of_scope` takes what was accepted at the hold's own time, or `ledger_now` may stand still.
    """
    hold = Hold(own_book.ports).hold
    await own_book.set_clock(timedelta(hours=-1))
    early = await own_book.run(hold, own_book.hold("all", by="olga", typ=StatementType.RELEASE))
    assert early.accepted
    assert (await own_book.run(hold, own_book.hold("all", by="oscar"))).held
    async with own_book.ledger.transaction() as conn:
        (in_force,) = await holds.current(conn)
        said = await statements.of_scope(conn, "all", in_force.since)
        assert [(s.typ, s.person) for s in said] == [("hold", "oscar")]  # who holds it is told, the early release not
        assert len(await statements.of_scope(conn, "all", None)) == 2
    first = await own_book.run(hold, own_book.hold("all", by="oscar", typ=StatementType.RELEASE))
    assert (first.held, first.still_needed) == (True, 1)
    second = await own_book.run(hold, own_book.hold("all", by="olga", typ=StatementType.RELEASE))
    assert (second.held, second.still_needed) == (False, 0)


async def test_the_guard_lets_only_its_own_fence_pass(own_book: Book) -> None:
    """After the lease was taken over by a second claim. Red when `_may_still_send` compares no fence."""
    operation = await own_book.approved()
    first = await claimed(own_book, operation)
    assert await Dispatch(own_book.ports)._may_still_send(first) is True
    await own_book.set_clock(timedelta(seconds=60))
    async with own_book.ledger.transaction() as conn:
        locked = await operations.lock(conn, operation.operation_id)
        await close_attempt_as_unknown(conn, locked, await now(conn))
    assert await Dispatch(own_book.ports)._may_still_send(first) is False
    await own_book.set_clock(timedelta(seconds=120))
    second = await claimed(own_book, operation)
    assert await Dispatch(own_book.ports)._may_still_send(first) is False
    assert await Dispatch(own_book.ports)._may_still_send(second) is True


async def test_an_attempt_needs_its_operation(book: Book) -> None:
    """The foreign key is the second lock behind `operations.lock`."""
    operation = await book.at(State.IN_FLIGHT)
    stranger = replace(operation, operation_id=UUID(int=7))
    async with book.ledger.transaction() as conn:
        at = await now(conn)
        with pytest.raises(psycopg.Error) as refused:
            async with conn.transaction():
                await attempts.open_attempt(conn, stranger, Attempt(number=1, claimed_at=at, lease_until=at), "w")
        assert refused.value.sqlstate in ("EL001", "23503")
