"""What must hold in every state and on every step. Each says in words what it found, or nothing.

They count for themselves: none of them asks the code that it judges, except for the rows that it wrote.
"""

from collections.abc import Callable
from datetime import timedelta

from ledger.model import Hint, Outcome, Standing
from ledger.states import ENDED, State
from tests.exploration import standings
from tests.exploration.bench import STRANGER
from tests.exploration.environment import Moment, Step, Worker
from tests.exploration.evidence import (
    condition_left,
    contradicted,
    final,
    first,
    lacks_authority,
    looks_left,
    machine_steps_left,
    may_send,
    needs,
    quiet,
    receipts,
)
from tests.exploration.shapes import APPROVAL_ENDS, CAPTURED, LIFETIME, MARGIN, SLACK, START, TICK, at
from tests.exploration.system import System

Check = Callable[[System, Moment, Step], str]


def nothing_breaks(system: System, before: Moment, step: Step) -> str:
    """No activity meets a row or an edge that must not exist."""
    word = None if step.told is None else step.told.word
    return word[1] if isinstance(word, tuple) and word[0] == "broke" else ""


def at_most_one_effect(system: System, before: Moment, step: Step) -> str:
    """However often it was sent. What a ledger restored from a backup cannot know of, and is undone, does not count."""
    for i in range(len(step.after.rows)):
        made = [e.receipt for e in step.after.world.effects if e.owner == i and (e.living or e.tick >= 0)]
        if len(made) > 1:
            return f"operation {i} has the effects {made}"
    return ""


def sent_with_authority(system: System, before: Moment, step: Step) -> str:
    """A claim needs everything; the guard asks again for what can be taken back. Its time is the ledger's."""
    kind, fence = _acts(before, step)
    if kind not in ("claim", "guard") or step.told is None or not step.told.word:
        return ""
    if kind == "claim" and (step.told.word[0] in ("broke", "refused") or step.told.word[1]):
        return ""  # found before it was sent: nothing will be
    rows = system.bench.rows[step.after.rows[step.i]]
    lacks = lacks_authority(system, before, rows)
    if kind == "guard":
        stands = (rows.operation.state, rows.operation.fence) == (State.IN_FLIGHT, fence)
        return lacks or ("" if stands else "the claim is not in force any more")
    first = any(move.edge == 7 for move in step.moves)
    if first and system.context(before).now > APPROVAL_ENDS:
        return "the approval had ended"
    if first and "withdrawal" in rows.said:
        return "it was withdrawn"
    if first and before.config == 3:
        return "the policy had changed"
    if first and not all(done for _, done in needs(system, before, rows)):
        return "what it depends on had not succeeded"
    return lacks


def sent_in_time(system: System, before: Moment, step: Step) -> str:
    """A request leaves within the guard's bound, and the gap after it; a gap beyond the bound is told."""
    worker = _acting(before, step)
    if worker is not None and worker.kind == "answer" and worker.c:
        kept = system.bench.rows[step.after.rows[worker.i]].attempts[worker.a - 1]
        return "" if kept.late_send_at is not None else "a late send was not written down"
    if worker is None or worker.kind != "write":
        return ""
    if before.tick >= worker.c + SLACK:
        return f"sent at tick {before.tick} on a claim of tick {worker.c}"
    told = step.told is not None and bool(step.told.word)
    return "" if told == (before.tick >= worker.c + 1) else "a late send was not told, or another was"


def stale_fence_moves_nothing(system: System, before: Moment, step: Step) -> str:
    """An answer moves only the claim that it belongs to, and only an answer ends a claim well."""
    kind, fence = _acts(before, step)
    own = kind in ("answer", "found")
    for move in step.moves:
        if own and move.fences[0] != fence:
            return f"the answer to attempt {fence} moved fence {move.fences[0]} along edge {move.edge}"
        if move.edge in (10, 11, 12) and not own:
            return f"edge {move.edge} without an answer"
        lease = move.before.operation.lease_until
        if move.edge == 13 and not own and lease is not None and move.at < lease:
            return "a claim was taken away before its lease was over"
    return ""


def ended_never_moves(system: System, before: Moment, step: Step) -> str:
    """An end is an end."""
    moved = [move.edge for move in step.moves if move.source in ENDED]
    return f"edge {moved[0]} leaves an end" if moved else ""


def no_effect_where_none_is_told(system: System, before: Moment, step: Step) -> str:
    """Rejected and blocked never with a living effect, approved never while something may still come."""
    for i, number in enumerate(step.after.rows):
        state = system.bench.rows[number].operation.state
        living = any(e.owner == i and e.living for e in step.after.world.effects)
        coming = any(r.owner == i for r in step.after.world.air)
        if state is State.BLOCKED and "ledger restored" in step.after.faults:
            continue  # it is told as a contradiction: the effect was there before
        if state in (State.REJECTED, State.BLOCKED) and living:
            return f"operation {i} is {state}, and its effect exists"
        if state in (State.BLOCKED, State.APPROVED, State.AWAITING_APPROVAL) and coming:
            return f"operation {i} is {state}, and its request is in the air"
    return ""


def effect_where_one_is_told(system: System, before: Moment, step: Step) -> str:
    """Succeeded only with an effect, and never on a void one: that it turned void later is told beside it."""
    for i, number in enumerate(step.after.rows):
        operation = system.bench.rows[number].operation
        succeeded = operation.state is State.SUCCEEDED
        ended = i == step.i and any(move.target is State.SUCCEEDED for move in step.moves)
        if ended and operation.standing is Standing.VOID:
            return f"operation {i} is said to have succeeded with what is void"
        if succeeded and not any(e.owner == i for e in step.after.world.effects):
            return f"operation {i} is said to have succeeded, and has no effect"
    return ""


def amount_never_exceeded(system: System, before: Moment, step: Step) -> str:
    """What lives at the receiver fits into what was captured, and no two operations did the same."""
    amounts = system.scenario.amounts
    total = sum(amounts[e.owner] for e in step.after.world.effects if e.living and e.owner != STRANGER)
    if total > CAPTURED:
        return f"{total} of {CAPTURED} given back"
    owners = {e.owner for e in step.after.world.effects if e.living and e.owner != STRANGER}
    twins = len({amounts[owner] for owner in owners}) < len(owners)
    return "the same thing was done twice, for two operations" if twins else ""


def something_is_next(system: System, before: Moment, step: Step) -> str:
    """Whatever has not ended says when it goes on; a claim, when its lease is over."""
    for i, number in enumerate(step.after.rows):
        operation = system.bench.rows[number].operation
        if operation.state in ENDED:
            continue
        if operation.next_step_at is None or not operation.next_step:
            return f"operation {i} is {operation.state} and waits for nothing"
        if operation.state is State.IN_FLIGHT and operation.next_step_at != operation.lease_until:
            return f"operation {i} is in flight, and nobody comes when its lease is over"
    return ""


def review_is_the_last_resort(system: System, before: Moment, step: Step) -> str:
    """A person is asked only if evidence disagrees, or if no repeat, no wait for one and no look is left."""
    for move in step.moves:
        if move.edge == 18:
            left = machine_steps_left(system, before, move)
            if left:
                return f"row {move.row} asks a person, though {left}"
    return ""


def certified_in_quiet_only(system: System, before: Moment, step: Step) -> str:
    """Two people say "did not happen" only when no request can come any more and, where one can look, two looks agree."""
    for move in step.moves:
        if move.edge == 20:
            rows = move.before
            if any(a.outcome is None or a.late_send_at is not None for a in rows.attempts):
                return "an attempt is open, or left late"
            used = [a for a in rows.attempts if a.outcome is not Outcome.NO_EFFECT]
            now = (move.at - START).total_seconds() / TICK
            if now <= quiet(system.contract, rows):
                return "a request may still be worked on"
            if system.contract.key is not None and used and now + 3 <= first(rows) + LIFETIME - MARGIN:
                return "the key is still honoured"
            if system.contract.lookup is not None and looks_left(system.contract, rows, list(rows.sightings), -1):
                return "too few looks agree"
    return ""


def look_again_looks_first(system: System, before: Moment, step: Step) -> str:
    """After a signed look-again nothing is sent before a complete look."""
    for move in step.moves:
        since = move.before.operation.look_again_at
        if since is None or move.edge != 14:
            continue
        if not any(x.complete and x.began_at > since for x in move.before.sightings):
            return "repeated without a look"
    return ""


def repeated_without_doubt(system: System, before: Moment, step: Step) -> str:
    """A repeat needs a clean record and a pause; without a key, a look since that saw the version unmoved."""
    for move in step.moves:
        rows = move.before
        last = rows.attempts[-1] if rows.attempts else None
        if move.edge not in (7, 14) or last is None:
            continue
        told = last.answered_at or last.lease_until
        if move.at < told + timedelta(seconds=TICK):
            return "no pause was made"
        if move.edge == 7:
            continue
        since = rows.operation.look_again_at
        looks = [x for x in rows.sightings if x.complete and (since is None or x.began_at > since)]
        hints = {a.hint for a in rows.attempts if since is None or a.answered_at is None or a.answered_at > since}
        if Hint.MISUSED in hints or contradicted(rows, looks):
            return "the evidence contradicts itself"
        if move.row == "D7" and ({Hint.STORED_ERROR, Hint.MISMATCH} & hints or any(final(a) for a in rows.attempts)):
            return "the key's answer is kept, or a request left late"
        if move.row == "D8" and not any(x.began_at > told and x.version_moved is False for x in looks):
            return "nobody looked since, or the version moved"
    return ""


def contradictions_go_to_people(system: System, before: Moment, step: Step) -> str:
    """No machine ends an operation while something else carries its marker, or two receipts are known."""
    signed = step.words[0].startswith("people")
    for move in step.moves:
        since = move.before.operation.look_again_at
        looks = [x for x in move.before.sightings if x.complete and (since is None or x.began_at > since)]
        ends = move.target in ENDED and move.source is not State.APPROVED
        if ends and not signed and contradicted(move.before, looks):
            return f"edge {move.edge} on contradicting evidence"
    return ""


def proof_ends_it(system: System, before: Moment, step: Step) -> str:
    """Once settled on, one receipt, good or pending, that nothing contradicts leaves nobody waiting."""
    kind, _ = _acts(before, step)
    settled = kind in ("settle", "answer") or "reconciles" in step.words[0]
    rows = system.bench.rows[step.after.rows[step.i]]
    if not settled or rows.operation.state not in (State.UNKNOWN, State.NEEDS_REVIEW):
        return ""
    if kind == "answer" and step.told is not None and step.told.word is True:
        return ""  # it came late, and is settled on next
    since = rows.operation.look_again_at
    looks = [x for x in rows.sightings if since is None or x.began_at > since]
    known = receipts(rows, looks)
    doubt = contradicted(rows, [x for x in looks if x.complete])
    if list(known.values()) in ([Standing.GOOD], [Standing.PENDING]) and not doubt:
        return "one receipt is known"
    return ""


def nothing_is_put_off(system: System, before: Moment, step: Step) -> str:
    """No look is waited for when looks have told all they can, or when the condition can be tried again."""
    kind, _ = _acts(before, step)
    rows = system.bench.rows[step.after.rows[step.i]]
    operation = rows.operation
    if kind != "settle" or (operation.state, operation.next_step) != (State.UNKNOWN, "look"):
        return ""
    looks = [x for x in rows.sightings if operation.look_again_at is None or x.began_at > operation.look_again_at]
    if not looks_left(system.contract, rows, looks, -1):
        return "two looks agree, and a third one is waited for"
    now, told = before.tick, rows.attempts[-1].answered_at or rows.attempts[-1].lease_until
    paused = now >= (told - START).total_seconds() / TICK + min(2 ** (len(rows.attempts) - 1), 2)
    if before.back or not paused or not system.contract.conditional_write:
        return ""
    return condition_left(system.contract, rows, looks, at(now), may_send(system, before, rows))


def looks_are_dated_by_their_beginning(system: System, before: Moment, step: Step) -> str:
    """Absence counts from when a look began: what came after that it may have missed."""
    worker = _acting(before, step)
    if worker is None or worker.kind != "seen":
        return ""
    began = system.bench.rows[step.after.rows[worker.i]].sightings[-1].began_at
    return "" if began == START + timedelta(seconds=worker.a * TICK) else "a look is dated later than it began"


CHECKS: tuple[Check, ...] = (
    nothing_breaks,
    at_most_one_effect,
    sent_with_authority,
    sent_in_time,
    stale_fence_moves_nothing,
    ended_never_moves,
    no_effect_where_none_is_told,
    effect_where_one_is_told,
    amount_never_exceeded,
    something_is_next,
    review_is_the_last_resort,
    certified_in_quiet_only,
    look_again_looks_first,
    repeated_without_doubt,
    contradictions_go_to_people,
    proof_ends_it,
    nothing_is_put_off,
    looks_are_dated_by_their_beginning,
    *standings.CHECKS,
)


def _acting(before: Moment, step: Step) -> Worker | None:
    """The worker whose own step this is: one that goes on with what it is about to do."""
    words = step.words
    if step.told is None or not words[0].startswith("worker") or "starts" in words[0] or "reconciles" in words[0]:
        return None
    return before.workers[words[1]]


def _acts(before: Moment, step: Step) -> tuple[str, int]:
    """The kind of worker whose own step this is, and the fence that it holds."""
    worker = _acting(before, step)
    if worker is None:
        return "", 0
    return worker.kind, worker.a if worker.kind in ("guard", "answer", "found") else 0
