"""Audits that came to their end: after a restore, the release asks whether there was one in this incarnation."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ledger.store.database import Connection, one


@dataclass(frozen=True)
class Began:
    """The beginning of an audit: nothing that it reads is older."""

    incarnation: int
    at: datetime


@dataclass(frozen=True)
class Audit:
    """One audit. `complete` means that everything which was to be compared could be read."""

    number: int
    incarnation: int
    started_at: datetime
    finished_at: datetime
    compared: int
    findings: int
    complete: bool


async def begin(conn: Connection) -> Began:
    """Ask this before anything else is read."""
    row = await one(conn, "select incarnation, ledger_now() as at from ledger_identity")
    return Began(**row)


async def record(conn: Connection, began: Began, *, compared: int, findings: int, complete: bool) -> None:
    """Keep an audit that ends now (worker's role)."""
    await conn.execute(
        "insert into audits (incarnation, started_at, finished_at, compared, findings, complete)"
        " values (%s, %s, '-infinity', %s, %s, %s)",
        [began.incarnation, began.at, compared, findings, complete],
    )


async def latest(conn: Connection) -> Audit | None:
    """The audit that ended last; None before the first."""
    row = await (
        await conn.execute(
            "select number, incarnation, started_at, finished_at, compared, findings, complete from audits"
            " order by number desc limit 1"
        )
    ).fetchone()
    if row is None:
        return None
    fields: dict[str, Any] = dict(row)
    return Audit(**fields)
