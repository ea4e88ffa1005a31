"""The pure functions of the mail adapter: arguments, targets, templates, the frozen request, the bytes, the contracts."""

import email
import email.policy
import json
from dataclasses import replace
from datetime import timedelta, timezone
from email.header import decode_header, make_header
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ledger.contract import Contract, LookupTerms
from ledger.errors import Broken, Refused
from ledger.fingerprint import canonical_bytes
from providers import mail_templates
from providers.mail import (
    API_VERSION,
    CONTRACT,
    CONTRACT_UNARCHIVED,
    Mail,
    build_request,
    check_arguments,
    check_target,
    equivalence_key,
    message_bytes,
    pure_target,
    wanted_by,
    way_of,
)
from providers.mail_archive import MARKER, read_mail
from providers.mail_templates import TEMPLATES, digest_of, render
from providers.mail_wire import Login, Place, Tls, read_login, read_place
from providers.port import Credential, Request
from tests.providers.rigs_mail import FIELDS, PROPOSED_AT, a_mail_operation

NAME_SLOT = TEMPLATES["order-confirmation-1"].slots["customer"]
FINE: dict[str, Any] = {"to": "ada@example.org", "template": "order-confirmation-1", "fields": FIELDS}
OPERATION_ID = UUID("8f14e45f-ceea-467f-a0e6-1d1f8b5f1c11")
# A template is immutable. Whoever changes one sees this red, and adds a template of a new name instead.
FROZEN = {
    "order-confirmation-1": "8410d38cef985dfacf5a4876b3b62c2180fbaac503faae4278257e70f9e065d8",
    "order-invoiced-1": "4cf4938a15d7b93391180caeed98a2fd6b0f1436d15195149104cf77aaff5c6f",
    "delivery-date-1": "11ef33ba11cf6ad11d00eb438c50a856a672a26ae6371667ac0e55fa2a0622b7",
}
FILLED = {
    "order-confirmation-1": FIELDS,
    "order-invoiced-1": {"customer": "C-1", "order": "SO-1", "total": "15.00 EUR", "invoice": "account.invoice,12"},
    "delivery-date-1": FIELDS | {"planned_before": "2026-12-01"},
}


def refused(arguments: Any) -> Refused:
    with pytest.raises(Refused) as caught:
        check_arguments(arguments)
    return caught.value


@pytest.mark.parametrize(
    "to",
    ["ada@example.org", "Ada.Lovelace+x@Mail.Example.ORG", "o'brien_1@a-b.example.org", "a@b.cd", f"{'a' * 64}@b.test"],
)
def test_complete_arguments_pass(to: str) -> None:
    check_arguments(FINE | {"to": to})


@pytest.mark.parametrize(
    ("changes", "rule", "field"),
    [
        ({"cc": "x@example.org"}, "argument_unknown", "cc"),
        ({"subject": "x"}, "argument_unknown", "subject"),
        ({"Bcc\r\n": "x"}, "argument_unknown", "Bcc⟦U+000D⟧⟦U+000A⟧"),
        ({"template": "order-confirmation-2"}, "template_unknown", "template"),
        ({"template": ["order-confirmation-1"]}, "template_unknown", "template"),
        ({"template": None}, "template_unknown", "template"),
        ({"fields": []}, "fields_malformed", "fields"),
        ({"fields": {}}, "field_missing", "fields.customer"),
        ({"fields": FIELDS | {"bcc": "x"}}, "field_unknown", "fields.bcc"),
        ({"fields": FIELDS | {"customer": 4}}, "text_type", "fields.customer"),
        ({"fields": FIELDS | {"customer": ""}}, "text_empty", "fields.customer"),
        ({"fields": FIELDS | {"customer": "a" * 81}}, "text_too_long", "fields.customer"),
        ({"fields": FIELDS | {"customer": "Ada\r\nBcc: eve@example.org"}}, "text_hidden", "fields.customer"),
        ({"fields": FIELDS | {"customer": "Ada\nBcc: eve"}}, "text_hidden", "fields.customer"),
        ({"fields": FIELDS | {"customer": "Ada\x00"}}, "text_hidden", "fields.customer"),
        ({"fields": FIELDS | {"customer": "Ada\x85Bcc"}}, "text_hidden", "fields.customer"),
        ({"fields": FIELDS | {"customer": "Ada\u2028Bcc"}}, "text_hidden", "fields.customer"),
        ({"fields": FIELDS | {"customer": "\u202eadA"}}, "text_hidden", "fields.customer"),
        ({"fields": FIELDS | {"customer": "Ada "}}, "field_spaces", "fields.customer"),
        ({"fields": FIELDS | {"customer": "Ada  Lovelace"}}, "field_spaces", "fields.customer"),
        ({"fields": FIELDS | {"customer": "=?utf-8?q?Eve?="}}, "field_encoded", "fields.customer"),
        ({"fields": FIELDS | {"customer": "see https evil.example/x"}}, "field_malformed", "fields.customer"),
        ({"fields": FIELDS | {"customer": "eve@example.org"}}, "field_malformed", "fields.customer"),
        ({"fields": FIELDS | {"order": "SO 1"}}, "field_malformed", "fields.order"),
        ({"fields": FIELDS | {"order": "ÄÖ"}}, "field_malformed", "fields.order"),
        ({"fields": FIELDS | {"delivery_date": "24.12.2026"}}, "field_malformed", "fields.delivery_date"),
        ({"fields": FIELDS | {"delivery_date": "20261224"}}, "field_malformed", "fields.delivery_date"),
        ({"fields": FIELDS | {"delivery_date": "2026-02-30"}}, "field_malformed", "fields.delivery_date"),
    ],
)  # fmt: skip
def test_anything_else_is_refused_with_its_field(changes: dict[str, Any], rule: str, field: str) -> None:
    """Red: drop `check_text` from `check_fields`, and a field makes a header."""
    problem = refused(FINE | changes)
    assert (problem.rule, problem.field) == (rule, field) and str(problem)


@pytest.mark.parametrize("name", ["to", "template", "fields"])
def test_each_argument_is_needed(name: str) -> None:
    problem = refused({other: value for other, value in FINE.items() if other != name})
    assert (problem.rule, problem.field) == ("argument_missing", name)


@pytest.mark.parametrize(
    "to",
    [
        "", "ada", "@example.org", "ada@", "ada@localhost", "ada@example.org, eve@example.org",
        "ada@example.org,eve@x.org", "Ada <ada@example.org>", "<ada@example.org>", "ada@example.org (work)",
        '"ada"@example.org', '"a b"@example.org', "ada@[127.0.0.1]", "ada@example.org\r\nBcc: eve@example.org",
        "ada@example.org\n", "\nada@example.org", "ada@example.org\0", "ada@example.org> SIZE=1", "a..b@example.org",
        ".a@example.org", "a.@example.org", "ada@-x.org", "ada@x-.org", "ada@x..org", "ada@example.org.", "ädä@example.org",
        "ada@exämple.org", "@relay.example:ada@example.org", "eve%example.org@relay.test", "relay.test!eve@example.org",
        "ada@example.org ", " ada@example.org", "=?utf-8?q?x?=@example.org", f"{'a' * 65}@example.org",
        f"a@{'b' * 64}.org", "a@" + ".".join(["b" * 60] * 5) + ".org", "ada@example.org\u2028", "a\\b@example.org",
        None, 1, ["ada@example.org"], {"ada@example.org": 1},
    ],
)  # fmt: skip
def test_nothing_but_one_plain_address_is_a_recipient(to: object) -> None:
    """Red: use `match` instead of `fullmatch`, or allow a comma."""
    problem = refused(FINE | {"to": to})
    assert (problem.rule, problem.field) == ("address_malformed", "to")


@settings(max_examples=300, deadline=None, database=None)
@given(st.text(max_size=40))
def test_what_passes_as_an_address_can_stand_in_a_command(text: str) -> None:
    """Whatever is let through has no character that means anything to SMTP, IMAP or a header."""
    for to in (text, f"{text}@example.org", f"ada@{text}"):
        try:
            check_arguments(FINE | {"to": to})
        except Refused:
            continue
        assert to.isascii() and to.isprintable() and to.count("@") == 1 and not set(to) & set(' <>()[],;:\\"%!*?')


@pytest.mark.parametrize("target", ["C-1001", "shop/customers/7", "a", "A_b.c-9", "x" * 80])
def test_a_code_of_the_caller_is_a_target_as_it_stands(target: str) -> None:
    assert pure_target(target) == target


@pytest.mark.parametrize("target", ["", "ada@example.org", "a b", "a\n", "x" * 81, "ä", "a:b"])
def test_an_address_is_no_target(target: str) -> None:
    """Targets stand in logs and lists: no personal data."""
    with pytest.raises(Refused) as caught:
        check_target(target)
    assert (caught.value.rule, caught.value.field) == ("target_malformed", "target")


def test_equivalence_is_recipient_template_and_fields_for_both_actions() -> None:
    one = equivalence_key("C-1", FINE)
    assert one == equivalence_key("C-1", json.loads(json.dumps(FINE, sort_keys=True)))
    assert one == equivalence_key("C-1", FINE | {"to": "ADA@example.org"})
    assert "ada" not in one and "Lovelace" not in one
    others = [
        ("C-2", FINE),
        ("C-1", FINE | {"to": "eve@example.org"}),
        ("C-1", FINE | {"fields": FIELDS | {"order": "SO-2"}}),
        ("C-1", FINE | {"template": "delivery-date-1"}),
    ]
    assert one not in {equivalence_key(target, arguments) for target, arguments in others}
    assert {Mail(archived=archived).equivalence_key("C-1", FINE) for archived in (True, False)} == {one}


def test_the_request_holds_what_was_approved_and_no_text() -> None:
    """Two builds are equal byte for byte: put a time or an attempt number into it to see it red."""
    operation = a_mail_operation(operation_id=OPERATION_ID, arguments=FINE, fence=1)
    request = build_request(operation, {})
    assert request.parameters == {
        "from": "orders@acme.test",
        "to": "ada@example.org",
        "message_id": f"<{OPERATION_ID}@acme.test>",
        "date": "Mon, 30 Nov 2026 09:15:27 +0000",
        "subject": "Your order SO-4711 is confirmed",
        "template": "order-confirmation-1",
        "fields": FIELDS,
        "body_sha256": digest_of(render("order-confirmation-1", FIELDS).body),
        MARKER: str(OPERATION_ID),
    }
    assert (request.operation, request.api_version, request.account) == ("SMTP DATA", API_VERSION, "orders@acme.test")
    assert request.idempotency_key == operation.idempotency_key
    assert "thank you" not in json.dumps(request.parameters)
    later = build_request(replace(operation, fence=7), {})
    assert canonical_bytes(later.parameters) == canonical_bytes(request.parameters)
    thawed = Request(**json.loads(json.dumps(vars(request))))
    assert message_bytes(thawed) == message_bytes(request) == message_bytes(later)


def test_the_date_is_that_of_the_proposal_in_any_zone() -> None:
    there = PROPOSED_AT.astimezone(timezone(timedelta(hours=-8)))
    assert (
        build_request(a_mail_operation(arguments=FINE, proposed_at=there), {})
        .parameters["date"]
        .endswith("09:15:27 +0000")
    )


def test_the_message_is_these_bytes() -> None:
    """The whole of it, so that a library that writes mails differently is noticed."""
    operation = a_mail_operation(
        operation_id=OPERATION_ID, arguments=FINE | {"fields": FIELDS | {"customer": ". Müller"}}
    )
    raw = message_bytes(build_request(operation, {}))
    assert raw.decode("ascii").split("\r\n") == [
        "From: orders@acme.test",
        "To: ada@example.org",
        "Subject: Your order SO-4711 is confirmed",
        "Date: Mon, 30 Nov 2026 09:15:27 +0000",
        f"Message-ID: <{OPERATION_ID}@acme.test>",
        f"X-Effect-Operation: {OPERATION_ID}",
        "Auto-Submitted: auto-generated",
        "MIME-Version: 1.0",
        'Content-Type: text/plain; charset="utf-8"',
        "Content-Transfer-Encoding: quoted-printable",
        "",
        "Dear . M=C3=BCller,",
        "",
        "thank you for your order. We confirm it under the number SO-4711.",
        "",
        "Planned delivery: 2026-12-24",
        "",
        "Kind regards",
        "Acme Ltd.",
        "",
        "This mail was written by a machine. Please answer it if something is wrong.",
        ".",
        "",
    ]


def test_a_text_that_changed_since_it_was_frozen_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red: leave out the comparison of digests in `message_bytes`."""
    request = build_request(a_mail_operation(arguments=FINE), {})
    found = TEMPLATES["order-confirmation-1"]
    for changed in (replace(found, body=found.body + "PS: pay twice\n"), replace(found, subject="Your order $order")):
        with monkeypatch.context() as patch:
            patch.setattr(mail_templates, "TEMPLATES", TEMPLATES | {"order-confirmation-1": changed})
            with pytest.raises(Broken):
                message_bytes(request)
    monkeypatch.setattr(mail_templates, "TEMPLATES", {})
    with pytest.raises(Broken):
        message_bytes(request)
    with pytest.raises(Broken):
        wanted_by(a_mail_operation(arguments=FINE))


def test_no_template_was_changed() -> None:
    told = {
        name: digest_of(f"{found.subject}\n{found.body}\n{sorted(found.slots)}") for name, found in TEMPLATES.items()
    }
    assert told == FROZEN


def filled(template: str, text: str) -> dict[str, str]:
    """All slots filled, the free ones with `text`."""
    slots = TEMPLATES[template].slots
    free = {name: text for name, slot in slots.items() if slot.says == NAME_SLOT.says}
    return FILLED[template] | free


def _may_stand(text: str) -> bool:
    try:
        check_arguments(FINE | {"fields": FIELDS | {"customer": text}})
    except Refused:
        return False
    return True


NAMES = st.text(min_size=1, max_size=80).filter(_may_stand)


@settings(max_examples=400, deadline=None, database=None)
@example(".", "order-confirmation-1")
@example(". Ltd.", "order-confirmation-1")
@example("From Ada & Sons", "order-confirmation-1")
@given(NAMES, st.sampled_from(sorted(TEMPLATES)))
def test_whatever_is_filled_in_arrives_as_it_was_shown(text: str, template: str) -> None:
    """Injection has no way in: the headers are always the same ten, the text is always the rendered one.

    Red: drop the dot stuffing (a company's name begins a line).
    """
    operation = a_mail_operation(
        arguments={"to": "ada@example.org", "template": template, "fields": filled(template, text)}
    )
    raw = message_bytes(build_request(operation, {}))
    assert raw.isascii() and raw.endswith(b"\r\n.\r\n") and raw.count(b"\r\n.\r\n") == 1
    assert b"\n" not in raw.replace(b"\r\n", b"") and b"\r" not in raw.replace(b"\r\n", b"")
    assert max(map(len, raw.split(b"\r\n"))) <= 998
    stored = raw.removesuffix(b".\r\n").replace(b"\r\n..", b"\r\n.")
    assert len(email.message_from_bytes(stored).keys()) == 10
    told = b'1 (UID 7 INTERNALDATE "30-Nov-2026 09:15:28 +0000")'
    assert read_mail(7, 1, told, stored, stored).addressed_as(wanted_by(operation))
    assert read_mail(7, 1, told, stored, stored).body_sha256 == wanted_by(operation).body_sha256


@settings(max_examples=400, deadline=None, database=None)
@given(NAMES, NAMES)
def test_a_subject_of_any_letters_arrives_whole(one: str, two: str) -> None:
    """Python's EmailMessage loses a space between two encoded words. Red: build the mail with it."""
    template = replace(TEMPLATES["order-confirmation-1"], subject="Order $customer confirmed for $company")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mail_templates, "TEMPLATES", {"order-confirmation-1": template})
        fields = FIELDS | {"customer": one, "company": two}
        request = build_request(a_mail_operation(arguments=FINE | {"fields": fields}), {})
        head = email.message_from_bytes(message_bytes(request))
    told = str(make_header(decode_header(str(head["Subject"]))))
    assert told.split() == f"Order {one} confirmed for {two}".split()


@pytest.mark.parametrize(
    ("url", "protocol", "place"),
    [
        ("smtp://127.0.0.1:2525", "smtp", Place("127.0.0.1", 2525, Tls.NONE)),
        ("smtp://localhost:25/", "smtp", Place("localhost", 25, Tls.NONE)),
        ("smtp://[::1]:25", "smtp", Place("::1", 25, Tls.NONE)),
        ("smtps://mail.example.org:465", "smtp", Place("mail.example.org", 465, Tls.IMPLICIT)),
        ("smtp+starttls://mail.example.org:587", "smtp", Place("mail.example.org", 587, Tls.STARTTLS)),
        ("smtp+cleartext://mail:25", "smtp", Place("mail", 25, Tls.NONE)),
        ("imaps://mail.example.org:993/Archive", "imap", Place("mail.example.org", 993, Tls.IMPLICIT, "Archive")),
        ("imap://127.0.0.1:143/INBOX", "imap", Place("127.0.0.1", 143, Tls.NONE, "INBOX")),
        ("imap+starttls://m.test:143/All%20Mail", "imap", Place("m.test", 143, Tls.STARTTLS, "All Mail")),
        ("imap+starttls://m.test:143/a/b", "imap", Place("m.test", 143, Tls.STARTTLS, "a/b")),
    ],
)
def test_a_place_is_read_from_its_url(url: str, protocol: str, place: Place) -> None:
    assert read_place(url, protocol, "endpoint") == place


@pytest.mark.parametrize(
    ("url", "protocol"),
    [
        ("", "smtp"), ("mail.example.org:25", "smtp"), ("smtp://mail.example.org", "smtp"), ("smtp://:25", "smtp"),
        ("http://127.0.0.1:25", "smtp"), ("imap://127.0.0.1:25", "smtp"), ("smtpx://127.0.0.1:25", "smtp"),
        ("smtp://127.0.0.1:99999", "smtp"), ("smtp://127.0.0.1:x", "smtp"), ("smtp://u:secret@127.0.0.1:25", "smtp"),
        ("smtp://127.0.0.1:25/x", "smtp"), ("smtp://127.0.0.1:25?ca=/x", "smtp"), ("smtp://127.0.0.1:25#x", "smtp"),
        ("smtp://127.0.0.1 :25", "smtp"), ("smtp://mäil.example.org:25", "smtp"), ("smtp://[::1:25", "smtp"),
        ("imap://127.0.0.1:143", "imap"), ("imap://127.0.0.1:143/", "imap"), ('imap://127.0.0.1:143/a"b', "imap"),
        ("imap://127.0.0.1:143/a%0d%0ab", "imap"), ("imap://127.0.0.1:143/a\\b", "imap"), ("imap://127.0.0.1:143/%C3%A4", "imap"),
    ],
)  # fmt: skip
def test_any_other_url_is_refused_without_repeating_it(url: str, protocol: str) -> None:
    with pytest.raises(Refused) as caught:
        read_place(url, protocol, "endpoint")
    assert (caught.value.rule, caught.value.field) == ("place_malformed", "endpoint")
    assert "secret@" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["smtp://mail.example.org:587", "smtp://10.0.0.1:25", "smtp://localhost.example.org:25"]
)
def test_no_password_goes_in_the_clear_over_a_network(url: str) -> None:
    """Red: take every smtp:// as it is."""
    for protocol, folder in (("smtp", ""), ("imap", "/INBOX")):
        with pytest.raises(Refused) as caught:
            read_place(url.replace("smtp", protocol) + folder, protocol, "endpoint")
        assert caught.value.rule == "place_in_the_clear" and f"{protocol}+starttls://" in str(caught.value)


@pytest.mark.parametrize(
    ("secret", "login"),
    [
        ("user:pass", Login("user", "pass")),
        ("a@b.test:p:w d", Login("a@b.test", "p:w d")),
        (":", Login("", "")),
    ],
)
def test_a_secret_is_user_and_password(secret: str, login: Login) -> None:
    assert read_login(secret) == login and "password" not in repr(login)


@pytest.mark.parametrize(
    "secret",
    [
        "",
        "gustav",
        "gustav:",
        ":sesame",
        "gus tav:sesame",
        "gustav:sesamä",
        "gustav:se\r\nx",
        'g"v:sesame',
        "g(:sesame",
    ],
)
def test_any_other_secret_is_refused_without_repeating_it(secret: str) -> None:
    with pytest.raises(Refused) as caught:
        read_login(secret)
    assert (caught.value.rule, caught.value.field) == ("secret_malformed", "secret")
    assert "gustav" not in str(caught.value) and "sesam" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"account": "acme"}, "account"),
        ({"account": "a@b@acme.test"}, "account"),
        ({"endpoint": ""}, "endpoint"),
        ({"archive": ""}, "archive"),
        ({"archive": "imap://mail.example.org:143/INBOX"}, "archive"),
        ({"secret": ":"}, "secret"),
        ({"secret": "x"}, "secret"),
    ],
)
def test_a_binding_is_checked_without_a_network(changes: dict[str, str], field: str) -> None:
    known = {
        "account": "orders@acme.test",
        "secret": "user:pass",
        "endpoint": "smtp://127.0.0.1:25",
        "archive": "imap://127.0.0.1:143/INBOX",
    }
    with pytest.raises(Refused) as caught:
        way_of(Credential(livemode=False, **known | changes), archived=True)
    assert caught.value.field == field
    without = {"secret": ":", "archive": ""}
    assert way_of(Credential(livemode=False, **known | without), archived=False).archive is None


@pytest.mark.parametrize("contract", [CONTRACT, CONTRACT_UNARCHIVED], ids=lambda contract: contract.name)
def test_every_term_of_the_contract_has_a_source(contract: Contract) -> None:
    terms = {"api_version", "key", "processing"}
    if contract.lookup is not None:
        terms |= {f"lookup.{name}" for name in LookupTerms.model_fields}
    sources = {source.term: source for source in contract.sources}
    assert set(sources) == terms and len(sources) == len(contract.sources)
    assert all(
        source.read_on and (source.url or source.assumption or source.measured_on) for source in contract.sources
    )
    assert Contract.model_validate_json(contract.model_dump_json()) == contract
    assert contract.key is None and not contract.conditional_write and not contract.effect_can_change
    assert contract.processing >= 600  # RFC 5321, 4.5.3.2.6


def test_only_the_archived_action_can_look() -> None:
    assert CONTRACT.lookup is not None and CONTRACT.lookup.complete and CONTRACT.lookup.marker_editable
    assert CONTRACT_UNARCHIVED.lookup is None


@pytest.mark.parametrize("archived", [True, False])
def test_each_resolution_names_its_evidence(archived: bool) -> None:
    adapter = Mail(archived=archived)
    for word in ("happened:", "did_not_happen:", "undetermined:", "Message-ID"):
        assert word in adapter.resolution
    assert ("archive" in adapter.resolution) == archived
    assert adapter.action == adapter.contract.name and adapter.link(a_mail_operation()) == ""
