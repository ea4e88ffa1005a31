"""The lives of this ledger: a restore from a backup begins a new one, and nothing is sent until people have released it."""

from dataclasses import dataclass

from ledger.store import events, holds
from ledger.store.database import Connection, now, one
from ledger.trail import EventKind


@dataclass(frozen=True)
class Incarnation:
    """Which life this is, and whether the ledger still lives in the database that it was recorded for."""

    number: int
    at_home: bool


async def current(conn: Connection) -> Incarnation:
    """The incarnation as recorded; away from home, the database was restored and nobody has said so yet."""
    row = await one(conn, "select incarnation as number, at_home() as at_home from ledger_identity")
    return Incarnation(**row)


async def begin(conn: Connection, by: str, reason: str) -> int:
    """Begin the next incarnation here, with everything held (owner's role); returns its number. Claims that run end first."""
    await holds.locked(conn, holds.RESTORED)  # the hold before the ledger's own stream, as a release locks them
    row = await one(
        conn,
        "with old as (select singleton, incarnation, home from ledger_identity for update)"
        " update ledger_identity as new set incarnation = old.incarnation + 1, home = ledger_home()"
        " from old where new.singleton = old.singleton"
        " returning new.incarnation, new.home, old.home as before",
    )
    # A listing that was under way begins anew: what was made since the backup stands on pages that it had turned already.
    await conn.execute("update audit_places set began_at = null, go_on = ''")
    told = f"restored: {reason} (said by {by})"
    await holds.put(conn, holds.RESTORED, held=True, since=await now(conn), jti=None, reason=told)
    body = {"incarnation": row["incarnation"], "by": by, "reason": reason, "home": row["home"], "before": row["before"]}
    await events.append_to_ledger(conn, EventKind.RESTORED, body)
    return int(row["incarnation"])
