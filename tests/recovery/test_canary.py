"""Values planted in every input are found nowhere but in their place: not in logs, details or search attributes."""

import uuid

from devstack.stack import SECRET_KEY
from tests.conftest import Rig


async def test_no_secret_token_or_personal_field_leaves_its_place(rig: Rig) -> None:
    """Red: log `input.args` in activities/observe.py, or put `requested_by` into `progress._details`."""
    person, reference = f"canary.{uuid.uuid4().hex}@example.com", f"canary-{uuid.uuid4().hex}"
    target = rig.payment()
    proposal = rig.proposal(
        target, amount=5_000, requested_by=person, evidence=[{"kind": "mail", "reference": reference}]
    )
    worker = rig.stack.worker(EFFECTS_LOG_LEVEL="debug", EFFECTS_BACKOFF="0.2")
    rig.stack.stripe.control.fault("lost-answer", payment_intent=target)
    answer = await rig.propose(proposal)
    approval = await rig.signed(answer.operation_id, "alice", "approval")
    await rig.decide(proposal, approval)
    await rig.until(answer.operation_id, "succeeded")
    handle = rig.handle(proposal)
    await handle.result()
    log = worker.log_tail(100_000)
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
