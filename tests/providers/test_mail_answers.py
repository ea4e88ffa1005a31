"""What answers of a mail server mean, and which archived mails are ours: tables, and whatever else may come."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.model import Hint, Outcome, Standing
from providers.mail_answers import classify, read_sightings
from providers.mail_archive import ArchivedMail, Wanted, _read_fetched, read_mail
from providers.mail_templates import digest_of
from providers.mail_wire import Dialogue, Phase

MESSAGE_ID, MARKER = "<op-1@acme.test>", "op-1"
BODY = "Dear Ada,\n\nyour order is confirmed.\n"
WANTED = Wanted("orders@acme.test", "ada@example.org", "Your order", digest_of(BODY), MESSAGE_ID, MARKER)
RECEIVED = datetime(2026, 11, 30, 9, 15, 28, tzinfo=UTC)
TRUE: dict[str, Any] = {
    "uid": 7,
    "uidvalidity": 3,
    "received": RECEIVED,
    "message_ids": (MESSAGE_ID,),
    "markers": (MARKER,),
    "senders": ("orders@acme.test",),
    "recipients": ("ada@example.org",),
    "subject": "Your order",
    "body_sha256": WANTED.body_sha256,
}
NOT_SENT = (Outcome.NO_EFFECT, Hint.NOT_SENT)


def mail(**changes: Any) -> ArchivedMail:
    return ArchivedMail(**TRUE | changes)


@pytest.mark.parametrize(
    ("code", "text", "wanted"),
    [
        (250, "2.0.0 Ok: queued as 4711", (Outcome.APPLIED, Hint.NONE)),
        (250, "", (Outcome.APPLIED, Hint.NONE)),
        (550, "5.7.1 rejected as spam", (Outcome.REFUSED, Hint.NOT_PERMITTED)),
        (550, "no", (Outcome.REFUSED, Hint.BUSINESS_RULE)),
        (552, "5.3.4 too big", (Outcome.REFUSED, Hint.BUSINESS_RULE)),
        (554, "", (Outcome.REFUSED, Hint.BUSINESS_RULE)),
        (500, "line too long", (Outcome.REFUSED, Hint.MALFORMED)),
        (530, "log in first", (Outcome.REFUSED, Hint.NOT_PERMITTED)),
        (450, "", (Outcome.NO_EFFECT, Hint.NONE)),
        (451, "4.7.1 greylisted", (Outcome.NO_EFFECT, Hint.NONE)),
        (452, "", (Outcome.NO_EFFECT, Hint.NONE)),
        (421, "shutting down", (Outcome.UNKNOWN, Hint.LOST)),
        (None, "", (Outcome.UNKNOWN, Hint.LOST)),
        (-1, "garbage", (Outcome.UNKNOWN, Hint.UNREADABLE)),
        (25, "0 OK", (Outcome.UNKNOWN, Hint.UNREADABLE)),
        (200, "OK", (Outcome.UNKNOWN, Hint.UNREADABLE)),
        (220, "mail.example.org ESMTP", (Outcome.UNKNOWN, Hint.UNREADABLE)),
        (251, "", (Outcome.UNKNOWN, Hint.UNREADABLE)),
        (354, "go on", (Outcome.UNKNOWN, Hint.UNREADABLE)),
        (600, "", (Outcome.UNKNOWN, Hint.UNREADABLE)),
        (0, "", (Outcome.UNKNOWN, Hint.UNREADABLE)),
    ],
)  # fmt: skip
def test_what_is_said_after_the_final_dot(code: int | None, text: str, wanted: tuple[Outcome, Hint]) -> None:
    """RFC 5321, 4.2.5. Red: call 421 `no_effect`, or every 2yz applied."""
    seen = classify(Dialogue(Phase.MESSAGE, sent=True, code=code, text=text), MESSAGE_ID)
    assert (seen.outcome, seen.hint) == wanted and not seen.stored
    proved = seen.outcome is Outcome.APPLIED
    assert (seen.receipt, seen.standing) == ((MESSAGE_ID, Standing.GOOD) if proved else (None, None))


@pytest.mark.parametrize(
    ("phase", "code", "text", "wanted"),
    [
        (Phase.CONNECT, None, "", NOT_SENT),
        (Phase.CONNECT, 554, "no service here", NOT_SENT),
        (Phase.CONNECT, 421, "", NOT_SENT),
        (Phase.LOGIN, 535, "5.7.8 wrong", NOT_SENT),
        (Phase.LOGIN, 454, "later", NOT_SENT),
        (Phase.LOGIN, 500, "what?", NOT_SENT),
        (Phase.SENDER, 530, "5.7.0 log in first", NOT_SENT),
        (Phase.SENDER, 550, "5.7.60 not as this sender", (Outcome.REFUSED, Hint.NOT_PERMITTED)),
        (Phase.SENDER, 553, "not owned", (Outcome.REFUSED, Hint.NOT_PERMITTED)),
        (Phase.SENDER, 501, "syntax", (Outcome.REFUSED, Hint.MALFORMED)),
        (Phase.SENDER, 451, "", NOT_SENT),
        (Phase.SENDER, 421, "", NOT_SENT),
        (Phase.SENDER, None, "", NOT_SENT),
        (Phase.RECIPIENT, 550, "5.1.1 no such user", (Outcome.REFUSED, Hint.BUSINESS_RULE)),
        (Phase.RECIPIENT, 551, "not local", (Outcome.REFUSED, Hint.BUSINESS_RULE)),
        (Phase.RECIPIENT, 554, "5.7.1 relay access denied", (Outcome.REFUSED, Hint.NOT_PERMITTED)),
        (Phase.RECIPIENT, 450, "greylisted", NOT_SENT),
        (Phase.RECIPIENT, 452, "too many", NOT_SENT),
        (Phase.RECIPIENT, 252, "perhaps", NOT_SENT),
        (Phase.RECIPIENT, 250, "", NOT_SENT),
        (Phase.DATA, 554, "no valid recipients", (Outcome.REFUSED, Hint.BUSINESS_RULE)),
        (Phase.DATA, 503, "bad sequence", (Outcome.REFUSED, Hint.MALFORMED)),
        (Phase.DATA, 451, "", NOT_SENT),
        (Phase.DATA, 250, "", NOT_SENT),
        (Phase.DATA, -1, "garbage", NOT_SENT),
        (Phase.MESSAGE, None, "", NOT_SENT),
    ],
)  # fmt: skip
def test_what_is_said_before_the_message(
    phase: Phase, code: int | None, text: str, wanted: tuple[Outcome, Hint]
) -> None:
    """Nothing was sent: it is refused for good, or it may be tried again. Red: call a wrong password a refusal."""
    seen = classify(Dialogue(phase, code=code, text=text), MESSAGE_ID)
    assert (seen.outcome, seen.hint, seen.receipt) == (*wanted, None)
    assert seen.detail["sent"] is False


@settings(max_examples=500, deadline=None, database=None)
@given(
    st.builds(
        Dialogue,
        st.sampled_from(list(Phase)),
        st.booleans(),
        st.none() | st.integers(-1, 999),
        st.text(max_size=20),
        st.text(max_size=20),
        st.booleans(),
    )
)
def test_every_dialogue_has_a_meaning_and_none_is_too_good(said: Dialogue) -> None:
    seen = classify(said, MESSAGE_ID)
    assert (seen.outcome is Outcome.APPLIED) == (said.sent and said.code == 250)
    if said.sent and seen.outcome in (Outcome.REFUSED, Outcome.NO_EFFECT):
        assert said.code is not None and 400 <= said.code <= 599 and said.code != 421
    if not said.sent:
        assert seen.outcome in (Outcome.REFUSED, Outcome.NO_EFFECT)


@pytest.mark.parametrize(
    ("changes", "marked", "matching"),
    [
        ({}, True, True),
        ({"message_ids": ()}, True, True),
        ({"message_ids": ("<new@elsewhere.test>",)}, True, True),
        ({"markers": ()}, True, True),
        ({"markers": ("op-2",)}, True, False),
        ({"markers": ("op-1", "op-2")}, True, False),
        ({"message_ids": ("<x@y.test>",), "markers": ("op-2",)}, False, True),
        ({"message_ids": ("<OP-1@acme.test>",), "markers": ("OP-1",)}, False, True),
        ({"senders": ("sales@acme.test",)}, True, False),
        ({"senders": ("orders@acme.test", "sales@acme.test")}, True, False),
        ({"senders": ()}, True, False),
        ({"recipients": ("ada@example.org", "eve@example.org")}, True, False),
        ({"recipients": ()}, True, False),
        ({"subject": "Your Order"}, True, False),
        ({"subject": None}, True, False),
        ({"body_sha256": None}, True, False),
        ({"body_sha256": "0" * 64}, True, False),
        ({"received": None}, True, True),
        ({"received": RECEIVED.replace(year=2020)}, True, True),
    ],
)  # fmt: skip
def test_a_mail_is_ours_by_its_marker_and_everything_else(
    changes: dict[str, Any], marked: bool, matching: bool
) -> None:
    ((effect, _),) = read_sightings((mail(**changes),), WANTED, RECEIVED)
    assert (effect.marked, effect.matching) == (marked, matching)
    assert effect.receipt.startswith(MESSAGE_ID if marked else "<")
    assert ("#" in effect.receipt) == (marked and not matching)


@pytest.mark.parametrize(
    "changes",
    [
        {"subject": "Another"}, {"senders": ()}, {"recipients": ("eve@example.org",)}, {"body_sha256": None},
        {"received": None}, {"received": RECEIVED.replace(year=2020)},
    ],
)  # fmt: skip
def test_a_mail_without_our_marker_that_is_another_or_older_is_nothing(changes: dict[str, Any]) -> None:
    bare = mail(**{"message_ids": ("<x@y.test>",), "markers": ()} | changes)
    assert read_sightings((bare,), WANTED, RECEIVED) == ()


def test_the_true_copy_has_the_plain_receipt_whatever_stands_before_it() -> None:
    """Its receipt is the one of the server's answer, and looks agree with it. Red: number the copies by place."""
    forged, first, second = mail(uid=1, body_sha256=None), mail(uid=5), mail(uid=9)
    for order in ((forged, first, second), (second, first, forged)):
        seen = {effect.receipt: effect.matching for effect, _ in read_sightings(order, WANTED)}
        assert seen == {MESSAGE_ID: True, f"{MESSAGE_ID}#3.9": True, f"{MESSAGE_ID}#3.1": False}


def test_receipts_are_unique_and_short_whatever_a_foreign_mail_calls_itself() -> None:
    names = [
        (),
        ("<a@b.test>",),
        ("<a@b.test>",),
        ("x" * 900,),
        ("<a\x07@b.test>",),
        ("<a@b.test>", "<c@d.test>"),
        ("",),
    ]
    seen = read_sightings(tuple(mail(uid=n, message_ids=ids, markers=()) for n, ids in enumerate(names, 1)), WANTED)
    receipts = [effect.receipt for effect, _ in seen]
    assert len(set(receipts)) == len(names) and "<a@b.test>" in receipts
    assert all(receipt.isprintable() and 0 < len(receipt) <= 200 for receipt in receipts)
    longest = Wanted(*("a" * 64 + "@" + "b" * 55,) * 2, "s", "d", f"<{'0' * 36}@{'b' * 55}>", "m")
    ((effect, _),) = read_sightings(
        (mail(uid=2**32 - 1, uidvalidity=2**32 - 1, message_ids=(longest.message_id,)),), longest
    )
    assert len(effect.receipt) <= 200


def test_a_summary_names_no_person() -> None:
    ((effect, marker),) = read_sightings((mail(),), WANTED)
    assert marker == MARKER == effect.summary["marker"]
    assert not any(part in str(effect.summary) for part in ("ada", "example.org", "orders@", "Dear"))


def header(**changes: str) -> bytes:
    told = {
        "Message-ID": MESSAGE_ID,
        "X-Effect-Operation": MARKER,
        "From": "orders@acme.test",
        "To": "ada@example.org",
        "Subject": "Your order",
    }
    return b"".join(f"{name}: {value}\r\n".encode() for name, value in (told | changes).items() if value) + b"\r\n"


def text(body: str = BODY, kind: str = "text/plain; charset=utf-8", encoding: str = "8bit") -> bytes:
    return f"Content-Type: {kind}\r\nContent-Transfer-Encoding: {encoding}\r\n\r\n{body}".encode()


TOLD = b'7 (UID 7 INTERNALDATE "30-Nov-2026 10:15:28 +0100" RFC822.SIZE 100 BODY[] {10}'


def test_a_mail_is_read_as_it_stands() -> None:
    assert read_mail(7, 3, TOLD, header(), text()) == mail()


@pytest.mark.parametrize(
    "changes",
    [
        {"From": "Acme <orders@acme.test>"},
        {"From": "ORDERS@Acme.TEST"},
        {"To": "\r\n Ada\r\n <ada@example.org>"},
        {"Subject": "Your\r\n  order"},
        {"Subject": "=?utf-8?q?Your_or?=\r\n =?utf-8?b?ZGVy?="},
        {"Message-ID": f"\r\n {MESSAGE_ID}"},
    ],
)
def test_another_spelling_of_the_same_header_is_the_same(changes: dict[str, str]) -> None:
    """Mail servers fold, unfold and encode headers as they like."""
    assert read_mail(7, 3, TOLD, header(**changes), text()) == mail()


@pytest.mark.parametrize(
    "raw",
    [
        text(BODY.replace("\n", "\r\n")),
        text(BODY + "\n\n"),
        text("RGVhciBBZGEsCgp5b3VyIG9yZGVyIGlzIGNvbmZpcm1lZC4K\r\n", encoding="base64"),
        text("Dear =41da,=\r\n\r\n\r\nyour order is confirmed.", encoding="quoted-printable"),
    ],
)
def test_another_encoding_of_the_same_text_is_the_same(raw: bytes) -> None:
    assert read_mail(7, 3, TOLD, header(), raw).body_sha256 == WANTED.body_sha256


@pytest.mark.parametrize(
    "raw",
    [
        b"", text("Dear Eve,\n"), text(kind="text/html"), text(kind="multipart/mixed; boundary=x"), text(BODY + "-- \nFooter\n"),
        text(kind="text/plain; charset=no-such"), text("%%%", encoding="base64"), text(BODY.replace("Ada", "\x00da")),
    ],
)  # fmt: skip
def test_another_text_is_another(raw: bytes) -> None:
    assert read_mail(7, 3, TOLD, header(), raw).body_sha256 != WANTED.body_sha256


@pytest.mark.parametrize(
    ("told", "received"),
    [
        (b'INTERNALDATE "30-Nov-2026 09:15:28 +0000"', RECEIVED),
        (b'INTERNALDATE " 1-jan-2026 00:00:00 -0130"', datetime(2026, 1, 1, 1, 30, tzinfo=UTC)),
        (b'INTERNALDATE "31-Feb-2026 09:15:28 +0000"', None),
        (b'INTERNALDATE "30-Foo-2026 09:15:28 +0000"', None),
        (b'INTERNALDATE "30-Nov-2026 09:15:28 +9900"', None),
        (b"", None),
    ],
)
def test_the_time_of_arrival_is_read_in_any_zone(told: bytes, received: datetime | None) -> None:
    assert read_mail(7, 3, told, header(), None).received == received


def test_the_parts_of_a_fetch_come_in_any_order() -> None:
    """The UID may stand behind the literal, and what was not asked for has none."""
    parts = [b"1 (FLAGS (\\Seen))", (b"1 (BODY[] {2}", b"hi"), b" UID 5)", (b"2 (UID 6 BODY[] {2}", b"ho"), b")", None]
    assert {uid: raw for uid, (_, raw) in _read_fetched(parts)} == {5: b"hi", 6: b"ho"}
    assert list(_read_fetched([(b"no uid", b"x"), b")", (b"x",), 3])) == []


@settings(max_examples=500, deadline=None, database=None)
@given(st.binary(max_size=80), st.binary(max_size=200), st.none() | st.binary(max_size=200), st.booleans())
def test_no_mail_is_too_strange_to_be_read(told: bytes, head: bytes, raw: bytes | None, labelled: bool) -> None:
    """An archive holds what others sent. Red: let `_subject` or `_addresses` raise."""
    if labelled:
        head = (
            b"From: " + head + b"\r\nSubject: " + head + b"\r\nTo: " + told + b"\r\nMessage-ID: " + told + b"\r\n\r\n"
        )
        raw = (
            None
            if raw is None
            else b"Content-Type: " + told + b"\r\nContent-Transfer-Encoding: " + head + b"\r\n\r\n" + raw
        )
    found = read_mail(7, 3, told, head, raw)
    assert len(read_sightings((found,), WANTED)) <= 1
