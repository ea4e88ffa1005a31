"""From an order to three effects on a real ERP, and a real mail server. The judges are the receivers' own records."""

import asyncio
from typing import Any

import pytest

from activities.order import Order, OrderAnswer, Step
from devstack.faults import CutReply
from devstack.tryton.world import Customer
from ledger.config import Document
from ledger.store import configuration
from tests.conftest import Rig
from workflows.names import order_id

FINAL_DOT = b"\r\n.\r\n"
CREATE = b'"method":"model.account.invoice.create"'


def a_customer(desk: Rig) -> Customer:
    return desk.world.erp.add_customer()


def step(answer: OrderAnswer, name: Step) -> Any:
    return next(view for view in answer.steps if view.step is name)


async def until_step(desk: Rig, order: Order, name: Step, *states: str, seconds: float = 60.0) -> Any:
    """Ask until a step stands in one of these states."""
    deadline = asyncio.get_running_loop().time() + seconds
    while True:
        view = step(answer := await desk.ask_order(order), name)
        if view.state in states:
            return view
        assert asyncio.get_running_loop().time() < deadline, answer.model_dump_json(indent=1)
        await asyncio.sleep(0.2)


async def until_ended(desk: Rig, order: Order, seconds: float = 60.0) -> OrderAnswer:
    """Wait for the end of the order's workflow, and ask once more."""
    its_own = desk.client.get_workflow_handle(order_id(order.tenant, order.order))
    if not (answer := await desk.ask_order(order)).ended:
        await asyncio.wait_for(its_own.result(), seconds)
        answer = await desk.ask_order(order)
    assert answer.ended, answer.model_dump_json(indent=1)
    return answer


async def approve_invoice(desk: Rig, order: Order) -> Any:
    waiting = await until_step(desk, order, Step.INVOICE, "awaiting_approval")
    await desk.approve(waiting.operation_id)
    return waiting


def effects(desk: Rig, answer: OrderAnswer, customer: Customer, order: Order) -> tuple[int, list[str], int]:
    """By the receivers' records: draft invoices, notes on the customer, mails to the address."""
    invoices = desk.world.erp.invoices(step(answer, Step.INVOICE).operation_id)
    notes = [text for text in desk.world.erp.customer(customer.id).contacts if order.order in text]
    return len(invoices), notes, len(desk.world.box.to(order.confirm_to))


async def test_one_approval_and_three_effects(desk: Rig) -> None:
    """A person approves the invoice; what rests on it is let through by the rule, once it exists."""
    customer = a_customer(desk)
    order = desk.order(customer.code)
    async with desk.worker():
        first = await desk.ask_order(order)
        assert first.state == "under_way" and step(first, Step.MAIL).sentence == "not started: waits for invoice"
        await approve_invoice(desk, order)
        answer = await until_ended(desk, order)
    assert (answer.state, [view.state for view in answer.steps]) == ("done", ["succeeded"] * 3)
    receipt = step(answer, Step.INVOICE).receipt
    assert effects(desk, answer, customer, order) == (1, [f"Order {order.order}: draft invoice {receipt}"], 1)
    (invoice,) = desk.world.erp.invoices(step(answer, Step.INVOICE).operation_id)
    assert (invoice.state, str(invoice.untaxed), invoice.party) == ("draft", "217.50", customer.code)
    (mail,) = desk.world.box.to(order.confirm_to)
    assert receipt in mail.text
    waived = [(await desk.operation(step(answer, name).operation_id)).people_needed for name in Step]
    assert waived == [1, 0, 0]


async def test_a_lost_mail_holds_nobody_else(desk: Rig) -> None:
    """The customer's record does not wait for the mail; the mail is found in the archive, and not sent again."""
    customer = a_customer(desk)
    order = desk.order(customer.code)
    lost = desk.world.proxies["smtp"].arm(CutReply(after=FINAL_DOT))
    async with desk.worker():
        await desk.ask_order(order)
        await approve_invoice(desk, order)
        await until_step(desk, order, Step.CUSTOMER, "succeeded")
        answer = await until_ended(desk, order)
    assert lost.fired == 1 and answer.state == "done"
    assert effects(desk, answer, customer, order)[2] == 1


async def test_what_ends_badly_leaves_the_rest_done_and_is_revised_under_a_new_key(desk: Rig) -> None:
    """Three effects in the end, one of each, whatever was declined in between."""
    customer = a_customer(desk)
    order = desk.order(customer.code)
    async with desk.worker():
        await desk.ask_order(order)
        waiting = await until_step(desk, order, Step.INVOICE, "awaiting_approval")
        declined = await desk.signed(waiting.operation_id, "alice", "decline")
        await desk.client.get_workflow_handle(f"acme/{waiting.business_key}").signal("decide", declined)
        answer = await until_ended(desk, order)
        assert (answer.state, step(answer, Step.INVOICE).reason) == ("ended", "approval_declined")
        assert step(answer, Step.MAIL).sentence == "not started: invoice did not succeed"
        again = await desk.ask_order(order)  # the same keys: nothing new comes of it
        assert (again.ended, step(again, Step.INVOICE).operation_id) == (True, waiting.operation_id)
        revised = desk.order(customer.code, order=order.order, confirm_to=order.confirm_to, revisions={"invoice": 1})
        await desk.ask_order(revised)
        await approve_invoice(desk, revised)
        answer = await until_ended(desk, revised)
    assert answer.state == "done"
    assert (await desk.operation(step(answer, Step.INVOICE).operation_id)).supersedes == waiting.operation_id
    counted, notes, mails = effects(desk, answer, customer, order)
    assert (counted, len(notes), mails) == (1, 1, 1)


async def test_an_order_that_changed_is_not_done_because_its_former_self_was(desk: Rig) -> None:
    """Red: leave the digests out of `order_steps`."""
    customer = a_customer(desk)
    order = desk.order(customer.code)
    async with desk.worker():
        await desk.ask_order(order)
        await approve_invoice(desk, order)
        assert (await until_ended(desk, order)).state == "done"
        items = [{"product": "WIDGET", "quantity": 4, "unit_price_minor": 1_250}]
        changed = desk.order(customer.code, order=order.order, items=items, total_minor=5_000)
        answer = await until_ended(desk, changed)
    assert (answer.state, step(answer, Step.INVOICE).reason) == ("ended", "key_used")
    assert len(desk.world.erp.invoices(step(answer, Step.INVOICE).operation_id)) == 1


WIDGET = {"product": "WIDGET", "quantity": 2, "unit_price_minor": 1_250}


@pytest.mark.parametrize(
    "changes, rule, field",
    [
        ({"total_minor": 21_751}, "total_wrong", "total_minor"),
        ({"items": []}, "order_malformed", "items"),
        ({"items": [WIDGET | {"quantity": -2}], "total_minor": 2_500}, "order_malformed", "items[0].quantity"),
        ({"items": [WIDGET | {"quantity": 0}], "total_minor": 2_500}, "order_malformed", "items[0].quantity"),
        ({"customer": ""}, "order_malformed", "customer"),
        ({"currency": "xxx"}, "currency_unknown", "currency"),
        ({"mail": {"reference": "<1@c.test>", "digest": "sha256:0"}}, "order_malformed", "mail.digest"),
        ({"confirm_to": "nobody"}, "address_malformed", "mail: to"),
        ({"confirm_to": "a@b.test\r\nBcc: c@d.test"}, "address_malformed", "mail: to"),
        ({"revisions": {"letter": 1}}, "step_unknown", "revisions.letter"),
        ({"discount": 3}, "order_malformed", "discount"),
    ],
)
async def test_a_bad_order_is_refused_before_anything_is_recorded(
    desk: Rig, changes: dict[str, Any], rule: str, field: str
) -> None:
    """Given as plain JSON, as any Temporal client would: the field is named, and nothing is begun."""
    from temporalio.client import WithStartWorkflowOperation
    from temporalio.common import WorkflowIDConflictPolicy

    good = desk.order("C-NORTHWIND").model_dump(mode="json")
    start: Any = WithStartWorkflowOperation(
        "OrderToInvoiceWorkflow",
        good | changes,
        id=f"order:acme/{good['order']}",
        task_queue=desk.stack.task_queue,
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
    )
    async with desk.worker():
        answer = await desk.client.execute_update_with_start_workflow(
            "ask", good | changes, start_workflow_operation=start, result_type=OrderAnswer
        )
    assert (answer.state, answer.reason, answer.field) == ("refused", rule, field)
    async with desk.ledger.transaction() as conn:
        count = await (await conn.execute("select count(*) as n from operations")).fetchone()
    assert count is not None and count["n"] == 0


async def test_a_step_that_may_not_be_is_found_before_the_first_one_begins(desk: Rig) -> None:
    """The key may not propose mails any more: the invoice is not begun. Red: leave `_check_leave` out of `plan_order`."""
    customer = a_customer(desk)
    order = desk.order(customer.code)
    await _may_not_mail(desk)
    async with desk.worker():
        answer = await desk.ask_order(order)
    assert (answer.state, answer.reason, answer.field) == ("refused", "action_not_granted", "mail: action")
    async with desk.ledger.transaction() as conn:
        assert await (await conn.execute("select 1 from operations")).fetchone() is None


async def _may_not_mail(desk: Rig) -> None:
    document = desk.stack.household.document
    grants = [{**g.model_dump(), "actions": sorted({*g.actions} - {"send_mail"})} for g in document.grants]
    new = Document.model_validate({**document.model_dump(), "grants": grants})
    async with desk.ledger.transaction() as conn:
        await configuration.apply(conn, new.in_order(), "ops")


@pytest.mark.parametrize(
    "product, customer, field, word",
    [("NO-SUCH", "", "items[0].product", "product"), ("WIDGET", "C-NOBODY", "target", "customer")],
)
async def test_what_the_books_do_not_know_is_blocked_before_anybody_is_asked(
    desk: Rig, product: str, customer: str, field: str, word: str
) -> None:
    """The field is named, and nothing is begun of the rest. Red: leave the field out of `progress.objection`."""
    items = [WIDGET | {"product": product}]
    order = desk.order(customer or a_customer(desk).code, items=items, total_minor=2_500)
    async with desk.worker():
        answer = await until_ended(desk, order)
    told = step(answer, Step.INVOICE)
    assert (answer.state, told.state, told.reason, told.field) == ("ended", "blocked", "target_unfit", field)
    assert word in told.sentence and word in told.message
    assert [step(answer, name).operation_id for name in (Step.CUSTOMER, Step.MAIL)] == ["", ""]
    assert (await desk.operation(told.operation_id)).people_needed is None


async def test_one_approved_invoice_lets_one_mail_through(desk: Rig) -> None:
    """Red: leave `waived_after`, or the comparison of targets, out of `approved_before`."""
    customer, other = a_customer(desk), a_customer(desk)
    order = desk.order(customer.code)
    async with desk.worker():
        await desk.ask_order(order)
        await approve_invoice(desk, order)
        answer = await until_ended(desk, order)
        letter = (await desk.operation(step(answer, Step.MAIL).operation_id)).arguments
        needs = [{"business_key": f"{order.order}/invoice", "state": "succeeded"}]
        for target in (customer.code, other.code):
            again = letter | {"to": f"{target.lower()}@customer.test"}
            asked = await desk.propose(desk.ask_for("send_mail", target, again, depends_on=needs))
            assert asked.state == "awaiting_approval", asked
    assert len(desk.world.box.to(order.confirm_to)) == 1
