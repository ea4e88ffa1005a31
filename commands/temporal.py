"""Talking to Temporal: connect, send what was signed, wake an operation. A run that is gone is started again."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from temporalio.client import (
    Client,
    WithStartWorkflowOperation,
    WorkflowFailureError,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.envconfig import ClientConfig
from temporalio.service import RPCError, RPCStatusCode

from activities.messages import AUDIT_WORKFLOW, OPERATION_WORKFLOW, Answer, Audited, HoldAnswer
from activities.ports import Secrets
from activities.settings import Settings
from commands.exits import Silent, Unsettled
from ledger.errors import Refused
from ledger.model import Operation
from ledger.statement import Envelope
from workflows.converter import converter_with
from workflows.names import audit_id, workflow_id
from workflows.waking import CALL, resume, signal, summary

CONNECT_SECONDS = 8.0
ANSWER = timedelta(seconds=20)  # a call that a worker must answer
_ENCRYPTED = "Encoded failure"  # what the SDK leaves in the place of a message that travels as a payload
_GONE = (RPCStatusCode.UNAVAILABLE, RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED)


class Temporal:
    """A connection, its address for messages, and the task queue that workers poll."""

    def __init__(self, client: Client, address: str, task_queue: str) -> None:
        self.client = client
        self.address = address
        self.task_queue = task_queue

    @asynccontextmanager
    async def calling(self) -> AsyncIterator[None]:
        """Around every call: no answer is `Silent` with the address, no worker is `Unsettled`."""
        try:
            yield
        except WorkflowUpdateFailedError as error:
            said = str(error.__cause__ or error)
            if _ENCRYPTED in said:
                words = "the worker said no, in words that are encrypted under a key that is not here"
                raise Refused(
                    "payload_unreadable", f"{words}: name it in EFFECTS_PAYLOAD_KEYS, and ask again"
                ) from error
            raise Refused("message_malformed", said) from error
        except Refused as error:
            if error.rule != "payload_unreadable":
                raise
            raise Refused(error.rule, f"the answer cannot be read, and what was sent may count: {error}") from error
        except (WorkflowUpdateRPCTimeoutOrCancelledError, TimeoutError) as error:
            told = f"Temporal at {self.address} took it, but no worker answered on task queue {self.task_queue}"
            raise Unsettled(f"{told}: is one running? It is kept, and asking again is harmless") from error
        except RPCError as error:
            if error.status in _GONE:
                raise Silent("Temporal", self.address, error.message or error.status.name, "is it up?") from error
            raise Refused("temporal_refused", f"Temporal at {self.address}: {error.message}") from error

    async def decide(self, operation: Operation, envelope: Envelope) -> Answer:
        """Send a decision as an update and hear what became of it."""
        start: WithStartWorkflowOperation[Any, Any] = WithStartWorkflowOperation(
            OPERATION_WORKFLOW,
            resume(operation),
            id=workflow_id(operation.tenant, operation.business_key),
            task_queue=self.task_queue,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
            static_summary=summary(operation),
        )
        async with self.calling():
            answer: Answer = await self.client.execute_update_with_start_workflow(
                "decide",
                envelope.model_dump(),
                start_workflow_operation=start,
                result_type=Answer,
                rpc_timeout=ANSWER,
            )
        return answer

    async def signal(self, operation: Operation, name: str, payload: dict[str, Any] | None = None) -> None:
        """Signal the operation's workflow; starts it from the ledger when none runs."""
        async with self.calling():
            await signal(self.client, operation, name, payload, task_queue=self.task_queue)

    async def audit(self, within: float) -> Audited | None:
        """Have a worker compare everything; what it did, or None if it has not ended within so many seconds."""
        async with self.calling():
            running = await self.client.start_workflow(
                AUDIT_WORKFLOW,
                {},
                id=audit_id(self.task_queue),
                task_queue=self.task_queue,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                static_summary="audit",
                result_type=Audited,
                rpc_timeout=CALL,
            )
            try:
                async with asyncio.timeout(within):
                    return await running.result()  # type: ignore[no-any-return]
            except TimeoutError:
                return None
            except WorkflowFailureError as error:
                raise Refused("audit_stopped", f"the audit stopped: {error.cause}") from error

    async def hold(self, jti: str, envelope: Envelope) -> HoldAnswer:
        """Have a hold or release recorded; the same statement again finds the same run."""
        async with self.calling(), asyncio.timeout(ANSWER.total_seconds()):
            running = await self.client.start_workflow(
                "HoldWorkflow",
                envelope.model_dump(include={"statement", "scheme", "proof"}),
                id=f"hold/{jti}",
                task_queue=self.task_queue,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                result_type=HoldAnswer,
                rpc_timeout=CALL,
            )
            answer: HoldAnswer = await running.result()
        return answer


async def connected(given: Settings) -> Temporal:
    """A client by TEMPORAL_… variables or Temporal's own file; `Silent` with the address within ten seconds."""
    converter = converter_with(given.payload_keys, Secrets(given.secrets_dir).read)
    config = ClientConfig.load_client_connect_config()
    config.setdefault("target_host", "localhost:7233")
    address = config["target_host"]
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            client = await Client.connect(**config, data_converter=converter)
    except (RPCError, RuntimeError, OSError) as error:
        why = "nothing in time" if isinstance(error, TimeoutError) else _short(str(error))
        raise Silent("Temporal", address, why, "is it up? Set TEMPORAL_ADDRESS") from error
    return Temporal(client, address, given.task_queue)


def _short(text: str) -> str:
    """The innermost words of the transport's nested message."""
    _, found, tail = text.rpartition('message: "')
    return tail.partition('"')[0] if found else text[:160]
