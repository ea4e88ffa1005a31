"""Starting and waking workflows from outside: by the command line, a worker, and the inbox. Gives nobody any power."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
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
    ScheduleUpdate,
    ScheduleUpdateInput,
    WorkflowExecutionStatus,
)
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.service import RPCError, RPCStatusCode

from activities.messages import AUDIT_WORKFLOW, OPERATION_WORKFLOW, TAKE_EVENTS_WORKFLOW
from ledger.model import Operation
from workflows.names import audit_id, events_id, workflow_id

CALL = timedelta(seconds=8)  # a call that only hands something over
# A workflow records its operation with its first activity; one that is younger may be about to.
RECORDED_WITHIN = timedelta(minutes=1)


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
    """Have the inbox emptied every so often, for hints that were lost."""
    action = ScheduleActionStartWorkflow(
        TAKE_EVENTS_WORKFLOW,
        id=events_id(task_queue),
        task_queue=task_queue,
        static_summary="take events of the inbox",
    )
    await _schedule(client, f"take-{events_id(task_queue)}", action, every)


async def schedule_audit(client: Client, every: timedelta, *, task_queue: str) -> None:
    """Have everything compared every so often, and what nobody works on started again."""
    action = ScheduleActionStartWorkflow(
        AUDIT_WORKFLOW,
        {"repair": True},
        id=audit_id(task_queue),
        task_queue=task_queue,
        static_summary="audit, and start what nobody works on",
    )
    await _schedule(client, audit_id(task_queue), action, every)


async def _schedule(client: Client, name: str, action: ScheduleActionStartWorkflow, every: timedelta) -> None:
    """A schedule that is there gets this interval and action, and stays paused if somebody paused it."""
    overlap = SchedulePolicy(overlap=ScheduleOverlapPolicy.SKIP)
    wanted = Schedule(action=action, spec=ScheduleSpec(intervals=[ScheduleIntervalSpec(every=every)]), policy=overlap)
    try:
        await client.create_schedule(name, wanted, rpc_timeout=CALL)
    except ScheduleAlreadyRunningError:

        def renewed(there: ScheduleUpdateInput) -> ScheduleUpdate:
            return ScheduleUpdate(replace(wanted, state=there.description.schedule.state))

        await client.get_schedule_handle(name).update(renewed, rpc_timeout=CALL)


class TemporalRuns:
    """The workflows of operations on one task queue, as Temporal tells them."""

    def __init__(self, client: Client, task_queue: str) -> None:
        self._client = client
        self._task_queue = task_queue

    async def running(self) -> set[str]:
        """The ids of those that run and began over `RECORDED_WITHIN` ago."""
        before = datetime.now(UTC) - RECORDED_WITHIN
        query = (
            f"WorkflowType = '{OPERATION_WORKFLOW}' AND ExecutionStatus = 'Running'"
            f" AND TaskQueue = '{self._task_queue}'"
        )
        return {
            found.id
            async for found in self._client.list_workflows(query, rpc_timeout=CALL)
            if found.start_time < before
        }

    async def runs(self, workflow_id: str) -> bool:
        """Whether this one runs, asked of the workflow itself: the listing may be behind."""
        try:
            told = await self._client.get_workflow_handle(workflow_id).describe(rpc_timeout=CALL)
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return False
            raise
        return told.status is WorkflowExecutionStatus.RUNNING
