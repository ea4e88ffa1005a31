"""The audit's judgement, pure: one effect in a provider's own listing against what the ledger says of it.

1. An effect is ours if it names an operation, or if an operation holds its receipt. All others are none of our business.
2. An operation that was sent and has not ended is nobody's finding: the next look of its own workflow sees the same
   effect. One that was not sent may end before it ever looks, and no look sees an effect on another target.
3. A finding is a reason for a person, and moves nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from uuid import UUID

from ledger.model import Operation, Standing
from ledger.states import ENDED, State


class FindingKind(StrEnum):
    """What does not fit."""

    WITHOUT_RECORD = "without_record"  # an effect names an operation that this ledger does not have
    DUPLICATE = "duplicate"  # an effect names an operation whose effect is another one
    UNSENT = "unsent"  # an effect names an operation that this ledger has not sent
    ENDED_WITHOUT = "ended_without"  # an effect stands, and its operation ended without one
    DIFFERS = "differs"  # an effect of ours is not what was asked for
    VOID = "void"  # an effect is void, and the ledger counts it
    GONE = "gone"  # the ledger counts an effect that its provider does not show
    CHAIN = "chain"  # a row of the ledger that is not what its own chains, digests and signatures say
    WITHOUT_WORKFLOW = "without_workflow"  # an open operation that no workflow works on
    OVERDUE = "overdue"  # an operation whose next step was due
    WITHOUT_OPERATION = "without_operation"  # a workflow that the ledger has no operation for


_UNSENT = frozenset({State.PROPOSED, State.AWAITING_APPROVAL, State.APPROVED})


@dataclass(frozen=True)
class Finding:
    """One thing that does not fit, under the name of what was found: a receipt, or a workflow id."""

    kind: FindingKind
    name: str
    what: str
    operation_id: UUID | None = None


@dataclass(frozen=True)
class ListedEffect:
    """One effect as its provider lists it. What the listing does not tell is None, and is not compared."""

    receipt: str
    standing: Standing | None  # None: a word that we do not know
    marker: UUID | None  # the operation that it names, whosever
    targets: tuple[str, ...] = ()  # every name of what it was done to
    amount_minor: int | None = None
    currency: str | None = None
    created_at: datetime | None = None


def marker_from(text: object) -> UUID | None:
    """The operation id in a marker. Ours derive from names (version 5): anything else was never written by a ledger."""
    if not isinstance(text, str):
        return None
    try:
        found = UUID(text)
    except ValueError:
        return None
    return found if found.version == 5 and str(found) == text else None


def compare(effect: ListedEffect, named: Operation | None, holder: Operation | None) -> Iterator[Finding]:
    """What does not fit about one listed effect.

    `named` is the operation of its marker, `holder` the one whose receipt it is; both of this account and mode only, and
    read after the effect, so that what is sent meanwhile is known as sent.
    """
    stands = effect.standing is not Standing.VOID
    if holder is not None:
        yield from _held(effect, holder)
        if effect.marker not in (None, holder.operation_id):
            what = f"it is the effect of {holder.name}, and names another operation: its marker was edited"
            yield _finding(FindingKind.DIFFERS, effect, what, holder)
    elif effect.marker is None or not stands:
        return
    elif named is None:
        what = f"it names operation {effect.marker}, which this ledger does not have for this account"
        yield Finding(FindingKind.WITHOUT_RECORD, effect.receipt, what)
    elif named.receipt is not None:
        what = f"it names {named.name}, whose effect is {named.receipt}"
        yield _finding(FindingKind.DUPLICATE, effect, what, named)
    elif named.state in _UNSENT:
        what = f"it names {named.name}, which stands as {named.state}: this ledger has not sent it"
        yield _finding(FindingKind.UNSENT, effect, what, named)
    elif named.state not in ENDED:
        yield from _elsewhere(effect, named)
    else:
        what = f"it stands, and {named.name} ended as {named.state} without an effect"
        yield _finding(FindingKind.ENDED_WITHOUT, effect, what, named)


def missing(operation: Operation) -> Iterator[Finding]:
    """What does not fit where a provider shows nothing under the operation's receipt, listed or read by itself."""
    if operation.receipt is not None and operation.standing is not Standing.VOID:
        what = f"{operation.name} ended with this effect, and the provider does not show it"
        yield Finding(FindingKind.GONE, operation.receipt, what, operation.operation_id)


def _held(effect: ListedEffect, holder: Operation) -> Iterator[Finding]:
    if effect.standing is Standing.VOID and holder.standing is not Standing.VOID:
        what = f"it is void at the provider, and {holder.name} counts it as {holder.standing}"
        yield _finding(FindingKind.VOID, effect, what, holder)
    wanted = (holder.amount_minor, holder.currency)
    told = (effect.amount_minor, effect.currency)
    if None not in told and None not in wanted and told != wanted:
        what = f"it is {told[0]} {told[1]}, and {holder.name} asked for {wanted[0]} {wanted[1]} (minor units)"
        yield _finding(FindingKind.DIFFERS, effect, what, holder)
    yield from _elsewhere(effect, holder)
    if holder.state is not State.SUCCEEDED and effect.standing is not Standing.VOID:
        what = f"it is the receipt of {holder.name}, which stands as {holder.state}"
        yield _finding(FindingKind.ENDED_WITHOUT, effect, what, holder)


def _elsewhere(effect: ListedEffect, operation: Operation) -> Iterator[Finding]:
    if effect.targets and operation.target not in effect.targets:
        what = f"it was done to {effect.targets[0]}, and {operation.name} asked for {operation.target}"
        yield _finding(FindingKind.DIFFERS, effect, what, operation)


def _finding(kind: FindingKind, effect: ListedEffect, what: str, operation: Operation) -> Finding:
    return Finding(kind, effect.receipt, what, operation.operation_id)
