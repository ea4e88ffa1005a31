"""Breadth-first search over all states of a scenario: the first counter-example is a shortest one, and is told as a story.

Liveness is checked as hard: from every state, the run that a working system takes (its first prompt step, again and again)
must come to an end or to a person, without turning in place.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ledger.errors import Broken
from ledger.states import ENDED, State
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
    nexts: list[int] = field(default_factory=list)  # where the working system goes from here; -1: nowhere
    edges: Counter[int] = field(default_factory=Counter)
    rows: Counter[str] = field(default_factory=Counter)
    reached: dict[Any, tuple[int, int]] = field(default_factory=dict)  # by kind of move: where it was made first
    whole: bool = False  # everything was explored

    def run(self) -> Found | None:
        """The shortest counter-example; None when every state is good."""
        with in_memory():
            found = self._explore()
            return found or (self._turning() if self.whole else None)

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
        numbers: dict[Moment, int] = {start: 0}
        self.states, self.parents = [start], [(0, 0)]
        kept: dict[Any, Any] = {}
        here = 0
        while here < len(self.states):
            if len(self.states) >= self.most:
                return None
            state = self.states[here]
            going = -1
            for which, step in enumerate(self.system.steps(state)):
                for check in self.checks:
                    wrong = check(self.system, state, step)
                    if wrong:
                        return Found(check.__name__, wrong, self._story(here, step), step.after.faults)
                for move in step.moves:
                    self.reached.setdefault(move.kind, (here, which))
                after = step.after
                number = numbers.get(after)
                if number is None:
                    number = len(self.states)
                    world, workers = (
                        kept.setdefault(after.world, after.world),
                        kept.setdefault(after.workers, after.workers),
                    )
                    after = after._replace(world=world, workers=workers)
                    numbers[after] = number
                    self.states.append(after)
                    self.parents.append((here, which))
                    for move in step.moves:
                        self.edges[move.edge] += 1
                        self.rows[move.row] += 1
                if going < 0 and step.prompt:
                    going = number
            self.nexts.append(going)
            here += 1
        self.whole = True
        return None

    def _turning(self) -> Found | None:
        """The first state from which a working system turns in place, or stands where nothing ended."""
        good = bytearray(len(self.states))
        for number in range(len(self.states)):
            way: list[int] = []
            seen: set[int] = set()
            at = number
            while not good[at] and at not in seen:
                seen.add(at)
                way.append(at)
                if self.nexts[at] < 0:
                    break
                at = self.nexts[at]
            if not good[at] and (self.nexts[at] >= 0 or not self._rests(self.states[at])):
                why = "turns in place" if self.nexts[at] >= 0 else "stands, and nothing comes"
                return Found(COMES_TO_AN_END, f"the working system {why}", self._story_to(at), self.states[at].faults)
            for passed in way:
                good[passed] = 1
        return None

    def _rests(self, state: Moment) -> bool:
        """Ended, in review, or held by people: then the next step is to ask again whether they released it."""
        ended = ENDED | {State.NEEDS_REVIEW}
        return state.held or all(self.system.operation(state, i).state in ended for i in range(len(state.rows)))

    def _story_to(self, number: int) -> list[str]:
        return self._told([self.states[0]], self.path(number))

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
