"""Every number that a worker tells Prometheus: the catalogue, and the counting of what was committed to the ledger.

1. Names and labels stand in `METRICS` alone; docs/metrics.md is made of it, alerts and dashboard are checked against it.
2. Labels are words of ours or of the configuration, never an id, a tenant, a person or a text: their number is bounded.
3. Gauges are of the whole ledger, and every worker tells the same: take `max`. Counters are of one worker: take `sum`.
4. Counted is what a transaction told the trail, after its commit was acknowledged (`ledger.store.facts`).
"""

import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from typing import Any

import structlog
from temporalio.common import MetricMeter
from temporalio.runtime import PrometheusConfig, Runtime, TelemetryConfig

from activities.messages import ASKED_AGAIN
from ledger.errors import Refused
from ledger.model import Outcome
from ledger.states import ENDED, BlockReason, State
from ledger.store.facts import Fact
from ledger.store.gauges import Gauges
from ledger.trail import EventKind


class Kind(StrEnum):
    """What Prometheus may do with a number."""

    GAUGE = "gauge"  # it stands at a value
    COUNTER = "counter"  # it only grows, and begins at nothing with every worker
    HISTOGRAM = "histogram"  # how often a duration was at most so many seconds


@dataclass(frozen=True)
class Metric:
    """One number: its name as Prometheus shows it, its labels, and what it means."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    meaning: str


WHAT = ("action", "provider")
METRICS: tuple[Metric, ...] = (
    Metric("effect_ledger_operations", Kind.GAUGE, ("state", *WHAT), "operations that have not ended"),
    Metric("effect_ledger_oldest_seconds", Kind.GAUGE, ("state",),
           "how long the oldest operation has been in this state; `unknown` counts from the claim that is in doubt"),
    Metric("effect_ledger_unknown_past_target", Kind.GAUGE, (),
           "effects that have been unknown for longer than their rule's `review_after_seconds`"),
    Metric("effect_ledger_key_window_closes_seconds", Kind.GAUGE, (),
           "until the next key is no longer honoured that could still settle an unknown by the same request; Inf: there is none"),
    Metric("effect_ledger_overdue", Kind.GAUGE, (), "next steps that nobody has taken for more than a minute"),
    Metric("effect_ledger_contradicted", Kind.GAUGE, (), "operations with evidence against their end, ever"),
    Metric("effect_ledger_contradictions_last_day", Kind.GAUGE, (), "contradictions found in the last 24 hours"),
    Metric("effect_ledger_held", Kind.GAUGE, (), "scopes in which nothing is sent"),
    Metric("effect_ledger_restored", Kind.GAUGE, (),
           "1 while nothing is sent because the ledger was restored, or Postgres failed over, and nobody has released it"),
    Metric("effect_ledger_audit_age_seconds", Kind.GAUGE, (),
           "since an audit last read every provider to its end; before the first one, since a configuration was applied"),
    Metric("effect_ledger_inbox_waiting", Kind.GAUGE, (), "webhooks that woke nobody yet"),
    Metric("effect_ledger_notices_unheard", Kind.GAUGE, (), "notices that were posted and that no receiver has acknowledged yet"),
    Metric("effect_ledger_audit_findings", Kind.GAUGE, (),
           "what audits found between the ledger, its own chains and what providers list, and what does not fit still"),
    Metric("effect_ledger_read_timestamp_seconds", Kind.GAUGE, (), "when the gauges above were last read, as Unix time"),
    Metric("effect_ledger_pollers", Kind.GAUGE, (), "workers that Temporal saw polling our task queue in the last 70 seconds"),
    Metric("effect_ledger_temporal_timestamp_seconds", Kind.GAUGE, (), "when Temporal last told the pollers, as Unix time"),
    Metric("effect_ledger_workflows_stuck", Kind.GAUGE, (), "workflows whose task Temporal reports as not getting through"),
    Metric("effect_ledger_proposed_total", Kind.COUNTER, WHAT, "operations recorded"),
    Metric("effect_ledger_proposals_refused_total", Kind.COUNTER, ("rule",), "proposals refused before anything was recorded"),
    Metric("effect_ledger_ended_total", Kind.COUNTER, ("state", *WHAT), "operations that ended"),
    Metric("effect_ledger_blocked_total", Kind.COUNTER, ("reason", *WHAT), "operations that were never sent, and why"),
    Metric("effect_ledger_accepted_results_total", Kind.COUNTER, ("by", *WHAT),
           "effects that are proved to exist, on the word of a `machine` or of a `person`"),
    Metric("effect_ledger_attempts_total", Kind.COUNTER, ("outcome", "hint", *WHAT), "answers to attempts, late ones as well"),
    Metric("effect_ledger_settled_seconds", Kind.HISTOGRAM, ("by", *WHAT),
           "how long an unknown lasted, by what settled it: `repeat`, `lookup`, `webhook` (a look after one), `answer` (of the"
           " request itself, late), `person`"),
    Metric("effect_ledger_duplicates_suppressed_total", Kind.COUNTER, ("by",),
           "second effects that were not made: `business_key` asked again, `equivalent` operation, `found` at the provider"),
    Metric(f"{ASKED_AGAIN}_total", Kind.COUNTER, ("namespace", "task_queue", "workflow_type"),
           "proposals answered from a running workflow: polls, and duplicates"),
    Metric("effect_ledger_stale_versions_total", Kind.COUNTER, WHAT,
           "operations that ended because the record was no longer at the version that was approved"),
    Metric("effect_ledger_messages_refused_total", Kind.COUNTER, ("type", "rule"),
           "signals and statements that did not count; `junk` could not be read"),
    Metric("effect_ledger_statements_accepted_total", Kind.COUNTER, ("type", "decision"), "statements of people that count"),
    Metric("effect_ledger_contradictions_total", Kind.COUNTER, WHAT, "contradictions found"),
    Metric("effect_ledger_pool_waiting", Kind.GAUGE, (), "activities of this worker that wait for a connection to the ledger"),
    Metric("effect_ledger_pool_wait_seconds", Kind.GAUGE, (), "how long they waited on average since the last reading"),
    Metric("effect_ledger_pool_waits_total", Kind.COUNTER, (), "how often one had to wait"),
    Metric("effect_ledger_pool_refusals_total", Kind.COUNTER, (), "how often one waited in vain"),
)  # fmt: skip

# Of Temporal's own, which appear beside ours: those that alerts and dashboard use. tests/workflows/test_metrics.py sees them.
TEMPORALS = (
    "temporal_num_pollers",
    "temporal_workflow_task_execution_failed_total",
    "temporal_activity_schedule_to_start_latency_seconds",
    "temporal_worker_task_slots_available",
)

SECONDS = [1.0, 5, 15, 60, 300, 900, 3600, 4 * 3600.0, 12 * 3600.0, 86400, 3 * 86400.0, 7 * 86400.0]
_RULE = re.compile(r"[a-z][a-z_]{0,49}")
log = structlog.get_logger()


def runtime(host: str, port: int) -> Runtime:
    """The SDK's runtime with its Prometheus endpoint, for its metrics and ours. Refused: `metrics_port_taken`."""
    config = PrometheusConfig(
        bind_address=f"{host}:{port}",
        counters_total_suffix=True,
        unit_suffix=True,
        durations_as_seconds=True,
        histogram_bucket_overrides={"effect_ledger_settled_seconds": SECONDS},
    )
    try:
        return Runtime(telemetry=TelemetryConfig(metrics=config, attach_service_name=False))
    except ValueError as error:
        why = f"nothing can listen on {host}:{port}: set EFFECTS_METRICS_PORT and EFFECTS_METRICS_HOST ({error})"
        raise Refused("metrics_port_taken", why) from error


class Meters:
    """Sets gauges and counts. With Temporal's no-op meter it costs nothing and tells nobody."""

    def __init__(self, meter: MetricMeter = MetricMeter.noop) -> None:
        gauges = [m for m in METRICS if m.kind is Kind.GAUGE]
        counters = [m for m in METRICS if m.kind is Kind.COUNTER]
        histograms = [m for m in METRICS if m.kind is Kind.HISTOGRAM]
        self._gauges = {m.name: meter.create_gauge_float(m.name, m.meaning) for m in gauges}
        # the exporter adds the `_total` itself
        self._counters = {m.name: meter.create_counter(m.name.removesuffix("_total"), m.meaning) for m in counters}
        self._histograms = {m.name: meter.create_histogram_float(m.name, m.meaning) for m in histograms}
        self._shown: dict[str, set[tuple[tuple[str, str], ...]]] = {}

    def ledger(self, read: Gauges) -> None:
        """The ledger as it was read just now."""
        states = [state for state in State if state not in ENDED]
        self._set_all(
            "effect_ledger_operations",
            [({"state": s, "action": a, "provider": p}, count) for (s, a, p), count in read.operations.items()],
        )
        ages = [({"state": state.value}, read.oldest.get(state, 0.0)) for state in states]
        self._set_all("effect_ledger_oldest_seconds", ages)
        self._set("effect_ledger_unknown_past_target", read.unknown_past_target)
        closes = math.inf if read.key_window_closes is None else read.key_window_closes
        self._set("effect_ledger_key_window_closes_seconds", closes)
        self._set("effect_ledger_overdue", read.overdue)
        self._set("effect_ledger_contradicted", read.contradicted)
        self._set("effect_ledger_contradictions_last_day", read.contradictions_last_day)
        self._set("effect_ledger_held", read.held)
        self._set("effect_ledger_restored", read.restored)
        self._set("effect_ledger_audit_age_seconds", read.audit_age or 0.0)
        self._set("effect_ledger_inbox_waiting", read.inbox_waiting)
        self._set("effect_ledger_notices_unheard", read.notices_unheard)
        self._set("effect_ledger_audit_findings", read.audit_findings)
        self._set("effect_ledger_read_timestamp_seconds", time.time())

    def pollers(self, number: int) -> None:
        """How many workers Temporal saw polling just now."""
        self._set("effect_ledger_pollers", number)
        self._set("effect_ledger_temporal_timestamp_seconds", time.time())

    def stuck(self, number: int) -> None:
        """How many workflows Temporal reports as stuck just now."""
        self._set("effect_ledger_workflows_stuck", number)

    def pool(self, numbers: Mapping[str, int]) -> None:
        """The connection pool's own numbers since the last reading (names of psycopg_pool)."""
        waits = numbers.get("requests_queued", 0)
        self._set("effect_ledger_pool_waiting", numbers.get("requests_waiting", 0))
        self._set("effect_ledger_pool_wait_seconds", numbers.get("requests_wait_ms", 0) / 1000 / max(waits, 1))
        self._add("effect_ledger_pool_waits_total", waits)
        self._add("effect_ledger_pool_refusals_total", numbers.get("requests_errors", 0))

    def asked_again(self) -> None:
        """A proposal found its operation, and made no second one."""
        self._add("effect_ledger_duplicates_suppressed_total", 1, by="business_key")

    def proposal_refused(self, rule: str) -> None:
        """A proposal was refused, and nothing was recorded."""
        self._add("effect_ledger_proposals_refused_total", 1, rule=_word(rule))

    def count(self, told: Sequence[Fact]) -> None:
        """What a transaction told the trail. Never raises: it is committed, and the caller goes on."""
        try:
            for name, amount, labels in chain.from_iterable(map(counted, told)):
                if name in self._histograms:
                    self._histograms[name].record(amount, labels)
                else:
                    self._add(name, int(amount), **labels)
        except Exception:
            log.exception("a metric was not counted")

    def _set(self, name: str, value: float, **labels: str) -> None:
        self._gauges[name].set(value, labels)

    def _set_all(self, name: str, rows: Sequence[tuple[dict[str, str], float]]) -> None:
        """These values, and zero for what was shown before and is gone: a gauge cannot be taken back."""
        now = {tuple(sorted(labels.items())): value for labels, value in rows}
        for gone in self._shown.get(name, set()) - now.keys():
            self._set(name, 0, **dict(gone))
        for labels, value in now.items():
            self._set(name, value, **dict(labels))
        self._shown.setdefault(name, set()).update(now)

    def _add(self, name: str, amount: int, **labels: str) -> None:
        self._counters[name].add(amount, labels)


Counted = tuple[str, float, dict[str, str]]


def counted(fact: Fact) -> Iterator[Counted]:
    """What one event adds: (metric, amount, labels). Pure; every label is a word of ours."""
    body, operation = fact.body, fact.operation
    what = {} if operation is None else {"action": operation.action, "provider": operation.provider}
    match fact.kind:
        case EventKind.MOVED:
            yield from _moved(fact, what)
        case EventKind.ATTEMPT_ANSWERED | EventKind.LATE_ANSWER:
            told = {"outcome": str(body.get("outcome")), "hint": str(body.get("hint") or "none")}
            yield "effect_ledger_attempts_total", 1, told | what
            found = body.get("detail", {}).get("found_before_send")
            if found and body.get("outcome") == Outcome.APPLIED:
                yield "effect_ledger_duplicates_suppressed_total", 1, {"by": "found"}
        case EventKind.STATEMENT_REFUSED:
            labels = {"type": _word(body.get("typ")), "rule": _word(body.get("rule"))}
            yield "effect_ledger_messages_refused_total", body.get("count", 1), labels
        case EventKind.JUNK_REFUSED:
            yield "effect_ledger_messages_refused_total", body.get("count", 1), {"type": "junk", "rule": "junk"}
        case EventKind.STATEMENT_ACCEPTED:
            labels = {"type": _word(body.get("typ")), "decision": _word(body.get("decision"))}
            yield "effect_ledger_statements_accepted_total", 1, labels
        case EventKind.HELD | EventKind.RELEASED:
            typ = "hold" if fact.kind is EventKind.HELD else "release"
            yield "effect_ledger_statements_accepted_total", 1, {"type": typ, "decision": typ}
        case EventKind.CONTRADICTION:
            yield "effect_ledger_contradictions_total", 1, what


def _moved(fact: Fact, what: dict[str, str]) -> Iterator[Counted]:
    operation, body = fact.operation, fact.body
    assert operation is not None
    if fact.source is None:
        yield "effect_ledger_proposed_total", 1, what
    if how := body.get("settled_by"):
        yield "effect_ledger_settled_seconds", float(body["unknown_seconds"]), {"by": str(how)} | what
    if operation.state not in ENDED:
        return
    yield "effect_ledger_ended_total", 1, {"state": operation.state.value} | what
    if operation.state is State.SUCCEEDED:
        by = "person" if body.get("settled_by") == "person" else "machine"
        yield "effect_ledger_accepted_results_total", 1, {"by": by} | what
    if operation.state is State.BLOCKED:
        yield "effect_ledger_blocked_total", 1, {"reason": _word(operation.reason)} | what
    if operation.reason == BlockReason.EQUIVALENT_OPERATION:
        yield "effect_ledger_duplicates_suppressed_total", 1, {"by": "equivalent"}
    if operation.reason == BlockReason.VERSION_STALE:
        yield "effect_ledger_stale_versions_total", 1, what


def _word(told: Any) -> str:
    """A word of ours as a label; whatever is not one becomes `other`, so that nobody outside can add series."""
    return str(told) if _RULE.fullmatch(str(told or "")) else "other"
