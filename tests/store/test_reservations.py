"""Proposals, signatures and judgements that meet: one row an intent, one use of an id, one reservation of what is left.

How: as in test_claims.py. The test holds the lock that both sides need, waits until both wait for it, and lets go.
"""

import asyncio
import random
import uuid
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import LiteralString

import pytest
from temporalio.exceptions import ApplicationError

from activities.approve import Approve
from activities.hold import Hold
from activities.messages import Progress, Proposal
from activities.propose import Propose
from activities.reconcile import Reconcile
from ledger.errors import Refused
from ledger.model import SeenEffect, Standing
from ledger.statement import StatementType
from ledger.states import ENDED, State
from ledger.store import operations, statements
from ledger.store.database import now
from ledger.store.statements import Statement
from ledger.trail import EventKind, verify_chain, verify_state
from tests.store.conftest import Book, document, ref, statement

TARGET: LiteralString = "select lock_target('bank', 'acct_1', false, %s)"


async def propose(book: Book, proposal: Proposal) -> Progress:
    """The activity `propose`."""
    return await book.run(Propose(book.ports).propose, proposal)


# One key, one operation -----------------------------------------------------------------------------------------


async def test_the_same_proposal_twice_at_once_is_one_operation(book: Book) -> None:
    """Both have looked and found nothing, and wait to insert into the table that the test holds.

    Red when `operations.insert` drops `on conflict do nothing`, or `_record` does not read what was there first.
    """
    proposal = book.proposal(key="order-at-once")
    async with book.holding("lock table operations in share mode"):
        both = [asyncio.create_task(propose(book, proposal)) for _ in range(2)]
        await book.waiting(2)
    first, second = await asyncio.gather(*both)
    assert first.operation_id == second.operation_id != ""
    assert await book.value("select count(*) from operations where business_key = 'order-at-once'") == 1
    assert {first.state, second.state} <= {"proposed", "approved"}
    again = await propose(book, proposal)
    assert (again.operation_id, again.state) == (first.operation_id, "approved")


async def test_another_content_under_the_same_key_at_once_is_refused(book: Book) -> None:
    """One of the two is recorded, whichever came first; the other one is told so, and is nowhere merged.

    Red when `_record` does not compare the digest of what it found.
    """
    proposals = [book.proposal(amount, key="order-two-minds") for amount in (1_500, 1_600)]
    async with book.holding("lock table operations in share mode"):
        both = [asyncio.create_task(propose(book, proposal)) for proposal in proposals]
        await book.waiting(2)
    ends = await asyncio.gather(*both)
    (refused,) = [end for end in ends if end.state == "refused"]
    (kept,) = [end for end in ends if end.state != "refused"]
    assert (refused.reason, refused.field, refused.operation_id) == ("key_used", "business_key", "")
    rows = await book.rows("select amount_minor from operations where business_key = 'order-two-minds'")
    assert rows == [{"amount_minor": kept.amount_minor}]
    assert [(await propose(book, p)).reason == "key_used" for p in proposals] == [e is refused for e in ends]


# One id, one sentence -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "committed", "end"),
    [
        (b"yes", True, False),  # the same sentence: a success, kept once
        (b"no", True, "jti_used"),  # another: refused
        (b"no", False, True),  # the first was never kept: there is nothing to contradict
    ],
)
async def test_the_same_jti_at_once(book: Book, said: bytes, committed: bool, end: bool | str) -> None:
    """The first is inserted and not committed; the second waits for what becomes of it.

    Red when the primary key of `statements` is dropped, or `accept` compares nothing.
    """
    operation, jti = await book.record(), f"jti-{uuid.uuid4().hex}"

    async def accept(second: Statement) -> bool | str:
        try:
            async with book.ledger.transaction() as conn:
                return await statements.accept(conn, second)
        except Refused as refused:
            return refused.rule

    async with book.connection() as conn:
        first = statement(operation, b"yes", await now(conn), jti=jti)
        assert await statements.accept(conn, first)
        accepting = asyncio.create_task(accept(statement(operation, said, first.accepted_at, jti=jti)))
        await book.waiting(1)
        await (conn.commit() if committed else conn.rollback())
    assert await accepting == end
    kept = await book.rows("select statement from statements where jti = %s", jti)
    assert [bytes(row["statement"]) for row in kept] == [b"yes" if committed else said]


async def test_one_approval_handed_in_twice_at_once_counts_once(own_book: Book) -> None:
    """The same message in two activities, both waiting for the operation. Both end well, one statement, one event."""
    operation = await own_book.asked()
    message = await own_book.approval(operation)
    row: LiteralString = "select 1 from operations where operation_id = %s for update"
    async with own_book.holding(row, operation.operation_id):
        both = [asyncio.create_task(own_book.run(Approve(own_book.ports).record, message)) for _ in range(2)]
        await own_book.waiting(2)
    ends = await asyncio.gather(*both)
    assert [end.refused_rule for end in ends] == ["", ""]
    assert await own_book.value("select count(*) from statements") == 1
    kinds = [event.kind for event in await own_book.trail(operation)]
    assert kinds.count(EventKind.STATEMENT_ACCEPTED) == 1
    assert EventKind.STATEMENT_REFUSED not in kinds


async def test_one_jti_for_two_operations_at_once_is_good_for_one(own_book: Book) -> None:
    """Their rows are different, so nothing but the statement's own key can stop the second.

    Red when `accept` drops its comparison of bytes.
    """
    asked = [await own_book.asked(), await own_book.asked()]
    messages = [await own_book.approval(operation, jti="approval-for-two") for operation in asked]
    async with own_book.holding("lock table statements in share mode"):
        both = [asyncio.create_task(own_book.run(Approve(own_book.ports).record, message)) for message in messages]
        await own_book.waiting(2)
    ends = await asyncio.gather(*both)
    assert sorted(end.refused_rule for end in ends) == ["", "jti_used"]
    assert sorted([(await own_book.judge(operation)).state for operation in asked]) == ["approved", "awaiting_approval"]


# What is left ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("captured", "amounts", "reason"),
    [
        (2_500, (2_000, 1_500), "amount_exceeds_remaining"),
        (100_000, (1_500, 1_500), "equivalent_operation"),
    ],
    ids=["amount", "equivalent"],
)
async def test_of_two_judgements_on_one_target_one_is_blocked(
    own_book: Book, captured: int, amounts: tuple[int, int], reason: str
) -> None:
    """Of two tenants, with one account. Both have read the target at the bank, before either reserved anything.

    Red when `_judge` drops `operations.lock_target` (nobody waits, and both would be approved), or `on_target` looks
    at one tenant only.
    """
    own_book.bank.captured = captured
    pair = [
        await own_book.record(amount, target="pay_shared", tenant=tenant)
        for amount, tenant in zip(amounts, ("acme", "globex"), strict=True)
    ]
    async with own_book.holding(TARGET, "pay_shared"):
        both = [asyncio.create_task(own_book.judge(operation)) for operation in pair]
        await own_book.waiting(2)
    ends = await asyncio.gather(*both)
    assert sorted((end.state, end.reason) for end in ends) == [("approved", ""), ("blocked", reason)]


async def test_approval_by_people_reserves_under_the_same_lock(own_book: Book) -> None:
    """Two that both have their signatures (awaiting reserves nothing), judged at once: edge 5 for one, 6 for the other."""
    own_book.bank.captured = 5_000
    pair = [await own_book.asked(amount, target="pay_shared") for amount in (3_000, 2_500)]
    for operation in pair:
        assert (
            await own_book.run(Approve(own_book.ports).record, await own_book.approval(operation))
        ).refused_rule == ""
    async with own_book.holding(TARGET, "pay_shared"):
        both = [asyncio.create_task(own_book.judge(operation)) for operation in pair]
        await own_book.waiting(2)
    ends = await asyncio.gather(*both)
    assert sorted((end.state, end.reason) for end in ends) == [
        ("approved", ""),
        ("blocked", "amount_exceeds_remaining"),
    ]


@pytest.mark.parametrize("state", list(State))
async def test_what_reserves(book: Book, state: State) -> None:
    """The other operation stands in each state in turn; a void receipt reserves nothing.

    Red when `RESERVING` or `reserves` gains or loses a state.
    """
    target = f"pay_{uuid.uuid4().hex}"
    other = await book.at(state, target=target, amount=99_000, tenant="globex")
    judged = await book.judge(await book.record(2_000, target=target))
    holds = {"approved", "in_flight", "unknown", "needs_review", "undetermined", "succeeded"}
    assert (judged.state == "blocked") is (state.value in holds), judged
    if state is State.SUCCEEDED:
        async with book.ledger.transaction() as conn:
            locked = await operations.lock(conn, other.operation_id)
            await conn.execute("update operations set standing = 'void' where operation_id = %s", [locked.operation_id])
        assert (await book.judge(await book.record(1_999, target=target))).state == "approved"


async def test_another_account_mode_or_target_reserves_nothing_here(book: Book) -> None:
    """The lock and the sums are of (provider, account, livemode, target)."""
    await book.at(State.APPROVED, target="pay_elsewhere", amount=99_999)
    assert (await book.judge(await book.record(2_000, target="pay_here"))).state == "approved"


async def test_an_effect_of_somebody_else_counts_as_well(own_book: Book) -> None:
    """Seen at the bank, of no operation of ours: the same amount is the same thing until a person says otherwise."""
    own_book.bank.effects = (
        SeenEffect("re_foreign", Standing.GOOD, marked=False, matching=True, summary={"amount": 1_500}),
    )
    judged = await own_book.judge(await own_book.record(1_500))
    assert (judged.state, judged.reason) == ("blocked", "equivalent_operation")


async def test_waivers_of_one_actor_are_counted_across_targets(own_book: Book) -> None:
    """20.00 each, on two targets, and 30.00 a day: the target locks are different, the totals' lock is one.

    Red when `totals.waived` drops its lock: nobody would wait, and both would be waived.
    """
    await own_book.apply(document(waived_per_actor=3_000))
    pair = [await own_book.record(2_000, target=target) for target in ("pay_1", "pay_2")]
    lock: LiteralString = "select lock_target('waived', 'acme', false, 'support-bot')"
    async with own_book.holding(lock):
        both = [asyncio.create_task(own_book.judge(operation)) for operation in pair]
        await own_book.waiting(2)
    assert sorted(end.state for end in await asyncio.gather(*both)) == ["approved", "awaiting_approval"]
    # another actor, and this one on the day after, have totals of their own
    other = await own_book.record(2_000, target="pay_3", tenant="globex")
    assert (await own_book.judge(other)).state == "approved"
    await own_book.set_clock(timedelta(hours=24, minutes=1))
    assert (await own_book.judge(await own_book.record(2_000, target="pay_4"))).state == "approved"


async def test_a_waiver_counts_for_the_day_on_which_it_was_given(own_book: Book) -> None:
    """Proposed yesterday while the bank could not be read, judged today: proposals do not pile up into waivers of one day.

    Red when `totals.waived` goes by the time of the proposal.
    """
    await own_book.apply(document(waived_per_actor=3_000))
    late = [await own_book.record(2_000) for _ in range(2)]
    await own_book.set_clock(timedelta(hours=25))
    assert [(await own_book.judge(o)).state for o in late] == ["approved", "awaiting_approval"]
    assert (await own_book.judge(await own_book.record(2_000))).state == "awaiting_approval"
    await own_book.set_clock(timedelta(hours=49, minutes=1))
    assert (await own_book.judge(await own_book.record(2_000))).state == "approved"


async def test_waivers_on_one_target_are_counted_across_tenants(own_book: Book) -> None:
    """40.00 a target: 20.00 and 19.00 are waived, the next is asked for, whoever proposes it."""
    for amount, tenant, state in ((2_000, "acme", "approved"), (1_900, "globex", "approved"), (200, "acme", "asked")):
        judged = await own_book.judge(await own_book.record(amount, target="pay_shared", tenant=tenant))
        assert judged.state == {"asked": "awaiting_approval"}.get(state, state)


# Lock order -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("job", ["judge", "claim"])
async def test_the_target_is_locked_before_the_operation(own_book: Book, job: str) -> None:
    """While the activity waits for the target, which the test holds, the operation's row is free.

    Red when the two locks are swapped, in `Propose._judge` or in `Dispatch._claim`.
    """
    operation = await (own_book.record() if job == "judge" else own_book.approved())
    row: LiteralString = "select 1 from operations where operation_id = %s for update skip locked"
    async with own_book.holding(TARGET, operation.target):
        run = own_book.judge if job == "judge" else own_book.dispatch
        waiting = asyncio.create_task(run(operation))
        await own_book.waiting(1)
        assert len(await own_book.rows(row, operation.operation_id)) == 1
    assert (await waiting).state == {"judge": "approved", "claim": "succeeded"}[job]


async def test_fifty_mixed_activities_at_once_never_deadlock(own_book: Book) -> None:
    """On two targets, two tenants, every activity that locks more than one thing, in a shuffled order, all at once.

    A deadlock would end one of them as `Unavailable` after Postgres's deadlock_timeout (here 200 ms). A net for
    what nobody thought of, not a proof: the order itself is shown by the test above, which is the one to see red.
    """
    shuffled = random.Random(7)
    made = [
        await own_book.record(100 + n if n % 3 else 3_100 + n, target=f"pay_{n % 2}", tenant=("acme", "globex")[n % 2])
        for n in range(12)
    ]
    asked = [await own_book.asked(3_000 + n, target=f"pay_{n % 2}") for n in range(4)]
    ports = own_book.ports
    jobs: list[Callable[[], Awaitable[object]]] = [
        *(lambda o=o: own_book.judge(o) for o in [*made, *asked, *made]),
        *(lambda o=o: own_book.dispatch(o) for o in made),
        *(lambda o=o: own_book.run(Reconcile(ports).reconcile, ref(o)) for o in made[:4]),
        *(
            lambda m=m: own_book.run(Approve(ports).record, m)
            for m in [await own_book.approval(o, by=by) for o in asked for by in ("alice", "bob")]
        ),
        *(lambda n=n: propose(own_book, own_book.proposal(300 + n % 2, key=f"k-{n % 2}")) for n in range(4)),
        *(lambda p=p: own_book.apply(document(waived_per_actor=p)) for p in (50_000, 60_000)),
        *(
            lambda s=s: own_book.run(Hold(ports).hold, own_book.hold(s))
            for s in ("tenant:globex", f"operation:{asked[0].operation_id}")
        ),
        lambda: own_book.run(Hold(ports).hold, own_book.hold("tenant:globex", typ=StatementType.RELEASE)),
    ]
    assert len(jobs) >= 50
    shuffled.shuffle(jobs)
    ends = await asyncio.gather(*(job() for job in jobs), return_exceptions=True)
    # Temporal tries again what lost a race to another activity, or waited too long on a machine that has much to do.
    wrong = [e for e in ends if isinstance(e, BaseException) and not _tried_again(e)]
    assert wrong == []
    async with own_book.connection("postgres", autocommit=True) as conn:
        await conn.execute("select pg_stat_force_next_flush()")
    deadlocks = "select deadlocks from pg_stat_database where datname = current_database()"
    assert await own_book.value(deadlocks) == 0
    for operation in [*made, *asked]:
        trail, stands = await own_book.trail(operation), await own_book.find(operation)
        verify_chain(trail, stands.event_count, stands.head_hash)
        verify_state(trail, stands.state)
        assert (stands.state in ENDED) == (stands.ended_at is not None)
    sent = [request.idempotency_key for request in own_book.bank.sent]
    assert len(sent) == len(set(sent))


def _tried_again(error: BaseException) -> bool:
    superseded = isinstance(error, ApplicationError) and error.type == "Superseded"
    return superseded or "due to lock timeout" in str(error)
