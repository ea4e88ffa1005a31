"""Configuration versions: immutable documents; one is in force. Written by the owner's role only."""

import hashlib

from ledger.config import Document, from_canonical
from ledger.config_check import diff
from ledger.errors import Refused
from ledger.store import events
from ledger.store.database import Connection, now, one
from ledger.trail import EventKind


async def in_force(conn: Connection) -> tuple[int, Document]:
    """The version in force and its document, locked `for share`: a change waits for this transaction or is seen by it."""
    row = await one(conn, "select lock_config() as version")
    if row["version"] is None:
        raise Refused("config_missing", "no configuration is applied: run `effects config apply` with the owner's DSN")
    return row["version"], await document(conn, row["version"])


async def document(conn: Connection, version: int) -> Document:
    """The document of one version."""
    row = await one(conn, "select document from config_versions where version = %s", [version])
    return from_canonical(bytes(row["document"]))


async def apply(conn: Connection, new: Document, applied_by: str) -> int:
    """Make a document the version in force and tell it in the trail. The same document again changes nothing.

    Who: `applied_by` is whom the caller names, `login` whom Postgres let in. What: every change to the version before.
    """
    canonical = new.to_canonical()
    digest = hashlib.sha256(canonical).digest()
    await conn.execute("lock table config_versions in share row exclusive mode")
    latest = await (
        await conn.execute("select version, digest, document from config_versions order by version desc limit 1")
    ).fetchone()
    if latest is not None and bytes(latest["digest"]) == digest:
        return int(latest["version"])
    version = 1 if latest is None else int(latest["version"]) + 1
    # the lock on the row in force is what makes running claims finish first
    await conn.execute("select 1 from config_current for update")
    await conn.execute(
        "insert into config_versions (version, digest, document, applied_by, applied_at) values (%s, %s, %s, %s, %s)",
        [version, digest, canonical, applied_by, await now(conn)],
    )
    await conn.execute(
        "insert into config_current (version) values (%s) on conflict (singleton) do update set version = excluded.version",
        [version],
    )
    before = None if latest is None else from_canonical(bytes(latest["document"]))
    body = {
        "version": version,
        "digest": digest.hex(),
        "applied_by": applied_by,
        "login": (await one(conn, "select session_user as login"))["login"],
        "changes": ["the first configuration"] if before is None else diff(before, new),
    }
    await events.append_to_ledger(conn, EventKind.CONFIG_APPLIED, body)
    return version
