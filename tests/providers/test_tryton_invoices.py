"""The pure part of draft invoices: what may be asked, what is sent, and what every answer means. No server."""

import datetime
import json
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.errors import Broken, Refused
from ledger.fingerprint import canonical_bytes
from ledger.model import Hint, Outcome, SeenEffect, Standing
from providers.port import Classified, Credential, Request
from providers.tryton_invoice_answers import (
    Invoice,
    Invoices,
    Wanted,
    classify,
    confirm,
    read_invoices,
    read_sighting,
    receipt_id,
    wanted_by,
)
from providers.tryton_invoices import CONTRACT, METHOD, RESOLUTION, TrytonInvoices
from providers.tryton_rpc import Logins, TrytonSession, read_told
from providers.wire import Answer
from tests.providers.raw_tryton_rpc import http, raw_tryton
from tests.providers.rigs_tryton_invoices import SURVEY, WIDGETS, an_invoice_operation, arguments_of

ADAPTER = TrytonInvoices()
MARKER = "6f9619ff-8b86-4d01-b42d-00cf4fc964ff"
NOW = datetime.datetime(2027, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
OPERATION = an_invoice_operation(
    operation_id=UUID(MARKER), arguments=arguments_of(WIDGETS, SURVEY, order="SO-1"), target="C-1"
)
BASIS: dict[str, Any] = {
    "party": 3,
    "invoice_address": 4,
    "account": 39,
    "journal": 1,
    "currency": 1,
    "lines": [
        {"product": 1, "account": 99, "unit": 1, "taxes": [1]},
        {"product": 3, "account": 99, "unit": 1, "taxes": []},
    ],
}
WANTED = wanted_by(OPERATION, 1)
INVOICE = Invoice(
    id=7,
    reference=MARKER,
    description="Order SO-1",
    type="out",
    state="draft",
    number="",
    company=1,
    currency="eur",
    untaxed=Decimal("217.50"),
    customer="C-1",
    lines=(("SURVEY", Decimal(1), Decimal(18_000)), ("WIDGET", Decimal("3.0"), Decimal("1250.00"))),
    created=NOW,
)
APPLIED = Classified(Outcome.APPLIED, receipt="account.invoice,7", standing=Standing.GOOD)
UNFIT_ITEM: dict[str, Any] = WIDGETS | {"quantity": 1}


def changed(arguments: Mapping[str, Any], path: str, value: Any) -> dict[str, Any]:
    """The arguments with one part set, or dropped where the value is `...`."""
    whole = json.loads(json.dumps(arguments))
    at: Any = whole
    *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    for part in parents:
        at = at[part]
    if value is ...:
        del at[last]
    else:
        at[last] = value
    return dict(whole)


REFUSALS: list[tuple[str, Any, str, str]] = [
    # what is changed, to what, the rule, the field
    ("order", ..., "argument_missing", "order"),
    ("currency", ..., "argument_missing", "currency"),
    ("amount_minor", ..., "argument_missing", "amount_minor"),
    ("items", ..., "argument_missing", "items"),
    ("description", "x", "argument_unknown", "description"),
    ("order", "", "order_malformed", "order"),
    ("order", "SO 1", "order_malformed", "order"),
    ("order", "x" * 81, "order_malformed", "order"),
    ("order", 7, "order_malformed", "order"),
    ("order", "SO-1\n", "order_malformed", "order"),
    ("currency", "EUR", "currency_malformed", "currency"),
    ("currency", "xxx", "currency_unknown", "currency"),
    ("currency", "twd", "currency_unchecked", "currency"),
    ("amount_minor", 21_751, "total_wrong", "amount_minor"),
    ("amount_minor", 0, "amount_not_positive", "amount_minor"),
    ("amount_minor", True, "amount_not_integer", "amount_minor"),
    ("items", {}, "items_malformed", "items"),
    ("items", [], "items_malformed", "items"),
    ("items", [UNFIT_ITEM] * 101, "items_malformed", "items"),
    ("items.1", "WIDGET", "item_malformed", "items[1]"),
    ("items.1.quantity", ..., "argument_missing", "items[1].quantity"),
    ("items.1.tax", 1, "argument_unknown", "items[1].tax"),
    ("items.0.product", "", "text_empty", "items[0].product"),
    ("items.0.product", "x" * 81, "text_too_long", "items[0].product"),
    ("items.0.product", "WID\u202eGET", "text_hidden", "items[0].product"),
    ("items.0.product", " WIDGET", "product_malformed", "items[0].product"),
    ("items.0.product", 5, "text_type", "items[0].product"),
    ("items.1.quantity", 0, "quantity_malformed", "items[1].quantity"),
    ("items.1.quantity", -1, "quantity_malformed", "items[1].quantity"),
    ("items.1.quantity", True, "quantity_malformed", "items[1].quantity"),
    ("items.1.quantity", "1", "quantity_malformed", "items[1].quantity"),
    ("items.1.quantity", 1_000_001, "quantity_malformed", "items[1].quantity"),
    ("items.1.unit_price_minor", -1, "price_malformed", "items[1].unit_price_minor"),
    ("items.1.unit_price_minor", 2**53, "price_malformed", "items[1].unit_price_minor"),
    ("items.1.unit_price_minor", False, "price_malformed", "items[1].unit_price_minor"),
    ("items.1.unit_price_minor", 17_999, "total_wrong", "amount_minor"),
]


@pytest.mark.parametrize(("path", "value", "rule", "field"), REFUSALS, ids=[f"{r[0]}={r[1]!r}"[:40] for r in REFUSALS])
def test_every_refusal_names_its_field(path: str, value: Any, rule: str, field: str) -> None:
    """`total_wrong`: compare nothing at the end of `check_arguments`, and a sum is approved that nobody will bill."""
    ADAPTER.check_arguments(OPERATION.arguments)
    with pytest.raises(Refused) as refused:
        ADAPTER.check_arguments(changed(OPERATION.arguments, path, value))
    assert (refused.value.rule, refused.value.field) == (rule, field)
    assert str(refused.value)


@pytest.mark.parametrize("target", ["", "x" * 41, "C 1", "C-1\n", "C%", "Cä"])
def test_a_target_that_can_be_no_code_is_refused(target: str) -> None:
    with pytest.raises(Refused) as refused:
        ADAPTER.pure_target(target)
    assert (refused.value.rule, refused.value.field) == ("target_malformed", "target")
    assert ADAPTER.pure_target("C-1/a.b_c") == "C-1/a.b_c"


def test_the_same_order_of_a_customer_is_the_same_thing_whatever_the_sum() -> None:
    """Put the amount into the key, and a corrected invoice is a second one."""
    key = ADAPTER.equivalence_key("C-1", OPERATION.arguments)
    assert key == ADAPTER.equivalence_key("C-1", arguments_of(SURVEY, order="SO-1"))
    assert key != ADAPTER.equivalence_key("C-2", OPERATION.arguments)
    assert key != ADAPTER.equivalence_key("C-1", arguments_of(WIDGETS, SURVEY, order="SO-2"))


def test_the_request_says_everything_and_is_the_same_each_time() -> None:
    request = ADAPTER.build_request(OPERATION, BASIS)
    own = {"type": "line", "company": 1, "currency": 1, "unit": 1, "account": 99}
    assert request.parameters["params"] == [
        [
            {
                "type": "out",
                "party": 3,
                "invoice_address": 4,
                "account": 39,
                "journal": 1,
                "company": 1,
                "currency": 1,
                "reference": MARKER,
                "description": "Order SO-1",
                "lines": [
                    [
                        "create",
                        [
                            own | {"product": 1, "quantity": 3, "taxes": [["add", [1]]],
                                   "unit_price": {"__class__": "Decimal", "decimal": "12.50"}},
                            own | {"product": 3, "quantity": 1, "taxes": [],
                                   "unit_price": {"__class__": "Decimal", "decimal": "180.00"}},
                        ],
                    ]
                ],
            }
        ],
        {"company": 1, "language": "en"},
    ]  # fmt: skip
    assert (request.operation, request.account, request.api_version) == (METHOD, "erp/1", "8.2")
    assert request.idempotency_key == OPERATION.idempotency_key
    assert request == ADAPTER.build_request(OPERATION, json.loads(json.dumps(BASIS)))
    assert Request(**json.loads(json.dumps(vars(request)))) == request
    assert canonical_bytes(request.parameters)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("party", ...), ("party", "3"), ("party", None), ("party", True), ("account", 1.5), ("journal", "1"),
        ("lines", ...), ("lines", []), ("lines.1", ...), ("lines.0.product", ...), ("lines.0.account", None),
        ("lines.0.taxes", ...), ("lines.0.taxes", 5),
    ],
    ids=str,
)  # fmt: skip
def test_a_basis_that_preflight_did_not_read_is_broken(path: str, value: Any) -> None:
    with pytest.raises(Broken):
        ADAPTER.build_request(OPERATION, changed(BASIS, path, value))


def test_amounts_that_differ_from_the_arguments_are_broken() -> None:
    with pytest.raises(Broken):
        ADAPTER.build_request(replace(OPERATION, amount_minor=1), BASIS)


FROZEN: list[tuple[str, Any]] = [
    ("params.0.0.reference", "another"),
    ("params.0.0.reference", ...),
    ("params.0.0.description", "Order SO-2"),
    ("params.0.0.type", "in"),
    ("params.0.0.company", 2),
    ("params.1.company", 2),
    ("params.1._timestamp", {}),
    ("params.0.0.lines.0.0", "write"),
    ("params.0.0.lines.0.1.0.quantity", 4),
    ("params.0.0.lines.0.1.0.unit_price.decimal", "12.51"),
    ("params.0.0.lines.0.1.0.unit_price", 12),
    ("params.0.0.lines.0.1.1", ...),
    ("params.0.0.lines", []),
    ("params.0.0.lines", None),
    ("params.0.0", None),
    ("params.0", []),
    ("params", ...),
    ("more", 1),
]


async def refuse() -> bool:
    raise AssertionError("the guard was asked")


async def sent(request: Request, credential: Credential) -> Classified:
    return await ADAPTER.send(credential, OPERATION, request, CONTRACT, refuse, lambda: None)


@pytest.mark.parametrize(("path", "value"), FROZEN, ids=[f"{row[0]}={row[1]!r}" for row in FROZEN])
async def test_a_frozen_request_of_something_else_is_never_sent(path: str, value: Any) -> None:
    """Remove `_check_frozen`, and a changed row drafts another invoice than a person approved."""
    request = ADAPTER.build_request(OPERATION, BASIS)
    async with raw_tryton() as raw:
        with pytest.raises(Broken):
            await sent(replace(request, parameters=changed(request.parameters, path, value)), raw.credential)
    assert raw.logins == 0


@pytest.mark.parametrize(
    "change", [{"operation": "model.account.invoice.delete"}, {"idempotency_key": "x"}, {"account": "erp/2"}], ids=str
)
async def test_a_frozen_request_of_another_operation_is_never_sent(change: dict[str, str]) -> None:
    request = replace(ADAPTER.build_request(OPERATION, BASIS), **change)  # type: ignore[arg-type]
    async with raw_tryton() as raw:
        with pytest.raises(Broken):
            await sent(request, raw.credential)
        for other in ({"account": "erp/2"}, {"livemode": True}):
            with pytest.raises(Broken):
                await sent(ADAPTER.build_request(OPERATION, BASIS), replace(raw.credential, **other))
    assert raw.logins == 0


ANSWERS: list[tuple[str, Any, int, Outcome, Hint]] = [
    ("one id", {"id": 1, "result": [7]}, 200, Outcome.APPLIED, Hint.NONE),
    ("two ids", {"id": 1, "result": [7, 8]}, 200, Outcome.UNKNOWN, Hint.MISMATCH),
    ("no id", {"id": 1, "result": []}, 200, Outcome.UNKNOWN, Hint.MISMATCH),
    ("bare id", {"id": 1, "result": 7}, 200, Outcome.UNKNOWN, Hint.UNREADABLE),
    ("null", {"id": 1, "result": None}, 200, Outcome.UNKNOWN, Hint.UNREADABLE),
    ("text id", {"id": 1, "result": ["7"]}, 200, Outcome.UNKNOWN, Hint.UNREADABLE),
    ("true", {"id": 1, "result": [True]}, 200, Outcome.UNKNOWN, Hint.UNREADABLE),
    ("float id", {"id": 1, "result": [7.0]}, 200, Outcome.UNKNOWN, Hint.UNREADABLE),
    ("negative id", {"id": 1, "result": [-7]}, 200, Outcome.UNKNOWN, Hint.UNREADABLE),
    ("html", "<html>", 200, Outcome.UNKNOWN, Hint.UNREADABLE),
    ("refused", {"id": 1, "error": ["UserError", ["no", "", None]]}, 200, Outcome.REFUSED, Hint.BUSINESS_RULE),
    ("no session", "", 401, Outcome.NO_EFFECT, Hint.NONE),
    ("server", "<html>", 503, Outcome.UNKNOWN, Hint.LOST),
]


@pytest.mark.parametrize(("name", "body", "status", "outcome", "hint"), ANSWERS, ids=[row[0] for row in ANSWERS])
def test_an_answer_to_a_create(name: str, body: Any, status: int, outcome: Outcome, hint: Hint) -> None:
    raw = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    seen = classify(read_told(Answer(True, status, {}, raw, True)))
    assert (seen.outcome, seen.hint) == (outcome, hint)
    assert (seen.receipt, seen.standing) == (
        ("account.invoice,7", Standing.GOOD) if outcome is Outcome.APPLIED else (None, None)
    )


def read(*found: Invoice, complete: bool = True) -> Invoices:
    return Invoices(complete, found, {})


def test_what_was_applied_counts_only_when_it_was_read_back_and_is_ours() -> None:
    """Return `seen` as it is, and an invoice that the server's own modules changed passes for the approved one."""
    assert confirm(APPLIED, read(INVOICE), WANTED).outcome is Outcome.APPLIED
    assert confirm(APPLIED, read(replace(INVOICE, state="cancelled")), WANTED).standing is Standing.VOID
    unread = confirm(APPLIED, read(complete=False), WANTED)
    assert (unread.outcome, unread.hint, unread.receipt) == (Outcome.UNKNOWN, Hint.UNREADABLE, None)
    assert unread.detail["receipt"] == "account.invoice,7"
    for other in (
        [],
        [replace(INVOICE, untaxed=Decimal("217.51"))],
        [replace(INVOICE, id=8)],
        [INVOICE, replace(INVOICE, id=8)],
        [replace(INVOICE, reference="another")],
        [replace(INVOICE, state="melted")],
    ):
        seen = confirm(APPLIED, read(*other), WANTED)
        assert (seen.outcome, seen.hint) == (Outcome.UNKNOWN, Hint.MISMATCH), other


def test_a_refusal_counts_only_when_nothing_of_ours_is_there() -> None:
    """Return `seen` as it is, and a task that raises after the commit is taken for a refusal of the whole."""
    refused = Classified(Outcome.REFUSED, Hint.BUSINESS_RULE)
    assert confirm(refused, read(replace(INVOICE, reference="")), WANTED) == refused
    there = confirm(refused, read(INVOICE), WANTED)
    assert (there.outcome, there.hint) == (Outcome.UNKNOWN, Hint.MISMATCH)
    unread = confirm(refused, read(complete=False), WANTED)
    assert (unread.outcome, unread.hint) == (Outcome.UNKNOWN, Hint.LOST)


OTHERS: list[tuple[str, dict[str, Any]]] = [
    ("another customer", {"customer": "C-2"}),
    ("another company", {"company": 2}),
    ("a supplier's", {"type": "in"}),
    ("another currency", {"currency": "usd"}),
    ("another sum", {"untaxed": Decimal("217.49")}),
    ("a sum of no whole cents", {"untaxed": Decimal("217.505")}),
    ("another order", {"description": "Order SO-11"}),
    ("no description", {"description": ""}),
    ("a line less", {"lines": INVOICE.lines[:1]}),
    ("a line twice", {"lines": INVOICE.lines * 2}),
    ("another product", {"lines": (INVOICE.lines[0], ("GASKET", Decimal(3), Decimal(1250)))}),
    ("another quantity", {"lines": (INVOICE.lines[0], ("WIDGET", Decimal(4), Decimal(1250)))}),
    ("another price", {"lines": (INVOICE.lines[0], ("WIDGET", Decimal(3), Decimal("1250.01")))}),
    ("credited", {"lines": tuple((code, -quantity, price) for code, quantity, price in INVOICE.lines)}),
    ("an unknown state", {"state": "melted"}),
]


def sighted(invoice: Invoice, since: datetime.datetime | None = None, wanted: Wanted = WANTED) -> SeenEffect:
    return read_sighting(invoice, wanted, since)


@pytest.mark.parametrize(("name", "change"), OTHERS, ids=[row[0] for row in OTHERS])
def test_an_invoice_matches_in_everything_or_not_at_all(name: str, change: dict[str, Any]) -> None:
    """Each row: drop its comparison in `Wanted.fits` to see it red."""
    assert sighted(INVOICE).ours and sighted(replace(INVOICE, reference="")).look_alike
    other = sighted(replace(INVOICE, **change))
    assert other.marked and not other.matching


@pytest.mark.parametrize("reference", ["", MARKER.upper(), MARKER[:-1], f"{MARKER} ", f"x{MARKER}"])
def test_only_the_whole_marker_marks(reference: str) -> None:
    seen = sighted(replace(INVOICE, reference=reference))
    assert not seen.marked and seen.look_alike
    assert not sighted(replace(INVOICE, reference=""), wanted=replace(WANTED, marker="")).marked


@pytest.mark.parametrize(
    ("state", "standing"),
    [
        ("draft", Standing.GOOD), ("validated", Standing.GOOD), ("posted", Standing.GOOD), ("paid", Standing.GOOD),
        ("cancelled", Standing.VOID), ("melted", Standing.PENDING),
    ],
)  # fmt: skip
def test_standing(state: str, standing: Standing) -> None:
    assert sighted(replace(INVOICE, state=state)).standing is standing


def test_an_unmarked_invoice_of_long_before_the_send_is_not_ours_in_whatever_zone_the_database_is() -> None:
    alike = replace(INVOICE, reference="")
    day = datetime.timedelta(days=1)
    assert sighted(alike, NOW).matching and sighted(alike, NOW + day / 2).matching
    assert not sighted(alike, NOW + day).matching
    assert sighted(INVOICE, NOW + day).ours  # the marker asks no clock
    assert sighted(replace(alike, created=None), NOW + day).matching


def test_a_summary_tells_amount_and_whose_marker_it_is() -> None:
    other = "01234567-89ab-4def-8123-456789abcdef"
    told = sighted(replace(INVOICE, reference=other)).summary
    assert (told["amount"], told["marker"], told["state"]) == (21_750, other, "draft")
    assert sighted(replace(INVOICE, reference="PO 5")).summary["marker"] is None
    for untold in (
        "1.005",
        "90071992547409.92",
        "-90071992547409.92",
    ):  # no whole cents; more than JSON carries exactly
        assert sighted(replace(INVOICE, untaxed=Decimal(untold))).summary["amount"] is None
    canonical_bytes(told)


@pytest.mark.parametrize(
    "receipt",
    [
        "", "7", "account.invoice", "account.invoice,", "account.invoice,0", "account.invoice,7 ", "party.party,7",
        "account.invoice,7٧", "account.invoice,-7",
    ],
)  # fmt: skip
def test_a_receipt_names_one_invoice_or_none(receipt: str) -> None:
    assert receipt_id(receipt) is None and receipt_id(INVOICE.receipt) == 7


def test_the_contract_states_and_sources_what_it_promises() -> None:
    assert CONTRACT.name == ADAPTER.action and CONTRACT.key is None and not CONTRACT.conditional_write
    assert CONTRACT.lookup is not None and CONTRACT.lookup.complete and CONTRACT.lookup.marker_editable
    assert CONTRACT.effect_can_change and CONTRACT.processing >= 3600
    for source in CONTRACT.sources:
        assert source.text and (source.assumption or source.measured_on == "Tryton 8.2.1")
    for word in ("happened:", "did_not_happen:", "undetermined:"):
        assert word in RESOLUTION


def a_row(**changes: Any) -> dict[str, Any]:
    return {
        "id": 7, "reference": MARKER, "description": "Order SO-1", "type": "out", "state": "draft", "number": None,
        "company": 1, "currency": 1, "currency.": {"id": 1, "code": "EUR"}, "party": 3, "party.": {"id": 3, "code": "C-1"},
        "untaxed_amount": {"__class__": "Decimal", "decimal": "217.50"}, "lines": [70, 71, 72],
        "create_date": {"__class__": "datetime", "year": 2027, "month": 1, "day": 2, "hour": 3, "minute": 4, "second": 5,
                        "microsecond": 0},
    } | changes  # fmt: skip


def a_line(id_: int, code: str, quantity: float, price: str, **changes: Any) -> dict[str, Any]:
    return {
        "id": id_, "invoice": 7, "type": "line", "product": 1, "product.": {"id": 1, "code": code}, "quantity": quantity,
        "unit_price": {"__class__": "Decimal", "decimal": price},
    } | changes  # fmt: skip


LINES = [
    a_line(70, "WIDGET", 3.0, "12.5000"),
    a_line(71, "", 0, "0") | {"type": "comment", "product": None, "quantity": None, "unit_price": None},
    a_line(72, "SURVEY", 1.0, "180.00"),
]


async def read_from(rows: Any, lines: Any) -> Invoices:
    def answers(method: str, params: list[Any]) -> Any:
        return lines if ".line." in method else rows

    async with raw_tryton(answers) as raw:
        return await read_invoices(TrytonSession(raw.credential, Logins(), deadline_seconds=5), [])


async def test_an_invoice_is_read_with_all_its_lines() -> None:
    found = await read_from([a_row()], LINES)
    assert found.complete and [sighted(invoice).ours for invoice in found.found] == [True]
    assert found.found[0].lines == (("WIDGET", Decimal(3), Decimal(1250)), ("SURVEY", Decimal(1), Decimal(18_000)))
    no_product = [LINES[0] | {"product": None, "product.": None}, *LINES[1:]]
    found = await read_from([a_row()], no_product)
    assert found.complete and not sighted(found.found[0]).matching


@pytest.mark.parametrize(
    ("rows", "lines"),
    [
        ([a_row()], LINES[:2]),
        ([a_row(lines=[70, 71])], LINES),
        ([a_row(lines=None)], LINES),
        ([a_row(lines=[[70], {}])], LINES),
        ([a_row(untaxed_amount=217.5)], []),
        ([a_row(untaxed_amount=None)], LINES),
        ([a_row(company="1")], LINES),
        ([a_row()], [LINES[0] | {"quantity": None}, *LINES[1:]]),
        ([a_row()], [LINES[0] | {"quantity": True}, *LINES[1:]]),
        ([a_row()], [LINES[0] | {"unit_price": 12}, *LINES[1:]]),
        ([a_row()], (500, b"")),
        ((500, b""), LINES),
        ([{"id": 7}], []),
        ("x", LINES),
    ],
    ids=repr,
)
async def test_what_cannot_be_read_whole_is_no_complete_look(rows: Any, lines: Any) -> None:
    """Skip a row that is not understood, and our effect could be the one that was skipped."""
    assert not (await read_from(rows, lines)).complete


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*a_row(), "__class__"]), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


async def test_no_shape_of_a_row_raises() -> None:
    """One server, many shapes: any field of invoice or line replaced by anything."""
    shown: list[Any] = [None, None]

    def answers(method: str, params: list[Any]) -> Any:
        return http(200, json.dumps({"id": 1, "result": shown[".line." in method]}).encode())

    async with raw_tryton(answers) as raw:
        logins = Logins()

        @given(field=st.sampled_from([*a_row(), *LINES[0]]), value=JSON, of_line=st.booleans())
        def draw(field: str, value: Any, of_line: bool) -> None:
            row, lines = a_row(), [dict(line) for line in LINES]
            (lines[0] if of_line else row)[field] = value
            drawn.append([[row], lines])

        drawn: list[Any] = []
        draw()
        for shown in drawn:  # noqa: B007 (the server's answers)
            session = TrytonSession(raw.credential, logins, deadline_seconds=20)
            found = await read_invoices(session, [])
            for invoice in found.found:
                canonical_bytes(sighted(invoice).summary)
