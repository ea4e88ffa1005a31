"""From an order to its invoice, the customer's record and a mail: nothing broken, three lost answers, and a killed worker."""

import asyncio
import signal

from activities.order import Step
from devstack.demo.dates import BEFORE_THE_WRITE
from devstack.demo.desk import CALL_DEADLINE, ORDERED, SEND_WITHIN, Desk, LostAnswer
from devstack.demo.records import Case
from devstack.faults import CutReply
from ledger.states import State

AFTER_THE_INVOICE = "recorded:kill"


async def an_order(desk: Desk) -> None:
    """One order after the other: as it should be, with lost answers, with a killed worker."""
    desk.show.act(
        "An order: three effects on systems that nobody here wrote",
        "Answers of Tryton (an ERP), Radicale (an address book) and mail-devel, all real, are lost in a proxy; a lock holds"
        " a commit back; a worker is killed. None of the three knows idempotency keys: trying again may do it twice.",
        "One invoice, one change of the customer's record, one mail. A person signs the invoice; a rule lets the rest go.",
    )
    worker = desk.start_worker(crash=AFTER_THE_INVOICE)
    desk.show.step(
        f"a worker for them starts (pid {worker.pid}); here a send has {SEND_WITHIN:.0f} s and a call {CALL_DEADLINE:.0f} s"
    )
    await nothing_broken(desk)
    await asyncio.gather(lost_after_the_final_dot(desk), committed_late(desk), lost_by_the_address_book(desk))
    await killed_in_between(desk)


async def nothing_broken(desk: Desk) -> None:
    """A person signs the invoice, and the rule does the rest."""
    async with desk.scene("order: invoice, record, mail", ORDERED) as scene:
        case = await desk.new_order(scene)
        await desk.give(case)
        await desk.until_state(scene, State.AWAITING_APPROVAL)
        desk.say_state(scene, await desk.give(case), "an agent read an order of 217.50 EUR in a mail")
        await desk.approve(case.ids[Step.INVOICE])
        desk.show.step("alice signs the invoice", scene.name)
        desk.say_state(scene, await desk.end(scene, case), "in the end")
        for step in (Step.CUSTOMER, Step.MAIL):
            waived = [e.body.get("waived", "") for e in await desk.trail_of(case.ids[step]) if e.target == "approved"]
            scene.expect(len(waived) == 1 and bool(waived[0]), f"{step} was not let through by the rule: {waived}")
        desk.show.step(f"nobody was asked about record and mail: {waived[0]}", scene.name)


async def lost_after_the_final_dot(desk: Desk) -> None:
    """The mail server took the mail, and its answer never comes; the archive cannot be read for a moment either."""
    async with desk.scene("order, mail's answer lost", ORDERED) as scene:
        case = await desk.new_order(scene)
        proxies, mail = desk.world.proxies, case.ids[Step.MAIL]
        lost = proxies["smtp"].arm(LostAnswer(after=case.letter))
        await desk.give(case)
        await desk.approve(case.ids[Step.INVOICE])
        await desk.until_so(lambda: lost.fired > 0, "the mail server has answered")
        dark = proxies["imap"].arm(CutReply(after=mail.encode(), times=None))
        lost.now()
        await desk.until_any(mail, State.UNKNOWN)
        await desk.until_any(case.ids[Step.CUSTOMER], State.SUCCEEDED)
        await desk.until(lambda: _looked(desk, mail), "the archive was looked at")
        answer = await desk.give(case)
        desk.say_state(scene, answer, "the mail's answer is lost after its final dot, and the archive cannot be read")
        told = {view.step: view.state for view in answer.steps}
        wanted = {Step.INVOICE: State.SUCCEEDED, Step.CUSTOMER: State.SUCCEEDED, Step.MAIL: State.UNKNOWN}
        scene.expect(told == wanted, f"the partial state was {told}")
        proxies["imap"].disarm(dark)
        await desk.look_now(case, Step.MAIL)
        await desk.end(scene, case)
        scene.expect(await desk.found(mail), "the mail was not found by a look")
        desk.show.step("the archive can be read again: our mail is in it, and nothing is sent again", scene.name)


async def committed_late(desk: Desk) -> None:
    """A lock in the ERP's database holds the invoice's commit back, its client gives up, and the first look sees nothing."""
    async with desk.scene("order, invoice committed late", ORDERED) as scene:
        case = await desk.new_order(scene)
        lost = desk.world.proxies["tryton"].arm(LostAnswer(after=case.create))
        with desk.world.erp.hold() as held:
            await desk.give(case)
            await desk.approve(case.ids[Step.INVOICE])
            await desk.until_so(lambda: lost.begun, "the invoice is under way")
            await asyncio.to_thread(held.await_waiter)
            lost.now()
            await desk.until(lambda: _seen_nothing(desk, case), "a whole look saw no invoice")
            there = await asyncio.to_thread(case.invoices)
            scene.expect(not there, "the invoice was there although its commit was held back")
            desk.show.step(
                "the invoice's answer is lost while a table lock holds its commit back; looked: nothing is there, which"
                " proves nothing yet",
                scene.name,
            )
            held.release()
        await desk.end(scene, case)
        scene.expect(await desk.found(case.ids[Step.INVOICE]), "the invoice was not found by a look")
        desk.show.step("the lock is gone, Tryton commits: a later look finds the one invoice", scene.name)


async def lost_by_the_address_book(desk: Desk) -> None:
    """The same job with the customer's record in another system: the core does not know the ERP."""
    async with desk.scene("order, contact's answer lost", ORDERED) as scene:
        case = await desk.new_order(scene, in_book=True)
        assert case.card is not None
        lost = desk.world.proxies["carddav"].arm(CutReply(after=f"PUT {case.card.href} ".encode()))
        await desk.give(case)
        await desk.approve(case.ids[Step.INVOICE])
        # The note of a card may be somebody's own, and is replaced: no rule lets that through.
        await desk.approve(case.ids[Step.CUSTOMER])
        await desk.end(scene, case)
        scene.expect(lost.fired == 1, "no answer of the address book was lost")
        scene.expect(await desk.found(case.ids[Step.CUSTOMER]), "the change was not found by a look")
        desk.show.step(
            "the record is a card in Radicale this time, whose note alice signs too; its answer is lost, our marker is"
            " on the card",
            scene.name,
        )


async def killed_in_between(desk: Desk) -> None:
    """SIGKILL when the invoice is recorded, before anybody is told; another worker goes on."""
    async with desk.scene("order, worker killed in between", ORDERED) as scene:
        case = await desk.new_order(scene)
        worker = desk.worker
        await desk.give(case)
        desk.arm()
        await desk.approve(case.ids[Step.INVOICE])
        await desk.until_dead(worker)
        scene.expect(worker.returncode == -signal.SIGKILL, f"the worker ended with {worker.returncode}, not by SIGKILL")
        effects = (await asyncio.to_thread(case.counts)).effects
        scene.expect(effects == (1, 0, 0), f"at its death there were {effects}")
        desk.show.step(
            f"worker {worker.pid} is killed (SIGKILL): the invoice exists, record and mail do not", scene.name
        )
        worker = desk.start_worker(crash=BEFORE_THE_WRITE)  # the next act's crash point
        await desk.end(scene, case)
        desk.show.step(f"worker {worker.pid} takes over: nothing twice, nothing missing", scene.name)


async def _looked(desk: Desk, operation: str) -> bool:
    return bool(await desk.looks(operation))


async def _seen_nothing(desk: Desk, case: Case) -> bool:
    return any(look.complete and not look.effects for look in await desk.looks(case.ids[Step.INVOICE]))
