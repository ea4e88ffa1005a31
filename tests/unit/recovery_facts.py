"""Builders for the tests of `ledger.recovery`: contracts of every shape, attempts and looks by seconds after the claim.

With these contracts (S 10, D 30, slack 5, processing 120, settling 60, key 3600 less 300) and one attempt claimed at 0:
lease over at 45, answered at 40, back-off over at 42, quiet at 160, settled at 220, key window closed at 3140.
"""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from ledger.contract import Contract, KeyTerms, LookupTerms
from ledger.model import Attempt, Hint, Outcome, SeenEffect, Sighting, Standing

START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)

LEASE, ANSWERED, PAUSE_OVER, QUIET, SETTLED, CLOSES = 45.0, 40.0, 42.0, 160.0, 220.0, 3140.0
ROLLED, ROLLED_SETTLED = 760.0, 820.0  # quiet and settled where an unknown answer may have been a stored 5xx
REVIEW_AT = 7200.0
US = 1e-6  # the smallest step of the ledger's clock


def at(seconds: float) -> datetime:
    """The moment this many seconds after the first claim."""
    return START + timedelta(seconds=seconds)


_KEY = KeyTerms(lifetime=3600, margin=300, stores_server_errors=True, stores_refusals=True)
_LOOKUP = LookupTerms(marker="metadata", settling=60, complete=True, marker_editable=True)

KEY_AND_LOOKUP = Contract(name="key and lookup", key=_KEY, lookup=_LOOKUP, processing=120)
KEY_ONLY = Contract(name="key only", key=_KEY, processing=120)
LOOKUP_ONLY = Contract(name="lookup only", lookup=_LOOKUP, processing=120)
WITNESSED = Contract(name="conditional, witness", lookup=_LOOKUP, processing=120, conditional_write=True, witness=True)
UNWITNESSED = Contract(name="conditional, no witness", lookup=_LOOKUP, processing=120, conditional_write=True)
HASHED = UNWITNESSED.model_copy(update={"name": "conditional, versions return", "versions_return": True})
NEITHER = Contract(name="neither", processing=120)
# Less common shapes, for what rows say to each other.
ROLLING = KEY_AND_LOOKUP.model_copy(update={"name": "roll-forward", "roll_forward": 600.0})
PAGED = LOOKUP_ONLY.model_copy(
    update={"name": "incomplete lookup", "lookup": _LOOKUP.model_copy(update={"complete": False})}
)
KEY_AND_PAGED = PAGED.model_copy(update={"name": "key, incomplete lookup", "key": _KEY})
KEYED_CONDITION = WITNESSED.model_copy(update={"name": "key and conditional", "key": _KEY})
BLIND_CONDITION = NEITHER.model_copy(update={"name": "conditional, no lookup", "conditional_write": True})

SHAPES: tuple[Contract, ...] = (
    KEY_AND_LOOKUP,
    KEY_ONLY,
    LOOKUP_ONLY,
    WITNESSED,
    UNWITNESSED,
    HASHED,
    NEITHER,
    ROLLING,
    PAGED,
    KEY_AND_PAGED,
    KEYED_CONDITION,
    BLIND_CONDITION,
)


def opened(number: int = 1, claimed: float = 0.0) -> Attempt:
    """An attempt that nobody recorded an answer for."""
    return Attempt(number=number, claimed_at=at(claimed), lease_until=at(claimed + LEASE))


def unknown(
    number: int = 1,
    claimed: float = 0.0,
    hint: Hint = Hint.LOST,
    *,
    answered: float | None = None,
    late_send: float | None = None,
) -> Attempt:
    """An attempt without a usable answer, told 40 seconds after its claim."""
    return replace(
        opened(number, claimed),
        outcome=Outcome.UNKNOWN,
        hint=hint,
        stored=hint is Hint.STORED_ERROR,
        answered_at=at(claimed + ANSWERED if answered is None else answered),
        late_send_at=None if late_send is None else at(late_send),
    )


def no_effect(number: int = 1, claimed: float = 0.0) -> Attempt:
    """An attempt that is proved not to have been executed."""
    return replace(unknown(number, claimed, Hint.NOT_SENT), outcome=Outcome.NO_EFFECT)


def refused(number: int = 1, claimed: float = 0.0, *, stored: bool = False) -> Attempt:
    """A definite no; `stored` when the provider answers a repeat of the key with it."""
    return replace(unknown(number, claimed, Hint.NONE), outcome=Outcome.REFUSED, stored=stored)


def applied(
    number: int = 1, claimed: float = 0.0, receipt: str = "re_1", standing: Standing = Standing.GOOD
) -> Attempt:
    """A usable answer: the effect exists."""
    return replace(unknown(number, claimed, Hint.NONE), outcome=Outcome.APPLIED, receipt=receipt, standing=standing)


def ours(receipt: str = "re_1", standing: Standing = Standing.GOOD) -> SeenEffect:
    """Our effect: marked and matching."""
    return SeenEffect(receipt, standing, marked=True, matching=True)


def stranger(receipt: str = "re_x", standing: Standing = Standing.GOOD) -> SeenEffect:
    """An effect with our marker that is not what was asked for."""
    return SeenEffect(receipt, standing, marked=True, matching=False)


def look_alike(receipt: str = "re_y", standing: Standing = Standing.GOOD) -> SeenEffect:
    """An effect that fits in everything but the marker."""
    return SeenEffect(receipt, standing, marked=False, matching=True)


def unrelated(receipt: str = "re_z") -> SeenEffect:
    """Somebody else's effect on the same target."""
    return SeenEffect(receipt, Standing.GOOD, marked=False, matching=False)


def look(
    began: float,
    *effects: SeenEffect,
    complete: bool = True,
    lasted: float = 1.0,
    moved: bool | None = None,
    witness: bool | None = None,
) -> Sighting:
    """What one look at the provider saw."""
    return Sighting(at(began), at(began + lasted), complete, effects, moved, witness)
