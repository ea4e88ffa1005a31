"""The inbox as people run it: alone as a process, inside a worker, and what is said when it cannot run."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import httpx
import pytest

from commands.exits import Exit
from devstack.child import Child
from devstack.ports import LOOPBACK, free_port
from devstack.stack import ROOT, WEBHOOK_SECRET, clean
from ledger.model import Standing
from tests.conftest import Door, Rig
from tests.workflows.test_webhooks import followed, refunded, standing


def started(rig: Rig, log: Path, **settings: str) -> Child:
    """`effects webhooks` with the settings of this rig and these."""
    return Child.spawn(
        [sys.executable, str(ROOT / "starter.py"), "webhooks"],
        name="webhooks",
        log=log,
        env={**clean(os.environ), **rig.stack.environment(), **settings},
        cwd=ROOT,
        grace_seconds=20,
    )


async def answers(address: str, child: Child) -> None:
    """Wait until it is healthy."""
    async with httpx.AsyncClient(trust_env=False) as client:
        for _ in range(300):
            try:
                assert (await client.get(f"{address}/health")).json() == {"answers": True}
                return
            except httpx.TransportError:
                assert child.alive, child.log_tail()
                await asyncio.sleep(0.1)
    raise AssertionError(child.log_tail())


async def test_the_inbox_runs_alone_and_stops_in_order(rig: Rig, tmp_path: Path) -> None:
    """A process with its own login and the signing secret: an event comes through it to the operation."""
    port, target = free_port(), rig.payment()
    address = f"http://{LOOPBACK}:{port}"
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    (secrets / "stripe_webhook").write_text("whsec_new")
    (secrets / "stripe_webhook_previous").write_text("whsec_old\n")
    settings = {"EFFECTS_INBOX_PORT": str(port), "EFFECTS_SECRETS_DIR": str(secrets), "EFFECTS_LEDGER_DSN": ""}
    child = started(rig, tmp_path / "webhooks.log", **settings)
    try:
        await answers(address, child)
        async with rig.worker():
            operation = await followed(rig, target)
            rig.stack.stripe.control.set_refund(str(operation.receipt), status="succeeded")
            door, events = Door(f"{address}/stripe", rig), rig.events(target)
            assert await door.deliver(*events, secret="whsec_stolen") == [400] * 4
            assert await door.deliver(*events[:2], secret="whsec_old") == [200] * 2
            assert await door.deliver(*events[2:], secret="whsec_new") == [200] * 2
            await standing(rig, operation, Standing.GOOD)
            (secrets / "stripe_webhook_previous").unlink()  # the rotation is over
            assert await door.deliver(*events, secret="whsec_old") == [400] * 4
        child.signal(signal.SIGTERM)
        assert child.wait(20) == 0, child.log_tail()
    finally:
        child.stop()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"EFFECTS_INBOX_PORT": "0"}, "EFFECTS_INBOX_PORT"),
        ({"EFFECTS_INBOX_PORT": "8480", "EFFECTS_INBOX_DSN": ""}, "EFFECTS_INBOX_DSN"),
        ({"EFFECTS_INBOX_PORT": "8480", "EFFECTS_INBOX_ACCOUNT": ""}, "EFFECTS_INBOX_ACCOUNT"),
        ({"EFFECTS_INBOX_PORT": "8480", "EFFECTS_SECRETS_DIR": "/nowhere"}, "EFFECTS_SECRET_STRIPE_WEBHOOK"),
        ({"EFFECTS_INBOX_PORT": "8480", "EFFECTS_INBOX_HOST": "192.0.2.1"}, "cannot listen on 192.0.2.1"),
    ],
    ids=["port", "dsn", "account", "secret", "address"],
)
async def test_an_inbox_that_could_keep_nothing_does_not_start(
    rig: Rig, tmp_path: Path, settings: dict[str, str], words: str
) -> None:
    """And says what to mend."""
    child = started(rig, tmp_path / "webhooks.log", **settings)
    try:
        assert child.wait(30) == Exit.REFUSED
        assert words in child.log_tail()
    finally:
        child.stop()


DELIVERED = {"refund.created", "charge.refunded", "refund.updated", "charge.refund.updated", "refund.failed"}


async def test_a_worker_that_is_told_a_port_receives_as_well(rig: Rig) -> None:
    """One process for all of it, as `make up` runs it."""
    port, target = free_port(), rig.payment()
    async with rig.worker(inbox_port=port):
        operation = await refunded(rig, target)
        door = Door(f"http://{LOOPBACK}:{port}/stripe", rig)
        rig.stack.stripe.control.send_webhooks(door.url, WEBHOOK_SECRET)  # the stand-in delivers by itself
        rig.stack.stripe.control.set_refund(str(operation.receipt), status="failed")
        await standing(rig, operation, Standing.VOID)  # an event that came first may tell it already
        deadline = asyncio.get_running_loop().time() + 30
        while len(await door.rows()) < len(DELIVERED) and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.1)
        await door.taken()
    assert {row["type"] for row in await door.rows()} == DELIVERED
