"""`doctor`: one screen that says what answers, what is unsettled, and what to do first.

Everything about operations is read from the ledger, so that it works while workers are down, and while Temporal is.
"""

import asyncio
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from activities.settings import Settings
from commands import tell
from commands.amounts import lasting
from commands.exits import Exit, Silent
from commands.page import Page
from commands.reading import address_of, reading
from commands.surroundings import ledger_dsn, settings
from commands.temporal import connected
from commands.voice import Voice
from ledger.errors import LedgerError, Refused
from ledger.store import gauges, holds, views
from ledger.store.database import Connection, now
from ledger.store.gauges import Gauges, Unknown
from ledger.store.holds import RESTORED, Hold
from ledger.store.migrate import check, migrations
from ledger.store.views import Applied
from workflows.polling import pollers, stuck

SOON = timedelta(hours=2)  # a key window that closes this soon needs somebody; the alert KeyWindowCloses says the same
AUDIT_OLD_SECONDS = 24 * 3600.0  # as the alert has it


@dataclass(frozen=True)
class LedgerSeen:
    """The ledger as far as it could be read; `problem` says why not all of it."""

    address: str = ""
    silent: bool = False
    problem: str = ""
    migration: int = 0  # the last that was applied
    at: datetime | None = None
    config: Applied | None = None
    gauges: Gauges | None = None
    holds: list[Hold] = field(default_factory=list)
    oldest: Unknown | None = None
    closing: Unknown | None = None


@dataclass(frozen=True)
class TemporalSeen:
    """Temporal as far as it could be asked."""

    address: str = ""
    silent: bool = False
    problem: str = ""
    pollers: list[str] = field(default_factory=list)
    stuck: int | None = None  # None where this server does not tell


@dataclass(frozen=True)
class Advice:
    """One thing to do, and the fact that asks for it. Of several the first comes first."""

    do: str
    because: str


async def doctor(voice: Voice) -> Page:
    """The screen. Exit code 4 when Postgres or Temporal does not answer, 3 while there is something to do, else 0."""
    given = settings()
    ledger, temporal = await asyncio.gather(_ledger(given), _temporal(given))
    todo = advice(ledger, temporal, given.task_queue)
    page = Page(_document(ledger, temporal, todo), Exit.REFUSED if todo else Exit.ASKED)
    if ledger.silent or temporal.silent:
        page.exit = Exit.SILENT
    page.title("Do the first of these first:" if todo else "Nothing needs you.")
    page.table(("do", "because"), [(one.do, one.because) for one in todo])
    _tell_servers(page, ledger, temporal, given.task_queue)
    if ledger.gauges is not None and ledger.at is not None:
        _tell_work(page, ledger, ledger.gauges, ledger.at)
    return page


async def _ledger(given: Settings) -> LedgerSeen:
    address = ""
    try:
        dsn = ledger_dsn(given)
        address = address_of(dsn)
        async with reading(dsn) as reader, reader.snapshot() as conn:
            return await _read(conn, address)
    except Silent as silent:
        return LedgerSeen(silent.address, silent=True, problem=str(silent))
    except LedgerError as error:
        return LedgerSeen(address, problem=str(error))


async def _read(conn: Connection, address: str) -> LedgerSeen:
    """Only the schema's version where it is not this code's: nothing else may be readable then."""
    seen = LedgerSeen(address, migration=max((row["version"] for row in await views.schema_versions(conn)), default=0))
    try:
        await check(conn)
    except Refused as refused:
        return replace(seen, problem=str(refused))
    config = await views.applied_configuration(conn)
    return replace(
        seen,
        problem="" if config else "no configuration is applied: run `effects config apply` with the owner's DSN",
        at=await now(conn),
        config=config,
        gauges=await gauges.read(conn),
        holds=await holds.current(conn),
        oldest=await gauges.oldest_unknown(conn),
        closing=await gauges.next_closing(conn),
    )


async def _temporal(given: Settings) -> TemporalSeen:
    try:
        temporal = await connected(given)
        async with temporal.calling():
            polling = await pollers(temporal.client, given.task_queue)
        try:
            async with temporal.calling():
                wedged: int | None = await stuck(temporal.client, given.task_queue)
        except Refused:  # a server that is too old to report them
            wedged = None
        return TemporalSeen(temporal.address, pollers=polling, stuck=wedged)
    except Silent as silent:
        return TemporalSeen(silent.address, silent=True, problem=str(silent))
    except LedgerError as error:
        return TemporalSeen(problem=str(error))


def advice(ledger: LedgerSeen, temporal: TemporalSeen, task_queue: str) -> list[Advice]:
    """What a person has to do, the most pressing first: without a server nothing else can be mended. Pure."""
    todo = []
    if ledger.problem:
        todo.append(Advice("have Postgres answer" if ledger.silent else "mend the ledger", ledger.problem))
    if temporal.problem:
        todo.append(Advice("have Temporal answer; nothing is lost, but nothing moves", temporal.problem))
    elif not temporal.pollers:
        why = f"nobody polls the task queue {task_queue}: nothing is sent, and nothing settled"
        todo.append(Advice(".venv/bin/python worker.py", why))
    if ledger.gauges is not None and ledger.at is not None:
        todo += _about_work(ledger, ledger.gauges, ledger.at)
    if temporal.stuck:
        why = f"{temporal.stuck} workflow(s) do not get through their task: a bug in the last deployment?"
        todo.append(Advice("effects audit", why))
    return todo


def _about_work(ledger: LedgerSeen, told: Gauges, at: datetime) -> list[Advice]:
    todo = []
    if told.restored:
        why = "nothing is sent: the ledger was restored, or Postgres failed over, and nobody has released it (docs/restore.md)"
        todo.append(Advice("effects holds", why))
    if told.contradictions_last_day:
        why = f"{told.contradictions_last_day} contradiction(s) in the last day: evidence against a recorded end"
        todo.append(Advice("effects review", why))
    if told.audit_findings:
        why = f"{told.audit_findings} finding(s) of audits still stand"
        todo.append(Advice("effects audit", why))
    if ledger.oldest is not None and told.unknown_past_target:
        why = f"{told.unknown_past_target} unknown for longer than allowed; this one is the oldest"
        todo.append(Advice(f"effects show {ledger.oldest.operation_id}", why))
    if ledger.closing is not None and ledger.closing.closes_at is not None and ledger.closing.closes_at - at < SOON:
        held = "; is it held?" if ledger.holds else ""
        why = f"its key is honoured for {lasting(ledger.closing.closes_at - at)} more{held}"
        todo.append(Advice(f"effects show {ledger.closing.operation_id}", why))
    if told.overdue:
        todo.append(Advice("effects audit --repair", f"{told.overdue} next step(s) that nobody takes"))
    if waiting := _count(told, "needs_review"):
        why = f"{waiting} in review, the oldest for {_lasting(told.oldest['needs_review'])}: only people can settle it"
        todo.append(Advice("effects review", why))
    if told.notices_unheard:
        why = f"{told.notices_unheard} notice(s) that no receiver acknowledged: the workers' logs say why"
        todo.append(Advice("effects inbox", why))
    if told.audit_age is not None and told.audit_age > AUDIT_OLD_SECONDS:
        why = f"no audit could read everything for {_lasting(told.audit_age)}"
        todo.append(Advice("effects audit", why))
    if scopes := ", ".join(hold.scope for hold in ledger.holds if hold.scope != RESTORED):
        todo.append(Advice("effects holds", f"nothing is sent for {scopes}: two operators release what may go on"))
    return todo


def _tell_servers(page: Page, ledger: LedgerSeen, temporal: TemporalSeen, task_queue: str) -> None:
    if ledger.address:
        page.fact(
            "Postgres", f"does not answer at {ledger.address}" if ledger.silent else f"answers at {ledger.address}"
        )
    if ledger.migration:
        page.fact("schema", f"migration {ledger.migration}; this code has {len(migrations())}")
    if (config := ledger.config) is not None:
        applied = f"applied by {config.applied_by} at {tell.clock(config.applied_at)}"
        page.fact("configuration", f"version {config.version} ({config.digest[:12]}), {applied}")
    if temporal.address:
        page.fact("Temporal", f"{'does not answer' if temporal.silent else 'answers'} at {temporal.address}")
    if not temporal.problem:
        names = f": {', '.join(temporal.pollers)}" if temporal.pollers else ""
        page.fact("workers that poll", f"{len(temporal.pollers)} on {task_queue} in the last minute{names}")
        page.fact("workflows stuck", "this server does not tell" if temporal.stuck is None else temporal.stuck)


def _tell_work(page: Page, ledger: LedgerSeen, told: Gauges, at: datetime) -> None:
    for hold in ledger.holds:
        page.warn(f"nothing is sent for {hold.scope} since {tell.clock(hold.since)}: {hold.reason}")
    if not ledger.holds:
        page.fact("held", "nothing")
    page.fact("oldest unknown", _unknown(ledger.oldest, at) or "none")
    page.fact("next key window closes", _window(ledger.closing, at) or "none is open")
    page.fact("overdue steps", told.overdue)
    page.fact(
        "contradictions", f"{told.contradictions_last_day} in the last day, {told.contradicted} operation(s) ever"
    )
    if told.inbox_waiting:
        page.fact("webhooks that woke nobody yet", told.inbox_waiting)
    rows = [(state, action, provider, count) for (state, action, provider), count in sorted(told.operations.items())]
    page.table(("open", "action", "provider", "operations"), rows)


def _unknown(one: Unknown | None, at: datetime) -> str:
    if one is None:
        return ""
    told = f"{one.tenant}/{one.business_key} ({str(one.operation_id)[:8]}), for {lasting(at - one.since)}"
    late = "; a person should have been told at" if one.past_target else "; a person is told at"
    return f"{told}{late} {tell.clock(one.review_at)}"


def _window(one: Unknown | None, at: datetime) -> str:
    if one is None or one.closes_at is None:
        return ""
    return f"in {lasting(one.closes_at - at)}, at {tell.clock(one.closes_at)}: {one.tenant}/{one.business_key}"


def _count(told: Gauges, state: str) -> int:
    return sum(count for (one, _, _), count in told.operations.items() if one == state)


def _lasting(seconds: float) -> str:
    return lasting(timedelta(seconds=round(seconds)))


def _document(ledger: LedgerSeen, temporal: TemporalSeen, todo: list[Advice]) -> dict[str, Any]:
    """The same for programs."""
    told = ledger.gauges
    config = ledger.config
    return {
        "todo": [vars(one) for one in todo],
        "postgres": {
            "address": ledger.address,
            "answers": not ledger.silent and bool(ledger.address),
            "problem": ledger.problem,
            "migration": ledger.migration,
            "migrations_of_this_code": len(migrations()),
        },
        "configuration": None if config is None else vars(config) | {"applied_at": config.applied_at.isoformat()},
        "temporal": vars(temporal) | {"answers": not temporal.problem},
        "holds": [{"scope": hold.scope, "reason": hold.reason} for hold in ledger.holds],
        "oldest_unknown": _one(ledger.oldest),
        "next_key_window": _one(ledger.closing),
        "gauges": None
        if told is None
        else vars(told) | {"operations": [[*names, count] for names, count in sorted(told.operations.items())]},
        "now": None if ledger.at is None else ledger.at.isoformat(),
    }


def _one(one: Unknown | None) -> dict[str, Any] | None:
    if one is None:
        return None
    times = {name: at.isoformat() for name, at in vars(one).items() if isinstance(at, datetime)}
    return vars(one) | {"operation_id": str(one.operation_id)} | times
