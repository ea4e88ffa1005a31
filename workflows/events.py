"""The run that empties the inbox: as long as something may be left, the activity takes the oldest events."""

from typing import Any

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from activities.messages import TAKE_EVENTS_WORKFLOW
    from workflows import calls

MOST_ROUNDS = 100  # in one history


@workflow.defn(name=TAKE_EVENTS_WORKFLOW)
class TakeEventsWorkflow:
    """Started by the inbox after each commit, and by a schedule for what that hint missed. Two at once do no harm."""

    @workflow.init
    def __init__(self, *args: Any) -> None:
        self._more = False

    @workflow.run
    async def run(self, *args: Any) -> int:
        """How many events were taken."""
        taken = 0
        for _ in range(MOST_ROUNDS):
            self._more = False
            told = await calls.take_events()
            taken += told.taken
            if not told.left and not self._more:
                break
        else:
            workflow.continue_as_new()
        return taken

    @workflow.signal(description="An event was stored: look into the inbox. Needs no input.")
    def more(self, *args: Any) -> None:
        """Look once more before the end: what was stored meanwhile may have come too late for the last look."""
        self._more = True
