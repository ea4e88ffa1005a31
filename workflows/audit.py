"""The run of an audit: one activity that compares, kept apart so that a schedule and a person start the same one."""

from typing import Any

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from activities.messages import AUDIT_WORKFLOW, Audited, Auditing
    from workflows import calls


@workflow.defn(name=AUDIT_WORKFLOW)
class AuditWorkflow:
    """Started by a schedule, and by `effects audit`."""

    @workflow.run
    async def run(self, *args: Any) -> Audited:
        """Compare once. Anything but `{"repair": true}` as input compares only."""
        given = args[0] if args else None
        repair = isinstance(given, dict) and given.get("repair") is True
        return await calls.audit(Auditing(repair=repair))
