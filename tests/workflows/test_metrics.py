"""One endpoint for the SDK's metrics and ours: what was done is counted there, and a real Prometheus fires the first alert."""

import asyncio
import os
import re
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from activities.metrics import METRICS, TEMPORALS, Kind
from devstack.child import Child
from devstack.ports import LOOPBACK, free_port
from ledger.errors import Refused
from tests.conftest import Rig
from worker import running

ROOT = Path(__file__).parents[2]
Sample = tuple[str, frozenset[tuple[str, str]]]
AN_HOUR = 3_600.0


async def scraped(port: int) -> dict[Sample, float]:
    """Every sample of a worker, by name and labels."""
    async with httpx.AsyncClient() as http:
        text = (await http.get(f"http://{LOOPBACK}:{port}/metrics")).text
    found: dict[Sample, float] = {}
    for name, labels, value in re.findall(r"^(\w+)(?:\{(.*)\})? (\S+)$", text, re.MULTILINE):
        found[name, frozenset(re.findall(r'(\w+)="([^"]*)"', labels))] = float(value)
    return found


async def until(
    port: int, true_of: Callable[[dict[Sample, float]], bool], seconds: float = 20.0
) -> dict[Sample, float]:
    """What is told once this holds."""
    deadline = asyncio.get_running_loop().time() + seconds
    while not true_of(found := await scraped(port)):
        assert asyncio.get_running_loop().time() < deadline, sorted(n for n, _ in found if n.startswith("effect_"))
        await asyncio.sleep(0.1)
    return found


def total(found: dict[Sample, float], name: str, **labels: str) -> float:
    """The sum over all samples of this name that have these labels."""
    return sum(value for (n, given), value in found.items() if n == name and given >= labels.items())


async def test_what_is_done_is_counted_on_one_endpoint(rig: Rig) -> None:
    """Each number is as often as it happened, and Temporal's own stand beside them.

    Red: count in `events.append` and not after the commit (the refused statement would count twice, once for the transaction
    that it rolls back), or leave `meters.count` out of `Ledger`.
    """
    port, target = free_port(), rig.payment()
    rig.stack.stripe.control.fault("lost-answer", payment_intent=target)
    async with rig.worker(metrics_port=port, metrics_every=0.2):
        lost = rig.proposal(target)
        await rig.until((await rig.propose(lost)).operation_id, "succeeded")
        await rig.handle(lost).result()
        assert (await rig.propose(lost)).state == "succeeded"  # by a new run: the first one ended
        assert (await rig.propose(rig.proposal(target, amount=1, key=lost.business_key))).reason == "key_used"
        waiting = rig.proposal(rig.payment(), amount=5_000)
        asked = await rig.propose(waiting)
        found = await until(port, lambda f: total(f, "effect_ledger_operations", state="awaiting_approval") == 1)
        assert total(found, "effect_ledger_operations") == 1
        await rig.propose(waiting)
        await rig.handle(waiting).signal("decide")
        assert (await rig.decide(waiting, await rig.signed(asked.operation_id, "olga", "approval"))).reason
        await rig.decide(waiting, await rig.signed(asked.operation_id, "alice", "decline"))
        # a type that no worker knows: its workflow task fails, again and again
        unheard = await rig.client.start_workflow("Unheard", id=f"unheard-{port}", task_queue=rig.stack.task_queue)
        failures = "temporal_workflow_task_execution_failed_total"
        found = await until(port, lambda f: total(f, failures) > 0 and total(f, "effect_ledger_operations") == 0)
        await unheard.terminate()
    by = {"action": "refund", "provider": "stripe"}
    assert total(found, "effect_ledger_proposed_total", **by) == 2
    assert total(found, "effect_ledger_ended_total", state="succeeded", **by) == 1
    assert total(found, "effect_ledger_accepted_results_total", by="machine", **by) == 1
    assert total(found, "effect_ledger_blocked_total", reason="approval_declined", **by) == 1
    assert total(found, "effect_ledger_attempts_total", outcome="unknown", hint="lost", **by) == 1
    assert total(found, "effect_ledger_attempts_total", outcome="applied", hint="none", **by) == 1
    assert total(found, "effect_ledger_settled_seconds_count", by="repeat", **by) == 1
    assert total(found, "effect_ledger_duplicates_suppressed_total", by="business_key") == 1
    assert total(found, "effect_ledger_asked_again_total") >= 1
    assert total(found, "effect_ledger_proposals_refused_total", rule="key_used") == 1
    assert total(found, "effect_ledger_messages_refused_total", type="junk") == 1
    assert total(found, "effect_ledger_messages_refused_total") == 2
    assert total(found, "effect_ledger_statements_accepted_total", type="approval") == 0
    assert total(found, "effect_ledger_statements_accepted_total", type="decline") == 1
    assert total(found, "effect_ledger_pollers") == 1 and total(found, "effect_ledger_workflows_stuck") == 0
    check_names(found)
    # nobody's name, id or text is a label of ours
    words = {
        value
        for (name, labels) in found
        if name.startswith("effect_")
        for label, value in labels
        if label != "task_queue"
    }
    assert not words & {target, "acme", "mia", "alice", "support-bot", lost.business_key, asked.operation_id}
    assert {word for word in words if not re.fullmatch(r"[a-zA-Z][a-zA-Z_-]{1,60}|[0-9.]+|\+Inf", word)} == set()


def check_names(found: dict[Sample, float]) -> None:
    """Everything of ours is in the catalogue, with its labels and no other; gauges are all there, and so are Temporal's."""
    known = {m.name: set(m.labels) for m in METRICS}
    for name, labels in found:
        if not name.startswith("effect_ledger_"):
            continue
        family = name if name in known else re.sub(r"_(bucket|sum|count)$", "", name)
        assert {label for label, _ in labels} - {"le"} == known[family], name
    there = {name for name, _ in found}
    gauges = {m.name for m in METRICS if m.kind is Kind.GAUGE}
    assert gauges <= there, gauges - there
    missing = {name for name in TEMPORALS if name not in there and f"{name}_count" not in there}
    assert not missing, (missing, sorted(n for n in there if n.startswith("temporal")))


async def test_a_port_that_is_taken_is_told_at_the_start(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker refuses, and says which settings to change. Red: let the SDK's own error through."""
    monkeypatch.setenv("TEMPORAL_ADDRESS", rig.stack.servers.temporal.address)
    taken = await asyncio.start_server(lambda reader, writer: writer.close(), LOOPBACK, 0)
    async with taken:
        port = taken.sockets[0].getsockname()[1]
        with pytest.raises(Refused, match="EFFECTS_METRICS_PORT"):
            async with running(rig.settings(metrics_port=port)):
                pass


PROMETHEUS = """
global: {{scrape_interval: 500ms, evaluation_interval: 500ms}}
rule_files: ['{rules}']
scrape_configs:
  - job_name: workers
    static_configs: [{{targets: ['{worker}']}}]
"""


@pytest.mark.skipif(
    shutil.which("prometheus") is None and os.environ.get("CI") != "true",
    reason="needs Prometheus (Debian: apt install prometheus)",
)
async def test_an_unknown_past_its_target_fires_the_first_alert(rig: Rig, tmp_path: Path) -> None:
    """A real Prometheus scrapes a live worker, with the rules of deploy/ as they stand. Nothing fires before the target.

    Stripe stored a 500 and did nothing: no key can help, and absence means nothing for half a day. After four hours, the
    rule's own patience, somebody must know. Red: compare `review_at` with a later moment in `gauges._READ`.
    """
    port, own = free_port(), free_port()
    target = rig.payment()
    rig.stack.stripe.control.fault("stored-500-no-effect", payment_intent=target)
    rig.stack.worker(EFFECTS_METRICS_PORT=str(port), EFFECTS_METRICS_EVERY="0.2")
    file = tmp_path / "prometheus.yml"
    file.write_text(PROMETHEUS.format(rules=ROOT / "deploy" / "alerts.yml", worker=f"{LOOPBACK}:{port}"))
    child = Child.spawn(
        [
            "prometheus",
            f"--config.file={file}",
            f"--storage.tsdb.path={tmp_path / 'samples'}",
            f"--web.listen-address={LOOPBACK}:{own}",
        ],
        name="prometheus",
        log=tmp_path / "prometheus.log",
    )
    try:
        answer = await rig.propose(rig.proposal(target))
        await rig.until(answer.operation_id, "unknown")
        await until(port, lambda f: total(f, "effect_ledger_operations", state="unknown") == 1)
        assert await _asked(own, 'max(effect_ledger_operations{state="unknown"})', lambda value: value == 1)
        assert await firing(own) == {}
        await rig.advance(4.5 * AN_HOUR)
        assert await _asked(own, "max(effect_ledger_unknown_past_target)", lambda value: value == 1)
        alerts = await _firing_one(own)
    finally:
        child.stop()
    assert alerts.keys() == {"UnknownEffectPastItsTarget"}
    told = alerts["UnknownEffectPastItsTarget"]
    assert told["labels"]["severity"] == "page" and told["annotations"]["command"] == "effects doctor"
    assert told["annotations"]["summary"].startswith("1 effect(s) were sent, and nobody has known")


async def _ask(port: int, path: str, **parameters: str) -> Any:
    async with httpx.AsyncClient() as http:
        try:
            return (await http.get(f"http://{LOOPBACK}:{port}/api/v1/{path}", params=parameters)).json()["data"]
        except (httpx.TransportError, ValueError):
            return {}  # it starts


async def firing(port: int) -> dict[str, Any]:
    """The alerts that Prometheus fires now, by name."""
    alerts = (await _ask(port, "alerts")).get("alerts", [])
    return {a["labels"]["alertname"]: a for a in alerts if a["state"] == "firing"}


async def _repeatedly(work: Callable[[], Awaitable[Any]], seconds: float = 20.0) -> Any:
    deadline = asyncio.get_running_loop().time() + seconds
    while not (found := await work()):
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.1)
    return found


async def _asked(port: int, query: str, true_of: Callable[[float], bool]) -> bool:
    async def ask() -> bool:
        answered = (await _ask(port, "query", query=query)).get("result", [])
        return bool(answered) and true_of(float(answered[0]["value"][1]))

    return bool(await _repeatedly(ask))


async def _firing_one(port: int) -> dict[str, Any]:
    alerts: dict[str, Any] = await _repeatedly(lambda: firing(port))
    return alerts
