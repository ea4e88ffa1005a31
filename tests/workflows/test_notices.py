"""Notices, whole: the example receiver hears of what waits, at least once; and no receiver can hold up a move."""

import asyncio
import base64
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import activities.notices
from devstack.ports import LOOPBACK, free_port
from ledger.errors import Refused
from tests.conftest import Rig
from tests.workflows.paths import in_review
from workflows.polling import pollers
from workflows.waking import signal

EXAMPLE = Path(__file__).parents[2] / "deploy" / "notices" / "receiver.py"
SECRET = "whsec_" + base64.b64encode(b"n" * 32).decode()


@dataclass
class Example:
    """The receiver of deploy/, as a process of its own, and what it printed."""

    port: int
    out: Path

    @property
    def url(self) -> str:
        """Where it listens, or will."""
        return f"http://{LOOPBACK}:{self.port}/"

    @contextmanager
    def running(self, secret: str = SECRET) -> Iterator[None]:
        """Listen while the block lasts."""
        with (
            self.out.open("ab") as out,
            subprocess.Popen(
                [sys.executable, str(EXAMPLE), str(self.port)], stdout=out, env={**os.environ, "NOTICES_SECRET": secret}
            ) as process,
        ):
            try:
                yield
            finally:
                process.terminate()

    def heard(self) -> list[tuple[str, str]]:
        """Type and state of each notice, in the order in which they came."""
        told = [json.loads(line) for line in self.out.read_text().splitlines()]
        return [(each["type"], each["data"]["state"]) for each in told]

    async def until(self, true_of: Callable[[list[tuple[str, str]]], bool]) -> list[tuple[str, str]]:
        """Wait until it has heard this."""
        deadline = asyncio.get_running_loop().time() + 20
        while not true_of(self.heard()):
            assert asyncio.get_running_loop().time() < deadline, self.heard()
            await asyncio.sleep(0.05)
        return self.heard()


@pytest.fixture
def example(tmp_path: Path, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Example:
    """Not running yet. Whoever posts looks often and tries again at once."""
    (rig.stack.household.folder / "secrets" / "notices").write_text(SECRET)
    monkeypatch.setattr(activities.notices, "PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(activities.notices, "FIRST_DELAY", timedelta(seconds=0.1))
    monkeypatch.setattr(activities.notices, "LONGEST_DELAY", timedelta(seconds=0.1))
    (tmp_path / "heard").touch()
    return Example(free_port(), tmp_path / "heard")


async def kept(rig: Rig) -> list[tuple[str, str | None]]:
    """The outbox: kind, and how each ended."""
    async with rig.ledger.transaction() as conn:
        rows = await (await conn.execute("select kind, ended from notices order by due_at, kind")).fetchall()
    return [(row["kind"], row["ended"]) for row in rows]


async def test_what_waits_for_people_is_told_even_if_nobody_listens_at_first(rig: Rig, example: Example) -> None:
    """The receiver is down while it begins to wait, and then trusts another secret. Red: end a notice before its answer, or
    take any answer for an acknowledgement."""
    async with rig.worker(notices_url=example.url, notices_link="https://ui.test/{workflow_id}"):
        answer = await rig.propose(rig.proposal(rig.payment(), amount=5_000))
        assert answer.state == "awaiting_approval"  # nothing waited for a receiver
        with example.running(secret="whsec_" + base64.b64encode(b"other" * 8).decode()):
            await until_problem(rig, "http_401")
        with example.running():
            assert await example.until(lambda heard: len(heard) == 1) == [("operation.waiting", "awaiting_approval")]
            operation = await rig.operation(answer.operation_id)
            half = (operation.approval_expires_at - operation.proposed_at) / 2
            await rig.advance(half.total_seconds() + 5)
            assert (await example.until(lambda heard: len(heard) == 2))[1][0] == "operation.half_life"
            assert await posted(rig, 2) == [("waiting", "posted"), ("half_life", "posted")]


async def test_a_review_and_a_contradiction_are_told_and_what_is_over_is_not(rig: Rig, example: Example) -> None:
    """Approved before anybody was told: that notice is over. Red: post it all the same; leave a kind out of the trigger."""
    stripe = rig.stack.stripe.control
    async with rig.worker():  # one that tells nobody
        approved = await rig.propose(rig.proposal(rig.payment(), amount=5_000))
        await rig.approve(approved.operation_id)
        voided = await rig.until(approved.operation_id, "succeeded")
        await in_review(rig)
        stripe.set_refund(str(voided.receipt), status="failed")
        await signal(rig.client, voided, "look_now", task_queue=rig.stack.task_queue)
        while (await rig.operation(approved.operation_id)).standing != "void":
            await asyncio.sleep(0.05)
    with example.running():
        async with rig.worker(notices_url=example.url):
            await example.until(lambda heard: len(heard) == 2)
            ended = await posted(rig, 4)
    assert sorted(example.heard()) == [("operation.contradicted", "succeeded"), ("operation.review", "needs_review")]
    assert ended.count(("waiting", "over")) == 1 and ended.count(("half_life", "over")) <= 1


async def posted(rig: Rig, count: int) -> list[tuple[str, Any]]:
    """Wait until so many notices have ended."""
    deadline = asyncio.get_running_loop().time() + 20
    while sum(ended is not None for _, ended in await kept(rig)) < count:
        assert asyncio.get_running_loop().time() < deadline, await kept(rig)
        await asyncio.sleep(0.05)
    return await kept(rig)


async def until_problem(rig: Rig, problem: str) -> None:
    """Wait until a try ended so."""
    deadline = asyncio.get_running_loop().time() + 20
    while True:
        async with rig.ledger.transaction() as conn:
            rows = await (await conn.execute("select problem, tries from notices where ended is null")).fetchall()
        if any(row["problem"] == problem and row["tries"] > 0 for row in rows):
            return
        assert asyncio.get_running_loop().time() < deadline, rows
        await asyncio.sleep(0.05)


async def test_an_address_or_a_secret_that_cannot_work_stops_the_worker_at_its_start(
    rig: Rig, example: Example
) -> None:
    """And says what to do, before it polls: `doctor` would take it for one that works.

    Red: find out at the first notice; enter the worker before `posting`.
    """
    for url in ("http://example.test/", "ftp://example.test/", "example.test"):
        with pytest.raises(Refused, match="https://"):
            async with rig.worker(notices_url=url):
                pass
    (rig.stack.household.folder / "secrets" / "notices").write_text("password")
    with pytest.raises(Refused, match="whsec_"):
        async with rig.worker(notices_url=example.url, audit_every=3600.0):  # asks Temporal something before
            pass
    assert await pollers(rig.client, rig.stack.task_queue) == []
