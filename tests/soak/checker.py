"""The judgement of a soak: every operation's trail, folded, against what its receiver's own records say. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ledger.states import ENDED, State


@dataclass(frozen=True)
class Fact:
    """One operation when everything has come to rest, as told by those who know: ledger, trail, receiver, line."""

    name: str  # action and business key
    state: str  # of its row; empty when the ledger never recorded it
    folded: str  # what its trail comes to
    receipt: str  # that the ledger believes in
    effects: tuple[str, ...]  # receipts of what the receiver has of it, by its own records; nothing of ours was asked
    sends: int  # how often its write went over the line
    attempts: int  # how many claims the ledger has
    next_step: str  # what the ledger says comes next
    overdue: bool  # that this was due, and nobody did it
    contradicted: bool = False  # evidence against its end, told to people


def differences(facts: Iterable[Fact]) -> list[str]:
    """Everything that must not be. Each sentence names its operation."""
    return [f"{fact.name}: {what}" for fact in facts for what in _wrong(fact)]


def _wrong(fact: Fact) -> Iterator[str]:
    if fact.folded != fact.state:
        yield f"its trail comes to {fact.folded or 'nothing'}, its row says {fact.state or 'nothing'}"
    if len(fact.effects) > 1:
        yield f"{len(fact.effects)} effects: {', '.join(fact.effects)}"
    if fact.sends > fact.attempts:
        yield f"sent {fact.sends} times on {fact.attempts} claims"
    if fact.state == State.SUCCEEDED and fact.effects != (fact.receipt,):
        yield f"succeeded with receipt {fact.receipt or 'none'}, but the receiver has {', '.join(fact.effects) or 'nothing'}"
    if fact.state in ("", State.REJECTED, State.BLOCKED) and fact.effects:
        yield f"{fact.state or 'never recorded'}, but the receiver has {', '.join(fact.effects)}"
    if fact.state and fact.state not in ENDED:
        if fact.overdue:
            yield f"{fact.state}, and its next step {fact.next_step!r} is overdue: nobody is told"
        if not fact.next_step:
            yield f"{fact.state}, and nothing comes next"
    if fact.contradicted:
        yield f"{fact.state}, and the ledger has evidence against it"
