"""update_customer without any server: arguments, requests, and what parties of every shape mean."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.errors import Broken, Refused
from providers.port import Preflight
from providers.tryton_customers import (
    CONTRACT,
    RESOLUTION,
    TrytonCustomers,
    build_request,
    check_arguments,
    check_target,
    equivalence_key,
    judge_parties,
    pure_target,
    read_party,
    records_of,
)
from providers.tryton_rpc import Kind, Rows, Told
from providers.tryton_versions import read_version
from providers.wire import Answer
from tests.providers.rigs_tryton_updates import an_update

OP = UUID(int=7)
MARK = f"[effect {OP}]"
MADE = datetime(2026, 11, 1, 8, 0, 0, 250000, UTC)
ASKED: dict[str, Any] = {"email": "new@customer.example", "phone": "+32 2 555 12 12", "note": "closed on Mondays"}
ANSWER = Answer(True, 200, {}, b"{}", True)


def a_contact(number: int = 21, **changes: Any) -> dict[str, Any]:
    """A contact mechanism as the server tells it; an e-mail unless told otherwise."""
    kept = {
        "id": number,
        "type": "email",
        "name": None,
        "value": "old@customer.example",
        "comment": None,
        "active": True,
        "create_date": MADE,
        "_timestamp": "1764467001.000001",
    }
    return kept | changes


def a_party(*contacts: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A party as the server tells it."""
    kept = {
        "id": 13,
        "code": "C-1",
        "name": "Northwind\u202e Traders",
        "active": True,
        "create_date": MADE,
        "_timestamp": "1764467000.123456",
        "contact_mechanisms.": list(contacts or (a_contact(),)),
    }
    return kept | changes


VERSION = "party.contact_mechanism,21@1764467001.000001;party.party,13@1764467000.123456"
BASIS = {
    "party": 13,
    "version": VERSION,
    "contacts": {"email": {"id": 21, "comment": "switchboard"}},
    "login": "effects",
}
OPERATION = an_update("update_customer", "C-1", ASKED, operation_id=OP, expected_version=VERSION)


def judged(
    *rows: dict[str, Any], complete: bool = True, marker: str = "m", asked: dict[str, Any] | None = None
) -> Preflight:
    """What preflight makes of these rows."""
    listing = Rows(complete, tuple(rows), Told(Kind.VALUE, ANSWER))
    return judge_parties(listing, "C-1", asked or ASKED, marker, "effects")


# Target and arguments.


@pytest.mark.parametrize("target", ["C-NORTHWIND", "7", "a/b_c.d", "x" * 40])
def test_the_code_of_a_party_is_a_target(target: str) -> None:
    check_target(target)
    assert pure_target(target) == target


@pytest.mark.parametrize("target", ["", "x" * 41, "C 1", "C%", "C-1\n", "Ç-1", "C#1"])
def test_nothing_else_is(target: str) -> None:
    with pytest.raises(Refused) as refused:
        check_target(target)
    assert (refused.value.rule, refused.value.field) == ("target_malformed", "target")


@pytest.mark.parametrize(
    ("arguments", "rule", "field"),
    [
        ({}, "argument_missing", "email"),
        ({"name": "x"}, "argument_unknown", "name"),
        ({"email": "a@b.example", "code": "C-2"}, "argument_unknown", "code"),
        ({"email": None}, "text_type", "email"),
        ({"email": ""}, "text_empty", "email"),
        ({"email": 7}, "text_type", "email"),
        ({"email": "a@" + "b" * 250 + ".example"}, "text_too_long", "email"),
        ({"email": "a" * 65 + "@b.example"}, "email_malformed", "email"),
        ({"email": " a@b.example"}, "text_blank_ends", "email"),
        ({"email": "a@b.example\n"}, "text_hidden", "email"),
        ({"email": "a\u200b@b.example"}, "text_hidden", "email"),
        ({"email": "not an email"}, "email_malformed", "email"),
        ({"email": "a@b"}, "email_malformed", "email"),
        ({"email": "a@b..example"}, "email_malformed", "email"),
        ({"email": "a@-b.example"}, "email_malformed", "email"),
        ({"email": "a..b@c.example"}, "email_malformed", "email"),
        ({"email": ".a@b.example"}, "email_malformed", "email"),
        ({"email": "a@b.example, c@d.example"}, "email_malformed", "email"),
        ({"email": "Ann <a@b.example>"}, "email_malformed", "email"),
        ({"email": "а@b.example"}, "email_malformed", "email"),  # a Cyrillic letter
        ({"email": "a@b.1"}, "email_malformed", "email"),
        ({"phone": "555 12 12"}, "phone_malformed", "phone"),
        ({"phone": "+0 555 12 12"}, "phone_malformed", "phone"),
        ({"phone": "+32"}, "phone_malformed", "phone"),
        ({"phone": "+32 2 555 12 12 ext 4"}, "phone_malformed", "phone"),
        ({"phone": "+32 2 555 12 1x"}, "phone_malformed", "phone"),
        ({"phone": "+32\u00a02 555 12 12"}, "phone_malformed", "phone"),
        ({"phone": "+3" + "2" * 40}, "text_too_long", "phone"),
        ({"phone": 3225551212}, "text_type", "phone"),
        ({"note": "x" * 201}, "text_too_long", "note"),
        ({"note": "two\nlines"}, "text_hidden", "note"),
        ({"note": "\u202eback"}, "text_hidden", "note"),
        ({"note": "blank "}, "text_blank_ends", "note"),
        ({"note": "\u00a0blank"}, "text_blank_ends", "note"),
        ({"note": ["x"]}, "text_type", "note"),
        ({"email": "a@b.example", "phone": "nine", "note": "x"}, "phone_malformed", "phone"),
    ],
)
def test_what_is_no_argument(arguments: dict[str, Any], rule: str, field: str) -> None:
    """Red: leave out any of the checks: Tryton itself checks next to nothing of this."""
    with pytest.raises(Refused) as refused:
        check_arguments(arguments)
    assert (refused.value.rule, refused.value.field) == (rule, field)


@pytest.mark.parametrize(
    "arguments",
    [
        {"email": "a@b.example"},
        {"email": "first.last+tag@sub-domain.customer.example"},
        {"phone": "+32 2 555 12 12"},
        {"phone": "+1 (202) 555-0100"},
        {"note": "fermé le lundi; “ring twice” 🙂"},
        {"note": "x" * 200},
        ASKED,
    ],
)
def test_what_is_one(arguments: dict[str, Any]) -> None:
    check_arguments(arguments)


def test_all_changes_of_a_customer_are_equivalent() -> None:
    """Red: put the arguments into the key."""
    assert equivalence_key("C-1", ASKED) == equivalence_key("C-1", {"note": "x"}) != equivalence_key("C-2", ASKED)


# The request.


def test_the_request_changes_what_is_there_and_makes_what_is_not() -> None:
    request = build_request(OPERATION, BASIS)
    ids, values, context = request.parameters["params"]
    assert request.operation == "model.party.party.write" and ids == [13]
    assert values == {
        "contact_mechanisms": [
            ["write", [21], {"value": "new@customer.example", "comment": f"switchboard\n{MARK}"}],
            ["create", [{"type": "phone", "value": "+32 2 555 12 12", "comment": MARK}]],
            ["create", [{"type": "other", "name": "Note", "value": "closed on Mondays", "comment": MARK}]],
        ]
    }
    assert context == {"company": 1, "language": "en", "_timestamp": read_version(VERSION)}
    assert request == build_request(OPERATION, BASIS)
    TrytonCustomers.check_values(OPERATION, json.loads(json.dumps(values)))


@pytest.mark.parametrize(
    ("changes", "basis"),
    [
        ({"expected_version": None}, {}),
        ({"expected_version": ""}, {}),
        ({"expected_version": "*"}, {}),
        ({"expected_version": VERSION.replace("@1764467001.000001", "@")}, {}),
        ({"expected_version": "party.party,13@1764467000.123456"}, {}),
        ({"expected_version": "party.party,13@1764467000.123456"}, {"version": "party.party,13@1764467000.123456"}),
        ({}, {"version": None}),
        ({}, {"party": 14}),
        ({}, {"contacts": None}),
        ({}, {"contacts": {}}),  # a mechanism of the version would not be written: and so not be compared
        ({}, {"contacts": {"email": {"id": 22, "comment": ""}}}),
        ({}, {"contacts": {"email": {"id": 21, "comment": ""}, "phone": {"id": 22, "comment": ""}}}),
        ({}, {"login": None}),
        ({"account": ""}, {}),
    ],
)
def test_no_request_without_versions_and_what_was_read_at_them(changes: dict[str, Any], basis: dict[str, Any]) -> None:
    """Red: leave out `check_values` in `build_request`: a mechanism without a version would be written unconditionally."""
    with pytest.raises(Broken):
        build_request(replace(OPERATION, **changes), BASIS | basis)


WRITE = ["write", [21], {"value": "new@customer.example", "comment": MARK}]
PHONE = ["create", [{"type": "phone", "value": "+32 2 555 12 12", "comment": MARK}]]
NOTE = ["create", [{"type": "other", "name": "Note", "value": "closed on Mondays", "comment": MARK}]]


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"contact_mechanisms": None},
        {"contact_mechanisms": []},
        {"contact_mechanisms": [WRITE, PHONE]},
        {"contact_mechanisms": [WRITE, PHONE, NOTE], "name": "x"},
        {"contact_mechanisms": [WRITE, PHONE, NOTE, NOTE]},
        {"contact_mechanisms": [WRITE, NOTE, PHONE]},
        {"contact_mechanisms": [["write", [21, 22], WRITE[2]], PHONE, NOTE]},
        {"contact_mechanisms": [["write", [22], WRITE[2]], PHONE, NOTE]},
        {"contact_mechanisms": [["delete", [21]], PHONE, NOTE]},
        {"contact_mechanisms": [["write", [21], {"value": "other@x.example", "comment": MARK}], PHONE, NOTE]},
        {"contact_mechanisms": [["write", [21], {"value": "new@customer.example", "comment": ""}], PHONE, NOTE]},
        {"contact_mechanisms": [["write", [21], {"value": "new@customer.example"}], PHONE, NOTE]},
        {"contact_mechanisms": [["write", [21], {**WRITE[2], "party": 14}], PHONE, NOTE]},
        {"contact_mechanisms": [WRITE, ["create", [{**PHONE[1][0], "type": "fax"}]], NOTE]},
        {"contact_mechanisms": [WRITE, ["create", [*PHONE[1], *PHONE[1]]], NOTE]},
        {"contact_mechanisms": [7, PHONE, NOTE]},
    ],
)  # fmt: skip
def test_a_frozen_request_that_writes_something_else_is_broken(values: dict[str, Any]) -> None:
    """Red: check the number of commands only."""
    TrytonCustomers.check_values(OPERATION, {"contact_mechanisms": [WRITE, PHONE, NOTE]})
    with pytest.raises(Broken):
        TrytonCustomers.check_values(OPERATION, values)


# What is read.


def test_a_party_that_fits() -> None:
    found = judged(a_party(a_contact(comment="switchboard"), a_contact(22, value="second@customer.example")))
    assert (found.complete, found.target, found.unfit, found.version) == (True, "C-1", "", VERSION)
    assert found.basis == BASIS and found.effects == ()
    assert found.facts["email"] == {"now": "old@customer.example", "asked": "new@customer.example", "others": 1}
    assert found.facts["phone"] == {"now": None, "asked": "+32 2 555 12 12", "others": 0}
    assert found.facts["name"] == "Northwind  Traders"  # what could turn the text around is gone
    assert json.loads(json.dumps([found.facts, dict(found.basis), found.detail]))


def test_only_what_is_asked_for_is_read_into_facts_and_version() -> None:
    phone = a_contact(22, type="phone", value="+32 2 555 00 00")
    found = judged(a_party(a_contact(), phone), asked={"phone": "+32 2 555 12 12"})
    assert found.version == "party.contact_mechanism,22@1764467001.000001;party.party,13@1764467000.123456"
    assert "old@customer.example" not in json.dumps(found.facts)


def test_the_first_active_mechanism_of_its_kind_is_changed() -> None:
    """As Tryton itself names the e-mail of a party; a note is one by its name."""
    contacts = (
        a_contact(20, active=False),
        a_contact(23, type="other", name="Skype for the night shift", value="x"),
        a_contact(24, type="mobile", value="+32 475 00 00 00"),
        a_contact(25, value="first@customer.example"),
        a_contact(21, value="second@customer.example"),
        a_contact(26, type="other", name="Note", value="x"),
    )
    found = judged(a_party(*contacts))
    assert {kind: known["id"] for kind, known in found.basis["contacts"].items()} == {"email": 25, "note": 26}


@pytest.mark.parametrize(
    ("rows", "asked", "unfit", "field"),
    [
        ((), ASKED, "customer_missing", "target"),
        ((a_party(code="C-12"),), ASKED, "customer_missing", "target"),
        ((a_party(code="c-1"),), ASKED, "customer_missing", "target"),
        ((a_party(), a_party(id=14)), ASKED, "customer_ambiguous", "target"),
        ((a_party(active=False),), ASKED, "customer_inactive", "target"),
        ((a_party(),), {"email": "old@customer.example"}, "already_so", "email"),
        ((a_party(),), {"email": "old@CUSTOMER.example"}, "already_so", "email"),
        ((a_party(),), {"email": "Old@customer.example"}, "", "target"),
        ((a_party(),), {"email": "old@customer.example", "note": "x"}, "", "target"),
        (
            (a_party(a_contact(type="phone", value="+32 (2) 555-12 12")),),
            {"phone": "+32 2 555 12 12"},
            "already_so",
            "phone",
        ),
        ((a_party(a_contact(type="other", name="Note", value="x")),), {"note": "x"}, "already_so", "note"),
        ((a_party(a_contact(type="other", name="Note", value="X")),), {"note": "x"}, "", "target"),
        # The first e-mail is the party's; that a further one says so already changes nothing.
        ((a_party(a_contact(), a_contact(22, value="b@c.example")),), {"email": "b@c.example"}, "", "target"),
        ((a_party(a_contact(active=False)),), {"email": "old@customer.example"}, "", "target"),
        ((a_party(**{"contact_mechanisms.": []}),), ASKED, "", "target"),
    ],
)
def test_why_a_party_cannot_take_it(rows: tuple[Any, ...], asked: dict[str, Any], unfit: str, field: str) -> None:
    """Red: believe the server's search."""
    found = judged(*rows, asked=asked)
    assert found.complete and (found.unfit, found.unfit_field) == (unfit, field)
    assert bool(unfit) is bool(found.facts.get("unfit"))


def test_an_incomplete_listing_concludes_nothing() -> None:
    assert not judged(complete=False).complete and not judged(a_party(), complete=False).complete


@pytest.mark.parametrize(
    "changes",
    [
        {"_timestamp": None}, {"_timestamp": "now"}, {"id": "13"}, {"code": None}, {"name": 7}, {"active": None},
        {"contact_mechanisms.": None}, {"contact_mechanisms.": [7]}, {"contact_mechanisms.": [{}]},
        {"contact_mechanisms.": [a_contact(_timestamp=None)]}, {"contact_mechanisms.": [a_contact(active=None)]},
        {"contact_mechanisms.": [a_contact(value=7)]}, {"contact_mechanisms.": [a_contact(comment=7)]},
        {"contact_mechanisms.": [a_contact(id=None)]},
    ],
)  # fmt: skip
def test_a_party_of_another_shape_is_not_read(changes: dict[str, Any]) -> None:
    """Red: leave out a mechanism that cannot be read: it would be no part of the version."""
    assert read_party(a_party(**changes)) is None
    assert not judged(a_party(**changes)).complete


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.just(MADE),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from(sorted(a_party())), JSON, st.sampled_from(sorted(a_contact())), JSON)
def test_reading_a_party_never_raises(name: str, value: Any, contact_name: str, contact_value: Any) -> None:
    for row in (a_party(**{name: value}), a_party(a_contact(**{contact_name: contact_value}))):
        party = read_party(row)
        assert party is None or (read_version(party.version(ASKED)) and judged(row).complete)


def test_our_own_effect_is_found_before_a_send() -> None:
    """A ledger restored from an old backup."""
    done = a_party(a_contact(value="new@customer.example", comment=MARK))
    found = judged(done, marker=str(OP), asked={"email": "new@customer.example"})
    assert [(e.receipt, e.ours) for e in found.effects] == [(f"party.party,13#{OP}", True)] and found.unfit == ""
    assert judged(done, marker="another", asked={"email": "new@customer.example"}).unfit == "already_so"


def records(*contacts: dict[str, Any], asked: dict[str, Any] | None = None, **changes: Any) -> Any:
    party = read_party(a_party(*contacts, **changes))
    assert party is not None
    return records_of(party, read_version(VERSION), replace(OPERATION, arguments=asked or ASKED))


def test_records_are_compared_with_the_version_that_was_expected() -> None:
    found = records(a_contact(comment=MARK, _timestamp="1764469999.5"), a_contact(22))
    told = {touched.name: (touched.now, touched.marked) for touched in found.touched}
    assert told == {
        "party.party,13": ("1764467000.123456", None),
        "party.contact_mechanism,21": ("1764469999.5", True),
    }
    assert found.fits and found.marked and not found.as_asked
    gone = records(a_contact(22, type="phone", comment=MARK))
    assert {touched.name: touched.now for touched in gone.touched}["party.contact_mechanism,21"] is None
    assert gone.marked  # what the write made carries the mark as well
    assert not records(code="C-2").fits


@pytest.mark.parametrize(
    ("contacts", "as_asked"),
    [
        ([a_contact(value="new@customer.example")], True),
        ([a_contact(value="new@customer.example", active=False)], True),  # put away later: another change
        ([a_contact(), a_contact(22, value="new@customer.example")], False),
        ([a_contact(22, value="new@customer.example")], True),  # the one of the version is gone
    ],
)
def test_what_was_asked_is_looked_for_where_it_was_written(contacts: list[dict[str, Any]], as_asked: bool) -> None:
    assert records(*contacts, asked={"email": "new@customer.example"}).as_asked is as_asked


def test_what_the_write_made_may_stand_anywhere() -> None:
    phone = a_contact(30, type="phone", value="+32 2 555 12 12")
    other = a_contact(29, type="phone", value="+32 2 555 00 00")
    assert records(a_contact(), other, phone, asked={"phone": "+32 2 555 12 12"}).as_asked
    assert not records(a_contact(), other, asked={"phone": "+32 2 555 12 12"}).as_asked


def test_the_contract_and_what_a_person_must_bring() -> None:
    assert CONTRACT.name == TrytonCustomers.action == "update_customer"
    assert CONTRACT.conditional_write and CONTRACT.witness and not CONTRACT.versions_return and CONTRACT.key is None
    assert all(word in RESOLUTION for word in ("happened:", "did_not_happen:", "undetermined:"))
    assert TrytonCustomers().marker_of(OPERATION) == str(OP)
