"""Statements and sheets: what people signed, kept as the exact bytes, with the proof and the configuration of their day."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, LiteralString
from uuid import UUID

from psycopg.rows import DictRow

from ledger.errors import Refused
from ledger.store.database import Connection, one

_COLUMNS: Final[LiteralString] = (
    " jti, operation_id, scope, typ, decision, person, kid, statement, scheme, proof, sheet, trail_head, config_version,"
    " accepted_at "
)


@dataclass(frozen=True)
class Statement:
    """One accepted statement."""

    jti: str
    operation_id: UUID | None
    scope: str
    typ: str
    decision: str
    person: str
    kid: str
    statement: bytes
    scheme: str
    proof: str
    sheet: bytes | None
    trail_head: bytes | None
    config_version: int
    accepted_at: datetime


async def accept(conn: Connection, statement: Statement) -> bool:
    """Keep a verified statement. False when the same sentence was kept before (a success); other bytes are refused."""
    inserted = await (
        await conn.execute(
            "insert into statements (jti, operation_id, scope, typ, decision, person, kid, statement, scheme, proof,"
            " sheet, trail_head, config_version, accepted_at) values (%(jti)s, %(operation_id)s, %(scope)s, %(typ)s,"
            " %(decision)s, %(person)s, %(kid)s, %(statement)s, %(scheme)s, %(proof)s, %(sheet)s, %(trail_head)s,"
            " %(config_version)s, %(accepted_at)s) on conflict (jti) do nothing returning jti",
            vars(statement),
        )
    ).fetchone()
    if inserted is not None:
        return True
    kept = await one(conn, "select statement from statements where jti = %s", [statement.jti])
    if bytes(kept["statement"]) != statement.statement:
        raise Refused("jti_used", f"the id {statement.jti} names another statement: sign again", field="jti")
    return False


async def of_operation(conn: Connection, operation_id: UUID) -> list[Statement]:
    """All accepted statements about the operation, oldest first."""
    rows = await (
        await conn.execute(
            "select" + _COLUMNS + "from statements where operation_id = %s order by accepted_at, jti", [operation_id]
        )
    ).fetchall()
    return [_statement(row) for row in rows]


async def of_scope(conn: Connection, scope: str, since: datetime | None) -> list[Statement]:
    """Accepted holds and releases of a scope, oldest first; with `since`, the hold of that moment and what came after it.

    A release of that very moment came before: where the wall clock was set back, ledger time goes on by microseconds.
    """
    rows = await (
        await conn.execute(
            "select" + _COLUMNS + "from statements where scope = %(scope)s and (%(since)s::timestamptz is null"
            " or accepted_at > %(since)s or (accepted_at = %(since)s and typ = 'hold')) order by accepted_at, jti",
            {"scope": scope, "since": since},
        )
    ).fetchall()
    return [_statement(row) for row in rows]


async def every(conn: Connection) -> list[Statement]:
    """All statements of the ledger, for verification."""
    rows = await (await conn.execute("select" + _COLUMNS + "from statements order by accepted_at, jti")).fetchall()
    return [_statement(row) for row in rows]


async def token_refusal(conn: Connection, iat: int, exp: int, longest_seconds: int) -> str:
    """Why a token's times do not fit the ledger's time now (120 s leeway); empty when they do."""
    row = await one(conn, "select token_refusal(%s, %s, %s) as why", [iat, exp, longest_seconds])
    return str(row["why"])


async def add_sheet(conn: Connection, operation_id: UUID, digest: bytes, document: bytes, now: datetime) -> None:
    """Keep a sheet that approvers may sign on."""
    await conn.execute(
        "insert into sheets (digest, operation_id, document, made_at) values (%s, %s, %s, %s) on conflict do nothing",
        [digest, operation_id, document, now],
    )


async def latest_sheet(conn: Connection, operation_id: UUID) -> bytes | None:
    """The newest sheet of the operation."""
    row = await (
        await conn.execute(
            "select document from sheets where operation_id = %s order by made_at desc limit 1", [operation_id]
        )
    ).fetchone()
    return None if row is None else bytes(row["document"])


async def made_sheet(conn: Connection, operation_id: UUID, digest: bytes) -> bool:
    """Whether this sheet was made by the ledger for this operation."""
    row = await one(
        conn,
        "select exists (select from sheets where operation_id = %s and digest = %s) as made",
        [operation_id, digest],
    )
    return bool(row["made"])


def _statement(row: DictRow) -> Statement:
    fields: dict[str, Any] = dict(row)
    for name in ("statement", "sheet", "trail_head"):
        fields[name] = None if fields[name] is None else bytes(fields[name])
    return Statement(**fields)
