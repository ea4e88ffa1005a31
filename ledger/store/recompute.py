"""What of an operation can be recomputed from the rest of it: each function yields what does not agree. No SQL, no clock."""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from ledger import fingerprint, states
from ledger.config import Document, rule_version
from ledger.errors import Refused
from ledger.model import Attempt, Operation, Outcome, Sighting, Standing
from ledger.policy import PEOPLE_WITHOUT_PROOF
from ledger.statement import Claims, StatementType, verify_proposal
from ledger.store.statements import Statement
from ledger.trail import Event, EventKind

LEEWAY_SECONDS = 120  # as in the function `token_refusal` of the database


def identity_problems(operation: Operation, namespace: UUID, document: Document | None) -> Iterable[str]:
    """What the canonical bytes, the columns and the names derived from them do not agree on."""
    if operation.erased_at is None:  # else the columns stand in what remained, and their digest in the trail
        yield from _canonical_problems(operation)
    derived = fingerprint.operation_id(namespace, operation.tenant, operation.business_key)
    if derived != operation.operation_id:
        yield f"its id is not the one of {operation.name}"
    if fingerprint.idempotency_key(operation.operation_id) != operation.idempotency_key:
        yield "its idempotency key is not the one of its id"
    if document is None:
        yield f"configuration {operation.config_version}, under which it was proposed, is missing or unreadable"
        return
    if rule_version(document, operation.tenant, operation.action, operation.currency) != operation.policy_version:
        yield "policy_version is not the rule of its configuration"
    grant = document.grant(operation.kid)
    if grant is None or grant.tenant != operation.tenant or operation.actor not in grant.actors:
        yield f"the key {operation.kid} was not granted its proposal"
    if operation.erased_at is None:
        yield from _proposal_problems(operation, document)


def _canonical_problems(operation: Operation) -> Iterable[str]:
    if fingerprint.fingerprint(operation.canonical) != operation.fingerprint:
        yield "its fingerprint is not the one of its canonical bytes"
    expires = int(operation.approval_expires_at.timestamp())
    fields: dict[str, Any] = {name: getattr(operation, name) for name in fingerprint.IDENTITY_FIELDS}
    fields["approval_expires_at"] = expires
    again = fingerprint.identity(**fields)
    written = fingerprint.canonical_bytes(again, max_bytes=fingerprint.MAX_SHEET)
    if written != operation.canonical:
        kept = json.loads(operation.canonical)
        differing = sorted(key for key in again.keys() | kept.keys() if again.get(key) != kept.get(key))
        yield f"columns differ from the canonical bytes: {', '.join(differing) or 'not the canonical form'}"


def _proposal_problems(operation: Operation, document: Document) -> Iterable[str]:
    """The kept token is signed by the granted key, says what the columns say, and was valid when it was recorded."""
    try:
        signed = verify_proposal(operation.token, document.grant_keys(), aud=document.ledger.name)
    except Refused as refused:
        yield f"its signed proposal does not verify: {refused.rule}"
        return
    claims = signed.claims
    said = (claims.tenant, claims.sub, claims.actor, claims.requested_by, claims.request_digest, signed.kid)
    digest = operation.request_digest.hex()
    o = operation
    if said != (o.tenant, o.business_key, o.actor, o.requested_by, digest, o.kid):
        yield "its signed proposal says something else than its columns"
    at = operation.proposed_at.timestamp()
    if not claims.iat - LEEWAY_SECONDS <= at <= claims.exp + LEEWAY_SECONDS:
        yield "its signed proposal was not valid when it was recorded"


def content_problems(operation: Operation, frozen: Mapping[str, str | None], told: Sequence[Event]) -> Iterable[str]:
    """The trail holds what was asked for and what was to be sent. Events older than these digests do not tell them."""
    for event in told:
        kept: Mapping[str, str | None] = {}
        if event.number == 1:
            kept = {"fingerprint": operation.fingerprint.hex()}
        elif event.kind is EventKind.ATTEMPT_OPENED:
            # the request of an erased operation is gone; its digest in the event is what is left of it
            kept = {n: d for n, d in frozen.items() if n != "request" or operation.erased_at is None}
        for name, value in kept.items():
            if event.body.get(name, value) != value:
                yield f"its {name} is not the one that event {event.number} tells"


def attempt_problems(operation: Operation, every: Sequence[Attempt], told: Sequence[Event]) -> Iterable[str]:
    """Each attempt was told when it was opened and when it was answered, in the same words."""
    opened = {e.fence: e.body for e in told if e.kind is EventKind.ATTEMPT_OPENED}
    answers: dict[int, dict[str, Any]] = {}
    for event in told:
        if event.kind in (EventKind.ATTEMPT_ANSWERED, EventKind.LATE_ANSWER):
            answers[event.body["attempt"]] = event.body
    late = {e.body["attempt"] for e in told if e.kind is EventKind.LATE_SEND}
    if [a.number for a in every] != list(range(1, operation.fence + 1)):
        yield f"attempts {[a.number for a in every]} do not fit fence {operation.fence}"
    if set(opened) != {a.number for a in every}:
        yield f"the trail opened attempts {sorted(opened)}"
    lease = ((operation.frozen_contract or {}).get("timing") or {}) if operation.frozen_contract else {}
    length = sum(lease.get(name, 0.0) for name in ("send_within", "call_deadline", "slack"))
    for a in every:
        if not _same_moment(opened.get(a.number, {}).get("lease_until"), a.lease_until):
            yield f"attempt {a.number}: its lease is not the one that was opened"
        if abs((a.lease_until - a.claimed_at).total_seconds() - length) > 0.001:
            yield f"attempt {a.number}: claimed_at does not fit its lease"
        if (a.outcome is not None) != (a.number in answers):
            yield f"attempt {a.number}: outcome {a.outcome} does not fit the trail"
        elif a.outcome is not None:
            yield from _answer_problems(a, answers[a.number])
        if (a.late_send_at is not None) != (a.number in late):
            yield f"attempt {a.number}: late_send_at does not fit the trail"
    if every and operation.first_claimed_at != every[0].claimed_at:
        yield "first_claimed_at is not the claim of attempt 1"


def _answer_problems(attempt: Attempt, body: dict[str, Any]) -> Iterable[str]:
    kept: dict[str, Any] = {
        "outcome": attempt.outcome,
        "hint": attempt.hint,
        "stored": attempt.stored,
        "receipt": attempt.receipt,
        "standing": attempt.standing,
        "detail": attempt.detail,
    }
    for name, value in kept.items():
        if body.get(name) != value:
            yield f"attempt {attempt.number}: {name} is {value!r}, but the trail says {body.get(name)!r}"
    if not _same_moment(body.get("answered_at"), attempt.answered_at):
        yield f"attempt {attempt.number}: answered_at is not what the trail says"


def _same_moment(told: str | None, kept: datetime | None) -> bool:
    """Whether the trail's text is this moment, whatever the time zone of the session that wrote it."""
    return kept is None if told is None else datetime.fromisoformat(told) == kept


def sighting_problems(numbers: Sequence[int], seen: Sequence[Sighting], told: Sequence[Event]) -> Iterable[str]:
    """Each look was told in the event that bears its number."""
    bodies = {e.number: e.body for e in told if e.kind in (EventKind.SIGHTING, EventKind.SIGHTING_SAME)}
    for missing in sorted(set(numbers) ^ set(bodies)):
        yield f"sighting {missing} is not both a row and an event"
    for number, sighting in zip(numbers, seen, strict=True):
        if (body := bodies.get(number)) is None:
            continue
        effects = [{**vars(e), "standing": e.standing.value} for e in sighting.effects]
        kept = (sighting.complete, effects, sighting.version_moved, sighting.witness_has_marker)
        said = tuple(body[n] for n in ("complete", "effects", "version_moved", "witness_has_marker"))
        if kept != said or not _same_moment(body["began_at"], sighting.began_at):
            yield f"sighting {number} differs from what the trail says"


def receipt_problems(
    operation: Operation,
    every: Sequence[Attempt],
    seen: Sequence[Sighting],
    told: Sequence[Event],
    said: Sequence[Statement],
) -> Iterable[str]:
    """The receipt was proved by an attempt, a look or a resolution, and its standing is the last one told."""
    if operation.receipt is None:
        if operation.state is states.State.SUCCEEDED:
            yield "it succeeded without a receipt"
        return
    proved = {a.receipt for a in every if a.outcome is Outcome.APPLIED}
    proved |= {e.receipt for s in seen for e in s.effects if e.ours}
    proved |= {Claims.from_bytes(s.statement).receipt for s in said if s.decision == "happened" and s.statement}
    if operation.erased_at is not None:  # the signed bytes are gone; what the trail said of them remained
        proved |= {e.body["receipt"] for e in told if e.kind is EventKind.STATEMENT_ACCEPTED}
    if operation.receipt not in proved:
        yield f"nothing in the evidence proves the receipt {operation.receipt}"
    changes = [e.body for e in told if e.kind is EventKind.STANDING_CHANGED]
    if changes and changes[-1]["standing"] != operation.standing:
        yield f"standing is {operation.standing}, but the trail says {changes[-1]['standing']}"
    if not changes and operation.standing is Standing.VOID and operation.state is states.State.SUCCEEDED:
        yield "its receipt is void, and the trail does not say so"


def statement_problems(said: Sequence[Statement], told: Sequence[Event]) -> Iterable[tuple[str, str]]:
    """(jti, what is wrong): every accepted statement is a row and an event, and speaks about this trail."""
    accepted = {e.body["jti"]: e for e in told if e.kind is EventKind.STATEMENT_ACCEPTED}
    hashes = {e.hash for e in told}
    for jti in sorted(accepted.keys() - {s.jti for s in said}):
        yield jti, f"was accepted (event {accepted[jti].number}) and is missing"
    for statement in said:
        if statement.jti not in accepted:
            yield statement.jti, "the trail does not tell that it was accepted"
        elif any(
            accepted[statement.jti].body[n] != getattr(statement, n) for n in ("typ", "decision", "person", "kid")
        ):
            yield statement.jti, "the trail tells something else of it"
        if statement.trail_head is not None and statement.trail_head not in hashes:
            yield statement.jti, "it speaks about a trail that is not this one"


def authority_problems(operation: Operation, said: Sequence[Statement], told: Sequence[Event]) -> Iterable[str]:
    """What was let through by people was signed by as many; what was let through by none was waived."""
    approved = {s.person for s in said if s.typ == StatementType.APPROVAL}
    resolved = {s.person for s in said if s.typ == StatementType.RESOLUTION}
    for event in told:
        people = (
            event.body.get("people") if event.edge == 5 else event.body.get("by") if event.edge in (20, 21) else None
        )
        if event.edge == 3 and operation.people_needed != 0:
            yield f"event {event.number} waives the person, but people_needed is {operation.people_needed}"
        if event.edge == 5 and (
            len(people or ()) < (operation.people_needed or 1) or not set(people or ()) <= approved
        ):
            yield f"event {event.number} approves by {people}, but {sorted(approved)} signed"
        if event.edge in (20, 21) and (len(people or ()) < PEOPLE_WITHOUT_PROOF or not set(people or ()) <= resolved):
            yield f"event {event.number} ends without proof by {people}, but {sorted(resolved)} signed"
