"""The inbox: verified events of providers, each kept once, each taken once. They wake operations and move none."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, LiteralString
from uuid import UUID

import psycopg

from ledger.errors import Refused
from ledger.model import InboxEvent, Operation
from ledger.store.database import Connection
from ledger.store.operations import COLUMNS, find, from_row

NOT_BOUND = "EL004"
MOST_ON_TARGET = 100
_BY_RECEIPT: Final[LiteralString] = (
    "select" + COLUMNS + "from operations where (provider, account, receipt) = (%s, %s, %s) and livemode = %s"
)
_OPEN_ON_TARGET: Final[LiteralString] = (
    "select" + COLUMNS + "from operations where (provider, account, livemode, target) = (%s, %s, %s, %s)"
    " and ended_at is null order by proposed_at, operation_id limit %s"
)


@dataclass(frozen=True)
class Untaken:
    """An event in the inbox and its number there."""

    number: int
    event: InboxEvent


async def insert(conn: Connection, event: InboxEvent) -> bool:
    """Keep the event; False when it is there already. Refused: `account_not_bound`.

    Runs under the inbox's role, which reads nothing: hence no conflict target and nothing returned.
    """
    try:
        written = await conn.execute(
            "insert into inbox_events (provider, event_id, account, livemode, type, created_at, receipt, target, marker,"
            " body_digest) values (%(provider)s, %(event_id)s, %(account)s, %(livemode)s, %(type)s, %(created_at)s,"
            " %(receipt)s, %(target)s, %(marker)s, %(body_digest)s) on conflict do nothing",
            vars(event),
        )
    except psycopg.Error as error:
        if error.sqlstate != NOT_BOUND:
            raise
        raise Refused("account_not_bound", str(error.diag.message_primary), field="account") from error
    return written.rowcount == 1


async def untaken(conn: Connection, limit: int) -> list[Untaken]:
    """The oldest events that nobody has taken, in the order in which they came."""
    rows = await (
        await conn.execute(
            "select number, provider, event_id, account, livemode, type, created_at, receipt, target, marker, body_digest"
            " from inbox_events where taken_at is null order by number limit %s",
            [limit],
        )
    ).fetchall()
    return [_untaken(row) for row in rows]


async def take(conn: Connection, number: int, woken: Sequence[UUID]) -> None:
    """Mark an event as taken, with whom it woke; one that is taken already stays as it is."""
    await conn.execute(
        "update inbox_events set woken = %s::uuid[] where number = %s and taken_at is null", [list(woken), number]
    )


async def latest_about(conn: Connection, operation_id: UUID, since: datetime) -> str:
    """The provider's id of the newest event that names this operation and came after `since`; empty if none did."""
    row = await (
        await conn.execute(
            "select event_id from inbox_events where marker = %s and received_at > %s order by received_at desc limit 1",
            [operation_id, since],
        )
    ).fetchone()
    return "" if row is None else str(row["event_id"])


async def forget(conn: Connection, before: datetime) -> int:
    """Delete taken events that came before this moment and at least a month ago (owner's role); how many."""
    gone = await conn.execute(
        "delete from inbox_events where taken_at is not null"
        " and received_at < least(%s, ledger_now() - interval '30 days')",
        [before],
    )
    return gone.rowcount


async def concerned(conn: Connection, event: InboxEvent) -> list[Operation]:
    """Whom the event is a reason to wake: whoever its effect names; else whose receipt it is; else all open on the target.

    In its own account and mode only: the holder of another account can write any marker there.
    """
    if event.marker is not None:
        named = await find(conn, event.marker)
        told = (event.provider, event.account, event.livemode)
        if named is not None and (named.provider, named.account, named.livemode) == told:
            return [named]
    if event.receipt is not None:
        rows = await (
            await conn.execute(_BY_RECEIPT, [event.provider, event.account, event.receipt, event.livemode])
        ).fetchall()
        if rows:
            return [from_row(row) for row in rows]
    if event.target is None:
        return []
    rows = await (
        await conn.execute(
            _OPEN_ON_TARGET, [event.provider, event.account, event.livemode, event.target, MOST_ON_TARGET]
        )
    ).fetchall()
    return [from_row(row) for row in rows]


def _untaken(row: dict[str, Any]) -> Untaken:
    fields: dict[str, Any] = {**row, "body_digest": bytes(row["body_digest"])}
    number: int = fields.pop("number")
    return Untaken(number, InboxEvent(**fields))
