"""Which faults may happen, and the sizes in which the shapes are explored: small in `make test`, large in `make explore`."""

from tests.exploration.environment import Scenario
from tests.exploration.shapes import (
    KEY_AND_LOOKUP,
    KEY_ONLY,
    LOOKUP_ONLY,
    NEITHER,
    ROLLING_KEY,
    SHAPES,
    UNWITNESSED,
    WITNESSED,
)

WORKERS = ("worker stopped", "worker crashed", "all workers down", "started twice", "answer recorded twice")
WIRE = ("answer lost", "request lost", "request delayed")
ANSWERS = ("answered 429", "refused", "answered 5xx", "key misused", "answer mismatched")
RECEIVER = (
    "lookup lags",
    "list incomplete",
    "key pruned late",
    "record edited by somebody",
    "effect pending",
    "effect turned void",
    "marker edited away",
    "stranger with our marker",
    "ledger restored",
    "webhook",
)
PEOPLE = (
    "nobody approves",
    "approval revoked",
    "grant revoked",
    "policy changed",
    "withdrawn",
    "hold set",
    "hold released",
    "look again",
    "did not happen",
    "undetermined",
    "happened",
)
EVERYTHING = frozenset((*WORKERS, *WIRE, *ANSWERS, *RECEIVER, *PEOPLE, "clock set back", "clock set back in flight"))
WAIVED, SIGNED = (1_500,), (3_500,)  # amounts: waived, signed by a person
TWO, TWINS = (2_500, 2_000), (1_500, 1_500)  # two operations on one payment: too much together, or the same thing twice
CHAIN = (1_500, 1_000)  # the second depends on the first
CHANGING = frozenset(("effect pending", "effect turned void", "webhook"))  # what receipts go through
RACING = CHANGING | {"worker stopped", "worker crashed", "started twice", "answer lost", "list incomplete"}
RESTING = frozenset(("effect turned void", "webhook", "answer lost", "refused", "policy changed", "withdrawn"))


def small() -> list[Scenario]:
    """Every shape with any one fault, two operations on one payment, receipts that change, and one that rests on another.

    Pairs of faults are explored by the mutants' scenarios.
    """
    shapes = [Scenario(shape, EVERYTHING, 1, amounts) for shape in SHAPES for amounts in (WAIVED, SIGNED)]
    two = [Scenario(KEY_AND_LOOKUP, EVERYTHING, 1, amounts) for amounts in (TWO, TWINS)]
    held = Scenario(KEY_ONLY, frozenset(("hold set", "hold released", "answer lost")), 3)
    given_up = Scenario(NEITHER, frozenset(("request lost", "did not happen", "undetermined")), 2)
    followed = Scenario(KEY_AND_LOOKUP, CHANGING, 3)
    chained = Scenario(KEY_AND_LOOKUP, RESTING, 1, CHAIN, chained=True)
    return [*shapes, *two, held, given_up, followed, chained]


def nightly() -> list[Scenario]:
    """Every shape with any two faults, two operations on one payment, receipts that change, any three faults of every shape."""
    return [
        *(Scenario(shape, EVERYTHING, 2, SIGNED) for shape in SHAPES),
        *(Scenario(shape, EVERYTHING, 2, TWO) for shape in (KEY_AND_LOOKUP, LOOKUP_ONLY)),
        *(Scenario(shape, RACING, 4) for shape in (KEY_AND_LOOKUP, UNWITNESSED)),
        Scenario(KEY_AND_LOOKUP, EVERYTHING, 2, CHAIN, chained=True),
        *(Scenario(shape, EVERYTHING, 3) for shape in (NEITHER, KEY_ONLY, LOOKUP_ONLY, UNWITNESSED)),
        *(Scenario(shape, EVERYTHING, 3) for shape in (WITNESSED, KEY_AND_LOOKUP, ROLLING_KEY)),
    ]
