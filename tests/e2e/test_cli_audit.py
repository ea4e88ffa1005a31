"""`effects audit`: what nobody works on is named, and with `--repair` started or woken; nothing is done twice by that."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta

import pytest

import workflows.waking
from tests.conftest import Rig
from tests.e2e.spoken import Effects, Spoken, speaking


@pytest.fixture
def effects(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Iterator[Effects]:
    """Commands on a rig; a workflow is old enough at once."""
    monkeypatch.setattr(workflows.waking, "RECORDED_WITHIN", timedelta(0))
    yield from speaking(rig, monkeypatch)


async def until_found(effects: Effects, *kinds: str) -> Spoken:
    """Ask until exactly this is found: Temporal's listing is a moment behind."""
    deadline = asyncio.get_running_loop().time() + 60
    while True:
        told = await effects("audit", "--wait", "0")
        if [finding["kind"] for finding in told.document["findings"]] == list(kinds):
            return told
        assert asyncio.get_running_loop().time() < deadline, told
        await asyncio.sleep(0.2)


async def test_an_open_operation_whose_workflow_was_lost_is_found_and_started_again(rig: Rig, effects: Effects) -> None:
    """Red: believe the listing alone, or take a terminated run for a running one."""
    proposal = rig.proposal(rig.payment(), amount=5_000)
    async with rig.worker():
        waiting = await rig.propose(proposal)
        assert (await until_found(effects)).code == 0
        await rig.handle(proposal).terminate("a test")
        told = await until_found(effects, "without_workflow")
        assert (told.code, told.document["findings"][0]["name"]) == (3, f"acme/{proposal.business_key}")
        repaired = await effects("audit", "--repair", "--wait", "0")
        assert (repaired.code, repaired.document["repaired"]) == (0, [f"acme/{proposal.business_key}"])
        assert (await until_found(effects)).code == 0
        await rig.approve(waiting.operation_id)
        await rig.until(waiting.operation_id, "succeeded")
    assert len(rig.effects(proposal.target)) == 1


async def test_what_is_overdue_is_found_and_woken(rig: Rig, effects: Effects) -> None:
    """Nobody polls for an hour. Red: ask for workflows only."""
    proposal = rig.proposal(rig.payment())
    rig.stack.stripe.control.fault("lost-answer", payment_intent=proposal.target)
    async with rig.worker(backoff=30.0):
        answer = await rig.propose(proposal)
        await rig.until(answer.operation_id, "unknown")
    await rig.advance(3_600)
    told = await until_found(effects, "overdue")
    assert told.code == 3 and "unknown" in told.document["findings"][0]["what"]
    async with rig.worker():
        assert (await effects("audit", "--repair", "--wait", "0")).code == 0
        await rig.until(answer.operation_id, "succeeded")
    assert len(rig.effects(proposal.target)) == 1


async def test_a_workflow_without_an_operation_is_named_and_left_alone(rig: Rig, effects: Effects) -> None:
    """Somebody started it while no worker polls. Red: leave the strays out."""
    queue = rig.stack.task_queue
    stray = await rig.client.start_workflow("OperationWorkflow", {}, id="acme/nobody", task_queue=queue)
    told = await until_found(effects, "without_operation")
    assert (told.code, told.document["findings"][0]["name"]) == (3, "acme/nobody")
    assert (await effects("audit", "--repair", "--wait", "0")).code == 3
    await stray.terminate("a test")
    assert (await until_found(effects)).code == 0
