"""Every path through the workflows, driven for real: for recording histories, and to see that each still ends as it should."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from temporalio.client import WorkflowExecutionStatus, WorkflowHandle

from activities.messages import Proposal
from activities.order import OrderAnswer, Step
from devstack.faults import CutReply, CutRequest, HoldReply
from tests.conftest import Rig
from tests.recovery.order_world import FINAL_DOT, Job, a_job, until, view

Handle = WorkflowHandle[Any, Any]
Path = Callable[[Rig], Awaitable[Proposal | Handle]]
"""Drives one path on a rig with all receivers. Its history is the last run of the workflow returned, or of the proposal's."""

READ_CUSTOMER = b"contact_mechanisms.type"  # the ERP is asked for this by the customer's step alone


# Operations.


async def waived(rig: Rig) -> Proposal:
    """Nobody is asked; sent once; succeeded."""
    proposal = rig.proposal(rig.payment())
    await rig.until((await rig.propose(proposal)).operation_id, "succeeded")
    return proposal


async def approved(rig: Rig) -> Proposal:
    """Junk and a refused approval first, then the right one."""
    proposal = rig.proposal(rig.payment(), amount=5_000)
    answer = await rig.propose(proposal)
    await rig.handle(proposal).signal("decide", "approve!")
    await rig.decide(proposal, await rig.signed(answer.operation_id, "olga", "approval"))
    await rig.decide(proposal, await rig.signed(answer.operation_id, "alice", "approval"))
    await rig.until(answer.operation_id, "succeeded")
    return proposal


async def declined(rig: Rig) -> Proposal:
    """A person says no."""
    proposal = rig.proposal(rig.payment(), amount=5_000)
    answer = await rig.propose(proposal)
    await rig.handle(proposal).signal("decide", await rig.signed(answer.operation_id, "alice", "decline"))
    await rig.until(answer.operation_id, "blocked")
    return proposal


async def withdrawn(rig: Rig) -> Proposal:
    """Cancelled while it waits."""
    proposal = rig.proposal(rig.payment(), amount=5_000)
    answer = await rig.propose(proposal)
    await rig.handle(proposal).cancel()
    await rig.until(answer.operation_id, "blocked")
    return proposal


async def repeated(rig: Rig) -> Proposal:
    """The answer is lost, and the same request is repeated inside the window."""
    target = rig.payment()
    rig.stack.stripe.control.fault("lost-answer", payment_intent=target)
    proposal = rig.proposal(target)
    await rig.until((await rig.propose(proposal)).operation_id, "succeeded")
    return proposal


async def found(rig: Rig) -> Proposal:
    """A stored 500 whose effect exists: found by its marker."""
    target = rig.payment()
    rig.stack.stripe.control.fault("stored-500-executed", payment_intent=target)
    proposal = rig.proposal(target)
    await rig.until((await rig.propose(proposal)).operation_id, "succeeded")
    return proposal


async def followed(rig: Rig) -> Proposal:
    """A pending refund, followed until it is good."""
    target = rig.payment()
    rig.stack.stripe.control.fault("pending", payment_intent=target)
    proposal = rig.proposal(target)
    answer = await rig.propose(proposal)
    await rig.until(answer.operation_id, "succeeded")
    await rig.advance(4_000)
    while (await rig.operation(answer.operation_id)).standing != "good":
        await asyncio.sleep(0.1)
    return proposal


async def in_review(rig: Rig) -> Proposal:
    """A stored 500 without effect; half a day later nothing is found. Returns while it waits for people."""
    target = rig.payment()
    rig.stack.stripe.control.fault("stored-500-no-effect", payment_intent=target)
    proposal = rig.proposal(target)
    answer = await rig.propose(proposal)
    await rig.until(answer.operation_id, "unknown")
    await rig.advance(24 * 3_600.0)
    await rig.until(answer.operation_id, "needs_review", seconds=40)
    return proposal


async def resolved(rig: Rig) -> Proposal:
    """One operator alone cannot certify that nothing happened; two can."""
    proposal = await in_review(rig)
    operation_id = (await rig.propose(proposal)).operation_id
    said = {"decision": "did_not_happen", "evidence": "request log of the payment, read by two"}
    for who in ("olga", "oscar"):
        await rig.settled(operation_id)
        await rig.handle(proposal).signal("resolve", await rig.signed(operation_id, who, "resolution", **said))
        await rig.accepted(operation_id, who)
    await rig.until(operation_id, "rejected")
    return proposal


async def renewed(rig: Rig) -> Proposal:
    """More than 500 signals: the run is continued as new while a person is waited for."""
    proposal = rig.proposal(rig.payment(), amount=5_000)
    answer = await rig.propose(proposal)
    handle = rig.handle(proposal)
    for _ in range(11):
        await asyncio.gather(*(handle.signal("decide", f"junk {n}") for n in range(50)))
    await handle.signal("decide", await rig.signed(answer.operation_id, "alice", "approval"))
    await rig.until(answer.operation_id, "succeeded", seconds=60)
    return proposal


async def depending(rig: Rig) -> Proposal:
    """Waits for another operation, is woken once too early, and goes on when that one has succeeded."""
    first = rig.proposal(rig.payment(), amount=5_000)
    needed = await rig.propose(first)
    needs = [{"business_key": first.business_key, "state": "succeeded"}]
    second = rig.proposal(rig.payment(), depends_on=needs)
    waiting = await rig.propose(second)
    await rig.until(waiting.operation_id, "approved")
    await rig.handle(second).signal("look_now")
    await rig.settled(waiting.operation_id)
    await rig.approve(needed.operation_id)
    await rig.until(waiting.operation_id, "succeeded")
    return second


async def telling(rig: Rig) -> Handle:
    """A step of an order, which is told of every change."""
    job = await a_job(rig)
    await job.ask()
    await job.approve(Step.INVOICE)
    assert (await job.until_ended()).state == "done"
    return job.step(Step.INVOICE)


async def telling_nobody(rig: Rig) -> Handle:
    """A step of an order that is gone before there is news."""
    job = await a_job(rig)
    await job.ask()
    await job.until(Step.INVOICE, "awaiting_approval")
    await job.parent.terminate("lost")
    await job.approve(Step.INVOICE)
    await job.until(Step.INVOICE, "succeeded")
    return job.step(Step.INVOICE)


# Orders.


async def order_done(rig: Rig) -> Handle:
    """One approval and three effects."""
    job = await a_job(rig)
    await job.ask()
    await _approved_and_done(job)
    return job.parent


async def order_refused(rig: Rig) -> Handle:
    """Its items do not come to what the mail says: nothing is begun."""
    job = await a_job(rig)
    wrong = replace(job, order=job.order.model_copy(update={"total_minor": 18_001}))
    assert (await wrong.ask()).reason == "total_wrong"
    return job.parent


async def order_declined(rig: Rig) -> Handle:
    """A person says no to the invoice: what rests on it is not begun."""
    job = await a_job(rig)
    await job.ask()
    await _declined_and_ended(job)
    return job.parent


async def order_mail_lost(rig: Rig) -> Handle:
    """The answer to the mail is lost, while the rest goes on; it is found in the archive."""
    job = await a_job(rig)
    lost = rig.world.proxies["smtp"].arm(CutReply(after=FINAL_DOT))
    await job.ask()
    await _approved_and_done(job)
    assert lost.fired == 1
    return job.parent


async def order_tried_again(rig: Rig) -> Handle:
    """The ERP does not say who the customer is, for a moment: that step is begun again after a pause."""
    job = await a_job(rig)
    away = rig.world.proxies["tryton"].arm(CutRequest(after=READ_CUSTOMER))
    await job.ask()
    await _approved_and_done(job)
    assert away.fired == 1
    return job.parent


async def order_signed_again(rig: Rig) -> Handle:
    """The customer's token is no good when its turn comes; asked for with a good one while the mail is under way."""
    job = await a_job(rig)
    bad = job.order.model_copy(update={"tokens": job.order.tokens | {"customer": ""}})
    mailing = rig.world.proxies["smtp"].arm(HoldReply(after=FINAL_DOT))
    await job.ask()
    await job.until(Step.INVOICE, "awaiting_approval")
    await replace(job, order=bad).ask()
    await job.approve(Step.INVOICE)

    async def refused() -> bool:
        told = await job.parent.query("state", result_type=OrderAnswer)  # leaves nothing in the history
        return view(told, Step.CUSTOMER).reason == "signature_missing"

    await until(refused, "the customer's step to be refused")
    await asyncio.to_thread(mailing.wait_fired)
    await job.ask()
    await job.until(Step.CUSTOMER, "succeeded")
    mailing.release()
    assert (await job.until_ended()).state == "done"
    return job.parent


async def order_step_lost(rig: Rig) -> Handle:
    """A step's workflow is terminated while it waits for people; it is started again when the order is asked for.

    Declined then, as is the next one: the rest would be the same as everywhere, and histories stay small.
    """
    job = await a_job(rig)
    await job.ask()
    await job.until(Step.INVOICE, "awaiting_approval")
    await job.step(Step.INVOICE).terminate("lost")

    async def runs_again() -> bool:
        await job.ask()  # the order may hear of it a moment later
        return (await job.step(Step.INVOICE).describe()).status is WorkflowExecutionStatus.RUNNING

    await until(runs_again, "the step to have a workflow again", pause=1.0)
    await _declined_and_ended(job)
    return job.parent


async def order_renewed(rig: Rig) -> Handle:
    """More than 500 signals: the run is continued as new, and finds its first step begun by the run before."""
    job = await a_job(rig)
    await job.ask()
    await job.until(Step.INVOICE, "awaiting_approval")
    first = (await job.parent.describe()).run_id
    for _ in range(10):
        await asyncio.gather(*(job.parent.signal("look_now") for _ in range(50)))

    async def renewed_once() -> bool:
        return (await job.parent.describe()).run_id != first

    await until(renewed_once, "the order to be continued as new")
    await _declined_and_ended(job)
    return job.parent


async def order_asked_early(rig: Rig) -> Handle:
    """Asked for while the customer's step has begun and nothing is heard of it."""
    job = await a_job(rig)
    reading = rig.world.proxies["tryton"].arm(HoldReply(after=READ_CUSTOMER))
    await job.ask()
    await job.approve(Step.INVOICE)
    await asyncio.to_thread(reading.wait_fired)
    await job.ask()
    reading.release()
    assert (await job.until_ended()).state == "done"
    return job.parent


async def _approved_and_done(job: Job) -> None:
    await job.approve(Step.INVOICE)
    told = await job.until_ended()
    assert told.state == "done", told


async def _declined_and_ended(job: Job) -> None:
    waiting = await job.until(Step.INVOICE, "awaiting_approval")
    declined = await job.desk.signed(str(waiting.operation_id), "alice", "decline")
    await job.step(Step.INVOICE).signal("decide", declined)
    told = await job.until_ended()
    assert told.state == "ended", told


_OPERATIONS = (
    waived,
    approved,
    declined,
    withdrawn,
    repeated,
    found,
    followed,
    resolved,
    renewed,
    depending,
    telling,
    telling_nobody,
)
_ORDERS = (
    order_done,
    order_refused,
    order_declined,
    order_mail_lost,
    order_tried_again,
    order_signed_again,
    order_step_lost,
    order_renewed,
    order_asked_early,
)
PATHS: dict[str, Path] = {path.__name__: path for path in (*_OPERATIONS, *_ORDERS)}
