"""Every path through the workflow, driven for real: for recording histories, and to see that each still ends as it should."""

import asyncio
from collections.abc import Awaitable, Callable

from activities.messages import Proposal
from tests.conftest import Rig

Path = Callable[[Rig], Awaitable[Proposal]]


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


PATHS: dict[str, Path] = {
    path.__name__: path
    for path in (waived, approved, declined, withdrawn, repeated, found, followed, resolved, renewed)
}
