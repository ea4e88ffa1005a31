"""What can happen next: two workers as small step machines, the receiver, people, and time.

1. Mirrored here is only the order of transactions in an activity; each of them is a call of the real code (`bench.py`).
2. A *prompt* step is one that a working system does at once: time waits for it. Everything else is a fault, and a run has at
   most `limit` of them: a stopped worker, a crash at any seam, lost and late requests, holds, revocations, pruned keys …
3. Assumed: between guard and first byte less than the slack passes. A wall clock is set back behind the last event, so that
   ledger time stands still (where the last event is older, the ledger cannot see it: a margin must be longer than the time
   between two events), and while it stands still some worker works, or nobody would know afterwards that it did.
"""

from collections.abc import Callable, Iterator
from typing import Any

from activities.messages import Next
from activities.progress import next_of
from ledger.model import Operation
from ledger.states import ENDED, State
from tests.exploration.bench import Bench
from tests.exploration.environment import (
    DOWN_TICKS,
    LAST_TICK,
    QUIET_TICKS,
    Environment,
    Moment,
    Scenario,
    Step,
    Worker,
    with_worker,
)
from tests.exploration.receiver import LOST, NOT_SENT
from tests.exploration.shapes import DEADLINE, SLACK, at


class System(Environment):
    """The steps that a scenario allows from a state."""

    def __init__(self, scenario: Scenario, bench: Bench | None = None) -> None:
        super().__init__(scenario, bench)
        self.doing: dict[str, Callable[[Moment, int, Worker], Iterator[Step]]] = {
            "judge": self._judges,
            "claim": self._claims,
            "found": self._finds,
            "guard": self._asks_guard,
            "clock": self._reads_clock,
            "write": self._writes,
            "wait": self._waits,
            "answer": self._records,
            "woken": self._is_woken,
            "look": self._looks,
            "seen": self._notes_look,
            "settle": self._settles,
            "follow": self._reads_receipt,
            "read": self._follows,
        }

    def steps(self, s: Moment) -> list[Step]:
        """Prompt steps first; time passes only when there is none."""
        found = list(self._at_work(s))
        busy = any(step.prompt for step in found)
        found += self.accidents(s)
        found += self._time(s, busy)
        return sorted(found, key=lambda step: not step.prompt)

    def working(self, s: Moment) -> Step | None:
        """The first of the steps, if it is prompt: what a system does in which nothing goes wrong any more."""
        prompt = (step for step in self._at_work(s) if step.prompt)
        return next(prompt, None) or next((step for step in self._time(s, busy=False) if step.prompt), None)

    def _at_work(self, s: Moment) -> Iterator[Step]:
        for w, worker in enumerate(s.workers):
            if worker is not None:
                yield from self._worker_steps(s, w, worker)
        yield from self.receiver_steps(s)
        yield from self._starts(s)
        yield from self.people(s)

    # Workers ----------------------------------------------------------------------------------------------------

    def _worker_steps(self, s: Moment, w: int, worker: Worker) -> Iterator[Step]:
        if worker.stopped:
            last = _gap_ends(s, worker)
            over = self._is_over(s) and s.tick >= QUIET_TICKS
            yield Step(("worker {} goes on", w), with_worker(s, w, worker._replace(stopped=False)), last or over)
        else:
            yield from self.doing[worker.kind](s, w, worker)
            stopped = self.fault(s, "worker stopped")
            if stopped is not None:
                words = ("worker {} is stopped before: {}", w, worker.kind)
                yield Step(words, with_worker(stopped, w, worker._replace(stopped=True)), False)
        crashed = self.fault(s, "worker crashed")
        if crashed is not None:
            yield Step(("worker {} crashes before: {}", w, worker.kind), with_worker(crashed, w, None), False)

    def _judges(self, s: Moment, w: int, worker: Worker) -> Iterator[Step]:
        after, told = self.call(s, "judge", worker.i, worker.a)
        yield Step(("worker {} judges operation {}", w, worker.i), with_worker(after, w, None), True, told, worker.i)

    def _claims(self, s: Moment, w: int, worker: Worker) -> Iterator[Step]:
        after, told = self.call(s, "claim", worker.i, worker.a, worker.b)
        goes_on = None
        if told.word is not None and told.word[0] not in ("broke", "refused"):
            fence, found = told.word
            goes_on = Worker("found", worker.i, False, fence, worker.b)
            if not found:
                goes_on = Worker("guard", worker.i, False, fence, worker.a)
        words = ("worker {} claims operation {}: {}", w, worker.i, told.word)
        yield Step(words, with_worker(after, w, goes_on), True, told, worker.i)

    def _finds(self, s: Moment, w: int, worker: Worker) -> Iterator[Step]:
        after, told = self.call(s, "found", worker.i, worker.a, worker.b)
        yield Step(
            ("worker {} records the effect that was there", w), with_worker(after, w, None), True, told, worker.i
        )

    def _asks_guard(self, s: Moment, w: int, worker: Worker) -> Iterator[Step]:
        after, told = self.call(s, "guard", worker.i, worker.a, worker.b, s.tick)
        goes_on = worker._replace(kind="clock") if told.word is True else _answered(worker, NOT_SENT)
        words = ("worker {} asks the ledger whether it may still send: {}", w, told.word)
        yield Step(words, with_worker(after, w, goes_on), True, told, worker.i)

    def _reads_clock(self, s: Moment, w: int, worker: Worker) -> Iterator[Step]:
        _, told = self.call(s, "in_time", worker.i, worker.b, s.tick)
        goes_on = Worker("write", worker.i, False, worker.a, s.tick, worker.b)
        words = ("worker {} reads its clock: in time {}", w, told.word)
        yield Step(words, with_worker(s, w, goes_on if told.word is True else _answered(worker, NOT_SENT)), True, told)

    def _writes(self, s: Moment, w: int, worker: Worker) -> Iterator[Step]:
        _, told = self.call(s, "late", worker.i, worker.c, s.tick)
        sent = s._replace(world=self.receiver.arrives(s.world, worker.i, worker.a, s.tick))
        waits = Worker("wait", worker.i, False, worker.a, told.word, s.tick + DEADLINE)
        words = ("worker {} sends the request of attempt {}, late: {}", w, worker.a, told.word)
        yield Step(words, with_worker(sent, w, waits), True, told, worker.i)

    def _waits(self, s: Moment, w: int, worker: Worker) -> Iterator[Step]:
        if s.tick >= worker.c:
            goes_on = Worker("answer", worker.i, False, worker.a, LOST, worker.b)
            yield Step(("worker {} gets no answer within its deadline", w), with_worker(s, w, goes_on), True)

    def _records(self, s: Moment, w: int, worker: Worker) -> Iterator[Step]:
        after, told = self.call(s, "record", worker.i, worker.a, worker.b, worker.c)
        words = ("worker {} records the answer to attempt {}: {}", w, worker.a, worker.b)
        # An answer that came late wakes the workflow: what could not be settled before may be now.
        goes_on = Worker("woken", worker.i) if told.word is True else None
        yield Step(words, with_worker(after, w, goes_on), True, told, worker.i)
        again = self.fault(after, "answer recorded twice")
        if again is not None:
            yield Step((*words, "unacknowledged"), with_worker(again, w, worker), False, told, worker.i)

    def _is_woken(self, s: Moment, w: int, worker: Worker) -> Iterator[Step]:
        operation, idle = self.operation(s, worker.i), with_worker(s, w, None)
        if next_of(operation) in (Next.RECONCILE, Next.REVIEW):
            yield from self._reconcile(idle, 1 if idle.workers[0] else 0, worker.i, look_now=True, prompt=True)
        else:
            yield Step(("worker {} wakes the workflow", w), idle, True)

    def _looks(self, s: Moment, w: int, worker: Worker) -> Iterator[Step]:
        for name, seen in self.receiver.views(s.world, s.tick):
            after = self.fault(s, name) if name else s
            if after is not None:
                words = ("worker {} looks, {}: {}", w, name or "completely", seen.effects)
                yield Step(words, with_worker(after, w, worker._replace(kind="seen", b=seen)), not name)

    def _notes_look(self, s: Moment, w: int, worker: Worker) -> Iterator[Step]:
        after, told = self.call(s, "look", worker.i, worker.a, worker.b)
        words = ("worker {} records what it saw", w)
        yield Step(words, with_worker(after, w, Worker("settle", worker.i)), True, told, worker.i)

    def _settles(self, s: Moment, w: int, worker: Worker) -> Iterator[Step]:
        after, told = self.call(s, "settle", worker.i)
        yield Step(("worker {} settles operation {}", w, worker.i), with_worker(after, w, None), True, told, worker.i)

    def _reads_receipt(self, s: Moment, w: int, worker: Worker) -> Iterator[Step]:
        receipt = self.operation(s, worker.i).receipt
        effect = next((e for e in s.world.effects if f"re_{e.receipt}" == receipt), None)
        words = ("worker {} reads the receipt: {}", w, effect)
        yield Step(words, with_worker(s, w, worker._replace(kind="read", b=effect)), True)
        unread = self.fault(s, "list incomplete")
        if unread is not None:
            goes_on = worker._replace(kind="read", b=None)
            yield Step(("worker {} cannot read the receipt", w), with_worker(unread, w, goes_on), False)

    def _follows(self, s: Moment, w: int, worker: Worker) -> Iterator[Step]:
        after, told = self.call(s, "follow", worker.i, worker.a, worker.b)
        words = ("worker {} records what became of the receipt", w)
        yield Step(words, with_worker(after, w, None), True, told, worker.i)

    # What is started --------------------------------------------------------------------------------------------

    def _starts(self, s: Moment) -> Iterator[Step]:
        free = next((w for w, worker in enumerate(s.workers) if worker is None), None)
        if free is None:
            return
        for i in range(len(s.rows)):
            operation = self.operation(s, i)
            if next_of(operation) is Next.DONE:
                yield from self._hint(s, free, i)
                continue
            busy = any(x is not None and x.i == i and not x.stopped for x in s.workers)
            if not busy and self._is_due(s, operation):
                yield from self._start(s, free, i, operation)
            else:
                again = self.fault(s, "started twice")
                if again is not None:
                    yield from self._start(again, free, i, operation, prompt=False)
            yield from self._hint(s, free, i)

    def _hint(self, s: Moment, w: int, i: int) -> Iterator[Step]:
        """A webhook comes. Where nobody can look, no receiver tells of effects after the end either."""
        hinted = self.fault(s, "webhook")
        if hinted is not None and (self.contract.lookup is not None or self.operation(s, i).state not in ENDED):
            yield from self._reconcile(hinted, w, i, look_now=True, prompt=False)

    def _is_due(self, s: Moment, operation: Operation) -> bool:
        if operation.state is State.NEEDS_REVIEW or operation.next_step_at is None:
            return False
        context = self.context(s)
        if context.ahead:  # it asks again after a minute of its own, whatever the ledger's clock says
            return not s.touched
        return operation.next_step_at <= at(context.now)

    def _start(self, s: Moment, w: int, i: int, operation: Operation, *, prompt: bool = True) -> Iterator[Step]:
        following = next_of(operation).value
        if following in ("judge", "people", "dispatch"):
            kind = "claim" if following == "dispatch" else "judge"
            for name, seen in self.receiver.views(s.world, s.tick):
                after = self.fault(s, name) if name else s
                if after is None:
                    continue
                begun = Worker(kind, i, False, s.tick, seen) if kind == "claim" else Worker(kind, i, False, seen)
                words = ("worker {} starts to {} operation {}; reads the target {}", w, kind, i, name or "completely")
                yield Step(words, with_worker(after, w, begun), prompt and not name)
        else:
            yield from self._reconcile(s, w, i, look_now=False, prompt=prompt)

    def _reconcile(self, s: Moment, w: int, i: int, *, look_now: bool, prompt: bool) -> Iterator[Step]:
        after, told = self.call(s, "reconcile", i, look_now)
        goes_on = None
        if told.word == "look":
            goes_on = Worker("look", i, False, self.context(s).now)
        if told.word == "follow":
            goes_on = Worker("follow", i, False, self.operation(s, i).standing)
        words = ("worker {} reconciles operation {}{}", w, i, ", asked by a webhook" if look_now else "")
        yield Step(words, with_worker(after, w, goes_on), prompt, told, i)

    def _time(self, s: Moment, busy: bool) -> Iterator[Step]:
        over = self._is_over(s)
        if s.tick >= LAST_TICK or (over and s.tick >= QUIET_TICKS):
            return
        after = s._replace(tick=s.tick + 1, touched=not s.back)
        if not busy:
            alive = any(w is not None for w in s.workers) or bool(s.world.air) or len(s.faults) < self.scenario.limit
            if not over or alive:
                yield Step(("ten minutes pass: tick {}", s.tick + 1), after, True)
        elif all(w is None or (w.stopped and not _gap_ends(s, w)) for w in s.workers) and not s.world.air:
            # One outage may last: until somebody works again it is the same.
            lasting = "all workers down" in s.faults and s.tick < DOWN_TICKS
            down = after if lasting else self.fault(after, "all workers down")
            if self.context(s).ahead:
                down = None  # what nobody settles while ledger time stands still, nobody can distrust
            if down is not None:
                yield Step(("ten minutes pass with nobody working: tick {}", s.tick + 1), down, False)

    def _is_over(self, s: Moment) -> bool:
        return all(self.is_over(s, i) for i in range(len(s.rows)))


def _gap_ends(s: Moment, worker: Worker) -> bool:
    """Whether a worker that was let through must write now: the gap before the first byte is shorter than the slack."""
    return worker.kind == "write" and s.tick + 1 >= worker.b + SLACK


def _answered(worker: Worker, answer: Any) -> Worker:
    return Worker("answer", worker.i, worker.stopped, worker.a, answer, False)
