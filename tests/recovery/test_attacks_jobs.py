"""Attacks on what rests on something else: revisions of what was not so, restored ledgers, keys and slots of others.

The judges are the receivers' own records. Tests marked HOLE fail on the code they were written for, and say what to change.
"""

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from activities.order import Step, business_key, plan
from commands.temporal import Temporal
from devstack.faults import CutReply, CutRequest, HoldRequest
from devstack.receivers import Receivers
from devstack.stack import Servers
from devstack.stripe_standin.launch import StandInProcess
from ledger.model import Operation
from ledger.store import operations, views
from ledger.store.database import now
from tests.conftest import Rig, _fresh
from tests.recovery.order_world import (
    FINAL_DOT,
    ONE_OF_EACH,
    Effects,
    Job,
    a_job,
    certify_nothing_happened,
    hold,
    release,
    signed,
    until,
    view,
)
from workflows.client import sign

OUR_HEADER = b"X-Effect-Operation"
TO_ABSENCE_SECONDS = 4_300.0  # past quiet_at and settling of every contract
BETWEEN_LOOKS_SECONDS = 400.0


@dataclass(frozen=True)
class Late:
    """An order whose mail was certified as never sent, while it is still on the wire."""

    job: Job
    mail: Operation
    wire: HoldRequest

    async def arrives(self) -> None:
        """The mail that nobody believes in any more is delivered, and shows in the archive."""
        await asyncio.to_thread(self.wire.release)

        async def there() -> bool:
            return (await self.job.effects()).mails == 1

        await until(there, "the late mail to arrive", seconds=20)

    async def is_noticed(self) -> None:
        """Somebody looks again at what ended (`effects look`): its end is contradicted."""
        await Temporal(self.job.desk.client, "", self.job.queue).signal(self.mail, "look_now")

        async def contradicted() -> bool:
            async with self.job.desk.ledger.transaction() as conn:
                return await views.contradicted(conn, self.mail.operation_id)

        await until(contradicted, "the contradiction to be noticed", seconds=20)


async def a_late_mail(desk: Rig) -> Late:
    """The server holds it longer than the contract assumes; the looks see nothing, and two operators sign that."""
    wire = desk.world.proxies["smtp"].arm(HoldRequest(after=OUR_HEADER))
    job = await a_job(desk)
    await job.ask()
    await job.approve(Step.INVOICE)
    await asyncio.to_thread(wire.wait_fired)
    await job.until(Step.MAIL, "unknown")
    await job.until(Step.CUSTOMER, "succeeded")
    for seconds in (TO_ABSENCE_SECONDS, *[BETWEEN_LOOKS_SECONDS] * 8):
        await desk.advance(seconds)
        await desk.settled(await job.id_of(Step.MAIL))
        if (await job.until(Step.MAIL, "unknown", "needs_review")).state == "needs_review":
            break
    await certify_nothing_happened(desk, await job.id_of(Step.MAIL))
    await job.until_ended()
    return Late(job, await job.until(Step.MAIL, "rejected"), wire)


async def dispatch_waits(job: Job, step: Step, why: str = "held") -> Operation:
    """Until the step is let through by its rule, and only the hold keeps it back."""

    async def waits() -> bool:
        found = await job.operation(step)
        return found is not None and found.next_step == f"dispatch ({why})"

    await until(waits, f"{step} to wait: {why}", seconds=30)
    return await job.until(step, "approved")


async def test_what_is_seen_at_the_receiver_is_not_done_again_because_the_ledger_says_it_never_was(desk: Rig) -> None:
    """HOLE. The late mail stands in the archive, with the marker of the operation that was rejected; the revision reads it
    there before it is judged, takes it for compared by its key already, and sends the same mail again; nobody is asked.

    Red: let `judgement._verdict` pass over an effect of another operation that does not reserve it.
    """
    async with desk.worker(call_deadline=4.0):
        late = await a_late_mail(desk)
        await late.arrives()
        revised = await late.job.revised(Step.MAIL)
        await revised.ask()
        second = await revised.until(Step.MAIL, "blocked", "awaiting_approval", "succeeded")
    assert await late.job.effects() == ONE_OF_EACH
    assert (second.state, second.reason) == ("blocked", "equivalent_operation")


async def test_a_revision_is_not_sent_once_its_former_self_is_contradicted(desk: Rig) -> None:
    """HOLE. The revision (to a corrected address) was recorded while nothing spoke against the end of the old mail; it is
    held; the old one arrives and is noticed. As a new proposal it would be refused (`superseded_exists`), but it is sent.

    Red: let `dependencies.met` ask about `depends_on` only.
    """
    async with desk.worker(call_deadline=4.0):
        late = await a_late_mail(desk)
        await hold(desk, "provider:mail")
        corrected = late.job.order.model_copy(update={"confirm_to": f"new-{late.job.order.confirm_to}"})
        revised = await replace(late.job, order=corrected).revised(Step.MAIL)
        await revised.ask()
        await dispatch_waits(revised, Step.MAIL)
        await late.arrives()
        await late.is_noticed()
        await release(desk, "provider:mail")
        second = await revised.until(Step.MAIL, "blocked", "awaiting_approval", "succeeded")
    assert (second.state, (await revised.effects()).mails) == ("blocked", 0)


async def test_a_blocked_revision_in_between_does_not_wash_off_an_effect_that_exists(desk: Rig) -> None:
    """HOLE. The first revision was withdrawn, so it never was sent; a second one names it and is recorded, although the mail
    before both exists.

    Red: let `dependencies._superseded` look at the operation that is named, and not at those that it revises.
    """
    async with desk.worker(call_deadline=4.0):
        late = await a_late_mail(desk)
        await hold(desk, "provider:mail")
        corrected = late.job.order.model_copy(update={"confirm_to": f"new-{late.job.order.confirm_to}"})
        revised = await replace(late.job, order=corrected).revised(Step.MAIL)
        await revised.ask()
        waiting = await dispatch_waits(revised, Step.MAIL)
        gone = await desk.signed(str(waiting.operation_id), "olga", "withdrawal")
        await revised.step(Step.MAIL).signal("withdraw", gone)
        await revised.until(Step.MAIL, "blocked")
        await revised.until_ended()
        await late.arrives()
        await late.is_noticed()
        again = await revised.revised(Step.MAIL)
        told = view(await again.ask(), Step.MAIL)

        async def judged() -> bool:
            nonlocal told
            told = view(await again.ask(), Step.MAIL)
            return told.state not in ("", "proposed")

        await until(judged, "the second revision to be recorded or refused", seconds=20)
        assert (told.state, told.reason) == ("refused", "superseded_exists"), told
        await release(desk, "provider:mail")
    assert (await again.effects()).mails == 0


async def test_an_order_whose_draft_was_cancelled_is_invoiced_again_under_a_revision(desk: Rig) -> None:
    """HOLE (nothing is doubled, but nobody can go on). A void receipt is always contradicted too, and what is contradicted
    cannot be revised: the order's number is burnt.

    Red: refuse in `dependencies._superseded` whatever is contradicted, void or not.
    """
    job = await a_job(desk)
    async with desk.worker():
        await job.ask()
        await job.approve(Step.INVOICE)
        await job.until_ended()
        invoice = await job.until(Step.INVOICE, "succeeded")
        number = int((invoice.receipt or "").rpartition(",")[2])
        await asyncio.to_thread(desk.world.erp.admin.press, "account.invoice", "cancel", [number])
        await Temporal(desk.client, "", job.queue).signal(invoice, "look_now")

        async def noticed() -> bool:
            return (await desk.operation(str(invoice.operation_id))).standing == "void"

        await until(noticed, "the ledger to notice", seconds=20)
        revised = await job.revised(Step.INVOICE)
        told = view(await revised.ask(), Step.INVOICE)
        assert (told.reason, told.state) == ("", "awaiting_approval"), told
        await revised.approve(Step.INVOICE)
        await revised.until(Step.INVOICE, "succeeded")
    assert await job.effects() == Effects(2, 1, 1)  # one of the two is cancelled


async def test_a_step_refused_for_a_moment_is_tried_again_while_another_step_waits(desk: Rig) -> None:
    """A step is held by none that it does not need. The ERP is away for the moment in which
    the customer's record becomes due; the mail is held, for days perhaps, so the order's run stays open and remembers.

    Red: leave `target_unreadable` out of `ASK_AGAIN` of the order's workflow.
    """
    job = await a_job(desk)
    async with desk.worker():
        await hold(desk, "provider:mail")
        await hold(desk, "provider:tryton")
        await job.ask()
        await job.approve(Step.INVOICE)
        await dispatch_waits(job, Step.INVOICE)
        away = desk.world.proxies["tryton"].arm(CutRequest(after=b"contact_mechanisms.type"))
        await release(desk, "provider:tryton")
        await job.until(Step.INVOICE, "succeeded")
        await dispatch_waits(job, Step.MAIL)

        await asyncio.to_thread(away.wait_fired)

        async def done() -> bool:
            return view(await job.ask(), Step.CUSTOMER).state == "succeeded"

        await until(done, "the customer's record to be tried again", seconds=40)
        await release(desk, "provider:mail")
        await job.until_ended()
    assert await job.effects() == ONE_OF_EACH


async def test_an_order_signed_anew_goes_on_while_another_step_waits(desk: Rig) -> None:
    """A step is held by none that it does not need. The token of the customer's step is no good
    (its key was changed while people took their time); the caller asks with a good one, while the mail is held.

    Red: drop `_take_signatures` of the order's workflow.
    """
    job = await a_job(desk)
    good = job.order
    bad = good.model_copy(update={"tokens": good.tokens | {"customer": good.tokens["mail"]}})
    async with desk.worker():
        await hold(desk, "provider:mail")
        invoice = next(planned.proposal for planned in plan(good) if planned.step is Step.INVOICE)
        await desk.propose(invoice)  # without it the whole order would be refused for that token
        await job.approve(Step.INVOICE)
        await job.until(Step.INVOICE, "succeeded")
        await replace(job, order=bad).ask()
        await dispatch_waits(job, Step.MAIL)

        async def done() -> bool:
            return view(await job.ask(), Step.CUSTOMER).state == "succeeded"

        await until(done, "the customer's record, with a token that is good", seconds=20)
        await release(desk, "provider:mail")
        await job.until_ended()
    assert await job.effects() == ONE_OF_EACH


async def test_another_service_cannot_take_the_place_of_an_orders_revision(desk: Rig) -> None:
    """HOLE (nothing is doubled, but nobody can go on). An intent is revised once; the key for refunds of the same tenant
    names the order's declined invoice in a refund of its own.

    Red: let anything supersede anything.
    """
    job = await a_job(desk)
    async with desk.worker():
        await job.ask()
        waiting = await job.until(Step.INVOICE, "awaiting_approval")
        declined = await desk.signed(str(waiting.operation_id), "alice", "decline")
        await job.step(Step.INVOICE).signal("decide", declined)
        await job.until_ended()
        taken = await desk.propose(desk.proposal(desk.payment(), supersedes=waiting.business_key))
        revised = await job.revised(Step.INVOICE)
        told = view(await revised.ask(), Step.INVOICE)
    assert (told.state, told.reason) == ("awaiting_approval", ""), (taken, told)


async def test_a_mail_that_nobody_can_know_about_is_not_sent_again_by_a_revision(desk: Rig) -> None:
    """Nor by the other mail action, which its rule lets through, under a key of its own: the text is the same.

    Red: let `dependencies._superseded` take what is undetermined; let the equivalence of a mail name its action.
    """
    lost = desk.world.proxies["smtp"].arm(CutReply(after=FINAL_DOT))
    job = await a_job(desk, mail_action="send_mail_unarchived")
    said: dict[str, Any] = {"decision": "undetermined", "evidence": "the server keeps no log"}
    async with desk.worker():
        await job.ask()
        await job.approve(Step.INVOICE)
        await job.approve(Step.MAIL)
        await job.until(Step.MAIL, "needs_review")
        await desk.advance(1_000.0)
        for who in ("olga", "oscar"):
            await desk.settled(operation_id := await job.id_of(Step.MAIL))
            await job.step(Step.MAIL).signal("resolve", await desk.signed(operation_id, who, "resolution", **said))
            await desk.accepted(operation_id, who)
        old = await job.until(Step.MAIL, "undetermined")
        await job.until_ended()
        assert lost.fired == 1 and await job.effects() == ONE_OF_EACH
        revised = await job.revised(Step.MAIL)
        told = view(await revised.ask(), Step.MAIL)

        async def judged() -> bool:
            nonlocal told
            told = view(await revised.ask(), Step.MAIL)
            return told.state not in ("", "proposed")

        await until(judged, "the revision to be refused", seconds=20)
        assert (told.state, told.reason) == ("refused", "superseded_exists"), told
        needs = [{"business_key": business_key(job.order, Step.INVOICE), "state": "succeeded"}]
        other = desk.ask_for("send_mail", old.target, old.arguments, depends_on=needs)
        async with desk.ledger.transaction() as conn:
            at = int((await now(conn)).timestamp())
        bot = desk.holder("order-bot")
        other = sign(other, bot.key, kid=bot.kid, iss=bot.name, aud=desk.stack.household.audience, at=at)
        ended = await desk.until((await desk.propose(other)).operation_id, "blocked", "succeeded", "awaiting_approval")
    assert (ended.state, ended.reason) == ("blocked", "equivalent_operation")
    assert await job.effects() == ONE_OF_EACH


async def test_a_ledger_restored_from_before_the_order_finds_all_three_effects(
    desk: Rig, servers: Servers, stand_in: StandInProcess, receivers: Receivers, tmp_path: Path
) -> None:
    """HOLE (nothing is doubled, but the customer's step is refused for ever as `target_unfit`). The ledger forgot the whole
    order, and is asked for it again: the same ids, and nothing is sent.

    Red: read the target without our marker in `Propose._read_first`; drop the look of `Dispatch._first_claim`.
    """
    job = await a_job(desk)
    async with desk.worker():
        await job.ask()
        await job.approve(Step.INVOICE)
        first = await job.until_ended()
        for step in Step:  # each has a moment more to live than the order, and its id is needed again
            await job.step(step).result()
    assert first.state == "done" and await job.effects() == ONE_OF_EACH
    async with desk.ledger.transaction() as conn:
        namespace = await operations.namespace(conn)
    (tmp_path / "restored").mkdir()
    async with _fresh(servers, stand_in, tmp_path / "restored", receivers) as forgetful:
        async with forgetful.ledger.transaction() as conn:
            await conn.execute("alter table ledger_identity disable trigger user")
            await conn.execute("update ledger_identity set namespace = %s", [namespace])
        order = await signed(forgetful, job.order.model_copy(update={"tokens": {}}))
        again = Job(forgetful, job.customer, order, forgetful.stack.task_queue)
        async with forgetful.worker():
            await again.ask()
            await again.approve(Step.INVOICE)
            second = await again.until_ended()
        found = [await again.until(step, "succeeded") for step in Step]
    assert await again.effects() == ONE_OF_EACH
    assert [v.receipt for v in second.steps] == [v.receipt for v in first.steps]
    assert [v.operation_id for v in second.steps] == [v.operation_id for v in first.steps]
    assert all(operation.fence == 1 for operation in found)
