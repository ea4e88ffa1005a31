"""`make demo`: every scenario as promised, and a promise that is not kept makes the exit code say so."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from unittest.mock import MagicMock

import pytest

import devstack.demo
from devstack.child import DevstackError
from devstack.demo import conclude, run
from devstack.demo.promises import Counts, Promise, Row, count, differences
from devstack.demo.show import Show
from devstack.postgres import Postgres
from devstack.stripe_standin.rules import Arrival, Effect, Journal

ROOT = Path(__file__).parents[2]
PLAY = "import sys; from pathlib import Path; from devstack.demo import run; sys.exit(run(False, Path(sys.argv[1])))"
SCENARIOS = [
    "plain activity, new key per try",
    "ours, the same fault",
    "killed after Stripe executed, 25 h",
    "a person lets it go",
    "lost before Stripe, 25 h",
]


@pytest.mark.timeout(600)
def test_the_three_acts_are_as_promised(tmp_path: Path) -> None:
    """As a process of its own, as `make demo` plays them. CI plays every scenario, with `make demo ALL=1`."""
    played = subprocess.run(
        [sys.executable, "-c", PLAY, str(tmp_path / "demo")],
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        capture_output=True,
        text=True,
        timeout=570,
    )
    Postgres(tmp_path / "demo" / "postgres").remove()  # as root its cluster lies elsewhere
    assert played.returncode == 0, played.stdout[-12_000:] + played.stderr[-3_000:]
    rows = [line.split(" | ") for line in played.stdout.splitlines() if line.count(" | ") == 6]
    assert [row[0].strip() for row in rows[2:]] == SCENARIOS
    assert {row[6].strip() for row in rows[2:]} == {"yes"}
    assert played.stderr == ""


def arrival(number: int, *, faults: tuple[str, ...] = (), method: str = "POST", path: str = "/v1/refunds") -> Arrival:
    """One line of the journal; what is not counted is filled with anything."""
    return Arrival(
        number, f"req_{number}", 0.0, method, path, "key", "acct", False, {}, "", "", None, "pi_1", faults, False, 200,
        "answered", 0, 0,
    )  # fmt: skip


def effect(number: int, voided: str | None = None) -> Effect:
    """One refund of the journal."""
    return Effect(number, number, f"re_{number}", "pi_1", "acct", False, 1200, "eur", None, "api", 0.0, voided)


def test_requests_and_refunds_are_counted_as_the_journal_has_them() -> None:
    """Reads do not count, nor do refunds whose money came back; a request cut off before Stripe is counted apart."""
    journal = Journal(
        arrivals=(
            arrival(1, faults=("rst",)),
            arrival(2),
            arrival(3, method="GET"),
            arrival(4, path="/v1/refunds/re_1"),
        ),
        effects=(effect(1), effect(2, voided="failed")),
    )
    assert count(journal, {"rst"}) == Counts(reached=1, lost=1, effects=1)
    assert count(journal) == Counts(reached=2, lost=0, effects=1)


KEPT = Promise("succeeded", reached=1, effects=1)
ORDER_KEPT = Promise("done", reached=(1, 1, 1), effects=(1, 1, 1))
ROW = Row("a scenario", "succeeded", Counts(reached=1, lost=0, effects=1), (), 1.0)
ORDER_ROW = Row("a scenario", "done", Counts((1, 1, 1), 0, (1, 1, 1)), (), 1.0)


@pytest.mark.parametrize(
    ("row", "promise"),
    [
        (ROW, replace(KEPT, ended="rejected")),
        (ROW, replace(KEPT, reached=2)),
        (ROW, replace(KEPT, reached=2, reached_at_most=3)),
        (ROW, replace(KEPT, effects=0)),
        (ROW, replace(KEPT, lost=1)),
        (ROW, replace(KEPT, people=("bob",))),
        (replace(ROW, counts=Counts(reached=1, lost=0, effects=2)), KEPT),
        (replace(ROW, counts=Counts(reached=2, lost=0, effects=1)), KEPT),
        (replace(ROW, people=("bob",)), KEPT),
        (replace(ROW, objections=("something was sent again",)), KEPT),
        (replace(ORDER_ROW, counts=Counts((1, 1, 1), 0, (1, 1, 2))), ORDER_KEPT),
        (replace(ORDER_ROW, counts=Counts((1, 2, 1), 0, (1, 1, 1))), ORDER_KEPT),
        (replace(ORDER_ROW, counts=Counts((1, 1, 1), 0, 3)), ORDER_KEPT),
    ],
)
def test_one_row_that_is_not_as_promised_is_enough(
    row: Row, promise: Promise, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beside a good row, and with its difference in words."""
    wrong = differences(row, promise)
    assert len(wrong) == 1
    assert conclude(Show(), [(ROW, differences(ROW, KEPT)), (row, wrong)]) == 1
    shown = capsys.readouterr().out
    assert f"NOT AS PROMISED, a scenario: {wrong[0]}" in shown
    assert re.search(r"\| no$", shown, re.MULTILINE)


def test_a_row_that_is_missing_is_not_as_promised() -> None:
    """No table is no success either."""
    assert differences(ROW, KEPT) == [] == differences(ORDER_ROW, ORDER_KEPT)
    assert conclude(Show(), [(ROW, [])]) == 0
    assert conclude(Show(), [(ROW, [])], unfinished=1) == 1
    assert conclude(Show(), []) == 1


@pytest.fixture
def without_receivers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkout in which nobody has built `.venv-erp`; what would be started is not."""

    def missing(*args: object) -> Path:
        raise DevstackError(".venv-erp is not there")

    async def played(stacks: object, show: object) -> int:
        return 0

    monkeypatch.setattr(devstack.demo, "erp_python", missing)
    monkeypatch.setattr(devstack.demo, "Receivers", missing)
    monkeypatch.setattr(devstack.demo, "Servers", lambda *args, **more: MagicMock())
    monkeypatch.setattr(devstack.demo, "Stack", lambda *args, **more: MagicMock())
    monkeypatch.setattr(devstack.demo, "_play", played)


@pytest.mark.usefixtures("without_receivers")
def test_only_every_scenario_needs_the_outside_systems(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And who has not built them is told how, before anything is started."""
    assert run(False, tmp_path) == 0
    capsys.readouterr()
    assert run(True, tmp_path) == 1
    (told,) = capsys.readouterr().out.splitlines()
    assert "run `make demo ALL=1`, which builds them" in told
