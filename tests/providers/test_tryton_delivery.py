"""change_delivery_date without any server: arguments, requests, and what orders of every shape mean."""

import json
from dataclasses import replace
from datetime import UTC, date, datetime
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.errors import Broken, Refused
from providers.port import Preflight
from providers.tryton_delivery import (
    CONTRACT,
    RESOLUTION,
    TrytonDelivery,
    build_request,
    check_arguments,
    check_target,
    equivalence_key,
    judge_orders,
    pure_target,
    read_order,
    records_of,
)
from providers.tryton_rpc import Kind, Rows, Told
from providers.tryton_versions import MOST_RECORDS, read_version
from providers.wire import Answer
from tests.providers.rigs_tryton_updates import an_update

OP = UUID(int=7)
MARK = f"[effect {OP}]"
MADE = datetime(2026, 11, 1, 8, 0, 0, 250000, UTC)
TODAY = date(2026, 11, 30)
DAY = {"__class__": "date", "year": 2027, "month": 2, "day": 3}
ASKED = {"delivery_date": "2027-02-03"}
ANSWER = Answer(True, 200, {}, b"{}", True)


def a_line(number: int = 34, **changes: Any) -> dict[str, Any]:
    """A line as the server tells it."""
    kept = {
        "id": number,
        "type": "line",
        "delivery_date": date(2027, 1, 15),
        "delivery_date_edit": True,
        "create_date": MADE,
        "_timestamp": "1764467001.000001",
        "product.": {"id": 1, "code": "WIDGET"},
    }
    return kept | changes


def an_order(*lines: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """An order as the server tells it."""
    kept = {
        "id": 12,
        "number": "PO-00012",
        "company": 1,
        "state": "confirmed",
        "comment": None,
        "create_date": MADE,
        "_timestamp": "1764467000.123456",
        "party.": {"id": 5, "name": "Brightwater\u202e Supplies", "code": "S-BRIGHTWATER"},
        "lines.": list(lines or (a_line(), a_line(35, _timestamp="1764467002.5"))),
    }
    return kept | changes


VERSION = "purchase.line,34@1764467001.000001;purchase.line,35@1764467002.5;purchase.purchase,12@1764467000.123456"
BASIS = {"order": 12, "version": VERSION, "comment": "", "edit": [], "login": "effects"}
OPERATION = an_update("change_delivery_date", "PO-00012", ASKED, operation_id=OP, expected_version=VERSION)


def judged(
    *rows: dict[str, Any],
    complete: bool = True,
    today: Any = TODAY,
    marker: str = "m",
    target: str = "PO-00012",
    **asked: str,
) -> Preflight:
    """What preflight makes of these rows."""
    listing = Rows(complete, tuple(rows), Told(Kind.VALUE, ANSWER))
    return judge_orders(listing, Told(Kind.VALUE, ANSWER, today), 1, target, ASKED | asked, marker, "effects")


# Target and arguments.


@pytest.mark.parametrize("target", ["PO-00012", "a", "2026/0007", "PO_1.b", "x" * 40])
def test_a_number_of_an_order_is_a_target(target: str) -> None:
    check_target(target)
    assert pure_target(target) == target


@pytest.mark.parametrize(
    "target", ["", "x" * 41, "PO 12", "PO%", "PO\n12", "PO-00012\n", "ПО-12", "PO;12", "PO'12", "PO#12"]
)
def test_nothing_else_is(target: str) -> None:
    with pytest.raises(Refused) as refused:
        check_target(target)
    assert (refused.value.rule, refused.value.field) == ("target_malformed", "target")


@pytest.mark.parametrize(
    ("arguments", "rule", "field"),
    [
        ({}, "argument_missing", "delivery_date"),
        ({"delivery_date": None}, "date_malformed", "delivery_date"),
        ({"delivery_date": 20270203}, "date_malformed", "delivery_date"),
        ({"delivery_date": ["2027-02-03"]}, "date_malformed", "delivery_date"),
        ({"delivery_date": ""}, "date_malformed", "delivery_date"),
        ({"delivery_date": "20270203"}, "date_malformed", "delivery_date"),
        ({"delivery_date": "2027-2-3"}, "date_malformed", "delivery_date"),
        ({"delivery_date": "2027-02-30"}, "date_malformed", "delivery_date"),
        ({"delivery_date": "2027-W05-3"}, "date_malformed", "delivery_date"),
        ({"delivery_date": "2027-02-03T00:00"}, "date_malformed", "delivery_date"),
        ({"delivery_date": " 2027-02-03"}, "date_malformed", "delivery_date"),
        ({"delivery_date": "2027-02-03\n"}, "date_malformed", "delivery_date"),
        ({"delivery_date": "٢٠٢٧-02-03"}, "date_malformed", "delivery_date"),
        ({"delivery_date": "0000-01-01"}, "date_malformed", "delivery_date"),
        ({"delivery_date": "2027-02-03", "line": 1}, "argument_unknown", "line"),
        ({"delivery_date": "2027-02-03", "comment": "x"}, "argument_unknown", "comment"),
        ({"date": "2027-02-03"}, "argument_unknown", "date"),
        ({"amount_minor": 1}, "argument_unknown", "amount_minor"),
    ],
)
def test_arguments_are_a_date_and_nothing_else(arguments: dict[str, Any], rule: str, field: str) -> None:
    """Red: let `check_arguments` look at `delivery_date` only."""
    with pytest.raises(Refused) as refused:
        check_arguments(arguments)
    assert (refused.value.rule, refused.value.field) == (rule, field)


@pytest.mark.parametrize("day", ["2027-02-03", "2028-02-29", "1999-12-31"])
def test_a_day_that_exists_is_an_argument(day: str) -> None:
    check_arguments({"delivery_date": day})


def test_all_changes_of_an_order_are_equivalent() -> None:
    """The witness tells our user, not our operations: two of them must never be open on one order.

    Red: put the date into the key.
    """
    other = {"delivery_date": "2029-01-01"}
    assert equivalence_key("PO-1", ASKED) == equivalence_key("PO-1", other) != equivalence_key("PO-2", ASKED)


# The request.


def test_the_request_is_one_write_under_all_versions() -> None:
    request = build_request(OPERATION, BASIS | {"comment": "call first", "edit": [35]})
    assert request.operation == "model.purchase.purchase.write" and request.account == "erp/1"
    ids, values, context = request.parameters["params"]
    assert ids == [12] and values["comment"] == f"call first\n{MARK}"
    assert values["lines"] == [
        ["write", [34], {"delivery_date": DAY}],
        ["write", [35], {"delivery_date": DAY, "delivery_date_edit": True}],
    ]
    assert context == {"company": 1, "language": "en", "_timestamp": read_version(VERSION)}
    assert request == build_request(OPERATION, BASIS | {"comment": "call first", "edit": [35]})
    TrytonDelivery.check_values(OPERATION, json.loads(json.dumps(values)))


@pytest.mark.parametrize(
    ("changes", "basis"),
    [
        ({"expected_version": None}, {}),
        ({"expected_version": ""}, {}),
        ({"expected_version": "*"}, {}),
        ({"expected_version": "1764467000.123456"}, {}),
        ({"expected_version": VERSION.replace("@1764467002.5", "")}, {}),
        ({"expected_version": VERSION.replace("@1764467002.5", "@")}, {}),
        (
            {"expected_version": "purchase.purchase,12@1764467000.123456"},
            {"version": "purchase.purchase,12@1764467000.123456"},
        ),
        ({"expected_version": "purchase.line,34@1.5"}, {"version": "purchase.line,34@1.5"}),
        ({}, {"version": VERSION.replace(".5", ".6")}),
        ({}, {"version": None}),
        ({}, {"order": 13}),
        ({}, {"order": None}),
        ({}, {"edit": None}),
        ({}, {"login": ""}),
        ({"account": "erp"}, {}),
        ({"arguments": {"delivery_date": "soon"}}, {}),
    ],
)
def test_no_request_without_versions_and_what_was_read_at_them(changes: dict[str, Any], basis: dict[str, Any]) -> None:
    """Red: build on whatever the basis says."""
    with pytest.raises(Broken):
        build_request(replace(OPERATION, **changes), BASIS | basis)


GOOD_VALUES = {"comment": MARK, "lines": [["write", [34, 35], {"delivery_date": DAY}]]}


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"comment": MARK},
        GOOD_VALUES | {"comment": ""},
        GOOD_VALUES | {"comment": f"[effect {UUID(int=8)}]"},
        GOOD_VALUES | {"state": "done"},
        GOOD_VALUES | {"lines": None},
        GOOD_VALUES | {"lines": []},
        GOOD_VALUES | {"lines": ["write"]},
        GOOD_VALUES | {"lines": [["write", [34], {"delivery_date": DAY}]]},
        GOOD_VALUES | {"lines": [["write", [34, 35, 99], {"delivery_date": DAY}]]},
        GOOD_VALUES | {"lines": [["delete", [34, 35], {}]]},
        GOOD_VALUES | {"lines": [["write", [34, 35], {"delivery_date": DAY | {"day": 4}}]]},
        GOOD_VALUES | {"lines": [["write", [34, 35], {"delivery_date": None}]]},
        GOOD_VALUES | {"lines": [["write", [34, 35], {"delivery_date": DAY, "quantity": 1}]]},
        GOOD_VALUES | {"lines": [["write", [34, 35], {"delivery_date": DAY, "delivery_date_edit": False}]]},
        GOOD_VALUES | {"lines": [["write", [34, 35], {"delivery_date": DAY}], ["create", [{}], {}]]},
    ],
)
def test_a_frozen_request_that_writes_something_else_is_broken(values: dict[str, Any]) -> None:
    """Red: check the mark only."""
    TrytonDelivery.check_values(OPERATION, GOOD_VALUES)
    with pytest.raises(Broken):
        TrytonDelivery.check_values(OPERATION, values)


# What is read.


def test_an_order_that_fits() -> None:
    found = judged(
        an_order(a_line(), a_line(35, _timestamp="1764467002.5", delivery_date=None, delivery_date_edit=False))
    )
    assert (found.complete, found.target, found.unfit, found.version) == (True, "PO-00012", "", VERSION)
    assert found.basis == BASIS | {"edit": [35]} and found.effects == ()
    assert found.facts["lines"][1] == {"line": 35, "product": "WIDGET", "delivery_date": None}
    assert found.facts["supplier"] == "Brightwater  Supplies"  # what could turn the text around is gone
    assert found.facts["today"] == "2026-11-30"
    assert found.facts["state"] == "confirmed" and "unfit" not in found.facts
    assert json.loads(json.dumps([found.facts, dict(found.basis), found.detail]))


def test_the_version_does_not_depend_on_the_order_of_lines() -> None:
    lines = [a_line(), a_line(35, _timestamp="1764467002.5")]
    assert judged(an_order(*lines)).version == judged(an_order(*lines[::-1])).version == VERSION


def test_only_product_lines_are_touched() -> None:
    """A comment or a subtotal has no date, and is not part of the version."""
    title = a_line(36, type="title", delivery_date=None, delivery_date_edit=False, **{"product.": None})
    found = judged(an_order(a_line(), a_line(35, _timestamp="1764467002.5"), title))
    assert found.version == VERSION and len(found.facts["lines"]) == 2


LONG = an_order(*(a_line(number) for number in range(1, MOST_RECORDS + 2)))
DONE = date(2027, 2, 3)


@pytest.mark.parametrize(
    ("rows", "asked", "unfit", "field"),
    [
        ((), {}, "order_missing", "target"),
        ((an_order(number="PO-000122"),), {}, "order_missing", "target"),  # a server that searches loosely
        ((an_order(number="po-00012"),), {}, "order_missing", "target"),
        ((an_order(company=2),), {}, "order_missing", "target"),
        ((an_order(), an_order(id=13)), {}, "order_ambiguous", "target"),
        ((an_order(state="processing"),), {}, "order_not_open", "target"),
        ((an_order(state="done"),), {}, "order_not_open", "target"),
        ((an_order(state="cancelled"),), {}, "order_not_open", "target"),
        ((an_order(state="a new state"),), {}, "order_not_open", "target"),
        ((an_order(**{"lines.": []}),), {}, "order_empty", "target"),
        ((an_order(a_line(type="comment")),), {}, "order_empty", "target"),
        ((LONG,), {}, "order_too_long", "target"),
        ((an_order(),), {"delivery_date": "2026-11-29"}, "date_in_the_past", "delivery_date"),
        ((an_order(),), {"delivery_date": "2026-11-30"}, "", "target"),
        ((an_order(a_line(delivery_date=DONE)),), {}, "already_so", "delivery_date"),
        ((an_order(a_line(delivery_date=DONE), a_line(35)),), {}, "", "target"),
        ((an_order(state="draft"),), {}, "", "target"),
        ((an_order(state="quotation"),), {}, "", "target"),
        ((an_order(), an_order(id=13, company=2)), {}, "", "target"),
    ],
)
def test_why_an_order_cannot_take_a_date(rows: tuple[Any, ...], asked: dict[str, str], unfit: str, field: str) -> None:
    """Red: believe the server's search; or leave the company out of the comparison."""
    found = judged(*rows, **asked)
    assert found.complete and found.target == "PO-00012"
    assert (found.unfit, found.unfit_field) == (unfit, field)
    assert bool(unfit) is bool(found.facts.get("unfit"))
    assert found.version is None or read_version(found.version)


def test_the_servers_day_decides_what_is_past() -> None:
    assert judged(an_order(), today=date(2027, 2, 4)).unfit == "date_in_the_past"


@pytest.mark.parametrize("today", [None, "2026-11-30", datetime(2026, 11, 30, tzinfo=UTC), [], 7])
def test_without_the_servers_day_nothing_is_concluded(today: Any) -> None:
    assert not judged(an_order(), today=today).complete


def test_an_incomplete_listing_concludes_nothing() -> None:
    """Red: leave `complete` out of the condition."""
    assert not judged(complete=False).complete and not judged(an_order(), complete=False).complete


@pytest.mark.parametrize(
    "changes",
    [
        {"_timestamp": None}, {"_timestamp": ""}, {"_timestamp": "now"}, {"_timestamp": 1764467000}, {"id": "12"}, {"number": 12},
        {"company": None}, {"state": None}, {"party.": None}, {"lines.": None}, {"lines.": [7]}, {"comment": 7},
        {"lines.": [a_line(_timestamp=None)]}, {"lines.": [a_line(delivery_date="2027-01-15")]},
        {"lines.": [a_line(delivery_date_edit=None)]}, {"lines.": [{"type": "line"}]}, {"lines.": [a_line(id=None)]},
        {"lines.": [a_line(delivery_date=datetime(2027, 1, 15, tzinfo=UTC))]},
    ],
)  # fmt: skip
def test_an_order_of_another_shape_is_not_read(changes: dict[str, Any]) -> None:
    """Red: leave out a line that cannot be read: it would be no part of the version."""
    assert read_order(an_order(**changes)) is None
    assert not judged(an_order(**changes)).complete


@pytest.mark.parametrize("missing", sorted(an_order()))
def test_no_part_of_an_order_may_be_missing(missing: str) -> None:
    assert read_order({name: value for name, value in an_order().items() if name != missing}) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.just(DONE) | st.just(MADE),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from(sorted(an_order())), JSON, st.sampled_from(sorted(a_line())), JSON)
def test_reading_an_order_never_raises(name: str, value: Any, line_name: str, line_value: Any) -> None:
    for row in (an_order(**{name: value}), an_order(a_line(**{line_name: line_value}))):
        order = read_order(row)
        assert order is None or (read_version(order.version) and judged(row).complete)


def test_our_own_effect_is_found_before_a_send() -> None:
    """A ledger restored from an old backup: what is asked for is done already, and is not unfit for that."""
    done = an_order(a_line(delivery_date=DONE), comment=f"call first\n{MARK}")
    found = judged(done, marker=str(OP))
    assert [(e.receipt, e.ours) for e in found.effects] == [(f"purchase.purchase,12#{OP}", True)] and found.unfit == ""
    assert found.markers == {f"purchase.purchase,12#{OP}": str(OP)}
    assert judged(done, marker="another").unfit == "already_so" and judged(done, marker="").effects == ()
    moved = judged(an_order(comment=MARK), marker=str(OP))
    assert [(e.marked, e.matching) for e in moved.effects] == [(True, False)]


def test_records_are_compared_with_the_version_that_was_expected() -> None:
    """A line that is gone, one that came later, and one that moved."""
    order = read_order(an_order(a_line(_timestamp="1764469999.5"), a_line(36), comment=MARK))
    assert order is not None
    records = records_of(order, read_version(VERSION), OPERATION, 1)
    told = {touched.name: (touched.expected, touched.now, touched.marked) for touched in records.touched}
    assert told == {
        "purchase.purchase,12": ("1764467000.123456", "1764467000.123456", True),
        "purchase.line,34": ("1764467001.000001", "1764469999.5", None),
        "purchase.line,35": ("1764467002.5", None, None),
    }
    assert records.marked and records.fits and not records.as_asked and records.version != VERSION
    assert not records_of(order, read_version(VERSION), OPERATION, 2).fits


def test_lines_that_came_later_do_not_undo_what_was_asked() -> None:
    order = read_order(an_order(a_line(delivery_date=DONE), a_line(35, delivery_date=DONE), a_line(36)))
    assert order is not None and records_of(order, read_version(VERSION), OPERATION, 1).as_asked


def test_the_contract_and_what_a_person_must_bring() -> None:
    assert CONTRACT.name == TrytonDelivery.action == "change_delivery_date"
    assert CONTRACT.conditional_write and CONTRACT.witness and not CONTRACT.versions_return and CONTRACT.key is None
    assert all(word in RESOLUTION for word in ("happened:", "did_not_happen:", "undetermined:"))
    adapter = TrytonDelivery()
    assert adapter.provider == "tryton" and adapter.link(OPERATION) == "" and adapter.marker_of(OPERATION) == str(OP)
