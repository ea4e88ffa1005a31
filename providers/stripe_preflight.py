"""The payment that a refund gives back, as Stripe tells it: what is left of it, and why it could not take a refund.

1. The payment intent is the payment; a charge stands for its own only where it belongs to none.
2. What we cannot read is `unreadable`, never unfit: unfit is a statement about the payment and ends a proposal.
3. The first reason in the order of `_unfit` wins; `unfit` is its word, and facts["unfit"] its sentence.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from ledger.model import Standing
from providers.port import Preflight
from providers.stripe_answers import Wanted, marker_on, read_sighting, target_of, target_parameter
from providers.stripe_http import Answer, Listing, Session
from providers.wire import words

_WORDS = {
    "payment_missing": "Stripe knows no such payment in this account and mode",
    "charge_did_not_pay": "the named charge is not the one that paid its payment intent",
    "livemode_mismatch": "the payment belongs to the other mode (live or test) than the credential",
    "not_paid": "the payment was not paid",
    "not_captured": "the payment is authorised but not captured",
    "currency_mismatch": "the payment is in another currency than the refund",
    "disputed": "the payment is disputed: a refund would be refused, or paid on top of a chargeback",
}


async def read_preflight(
    session: Session, livemode: bool, target: str, arguments: Mapping[str, Any], marker: str
) -> Preflight:
    """What Stripe says about the payment and all its refunds; `complete` is False if any of it could not be read."""
    payment = await read_payment(session, target, livemode, arguments["currency"])
    if payment.unreadable:
        return Preflight(complete=False, detail=payment.detail | {"why": payment.unreadable})
    if payment.captured_minor is None:
        return Preflight(True, payment.target, payment.unfit, facts=payment.facts, detail=payment.detail)
    listing = await refunds_of(session, payment.target)
    wanted = Wanted(payment.target, arguments["amount_minor"], arguments["currency"], marker)
    return _judge_refunds(payment, payment.captured_minor, listing, wanted)


@dataclass(frozen=True)
class Payment:
    """What was read. `captured_minor` is None unless money was captured."""

    target: str = ""  # canonical
    unreadable: str = ""
    unfit: str = ""
    captured_minor: int | None = None
    currency: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    detail: dict[str, Any] = field(default_factory=dict)


async def read_payment(session: Session, target: str, livemode: bool, currency: str) -> Payment:
    """Read the payment behind a pi_, ch_ or py_ id, and judge it for a refund in `currency`."""
    canonical = target
    if not target.startswith("pi_"):
        answer = await session.ask(lambda v1: v1.charges.retrieve_async(target))
        charge = _object(answer, "charge", target)
        if charge is None:
            return _not_read(answer, target)
        intent = charge.get("payment_intent")
        if intent is None:
            return await _judge_payment(session, answer, charge, target, target, livemode, currency)
        canonical = str(intent["id"] if isinstance(intent, dict) else intent)
    answer = await session.ask(lambda v1: v1.payment_intents.retrieve_async(canonical, {"expand": ["latest_charge"]}))
    payment = _object(answer, "payment_intent", canonical)
    if payment is None:
        return _not_read(answer, canonical)
    latest = payment.get("latest_charge")
    if latest is not None and not isinstance(latest, dict):
        return Payment(unreadable="the charge of the payment was not expanded", detail=answer.detail())
    paid = {"livemode": payment.get("livemode"), "currency": payment.get("currency")} | (latest or {})
    return await _judge_payment(session, answer, paid, canonical, target, livemode, currency)


async def refunds_of(session: Session, target: str) -> Listing:
    """All refunds of the target. No other filter: one that is ignored, or misunderstood, would look like absence."""
    wanted = {target_parameter(target): target}
    return await session.ask_all(lambda v1, page: v1.refunds.list_async(cast(Any, wanted | page)))


async def _judge_payment(
    session: Session, answer: Answer, charge: dict[str, Any], target: str, named: str, livemode: bool, currency: str
) -> Payment:
    unfit = _unfit(charge, target, named, livemode, currency)
    detail = answer.detail()
    if not unfit and charge.get("disputed") is not False:
        open_to_refunds, asked = await _refundable_though_disputed(session, target)
        detail = asked.detail()
        if open_to_refunds is None:
            return Payment(unreadable="the disputes of the payment could not be read", detail=detail)
        unfit = "" if open_to_refunds else "disputed"
    captured = _captured(charge)
    facts = {
        "payment": target,
        "named_as": words(named),
        "livemode": charge.get("livemode"),
        "currency": words(charge.get("currency")),
        "paid": charge.get("paid") is True,
        "captured_minor": captured,
        "disputed": charge.get("disputed") is True,
        "paid_at": charge.get("created"),
    }
    if unfit:
        facts["unfit"] = _WORDS[unfit]
    found = charge.get("currency")
    return Payment(target, "", unfit, captured, found if isinstance(found, str) else None, facts, detail)


def _unfit(charge: Mapping[str, Any], target: str, named: str, livemode: bool, currency: str) -> str:
    if charge.get("livemode") is not livemode:
        return "livemode_mismatch"
    if charge.get("paid") is not True or charge.get("status") != "succeeded":
        return "not_paid"
    if named != target and charge.get("id") != named:
        return "charge_did_not_pay"
    if not _captured(charge):
        return "not_captured"
    if charge.get("currency") != currency:
        return "currency_mismatch"
    return ""


def _captured(charge: Mapping[str, Any]) -> int | None:
    amount = charge.get("amount_captured", charge.get("amount"))
    if charge.get("captured") is not True or not isinstance(amount, int):
        return None
    return amount


async def _refundable_though_disputed(session: Session, target: str) -> tuple[bool | None, Answer]:
    """An inquiry leaves a payment refundable, and the dispute says so; None when Stripe could not be asked."""
    wanted = {target_parameter(target): target}
    listing = await session.ask_all(lambda v1, page: v1.disputes.list_async(cast(Any, wanted | page)))
    if not listing.complete:
        asked = listing.last.status
        # A definite no, for example of a restricted key, leaves the flag on the charge as the only word.
        return (False if asked is not None and 400 <= asked < 429 else None), listing.last
    return bool(listing.items) and all(item.get("is_charge_refundable") is True for item in listing.items), listing.last


def _object(answer: Answer, kind: str, reference: str) -> dict[str, Any] | None:
    found = answer.object
    if answer.status != 200 or found is None or found.get("object") != kind or found.get("id") != reference:
        return None
    return found


def _not_read(answer: Answer, target: str) -> Payment:
    if answer.status == 404 and answer.error.get("code") == "resource_missing":
        facts = {"payment": words(target), "unfit": _WORDS["payment_missing"]}
        return Payment(target, "", "payment_missing", facts=facts, detail=answer.detail())
    return Payment(unreadable="the payment could not be read", detail=answer.detail())


def _judge_refunds(payment: Payment, captured: int, listing: Listing, wanted: Wanted) -> Preflight:
    refunds = [refund for refund in listing.items if target_of(refund, payment.target) == payment.target]
    if not listing.complete or not all(isinstance(refund.get("amount"), int) for refund in refunds):
        return Preflight(complete=False, detail=listing_detail(listing))
    effects = tuple(read_sighting(refund, wanted) for refund in refunds)
    taken = sum(
        refund["amount"] for refund, seen in zip(refunds, effects, strict=True) if seen.standing is not Standing.VOID
    )
    unfit, facts = payment.unfit, payment.facts | {"refunded_minor": taken, "refunds": len(refunds)}
    # A refund of our own may have taken the rest: then the operation is done, not unfit.
    if not unfit and taken >= captured and not any(seen.marked for seen in effects):
        unfit, facts = "fully_refunded", facts | {"unfit": "nothing is left of this payment: it is refunded in full"}
    return Preflight(
        complete=True,
        target=payment.target,
        unfit=unfit,
        amount_minor=captured,
        currency=payment.currency,
        effects=effects,
        markers={refund["id"]: marker for refund in refunds if (marker := marker_on(refund)) is not None},
        facts=facts,
        detail=listing_detail(listing),
    )


def listing_detail(listing: Listing) -> dict[str, Any]:
    """The evidence of a listing: its last answer, how much was listed, and why it is not complete."""
    told = listing.last.detail() | {"listed": len(listing.items)}
    return told if listing.complete else told | {"why": listing.why}
