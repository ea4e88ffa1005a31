"""Breadth-first search over all states of a scenario: the first counter-example is a shortest one, and is told as a story.

Liveness is checked as hard: from every state that was reached, the run that a working system takes (its first prompt step, again
and again) must come to an end or to a person, without turning in place. So also where a bound cut the exploration off.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ledger.errors import Broken
from tests.exploration.environment import Moment, Step
from tests.exploration.invariants import CHECKS, Check, nothing_breaks
from tests.exploration.memory import in_memory
from tests.exploration.system import System

COMES_TO_AN_END = "comes_to_an_end"


@dataclass
class Found:
    """A counter-example: which invariant, what was wrong, and the steps that lead there."""

    invariant: str
    words: str
    story: list[str]
    faults: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join(
            [f"{self.invariant}: {self.words}", *(f"  {k}. {line}" for k, line in enumerate(self.story, 1))]
        )


@dataclass
class Search:
    """Every state that was reached, in the order of the number of steps to it."""

    system: System
    checks: Sequence[Check] = CHECKS
    most: int = 10**9
    states: list[Moment] = field(default_factory=list)
    parents: list[tuple[int, int]] = field(default_factory=list)  # (state, which of its steps)
    nexts: dict[int, int] = field(default_factory=dict)  # where the working system goes from here; -1: nowhere
    edges: Counter[int] = field(default_factory=Counter)
    rows: Counter[str] = field(default_factory=Counter)
    reached: dict[Any, tuple[int, int]] = field(default_factory=dict)  # by kind of change: where it was made first
    whole: bool = False  # every step of every state was taken
    _numbers: dict[Moment, int] = field(default_factory=dict)
    _kept: dict[Any, Any] = field(default_factory=dict)  # equal parts of states, once

    def run(self) -> Found | None:
        """The shortest counter-example; None when every state is good."""
        with in_memory():
            return self._explore() or self._turning()

    def path(self, number: int) -> list[Step]:
        """The steps from the start to a state."""
        way: list[int] = []
        while number:
            way.append(number)
            number = self.parents[number][0]
        return [self._step(n) for n in reversed(way)]

    def _step(self, number: int) -> Step:
        parent, which = self.parents[number]
        return self.system.steps(self.states[parent])[which]

    def _explore(self) -> Found | None:
        try:
            start = self.system.start()
        except Broken as error:
            return Found(nothing_breaks.__name__, str(error), ["tick 0: an operation is proposed"])
        self._numbers[start] = 0
        self.states, self.parents = [start], [(0, 0)]
        here = 0
        while here < len(self.states):
            if len(self.states) >= self.most:
                return None
            going = -1
            for which, step in enumerate(self.system.steps(self.states[here])):
                number, found = self._taken(here, which, step)
                if found is not None:
                    return found
                if going < 0 and step.prompt:
                    going = number
            self.nexts[here] = going
            here += 1
        self.whole = True
        return None

    def _taken(self, here: int, which: int, step: Step) -> tuple[int, Found | None]:
        """The number of the state after a step, and what is wrong with it."""
        for check in self.checks:
            wrong = check(self.system, self.states[here], step)
            if wrong:
                return -1, Found(check.__name__, wrong, self._story(here, step), step.after.faults)
        for kind in step.kinds:
            self.reached.setdefault(kind, (here, which))
        number = self._numbers.get(step.after)
        if number is None:
            number = len(self.states)
            keep = self._kept.setdefault
            world, workers = step.after.world, step.after.workers
            after = step.after._replace(world=keep(world, world), workers=keep(workers, workers))
            self._numbers[after] = number
            self.states.append(after)
            self.parents.append((here, which))
            for move in step.moves:
                self.edges[move.edge] += 1
                self.rows[move.row] += 1
        return number, None

    def _turning(self) -> Found | None:
        """The first state from which a working system turns in place, or stands where nothing ended.

        Also from the states that were reached and not explored: there only what the working system does is looked at.
        """
        good: set[int] = set()
        for number in range(len(self.states)):
            way: dict[int, None] = {}
            at = number
            while at >= 0 and at not in good and at not in way:
                way[at] = None
                at, found = self._goes(at)
                if found is not None:
                    return found
            if at in way:
                return Found(COMES_TO_AN_END, "the working system turns in place", *self._told_of(at))
            last = next(reversed(way), at)
            if at < 0 and not self._rests(self.states[last]):
                return Found(COMES_TO_AN_END, "the working system stands, and nothing comes", *self._told_of(last))
            good.update(way)
        return None

    def _goes(self, number: int) -> tuple[int, Found | None]:
        """Where the working system goes from a state; -1: nowhere."""
        if number not in self.nexts:
            step = self.system.working(self.states[number])
            if step is None:
                self.nexts[number] = -1
            else:
                self.nexts[number], found = self._taken(number, 0, step)
                if found is not None:
                    return -1, found
        return self.nexts[number], None

    def _rests(self, state: Moment) -> bool:
        """Ended, in review, or held by people: then the next step is to ask again whether they released it."""
        return state.held or all(self.system.is_over(state, i) for i in range(len(state.rows)))

    def _told_of(self, number: int) -> tuple[list[str], tuple[str, ...]]:
        """The story of how a state was reached, and its faults."""
        return self._told([self.states[0]], self.path(number)), self.states[number].faults

    def _story(self, number: int, last: Step) -> list[str]:
        return self._told([self.states[0]], [*self.path(number), last])

    def _told(self, before: list[Moment], steps: list[Step]) -> list[str]:
        lines = []
        tick = before[0].tick
        for step in steps:
            moves = "".join(f" [{m.source} → {m.target}, edge {m.edge} {m.row}]" for m in step.moves)
            lines.append(f"tick {tick}: {step.words[0].format(*step.words[1:])}{moves}")
            tick = step.after.tick
        return lines
