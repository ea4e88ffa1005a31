"""What holds for recovery whatever the facts are, and that following its steps comes to an end."""

import copy
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.contract import Contract, Timing
from ledger.model import Attempt, Decision, Hint, MaySend, Outcome, SeenEffect, Sighting, Standing, Step
from ledger.recovery import ROWS, decide, key_window_ends, qualified_absence
from providers.stripe_refunds import CONTRACT as STRIPE
from tests.unit.recovery_facts import (
    CLOSES,
    QUIET,
    REVIEW_AT,
    SETTLED,
    SHAPES,
    START,
    US,
    at,
    look,
    unknown,
)

BOUNDED = settings(derandomize=True, max_examples=100, deadline=None, database=None)

# What is common in life is common here, or the rows at the end of the table would hardly be reached.
_BOUNDS = (0.0, 10.0, 40.0, 42.0, 45.0, QUIET, SETTLED, SETTLED + 31, 760.0, 820.0, CLOSES, REVIEW_AT)
_BETWEEN = [20.0, 90.0, 300.0, 500.0, 1000.0, 8000.0]
_MOMENTS = st.sampled_from([bound + step for bound in _BOUNDS for step in (-US, 0.0, US)] + _BETWEEN)
_CLAIMS = st.sampled_from([(0.0,)] * 6 + [(0.0, 100.0)] * 3 + [(0.0, CLOSES), (0.0, 100.0, 5000.0), ()])
_LOST = (Outcome.UNKNOWN, Hint.LOST)
_ANSWERS = st.sampled_from(
    [
        *[_LOST] * 14,
        (Outcome.UNKNOWN, Hint.BUSY),
        (Outcome.UNKNOWN, Hint.MISUSED),
        (Outcome.UNKNOWN, Hint.STORED_ERROR),
        (Outcome.UNKNOWN, Hint.MISMATCH),
        (Outcome.NO_EFFECT, Hint.NOT_SENT),
        (Outcome.REFUSED, Hint.NONE),
        (Outcome.APPLIED, Hint.NONE),
        (None, Hint.NONE),
    ]
)
_STANDINGS = st.sampled_from([Standing.GOOD, Standing.PENDING, Standing.VOID])


@st.composite
def _attempts(draw: st.DrawFn) -> tuple[Attempt, ...]:
    made = []
    claims = draw(_CLAIMS)
    for number, claimed in enumerate(claims, start=1):
        outcome, hint = draw(_ANSWERS)
        if outcome is None and number < len(claims):
            outcome, hint = _LOST  # only the last can be open
        attempt = replace(unknown(number, claimed, hint), outcome=outcome)
        if outcome is None:
            attempt = replace(attempt, answered_at=None)
        elif outcome is Outcome.REFUSED:
            attempt = replace(attempt, stored=draw(st.booleans()))
        elif outcome is Outcome.APPLIED:
            attempt = replace(attempt, receipt="re_1", standing=draw(_STANDINGS))
        elif outcome is Outcome.UNKNOWN:
            late = draw(st.sampled_from([None] * 18 + [11.0, 4000.0]))
            attempt = replace(attempt, late_send_at=None if late is None else at(claimed + late))
        made.append(attempt)
    return tuple(made)


_EFFECTS = st.sampled_from(
    [()] * 30
    + [(SeenEffect(receipt, standing, True, True),) for receipt in ("re_1", "re_2") for standing in Standing]
    + [(SeenEffect("re_1", Standing.GOOD, True, True), SeenEffect("re_2", Standing.VOID, True, True))]
    + [(SeenEffect("re_1", Standing.VOID, False, True),), (SeenEffect("re_3", Standing.GOOD, False, True),)]
    + [(SeenEffect("re_3", Standing.GOOD, True, False),), (SeenEffect("re_4", Standing.GOOD, False, False),)]
)
_THREE = st.sampled_from([None, False, False, True])
_LOOKS = st.builds(
    lambda began, effects, complete, moved, witness: look(
        began, *effects, complete=complete, moved=moved, witness=witness
    ),
    _MOMENTS,
    _EFFECTS,
    st.sampled_from([True, True, True, False]),
    _THREE,
    _THREE,
)


@dataclass(frozen=True)
class Known:
    """One set of arguments of `decide`."""

    contract: Contract
    attempts: tuple[Attempt, ...]
    sightings: tuple[Sighting, ...]
    now: datetime
    may_send: MaySend
    review_at: datetime

    def decide(self) -> Decision:
        """What recovery says."""
        return decide(self.contract, self.attempts, self.sightings, self.now, self.may_send, self.review_at)

    def living(self) -> set[str]:
        """Receipts of ours that were good or pending when last told of: counted here, not by recovery."""
        answered = [a for a in self.attempts if a.outcome is Outcome.APPLIED]
        told = [(a.answered_at or a.claimed_at, a.receipt, a.standing) for a in answered]
        mine = {receipt for _, receipt, _ in told} | {e.receipt for s in self.sightings for e in s.effects if e.ours}
        told += [(s.finished_at, e.receipt, e.standing) for s in self.sightings for e in s.effects if e.receipt in mine]
        latest = {r: max(t for t, receipt, _ in told if receipt == r) for r in mine}
        return {str(r) for t, r, standing in told if t == latest[r] and standing is not Standing.VOID}

    def mine(self) -> set[str]:
        """Every receipt of ours."""
        answered = {str(a.receipt) for a in self.attempts if a.outcome is Outcome.APPLIED}
        return answered | {e.receipt for s in self.sightings for e in s.effects if e.ours}

    def window_open(self) -> bool:
        """Whether a request that leaves as late as it may is worked on before the key may be pruned."""
        used = [a.claimed_at for a in self.attempts if a.outcome is not Outcome.NO_EFFECT]
        if self.contract.key is None or not used:
            return False
        timing = self.contract.timing
        busy = timing.send_within + timing.call_deadline + self.contract.processing
        last_safe = min(used) + timedelta(seconds=self.contract.key.lifetime - self.contract.key.margin)
        return self.now + timedelta(seconds=busy) <= last_safe

    def unusable_key(self) -> bool:
        """Whether the key's answer is stored, or a request left after its guard."""
        kept = (Hint.STORED_ERROR, Hint.MISMATCH)
        return any(a.hint in kept or a.stored or a.late_send_at is not None for a in self.attempts)


KNOWN = st.builds(
    Known,
    st.sampled_from(SHAPES),
    _attempts(),
    st.lists(_LOOKS, max_size=4).map(tuple),
    _MOMENTS.map(at),
    st.sampled_from([MaySend.YES] * 3 + [MaySend.HELD, MaySend.REVOKED]),
    st.sampled_from([0.0, 300.0, REVIEW_AT]).map(at),
)


@BOUNDED
@given(KNOWN)
def test_every_set_of_facts_gets_one_step_and_the_facts_stay_as_they_are(known: Known) -> None:
    """Total and pure: never raises, the same twice, nothing changed, and the row is one of the table."""
    before = copy.deepcopy(known)
    decision = known.decide()
    assert decision == known.decide()
    assert known == before
    assert decision.row in {f"D{n}" for n in range(len(ROWS))}
    assert decision.reason


@BOUNDED
@given(KNOWN)
def test_delays_are_finite_and_a_wait_is_for_something(known: Known) -> None:
    """A wait of nothing would turn in place for ever; only waiting and looking are put off."""
    decision = known.decide()
    assert 0.0 <= decision.delay_seconds < float("inf")
    if decision.step is Step.WAIT:
        assert decision.delay_seconds > 0
    elif decision.step is not Step.LOOK:
        assert decision.delay_seconds == 0


@BOUNDED
@given(KNOWN)
def test_never_repeats_where_a_second_effect_or_an_unallowed_one_could_follow(known: Known) -> None:
    """Red when D7 loses its window, held, revoked, stored or late clause, or D8 its look, review or condition."""
    decision = known.decide()
    if decision.step is not Step.REPEAT:
        return
    assert known.may_send is MaySend.YES
    assert known.attempts
    assert all(a.outcome is not None for a in known.attempts)
    assert not known.mine()
    if decision.row == "D7":
        assert known.window_open()
        assert not known.unusable_key()
    else:
        assert decision.row == "D8"
        assert known.contract.conditional_write
        assert known.now < known.review_at
        latest = max((s for s in known.sightings if s.complete), key=lambda s: s.began_at)
        assert latest.version_moved is False
        assert all(latest.began_at > a.claimed_at for a in known.attempts)


@BOUNDED
@given(KNOWN)
def test_never_succeeds_without_exactly_one_living_receipt(known: Known) -> None:
    """Red when D1 takes a void, a second or an unmarked effect."""
    decision = known.decide()
    if decision.step is Step.SUCCEED:
        assert {decision.receipt} == known.mine()
        assert decision.receipt in known.living()
        assert decision.standing in (Standing.GOOD, Standing.PENDING)


@BOUNDED
@given(KNOWN)
def test_never_rejects_nor_certifies_absence_while_an_effect_is_known(known: Known) -> None:
    """Evidence beats inference. Red when D3 moves before D1, or `qualified_absence` forgets receipts."""
    if known.decide().step in (Step.REJECT, Step.APPROVE_AGAIN):
        assert not known.living()
        assert all(a.outcome is not None for a in known.attempts)
    if qualified_absence(known.contract, known.attempts, known.sightings):
        assert not known.living()
        assert all(a.outcome is not None for a in known.attempts)


@BOUNDED
@given(KNOWN)
def test_a_person_is_asked_only_when_no_safe_step_is_left(known: Known) -> None:
    """D2 and D5 ask because evidence disagrees; D10 when neither a repeat, nor waiting for one, nor a look is left."""
    decision = known.decide()
    if decision.step is not Step.REVIEW:
        return
    complete = [s for s in known.sightings if s.complete]
    latest = max(complete, key=lambda s: s.began_at, default=None)
    if decision.row == "D2":
        mismatch = latest is not None and any(e.marked and not e.matching for e in latest.effects)
        assert len(known.mine()) > 1 or mismatch or any(a.hint is Hint.MISUSED for a in known.attempts)
    elif decision.row == "D5":
        assert known.contract.conditional_write
        assert not known.contract.witness
        assert latest is not None
        assert latest.version_moved
    else:
        repeatable = known.window_open() and not known.unusable_key()
        assert not (repeatable and known.may_send is MaySend.YES)
        assert not (repeatable and known.may_send is MaySend.HELD and known.now < known.review_at)
        if known.contract.lookup is not None:
            settled = known.attempts[0].claimed_at + timedelta(seconds=SETTLED)
            late = [s for s in known.sightings if s.began_at > settled]
            assert len(late) >= 3 or len([s for s in late if s.complete]) >= 2


# Liveness -----------------------------------------------------------------------------------------------------


@dataclass
class Provider:
    """A provider that never shows our effect, driven by a clock that only moves as decisions say."""

    contract: Contract
    may_send: MaySend = MaySend.YES
    review_at: datetime = at(REVIEW_AT)
    complete: bool = True
    answers: Hint | None = Hint.LOST  # None: the worker dies holding the answer
    moved: bool | None = None
    now: datetime = START
    attempts: list[Attempt] = field(default_factory=list)
    sightings: list[Sighting] = field(default_factory=list)
    steps: list[Decision] = field(default_factory=list)

    def send(self) -> None:
        """One attempt that tells nothing."""
        timing = self.contract.timing
        number, claimed = len(self.attempts) + 1, self.now
        attempt = Attempt(number=number, claimed_at=claimed, lease_until=claimed + timedelta(seconds=timing.lease))
        if self.answers is not None:
            self.now += timedelta(seconds=1 if self.answers is Hint.BUSY else timing.call_deadline)
            attempt = replace(attempt, outcome=Outcome.UNKNOWN, hint=self.answers, answered_at=self.now)
        self.attempts.append(attempt)

    def follow(self, limit: int) -> Decision:
        """Do what recovery says until a person is asked; stop after `limit` steps."""
        self.send()
        for _ in range(limit):
            decision = decide(self.contract, self.attempts, self.sightings, self.now, self.may_send, self.review_at)
            self.steps.append(decision)
            self.now += timedelta(seconds=decision.delay_seconds)
            match decision.step:
                case Step.REPEAT:
                    self.send()
                case Step.LOOK:
                    began, self.now = self.now, self.now + timedelta(seconds=0.4)
                    self.sightings.append(Sighting(began, self.now, self.complete, version_moved=self.moved))
                case Step.CLOSE_ATTEMPT:
                    told: dict[str, Any] = {"outcome": Outcome.UNKNOWN, "hint": Hint.LOST, "answered_at": self.now}
                    self.attempts[-1] = replace(self.attempts[-1], **told)
                case Step.WAIT:
                    pass
                case _:
                    return decision
        raise AssertionError(f"{limit} steps, and no end: {self.steps[-3:]}")

    def count(self, step: Step) -> int:
        """How often this step was taken."""
        return sum(d.step is step for d in self.steps)


@pytest.mark.parametrize("contract", SHAPES, ids=lambda c: c.name)
@pytest.mark.parametrize("may_send", MaySend)
@pytest.mark.parametrize("complete", [True, False], ids=["complete looks", "incomplete looks"])
def test_a_provider_that_never_shows_anything_ends_with_a_person(
    contract: Contract, may_send: MaySend, complete: bool
) -> None:
    """Liveness, and its price. Red when a wait or a look is due at the moment it does not count yet (`JUST_AFTER`)."""
    world = Provider(contract, may_send, complete=complete)
    decision = world.follow(limit=150)
    assert (decision.row, decision.step) == ("D10", Step.REVIEW)
    looks, repeats = world.count(Step.LOOK), world.count(Step.REPEAT)
    assert repeats == len(world.attempts) - 1
    assert repeats <= (20 if contract.key is not None and may_send is MaySend.YES else 0)
    if contract.lookup is None:
        assert looks == 0
    elif complete and contract.lookup.complete:
        assert looks <= 15
        assert qualified_absence(contract, world.attempts, world.sightings)
    else:
        assert 3 <= looks <= 40
        assert world.now >= world.review_at


@pytest.mark.parametrize("answers", [None, Hint.BUSY, Hint.UNREADABLE, Hint.STORED_ERROR])
@pytest.mark.parametrize("contract", SHAPES, ids=lambda c: c.name)
def test_whatever_it_answers_the_end_is_reached(contract: Contract, answers: Hint | None) -> None:
    """Workers that die, requests that run for ever, answers nobody can read: all bounded."""
    world = Provider(contract, answers=answers)
    assert world.follow(limit=150).row == "D10"
    if answers is Hint.STORED_ERROR:
        assert world.count(Step.REPEAT) == 0


@pytest.mark.parametrize("contract", [c for c in SHAPES if c.conditional_write], ids=lambda c: c.name)
def test_a_record_that_never_moves_is_written_again_only_until_review(contract: Contract) -> None:
    """D8 repeats after a fresh look each time and stops at review_at."""
    world = Provider(contract, moved=False)
    decision = world.follow(limit=150)
    assert decision.row == "D10"
    assert world.count(Step.REPEAT) <= 40
    assert all(a.claimed_at < world.review_at for a in world.attempts)


@pytest.mark.parametrize("review_at", [0.0, CLOSES, CLOSES + US, 30.0])
def test_held_comes_to_an_end_wherever_review_falls(review_at: float) -> None:
    """Also when the window closes at the very moment a person must be told."""
    for contract in SHAPES:
        world = Provider(contract, MaySend.HELD, at(review_at))
        assert world.follow(limit=150).row == "D10"
        assert world.count(Step.REPEAT) == 0


def test_stripe_is_asked_for_a_day_and_then_a_person() -> None:
    """The real contract, with longer pauses to keep this short: repeats to the end of the window, then two looks."""
    contract = STRIPE.model_copy(update={"timing": Timing(backoff_cap=1800)})
    world = Provider(contract, review_at=START + timedelta(days=1))
    world.follow(limit=300)
    closes = key_window_ends(contract, world.attempts)
    assert closes is not None
    assert closes - timedelta(seconds=1800 * 2) <= world.attempts[-1].claimed_at <= closes
    assert 40 <= world.count(Step.REPEAT) <= 60
    assert world.count(Step.LOOK) <= 40
    assert START + timedelta(hours=34) < world.now < START + timedelta(hours=36)
    assert qualified_absence(contract, world.attempts, world.sightings)


@BOUNDED
@given(
    st.sampled_from(SHAPES),
    st.sampled_from(MaySend),
    st.booleans(),
    st.sampled_from([None, Hint.LOST, Hint.BUSY]),
    st.sampled_from([1.0, 7.0, 60.0]),
    st.sampled_from([0.0, 100.0, 2000.0, CLOSES]),
)
def test_bounds_of_ours_change_how_long_it_takes_not_whether_it_ends(
    contract: Contract, may_send: MaySend, complete: bool, answers: Hint | None, backoff: float, review_at: float
) -> None:
    """Other pauses and review times than the usual ones."""
    timing = Timing(send_within=5, call_deadline=20, slack=1, backoff=backoff, backoff_cap=backoff * 64)
    changed = contract.model_copy(update={"timing": timing})
    world = Provider(changed, may_send, at(review_at), complete, answers)
    assert world.follow(limit=250).row == "D10"


def test_a_look_is_never_due_at_a_moment_when_it_would_not_count() -> None:
    """The look that falls due around settling begins strictly after it. Red when `JUST_AFTER` is zero."""
    world = Provider(next(c for c in SHAPES if c.name == "lookup only"))
    world.follow(limit=150)
    settled = world.attempts[0].claimed_at + timedelta(seconds=SETTLED)
    after = [s for s in world.sightings if s.began_at > settled]
    assert len(after) == 2
    assert after[0].began_at - settled < timedelta(seconds=1)


def test_living_counts_the_latest_word() -> None:
    """The judge of these tests itself: void after good is not living, good after void is."""
    good, void = SeenEffect("re_1", Standing.GOOD, True, True), SeenEffect("re_1", Standing.VOID, True, True)
    facts = Known(SHAPES[0], (unknown(),), (look(10, good), look(20, void)), at(30), MaySend.YES, at(40))
    assert facts.living() == set()
    assert replace(facts, sightings=facts.sightings[::-1]).living() == set()
    assert replace(facts, sightings=(look(10, void), look(20, good))).living() == {"re_1"}
