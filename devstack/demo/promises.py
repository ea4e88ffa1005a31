"""What each scenario promises, and the comparison with what is there. The judges are the receivers' own records.

Pure: facts in, words out. Our ledger is asked only how an operation ended and who signed, never whether something happened.
"""

from collections.abc import Collection
from dataclasses import dataclass

from devstack.stripe_standin.rules import Journal

MACHINE = "machine"

# Where a row has several effects, one number for each of them.
Number = int | tuple[int, ...]


@dataclass(frozen=True)
class Promise:
    """How a scenario must end. `people` are those who must have signed for it; nobody means: by machine."""

    ended: str
    reached: Number  # requests that reached the receiver; at most `reached_at_most`, where time has a say in it
    effects: Number  # effects that exist
    people: tuple[str, ...] = ()
    lost: int = 0  # requests that were cut off before the receiver read them
    reached_at_most: int | None = None


@dataclass(frozen=True)
class Counts:
    """What the receivers' records say."""

    reached: Number
    lost: int
    effects: Number


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
        """Requests that reached the receiver, as the table shows them."""
        lost = f" ({self.counts.lost} lost on its way)" if self.counts.lost else ""
        return f"{shown(self.counts.reached)}{lost}"

    @property
    def effects(self) -> str:
        """Effects that exist, as the table shows them."""
        return shown(self.counts.effects)


def shown(number: Number) -> str:
    """One number, or several as 1/1/1."""
    return "/".join(map(str, number)) if isinstance(number, tuple) else str(number)


def count(journal: Journal, cut_off: Collection[str] = ()) -> Counts:
    """Count a payment's journal. `cut_off` are kinds of faults that were armed to act before Stripe reads a request."""
    posts = [a for a in journal.arrivals if a.method == "POST" and a.path == "/v1/refunds"]
    lost = [a for a in posts if set(a.faults) & set(cut_off)]
    living = [e for e in journal.effects if e.voided is None]
    return Counts(reached=len(posts) - len(lost), lost=len(lost), effects=len(living))


def differences(row: Row, promise: Promise) -> list[str]:
    """Everything in which a row is not as promised; empty if it is."""
    found = list(row.objections)
    if not _reached_as(promise, row.counts.reached):
        most = promise.reached_at_most
        wanted = shown(promise.reached) if most is None else f"{shown(promise.reached)} to {most}"
        found.append(f"requests that reached the receiver: promised {wanted}, there are {shown(row.counts.reached)}")
    for what, wished, there in (
        ("ended as", promise.ended, row.ended),
        ("effects that exist", shown(promise.effects), row.effects),
        ("requests lost before the receiver", str(promise.lost), str(row.counts.lost)),
        ("people who signed", ", ".join(promise.people) or "nobody", ", ".join(row.people) or "nobody"),
    ):
        if wished != there:
            found.append(f"{what}: promised {wished}, there is {there}")
    return found


def _reached_as(promise: Promise, reached: Number) -> bool:
    least, most = promise.reached, promise.reached_at_most
    if most is None or isinstance(least, tuple) or isinstance(reached, tuple):
        return reached == least
    return least <= reached <= most
