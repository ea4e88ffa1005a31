"""`OperationWorkflow` as a later version might have it: one more activity in the middle, with a patch and without one."""

from typing import Any

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from activities.messages import OPERATION_WORKFLOW, Answer, OperationRef
    from workflows import calls
    from workflows.operation import OperationWorkflow

PATCH = "read again once recorded"


@workflow.defn(name=OPERATION_WORKFLOW)
class Unpatched(OperationWorkflow):
    """Reads once more after the beginning, whoever began: a run that waits has no such thing in its history."""

    @workflow.init
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)

    @workflow.run
    async def run(self, *args: Any) -> Answer:
        """As before."""
        return await super().run(*args)

    async def _begin(self) -> None:
        await super()._begin()
        await self._read_again()

    async def _read_again(self) -> None:
        ref = OperationRef(operation_id=self._progress.operation_id, known_events=self._progress.events)
        self._tell(await calls.read(ref))


@workflow.defn(name=OPERATION_WORKFLOW)
class Patched(Unpatched):
    """The same change, for runs that begin after it."""

    @workflow.init
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)

    @workflow.run
    async def run(self, *args: Any) -> Answer:
        """As before."""
        return await super().run(*args)

    async def _read_again(self) -> None:
        if workflow.patched(PATCH):
            await super()._read_again()
