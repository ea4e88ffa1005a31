"""Turns recorded evidence into moves: read facts under the lock, ask `recovery.decide`, move along the edge it names."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from activities import dependencies
from activities.dependencies import Met
from activities.judgement import approvals, grant_problem
from activities.messages import Progress
from activities.ports import Ports
from activities.progress import tell
from ledger import policy, recovery
from ledger.config import Document
from ledger.contract import Contract
from ledger.errors import Broken
from ledger.model import Attempt, Decision, Hint, MaySend, Operation, Outcome, Sighting, Standing, Step
from ledger.states import State
from ledger.store import attempts, clock, configuration, events, holds, operations
from ledger.store.database import Connection, now
from ledger.trail import EventKind

# (edge for a success, a rejection, a return to approved) by the state it starts from
_EDGES: dict[State, tuple[int, int, int]] = {
    State.IN_FLIGHT: (10, 11, 12),
    State.UNKNOWN: (15, 16, 17),
    State.NEEDS_REVIEW: (19, 23, 23),
}
CLOCK_TRUSTED = 300.0  # seconds that ledger time may be ahead of the wall clock
STANDSTILL_SECONDS = 60.0
SLOW_LOOK_SECONDS = 3600.0  # in review, late evidence is still looked for


@dataclass(frozen=True)
class Evidence:
    """Everything a decision rests on, read in one transaction under the operation's lock."""

    contract: Contract
    attempts: tuple[Attempt, ...]
    sightings: tuple[Sighting, ...]
    may_send: MaySend
    review_at: datetime
    now: datetime
    look_first: bool  # a signed look-again was not yet answered by a complete look

    def decide(self) -> Decision:
        """The next permitted step."""
        decision = recovery.decide(
            self.contract, self.attempts, self.sightings, self.now, self.may_send, self.review_at
        )
        if not self.look_first:
            return decision
        # After a signed look-again nothing is repeated before a complete look, nor given back to people before a look.
        if decision.step is Step.REPEAT or (decision.step in (Step.WAIT, Step.REVIEW) and not self.sightings):
            return Decision("edge 22", Step.LOOK, "a signed look-again wants a look first", self._look_pause())
        return decision

    def _look_pause(self) -> float:
        if not self.sightings:
            return 0.0
        told = max(s.finished_at for s in self.sightings)
        pause = recovery.backoff_seconds(self.contract, len(self.sightings))
        return max((told - self.now).total_seconds() + pause, 0.0)


async def evidence(conn: Connection, ports: Ports, operation: Operation) -> Evidence:
    """The facts for `recovery.decide`. Locks holds and configuration `for share`, then reads the clock."""
    held = await holds.in_force(conn, operation)
    _, document = await configuration.in_force(conn)
    return await evidence_of(conn, operation, ports.contract_of(operation), document, held=bool(held))


async def evidence_of(
    conn: Connection, operation: Operation, contract: Contract, document: Document, *, held: bool
) -> Evidence:
    """The facts, under whatever locks the caller took: to decide on them is for `evidence`, to show them for anybody."""
    authority = await authority_gone(conn, document, operation)
    every = await attempts.read_attempts(conn, operation.operation_id)
    seen = await attempts.read_sightings(conn, operation.operation_id)
    counted, looks = recovery.after_look_again(every, seen, operation.look_again_at)
    at = await now(conn)
    return Evidence(
        contract=contract,
        attempts=counted,
        sightings=looks,
        may_send=MaySend.REVOKED if authority else MaySend.HELD if held else MaySend.YES,
        review_at=operation.review_at or at,
        now=at,
        look_first=operation.look_again_at is not None and not any(s.complete for s in looks),
    )


async def authority_gone(conn: Connection, document: Document, operation: Operation) -> str:
    """Empty while everything that this operation may be sent on still holds; else what is gone, in words."""
    if await dependencies.met(conn, operation) is Met.NEVER:
        return "what it depends on"
    if grant_problem(document, operation):
        return "the key that proposed it"
    if operation.people_needed:
        given = await approvals(conn, operation)
        if policy.approvals_stand(document, operation, given) < operation.people_needed:
            return "an approver"
    return ""


async def settle(conn: Connection, ports: Ports, operation: Operation) -> tuple[Operation, Progress]:
    """Move the locked operation as far as its evidence allows, and say what is next."""
    for _ in range(8):
        operation = await distrust_ages(conn, operation)
        facts = await evidence(conn, ports, operation)
        decision = facts.decide()
        if decision.receipt and await operations.receipt_taken(conn, operation, decision.receipt):
            why = "its receipt already belongs to another operation"
            decision = Decision("D2", Step.REVIEW, why)
        moved = await _apply(conn, operation, decision, facts)
        if moved is None:
            operation = await _wait(conn, operation, decision, facts)
            return operation, await tell(conn, operation)
        operation = moved
        if operation.state not in _EDGES:
            return operation, await tell(conn, operation)
    raise Broken(f"operation {operation.operation_id} does not come to rest")


async def distrust_ages(conn: Connection, operation: Operation) -> Operation:
    """After the wall clock was set back, ledger time stands still while keys age: what is unknown may be older than it says.

    Its attempts then count as sent late, which closes D7 and edge 20 for them: looks and people settle them. So does an open
    one, of which nobody can tell when the standstill is over.
    """
    if await clock.ahead_seconds(conn) <= CLOCK_TRUSTED:
        return operation
    at = await now(conn)
    for attempt in await attempts.read_attempts(conn, operation.operation_id):
        if attempt.outcome in (None, Outcome.UNKNOWN):
            operation = await attempts.mark_late(conn, operation, attempt, at)
    return operation


async def close_attempt_as_unknown(conn: Connection, operation: Operation, at: datetime) -> Operation:
    """The lease is over: nobody can tell on which side of the send its worker died (edge 13)."""
    every = await attempts.read_attempts(conn, operation.operation_id)
    open_one = next((a for a in every if a.outcome is None), None)
    if open_one is not None:
        lost = replace(open_one, outcome=Outcome.UNKNOWN, hint=Hint.LOST, answered_at=at)
        operation = await attempts.answer(conn, operation, lost)
    after = replace(operation, state=State.UNKNOWN, reason="lost")
    return await operations.move(conn, operation, after, 13, at, {"row": "D0"})


async def _apply(conn: Connection, operation: Operation, decision: Decision, facts: Evidence) -> Operation | None:
    """The moved operation, or None when the decision is no move from here."""
    body: dict[str, Any] = {"row": decision.row, "why": decision.reason}
    if decision.step in (Step.SUCCEED, Step.REJECT, Step.APPROVE_AGAIN):
        body |= _settled(operation, decision, facts)
    proved, rejection, approval = _EDGES[operation.state]
    match decision.step:
        case Step.CLOSE_ATTEMPT:
            return await close_attempt_as_unknown(conn, operation, facts.now)
        case Step.SUCCEED:
            after = replace(
                operation,
                state=State.SUCCEEDED,
                reason="",
                receipt=decision.receipt,
                standing=decision.standing,
                next_step="" if decision.standing is Standing.GOOD else "follow",
                next_step_at=None if decision.standing is Standing.GOOD else facts.now,
            )
            return await operations.move(conn, operation, after, proved, facts.now, body)
        case Step.REJECT if operation.state is not State.IN_FLIGHT or decision.row == "D3":
            reason = _why_rejected(decision, facts)
            after = replace(operation, state=State.REJECTED, reason=reason, next_step="", next_step_at=None)
            return await operations.move(conn, operation, after, rejection, facts.now, body)
        case Step.APPROVE_AGAIN:
            pause = recovery.backoff_seconds(facts.contract, len(facts.attempts))
            at = facts.now + timedelta(seconds=pause)
            after = replace(operation, state=State.APPROVED, reason="", next_step="dispatch", next_step_at=at)
            return await operations.move(conn, operation, after, approval, facts.now, body)
        case Step.REVIEW if operation.state is State.UNKNOWN:
            at = facts.now + timedelta(seconds=SLOW_LOOK_SECONDS)
            after = replace(
                operation, state=State.NEEDS_REVIEW, reason=decision.reason, next_step="review", next_step_at=at
            )
            return await operations.move(conn, operation, after, 18, facts.now, body)
        case _ if operation.state is State.IN_FLIGHT and not any(a.outcome is None for a in facts.attempts):
            hint = facts.attempts[-1].hint or facts.attempts[-1].outcome or ""
            after = replace(operation, state=State.UNKNOWN, reason=str(hint))
            return await operations.move(conn, operation, after, 13, facts.now, body)
        case _:
            return None


def _settled(operation: Operation, decision: Decision, facts: Evidence) -> dict[str, Any]:
    """How an unknown became known, told with its move; nothing where it never was one."""
    if operation.state is State.IN_FLIGHT:
        return settled(facts, "repeat") if any(a.outcome is Outcome.UNKNOWN for a in facts.attempts) else {}
    answered = decision.receipt is not None and decision.receipt in {a.receipt for a in facts.attempts}
    if answered or all(a.outcome is not Outcome.UNKNOWN for a in facts.attempts):
        return settled(facts, "answer")  # of the request itself, later than its lease
    told = facts.sightings and facts.sightings[-1].detail.get("webhook")
    return settled(facts, "webhook" if told else "lookup")


def settled(facts: Evidence, how: str) -> dict[str, Any]:
    """What a move says about the unknown that it ends: how, and how many seconds after the claim that was in doubt."""
    began = recovery.anchor(facts.attempts) or min(a.claimed_at for a in facts.attempts)
    return {"settled_by": how, "unknown_seconds": round((facts.now - began).total_seconds(), 3)}


def _why_rejected(decision: Decision, facts: Evidence) -> str:
    if decision.row == "D5":
        return decision.reason
    said = next((a.hint for a in reversed(facts.attempts) if a.outcome is Outcome.REFUSED), Hint.NONE)
    return "void" if decision.row == "D4" else said or "refused"


async def _wait(conn: Connection, operation: Operation, decision: Decision, facts: Evidence) -> Operation:
    """Write down what is waited for and until when, so that an overdue step is seen from the ledger alone."""
    step, delay = decision.step.value, decision.delay_seconds
    if operation.state is State.NEEDS_REVIEW:
        step, delay = "review", SLOW_LOOK_SECONDS
    if await clock.ahead_seconds(conn) > CLOCK_TRUSTED:
        delay = max(
            delay, STANDSTILL_SECONDS
        )  # ledger time stands still: a short pause would be waited for again and again
    after = replace(operation, next_step=step, next_step_at=facts.now + timedelta(seconds=delay))
    return await operations.note(conn, operation, after)


async def note_standing(conn: Connection, operation: Operation, standing: Standing, at: datetime) -> Operation:
    """A receipt's standing as re-read at the provider. Good or pending that turns void is a contradiction: alert.

    Void stays void: whoever read something else read it earlier, and was stopped before writing it down.
    """
    if operation.standing in (standing, Standing.VOID):
        return operation
    assert operation.receipt is not None and operation.standing is not None
    told = {"receipt": operation.receipt, "standing": standing.value, "before": operation.standing.value}
    pending = standing is Standing.PENDING
    after = replace(
        operation, standing=standing, next_step="follow" if pending else "", next_step_at=at if pending else None
    )
    operation = await operations.note(conn, operation, after)
    operation = await events.append(conn, operation, EventKind.STANDING_CHANGED, told)
    if standing is Standing.VOID:
        await operations.mark_contradicted(conn, operation.operation_id)
        what = {"what": "the effect exists no longer: its receipt turned void", **told}
        operation = await events.append(conn, operation, EventKind.CONTRADICTION, what)
    return operation


async def against_end(conn: Connection, operation: Operation, receipts: Collection[str], what: str) -> Operation:
    """Evidence of these receipts came after the end, and is recorded: what speaks against the end is alerted and listed, once.

    The receipt that it ended with is void, or another effect of ours is there. The end is not moved.
    """
    every = await attempts.read_attempts(conn, operation.operation_id)
    known = recovery.known_receipts(every, await attempts.read_sightings(conn, operation.operation_id))
    void = {receipt for receipt in receipts if known.get(receipt, Standing.VOID) is Standing.VOID}
    if operation.receipt in void & known.keys():
        operation = await note_standing(conn, operation, Standing.VOID, await now(conn))
    living = sorted(set(receipts) - void - {operation.receipt})
    body = {"what": f"ended as {operation.state}, but {what}", "receipts": living}
    if not living or body == await events.latest_body(conn, operation.operation_id, EventKind.CONTRADICTION):
        return operation  # every webhook about it makes it look again
    await operations.mark_contradicted(conn, operation.operation_id)
    return await events.append(conn, operation, EventKind.CONTRADICTION, body)
