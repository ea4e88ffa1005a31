"""The same order given twice at the same moment, and our own servers dying in the middle of one: one of each."""

import asyncio
import uuid
from contextlib import suppress
from typing import Any

import pytest
from temporalio.client import WorkflowExecutionStatus
from temporalio.service import RPCError

from activities import take_order
from activities.order import OrderAnswer, Step
from devstack.faults import HoldReply
from ledger.trail import EventKind
from tests.conftest import Rig
from tests.recovery.order_world import CREATE, FINAL_DOT, ONE_OF_EACH, WRITE, a_job, recorded, until, view

QUICK = {"EFFECTS_BACKOFF": "0.2"}


async def test_the_same_trigger_twice_while_two_workers_start_is_one_of_each(desk: Rig) -> None:
    """Two clients give the order at once, twice each, and somebody starts it under an id of its own; nobody polls yet.

    Then two worker processes start together. Red: let `OrderToInvoiceWorkflow._begin` raise WorkflowAlreadyStartedError:
    one of the two runs wedges. A second effect needs more than one wrong line.
    """
    job = await a_job(desk)
    other = await desk.stack.client()
    asked = [asyncio.create_task(job.ask(client)) for client in (desk.client, other) for _ in range(2)]
    double = await desk.client.start_workflow(
        "OrderToInvoiceWorkflow",
        job.order.model_dump(mode="json"),
        id=f"another-{uuid.uuid4().hex}",
        task_queue=job.queue,
        result_type=OrderAnswer,
    )
    for _ in range(2):
        desk.stack.worker(**QUICK)
    answers = await asyncio.gather(*asked)
    invoice = await job.approve(Step.INVOICE)
    assert {view(answer, Step.INVOICE).operation_id for answer in answers} <= {invoice, ""}

    async def both_have_ended() -> bool:
        """Asked, as a run whose steps another one started hears nothing of them."""
        with suppress(RPCError):  # it has ended
            await double.execute_update("ask", job.order.model_dump(mode="json"))
        return (await job.ask()).ended and (await double.describe()).status is WorkflowExecutionStatus.COMPLETED

    await until(both_have_ended, "both runs to end")
    assert ((await job.ask()).state, (await double.result()).state) == ("done", "done")
    assert (await recorded(desk), await job.effects()) == (3, ONE_OF_EACH)


async def test_temporal_dies_in_the_middle_and_the_order_goes_on(desk: Rig) -> None:
    """Once while the invoice is created, once while note and mail are under way; nobody asks for anything again.

    Red: start the servers with `remember=False`, as Temporal then forgets the order with its steps.
    """
    job = await a_job(desk)
    tryton, smtp = desk.world.proxies["tryton"], desk.world.proxies["smtp"]
    async with desk.worker():
        await job.ask()
        creating = tryton.arm(HoldReply(after=CREATE))
        await job.approve(Step.INVOICE)
        await asyncio.to_thread(creating.wait_fired)
        await _temporal_dies(desk)
        writing, mailing = tryton.arm(HoldReply(after=WRITE)), smtp.arm(HoldReply(after=FINAL_DOT))
        creating.release()
        await asyncio.to_thread(writing.wait_fired)
        await asyncio.to_thread(mailing.wait_fired)
        await _temporal_dies(desk)
        writing.release()
        mailing.release()
        for step in Step:
            await job.until(step, "succeeded")
        assert (await job.until_ended()).state == "done"
    assert await job.effects() == ONE_OF_EACH


async def _temporal_dies(desk: Rig) -> None:
    await asyncio.to_thread(desk.stack.servers.temporal.kill)
    await asyncio.to_thread(desk.stack.servers.temporal.restart)


async def test_postgres_dies_in_the_middle_and_the_order_goes_on(desk: Rig, caplog: pytest.LogCaptureFixture) -> None:
    """While note and mail are under way and have reached their receivers; the ERP loses its database with it.

    Red: let `Dispatch._record` raise the first Unavailable (what was answered becomes unknown).
    """
    job = await a_job(desk)
    tryton, smtp = desk.world.proxies["tryton"], desk.world.proxies["smtp"]
    writing, mailing = tryton.arm(HoldReply(after=WRITE)), smtp.arm(HoldReply(after=FINAL_DOT))

    async def waits_in_memory() -> bool:
        return "waits in memory" in caplog.text

    async with desk.worker():
        await job.ask()
        await job.approve(Step.INVOICE)
        await asyncio.to_thread(writing.wait_fired)
        await asyncio.to_thread(mailing.wait_fired)
        assert await job.effects() == ONE_OF_EACH
        await asyncio.to_thread(desk.stack.servers.postgres.kill)
        mailing.release()
        await until(waits_in_memory, "the answer of the mail server to wait for the ledger")
        await asyncio.to_thread(desk.stack.servers.postgres.restart)
        await asyncio.to_thread(desk.world.tryton.restart)  # left alone it finds its database again, or not for minutes
        writing.release()
        for step in (Step.CUSTOMER, Step.MAIL):
            operation = await job.until(step, "succeeded")
            moves = [e.target for e in await desk.trail(str(operation.operation_id)) if e.kind is EventKind.MOVED]
            assert "unknown" not in moves
        assert (await job.until_ended()).state == "done"
    assert await job.effects() == ONE_OF_EACH


async def test_who_asks_while_the_order_ends_gets_an_answer(desk: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal comes into the workflow task that answers and ends: Temporal undoes that task, and with it the answer.

    Red: leave FAILED_PRECONDITION out of `workflows.client`.
    """
    reading, go_on = asyncio.Event(), asyncio.Event()
    read = take_order._view

    async def read_later(*args: Any) -> Any:
        reading.set()
        await go_on.wait()
        return await read(*args)

    job = await a_job(desk)
    async with desk.worker():
        await job.ask()
        await job.approve(Step.INVOICE)
        assert (await job.until_ended()).state == "done"
        monkeypatch.setattr(take_order, "_view", read_later)
        asking = asyncio.create_task(desk.ask_order(job.order))
        await asyncio.wait_for(reading.wait(), 30)
        await job.parent.signal("look_now")
        go_on.set()
        assert (await asking).state == "done"
