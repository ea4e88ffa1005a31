"""Nothing that anybody sends wedges a workflow, and what does not count is in the trail with its reason."""

import uuid
from typing import Any

import pytest
from temporalio.api.common.v1 import Payloads, WorkflowExecution, WorkflowType
from temporalio.api.enums.v1 import UpdateWorkflowExecutionLifecycleStage
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.update.v1 import Input, Meta, Request, WaitPolicy
from temporalio.api.workflowservice.v1 import (
    SignalWorkflowExecutionRequest,
    StartWorkflowExecutionRequest,
    UpdateWorkflowExecutionRequest,
)

from tests.conftest import Rig
from tests.workflows.encrypted import encrypting
from tests.workflows.payloads import MALFORMED


async def _signal(rig: Rig, workflow_id: str, name: str, payloads: list[Any]) -> None:
    await rig.client.workflow_service.signal_workflow_execution(
        SignalWorkflowExecutionRequest(
            namespace=rig.client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=workflow_id),
            signal_name=name,
            input=Payloads(payloads=payloads),
            request_id=uuid.uuid4().hex,
        )
    )


@pytest.mark.parametrize("keys", ["", "payload_key_1"], ids=["plain", "encrypted"])
async def test_no_malformed_signal_wedges_a_waiting_operation(rig: Rig, keys: str) -> None:
    """Every payload to all four signals, by raw gRPC as the Web UI sends them; then a real withdrawal by cancel ends it.

    Red: give `decide` a typed positional parameter instead of `*args`; use the SDK's `DataConverter`; let the codec raise.
    """
    ours = await encrypting(rig, keys)
    proposal = rig.proposal(rig.payment(), amount=5_000)
    async with rig.worker(payload_keys=keys):
        answer = await ours.propose(proposal)
        assert answer.state == "awaiting_approval"
        handle = rig.handle(proposal)
        for name in ("decide", "resolve", "withdraw", "look_now", "nobody_knows_this"):
            for payloads in MALFORMED.values():
                await _signal(rig, handle.id, name, payloads)
        await handle.cancel()
        operation = await rig.until(answer.operation_id, "blocked")
        assert operation.reason == "withdrawn"
        assert (await ours.handle(proposal).result())["state"] == "blocked"
    refused = [e.body for e in await rig.trail(answer.operation_id) if e.kind in ("junk_refused", "statement_refused")]
    assert sum(body["count"] for body in refused) == 3 * len(
        MALFORMED
    )  # every one, of the signals that carry statements
    assert {"decide without a JSON object", "decide with 0 payloads instead of one"} <= {b["rule"] for b in refused}


@pytest.mark.parametrize("keys", ["", "payload_key_1"], ids=["plain", "encrypted"])
@pytest.mark.parametrize("name", ["decide", "propose"])
async def test_malformed_updates_are_rejected_with_an_answer(rig: Rig, name: str, keys: str) -> None:
    """The validator answers; the workflow's history stays as it was."""
    ours = await encrypting(rig, keys)
    proposal = rig.proposal(rig.payment(), amount=5_000)
    async with rig.worker(payload_keys=keys):
        await ours.propose(proposal)
        handle = rig.handle(proposal)
        for label, payloads in MALFORMED.items():
            answer = await rig.client.workflow_service.update_workflow_execution(
                UpdateWorkflowExecutionRequest(
                    namespace=rig.client.namespace,
                    workflow_execution=WorkflowExecution(workflow_id=handle.id),
                    wait_policy=WaitPolicy(
                        lifecycle_stage=UpdateWorkflowExecutionLifecycleStage.UPDATE_WORKFLOW_EXECUTION_LIFECYCLE_STAGE_COMPLETED
                    ),
                    request=Request(
                        meta=Meta(update_id=uuid.uuid4().hex),
                        input=Input(name=name, args=Payloads(payloads=payloads)),
                    ),
                )
            )
            assert answer.outcome.HasField("failure"), label
        again = await ours.propose(proposal)
        assert again.state == "awaiting_approval"


@pytest.mark.parametrize("keys", ["", "payload_key_1"], ids=["plain", "encrypted"])
async def test_a_malformed_start_is_refused_and_stores_nothing(rig: Rig, keys: str) -> None:
    """Plain starts by name and JSON, as anybody with a Temporal client can send them."""
    ours = await encrypting(rig, keys)
    async with rig.worker(payload_keys=keys):
        for label, payloads in MALFORMED.items():
            await rig.client.workflow_service.start_workflow_execution(
                StartWorkflowExecutionRequest(
                    namespace=rig.client.namespace,
                    workflow_id=f"acme/{rig.stack.name}-{label}",
                    workflow_type=WorkflowType(name="OperationWorkflow"),
                    task_queue=TaskQueue(name=rig.stack.task_queue),
                    input=Payloads(payloads=payloads),
                    request_id=uuid.uuid4().hex,
                )
            )
        for label in MALFORMED:
            answer = await ours.client.get_workflow_handle(f"acme/{rig.stack.name}-{label}").result()
            told = (answer["state"], answer["reason"], answer["ended"])
            assert told == ("refused", "proposal_malformed", True), label
            assert answer["message"], label
    async with rig.ledger.transaction() as conn:
        row = await (await conn.execute("select count(*) as n from operations")).fetchone()
    assert row is not None and row["n"] == 0
