"""What is derived from one operation for people: its schedule, who must act, and the evidence as recovery sees it."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from activities.judgement import approvals
from activities.settle import Evidence, evidence_of
from ledger import policy, recovery
from ledger.config import EVERYTHING, Document
from ledger.contract import Contract
from ledger.errors import Refused
from ledger.model import Attempt, Hint, Operation, Outcome
from ledger.states import State
from ledger.store import holds
from ledger.store.database import Connection
from ledger.store.holds import Hold


@dataclass(frozen=True)
class Schedule:
    """When what may be done, by the contract. Provisional until the first claim: then as if it were claimed now."""

    provisional: bool
    repeat_until: datetime | None
    quiet_at: datetime | None
    absence_from: datetime | None  # from then on a complete look that sees nothing means something
    look_until: datetime | None  # looks go on until then, and until absence is proved or three were tried
    review_at: datetime

    def told(self) -> dict[str, object]:
        """For JSON."""
        return {name: at.isoformat() if isinstance(at, datetime) else at for name, at in vars(self).items()}


def lost_attempt(contract: Contract, claimed_at: datetime, number: int = 1) -> Attempt:
    """An attempt whose answer was lost when the call's deadline passed."""
    timing = contract.timing
    answered = claimed_at + timedelta(seconds=timing.call_deadline)
    lease = claimed_at + timedelta(seconds=timing.lease)
    return Attempt(number, claimed_at, lease, Outcome.UNKNOWN, Hint.LOST, answered_at=answered)


def schedule(
    contract: Contract, every: tuple[Attempt, ...], at: datetime, review_at: datetime | None, review_after: timedelta
) -> Schedule:
    """The schedule of these attempts; of one made at this moment while nothing was sent that could have had an effect."""
    provisional = recovery.anchor(every) is None
    if provisional:
        every = (lost_attempt(contract, at),)
    review = review_at if review_at is not None and not provisional else at + review_after
    quiet = recovery.quiet_at(contract, every)
    absence = None
    if contract.lookup is not None and quiet is not None:
        absence = quiet + timedelta(seconds=contract.lookup.settling)
    return Schedule(
        provisional=provisional,
        repeat_until=None if recovery.stops_repeats(every) else recovery.key_window_ends(contract, every),
        quiet_at=quiet,
        absence_from=absence,
        look_until=None if absence is None else max(review, absence),
        review_at=review,
    )


def review_after(document: Document, operation: Operation) -> timedelta:
    """How long after the first claim a person is told, by the rule in force."""
    try:
        rule = document.rule_for(operation.tenant, operation.action, operation.currency)
    except Refused:
        return timedelta()
    return timedelta(seconds=rule.review_after_seconds)


async def holds_on(conn: Connection, operation: Operation) -> list[Hold]:
    """Holds that stop this operation, read without locks."""
    scopes = holds.scopes_of(operation)
    return [hold for hold in await holds.current(conn) if hold.scope in scopes]


async def evidence(conn: Connection, document: Document, operation: Operation, contract: Contract) -> Evidence:
    """The facts as `recovery.decide` gets them, without locks: for showing, nothing is decided on them."""
    held = await holds_on(conn, operation)
    return await evidence_of(conn, operation, contract, document, held=bool(held))


async def must_act(conn: Connection, document: Document, operation: Operation) -> str:
    """Who has to do what for this operation to go on, by name where names are known."""
    if operation.state is State.AWAITING_APPROVAL:
        given = await approvals(conn, operation)
        standing = policy.approvals_stand(document, operation, given)
        missing = max((operation.people_needed or 1) - standing, 0)
        signed = {one.person for one in given}
        able = [name for name in approvers(document, operation) if name not in signed]
        return (
            f"{missing} more must sign: {' or '.join(able) or 'nobody can (see people.toml)'}"
            if missing
            else "the worker"
        )
    if operation.state is State.NEEDS_REVIEW:
        return f"an operator must settle it: {' or '.join(operators(document, operation.tenant)) or 'nobody is one'}"
    if operation.ended_at is not None:
        return "nobody: it ended"
    if held := await holds_on(conn, operation):
        if restored := next((hold for hold in held if hold.scope == holds.RESTORED), None):
            return f"two operators, after an audit ({restored.reason})"
        scopes = ", ".join(hold.scope for hold in held)
        return f"two operators, if it shall be sent: held by {scopes}"
    return "the worker"


def approvers(document: Document, operation: Operation) -> list[str]:
    """Everybody whose approval would count."""
    able = []
    for person in document.people:
        try:
            policy.may_approve(document, person.name, operation)
        except Refused:
            continue
        able.append(person.name)
    return able


def operators(document: Document, tenant: str) -> list[str]:
    """The operators of a tenant."""
    return [p.name for p in document.people if not p.revoked and {tenant, EVERYTHING} & set(p.operator_of)]
