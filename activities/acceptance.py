"""Accepting what a person signed: verify against the configuration in force, keep the exact bytes, or record the refusal."""

import hashlib
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import structlog

from activities.messages import Message
from ledger.config import Document
from ledger.errors import Refused
from ledger.model import Operation
from ledger.statement import Claims, Envelope, Verified, sheet_digest, verify
from ledger.store import configuration, events, statements
from ledger.store.database import Connection
from ledger.store.statements import Statement
from ledger.trail import EventKind

log = structlog.get_logger()


@dataclass(frozen=True)
class Signed:
    """A verified sentence with the configuration it was verified against."""

    verified: Verified
    envelope: Envelope
    document: Document
    version: int

    @property
    def claims(self) -> Claims:
        """What was said."""
        return self.verified.claims


async def read_signed(conn: Connection, message: Message, longest_seconds: int) -> Signed:
    """Verify proof, key, audience and times (ledger time, 120 s leeway). Refused with the rule that was broken."""
    envelope = Envelope.parse(
        {"statement": message.statement, "scheme": message.scheme, "proof": message.proof, "sheet": message.sheet}
    )
    version, document = await configuration.in_force(conn)
    verified = verify(envelope, document.person_keys(), aud=document.ledger.name)
    why = await statements.token_refusal(conn, verified.claims.iat, verified.claims.exp, longest_seconds)
    if why:
        raise Refused(f"statement_{why}", "sign it again: its times do not fit the ledger's clock", field="exp")
    return Signed(verified, envelope, document, version)


def check_about(claims: Claims, operation: Operation) -> None:
    """The sentence speaks about exactly this operation. Refused: `operation_wrong`, `fingerprint_wrong`, `erased`."""
    if claims.sub != str(operation.operation_id):
        raise Refused("operation_wrong", "this signature is about another operation", field="sub")
    if claims.fingerprint != operation.fingerprint.hex():
        raise Refused(
            "fingerprint_wrong", "this signature is about other content: read the sheet again", field="fingerprint"
        )
    if operation.erased_at is not None:
        raise Refused("erased", "it ended, and its personal fields were erased: nothing is said about it", field="sub")


async def keep(conn: Connection, operation: Operation, signed: Signed, at: datetime) -> tuple[Operation, bool]:
    """Keep the statement and say so in the trail; False when the same sentence was kept before, which is a success."""
    claims = signed.claims
    sheet = signed.envelope.sheet_bytes
    new = await statements.accept(
        conn,
        Statement(
            jti=claims.jti,
            operation_id=UUID(claims.sub),
            scope="",
            typ=claims.typ.value,
            decision=claims.decision,
            person=signed.verified.person,
            kid=signed.verified.kid,
            statement=signed.envelope.statement_bytes,
            scheme=signed.envelope.scheme,
            proof=signed.envelope.proof,
            sheet=sheet_digest(sheet) if sheet else None,
            trail_head=bytes.fromhex(claims.trail_head) or None,
            config_version=signed.version,
            accepted_at=at,
        ),
    )
    if new:
        body = {
            "typ": claims.typ.value,
            "decision": claims.decision,
            "person": signed.verified.person,
            "kid": signed.verified.kid,
            "jti": claims.jti,
            "evidence": claims.evidence,
            "receipt": claims.receipt,
        }
        operation = await events.append(conn, operation, EventKind.STATEMENT_ACCEPTED, body)
        log.info("statement accepted", typ=claims.typ.value, jti=claims.jti)  # whose it is stands in the trail
    return operation, new


async def refuse(conn: Connection, operation: Operation, message: Message, refused: Refused) -> Operation:
    """Write down why a message did not count, by its digest. What it said is not repeated: it is nobody's word."""
    body = {
        "typ": message.kind.value,
        "rule": refused.rule,
        "field": refused.field,
        "why": str(refused)[:300],
        "count": message.count,
        "message_digest": hashlib.sha256(message.statement.encode(errors="replace")).hexdigest(),
    }
    return await events.append(conn, operation, EventKind.STATEMENT_REFUSED, body)


async def refuse_junk(conn: Connection, operation: Operation, message: Message) -> Operation:
    """Write down that something unusable came, with how often: never what it was."""
    body = {"rule": message.problem[:200], "count": message.count}
    return await events.append(conn, operation, EventKind.JUNK_REFUSED, body)


async def longest_statement(conn: Connection, operation: Operation) -> int:
    """The longest life of a statement about this operation, seconds, by the rule it was proposed under."""
    document = await configuration.document(conn, operation.config_version)
    return document.rule_for(operation.tenant, operation.action, operation.currency).statement_lifetime_seconds
