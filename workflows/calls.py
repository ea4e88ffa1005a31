"""One typed function per activity, called by name: the only place with timeouts and retry policies.

Every activity may be tried again for ever: each is safe to run twice at the same moment, and a claim is never inherited by a
retry. Only a `Broken` ledger is final (and a `Refused` that nobody expected, a bug as well): it fails the workflow, which
is what pages somebody.
"""

from datetime import timedelta
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.common import RetryPolicy

with workflow.unsafe.imports_passed_through():
    from pydantic import ValidationError

    from activities.messages import (
        Audited,
        Auditing,
        HoldAnswer,
        HoldRequest,
        Message,
        OperationRef,
        Progress,
        Proposal,
        Taken,
        Taking,
    )
    from activities.order import Keys, Order, Plan, Views

PATIENT = RetryPolicy(
    initial_interval=timedelta(milliseconds=500), backoff_coefficient=2.0, maximum_interval=timedelta(seconds=30)
)
# A local activity holds its workflow task: every second try waits on a timer of the server instead, so that updates are
# answered and timers run while our Postgres is down.
AT_ONCE = timedelta(milliseconds=100)
# Longer than any lease, with time to write down an answer while our own Postgres restarts.
DISPATCH_SECONDS = 360.0
# A first listing of an old account is long; it is remembered page by page.
AUDIT_SECONDS = 6 * 3600.0

T = TypeVar("T")


async def propose(proposal: Proposal) -> Progress:
    """Record the proposal and judge it."""
    return await _here("propose", proposal, Progress, "record and judge the proposal", seconds=20)


async def judge(ref: OperationRef) -> None:
    """Judge again an operation that was not sent: it was proposed, or people spoke, or its approval may have expired."""
    await _anywhere("judge", ref, "read the target and judge", seconds=60)


async def record(message: Message) -> Progress:
    """Verify and keep what a person signed, or write down why it was refused."""
    return await _here("record", message, Progress, f"record a message: {message.kind}")


async def dispatch(ref: OperationRef) -> None:
    """Claim and send once."""
    await _anywhere("dispatch", ref, "claim and send", seconds=DISPATCH_SECONDS, heartbeat=5)


async def reconcile(ref: OperationRef) -> None:
    """Decide the next step about an operation that was sent, and look at the provider when that is the step."""
    await _anywhere("reconcile", ref, "decide what may be done next")


async def read(ref: OperationRef) -> Progress:
    """Where the operation stands, read by this worker itself."""
    return await _here("read", ref, Progress, "read the ledger")


async def resolve(message: Message) -> None:
    """Judge a signed resolution or look-again against the evidence."""
    await _anywhere("resolve", message, "judge a resolution against the evidence")


async def hold(request: HoldRequest) -> HoldAnswer:
    """Verify and apply a signed hold or release."""
    return await _here("hold", request, HoldAnswer, "apply a hold or release")


async def plan_order(order: Order) -> Plan:
    """Check the order and plan its steps."""
    return await _here("plan_order", order, Plan, "check the order")


async def order_steps(keys: Keys) -> Views:
    """Where the steps of an order stand, read by this worker itself."""
    return await _here("order_steps", keys, Views, "read the steps")


async def take_events() -> Taken:
    """Wake whoever the oldest events of the inbox concern, and mark them as taken."""
    try:
        return Taken.model_validate(await _anywhere("take_events", Taking(), "take events of the inbox"))
    except ValidationError:
        return Taken()  # not the activity's words: the schedule looks again


async def audit(auditing: Auditing) -> Audited:
    """Compare the ledger with what providers list and with what Temporal runs."""
    told = await _anywhere("audit", auditing, "compare the ledger with the outside", seconds=AUDIT_SECONDS)
    try:
        return Audited.model_validate(told)
    except ValidationError:
        return Audited(left_out=["the answer was not the audit's own: what it found stands in the ledger"])


async def _here(name: str, message: object, answer: type[T], summary: str, *, seconds: float = 10) -> T:
    """A quick and idempotent activity, local to this worker, so that nobody else can answer for it."""
    told: T = await workflow.execute_local_activity(
        name,
        message,
        result_type=answer,
        start_to_close_timeout=timedelta(seconds=seconds),
        local_retry_threshold=AT_ONCE,
        retry_policy=PATIENT,
        summary=summary,
    )
    return told


async def _anywhere(name: str, message: object, summary: str, *, seconds: float = 120, heartbeat: float = 10) -> Any:
    """An activity that speaks to a provider, on any worker; a silent one is given to another worker.

    Anybody who may write to the namespace can complete it with anything. So no type is expected: what did not fit one would
    stop the workflow for ever. What comes back is checked by whoever uses it.
    """
    return await workflow.execute_activity(
        name,
        message,
        start_to_close_timeout=timedelta(seconds=seconds),
        heartbeat_timeout=timedelta(seconds=heartbeat),
        retry_policy=PATIENT,
        summary=summary,
    )
