"""`audit`: the ledger against Temporal. Whatever is open must be worked on, and whatever works must be recorded."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from temporalio.client import WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from activities.messages import OPERATION_WORKFLOW
from commands import tell
from commands.exits import Exit
from commands.page import Page
from commands.reading import reading, writing
from commands.surroundings import ledger_dsn, settings
from commands.temporal import Temporal, connected
from commands.voice import Voice
from ledger.model import Operation
from ledger.store import audits, views
from ledger.store.database import Connection
from workflows.names import workflow_id
from workflows.waking import CALL

# A workflow records its operation with its first activity; one that is younger may be about to.
RECORDED_WITHIN = timedelta(minutes=1)


@dataclass(frozen=True)
class Finding:
    """One thing that does not fit. `operation` is what a repair starts or wakes."""

    kind: str  # without_workflow, overdue, without_operation
    name: str
    what: str
    operation: Operation | None = None

    def told(self) -> dict[str, str]:
        """For JSON."""
        return {"kind": self.kind, "name": self.name, "what": self.what}


async def audit(voice: Voice, *, repair: bool) -> Page:
    """Compare, and with `repair` start or wake what nobody works on; exit code 3 while something is left to do.

    Costs one listing of the running workflows, and one question for each open operation that is not in it. A repair gives
    nobody any power: the workflow reads the ledger and goes on where the operation stands.
    """
    given = settings()
    dsn = ledger_dsn(given)
    async with reading(dsn) as reader, reader.snapshot() as conn:
        began = await audits.begin(conn)
    temporal = await connected(given.task_queue)
    running = await _running(temporal)
    # Read after the listing: what was recorded meanwhile is no stray.
    async with reading(dsn) as reader, reader.snapshot() as conn:
        expected = await views.with_a_workflow(conn)
        late = {row["operation_id"] for row in await views.overdue(conn)}
        known = {workflow_id(o.tenant, o.business_key) for o in expected}
        strays = [name for name in running if name not in known and not await _recorded(conn, name)]
    found = [finding for operation in expected if (finding := await _missing(temporal, operation, running, late))]
    found += [
        Finding("without_operation", name, "runs, and the ledger has no operation of this name") for name in strays
    ]
    repaired = await _repair(voice, temporal, found) if repair else []
    async with writing(dsn) as conn:  # a restored ledger is released only after this
        await audits.record(conn, began, compared=len(expected), findings=len(found), complete=True)
    return _page(len(expected), len(running), found, repaired)


async def _running(temporal: Temporal) -> set[str]:
    """The ids of the operation workflows on our queue that run and are old enough to have recorded something."""
    before = datetime.now(UTC) - RECORDED_WITHIN
    query = (
        f"WorkflowType = '{OPERATION_WORKFLOW}' AND ExecutionStatus = 'Running' AND TaskQueue = '{temporal.task_queue}'"
    )
    async with temporal.calling():
        return {
            found.id
            async for found in temporal.client.list_workflows(query, rpc_timeout=CALL)
            if found.start_time < before
        }


async def _recorded(conn: Connection, name: str) -> bool:
    tenant, _, business_key = name.partition("/")
    return await views.by_key(conn, tenant, business_key) is not None


async def _missing(temporal: Temporal, operation: Operation, running: set[str], late: set[object]) -> Finding | None:
    name = workflow_id(operation.tenant, operation.business_key)
    if name not in running and not await _runs(temporal, name):
        stands = f"{operation.state}, next {operation.next_step}: no workflow works on it"
        return Finding("without_workflow", name, stands, operation)
    if operation.operation_id in late:
        assert operation.next_step_at is not None
        since = tell.clock(operation.next_step_at)
        return Finding("overdue", name, f"{operation.state}: {operation.next_step} was due at {since}", operation)
    return None


async def _runs(temporal: Temporal, name: str) -> bool:
    """Asked of the workflow itself: the listing may be behind."""
    async with temporal.calling():
        try:
            told = await temporal.client.get_workflow_handle(name).describe(rpc_timeout=CALL)
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return False
            raise
    return told.status is WorkflowExecutionStatus.RUNNING


async def _repair(voice: Voice, temporal: Temporal, found: Iterable[Finding]) -> list[str]:
    repaired = []
    for finding in found:
        if finding.operation is not None:
            await temporal.signal(finding.operation, "look_now")
            repaired.append(finding.name)
            voice.note(f"{finding.name} was {'started' if finding.kind == 'without_workflow' else 'woken'}")
    return repaired


def _page(expected: int, running: int, found: list[Finding], repaired: list[str]) -> Page:
    left = [finding for finding in found if finding.name not in repaired]
    page = Page(
        {"open": expected, "running": running, "findings": [f.told() for f in found], "repaired": repaired},
        Exit.REFUSED if left else Exit.ASKED,
    )
    page.title(f"{len(found)} finding(s)" if found else "The ledger and Temporal agree.")
    page.table(("what", "workflow", "why"), [(f.kind, f.name, f.what) for f in found])
    page.fact("compared", f"{expected} open operation(s), {running} running workflow(s)")
    if any(finding.operation is not None for finding in left):
        page.say("`effects audit --repair` starts or wakes the workflows of these operations.")
    if any(finding.operation is None for finding in left):
        page.say("A workflow without an operation has no effect: look at it in the Web UI, and terminate it.")
    return page
