"""Refunds as the ledger would hold them, for adapters."""

from dataclasses import fields
from typing import Any
from uuid import uuid4

from ledger.model import Operation


def an_operation(**changes: Any) -> Operation:
    """An operation as the ledger would hold it, for `pi_1` and 10.00 EUR unless told otherwise."""
    operation_id = changes.pop("operation_id", uuid4())
    arguments = changes.pop("arguments", {"amount_minor": 1000, "currency": "eur"})
    known: dict[str, Any] = {
        "operation_id": operation_id,
        "tenant": "shop",
        "action": "refund",
        "provider": "stripe",
        "account": "acct_1",
        "livemode": False,
        "target": "pi_1",
        "arguments": arguments,
        "amount_minor": arguments["amount_minor"],
        "currency": arguments["currency"],
        "idempotency_key": f"el-{operation_id}",
    }
    # Adapters read identity only; whatever else an operation has is left out.
    nothing: dict[str, Any] = dict.fromkeys(field.name for field in fields(Operation))
    return Operation(**nothing | known | changes)
