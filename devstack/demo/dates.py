"""A delivery date: moved on the version that a person saw, refused on any other, and known as ours without our mark."""

import asyncio
import signal
from datetime import timedelta

from devstack.demo.desk import Desk, LostAnswer
from devstack.demo.promises import Promise
from ledger.states import State
from ledger.trail import EventKind

BEFORE_THE_WRITE = "guarded:stop"
_ENDS = (State.SUCCEEDED, State.REJECTED, State.BLOCKED, State.NEEDS_REVIEW)


async def a_delivery_date(desk: Desk) -> None:
    """Three purchase orders, one after the other, since the second one stops the worker."""
    desk.show.act(
        "A delivery date: a change of what others change too",
        "A buyer works on the same orders in the ERP. She is quicker than our write once, and once she wipes out our mark"
        " while its answer is lost.",
        "The date moves on the version that alice saw, or not at all; what was done is known as done, by the ERP's log.",
    )
    await as_approved(desk)
    await buyer_was_quicker(desk)
    await answer_and_mark_lost(desk)


async def as_approved(desk: Desk) -> None:
    """Nothing is broken: the version is read by us, signed by a person, and a condition of the write."""
    promise = Promise("succeeded", reached=1, effects=1, people=("alice",))
    async with desk.scene("delivery date, as approved", promise) as scene:
        dates = await desk.new_purchase(scene)
        await desk.until_state(scene, State.AWAITING_APPROVAL)
        version = (await desk.operation(scene)).expected_version or ""
        records = [record.partition(",")[0] for record in version.split(";")]
        wanted = ["purchase.line", "purchase.line", "purchase.purchase"]
        scene.expect(records == wanted, f"the version is {version!r}, not of an order and its two lines")
        desk.show.step(
            "the agent names an order and a date; we read the version of the order and its lines", scene.name
        )
        await desk.approve(scene.operation_id)
        await desk.until_state(scene, *_ENDS)
        there = {line.delivery_date for line in (await asyncio.to_thread(dates.now)).lines}
        scene.expect(there == {dates.wanted}, f"the ERP has {there}, promised was {dates.wanted}")
        desk.show.step(
            f"alice signs; one write on the condition of that version: the ERP has {dates.wanted}", scene.name
        )


async def buyer_was_quicker(desk: Desk) -> None:
    """The buyer's edit comes between our last check and our write: the ERP compares the versions inside the write."""
    promise = Promise("rejected", reached=1, effects=0, people=("alice",))
    async with desk.scene("delivery date, buyer was quicker", promise) as scene:
        dates = await desk.new_purchase(scene)
        worker, (first, *rest) = desk.worker, dates.purchase.lines
        hers = dates.wanted - timedelta(days=10)
        desk.arm()
        try:
            signed = await desk.approve(scene.operation_id)
            await desk.until_so(lambda: not desk.flag.exists(), "the worker stops itself before the first byte")
            scene.expect(desk.reached(scene) == 0, "it was sent before the buyer wrote")
            await asyncio.to_thread(desk.world.erp.move_delivery, first.id, hers)
            desk.show.step(
                f"alice has signed; worker {worker.pid} is stopped (SIGSTOP) between its last check and the first byte,"
                " and the buyer changes a line",
                scene.name,
            )
        finally:
            desk.flag.unlink(missing_ok=True)
            worker.signal(signal.SIGCONT)
        operation = await desk.until_state(scene, *_ENDS)
        scene.expect(operation.reason == "version_stale", f"the reason was {operation.reason}")
        there = [line.delivery_date for line in (await asyncio.to_thread(dates.now)).lines]
        scene.expect(there == [hers, *(line.delivery_date for line in rest)], f"the ERP has {there}")
        desk.show.step(
            f"Tryton refuses inside the write: {operation.state}, {operation.reason}; hers stands", scene.name
        )
        again = await desk.ask_anew(scene, dates)
        await desk.hand_in(again.business_key, signed)
        rules: list[str] = []

        async def refused() -> bool:
            trail = await desk.trail_of(str(again.operation_id))
            rules[:] = [str(e.body["rule"]) for e in trail if e.kind is EventKind.STATEMENT_REFUSED]
            return bool(rules)

        await desk.until(refused, "the old approval is refused")
        scene.expect(rules == ["operation_wrong"], f"the old approval was refused as {rules}")
        desk.show.step(f"asked anew, on the new version: alice's old signature is refused, {rules[0]}", scene.name)


async def answer_and_mark_lost(desk: Desk) -> None:
    """The date is moved, its answer is lost, and a buyer overwrites the comment that carries our mark."""
    promise = Promise("succeeded", reached=1, effects=1, people=("alice",))
    async with desk.scene("delivery date, answer, mark lost", promise) as scene:
        dates = await desk.new_purchase(scene)
        lost = desk.world.proxies["tryton"].arm(LostAnswer(after=dates.write))
        await desk.approve(scene.operation_id)
        await desk.until_so(lambda: lost.fired > 0, "the ERP has answered")
        marked = (await asyncio.to_thread(dates.now)).comment or ""
        scene.expect(scene.operation_id in marked, f"the comment does not carry our mark: {marked!r}")
        await asyncio.to_thread(desk.world.erp.edit_order, dates.purchase.id, comment="as agreed by phone")
        lost.now()
        desk.show.step("the answer is lost, and the buyer overwrites the comment with our mark", scene.name)
        await desk.until_state(scene, *_ENDS)
        order = await asyncio.to_thread(dates.now)
        scene.expect(order.comment == "as agreed by phone", f"the comment is {order.comment!r}")
        scene.expect({line.delivery_date for line in order.lines} == {dates.wanted}, "the ERP has another date")
        looks = await desk.looks(scene.operation_id)
        scene.expect(bool(looks) and looks[-1].witness_has_marker is True, "the ERP's log was not the witness")
        desk.show.step("the ERP's append-only log names us as the next writer: ours, and not written again", scene.name)
