"""The audit of a provider: every kind of difference is found, told once, and gone when it is mended; pages are remembered.

The stand-in is told to differ; the audit itself sends nothing, so that its journal shows reads only.
"""

import asyncio
import uuid
from datetime import timedelta
from typing import Any

import psycopg
import pytest
import structlog

import activities.audit
import providers.stripe_listing
import workflows.waking
from activities.messages import Audited
from devstack.stripe_standin.presets import LIST
from devstack.stripe_standin.rules import Rule
from ledger.audit import FindingKind
from ledger.model import Operation
from ledger.store import audits
from tests.conftest import Rig
from workflows.names import audit_id

SOMEBODY = str(uuid.uuid5(uuid.NAMESPACE_OID, "an operation of nobody's"))
K = FindingKind


@pytest.fixture(autouse=True)
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pauses between reads, and workflows are old enough at once."""
    monkeypatch.setattr(activities.audit, "PACE", 0.0)
    monkeypatch.setattr(workflows.waking, "RECORDED_WITHIN", timedelta(0))


async def audit(rig: Rig, **given: Any) -> Audited:
    """One audit to its end."""
    told: Audited = await rig.client.execute_workflow(
        "AuditWorkflow", given, id=audit_id(rig.stack.task_queue), task_queue=rig.stack.task_queue, result_type=Audited
    )
    return told


async def found(rig: Rig) -> set[tuple[str, str]]:
    """What does not fit: kind and name."""
    async with rig.ledger.transaction() as conn:
        return {(row["kind"], row["name"]) for row in await audits.open_findings(conn)}


async def refunded(rig: Rig, target: str) -> Operation:
    """A refund that ended as succeeded."""
    answer = await rig.propose(rig.proposal(target))
    return await rig.until(answer.operation_id, "succeeded")


def listings(rig: Rig) -> list[dict[str, Any]]:
    """The parameters of every listing of the whole account."""
    arrivals = rig.stack.stripe.control.journal().arrivals
    return [
        a.params for a in arrivals if a.path == "/v1/refunds" and a.method == "GET" and "payment_intent" not in a.params
    ]


async def test_every_difference_at_a_provider_is_found_told_once_and_gone_when_it_is_mended(rig: Rig) -> None:
    """Red: leave `compare` out for effects that an operation holds, or never ask for what did not fit before."""
    stripe, target = rig.stack.stripe.control, rig.payment()
    async with rig.worker():
        fine = await refunded(rig, rig.payment())
        doubled, voided, edited = [await refunded(rig, rig.payment()) for _ in range(3)]
        blocked = await rig.propose(rig.proposal(target, amount=20_000))
        assert blocked.state == "blocked"
        assert (await audit(rig)).findings == 0

        twin = stripe.foreign_refund(doubled.target, 700, metadata={"operation_id": str(doubled.operation_id)})
        stray = stripe.foreign_refund(target, 100, metadata={"operation_id": SOMEBODY})
        never = stripe.foreign_refund(target, 200, metadata={"operation_id": blocked.operation_id})
        stripe.foreign_refund(target, 300)
        stripe.set_refund(str(voided.receipt), status="failed")
        stripe.set_refund(str(edited.receipt), metadata={"operation_id": str(fine.operation_id)})
        posts = len([a for a in stripe.journal().arrivals if a.method == "POST"])
        with structlog.testing.capture_logs() as lines:
            told = [await audit(rig), await audit(rig)]
        wanted = {
            (K.DUPLICATE, twin), (K.WITHOUT_RECORD, stray), (K.ENDED_WITHOUT, never), (K.VOID, voided.receipt),
            (K.DIFFERS, edited.receipt),
        }  # fmt: skip
        assert await found(rig) == wanted
        assert [t.findings for t in told] == [5, 5] and told[0].left_out == []
        alerts = [line for line in lines if line["event"] == "audit finding"]
        assert sorted(line["kind"] for line in alerts) == sorted(kind for kind, _ in wanted)
        assert len([a for a in stripe.journal().arrivals if a.method == "POST"]) == posts

        for refund in (twin, stray, never):
            stripe.set_refund(refund, status="failed")
        stripe.set_refund(str(edited.receipt), metadata={"operation_id": str(edited.operation_id)})
        await look(rig, voided)
        # Everything of before lies outside of what is listed now: each is read by itself.
        await rig.advance(3 * 3_600)
        await audit(rig)
        assert (await audit(rig)).findings == 0 and await found(rig) == set()


async def look(rig: Rig, operation: Operation) -> None:
    """The operation looks, and records that its receipt is void."""
    await workflows.waking.signal(rig.client, operation, "look_now", task_queue=rig.stack.task_queue)
    deadline = asyncio.get_running_loop().time() + 10
    while (await rig.operation(str(operation.operation_id))).standing != "void":
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.05)


async def test_an_effect_that_the_provider_does_not_show_any_more_is_found(rig: Rig) -> None:
    """Neither listed nor read by its id. Red: ask for nothing that the listing left out."""
    stripe = rig.stack.stripe.control
    async with rig.worker():
        operation = await refunded(rig, rig.payment())
        for name in ("hidden-lookup", "hidden-refund"):
            stripe.fault(name, times=None)
        await audit(rig)
        assert await found(rig) == {(K.GONE, operation.receipt)}
        stripe.clear_faults()
        await audit(rig)
        assert await found(rig) == set()


async def test_a_listing_that_broke_off_goes_on_at_its_page_and_the_next_begins_where_it_began(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two on a page, five refunds, and the second page is not answered. Red: forget the page, or where the last one began."""
    monkeypatch.setattr(providers.stripe_listing, "PAGE", 2)
    stripe, target = rig.stack.stripe.control, rig.payment()
    refunds = [stripe.foreign_refund(target, amount, metadata={"operation_id": SOMEBODY}) for amount in range(100, 105)]
    stripe.fault(Rule(kind="rate_limit", match=LIST.model_copy(update={"later_page": True})), times=1)
    async with rig.worker():
        told = await audit(rig)
        assert (told.listed, told.findings) == (0, 2) and "http_status 429" in told.left_out[0]
        async with rig.ledger.transaction() as conn:
            latest = await audits.latest(conn)
        assert latest is not None and not latest.complete and "429" in latest.left_out
        told = await audit(rig)
        assert (told.listed, told.findings, told.left_out) == (3, 5, [])
        assert [p.get("starting_after") for p in listings(rig)] == [None, refunds[3], refunds[3], refunds[1]]
        assert all("created" not in p for p in listings(rig))
        await rig.advance(2 * 3_600)
        assert ((await audit(rig)).listed, "created" in listings(rig)[-1]) == (5, True)
        told = await audit(rig)
        assert (told.listed, told.findings) == (0, 5)


async def test_a_row_that_somebody_changed_is_found_in_turn_and_gone_when_it_is_put_back(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two operations, one at an audit; the guards are off meanwhile, as for a superuser. Red: begin at the first one again."""
    monkeypatch.setattr(activities.audit, "MOST_VERIFIED", 1)
    async with rig.worker():
        made = [await refunded(rig, rig.payment()) for _ in range(2)]
        last = max(made, key=lambda operation: operation.operation_id)
        name = f"operation {last.operation_id}"
        change = "update operations set actor = %s where operation_id = %s"
        async with await psycopg.AsyncConnection.connect(rig.stack.servers.postgres.dsn(rig.stack.name)) as conn:
            await conn.execute("set session_replication_role = replica")
            await conn.execute(change, ["mallory", last.operation_id])
            await conn.commit()
            assert (await audit(rig)).findings == 0
            await audit(rig)
            assert (K.CHAIN, name) in await found(rig)
            await conn.execute(change, [last.actor, last.operation_id])
        await audit(rig)
        assert await found(rig) == set()


async def test_a_changed_sheet_is_a_finding_until_it_is_put_back_whoever_has_the_turn(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sheet is no operation's own row. Red: name only the row in what `verify_some` tells: gone when another has the turn."""
    monkeypatch.setattr(activities.audit, "MOST_VERIFIED", 1)
    async with rig.worker():
        asked = [await rig.propose(rig.proposal(rig.payment(), amount=5_000)) for _ in range(2)]
        first = min(answer.operation_id for answer in asked)
        change = "update sheets set document = document || %s where operation_id = %s"
        async with await psycopg.AsyncConnection.connect(rig.stack.servers.postgres.dsn(rig.stack.name)) as conn:
            await conn.execute("set session_replication_role = replica")
            await conn.execute("alter table sheets drop constraint sheet_or_nothing")
            await conn.execute(change, [b" ", first])
            await conn.commit()
        for _ in range(3):
            await audit(rig)
            assert [kind for kind, _ in await found(rig)] == [K.CHAIN]


async def test_the_schedule_audits_and_starts_what_nobody_works_on(rig: Rig) -> None:
    """Two workers make one schedule. Red: compare only, or no schedule."""
    proposal = rig.proposal(rig.payment(), amount=5_000)
    async with rig.worker(audit_every=1.0), rig.worker(audit_every=1.0):
        waiting = await rig.propose(proposal)
        await rig.handle(proposal).terminate("a test")
        schedule = rig.client.get_schedule_handle(audit_id(rig.stack.task_queue))
        try:
            await runs_again(rig, proposal)
            await rig.approve(waiting.operation_id)
        finally:
            await schedule.delete()
        await rig.until(waiting.operation_id, "succeeded")
    assert len(rig.effects(proposal.target)) == 1


async def runs_again(rig: Rig, proposal: Any) -> None:
    """Wait until the workflow of this proposal runs."""
    deadline = asyncio.get_running_loop().time() + 20
    while (await rig.handle(proposal).describe()).status.name != "RUNNING":  # type: ignore[union-attr]
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.1)
