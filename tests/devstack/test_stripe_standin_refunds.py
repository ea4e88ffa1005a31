"""The Stripe stand-in keeps the recorded rules of amounts, states and lists of refunds (real SDK, real process)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import stripe

from devstack.stripe_standin.control import ControlRefused, StandInControl
from devstack.stripe_standin.rules import Move
from tests.devstack.conftest import refund

# Amounts and states.


def test_amount_rules(sdk: stripe.StripeClient, world: StandInControl) -> None:
    pi = world.create_payment(7000).payment_intent
    refund(sdk, pi, 4000)
    with pytest.raises(stripe.InvalidRequestError) as over:
        refund(sdk, pi, 4000)
    assert "Refund amount ($40.00) is greater than unrefunded amount on charge ($30.00)" in str(over.value)
    assert (over.value.param, over.value.code, over.value.http_status) == ("amount", None, 400)
    for wrong in (0, -5, "abc"):
        with pytest.raises(stripe.InvalidRequestError) as zero:
            refund(sdk, pi, wrong)  # type: ignore[arg-type]
        assert zero.value.code == "parameter_invalid_integer"
    assert refund(sdk, pi, None).amount == 3000
    with pytest.raises(stripe.InvalidRequestError) as missing:
        refund(sdk, "pi_nowhere")
    assert (missing.value.http_status, missing.value.code) == (404, "resource_missing")


def test_what_stripe_does_not_document_can_be_had_both_ways(sdk: stripe.StripeClient, world: StandInControl) -> None:
    paid = world.create_payment(5000)
    assert paid.charge is not None
    world.set_defaults(refund_status="pending", pending_in_amount_refunded=False)
    made = sdk.v1.refunds.create({"charge": paid.charge, "amount": 4000})
    assert (made.payment_intent, made.status) == (paid.payment_intent, "pending")
    assert sdk.v1.charges.retrieve(paid.charge).amount_refunded == 0
    with pytest.raises(stripe.InvalidRequestError, match="greater than unrefunded"):
        refund(sdk, paid.payment_intent, 4000)
    world.set_defaults(list_unknown_payment="empty", store_missing=True)
    assert sdk.v1.refunds.list({"payment_intent": "pi_later"}).data == []
    for create in (False, True):
        if create:
            world.create_payment(5000, payment_intent="pi_later")
        with pytest.raises(stripe.InvalidRequestError, match="No such"):
            refund(sdk, "pi_later", key="k1")
    assert refund(sdk, "pi_later", key="k2").amount == 1000


@pytest.mark.parametrize(
    ("currency", "good", "bad", "shown"),
    [("isk", 100, 150, None), ("ugx", 200, 201, None), ("kwd", 1230, 1234, None), ("jpy", 77, 999999, "¥999,999")],
)
def test_currency_rules(
    sdk: stripe.StripeClient, world: StandInControl, currency: str, good: int, bad: int, shown: str | None
) -> None:
    pi = world.create_payment(50000, currency).payment_intent
    assert refund(sdk, pi, good).amount == good
    with pytest.raises(stripe.InvalidRequestError, match=shown or "multiples"):
        refund(sdk, pi, bad)


def test_partial_capture_uncaptured_and_disputed(sdk: stripe.StripeClient, world: StandInControl) -> None:
    partial = world.create_payment(5000, captured=3000).payment_intent
    assert refund(sdk, partial, None).amount == 3000
    held = world.create_payment(5000, status="requires_capture").payment_intent
    with pytest.raises(stripe.InvalidRequestError, match="does not have a successful charge"):
        refund(sdk, held)
    disputed = world.create_payment(5000).payment_intent
    world.set_payment(disputed, disputed=True)
    with pytest.raises(stripe.InvalidRequestError) as refused:
        refund(sdk, disputed)
    assert refused.value.code == "charge_disputed"
    world.set_payment(disputed, is_charge_refundable=True)
    assert refund(sdk, disputed).status == "succeeded"


def test_concurrent_refunds_never_take_more_than_there_is(sdk: stripe.StripeClient, world: StandInControl) -> None:
    pi = world.create_payment(5000).payment_intent

    def one(number: int) -> bool:
        try:
            refund(sdk, pi, 1000, key=f"k{number}")
        except stripe.InvalidRequestError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(one, range(12))) == 5
    assert sum(line.amount for line in world.journal(payment_intent=pi).effects) == 5000


def test_balance_and_default_status(sdk: stripe.StripeClient, world: StandInControl) -> None:
    pi = world.create_payment(5000).payment_intent
    world.set_defaults(balance="pending")
    waiting = refund(sdk, pi)
    assert (waiting.status, waiting.pending_reason) == ("pending", "insufficient_funds")
    world.set_defaults(balance="refuse")
    with pytest.raises(stripe.InvalidRequestError, match="Insufficient funds") as refused:
        refund(sdk, pi)
    assert (refused.value.http_status, refused.value.code) == (400, None)
    world.set_defaults(balance="ok", refund_status="pending", moves=(Move(after_seconds=60, status="succeeded"),))
    slow = refund(sdk, pi)
    assert slow.status == "pending"
    world.advance(61)
    assert sdk.v1.refunds.retrieve(slow.id).status == "succeeded"
    assert "pending_reason" not in sdk.v1.refunds.retrieve(slow.id).to_dict()


def test_a_refund_that_fails_or_is_canceled_gives_its_amount_back(
    sdk: stripe.StripeClient, world: StandInControl
) -> None:
    pi = world.create_payment(1000).payment_intent
    made = refund(sdk, pi)
    world.set_refund(made.id, status="failed", failure_reason="expired_or_canceled_card", after_seconds=100)
    assert sdk.v1.refunds.retrieve(made.id).status == "succeeded"
    world.advance(101)
    late = sdk.v1.refunds.retrieve(made.id)
    assert (late.status, late.failure_reason) == ("failed", "expired_or_canceled_card")
    assert late.failure_balance_transaction
    world.set_defaults(refund_status="requires_action")
    action = refund(sdk, pi)
    assert action.next_action is not None
    assert sdk.v1.refunds.cancel(action.id).status == "canceled"
    with pytest.raises(stripe.InvalidRequestError, match="unsupported"):
        sdk.v1.refunds.cancel(made.id)
    assert [line.voided for line in world.journal().effects] == ["failed", "canceled"]
    with pytest.raises(ControlRefused, match="does not move"):
        world.set_refund(made.id, status="succeeded")


def test_metadata_is_updated_and_limited(sdk: stripe.StripeClient, world: StandInControl) -> None:
    pi = world.create_payment(1000).payment_intent
    made = refund(sdk, pi)
    changed = sdk.v1.refunds.update(made.id, {"metadata": {"a": "1", "operation_id": ""}})
    assert changed.metadata is not None and changed.metadata.to_dict() == {"a": "1"}
    world.set_refund(made.id, metadata={"a": "2"})
    edited = sdk.v1.refunds.retrieve(made.id).metadata
    assert edited is not None and edited.to_dict() == {"a": "2"}
    for tags in ({"k" * 41: "v"}, {"k": "v" * 501}, {f"k{n}": "v" for n in range(51)}):
        with pytest.raises(stripe.InvalidRequestError):
            sdk.v1.refunds.update(made.id, {"metadata": tags})


# Lists.


def test_lists_page_beyond_a_hundred_and_show_foreign_refunds(sdk: stripe.StripeClient, world: StandInControl) -> None:
    pi = world.create_payment(50000).payment_intent
    other = world.create_payment(50000).payment_intent
    world.foreign_refund(other, 5)
    ours = refund(sdk, pi).id
    foreign = [world.foreign_refund(pi, 10) for _ in range(120)]
    listed = sdk.v1.refunds.list({"payment_intent": pi, "limit": 100})
    assert len(listed.data) == 100 and listed.has_more
    everything = [item.id for item in listed.auto_paging_iter()]
    assert everything == [*reversed(foreign), ours]
    backwards = sdk.v1.refunds.list({"payment_intent": pi, "ending_before": everything[50], "limit": 20})
    assert [item.id for item in backwards.data] == everything[30:50] and backwards.has_more
    assert len(sdk.v1.refunds.list().data) == 10
    effects = world.journal(payment_intent=pi).effects
    assert len(effects) == 121 and {line.origin for line in effects if line.marker is None} == {"foreign"}


def test_list_filters(sdk: stripe.StripeClient, world: StandInControl) -> None:
    paid = world.create_payment(5000)
    old = refund(sdk, paid.payment_intent)
    world.advance(3600)
    new = refund(sdk, paid.payment_intent)
    assert paid.charge is not None
    by_charge = sdk.v1.refunds.list({"charge": paid.charge})
    assert [item.id for item in by_charge.data] == [new.id, old.id]
    assert [item.id for item in sdk.v1.refunds.list({"created": {"gte": new.created}}).data] == [new.id]
    assert [item.id for item in sdk.v1.refunds.list({"created": {"lt": new.created}}).data] == [old.id]
    for wrong in ({"limit": 101}, {"limit": 0}, {"starting_after": "re_none"}, {"created": {"near": 1}}, {"x": "y"}):
        with pytest.raises(stripe.InvalidRequestError):
            sdk.v1.refunds.list(wrong)  # type: ignore[arg-type]
    with pytest.raises(stripe.InvalidRequestError, match="No such payment_intent"):
        sdk.v1.refunds.list({"payment_intent": "pi_none"})
