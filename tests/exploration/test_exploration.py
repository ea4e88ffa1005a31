"""Every state that the real code can reach is good, for every shape of contract, under any one fault."""

from functools import lru_cache
from unittest.mock import patch

import pytest
from pydantic import ValidationError

from ledger.contract import Contract
from ledger.states import State
from tests.exploration.bench import bench_of
from tests.exploration.environment import Scenario
from tests.exploration.scenarios import EVERYTHING, small
from tests.exploration.search import Found, Search
from tests.exploration.shapes import KEY_ONLY, NEITHER, TICK
from tests.exploration.system import System


def _title(scenario: Scenario) -> str:
    amounts = "+".join(map(str, scenario.amounts))
    return f"{scenario.contract.name}, {amounts}, {scenario.limit} of {len(scenario.faults)} faults"


@lru_cache
def _explored(scenario: Scenario) -> tuple[Search, Found | None]:
    search = Search(System(scenario, bench_of(scenario.contract)))
    return search, search.run()


@pytest.mark.parametrize("scenario", small(), ids=_title)
def test_every_state_is_good(scenario: Scenario) -> None:
    """Safety in every state and on every step, and from every state a working system comes to an end or to a person."""
    search, found = _explored(scenario)
    assert found is None, f"\n{found}"
    assert search.whole


def test_every_fault_happens_and_every_state_is_reached() -> None:
    """A fault that no run has would be a promise of this file that nothing keeps."""
    searches = [_explored(scenario)[0] for scenario in small()]
    happened = {fault for search in searches for state in search.states for fault in state.faults}
    assert happened | {"look again", "happened"} == EVERYTHING  # these come after another fault: the mutants' scenarios
    stood = {rows.operation.state for search in searches for rows in search.system.bench.rows}
    assert stood == set(State)


def test_the_story_of_a_counter_example_is_the_shortest_one() -> None:
    """Told tick by tick, with every move: made by an invariant that no effect may exist."""

    def no_effect_at_all(system: System, before: object, step: object) -> str:
        return "there is one" if step.after.world.effects else ""  # type: ignore[attr-defined]

    found = Search(System(Scenario(NEITHER, frozenset(), 0)), checks=[no_effect_at_all]).run()
    assert found is not None
    assert str(found).splitlines() == [
        "no_effect_at_all: there is one",
        "  1. tick 0: worker 0 starts to judge operation 0; reads the target completely",
        "  2. tick 0: worker 0 judges operation 0 [proposed → approved, edge 3 ]",
        "  3. tick 0: worker 0 starts to claim operation 0; reads the target completely",
        "  4. tick 0: worker 0 claims operation 0: (1, False) [approved → in_flight, edge 7 ]",
        "  5. tick 0: worker 0 asks the ledger whether it may still send: True",
        "  6. tick 0: worker 0 reads its clock: in time True",
        "  7. tick 0: worker 0 sends the request of attempt 1, late: False",
        "  8. tick 0: the receiver works on the request of attempt 1:  applied ",
    ]


def test_a_clock_set_back_while_an_attempt_is_open() -> None:
    """Its worker stops holding the answer, the wall clock is set back, and after the standstill its key looks younger."""
    faults = frozenset(("worker stopped", "clock set back in flight"))
    found = Search(System(Scenario(KEY_ONLY, faults, 2))).run()
    assert found is None, f"\n{found}"


def test_a_margin_shorter_than_the_slack() -> None:
    """A repeat of the last permitted moment, stopped between guard and first byte, is worked on when its key is gone."""
    assert KEY_ONLY.key is not None
    terms = KEY_ONLY.model_dump()
    terms["key"]["margin"] = terms["processing"]
    terms["key"]["lifetime"] -= KEY_ONLY.key.margin - terms["processing"]  # the window closes when it did
    try:
        short = Contract.model_validate(terms)
    except ValidationError:
        return  # refused when it is loaded
    faults = frozenset(("worker crashed", "worker stopped", "request delayed"))
    with patch("tests.exploration.receiver.LIFETIME", int(terms["key"]["lifetime"] / TICK)):
        found = Search(System(Scenario(short, faults, 3))).run()
    assert found is None, f"\n{found}"
