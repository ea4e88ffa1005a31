"""Workers of a new version take over operations that wait: those with a patched change go on, an unpatched one is caught."""

from pathlib import Path

import pytest
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer
from temporalio.workflow import NondeterminismError

import worker
from tests.conftest import Rig
from tests.workflows.changed import PATCH, Patched, Unpatched
from workflows.converter import data_converter

SAVED = Path(__file__).parent.parent / "histories" / "0.1" / "approved.json"


async def replayed(changed: type, history: WorkflowHistory) -> None:
    """With this version of the workflow."""
    replayer = Replayer(workflows=[changed], data_converter=data_converter, build_id="a test")
    await replayer.replay_workflow(history)


async def test_an_unpatched_change_is_caught_by_a_saved_history() -> None:
    """So that `test_replay.py` is worth something. Red: patch it."""
    history = WorkflowHistory.from_json("approved", SAVED.read_text())
    with pytest.raises(NondeterminismError):
        await replayed(Unpatched, history)
    await replayed(Patched, history)


async def test_what_waits_goes_on_under_a_new_version(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """One waits for a person, one with an answer lost, when all workers are replaced; what begins then takes the new way.

    Red: take `Unpatched` for the new version (a task of the workflow fails again and again).
    """
    waiting, lost, later = (rig.proposal(rig.payment(), amount) for amount in (5_000, 1_500, 1_500))
    async with rig.worker(backoff=30.0):
        asked = await rig.propose(waiting)
        rig.stack.stripe.control.fault("lost-answer", payment_intent=lost.target)
        unknown = await rig.until((await rig.propose(lost)).operation_id, "unknown")
        assert asked.state == "awaiting_approval"
    with pytest.raises(NondeterminismError):
        await replayed(Unpatched, await rig.handle(waiting).fetch_history())
    monkeypatch.setattr(worker, "OperationWorkflow", Patched)
    async with rig.worker():
        await rig.approve(asked.operation_id)
        await rig.advance(60)
        new = await rig.propose(later)
        for operation_id in (asked.operation_id, str(unknown.operation_id), new.operation_id):
            await rig.until(operation_id, "succeeded")
        for proposal, patched in ((waiting, False), (lost, False), (later, True)):
            await rig.handle(proposal).result()
            history = await rig.handle(proposal).fetch_history()
            assert (PATCH in str(history.events)) is patched
            assert len(rig.effects(proposal.target)) == 1
