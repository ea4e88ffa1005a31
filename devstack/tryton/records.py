"""Parties and purchase orders as people make them; an order is brought to its state by buttons."""

import datetime
from typing import Any

from devstack.tryton.names import PRODUCTS
from devstack.tryton.rpc import TrytonSession

# The states of an order on its way, each with the buttons that lead there.
BUTTONS = {
    "draft": (),
    "quotation": ("quote",),
    "confirmed": ("quote", "confirm"),
    "processing": ("quote", "confirm", "process"),
}


def party_row(name: str, code: str, email: str) -> dict[str, Any]:
    """A party with one address, which serves for invoices, and one e-mail."""
    return {
        "name": name,
        "code": code,
        "addresses": [["create", [address_row()]]],
        "contact_mechanisms": [["create", [{"type": "email", "value": email}]]],
    }


def address_row() -> dict[str, Any]:
    """An address; which one, nobody cares."""
    return {"street_unstructured": "1 Quay Street", "postal_code": "1000", "city": "Brussels", "invoice": True}


def place_order(
    buyer: TrytonSession,
    *,
    company: int,
    supplier: str,
    reference: str,
    state: str,
    lines: int,
    delivery: datetime.date,
) -> int:
    """An order with `lines` lines, each due on `delivery`, in `state`; returns its id."""
    party = buyer.only("party.party", [["code", "=", supplier]])
    [order] = buyer.create(
        "purchase.purchase",
        {
            "company": company,
            "party": party,
            "invoice_address": buyer.only("party.address", [["party", "=", party]]),
            "reference": reference,
            "lines": [["create", _lines(buyer, lines, delivery)]],
        },
        company=company,
    )
    for button in BUTTONS[state]:
        buyer.press("purchase.purchase", button, [order], company=company)
    return order


def _lines(buyer: TrytonSession, count: int, delivery: datetime.date) -> list[dict[str, Any]]:
    unit = buyer.only("product.uom", [["name", "=", "Unit"]])
    goods = [product.code for product in PRODUCTS if product.taxed]
    ids = [buyer.only("product.product", [["code", "=", code]]) for code in goods]
    return [
        {
            "product": ids[number % len(ids)],
            "quantity": 10.0 * (number + 1),
            "unit": unit,
            "unit_price": PRODUCTS[number % len(ids)].list_price,
            # Without this the server takes a delivery date, says nothing, and drops it.
            "delivery_date_edit": True,
            "delivery_date": delivery,
        }
        for number in range(count)
    ]
