"""What each answer of Stripe means: the table of answers, and that any bytes at all get a meaning."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.model import Hint, Outcome, Standing
from providers.stripe_answers import Wanted, classify, read_sighting
from providers.stripe_http import Answer

MINE = "8f14e45f-ceea-467f-a0e6-1d1f8b5f1c11"
OTHER = "c4ca4238-a0b9-4382-8dcc-509a6f75849b"
WANTED = Wanted("pi_1", 1000, "eur", MINE)
REFUND: dict[str, Any] = {
    "id": "re_1", "object": "refund", "amount": 1000, "currency": "eur", "payment_intent": "pi_1", "charge": "ch_1",
    "created": 1_767_225_600, "status": "succeeded", "metadata": {"operation_id": MINE}, "reason": None,
}  # fmt: skip
REPLAYED = {"idempotent-replayed": "true"}


def answer(status: int | None, body: Any = None, *, whole: bool = True, sent: bool = True, **headers: str) -> Answer:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer(sent, status, {"request-id": "req_1", **named}, raw, whole, "" if whole else "ReadError")


def says(kind: str | None = "invalid_request_error", code: str | None = None, **more: Any) -> dict[str, Any]:
    error = {"type": kind, "code": code, "message": "words", **more}
    return {"error": {name: value for name, value in error.items() if value is not None}}


HTML = b"<html>502 Bad Gateway</html>"
UNKNOWN, NO_EFFECT, REFUSED, APPLIED = Outcome.UNKNOWN, Outcome.NO_EFFECT, Outcome.REFUSED, Outcome.APPLIED
ROWS: list[tuple[str, Answer, Outcome, Hint, bool]] = [
    ("not sent", answer(None, sent=False, whole=False), NO_EFFECT, Hint.NOT_SENT, False),
    ("no answer", answer(None, whole=False), UNKNOWN, Hint.LOST, False),
    ("200 cut", answer(200, b'{"id": "re', whole=False), UNKNOWN, Hint.LOST, False),
    ("200 ours", answer(200, REFUND), APPLIED, Hint.NONE, False),
    ("200 ours, replayed", answer(200, REFUND, idempotent_replayed="true"), APPLIED, Hint.NONE, False),
    ("200 html", answer(200, HTML), UNKNOWN, Hint.UNREADABLE, False),
    ("200 empty", answer(200, b""), UNKNOWN, Hint.UNREADABLE, False),
    ("200 list", answer(200, [REFUND]), UNKNOWN, Hint.UNREADABLE, False),
    ("200 charge", answer(200, REFUND | {"object": "charge"}), UNKNOWN, Hint.UNREADABLE, False),
    ("200 no id", answer(200, REFUND | {"id": None}), UNKNOWN, Hint.UNREADABLE, False),
    ("200 unknown status", answer(200, REFUND | {"status": "paused"}), UNKNOWN, Hint.UNREADABLE, False),
    ("200 other payment", answer(200, REFUND | {"payment_intent": "pi_2"}), UNKNOWN, Hint.MISMATCH, False),
    ("200 other amount", answer(200, REFUND | {"amount": 999}), UNKNOWN, Hint.MISMATCH, False),
    ("200 amount true", answer(200, REFUND | {"amount": True}), UNKNOWN, Hint.MISMATCH, False),
    ("200 other currency", answer(200, REFUND | {"currency": "usd"}), UNKNOWN, Hint.MISMATCH, False),
    ("200 other marker", answer(200, REFUND | {"metadata": {"operation_id": OTHER}}), UNKNOWN, Hint.MISMATCH, False),
    ("200 no marker", answer(200, REFUND | {"metadata": {}}), UNKNOWN, Hint.MISMATCH, False),
    ("201", answer(201, REFUND), UNKNOWN, Hint.UNREADABLE, False),
    ("302", answer(302, b""), UNKNOWN, Hint.UNREADABLE, False),
    ("500 of the api", answer(500, says("api_error")), UNKNOWN, Hint.STORED_ERROR, True),
    ("503 of the api", answer(503, says("api_error")), UNKNOWN, Hint.STORED_ERROR, True),
    ("500 replayed", answer(500, says("api_error"), idempotent_replayed="true"), UNKNOWN, Hint.STORED_ERROR, True),
    ("500 replayed, cut", answer(500, b"{", whole=False, idempotent_replayed="true"), UNKNOWN, Hint.STORED_ERROR, True),
    ("500 cut", answer(500, b"{", whole=False), UNKNOWN, Hint.LOST, False),
    ("502 html", answer(502, HTML), UNKNOWN, Hint.LOST, False),
    ("503 html", answer(503, HTML), UNKNOWN, Hint.LOST, False),
    ("409 in use", answer(409, says(code="idempotency_key_in_use")), UNKNOWN, Hint.BUSY, False),
    ("409 other", answer(409, says(code="conflict")), UNKNOWN, Hint.UNREADABLE, False),
    ("429 rate", answer(429, says(code="rate_limit")), NO_EFFECT, Hint.NONE, False),
    ("429 lock", answer(429, says(code="lock_timeout")), NO_EFFECT, Hint.NONE, False),
    ("429 html", answer(429, HTML), UNKNOWN, Hint.UNREADABLE, False),
    ("429 replayed", answer(429, says(), idempotent_replayed="true"), UNKNOWN, Hint.UNREADABLE, False),
    ("401", answer(401, says()), NO_EFFECT, Hint.NONE, False),
    ("403", answer(403, says(code="account_invalid")), NO_EFFECT, Hint.NONE, False),
    ("403 html", answer(403, HTML), UNKNOWN, Hint.UNREADABLE, False),
    ("400 key misused", answer(400, says("idempotency_error")), UNKNOWN, Hint.MISUSED, False),
    ("400 refunded", answer(400, says(code="charge_already_refunded")), REFUSED, Hint.NONE, True),
    ("400 disputed", answer(400, says(code="charge_disputed")), REFUSED, Hint.NONE, True),
    ("400 over amount", answer(400, says(param="amount")), REFUSED, Hint.NONE, True),
    ("400 balance", answer(400, says(message="Insufficient funds in your")), REFUSED, Hint.NONE, True),
    ("400 not paid", answer(400, says(param="payment_intent")), REFUSED, Hint.NONE, False),
    ("400 validation", answer(400, says(code="parameter_invalid_integer", param="amount")), REFUSED, Hint.NONE, False),
    ("400 unknown parameter", answer(400, says(code="parameter_unknown")), REFUSED, Hint.NONE, False),
    ("400 replayed", answer(400, says(param="x"), idempotent_replayed="true"), REFUSED, Hint.NONE, True),
    ("400 rate, old form", answer(400, says(code="rate_limit")), UNKNOWN, Hint.UNREADABLE, False),
    ("400 code unlisted", answer(400, says(code="brand_new")), UNKNOWN, Hint.UNREADABLE, False),
    ("400 type unlisted", answer(400, says("brand_new")), UNKNOWN, Hint.UNREADABLE, False),
    ("400 code a list", answer(400, says(code=["charge_disputed"])), UNKNOWN, Hint.UNREADABLE, False),  # type: ignore[arg-type]
    ("400 html", answer(400, HTML), UNKNOWN, Hint.UNREADABLE, False),
    ("400 oauth", answer(400, {"error": "invalid_grant"}), UNKNOWN, Hint.UNREADABLE, False),
    ("402", answer(402, says("card_error", "card_declined")), REFUSED, Hint.NONE, False),
    ("404 payment", answer(404, says(code="resource_missing")), REFUSED, Hint.NONE, False),
    ("404 url", answer(404, says()), UNKNOWN, Hint.UNREADABLE, False),
    ("418", answer(418, says()), UNKNOWN, Hint.UNREADABLE, False),
]  # fmt: skip


@pytest.mark.parametrize(("name", "got", "outcome", "hint", "stored"), ROWS, ids=[row[0] for row in ROWS])
def test_the_table_of_answers(name: str, got: Answer, outcome: Outcome, hint: Hint, stored: bool) -> None:
    """Break any `case` of `classify`, or its first three lines, and rows go red."""
    seen = classify(got, WANTED)
    assert (seen.outcome, seen.hint, seen.stored) == (outcome, hint, stored)
    assert (seen.receipt is not None) == (outcome is APPLIED) == (seen.standing is not None)


@pytest.mark.parametrize(
    ("status", "standing"),
    [
        ("succeeded", Standing.GOOD),
        ("pending", Standing.PENDING),
        ("requires_action", Standing.PENDING),
        ("failed", Standing.VOID),
        ("canceled", Standing.VOID),
    ],
)
def test_an_applied_refund_keeps_its_outcome_whatever_became_of_it(status: str, standing: Standing) -> None:
    seen = classify(answer(200, REFUND | {"status": status}), WANTED)
    assert (seen.outcome, seen.receipt, seen.standing) == (APPLIED, "re_1", standing)
    assert read_sighting(REFUND | {"status": status}, WANTED).standing is standing


def test_a_charge_without_payment_intent_is_matched_by_charge() -> None:
    wanted = replace(WANTED, target="ch_1")
    assert classify(answer(200, REFUND | {"payment_intent": None}), wanted).outcome is APPLIED
    assert classify(answer(200, REFUND | {"charge": "ch_2"}), wanted).hint is Hint.MISMATCH
    assert classify(answer(200, REFUND | {"charge": {"id": "ch_1"}}), wanted).outcome is APPLIED


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=6,
)
BODIES = st.one_of(
    st.binary(max_size=60),
    JSON.map(lambda value: json.dumps(value).encode()),
    st.fixed_dictionaries({}, optional={name: JSON for name in REFUND}).map(
        lambda part: json.dumps(REFUND | part).encode()
    ),
    st.fixed_dictionaries({"error": st.dictionaries(st.sampled_from(["type", "code", "param", "message"]), JSON)}).map(
        lambda error: json.dumps(error).encode()
    ),
)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from([200, 400, 401, 402, 403, 404, 409, 429, 500, 503]), BODIES, st.booleans())
def test_any_bytes_get_a_meaning(status: int, body: bytes, replayed: bool) -> None:
    """Classification raises for nothing, and says applied for nothing but our very refund."""
    headers = {"request-id": "req_1"} | (REPLAYED if replayed else {})
    seen = classify(Answer(True, status, headers, body, True), WANTED)
    if seen.outcome is APPLIED:
        told = json.loads(body)
        assert status == 200 and told["amount"] == 1000 and told["metadata"]["operation_id"] == MINE
    for text in seen.detail.values():
        assert not isinstance(text, str) or (len(text) <= 300 and text.isprintable())


def test_the_detail_is_short_and_printable() -> None:
    """Break `words` and a provider can write escape sequences into a terminal."""
    noisy = answer(400, says(message="\x1b[31mred\u202e" + "x" * 1000, code="brand_new"))
    detail = classify(noisy, WANTED).detail
    assert len(detail["message"]) == 300 and detail["message"].isprintable()
    assert (detail["http_status"], detail["request_id"], detail["sent"]) == (400, "req_1", True)


SINCE = datetime.fromtimestamp(REFUND["created"], UTC)


@pytest.mark.parametrize(
    ("name", "change", "marked", "matching"),
    [
        ("ours", {}, True, True),
        ("ours, other amount", {"amount": 1}, True, False),
        ("ours, other payment", {"payment_intent": "pi_2"}, True, False),
        ("ours, older than we are", {"created": REFUND["created"] - 1}, True, False),
        ("ours, unknown status", {"status": "paused"}, True, False),
        ("foreign look-alike", {"metadata": {}}, False, True),
        ("marker edited", {"metadata": {"operation_id": "somebody"}}, False, True),
        # whose it really is, the ledger says: a marker alone can be edited to any id
        ("with another id as marker", {"metadata": {"operation_id": OTHER}}, False, True),
        ("metadata no object", {"metadata": None}, False, True),
        ("foreign, other amount", {"metadata": {}, "amount": 1}, False, False),
        ("created unreadable", {"created": "yesterday"}, True, False),
    ],
)
def test_what_a_listed_refund_is_to_us(name: str, change: dict[str, Any], marked: bool, matching: bool) -> None:
    seen = read_sighting(REFUND | change, WANTED, SINCE)
    assert (seen.marked, seen.matching) == (marked, matching)


def test_a_refund_of_our_first_second_counts() -> None:
    """Stripe tells whole seconds: without rounding `since` down, a refund made at once would be too old to be ours."""
    assert read_sighting(REFUND, WANTED, SINCE + timedelta(milliseconds=900)).matching
