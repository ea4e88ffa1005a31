"""What may be done next about an operation that was sent: `decide`, a pure and total function of recorded facts.

1. Rows are tried in the order D0 to D10; the first that fits wins. Each row is one function below, in that order.
2. Absence proves nothing before `quiet_at` plus settling; it never sends and never rejects alone.
3. A key is used again only if the provider must still honour it when the last byte is worked on.
4. Evidence of our effect (a receipt, a marked sighting) beats every inference.
5. The caller chooses `now` (the ledger's clock, read after its locks) and freezes `contract` at the first claim.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from ledger.contract import Contract
from ledger.model import Attempt, Decision, Hint, MaySend, Outcome, SeenEffect, Sighting, Standing, Step

LOOKS_BEFORE_REVIEW = 3
JUST_AFTER = timedelta(milliseconds=1)  # a wait for what begins strictly after a moment ends this long after it


def decide(
    contract: Contract,
    attempts: Sequence[Attempt],
    sightings: Sequence[Sighting],
    now: datetime,
    may_send: MaySend,
    review_at: datetime,
) -> Decision:
    """The next permitted step. Total: every combination of facts gets a row. Delays are seconds from `now`."""
    facts = Facts(contract, tuple(attempts), tuple(sightings), now, may_send, review_at)
    for row in ROWS:
        decision = row(facts)
        if decision is not None:
            return decision
    raise AssertionError("D10 always answers")


def anchor(attempts: Sequence[Attempt]) -> datetime | None:
    """The earliest claim among attempts not proved without effect: the age of the key is counted from here."""
    return min((a.claimed_at for a in attempts if a.outcome is not Outcome.NO_EFFECT), default=None)


def quiet_at(contract: Contract, attempts: Sequence[Attempt]) -> datetime | None:
    """The moment after which no request of ours can still be worked on, by the contract; None if nothing was sent."""
    timing = contract.timing
    sent = [a for a in attempts if a.outcome is not Outcome.NO_EFFECT]
    if not sent:
        return None
    last_byte = max(
        a.late_send_at if a.late_send_at is not None else a.claimed_at + timedelta(seconds=timing.send_within)
        for a in sent
    )
    # An answer that was lost may have been a stored 5xx, which the provider may still roll forward.
    rolling = contract.roll_forward if any(a.outcome in (Outcome.UNKNOWN, None) for a in sent) else 0.0
    return last_byte + timedelta(seconds=timing.call_deadline + contract.processing + rolling)


def key_window_ends(contract: Contract, attempts: Sequence[Attempt]) -> datetime | None:
    """The last moment at which a repeat may be claimed; None without key terms or before anything was sent."""
    start = anchor(attempts)
    if contract.key is None or start is None:
        return None
    timing = contract.timing
    busy = timing.send_within + timing.call_deadline + contract.processing
    return start + timedelta(seconds=contract.key.lifetime - contract.key.margin - busy)


def stops_repeats(attempts: Sequence[Attempt]) -> bool:
    """Whether an attempt closes D7 for good: its answer is kept for our key, or it left late."""
    return any(_answers_the_same(a) or a.late_send_at is not None for a in attempts)


def qualified_absence(contract: Contract, attempts: Sequence[Attempt], sightings: Sequence[Sighting]) -> bool:
    """No open attempt, no living receipt, and two complete looks, late enough and apart, that saw nothing of ours."""
    living = any(standing is not Standing.VOID for standing in known_receipts(attempts, sightings).values())
    if living or any(a.outcome is None for a in attempts):
        return False
    reads = _reads_after_quiet(contract, attempts, sightings)
    return all(_nothing_of_ours(s) for s in reads) and _far_enough_apart(contract, reads)


def known_receipts(attempts: Sequence[Attempt], sightings: Sequence[Sighting]) -> dict[str, Standing]:
    """Every receipt known to be ours, with its latest standing.

    An answer may have been heard long before it is recorded, by a worker that was stopped meanwhile. So a void one counts as
    the latest until something that certainly began after it says otherwise.
    """
    told: list[tuple[datetime, datetime, str, Standing]] = []  # it became known between these two moments
    for a in attempts:
        if a.outcome is Outcome.APPLIED and a.receipt is not None and a.standing is not None:
            told.append((a.claimed_at, a.answered_at or a.claimed_at, a.receipt, a.standing))
    known = {receipt for _, _, receipt, _ in told} | {e.receipt for s in sightings for e in s.effects if e.ours}
    for s in sightings:
        told.extend((s.began_at, s.finished_at, e.receipt, e.standing) for e in s.effects if e.receipt in known)
    told.sort(key=lambda t: t[1])
    standings = {receipt: standing for _, _, receipt, standing in told}
    void = {receipt: until for _, until, receipt, standing in told if standing is Standing.VOID}
    for receipt, until in void.items():
        later = [standing for began, _, name, standing in told if name == receipt and began > until]
        standings[receipt] = later[-1] if later else Standing.VOID
    return standings


def after_look_again(
    attempts: Sequence[Attempt], sightings: Sequence[Sighting], at: datetime | None
) -> tuple[tuple[Attempt, ...], tuple[Sighting, ...]]:
    """The facts that still count after a signed look-again: older sightings and older `misused` hints do not."""
    if at is None:
        return tuple(attempts), tuple(sightings)
    kept = tuple(
        replace(a, hint=Hint.LOST)
        if a.hint is Hint.MISUSED and a.answered_at is not None and a.answered_at <= at
        else a
        for a in attempts
    )
    return kept, tuple(s for s in sightings if s.began_at > at)


def backoff_seconds(contract: Contract, count: int) -> float:
    """The pause after the `count`-th try (1, 2, …): doubling from the contract's first pause up to its cap."""
    exponent = min(max(count, 1) - 1, 30)
    return min(contract.timing.backoff * 2.0**exponent, contract.timing.backoff_cap)


@dataclass(frozen=True)
class Facts:
    """The arguments of `decide`, with what several rows derive from them."""

    contract: Contract
    attempts: tuple[Attempt, ...]
    sightings: tuple[Sighting, ...]
    now: datetime
    may_send: MaySend
    review_at: datetime

    @property
    def last(self) -> Attempt | None:
        """The attempt with the highest number."""
        return max(self.attempts, key=lambda a: a.number, default=None)

    @property
    def open(self) -> Attempt | None:
        """The attempt whose outcome nobody recorded yet."""
        return next((a for a in self.attempts if a.outcome is None), None)

    @property
    def latest_look(self) -> Sighting | None:
        """The latest complete look."""
        return max((s for s in self.sightings if s.complete), key=lambda s: s.began_at, default=None)

    @property
    def quiet_at(self) -> datetime | None:
        """`quiet_at` of these attempts."""
        return quiet_at(self.contract, self.attempts)

    @property
    def settled_at(self) -> datetime | None:
        """quiet_at plus settling: a complete look begun after this may be read as absence."""
        quiet = self.quiet_at
        return None if quiet is None else quiet + timedelta(seconds=_settling(self.contract))

    def receipts(self) -> dict[str, Standing]:
        """Every receipt known to be ours, with its latest standing."""
        return known_receipts(self.attempts, self.sightings)

    def strangers(self) -> list[SeenEffect]:
        """Effects in the latest complete look that carry our marker but are not what was asked for."""
        look = self.latest_look
        return [e for e in look.effects if e.marked and not e.matching] if look is not None else []

    def backoff_ends(self) -> datetime | None:
        """When the pause after the last attempt is over."""
        if self.last is None:
            return None
        told = self.last.answered_at or self.last.lease_until
        return told + timedelta(seconds=backoff_seconds(self.contract, len(self.attempts)))

    def seconds_until(self, moment: datetime) -> float:
        """Seconds from `now`, never negative."""
        return max((moment - self.now).total_seconds(), 0.0)


def _d0_open_attempt(f: Facts) -> Decision | None:
    attempt = f.open
    if attempt is None:
        return None
    if f.now < attempt.lease_until:
        return Decision("D0", Step.WAIT, "an attempt is open and its lease lives", f.seconds_until(attempt.lease_until))
    return Decision("D0", Step.CLOSE_ATTEMPT, "the lease is over: which side of the send its worker died on is unknown")


def _d1_one_receipt(f: Facts) -> Decision | None:
    receipts = f.receipts()
    if len(receipts) != 1 or f.strangers():
        return None
    ((receipt, standing),) = receipts.items()
    if standing is Standing.VOID:
        return None
    return Decision("D1", Step.SUCCEED, "exactly one matching effect is proved", receipt=receipt, standing=standing)


def _d2_too_much(f: Facts) -> Decision | None:
    if len(f.receipts()) > 1:
        return Decision("D2", Step.REVIEW, "two receipts are known for one operation")
    if f.strangers():
        return Decision("D2", Step.REVIEW, "an effect with our marker does not match what was asked for")
    if any(a.hint is Hint.MISUSED for a in f.attempts):
        return Decision("D2", Step.REVIEW, "the provider says the key was used for something else")
    return None


def _d3_all_proved(f: Facts) -> Decision | None:
    outcomes = {a.outcome for a in f.attempts}
    if outcomes <= {Outcome.NO_EFFECT}:
        return Decision("D3", Step.APPROVE_AGAIN, "every attempt is proved to have had no effect")
    if outcomes <= {Outcome.NO_EFFECT, Outcome.REFUSED}:
        return Decision("D3", Step.REJECT, "the provider refused, and every other attempt had no effect")
    if any(_refused_for_the_key(f, a) for a in f.attempts) and Outcome.APPLIED not in outcomes:
        reads = _reads_after_quiet(f.contract, f.attempts, f.sightings)
        if f.contract.lookup is None:
            return Decision("D3", Step.REJECT, "the provider stored its refusal for our key")
        if reads and _nothing_of_ours(reads[-1]):
            return Decision("D3", Step.REJECT, "the provider stored its refusal for our key, and a look agrees")
    return None


def _d4_void(f: Facts) -> Decision | None:
    receipts = f.receipts()
    if list(receipts.values()) != [Standing.VOID] or f.quiet_at is None or f.settled_at is None or f.last is None:
        return None
    if f.now > f.quiet_at:
        (receipt,) = receipts
        return Decision("D4", Step.REJECT, "the only effect is void", receipt=receipt, standing=Standing.VOID)
    if f.contract.lookup is not None:
        pause = _next_look(f, f.last, f.settled_at)
        return Decision("D4", Step.LOOK, "the only effect is void; an earlier request may still land", pause)
    pause = f.seconds_until(f.quiet_at + JUST_AFTER)
    return Decision("D4", Step.WAIT, "the only effect is void; an earlier request may still land", pause)


def _d5_version_moved(f: Facts) -> Decision | None:
    looked = f.latest_look
    if not f.contract.conditional_write or looked is None or f.settled_at is None:
        return None
    if looked.began_at <= f.settled_at or looked.version_moved is not True:
        return None
    if not f.contract.witness:
        return Decision("D5", Step.REVIEW, "the version moved, and no witness says by whom")
    if looked.witness_has_marker is False:
        return Decision("D5", Step.REJECT, "version_stale")
    return None  # the witness names us or was not read: a further look may show the effect itself


def _d6_backing_off(f: Facts) -> Decision | None:
    last, until = f.last, f.backoff_ends()
    if last is None or until is None or f.now >= until:
        return None
    if last.hint is Hint.BUSY or last.outcome is Outcome.NO_EFFECT:
        return Decision("D6", Step.WAIT, "the provider asked for a pause", f.seconds_until(until))
    return None


def _d7_repeat_with_key(f: Facts) -> Decision | None:
    closes = key_window_ends(f.contract, f.attempts)
    if closes is None or f.now > closes or f.may_send is MaySend.REVOKED:
        return None
    if stops_repeats(f.attempts):
        return None
    if f.may_send is MaySend.HELD:
        if f.now >= f.review_at:
            return None
        return Decision("D7", Step.WAIT, "sending is held", f.seconds_until(min(closes + JUST_AFTER, f.review_at)))
    pause = f.backoff_ends()
    if pause is not None and f.now < pause:
        return Decision("D7", Step.WAIT, "the same request may be repeated after a pause", f.seconds_until(pause))
    return Decision("D7", Step.REPEAT, "the provider still honours our key: same key, same bytes")


def _d8_repeat_condition(f: Facts) -> Decision | None:
    looked, last, pause = f.latest_look, f.last, f.backoff_ends()
    if not f.contract.conditional_write or looked is None or last is None or pause is None:
        return None
    if f.contract.versions_return:
        return None  # our write may have been applied and undone: then the same condition would let it through again
    unchanged = looked.version_moved is False and looked.began_at > (last.answered_at or last.lease_until)
    if unchanged and f.may_send is MaySend.YES and f.now >= pause and f.now < f.review_at:
        return Decision("D8", Step.REPEAT, "the record is unchanged: the same conditional write applies at most once")
    return None


def _d9_look(f: Facts) -> Decision | None:
    last, settled = f.last, f.settled_at
    if f.contract.lookup is None or last is None or settled is None:
        return None
    reads = _reads_after_quiet(f.contract, f.attempts, f.sightings)
    if _far_enough_apart(f.contract, reads):
        return None  # two complete looks, and nothing provably ours: a further look would only postpone the person
    tried = [s for s in f.sightings if s.began_at > settled]
    if f.now < f.review_at or len(tried) < LOOKS_BEFORE_REVIEW:
        pause = _next_look(f, last, settled)
        return Decision("D9", Step.LOOK, "the provider can be asked whether our effect exists", pause)
    return None


def _d10_review(f: Facts) -> Decision | None:
    return Decision("D10", Step.REVIEW, "nothing safe is left for a machine")


ROWS: tuple[Callable[[Facts], Decision | None], ...] = (
    _d0_open_attempt,
    _d1_one_receipt,
    _d2_too_much,
    _d3_all_proved,
    _d4_void,
    _d5_version_moved,
    _d6_backing_off,
    _d7_repeat_with_key,
    _d8_repeat_condition,
    _d9_look,
    _d10_review,
)


def _settling(contract: Contract) -> float:
    return contract.lookup.settling if contract.lookup is not None else 0.0


def _answers_the_same(attempt: Attempt) -> bool:
    """Whether the provider keeps this answer for our key, so that a repeat would only hear it again.

    An answer about another effect than ours is one of these as well: only a look can tell what happened.
    """
    return attempt.hint in (Hint.STORED_ERROR, Hint.MISMATCH) or _stored_refusal(attempt)


def _stored_refusal(attempt: Attempt) -> bool:
    return attempt.outcome is Outcome.REFUSED and attempt.stored


def _refused_for_the_key(f: Facts, attempt: Attempt) -> bool:
    """Whether the provider's stored answer for our key is this refusal: no request with the key had an effect."""
    closes = key_window_ends(f.contract, f.attempts)
    if closes is None or any(a.late_send_at is not None and a.late_send_at > closes for a in f.attempts):
        return False  # a request that left late may have found the key pruned, and the refusal with it
    return _stored_refusal(attempt) and attempt.claimed_at <= closes


def _nothing_of_ours(sighting: Sighting) -> bool:
    """Nothing good or pending that carries our marker, or could be ours with its marker edited away."""
    return not any(e.standing is not Standing.VOID and (e.marked or e.look_alike) for e in sighting.effects)


def _reads_after_quiet(
    contract: Contract, attempts: Sequence[Attempt], sightings: Sequence[Sighting]
) -> list[Sighting]:
    quiet = quiet_at(contract, attempts)
    if quiet is None or contract.lookup is None or not contract.lookup.complete:
        return []
    settled = quiet + timedelta(seconds=contract.lookup.settling)
    return sorted((s for s in sightings if s.complete and s.began_at > settled), key=lambda s: s.began_at)


def _far_enough_apart(contract: Contract, reads: Sequence[Sighting]) -> bool:
    if len(reads) < 2:
        return False
    return (reads[-1].began_at - reads[0].finished_at).total_seconds() >= _settling(contract) / 2


def _next_look(f: Facts, last: Attempt, settled: datetime) -> float:
    """Seconds until the next look: a doubling pause, but one falls due when absence begins to mean something."""
    sent_until = last.answered_at or last.lease_until
    since = [s for s in f.sightings if s.finished_at >= sent_until]
    late = [s for s in since if s.began_at > settled]
    if late:
        pause = max(backoff_seconds(f.contract, len(late)), _settling(f.contract) / 2)
        return f.seconds_until(max(s.finished_at for s in late) + timedelta(seconds=pause))
    told = max((s.finished_at for s in since), default=sent_until)
    due = told + timedelta(seconds=backoff_seconds(f.contract, len(since) + 1))
    if told <= settled < due:
        due = settled + JUST_AFTER  # at `settled` itself the look would not count
    return f.seconds_until(due)
