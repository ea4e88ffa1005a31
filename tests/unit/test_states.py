"""The 23 edges: every legal move is accepted, every other refused, and the database holds the same rows."""

import re
from itertools import product
from pathlib import Path

import pytest

from ledger.errors import Broken
from ledger.states import BEFORE_FIRST_SEND, ENDED, RESERVING, TRANSITIONS, Edge, State, edge, fold

LEGAL = {(e.number, e.source, e.target) for e in TRANSITIONS}
MIGRATION = Path(__file__).parents[2] / "ledger" / "store" / "migrations" / "0001_ledger.sql"


@pytest.mark.parametrize("legal", TRANSITIONS, ids=lambda e: f"{e.number}-{e.source}-{e.target}")
def test_every_legal_move_is_found(legal: Edge) -> None:
    """By number and both ends, with its guard in words."""
    assert edge(legal.number, legal.source, legal.target) == legal
    assert legal.guard


def test_every_other_move_is_broken() -> None:
    """All numbers around the table times all ends. Red when `edge` compares fewer than three things."""
    refused = 0
    for number, source, target in product(range(-1, 26), (None, *State), State):
        if (number, source, target) in LEGAL:
            continue
        with pytest.raises(Broken, match=f"no edge {number} "):
            edge(number, source, target)
        refused += 1
    assert refused == 27 * 11 * 10 - len(LEGAL)


def test_the_table_has_23_numbers_and_24_rows() -> None:
    """Only edge 23 has two ends; no row stands twice; numbers run without gaps."""
    numbers = [e.number for e in TRANSITIONS]
    assert sorted(set(numbers)) == list(range(1, 24))
    assert [n for n in set(numbers) if numbers.count(n) > 1] == [23]
    assert len(LEGAL) == len(TRANSITIONS) == 24


def test_an_ended_operation_never_moves_again() -> None:
    """No edge leaves an end, and every state that none leaves is an end."""
    assert {e.source for e in TRANSITIONS if e.source in ENDED} == set()
    assert {s for s in State if s not in {e.source for e in TRANSITIONS}} == ENDED


def test_every_state_is_reached_and_every_open_one_can_end() -> None:
    """From nothing every state is reached; from every state some end is."""
    assert {e.target for e in TRANSITIONS} == set(State)
    ending = set(ENDED)
    for _ in State:
        ending |= {e.source for e in TRANSITIONS if e.target in ending and e.source is not None}
    assert ending == set(State)


def test_only_the_claims_lead_into_flight() -> None:
    """7 and 14 are the only ways to send: everything that stops sending stops these."""
    assert {e.number for e in TRANSITIONS if e.target is State.IN_FLIGHT} == {7, 14}


def test_what_was_sent_is_never_blocked_and_what_was_not_never_succeeds() -> None:
    """`blocked` means never sent: it is reached from states before the first send only; the effect needs a send."""
    assert {e.source for e in TRANSITIONS if e.target is State.BLOCKED} == BEFORE_FIRST_SEND
    sent = {State.IN_FLIGHT, State.UNKNOWN, State.NEEDS_REVIEW}
    for end in (State.SUCCEEDED, State.REJECTED):
        assert {e.source for e in TRANSITIONS if e.target is end} == sent
    assert {e.source for e in TRANSITIONS if e.target is State.UNDETERMINED} == {State.NEEDS_REVIEW}


def test_what_may_have_an_effect_reserves_its_amount() -> None:
    """Everything but waiting for judgement or approval, and the two ends without an effect."""
    assert set(State) - RESERVING == {State.PROPOSED, State.AWAITING_APPROVAL, State.REJECTED, State.BLOCKED}


def test_the_database_holds_the_same_rows() -> None:
    """Parsed from the migration's text: a change on one side only is noticed without a server."""
    text = MIGRATION.read_text()
    start = text.index("insert into edges (number, source, target) values")
    rows = re.findall(r"\((\d+), (null|'\w+'), '(\w+)'\)", text[start : text.index(";", start)])
    parsed = [(int(n), None if s == "null" else State(s.strip("'")), State(t)) for n, s, t in rows]
    assert parsed == [(e.number, e.source, e.target) for e in TRANSITIONS]


def test_no_later_migration_changes_edges_unseen() -> None:
    """Were one to, the test above would have to read it too."""
    for later in sorted(MIGRATION.parent.glob("*.sql"))[1:]:
        assert not re.search(r"\b(into|from|update)\s+edges\b", later.read_text()), later.name


Move = tuple[int, str | None, str]
TO_UNKNOWN: list[Move] = [
    (1, None, "proposed"),
    (3, "proposed", "approved"),
    (7, "approved", "in_flight"),
    (13, "in_flight", "unknown"),
]


def test_fold_of_nothing_is_nothing() -> None:
    """An operation without a move does not exist."""
    assert fold([]) is None


def test_fold_ends_where_the_moves_end() -> None:
    """Round trips included: look again, repeat, back to approved."""
    assert fold(TO_UNKNOWN) is State.UNKNOWN
    review: list[Move] = [(18, "unknown", "needs_review"), (22, "needs_review", "unknown")]
    repeat: list[Move] = [(14, "unknown", "in_flight"), (10, "in_flight", "succeeded")]
    assert fold([*TO_UNKNOWN, *review, *review, *repeat]) is State.SUCCEEDED
    again: list[Move] = [(17, "unknown", "approved"), (9, "approved", "awaiting_approval")]
    assert fold([*TO_UNKNOWN, *again, (5, "awaiting_approval", "approved")]) is State.APPROVED


def test_fold_accepts_the_empty_text_for_none() -> None:
    """A reader that gives '' for a missing source means the same."""
    assert fold([(1, "", "proposed")]) is State.PROPOSED


@pytest.mark.parametrize(
    ("reason", "moves"),
    [
        ("begins in the middle", TO_UNKNOWN[1:]),
        ("a move is missing", [TO_UNKNOWN[0], *TO_UNKNOWN[2:]]),
        ("a move stands twice", [*TO_UNKNOWN, TO_UNKNOWN[-1]]),
        ("two moves exchanged", [TO_UNKNOWN[0], TO_UNKNOWN[2], TO_UNKNOWN[1], TO_UNKNOWN[3]]),
        ("created twice", [TO_UNKNOWN[0], TO_UNKNOWN[0]]),
        ("a source that is not where it stood", [TO_UNKNOWN[0], (3, "awaiting_approval", "approved")]),
        ("no source in the middle", [TO_UNKNOWN[0], (3, None, "approved")]),
        ("the number of another edge", [*TO_UNKNOWN, (16, "unknown", "succeeded")]),
        ("an edge that does not exist", [*TO_UNKNOWN, (18, "unknown", "undetermined")]),
        ("a number that does not exist", [*TO_UNKNOWN, (24, "unknown", "succeeded")]),
        ("moves on after its end", [*TO_UNKNOWN, (15, "unknown", "succeeded"), (15, "unknown", "succeeded")]),
        ("leaves an end", [*TO_UNKNOWN, (15, "unknown", "succeeded"), (18, "succeeded", "needs_review")]),
        ("a state that does not exist", [*TO_UNKNOWN, (15, "unknown", "done")]),
    ],
)
def test_a_broken_trail_is_named_and_folds_to_nothing(reason: str, moves: list[Move]) -> None:
    """Red when `fold` stops comparing the source with where it stands, or `edge` the number."""
    with pytest.raises((Broken, ValueError)):
        fold(moves)
