"""What each event counts; and that alerts, dashboard and pages name metrics that there are, with sections that are there."""

import json
import os
import re
import shlex
import shutil
import subprocess
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from temporalio.runtime import BUFFERED_METRIC_KIND_COUNTER, MetricBuffer, Runtime, TelemetryConfig

from activities.metrics import METRICS, TEMPORALS, Kind, Meters, counted
from ledger.model import Hint, Outcome
from ledger.states import BlockReason, State
from ledger.store.facts import Fact
from ledger.store.gauges import Gauges
from ledger.trail import EventKind
from tests.providers.refund_operations import an_operation
from tests.unit.test_docs import command_of, headings

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
ALERTS = (DEPLOY / "alerts.yml").read_text()
KNOWN = {m.name: m for m in METRICS}
# What a name in an expression may end in beyond the metric's own, by its kind.
PARTS = {Kind.HISTOGRAM: ("_bucket", "_sum", "_count"), Kind.GAUGE: ("",), Kind.COUNTER: ("",)}


WHAT = {"action": "refund", "provider": "stripe"}
REPEAT = {"settled_by": "repeat", "unknown_seconds": 2.5}
PERSON = {"settled_by": "person", "unknown_seconds": 90_000.0}
TABLE: list[tuple[EventKind, State, str, dict[str, Any], list[tuple[str, float, dict[str, str]]]]] = [
    (EventKind.MOVED, State.APPROVED, "", {}, []),
    (EventKind.MOVED, State.SUCCEEDED, "", {}, [
        ("ended_total", 1, {"state": "succeeded"}), ("accepted_results_total", 1, {"by": "machine"})]),
    (EventKind.MOVED, State.SUCCEEDED, "", REPEAT, [
        ("settled_seconds", 2.5, {"by": "repeat"}),
        ("ended_total", 1, {"state": "succeeded"}), ("accepted_results_total", 1, {"by": "machine"})]),
    (EventKind.MOVED, State.SUCCEEDED, "resolved", PERSON, [
        ("settled_seconds", 90_000.0, {"by": "person"}),
        ("ended_total", 1, {"state": "succeeded"}), ("accepted_results_total", 1, {"by": "person"})]),
    (EventKind.MOVED, State.BLOCKED, "target_unfit", {}, [
        ("ended_total", 1, {"state": "blocked"}), ("blocked_total", 1, {"reason": "target_unfit"})]),
    (EventKind.MOVED, State.BLOCKED, "version_stale", {}, [
        ("ended_total", 1, {"state": "blocked"}), ("blocked_total", 1, {"reason": "version_stale"}),
        ("stale_versions_total", 1, {})]),
    (EventKind.MOVED, State.REJECTED, "version_stale", {}, [
        ("ended_total", 1, {"state": "rejected"}), ("stale_versions_total", 1, {})]),
    (EventKind.ATTEMPT_ANSWERED, State.IN_FLIGHT, "", {"outcome": Outcome.UNKNOWN, "hint": Hint.LOST}, [
        ("attempts_total", 1, {"outcome": "unknown", "hint": "lost"})]),
    (EventKind.LATE_ANSWER, State.UNKNOWN, "", {"outcome": Outcome.APPLIED, "hint": Hint.NONE}, [
        ("attempts_total", 1, {"outcome": "applied", "hint": "none"})]),
    (EventKind.CONTRADICTION, State.REJECTED, "", {"what": "it exists"}, [("contradictions_total", 1, {})]),
    (EventKind.SIGHTING, State.UNKNOWN, "", {}, []),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "state", "reason", "body", "wanted"), TABLE)
def test_what_an_event_of_an_operation_counts(
    kind: EventKind, state: State, reason: str, body: Any, wanted: Any
) -> None:
    """By action and provider. Red: leave any `yield` out of `counted`."""
    source = State.IN_FLIGHT if kind is EventKind.MOVED else None
    fact = Fact(kind, body, an_operation(state=state, reason=reason), 1, source)
    assert list(counted(fact)) == [(f"effect_ledger_{name}", n, labels | WHAT) for name, n, labels in wanted]


def test_what_has_no_action_of_its_own_is_counted_without() -> None:
    """Proposals, signals, statements, duplicates. Junk counts as often as it came."""
    told = [
        (EventKind.STATEMENT_REFUSED, {"typ": "decide", "rule": "own_proposal", "count": 1},
         ("messages_refused_total", 1, {"type": "decide", "rule": "own_proposal"})),
        (EventKind.JUNK_REFUSED, {"rule": "decide without a JSON object", "count": 7},
         ("messages_refused_total", 7, {"type": "junk", "rule": "junk"})),
        (EventKind.STATEMENT_ACCEPTED, {"typ": "approval", "decision": "approve"},
         ("statements_accepted_total", 1, {"type": "approval", "decision": "approve"})),
        (EventKind.HELD, {}, ("statements_accepted_total", 1, {"type": "hold", "decision": "hold"})),
        (EventKind.RELEASED, {}, ("statements_accepted_total", 1, {"type": "release", "decision": "release"})),
    ]  # fmt: skip
    for kind, body, (name, amount, labels) in told:
        assert list(counted(Fact(kind, body))) == [(f"effect_ledger_{name}", amount, labels)]
    found = {"outcome": "applied", "hint": "", "detail": {"found_before_send": True}}
    names = [name for name, _, _ in counted(Fact(EventKind.ATTEMPT_ANSWERED, found, an_operation()))]
    assert "effect_ledger_duplicates_suppressed_total" in names
    equal = an_operation(state=State.BLOCKED, reason=BlockReason.EQUIVALENT_OPERATION)
    assert ("effect_ledger_duplicates_suppressed_total", 1, {"by": "equivalent"}) in list(
        counted(Fact(EventKind.MOVED, {}, equal, 4, State.PROPOSED))
    )


@pytest.mark.parametrize("told", ["re_1Abc", "a" * 60, "", None, "two words", "Ünknown", 'x"}'])
def test_nobody_outside_can_add_a_series(told: Any) -> None:
    """What is no short word of ours is `other`. Red: `str(told)` in `_word`."""
    fact = Fact(EventKind.STATEMENT_REFUSED, {"typ": told, "rule": told, "count": 1})
    assert [labels for _, _, labels in counted(fact)] == [{"type": "other", "rule": "other"}]


def test_every_event_can_be_counted_with_the_labels_of_the_catalogue() -> None:
    """Whatever its body lacks. A worker that could not count would only log it: so it is looked at here."""
    for kind in EventKind:
        for state in State:
            for operation in (an_operation(state=state), *([] if kind is EventKind.MOVED else [None])):
                for name, amount, labels in counted(Fact(kind, REPEAT, operation)):
                    metric = KNOWN[name]
                    own = set(labels) if operation else set(labels) | {"action", "provider"} & set(metric.labels)
                    assert amount >= 0 and own == set(metric.labels), (kind, name, labels)


def test_a_count_that_goes_wrong_stops_nobody() -> None:
    """It is committed already. Red: let `Meters.count` raise: the activity would be tried again for a metric."""
    Meters().count([Fact(EventKind.MOVED, {"settled_by": "repeat"}, an_operation(), 10, State.IN_FLIGHT)])


def told(buffer: MetricBuffer) -> dict[tuple[str, frozenset[tuple[str, Any]]], float]:
    """The latest value of each gauge, and the sum of each counter, of ours."""
    found: dict[tuple[str, frozenset[tuple[str, Any]]], float] = {}
    for update in buffer.retrieve_updates():
        if update.metric.name.startswith("effect_ledger"):
            key = update.metric.name, frozenset(update.attributes.items())
            before = found.get(key, 0) if update.metric.kind == BUFFERED_METRIC_KIND_COUNTER else 0
            found[key] = before + update.value
    return found


@pytest.fixture
def buffer() -> MetricBuffer:
    """What is told, without a port."""
    return MetricBuffer(10_000)


@pytest.fixture
def meters(buffer: MetricBuffer) -> Meters:
    """Ours, on a runtime of this test's own."""
    return Meters(Runtime(telemetry=TelemetryConfig(metrics=buffer, attach_service_name=False)).metric_meter)


def read(**changes: Any) -> Gauges:
    """A reading of a ledger in which there is nothing but this."""
    nothing = {"operations": {}, "oldest": {}, "key_window_closes": None, "audit_age": None}
    return Gauges(**dict.fromkeys((f.name for f in fields(Gauges)), 0) | nothing | changes)


def test_what_is_gone_is_told_as_zero(meters: Meters, buffer: MetricBuffer) -> None:
    """A gauge cannot be taken back: what was open would seem to be open for ever. Red: drop the first loop of `_set_all`."""
    unknown, waiting = ("unknown", *WHAT.values()), ("awaiting_approval", *WHAT.values())
    meters.ledger(read(operations={unknown: 2, waiting: 1}, oldest={"unknown": 70.0}, key_window_closes=900.0))
    meters.ledger(read(operations={waiting: 3}))
    found = told(buffer)
    assert found["effect_ledger_operations", frozenset({"state": "unknown", **WHAT}.items())] == 0
    assert found["effect_ledger_operations", frozenset({"state": "awaiting_approval", **WHAT}.items())] == 3
    assert found["effect_ledger_oldest_seconds", frozenset({("state", "unknown")})] == 0
    assert found["effect_ledger_key_window_closes_seconds", frozenset()] == float("inf")


def test_waits_for_a_connection_are_told(meters: Meters, buffer: MetricBuffer) -> None:
    """By psycopg_pool's own names; it leaves out what never happened. Red: misspell one of them."""
    meters.pool({"requests_queued": 4, "requests_wait_ms": 1000, "requests_waiting": 2, "requests_errors": 1})
    meters.pool({"pool_size": 1})
    found = {name: value for (name, _), value in told(buffer).items()}
    assert found["effect_ledger_pool_waits"] == 4 and found["effect_ledger_pool_refusals"] == 1
    assert found["effect_ledger_pool_waiting"] == 0 and found["effect_ledger_pool_wait_seconds"] == 0


def named(expression: str) -> set[str]:
    """The metrics in an expression of Prometheus."""
    return set(re.findall(r"\b((?:effect_ledger|temporal)_\w+)", expression))


def unknown(names: set[str]) -> set[str]:
    """Those that no worker tells: neither we nor, as tests/workflows/test_metrics.py sees, Temporal's SDK."""
    told = {m.name + part for m in METRICS for part in PARTS[m.kind]}
    told |= {name + part for name in TEMPORALS for part in ("", "_bucket", "_sum", "_count")}
    return names - told


RULES = re.findall(r"- alert: (\w+)\n(.*?)(?=\n\n|\Z)", ALERTS, re.DOTALL)


def test_every_alert_names_metrics_that_are_told() -> None:
    """Otherwise it never fires, and nobody notices. Red: rename a metric in the catalogue."""
    assert len(RULES) == 12 and [rule for _, rule in RULES if not named(rule)] == []
    assert unknown(named(ALERTS)) == set()


@pytest.mark.parametrize(("alert", "rule"), RULES, ids=[name for name, _ in RULES])
def test_every_alert_says_what_to_do(alert: str, rule: str) -> None:
    """A severity, a sentence, a command that can be typed, and a section that is about it and repeats the command."""
    assert re.search(r"severity: (page|ticket)$", rule, re.MULTILINE)
    sentence = re.search(r"summary: >-\n(.*?)\n {10}command:", rule, re.DOTALL)
    assert sentence is not None and sentence[1].strip().endswith(".")
    (command,) = re.findall(r"command: (effects .*)$", rule, re.MULTILINE)
    found, arguments = command_of(shlex.split(command)[1:])
    found.make_context(command, arguments)
    (page, anchor) = re.findall(r"runbook: ([\w/.]+)#([\w-]+)$", rule, re.MULTILINE)[0]
    assert anchor in headings(ROOT / page)
    title = re.sub(r"(?<!^)(?=[A-Z])", " ", alert).capitalize()
    section = (ROOT / page).read_text().partition(f"\n### {title}\n")[2].partition("\n##")[0]
    assert command in section, f"{page} has no section {title} with {command}"


def test_the_dashboard_shows_every_metric_and_no_other() -> None:
    """Each panel has a title and says what it is of. Red: rename a metric in the catalogue, or in a panel."""
    dashboard = json.loads((DEPLOY / "dashboard.json").read_text())
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    shown = {name for panel in panels for target in panel["targets"] for name in named(target["expr"])}
    assert unknown(shown) == set()
    told = {m.name for m in METRICS} | set(TEMPORALS)
    assert {name for name in told if not any(s.startswith(name) for s in shown)} == set()
    assert all(panel["title"] for panel in panels)
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


@pytest.mark.skipif(
    shutil.which("promtool") is None and os.environ.get("CI") != "true",
    reason="needs promtool (Debian: apt install prometheus)",
)
@pytest.mark.parametrize("work", [("check", "rules", "alerts.yml"), ("test", "rules", "alerts_test.yml")])
def test_promtool_tries_every_alert(work: tuple[str, ...]) -> None:
    """deploy/alerts_test.yml says when each fires, and when none does. Red: change a threshold or a `for`."""
    done = subprocess.run(["promtool", *work], cwd=DEPLOY, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    tried = set(re.findall(r"alertname: (\w+)", (DEPLOY / "alerts_test.yml").read_text()))
    assert tried == {alert for alert, _ in RULES}
