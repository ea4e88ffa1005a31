"""The calls for agent services: sign a proposal or an order, and ask for it. Needs nothing that speaks to ledger or provider.

A service that wants no import at all can send the same JSON with any Temporal client; README shows it.
"""

import asyncio
import time
from datetime import timedelta
from typing import Any, TypeVar

import jwt
from pydantic import BaseModel
from temporalio.client import Client, WithStartWorkflowOperation
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.service import RPCError, RPCStatusCode

from activities.messages import OPERATION_WORKFLOW, TASK_QUEUE, Answer, Proposal, request_digest
from activities.order import ORDER_WORKFLOW, Order, OrderAnswer, plan
from workflows.names import order_id, workflow_id

DEPENDENT_SECONDS = 30 * 24 * 3600
PAUSES = (0.05, 0.2, 0.5)  # seconds between the tries to reach a run that was just ending

T = TypeVar("T")


def sign(
    proposal: Proposal, private_key: Any, *, kid: str, iss: str, aud: str, seconds: int = 600, at: int | None = None
) -> Proposal:
    """The proposal with its token: who asks, in whose name, for exactly what.

    Valid for `seconds` from `at` (seconds since the epoch), by default from now by this host's clock.
    """
    issued = int(time.time()) if at is None else at
    claims = {
        "iss": iss,
        "aud": aud,
        "sub": proposal.business_key,
        "tenant": proposal.tenant,
        "actor": proposal.actor,
        "requested_by": proposal.requested_by,
        "request_digest": request_digest(proposal),
        "iat": issued,
        "exp": issued + seconds,
    }
    token = jwt.encode(claims, private_key, algorithm="EdDSA", headers={"kid": kid, "typ": "proposal+jwt"})
    return proposal.model_copy(update={"token": token})


def _plain(text: str) -> str:
    """What the Web UI shows as markdown: no agent draws a link or a heading on the operators' screen."""
    return "".join(c if c.isalnum() or c in " ._-" else " " for c in text)[:200]


async def propose(client: Client, proposal: Proposal, *, task_queue: str = TASK_QUEUE) -> Answer:
    """Ask, or ask how it went: the same proposal under the same key is the poll, at any time, from anywhere.

    Starts the operation's workflow if none runs. Raises `WorkflowUpdateFailedError` when the proposal has no readable
    form, and Temporal's RPC errors when it does not answer: then nothing is known, and asking again is right.
    """
    return await _asked(
        client,
        proposal,
        Answer,
        (OPERATION_WORKFLOW, "propose", workflow_id(proposal.tenant, proposal.business_key)),
        f"{proposal.action} on {proposal.target}",
        task_queue,
    )


def sign_order(order: Order, private_key: Any, *, kid: str, iss: str, aud: str, at: int | None = None) -> Order:
    """The order with one signature per step, each for exactly the proposal that follows from the order.

    Steps that rest on the invoice are signed for 30 days, since they are recorded when it exists; the invoice for an hour.
    Raises `Refused` for an order that does not add up.
    """
    tokens = {}
    for planned in plan(order):
        seconds = DEPENDENT_SECONDS if planned.needs else 3600
        signed = sign(planned.proposal, private_key, kid=kid, iss=iss, aud=aud, seconds=seconds, at=at)
        tokens[planned.step.value] = signed.token
    return order.model_copy(update={"tokens": tokens})


async def ask_order(client: Client, order: Order, *, task_queue: str = TASK_QUEUE) -> OrderAnswer:
    """Give an order, or ask how it went: the same order again is the poll, and resumes steps that did not end.

    Starts the order's workflow if none runs. Raises as `propose`.
    """
    names = (ORDER_WORKFLOW, "ask", order_id(order.tenant, order.order))
    return await _asked(client, order, OrderAnswer, names, f"order {order.order}", task_queue)


async def _asked(
    client: Client, asked: BaseModel, answer: type[T], names: tuple[str, str, str], summary: str, task_queue: str
) -> T:
    """Update with start. A run that is just ending takes no update; a moment later there is a new one, or none."""
    workflow, update, its_id = names
    for pause in (*PAUSES, None):
        start: WithStartWorkflowOperation[Any, Any] = WithStartWorkflowOperation(
            workflow,
            asked.model_dump(mode="json"),
            id=its_id,
            task_queue=task_queue,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
            static_summary=_plain(summary),
        )
        try:
            told: T = await client.execute_update_with_start_workflow(
                update,
                asked.model_dump(mode="json"),
                start_workflow_operation=start,
                result_type=answer,
                rpc_timeout=timedelta(seconds=20),
            )
        except RPCError as error:
            if pause is None or error.status is not RPCStatusCode.FAILED_PRECONDITION:
                raise
            await asyncio.sleep(pause)
        else:
            return told
    raise AssertionError("the last try returns or raises")
