"""The states of an operation and the 23 legal edges between them.

1. Everything that decides which moves are legal stands in this file; `edges` in Postgres holds the same rows (a test compares).
2. A move names its edge by number, because two edges may join the same states on different proof.
3. An ended operation never moves again; evidence against its end is a contradiction, recorded beside it.
4. The guards are words here; each is checked where its facts are (policy, recovery, statement, store).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from ledger.errors import Broken


class State(StrEnum):
    """Where an operation stands. The first six wait for something, the last four are ends (review waits for a person)."""

    PROPOSED = "proposed"  # recorded, not yet judged
    AWAITING_APPROVAL = "awaiting_approval"  # people must sign; reserves nothing
    APPROVED = "approved"  # may be sent; reserves its amount
    IN_FLIGHT = "in_flight"  # one attempt is open under a lease
    UNKNOWN = "unknown"  # sent, and no proof of what became of it
    NEEDS_REVIEW = "needs_review"  # nothing safe is left for a machine
    SUCCEEDED = "succeeded"  # the effect exists
    REJECTED = "rejected"  # proved: no effect, and none will come
    UNDETERMINED = "undetermined"  # two people certify that nobody can know; the amount stays reserved
    BLOCKED = "blocked"  # never sent


class BlockReason(StrEnum):
    """Why an operation was never sent."""

    POLICY_DENIED = "policy_denied"
    EQUIVALENT_OPERATION = "equivalent_operation"
    AMOUNT_EXCEEDS_REMAINING = "amount_exceeds_remaining"
    TARGET_UNFIT = "target_unfit"
    APPROVAL_DECLINED = "approval_declined"
    APPROVAL_EXPIRED = "approval_expired"
    POLICY_CHANGED = "policy_changed"
    AUTHORITY_REVOKED = "authority_revoked"
    VERSION_STALE = "version_stale"
    DEPENDENCY_ENDED = "dependency_ended"
    WITHDRAWN = "withdrawn"


@dataclass(frozen=True)
class Edge:
    """One legal move: its number in the design, where from (`None`: the operation is created), where to, and what guards it."""

    number: int
    source: State | None
    target: State
    guard: str


_P, _W, _A, _F = State.PROPOSED, State.AWAITING_APPROVAL, State.APPROVED, State.IN_FLIGHT
_U, _R, _S, _J = State.UNKNOWN, State.NEEDS_REVIEW, State.SUCCEEDED, State.REJECTED
_D, _B = State.UNDETERMINED, State.BLOCKED

TRANSITIONS: tuple[Edge, ...] = (
    Edge(1, None, _P, "signature of the proposal verified, grant, every field valid, key new"),
    Edge(2, _P, _W, "policy wants people; preflight fits"),
    Edge(3, _P, _A, "the rule waives the person; preflight fits; amount reserved; totals within the waiver"),
    Edge(4, _P, _B, "any block reason, or expired"),
    Edge(5, _W, _A, "enough distinct valid approvers, unexpired, no decline; amount reserved, no equivalent"),
    Edge(6, _W, _B, "declined, expired, withdrawn, or policy, authority, version or dependency gone"),
    Edge(7, _A, _F, "full recheck; a new fence, a lease, an open attempt"),
    Edge(8, _A, _B, "recheck says no, expired or withdrawn, while every attempt is proved no_effect"),
    Edge(9, _A, _W, "an approver was revoked before the first send"),
    Edge(10, _F, _S, "own fence; applied, standing good or pending"),
    Edge(11, _F, _J, "own fence; refused, and every other attempt proved, or D3"),
    Edge(12, _F, _A, "own fence; every attempt no_effect"),
    Edge(13, _F, _U, "own fence and none of 10 to 12; or anyone once the lease is over"),
    Edge(14, _U, _F, "the decision, taken again inside the claim, is repeat; holds and revocations rechecked"),
    Edge(15, _U, _S, "D1"),
    Edge(16, _U, _J, "D3, D4 or D5"),
    Edge(17, _U, _A, "late proof: every attempt no_effect"),
    Edge(18, _U, _R, "D2 or D10"),
    Edge(19, _R, _S, "resolution happened, with a receipt re-read at the provider; or D1 by machine"),
    Edge(20, _R, _J, "resolution did_not_happen of two operators on qualified absence"),
    Edge(21, _R, _D, "resolution of two operators where no evidence can exist or remain"),
    Edge(22, _R, _U, "signed look-again, where lookup terms exist; the next step is a look"),
    Edge(23, _R, _J, "D3 to D5 by machine: late proof needs no people"),
    Edge(23, _R, _A, "D3 by machine: late proof that every attempt had no effect"),
)

ENDED: frozenset[State] = frozenset({_S, _J, _D, _B})
BEFORE_FIRST_SEND: frozenset[State] = frozenset({_P, _W, _A})
RESERVING: frozenset[State] = frozenset({_A, _F, _U, _R, _D, _S})  # succeeded only while its receipt is not void
BLOCK_EDGE: dict[State, int] = {_P: 4, _W: 6, _A: 8}  # how an operation that was not sent is blocked


def edge(number: int, source: State | None, target: State) -> Edge:
    """The edge with this number between these states; `Broken` if the design has none."""
    for candidate in TRANSITIONS:
        if (candidate.number, candidate.source, candidate.target) == (number, source, target):
            return candidate
    raise Broken(f"there is no edge {number} from {source or 'none'} to {target}")


def fold(moves: Iterable[tuple[int, str | None, str]]) -> State | None:
    """The state that a trail of (edge number, source, target) ends in; `Broken` if a move is illegal or does not join on."""
    state: State | None = None
    for number, source, target in moves:
        if (source or None) != state:
            raise Broken(f"edge {number} starts at {source or 'none'}, but the operation stood at {state or 'none'}")
        if target not in set(State):
            raise Broken(f"edge {number} ends in {target}, which is no state")
        state = edge(number, state, State(target)).target
    return state
