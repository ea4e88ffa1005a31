"""Brings a database to the schema of this code: numbered SQL files, upwards only, one transaction a file, under an advisory lock.

Two callers at once: the second waits and finds nothing to do. One killed half-way: its session's lock dies with it and its
file rolls back; the next call goes on there. Needs the owner's role and a direct connection (no transaction pooling).
"""

import hashlib
import re
from dataclasses import dataclass
from importlib import resources
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from ledger.errors import Refused, Unavailable

ADVISORY_LOCK = 0x45_4C_31  # "EL1"


@dataclass(frozen=True)
class Migration:
    """One file: its number, name and text."""

    version: int
    name: str
    sql: bytes

    @property
    def sha256(self) -> str:
        """Digest by which an edited file is noticed."""
        return hashlib.sha256(self.sql).hexdigest()


def migrations() -> list[Migration]:
    """All migrations of this code, in order; numbers run from 1 without gaps."""
    found = []
    for entry in sorted((resources.files("ledger.store") / "migrations").iterdir(), key=lambda e: e.name):
        if (match := re.fullmatch(r"(\d{4})_(\w+)\.sql", entry.name)) is not None:
            found.append(Migration(int(match[1]), match[2], entry.read_bytes()))
    if [m.version for m in found] != list(range(1, len(found) + 1)):
        raise Refused("migrations_gap", "migration files must be numbered 0001, 0002, … without gaps")
    return found


async def migrate(owner_dsn: str, *, test_clock: bool = False) -> list[int]:
    """Apply what is missing and return the applied versions. `test_clock` adds the movable clock of a dev stack."""
    wanted = migrations()
    try:
        async with await psycopg.AsyncConnection.connect(owner_dsn, autocommit=True, connect_timeout=10) as conn:
            return await _apply(conn, wanted, test_clock=test_clock)
    except psycopg.errors.InsufficientPrivilege as error:
        raise Refused("not_the_owner", f"migrate with the owner's DSN (EFFECTS_OWNER_DSN): {error}") from error
    except psycopg.OperationalError as error:
        raise Unavailable(f"the ledger's Postgres did not answer: {error}") from error


async def _apply(conn: psycopg.AsyncConnection[Any], wanted: list[Migration], *, test_clock: bool) -> list[int]:
    await conn.execute("set lock_timeout = '60s'")
    await conn.execute("select pg_advisory_lock(%s)", [ADVISORY_LOCK])
    await conn.execute(
        "create table if not exists schema_migrations ("
        " version int primary key, name text not null, sha256 text not null,"
        " applied_at timestamptz not null default clock_timestamp())"
    )
    missing = await _missing(conn, wanted)
    for migration in missing:
        async with conn.transaction():
            await conn.execute(migration.sql)
            await conn.execute(
                "insert into schema_migrations (version, name, sha256) values (%s, %s, %s)",
                [migration.version, migration.name, migration.sha256],
            )
    if test_clock:
        await conn.execute("insert into clock default values on conflict do nothing")
    return [m.version for m in missing]


async def check(conn: psycopg.AsyncConnection[Any]) -> None:
    """Raise `Refused` unless the database stands exactly at this code's schema."""
    wanted = migrations()
    cursor = conn.cursor(row_factory=tuple_row)
    found = await (await cursor.execute("select to_regclass('schema_migrations') is not null")).fetchone()
    if found is None or not found[0]:
        raise Refused("schema_missing", "the database holds no ledger: run `effects migrate` with the owner's DSN")
    if missing := await _missing(conn, wanted):
        raise Refused(
            "schema_behind",
            f"the database lacks migration {missing[0].version:04d}_{missing[0].name}: run `effects migrate`",
        )


async def _missing(conn: psycopg.AsyncConnection[Any], wanted: list[Migration]) -> list[Migration]:
    """What is still to be applied; `Refused` when the database is newer than the code or an applied file was edited."""
    cursor = conn.cursor(row_factory=tuple_row)
    rows = await (
        await cursor.execute("select version, name, sha256 from schema_migrations order by version")
    ).fetchall()
    by_version = {m.version: m for m in wanted}
    for version, name, sha256 in rows:
        migration = by_version.get(version)
        if migration is None:
            raise Refused(
                "schema_ahead",
                f"the database has migration {version:04d}_{name}, which this code does not know: upgrade",
            )
        if migration.sha256 != sha256:
            raise Refused(
                "migration_edited", f"{version:04d}_{name}.sql was changed after it was applied: restore the file"
            )
    applied = {row[0] for row in rows}
    return [m for m in wanted if m.version not in applied]
