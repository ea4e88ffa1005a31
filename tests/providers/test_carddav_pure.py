"""The pure part of the contacts adapters: arguments, targets, requests, contracts, what answers and cards mean."""

import json
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.contract import Contract, LookupTerms
from ledger.errors import Broken, Refused
from ledger.model import Hint, Outcome, SeenEffect, Standing
from providers.carddav_book import Book, precondition, read_search, rows_of
from providers.carddav_contacts import RESOLUTION, CardDavCreate, CardDavUpdate, build_request
from providers.carddav_sightings import (
    Wanted,
    classify,
    read_preflight,
    read_sighting,
    settle,
    version_moved,
    wanted_by,
)
from providers.carddav_vcard import Card, new_card
from providers.http_conditional import ABSENT, Reading
from providers.port import Credential
from providers.wire import Answer
from tests.providers.rigs_carddav import CHANGE, NEW, a_contact_operation

CREATE, UPDATE = CardDavCreate(), CardDavUpdate()
ID, OTHER = "8f14e45f-ceea-467f-a0e6-1d1f8b5f1c11", "c4ca4238-a0b9-4382-8dcc-509a6f75849b"
TAG, LATER = '"v-1"', '"v-2"'
CARD = "BEGIN:VCARD\r\nVERSION:3.0\r\nUID:u-1\r\nFN:Ada Lovelace\r\nEMAIL:ada@example.com\r\nEND:VCARD\r\n"
PATH, RECEIPT = "crm/contacts/c-1.vcf", f"crm/contacts/c-1.vcf#{ID}"


def operation(provider: Any = UPDATE, version: Any = TAG, **changes: Any) -> Any:
    return a_contact_operation(provider.action, "c-1", version, operation_id=UUID(ID), **changes)


# Arguments and targets ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "more", [{}, {"email": "a.b+c@sub.example.com"}, {"phone": "+49 (0)30 / 12-34"}, {"note": "Zoë 🎉"}]
)
def test_complete_arguments_pass(more: dict[str, Any]) -> None:
    CREATE.check_arguments({"full_name": "Jörg; Müller, Dr."} | more)
    if more:
        UPDATE.check_arguments(more)


@pytest.mark.parametrize(
    ("provider", "arguments", "field"),
    [
        (CREATE, {}, "full_name"),
        (CREATE, {"email": "a@b.de"}, "full_name"),
        (CREATE, {"full_name": ""}, "full_name"),
        (CREATE, {"full_name": " Ada"}, "full_name"),
        (CREATE, {"full_name": "A" * 201}, "full_name"),
        (CREATE, {"full_name": 7}, "full_name"),
        (CREATE, {"full_name": ["Ada"]}, "full_name"),
        (CREATE, NEW | {"org": "x"}, "org"),
        (CREATE, NEW | {"note": None}, "note"),
        (UPDATE, {}, "arguments"),
        (UPDATE, {"full_name": "A"}, "full_name"),
        (UPDATE, {"note": ""}, "note"),
        (UPDATE, {"note": "x" * 1001}, "note"),
        (UPDATE, {"note": "x "}, "note"),
        (UPDATE, {"note": "x\uffff"}, "note"),
        (UPDATE, {"note": True}, "note"),
        *((UPDATE, {"email": bad}, "email") for bad in (
            "", "a", "a@", "@b.de", "a@b", "a@b.de,c@d.de", "a@b.de c", "Ada <a@b.de>", "a;b@c.de", "ä@b.de", "a@bü.de",
            ".a@b.de", "a..b@c.de", "a@b..de", '"a b"@c.de', "a\\@b.de", "mailto:a@b.de", "a@b.de\u200b", "a" * 250 + "@b.de",
        )),
        *((UPDATE, {"phone": bad}, "phone") for bad in (
            "", "1", "12", "+", "abc", "+49 30 1x", "030;ext=5", "030,5", "tel:030", "1234567890123456", "030\\", " 030 1234",
        )),
    ],
    ids=lambda value: getattr(value, "action", None) or repr(value),
)  # fmt: skip
def test_anything_else_is_refused_with_its_field(provider: Any, arguments: dict[str, Any], field: str) -> None:
    with pytest.raises(Refused) as caught:
        provider.check_arguments(arguments)
    assert caught.value.field == field and caught.value.rule and str(caught.value)


@pytest.mark.parametrize(
    "hidden", ["\r\nTEL:666", "\n", "\r", "\0", "\x1b[31m", "\u202e", "\u200b", "\u2028", "\x85", "\ud800"]
)
@pytest.mark.parametrize("field", ["full_name", "email", "phone", "note"])
def test_what_cannot_be_seen_is_refused_in_every_argument(field: str, hidden: str) -> None:
    """Red: drop `check_text` for one of them."""
    good = NEW | {"note": "seen"}
    with pytest.raises(Refused) as caught:
        CREATE.check_arguments(good | {field: f"{good[field][:3]}{hidden}{good[field][3:]}"})
    assert caught.value.field == field


@pytest.mark.parametrize("target", ["customer-4711", "A", "a.b_c-d", "0", "x" * 80, "_"])
def test_names_of_cards_are_targets(target: str) -> None:
    CREATE.check_target(target)
    assert UPDATE.pure_target(target) == target


@pytest.mark.parametrize(
    "target",
    ["", ".hidden", "..", "a/b", "../a", "a b", "ä", "a\n", "a%2f", "a?b", "a#b", "x" * 81, "a.vcf/", "a\\b", "a;b"],
)
def test_anything_else_is_no_target(target: str) -> None:
    with pytest.raises(Refused) as caught:
        UPDATE.check_target(target)
    assert caught.value.field == "target"


def test_equivalence() -> None:
    assert CREATE.equivalence_key("c", NEW) == CREATE.equivalence_key("c", NEW | {"note": "x"})
    assert CREATE.equivalence_key("c", NEW) != CREATE.equivalence_key("d", NEW)
    one = UPDATE.equivalence_key("c", {"email": "a@b.de", "note": "x"})
    assert one == UPDATE.equivalence_key("c", {"note": "x", "email": "a@b.de"})
    assert one not in {UPDATE.equivalence_key("c", {"email": "a@b.de"}), CREATE.equivalence_key("c", NEW)}


# Requests -------------------------------------------------------------------------------------------------------------


def test_a_creation_is_the_whole_card_on_nothing() -> None:
    """Two builds are equal byte for byte: put a time into the card to see it red."""
    request = build_request(operation(CREATE, ABSENT), {"version": ABSENT})
    assert request.parameters == {"path": PATH, "version": ABSENT, "card": new_card(ID, NEW).text}
    assert (request.operation, request.account) == ("PUT", "crm/contacts")
    assert build_request(operation(CREATE, ABSENT, fence=7), {"version": ABSENT}) == request
    json.dumps(vars(request))


def test_a_change_is_the_whole_card_on_its_version() -> None:
    request = build_request(operation(), {"version": TAG, "card": CARD})
    assert (request.parameters["path"], request.parameters["version"]) == (PATH, TAG)
    after = CARD.replace("END", f"TEL:+49 30 7654321\r\nX-EFFECT-OPERATION:{ID}\r\nEND")
    assert request.parameters["card"] == after


@pytest.mark.parametrize("version", [None, "", "*", 'W/"v-1"', "v-1", '""', ABSENT, '"a", "b"'], ids=repr)
def test_a_change_without_a_real_version_is_broken(version: Any) -> None:
    """Red: leave `_check_version` out of `build_request`."""
    with pytest.raises(Broken):
        build_request(operation(UPDATE, version), {"version": version, "card": CARD})


@pytest.mark.parametrize("version", [None, "", "*", TAG, "ABSENT"], ids=repr)
def test_a_creation_on_anything_but_absence_is_broken(version: Any) -> None:
    """Red: drop the second comparison in `_check_version`: a contact would be "created" over another one."""
    with pytest.raises(Broken):
        build_request(operation(CREATE, version), {"version": version})


@pytest.mark.parametrize(
    "basis",
    [
        {},
        {"version": TAG},
        {"version": LATER, "card": CARD},
        {"version": TAG, "card": "<html>"},
        {"version": TAG, "card": CARD[:40]},
        {"version": TAG, "card": CARD.replace("EMAIL", "TEL;TYPE=work:1\r\nTEL;TYPE=cell:2\r\nEMAIL")},
    ],
    ids=["nothing", "no card", "another version", "no card at all", "half a card", "two numbers"],
)
def test_a_change_on_something_else_than_was_read_is_broken(basis: dict[str, Any]) -> None:
    """Red: drop the comparison of versions in `_card_of`: what a clerk wrote after the approval is lost."""
    with pytest.raises(Broken):
        build_request(operation(), basis)


def test_what_is_done_already_builds_a_request_that_could_change_nothing() -> None:
    """A ledger restored from an old backup claims, finds the effect and settles on it; its request is kept, and never sent."""
    done = Card.parse(CARD).edited(CHANGE, ID).text
    request = build_request(operation(), {"version": LATER, "card": done})
    assert (request.parameters["version"], request.parameters["card"]) == (TAG, done)


@pytest.mark.parametrize(
    "account", ["", "/crm/contacts", "crm/contacts/", "crm/../x", "crm//x", "crm/.x", "a b", "x" * 77, "crm/ü"]
)
def test_an_account_that_is_no_path_of_a_book_is_broken(account: str) -> None:
    with pytest.raises(Broken):
        build_request(operation(account=account), {"version": TAG, "card": CARD})


def test_receipts_fit() -> None:
    longest = Wanted("update_contact", "a" * 76, "t" * 80, {}, ID).receipt
    assert len(longest) <= 200 and longest.isprintable()


# Contracts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("provider", [CREATE, UPDATE], ids=["create", "update"])
def test_every_term_of_the_contract_has_a_source(provider: Any) -> None:
    contract = provider.contract
    terms = {f"lookup.{name}" for name in LookupTerms.model_fields}
    terms |= {"api_version", "processing", "conditional_write", "versions_return"}
    assert {source.term for source in contract.sources} == terms and len(contract.sources) == len(terms)
    assert all(s.read_on and (s.url or s.measured_on or s.assumption) for s in contract.sources)
    assert Contract.model_validate_json(contract.model_dump_json()) == contract
    assert contract.name == provider.action


@pytest.mark.parametrize("provider", [CREATE, UPDATE], ids=["create", "update"])
def test_the_contract_lets_no_machine_repeat(provider: Any) -> None:
    """A tag that is a hash of the content returns with it: after an undo the same condition lets the same write through again."""
    contract = provider.contract
    assert contract.conditional_write and contract.versions_return and not contract.witness and contract.key is None


def test_each_resolution_names_its_evidence() -> None:
    for word in ("happened:", "did_not_happen:", "undetermined:"):
        assert word in RESOLUTION
    assert CREATE.link(operation()) == "" and CREATE.marker_of(operation()) == ID


# Answers --------------------------------------------------------------------------------------------------------------


def answer(status: int | None, body: bytes | str = b"", *, whole: bool = True, sent: bool = True) -> Answer:
    raw = body.encode() if isinstance(body, str) else body
    return Answer(sent, status, {}, raw, whole, "" if whole else "ReadError")


CONFLICT = (
    '<?xml version="1.0"?><error xmlns="DAV:" xmlns:C="urn:ietf:params:xml:ns:carddav"><C:no-uid-conflict/></error>'
)


@pytest.mark.parametrize(
    ("got", "version", "outcome", "hint"),
    [
        (answer(201), ABSENT, Outcome.APPLIED, Hint.NONE),
        (answer(204), TAG, Outcome.APPLIED, Hint.NONE),
        (answer(204), ABSENT, Outcome.UNKNOWN, Hint.MISMATCH),
        (answer(200, "<html>"), TAG, Outcome.UNKNOWN, Hint.UNREADABLE),
        (answer(401), TAG, Outcome.NO_EFFECT, Hint.NONE),
        (answer(403), TAG, Outcome.REFUSED, Hint.NOT_PERMITTED),
        (answer(409, CONFLICT), ABSENT, Outcome.UNKNOWN, Hint.UNREADABLE),
        (answer(412), TAG, Outcome.UNKNOWN, Hint.UNREADABLE),
        (answer(None, whole=False), TAG, Outcome.UNKNOWN, Hint.LOST),
    ],
)
def test_an_applied_write_has_the_one_receipt_it_can_have(
    got: Answer, version: str, outcome: Outcome, hint: Hint
) -> None:
    provider = CREATE if version == ABSENT else UPDATE
    seen = classify(got, wanted_by(operation(provider, version)))
    assert (seen.outcome, seen.hint) == (outcome, hint)
    applied = outcome is Outcome.APPLIED
    assert (seen.receipt, seen.standing) == ((RECEIPT, Standing.GOOD) if applied else (None, None))


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (CONFLICT, {"precondition": "no-uid-conflict"}),
        ('<error xmlns="DAV:"/>', {}),
        ('<error xmlns="DAV:"><Weird.Name/></error>', {}),
        ("<html><body/></html>", {}),
        ("", {}),
        ("<error", {}),
        (b"\xff\xfe", {}),
    ],
)
def test_the_name_of_a_missed_condition_is_told(body: bytes | str, told: dict[str, str]) -> None:
    assert precondition(answer(409, body)) == told


# The book -------------------------------------------------------------------------------------------------------------


def multistatus(*cards: tuple[str, str], code: str = "HTTP/1.1 200 OK", more: str = "") -> str:
    rows = "".join(
        f"<response><href>{href}</href><propstat><prop><C:address-data>{text}</C:address-data></prop>"
        f"<status>{code}</status></propstat></response>"
        for href, text in cards
    )
    return f'<multistatus xmlns="DAV:" xmlns:C="urn:ietf:params:xml:ns:carddav">{rows}{more}</multistatus>'


MARKED = CARD.replace("END", f"X-EFFECT-OPERATION:{ID}\r\nEND")
CUT_SHORT = "<response><href>/crm/contacts/</href><status>HTTP/1.1 507 Insufficient Storage</status></response>"
BOMB = '<!DOCTYPE x [<!ENTITY a "aaaa">]>' + multistatus(("/crm/contacts/a.vcf", MARKED))


@pytest.mark.parametrize(
    ("got", "found"),
    [
        (answer(207, multistatus()), []),
        (answer(207, multistatus(("/crm/contacts/a.vcf", MARKED))), ["crm/contacts/a.vcf"]),
        # the server's filter is never believed
        (answer(207, multistatus(("/crm/contacts/a.vcf", CARD))), []),
        (answer(207, multistatus(("/crm/contacts/a.vcf", MARKED.replace(ID, ID + "0")))), []),
        (answer(207, multistatus(("/crm/contacts/a.vcf", MARKED.replace(ID, ID.upper())))), []),
        (answer(207, multistatus(("/crm/contacts/a%20b.vcf", MARKED))), ["crm/contacts/a b.vcf"]),
        (answer(207, multistatus(("http://x/crm/contacts/a.vcf", MARKED))), ["crm/contacts/a.vcf"]),
        (answer(207, multistatus(("/crm/contacts/a.vcf", "no card"))), []),
        (answer(207, multistatus(("/crm/contacts/a.vcf", f"no card {ID}"))), None),
        (answer(207, multistatus(("/crm/contacts/a.vcf", MARKED), code="HTTP/1.1 404 Not Found")), None),
        (answer(207, multistatus(("/crm/contacts/a.vcf", MARKED), more=CUT_SHORT)), None),
        (answer(207, multistatus(("/crm/contacts/a.vcf", MARKED)), whole=False), None),
        (answer(207, "<multistatus"), None),
        (answer(207, BOMB), None),
        (answer(200, multistatus()), None),
        (answer(207, "<html/>"), None),
        (answer(404), None),
        (answer(None, whole=False), None),
    ],
)
def test_a_search_is_read_to_its_end_and_every_card_compared(got: Answer, found: list[str] | None) -> None:
    """Red: return [] for what cannot be read, in `rows_of`: unreadable becomes absent."""
    read = read_search(got, "http://x", ID)
    assert (None if read is None else sorted(read)) == found


def test_paths_are_those_under_the_endpoint() -> None:
    got = answer(207, multistatus(("/dav/crm/contacts/a.vcf", MARKED)))
    assert sorted(read_search(got, "https://x/dav", ID) or ()) == ["crm/contacts/a.vcf"]
    assert read_search(got, "https://x/other", ID) is None


@settings(max_examples=200, deadline=None)
@given(
    st.integers(100, 599), st.binary(max_size=80) | st.text(max_size=80).map(lambda t: multistatus(("/a", t)).encode())
)
def test_any_answer_of_the_book_gets_a_meaning(status: int, body: bytes) -> None:
    got = answer(status, body)
    rows_of(got, "http://x")
    read_search(got, "http://x", ID)
    precondition(got)
    wanted = wanted_by(operation())
    assert settle(classify(got, wanted), wanted, Book(Reading(False))).outcome is not Outcome.REFUSED


# Sightings ------------------------------------------------------------------------------------------------------------


def book(text: str | None, version: str | None = LATER, elsewhere: dict[str, str] | None = None, **more: Any) -> Book:
    card = None if text is None else Card.parse(text)
    others = {path: Card.parse(one) for path, one in (elsewhere or {}).items()}
    return Book(Reading(True, ABSENT if text is None else version), card, elsewhere=others, complete=True, **more)


DONE = Card.parse(CARD).edited(CHANGE, ID).text
MADE = new_card(ID, NEW).text
OTHERS = Card.parse(CARD).edited(CHANGE, OTHER).text
PLAIN = CARD.replace("END", "TEL:+49 30 7654321\r\nEND")
EDITED = DONE.replace("7654321", "1")
FROZEN = {"parameters": {"card": DONE}}
B = "crm/contacts/b.vcf"
COPY = DONE.replace("u-1", "u-2")
SEEN = [
    ("ours", UPDATE, book(DONE), [("", True, True)]),
    ("ours, changed since", UPDATE, book(EDITED), [("", True, True)]),
    ("marker taken off", UPDATE, book(PLAIN), [("", False, True)]),
    ("not there", UPDATE, book(CARD, TAG), []),
    ("card gone", UPDATE, book(None), []),
    ("another operation's", UPDATE, book(OTHERS), [("", False, True), (OTHER, False, False)]),
    ("moved", UPDATE, book(None, elsewhere={B: DONE}), [("", True, True)]),
    ("moved, another made", UPDATE, book(CARD, elsewhere={B: COPY}), [("b", True, False)]),
    ("copied", UPDATE, book(DONE, elsewhere={B: COPY}), [("", True, True), ("b", True, False)]),
    ("made", CREATE, book(MADE), [("", True, True)]),
    ("made, marker dropped, UID kept", CREATE, book(MADE.replace("X-EFFECT", "X-OTHER")), [("", True, True)]),
    ("made by somebody else", CREATE, book(MADE.replace(ID, "u-9")), [("", False, True)]),
    ("somebody else under the name", CREATE, book(CARD), []),
    ("made and moved", CREATE, book(None, elsewhere={B: MADE}), [("", True, True)]),
    ("copied with another UID", CREATE,
     book(None, elsewhere={B: MADE.replace(f"UID:{ID}", "UID:u-9")}), [("b", True, False)]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "provider", "seen", "effects"), SEEN, ids=[f"{row[1].action}: {row[0]}" for row in SEEN]
)
def test_what_a_book_shows_of_an_operation(
    name: str, provider: Any, seen: Book, effects: list[tuple[str, bool, bool]]
) -> None:
    """Red: compare the marker by `in`, or take any marked card for ours, in `read_sighting`."""
    wanted = wanted_by(operation(provider, ABSENT if provider is CREATE else TAG, frozen_request=FROZEN))
    receipts = {"": RECEIPT, OTHER: f"{PATH}#{OTHER}", "b": f"crm/contacts/b.vcf#{ID}"}
    found = [(e.receipt, e.marked, e.matching) for e in read_sighting(seen, wanted)]
    assert found == [(receipts[key], marked, matching) for key, marked, matching in effects]


def test_others_are_named_and_nothing_that_only_looks_like_one() -> None:
    text = OTHERS.replace("END", "X-EFFECT-OPERATION:no id\r\nX-EFFECT-OPERATION:\x1b[31m\r\nEND")
    effects = [e for e in read_sighting(book(text), wanted_by(operation())) if not e.matching]
    assert effects == [SeenEffect(f"{PATH}#{OTHER}", Standing.GOOD, False, False, {"marker": OTHER})]


def test_whether_the_version_moved() -> None:
    update, create = wanted_by(operation()), wanted_by(operation(CREATE, ABSENT))
    assert version_moved(book(CARD, TAG), update) is False
    assert version_moved(book(CARD, LATER), update) is True
    assert version_moved(book(None), update) is True
    assert version_moved(book(CARD, None), update) is None
    assert version_moved(Book(Reading(False)), update) is None
    assert (version_moved(book(None), create), version_moved(book(MADE), create)) == (False, True)


@pytest.mark.parametrize(
    ("status", "seen", "outcome", "hint"),
    [
        (412, book(DONE), Outcome.APPLIED, Hint.NONE),
        (412, book(PLAIN), Outcome.REFUSED, Hint.VERSION_STALE),
        (412, book(None), Outcome.REFUSED, Hint.VERSION_STALE),
        (412, book(CARD, TAG), Outcome.REFUSED, Hint.MALFORMED),
        (412, book(DONE, elsewhere={B: COPY}), Outcome.UNKNOWN, Hint.MISMATCH),
        (412, Book(Reading(False)), Outcome.UNKNOWN, Hint.LOST),
        (412, replace(book(CARD), complete=False), Outcome.UNKNOWN, Hint.LOST),
        (412, replace(book(DONE), complete=False), Outcome.APPLIED, Hint.NONE),
        (409, book(CARD, TAG), Outcome.REFUSED, Hint.BUSINESS_RULE),
        (409, book(None, elsewhere={B: DONE}), Outcome.APPLIED, Hint.NONE),
        (404, book(None), Outcome.REFUSED, Hint.VERSION_STALE),
    ],
)
def test_a_refusal_is_settled_by_what_stands_there(status: int, seen: Book, outcome: Outcome, hint: Hint) -> None:
    wanted = wanted_by(operation())
    judged = settle(classify(answer(status), wanted), wanted, seen)
    assert (judged.outcome, judged.hint) == (outcome, hint)
    assert (judged.receipt is not None) == (outcome is Outcome.APPLIED)


# Preflight ------------------------------------------------------------------------------------------------------------

TWO = CARD.replace("END", "TEL;TYPE=work:1\r\nTEL;TYPE=cell:2\r\nEND")
UNFIT: list[tuple[Any, Book, str, str]] = [
    (CREATE, book(None), "", "target"),
    (CREATE, book(CARD), "contact_exists", "target"),
    (CREATE, book(MADE.replace(ID, "u-9")), "contact_exists", "target"),
    (CREATE, book(MADE), "", "target"),
    (CREATE, Book(Reading(True, LATER), problem="no card", complete=True), "contact_exists", "target"),
    (UPDATE, book(CARD), "", "target"),
    (UPDATE, book(None), "contact_missing", "target"),
    (UPDATE, book(PLAIN), "already_so", "target"),
    (UPDATE, book(DONE), "", "target"),
    (UPDATE, book(CARD, None), "version_missing", "target"),
    (UPDATE, book(TWO), "property_unclear", "phone"),
    (UPDATE, Book(Reading(True, LATER), problem="another version", complete=True), "card_unreadable", "target"),
]


@pytest.mark.parametrize(("provider", "seen", "word", "field"), UNFIT)
def test_whether_a_card_can_take_it(provider: Any, seen: Book, word: str, field: str) -> None:
    read = read_preflight(seen, wanted_by(operation(provider, None)))
    assert (read.complete, read.unfit, read.unfit_field) == (True, word, field)
    assert bool(read.facts.get("unfit")) == bool(word)
    assert read.version == seen.reading.version and read.target == "c-1"
    assert (read.amount_minor, read.currency) == (None, None)
    json.dumps([read.facts, dict(read.basis)], allow_nan=False)


def test_the_approver_sees_what_stands_there_now() -> None:
    noisy = CARD.replace("Ada Lovelace", "Ada\x1b[31m Lovelace")
    read = read_preflight(book(noisy), wanted_by(operation(arguments={"email": "new@x.de", "phone": "+49 30 1"})))
    now = {"email": "ada@example.com", "phone": None}
    assert read.facts == {"card": PATH, "stands_there": True, "name": "Ada [31m Lovelace", "now": now}
    assert read.basis == {"version": LATER, "card": noisy}


def test_our_own_effect_is_shown_as_ours_and_look_alikes_as_unfit() -> None:
    ours = read_preflight(book(DONE), wanted_by(operation()))
    assert [(e.receipt, e.ours) for e in ours.effects] == [(RECEIPT, True)] and ours.markers == {RECEIPT: ID}
    assert read_preflight(book(PLAIN), wanted_by(operation())).effects == ()


def test_what_was_not_read_to_its_end_is_not_complete() -> None:
    read = read_preflight(replace(book(CARD), complete=False, detail={"why": "x"}), wanted_by(operation()))
    assert (read.complete, read.version, read.detail) == (False, None, {"why": "x"})


def test_a_credential_tells_no_secret() -> None:
    assert "hunter2" not in repr(Credential("crm/contacts", False, "service:hunter2", endpoint="http://x"))
