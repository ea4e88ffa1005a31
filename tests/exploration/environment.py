"""What happens around the workers: the receiver at work, people, accidents; and what one state of everything is."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ledger.contract import Contract
from ledger.model import Operation, Standing
from ledger.states import ENDED, State
from tests.exploration.bench import STRANGER, Bench, Context, Effect, Seen, Told
from tests.exploration.memory import Move, born
from tests.exploration.receiver import Receiver, World
from tests.exploration.shapes import START, TICK, proposed

LAST_TICK = 40  # a run that is not over by then is not coming to an end
QUIET_TICKS = 16  # after an end, time goes on this far for whatever may still come
DOWN_TICKS = 14  # an outage can last until keys are gone
PENDS = 3  # ticks after which a pending effect has become good, if it has not turned void
SET_BACK = 8  # ticks by which a wall clock is set back


class Worker(NamedTuple):
    """What one worker is about to do, for which operation, and what it knows: `a`, `b` and `c`, by kind.

    judge: a reading · claim: stamp, reading · found: fence, reading · guard, clock: fence, stamp · write: fence, tick of the
    guard's yes, stamp · wait: fence, late, deadline · answer: fence, answer, late · look, seen: when it began, what it saw ·
    follow, read: the standing before, the effect that it read.
    """

    kind: str
    i: int
    stopped: bool = False
    a: Any = 0
    b: Any = 0
    c: Any = 0


class Moment(NamedTuple):
    """One state of everything."""

    tick: int
    back: int  # ticks by which the wall clock is behind
    touched: bool  # while ledger time stands still: whether somebody settled in this tick
    rows: tuple[int, ...]
    world: World
    workers: tuple[Worker | None, Worker | None]
    faults: tuple[str, ...]
    held: bool
    config: int


class Step(NamedTuple):
    """One thing that can happen, in words, and what it leads to."""

    words: tuple[Any, ...]
    after: Moment
    prompt: bool
    told: Told | None = None
    i: int = 0

    @property
    def kinds(self) -> list[Any]:
        """What kinds of change this step makes in the ledger: moves, and standings of receipts."""
        told = () if self.told is None else self.told.writes
        noted = [w.arguments for w in told if w.name == "note"]
        standings = [("standing", b.standing, a.standing) for b, a in noted if b.standing is not a.standing]
        return [*(move.kind for move in self.moves), *standings]

    @property
    def moves(self) -> tuple[Move, ...]:
        """The moves of the ledger in this step."""
        return () if self.told is None else self.told.moves


@dataclass(frozen=True)
class Scenario:
    """A contract, what is asked for, and which faults may happen, at most `limit` in a run."""

    contract: Contract
    faults: frozenset[str]
    limit: int
    amounts: tuple[int, ...] = (1_500,)
    chained: bool = False  # the second operation depends on the first
    repeated: tuple[str, ...] = field(default=("answer lost", "request delayed", "list incomplete"))


class Environment:
    """The steps of everybody but workers and time."""

    def __init__(self, scenario: Scenario, bench: Bench | None = None) -> None:
        self.scenario, self.contract = scenario, scenario.contract
        self.bench, self.receiver = bench or Bench(scenario.contract), Receiver(scenario.contract)

    def start(self) -> Moment:
        """Everything proposed at tick 0."""
        versioned = self.contract.conditional_write
        rows = tuple(
            self.bench.number(born(proposed(i, amount, versioned, 0 if i and self.scenario.chained else None)))
            for i, amount in enumerate(self.scenario.amounts)
        )
        return Moment(0, 0, True, rows, World(keys=(None,) * len(rows)), (None, None), (), False, 0)

    def operation(self, s: Moment, i: int) -> Operation:
        """An operation as it stands."""
        return self.bench.rows[s.rows[i]].operation

    def is_over(self, s: Moment, i: int) -> bool:
        """Whether no machine goes on with it by itself: it ended and is followed no longer, or a person must settle it."""
        operation = self.operation(s, i)
        followed = operation.state is State.SUCCEEDED and operation.standing is Standing.PENDING
        return operation.state in ENDED | {State.NEEDS_REVIEW} and not followed

    def context(self, s: Moment) -> Context:
        """Ledger time and what holds now."""
        now, ahead = s.tick, 0
        if s.back:
            last = max(self.bench.rows[n].last_event for n in s.rows)
            wall = s.tick - s.back
            now = max(wall, round((last - START).total_seconds() / TICK))
            ahead = now - wall
        return Context(now, ahead, s.held, s.config)

    def fault(self, s: Moment, name: str) -> Moment | None:
        """The state with one fault more; None when this run may not have it."""
        if name not in self.scenario.faults or len(s.faults) >= self.scenario.limit:
            return None
        most = 2 if name in self.scenario.repeated else 1
        if s.faults.count(name) >= most:
            return None
        return s._replace(faults=tuple(sorted((*s.faults, name))))

    def call(self, s: Moment, name: str, i: int, *given: Any) -> tuple[Moment, Told]:
        """A transaction, and the state after it."""
        told = self.bench.call(name, s.rows, i, self.context(s), *given)
        rows = tuple(told.rows if k == i else n for k, n in enumerate(s.rows))
        return s._replace(rows=rows, touched=True), told

    def receiver_steps(self, s: Moment) -> Iterator[Step]:
        """What the receiver does with what is in the air, and with keys that are old enough."""
        for request in s.world.air:
            must = not request.free or s.tick >= request.until
            for name, world, answer in self.receiver.outcomes(s.world, request, s.tick):
                after = self.fault(s, name) if name else s
                if after is None:
                    continue
                after = _delivered(after._replace(world=world), request.owner, request.fence, answer)
                what = "what the 5xx left" if request.rolls else f"the request of attempt {request.fence}"
                told = "" if answer is None else f"{answer[0]} {answer[1]}"
                yield Step(("the receiver works on {}: {} {}", what, name, told), after, must and not name)
        for effect in s.world.effects:
            if effect.standing is Standing.PENDING:
                good = s._replace(world=self.receiver.turned(s.world, effect.receipt, Standing.GOOD))
                yield Step(("what was pending is good: {}", effect.receipt), good, s.tick >= effect.tick + PENDS)
        pruned = self.receiver.pruned(s.world, s.tick)
        if pruned != s.world:
            yield Step(("the receiver forgets the key",), s._replace(world=pruned), True)
            kept = self.fault(s, "key pruned late")
            if kept is not None:
                keys = tuple(k and k._replace(first=LAST_TICK) for k in s.world.keys)
                yield Step(("the receiver keeps the key",), kept._replace(world=s.world._replace(keys=keys)), False)

    def people(self, s: Moment) -> Iterator[Step]:
        """Who approves, withdraws, and resolves what is in review. Signatures are taken as verified."""
        for i in range(len(s.rows)):
            operation, said = self.operation(s, i), self.bench.rows[s.rows[i]].said
            person = "bob" if s.config == 1 else "alice"
            if operation.state is State.AWAITING_APPROVAL and person not in said:
                absent = "nobody approves" in s.faults
                if not absent:
                    after, told = self.call(s, "say", i, person)
                    yield Step(("{} approves operation {}", person, i), after, True, told, i)
                    silent = self.fault(s, "nobody approves")
                    if silent is not None:
                        yield Step(("nobody approves operation {}", i), silent, False)
            if operation.state not in ENDED and "withdrawal" not in said:
                yield from self._say(s, i, "withdrawn", "withdraw")
            if operation.state is State.NEEDS_REVIEW:
                yield from self._resolve(s, i)

    def _resolve(self, s: Moment, i: int) -> Iterator[Step]:
        yield from self._say(s, i, "look again", "look_again")
        # Where nothing can be looked up, people go by the receiver's own books, and say what stands there.
        told = self.contract.lookup is not None or not any(e.owner == i and e.living for e in s.world.effects)
        for _, seen in self.receiver.views(s.world, s.tick):
            if told:
                yield from self._say(s, i, "did not happen", "certify", "did_not_happen", seen)
            yield from self._say(s, i, "undetermined", "certify", "undetermined", seen)
        for effect in s.world.effects:
            seen = Seen(True, (effect,), True, s.tick)
            yield from self._say(s, i, "happened", "happened", seen)

    def _say(self, s: Moment, i: int, name: str, call: str, *given: Any) -> Iterator[Step]:
        """What people sign; a refusal changes nothing."""
        allowed = self.fault(s, name)
        if allowed is None:
            return
        after, told = self.call(allowed, call, i, *given)
        if not (isinstance(told.word, tuple) and told.word[0] == "refused"):
            yield Step(("people sign about operation {}: {}", i, name), after, False, told, i)

    def accidents(self, s: Moment) -> Iterator[Step]:
        """What nobody asked for: holds, revocations, edits, odd effects, a clock set back."""
        world = s.world
        changes: list[tuple[str, Moment]] = []
        changes.append(("hold set", s._replace(held=True)))
        if s.held:
            changes.append(("hold released", s._replace(held=False)))
        changes += [("approval revoked", s._replace(config=1)), ("grant revoked", s._replace(config=2))]
        changes.append(("policy changed", s._replace(config=3)))
        if self.contract.conditional_write:
            changes.append(("record edited by somebody", s._replace(world=world._replace(edited=True))))
        for k, effect in enumerate(world.effects):
            effects = world.effects[:k], world.effects[k + 1 :]
            if self.contract.effect_can_change:
                void = self.receiver.turned(world, effect.receipt, Standing.VOID)
                changes.append(("effect turned void", s._replace(world=void)))
            if self.contract.lookup is not None:
                bare = (*effects[0], effect._replace(marked=False), *effects[1])
                changes.append(("marker edited away", s._replace(world=world._replace(effects=bare))))
        if self.contract.lookup is not None:
            changes += self._odd_effects(s)
        if self.contract.effect_can_change and world.air and not world.slow:
            changes.append(("effect pending", s._replace(world=world._replace(slow=True))))
        set_back = s._replace(back=SET_BACK, touched=False)
        if not s.back and self.context(set_back).ahead:
            flying = any(self.operation(s, i).state is State.IN_FLIGHT for i in range(len(s.rows)))
            changes.append(("clock set back in flight" if flying else "clock set back", set_back))
        for name, changed in changes:
            after = self.fault(changed, name) if changed != s else None
            if after is not None:
                yield Step((name,), after, False)

    def _odd_effects(self, s: Moment) -> list[tuple[str, Moment]]:
        """Something else with our marker; or our own effect, made in an earlier life that the ledger's backup forgot."""
        world = s.world
        stranger = Effect(STRANGER, len(world.effects) + 1, s.tick, Standing.GOOD, True)
        changes = [("stranger with our marker", s._replace(world=world._replace(effects=(*world.effects, stranger))))]
        unsent = all(not self.bench.rows[n].attempts for n in s.rows) and not world.effects
        if (
            unsent
            and s.workers == (None, None)
            and not all(self.operation(s, i).state in ENDED for i in range(len(s.rows)))
        ):
            old = world._replace(effects=(Effect(0, 1, -LAST_TICK, Standing.GOOD, True),))
            changes.append(("ledger restored", s._replace(world=old)))
        return changes


def with_worker(s: Moment, w: int, worker: Worker | None) -> Moment:
    """The state with a worker's next step; the idle one comes second, since they are alike."""
    other = s.workers[1 - w]
    pair = (worker, other) if w == 0 else (other, worker)
    return s._replace(workers=pair if pair[0] is not None else (pair[1], None))


def _delivered(s: Moment, owner: int, fence: int, answer: Any) -> Moment:
    if answer is None:
        return s
    for w, worker in enumerate(s.workers):
        if worker is not None and (worker.kind, worker.i, worker.a) == ("wait", owner, fence):
            told = Worker("answer", owner, worker.stopped, fence, answer, worker.b)
            return with_worker(s, w, told)
    return s
