"""Our own servers die under way: nothing is claimed or sent twice, and everything goes on by itself."""

import asyncio
import uuid

import pytest
from temporalio.client import WorkflowFailureError

from activities.settings import Settings
from devstack.child import Child
from devstack.stripe_standin.control import Journal
from ledger.errors import Refused, Unavailable
from tests.conftest import Rig
from worker import running

QUICK = {"EFFECTS_SEND_WITHIN": "2", "EFFECTS_CALL_DEADLINE": "4", "EFFECTS_BACKOFF": "0.2"}


def _arrived(journal: Journal) -> bool:
    return any(a.method == "POST" for a in journal.arrivals)


async def _logged(worker: Child, text: str, seconds: float = 30.0) -> None:
    deadline = asyncio.get_running_loop().time() + seconds
    while text not in worker.log_tail(400):
        assert asyncio.get_running_loop().time() < deadline, worker.log_tail(40)
        await asyncio.sleep(0.1)


async def test_postgres_dies_while_a_request_is_under_way_and_its_answer_is_kept(rig: Rig) -> None:
    """The answer waits in the worker's memory until the ledger is back: one request, one refund, no person.

    Red: let `Dispatch._record` raise the first Unavailable.
    """
    target = rig.payment()
    rule = rig.stack.stripe.control.fault("slow", payment_intent=target)
    worker = rig.stack.worker(**{**QUICK, "EFFECTS_CALL_DEADLINE": "30"})
    answer = await rig.propose(rig.proposal(target))
    await asyncio.to_thread(rig.stack.stripe.control.until, _arrived, 20, payment_intent=target)
    rig.stack.servers.postgres.kill()
    rig.stack.stripe.control.release(rule)
    await _logged(worker, "the answer of the provider waits in memory")
    rig.stack.servers.postgres.restart()
    operation = await rig.until(answer.operation_id, "succeeded", seconds=40)
    assert len(rig.posts(target)) == 1
    assert [e.refund for e in rig.effects(target)] == [operation.receipt]


async def test_without_postgres_nothing_is_recorded_or_sent_and_the_proposal_goes_on_later(rig: Rig) -> None:
    """The caller hears that nothing is recorded yet; the same proposal again is the right thing to do."""
    target = rig.payment()
    worker = rig.stack.worker(**QUICK)
    await _logged(worker, "worker polls")
    rig.stack.servers.postgres.kill()
    proposal = rig.proposal(target)
    answer = await rig.propose(proposal)
    assert (answer.state, answer.ended) == ("unrecorded", False)
    assert rig.journal(target).arrivals == ()
    rig.stack.servers.postgres.restart()
    while not (answer := await rig.propose(proposal)).operation_id:
        assert answer.state == "unrecorded"
    await rig.until(answer.operation_id, "succeeded", seconds=40)
    assert len(rig.effects(target)) == 1


async def test_temporal_dies_while_unknown_and_settling_goes_on(rig: Rig) -> None:
    """File-backed server, SIGKILL, restart on the same port."""
    target = rig.payment()
    rig.stack.stripe.control.fault("lost-answer", payment_intent=target)
    rig.stack.worker(**{**QUICK, "EFFECTS_BACKOFF": "30"})
    answer = await rig.propose(rig.proposal(target))
    await rig.until(answer.operation_id, "unknown")
    rig.stack.servers.temporal.kill()
    rig.stack.servers.temporal.restart()
    await rig.advance(60)
    await rig.until(answer.operation_id, "succeeded", seconds=40)
    assert len(rig.effects(target)) == 1


async def test_a_ledger_that_knows_less_than_the_workflow_stops_it(rig: Rig) -> None:
    """Restored from an older backup: fail loudly instead of sending what it forgot. Red: ignore `known_events`."""
    target = rig.payment()
    proposal = rig.proposal(target, amount=5_000)
    async with rig.worker():
        answer = await rig.propose(proposal)
        handle = await rig.client.start_workflow(
            "OperationWorkflow",
            {"operation_id": answer.operation_id, "known_events": 1_000},
            id=f"restored-{uuid.uuid4().hex}",
            task_queue=rig.stack.task_queue,
        )
        with pytest.raises(WorkflowFailureError) as failure:
            await asyncio.wait_for(handle.result(), 20)
    assert "older backup" in str(failure.value.cause.__cause__)
    assert rig.posts(target) == []


async def test_the_worker_refuses_to_start_and_says_what_to_do(rig: Rig) -> None:
    """Each thing that it depends on, missing in turn."""
    good = rig.settings()

    async def refusal(settings: Settings) -> str:
        with pytest.raises((Refused, Unavailable)) as caught:
            async with running(settings):
                pass
        return str(caught.value)

    assert "EFFECTS_LEDGER_DSN" in await refusal(good.model_copy(update={"ledger_dsn": ""}))
    assert "test clock" in await refusal(good.model_copy(update={"dev": False}))
    assert "secret stripe_acme" in await refusal(good.model_copy(update={"secrets_dir": rig.stack.root / "nowhere"}))
    wrong = rig.stack.root / "secrets"
    wrong.mkdir()
    rig.stack.stripe.control.add_account("acct_other", secret_keys=["sk_test_other"])
    (wrong / "stripe_acme").write_text("sk_test_other")
    assert "belongs to acct_other" in await refusal(good.model_copy(update={"secrets_dir": wrong}))
    empty = f"empty_{uuid.uuid4().hex[:8]}"
    rig.stack.servers.postgres.create_database(empty)
    dsn = rig.stack.servers.postgres.dsn(empty)
    assert "effects migrate" in await refusal(good.model_copy(update={"ledger_dsn": dsn}))
    closed = "postgresql://nobody:x@127.0.0.1:1/ledger"
    assert "did not answer" in await refusal(good.model_copy(update={"ledger_dsn": closed}))
