"""A signed hold or release on its way to the ledger. Temporal carries it; the signature gives it its power."""

from typing import Any

from temporalio import workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from activities.messages import HoldAnswer, HoldRequest
    from workflows import calls


@workflow.defn(name="HoldWorkflow")
class HoldWorkflow:
    """Records one hold or release and wakes the operations in its scope."""

    @workflow.run
    async def run(self, *args: Any) -> HoldAnswer:
        """Apply it, then wake; a workflow that is gone needs no waking."""
        if len(args) != 1 or not isinstance(args[0], dict):
            return HoldAnswer(accepted=False, rule="statement_malformed", message="give one signed statement as JSON")
        fields = {name: str(args[0].get(name, "")) for name in ("statement", "scheme", "proof")}
        answer = await calls.hold(HoldRequest(**fields))
        for workflow_id in answer.wake:
            try:
                await workflow.get_external_workflow_handle(workflow_id).signal("look_now")
            except ApplicationError:
                workflow.logger.info("nothing to wake: %s", workflow_id)
        return answer
