"""An order's workflows are lost, doubled and reset, and our own servers die under it: the effects stay one of each.

The situations are held still by the fault proxies: the receiver has done what was asked, and its answer is kept back.
"""

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import WorkflowExecutionStatus, WorkflowHandle
from temporalio.service import RPCError

from activities import propose
from activities.order import Step
from activities.progress import tell
from devstack.faults import HoldReply
from tests.conftest import Rig
from tests.recovery.order_world import (
    CREATE,
    FINAL_DOT,
    NOTHING,
    ONE_OF_EACH,
    WRITE,
    Job,
    a_job,
    recorded,
    until,
    view,
)

Loss = Callable[[Job], Awaitable[None]]


async def _runs(handle: WorkflowHandle[Any, Any]) -> bool:
    try:
        return (await handle.describe()).status is WorkflowExecutionStatus.RUNNING
    except RPCError:
        return False  # it was never started


async def _reset(handle: WorkflowHandle[Any, Any]) -> None:
    """Back to the end of its first workflow task, as an operator does in the Web UI."""
    run_id = (await handle.describe()).run_id
    async for event in handle.fetch_history_events():
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
            first = event.event_id
            break
    client = handle._client
    await client.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=handle.id, run_id=run_id),
            reason="a test",
            workflow_task_finish_event_id=first,
            request_id=uuid.uuid4().hex,
        )
    )


async def terminated(job: Job) -> None:
    """The order's workflow is terminated."""
    await job.parent.terminate("lost")


async def cancelled(job: Job) -> None:
    """The order's workflow is cancelled; nobody has said anything about its steps."""
    await job.parent.cancel()

    async def ended() -> bool:
        return not await _runs(job.parent)

    await until(ended, "the order's workflow to end")


async def reset(job: Job) -> None:
    """The order's workflow is reset to its beginning."""
    await _reset(job.parent)


async def steps_terminated(job: Job) -> None:
    """Every step's own workflow is terminated, also while it sends."""
    for step in Step:
        if await _runs(job.step(step)):
            with suppress(RPCError):  # it has just ended by itself
                await job.step(step).terminate("lost")


async def steps_reset(job: Job) -> None:
    """Every step's own workflow is reset, also while it sends."""
    for step in Step:
        if await _runs(job.step(step)):
            with suppress(RPCError):  # it has just ended by itself
                await _reset(job.step(step))


async def all_terminated(job: Job) -> None:
    """Nothing of the order runs any more."""
    await terminated(job)
    await steps_terminated(job)


@pytest.mark.parametrize("lose", [terminated, cancelled, reset])
async def test_an_order_lost_at_every_stage_and_asked_for_again_does_nothing_twice(desk: Rig, lose: Loss) -> None:
    """Lost while people are asked, while the invoice is created, while note and mail are sent, and at the end.

    Each time the same order is given again, once: the new run, which has started none of its steps, hears of their ends.
    Red: let `OrderToInvoiceWorkflow._begin` raise WorkflowAlreadyStartedError, or let `OperationWorkflow.run` end without
    telling its parent (nobody starts the other two within half a minute).
    """
    job = await a_job(desk)
    await _lose_at_every_stage(job, lose, keep_asking=False)


@pytest.mark.parametrize("lose", [steps_terminated, steps_reset, all_terminated])
async def test_steps_lost_at_every_stage_and_asked_for_again_do_nothing_twice(desk: Rig, lose: Loss) -> None:
    """The same with the workflows of the steps, whose sending goes on in its worker. Who asks again and again is heard.

    Red: leave `self._running -= self._lost` out of `OrderToInvoiceWorkflow.ask`.
    """
    job = await a_job(desk)
    await _lose_at_every_stage(job, lose, keep_asking=True)


async def _lose_at_every_stage(job: Job, lose: Loss, *, keep_asking: bool) -> None:
    desk = job.desk
    tryton, smtp = desk.world.proxies["tryton"], desk.world.proxies["smtp"]

    async def fired(fault: HoldReply) -> None:
        async def has() -> bool:
            if keep_asking:
                await job.ask()
            return fault.fired == 1

        await until(has, f"{fault} to fire", seconds=30)

    async with desk.worker():
        await job.ask()
        await job.until(Step.INVOICE, "awaiting_approval")
        invoice = await _lost_and_asked_again(job, lose)
        creating = tryton.arm(HoldReply(after=CREATE))
        await job.approve(Step.INVOICE)
        await fired(creating)
        assert await _lost_and_asked_again(job, lose) == invoice
        writing, mailing = tryton.arm(HoldReply(after=WRITE)), smtp.arm(HoldReply(after=FINAL_DOT))
        creating.release()
        await fired(writing)
        await fired(mailing)
        assert await _lost_and_asked_again(job, lose) == invoice
        writing.release()
        mailing.release()
        if keep_asking:
            await until(lambda: _ended(job), "the order to have ended whenever it is asked for")
        done = await job.until_ended()
        assert (done.state, await job.effects()) == ("done", ONE_OF_EACH)
        again = await job.ask()
        assert (again.state, again.steps) == ("done", done.steps)
    assert (await recorded(desk), await job.effects()) == (3, ONE_OF_EACH)


async def _ended(job: Job) -> bool:
    return (await job.ask()).ended


async def _lost_and_asked_again(job: Job, lose: Loss) -> str:
    """The id of the invoice's operation, which must stay the same. Every open step has a workflow again."""
    await lose(job)
    answer = await job.ask()
    assert answer.state == "under_way"

    async def all_run() -> bool:
        told = await job.ask()
        open_ones = [view.step for view in told.steps if view.operation_id and not view.ended]
        return all([await _runs(job.step(step)) for step in open_ones])

    if lose in (steps_terminated, all_terminated):  # the order may hear of it a moment later than who asks
        await until(all_run, "every open step to have a workflow")
    return view(answer, Step.INVOICE).operation_id


async def test_a_step_cancelled_while_it_tells_its_order_is_withdrawn(
    desk: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cancellation comes with the news that the invoice waits for people, and finds its workflow telling the order.

    Red: await the signal in `OperationWorkflow._tell_parent` without `_finish`: Temporal's library swallows the cancellation.
    """
    judged, go_on = asyncio.Event(), asyncio.Event()

    async def told_later(conn: Any, operation: Any) -> Any:
        if not judged.is_set():
            judged.set()
            await go_on.wait()
        return await tell(conn, operation)

    job = await a_job(desk)
    monkeypatch.setattr(propose, "tell", told_later)
    async with desk.worker():
        asking = asyncio.create_task(job.ask())
        await asyncio.wait_for(judged.wait(), 30)
        await job.step(Step.INVOICE).cancel()
        go_on.set()
        await asking
        assert (await job.until(Step.INVOICE, "blocked")).reason == "withdrawn"
        done = await job.until_ended()
    assert (done.state, await job.effects()) == ("ended", NOTHING)
