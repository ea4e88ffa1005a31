"""One typed function per activity, called by name: the only place with timeouts and retry policies.

Every activity may be tried again for ever: each is safe to run twice at the same moment, and a claim is never inherited by a
retry. Only a `Broken` ledger is final (and a `Refused` that nobody expected, a bug as well): it fails the workflow, which
is what pages somebody.
"""

from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy

with workflow.unsafe.imports_passed_through():
    from activities.messages import HoldAnswer, HoldRequest, Message, OperationRef, Progress, Proposal
    from activities.order import Keys, Order, Plan, Views

PATIENT = RetryPolicy(
    initial_interval=timedelta(milliseconds=500), backoff_coefficient=2.0, maximum_interval=timedelta(seconds=30)
)
# A local activity holds its workflow task: every second try waits on a timer of the server instead, so that updates are
# answered and timers run while our Postgres is down.
AT_ONCE = timedelta(milliseconds=100)
# Longer than any lease, with time to write down an answer while our own Postgres restarts.
DISPATCH_TIMEOUT = timedelta(minutes=6)


async def propose(proposal: Proposal) -> Progress:
    """Record the proposal and judge it."""
    answer: Progress = await workflow.execute_local_activity(
        "propose",
        proposal,
        result_type=Progress,
        start_to_close_timeout=timedelta(seconds=20),
        local_retry_threshold=AT_ONCE,
        retry_policy=PATIENT,
        summary="record and judge the proposal",
    )
    return answer


async def judge(ref: OperationRef) -> Progress:
    """Judge again an operation that was not sent: it was proposed, or people spoke, or its approval may have expired."""
    answer: Progress = await workflow.execute_activity(
        "judge",
        ref,
        result_type=Progress,
        start_to_close_timeout=timedelta(seconds=60),
        heartbeat_timeout=timedelta(seconds=10),
        retry_policy=PATIENT,
        summary="read the target and judge",
    )
    return answer


async def record(message: Message) -> Progress:
    """Verify and keep what a person signed, or write down why it was refused."""
    answer: Progress = await workflow.execute_local_activity(
        "record",
        message,
        result_type=Progress,
        start_to_close_timeout=timedelta(seconds=10),
        local_retry_threshold=AT_ONCE,
        retry_policy=PATIENT,
        summary=f"record a message: {message.kind}",
    )
    return answer


async def dispatch(ref: OperationRef) -> Progress:
    """Claim and send once."""
    answer: Progress = await workflow.execute_activity(
        "dispatch",
        ref,
        result_type=Progress,
        start_to_close_timeout=DISPATCH_TIMEOUT,
        heartbeat_timeout=timedelta(seconds=5),
        retry_policy=PATIENT,
        summary="claim and send",
    )
    return answer


async def reconcile(ref: OperationRef) -> Progress:
    """Decide the next step about an operation that was sent, and look at the provider when that is the step."""
    answer: Progress = await workflow.execute_activity(
        "reconcile",
        ref,
        result_type=Progress,
        start_to_close_timeout=timedelta(seconds=120),
        heartbeat_timeout=timedelta(seconds=10),
        retry_policy=PATIENT,
        summary="decide what may be done next",
    )
    return answer


async def read(ref: OperationRef) -> Progress:
    """Where the operation stands, read by this worker itself."""
    answer: Progress = await workflow.execute_local_activity(
        "read",
        ref,
        result_type=Progress,
        start_to_close_timeout=timedelta(seconds=10),
        local_retry_threshold=AT_ONCE,
        retry_policy=PATIENT,
        summary="read the ledger",
    )
    return answer


async def resolve(message: Message) -> Progress:
    """Judge a signed resolution or look-again against the evidence."""
    answer: Progress = await workflow.execute_activity(
        "resolve",
        message,
        result_type=Progress,
        start_to_close_timeout=timedelta(seconds=120),
        heartbeat_timeout=timedelta(seconds=10),
        retry_policy=PATIENT,
        summary="judge a resolution against the evidence",
    )
    return answer


async def hold(request: HoldRequest) -> HoldAnswer:
    """Verify and apply a signed hold or release."""
    answer: HoldAnswer = await workflow.execute_local_activity(
        "hold",
        request,
        result_type=HoldAnswer,
        start_to_close_timeout=timedelta(seconds=10),
        retry_policy=PATIENT,
        summary="apply a hold or release",
    )
    return answer


async def plan_order(order: Order) -> Plan:
    """Check the order and plan its steps."""
    answer: Plan = await workflow.execute_local_activity(
        "plan_order",
        order,
        result_type=Plan,
        start_to_close_timeout=timedelta(seconds=10),
        local_retry_threshold=AT_ONCE,
        retry_policy=PATIENT,
        summary="check the order",
    )
    return answer


async def order_steps(keys: Keys) -> Views:
    """Where the steps of an order stand, read by this worker itself."""
    answer: Views = await workflow.execute_local_activity(
        "order_steps",
        keys,
        result_type=Views,
        start_to_close_timeout=timedelta(seconds=10),
        local_retry_threshold=AT_ONCE,
        retry_policy=PATIENT,
        summary="read the steps",
    )
    return answer
