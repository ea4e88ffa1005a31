"""Webhooks of Stripe without a server: what is verified, what is refused and why, and what is kept of an event."""

import hashlib
import hmac
import json
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as some
from stripe import WebhookSignature

from devstack.stripe_standin import webhooks
from ledger.errors import Refused
from ledger.model import InboxEvent
from providers.stripe_events import CLOCKS_DIFFER_BY, MAX_BODY, parse, read_event

NOW = 1_800_000_000.0
SECRET, PREVIOUS = "whsec_current", "whsec_previous"
MARKER = "11111111-2222-5333-8444-555555555555"


def event(thing: dict[str, Any] | None = None, **changes: Any) -> bytes:
    """The body of an event about a refund of ours, with changes; a change to None takes the field away."""
    refund = {
        "id": "re_1",
        "object": "refund",
        "amount": 1500,
        "payment_intent": "pi_1",
        "charge": "ch_1",
        "metadata": {"operation_id": MARKER},
        "instructions_email": "somebody@example.test",
        "status": "succeeded",
    }
    fields = {
        "id": "evt_1",
        "object": "event",
        "created": 1_799_999_990,
        "livemode": False,
        "type": "refund.updated",
        "data": {"object": refund if thing is None else thing},
        **changes,
    }
    return json.dumps({name: value for name, value in fields.items() if value is not None}).encode()


def signed(body: bytes, secret: str = SECRET, at: float = NOW) -> str:
    """The header, computed here and not by the SDK."""
    seal = hmac.new(secret.encode(), f"{int(at)}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={int(at)},v1={seal}"


def read(body: bytes, header: str, *secrets: str) -> InboxEvent:
    """The event, for the account acct_own."""
    return read_event(body, header, secrets or (SECRET,), NOW, own_account="acct_own")


def test_a_signed_event_is_read_down_to_its_ids() -> None:
    """Nothing else of the body is kept: not the address that stands in it."""
    body = event()
    assert read(body, signed(body)) == InboxEvent(
        provider="stripe",
        event_id="evt_1",
        account="acct_own",
        livemode=False,
        type="refund.updated",
        created_at=datetime.fromtimestamp(1_799_999_990, UTC),
        receipt="re_1",
        target="pi_1",
        marker=UUID(MARKER),
        body_digest=hashlib.sha256(body).digest(),
    )


def test_the_signature_of_stand_in_and_sdk_is_the_same() -> None:
    """Three makers of one header: this file, the stand-in, and Stripe's own SDK."""
    body = event()
    assert signed(body) == webhooks.signature(body, SECRET, NOW)
    assert signed(body) == WebhookSignature.generate_signature_header(body.decode(), SECRET, int(NOW))


def test_while_a_secret_is_rotated_both_are_good_and_no_third() -> None:
    """Red: try the first secret only in `verify`."""
    body = event()
    for secret in (SECRET, PREVIOUS):
        assert read(body, signed(body, secret), SECRET, PREVIOUS).event_id == "evt_1"
    with pytest.raises(Refused) as refused:
        read(body, signed(body, "whsec_third"), SECRET, PREVIOUS)
    assert refused.value.rule == "signature_wrong"
    # Stripe signs with both during a rotation: two signatures under one time
    two = signed(body, PREVIOUS) + "," + signed(body).partition(",")[2]
    assert read(body, two, SECRET).event_id == "evt_1"


OTHER = event(id="evt_2")
REFUSED: list[tuple[str, bytes, str, str]] = [
    ("no header", event(), "", "signature_missing"),
    ("another secret", event(), signed(event(), "whsec_wrong"), "signature_wrong"),
    ("an altered body", event().replace(b"re_1", b"re_2"), signed(event()), "signature_wrong"),
    ("one more space", event() + b" ", signed(event()), "signature_wrong"),
    ("another body's signature", event(), signed(OTHER), "signature_wrong"),
    ("bytes that are no text", b"\xff\xfe", signed(b"\xff\xfe"), "signature_wrong"),
    ("an unknown scheme", event(), signed(event()).replace("v1=", "v0="), "signature_wrong"),
    ("another time than signed", event(), signed(event()).replace("t=18", "t=17"), "signature_wrong"),
    ("old", event(), signed(event(), at=NOW - CLOCKS_DIFFER_BY - 1), "signature_old"),
    ("from the future", event(), signed(event(), at=NOW + CLOCKS_DIFFER_BY + 1), "signature_future"),
    ("from the year 30000", event(), signed(event(), at=884_541_600_000), "signature_future"),
    ("no time", event(), signed(event()).partition(",")[2], "signature_malformed"),
    ("two times", event(), "t=1," + signed(event()), "signature_malformed"),
    ("a time in words", event(), signed(event()).replace(f"t={int(NOW)}", "t=now"), "signature_malformed"),
    ("a time in Arabic digits", event(), "t=١,v1=00", "signature_malformed"),
    ("a long header", event(), signed(event()) + ",v1=" + "0" * 5000, "signature_malformed"),
    ("huge", b" " * (MAX_BODY + 1), signed(b" " * (MAX_BODY + 1)), "body_too_large"),
]


@pytest.mark.parametrize(("body", "header", "rule"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED])
def test_what_is_not_signed_so_is_refused(body: bytes, header: str, rule: str) -> None:
    """Red: "from the future" when `verify` leaves times to the SDK, "two times" when `_time_in` takes the first."""
    with pytest.raises(Refused) as refused:
        read(body, header)
    assert refused.value.rule == rule


@pytest.mark.parametrize("late", [-CLOCKS_DIFFER_BY, 0, CLOCKS_DIFFER_BY])
def test_five_minutes_either_way_are_good(late: int) -> None:
    """Deliveries take time, and clocks differ."""
    body = event()
    assert read(body, signed(body, at=NOW + late)).event_id == "evt_1"


MALFORMED: list[tuple[str, bytes]] = [
    ("not JSON", b"refunded, promise"),
    ("nothing", b""),
    ("a list", b"[]"),
    ("deeper than any parser goes", b"[" * 100_000),
    ("a number of 6000 digits", b'{"object": "event", "created": ' + b"9" * 6000 + b"}"),
    ("no event", event(object="refund")),
    ("a thin event of API v2", event(object="v2.core.event")),
    ("no id", event(id=None)),
    ("an id with a path in it", event(id="../evt_1")),
    ("no type", event(type=None)),
    ("a type that is a sentence", event(type="refund of Ann's")),
    ("no time", event(created=None)),
    ("a time that is no number", event(created="now")),
    ("a time that is a truth", event(created=True)),
    ("a time no column holds", event(created=10**15)),
    ("no mode", event(livemode=None)),
    ("a mode in words", event(livemode="false")),
    ("an account that is a number", event(account=5)),
]


@pytest.mark.parametrize("body", [m[1] for m in MALFORMED], ids=[m[0] for m in MALFORMED])
def test_what_is_signed_and_no_event_is_refused(body: bytes) -> None:
    """A signature says who sent it, not that it can be read."""
    with pytest.raises(Refused) as refused:
        read(body, signed(body))
    assert refused.value.rule == "event_malformed"


CHARGE = {"id": "ch_1", "object": "charge", "payment_intent": "pi_1", "metadata": {"operation_id": MARKER}}
IDS: list[tuple[str, dict[str, Any], tuple[str | None, str | None, str | None]]] = [
    ("a refund of a charge without intent", {"id": "pyr_1", "object": "refund", "charge": "ch_1"}, ("pyr_1", "ch_1", None)),
    ("an expanded intent", {"id": "re_1", "object": "refund", "payment_intent": {"id": "pi_1"}}, ("re_1", "pi_1", None)),
    ("a charge", CHARGE, (None, "pi_1", None)),
    ("a charge of its own", {"id": "ch_1", "object": "charge", "payment_intent": None}, (None, "ch_1", None)),
    ("an intent", {"id": "pi_1", "object": "payment_intent"}, (None, "pi_1", None)),
    ("a dispute", {"id": "du_1", "object": "dispute", "charge": "ch_1", "payment_intent": "pi_1"}, (None, "pi_1", None)),
    ("a customer", {"id": "cus_1", "object": "customer", "email": "somebody@example.test"}, (None, None, None)),
    ("somebody else's marker", {"id": "re_1", "object": "refund", "metadata": {"operation_id": "Ann"}}, ("re_1", None, None)),
    ("a marker in capitals", {"id": "re_1", "object": "refund", "metadata": {"operation_id": "A" * 32}}, ("re_1", None, None)),
    ("ids that are none", {"id": "re/1", "object": "refund", "payment_intent": ["pi_1"], "charge": 3}, (None, None, None)),
    ("nothing in it", {}, (None, None, None)),
]  # fmt: skip


@pytest.mark.parametrize(("thing", "ids"), [i[1:] for i in IDS], ids=[i[0] for i in IDS])
def test_which_ids_an_event_is_about(thing: dict[str, Any], ids: tuple[str | None, ...]) -> None:
    """Also of types that nobody knows yet: whatever can be read is kept, and nothing but ids."""
    found = parse(event(thing, type="something.new.altogether"), "acct_own")
    assert (found.receipt, found.target, found.marker and str(found.marker)) == ids


def test_an_event_of_a_connected_account_is_its_own() -> None:
    """Red: take the endpoint's account for every event."""
    assert parse(event(account="acct_connected", livemode=True), "acct_own").account == "acct_connected"


@given(body=some.binary(max_size=200), header=some.text(max_size=100))
def test_any_bytes_under_any_header_are_refused_and_nothing_else_is_raised(body: bytes, header: str) -> None:
    """Nobody signs by chance."""
    for under in (header, f"t={int(NOW)},v1={header}", f"t={int(NOW)},{header}"):
        with pytest.raises(Refused):
            read(body, under)


json_values = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats() | some.text(max_size=20),
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(some.text(max_size=10), inner, max_size=3),
    max_leaves=8,
)


@given(
    thing=json_values, changes=some.dictionaries(some.sampled_from(["id", "type", "created", "account"]), json_values)
)
def test_any_signed_json_is_an_event_or_refused(thing: Any, changes: dict[str, Any]) -> None:
    """Whoever has the secret still cannot break the reader."""
    body = json.dumps({**json.loads(event()), "data": {"object": thing}, **changes}).encode()
    try:
        found = read(body, signed(body))
    except Refused as refused:
        assert refused.rule == "event_malformed"
    else:
        assert found.event_id and found.account
