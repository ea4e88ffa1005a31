"""What depends on another operation: it waits for it, goes on when it stands, and is blocked when it can stand no more."""

import asyncio
from typing import Any

import pytest

from activities.messages import Answer, Proposal
from ledger.store import operations
from ledger.trail import EventKind
from tests.conftest import Rig

LARGE = 5_000  # needs a person; 1_500 is waived


def needing(needed: Proposal, **extra: Any) -> list[dict[str, str]]:
    return [{"business_key": needed.business_key, "state": "succeeded", **extra}]


async def asked_for_both(rig: Rig) -> tuple[Proposal, Answer, Proposal, Answer]:
    """A refund that waits for people, and a waived one of another payment that depends on it."""
    first = rig.proposal(rig.payment(), amount=LARGE)
    second = rig.proposal(rig.payment(), depends_on=needing(first))
    return first, await rig.propose(first), second, await rig.propose(second)


async def test_it_is_sent_when_what_it_needs_has_succeeded_and_not_before(rig: Rig) -> None:
    """Red: let `Dispatch._first_claim` go on while a dependency is open (then the trigger of the ledger stops it)."""
    async with rig.worker():
        first, needed, second, waiting = await asked_for_both(rig)
        held = await rig.until(waiting.operation_id, "approved")
        assert held.people_needed == 0
        await rig.handle(second).signal("look_now")
        await rig.settled(waiting.operation_id)
        waits = await rig.operation(waiting.operation_id)
        assert (waits.state, waits.next_step, waits.fence) == ("approved", "dispatch (a dependency)", 0)
        assert rig.posts(second.target) == []
        await rig.approve(needed.operation_id)
        await rig.until(needed.operation_id, "succeeded")
        await rig.until(waiting.operation_id, "succeeded")
    assert len(rig.effects(first.target)) == len(rig.effects(second.target)) == 1
    sent = [e for e in await rig.trail(waiting.operation_id) if e.kind is EventKind.MOVED and e.target == "in_flight"]
    done = [e for e in await rig.trail(needed.operation_id) if e.kind is EventKind.MOVED and e.target == "succeeded"]
    assert done[0].at < sent[0].at


async def test_it_is_blocked_when_what_it_needs_ends_otherwise(rig: Rig) -> None:
    async with rig.worker():
        first, needed, second, waiting = await asked_for_both(rig)
        await rig.handle(first).signal("decide", await rig.signed(needed.operation_id, "alice", "decline"))
        await rig.until(needed.operation_id, "blocked")
        ended = await rig.until(waiting.operation_id, "blocked")
    assert ended.reason == "dependency_ended"
    assert rig.posts(second.target) == []


async def test_it_is_blocked_when_the_end_of_what_it_needs_is_contradicted(rig: Rig) -> None:
    """Red: leave `contradicted` out of `Needed.stands`."""
    async with rig.worker():
        first, needed, second, waiting = await asked_for_both(rig)
        await rig.until(waiting.operation_id, "approved")
        async with rig.ledger.transaction() as conn:
            await operations.mark_contradicted(conn, (await rig.operation(needed.operation_id)).operation_id)
        ended = await rig.until(waiting.operation_id, "blocked")
    assert ended.reason == "dependency_ended"
    assert rig.posts(second.target) == []


async def test_it_is_not_sent_again_when_what_it_needs_is_contradicted_meanwhile(rig: Rig) -> None:
    """Its request was lost on its way, so that it could be repeated: it is looked for instead, until a person decides.

    Red: leave the dependencies out of `settle.authority_gone`.
    """
    async with rig.worker(backoff=30.0):
        first, needed, second, waiting = await asked_for_both(rig)
        rig.stack.stripe.control.fault("lost-request", payment_intent=second.target)
        await rig.approve(needed.operation_id)
        await rig.until(waiting.operation_id, "unknown")
        async with rig.ledger.transaction() as conn:
            await operations.mark_contradicted(conn, (await rig.operation(needed.operation_id)).operation_id)
        await rig.advance(60)
        await rig.handle(second).signal("look_now")
        await rig.settled(waiting.operation_id)
        stands = await rig.operation(waiting.operation_id)
        assert (stands.state, stands.fence) == ("unknown", 1)
    assert rig.effects(second.target) == [] and len(rig.effects(first.target)) == 1


@pytest.mark.parametrize(
    "need, rule, field",
    [
        ({"business_key": "never-asked", "state": "succeeded"}, "dependency_unknown", "depends_on[0]"),
        ({"business_key": "a b", "state": "succeeded"}, "business_key_malformed", "depends_on[0].business_key"),
        ({"business_key": "never-asked", "state": "done"}, "dependency_malformed", "depends_on[0].state"),
        ({"business_key": "never-asked"}, "dependency_malformed", "depends_on[0]"),
        ({"business_key": "k", "state": "succeeded", "why": "x"}, "dependency_malformed", "depends_on[0]"),
        ({"business_key": "k", "state": "rejected", "into": "reason"}, "dependency_malformed", "depends_on[0].state"),
    ],
)
async def test_a_bad_dependency_is_refused_and_its_key_stays_free(
    rig: Rig, need: dict[str, str], rule: str, field: str
) -> None:
    async with rig.worker():
        proposal = rig.proposal(rig.payment(), depends_on=[need])
        answer = await rig.propose(proposal)
        assert (answer.state, answer.reason, answer.field) == ("refused", rule, field)
        again = rig.proposal(proposal.target, key=proposal.business_key)
        await rig.until((await rig.propose(again)).operation_id, "succeeded")


async def test_a_reference_is_filled_before_anything_is_recorded(rig: Rig) -> None:
    """Nothing is approved with a hole in it: without the receipt there is no operation."""
    async with rig.worker():
        first = rig.proposal(rig.payment(), amount=LARGE)
        needed = await rig.propose(first)
        refunds = {"amount_minor": 1_500, "currency": "eur"}
        early = rig.proposal(rig.payment(), depends_on=needing(first, into="reason"))
        answer = await rig.propose(early)
        assert (answer.state, answer.reason, answer.field) == ("refused", "dependency_unmet", "depends_on[0]")
        await rig.approve(needed.operation_id)
        receipt = (await rig.until(needed.operation_id, "succeeded")).receipt
        misplaced = rig.proposal(early.target, depends_on=needing(first, into="currency"))
        answer = await rig.propose(misplaced)
        assert (answer.state, answer.reason, answer.field) == ("refused", "reference_misplaced", "depends_on[0].into")
        # the receipt stands where the adapter reads its argument: here it refuses what it finds
        filled = rig.proposal(
            early.target, arguments=refunds | {"reason": "for {receipt}"}, depends_on=early.depends_on
        )
        answer = await rig.propose(filled)
        assert receipt and (answer.reason, answer.field) == ("reason_not_allowed", "reason")


async def test_an_ended_intent_is_revised_once_and_only_when_it_has_no_effect(rig: Rig) -> None:
    """Red: drop the question in `dependencies._superseded` (then `one_revision` of the ledger refuses it)."""
    async with rig.worker():
        target = rig.payment()
        first = rig.proposal(target, amount=LARGE, key="order-9")
        waiting = await rig.propose(first)
        early = await rig.propose(rig.proposal(target, key="order-9.1", supersedes="order-9"))
        assert (early.reason, early.field) == ("superseded_open", "supersedes")
        await rig.handle(first).signal("decide", await rig.signed(waiting.operation_id, "alice", "decline"))
        await rig.until(waiting.operation_id, "blocked")
        revised = await rig.until(
            (await rig.propose(rig.proposal(target, key="order-9.1", supersedes="order-9"))).operation_id, "succeeded"
        )
        assert revised.supersedes == waiting.operation_id
        for key, old, rule in (
            ("order-9.2", "order-9", "already_superseded"),
            ("order-9.3", "order-9.1", "superseded_exists"),
            ("order-9.4", "order-8", "superseded_unknown"),
        ):
            answer = await rig.propose(rig.proposal(target, key=key, supersedes=old))
            assert (answer.state, answer.reason, answer.field) == ("refused", rule, "supersedes")
    assert len(rig.effects(target)) == 1


async def test_two_revisions_at_once_are_one(rig: Rig) -> None:
    """Two workers record a revision of the same intent at the same moment: the ledger takes one."""
    async with rig.worker():
        target = rig.payment()
        first = rig.proposal(target, amount=LARGE, key="order-9")
        waiting = await rig.propose(first)
        await rig.handle(first).signal("decide", await rig.signed(waiting.operation_id, "alice", "decline"))
        await rig.until(waiting.operation_id, "blocked")
        answers = await asyncio.gather(
            *(rig.propose(rig.proposal(target, key=f"order-9.{n}", supersedes="order-9")) for n in range(1, 6))
        )
        recorded = [a for a in answers if a.operation_id]
        assert len(recorded) == 1 and {a.reason for a in answers if not a.operation_id} == {"already_superseded"}
        await rig.until(recorded[0].operation_id, "succeeded")
    assert len(rig.effects(target)) == 1
