"""Events: append to a stream, read a stream. Numbers, times and hashes are made by the database.

A contradiction is alerted here, by an error line, whoever found it: the one place that no finder can forget.
"""

import re
from dataclasses import replace
from typing import Any
from uuid import UUID

import structlog
from psycopg.rows import DictRow

from ledger.model import Operation
from ledger.store import facts
from ledger.store.database import Connection, one
from ledger.store.facts import Fact
from ledger.trail import Event, EventKind, body_text

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


async def append(conn: Connection, operation: Operation, kind: EventKind, body: dict[str, Any]) -> Operation:
    """Append to the operation's trail; returns it with its new event count and head."""
    if kind is EventKind.CONTRADICTION:
        # Before the commit: told twice where that is lost, and never not at all.
        structlog.get_logger().error(
            "contradiction",
            operation_id=str(operation.operation_id),
            tenant=operation.tenant,
            state=operation.state.value,
            what=body.get("what"),
        )
    count, head = await _insert(conn, operation.operation_id, kind, None, None, None, operation.fence, body)
    facts.tell(Fact(kind, body, operation))
    return replace(operation, event_count=count, head_hash=head)


async def append_move(
    conn: Connection, operation_id: UUID, edge: int, source: str | None, target: str, fence: int, body: dict[str, Any]
) -> tuple[int, bytes]:
    """Append the event of a move; only `operations.move` and `operations.insert` call this."""
    return await _insert(conn, operation_id, EventKind.MOVED, edge, source, target, fence, body)


async def append_to_ledger(conn: Connection, kind: EventKind, body: dict[str, Any]) -> None:
    """Append to the ledger's own stream: configuration, holds, the test clock."""
    row = await one(conn, "select namespace from ledger_identity")
    await _insert(conn, row["namespace"], kind, None, None, None, 0, body)
    facts.tell(Fact(kind, body))


async def read(conn: Connection, stream: UUID) -> list[Event]:
    """The whole stream in order."""
    rows = await (
        await conn.execute(
            "select stream, number, at, kind, edge, source, target, fence, body::json as body, body_digest,"
            " previous_hash, hash from events where stream = %s order by number",
            [stream],
        )
    ).fetchall()
    return [_event(row) for row in rows]


async def read_last(conn: Connection, stream: UUID, limit: int) -> list[Event]:
    """The newest events of the stream, oldest of them first."""
    rows = await (
        await conn.execute(
            "select stream, number, at, kind, edge, source, target, fence, body::json as body, body_digest,"
            " previous_hash, hash from events where stream = %s order by number desc limit %s",
            [stream, limit],
        )
    ).fetchall()
    return [_event(row) for row in reversed(rows)]


async def bodies(conn: Connection, stream: UUID) -> list[tuple[int, str, bytes]]:
    """(number, body text, digest) of a stream, for verification."""
    rows = await (
        await conn.execute("select number, body, body_digest from events where stream = %s order by number", [stream])
    ).fetchall()
    return [(row["number"], row["body"], row["body_digest"]) for row in rows]


async def latest_body(conn: Connection, stream: UUID, kind: EventKind) -> dict[str, Any]:
    """The body of the stream's newest event of this kind; empty when there is none."""
    row = await (
        await conn.execute(
            "select body::json as body from events where stream = %s and kind = %s order by number desc limit 1",
            [stream, kind.value],
        )
    ).fetchone()
    return {} if row is None else dict(row["body"])


async def evidence_since(conn: Connection, stream: UUID, head: bytes, kinds: list[str]) -> int | None:
    """How many events of these kinds came after the one whose hash is `head`; None if no event of the stream has it."""
    row = await one(
        conn,
        "select (select number from events where stream = %(s)s and hash = %(h)s) as seen,"
        " (select count(*) from events where stream = %(s)s and kind = any(%(k)s) and number >"
        "   (select number from events where stream = %(s)s and hash = %(h)s)) as later",
        {"s": stream, "h": head, "k": kinds},
    )
    return None if row["seen"] is None else int(row["later"])


def storable(told: Any) -> Any:
    """The same with every character written out that jsonb or UTF-8 cannot hold (NUL, lone surrogates).

    An answer of a provider that could not be kept for its text would be an effect without proof.
    """
    if isinstance(told, str):
        return _UNSTORABLE.sub(lambda found: f"⟦U+{ord(found[0]):04X}⟧", told)
    if isinstance(told, dict):
        return {storable(key): storable(value) for key, value in told.items()}
    if isinstance(told, list | tuple):
        return [storable(value) for value in told]
    return told


async def _insert(
    conn: Connection,
    stream: UUID,
    kind: EventKind,
    edge: int | None,
    source: str | None,
    target: str | None,
    fence: int,
    body: dict[str, Any],
) -> tuple[int, bytes]:
    row = await one(
        conn,
        # what the trigger overwrites needs a placeholder to pass `not null`
        "insert into events (stream, number, at, kind, edge, source, target, fence, body, body_digest, previous_hash, hash)"
        " values (%(stream)s, 0, '-infinity', %(kind)s, %(edge)s, %(source)s, %(target)s, %(fence)s, %(body)s, '', '', '')"
        " returning number, hash",
        {
            "stream": stream,
            "kind": kind.value,
            "edge": edge,
            "source": source,
            "target": target,
            "fence": fence,
            "body": body_text(storable(body)),
        },
    )
    return row["number"], row["hash"]


def _event(row: DictRow) -> Event:
    fields: dict[str, Any] = {**row, "kind": EventKind(row["kind"])}
    return Event(**fields)
