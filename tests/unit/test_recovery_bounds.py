"""What the rows of recovery lean on: anchor, quiet_at, key window, back-off, qualified absence, look-again."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from ledger import recovery
from ledger.contract import Contract
from ledger.model import Attempt, Hint, MaySend, Outcome, Sighting, Standing
from ledger.recovery import after_look_again, anchor, backoff_seconds, key_window_ends, qualified_absence, quiet_at
from tests.unit.recovery_facts import (
    CLOSES,
    KEY_AND_LOOKUP,
    KEY_ONLY,
    LOOKUP_ONLY,
    NEITHER,
    PAGED,
    QUIET,
    REVIEW_AT,
    ROLLED,
    ROLLING,
    SETTLED,
    US,
    applied,
    at,
    look,
    look_alike,
    no_effect,
    opened,
    ours,
    refused,
    stranger,
    unknown,
    unrelated,
)

LOST = (unknown(),)
VOID = Standing.VOID


def test_anchor_is_the_earliest_claim_that_may_have_used_the_key() -> None:
    """Red when `anchor` skips refused attempts (the key would be taken for younger) or keeps those without effect."""
    assert anchor([]) is None
    assert anchor([no_effect()]) is None
    assert anchor([unknown(2, 100), unknown()]) == at(0)
    assert anchor([refused(), unknown(2, 100)]) == at(0)
    assert anchor([opened(), unknown(2, 100)]) == at(0)
    assert anchor([no_effect(), unknown(2, 100), unknown(3, 200)]) == at(100)


def test_quiet_at_counts_from_the_latest_byte_that_may_have_left() -> None:
    """Claim + S + D + processing; a late send counts from its own moment; a lost answer may roll forward."""
    assert quiet_at(NEITHER, []) is None
    assert quiet_at(NEITHER, [no_effect()]) is None
    assert quiet_at(NEITHER, LOST) == at(QUIET)
    assert quiet_at(NEITHER, [unknown(), refused(2, 100)]) == at(100 + QUIET)
    assert quiet_at(NEITHER, [unknown(), no_effect(2, 100)]) == at(QUIET)
    assert quiet_at(NEITHER, [unknown(late_send=500), unknown(2, 100)]) == at(500 + 30 + 120)
    assert quiet_at(ROLLING, LOST) == at(ROLLED)
    assert quiet_at(ROLLING, [opened()]) == at(ROLLED)
    assert quiet_at(ROLLING, [refused()]) == at(QUIET)
    assert quiet_at(ROLLING, [unknown(), refused(2, 100)]) == at(100 + ROLLED)


def test_the_key_window_ends_while_the_last_repeat_can_still_be_worked_on() -> None:
    """claim + S + D + processing ≤ anchor + lifetime − margin. Red without any one of the five terms."""
    assert key_window_ends(KEY_ONLY, LOST) == at(3600 - 300 - 10 - 30 - 120) == at(CLOSES)
    assert key_window_ends(KEY_ONLY, [no_effect(), unknown(2, 100)]) == at(100 + CLOSES)
    assert key_window_ends(KEY_ONLY, []) is None
    assert key_window_ends(LOOKUP_ONLY, LOST) is None


def test_backoff_doubles_to_its_cap() -> None:
    """Never shorter than the first pause, never longer than the cap, whatever the count."""
    told = [backoff_seconds(KEY_ONLY, n) for n in (-5, 0, 1, 2, 3, 8, 9, 10_000)]
    assert told == [2, 2, 2, 4, 8, 256, 300, 300]


FIRST, SECOND = look(SETTLED + US), look(SETTLED + 31 + US)


@pytest.mark.parametrize(
    ("reason", "absent", "contract", "attempts", "looks"),
    [
        ("two complete looks, late enough and apart", True, LOOKUP_ONLY, LOST, (FIRST, SECOND)),
        ("in any order", True, LOOKUP_ONLY, LOST, (SECOND, FIRST)),
        ("others' effects are nothing of ours", True, LOOKUP_ONLY, LOST, (FIRST, look(300, unrelated()))),
        ("void effects are neither good nor pending", True, LOOKUP_ONLY, LOST,
         (FIRST, look(300, ours("re_1", VOID), ours("re_2", VOID), look_alike(standing=VOID)))),
        ("a third look between does no harm", True, LOOKUP_ONLY, LOST, (FIRST, look(230), SECOND)),
        ("incomplete looks between do no harm", True, LOOKUP_ONLY, LOST, (FIRST, look(230, complete=False), SECOND)),
        ("one look", False, LOOKUP_ONLY, LOST, (FIRST,)),
        ("none", False, LOOKUP_ONLY, LOST, ()),
        ("begun at the settling moment itself", False, LOOKUP_ONLY, LOST, (look(SETTLED), SECOND)),
        ("less than half the settling apart", False, LOOKUP_ONLY, LOST, (FIRST, look(SETTLED + 31))),
        ("apart only because the first took long", False, LOOKUP_ONLY, LOST, (look(SETTLED + US, lasted=20), SECOND)),
        ("the second incomplete", False, LOOKUP_ONLY, LOST, (FIRST, look(300, complete=False))),
        ("a listing that is never complete", False, PAGED, LOST, (FIRST, SECOND)),
        ("no lookup terms", False, KEY_ONLY, LOST, (FIRST, SECOND)),
        ("an attempt is open", False, LOOKUP_ONLY, (*LOST, opened(2, 1)), (look(900), look(1000))),
        ("nothing was sent", False, LOOKUP_ONLY, (no_effect(),), (FIRST, SECOND)),
        ("a look-alike in one", False, LOOKUP_ONLY, LOST, (look(SETTLED + US, look_alike()), SECOND)),
        ("our marker on something else", False, LOOKUP_ONLY, LOST, (FIRST, look(300, stranger()))),
        ("our effect", False, LOOKUP_ONLY, LOST, (FIRST, look(300, ours()))),
        ("our effect, seen earlier and gone", False, LOOKUP_ONLY, LOST, (look(50, ours()), FIRST, SECOND)),
        ("an answer that told a receipt", False, LOOKUP_ONLY, (applied(),), (FIRST, SECOND)),
        ("a later send moved the moment", False, LOOKUP_ONLY, (unknown(), unknown(2, 1)), (FIRST, SECOND)),
        ("a late send moved the moment", False, LOOKUP_ONLY, (unknown(late_send=100),), (FIRST, SECOND)),
        ("a lost answer may still roll forward", False, ROLLING, LOST, (FIRST, SECOND)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_qualified_absence(
    reason: str,
    absent: bool,
    contract: Contract,
    attempts: tuple[Attempt, ...],
    looks: tuple[Sighting, ...],
) -> None:
    """What two people may certify an absence on. Red when `>` in `_reads_after_quiet` becomes `>=`."""
    assert qualified_absence(contract, attempts, looks) is absent, reason


def test_look_again_forgets_older_looks_and_older_misuse_only() -> None:
    """A signed look-again at 100: receipts that were answered stay, and so does misuse told later."""
    old, new = unknown(hint=Hint.MISUSED), unknown(2, 200, Hint.MISUSED)
    attempts, looks = after_look_again(
        [old, new, applied(3, 20)], [look(50, stranger()), look(100), look(100 + US)], at(100)
    )
    assert [a.hint for a in attempts] == [Hint.LOST, Hint.MISUSED, Hint.NONE]
    assert attempts[0] == replace(old, hint=Hint.LOST)
    assert attempts[2].receipt == "re_1"
    assert looks == (look(100 + US),)


def test_look_again_takes_misuse_told_at_its_own_moment_for_older() -> None:
    """The person who signed has seen what stood there at that moment."""
    (same,), _ = after_look_again([unknown(hint=Hint.MISUSED, answered=100)], [], at(100))
    (later,), _ = after_look_again([unknown(hint=Hint.MISUSED, answered=100 + US)], [], at(100))
    assert (same.hint, later.hint) == (Hint.LOST, Hint.MISUSED)


def test_without_a_look_again_every_fact_counts() -> None:
    """The usual case changes nothing."""
    attempts, looks = [unknown(hint=Hint.MISUSED)], [look(50, stranger())]
    assert after_look_again(attempts, looks, None) == (tuple(attempts), tuple(looks))


def test_after_a_look_again_a_machine_settles_what_was_in_review() -> None:
    """Misused and a stranger sent it to review; afterwards only what is seen anew decides."""
    before = [unknown(hint=Hint.MISUSED)], [look(50, stranger())]
    attempts, looks = after_look_again(*before, at(100))

    def row(attempts: Sequence[Attempt], looks: Sequence[Sighting]) -> str:
        return recovery.decide(KEY_AND_LOOKUP, attempts, looks, at(120), MaySend.REVOKED, at(REVIEW_AT)).row

    assert row(*before) == "D2"
    assert row(attempts, looks) == "D9"
    assert row(attempts, (*looks, look(110, ours()))) == "D1"


def test_a_receipt_without_standing_is_no_proof() -> None:
    """Such a row cannot be stored; if it were, it would not end anything. Nor does one in an unusable answer."""
    half = replace(applied(), standing=None)
    none = replace(applied(), receipt=None)
    told = replace(applied(), outcome=Outcome.UNKNOWN)  # an answer about something else may name a receipt
    assert recovery.known_receipts([half, none, told], []) == {}
    assert recovery.known_receipts([applied()], []) == {"re_1": Standing.GOOD}


def test_void_is_the_latest_standing_until_something_began_after_it() -> None:
    """An answer heard at 1 and recorded at 300, by a worker that was stopped, does not undo what a look saw between them.

    Red: the standing that was recorded last (`told.sort` by `answered_at` alone).
    """
    void = look(200, ours(standing=Standing.VOID))
    held_back = replace(applied(), answered_at=at(300))
    later = applied(2, 250)
    assert recovery.known_receipts([held_back], []) == {"re_1": Standing.GOOD}
    assert recovery.known_receipts([held_back], [void]) == {"re_1": Standing.VOID}
    assert recovery.known_receipts([held_back], [void, look(201, ours())]) == {"re_1": Standing.VOID}
    assert recovery.known_receipts([held_back], [void, look(201.5, ours())]) == {"re_1": Standing.GOOD}
    assert recovery.known_receipts([replace(later, answered_at=at(260)), held_back], [void]) == {"re_1": Standing.GOOD}
    decision = recovery.decide(KEY_AND_LOOKUP, [held_back], [void], at(400), MaySend.YES, at(REVIEW_AT))
    assert (decision.row, decision.standing) == ("D4", Standing.VOID)
