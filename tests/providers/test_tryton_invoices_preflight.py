"""What is read before an invoice is drafted, at a real Tryton: who the customer is, what fits, what bills the order already."""

import secrets
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from devstack.faults import BlackHole, ReplaceReply
from devstack.tryton import names
from ledger.fingerprint import canonical_bytes
from ledger.model import Operation, Outcome, Standing
from providers.port import Preflight
from providers.tryton_invoices import TrytonInvoices
from tests.providers.raw_tryton_rpc import error, http, raw_tryton
from tests.providers.rigs_tryton_invoices import (
    SURVEY,
    WIDGETS,
    TrytonInvoicesRig,
    an_invoice_operation,
    arguments_of,
)

# Where nobody has run `python -m devstack.tryton`, the first fixture makes the database.
pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(900)]

Rig = TrytonInvoicesRig


@pytest.fixture
def rig(tryton_invoices_rig: Rig) -> Rig:
    return tryton_invoices_rig


@pytest.fixture(scope="module")
def francs(tryton_invoices_rig: Rig) -> Iterator[str]:
    """A currency that is not the company's, and that can pay multiples of 0.05 only."""
    admin = tryton_invoices_rig.world.admin
    row = {"name": "Franc", "symbol": "Fr", "code": "CHF", "rounding": Decimal("0.05"), "digits": 2}
    [franc] = admin.create("currency.currency", row)
    admin.create("currency.currency.rate", {"currency": franc, "date": date(2000, 1, 1), "rate": Decimal("0.95")})
    yield "chf"
    admin.write("currency.currency", [franc], {"active": False})


async def preflight(rig: Rig, operation: Operation) -> Preflight:
    marker = rig.provider.marker_of(operation)
    read = await rig.provider.preflight(rig.credential, operation.target, operation.arguments, marker)
    canonical_bytes(read.facts)
    canonical_bytes(dict(read.basis))
    assert read.version is None and read.complete is (read.target == operation.target)
    assert not read.unfit or read.facts["unfit"]
    return read


def add_product(rig: Rig, code: str) -> None:
    """A product that no category gives an account for revenue."""
    admin = rig.world.admin
    unit = admin.only("product.uom", [["name", "=", "Unit"]])
    values = {"name": code, "code": code, "type": "goods", "default_uom": unit}
    admin.create("product.template", {**values, "products": [["create", [{}]]]})


async def test_what_approvers_see_was_read_at_tryton(rig: Rig) -> None:
    operation = rig.operation()
    read = await preflight(rig, operation)
    assert not read.unfit and read.effects == () and read.markers == {}
    assert read.facts == {
        "customer": {"code": operation.target, "name": "Fresh Customer"},
        "invoice_address": {"city": "Brussels", "country": None},
        "items": [
            {"product": "WIDGET", "name": "Widget", "quantity": 3, "unit_price": "12.50 EUR", "taxes": [names.VAT]},
            {"product": "SURVEY", "name": "Site survey", "quantity": 1, "unit_price": "180.00 EUR", "taxes": []},
        ],
        "total_without_tax": "217.50 EUR",
    }


def _deactivated(rig: Rig) -> str:
    customer = rig.world.add_customer()
    rig.world.edit_customer(customer.id, active=False)
    return customer.code


def _homeless(rig: Rig) -> str:
    code = f"C-{secrets.token_hex(6).upper()}"
    rig.world.buyer.create("party.party", {"name": "No Address", "code": code})
    return code


async def test_a_customer_who_cannot_be_billed_is_unfit(rig: Rig) -> None:
    for target, unfit in (
        ("C-NOBODY", "customer_missing"),
        (names.CUSTOMER_HARBOUR.lower(), "customer_missing"),
        (_deactivated(rig), "customer_missing"),
        (_homeless(rig), "customer_without_address"),
    ):
        read = await preflight(rig, rig.operation(target=target))
        assert (read.unfit, read.unfit_field, read.basis) == (unfit, "target", {}), target


async def test_an_item_that_cannot_be_sold_is_unfit_and_named(rig: Rig) -> None:
    bare = WIDGETS | {"product": f"BARE-{secrets.token_hex(3).upper()}"}
    add_product(rig, bare["product"])
    unknown = WIDGETS | {"product": "GADGET"}
    for items, unfit, field in (
        ([SURVEY, unknown, unknown], "product_unknown", "items[1].product"),
        ([SURVEY | {"product": "survey"}], "product_unknown", "items[0].product"),
        ([WIDGETS, bare, bare], "product_not_sellable", "items[1].product"),
    ):
        read = await preflight(rig, rig.operation(target=names.CUSTOMER_HARBOUR, arguments=arguments_of(*items)))
        assert (read.unfit, read.unfit_field) == (unfit, field)


async def test_a_currency_that_is_not_in_use_is_unfit(rig: Rig) -> None:
    read = await preflight(rig, rig.operation(arguments=arguments_of(WIDGETS, currency="usd")))
    assert (read.unfit, read.unfit_field) == ("currency_unknown", "currency")


async def test_a_line_that_tryton_would_round_is_unfit(rig: Rig, francs: str) -> None:
    """0.05 is the smallest coin: Tryton bills 12.35 for 12.33. Red: leave `_check_prices` out."""
    odd = {"product": "WIDGET", "quantity": 1, "unit_price_minor": 1233}
    read = await preflight(rig, rig.operation(arguments=arguments_of(SURVEY, odd, currency=francs)))
    assert (read.unfit, read.unfit_field) == ("price_not_representable", "items[1].unit_price_minor")
    odd |= {"quantity": 5}  # the line, 61.65, can be paid
    assert not (await preflight(rig, rig.operation(arguments=arguments_of(SURVEY, odd, currency=francs)))).unfit


async def test_an_invoice_in_a_foreign_currency_has_it_in_every_line(rig: Rig, francs: str) -> None:
    """Red: leave the currency to Tryton's default in the lines, which is the company's."""
    operation = rig.operation(arguments=arguments_of(WIDGETS, SURVEY, currency=francs))
    seen = await rig.send(operation)
    assert seen.outcome is Outcome.APPLIED and rig.effects(operation) == [seen.receipt]
    again = await rig.provider.read_receipt(rig.credential, operation, seen.receipt or "")
    assert again is not None and again.ours and again.summary["currency"] == "chf"


async def test_the_form_decides_on_terms_and_addresses(rig: Rig) -> None:
    """The customer's payment term and the address marked for invoices are what a person would get; the request has them."""
    world = rig.world
    customer = world.add_customer()
    term = world.admin.only("account.invoice.payment_term", [["name", "=", names.PAYMENT_TERM]])
    address = {"party": customer.id, "city": "Ghent", "invoice": True, "sequence": 1}
    world.edit_customer(customer.id, customer_payment_term=term)
    world.edit_record("party.address", customer.address, invoice=False, sequence=2)
    [other] = world.buyer.create("party.address", address)
    operation = rig.operation(target=customer.code)
    read = await preflight(rig, operation)
    assert read.facts["invoice_address"]["city"] == "Ghent"
    assert (read.basis["payment_term"], read.basis["invoice_address"]) == (term, other)
    assert (await rig.send(operation)).outcome is Outcome.APPLIED


async def test_what_bills_this_order_already_is_read_and_told(rig: Rig) -> None:
    """An equal invoice that a colleague drafted by hand, and one of another sum. Red: search by the marker alone."""
    operation = rig.operation()
    request = await rig.request(operation)
    [[row], _] = request.parameters["params"]
    head = {name: row[name] for name in ("type", "party", "invoice_address", "account", "currency", "company")}
    _, [widgets, survey] = row["lines"][0]
    buyer = rig.world.buyer

    def draft(reference: str, lines: list[dict[str, Any]]) -> str:
        values = head | {"description": row["description"], "reference": reference, "lines": [["create", lines]]}
        [made] = buyer.create("account.invoice", values)
        return f"account.invoice,{made}"

    same = draft("by hand", [widgets, survey])
    other = an_invoice_operation()
    less = draft(str(other.operation_id), [widgets])
    draft("another order", [widgets, survey])
    buyer.write("account.invoice", [int(less.partition(",")[2]) + 1], {"description": "Order SO-OTHER"})
    read = await preflight(rig, operation)
    assert [(effect.receipt, effect.look_alike, effect.summary["amount"]) for effect in read.effects] == [
        (same, True, 21_750),
        (less, False, 3_750),
    ]
    assert read.markers == {less: str(other.operation_id)} and not read.unfit
    assert read.facts["invoices_of_this_order"] == 2
    assert read.facts["of_these"] == [
        {"receipt": same, "number": "", "state": "draft", "without_tax": "217.50 EUR"},
        {"receipt": less, "number": "", "state": "draft", "without_tax": "37.50 EUR"},
    ]


async def test_what_this_operation_did_already_is_told_as_its_own(rig: Rig) -> None:
    operation = rig.operation()
    seen = await rig.send(operation)
    read = await preflight(rig, operation)
    assert [(effect.receipt, effect.ours, effect.standing) for effect in read.effects] == [
        (seen.receipt, True, Standing.GOOD)
    ]
    assert read.markers == {seen.receipt: str(operation.operation_id)} and "of_these" not in read.facts


async def test_without_a_marker_nothing_is_marked(rig: Rig) -> None:
    """Red: search for an empty reference, and every invoice without one is ours."""
    operation = rig.operation()
    seen = await rig.send(operation)
    rig.world.edit_record("account.invoice", int((seen.receipt or "").partition(",")[2]), reference="")
    read = await rig.provider.preflight(rig.credential, operation.target, operation.arguments, "")
    assert [(effect.receipt, effect.marked) for effect in read.effects] == [(seen.receipt, False)]


METHODS = [
    "party.party.search_read",
    "currency.currency.search_read",
    "product.product.search_read",
    "account.invoice.search_read",
    "account.invoice.on_change",
    "account.invoice.line.on_change",
    "party.address.search_read",
    "account.tax.search_read",
]


@pytest.mark.parametrize("method", METHODS)
async def test_what_cannot_be_read_is_never_unfit(rig: Rig, method: str) -> None:
    """Each question in turn gets no answer that we can read, whatever it is. Red: read one of these as "none"."""
    operation = rig.operation(target=names.CUSTOMER_HARBOUR)
    marker = f'"method":"model.{method}"'.encode()
    empty = http(200, b'{"id": 1, "result": [{}]}')
    forbidden = error("UserError", ['You are not allowed to access "X".', "", None])
    for answer in (http(200, b"<html>"), http(503, b""), http(200, b'{"id": 1, "result": 7}'), empty, forbidden):
        armed = rig.proxy.arm(ReplaceReply(after=marker, answer=answer, times=None))
        read = await preflight(rig, operation)
        rig.proxy.disarm(armed)
        armed.wait_fired(1)
        assert (read.complete, read.unfit) == (False, ""), answer
        assert read.detail


async def test_a_server_that_does_not_answer_is_given_up_after_the_deadline(rig: Rig) -> None:
    provider = TrytonInvoices(read_deadline_seconds=0.6)
    operation = rig.operation()
    hole = rig.proxy.arm(BlackHole(times=None))
    try:
        read = await provider.preflight(rig.credential, operation.target, operation.arguments, "m")
        look = await provider.look(rig.credential, operation, datetime.now(UTC))
        assert await provider.whose(rig.credential) is None
        assert await provider.read_receipt(rig.credential, operation, "account.invoice,1") is None
    finally:
        rig.proxy.disarm(hole)
    assert not read.complete and not look.complete


SHAPES: list[tuple[str, Any]] = [
    ("account.invoice.on_change", {"invoice_address": "4", "account": 39}),
    ("account.invoice.on_change", {"invoice_address": 4, "account": True}),
    ("account.invoice.line.on_change", {"account": 9, "unit": 1, "taxes": [1]}),
    ("account.invoice.line.on_change", {"account": 9, "unit": 1, "taxes": {"remove": [1]}}),
    ("account.invoice.line.on_change", {"account": 9, "unit": 1, "taxes": {"add": [[0, {"id": "1"}]]}}),
    ("account.invoice.line.on_change", {"account": 9, "unit": 1, "taxes": {"add": [1]}}),
    ("account.tax.search_read", []),
    ("party.address.search_read", [{"id": 4, "party": 8, "city": "Elsewhere"}]),
    ("currency.currency.search_read", [{"id": 1, "code": "EUR", "rounding": None}]),
]


@pytest.mark.parametrize(("method", "value"), SHAPES, ids=[f"{row[0]} {row[1]}" for row in SHAPES])
async def test_a_form_of_another_shape_is_not_guessed_at(method: str, value: Any) -> None:
    """A server of the test's own: the basis rests on ids, and an id that is none would bill somebody else."""
    known: dict[str, Any] = {
        "party.party.search_read": [{"id": 3, "code": "C-1", "name": "One", "active": True}],
        "currency.currency.search_read": [
            {"id": 1, "code": "EUR", "rounding": {"__class__": "Decimal", "decimal": "0.01"}}
        ],
        "product.product.search_read": [{"id": 1, "code": "WIDGET", "name": "Widget"}],
        "account.invoice.search_read": [],
        "account.invoice.on_change": {"invoice_address": 4, "account": 39, "journal": 1, "payment_term": None},
        "account.invoice.line.on_change": {"account": 9, "unit": 1, "taxes": {"add": [[0, {"id": 1}]]}},
        "party.address.search_read": [{"id": 4, "party": 3, "city": "Ghent", "country.": {"id": 1, "name": "Belgium"}}],
        "account.tax.search_read": [{"id": 1, "name": "VAT"}],
    }
    arguments = arguments_of(WIDGETS)

    async with raw_tryton(lambda called, params: known[called.removeprefix("model.")]) as raw:
        read = await TrytonInvoices().preflight(raw.credential, "C-1", arguments, "m")
        assert read.complete and not read.unfit and read.basis["lines"][0]["taxes"] == [1]
        assert read.facts["invoice_address"] == {"city": "Ghent", "country": "Belgium"}
        known[method] = value
        read = await TrytonInvoices().preflight(raw.credential, "C-1", arguments, "m")
    assert (read.complete, read.unfit) == (False, "")


@pytest.mark.parametrize(
    ("method", "value", "unfit"),
    [
        ("account.invoice.on_change", {"invoice_address": 4, "account": None}, "customer_without_account"),
        ("account.invoice.on_change", error("UserError", ["No account.", "", None]), "customer_not_invoiceable"),
        ("account.invoice.line.on_change", error("UserError", ["No account.", "", None]), "product_not_sellable"),
        ("party.party.search_read", [{"id": 3, "code": "C-2", "name": "Two", "active": True}], "customer_missing"),
        (
            "party.party.search_read",
            [{"id": id_, "code": "C-1", "name": "One", "active": True} for id_ in (3, 4)],
            "customer_missing",
        ),
        (
            "product.product.search_read",
            [{"id": id_, "code": "WIDGET", "name": "Widget"} for id_ in (1, 2)],
            "product_unknown",
        ),
    ],
    ids=repr,
)
async def test_what_tryton_itself_says_no_to_is_unfit(method: str, value: Any, unfit: str) -> None:
    """Also a server that ignores the search: its rows are compared, never believed."""
    known: dict[str, Any] = {
        "party.party.search_read": [{"id": 3, "code": "C-1", "name": "One", "active": True}],
        "currency.currency.search_read": [
            {"id": 1, "code": "EUR", "rounding": {"__class__": "Decimal", "decimal": "0.01"}}
        ],
        "product.product.search_read": [{"id": 1, "code": "WIDGET", "name": "Widget"}],
        "account.invoice.search_read": [],
        "account.invoice.on_change": {"invoice_address": 4, "account": 39},
        "account.invoice.line.on_change": {"account": 9, "unit": 1},
        "party.address.search_read": [{"id": 4, "party": 3, "city": "Ghent", "country.": None}],
    } | {method: value}
    async with raw_tryton(lambda called, params: known[called.removeprefix("model.")]) as raw:
        read = await TrytonInvoices().preflight(raw.credential, "C-1", arguments_of(WIDGETS), "m")
    assert (read.complete, read.unfit) == (True, unfit) and read.facts["unfit"]


async def test_a_search_that_the_server_ignores_marks_nothing(rig: Rig) -> None:
    """Other customers' invoices with other markers come back: none of them concerns this operation."""
    operation = rig.operation()
    await rig.send(operation)
    row = {"id": 9, "reference": "PO 7", "description": "Order X", "type": "out", "state": "draft", "number": None,
           "company": 1, "currency.": {"code": "EUR"}, "party.": {"code": "C-9"}, "lines": [], "create_date": None,
           "untaxed_amount": {"__class__": "Decimal", "decimal": "217.50"}}  # fmt: skip
    async with raw_tryton(lambda called, params: [] if ".line." in called else [row]) as raw:
        look = await TrytonInvoices().look(raw.credential, replace(operation, account="erp/1"), datetime.now(UTC))
    assert look.complete and look.effects == ()
