"""Attempts and sightings: the evidence. Moves are fenced, evidence is not: a late answer is recorded, never dropped."""

from datetime import datetime
from typing import Any, Final, LiteralString
from uuid import UUID

from psycopg.rows import DictRow
from psycopg.types.json import Jsonb

from ledger.model import Attempt, Hint, Operation, Outcome, SeenEffect, Sighting, Standing
from ledger.store import events, operations
from ledger.store.database import Connection, one
from ledger.trail import EventKind

_FROZEN: Final[LiteralString] = (
    " json_build_object('request', encode(sha256(convert_to(frozen_request::text, 'UTF8')), 'hex'),"
    " 'contract', encode(sha256(convert_to(frozen_contract::text, 'UTF8')), 'hex')) "
)
DEFINITE = (Outcome.APPLIED, Outcome.REFUSED, Outcome.NO_EFFECT)


async def open_attempt(conn: Connection, operation: Operation, attempt: Attempt, worker: str) -> Operation:
    """Write the attempt before anything is sent. Its number is the fence of `operation`.

    Its event tells the digests of the frozen request and contract, as stored: the chain holds what was to be sent.
    """
    opened = await one(
        conn,
        "insert into attempts (operation_id, number, claimed_at, lease_until, worker) values (%s, %s, %s, %s, %s)"
        " returning (select"
        + _FROZEN
        + "from operations where operations.operation_id = attempts.operation_id) as frozen",
        [operation.operation_id, attempt.number, attempt.claimed_at, attempt.lease_until, worker],
    )
    body = {"lease_until": attempt.lease_until.isoformat(), "worker": worker, **opened["frozen"]}
    return await events.append(conn, operation, EventKind.ATTEMPT_OPENED, body)


async def frozen_digests(conn: Connection, operation_id: UUID) -> dict[str, str | None]:
    """SHA-256 of the frozen `request` and `contract`, as stored; None for what is not frozen."""
    row = await one(conn, "select" + _FROZEN + "as frozen from operations where operation_id = %s", [operation_id])
    frozen: dict[str, str | None] = row["frozen"]
    return frozen


async def read_attempts(conn: Connection, operation_id: UUID) -> list[Attempt]:
    """All attempts by number."""
    rows = await (
        await conn.execute(
            "select number, claimed_at, lease_until, outcome, hint, stored, receipt, standing, answered_at, late_send_at,"
            " detail from attempts where operation_id = %s order by number",
            [operation_id],
        )
    ).fetchall()
    return [_attempt(row) for row in rows]


async def answer(conn: Connection, operation: Operation, attempt: Attempt) -> Operation:
    """Record an attempt's outcome. Outcomes go once from none or unknown to a definite one.

    An equal definite answer again changes nothing; a different one is recorded as a contradiction and the first is kept.
    """
    before = next(a for a in await read_attempts(conn, operation.operation_id) if a.number == attempt.number)
    body = _answer_body(attempt)
    if before.outcome in DEFINITE:
        if attempt.outcome is Outcome.UNKNOWN or (before.outcome, before.receipt) == (attempt.outcome, attempt.receipt):
            return operation
        body["what"] = f"attempt {attempt.number} was {before.outcome}, and now {attempt.outcome}"
        await operations.mark_contradicted(conn, operation.operation_id)
        return await events.append(conn, operation, EventKind.CONTRADICTION, body)
    await conn.execute(
        "update attempts set outcome = %(outcome)s, hint = %(hint)s, stored = %(stored)s, receipt = %(receipt)s,"
        " standing = %(standing)s, answered_at = %(answered_at)s, detail = %(detail)s,"
        " late_send_at = coalesce(late_send_at, %(late_send_at)s)"
        " where operation_id = %(operation_id)s and number = %(number)s",
        {**vars(attempt), "operation_id": operation.operation_id, "detail": Jsonb(events.storable(attempt.detail))},
    )
    if attempt.late_send_at is not None and before.late_send_at is None:
        operation = await events.append(conn, operation, EventKind.LATE_SEND, {"attempt": attempt.number})
    late = before.outcome is not None or operation.fence != attempt.number
    return await events.append(conn, operation, EventKind.LATE_ANSWER if late else EventKind.ATTEMPT_ANSWERED, body)


async def mark_late(conn: Connection, operation: Operation, attempt: Attempt, at: datetime) -> Operation:
    """From now on the attempt counts as sent at this moment, which is later than it may have been. Done once."""
    if attempt.late_send_at is not None:
        return operation
    await conn.execute(
        "update attempts set late_send_at = %(late_send_at)s where operation_id = %(operation_id)s and number = %(number)s",
        {"operation_id": operation.operation_id, "number": attempt.number, "late_send_at": at},
    )
    return await events.append(conn, operation, EventKind.LATE_SEND, {"attempt": attempt.number})


async def record_sighting(conn: Connection, operation: Operation, sighting: Sighting) -> Operation:
    """Add one look. Its event is `sighting_same` when it agrees with the look before, so that old signatures keep their worth."""
    seen = await read_sightings(conn, operation.operation_id)
    kind = EventKind.SIGHTING_SAME if seen and _agree(seen[-1], sighting) else EventKind.SIGHTING
    effects = [
        {
            "receipt": e.receipt,
            "standing": e.standing,
            "marked": e.marked,
            "matching": e.matching,
            "summary": events.storable(e.summary),
        }
        for e in sighting.effects
    ]
    body: dict[str, Any] = {
        "began_at": sighting.began_at.isoformat(),
        "finished_at": sighting.finished_at.isoformat(),
        "complete": sighting.complete,
        "effects": effects,
        "version_moved": sighting.version_moved,
        "witness_has_marker": sighting.witness_has_marker,
    }
    operation = await events.append(conn, operation, kind, body)
    await conn.execute(
        "insert into sightings (operation_id, number, began_at, finished_at, complete, effects, version_moved,"
        " witness_has_marker, detail) values (%s, %s, %s, %s, %s, %s, %s, %s, %s)",
        [
            operation.operation_id,
            operation.event_count,
            sighting.began_at,
            sighting.finished_at,
            sighting.complete,
            Jsonb(effects),
            sighting.version_moved,
            sighting.witness_has_marker,
            Jsonb(events.storable(sighting.detail)),
        ],
    )
    return operation


async def read_sightings(conn: Connection, operation_id: UUID) -> list[Sighting]:
    """All looks in the order they were recorded."""
    rows = await (
        await conn.execute(
            "select began_at, finished_at, complete, effects, version_moved, witness_has_marker, detail"
            " from sightings where operation_id = %s order by number",
            [operation_id],
        )
    ).fetchall()
    return [_sighting(row) for row in rows]


def _agree(before: Sighting, after: Sighting) -> bool:
    def conclusion(s: Sighting) -> object:
        effects = sorted((e.receipt, e.standing, e.marked, e.matching) for e in s.effects)
        return s.complete, effects, s.version_moved, s.witness_has_marker

    return conclusion(before) == conclusion(after)


def _answer_body(attempt: Attempt) -> dict[str, Any]:
    return {
        "attempt": attempt.number,
        "outcome": attempt.outcome,
        "hint": attempt.hint,
        "stored": attempt.stored,
        "receipt": attempt.receipt,
        "standing": attempt.standing,
        "answered_at": _iso(attempt.answered_at),
        "late_send_at": _iso(attempt.late_send_at),
        "detail": attempt.detail,
    }


def _iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()


def _attempt(row: DictRow) -> Attempt:
    fields: dict[str, Any] = {
        **row,
        "outcome": None if row["outcome"] is None else Outcome(row["outcome"]),
        "hint": Hint(row["hint"]),
        "standing": None if row["standing"] is None else Standing(row["standing"]),
    }
    return Attempt(**fields)


def _sighting(row: DictRow) -> Sighting:
    seen: list[dict[str, Any]] = [{**e, "standing": Standing(e["standing"])} for e in row["effects"]]
    fields: dict[str, Any] = {**row, "effects": tuple(SeenEffect(**e) for e in seen)}
    return Sighting(**fields)
