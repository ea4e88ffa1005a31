"""The recorder of the fault matrix: tests tell it what they know anyway, and `make faults` makes docs/faults.md of it."""

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from docs.faults import AFTER, BEFORE, Trouble
from ledger.states import State
from ledger.trail import EventKind
from tests.conftest import Rig

__all__ = ["AFTER", "BEFORE", "Cell", "Trouble", "note", "note_each"]


@dataclass(frozen=True)
class Cell:
    """One operation under one fault, and what became of it."""

    fault: str
    when: str  # the fault came before or after the receiver carried it out
    action: str
    effects: int  # of this operation, by the receiver's own records
    state: str  # an end, or needs_review
    seconds: float  # of ledger time, from the proposal to that state
    by: str  # machine, or person where one was asked


async def note(rig: Rig, fault: Trouble, when: str, operation_id: str, effects: int) -> None:
    """Write down how this operation stands now; nothing unless EFFECTS_FAULTS names a file."""
    file = os.environ.get("EFFECTS_FAULTS")
    if not file:
        return
    operation, trail = await rig.operation(operation_id), await rig.trail(operation_id)
    moved = [event.at for event in trail if event.kind is EventKind.MOVED]
    signed = any(e.kind is EventKind.STATEMENT_ACCEPTED and e.body["typ"] == "resolution" for e in trail)
    by = "person" if signed or operation.state is State.NEEDS_REVIEW else "machine"
    seconds = (moved[-1] - operation.proposed_at).total_seconds()
    cell = Cell(fault.value, when, operation.action, effects, operation.state.value, seconds, by)
    with Path(file).open("a") as lines:  # one short write: processes that append do not mix
        lines.write(json.dumps(asdict(cell)) + "\n")


async def note_each(rig: Rig, fault: Trouble, when: str, jobs: Iterable[Any]) -> None:
    """The same for several jobs, each with its operation's id and its own count of effects."""
    for job in jobs:
        await note(rig, fault, when, job.operation_id, await job.effects())
