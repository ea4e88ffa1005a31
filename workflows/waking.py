"""Starting and waking workflows from outside: by the command line, a worker, and the inbox. Gives nobody any power."""

from contextlib import suppress
from datetime import timedelta
from typing import Any

from temporalio.client import (
    Client,
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleAlreadyRunningError,
    ScheduleIntervalSpec,
    ScheduleOverlapPolicy,
    SchedulePolicy,
    ScheduleSpec,
)
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy

from activities.messages import OPERATION_WORKFLOW, TAKE_EVENTS_WORKFLOW
from ledger.model import Operation
from workflows.names import events_id, workflow_id

CALL = timedelta(seconds=8)  # a call that only hands something over


async def signal(
    client: Client, operation: Operation, name: str, payload: dict[str, Any] | None = None, *, task_queue: str
) -> None:
    """Signal the operation's workflow; starts it from the ledger when none runs."""
    await client.start_workflow(
        OPERATION_WORKFLOW,
        resume(operation),
        id=workflow_id(operation.tenant, operation.business_key),
        task_queue=task_queue,
        id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
        static_summary=summary(operation),
        start_signal=name,
        start_signal_args=[] if payload is None else [payload],
        rpc_timeout=CALL,
    )


def resume(operation: Operation) -> dict[str, Any]:
    """What a workflow of a recorded operation is started with."""
    return {"operation_id": str(operation.operation_id), "known_events": operation.event_count}


def summary(operation: Operation) -> str:
    """The line beside a workflow in the Web UI."""
    return f"{operation.action} on {operation.target}"[:200]


async def events_came(client: Client, *, task_queue: str) -> None:
    """Have the inbox emptied now: by the run that does so at this moment, or by a new one."""
    await client.start_workflow(
        TAKE_EVENTS_WORKFLOW,
        id=events_id(task_queue),
        task_queue=task_queue,
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        static_summary="take events of the inbox",
        start_signal="more",
        rpc_timeout=CALL,
    )


async def schedule_events(client: Client, every: timedelta, *, task_queue: str) -> None:
    """Have the inbox emptied every so often, for hints that were lost. A schedule that is there stays as it is."""
    action = ScheduleActionStartWorkflow(
        TAKE_EVENTS_WORKFLOW,
        id=events_id(task_queue),
        task_queue=task_queue,
        static_summary="take events of the inbox",
    )
    overlap = SchedulePolicy(overlap=ScheduleOverlapPolicy.SKIP)
    spec = ScheduleSpec(intervals=[ScheduleIntervalSpec(every=every)])
    with suppress(ScheduleAlreadyRunningError):
        await client.create_schedule(
            f"take-{events_id(task_queue)}", Schedule(action=action, spec=spec, policy=overlap), rpc_timeout=CALL
        )
