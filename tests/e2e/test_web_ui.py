"""What operators see and click in Temporal's Web UI, in a real browser: nothing that is clicked wedges an operation.

With EFFECTS_PICTURES set, the screenshots are written to docs/pictures as well.
"""

import asyncio
import os
import shutil
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from selenium.webdriver import Chrome
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.client import WorkflowExecutionStatus

from devstack.stack import Servers
from ledger.trail import EventKind, sentence
from tests.conftest import Rig
from tests.e2e.test_codec import KEY, TOKEN, decoding
from tests.e2e.web_ui import Page, start_browser
from tests.recovery.order_world import hold
from tests.workflows.encrypted import encrypting

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
MISSING = (
    "no chromium and chromedriver on the path; Debian: apt-get install --no-install-recommends chromium chromium-driver"
)

pytestmark = [
    # in CI the browser is not optional: there the fixture fails
    pytest.mark.skipif(not (CHROMIUM and DRIVER) and os.environ.get("CI") != "true", reason=MISSING),
    pytest.mark.timeout(240),  # a browser on a busy machine
]

clicked = asyncio.to_thread  # the worker lives in this loop: whoever clicks does so beside it
A_DAY_AND_AN_HOUR = 25 * 3600.0

# What is sent by clicking: signal, text in the box, encoding; and what the trail says about it.
SHAPE = "without statement, scheme and proof as texts"
CLICKS = [
    ("decide", "", "json/plain", "decide with 0 payloads instead of one"),
    ("resolve", "", "json/plain", "resolve with 0 payloads instead of one"),
    ("withdraw", "", "json/plain", "withdraw with 0 payloads instead of one"),
    ("decide", '{"approve": true}', "json/plain", f"decide {SHAPE}"),
    ("decide", '"approved"', "json/plain", "decide without a JSON object"),
    ("decide", '{"approve": true}', "json/protobuf", "decide without a JSON object"),
]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """As everywhere, but with the Web UI; `rig` stands on these."""
    root = tmp_path_factory.mktemp("servers-with-ui")
    with Servers(root, durable=False, ui=True, remember=False, say=lambda text: None) as running_servers:
        yield running_servers
    running_servers.postgres.remove()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    """One headless Chromium for all tests here."""
    assert CHROMIUM and DRIVER, MISSING
    started = start_browser(CHROMIUM, DRIVER, tmp_path_factory.mktemp("chromium"))
    yield started
    started.quit()


@pytest_asyncio.fixture
async def page(rig: Rig, browser: Chrome, tmp_path: Path) -> AsyncIterator[Page]:
    """A window on the Web UI of the rig's server."""
    folders = [tmp_path, PICTURES] if os.environ.get("EFFECTS_PICTURES") else [tmp_path]
    ui_url = rig.stack.servers.temporal.ui_url
    assert ui_url is not None
    yield Page(browser, ui_url, *folders)


async def events(workflow: Any) -> list[HistoryEvent]:
    """The history of a workflow."""
    return list((await workflow.fetch_history()).events)


async def assert_not_wedged(workflow: Any) -> None:
    """It answers a query, its task was not tried twice, and no task of it has failed so far."""
    metadata = await workflow.query("__temporal_workflow_metadata", result_type=WorkflowMetadata)
    assert metadata.current_details
    description = await workflow.describe()
    assert description.status is WorkflowExecutionStatus.RUNNING
    assert description.raw_description.pending_workflow_task.attempt <= 1
    failed = (EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED, EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT)
    assert [event for event in await events(workflow) if event.event_type in failed] == []


async def junk(rig: Rig, operation_id: str) -> list[str]:
    """What the trail says about unusable signals, in order."""
    return [e.body["rule"] for e in await rig.trail(operation_id) if e.kind == EventKind.JUNK_REFUSED]


async def until(look: Callable[[], Awaitable[Any]], wanted: Any, *, seconds: float = 20.0) -> None:
    """Wait for something that clicking set off."""
    deadline = asyncio.get_running_loop().time() + seconds
    while (seen := await look()) != wanted:
        assert asyncio.get_running_loop().time() < deadline, f"{seen} instead of {wanted} after {seconds} s"
        await asyncio.sleep(0.05)


async def click_everything_wrong(rig: Rig, page: Page, workflow: Any, operation_id: str) -> None:
    """Every unusable signal that the dialogs let through, and the one they do not; after each the operation is well."""
    refused: list[str] = []
    for name, text, encoding, rule in CLICKS:
        assert await clicked(page.send, "signal", name, text, encoding=encoding) == ""
        refused.append(rule)
        await until(lambda: junk(rig, operation_id), refused)
        await assert_not_wedged(workflow)

    complaint = await clicked(page.send, "signal", "decide", '{"approve":')
    assert "valid JSON" in complaint
    await clicked(page.cancel_dialog)
    assert await junk(rig, operation_id) == refused
    await assert_not_wedged(workflow)


async def click_look_now(page: Page, workflow: Any) -> None:
    """The one signal that needs no input: an empty box is right, and the worker looks."""

    async def looks() -> list[str]:
        scheduled = [e.activity_task_scheduled_event_attributes for e in await events(workflow)]
        return [one.activity_type.name for one in scheduled if one.activity_type.name]

    assert await looks() == []
    assert await clicked(page.send, "signal", "look_now", "") == ""
    await until(looks, ["judge"])
    await assert_not_wedged(workflow)


async def click_wrong_updates(rig: Rig, page: Page, workflow: Any, operation_id: str) -> None:
    """An update answers in the dialog what is wrong with it, in words, and leaves nothing in the history."""
    complaint = await clicked(page.send, "update", "decide", '{"approve": true}')
    assert complaint.startswith(f"decide {SHAPE}. Needs one JSON object:"), complaint
    await clicked(page.cancel_dialog)
    await assert_not_wedged(workflow)
    accepted = [e.workflow_execution_update_accepted_event_attributes for e in await events(workflow)]
    assert [one.accepted_request.input.name for one in accepted if one.protocol_instance_id] == ["propose"]
    # Right in shape, but signed by nobody: this one is kept as what it is.
    assert await clicked(page.send, "update", "decide", '{"statement": "e30", "scheme": "jws", "proof": "me"}') == ""
    assert await rig.refusals(operation_id) == ["proof_malformed"]
    await assert_not_wedged(workflow)


async def test_no_click_wedges_a_waiting_operation_and_the_right_signature_ends_it(rig: Rig, page: Page) -> None:
    """Empty boxes, broken and wrong JSON to every door, by clicking; each refusal is in the trail and on the screen.

    Red: give a signal of `OperationWorkflow` a positional parameter instead of `*args`; drop the update's validator; drop
    the empty line between "Trail:" and its list in activities/progress.py.
    """
    target = rig.payment()
    proposal = rig.proposal(target, amount=5_000, key="order-1001")
    async with rig.worker():
        answer = await rig.propose(proposal)
        assert answer.state == "awaiting_approval"
        waived = await rig.propose(rig.proposal(rig.payment(), key="order-1000"))
        await rig.until(waived.operation_id, "succeeded")  # in no list of what waits
        workflow, op = rig.handle(proposal), answer.operation_id

        assert await clicked(page.listed, "EffectState='awaiting_approval'", workflow.id) == [workflow.id]
        await clicked(page.open, workflow.id)
        await clicked(page.state, "running")
        (timer,) = [e for e in await events(workflow) if e.HasField("timer_started_event_attributes")]
        told = rig.client.data_converter.payload_converter.from_payload(timer.user_metadata.summary)
        await clicked(page.tab, "timeline", told)
        shown = await clicked(page.tab, "search-attributes", '"EffectState": "awaiting_approval"')
        assert '"EffectAmountMinor": 5000' in shown and '"EffectNext": "people"' in shown
        assert target in (await clicked(page.summary)).text
        details = await clicked(page.details, "awaiting_approval")
        assert details.heading == "awaiting_approval"
        assert any("50.00 EUR" in item and target in item for item in details.items)
        assert any(item.startswith("next:") for item in details.items)
        assert any(f"effects approve {op}" in item for item in details.items)
        await clicked(page.picture, "waiting")

        await click_everything_wrong(rig, page, workflow, op)
        await click_look_now(page, workflow)
        await click_wrong_updates(rig, page, workflow, op)

        trail = await rig.trail(op)
        details = await clicked(page.details, f"{trail[-1].number}.")
        assert details.heading == "awaiting_approval" and details.links == []
        for event in trail[-8:]:
            assert any(sentence(event) in item for item in details.items), (sentence(event), details)
        await clicked(page.picture, "refused")

        assert (await rig.decide(proposal, await rig.signed(op, "alice", "approval"))).reason == ""
        receipt = (await rig.until(op, "succeeded")).receipt
        assert (await workflow.result())["state"] == "succeeded"
        await clicked(page.open, workflow.id)  # an open page looks every ten seconds
        await clicked(page.state, "completed")
        assert (await clicked(page.details, f"receipt {receipt}")).heading == "succeeded"
        await clicked(page.tab, "timeline", "claim and send")
        await clicked(page.picture, "done")
    assert [e.refund for e in rig.effects(target)] == [receipt]


async def test_an_operation_in_review_says_so_and_names_the_command(rig: Rig, page: Page) -> None:
    """A request lost before the provider, 25 hours later: the operator finds it by a link and reads what to do.

    Red: drop the line with `effects review` in activities/progress.py.
    """
    target = rig.payment()
    rig.stack.stripe.control.fault("lost-request", times=None, payment_intent=target)
    proposal = rig.proposal(target, key="order-1002")
    async with rig.worker():
        op = (await rig.propose(proposal)).operation_id
        await rig.until(op, "unknown")
        workflow = rig.handle(proposal)
        await clicked(page.open, workflow.id)
        assert (await clicked(page.details, "unknown")).heading == "unknown: lost"
        await clicked(page.picture, "unknown")
        await rig.advance(A_DAY_AND_AN_HOUR)
        await rig.until(op, "needs_review", seconds=60)
        assert await clicked(page.listed, "EffectState='needs_review'", workflow.id) == [workflow.id]
        await clicked(page.open, workflow.id)
        details = await clicked(page.details, "needs_review")
        assert details.heading.startswith("needs_review")
        assert any(f"effects review {op}" in item for item in details.items)
        await clicked(page.picture, "review")
        await assert_not_wedged(workflow)
    assert rig.effects(target) == []


async def test_an_approved_operation_that_is_held_says_what_it_waits_for(rig: Rig, page: Page) -> None:
    """Signed by a person, and stopped by another. Red: tell an approved operation's next step as if nothing held it."""
    proposal = rig.proposal(rig.payment(), amount=5_000, key="order-1004")
    async with rig.worker():
        op = (await rig.propose(proposal)).operation_id
        await hold(rig, "tenant:acme")
        await rig.approve(op)
        await rig.settled(op)
        await clicked(page.open, rig.handle(proposal).id)
        details = await clicked(page.details, "approved")
        assert any(item.startswith("next: dispatch (held)") for item in details.items), details.items
        await clicked(page.picture, "approved")
    assert rig.effects(proposal.target) == []


async def test_what_an_agent_writes_draws_no_link(rig: Rig, page: Page) -> None:
    """The Web UI renders summaries as markdown: an agent must not be able to paint "Approve here" on our screen.

    Red: pass the target to `static_summary` in workflows/client.py as it came.
    """
    proposal = rig.proposal("[Approve here](https://evil.example)", key="order-1003")
    async with rig.worker():
        assert (await rig.propose(proposal)).reason == "target_malformed"
        await clicked(page.open, rig.handle(proposal).id)
        assert (await clicked(page.details, "refused")).links == []
        summary = await clicked(page.summary)
        assert "Approve here" in summary.text and summary.links == []


async def test_with_a_codec_the_web_ui_reads_what_temporal_keeps_encrypted(
    rig: Rig, page: Page, browser: Chrome, tmp_path: Path
) -> None:
    """Whoever signed in at the codec sees input, summary and current details, which without it nobody does.

    The codec only decrypts: a signal with an input does not leave the dialog. Red: answer another origin in
    commands/decoding.py.
    """
    ours, reference = await encrypting(rig, KEY), f"canary-{uuid.uuid4().hex}"
    proposal = rig.proposal(rig.payment(), amount=5_000, evidence=[{"kind": "mail", "reference": reference}])
    ui_url = rig.stack.servers.temporal.ui_url
    assert ui_url is not None
    workflow_id = rig.handle(proposal).id
    async with rig.worker(payload_keys=KEY), decoding(rig, tmp_path, ui_url) as codec:
        assert (await ours.propose(proposal)).state == "awaiting_approval"
        await clicked(page.open, workflow_id)
        assert reference not in await clicked(page.tab, "history", "Input")
        await clicked(page.ask_codec, codec, TOKEN)
        try:
            await clicked(page.open, workflow_id)
            await clicked(page.tab, "history", reference)
            assert proposal.target in (await clicked(page.summary)).text
            await clicked(page.details, "awaiting_approval", "to approve: effects approve")
            assert "encoding failed" in await clicked(page.send, "signal", "decide", '{"approve": true}')
            await clicked(page.cancel_dialog)
        finally:
            browser.execute_script("localStorage.clear()")  # the window is everybody's here
