"""Everything that the ledger holds about one operation, read as it is stored; `ledger.evidence` makes the bundle of it."""

from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg.rows import DictRow

from ledger.evidence import Rows, StoredEvent, Trail
from ledger.store.database import Connection, one


async def rows_of(conn: Connection, operation_id: UUID) -> Rows:
    """Its row, trail, statements and sheets, the ledger's own trail, and every configuration. Run it in a snapshot."""
    own = await one(conn, "select namespace, event_count, head_hash from ledger_identity")
    row = await one(
        conn,
        "select canonical, token, state, receipt, standing, contradicted, config_version,"
        " frozen_request::text as frozen_request, frozen_contract::text as frozen_contract, event_count, head_hash"
        " from operations where operation_id = %s",
        [operation_id],
    )
    documents = await (await conn.execute("select version, document from config_versions")).fetchall()
    signed = await (
        await conn.execute(
            "select jti, statement, scheme, proof from statements where operation_id = %s", [operation_id]
        )
    ).fetchall()
    sheets = await (
        await conn.execute("select document from sheets where operation_id = %s", [operation_id])
    ).fetchall()
    looks = await (
        await conn.execute("select number, detail from sightings where operation_id = %s", [operation_id])
    ).fetchall()
    return Rows(
        own=await _trail(conn, own["namespace"], own),
        trail=await _trail(conn, operation_id, row),
        canonical=bytes(row["canonical"]),
        token=row["token"],
        state=row["state"],
        receipt=row["receipt"],
        standing=row["standing"],
        contradicted=row["contradicted"],
        config_version=row["config_version"],
        frozen_request=row["frozen_request"],
        frozen_contract=row["frozen_contract"],
        statements=[(s["jti"], bytes(s["statement"]), s["scheme"], s["proof"]) for s in signed],
        sheets=[bytes(sheet["document"]) for sheet in sheets],
        documents={d["version"]: bytes(d["document"]) for d in documents},
        looks={look["number"]: look["detail"] for look in looks if look["detail"]},
        late_sends=await _late_sends(conn, operation_id),
    )


async def _late_sends(conn: Connection, operation_id: UUID) -> dict[int, datetime]:
    rows = await (
        await conn.execute(
            "select number, late_send_at from attempts where operation_id = %s and late_send_at is not null"
            " order by number",
            [operation_id],
        )
    ).fetchall()
    return {row["number"]: row["late_send_at"] for row in rows}


async def _trail(conn: Connection, stream: UUID, head: DictRow) -> Trail:
    rows = await (
        await conn.execute(
            "select number, at, kind, edge, source, target, fence, body, body_digest, hash from events"
            " where stream = %s order by number",
            [stream],
        )
    ).fetchall()
    return Trail(stream, head["event_count"], bytes(head["head_hash"]), [_event(row) for row in rows])


def _event(row: DictRow) -> StoredEvent:
    fields: dict[str, Any] = {**row, "body_digest": bytes(row["body_digest"]), "hash": bytes(row["hash"])}
    return StoredEvent(**fields)
