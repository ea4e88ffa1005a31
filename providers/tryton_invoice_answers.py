"""What Tryton's answers about a customer invoice mean: to the write, and in a search.

1. Pure and total but for `read_invoices`, which reads; nothing raises for an answer.
2. The answer to a create is an id and nothing else. What the invoice says is read and compared, row by row, here: the
   server's own search is never believed.
3. An invoice is ours if it carries our marker and its customer, currency, sum, description and lines are what was asked.
"""

import datetime
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from ledger.model import Hint, Operation, Outcome, SeenEffect, Standing
from ledger.money import CURRENCIES, MAX_MINOR
from providers.port import Classified
from providers.tryton_rpc import Rows, Told, TrytonSession, classify_no
from providers.wire import words

MODEL = "account.invoice"
STANDINGS = {
    "draft": Standing.GOOD,
    "validated": Standing.GOOD,
    "posted": Standing.GOOD,
    "paid": Standing.GOOD,
    "cancelled": Standing.VOID,
}
# Tryton keeps times without a zone, in that of its database: no zone is further off.
ZONES = datetime.timedelta(hours=15)
_FIELDS = [
    *("reference", "description", "type", "state", "number", "company", "currency.code", "untaxed_amount"),
    *("party.code", "lines", "create_date"),
]
_LINE_FIELDS = ["invoice", "type", "product.code", "quantity", "unit_price"]
_RECEIPT = re.compile(r"account\.invoice,([1-9][0-9]{0,17})")
_OPERATION_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

Line = tuple[str, Decimal, Decimal]  # product's code, quantity, unit price in minor units


@dataclass(frozen=True)
class Wanted:
    """What an invoice must say to be the effect of one operation."""

    customer: str  # the party's code
    company: int
    currency: str  # as the ledger writes it: lower case
    amount_minor: int
    description: str
    lines: Counter[Line]
    marker: str

    def fits(self, invoice: "Invoice") -> bool:
        """Whether everything but the marker is what was asked for."""
        return (
            (invoice.customer, invoice.company, invoice.type) == (self.customer, self.company, "out")
            and (invoice.currency, invoice.amount_minor) == (self.currency, self.amount_minor)
            and invoice.description == self.description
            and Counter(invoice.lines) == self.lines
        )

    def concerns(self, invoice: "Invoice") -> bool:
        """Whether it carries our marker, or bills this customer for this order, whatever the sum."""
        billed = (invoice.customer, invoice.description) == (self.customer, self.description)
        return invoice.reference == self.marker or billed


@dataclass(frozen=True)
class Invoice:
    """An invoice as the server shows it. Its lines are those that cost something: titles and comments are left out."""

    id: int
    reference: str
    description: str
    type: str
    state: str
    number: str
    company: int
    currency: str
    untaxed: Decimal
    customer: str
    lines: tuple[Line, ...]
    created: datetime.datetime | None

    @property
    def receipt(self) -> str:
        """As Tryton itself refers to a record."""
        return f"{MODEL},{self.id}"

    @property
    def amount_minor(self) -> int | None:
        """The sum without tax in minor units; None where they cannot say it exactly, or the ledger cannot hold it."""
        amount = to_minor(self.untaxed, self.currency)
        return None if amount is None or amount != int(amount) or abs(amount) > MAX_MINOR else int(amount)

    @property
    def marker(self) -> str | None:
        """The reference, where it can be the id of an operation, whosever."""
        return self.reference if _OPERATION_ID.fullmatch(self.reference) else None


@dataclass(frozen=True)
class Invoices:
    """What a search found. `complete` means: all of it was read to its end and understood."""

    complete: bool
    found: tuple[Invoice, ...]
    detail: dict[str, Any]


def wanted_of(customer: str, company: int, arguments: Mapping[str, Any], marker: str) -> Wanted:
    """What the invoice of these arguments must say."""
    lines = Counter[Line](
        (item["product"], Decimal(item["quantity"]), Decimal(item["unit_price_minor"])) for item in arguments["items"]
    )
    description = description_of(arguments)
    return Wanted(customer, company, arguments["currency"], arguments["amount_minor"], description, lines, marker)


def wanted_by(operation: Operation, company: int) -> Wanted:
    """What the invoice of this operation must say."""
    return wanted_of(operation.target, company, operation.arguments, str(operation.operation_id))


def description_of(arguments: Mapping[str, Any]) -> str:
    """What people read on the invoice, and what finds one whose marker was edited away."""
    return f"Order {arguments['order']}"


def to_minor(amount: Decimal, currency: str) -> Decimal | None:
    """An amount in the ledger's minor unit, exact; None for a currency that the ledger does not count."""
    known = CURRENCIES.get(currency)
    return None if known is None else amount.scaleb(known.exponent)


def from_minor(minor: int, currency: str) -> Decimal:
    """An amount as Tryton writes it."""
    return Decimal(minor).scaleb(-CURRENCIES[currency].exponent)


def classify(told: Told) -> Classified:
    """What one answer to the create means by itself. Total and pure; everything unlisted is unknown.

    An id proves that the server has committed one invoice; that it is the one we asked for, only reading it back can tell.
    """
    no = classify_no(told)
    if no is not None:
        return no
    ids, detail = told.value, told.detail()
    if not isinstance(ids, list) or not all(type(found) is int and found > 0 for found in ids):
        return Classified(Outcome.UNKNOWN, Hint.UNREADABLE, detail=detail)
    if len(ids) != 1:
        return Classified(Outcome.UNKNOWN, Hint.MISMATCH, detail=detail | {"ids": len(ids)})
    return Classified(Outcome.APPLIED, receipt=f"{MODEL},{ids[0]}", standing=Standing.GOOD, detail=detail)


def confirm(seen: Classified, read: Invoices, wanted: Wanted) -> Classified:
    """The answer to the create, believed as far as a read after it bears it out. Pure.

    Applied stays only what was read back and is ours. The id alone says nothing about customer, sum or lines, so where it
    cannot be read the attempt is unknown: the look that follows will find it, and costs seconds. Refused stays only where
    nothing carries our marker: a server without a queue worker may raise after its commit.
    """
    marked = [invoice for invoice in read.found if invoice.reference == wanted.marker]
    if seen.outcome is Outcome.APPLIED:
        detail = seen.detail | {"receipt": seen.receipt, "read_back": read.complete}
        if not read.complete:
            return Classified(Outcome.UNKNOWN, Hint.UNREADABLE, detail=detail)
        effects = [read_sighting(invoice, wanted) for invoice in marked]
        if [(effect.receipt, effect.ours) for effect in effects] != [(seen.receipt, True)]:
            return Classified(Outcome.UNKNOWN, Hint.MISMATCH, detail=detail | {"marked": len(marked)})
        return replace(seen, standing=effects[0].standing, detail=detail)
    if seen.outcome is Outcome.REFUSED and not read.complete:
        return Classified(Outcome.UNKNOWN, Hint.LOST, detail=seen.detail | {"read_back": False})
    if seen.outcome is Outcome.REFUSED and marked:
        detail = seen.detail | {"receipt": marked[0].receipt, "refused_though_there": True}
        return Classified(Outcome.UNKNOWN, Hint.MISMATCH, detail=detail)
    return seen


def read_sighting(invoice: Invoice, wanted: Wanted, since: datetime.datetime | None = None) -> SeenEffect:
    """One invoice, seen by this operation.

    Without our marker it could be ours only if it was made since then; with it, no clock is asked. A state that we do not
    know never matches, so that with our marker on it a person must look.
    """
    standing = STANDINGS.get(invoice.state)
    marked = bool(wanted.marker) and invoice.reference == wanted.marker
    in_time = marked or since is None or invoice.created is None or invoice.created >= since - ZONES
    return SeenEffect(
        receipt=invoice.receipt,
        standing=standing or Standing.PENDING,
        marked=marked,
        matching=wanted.fits(invoice) and in_time and standing is not None,
        summary={
            "amount": invoice.amount_minor,
            "currency": words(invoice.currency),
            "state": words(invoice.state),
            "number": words(invoice.number),
            "description": words(invoice.description),
            "customer": words(invoice.customer),
            "created": None if invoice.created is None else invoice.created.isoformat(timespec="seconds"),
            "marker": invoice.marker,
        },
    )


def receipt_id(receipt: str) -> int | None:
    """The id of the invoice that a receipt names; None if it names none."""
    found = _RECEIPT.fullmatch(receipt)
    return None if found is None else int(found[1])


async def invoices_about(session: TrytonSession, wanted: Wanted) -> Invoices:
    """Everything that carries the marker or bills the order, of any type and state."""
    about: list[Any] = [["party.code", "=", wanted.customer], ["description", "=", wanted.description]]
    domain = ["OR", ["reference", "=", wanted.marker], about] if wanted.marker else about
    read = await read_invoices(session, domain)
    return Invoices(read.complete, tuple(invoice for invoice in read.found if wanted.concerns(invoice)), read.detail)


async def read_invoices(session: TrytonSession, domain: Sequence[Any], *, one_page: bool = False) -> Invoices:
    """The invoices that the server finds, with their lines; incomplete if any is not of a shape that we know.

    All of them, or the first `PAGE` of tryton_rpc by ascending id.
    """
    heads = await session.rows(MODEL, domain, _FIELDS, one_page=one_page)
    if not heads.complete or not heads.items:
        return Invoices(heads.complete, (), heads.detail())
    lines = await session.rows(f"{MODEL}.line", [["invoice", "in", [row["id"] for row in heads.items]]], _LINE_FIELDS)
    found = [_invoice(row, lines) for row in heads.items] if lines.complete else [None]
    known = tuple(invoice for invoice in found if invoice is not None)
    if len(known) != len(found):
        return Invoices(False, known, lines.detail() | {"why": "an invoice could not be read with all its lines"})
    return Invoices(True, known, heads.detail())


def _invoice(row: Mapping[str, Any], lines: Rows) -> Invoice | None:
    """The invoice of a row; None if the row, or one of its lines, has a shape that we do not know."""
    own = [line for line in lines.items if line.get("invoice") == row["id"]]
    untaxed, named, created = row.get("untaxed_amount"), row.get("lines"), row.get("create_date")
    if not isinstance(named, list) or not all(type(id_) is int for id_ in named) or not isinstance(untaxed, Decimal):
        return None
    if {line["id"] for line in own} != set(named):
        return None  # lines came or went between the two reads
    currency = _code(row, "currency").lower()
    costs = [_line(line, currency) for line in own if line.get("type") == "line"]
    known = [line for line in costs if line is not None]
    if len(known) != len(costs) or type(row.get("company")) is not int:
        return None
    return Invoice(
        id=row["id"],
        **{name: _text(row.get(name)) for name in ("reference", "description", "type", "state", "number")},
        company=row["company"],
        currency=currency,
        untaxed=untaxed,
        customer=_code(row, "party"),
        lines=tuple(known),
        created=created if isinstance(created, datetime.datetime) else None,
    )


def _line(line: Mapping[str, Any], currency: str) -> Line | None:
    quantity, price = line.get("quantity"), line.get("unit_price")
    if isinstance(quantity, bool) or not isinstance(quantity, int | Decimal) or not isinstance(price, Decimal):
        return None
    minor = to_minor(price, currency)
    # In a currency that the ledger does not count nothing is compared with minor units.
    return _code(line, "product"), Decimal(quantity), price if minor is None else minor


def _code(row: Mapping[str, Any], field: str) -> str:
    """The code of the record that a field refers to; empty where it refers to none."""
    told = row.get(f"{field}.")
    return _text(told.get("code")) if isinstance(told, Mapping) else ""


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
