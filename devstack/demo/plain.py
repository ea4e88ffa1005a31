"""How one would write a refund with Temporal alone: an activity with default retries and a fresh key per try."""

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import stripe
from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

TRY_SECONDS = 3


class PlainRefunds:
    """The activity, as most people write it first. Nothing is rigged: Stripe's SDK is used with all its defaults."""

    def __init__(self, secret: str, base_url: str) -> None:
        self._client = stripe.StripeClient(secret, base_addresses={"api": base_url}, http_client=stripe.HTTPXClient())

    @activity.defn
    async def refund_plainly(self, payment_intent: str, amount_minor: int) -> str:
        """Ask Stripe once. Temporal asks again, and then this runs again, with another key."""
        refund = await self._client.v1.refunds.create_async(
            {"payment_intent": payment_intent, "amount": amount_minor}, {"idempotency_key": uuid.uuid4().hex}
        )
        return refund.id


@workflow.defn
class PlainRefundWorkflow:
    """One activity and Temporal's default retry policy."""

    @workflow.run
    async def run(self, payment_intent: str, amount_minor: int) -> str:
        """The id of the refund that Stripe told."""
        receipt: str = await workflow.execute_activity(
            "refund_plainly",
            args=[payment_intent, amount_minor],
            result_type=str,
            start_to_close_timeout=timedelta(seconds=TRY_SECONDS),
        )
        return receipt


@asynccontextmanager
async def plain_worker(client: Client, task_queue: str, secret: str, base_url: str) -> AsyncIterator[None]:
    """A worker for it inside this process; what still hangs is dropped when the context closes."""
    refunds = PlainRefunds(secret, base_url)
    async with Worker(
        client,
        task_queue=task_queue,
        workflows=[PlainRefundWorkflow],
        activities=[refunds.refund_plainly],
        workflow_runner=UnsandboxedWorkflowRunner(),
    ):
        yield
