"""The ledger's database: read-only snapshots on one connection, the owner's transaction, and what Postgres says."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import dict_row

from commands.exits import Silent
from ledger.errors import Broken, Refused
from ledger.model import Operation
from ledger.store import views
from ledger.store.database import Connection, Ledger

CONNECT_SECONDS = 5  # per address that the name stands for
LONGEST_CONNECT_SECONDS = 9.0
_PREFIX = re.compile(r"[0-9a-f][0-9a-f-]{3,35}")


class Reader:
    """One connection that cannot write. Each snapshot is consistent in itself."""

    def __init__(self, conn: Connection, address: str) -> None:
        self._conn = conn
        self._address = address

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[Connection]:
        """One moment of the ledger."""
        try:
            async with self._conn.transaction():
                yield self._conn
        except psycopg.errors.UndefinedTable as error:
            raise Refused("schema_missing", "that database holds no ledger: `effects migrate`") from error
        except psycopg.errors.InsufficientPrivilege as error:
            raise Refused("login_too_weak", "this login may not read the ledger: use the reader's") from error
        except psycopg.OperationalError as error:
            raise Silent("Postgres", self._address, first_line(error)) from error
        except psycopg.Error as error:
            raise Broken(f"{error.sqlstate}: {first_line(error)}") from error


@asynccontextmanager
async def reading(dsn: str) -> AsyncIterator[Reader]:
    """A reader; `Silent` with the address within ten seconds when Postgres does not answer."""
    conn, address = await _connected(dsn)
    try:
        await conn.set_read_only(True)
        await conn.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
        yield Reader(conn, address)
    finally:
        await conn.close()


@asynccontextmanager
async def writing(dsn: str) -> AsyncIterator[Connection]:
    """One transaction: with the owner's DSN for what workers must not do. Ask `probe` before: this waits longer."""
    ledger = Ledger(dsn, max_size=1)
    await ledger.open()
    try:
        async with ledger.transaction() as conn:
            yield conn
    finally:
        await ledger.close()


async def probe(dsn: str) -> None:
    """Return only if Postgres lets us in: before anything that would wait longer for it."""
    conn, _ = await _connected(dsn)
    await conn.close()


async def _connected(dsn: str) -> tuple[Connection, str]:
    address = address_of(dsn)
    try:
        async with asyncio.timeout(LONGEST_CONNECT_SECONDS):
            conn = await psycopg.AsyncConnection.connect(
                dsn, autocommit=True, connect_timeout=CONNECT_SECONDS, row_factory=dict_row
            )
    except TimeoutError as error:
        raise Silent("Postgres", address, f"nothing within {LONGEST_CONNECT_SECONDS:g} s", "is it up?") from error
    except psycopg.OperationalError as error:
        raise Silent("Postgres", address, first_line(error), "is it up, and is the login right?") from error
    return conn, address


def address_of(dsn: str) -> str:
    """host:port of a DSN, for messages. Refused: `dsn_malformed`; what it holds is never repeated, for the password."""
    try:
        parts = conninfo_to_dict(dsn)
    except psycopg.Error:
        raise Refused("dsn_malformed", "write the DSN as postgresql://user:password@host:port/database") from None
    hosts = str(parts.get("host") or "localhost").split(",")
    ports = str(parts.get("port") or "5432").split(",")
    return ",".join(f"{host}:{ports[min(n, len(ports) - 1)]}" for n, host in enumerate(hosts))


def first_line(error: Exception) -> str:
    """What libpq says, on one line; it never says a password."""
    lines = str(error).strip().splitlines()
    return lines[0].strip() if lines else type(error).__name__


async def named(conn: Connection, name: str) -> Operation:
    """The operation of an id, a unique beginning of one (at least four characters), or tenant/business-key.

    Refused: `operation_unknown`, `operation_ambiguous`, `name_malformed`.
    """
    tenant, slash, key = name.partition("/")
    if slash:
        found = await views.by_key(conn, tenant, key)
        if found is None:
            raise Refused("operation_unknown", f"{tenant} has no operation under the key {key}", field="operation")
        return found
    if not _PREFIX.fullmatch(name.lower()):
        wanted = "name an operation by its id, at least 4 characters of it, or tenant/business-key"
        raise Refused("name_malformed", wanted, field="operation")
    fitting = await views.by_prefix(conn, name.lower())
    if len(fitting) > 1:
        raise Refused("operation_ambiguous", f"{name} begins several ids: give more of it", field="operation")
    if not fitting:
        raise Refused("operation_unknown", f"no operation's id begins with {name}", field="operation")
    return fitting[0]
