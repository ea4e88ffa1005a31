"""With keys, Temporal keeps nothing of what crosses it in clear; keys come, change and go while operations wait."""

import asyncio
import re
import uuid
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.query.v1 import WorkflowQuery
from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.api.workflowservice.v1 import QueryWorkflowRequest
from temporalio.client import Client

from activities.ports import Secrets
from commands.temporal import Temporal
from ledger.errors import Refused
from ledger.statement import Envelope
from ledger.trail import EventKind
from tests.conftest import Rig
from tests.recovery.test_canary import readable
from tests.workflows.encrypted import encrypting, payloads_in
from workflows.client import propose
from workflows.codec import ENCODING, KEY_ID, EncryptionCodec

KEY = "payload_key_1"
PAGE = Path(__file__).parents[2] / "docs" / "encryption.md"


async def test_a_whole_refund_leaves_nothing_in_clear_but_codes(rig: Rig) -> None:
    """An answer is lost, an approval is refused, a person approves. What is read back with the key has every canary, and
    without it none. Red: leave out the codec in `converter_with`, or the summary's place in any one client.
    """
    ours = await encrypting(rig, KEY)
    asker, reference = f"canary-{uuid.uuid4().hex}@example.com", f"canary-{uuid.uuid4().hex}"
    target = rig.payment()
    evidence = [{"kind": "mail", "reference": reference}]
    proposal = rig.proposal(target, amount=5_000, requested_by=asker, evidence=evidence)
    rig.stack.stripe.control.fault("lost-answer", payment_intent=target)
    async with rig.worker(payload_keys=KEY):
        answer = await ours.propose(proposal)
        approval = await rig.signed(answer.operation_id, "alice", "approval")
        spoiled = approval | {"statement": approval["statement"].replace("alice", "mallory")}
        await ours.handle(proposal).signal("decide", spoiled)
        assert (await ours.decide(proposal, approval)).state in ("awaiting_approval", "approved", "in_flight")
        await rig.until(answer.operation_id, "succeeded")
        assert (await ours.handle(proposal).result())["state"] == "succeeded"
        shown = await ours.handle(proposal).query("__temporal_workflow_metadata", result_type=WorkflowMetadata)
        raw = await _asked(rig.client, rig.handle(proposal).id)
    handle = rig.handle(proposal)
    fetched = await handle.fetch_history()
    history = fetched.to_json()
    described = str((await handle.describe()).raw_description)
    kept = readable(str(fetched.events)) + described + raw
    for canary in (asker, reference, approval["proof"], proposal.token, target):
        assert canary not in kept, canary[:12]
    payloads = list(payloads_in(history))
    codec = ours.client.data_converter.payload_codec
    assert isinstance(codec, EncryptionCodec)
    inside = str([codec.opened(payload) for _, payload in payloads])
    for canary in (asker, reference, approval["proof"], proposal.token, target):
        assert canary in inside
    assert answer.operation_id in shown.current_details and answer.operation_id not in raw
    clear = {where for where, payload in payloads if payload.metadata["encoding"] != ENCODING}
    # Search attributes; and of a local activity its number, name and times, by the SDK itself.
    assert {where.split(".")[0] for where in clear} == {
        "upsertWorkflowSearchAttributesEventAttributes",
        "markerRecordedEventAttributes",
    }
    assert {where for where in clear if where.startswith("marker")} == {"markerRecordedEventAttributes.details.data"}
    assert [e.refund for e in rig.effects(target)] == [(await rig.operation(answer.operation_id)).receipt]


async def test_keys_come_and_change_while_an_operation_waits(rig: Rig) -> None:
    """Proposed in clear; then workers with a key; then with a newer one before it; then with none in front, which only
    read. Each of them reads the history from its beginning. Red: refuse plain payloads, or forget older keys.
    """
    target = rig.payment()
    proposal = rig.proposal(target, amount=5_000)
    async with rig.worker():
        answer = await rig.propose(proposal)
        assert answer.state == "awaiting_approval"
    for names in ("key_1", "key_2,key_1"):
        ours = await encrypting(rig, names)
        async with rig.worker(payload_keys=names):
            assert (await ours.propose(proposal)).state == "awaiting_approval"
            nobodys = await rig.signed(answer.operation_id, "support-bot", "approval")
            assert (await ours.decide(proposal, nobodys)).reason == "key_unknown"
    async with rig.worker(payload_keys="plain,key_2,key_1"):
        await rig.decide(proposal, await rig.signed(answer.operation_id, "alice", "approval"))
        await rig.until(answer.operation_id, "succeeded")
        assert (await rig.handle(proposal).result())["state"] == "succeeded"
    history = (await rig.handle(proposal).fetch_history()).to_json()
    made = {payload.metadata.get(KEY_ID, b"") for _, payload in payloads_in(history)}
    assert made == {b"", b"key_1", b"key_2"}
    assert len(rig.effects(target)) == 1


async def test_who_has_the_wrong_key_is_told_so_and_stops_nothing(rig: Rig) -> None:
    """A decision under a key that the worker lacks is junk to it, recorded as such; the right one counts afterwards.

    Whoever has no key is understood, and cannot read the answer. Red: let the codec raise for what it cannot decrypt; let
    `Temporal.calling` pass on what the SDK says.
    """
    ours, stranger = await encrypting(rig, KEY), await encrypting(rig, "payload_key_9")
    proposal = rig.proposal(rig.payment(), amount=5_000)
    async with rig.worker(payload_keys=KEY):
        answer = await ours.propose(proposal)
        approval = await rig.signed(answer.operation_id, "alice", "approval")
        await stranger.handle(proposal).signal("decide", approval)
        operation = await rig.operation(answer.operation_id)
        for other, words in (
            (stranger, "the worker said no"),
            (rig, "what was sent may count: .* the key payload_key_1"),
        ):
            command_line = Temporal(other.client, "there", rig.stack.task_queue)
            with pytest.raises(Refused, match=words) as refused:
                await command_line.decide(operation, Envelope(**(approval | {"proof": "x"})))
            assert refused.value.rule == "payload_unreadable"
        await ours.decide(proposal, approval)
        await rig.until(answer.operation_id, "succeeded")
        await asyncio.wait_for(ours.handle(proposal).result(), 30)
    junk = [e.body["rule"] for e in await rig.trail(answer.operation_id) if e.kind == EventKind.JUNK_REFUSED]
    assert junk == ["decide without a JSON object"]


async def test_a_lost_key_loses_no_operation(rig: Rig) -> None:
    """The run that nobody can read is terminated, and asking again, as a service does with docs/encryption.md, starts another
    from the ledger. Red: let `converter_with` give the first key to every name.
    """
    ours, after = await encrypting(rig, KEY), await encrypting(rig, "payload_key_2")
    proposal = rig.proposal(rig.payment(), amount=5_000)
    async with rig.worker(payload_keys=KEY):
        answer = await ours.propose(proposal)
    program = re.findall(r"<!-- snippet:encrypted -->\n```python\n(.*?)^```", PAGE.read_text(), re.M | re.S)[0]
    service: dict[str, Any] = {}
    exec(compile(program, str(PAGE), "exec"), service)  # noqa: S102 - our own page
    service["read"] = Secrets(rig.stack.household.folder / "secrets").read
    client = await service["connect"](rig.stack.servers.temporal.address, "payload_key_2")
    async with rig.worker(payload_keys="payload_key_2"):
        await rig.handle(proposal).terminate()
        again = await propose(client, proposal, task_queue=rig.stack.task_queue)
        assert (again.operation_id, again.state) == (answer.operation_id, "awaiting_approval")
        await after.decide(proposal, await rig.signed(answer.operation_id, "alice", "approval"))
        await rig.until(answer.operation_id, "succeeded")
    assert len(rig.effects(proposal.target)) == 1


async def _asked(client: Client, workflow_id: str) -> str:
    """The current details, as they come over the wire."""
    query = QueryWorkflowRequest(
        namespace=client.namespace,
        execution=WorkflowExecution(workflow_id=workflow_id),
        query=WorkflowQuery(query_type="__temporal_workflow_metadata"),
    )
    return str(await client.workflow_service.query_workflow(query))
