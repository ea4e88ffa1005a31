"""After the storms: time passes, people settle what came to them by the receivers' records, and everything is written down."""

import asyncio
from collections.abc import Sequence
from uuid import UUID

from ledger import fingerprint
from ledger.states import ENDED, State, fold
from ledger.store import operations, views
from ledger.store.verify import verify
from ledger.trail import EventKind
from tests.conftest import Rig
from tests.recovery.test_receivers_faults import (
    BETWEEN_LOOKS_SECONDS,
    TO_ABSENCE_SECONDS,
    Job,
    aside,
)
from tests.soak.checker import Fact, differences
from tests.soak.played import Played, Player, persist

DAY_SECONDS = 86_400.0
NOTHING = {"decision": "did_not_happen", "evidence": "the receiver's own records, read by two"}
HAPPENED = {"decision": "happened", "evidence": "the receiver's own records, read by two"}


async def settle(desk: Rig, player: Player, every: Sequence[Played]) -> None:
    """Wake everything, let all the time pass that any contract asks for, and let people say what the receivers know."""
    begun = await persist(lambda: recorded(desk, every))
    for one in begun:
        await _wake(desk, player, one)
    await quiet(desk)
    for seconds in (TO_ABSENCE_SECONDS, *[BETWEEN_LOOKS_SECONDS] * 4, DAY_SECONDS, *[BETWEEN_LOOKS_SECONDS] * 3):
        await persist(lambda seconds=seconds: desk.advance(seconds))  # type: ignore[misc]
        await quiet(desk)
    for one in begun:
        if one.plan.settles:
            await _people_settle(desk, player, one)
    await persist(lambda: desk.advance(2 * DAY_SECONDS))  # what nobody approved expires
    await quiet(desk)


async def recorded(desk: Rig, every: Sequence[Played]) -> list[Played]:
    """Those that the ledger knows, also where nobody heard of it: their ids follow from their keys."""
    async with desk.ledger.transaction() as conn:
        namespace = await operations.namespace(conn)
        known = set(await views.every_id(conn))
    for one in every:
        if one.job is not None:
            asked = one.job.proposal
            one.job.operation_id = str(fingerprint.operation_id(namespace, asked.tenant, asked.business_key))
    return [one for one in every if one.job is not None and UUID(one.job.operation_id) in known]


async def _wake(desk: Rig, player: Player, one: Played) -> None:
    """Its run may be lost: it is started again from the ledger."""
    assert one.job is not None
    if (await player.operation(one.job)).state not in ENDED:
        await player.signal(one.job, "look_now")


async def quiet(desk: Rig, seconds: float = 60.0) -> None:
    """Nothing is under way and nothing is due; what is not settled by then shows in the report."""
    deadline = asyncio.get_running_loop().time() + seconds
    while asyncio.get_running_loop().time() < deadline:
        if not await persist(lambda: _busy(desk)):
            return
        await asyncio.sleep(0.2)


async def _busy(desk: Rig) -> bool:
    async with desk.ledger.transaction() as conn:
        rows = await (
            await conn.execute(
                "select 1 as busy from operations where ended_at is null and (state in ('proposed', 'approved', 'in_flight')"
                " or next_step_at is null or next_step_at <= ledger_now() + interval '1 second') limit 1"
            )
        ).fetchall()
    return bool(rows)


async def _people_settle(desk: Rig, player: Player, one: Played) -> None:
    """Two operators say what the receiver's records say. What the ledger refuses to hear stays in review."""
    job = one.job
    assert job is not None
    for who in ("olga", "oscar"):
        operation = await player.operation(job)
        if operation.state != State.NEEDS_REVIEW:
            return
        found = await persist(lambda: receipts(desk, job))
        if len(found) > 1:
            return
        said = NOTHING if not found else HAPPENED | {"receipt": found[0]}
        await desk.settled(job.operation_id)
        before = len(await desk.trail(job.operation_id))
        await player.signal(job, "resolve", await desk.signed(job.operation_id, who, "resolution", **said))
        for _ in range(100):
            if len(await desk.trail(job.operation_id)) > before:
                break
            await asyncio.sleep(0.1)


async def receipts(desk: Rig, job: Job) -> tuple[str, ...]:
    """What the receiver has of this operation, past our adapters, each by the name that a receipt must bear."""
    asked, operation_id = job.proposal, job.operation_id
    erp = desk.world.erp
    match asked.action:
        case "refund":
            living = await aside(desk.effects, asked.target)
            return tuple(made.refund for made in living if made.origin != "foreign")
        case "create_draft_invoice":
            return tuple(f"account.invoice,{made.id}" for made in await aside(erp.invoices, operation_id))
        case "change_delivery_date":
            order = await aside(erp.admin.only, "purchase.purchase", [["number", "=", asked.target]])
            return (f"purchase.purchase,{order}#{operation_id}",) * await job.effects()
        case "update_customer":
            customer = await aside(erp.customer_named, asked.target)
            return (f"party.party,{customer.id}#{operation_id}",) * await job.effects()
        case "create_contact" | "update_contact":
            account = (await desk.operation(operation_id)).account
            return (f"{account}/{asked.target}.vcf#{operation_id}",) * await job.effects()
        case _:
            mails = await aside(desk.world.box.to, asked.arguments["to"])
            return tuple(str(mail.message_id) for mail in mails)


async def facts(desk: Rig, every: Sequence[Played]) -> list[Fact]:
    """Every operation that was begun, as it stands."""
    async with desk.ledger.transaction() as conn:
        late = {str(row["operation_id"]) for row in await views.overdue(conn)}
    await recorded(desk, every)  # those that nobody heard of have their ids now too
    told = []
    for one in every:
        job = one.job
        if job is None:
            continue
        derived = UUID(job.operation_id)
        async with desk.ledger.transaction() as conn:
            operation = await operations.find(conn, derived)
            against = operation is not None and await views.contradicted(conn, derived)
        if operation is None:
            made = tuple(f"effect {at}" for at in range(await job.effects()))
            told.append(Fact(one.name, "", "", "", made, job.arrivals, 0, "", False))
            continue
        told.append(
            Fact(
                name=f"{one.name} ({job.operation_id[:8]})",
                state=operation.state.value,
                folded=await _folded(desk, derived),
                receipt=operation.receipt or "",
                effects=await receipts(desk, job),
                sends=job.arrivals,
                attempts=operation.fence,
                next_step=operation.next_step or "",
                overdue=job.operation_id in late,
                contradicted=against,
            )
        )
    return told


async def _folded(desk: Rig, operation_id: UUID) -> str:
    moves = [e for e in await desk.trail(str(operation_id)) if e.kind is EventKind.MOVED]
    return str(fold((e.edge or 0, e.source, e.target or "") for e in moves) or "")


async def judged(desk: Rig, every: Sequence[Played]) -> tuple[list[Fact], list[str]]:
    """All facts, and everything that must not be: by the receivers, and by the ledger's own verification."""
    told = await persist(lambda: facts(desk, every), 180)
    async with desk.ledger.transaction() as conn:
        await conn.execute("set transaction isolation level repeatable read")
        verified = await verify(conn)
    return told, [*differences(told), *(f"verify: {found.row}: {found.what}" for found in verified.differences)]
