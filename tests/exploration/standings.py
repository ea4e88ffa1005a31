"""What must hold of receipts whose effect is pending, or turns void: what is told of them, and what they hold.

A void effect stays void, and a pending one becomes good or void, at the receiver of the model. Each invariant says in words
what it found, or nothing.
"""

from ledger.model import Outcome, Standing
from ledger.states import RESERVING, BlockReason, State
from tests.exploration.environment import Moment, Step
from tests.exploration.evidence import receipts
from tests.exploration.memory import Rows
from tests.exploration.system import System

FOR_OTHERS = (BlockReason.EQUIVALENT_OPERATION, BlockReason.AMOUNT_EXCEEDS_REMAINING)


def told_as_it_is(system: System, before: Moment, step: Step) -> str:
    """Nothing is told as good that was never more than pending, nor as void what lives."""
    for number in step.after.rows:
        operation = system.bench.rows[number].operation
        effect = next((e for e in step.after.world.effects if f"re_{e.receipt}" == operation.receipt), None)
        if operation.state is not State.SUCCEEDED or effect is None:
            continue
        if operation.standing is Standing.GOOD and effect.standing is Standing.PENDING:
            return f"{operation.receipt} is told as good, and is pending"
        if operation.standing is Standing.VOID and effect.living:
            return f"{operation.receipt} is told as void, and lives"
    return ""


def void_is_told_as_void(system: System, before: Moment, step: Step) -> str:
    """What the ledger once heard or saw to be void it never tells as an effect, whatever comes late."""
    for was, number in _changed(before, step):
        rows = system.bench.rows[number]
        operation = rows.operation
        told = operation.state is State.SUCCEEDED and operation.standing is not Standing.VOID
        if told and (_known_void(rows) or system.bench.rows[was].operation.standing is Standing.VOID):
            return f"{operation.receipt} is known to be void, and told as {operation.standing}"
    return ""


def what_was_undone_goes_to_people(system: System, before: Moment, step: Step) -> str:
    """A receipt that turned void after the end is a contradiction: listed, and followed no longer."""
    for _, number in _changed(before, step):
        rows = system.bench.rows[number]
        if rows.operation.state is State.SUCCEEDED and rows.operation.standing is Standing.VOID:
            if not rows.contradicted:
                return f"{rows.operation.receipt} turned void, and nobody is told"
            if rows.operation.next_step_at is not None:
                return f"{rows.operation.receipt} is void, and still followed"
    return ""


def nobody_is_alarmed_for_nothing(system: System, before: Moment, step: Step) -> str:
    """An end is listed as contradicted only where its receipt is void, or another effect of it is known that is not."""
    for was, number in _changed(before, step):
        rows = system.bench.rows[number]
        if rows.alarm == system.bench.rows[was].alarm:
            continue
        operation = rows.operation
        known = receipts(rows, [*rows.sightings])
        others = [s for r, s in known.items() if r != operation.receipt and s is not Standing.VOID]
        undone = operation.state is State.SUCCEEDED and operation.standing is Standing.VOID
        if not others and not undone and operation.state is not State.BLOCKED:  # that one tells what a reading showed
            return f"operation {operation.state} is contradicted, and nothing known says so"
    return ""


def pending_is_followed(system: System, before: Moment, step: Step) -> str:
    """Whoever succeeded with what is pending says when it is read again, and whoever is woken reads what can change."""
    for _, number in _changed(before, step):
        operation = system.bench.rows[number].operation
        pending = operation.state is State.SUCCEEDED and operation.standing is Standing.PENDING
        if pending and (operation.next_step != "follow" or operation.next_step_at is None):
            return f"{operation.receipt} is pending, and nobody reads it again"
    if not step.words[0].startswith("worker {} reconciles") or not system.contract.effect_can_change:
        return ""
    operation = system.bench.rows[before.rows[step.i]].operation
    can_change = operation.state is State.SUCCEEDED and operation.standing is not Standing.VOID
    asked = step.told is not None and step.told.word == "follow"
    return f"somebody was woken for {operation.receipt}, and does not read it" if can_change and not asked else ""


def reading_is_believed(system: System, before: Moment, step: Step) -> str:
    """What was read of a receipt is told from then on, unless somebody told something since the reading began."""
    if not step.words[0].startswith("worker {} records what became"):
        return ""
    worker = before.workers[step.words[1]]
    was = system.bench.rows[before.rows[step.i]].operation
    if worker is None or worker.b is None or was.standing is not worker.a:
        return ""
    now = system.bench.rows[step.after.rows[step.i]].operation
    return "" if now.standing is worker.b.standing else f"{worker.b.standing} was read, and {now.standing} is told"


def blocked_only_by_what_is_held(system: System, before: Moment, step: Step) -> str:
    """What turned void holds no amount: another operation may give it back, where its target shows no effect."""
    for move in step.moves:
        after = system.bench.rows[step.after.rows[step.i]].operation
        worker = before.workers[step.words[1]] if step.words[0].startswith("worker") else None
        if worker is None or move.target is not State.BLOCKED or after.reason not in FOR_OTHERS:
            continue
        reading = worker.a if worker.kind == "judge" else worker.b
        others = [system.bench.rows[n] for k, n in enumerate(before.rows) if k != step.i]
        if not any(_holds(rows) for rows in others) and not any(e.living for e in reading.effects):
            return f"operation {step.i} is blocked as {after.reason}, and nothing is held or there"
    return ""


def _changed(before: Moment, step: Step) -> list[tuple[int, int]]:
    """The numbers of rows that this step changed, before and after."""
    if before.rows == step.after.rows:
        return []
    return [(was, number) for was, number in zip(before.rows, step.after.rows, strict=True) if was != number]


def _known_void(rows: Rows) -> bool:
    receipt = rows.operation.receipt
    told = [(a.receipt, a.standing) for a in rows.attempts if a.outcome is Outcome.APPLIED]
    told += [(e.receipt, e.standing) for look in rows.sightings for e in look.effects]
    return (receipt, Standing.VOID) in told


def _holds(rows: Rows) -> bool:
    undone = rows.operation.state is State.SUCCEEDED and rows.operation.standing is Standing.VOID
    return rows.operation.state in RESERVING and not undone


CHECKS = (
    told_as_it_is,
    void_is_told_as_void,
    what_was_undone_goes_to_people,
    nobody_is_alarmed_for_nothing,
    pending_is_followed,
    reading_is_believed,
    blocked_only_by_what_is_held,
)
