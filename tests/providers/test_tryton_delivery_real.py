"""change_delivery_date on a real Tryton: which orders take a date, and what becomes of it. The judge is the ERP's books."""

import datetime
from typing import Any

import pytest

from devstack.tryton import names
from devstack.tryton.world import Order
from ledger.model import Hint, Operation, Outcome
from providers.port import Preflight
from providers.tryton_versions import version_text
from tests.providers.rigs_tryton_updates import DUE, TrytonDeliveryRig, an_update

pytest_plugins = ["tests.providers.rigs_tryton_updates"]
pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(600)]

DAY = datetime.date.fromisoformat(DUE)


@pytest.fixture
def rig(tryton_delivery_rig: TrytonDeliveryRig) -> TrytonDeliveryRig:
    return tryton_delivery_rig


async def read(rig: TrytonDeliveryRig, target: str, day: str = DUE) -> Preflight:
    """What preflight says about a date for this order."""
    return await rig.provider.preflight(rig.credential, target, {"delivery_date": day}, "m")


def dates(rig: TrytonDeliveryRig, order: Order) -> list[datetime.date | None]:
    """Of the order's lines, as they stand."""
    return [line.delivery_date for line in rig.world.order(order.id).lines]


@pytest.mark.parametrize("state", ["quotation", "confirmed"])
async def test_an_open_order_takes_a_date_on_every_line(rig: TrytonDeliveryRig, state: str) -> None:
    order = rig.world.place_order(state=state, lines=3)
    operation = await rig.operation(target=order.number)
    assert (await rig.send(operation)).outcome is Outcome.APPLIED
    assert dates(rig, order) == [DAY] * 3 and rig.world.order(order.id).state == state
    assert [line.quantity for line in rig.world.order(order.id).lines] == [line.quantity for line in order.lines]


async def test_a_numbered_draft_takes_a_date(rig: TrytonDeliveryRig) -> None:
    """An order that went back to draft keeps its number."""
    order = rig.world.place_order(state="quotation")
    rig.world.press(order.id, "draft")
    operation = await rig.operation(target=order.number)
    assert (await rig.send(operation)).outcome is Outcome.APPLIED and dates(rig, order) == [DAY] * 2


async def test_the_comment_that_was_there_is_kept(rig: TrytonDeliveryRig) -> None:
    order = rig.world.place_order()
    rig.world.edit_order(order.id, comment="call first\r\n  then send [effect none] ")
    operation = await rig.operation(target=order.number)
    await rig.send(operation)
    expected = f"call first\r\n  then send [effect none] \n[effect {operation.operation_id}]"
    assert rig.world.order(order.id).comment == expected


async def test_two_changes_one_after_the_other_are_told_apart(rig: TrytonDeliveryRig) -> None:
    """Both are by our user, and both marks stay. Each look proves its own."""
    first = await rig.operation()
    await rig.send(first)
    second = await rig.operation(target=first.target, arguments={"delivery_date": "2031-01-02"})
    await rig.send(second)
    for operation, as_asked in ((first, False), (second, True)):
        (effect,) = (await rig.look(operation)).effects
        assert effect.ours and effect.receipt == rig.receipt(operation) and effect.summary["as_asked"] is as_asked
    assert len(rig.effects(first)) == 2


async def test_a_line_without_a_date_of_its_own_gets_one(rig: TrytonDeliveryRig) -> None:
    """Without "Edit Delivery Date" Tryton takes the date in silence, and drops it; we tick it in the same write.

    Red: leave `edit` out of the basis.
    """
    order = rig.world.place_order()
    rig.world.lock_delivery(order.lines[1].id)
    operation = await rig.operation(target=order.number)
    assert (await rig.preflight(operation)).basis["edit"] == [order.lines[1].id]
    assert (await rig.send(operation)).outcome is Outcome.APPLIED and dates(rig, order) == [DAY] * 2
    assert (await rig.look(operation)).effects[0].ours


async def test_a_date_that_was_dropped_in_silence_is_not_called_applied(rig: TrytonDeliveryRig) -> None:
    """The basis forgets that a line takes no date: Tryton says null, writes our mark, and moves every version.

    Red: return what `classify` says without a look.
    """
    order = rig.world.place_order()
    rig.world.lock_delivery(order.lines[1].id)
    operation = await rig.operation(target=order.number)
    basis = {**(await rig.preflight(operation)).basis, "edit": []}
    rig.requests[operation.operation_id] = rig.provider.build_request(operation, basis)
    seen = await rig.send(operation)
    assert dates(rig, order) == [DAY, None]
    assert (seen.outcome, seen.hint) == (Outcome.UNKNOWN, Hint.MISMATCH)
    look = await rig.look(operation)
    assert [(e.marked, e.matching) for e in look.effects] == [(True, False)]


async def test_a_stale_line_of_the_second_group_refuses_the_whole(rig: TrytonDeliveryRig) -> None:
    """Lines are written in two groups where some take no date yet; every line is compared all the same."""
    order = rig.world.place_order()
    rig.world.lock_delivery(order.lines[1].id)
    for line in order.lines:
        operation = await rig.operation(target=order.number)
        await rig.request(operation)
        rig.world.edit_record("purchase.line", line.id, note="fragile")
        seen = await rig.send(operation)
        assert (seen.outcome, seen.hint) == (Outcome.REFUSED, Hint.VERSION_STALE)
        assert rig.effects(operation) == []


# Orders that cannot take it.


async def test_an_order_that_is_not_there(rig: TrytonDeliveryRig) -> None:
    found = await read(rig, "PO-99999")
    assert (found.complete, found.unfit, found.version) == (True, "order_missing", None)


async def test_an_order_of_another_company_is_not_there(rig: TrytonDeliveryRig) -> None:
    """Another tenant's number tells nothing, not even that it exists."""
    others = rig.world.place_others_order()
    found, missing = await read(rig, str(others.number)), await read(rig, "PO-99999")
    assert (found.unfit, found.version, found.effects) == ("order_missing", None, ())
    assert {**found.facts, "order": ""} == {**missing.facts, "order": ""}


async def test_not_even_for_a_user_who_sees_both_companies(rig: TrytonDeliveryRig) -> None:
    """An administrator's login for the account of one company: the server shows the other's orders, and we leave them out.

    Red: leave the company out of the comparison in `judge_orders`.
    """
    others, own = rig.world.place_others_order(), rig.world.place_order()
    administrator = rig.credential_of(names.ADMIN)
    for order, unfit in ((others, "order_missing"), (own, "")):
        found = await rig.provider.preflight(administrator, str(order.number), {"delivery_date": DUE}, "m")
        assert (found.complete, found.unfit) == (True, unfit)


async def test_a_write_to_an_order_of_another_company_is_not_permitted(rig: TrytonDeliveryRig) -> None:
    """A request that names it all the same, with its right versions: Tryton's record rules refuse it."""
    others = rig.world.place_others_order()
    operation, basis = forged(others)
    rig.requests[operation.operation_id] = rig.provider.build_request(operation, basis)
    seen = await rig.send(operation)
    assert (seen.outcome, seen.hint) == (Outcome.REFUSED, Hint.NOT_PERMITTED)
    assert rig.world.order(others.id) == others and not (await rig.look(operation)).complete


def forged(order: Order) -> tuple[Operation, dict[str, Any]]:
    """An operation on any order, by what an administrator sees of it."""
    stamps = {f"purchase.purchase,{order.id}": order.version}
    version = version_text(stamps | {f"purchase.line,{line.id}": line.version for line in order.lines})
    operation = an_update("change_delivery_date", str(order.number), {"delivery_date": DUE}, expected_version=version)
    basis = {"order": order.id, "version": version, "comment": order.comment, "edit": [], "login": "effects"}
    return operation, basis


@pytest.mark.parametrize("buttons", [("process",), ("cancel",)])
async def test_an_order_that_is_past_it(rig: TrytonDeliveryRig, buttons: tuple[str, ...]) -> None:
    """Said before it is asked; and if it is sent all the same, Tryton's own rules refuse all of it."""
    order = rig.world.place_order(state="quotation" if buttons == ("cancel",) else "confirmed")
    for button in buttons:
        rig.world.press(order.id, button)
    found = await read(rig, str(order.number))
    assert (found.unfit, found.unfit_field) == ("order_not_open", "target")
    before = rig.world.order(order.id)
    operation, basis = forged(before)
    rig.requests[operation.operation_id] = rig.provider.build_request(operation, basis)
    seen = await rig.send(operation)
    assert (seen.outcome, seen.hint) == (Outcome.REFUSED, Hint.BUSINESS_RULE) and "Delivery Date" in seen.detail[
        "message"
    ]
    assert rig.world.order(order.id) == before and rig.effects(operation) == []


async def test_an_order_that_is_processed_between_preflight_and_send(rig: TrytonDeliveryRig) -> None:
    """The button moves the version, which is compared before any other rule; the look explains it by the log's button."""
    operation = await rig.operation()
    await rig.request(operation)
    rig.world.press(rig.record(operation), "process")
    seen = await rig.send(operation)
    assert (seen.outcome, seen.hint) == (Outcome.REFUSED, Hint.VERSION_STALE) and rig.effects(operation) == []
    look = await rig.look(operation)
    assert (look.complete, look.effects, look.version_moved, look.witness_has_marker) == (True, (), True, False)


async def test_a_day_of_the_past_and_one_that_is_so_already(rig: TrytonDeliveryRig) -> None:
    order = rig.world.place_order(due=DAY)
    [today] = [rig.world.admin.call("model.ir.date.today")]
    past = (today - datetime.timedelta(days=1)).isoformat()
    for day, unfit in ((past, "date_in_the_past"), (DUE, "already_so"), (today.isoformat(), "")):
        found = await read(rig, str(order.number), day)
        assert (found.complete, found.unfit) == (True, unfit)
        assert found.unfit_field == ("delivery_date" if unfit else "target")


async def test_what_the_approver_reads(rig: TrytonDeliveryRig) -> None:
    order = rig.world.place_order()
    facts = (await read(rig, str(order.number))).facts
    assert (facts["order"], facts["supplier"], facts["state"]) == (order.number, "Brightwater Supplies", "confirmed")
    assert [line["delivery_date"] for line in facts["lines"]] == [str(line.delivery_date) for line in order.lines]
    assert [line["product"] for line in facts["lines"]] == ["WIDGET", "GASKET"]


async def test_a_line_that_is_deleted_after_our_write_does_not_hide_it(rig: TrytonDeliveryRig) -> None:
    """In draft a buyer may delete a line: its log can be read no more, and asking for it would hide the others' too."""
    order = rig.world.place_order(state="quotation")
    rig.world.press(order.id, "draft")
    operation = await rig.operation(target=order.number)
    with rig.cut("after"):
        await rig.send(operation)
    await rig.committed(operation)
    rig.world.edit_order(order.id, comment="", lines=[["delete", [order.lines[0].id]]])
    look = await rig.look(operation)
    assert look.complete and look.witness_has_marker and look.effects[0].ours


async def test_an_order_that_is_deleted_concludes_nothing(rig: TrytonDeliveryRig) -> None:
    order = rig.world.place_order(state="quotation")
    rig.world.press(order.id, "draft")
    operation = await rig.operation(target=order.number)
    await rig.request(operation)
    rig.world.press(order.id, "cancel")
    rig.world.buyer.call("model.purchase.purchase.delete", [order.id])
    seen, look = await rig.send(operation), await rig.look(operation)
    assert not look.complete and look.witness_has_marker is None
    assert seen.outcome in (Outcome.REFUSED, Outcome.UNKNOWN)


async def test_a_button_that_moved_the_order_before_a_write_of_ours_leaves_it_open(rig: TrytonDeliveryRig) -> None:
    """A later operation of ours, from a version that a button made, whose mark a buyer clears: our user's first write after
    the earlier version proves nothing for the earlier operation.

    Red: leave the buttons out of `_first_after`.
    """
    order = rig.world.place_order(state="quotation", lines=1)
    earlier = await rig.operation(target=order.number)
    await rig.request(earlier)
    rig.world.press(order.id, "confirm")
    later = await rig.operation(target=order.number)
    await rig.send(later)
    rig.world.edit_order(order.id, comment="")
    look = await rig.look(earlier)
    assert look.complete and look.witness_has_marker is None
    assert not any(e.marked for e in look.effects)


async def test_versions_of_every_line_are_needed(rig: TrytonDeliveryRig) -> None:
    """What Tryton does with a condition that leaves a line out: it writes all the same. This is why we never send one."""
    order = rig.world.place_order()
    rig.world.edit_record("purchase.line", order.lines[0].id, note="fragile")
    with rig.server.session(names.SERVICE) as session:
        stamps = {f"purchase.purchase,{order.id}": order.version}
        values = {"comment": "x", "lines": [["write", [order.lines[0].id], {"delivery_date": DAY}]]}
        session.write("purchase.purchase", [order.id], values, _timestamp=stamps)
    assert dates(rig, order)[0] == DAY
