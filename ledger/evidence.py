"""The evidence bundle: everything the ledger holds about one operation, as one document that is verified without the ledger.

1. What was hashed or signed stands in it as the very text that was hashed or signed, never as something made from it.
2. What can be derived is left out, so that a reader derives it; docs/evidence.md has the rules, docs/verify_evidence.py obeys.
3. What nothing covers stands apart, under `unproved`.
4. The same rows give the same bytes: no time, no machine, no order of chance.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from ledger.errors import Broken
from ledger.fingerprint import sheet_digest
from ledger.trail import EventKind

KIND = "effect-ledger/evidence/v1"


@dataclass(frozen=True)
class StoredEvent:
    """One event as it is stored: its body is the text that was hashed."""

    number: int
    at: datetime
    kind: str
    edge: int | None
    source: str | None
    target: str | None
    fence: int
    body: str
    body_digest: bytes
    hash: bytes

    @property
    def says(self) -> dict[str, Any]:
        """What the body says."""
        said: dict[str, Any] = json.loads(self.body)
        return said


@dataclass(frozen=True)
class Trail:
    """One stream with the head that its row keeps."""

    stream: UUID
    event_count: int
    head_hash: bytes
    events: Sequence[StoredEvent]

    def bodies(self, kind: EventKind) -> list[dict[str, Any]]:
        """The bodies of one kind, in order."""
        return [event.says for event in self.events if event.kind == kind]


@dataclass(frozen=True)
class Rows:
    """What the ledger holds about one operation, as stored."""

    own: Trail  # of the ledger itself: configuration and holds
    trail: Trail
    canonical: bytes
    token: str
    state: str
    receipt: str | None
    standing: str | None
    contradicted: bool
    config_version: int
    frozen_request: str | None
    frozen_contract: str | None
    statements: Sequence[tuple[str, bytes, str, str]]  # jti, signed bytes, scheme, proof
    sheets: Sequence[bytes]
    documents: dict[int, bytes]  # configuration by version
    looks: dict[int, dict[str, Any]]  # details of looks by event number: no event tells them
    late_sends: dict[int, datetime]  # by attempt: their event tells that, not when


def bundle(rows: Rows) -> dict[str, Any]:
    """The document. `Broken` if something that was signed or hashed is no text: such a row was not written by us."""
    operation, own = rows.trail, rows.own
    return {
        "kind": KIND,
        "ledger": {
            "namespace": str(own.stream),
            "event_count": own.event_count,
            "head_hash": own.head_hash.hex(),
            "events": [_event(event, whole=event.kind == EventKind.CONFIG_APPLIED) for event in own.events],
        },
        "configurations": [
            {"version": version, "document": _text(rows.documents[version])} for version in _versions(rows)
        ],
        "operation": {
            "operation_id": str(operation.stream),
            "canonical": _text(rows.canonical),
            "token": rows.token,
            "state": rows.state,
            "receipt": rows.receipt,
            "standing": rows.standing,
            "contradicted": rows.contradicted,
            "frozen_request": rows.frozen_request,
            "frozen_contract": rows.frozen_contract,
            "event_count": operation.event_count,
            "head_hash": operation.head_hash.hex(),
            "events": [_event(event, whole=True) for event in operation.events],
        },
        "sheets": [_text(sheet) for sheet in _as_told(rows)],
        "statements": [
            {"statement": _text(statement), "scheme": scheme, "proof": proof}
            for _, statement, scheme, proof in _as_accepted(rows)
        ],
        "unproved": {
            "look_details": {str(number): detail for number, detail in rows.looks.items()},
            "late_sends": {str(number): _moment(at) for number, at in rows.late_sends.items()},
        },
    }


def written(document: dict[str, Any]) -> bytes:
    """The file: ASCII, one order of keys, a line feed at its end."""
    return json.dumps(document, indent=1, sort_keys=True, allow_nan=False).encode() + b"\n"


def _versions(rows: Rows) -> list[int]:
    """From the version that it was proposed under to the one in force at its last event: what every step was judged by."""
    last = max(event.at for event in rows.trail.events)
    applied = [event for event in rows.own.events if event.kind == EventKind.CONFIG_APPLIED and event.at < last]
    told = [int(event.says["version"]) for event in applied]
    return [version for version in sorted(rows.documents) if rows.config_version <= version <= max(told, default=0)]


def _as_told(rows: Rows) -> list[bytes]:
    """The sheets in the order in which the trail tells that they were made; those it does not tell at the end."""
    made = [body["digest"] for body in rows.trail.bodies(EventKind.SHEET_MADE)]
    order = {digest: place for place, digest in reversed(list(enumerate(made)))}
    return sorted(rows.sheets, key=lambda sheet: (order.get(sheet_digest(sheet).hex(), len(made)), sheet))


def _as_accepted(rows: Rows) -> list[tuple[str, bytes, str, str]]:
    """The statements in the order in which the trail tells that they were accepted; those it does not tell at the end."""
    accepted = [body["jti"] for body in rows.trail.bodies(EventKind.STATEMENT_ACCEPTED)]
    order = {jti: place for place, jti in enumerate(accepted)}
    return sorted(rows.statements, key=lambda kept: (order.get(kept[0], len(accepted)), kept[0]))


def _event(event: StoredEvent, *, whole: bool) -> dict[str, Any]:
    """An event; with its body, or only with the digest of it where the body concerns others."""
    body = {"body": event.body} if whole else {"body_digest": event.body_digest.hex()}
    return {
        "number": event.number,
        "at": _moment(event.at),
        "kind": event.kind,
        "edge": event.edge,
        "source": event.source,
        "target": event.target,
        "fence": event.fence,
        **body,
        "hash": event.hash.hex(),
    }


def _moment(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise Broken("what was signed is not UTF-8: this row was not written by us") from error
