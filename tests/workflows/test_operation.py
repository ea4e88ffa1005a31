"""One operation through its workflow: whatever is done to the workflow, there is one intent and nothing gets lost."""

import asyncio

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import WorkflowExecutionStatus

from tests.conftest import Rig
from workflows.names import workflow_id


async def test_twenty_proposals_at_once_are_one_operation_and_one_refund(rig: Rig) -> None:
    """Red: derive the operation id from anything but tenant and business key."""
    target = rig.payment()
    proposal = rig.proposal(target)
    async with rig.worker():
        answers = await asyncio.gather(*(rig.propose(proposal) for _ in range(20)))
        await rig.until(answers[0].operation_id, "succeeded")
        again = await rig.propose(proposal)
    assert {a.operation_id for a in answers} == {again.operation_id}
    assert (again.state, again.ended) == ("succeeded", True)
    assert len(rig.posts(target)) == 1


async def test_the_same_key_with_other_content_is_refused_naming_both_digests(rig: Rig) -> None:
    """One key is one intent: never merged, and the first is not disturbed."""
    target = rig.payment()
    first = rig.proposal(target, amount=1_500, key="order-7")
    other = rig.proposal(target, amount=1_600, key="order-7")
    async with rig.worker():
        answer = await rig.propose(first)
        await rig.until(answer.operation_id, "succeeded")
        refused = await rig.propose(other)
        assert (refused.state, refused.reason, refused.field) == ("refused", "key_used", "business_key")
        operation = await rig.operation(answer.operation_id)
        assert operation.request_digest.hex()[:16] in refused.message
    assert [e.amount for e in rig.effects(target)] == [1_500]


async def test_reset_to_the_beginning_sends_nothing_again(rig: Rig) -> None:
    """The Web UI's reset replays the run from its first task. Red: use workflow.uuid4() or the run id in the key."""
    target = rig.payment()
    proposal = rig.proposal(target)
    async with rig.worker():
        answer = await rig.propose(proposal)
        await rig.until(answer.operation_id, "succeeded")
        handle = rig.handle(proposal)
        await handle.result()
        history = await handle.fetch_history()
        first_task = next(e.event_id for e in history.events if e.HasField("workflow_task_completed_event_attributes"))
        for _ in range(2):
            run = (await handle.describe()).run_id
            await rig.client.workflow_service.reset_workflow_execution(
                ResetWorkflowExecutionRequest(
                    namespace=rig.client.namespace,
                    workflow_execution=WorkflowExecution(workflow_id=handle.id, run_id=run),
                    workflow_task_finish_event_id=first_task,
                    reason="test",
                    request_id=run,
                )
            )
            again = await rig.client.get_workflow_handle(handle.id).result()
            assert again["state"] == "succeeded"
    assert len(rig.posts(target)) == 1
    assert len(rig.effects(target)) == 1


async def test_terminated_while_unknown_and_started_again_goes_on(rig: Rig) -> None:
    """The new run finds the operation in the ledger; the effect, made once, is found and nothing is repeated blindly."""
    target = rig.payment()
    rig.stack.stripe.control.fault("lost-answer", payment_intent=target)
    proposal = rig.proposal(target)
    async with rig.worker(backoff=30.0):
        answer = await rig.propose(proposal)
        await rig.until(answer.operation_id, "unknown")
        await rig.handle(proposal).terminate("test")
        again = await rig.propose(proposal)
        assert (again.operation_id, again.state) == (answer.operation_id, "unknown")
        await rig.advance(60)
        operation = await rig.until(answer.operation_id, "succeeded")
    assert [e.refund for e in rig.effects(target)] == [operation.receipt]
    assert {a.idempotency_key for a in rig.posts(target)} == {operation.idempotency_key}


async def test_cancel_before_the_first_send_withdraws(rig: Rig) -> None:
    """Cancelling can only prevent: an operation that waits for people is blocked, and the workflow says so."""
    target = rig.payment()
    proposal = rig.proposal(target, amount=5_000)
    async with rig.worker():
        answer = await rig.propose(proposal)
        assert answer.state == "awaiting_approval"
        await rig.handle(proposal).cancel()
        operation = await rig.until(answer.operation_id, "blocked")
        assert operation.reason == "withdrawn"
        assert (await rig.handle(proposal).result())["reason"] == "withdrawn"
    assert rig.posts(target) == []


async def test_cancel_while_unknown_is_swallowed_and_settling_goes_on(rig: Rig) -> None:
    """A cancel cannot make a sent request unsent. Red: let CancelledError end `run`."""
    target = rig.payment()
    rig.stack.stripe.control.fault("lost-answer", payment_intent=target)
    proposal = rig.proposal(target)
    async with rig.worker(backoff=30.0):
        answer = await rig.propose(proposal)
        await rig.until(answer.operation_id, "unknown")
        await rig.handle(proposal).cancel()
        await rig.advance(60)
        await rig.until(answer.operation_id, "succeeded")
        assert (await rig.handle(proposal).result())["state"] == "succeeded"
    assert len(rig.effects(target)) == 1


async def test_cancel_during_the_send_waits_for_its_answer(rig: Rig) -> None:
    """The dispatch is shielded: its answer is recorded, not thrown away. Red: drop the shield in `_finish`."""
    target = rig.payment()
    rule = rig.stack.stripe.control.fault("slow", payment_intent=target)
    proposal = rig.proposal(target)
    async with rig.worker():
        answer = await rig.propose(proposal)
        await asyncio.to_thread(
            rig.stack.stripe.control.until, lambda j: any(a.method == "POST" for a in j.arrivals), payment_intent=target
        )
        await rig.handle(proposal).cancel()
        rig.stack.stripe.control.release(rule)
        await rig.until(answer.operation_id, "succeeded")
        assert (await asyncio.wait_for(rig.handle(proposal).result(), 20))["state"] == "succeeded"
    assert len(rig.posts(target)) == 1


async def test_a_flood_of_signals_continues_as_new_and_loses_nothing(rig: Rig) -> None:
    """600 junk signals, then the approval that counts: the run is renewed before it, and nothing is lost."""
    target = rig.payment()
    proposal = rig.proposal(target, amount=5_000)
    async with rig.worker():
        answer = await rig.propose(proposal)
        handle = rig.handle(proposal)
        first_run = (await handle.describe()).run_id
        approval = await rig.signed(answer.operation_id, "alice", "approval")
        for chunk in range(12):
            await asyncio.gather(*(handle.signal("decide", f"junk {n % 3}") for n in range(50)))
            if chunk == 11:
                await handle.signal("decide", approval)
        await rig.until(answer.operation_id, "succeeded", seconds=60)
        described = await rig.client.get_workflow_handle(handle.id, run_id=first_run).describe()
        assert described.status is WorkflowExecutionStatus.CONTINUED_AS_NEW
    counted = sum(e.body["count"] for e in await rig.trail(answer.operation_id) if e.kind == "junk_refused")
    assert counted == 600
    assert len(rig.effects(target)) == 1


async def test_signals_before_any_worker_ran_are_kept(rig: Rig) -> None:
    """Handlers run before `run`: a message that comes first is judged once the operation is recorded."""
    proposal = rig.proposal(rig.payment(), amount=5_000)
    handle = await rig.client.start_workflow(
        "OperationWorkflow",
        proposal.model_dump(mode="json"),
        id=workflow_id(proposal.tenant, proposal.business_key),
        task_queue=rig.stack.task_queue,
    )
    await handle.signal("decide", {"statement": "AAAA", "scheme": "jws", "proof": "x"})
    async with rig.worker():
        answer = await rig.propose(proposal)
        assert answer.state == "awaiting_approval"
    assert await rig.refusals(answer.operation_id) == ["proof_malformed"]


@pytest.mark.parametrize("amount", [2_000, 2_001])
async def test_the_waiver_ends_exactly_at_its_bound(rig: Rig, amount: int) -> None:
    """20.00 EUR is waived by the example policy, 20.01 EUR is not."""
    proposal = rig.proposal(rig.payment(), amount=amount)
    async with rig.worker():
        answer = await rig.propose(proposal)
        wanted = "awaiting_approval" if amount > 2_000 else "succeeded"
        assert (await rig.until(answer.operation_id, wanted)).people_needed == (1 if amount > 2_000 else 0)
