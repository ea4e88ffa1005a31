"""Closed histories of every path, of every released version, replay with today's workflow code.

A changed order of commands breaks runs that wait for weeks: use `workflow.patched`, never edit a saved history.
`EFFECTS_RECORD=0.2 make test ARGS="tests/workflows/test_replay.py"` records the paths of a new version. What is saved
already is driven too, and stays as it was.
"""

import base64
import json
import os
from pathlib import Path

import pytest
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer

from activities.messages import Proposal
from tests.conftest import Rig
from tests.workflows.paths import PATHS
from workflows.converter import converter_with
from workflows.operation import OperationWorkflow
from workflows.order_to_invoice import OrderToInvoiceWorkflow

HISTORIES = Path(__file__).parent.parent / "histories"
KEY = base64.b64encode(bytes(range(32))).decode()
SAVED = sorted(HISTORIES.rglob("*.json"))


@pytest.mark.parametrize("keys", ["", "plain,key_1", "key_1"])
@pytest.mark.parametrize("path", SAVED, ids=lambda p: f"{p.parent.name}/{p.stem}")
async def test_a_saved_history_replays(path: Path, keys: str) -> None:
    """Red: add an activity call before the first one in `OperationWorkflow.run`, or leave its `_tell_parent` out; begin the
    steps before they are read, or the other way round, in `OrderToInvoiceWorkflow.run`. They were kept in clear, as are those
    of whoever switches encryption on: with keys, they replay as well.
    """
    history = WorkflowHistory.from_json(path.stem, path.read_text())
    replayer = Replayer(
        workflows=[OperationWorkflow, OrderToInvoiceWorkflow],
        data_converter=converter_with(keys, lambda name: KEY),
        build_id="a test",
    )
    await replayer.replay_workflow(history)


def test_every_path_has_a_saved_history() -> None:
    """Of the latest version, so that a new path is recorded before it is released."""
    latest = max(HISTORIES.iterdir())
    assert {p.stem for p in latest.glob("*.json")} == set(PATHS)


@pytest.mark.skipif("EFFECTS_RECORD" not in os.environ, reason="records histories: EFFECTS_RECORD=VERSION")
@pytest.mark.parametrize("name", sorted(PATHS))
async def test_record(desk: Rig, name: str) -> None:
    """Drive one path and keep its last run's history, unless there is one: runs of that code may wait still."""
    folder = HISTORIES / os.environ["EFFECTS_RECORD"]
    folder.mkdir(exist_ok=True)
    async with desk.worker():
        driven = await PATHS[name](desk)
        handle = desk.handle(driven) if isinstance(driven, Proposal) else driven
        await handle.result()
        history = await handle.fetch_history()
    saved = folder / f"{name}.json"
    if not saved.exists():
        saved.write_text(json.dumps(json.loads(history.to_json()), indent=1) + "\n")
