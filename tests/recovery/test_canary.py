"""Values planted in every input are found nowhere but in their place: not in logs, details or search attributes."""

import json
import uuid

from devstack.ports import LOOPBACK, free_port
from devstack.stack import SECRET_KEY, WEBHOOK_SECRET
from tests.conftest import Door, Rig


async def test_no_secret_token_or_personal_field_leaves_its_place(rig: Rig) -> None:
    """Red: log `input.args` in activities/observe.py, put `requested_by` into `progress._details`, or log a refused body."""
    person, reference = f"canary.{uuid.uuid4().hex}@example.com", f"canary-{uuid.uuid4().hex}"
    target = rig.payment()
    proposal = rig.proposal(
        target, amount=5_000, requested_by=person, evidence=[{"kind": "mail", "reference": reference}]
    )
    port = free_port()
    worker = rig.stack.worker(EFFECTS_LOG_LEVEL="debug", EFFECTS_BACKOFF="0.2", EFFECTS_INBOX_PORT=str(port))
    rig.stack.stripe.control.fault("lost-answer", payment_intent=target)
    answer = await rig.propose(proposal)
    approval = await rig.signed(answer.operation_id, "alice", "approval")
    await rig.decide(proposal, approval)
    await rig.until(answer.operation_id, "succeeded")
    handle = rig.handle(proposal)
    await handle.result()
    door = Door(f"http://{LOOPBACK}:{port}/stripe", rig)
    event = json.loads(rig.events(target)[0])
    event["data"]["object"]["instructions_email"] = event["data"]["object"]["metadata"]["note"] = person
    assert await door.deliver(json.dumps(event).encode(), b'{"who": "' + person.encode() + b'"}') == [200, 400]
    assert await door.taken() == [[uuid.UUID(answer.operation_id)]]
    async with rig.ledger.transaction() as conn:
        kept = await (await conn.execute("select inbox_events::text as row from inbox_events")).fetchall()
    assert event["id"] in kept[0]["row"] and person not in kept[0]["row"]
    log = worker.log_tail(100_000)
    assert event["id"] in log and WEBHOOK_SECRET not in log
    assert answer.operation_id in log
    history = (await handle.fetch_history()).to_json()
    described = str((await handle.describe()).raw_description)
    details = str((await rig.propose(proposal)).model_dump())
    for canary in (person, reference, proposal.token, approval["proof"], approval["statement"], SECRET_KEY):
        assert canary not in log, canary[:12]
        assert canary not in described
        assert canary not in details
    # Inputs cross Temporal (encrypting them is the codec's work); the provider's secret never does.
    assert SECRET_KEY not in history
