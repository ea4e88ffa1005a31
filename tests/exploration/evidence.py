"""What recorded evidence proves and what is left to do, counted anew: by the judge, not by what is judged."""

from datetime import datetime, timedelta

from ledger.contract import Contract
from ledger.model import Attempt, Hint, MaySend, Outcome, Sighting, Standing
from ledger.states import ENDED, State
from tests.exploration.environment import Moment
from tests.exploration.memory import Move, Rows
from tests.exploration.shapes import DEADLINE, LIFETIME, MARGIN, PROCESSING, START, TICK
from tests.exploration.system import System


def lacks_authority(system: System, s: Moment, rows: Rows, *, holds: bool = True) -> str:
    """What is missing for a send now; empty if nothing is."""
    if s.held and holds:
        return "sending was held"
    if s.config == 2:
        return "the grant was revoked"
    if any(gone for gone, _ in needs(system, s, rows)):
        return "what it depends on is gone"
    approved = [name for name in rows.said if name == "bob" or (name == "alice" and s.config != 1)]
    if rows.operation.people_needed != 0 and not approved:
        return "nobody's approval was in force"
    return ""


def needs(system: System, s: Moment, rows: Rows) -> list[tuple[bool, bool]]:
    """Of each operation that it depends on, which must succeed: whether it never will or was undone, and whether it has."""
    found = []
    for number in s.rows if rows.operation.depends_on else ():
        other = system.bench.rows[number]
        if other.operation.operation_id != rows.operation.operation_id:
            undone = other.contradicted or other.operation.standing is Standing.VOID
            done = other.operation.state is State.SUCCEEDED and not undone
            found.append((not done and (other.operation.state in ENDED or undone), done))
    return found


def machine_steps_left(system: System, s: Moment, move: Move) -> str:
    """Empty where a person had to be asked; else what could have been done instead."""
    contract = system.contract
    rows, now = move.before, (move.at - START).total_seconds() / TICK
    since = rows.operation.look_again_at
    looks = [x for x in rows.sightings if since is None or x.began_at > since]
    told = receipts(rows, looks)
    strangers = strange([x for x in looks if x.complete])
    if len(told) == 1 and not strangers:
        return "one receipt is known" if Standing.VOID not in told.values() else void_left(rows, move)
    if move.row == "D2":
        misused = any(
            a.hint is Hint.MISUSED and (since is None or (a.answered_at or since) > since) for a in rows.attempts
        )
        return "" if misused or strangers or len(told) > 1 else "nothing contradicts"
    if move.row == "D5":
        moved = any(x.version_moved for x in looks)
        return "" if contract.conditional_write and not contract.witness and moved else "no version moved unseen"
    used = [a for a in rows.attempts if a.outcome is not Outcome.NO_EFFECT]
    if all(a.outcome is Outcome.REFUSED for a in used):
        return "every attempt is proved"
    authority = may_send(system, s, rows)
    if contract.key is not None and repeatable(rows, now) and authority is not MaySend.REVOKED:
        review_at = rows.operation.review_at
        if authority is MaySend.YES or (review_at is not None and move.at < review_at):
            return "the key can be used again"
    if contract.conditional_write and (left := condition_left(contract, rows, looks, move.at, authority)):
        return left
    if contract.lookup is not None:
        return looks_left(contract, rows, looks, now)
    return ""


def condition_left(contract: Contract, rows: Rows, looks: list[Sighting], now: datetime, authority: MaySend) -> str:
    """What a machine could still do with the condition; empty if nothing."""
    whole = [x for x in looks if x.complete]
    if not whole:
        return ""
    latest = max(whole, key=lambda x: x.began_at)
    settled = START + timedelta(seconds=(quiet(contract, rows) + 1) * TICK)
    if contract.witness and latest.began_at > settled and latest.version_moved and not latest.witness_has_marker:
        return "somebody else moved the version, and the witness says so"
    last = rows.attempts[-1]
    unchanged = latest.version_moved is False and latest.began_at > (last.answered_at or last.lease_until)
    early = rows.operation.review_at is not None and now < rows.operation.review_at
    return "the condition can be tried again" if unchanged and early and authority is MaySend.YES else ""


def receipts(rows: Rows, looks: list[Sighting]) -> dict[str | None, Standing | None]:
    """Every receipt of ours with what was told of it last; void if that was ever told, since it stays so."""
    told = [(a.answered_at or a.claimed_at, a.receipt, a.standing) for a in rows.attempts if a.receipt is not None]
    ours = {r for _, r, _ in told} | {e.receipt for x in looks for e in x.effects if e.marked and e.matching}
    told += [(x.finished_at, e.receipt, e.standing) for x in looks for e in x.effects if e.receipt in ours]
    void = {receipt: standing for _, receipt, standing in told if standing is Standing.VOID}
    return {receipt: standing for _, receipt, standing in sorted(told, key=lambda t: t[0])} | void


def strange(complete: list[Sighting]) -> bool:
    """Whether the latest complete look shows something else with our marker. Of two that began at once, the first recorded."""
    latest = max(complete, key=lambda x: x.began_at, default=None)
    return latest is not None and any(e.marked and not e.matching for e in latest.effects)


def contradicted(rows: Rows, complete: list[Sighting]) -> bool:
    """Whether evidence speaks against itself: a stranger, or two receipts."""
    return strange(complete) or len(receipts(rows, complete)) > 1


def final(a: Attempt) -> bool:
    """Whether the key's answer is kept, or the request left late: nothing new is to be heard by a repeat."""
    return a.stored or a.late_send_at is not None


def void_left(rows: Rows, move: Move) -> str:
    """A void effect is the end once nothing can follow; a look-again of people may have asked for more."""
    return "the only effect is void" if rows.operation.look_again_at is None and move.row != "D2" else ""


def repeatable(rows: Rows, now: float) -> bool:
    """Whether the key can be used again at this tick."""
    kept = (Hint.STORED_ERROR, Hint.MISMATCH)
    if any(a.hint in kept or a.stored or a.late_send_at is not None for a in rows.attempts):
        return False
    return now + 3 <= first(rows) + LIFETIME - MARGIN  # a request leaves within 1 tick, is read in 1 and worked on in 1


def first(rows: Rows) -> float:
    """The tick of the earliest claim that may have had an effect."""
    used = (a.claimed_at for a in rows.attempts if a.outcome is not Outcome.NO_EFFECT)
    return (min(used) - START).total_seconds() / TICK


def quiet(contract: Contract, rows: Rows) -> float:
    """The tick until which a request of ours may still be worked on."""
    used = [a for a in rows.attempts if a.outcome is not Outcome.NO_EFFECT]
    left = [a.claimed_at + timedelta(seconds=TICK) if a.late_send_at is None else a.late_send_at for a in used]
    rolling = contract.roll_forward / TICK if any(a.outcome is Outcome.UNKNOWN for a in used) else 0.0
    return (max(left) - START).total_seconds() / TICK + DEADLINE + PROCESSING + rolling if used else -1.0


def looks_left(contract: Contract, rows: Rows, looks: list[Sighting], now: float) -> str:
    """Empty where looks have told what they can; else that there is one left."""
    settled = quiet(contract, rows) + 1
    began = [(x.complete, (x.began_at - START).total_seconds() / TICK) for x in looks]
    late = [(complete, tick) for complete, tick in began if tick > settled]
    complete = [tick for whole, tick in late if whole]
    if len(complete) >= 2 and max(complete) - min(complete) >= 0.5:
        return ""
    review_at = rows.operation.review_at
    told = review_at is not None and now >= (review_at - START).total_seconds() / TICK
    return "" if told and len(late) >= 3 else "there is a look left"


def may_send(system: System, s: Moment, rows: Rows) -> MaySend:
    """What authority says."""
    lacks = lacks_authority(system, s, rows, holds=False)
    return MaySend.REVOKED if lacks else MaySend.HELD if s.held else MaySend.YES
