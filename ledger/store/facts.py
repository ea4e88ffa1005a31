"""What a transaction told the trail, for whoever counts: handed over when its commit was acknowledged, and not before.

Kept beside the transaction, not on its connection, so that none of the functions that append has to pass a collector on.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from ledger.model import Operation
from ledger.states import State
from ledger.trail import EventKind


@dataclass(frozen=True)
class Fact:
    """One event as it was appended. `operation` is the one it is about, as it then stood; None in the ledger's own stream."""

    kind: EventKind
    body: Mapping[str, Any]
    operation: Operation | None = None
    edge: int | None = None  # of a move
    source: State | None = None


Counting = Callable[[Sequence[Fact]], None]  # must not raise: what it counts is committed already

_gathering: ContextVar[list[Fact] | None] = ContextVar("facts of the transaction that runs", default=None)


def tell(fact: Fact) -> None:
    """Note an event of the transaction that runs. Outside of `gathered` nobody listens."""
    if (told := _gathering.get()) is not None:
        told.append(fact)


@contextmanager
def gathered() -> Generator[list[Fact]]:
    """The facts that are told while this is open."""
    before, told = _gathering.get(), list[Fact]()
    _gathering.set(told)
    try:
        yield told
    finally:
        _gathering.set(before)
