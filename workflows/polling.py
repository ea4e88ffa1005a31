"""Who polls a task queue, and what does not get through: asked of Temporal from outside, by workers and the command line."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import PollerInfo, TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client

from workflows.waking import CALL

# A poll lasts a minute: whoever has not begun one for longer is gone, though Temporal remembers it for five.
POLLED_WITHIN = timedelta(seconds=70)


async def pollers(client: Client, task_queue: str) -> list[str]:
    """The identities of the workers that polled this queue for workflow tasks just now, sorted."""
    told = await client.workflow_service.describe_task_queue(
        DescribeTaskQueueRequest(
            namespace=client.namespace,
            task_queue=TaskQueue(name=task_queue),
            task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
        ),
        timeout=CALL,
    )
    return recent(told.pollers, datetime.now(UTC))


def recent(known: Iterable[PollerInfo], now: datetime) -> list[str]:
    """Of those that Temporal remembers, who still polls. Pure."""
    return sorted(one.identity for one in known if one.last_access_time.ToDatetime(UTC) > now - POLLED_WITHIN)


async def stuck(client: Client, task_queue: str) -> int:
    """How many running workflows of this queue Temporal reports whose task does not get through, time after time."""
    query = (
        "TemporalReportedProblems IN ('category=WorkflowTaskFailed', 'category=WorkflowTaskTimedOut')"
        f" AND ExecutionStatus = 'Running' AND TaskQueue = '{task_queue}'"
    )
    return (await client.count_workflows(query, rpc_timeout=CALL)).count
