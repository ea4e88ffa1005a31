"""What the stand-in cannot show of a payment: disputes that leave it refundable, charges without a payment intent."""

import asyncio
import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from providers.port import Credential, Preflight
from providers.stripe_refunds import StripeRefunds

pytestmark = pytest.mark.asyncio
Serve = Callable[..., AbstractAsyncContextManager[Any]]
CHARGE = {
    "id": "ch_1", "object": "charge", "payment_intent": None, "livemode": False, "paid": True, "captured": True,
    "status": "succeeded", "amount": 5000, "amount_captured": 5000, "currency": "eur", "disputed": False,
}  # fmt: skip
INTENT = {"id": "pi_1", "object": "payment_intent", "livemode": False, "currency": "eur", "latest_charge": CHARGE}
DISPUTES = "/v1/disputes"


def a_list(*items: dict[str, Any]) -> dict[str, Any]:
    return {"object": "list", "data": list(items), "has_more": False}


def told_by(pages: dict[str, Any]) -> Any:
    """A server that answers each path with its object, and 404 without a word otherwise; None hangs up."""

    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, raw: Any) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            path = head.split(b" ")[1].split(b"?")[0].decode()
            if path in pages and pages[path] is None:
                return
            body = json.dumps(pages.get(path, {})).encode()
            code = 200 if path in pages else 404
            writer.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n" % (code, len(body)) + body)

    return reply


async def preflight(serve: Serve, target: str, pages: dict[str, Any]) -> Preflight:
    async with serve(told_by({"/v1/refunds": a_list()} | pages)) as raw:
        credential = Credential("acct_1", False, "sk_test_1")
        arguments = {"amount_minor": 1000, "currency": "eur"}
        return await StripeRefunds(raw.base_url).preflight(credential, target, arguments, "m")


@pytest.mark.parametrize(
    ("disputes", "complete", "unfit"),
    [
        ({DISPUTES: a_list({"id": "dp_1", "is_charge_refundable": True})}, True, ""),
        ({DISPUTES: a_list({"id": "dp_1", "is_charge_refundable": False})}, True, "disputed"),
        ({DISPUTES: a_list({"id": "dp_1", "is_charge_refundable": True}, {"id": "dp_2"})}, True, "disputed"),
        ({DISPUTES: a_list()}, True, "disputed"),
        ({}, True, "disputed"),
        ({DISPUTES: None}, False, ""),
    ],
    ids=["inquiry", "chargeback", "one of two", "none listed", "not to be asked", "no answer"],
)
async def test_a_disputed_payment_is_refundable_only_if_every_dispute_says_so(
    disputes: dict[str, Any], complete: bool, unfit: str, serve: Serve
) -> None:
    """Break `all(…)` or `bool(listing.items)` in `_refundable_though_disputed`."""
    intent = INTENT | {"latest_charge": CHARGE | {"disputed": True}}
    told = await preflight(serve, "pi_1", {"/v1/payment_intents/pi_1": intent} | disputes)
    assert (told.complete, told.unfit) == (complete, unfit)


async def test_a_charge_without_payment_intent_is_its_own_target(serve: Serve) -> None:
    refund = {"id": "re_1", "object": "refund", "charge": "ch_1", "amount": 300, "currency": "eur", "status": "pending"}
    other = refund | {"id": "re_2", "charge": "ch_2"}
    told = await preflight(serve, "ch_1", {"/v1/charges/ch_1": CHARGE, "/v1/refunds": a_list(refund, other)})
    assert (told.target, told.unfit, told.amount_minor) == ("ch_1", "", 5000)
    assert told.facts["refunded_minor"] == 300
    assert [effect.receipt for effect in told.effects] == ["re_1"]


async def test_a_charge_that_did_not_pay_its_intent_is_unfit(serve: Serve) -> None:
    """A payment intent can have charges that were declined: naming one of those names no money."""
    declined = CHARGE | {"id": "ch_0", "payment_intent": "pi_1", "paid": False}
    told = await preflight(serve, "ch_0", {"/v1/charges/ch_0": declined, "/v1/payment_intents/pi_1": INTENT})
    assert (told.target, told.unfit) == ("pi_1", "charge_did_not_pay")


@pytest.mark.parametrize(
    ("page", "why"),
    [
        ({"object": "list", "data": [], "has_more": True}, "an empty page says that there are more"),
        ({"object": "list", "data": []}, "a page could not be read"),
        ({"object": "list", "data": [{"id": None}], "has_more": False}, "a page could not be read"),
        ({"object": "list", "data": [{"id": "re_1"}], "has_more": True}, "the list repeats itself"),
        ({"data": [], "has_more": False}, "a page could not be read"),
    ],
    ids=["empty but more", "no has_more", "no id", "the same page for ever", "no list"],
)
async def test_a_listing_that_does_not_end_in_order_is_incomplete(page: dict[str, Any], why: str, serve: Serve) -> None:
    """The SDK's own paging takes the first two for the end of the list."""
    told = await preflight(serve, "ch_1", {"/v1/charges/ch_1": CHARGE, "/v1/refunds": page})
    assert not told.complete and told.unfit == "" and told.detail["why"] == why


@pytest.mark.parametrize("change", [{"object": "customer"}, {"id": "pi_2"}, {"latest_charge": "ch_1"}])
async def test_an_answer_about_something_else_is_unreadable(change: dict[str, Any], serve: Serve) -> None:
    told = await preflight(serve, "pi_1", {"/v1/payment_intents/pi_1": INTENT | change})
    assert not told.complete and told.unfit == ""
