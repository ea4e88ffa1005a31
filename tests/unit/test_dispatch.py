"""What was begun is finished: the part of a dispatch that no cancellation may cut off."""

import asyncio
from datetime import timedelta

import pytest
from temporalio.testing import ActivityEnvironment

from activities.dispatch import _to_its_end
from activities.messages import Progress


async def test_an_answer_is_recorded_although_temporal_gave_the_try_up() -> None:
    """Cancelled while the answer is awaited (a lost heartbeat, a forged completion): sending and recording go on.

    Red: await `sending` directly in `_to_its_end`.
    """
    sent, answered, recorded = asyncio.Event(), asyncio.Event(), []

    async def sending() -> Progress:
        sent.set()
        await answered.wait()
        recorded.append("answer")
        return Progress(state="succeeded")

    environment = ActivityEnvironment()
    work = asyncio.ensure_future(environment.run(_to_its_end, sending()))
    await sent.wait()
    work.cancel()
    await asyncio.sleep(0)
    answered.set()
    progress = await asyncio.wait_for(work, timedelta(seconds=5).total_seconds())
    assert (progress.state, recorded) == ("succeeded", ["answer"])


async def test_a_worker_that_shuts_down_does_not_wait_for_ever() -> None:
    """Its drain is longer than any lease; after that the attempt is found open, and counts as unknown."""

    sent = asyncio.Event()

    async def sending() -> Progress:
        sent.set()
        await asyncio.Event().wait()
        raise AssertionError("never")

    environment = ActivityEnvironment()
    environment.worker_shutdown()
    work = asyncio.ensure_future(environment.run(_to_its_end, sending()))
    await sent.wait()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(work, timedelta(seconds=5).total_seconds())
