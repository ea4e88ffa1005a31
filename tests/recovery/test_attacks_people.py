"""Attacks on what people settle: holds and releases, certified absence, receipts of others, answers after an end, big boxes."""

import asyncio
import uuid
from dataclasses import replace
from typing import Any

import pytest
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError

from activities.dispatch import Claim, Dispatch, Wire
from activities.messages import HoldAnswer, Proposal
from activities.ports import Ports, Secrets
from devstack.signing import Signer
from devstack.stripe_standin.presets import CREATE
from devstack.stripe_standin.rules import Rule
from ledger.model import Attempt, Operation, Outcome, Standing
from ledger.statement import StatementType
from ledger.store import attempts, holds, views
from ledger.store.database import now
from providers.port import Classified, Request
from providers.registry import default_registry
from tests.conftest import Rig

A_DAY = 24 * 3_600.0
NOTHING: dict[str, Any] = {"decision": "did_not_happen", "evidence": "request log of the payment, read by two"}
NOBODY_KNOWS: dict[str, Any] = {"decision": "undetermined", "evidence": "support could not tell"}
MISUSED = Rule(
    kind="answer", when="before", answer_status=400, body={"error": {"type": "idempotency_error"}}, match=CREATE
)


async def _signed_now(rig: Rig, target: str, **extra: Any) -> Proposal:
    """A proposal signed by the ledger's time, for ledgers whose clock was moved."""
    async with rig.ledger.transaction() as conn:
        return Signer(rig.stack.household, await now(conn)).proposal(rig.proposal(target, **extra))


async def _of_everything(rig: Rig, who: str, typ: StatementType) -> dict[str, str]:
    async with rig.ledger.transaction() as conn:
        return Signer(rig.stack.household, await now(conn)).on_scope("all", who, typ, "odd refunds")


async def _hold(rig: Rig, envelope: dict[str, str]) -> HoldAnswer:
    answer: HoldAnswer = await rig.client.execute_workflow(
        "HoldWorkflow",
        envelope,
        id=f"hold-{uuid.uuid4().hex}",
        task_queue=rig.stack.task_queue,
        result_type=HoldAnswer,
    )
    return answer


async def _to_review(rig: Rig, operation_id: str) -> None:
    """A day passes, and then the seconds between two looks, until a person must settle it."""
    await rig.until(operation_id, "unknown")
    await rig.advance(A_DAY)
    for _ in range(50):
        if (await rig.operation(operation_id)).state == "needs_review":
            return
        await asyncio.sleep(0.1)
        await rig.advance(6)
    raise AssertionError([f"{e.kind} {e.body}" for e in await rig.trail(operation_id)])


async def _say(rig: Rig, proposal: Proposal, operation_id: str, who: str, **said: Any) -> None:
    """Sign on the trail as it stands, and send it."""
    await rig.settled(operation_id)
    await rig.handle(proposal).signal("resolve", await rig.signed(operation_id, who, "resolution", **said))


async def _refused(rig: Rig, operation_id: str, *rules: str, seconds: float = 20.0) -> None:
    """Wait for one more refusal; all of them are these."""
    deadline = asyncio.get_running_loop().time() + seconds
    while len(found := await rig.refusals(operation_id)) < len(rules):
        state = (await rig.operation(operation_id)).state
        assert asyncio.get_running_loop().time() < deadline, (found, state)
        await asyncio.sleep(0.05)
    assert found == list(rules)


async def _accepted(rig: Rig, operation_id: str, who: str, seconds: float = 20.0) -> None:
    """As `Rig.accepted`, after refusals that the test wanted."""
    deadline = asyncio.get_running_loop().time() + seconds
    while who not in [e.body["person"] for e in await rig.trail(operation_id) if e.kind == "statement_accepted"]:
        assert asyncio.get_running_loop().time() < deadline, await rig.refusals(operation_id)
        await asyncio.sleep(0.05)


async def _looked(rig: Rig, operation_id: str, seconds: float = 20.0) -> None:
    """Wait until a look stands in the trail."""
    deadline = asyncio.get_running_loop().time() + seconds
    while not any(e.kind == "sighting" for e in await rig.trail(operation_id)):
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.05)


async def _runs(rig: Rig, proposal: Proposal) -> bool:
    return (await rig.handle(proposal).describe()).status is WorkflowExecutionStatus.RUNNING


async def _attempts(rig: Rig, operation_id: str) -> list[Attempt]:
    async with rig.ledger.transaction() as conn:
        return await attempts.read_attempts(conn, uuid.UUID(operation_id))


async def _answered_late(rig: Rig, operation: Operation, receipt: str, fence: int) -> None:
    """The worker that was stopped with the answer in its hands goes on: the attempt of this fence was applied."""
    settings = rig.settings()
    registry, secrets = default_registry(settings.stripe_base_url), Secrets(settings.secrets_dir)
    ports = Ports(ledger=rig.ledger, registry=registry, secrets=secrets, worker="late")
    assert operation.frozen_request is not None
    async with rig.ledger.transaction() as conn:
        (lease,) = [
            a.lease_until for a in await attempts.read_attempts(conn, operation.operation_id) if a.number == fence
        ]
    claim = Claim(
        replace(operation, fence=fence, lease_until=lease),
        Request(**operation.frozen_request),
        ports.contract_of(operation),
        None,  # type: ignore[arg-type]  # nothing is sent any more
        0.0,
    )
    await Dispatch(ports)._record(claim, Classified(Outcome.APPLIED, receipt=receipt, standing=Standing.GOOD), Wire())


async def _is_listed(rig: Rig, operation: Operation) -> bool:
    """Whether people are told that something speaks against the end of this operation."""
    async with rig.ledger.transaction() as conn:
        listed = {o.operation_id for o in await views.in_review(conn)}
        return await views.contradicted(conn, operation.operation_id) and operation.operation_id in listed


async def test_a_renewed_hold_needs_two_new_releases(rig: Rig) -> None:
    """One of two released, then somebody held again; later the very first hold is handed in once more.

    Red: put the hold only while nothing is held in `Hold._apply`; for the replay, answer `held=True` there.
    """
    async with rig.worker():
        first = await _of_everything(rig, "olga", StatementType.HOLD)
        await _hold(rig, first)
        early = await _hold(rig, await _of_everything(rig, "oscar", StatementType.RELEASE))
        assert (early.held, early.still_needed) == (True, 1)
        await _hold(rig, await _of_everything(rig, "olga", StatementType.HOLD))
        one = await _hold(rig, await _of_everything(rig, "olga", StatementType.RELEASE))
        assert (one.held, one.still_needed) == (True, 1)
        replayed = await _hold(rig, first)
        assert (replayed.accepted, replayed.held) == (True, True)
        two = await _hold(rig, await _of_everything(rig, "oscar", StatementType.RELEASE))
        assert (two.held, two.still_needed) == (False, 0)
        replayed = await _hold(rig, first)
        assert (replayed.accepted, replayed.held) == (True, False)
        async with rig.ledger.transaction() as conn:
            assert await holds.current(conn) == []


async def test_a_start_with_a_bad_operation_id_is_refused_and_the_intent_still_works(rig: Rig) -> None:
    """Anybody with the namespace starts the intent's workflow id with what no operation is called, or none that exists.

    Red: return the `Resume` in `_read_start` without matching its id.
    """
    target = rig.payment()
    proposal = rig.proposal(target)
    handle = rig.handle(proposal)

    async def start(operation_id: str) -> None:
        given = {"operation_id": operation_id}
        await rig.client.start_workflow("OperationWorkflow", given, id=handle.id, task_queue=rig.stack.task_queue)

    async with rig.worker():
        for bad in ("zzz", "", str(uuid.uuid4()).upper(), "../" + str(uuid.uuid4())):
            await start(bad)
            answer = await asyncio.wait_for(handle.result(), 10)
            assert (answer["state"], answer["reason"]) == ("refused", "resume_malformed"), bad
        await start(str(uuid.uuid4()))
        with pytest.raises(WorkflowFailureError):
            await asyncio.wait_for(handle.result(), 10)
        told = await rig.propose(proposal)
        await rig.until(told.operation_id, "succeeded")
    assert len(rig.effects(target)) == 1


async def test_big_messages_before_a_renewal_do_not_wedge_the_run(rig: Rig) -> None:
    """Five of 1.2 MB wait while no worker runs, more than one payload may carry; an approval is behind them.

    Red: drop `small` in `_renew_history`.
    """
    target = rig.payment(100_000)
    proposal = rig.proposal(target, amount=5_000)
    async with rig.worker():
        answer = await rig.propose(proposal)
        assert answer.state == "awaiting_approval"
    big = {"statement": "x" * 399_000, "scheme": "jws", "proof": "y" * 399_000, "sheet": "z" * 399_000}
    for _ in range(5):
        await rig.handle(proposal).signal("decide", big)
    await rig.handle(proposal).signal("decide", await rig.signed(answer.operation_id, "alice", "approval"))
    async with rig.worker():
        await rig.until(answer.operation_id, "succeeded")
    assert len(await rig.refusals(answer.operation_id)) == 5
    assert [e.amount for e in rig.effects(target)] == [5_000]


async def test_an_effect_under_an_edited_marker_is_not_certified_absent_unnamed(rig: Rig) -> None:
    """Somebody with the dashboard changes our marker to an id that no operation has, before anybody looks.

    Red: in `reconcile.look` take `matching` from every look-alike whose marker is another UUID, known or not.
    """
    target, control = rig.payment(), rig.stack.stripe.control
    control.fault("stored-500-executed", payment_intent=target)
    edited = Rule(kind="tamper", metadata={"operation_id": str(uuid.uuid4())}, match=CREATE)
    control.fault(edited, payment_intent=target)
    proposal = rig.proposal(target)
    async with rig.worker():
        operation_id = (await rig.propose(proposal)).operation_id
        await _to_review(rig, operation_id)
        await _say(rig, proposal, operation_id, "olga", **NOTHING)
        await _refused(rig, operation_id, "absence_unproved")
        named = {**NOTHING, "foreign": (rig.effects(target)[0].refund,)}
        for who in ("olga", "oscar"):
            await _say(rig, proposal, operation_id, who, **named)
            await _accepted(rig, operation_id, who)
        await rig.until(operation_id, "rejected")
        # It looks like what is asked for now, and no operation of ours made it: nobody waives that.
        again = await rig.propose(await _signed_now(rig, target))
        second = await rig.until(again.operation_id, "blocked", "awaiting_approval", "succeeded")
    assert (second.state, second.reason) == ("blocked", "equivalent_operation")
    assert len(rig.effects(target)) == 1


async def test_a_late_answer_that_tells_of_an_effect_contradicts_the_end(rig: Rig) -> None:
    """A second receipt after a success; an effect after two people certified that there was none.

    Red: drop the call of `against_end` in `Dispatch._record_once`.
    """
    target, nothing = rig.payment(), rig.payment()
    rig.stack.stripe.control.fault("lost-answer", payment_intent=target)
    rig.stack.stripe.control.fault("stored-500-no-effect", payment_intent=nothing)
    proposal = rig.proposal(nothing)
    async with rig.worker():
        done = await rig.until((await rig.propose(rig.proposal(target))).operation_id, "succeeded")
        operation_id = (await rig.propose(proposal)).operation_id
        await _to_review(rig, operation_id)
        for who in ("olga", "oscar"):
            await _say(rig, proposal, operation_id, who, **NOTHING)
            await rig.accepted(operation_id, who)
        rejected = await rig.until(operation_id, "rejected")
    for operation, receipt, fence in ((done, "re_second", 1), (rejected, "re_late", 1)):
        assert not await _is_listed(rig, operation)
        await _answered_late(rig, operation, receipt, fence)
        assert await _is_listed(rig, operation), receipt
        told = [e.body for e in await rig.trail(str(operation.operation_id)) if e.kind == "contradiction"]
        assert [b["receipts"] for b in told] == [[receipt]]
        assert (await rig.operation(str(operation.operation_id))).state == operation.state


async def test_an_answer_with_a_receipt_that_another_operation_holds_is_kept_and_reviewed(rig: Rig) -> None:
    """While the real request hangs, an answer is recorded that names the receipt of an ended operation.

    Red: drop the question to `operations.receipt_taken` in `settle`.
    """
    target, control = rig.payment(100_000), rig.stack.stripe.control
    async with rig.worker():
        other = await rig.until((await rig.propose(rig.proposal(target))).operation_id, "succeeded")
        control.fault("hang-after", payment_intent=target)
        proposal = rig.proposal(target, amount=1_000)
        operation_id = (await rig.propose(proposal)).operation_id
        operation = await rig.until(operation_id, "in_flight")
        assert other.receipt is not None
        await _answered_late(rig, operation, other.receipt, operation.fence)
        await rig.until(operation_id, "needs_review")
        (attempt,) = await _attempts(rig, operation_id)
        assert (attempt.outcome, attempt.receipt) == (Outcome.APPLIED, other.receipt)
        assert await _runs(rig, proposal)
        control.release()


async def test_an_answer_whose_receipt_people_gave_away_is_kept_and_reviewed(rig: Rig) -> None:
    """The marker of a refund under way is edited away, and an operator names the refund as the effect of its twin.

    Then its own answer comes, and its marker back. Red: drop the question to `operations.receipt_taken` in `settle`.
    """
    target, control = rig.payment(100_000), rig.stack.stripe.control
    control.fault("stored-500-no-effect", payment_intent=target)
    twin = rig.proposal(target)
    async with rig.worker():
        twin_id = (await rig.propose(twin)).operation_id
        await _to_review(rig, twin_id)
        proposal = await _signed_now(rig, target, distinct_from=[twin_id])
        operation_id = (await rig.propose(proposal)).operation_id
        rule = control.fault("hang-after", payment_intent=target)
        assert (await rig.decide(proposal, await rig.signed(operation_id, "alice", "approval"))).reason == ""
        made = await asyncio.to_thread(control.until, lambda j: j.effects, 20, payment_intent=target)
        receipt = made.effects[0].refund
        control.set_refund(receipt, metadata={"operation_id": ""})
        await _say(rig, twin, twin_id, "olga", decision="happened", receipt=receipt, evidence="dashboard")
        assert (await rig.until(twin_id, "succeeded")).receipt == receipt
        control.set_refund(receipt, metadata={"operation_id": operation_id})
        control.release(rule)
        await rig.until(operation_id, "needs_review")
        (attempt,) = await _attempts(rig, operation_id)
        assert (attempt.outcome, attempt.receipt) == (Outcome.APPLIED, receipt)
        assert await _runs(rig, proposal)
    assert len(rig.effects(target)) == 1


async def test_what_was_approved_as_distinct_is_not_named_as_the_effect(rig: Rig) -> None:
    """A refund of somebody else looks the same; a person approved one more beside it, which did not happen.

    Red: drop the question whether the receipt stands in `distinct_from` in `Resolve._happened`.
    """
    target, control = rig.payment(100_000), rig.stack.stripe.control
    foreign = control.foreign_refund(target, 1_500)
    proposal = rig.proposal(target, distinct_from=[foreign])
    async with rig.worker():
        answer = await rig.propose(proposal)
        assert answer.state == "awaiting_approval", answer
        control.fault("stored-500-no-effect", payment_intent=target)
        await rig.decide(proposal, await rig.signed(answer.operation_id, "alice", "approval"))
        await _to_review(rig, answer.operation_id)
        said = {"decision": "happened", "receipt": foreign, "evidence": "dashboard"}
        await _say(rig, proposal, answer.operation_id, "olga", **said)
        await _refused(rig, answer.operation_id, "receipt_distinct")
    assert (await rig.operation(answer.operation_id)).state == "needs_review"


async def test_people_cannot_give_up_while_something_could_still_tell(rig: Rig) -> None:
    """One operation has two effects with its marker; of the other nothing is known, and its request may still be at work.

    Red: drop the first or the second question in `check_undeterminable`.
    """
    twice, misused, control = rig.payment(), rig.payment(), rig.stack.stripe.control
    control.fault("duplicate", payment_intent=twice)
    control.fault("stored-500-executed", payment_intent=twice)
    control.fault(MISUSED, payment_intent=misused)
    known, unknown = rig.proposal(twice), rig.proposal(misused)
    async with rig.worker():
        known_id, unknown_id = [(await rig.propose(p)).operation_id for p in (known, unknown)]
        for proposal, operation_id in ((known, known_id), (unknown, unknown_id)):
            await rig.until(operation_id, "needs_review")
            await rig.handle(proposal).signal("look_now")  # so that the next look agrees with one on the trail
            await _looked(rig, operation_id)
        await _say(rig, known, known_id, "olga", **NOBODY_KNOWS)
        await _refused(rig, known_id, "effect_known")
        await _say(rig, unknown, unknown_id, "olga", **NOBODY_KNOWS)
        await _refused(rig, unknown_id, "not_quiet")
        await rig.advance(13 * 3_600)
        await _say(rig, unknown, unknown_id, "olga", **NOBODY_KNOWS)
        await _refused(rig, unknown_id, "not_quiet", "window_open")
