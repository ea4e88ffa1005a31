"""The trail: the chain notices what is changed, moved, lost or added, and every kind of event reads as a sentence."""

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from ledger.errors import Broken
from ledger.trail import (
    EVIDENCE,
    Event,
    EventKind,
    body_text,
    chain_hash,
    sentence,
    verify_bodies,
    verify_chain,
    verify_state,
)

STREAM = UUID("6d1b3a52-59b4-5d0c-9f3d-9a5d0a7b3c11")
FIRST_AT = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)
MIGRATION = Path(__file__).parents[2] / "ledger" / "store" / "migrations" / "0001_ledger.sql"


def event(number: int, kind: EventKind, previous: bytes, **given: Any) -> Event:
    """One chained event, as the trigger would write it."""
    body = given.pop("body", {"n": number})
    unsealed = Event(
        stream=STREAM,
        number=number,
        at=FIRST_AT + timedelta(seconds=number),
        kind=kind,
        edge=given.pop("edge", None),
        source=given.pop("source", None),
        target=given.pop("target", None),
        fence=given.pop("fence", 0),
        body=body,
        body_digest=hashlib.sha256(body_text(body).encode()).digest(),
        previous_hash=previous,
        hash=b"",
    )
    return replace(unsealed, hash=chain_hash(unsealed))


def trail() -> list[Event]:
    """Five events of an operation that was sent and lost."""
    told: list[tuple[EventKind, dict[str, Any]]] = [
        (EventKind.MOVED, {"edge": 1, "target": "proposed"}),
        (EventKind.MOVED, {"edge": 3, "source": "proposed", "target": "approved"}),
        (EventKind.MOVED, {"edge": 7, "source": "approved", "target": "in_flight", "fence": 1}),
        (EventKind.ATTEMPT_ANSWERED, {"fence": 1, "body": {"outcome": "unknown", "hint": "lost"}}),
        (EventKind.MOVED, {"edge": 13, "source": "in_flight", "target": "unknown", "fence": 1}),
    ]
    events: list[Event] = []
    for number, (kind, given) in enumerate(told, start=1):
        events.append(event(number, kind, events[-1].hash if events else b"", **given))
    return events


def verify(events: list[Event]) -> None:
    """Check a trail against the head that the untouched one left on the operation."""
    whole = trail()
    verify_chain(events, len(whole), whole[-1].hash)


def test_an_untouched_trail_verifies_from_its_first_event_to_its_head() -> None:
    """And a stream without events has an empty head."""
    verify(trail())
    verify_chain([], 0, b"")


def test_the_head_must_agree_in_both_number_and_hash() -> None:
    """A head that was turned back, or counts more than there is. Red when either comparison is dropped."""
    whole = trail()
    for count, head in ((6, whole[-1].hash), (4, whole[-1].hash), (5, whole[-2].hash), (5, b"")):
        with pytest.raises(Broken, match=f"5 events, but the head says {count}"):
            verify_chain(whole, count, head)


def test_the_hash_is_the_formula_of_the_trigger() -> None:
    """Written out once more by hand; the order and the separator of the fields are read from the migration."""
    moved = trail()[2]
    micros = (moved.at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    head = "\n".join([str(STREAM), "3", str(micros), "moved", "7", "approved", "in_flight", "1"])
    expected = hashlib.sha256(moved.previous_hash + hashlib.sha256(head.encode()).digest() + moved.body_digest).digest()
    assert chain_hash(moved) == expected
    text = " ".join(MIGRATION.read_text().split())
    formula = re.search(r"new\.hash := sha256\( ?(.*?)\); update operations", text)
    assert formula is not None
    assert formula[1] == (
        "head_before || sha256(convert_to(concat_ws(E'\\n', new.stream, new.number,"
        " (extract(epoch from new.at) * 1000000)::bigint, new.kind, coalesce(new.edge::text, ''),"
        " coalesce(new.source, ''), coalesce(new.target, ''), new.fence), 'UTF8')) || new.body_digest"
    )


@pytest.mark.parametrize(
    "change",
    [
        {"stream": UUID(int=1)},
        {"at": FIRST_AT + timedelta(seconds=3, microseconds=1)},
        {"kind": EventKind.PREFLIGHT},
        {"edge": 8},
        {"edge": None},
        {"source": "unknown"},
        {"target": "blocked"},
        {"fence": 2},
        {"body_digest": hashlib.sha256(b"{}").digest()},
        {"previous_hash": hashlib.sha256(b"").digest()},
        {"hash": hashlib.sha256(b"").digest()},
    ],
    ids=lambda c: next(iter(c)),
)
def test_a_changed_event_is_named(change: dict[str, Any]) -> None:
    """Every field but the readable body is in the hash. Red when `chain_hash` leaves one out."""
    events = trail()
    events[2] = replace(events[2], **change)
    with pytest.raises(Broken, match="event 3 does not continue the chain"):
        verify(events)


def test_a_changed_event_sealed_again_shows_in_the_next() -> None:
    """Whoever can compute hashes must rewrite everything after it, and then the head differs."""
    events = trail()
    forged = replace(events[2], target="blocked")
    events[2] = replace(forged, hash=chain_hash(forged))
    with pytest.raises(Broken, match="event 4 does not continue the chain"):
        verify(events)
    for n in (3, 4):
        linked = replace(events[n], previous_hash=events[n - 1].hash)
        events[n] = replace(linked, hash=chain_hash(linked))
    with pytest.raises(Broken, match="5 events, but the head says 5"):
        verify(events)


@pytest.mark.parametrize(
    ("reason", "tamper", "named"),
    [
        ("a number changed", lambda e: [*e[:2], replace(e[2], number=7), *e[3:]], "event 3 is missing"),
        ("an event left out", lambda e: [*e[:2], *e[3:]], "event 3 is missing"),
        ("the first left out", lambda e: e[1:], "event 1 is missing"),
        ("two exchanged", lambda e: [e[0], e[2], e[1], *e[3:]], "event 2 is missing"),
        ("two exchanged and numbered anew", lambda e: [e[0], replace(e[2], number=2), replace(e[1], number=3), *e[3:]],
         "event 2 does not continue the chain"),
        ("one twice", lambda e: [*e[:3], *e[2:]], "event 4 is missing"),
        ("the tail lost", lambda e: e[:-1], "4 events, but the head says 5"),
        ("everything lost", lambda e: [], "0 events, but the head says 5"),
        ("one too many", lambda e: [*e, event(6, EventKind.PREFLIGHT, e[-1].hash)], "6 events, but the head says 5"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_a_trail_that_lost_its_order_is_named(
    reason: str, tamper: Callable[[list[Event]], list[Event]], named: str
) -> None:
    """Red when `verify_chain` stops counting, or compares the head no more."""
    with pytest.raises(Broken, match=named):
        verify(tamper(trail()))


def test_a_changed_body_is_named_and_an_erased_one_may_be_left_out() -> None:
    """The chain holds digests: it stands without the bodies, and each body that is kept must fit its own."""
    raw = [(e.number, body_text(e.body), e.body_digest) for e in trail()]
    verify_bodies(raw)
    verify_bodies(raw[:1] + raw[2:])
    raw[3] = (4, raw[3][1].replace("unknown", "applied"), raw[3][2])
    with pytest.raises(Broken, match="event 4: its body"):
        verify_bodies(raw)


def test_the_moves_must_end_where_the_operation_stands() -> None:
    """A state that was changed beside the trail is noticed, and so is a trail whose moves do not join."""
    events = trail()
    verify_state(events, "unknown")
    with pytest.raises(Broken, match="ends in unknown, the operation stands at succeeded"):
        verify_state(events, "succeeded")
    with pytest.raises(Broken):
        verify_state(events[1:], "unknown")


def test_body_text_is_one_text_for_one_body() -> None:
    """Keys sorted, nothing spare, letters as they are; what JSON cannot hold is refused."""
    assert body_text({"b": 1, "a": "é"}) == '{"a":"é","b":1}' == body_text({"a": "é", "b": 1})
    assert json.loads(body_text({"a": [1, None, True]})) == {"a": [1, None, True]}
    with pytest.raises(ValueError, match="Out of range"):
        body_text({"a": float("nan")})


@pytest.mark.parametrize("kind", EventKind)
@pytest.mark.parametrize("body", [{}, {"unheard of": {"of": ["anything"]}}], ids=["empty", "strange"])
def test_every_kind_has_a_sentence(kind: EventKind, body: dict[str, Any]) -> None:
    """Whatever stands in the body: one line, not empty. Red when a kind is added without one."""
    told = sentence(event(1, kind, b"", body=body, edge=1 if kind is EventKind.MOVED else None, target="proposed"))
    assert isinstance(told, str)
    assert told.strip()
    assert "\n" not in told


def test_sentences_say_what_a_person_asks() -> None:
    """A few in full: the move with its row and reason, the late answer by its attempt, the alert in capitals."""
    body = {"row": "D10", "reason": "nothing safe"}
    moved = event(1, EventKind.MOVED, b"", edge=18, source="unknown", target="needs_review", body=body)
    assert sentence(moved) == "unknown → needs_review, edge 18 (D10): nothing safe"
    late = event(1, EventKind.LATE_ANSWER, b"", body={"attempt": 2, "outcome": "unknown", "hint": "lost"})
    assert sentence(late) == "late answer of attempt 2: unknown (lost)"
    assert sentence(event(1, EventKind.CONTRADICTION, b"", body={"what": "x"})) == "CONTRADICTION: x"
    looked = event(1, EventKind.SIGHTING, b"", body={"complete": True, "effects": [{}, {}]})
    assert sentence(looked) == "looked completely: 2 candidate(s)"


def test_what_changes_a_conclusion_is_evidence_and_what_repeats_one_is_not() -> None:
    """A resolution signed before one of these does not count: a look that agrees must not spoil it, news must."""
    assert EventKind.SIGHTING in EVIDENCE
    assert EventKind.SIGHTING_SAME not in EVIDENCE
    assert {EventKind.ATTEMPT_ANSWERED, EventKind.LATE_ANSWER, EventKind.LATE_SEND, EventKind.CONTRADICTION} < EVIDENCE
    assert EVIDENCE.isdisjoint({EventKind.STATEMENT_ACCEPTED, EventKind.STATEMENT_REFUSED, EventKind.JUNK_REFUSED})
