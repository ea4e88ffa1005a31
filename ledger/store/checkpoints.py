"""Checkpoints: the head of every trail, read in one pass; and whether the heads of an old one are still in the trails.

1. The caller's snapshot is what makes the heads those of one moment.
2. Both directions hold a bounded number of rows in memory, whatever the ledger's size.
"""

import hashlib
from collections.abc import AsyncIterator, Sequence
from typing import Any
from uuid import UUID

import psycopg
from psycopg.rows import dict_row

from ledger.checkpoint import Head
from ledger.config import Document, from_canonical
from ledger.errors import Broken
from ledger.store.database import Connection, one

ROWS_AT_ONCE = 2000


async def heads(conn: Connection) -> AsyncIterator[Head]:
    """The ledger's own trail, then every operation's by its id. Run it inside a snapshot: it reads with a cursor."""
    own = await one(conn, "select namespace, event_count, head_hash from ledger_identity")
    yield Head(own["namespace"], own["event_count"], bytes(own["head_hash"]))
    async with psycopg.AsyncServerCursor(conn, "heads", row_factory=dict_row) as cursor:
        cursor.itersize = ROWS_AT_ONCE
        await cursor.execute("select operation_id, event_count, head_hash from operations order by operation_id")
        async for row in cursor:
            yield Head(row["operation_id"], row["event_count"], bytes(row["head_hash"]))


async def gone(conn: Connection, some: Sequence[Head]) -> list[Head]:
    """Those of these heads, in their order, that no event of their trail has at their number any more."""
    wanted: dict[str, Any] = {
        "streams": [head.stream for head in some],
        "numbers": [head.events for head in some],
        "hashes": [head.head for head in some],
    }
    rows = await (
        await conn.execute(
            "select w.place from unnest(%(streams)s::uuid[], %(numbers)s::bigint[], %(hashes)s::bytea[])"
            " with ordinality as w (stream, number, hash, place)"
            " left join events as e on e.stream = w.stream and e.number = w.number"
            " where e.hash is distinct from w.hash order by w.place",
            wanted,
        )
    ).fetchall()
    return [some[row["place"] - 1] for row in rows]


async def namespace_and_configuration(conn: Connection, version: int) -> tuple[UUID, bytes, Document]:
    """This ledger's namespace; and the digest and content of one version's document. `Broken` if it is missing."""
    row = await (
        await conn.execute(
            "select namespace, document from ledger_identity, config_versions where version = %s", [version]
        )
    ).fetchone()
    if row is None:
        raise Broken(f"configuration {version}, by whose keys it was signed, is missing")
    document = bytes(row["document"])
    return row["namespace"], hashlib.sha256(document).digest(), from_canonical(document)
