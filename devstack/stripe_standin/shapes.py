"""The objects of the API as they are answered: fields as in the SDK's own classes, with `expand`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from devstack.stripe_standin.errors import StripeError

FREED = frozenset({"failed", "canceled"})


@dataclass(frozen=True)
class Payment:
    """One payment intent with its one charge (none before it is paid)."""

    payment_intent: str
    charge: str | None
    account: str
    livemode: bool
    amount: int
    captured: int
    currency: str
    status: str
    disputed: bool
    refundable: bool
    customer: str | None
    metadata: dict[str, str]
    created: float


@dataclass(frozen=True)
class Refund:
    """One refund, with what Stripe knows about it and does not always show."""

    number: int
    refund: str
    payment_intent: str
    charge: str
    account: str
    livemode: bool
    amount: int
    currency: str
    status: str
    reason: str | None
    failure_reason: str | None
    pending_reason: str | None
    metadata: dict[str, str]
    flags: dict[str, Any]
    created: float


@dataclass(frozen=True)
class Finder:
    """What `expand` needs to find the objects that ids stand for."""

    payment: Callable[[str], Payment]
    refunded: Callable[[str], int]
    refunds: Callable[[str], list[Refund]]


def refund_body(refund: Refund) -> dict[str, Any]:
    """No `livemode` exists on a refund, and failure and pending fields are absent unless they say something."""
    body: dict[str, Any] = {
        "id": refund.refund,
        "object": "refund",
        "amount": refund.amount,
        "balance_transaction": None if refund.status in ("pending", "requires_action") else _sibling(refund, "txn"),
        "charge": refund.charge,
        "created": int(refund.created),
        "currency": refund.currency,
        "customer": None,
        "customer_account": None,
        "destination_details": {
            "card": {"reference_status": "pending", "reference_type": "acquirer_reference_number", "type": "refund"},
            "type": "card",
        },
        "metadata": refund.metadata,
        "payment_intent": refund.payment_intent,
        "payment_method": _sibling(refund, "pm"),
        "reason": refund.reason,
        "receipt_number": None,
        "source_transfer_reversal": None,
        "status": refund.status,
        "transfer_reversal": _sibling(refund, "trr") if refund.flags.get("reverse_transfer") else None,
    }
    if refund.status in FREED:
        body["failure_balance_transaction"] = _sibling(refund, "txnf")
    if refund.status == "failed":
        body["failure_reason"] = refund.failure_reason or "unknown"
    if refund.status == "pending":
        body["pending_reason"] = refund.pending_reason or "processing"
    if refund.status == "requires_action":
        body["next_action"] = {
            "type": "display_details",
            "display_details": {
                "email_sent": {
                    "email_sent_at": int(refund.created),
                    "email_sent_to": refund.flags.get("instructions_email") or "customer@example.com",
                },
                "expires_at": int(refund.created) + 45 * 86400,
            },
        }
    if refund.flags.get("instructions_email"):
        body["instructions_email"] = refund.flags["instructions_email"]
    return body


def payment_intent_body(payment: Payment) -> dict[str, Any]:
    return {
        "id": payment.payment_intent,
        "object": "payment_intent",
        "amount": payment.amount,
        "amount_capturable": payment.amount if payment.status == "requires_capture" else 0,
        "amount_details": {"tip": {}},
        "amount_received": payment.captured,
        "application": None,
        "application_fee_amount": None,
        "automatic_payment_methods": None,
        "canceled_at": int(payment.created) if payment.status == "canceled" else None,
        "cancellation_reason": None,
        "capture_method": "manual" if payment.status == "requires_capture" else "automatic",
        "client_secret": f"{payment.payment_intent}_secret_standin",
        "confirmation_method": "automatic",
        "created": int(payment.created),
        "currency": payment.currency,
        "customer": payment.customer,
        "customer_account": None,
        "description": None,
        "last_payment_error": None,
        "latest_charge": payment.charge,
        "livemode": payment.livemode,
        "metadata": payment.metadata,
        "next_action": None,
        "on_behalf_of": None,
        "payment_method": f"pm_{payment.payment_intent[3:]}",
        "payment_method_options": {},
        "payment_method_types": ["card"],
        "processing": None,
        "receipt_email": None,
        "review": None,
        "setup_future_usage": None,
        "shipping": None,
        "source": None,
        "statement_descriptor": None,
        "statement_descriptor_suffix": None,
        "status": payment.status,
        "transfer_data": None,
        "transfer_group": None,
    }


def charge_body(payment: Payment, refunded: int) -> dict[str, Any]:
    """`refunds` is not part of a charge unless it is expanded, as since API 2022-11-15."""
    return {
        "id": payment.charge,
        "object": "charge",
        "amount": payment.amount,
        "amount_captured": payment.captured,
        # Two executions of one request can take more than there is; Stripe never shows more than was captured.
        "amount_refunded": min(refunded, payment.captured),
        "application": None,
        "application_fee": None,
        "application_fee_amount": None,
        "balance_transaction": f"txn_{payment.payment_intent[3:]}",
        "billing_details": {"address": None, "email": None, "name": None, "phone": None, "tax_id": None},
        "calculated_statement_descriptor": "STAND-IN",
        "captured": payment.captured > 0,
        "created": int(payment.created),
        "currency": payment.currency,
        "customer": payment.customer,
        "description": None,
        "disputed": payment.disputed,
        "failure_balance_transaction": None,
        "failure_code": None,
        "failure_message": None,
        "fraud_details": {},
        "livemode": payment.livemode,
        "metadata": payment.metadata,
        "on_behalf_of": None,
        "outcome": {
            "network_status": "approved_by_network",
            "reason": None,
            "risk_level": "normal",
            "seller_message": "Payment complete.",
            "type": "authorized",
        },
        "paid": payment.status in ("succeeded", "requires_capture"),
        "payment_intent": payment.payment_intent,
        "payment_method": f"pm_{payment.payment_intent[3:]}",
        "payment_method_details": {"card": {"brand": "visa", "last4": "4242"}, "type": "card"},
        "receipt_email": None,
        "receipt_number": None,
        "receipt_url": None,
        "refunded": payment.captured > 0 and refunded >= payment.captured,
        "review": None,
        "shipping": None,
        "source": None,
        "source_transfer": None,
        "statement_descriptor": None,
        "statement_descriptor_suffix": None,
        "status": "succeeded" if payment.status in ("succeeded", "requires_capture") else "pending",
        "transfer_data": None,
        "transfer_group": None,
    }


def account_body(account: str, created: float) -> dict[str, Any]:
    return {
        "id": account,
        "object": "account",
        "business_profile": {"name": "Stand-in", "support_email": None, "url": None},
        "capabilities": {"card_payments": "active", "transfers": "active"},
        "charges_enabled": True,
        "country": "US",
        "created": int(created),
        "default_currency": "usd",
        "details_submitted": True,
        "email": None,
        "metadata": {},
        "payouts_enabled": True,
        "type": "standard",
    }


def list_body(url: str, data: list[dict[str, Any]], has_more: bool) -> dict[str, Any]:
    return {"object": "list", "data": data, "has_more": has_more, "url": url}


def expanded(body: dict[str, Any], paths: list[str], finder: Finder) -> dict[str, Any]:
    """Replaces ids by objects along each dotted path; a property that cannot be expanded is a 400."""
    for path in paths:
        head, _, rest = path.partition(".")
        if body["object"] == "list":
            if head != "data" or not rest:
                raise _cannot_expand(path)
            body["data"] = [expanded(item, [rest], finder) for item in body["data"]]
            continue
        match body["object"], head:
            case (("refund" | "charge"), "payment_intent"):
                inner = payment_intent_body(finder.payment(_id_of(body["payment_intent"])))
            case "refund", "charge":
                inner = _charge_of(_id_of(body["payment_intent"]), finder)
            case "payment_intent", "latest_charge":
                if body["latest_charge"] is None:
                    continue
                inner = _charge_of(body["id"], finder)
            case "charge", "refunds":
                found = [refund_body(refund) for refund in finder.refunds(_id_of(body["payment_intent"]))]
                inner = list_body(f"/v1/charges/{body['id']}/refunds", found[:10], len(found) > 10)
            case _:
                raise _cannot_expand(path)
        kept = body[head] if isinstance(body.get(head), dict) else inner
        body[head] = expanded(kept, [rest], finder) if rest else kept
    return body


def _charge_of(payment_intent: str, finder: Finder) -> dict[str, Any]:
    return charge_body(finder.payment(payment_intent), finder.refunded(payment_intent))


def _id_of(value: Any) -> str:
    return str(value["id"] if isinstance(value, dict) else value)


def _sibling(refund: Refund, prefix: str) -> str:
    """Ids of objects that exist only by name here are derived, so that every answer shows the same one."""
    return f"{prefix}_{refund.refund.partition('_')[2]}"


def _cannot_expand(path: str) -> StripeError:
    return StripeError(400, f"This property cannot be expanded ({path}).", param="expand")
