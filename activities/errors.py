"""The only translation of ledger errors into Temporal's, and the heartbeat that every slow activity keeps up.

`Unavailable` and `Superseded` are tried again; `Refused` and `Broken` are not, and fail the workflow: that pages.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from temporalio import activity
from temporalio.exceptions import ApplicationError

from ledger.errors import Broken, Refused, Superseded, Unavailable


@asynccontextmanager
async def translated() -> AsyncIterator[None]:
    """Map what the ledger raises to what Temporal understands."""
    try:
        yield
    except Refused as error:
        raise ApplicationError(str(error), error.rule, error.field, type="Refused", non_retryable=True) from error
    except Broken as error:
        raise ApplicationError(str(error), type="Broken", non_retryable=True) from error
    except Superseded as error:
        raise ApplicationError(str(error), type="Superseded") from error
    except Unavailable as error:
        words = f"nothing was sent by this try; what it claimed, if anything, stands in the ledger: {error}"
        raise ApplicationError(words, type="Unavailable") from error


@asynccontextmanager
async def heartbeating() -> AsyncIterator[None]:
    """Tell Temporal every second that this worker lives, so that a dead one is noticed within its heartbeat timeout."""

    async def beat() -> None:
        while True:
            activity.heartbeat()
            await asyncio.sleep(1)

    beating = asyncio.create_task(beat())
    try:
        yield
    finally:
        beating.cancel()
