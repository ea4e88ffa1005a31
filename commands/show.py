"""`show` and `trail`: where one operation stands, and everything that ever happened to it, or to the ledger itself."""

from collections.abc import Iterator
from datetime import timedelta

from activities.ports import contract_of
from activities.settings import Settings
from commands import facts, tell
from commands.page import Page
from commands.reading import named, reading
from commands.surroundings import ledger_dsn, settings
from commands.voice import Voice
from ledger.model import Operation
from ledger.store import attempts, events, operations, views
from ledger.store.database import Connection, now
from ledger.trail import Event, EventKind, sentence
from providers.registry import default_registry

OVERDUE = timedelta(seconds=60)


async def show(voice: Voice, name: str) -> Page:
    """State, reason, who must act, schedule, attempts, receipt, and where to look at the provider."""
    given = settings()
    async with reading(ledger_dsn(given)) as reader, reader.snapshot() as conn:
        return await operation_page(conn, await named(conn, name), given)


async def operation_page(conn: Connection, operation: Operation, given: Settings) -> Page:
    """One operation on one page."""
    _, document = await views.configuration_in_force(conn)
    registry = default_registry(given.stripe_base_url)
    contract = contract_of(operation, registry, given.timing())
    every = await attempts.read_attempts(conn, operation.operation_id)
    looks = await attempts.read_sightings(conn, operation.operation_id)
    who = await facts.must_act(conn, document, operation)
    against = await views.contradicted(conn, operation.operation_id)
    at = await now(conn)
    link = registry.for_action(operation.action).link(operation)
    page = Page(tell.document(operation))
    page.title(tell.headline(operation))
    page.fact("operation", operation.operation_id)
    page.fact("state", operation.state.value + (f": {operation.reason}" if operation.reason else ""))
    page.fact("receipt", f"{operation.receipt} ({operation.standing})" if operation.receipt else "")
    page.fact("who must act", who)
    asker = operation.requested_by or "somebody (erased)"
    page.fact("owner", f"asked for by {asker}, proposed by {operation.actor} with key {operation.kid}")
    page.fact("next", f"{operation.next_step} at {tell.clock(operation.next_step_at)}" if operation.next_step else "")
    page.fact("at the provider", link)
    page.fact("fingerprint", operation.fingerprint.hex())
    if against:
        page.warn("there is evidence against this end: read the trail, then look at the provider")
    overdue = (
        operation.next_step_at is not None and operation.ended_at is None and at - operation.next_step_at > OVERDUE
    )
    if overdue:
        page.warn("its next step is overdue: is a worker running? `effects look` wakes it")
    plan = facts.schedule(contract, tuple(every), at, operation.review_at, facts.review_after(document, operation))
    if operation.ended_at is None:
        tell.schedule(page, plan, at)
        if plan.provisional:
            page.fact("may be sent until", tell.clock(operation.approval_expires_at))
    tell.attempts(page, every)
    tell.sightings(page, looks)
    page.document |= {
        "who_must_act": who,
        "link": link,
        "contradicted": against,
        "overdue": overdue,
        "schedule": plan.told() if operation.ended_at is None else None,
        "attempts": [attempt_document(a) for a in every],
        "looks": len(looks),
        "now": at.isoformat(),
    }
    return page


def attempt_document(attempt: object) -> dict[str, object]:
    """An attempt as JSON."""
    return {name: value.isoformat() if hasattr(value, "isoformat") else value for name, value in vars(attempt).items()}


async def trail(voice: Voice, name: str) -> Page:
    """Every event in words: when, what, and who. Without a name those of the ledger itself: configuration, holds, clock."""
    async with reading(ledger_dsn(settings())) as reader, reader.snapshot() as conn:
        operation = await named(conn, name) if name else None
        stream = await operations.namespace(conn) if operation is None else operation.operation_id
        told = await events.read(conn, stream)
    about = "ledger" if operation is None else "operation_id"
    page = Page({about: str(stream), "events": [event_document(e) for e in told]})
    page.title("The ledger itself" if operation is None else tell.headline(operation))
    page.table(("#", "when", "what", "who"), [row for event in told for row in _rows(event)])
    return page


def _rows(event: Event) -> Iterator[tuple[object, ...]]:
    """The event, and below it what a configuration changed."""
    yield event.number, tell.clock(event.at), sentence(event), who_did(event)
    if event.kind is EventKind.CONFIG_APPLIED:
        yield from (("", "", f"  {change}", "") for change in event.body.get("changes", ()))


def event_document(event: Event) -> dict[str, object]:
    """An event as JSON, with its sentence."""
    return {
        "number": event.number,
        "at": event.at.isoformat(),
        "kind": event.kind.value,
        "edge": event.edge,
        "from": event.source,
        "to": event.target,
        "fence": event.fence,
        "sentence": sentence(event),
        "who": who_did(event),
        "body": event.body,
        "hash": event.hash.hex(),
    }


def who_did(event: Event) -> str:
    """Whose doing an event was: people by name, and which worker claimed; empty for what machines do."""
    body = event.body
    by = (
        body.get("by")
        or body.get("people")
        or body.get("person")
        or body.get("token_of")
        or body.get("applied_by")
        or ""
    )
    if event.kind is EventKind.ATTEMPT_OPENED:
        by = body.get("worker", "")
    return ", ".join(map(str, by)) if isinstance(by, list) else str(by)
