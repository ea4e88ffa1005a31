"""Read-only views for people: what waits, what is in review, what is open."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final, LiteralString
from uuid import UUID

from psycopg.rows import DictRow

from ledger.config import Document, from_canonical
from ledger.errors import Refused
from ledger.model import Operation
from ledger.store.database import Connection
from ledger.store.operations import COLUMNS, from_row

_BY_KEY: Final[LiteralString] = "select" + COLUMNS + "from operations where tenant = %s and business_key = %s"
_BY_PREFIX: Final[LiteralString] = (
    "select" + COLUMNS + "from operations where operation_id::text like %s || '%%' order by proposed_at limit 2"
)
_WAITING: Final[LiteralString] = (
    "select" + COLUMNS + "from operations where state = 'awaiting_approval' order by proposed_at limit %s"
)
_REVIEW: Final[LiteralString] = (
    "select" + COLUMNS + "from operations where state = 'needs_review' or contradicted"
    " or (state = 'unknown' and review_at < ledger_now())"
    " or (state = 'succeeded' and standing = 'pending' and ended_at < ledger_now() - interval '30 days')"
    " order by proposed_at limit %s"
)

_OPEN: Final[LiteralString] = "select" + COLUMNS + "from operations where ended_at is null order by proposed_at"
_RUNNING: Final[LiteralString] = (
    "select" + COLUMNS + "from operations where ended_at is null or next_step = 'follow' order by proposed_at"
)
_APPLIED: Final[LiteralString] = (
    "select v.version, encode(v.digest, 'hex') as digest, v.applied_by, v.applied_at"
    " from config_versions v join config_current c on c.version = v.version"
)
_IN_FORCE: Final[LiteralString] = (
    "select v.version, v.document from config_versions v join config_current c on c.version = v.version"
)


@dataclass(frozen=True)
class Applied:
    """The configuration in force: which one it is, since when, and on whose word."""

    version: int
    digest: str
    applied_by: str
    applied_at: datetime


async def by_key(conn: Connection, tenant: str, business_key: str) -> Operation | None:
    """The operation of this intent."""
    row = await (await conn.execute(_BY_KEY, [tenant, business_key])).fetchone()
    return None if row is None else from_row(row)


async def recorded(conn: Connection, workflow_id: str) -> bool:
    """Whether the ledger has the operation of this workflow id."""
    tenant, _, business_key = workflow_id.partition("/")
    return await by_key(conn, tenant, business_key) is not None


async def by_prefix(conn: Connection, prefix: str) -> list[Operation]:
    """Operations whose id begins so: none, one, or two when the prefix is too short."""
    rows = await (await conn.execute(_BY_PREFIX, [prefix])).fetchall()
    return [from_row(row) for row in rows]


async def awaiting_approval(conn: Connection, limit: int = 200) -> list[Operation]:
    """What waits for people, oldest first."""
    return [from_row(row) for row in await (await conn.execute(_WAITING, [limit])).fetchall()]


async def in_review(conn: Connection, limit: int = 200) -> list[Operation]:
    """What people must look at, oldest first.

    In review; ended with evidence against the end; unknown for longer than its target (machines still work on it); or
    pending at the provider for a month.
    """
    return [from_row(row) for row in await (await conn.execute(_REVIEW, [limit])).fetchall()]


async def overdue(conn: Connection) -> list[DictRow]:
    """Open operations whose next step is overdue by more than a minute: nobody is working on them."""
    return await (
        await conn.execute(
            "select operation_id, tenant, business_key, state, next_step, next_step_at from operations"
            " where (ended_at is null or next_step = 'follow')"
            " and next_step_at < ledger_now() - interval '60 seconds' order by next_step_at"
        )
    ).fetchall()


async def open_workflows(conn: Connection, scope: str, limit: int = 1000) -> list[str]:
    """Workflow ids of operations in a hold's scope that have not ended or follow a pending receipt, for waking them."""
    kind, _, name = scope.partition(":")
    rows = await (
        await conn.execute(
            "select tenant, business_key from operations where (ended_at is null or next_step = 'follow')"
            " and (%(kind)s in ('all', 'restored')"
            " or %(kind)s = 'tenant' and tenant = %(name)s or %(kind)s = 'provider' and provider = %(name)s"
            " or %(kind)s = 'operation' and operation_id::text = %(name)s) order by proposed_at limit %(limit)s",
            {"kind": kind, "name": name, "limit": limit},
        )
    ).fetchall()
    return [f"{row['tenant']}/{row['business_key']}" for row in rows]


async def every_id(conn: Connection) -> list[UUID]:
    """All operations, for verification."""
    rows = await (
        await conn.execute("select operation_id from operations order by proposed_at, operation_id")
    ).fetchall()
    return [row["operation_id"] for row in rows]


async def streams(conn: Connection) -> list[UUID]:
    """Every operation that has events, by the events alone."""
    rows = await (
        await conn.execute(
            "select distinct stream from events where stream not in (select namespace from ledger_identity)"
        )
    ).fetchall()
    return [row["stream"] for row in rows]


async def configuration_in_force(conn: Connection) -> tuple[int, Document]:
    """The version in force and its document, unlocked: for reading only, nothing may be decided on it."""
    row = await (await conn.execute(_IN_FORCE)).fetchone()
    if row is None:
        raise Refused("config_missing", "no configuration is applied: run `effects config apply` with the owner's DSN")
    return row["version"], from_canonical(bytes(row["document"]))


async def applied_configuration(conn: Connection) -> Applied | None:
    """Which configuration is in force; None before the first one."""
    row = await (await conn.execute(_APPLIED)).fetchone()
    return None if row is None else Applied(**row)


async def before_the_end(conn: Connection) -> list[Operation]:
    """Every operation that has not ended, oldest first."""
    return [from_row(row) for row in await (await conn.execute(_OPEN)).fetchall()]


async def with_a_workflow(conn: Connection) -> list[Operation]:
    """Every operation that something is still to be done about: not ended, or its receipt is pending."""
    return [from_row(row) for row in await (await conn.execute(_RUNNING)).fetchall()]


async def contradicted(conn: Connection, operation_id: UUID) -> bool:
    """Whether there is evidence against the end, or against a definite outcome, of the operation."""
    row = await (
        await conn.execute("select contradicted from operations where operation_id = %s", [operation_id])
    ).fetchone()
    return row is not None and bool(row["contradicted"])


async def accepted(conn: Connection, jti: str) -> bool:
    """Whether the statement of this id was accepted."""
    row = await (await conn.execute("select 1 as kept from statements where jti = %s", [jti])).fetchone()
    return row is not None


async def head_at(conn: Connection, operation_id: UUID, number: int) -> bytes | None:
    """The hash of one event of the operation: what a resolution binds to that speaks about everything up to it."""
    row = await (
        await conn.execute("select hash from events where stream = %s and number = %s", [operation_id, number])
    ).fetchone()
    return None if row is None else bytes(row["hash"])


async def schema_versions(conn: Connection) -> list[DictRow]:
    """Applied migrations."""
    return await (
        await conn.execute("select version, name, applied_at from schema_migrations order by version")
    ).fetchall()
