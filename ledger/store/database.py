"""The connection pool, transactions, and the only translation of psycopg's errors into the ledger's."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import DictRow, dict_row
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from ledger.errors import Broken, Unavailable
from ledger.store.facts import Counting, gathered

Connection = psycopg.AsyncConnection[DictRow]


class Ledger:
    """The ledger's database. Open it once per process; every use is one short transaction without network calls inside."""

    def __init__(
        self, dsn: str, *, max_size: int = 10, timeout: float = 2.0, count: Counting = lambda told: None
    ) -> None:
        """`count` hears what each transaction told the trail, after its commit was acknowledged."""
        self._timeout = timeout
        self._count = count
        self._pool: AsyncConnectionPool[Connection] = AsyncConnectionPool(
            dsn,
            min_size=1,
            max_size=max_size,
            timeout=timeout,
            open=False,
            check=self._answers,
            kwargs={"row_factory": dict_row, "autocommit": True},
            connection_class=psycopg.AsyncConnection[DictRow],
        )

    async def open(self, within: float = 10.0) -> None:
        """Connect; `Unavailable` when Postgres does not answer within so many seconds. A start may take longer than a use."""
        try:
            await self._pool.open(wait=True, timeout=within)
        except (PoolTimeout, psycopg.OperationalError) as error:
            raise Unavailable(f"the ledger's Postgres did not answer: {error}") from error

    async def close(self) -> None:
        """Close all connections."""
        await self._pool.close()

    async def _answers(self, conn: Connection) -> None:
        """Whether this connection still works. Bounded here: the pool's own patience does not cover its check."""
        async with asyncio.timeout(self._timeout):
            await self._pool.check_connection(conn)

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[Connection]:
        """One transaction. If its commit was not acknowledged this raises `Unavailable`: assume neither way."""
        try:
            with gathered() as told:
                async with self._pool.connection() as conn, conn.transaction():
                    await conn.execute("set local lock_timeout = '10s'")
                    yield conn
        except (PoolTimeout, psycopg.OperationalError) as error:
            raise Unavailable(f"the ledger's Postgres did not answer: {error}") from error
        except psycopg.Error as error:
            raise _translated(error) from None  # its detail quotes whole rows
        self._count(told)

    def pool_numbers(self) -> dict[str, int]:
        """The pool's own numbers now, and what it counted since they were asked for last (psycopg_pool's names)."""
        return dict(self._pool.pop_stats())


async def now(conn: Connection) -> datetime:
    """The ledger's time. Call it after the locks that the decision needs."""
    return (await one(conn, "select ledger_now() as now"))["now"]  # type: ignore[no-any-return]


async def one(conn: Connection, query: Any, parameters: Any = None) -> DictRow:
    """The one row of a query that must have one."""
    row = await (await conn.execute(query, parameters)).fetchone()
    if row is None:
        raise Broken("a query that must have a row had none")
    return row


def _translated(error: psycopg.Error) -> Exception:
    """What a refusal of the database means to the ledger."""
    if error.sqlstate in ("40001", "40P01", "25006"):  # serialization, deadlock, a standby: nothing was written
        return Unavailable(_told(error))
    return Broken(f"{error.sqlstate}: {_told(error)}")


def _told(error: psycopg.Error) -> str:
    """The server's sentence without its detail, which quotes what people wrote."""
    return error.diag.message_primary or type(error).__name__
