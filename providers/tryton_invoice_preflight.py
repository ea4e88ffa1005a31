"""The customer of a draft invoice, as Tryton tells it, and everything that the invoice must name beside what was asked.

1. What the books need (accounts, taxes, address, journal, payment term) is asked of Tryton's own form for a new invoice,
   so that its rules and modules decide, as they would for a person who types the invoice.
2. What we cannot read is not complete, never unfit: unfit is a statement about customer, product or price.
3. The first reason in the order of reading wins; `unfit` is its word, and facts["unfit"] its sentence.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from ledger.money import shown
from providers.port import Preflight
from providers.tryton_invoice_answers import MODEL, Invoices, Wanted, from_minor, invoices_about, read_sighting
from providers.tryton_rpc import Kind, Rows, Told, TrytonSession
from providers.wire import words

_AT_ONCE = 4  # questions that one preflight asks of the server at the same time
_OTHERS_SHOWN = 20
# What the form proposes for the head besides party, address and account, and draft invoices can do without.
OPTIONAL = ("journal", "payment_term", "party_tax_identifier")


class Unfit(Exception):
    """The target cannot take this effect: a word, the field to correct, and a sentence."""

    def __init__(self, word: str, field: str, sentence: str) -> None:
        super().__init__(sentence)
        self.word, self.field, self.sentence = word, field, sentence


class Unread(Exception):
    """Something could not be read; `told` is the answer."""

    def __init__(self, why: str, told: Told) -> None:
        super().__init__(why)
        self.why, self.told = why, told


@dataclass(frozen=True)
class _Reads:
    """What needs nothing but what was asked, read at once."""

    parties: Rows
    currencies: Rows
    products: Rows
    about: Invoices


async def read_preflight(session: TrytonSession, wanted: Wanted, arguments: Mapping[str, Any]) -> Preflight:
    """Whether Tryton could draft this invoice, what it would rest on, and what bills this order already."""
    about = Invoices(False, (), {})
    facts: dict[str, Any] = {}
    unfit, field = "", "target"
    basis: dict[str, Any] = {}
    try:
        reads = await _read_all(session, wanted, arguments)
        about = reads.about
        if not about.complete:
            return Preflight(complete=False, detail=about.detail)
        facts |= _others(about, wanted)
        basis = await _basis(session, wanted, arguments, reads, facts)
    except Unread as unread:
        return Preflight(complete=False, detail=unread.told.detail() | {"why": unread.why})
    except Unfit as reason:
        unfit, field = reason.word, reason.field
        facts["unfit"] = reason.sentence
    effects = tuple(read_sighting(invoice, wanted) for invoice in about.found)
    return Preflight(
        complete=True,
        target=wanted.customer,
        unfit=unfit,
        unfit_field=field,
        basis=basis,
        effects=effects,
        markers={invoice.receipt: invoice.marker for invoice in about.found if invoice.marker is not None},
        facts=facts,
        detail=about.detail,
    )


async def _read_all(session: TrytonSession, wanted: Wanted, arguments: Mapping[str, Any]) -> _Reads:
    codes = sorted({item["product"] for item in arguments["items"]})
    parties, currencies, products, about = await asyncio.gather(
        # The inactive as well: it makes another sentence for the one who asks.
        session.rows("party.party", [["code", "=", wanted.customer]], ["code", "name", "active"], active_test=False),
        session.rows("currency.currency", [["code", "=", wanted.currency.upper()]], ["code", "rounding"]),
        session.rows("product.product", [["code", "in", codes]], ["code", "name"]),
        invoices_about(session, wanted),
    )
    for rows in (parties, currencies, products):
        if not rows.complete:
            raise Unread(rows.why, rows.last)
    return _Reads(parties, currencies, products, about)


async def _basis(
    session: TrytonSession, wanted: Wanted, arguments: Mapping[str, Any], reads: _Reads, facts: dict[str, Any]
) -> dict[str, Any]:
    """The ids that the request needs; what approvers should see goes into `facts` as it is read."""
    party = _customer(reads.parties, wanted.customer, facts)
    currency = _currency(reads.currencies, wanted.currency)
    products = [_product(reads.products, item["product"], number) for number, item in enumerate(arguments["items"])]
    _check_prices(arguments, currency)
    head = await _head(session, party, currency["id"])
    await _see_address(session, party, head["invoice_address"], facts)
    lines = await _lines(session, party, currency["id"], products)
    taxes = await _tax_names(session, lines)
    facts["items"] = [
        {
            "product": words(product["code"]),
            "name": words(product.get("name")),
            "quantity": item["quantity"],
            "unit_price": shown(item["unit_price_minor"], wanted.currency),
            "taxes": [taxes[tax] for tax in line["taxes"]],
        }
        for product, item, line in zip(products, arguments["items"], lines, strict=True)
    ]
    facts["total_without_tax"] = shown(wanted.amount_minor, wanted.currency)
    return {"party": party, "currency": currency["id"], **head, "lines": lines}


def _customer(parties: Rows, code: str, facts: dict[str, Any]) -> int:
    found = [row for row in parties.items if row.get("code") == code]
    if len(found) != 1:
        known = "several parties have this code" if found else "Tryton knows no party with this code"
        raise Unfit("customer_missing", "target", f"{known}: name the customer by the code of its party")
    if found[0].get("active") is not True:
        raise Unfit("customer_missing", "target", "the party with this code is deactivated")
    facts["customer"] = {"code": code, "name": words(found[0].get("name"))}
    return int(found[0]["id"])


def _currency(currencies: Rows, code: str) -> dict[str, Any]:
    found = [row for row in currencies.items if row.get("code") == code.upper()]
    if len(found) != 1:
        raise Unfit("currency_unknown", "currency", "Tryton has no such currency in use")
    step = found[0].get("rounding")
    if not isinstance(step, Decimal) or step <= 0:
        raise Unread("the currency does not say how it is rounded", currencies.last)
    return found[0]


def _product(products: Rows, code: str, number: int) -> dict[str, Any]:
    found = [row for row in products.items if row.get("code") == code]
    if len(found) != 1:
        known = "several products in use have this code" if found else "Tryton has no product in use with this code"
        raise Unfit("product_unknown", f"items[{number}].product", known)
    return found[0]


def _check_prices(arguments: Mapping[str, Any], currency: Mapping[str, Any]) -> None:
    """Tryton rounds the amount of each line to what the currency can pay: then the sum would not be the approved one."""
    step = currency["rounding"]
    for number, item in enumerate(arguments["items"]):
        amount = from_minor(item["quantity"] * item["unit_price_minor"], arguments["currency"])
        if amount % step:
            sentence = f"Tryton rounds amounts in this currency to multiples of {step}, and would change this line"
            raise Unfit("price_not_representable", f"items[{number}].unit_price_minor", sentence)


async def _head(session: TrytonSession, party: int, currency: int) -> dict[str, Any]:
    asked = {"type": "out", "party": party, "company": session.place.company, "currency": currency}
    told = await _form(session, MODEL, asked, ["type", "party"], "customer_not_invoiceable", "target")
    form = told.value
    if form.get("invoice_address") is None:
        raise Unfit("customer_without_address", "target", "the customer has no address to send an invoice to: add one")
    if form.get("account") is None:
        raise Unfit("customer_without_account", "target", "no account receivable is set for this customer or company")
    head = {name: form[name] for name in ("invoice_address", "account")}
    return head | {name: form[name] for name in OPTIONAL if form.get(name) is not None}


async def _see_address(session: TrytonSession, party: int, address: object, facts: dict[str, Any]) -> None:
    rows = await session.rows("party.address", [["id", "=", address]], ["party", "city", "country.name"])
    found = [row for row in rows.items if row.get("id") == address and row.get("party") == party]
    if not rows.complete or len(found) != 1:
        raise Unread("the invoice address could not be read", rows.last)
    country = found[0].get("country.")
    facts["invoice_address"] = {
        "city": words(found[0].get("city")),
        "country": words(country.get("name")) if isinstance(country, Mapping) else None,
    }


async def _lines(
    session: TrytonSession, party: int, currency: int, products: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Account, unit and taxes of each item, asked once for each product."""
    gate = asyncio.Semaphore(_AT_ONCE)
    first: dict[int, int] = {}
    for number, product in enumerate(products):
        first.setdefault(product["id"], number)

    async def one(product: int, number: int) -> dict[str, Any]:
        asked = {"type": "line", "product": product, "company": session.place.company, "currency": currency}
        field = f"items[{number}].product"
        asked |= {"invoice_type": "out", "party": party, "quantity": 1}
        async with gate:
            told = await _form(session, f"{MODEL}.line", asked, ["product"], "product_not_sellable", field)
        form = told.value
        if form.get("account") is None or form.get("unit") is None:
            raise Unfit("product_not_sellable", field, "this product has no account for revenue: set its category")
        return {"product": product, "account": form["account"], "unit": form["unit"], "taxes": _taxes(told)}

    read = await asyncio.gather(*(one(product, number) for product, number in first.items()), return_exceptions=True)
    for found in read:
        if isinstance(found, BaseException):
            raise found
    by_product = {line["product"]: line for line in read if isinstance(line, dict)}
    return [by_product[product["id"]] for product in products]


async def _form(
    session: TrytonSession, model: str, asked: dict[str, Any], changed: list[str], word: str, field: str
) -> Told:
    """What Tryton's form would fill in. Its own words, where it says that it cannot."""
    told = await session.call(f"model.{model}.on_change", asked, changed)
    if told.kind is Kind.BUSINESS:
        raise Unfit(word, field, f"Tryton says: {words(told.words)}")
    ids = ("account", "unit", "invoice_address", *OPTIONAL)
    if told.kind is not Kind.VALUE or not isinstance(told.value, dict):
        raise Unread("the form of a new invoice could not be read", told)
    if any(type(told.value.get(name)) not in (int, type(None)) for name in ids):
        raise Unread("the form of a new invoice has a shape that we do not know", told)
    return told


def _taxes(told: Told) -> list[int]:
    """The taxes that the form adds to a line that had none."""
    added = told.value.get("taxes") or {"add": []}
    if isinstance(added, Mapping) and added.keys() == {"add"} and isinstance(added["add"], list):
        values = [entry[1] if isinstance(entry, list) and len(entry) == 2 else None for entry in added["add"]]
        ids = [value.get("id") if isinstance(value, Mapping) else None for value in values]
        taxes = [tax for tax in ids if type(tax) is int]
        if len(taxes) == len(ids):
            return sorted(taxes)
    raise Unread("the taxes of a product have a shape that we do not know", told)


async def _tax_names(session: TrytonSession, lines: Sequence[Mapping[str, Any]]) -> dict[int, str | None]:
    wanted = sorted({tax for line in lines for tax in line["taxes"]})
    if not wanted:
        return {}
    rows = await session.rows("account.tax", [["id", "in", wanted]], ["name"], active_test=False)
    names = {row["id"]: words(row.get("name")) for row in rows.items}
    if not rows.complete or set(wanted) - names.keys():
        raise Unread("the taxes could not be read", rows.last)
    return names


def _others(about: Invoices, wanted: Wanted) -> dict[str, Any]:
    """What else bills this order, for the one who approves: equal ones are refused by rule, the rest a person must see."""
    others = [invoice for invoice in about.found if invoice.reference != wanted.marker]
    told = [
        {
            "receipt": invoice.receipt,
            "number": words(invoice.number),
            "state": words(invoice.state),
            "without_tax": f"{invoice.untaxed:f} {words(invoice.currency.upper())}",
        }
        for invoice in others[:_OTHERS_SHOWN]
    ]
    return {"invoices_of_this_order": len(others), "of_these": told} if others else {}
