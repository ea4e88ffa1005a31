"""Holds: sending stopped for an operation, a provider, a tenant or everything. Claims lock the rows `for share`.

The scope `restored` stops everything too. It holds while people have not released it, and by itself while the database is
not the one that the ledger was recorded for.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from psycopg.rows import DictRow

from ledger.model import Operation
from ledger.store.database import Connection, one

RESTORED = "restored"
UNSAID = "restored: this is not the database that it was; say so with `effects restored` (docs/restore.md)"


@dataclass(frozen=True)
class Hold:
    """A scope on which sending is or was stopped."""

    scope: str
    held: bool
    since: datetime | None
    reason: str


def scopes_of(operation: Operation) -> list[str]:
    """Every scope that can stop this operation, in lock order."""
    own = [f"tenant:{operation.tenant}", f"provider:{operation.provider}", f"operation:{operation.operation_id}"]
    return sorted(["all", RESTORED, *own])


async def ensure(conn: Connection, scopes: Sequence[str]) -> None:
    """Make the rows exist, so that there is something to lock before anybody ever held the scope."""
    for scope in sorted(scopes):
        await conn.execute("insert into holds (scope) values (%s) on conflict do nothing", [scope])


async def in_force(conn: Connection, operation: Operation) -> list[Hold]:
    """Holds that stop this operation, locked `for share`: a new hold waits for this transaction or is seen by it."""
    scopes = scopes_of(operation)
    # A hold on one operation takes that operation's lock first, which a claim has; the wider scopes need a row to lock.
    await ensure(conn, [s for s in scopes if not s.startswith("operation:")])
    rows = await (
        await conn.execute(
            "select scope, held, since, reason, scope = 'restored' and not at_home() as away"
            " from holds where scope = any(%s) order by scope for share",
            [scopes],
        )
    ).fetchall()
    return [_hold(row) for row in rows if row["held"] or row["away"]]


async def locked(conn: Connection, scope: str) -> Hold:
    """One scope under its row lock."""
    await ensure(conn, [scope])
    row = await one(
        conn,
        "select scope, held, since, reason, scope = 'restored' and not at_home() as away"
        " from holds where scope = %s for update",
        [scope],
    )
    return _hold(row)


async def put(
    conn: Connection, scope: str, *, held: bool, since: datetime | None, jti: str | None, reason: str
) -> None:
    """Set or lift the hold on a scope, by the statement `jti`; a restore holds without one."""
    await conn.execute(
        "update holds set held = %s, since = %s, statement = %s, reason = %s where scope = %s",
        [held, since, jti, reason, scope],
    )


async def current(conn: Connection) -> list[Hold]:
    """All holds in force."""
    rows = await (
        await conn.execute(
            "select scope, held, since, reason, scope = 'restored' and not at_home() as away"
            " from holds where held or (scope = 'restored' and not at_home()) order by scope"
        )
    ).fetchall()
    return [_hold(row) for row in rows]


def _hold(row: DictRow) -> Hold:
    """Away from home, what was said about an earlier home counts no more."""
    if row["away"]:
        return Hold(row["scope"], held=True, since=None, reason=UNSAID)
    return Hold(row["scope"], row["held"], row["since"], row["reason"])
