"""The search is not blind: every mutant of the real code is caught, each by a named invariant, in a scenario of its own."""

import pytest

from ledger.recovery import ROWS
from ledger.states import TRANSITIONS
from tests.exploration.bench import bench_of
from tests.exploration.caught import CAUGHT, EQUIVALENT, At
from tests.exploration.mutants import at_work, mutants
from tests.exploration.search import Found, Search
from tests.exploration.system import System


def _explored(name: str, where: At) -> Found | None:
    with at_work(mutants()[name]):
        return Search(System(where.scenario)).run()


def test_every_mutant_is_caught_or_argued_away() -> None:
    """None is dropped silently."""
    assert set(CAUGHT) | set(EQUIVALENT) == set(mutants())
    assert not set(CAUGHT) & set(EQUIVALENT)


@pytest.mark.parametrize("name", CAUGHT)
def test_the_mutant_is_caught(name: str) -> None:
    """By the invariant that says what went wrong."""
    found = _explored(name, CAUGHT[name])
    assert found is not None, f"nobody noticed: {name}"
    assert found.invariant == CAUGHT[name].says, f"\n{found}"
    assert found.story


@pytest.mark.parametrize("name", EQUIVALENT)
def test_the_equivalent_mutant_shows_nothing(name: str) -> None:
    """For the reason that is written beside it."""
    found = _explored(name, EQUIVALENT[name])
    assert found is None, f"it shows now, so that it belongs to the others: {EQUIVALENT[name].says}\n{found}"


def test_the_code_itself_is_good_in_the_scenarios_of_its_mutants() -> None:
    """What catches a mutant is the mutant, not the scenario. Together they reach every edge and every row."""
    edges, rows, states = {1}, set(), 0  # edge 1 is made at the start
    for where in {(at.shape.name, *at[1:2], *at[3:]): at for at in CAUGHT.values()}.values():
        search = Search(System(where.scenario, bench_of(where.shape)), most=1_500)
        found = search.run()
        assert found is None, f"{where.shape.name}, {where.faults}:\n{found}"
        edges |= set(search.edges)
        rows |= set(search.rows)
        states += len(search.states)
    assert edges == {edge.number for edge in TRANSITIONS}
    assert rows - {""} == {f"D{k}" for k in range(len(ROWS))}
    assert states > 20_000
