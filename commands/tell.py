"""How operations, attempts and looks are written on a page: the same words in every command."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from commands.amounts import lasting
from commands.facts import Schedule
from commands.page import Page
from ledger.model import Attempt, Operation, Sighting
from ledger.money import shown


def clock(at: datetime | None) -> str:
    """A moment, to the second, in UTC."""
    return "" if at is None else f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"


def amount(operation: Operation) -> str:
    """`15.00 EUR`, or nothing."""
    if operation.amount_minor is None or operation.currency is None:
        return ""
    return shown(operation.amount_minor, operation.currency)


def headline(operation: Operation) -> str:
    """One line that says what an operation is."""
    what = f"{operation.action} {amount(operation)}".rstrip()
    return f"{what} on {operation.target} for {operation.name}"


def document(operation: Operation) -> dict[str, Any]:
    """The operation as JSON: what people ask for, without bytes."""
    return {
        "operation_id": str(operation.operation_id),
        "tenant": operation.tenant,
        "business_key": operation.business_key,
        "action": operation.action,
        "provider": operation.provider,
        "account": operation.account,
        "livemode": operation.livemode,
        "target": operation.target,
        "amount_minor": operation.amount_minor,
        "currency": operation.currency,
        "actor": operation.actor,
        "requested_by": operation.requested_by,
        "state": operation.state.value,
        "reason": operation.reason,
        "fingerprint": operation.fingerprint.hex(),
        "proposed_at": operation.proposed_at.isoformat(),
        "approval_expires_at": operation.approval_expires_at.isoformat(),
        "next_step": operation.next_step,
        "next_step_at": None if operation.next_step_at is None else operation.next_step_at.isoformat(),
        "receipt": operation.receipt,
        "standing": None if operation.standing is None else operation.standing.value,
        "events": operation.event_count,
        "ended": operation.ended_at is not None,
    }


def attempts(page: Page, every: Sequence[Attempt]) -> None:
    """Attempts as a table, with what the provider said."""
    page.table(
        ("attempt", "claimed", "outcome", "hint", "receipt", "the provider said"),
        [(a.number, clock(a.claimed_at), a.outcome or "open", a.hint, a.receipt or "", said(a.detail)) for a in every],
    )


def sightings(page: Page, looks: Sequence[Sighting], last: int = 5) -> None:
    """The latest looks, and every candidate that the latest saw."""
    page.table(
        ("look", "began", "complete", "candidates", "ours"),
        [
            (n, clock(s.began_at), "yes" if s.complete else "no", len(s.effects), sum(e.ours for e in s.effects))
            for n, s in list(enumerate(looks, 1))[-last:]
        ],
    )
    if looks and looks[-1].effects:
        page.table(
            ("candidate", "standing", "our marker", "matching", "fields"),
            [
                (e.receipt, e.standing, "yes" if e.marked else "no", "yes" if e.matching else "no", said(e.summary))
                for e in looks[-1].effects
            ],
        )


def schedule(page: Page, plan: Schedule, at: datetime) -> None:
    """The three times that matter, each with how far it is."""
    page.title("Schedule" + (" (provisional: as if it were first sent now)" if plan.provisional else ""))
    for name, moment in (
        ("repeat until", plan.repeat_until),
        ("a request of ours may still be worked on until", plan.quiet_at),
        ("absence counts from", plan.absence_from),
        ("look until", plan.look_until),
        ("review at", plan.review_at),
    ):
        if moment is not None:
            away = f"in {lasting(moment - at)}" if moment > at else f"{lasting(at - moment)} ago"
            page.fact(name, f"{clock(moment)} ({away})")


def said(detail: dict[str, Any]) -> str:
    """Provider fields on one line."""
    return ", ".join(f"{name} {value}" for name, value in detail.items() if value not in (None, "", False))[:200]
