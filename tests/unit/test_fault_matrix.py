"""docs/faults.md has every fault and every adapter, and no hole; the judge of a soak sees each thing that must not be."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from docs import faults
from docs.faults import AFTER, BEFORE, NOT_TRIED, PAGE, ROWS, Trouble, columns, page
from providers.registry import default_registry
from tests.soak.checker import Fact, differences

# Every fault that the page must have, and when.
WANTED = {
    *((trouble, when) for trouble in (Trouble.RESET, Trouble.FIN, Trouble.HANG) for when in (BEFORE, AFTER)),
    (Trouble.DRIP, AFTER),
    *(
        (trouble, when)
        for trouble in (Trouble.TRUNCATED, Trouble.PAGE_200, Trouble.PAGE_502)
        for when in (BEFORE, AFTER)
    ),
    (Trouble.STORED_500, BEFORE),
    (Trouble.STORED_500, AFTER),
    (Trouble.ROLLED_FORWARD, BEFORE),
    *((trouble, BEFORE) for trouble in (Trouble.CONFLICT_409, Trouble.RATE_429, Trouble.LOCK_429, Trouble.LOGIN_401)),
    (Trouble.KEY_EXPIRED, BEFORE),
    (Trouble.KEY_EXPIRED, AFTER),
    (Trouble.LOOKUP_LAGS, AFTER),
    (Trouble.TWO_OBJECTS, AFTER),
    (Trouble.FOREIGN_EQUAL, BEFORE),
    (Trouble.FOREIGN_EQUAL, AFTER),
    (Trouble.UNMARKED, AFTER),
    *((t, w) for t in (Trouble.SIGKILL, Trouble.SIGSTOP, Trouble.POSTGRES, Trouble.TEMPORAL) for w in (BEFORE, AFTER)),
    *((trouble, when) for trouble in (Trouble.WORKFLOW_RESET, Trouble.TERMINATED) for when in (BEFORE, AFTER)),
}


def table_of(text: str) -> list[list[str]]:
    """The cells of the page's table, its head first."""
    return [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]


def test_every_fault_has_its_row() -> None:
    """As many as anybody asked for, and none twice."""
    there = [(row.fault, row.when) for row in ROWS]
    assert set(there) >= WANTED and len(there) == len(set(there))
    assert set(Trouble) == {row.fault for row in ROWS}


def test_the_page_has_every_row_and_every_adapter_and_nothing_untried() -> None:
    """Otherwise: `make faults`. A cell that cannot be names its reason."""
    head, _, kinds, *rows = table_of(PAGE.read_text())
    assert head[2:] == [f"`{provider.action}`" for provider in columns()]
    assert {name.strip("`") for name in head[2:]} == {provider.action for provider in default_registry()}
    assert kinds[2:] == [f"*{faults.kind_of(provider.contract)}*" for provider in columns()]
    assert [(name, when) for name, when, *_ in rows] == [(row.fault.value, row.when) for row in ROWS]
    for row, (_, _, *cells) in zip(ROWS, rows, strict=True):
        for provider, cell in zip(columns(), cells, strict=True):
            wanted = r"\d+ · \w+ · (s|min|h|d) · (machine|\*\*person\*\*)" if row.fits(provider) else r"—\[\^\d\]"
            assert re.match(wanted, cell), (row.fault, row.when, provider.action, cell)
    assert "Written by `make faults` on 20" in PAGE.read_text()


def test_the_page_shows_what_nobody_tried_and_refuses_what_it_does_not_know() -> None:
    """The checks themselves, on seeded mistakes."""
    cell = {"fault": Trouble.RESET.value, "when": BEFORE, "action": "refund", "effects": 1, "state": "succeeded"}
    made = page([cell | {"seconds": 59.0, "by": "machine"}], "Made by hand.")
    assert "| 1 · succeeded · s · machine | " + NOT_TRIED in made
    both = page([cell | {"seconds": s, "by": "machine"} for s in (5.0, 3_700.0)], "x")
    assert "| 1 · succeeded · h · machine |" in both
    other = cell | {"state": "needs_review", "effects": 0, "seconds": 61.0, "by": "person"}
    told = page([other, cell | {"seconds": 5.0, "by": "machine"}], "x")
    assert "| 0 · review · min · **person**<br>or 1 · succeeded · s · machine |" in told
    with pytest.raises(SystemExit, match="no such cell"):
        page([cell | {"action": "send_mail", "fault": Trouble.LOCK_429.value}], "x")


GOOD = Fact("one", "succeeded", "succeeded", "re_1", ("re_1",), 2, 2, "", False)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"folded": "unknown"}, "its trail comes to unknown"),
        ({"effects": ("re_1", "re_2")}, "2 effects"),
        ({"effects": ()}, "the receiver has nothing"),
        ({"effects": ("re_9",)}, "the receiver has re_9"),
        ({"receipt": ""}, "receipt none"),
        ({"sends": 3}, "sent 3 times on 2 claims"),
        ({"state": "rejected", "folded": "rejected"}, "rejected, but the receiver has re_1"),
        ({"state": "blocked", "folded": "blocked"}, "blocked, but the receiver has re_1"),
        ({"state": "", "folded": ""}, "never recorded, but"),
        ({"state": "unknown", "folded": "unknown", "next_step": "look", "overdue": True}, "is overdue"),
        ({"state": "unknown", "folded": "unknown"}, "nothing comes next"),
        ({"contradicted": True}, "evidence against it"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_the_judge_of_a_soak_bites(changed: dict[str, object], said: str) -> None:
    """Each seeded break of one good operation is named, and the good ones are not."""
    waiting = replace(GOOD, state="needs_review", folded="needs_review", receipt="", next_step="review")
    nothing = replace(GOOD, state="rejected", folded="rejected", receipt="", effects=())
    assert differences([GOOD, waiting, nothing]) == []
    found = differences([GOOD, replace(GOOD, name="two", **changed)])  # type: ignore[arg-type]
    assert any(said in one for one in found) and all(one.startswith("two: ") for one in found), found


def test_what_make_runs_for_the_page_is_what_writes_it_down() -> None:
    """Every file that records outcomes is marked, so that `make faults` runs it."""
    tests = Path(__file__).parents[1]
    for file in (tests / "recovery").glob("test_*.py"):
        text = file.read_text()
        assert bool(re.search(r"\bnote(_each)?\(", text)) == ("mark.matrix" in text), file.name
