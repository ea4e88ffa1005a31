"""The rules of refunds, without state: what a request may say, what may be refunded, how a refund may move.

1. `read_*` runs before execution: what it refuses is not stored under the idempotency key.
2. `amount_to_refund` runs on the state of the payment: what it refuses is stored and replayed.
3. A refund that was canceled or has failed gives its amount back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from devstack.stripe_standin import params as read
from devstack.stripe_standin.errors import StripeError
from devstack.stripe_standin.params import Params
from devstack.stripe_standin.shapes import Payment

MOVES: dict[str, frozenset[str]] = {
    "pending": frozenset({"succeeded", "failed", "canceled", "requires_action"}),
    "requires_action": frozenset({"pending", "succeeded", "failed", "canceled"}),
    # A card refund can be returned by the bank weeks later.
    "succeeded": frozenset({"failed"}),
    "failed": frozenset(),
    "canceled": frozenset(),
}
REASONS = ("duplicate", "fraudulent", "requested_by_customer")

CREATE_PARAMS = frozenset(
    {
        "amount",
        "charge",
        "currency",
        "customer",
        "expand",
        "instructions_email",
        "metadata",
        "origin",
        "payment_intent",
        "reason",
        "refund_application_fee",
        "reverse_transfer",
    }
)
LIST_PARAMS = frozenset(
    {
        "charge",
        "created",
        "ending_before",
        "expand",
        "limit",
        "payment_intent",
        "starting_after",
    }
)

ZERO_DECIMAL = frozenset(
    {
        "bif",
        "clp",
        "djf",
        "gnf",
        "jpy",
        "kmf",
        "krw",
        "mga",
        "pyg",
        "rwf",
        "vnd",
        "vuv",
        "xaf",
        "xof",
        "xpf",
    }
)
THREE_DECIMAL = frozenset({"bhd", "jod", "kwd", "omr", "tnd"})
# ISK and UGX have no minor unit any more and are still sent with two decimals, which have to be zero.
MULTIPLE = dict.fromkeys(("isk", "ugx"), 100) | dict.fromkeys(THREE_DECIMAL, 10)
SYMBOLS = {"usd": "$", "eur": "€", "gbp": "£", "jpy": "¥"}


@dataclass(frozen=True)
class RefundOrder:
    """What one request to create a refund says."""

    payment_intent: str | None
    charge: str | None
    amount: int | None
    currency: str | None = None
    reason: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    flags: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RefundQuery:
    """What one request to list refunds says."""

    payment_intent: str | None
    charge: str | None
    created: dict[str, int]
    limit: int
    starting_after: str | None
    ending_before: str | None


def read_order(params: Params) -> RefundOrder:
    """Refuses what can be judged without looking at any object."""
    read.check_known(params, CREATE_PARAMS)
    payment_intent, charge = read.text(params, "payment_intent"), read.text(params, "charge")
    for unsupported in ("customer", "origin"):
        if unsupported in params:
            raise StripeError(400, "Refunds from a customer balance are not supported here.", param=unsupported)
    if payment_intent is None and charge is None:
        raise StripeError(
            400,
            "One of the following params should be provided for this request: payment_intent or charge.",
            code="parameter_missing",
        )
    if payment_intent is not None and charge is not None:
        raise StripeError(
            400, "You may only specify one of these parameters: charge, payment_intent.", code="parameters_exclusive"
        )
    flags = {
        "reverse_transfer": read.boolean(params, "reverse_transfer"),
        "refund_application_fee": read.boolean(params, "refund_application_fee"),
        "instructions_email": read.text(params, "instructions_email"),
    }
    return RefundOrder(
        payment_intent=payment_intent,
        charge=charge,
        amount=read.integer(params, "amount", least=1),
        currency=read.text(params, "currency"),
        reason=read.choice(params, "reason", REASONS),
        metadata={key: value for key, value in read.metadata(params).items() if value != ""},
        flags={name: value for name, value in flags.items() if value is not None},
    )


def read_query(params: Params) -> RefundQuery:
    read.check_known(params, LIST_PARAMS)
    limit = read.integer(params, "limit", least=1)
    if limit is not None and limit > 100:
        raise StripeError(
            400, "This value must be less than or equal to 100.", code="parameter_invalid_integer", param="limit"
        )
    after, before = read.text(params, "starting_after"), read.text(params, "ending_before")
    if after is not None and before is not None:
        raise StripeError(
            400,
            "You cannot parameterize both starting_after and ending_before.",
            code="parameters_exclusive",
            param="starting_after",
        )
    return RefundQuery(
        payment_intent=read.text(params, "payment_intent"),
        charge=read.text(params, "charge"),
        created=read.bounds(params, "created"),
        limit=limit or 10,
        starting_after=after,
        ending_before=before,
    )


def read_metadata_change(params: Params) -> dict[str, str] | None:
    """None unsets everything; an empty value unsets its key."""
    read.check_known(params, frozenset({"metadata", "expand"}))
    return None if params.get("metadata") == "" else read.metadata(params)


def changed_metadata(old: dict[str, str], change: dict[str, str] | None) -> dict[str, str]:
    if change is None:
        return {}
    return {key: value for key, value in {**old, **change}.items() if value != ""}


def amount_to_refund(order: RefundOrder, payment: Payment, refunded: int) -> int:
    """The amount that is refunded, in minor units; refuses what the state of the payment does not allow."""
    name = payment.charge or payment.payment_intent
    if payment.charge is None or payment.captured == 0 or payment.status != "succeeded":
        raise StripeError(
            400,
            f"This PaymentIntent ({payment.payment_intent}) does not have a successful charge to refund.",
            param="payment_intent",
            stored=True,
        )
    if payment.disputed and not payment.refundable:
        raise StripeError(
            400, f"Charge {name} has been charged back; cannot issue a refund.", code="charge_disputed", stored=True
        )
    unrefunded = payment.captured - refunded
    if unrefunded <= 0:
        raise StripeError(400, f"Charge {name} has already been refunded.", code="charge_already_refunded", stored=True)
    if order.currency is not None and order.currency != payment.currency:
        raise StripeError(
            400,
            f"The currency of the refund has to be that of the charge ({payment.currency}).",
            param="currency",
            stored=True,
        )
    amount = unrefunded if order.amount is None else order.amount
    if amount > unrefunded:
        # Real recordings have no `code` here, although `amount_too_large` is often quoted.
        raise StripeError(
            400,
            f"Refund amount ({written(amount, payment.currency)}) is greater than unrefunded amount on charge"
            f" ({written(unrefunded, payment.currency)})",
            param="amount",
            stored=True,
        )
    multiple = MULTIPLE.get(payment.currency, 1)
    if amount % multiple:
        raise StripeError(
            400,
            f"Invalid amount: amounts in {payment.currency} must be multiples of {multiple}.",
            param="amount",
            stored=True,
        )
    return amount


def written(amount: int, currency: str) -> str:
    """As Stripe writes amounts in messages: $40.00, ¥40, 40.00 chf."""
    places = 0 if currency in ZERO_DECIMAL else 3 if currency in THREE_DECIMAL else 2
    number = f"{amount:,}" if places == 0 else f"{amount // 10**places:,}.{amount % 10**places:0{places}d}"
    symbol = SYMBOLS.get(currency)
    return f"{symbol}{number}" if symbol else f"{number} {currency}"


def may_move(status: str, target: str) -> bool:
    return target in MOVES[status]
