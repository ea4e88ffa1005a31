"""Verification: everything in the ledger that can be recomputed is recomputed, and every row that differs is named.

1. Read-only, in one snapshot of the caller's; the code trusts nothing that it can derive, least of all the triggers.
2. A row that cannot even be read is a difference, and the next row is still checked.
3. Signatures are verified against the keys of the configuration that was in force when they were accepted.
"""

import hashlib
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from uuid import UUID

import psycopg

from ledger import states
from ledger.config import Document, from_canonical
from ledger.erasure import check_remains
from ledger.errors import Broken, LedgerError
from ledger.fingerprint import to_base64url
from ledger.model import Operation
from ledger.statement import Envelope, StatementType, read_sheet, sheet_digest
from ledger.statement import verify as verify_statement
from ledger.store import attempts, events, holds, operations, recompute, statements, views
from ledger.store.database import Connection, one
from ledger.store.statements import Statement
from ledger.trail import Event, EventKind, verify_bodies, verify_chain, verify_state


@dataclass(frozen=True)
class Remark:
    """A row, and what is wrong with it or worth knowing."""

    row: str
    what: str


@dataclass
class Verified:
    """What was checked and what was found."""

    differences: list[Remark] = field(default_factory=list)
    warnings: list[Remark] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    def differ(self, row: str, what: str) -> None:
        """Name a row that is not what it must be."""
        self.differences.append(Remark(row, what))

    def count(self, name: str, number: int = 1) -> None:
        """So many more of these were checked."""
        self.counts[name] = self.counts.get(name, 0) + number

    @asynccontextmanager
    async def about(self, conn: Connection, row: str) -> AsyncGenerator[None]:
        """What fails inside is a difference of this row; the snapshot goes on."""
        try:
            async with conn.transaction():
                yield
        except LedgerError as error:
            self.differ(row, str(error))
        except psycopg.OperationalError:
            raise  # the server is gone: that is nobody's difference
        except (psycopg.Error, ValueError, KeyError, TypeError) as error:
            self.differ(
                row, f"cannot be read: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            )


async def verify(conn: Connection) -> Verified:
    """Check the whole ledger. Time grows with its size; call it where reading everything hurts nobody."""
    found = Verified()
    documents: dict[int, Document] = {}
    await _check_edges(conn, found)
    await _check_configuration(conn, found, documents)
    await _check_own_stream(conn, found)
    about: dict[UUID | None, list[Statement]] = {}
    for statement in await statements.every(conn):
        about.setdefault(statement.operation_id, []).append(statement)
        async with found.about(conn, f"statement {statement.jti}"):
            await _check_statement(conn, statement, documents)
        found.count("statements")
    known = await views.every_id(conn)
    for operation_id in known:
        async with found.about(conn, f"operation {operation_id}"):
            await _check_operation(conn, found, operation_id, documents, about.get(operation_id, []))
    for stream in await views.streams(conn):
        if stream not in known:
            found.differ(f"operation {stream}", "has a trail, and its row is missing")
    await _check_holds(conn, found, about.get(None, []))
    for row in await views.overdue(conn):
        what = f"{row['state']}: next step {row['next_step']!r} was due at {row['next_step_at']:%Y-%m-%d %H:%M:%S}Z"
        found.warnings.append(Remark(f"operation {row['operation_id']}", what))
    return found


async def verify_some(conn: Connection, operation_ids: Iterable[UUID]) -> list[tuple[Remark, UUID | None]]:
    """Check these operations only, with the edges, the configuration and the ledger's own trail that they rest on.

    Each difference comes with the operation that it was found at, whatever row of it differs; None for what they rest on.
    """
    found = Verified()
    documents: dict[int, Document] = {}
    await _check_edges(conn, found)
    await _check_configuration(conn, found, documents)
    await _check_own_stream(conn, found)
    differ: list[tuple[Remark, UUID | None]] = [(remark, None) for remark in found.differences]
    for operation_id in operation_ids:
        known = len(found.differences)
        async with found.about(conn, f"operation {operation_id}"):
            about = await statements.of_operation(conn, operation_id)
            for statement in about:
                async with found.about(conn, f"operation {operation_id}"):
                    await _check_statement(conn, statement, documents)
            await _check_operation(conn, found, operation_id, documents, about)
        differ += [(remark, operation_id) for remark in found.differences[known:]]
    return differ


async def _check_edges(conn: Connection, found: Verified) -> None:
    rows = await (await conn.execute("select number, source, target from edges")).fetchall()
    stored = {(row["number"], row["source"], row["target"]) for row in rows}
    designed = {(e.number, e.source.value if e.source else None, e.target.value) for e in states.TRANSITIONS}
    for number, source, target in sorted(stored ^ designed, key=str):
        found.differ(f"edge {number}", f"{source} → {target} is not both in the code and in the database")
    found.count("edges", len(rows))


async def _check_configuration(conn: Connection, found: Verified, documents: dict[int, Document]) -> None:
    """Digests, canonical form, numbers without gaps, and that each version was told in the trail."""
    rows = await (
        await conn.execute("select version, digest, document from config_versions order by version")
    ).fetchall()
    own = (await one(conn, "select namespace from ledger_identity"))["namespace"]
    told = {e.body["version"]: e.body["digest"] for e in await _trail(conn, own) if e.kind is EventKind.CONFIG_APPLIED}
    for number, row in enumerate(rows, start=1):
        name = f"configuration {row['version']}"
        async with found.about(conn, name):
            digest = hashlib.sha256(bytes(row["document"])).digest()
            if digest != bytes(row["digest"]):
                found.differ(name, "its digest is not the one of its document")
            if told.get(row["version"]) != digest.hex():
                found.differ(name, "the trail tells of another document")
            if row["version"] != number:
                found.differ(name, f"version {number} is missing")
            documents[row["version"]] = from_canonical(bytes(row["document"]))
        found.count("configurations")
    current = await (await conn.execute("select version from config_current")).fetchone()
    if current is not None and told and current["version"] != max(told):
        found.differ("configuration in force", f"is {current['version']}, but {max(told)} was applied last")


async def _trail(conn: Connection, stream: UUID) -> list[Event]:
    """The events that can be read; what is wrong with the others is told where their stream is checked."""
    try:
        async with conn.transaction():
            return await events.read(conn, stream)
    except psycopg.OperationalError:
        raise
    except (psycopg.Error, ValueError):
        return []


async def _check_own_stream(conn: Connection, found: Verified) -> None:
    row = await one(conn, "select namespace, event_count, head_hash from ledger_identity")
    async with found.about(conn, "the ledger's own trail"):
        verify_bodies(await events.bodies(conn, row["namespace"]))
        told = await events.read(conn, row["namespace"])
        verify_chain(told, row["event_count"], bytes(row["head_hash"]))
        found.count("events", len(told))


async def _check_operation(
    conn: Connection, found: Verified, operation_id: UUID, documents: dict[int, Document], said: list[Statement]
) -> None:
    operation = await operations.find(conn, operation_id)
    if operation is None:
        raise Broken("its row is missing")
    name = f"operation {operation_id}"
    found.count("operations")
    for what in recompute.identity_problems(
        operation, await operations.namespace(conn), documents.get(operation.config_version)
    ):
        found.differ(name, what)
    told = await events.read(conn, operation_id)
    _check_bodies(operation, await events.bodies(conn, operation_id), told)
    verify_chain(told, operation.event_count, operation.head_hash)
    verify_state(told, operation.state)
    found.count("events", len(told))
    every = await attempts.read_attempts(conn, operation_id)
    seen = await attempts.read_sightings(conn, operation_id)
    numbers = await (
        await conn.execute("select number from sightings where operation_id = %s order by number", [operation_id])
    ).fetchall()
    for what in recompute.content_problems(operation, await attempts.frozen_digests(conn, operation_id), told):
        found.differ(name, what)
    for what in recompute.attempt_problems(operation, every, told):
        found.differ(name, what)
    for what in recompute.sighting_problems([row["number"] for row in numbers], seen, told):
        found.differ(name, what)
    for what in recompute.receipt_problems(operation, every, seen, told, said):
        found.differ(name, what)
    contradicted = any(e.kind is EventKind.CONTRADICTION for e in told)
    if contradicted is not await views.contradicted(conn, operation_id):
        found.differ(name, f"contradicted is {not contradicted}, but the trail says {contradicted}")
    await _check_sheets(conn, found, operation, told)
    for jti, what in recompute.statement_problems(said, told):
        found.differ(f"statement {jti}", what)
    for what in recompute.authority_problems(operation, said, told):
        found.differ(name, what)
    found.count("attempts", len(every))
    found.count("sightings", len(seen))


def _check_bodies(operation: Operation, bodies: list[tuple[int, str, bytes]], told: Sequence[Event]) -> None:
    """Each body is what was recorded; of an erased operation, what remained of those before is what was recorded then."""
    erasures = [event for event in told if event.kind is EventKind.ERASED]
    if len(erasures) != (operation.erased_at is not None):
        raise Broken(f"erased_at is {operation.erased_at}, and the trail tells of {len(erasures)} erasure(s)")
    for event in erasures:
        check_remains(operation, bodies, event.number, event.body["remains"])
        bodies = [body for body in bodies if body[0] >= event.number]
    verify_bodies(bodies)


async def _check_sheets(conn: Connection, found: Verified, operation: Operation, told: Sequence[Event]) -> None:
    """Digests; that each sheet shows this operation; and that every sheet that was made is there."""
    rows = await (
        await conn.execute("select digest, document from sheets where operation_id = %s", [operation.operation_id])
    ).fetchall()
    made = {e.body["digest"] for e in told if e.kind is EventKind.SHEET_MADE}
    for row in rows:
        name = f"sheet {bytes(row['digest']).hex()[:16]} of operation {operation.operation_id}"
        async with found.about(conn, name):
            if operation.erased_at is None and sheet_digest(bytes(row["document"])) != bytes(row["digest"]):
                found.differ(name, "its digest is not the one of its document")
            if (
                operation.erased_at is None
                and read_sheet(bytes(row["document"]))["fingerprint"] != operation.fingerprint.hex()
            ):
                found.differ(name, "it shows another operation")
            if bytes(row["digest"]).hex() not in made:
                found.differ(name, "the trail does not tell that it was made")
    missing = made - {bytes(row["digest"]).hex() for row in rows}
    for digest in sorted(missing):
        found.differ(f"sheet {digest[:16]} of operation {operation.operation_id}", "was made and is missing")
    found.count("sheets", len(rows))


async def _check_statement(conn: Connection, kept: Statement, documents: dict[int, Document]) -> None:
    """The signature, by the keys of its day; and that the columns say what was signed. Raises what differs."""
    document = documents.get(kept.config_version)
    operation = None if kept.operation_id is None else await operations.find(conn, kept.operation_id)
    if operation is not None and operation.erased_at is not None and not kept.statement:
        return  # its bytes went with the operation's; its columns are compared with the trail
    if document is None:
        raise Broken(f"configuration {kept.config_version}, under which it was accepted, is missing or unreadable")
    sheet = b""
    if kept.sheet is not None:
        row = await one(conn, "select document from sheets where digest = %s", [kept.sheet])
        sheet = bytes(row["document"])
    envelope = Envelope(
        statement=to_base64url(kept.statement), scheme=kept.scheme, proof=kept.proof, sheet=to_base64url(sheet)
    )
    verified = verify_statement(envelope, document.person_keys(), aud=document.ledger.name)
    claims = verified.claims
    columns = (kept.jti, kept.typ, kept.decision, kept.person, kept.kid, kept.trail_head)
    signed = (claims.jti, claims.typ.value, claims.decision, verified.person, verified.kid)
    if columns != (*signed, bytes.fromhex(claims.trail_head) or None):
        raise Broken("its columns differ from what was signed")
    if claims.sub != (kept.scope or str(kept.operation_id)):
        raise Broken("it was signed about something else")
    if (
        not claims.iat - recompute.LEEWAY_SECONDS
        <= kept.accepted_at.timestamp()
        <= claims.exp + recompute.LEEWAY_SECONDS
    ):
        raise Broken("it was accepted outside of its times")
    if kept.operation_id is None:
        return
    if operation is None or operation.fingerprint.hex() != claims.fingerprint:
        raise Broken("it was signed for other content than the operation has")


async def _check_holds(conn: Connection, found: Verified, kept: Sequence[Statement]) -> None:
    """What is held was held by a statement and told so; what was told as held is held."""
    own = (await one(conn, "select namespace from ledger_identity"))["namespace"]
    last: dict[str, EventKind] = {}
    signed = {s.scope for s in kept if s.typ == StatementType.HOLD}
    for event in await _trail(conn, own):
        if event.kind in (EventKind.HELD, EventKind.RELEASED):
            last[event.body["scope"]] = event.kind
        if event.kind is EventKind.RESTORED:  # said by the owner of the database, not signed
            last[holds.RESTORED] = EventKind.HELD
            signed.add(holds.RESTORED)
    current = await holds.current(conn)
    held = {hold.scope for hold in current if hold.reason != holds.UNSAID}
    if len(held) < len(current):
        found.warnings.append(Remark(f"hold {holds.RESTORED}", holds.UNSAID))
        last.pop(holds.RESTORED, None)  # whatever was said, was said about another database
    for scope in sorted(held | {s for s, kind in last.items() if kind is EventKind.HELD}):
        if scope not in held:
            found.differ(f"hold {scope}", "the trail says it is held, the row says it is not")
        elif last.get(scope) is not EventKind.HELD:
            found.differ(f"hold {scope}", "it is held, and the trail does not say so")
        elif scope not in signed:
            found.differ(f"hold {scope}", "no statement holds it")
    found.count("holds", len(held))
