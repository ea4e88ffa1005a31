"""`audit`: the ledger against Temporal and against what providers list. Whatever is open must be worked on, whatever works must
be recorded, and whatever stands at a provider in our name must be an effect that we know.
"""

from collections.abc import Iterable

from activities.audit import against_temporal
from activities.messages import Audited
from commands import tell
from commands.exits import Exit
from commands.page import Page
from commands.reading import reading
from commands.surroundings import ledger_dsn, settings
from commands.temporal import Temporal, connected
from commands.voice import Voice
from ledger.audit import Finding, FindingKind
from ledger.model import Operation
from ledger.store import audits
from workflows.waking import TemporalRuns

_IDLE = {FindingKind.WITHOUT_WORKFLOW, FindingKind.OVERDUE}  # what a repair starts or wakes
_TEMPORAL = _IDLE | {FindingKind.WITHOUT_OPERATION}
Found = list[tuple[Finding, Operation | None]]


async def audit(voice: Voice, *, repair: bool, wait: float) -> Page:
    """Compare, and with `repair` start or wake what nobody works on; exit code 3 while something is left to do.

    Ledger and Temporal are compared here, so that it works while workers are down. Providers are listed by a worker, which has
    the credentials; with `wait` 0 none is asked, and what earlier audits found is told.
    """
    given = settings()
    temporal = await connected(given)
    async with reading(ledger_dsn(given)) as reader:
        async with temporal.calling():
            found = await against_temporal(reader.snapshot, TemporalRuns(temporal.client, given.task_queue))
        repaired = await _repair(voice, temporal, found) if repair else []
        audited = await temporal.audit(wait) if wait else None
        async with reader.snapshot() as conn:
            kept = [row for row in await audits.open_findings(conn) if row["kind"] not in _TEMPORAL]
            latest = await audits.latest(conn)
    page = _page(found, repaired, kept)
    if latest is None:
        page.warn("No audit has listed the providers yet.")
    else:
        page.fact("providers listed", f"{tell.clock(latest.ended_at)}, {latest.listed} effect(s) compared")
        if not latest.complete:
            page.warn(f"Not read to the end, and gone on with at the next audit: {latest.left_out}")
    if wait and audited is None:
        page.warn(f"No worker has finished it within {wait:g} s: it goes on, and the same command tells what it finds.")
    page.document["providers"] = _providers(latest, audited)
    return page


def _providers(latest: audits.Report | None, audited: Audited | None) -> dict[str, object]:
    return ({} if latest is None else vars(latest)) | {"finished": audited is not None}


async def _repair(voice: Voice, temporal: Temporal, found: Found) -> list[str]:
    repaired = []
    for finding, operation in found:
        if operation is not None:
            await temporal.signal(operation, "look_now")
            repaired.append(finding.name)
            voice.note(f"{finding.name} was {'started' if finding.kind is FindingKind.WITHOUT_WORKFLOW else 'woken'}")
    return repaired


def _page(found: Found, repaired: list[str], kept: Iterable[dict[str, object]]) -> Page:
    rows = [{"kind": f.kind.value, "name": f.name, "what": f.what} for f, _ in found]
    rows += [{name: str(row[name]) for name in ("kind", "name", "what", "provider", "account")} for row in kept]
    left = [row for row in rows if row["name"] not in repaired]
    page = Page({"findings": rows, "repaired": repaired}, Exit.REFUSED if left else Exit.ASKED)
    page.title(f"{len(rows)} finding(s)" if rows else "The ledger, Temporal and the providers agree.")
    page.table(("what", "where", "why"), [(row["kind"], row["name"], row["what"]) for row in rows])
    kinds = {row["kind"] for row in left}
    if kinds & _IDLE:
        page.say("`effects audit --repair` starts or wakes the workflows of these operations.")
    if FindingKind.WITHOUT_OPERATION in kinds:
        page.say("A workflow without an operation has no effect: look at it in the Web UI, and terminate it.")
    if kinds - _TEMPORAL:
        page.say(
            "What stands at a provider is for a person: docs/audit.md says what each finding means and what to do."
        )
    return page
