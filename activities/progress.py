"""How an operation is told to its workflow: a function of its row. What is next, and when, stands in the ledger."""

from activities.messages import Next, Progress
from ledger.model import Operation, Standing
from ledger.money import shown
from ledger.states import State
from ledger.store import events
from ledger.store.database import Connection, now
from ledger.trail import Event, EventKind, sentence

LINES = 8  # of the trail, in the Web UI


async def tell(conn: Connection, operation: Operation) -> Progress:
    """The operation as its workflow needs it. Of people it holds the names of signers."""
    at = await now(conn)
    following = next_of(operation)
    due = operation.next_step_at if following is not Next.DONE else None
    until = "" if due is None else due.isoformat(timespec="seconds")
    trail = await events.read_last(conn, operation.operation_id, LINES)
    field, message = objection(operation, trail)
    return Progress(
        operation_id=str(operation.operation_id),
        state=operation.state.value,
        next=following,
        delay_seconds=0.0 if due is None else max((due - at).total_seconds(), 0.0),
        reason=operation.reason,
        field=field,
        message=message,
        request_digest=operation.request_digest.hex(),
        events=operation.event_count,
        until=until,
        tenant=operation.tenant,
        action=operation.action,
        provider=operation.provider,
        amount_minor=operation.amount_minor or 0,
        currency=operation.currency or "",
        attempt=operation.fence,
        receipt=operation.receipt or "",
        standing="" if operation.standing is None else operation.standing.value,
        details=_details(operation, following, until, trail),
    )


def objection(operation: Operation, trail: list[Event]) -> tuple[str, str]:
    """What to correct, and why, where the operation was blocked: field and sentence, each empty if nothing was at fault."""
    if operation.state is not State.BLOCKED:
        return "", ""
    body = next((e.body for e in reversed(trail) if e.kind is EventKind.MOVED), {})
    return str(body.get("field", "")), str(body.get("why", ""))


def next_of(operation: Operation) -> Next:
    """What the workflow does next, from the state and the step that was written down with it."""
    match operation.state:
        case State.PROPOSED:
            return Next.JUDGE
        case State.AWAITING_APPROVAL:
            return Next.PEOPLE if operation.next_step == "people" else Next.JUDGE
        case State.APPROVED:
            return Next.DISPATCH
        case State.UNKNOWN if operation.next_step == "repeat":
            return Next.DISPATCH
        case State.IN_FLIGHT | State.UNKNOWN:
            return Next.RECONCILE
        case State.NEEDS_REVIEW:
            return Next.REVIEW
        case State.SUCCEEDED if operation.standing is Standing.PENDING:
            return Next.RECONCILE
        case _:
            return Next.DONE


def _details(operation: Operation, following: Next, until: str, trail: list[Event]) -> str:
    """Markdown lists (the Web UI draws tables without borders). Everything shown is our own words or a checked id."""
    amount = ""
    if operation.amount_minor is not None and operation.currency is not None:
        amount = f" of {shown(operation.amount_minor, operation.currency)}"
    lines = [
        f"### {operation.state.value}{f': {operation.reason}' if operation.reason else ''}",
        f"- {operation.action}{amount} on `{operation.target}` for `{operation.tenant}`",
        f"- operation `{operation.operation_id}`, fingerprint `{operation.fingerprint.hex()[:16]}…`",
    ]
    if operation.receipt:
        lines.append(f"- receipt `{operation.receipt}`, {operation.standing}")
    lines.append(f"- next: {_next_words(operation, following, until)}")
    if operation.state is State.AWAITING_APPROVAL:
        lines.append(
            f"- to approve: `effects approve {operation.operation_id}` (no click here can approve it;"
            " Request Cancellation withdraws it)"
        )
    if operation.state is State.NEEDS_REVIEW:
        lines.append(f"- evidence: `effects review {operation.operation_id}`")
    lines.append("")
    lines += ["Trail:", ""]  # without the empty line markdown sees no list
    lines.extend(f"- {e.number}. {e.at:%Y-%m-%d %H:%M:%S} {_plain(sentence(e))}" for e in trail)
    return "\n".join(lines)


def _next_words(operation: Operation, following: Next, until: str) -> str:
    match following:
        case Next.DONE:
            return "nothing: it ended"
        case Next.PEOPLE:
            return f"people must sign, until {until}"
        case Next.REVIEW:
            return f"a person must settle it; machines look again at {until}"
        case _:
            return f"{operation.next_step}, at {until}" if until else operation.next_step


def _plain(text: str) -> str:
    """No markup survives: what agents, people and providers wrote cannot draw a link or a heading."""
    return "".join(c if c.isalnum() or c in " .,:;→-_+()/'" else " " for c in text)[:300]
