"""The trail: what kinds of events there are, how each reads as a sentence, and how the chain over them is computed.

1. Events are numbered without gaps per stream and chained over digests; the head stands on the operation.
2. A body is canonical JSON. The chain holds its digest, so a personal field can be erased without breaking the chain.
3. `evidence` kinds can change what a person would conclude: a resolution signed before one of them does not count.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any
from uuid import UUID

from ledger.errors import Broken
from ledger.states import fold


class EventKind(StrEnum):
    """What one event tells."""

    MOVED = "moved"
    PREFLIGHT = "preflight"  # what the provider said about the target before a first send
    SHEET_MADE = "sheet_made"
    STATEMENT_ACCEPTED = "statement_accepted"
    STATEMENT_REFUSED = "statement_refused"
    JUNK_REFUSED = "junk_refused"  # unsigned or malformed signals, aggregated
    ATTEMPT_OPENED = "attempt_opened"
    ATTEMPT_ANSWERED = "attempt_answered"
    LATE_ANSWER = "late_answer"  # an answer recorded after its lease was lost
    LATE_SEND = "late_send"  # bytes left later than the guard allows
    SIGHTING = "sighting"  # a look that tells something new
    SIGHTING_SAME = "sighting_same"  # a look that agrees with the one before
    STANDING_CHANGED = "standing_changed"
    CONTRADICTION = "contradiction"  # evidence against an end or against a definite outcome: alert
    HELD = "held"
    RELEASED = "released"
    CONFIG_APPLIED = "config_applied"
    CLOCK_MOVED = "clock_moved"
    ERASED = "erased"  # the personal fields of an operation that had ended were emptied
    RESTORED = "restored"  # the ledger lives in another database than it did, and may have forgotten something


EVIDENCE: frozenset[EventKind] = frozenset(
    {
        EventKind.ATTEMPT_OPENED,
        EventKind.ATTEMPT_ANSWERED,
        EventKind.LATE_ANSWER,
        EventKind.LATE_SEND,
        EventKind.SIGHTING,
        EventKind.STANDING_CHANGED,
        EventKind.CONTRADICTION,
    }
)


@dataclass(frozen=True)
class Event:
    """One line of the trail, as stored."""

    stream: UUID
    number: int
    at: datetime
    kind: EventKind
    edge: int | None
    source: str | None
    target: str | None
    fence: int
    body: dict[str, Any]
    body_digest: bytes
    previous_hash: bytes
    hash: bytes


def sentence(event: Event) -> str:
    """The event in words, the same in `effects trail`, logs and the Web UI. Text of agents and providers is not in it."""
    body = event.body
    match event.kind:
        case EventKind.MOVED:
            told = body.get("reason") or body.get("waived")
            why = f": {told}" if told else ""
            row = f" ({body['row']})" if body.get("row") else ""
            return f"{event.source or 'none'} → {event.target}, edge {event.edge}{row}{why}"
        case EventKind.PREFLIGHT:
            return "read the target at the provider"
        case EventKind.SHEET_MADE:
            return f"sheet {str(body.get('digest', ''))[:12]} made for approvers"
        case EventKind.STATEMENT_ACCEPTED:
            return f"{body.get('typ')} of {body.get('person')} accepted: {body.get('decision')}"
        case EventKind.STATEMENT_REFUSED:
            return f"{body.get('typ') or 'statement'} refused: {body.get('rule')}"
        case EventKind.JUNK_REFUSED:
            return f"{body.get('count', 1)} unusable signal(s) refused: {body.get('rule')}"
        case EventKind.ATTEMPT_OPENED:
            return f"attempt {event.fence} opened, lease until {body.get('lease_until')}"
        case EventKind.ATTEMPT_ANSWERED:
            return f"attempt {event.fence}: {body.get('outcome')}{_hint(body)}"
        case EventKind.LATE_ANSWER:
            return f"late answer of attempt {body.get('attempt')}: {body.get('outcome')}{_hint(body)}"
        case EventKind.LATE_SEND:
            return f"attempt {body.get('attempt')} left later than its guard allows"
        case EventKind.SIGHTING | EventKind.SIGHTING_SAME:
            seen = len(body.get("effects", []))
            return f"looked {'completely' if body.get('complete') else 'incompletely'}: {seen} candidate(s)"
        case EventKind.STANDING_CHANGED:
            return f"receipt {body.get('receipt')} is now {body.get('standing')}"
        case EventKind.CONTRADICTION:
            return f"CONTRADICTION: {body.get('what')}"
        case EventKind.HELD:
            return f"sending held for {body.get('scope')} by {body.get('person')}"
        case EventKind.RELEASED:
            return f"sending released for {body.get('scope')} by {body.get('person')}"
        case EventKind.CONFIG_APPLIED:
            login = f" (login {body['login']})" if body.get("login") else ""
            return f"configuration {body.get('version')} applied by {body.get('applied_by')}{login}"
        case EventKind.CLOCK_MOVED:
            return f"test clock moved by {body.get('seconds')} s"
        case EventKind.ERASED:
            return f"personal fields erased, said by {body.get('by')}"
        case EventKind.RESTORED:
            return f"restored, said by {body.get('by')}: incarnation {body.get('incarnation')}, sending held"


def chain_hash(event: Event) -> bytes:
    """The hash that this event must have; the trigger `events_chain` computes the same in SQL."""
    head = "\n".join(
        [
            str(event.stream),
            str(event.number),
            str((event.at - _EPOCH) // timedelta(microseconds=1)),
            event.kind,
            "" if event.edge is None else str(event.edge),
            event.source or "",
            event.target or "",
            str(event.fence),
        ]
    )
    digest = hashlib.sha256(head.encode()).digest()
    return hashlib.sha256(event.previous_hash + digest + event.body_digest).digest()


def verify_chain(events: Sequence[Event], event_count: int, head_hash: bytes) -> None:
    """Raise `Broken`, naming the event, unless these are all events of a stream, unchanged, and end in its head."""
    previous = b""
    for number, event in enumerate(events, start=1):
        if event.number != number:
            raise Broken(f"{event.stream}: event {number} is missing")
        if event.previous_hash != previous or chain_hash(event) != event.hash:
            raise Broken(f"{event.stream}: event {number} does not continue the chain")
        previous = event.hash
    if len(events) != event_count or previous != head_hash:
        raise Broken(
            f"{events[0].stream if events else 'stream'}: {len(events)} events, but the head says {event_count}"
        )


def verify_bodies(raw: Sequence[tuple[int, str, bytes]]) -> None:
    """Raise `Broken` unless each (number, body text, digest) agrees. Erased bodies are the caller's to leave out."""
    for number, text, digest in raw:
        if hashlib.sha256(text.encode()).digest() != digest:
            raise Broken(f"event {number}: its body is not what was recorded")


def verify_state(events: Sequence[Event], state: str) -> None:
    """Raise `Broken` unless the moves in this trail end in `state`."""
    folded = fold((e.edge or 0, e.source, e.target or "") for e in events if e.kind is EventKind.MOVED)
    if folded != state:
        raise Broken(f"the trail ends in {folded}, the operation stands at {state}")


def body_text(body: dict[str, Any]) -> str:
    """Canonical text of a body. Only what JSON holds exactly: durations are rounded to microseconds first."""
    return json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _hint(body: dict[str, Any]) -> str:
    return f" ({body['hint']})" if body.get("hint") else ""


_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")
