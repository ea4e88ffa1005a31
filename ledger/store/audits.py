"""The audit's memory: where each listing stands, what does not fit, and which audits ran."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, LiteralString
from uuid import UUID

from psycopg.rows import DictRow

from ledger.audit import Finding, FindingKind, ListedEffect
from ledger.model import Operation
from ledger.store.database import Connection, one
from ledger.store.operations import COLUMNS, from_row

_NAMED: Final[LiteralString] = (
    "select" + COLUMNS + "from operations where operation_id = any(%(ids)s)"
    " and (action, provider, account, livemode) = (%(action)s, %(provider)s, %(account)s, %(livemode)s)"
)
_HOLDERS: Final[LiteralString] = (
    "select" + COLUMNS + "from operations where receipt = any(%(receipts)s)"
    " and (provider, account, livemode) = (%(provider)s, %(account)s, %(livemode)s)"
)


@dataclass(frozen=True)
class Place:
    """One listing: the effects of an action in one account and mode. Its credential is any tenant's that is bound to it."""

    action: str
    provider: str
    account: str
    livemode: bool

    def __str__(self) -> str:
        return f"{self.action} at {self.provider} {self.account}{'' if self.livemode else ' (test mode)'}"


NOWHERE = Place("", "", "", False)  # of findings that concern Temporal
ITSELF = Place("verify", "ledger", "", False)  # of the ledger against its own chains


@dataclass(frozen=True)
class Bookmark:
    """How far a listing came: everything before `since` was compared, and `go_on` is where its next page begins."""

    since: datetime | None
    began_at: datetime
    go_on: str


async def take_up(conn: Connection, place: Place) -> Bookmark:
    """Where the listing stands; one that is not under way begins now."""
    row = await one(
        conn,
        "insert into audit_places as p (action, provider, account, livemode, began_at)"
        " values (%(action)s, %(provider)s, %(account)s, %(livemode)s, ledger_now())"
        " on conflict (action, provider, account, livemode) do update set began_at = coalesce(p.began_at, ledger_now())"
        " returning listed_until, began_at, go_on",
        vars(place),
    )
    return Bookmark(row["listed_until"], row["began_at"], row["go_on"])


async def go_on(conn: Connection, place: Place, began_at: datetime, where: str) -> None:
    """Remember where the next page of the listing that began then begins; a later one is left alone."""
    await conn.execute(
        "update audit_places set go_on = %(where)s where began_at = %(began_at)s"
        " and (action, provider, account, livemode) = (%(action)s, %(provider)s, %(account)s, %(livemode)s)",
        {**vars(place), "where": where, "began_at": began_at},
    )


async def finish(conn: Connection, place: Place, began_at: datetime) -> None:
    """The listing that began then came to its end: the next one lists what was made since."""
    await conn.execute(
        "update audit_places set listed_until = began_at, began_at = null, go_on = '' where began_at = %(began_at)s"
        " and (action, provider, account, livemode) = (%(action)s, %(provider)s, %(account)s, %(livemode)s)",
        {**vars(place), "began_at": began_at},
    )


async def named_and_held(
    conn: Connection, place: Place, effects: Sequence[ListedEffect]
) -> tuple[dict[UUID, Operation], dict[str, Operation]]:
    """The operations that these effects name, by id, and those that hold their receipts, by receipt."""
    asked = {
        **vars(place),
        "ids": [effect.marker for effect in effects if effect.marker is not None],
        "receipts": [effect.receipt for effect in effects],
    }
    named = [from_row(row) for row in await (await conn.execute(_NAMED, asked)).fetchall()]
    holders = [from_row(row) for row in await (await conn.execute(_HOLDERS, asked)).fetchall()]
    return {o.operation_id: o for o in named}, {o.receipt: o for o in holders if o.receipt is not None}


async def receipts_counted(conn: Connection, place: Place, since: datetime | None, until: datetime) -> set[str]:
    """The receipts of operations that ended with an effect in [since, until), and count it."""
    asked = {**vars(place), "since": since or datetime.min.replace(tzinfo=until.tzinfo), "until": until}
    rows = await (
        await conn.execute(
            "select receipt from operations where state = 'succeeded' and standing <> 'void'"
            " and (action, provider, account, livemode) = (%(action)s, %(provider)s, %(account)s, %(livemode)s)"
            " and ended_at >= %(since)s and ended_at < %(until)s",
            asked,
        )
    ).fetchall()
    return {row["receipt"] for row in rows}


async def next_ids(conn: Connection, after: str, limit: int) -> list[UUID]:
    """The operations that follow this id (none: from the first), in the order of their ids."""
    rows = await (
        await conn.execute(
            "select operation_id from operations where operation_id > %s order by operation_id limit %s",
            [UUID(after) if after else UUID(int=0), limit],
        )
    ).fetchall()
    return [row["operation_id"] for row in rows]


async def keep(conn: Connection, place: Place, found: Iterable[Finding]) -> list[Finding]:
    """Keep what was found; returns what was not known. A finding that is open already gets its new words."""
    new = []
    for finding in found:
        row = await one(
            conn,
            "insert into audit_findings as f (kind, name, action, provider, account, livemode, operation_id, what)"
            " values (%(kind)s, %(name)s, %(action)s, %(provider)s, %(account)s, %(livemode)s, %(operation_id)s, %(what)s)"
            " on conflict (kind, name, action, account, livemode) where gone_at is null do update set what = excluded.what"
            " returning xmax = 0 as inserted",
            {**vars(place), **vars(finding)},
        )
        if row["inserted"]:
            new.append(finding)
    return new


async def open_at(conn: Connection, place: Place) -> list[Finding]:
    """What does not fit there, oldest first."""
    rows = await (
        await conn.execute(
            "select kind, name, what, operation_id from audit_findings where gone_at is null"
            " and (action, provider, account, livemode) = (%(action)s, %(provider)s, %(account)s, %(livemode)s)"
            " order by number",
            vars(place),
        )
    ).fetchall()
    return [Finding(FindingKind(row["kind"]), row["name"], row["what"], row["operation_id"]) for row in rows]


async def fit_now(conn: Connection, place: Place, findings: Iterable[Finding]) -> None:
    """These were looked for again, and fit now."""
    for finding in findings:
        await conn.execute(
            "update audit_findings set gone_at = ledger_now() where gone_at is null and kind = %(kind)s and name = %(name)s"
            " and (action, account, livemode) = (%(action)s, %(account)s, %(livemode)s)",
            {**vars(place), **vars(finding)},
        )


@dataclass(frozen=True)
class Start:
    """Where an audit began: nothing that it reads is older."""

    incarnation: int
    at: datetime


@dataclass(frozen=True)
class Report:
    """What became of one audit. `complete`: every listing was read to its end; else `left_out` says which were not."""

    number: int
    incarnation: int
    began_at: datetime
    ended_at: datetime
    listed: int  # effects that were compared
    complete: bool
    left_out: str


async def start(conn: Connection) -> Start:
    """Ask this before anything else is read."""
    row = await one(conn, "select incarnation, ledger_now() as at from ledger_identity")
    return Start(**row)


async def record(conn: Connection, start: Start, listed: int, left_out: Sequence[str]) -> None:
    """Keep an audit that ends now: how many effects it compared, and which listings it could not read to their end."""
    await conn.execute(
        "insert into audits (incarnation, began_at, listed, complete, left_out) values (%s, %s, %s, %s, %s)",
        [start.incarnation, start.at, listed, not left_out, "; ".join(left_out)[:2000]],
    )


async def latest(conn: Connection) -> Report | None:
    """The one that ended last; None before the first."""
    row = await (
        await conn.execute(
            "select number, incarnation, began_at, ended_at, listed, complete, left_out from audits"
            " order by number desc limit 1"
        )
    ).fetchone()
    return None if row is None else Report(**row)


async def open_findings(conn: Connection) -> list[DictRow]:
    """Everything that does not fit, oldest first: number, kind, name, where, what, operation_id, found_at."""
    return await (
        await conn.execute(
            "select number, kind, name, action, provider, account, livemode, what, operation_id, found_at"
            " from audit_findings where gone_at is null order by number"
        )
    ).fetchall()
