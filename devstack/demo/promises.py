"""What each scenario promises, and the comparison with what is there. The judge is the stand-in's own journal.

Pure: facts in, words out. Our ledger is asked only how an operation ended and who signed, never whether money moved.
"""

from collections.abc import Collection
from dataclasses import dataclass

from devstack.stripe_standin.rules import Journal

MACHINE = "machine"


@dataclass(frozen=True)
class Promise:
    """How a scenario must end. `people` are those who must have signed for it; nobody means: by machine."""

    ended: str
    reached: int  # requests that reached Stripe; at most `reached_at_most`, where time has a say in it
    refunds: int  # refunds that exist
    people: tuple[str, ...] = ()
    lost: int = 0  # requests that were cut off before Stripe read them
    reached_at_most: int | None = None


@dataclass(frozen=True)
class Counts:
    """What the journal of one payment says."""

    reached: int
    lost: int
    refunds: int


@dataclass(frozen=True)
class Row:
    """One line of the table: what is there, and what was found wrong while the scenario was played."""

    scenario: str
    ended: str
    counts: Counts
    people: tuple[str, ...]
    seconds: float
    objections: tuple[str, ...] = ()

    @property
    def by(self) -> str:
        """Whether people were needed, and who."""
        return f"person: {', '.join(self.people)}" if self.people else MACHINE

    @property
    def requests(self) -> str:
        """Requests that reached Stripe, as the table shows them."""
        lost = f" ({self.counts.lost} lost on its way)" if self.counts.lost else ""
        return f"{self.counts.reached}{lost}"


def count(journal: Journal, cut_off: Collection[str] = ()) -> Counts:
    """Count a payment's journal. `cut_off` are kinds of faults that were armed to act before Stripe reads a request."""
    posts = [a for a in journal.arrivals if a.method == "POST" and a.path == "/v1/refunds"]
    lost = [a for a in posts if set(a.faults) & set(cut_off)]
    living = [e for e in journal.effects if e.voided is None]
    return Counts(reached=len(posts) - len(lost), lost=len(lost), refunds=len(living))


def differences(row: Row, promise: Promise) -> list[str]:
    """Everything in which a row is not as promised; empty if it is."""
    found = list(row.objections)
    most = promise.reached if promise.reached_at_most is None else promise.reached_at_most
    if not promise.reached <= row.counts.reached <= most:
        wanted = str(most) if promise.reached == most else f"{promise.reached} to {most}"
        found.append(f"requests that reached Stripe: promised {wanted}, there are {row.counts.reached}")
    for what, wished, there in (
        ("ended as", promise.ended, row.ended),
        ("refunds that exist", promise.refunds, row.counts.refunds),
        ("requests lost before Stripe", promise.lost, row.counts.lost),
        ("people who signed", ", ".join(promise.people) or "nobody", ", ".join(row.people) or "nobody"),
    ):
        if wished != there:
            found.append(f"{what}: promised {wished}, there is {there}")
    return found
