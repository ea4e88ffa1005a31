"""Webhooks as evidence: events come twice, in any order, too early, or never, and only ever make an operation look."""

import asyncio
import json
import uuid
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
import structlog
from temporalio.client import Client

from activities import reconcile
from activities.reconcile import FOLLOW_FIRST
from commands.review import list_page
from devstack.fault_proxy import FaultProxy
from devstack.faults import CutReply
from devstack.ports import LOOPBACK
from devstack.stripe_standin.control import Rule
from ledger.model import InboxEvent, Operation, Standing
from ledger.store import inbox, views
from ledger.store.database import Ledger
from ledger.trail import EventKind
from tests.conftest import Door, Rig

PENDING = Rule(kind="standing", refund_status="pending")
HELD_ANSWER = Rule(kind="hang", when="after")
SILENCE = Rule(kind="html503", when="before", times=None)


def kinds(event: bytes) -> str:
    """The type of an event."""
    return str(json.loads(event)["type"])


async def refunded(rig: Rig, target: str, rule: Rule | None = None, **proposed: Any) -> Operation:
    """A refund that ended as succeeded; with a rule, one that the stand-in makes so."""
    if rule is not None:
        rig.stack.stripe.control.fault(rule, payment_intent=target)
    answer = await rig.propose(rig.proposal(target, **proposed))
    return await rig.until(answer.operation_id, "succeeded")


async def followed(rig: Rig, target: str) -> Operation:
    """A pending refund that was read again once, and is not read by itself for half a minute."""
    operation = await refunded(rig, target, PENDING)
    while (
        operation.next_step_at is None
        or operation.ended_at is None
        or ((operation.next_step_at - operation.ended_at).total_seconds() < FOLLOW_FIRST)
    ):
        await asyncio.sleep(0.05)
        operation = await rig.operation(str(operation.operation_id))
    assert (operation.next_step, operation.standing) == ("follow", Standing.PENDING)
    return operation


async def standing(rig: Rig, operation: Operation, wanted: Standing, seconds: float = 10.0) -> Operation:
    """Wait until its receipt has this standing."""
    deadline = asyncio.get_running_loop().time() + seconds
    while (found := await rig.operation(str(operation.operation_id))).standing is not wanted:
        assert asyncio.get_running_loop().time() < deadline, found
        await asyncio.sleep(0.05)
    return found


async def moves(rig: Rig, operation: Operation) -> list[int]:
    """The edges it went along."""
    return [e.edge for e in await rig.trail(str(operation.operation_id)) if e.edge is not None]


async def told_of(rig: Rig, operation: Operation, kind: EventKind) -> list[dict[str, Any]]:
    """The bodies of its events of one kind."""
    return [e.body for e in await rig.trail(str(operation.operation_id)) if e.kind is kind]


async def test_events_that_come_twice_and_backwards_change_nothing(rig: Rig) -> None:
    """Each of them is kept once, wakes whom it concerns, and finds what was known.

    Red: no `on conflict do nothing` in `inbox.insert` (500 for the second delivery), or no `one_event`.
    """
    target = rig.payment()
    async with rig.worker(), rig.inbox() as door:
        operation = await refunded(rig, target)
        edges = await moves(rig, operation)
        events = rig.events(target)
        assert [kinds(e) for e in events] == ["refund.created", "charge.refunded"]
        assert await door.deliver(*reversed(events), *events, *events) == [200] * 6
        # the charge names no refund, and nothing is open on its payment
        assert await door.taken() == [[], [operation.operation_id]]
        await rig.settled(str(operation.operation_id))
    after = await rig.operation(str(operation.operation_id))
    assert (after.state, after.standing, after.receipt) == ("succeeded", Standing.GOOD, operation.receipt)
    assert await moves(rig, operation) == edges
    assert await told_of(rig, operation, EventKind.CONTRADICTION) == []
    assert len(rig.effects(target)) == len(rig.posts(target)) == 1


async def test_an_event_before_the_response_moves_nothing(rig: Rig) -> None:
    """Stripe made the refund and holds its answer back; the event arrives first, and the operation stays in flight.

    Red: let `take_events` settle what it finds, or let the workflow leave a dispatch for a signal: the trail would move.
    """
    target = rig.payment()
    async with rig.worker(), rig.inbox() as door:
        rule = rig.stack.stripe.control.fault(HELD_ANSWER, payment_intent=target, method="POST", path="/v1/refunds")
        proposal = rig.proposal(target)
        asking = asyncio.create_task(rig.propose(proposal))
        await asyncio.to_thread(rig.stack.stripe.control.until, lambda j: len(j.effects) == 1, payment_intent=target)
        assert await door.deliver(*rig.events(target)) == [200, 200]
        ((named,), (opened,)) = await door.taken()
        operation = await rig.operation(str(named))
        assert named == opened and operation.state == "in_flight"
        before = operation.event_count
        await asyncio.sleep(1.0)
        held = await rig.operation(str(named))
        assert (held.state, held.event_count, held.receipt) == ("in_flight", before, None)
        rig.stack.stripe.control.release(rule)
        after = await rig.until(str(named), "succeeded")
        await asking
    assert after.receipt == rig.effects(target)[0].refund
    assert (await moves(rig, after))[-2:] == [7, 10]
    assert len(rig.effects(target)) == len(rig.posts(target)) == 1


async def test_an_event_before_our_own_commit_moves_nothing(rig: Rig) -> None:
    """The answer is here, and cannot be written: this test holds the row. The event is taken without that lock.

    Red: `find` under `for update` in `inbox.concerned` (the event would wait for the row, and `taken` for the event).
    """
    target = rig.payment()
    async with rig.worker(), rig.inbox() as door:
        rule = rig.stack.stripe.control.fault(HELD_ANSWER, payment_intent=target, method="POST", path="/v1/refunds")
        asking = asyncio.create_task(rig.propose(rig.proposal(target)))
        await asyncio.to_thread(rig.stack.stripe.control.until, lambda j: len(j.effects) == 1, payment_intent=target)
        async with rig.ledger.transaction() as conn:
            row = await (await conn.execute("select operation_id from operations for update")).fetchone()
            assert row is not None
            rig.stack.stripe.control.release(rule)
            await asyncio.to_thread(
                rig.stack.stripe.control.until,
                lambda j: any(a.ended == "answered" for a in j.arrivals if a.method == "POST"),
                payment_intent=target,
            )
            assert await door.deliver(*rig.events(target)) == [200, 200]
            assert await door.taken() == [[row["operation_id"]], [row["operation_id"]]]
            assert (await rig.operation(str(row["operation_id"]))).state == "in_flight"
        after = await rig.until(str(row["operation_id"]), "succeeded")
        await asking
    assert (await moves(rig, after))[-2:] == [7, 10]
    assert len(rig.effects(target)) == len(rig.posts(target)) == 1


async def test_an_event_about_a_lost_answer_is_a_reason_to_look_and_no_proof(rig: Rig) -> None:
    """The answer is lost, and so is that of every repeat: the event alone, with receipt and marker, settles
    nothing. Then Stripe answers again.

    Red: let `_take` move an unknown operation to succeeded with the receipt of its event.
    """
    target, control = rig.payment(), rig.stack.stripe.control
    async with rig.worker(), rig.inbox() as door:
        control.fault("lost-answer", payment_intent=target)
        control.fault(SILENCE.for_(replay=True))
        answer = await rig.propose(rig.proposal(target))
        await asyncio.to_thread(control.until, lambda j: len(j.effects) == 1, payment_intent=target)
        assert set(await door.deliver(*rig.events(target))) == {200}
        assert await door.taken() == [[uuid.UUID(answer.operation_id)]] * 2
        await asyncio.sleep(1.0)
        assert (await rig.operation(answer.operation_id)).state in ("unknown", "in_flight")
        control.clear_faults()
        after = await rig.until(answer.operation_id, "succeeded")
    assert after.receipt == rig.effects(target)[0].refund
    assert len(rig.effects(target)) == 1 and len({a.idempotency_key for a in rig.posts(target)}) == 1


async def test_an_event_of_a_foreign_refund_is_of_nobody(rig: Rig) -> None:
    """Somebody refunds in the dashboard. What has ended is not woken; what waits for a person on this payment looks again.

    Red: for the second half, no `_OPEN_ON_TARGET`: the approver would sign on an amount that is gone.
    """
    target = rig.payment(20_000)
    async with rig.worker(), rig.inbox() as door:
        ended = await refunded(rig, target, amount=1_000)
        foreign = rig.stack.stripe.control.foreign_refund(target, 9_000)
        await door.deliver(*[e for e in rig.events(target) if foreign.encode() in e])
        assert await door.taken() == [[]]
        assert await rig.operation(str(ended.operation_id)) == ended

        waiting = await rig.propose(rig.proposal(target, amount=10_000))
        assert waiting.state == "awaiting_approval"
        more = rig.stack.stripe.control.foreign_refund(target, 5_000)
        await door.deliver(*[e for e in rig.events(target) if more.encode() in e])
        assert (await door.taken())[1:] == [[uuid.UUID(waiting.operation_id)]]
        after = await rig.until(waiting.operation_id, "blocked")
    assert after.reason == "amount_exceeds_remaining"
    assert len(rig.posts(target)) == 1


async def test_nothing_waits_for_an_event_that_is_lost(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """No event is delivered at all: a pending refund is followed by its own clock.

    Red: follow only when asked to (`and ref.look_now` before `_follow`).
    """
    monkeypatch.setattr(reconcile, "FOLLOW_FIRST", 1.0)
    target = rig.payment()
    async with rig.worker():
        operation = await refunded(rig, target, PENDING)
        assert operation.standing is Standing.PENDING
        rig.stack.stripe.control.set_refund(str(operation.receipt), status="succeeded")
        await standing(rig, operation, Standing.GOOD)


async def test_a_pending_refund_that_succeeds_is_followed_to_its_end_by_its_event(rig: Rig) -> None:
    """Without waiting for the next look of its own, and its workflow ends. Red: `_take` that wakes nobody."""
    target = rig.payment()
    async with rig.worker(), rig.inbox() as door:
        operation = await followed(rig, target)
        rig.stack.stripe.control.set_refund(str(operation.receipt), status="succeeded")
        began = asyncio.get_running_loop().time()
        await door.deliver(*rig.events(target))
        after = await standing(rig, operation, Standing.GOOD)
        assert asyncio.get_running_loop().time() - began < FOLLOW_FIRST / 2
        handle = rig.client.get_workflow_handle(f"{operation.tenant}/{operation.business_key}")
        await asyncio.wait_for(handle.result(), 10)
    assert (after.state, after.next_step) == ("succeeded", "")
    assert await told_of(rig, operation, EventKind.CONTRADICTION) == []


async def test_a_pending_refund_that_fails_is_followed_to_its_end_by_its_event(rig: Rig) -> None:
    """Backwards too: that it failed comes before that it was made. Red: `_take` that wakes nobody."""
    target = rig.payment()
    async with rig.worker(), rig.inbox() as door:
        operation = await followed(rig, target)
        rig.stack.stripe.control.set_refund(str(operation.receipt), status="failed", failure_reason="declined")
        events = rig.events(target)
        assert [kinds(e) for e in events][2:] == ["refund.updated", "charge.refund.updated", "refund.failed"]
        await door.deliver(*reversed(events))
        await standing(rig, operation, Standing.VOID)
        await door.taken()
        handle = rig.client.get_workflow_handle(f"{operation.tenant}/{operation.business_key}")
        await asyncio.wait_for(handle.result(), 10)
        await assert_contradicted(rig, operation, "pending")


async def assert_contradicted(rig: Rig, operation: Operation, before: str) -> None:
    """Told in the trail, once; ended as it had; listed for people."""
    (told,) = await told_of(rig, operation, EventKind.CONTRADICTION)
    assert (told["receipt"], told["standing"], told["before"]) == (operation.receipt, "void", before)
    assert (await rig.operation(str(operation.operation_id))).state == "succeeded"
    async with rig.ledger.transaction() as conn:
        page = await list_page(conn, rig.settings())
        assert operation.operation_id in {o.operation_id for o in await views.in_review(conn)}
    (line,) = [one for one in page.document["review"] if one["operation_id"] == str(operation.operation_id)]
    assert line["contradicted"] is True


async def test_a_good_refund_that_turns_void_is_alerted_listed_and_frees_its_amount(rig: Rig) -> None:
    """The money came back hours later: the workflow is gone, and the event starts it again.

    Red: `wake` in place of `look_now` (it starts nothing); no log line in `events.append`; or a void effect that is
    still counted (`policy.remaining_minor`).
    """
    target = rig.payment(1_500)
    async with rig.worker(), rig.inbox() as door:
        operation = await refunded(rig, target)
        assert operation.standing is Standing.GOOD
        handle = rig.client.get_workflow_handle(f"{operation.tenant}/{operation.business_key}")
        await asyncio.wait_for(handle.result(), 10)
        # nothing is left while it stands
        assert (await rig.propose(rig.proposal(target, distinct_from=[str(operation.operation_id)]))).state == "blocked"
        rig.stack.stripe.control.set_refund(str(operation.receipt), status="failed", failure_reason="unknown")
        with structlog.testing.capture_logs() as lines:
            await door.deliver(*rig.events(target), *rig.events(target))
            await standing(rig, operation, Standing.VOID)
            await door.taken()
            await rig.settled(str(operation.operation_id))
        (alert,) = [line for line in lines if line["log_level"] == "error"]
        assert (alert["event"], alert["operation_id"]) == ("contradiction", str(operation.operation_id))
        assert "void" in alert["what"]
        await assert_contradicted(rig, operation, "good")
        again = await refunded(rig, target)
    assert [e.refund for e in rig.effects(target)] == [again.receipt] and again.receipt != operation.receipt


async def test_an_event_whose_hint_was_lost_is_found_by_the_schedule(rig: Rig) -> None:
    """Kept, and nobody was told. Two workers make one schedule. Red: no schedule, or a second start that raises."""
    target = rig.payment()
    async with rig.worker(take_events_every=1.0), rig.worker(take_events_every=1.0):
        operation = await followed(rig, target)
        rig.stack.stripe.control.set_refund(str(operation.receipt), status="succeeded")
        quiet = await Client.connect(f"{LOOPBACK}:1", lazy=True)
        async with rig.inbox(quiet) as door:
            assert await door.deliver(*rig.events(target)) == [200] * 4  # without Temporal too
            await standing(rig, operation, Standing.GOOD)
            await door.taken()
        await rig.client.get_schedule_handle(f"take-events:{rig.stack.task_queue}").delete()


async def test_events_kept_while_no_worker_ran_are_taken_by_the_next(rig: Rig) -> None:
    """The hint waits in Temporal. 230 events are more than one batch."""
    target = rig.payment()
    async with rig.worker():
        operation = await refunded(rig, target)
    async with rig.inbox(inbox_rate=1000.0) as door:
        await door.deliver(*rig.events(target))
        await fill(rig, 230)
        assert {row["taken_at"] for row in await door.rows()} == {None}
        async with rig.worker():
            woken = await door.taken(30)
    assert woken == [[operation.operation_id], []] + [[]] * 230


async def fill(rig: Rig, count: int) -> None:
    """Events of nobody's, as the inbox's role keeps them."""
    ledger = Ledger(rig.stack.inbox_dsn, max_size=1)
    await ledger.open()
    account = rig.stack.household.document.binding("acme", "stripe").account
    event = InboxEvent("stripe", "", account, False, "x.y", datetime.now(UTC), None, None, None, b"d" * 32)
    for number in range(count):
        async with ledger.transaction() as conn:
            assert await inbox.insert(conn, replace(event, event_id=f"evt_fill_{number}"))
    await ledger.close()


async def test_a_delivery_that_is_not_stripes_to_us_is_refused_and_keeps_nothing(rig: Rig) -> None:
    """On the real inbox: forged, altered, old, from the future, of the other mode, of an account of nobody's.

    Red: for the last two, no comparison with the bindings in `inbox_guard`.
    """
    target = rig.payment()
    async with rig.worker():
        await refunded(rig, target)
    event = rig.events(target)[0]
    told = json.loads(event)
    now = datetime.now(UTC).timestamp()
    async with rig.inbox() as door:
        assert await door.deliver(event, secret="whsec_forged") == [400]
        assert await door.deliver(event, at=now - 3600) == [400]
        assert await door.deliver(event, at=now + 3600) == [400]
        assert await door.deliver(json.dumps({**told, "livemode": True}).encode()) == [400]
        assert await door.deliver(json.dumps({**told, "account": "acct_elsewhere"}).encode()) == [400]
        assert await door.deliver(b" " * 300_000) == [413]
        assert await door.rows() == []
        assert await door.deliver(event) == [200]


async def test_while_the_ledger_is_away_events_come_later(rig: Rig) -> None:
    """Postgres does not answer: 503, nothing is told, and the next delivery of the same event is kept.

    Red: answer 200 before the commit.
    """
    target = rig.payment()
    async with rig.worker():
        await refunded(rig, target)
    first, second = rig.events(target)
    postgres = rig.stack.servers.postgres.port
    with FaultProxy(postgres) as proxy:
        dsn = rig.stack.inbox_dsn.replace(f":{postgres}/", f":{proxy.port}/")
        async with rig.inbox(inbox_dsn=dsn) as door:
            with proxy.down():
                proxy.drop_connections()
                assert await door.deliver(first) == [503]
            assert await door.rows() == []
            assert await answered(door, first) == 200
            # The commit went through and its acknowledgement did not: that is not known here, and so it is not said.
            cut = proxy.arm(CutReply(after=b"COMMIT"))
            assert await door.deliver(second) == [503]
            cut.wait_fired()
            assert len(await door.rows()) == 2
            assert await answered(door, second) == 200
            assert len(await door.rows()) == 2


async def answered(door: Door, event: bytes) -> int:
    """As Stripe does: again, until something else than 503 is said."""
    for _ in range(100):
        (code,) = await door.deliver(event)
        if code != 503:
            return code
        await asyncio.sleep(0.1)
    raise AssertionError("still 503")
