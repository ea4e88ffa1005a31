"""The worker's one look at the whole ledger every few seconds, for its gauges. It decides nothing and locks nothing."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import structlog
from temporalio.service import RPCError

from activities.metrics import Meters
from ledger.errors import LedgerError
from ledger.store import gauges
from ledger.store.database import Ledger

LONGEST_READ = 5.0  # seconds; a reading that takes longer is given up, and its numbers grow old visibly
Asking = Callable[[], Awaitable[int]]

log = structlog.get_logger()


async def measure(ledger: Ledger, meters: Meters, ask_pollers: Asking, ask_stuck: Asking) -> None:
    """Read once. Where Postgres or Temporal does not answer, its gauges keep their value and their time stamp."""
    meters.pool(ledger.pool_numbers())
    with suppress(LedgerError, TimeoutError):
        async with asyncio.timeout(LONGEST_READ), ledger.transaction() as conn:
            read = await gauges.read(conn)
        meters.ledger(read)
    with suppress(RPCError):
        meters.pollers(await ask_pollers())
    with suppress(RPCError):
        meters.stuck(await ask_stuck())


async def measuring(ledger: Ledger, meters: Meters, ask_pollers: Asking, ask_stuck: Asking, every: float) -> None:
    """Read again and again, until cancelled. A bug in here must not stop what the worker is for."""
    while True:
        try:
            await measure(ledger, meters, ask_pollers, ask_stuck)
        except Exception:
            log.exception("the gauges could not be read")
        await asyncio.sleep(every)
