"""Nobody sends the mail first: not an agent, not a workflow, not a worker's own SQL, and not somebody who forges an order."""

import asyncio
import uuid
from dataclasses import replace
from itertools import repeat
from typing import Any

import psycopg
import pytest
from temporalio.api.common.v1 import Payload, Payloads, WorkflowExecution, WorkflowType
from temporalio.api.enums.v1 import UpdateWorkflowExecutionLifecycleStage
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.update.v1 import Input, Meta, Request, WaitPolicy
from temporalio.api.workflowservice.v1 import (
    SignalWorkflowExecutionRequest,
    StartWorkflowExecutionRequest,
    UpdateWorkflowExecutionRequest,
)

from activities.messages import Proposal
from activities.order import Order, OrderAnswer, Step, plan
from commands.temporal import Temporal
from tests.conftest import Rig
from tests.recovery.order_world import (
    NOTHING,
    ONE_OF_EACH,
    Effects,
    Job,
    a_job,
    hold,
    recorded,
    release,
    signed,
    until,
    view,
)
from tests.workflows.payloads import MALFORMED


def mail_of(order: Order) -> Proposal:
    """The mail as the order plans and signs it: with a hole where the invoice's receipt goes."""
    return next(planned.proposal for planned in plan(order) if planned.step is Step.MAIL)


async def test_an_agent_that_proposes_the_mail_itself_is_refused_until_the_invoice_exists(desk: Rig) -> None:
    """Its own signature and all: before the invoice is known, while it waits for people, and once somebody declined it.

    Red: give `dependencies._receipt` back as "" where the receipt does not stand.
    """
    job = await a_job(desk)
    mail = mail_of(job.order)
    async with desk.worker():
        answer = await desk.propose(mail)
        assert (answer.state, answer.reason, answer.field) == ("refused", "dependency_unknown", "depends_on[0]")
        assert await recorded(desk) == 0
        await job.ask()
        invoice = await job.until(Step.INVOICE, "awaiting_approval")
        answer = await desk.propose(mail)
        assert (answer.state, answer.reason, answer.field) == ("refused", "dependency_unmet", "depends_on[0]")
        declined = await desk.signed(str(invoice.operation_id), "alice", "decline")
        await job.step(Step.INVOICE).signal("decide", declined)
        await job.until_ended()
        answer = await desk.propose(mail)
        assert (answer.state, answer.reason, answer.field) == ("refused", "dependency_unmet", "depends_on[0]")
    assert (await recorded(desk), await job.effects()) == (1, NOTHING)


async def test_the_ledger_itself_refuses_to_send_the_mail_before_the_invoice(desk: Rig) -> None:
    """A mail with a made-up invoice, approved by alice, and a worker whose code forgot all rules: its role's own SQL.

    Red: drop the block "what it depends on has ended as it must" of the trigger `operations_guard`.
    """
    job = await a_job(desk)
    planned = mail_of(job.order)
    fields = planned.arguments["fields"] | {"invoice": "account.invoice,1"}
    needs = [{"business_key": planned.depends_on[0]["business_key"], "state": "succeeded"}]
    early = desk.ask_for("send_mail", planned.target, planned.arguments | {"fields": fields}, depends_on=needs)
    async with desk.worker():
        await job.ask()
        await job.until(Step.INVOICE, "awaiting_approval")
        waiting = await desk.propose(early)
        await desk.approve(waiting.operation_id)

        async def waits() -> bool:
            return (await desk.operation(waiting.operation_id)).next_step == "dispatch (a dependency)"

        await until(waits, "the mail to wait for the invoice")
        async with await psycopg.AsyncConnection.connect(desk.stack.worker_dsn) as conn:
            with pytest.raises(psycopg.Error, match="depends on what has not ended as it must") as refused:
                await conn.execute(
                    "update operations set state = 'in_flight', reason = '', fence = fence + 1,"
                    " lease_until = ledger_now() + interval '1 minute', first_claimed_at = ledger_now(),"
                    " frozen_request = '{}', frozen_contract = '{}' where operation_id = %s",
                    [waiting.operation_id],
                )
        assert refused.value.sqlstate == "EL001"
    operation = await desk.operation(waiting.operation_id)
    assert (operation.state, operation.fence, await job.effects()) == ("approved", 0, NOTHING)


@pytest.mark.parametrize("undo", ["cancel", "delete"])
async def test_an_invoice_undone_before_the_mail_is_claimed_blocks_the_mail(desk: Rig, undo: str) -> None:
    """Mails are held while the invoice is made and undone in the ERP; somebody looks at it, and mails are released.

    Red: leave `undone` out of `Needed.stands`, and `contradicted` with it; take what was deleted for unreadable in
    `TrytonInvoices.read_receipt`.
    """
    job = await a_job(desk)
    async with desk.worker():
        await hold(desk, "provider:mail")
        await job.ask()
        await job.approve(Step.INVOICE)
        await job.until(Step.CUSTOMER, "succeeded")

        async def held() -> bool:
            mail = await job.operation(Step.MAIL)
            return mail is not None and mail.next_step == "dispatch (held)"

        await until(held, "the mail to be held")
        invoice = await job.until(Step.INVOICE, "succeeded")
        assert invoice.receipt is not None
        number = int(invoice.receipt.rpartition(",")[2])
        await asyncio.to_thread(desk.world.erp.admin.press, "account.invoice", undo, [number])
        await Temporal(desk.client, "", job.queue).signal(invoice, "look_now")  # what `effects look` does
        await job.step(Step.INVOICE).result()
        looked_at = await job.operation(Step.INVOICE)
        assert looked_at is not None and looked_at.standing == "void"
        await release(desk, "provider:mail")
        assert (await job.until(Step.MAIL, "blocked", "succeeded")).reason == "dependency_ended"
        done = await job.until_ended()
    assert done.state == "ended" and "contradicted or undone" in view(done, Step.INVOICE).sentence
    assert await job.effects() == Effects(1 if undo == "cancel" else 0, 1, 0)


async def start(desk: Rig, order: dict[str, Any]) -> OrderAnswer:
    """An order as plain JSON under a workflow id of the caller's, by anybody with a Temporal client."""
    running = await desk.client.start_workflow(
        "OrderToInvoiceWorkflow",
        order,
        id=f"forged-{uuid.uuid4().hex}",
        task_queue=desk.stack.task_queue,
        result_type=OrderAnswer,
    )
    told: OrderAnswer = await asyncio.wait_for(running.result(), 60)
    return told


async def test_a_forged_order_moves_nothing(desk: Rig) -> None:
    """By somebody who may write to the namespace and has read a signed order there.

    Red: return at once in `admission.principal`.
    """
    job, other = await a_job(desk), await a_job(desk)
    stranger = (await signed(desk, job.order, by="support-bot")).tokens

    def forgeries(good: dict[str, Any]) -> dict[str, dict[str, Any]]:
        tokens = good["tokens"]
        return {
            "no tokens": {"tokens": {}},
            "tokens of another order": {"tokens": other.order.tokens},
            "tokens for another customer": {"customer": other.customer.code},
            "tokens for another sum": {"items": [good["items"][0] | {"quantity": 2}], "total_minor": 36_000},
            "tokens for another mail": {"mail": good["mail"] | {"digest": "sha256:" + "cd" * 32}},
            "tokens for another number": {"order": other.order.order},
            "tokens for another human": {"requested_by": "eve"},
            "tokens for another agent": {"actor": "support-bot"},
            "tokens for another tenant": {"tenant": "globex"},
            "tokens for no revision": {"revisions": {"invoice": 1}},
            "a token of another step": {"tokens": tokens | {"invoice": tokens["mail"]}},
            "a key without this grant": {"tokens": stranger},
            "half a token": {"tokens": tokens | {"invoice": tokens["invoice"][:-10]}},
            "no token at all": {"tokens": tokens | {"invoice": "approve!"}},
        }

    names, starts = list(forgeries(job.order.model_dump(mode="json"))), []
    for at, name in enumerate(names):  # each is an order of its own, so that none waits for the step of another one
        order = await signed(desk, job.order.model_copy(update={"order": f"{job.order.order}-{at}"}))
        good = order.model_dump(mode="json")
        starts.append(start(desk, good | forgeries(good)[name]))
    async with desk.worker():
        answers = await asyncio.gather(*starts)
    told = dict(zip(names, answers, strict=True))
    assert {name: answer.state for name, answer in told.items()} == dict.fromkeys(names, "refused")
    assert {(answer.reason, answer.field) for answer in told.values()} == {
        ("signature_missing", "invoice: token"),
        ("signature_wrong", "invoice: token"),
        ("proposal_malformed", "invoice: token"),
    }
    assert (await recorded(desk), await job.effects(), await other.effects()) == (0, NOTHING, NOTHING)


async def test_tokens_swapped_between_steps_stop_the_order_or_what_is_left_of_it(desk: Rig) -> None:
    """Note and mail have each other's token, or none for this address: before anything is recorded, and once the invoice is.

    Red: return at once in `admission.principal`; leave `_any_recorded` out of `plan_order`.
    """
    job = await a_job(desk)
    good = job.order.model_dump(mode="json")
    tokens = good["tokens"]
    swapped = {"tokens": tokens | {"customer": tokens["mail"], "mail": tokens["customer"]}}
    elsewhere = {"confirm_to": f"eve-{uuid.uuid4().hex[:8]}@customer.test"}
    async with desk.worker():
        told = [await start(desk, good | forgery) for forgery in (swapped, elsewhere)]
        assert {(answer.state, answer.reason) for answer in told} == {("refused", "signature_wrong")}
        assert [answer.field for answer in told] == ["customer: token", "mail: token"]
        assert (await recorded(desk), await job.effects()) == (0, NOTHING)
        invoice = next(planned.proposal for planned in plan(job.order) if planned.step is Step.INVOICE)
        await desk.propose(invoice)
        await job.approve(Step.INVOICE)
        await job.until(Step.INVOICE, "succeeded")
        first, second = [await start(desk, good | forgery) for forgery in (swapped, elsewhere)]
        assert [view(first, step).state for step in Step] == ["succeeded", "refused", "refused"]
        assert view(second, Step.MAIL).reason == "signature_wrong"
        assert await job.effects() == Effects(1, 1, 0)
        await job.ask()  # the order as it was signed is not harmed
        assert (await job.until_ended()).state == "done"
    assert await job.effects() == ONE_OF_EACH
    assert desk.world.box.to(elsewhere["confirm_to"]) == []


async def test_an_order_asked_for_with_forged_tokens_goes_on_when_it_is_asked_for_with_its_own(desk: Rig) -> None:
    """Somebody asks with no tokens before the invoice exists: what they were for is not recorded, and not lost either.

    Red: return at once in `admission.principal`.
    """
    job = await a_job(desk)
    forged = replace(job, order=job.order.model_copy(update={"tokens": {}}))
    async with desk.worker():
        await job.ask()
        await job.until(Step.INVOICE, "awaiting_approval")
        assert (await forged.ask()).state == "under_way"
        await job.approve(Step.INVOICE)
        ended = await forged.until_ended()
        assert [view(ended, step).reason for step in Step] == ["", "signature_missing", "signature_missing"]
        assert (await recorded(desk), await job.effects()) == (1, Effects(1, 0, 0))
        await job.ask()
        assert (await job.until_ended()).state == "done"
    assert await job.effects() == ONE_OF_EACH


async def test_nothing_that_anybody_sends_wedges_an_order(desk: Rig) -> None:
    """The thirteen payloads as start, as the signal and as the update, by raw gRPC; then the order goes on to its end.

    Red: give `look_now` or `ask` a typed positional parameter instead of `*args`.
    """
    job = await a_job(desk)
    async with desk.worker():
        for label, answer in zip(
            MALFORMED, await asyncio.gather(*map(_started, repeat(desk), MALFORMED.values())), strict=True
        ):
            assert (answer["state"], answer["reason"], answer["ended"]) == ("refused", "order_malformed", True), label
            assert answer["message"], label
        assert await recorded(desk) == 0
        await job.ask()
        await job.until(Step.INVOICE, "awaiting_approval")
        for label, payloads in MALFORMED.items():
            for name in ("look_now", "nobody_knows_this"):
                await _signal(job, name, payloads)
            told = await _update(job, payloads)
            assert told["state"] == "refused" and told["reason"] == "order_malformed", label
        await job.approve(Step.INVOICE)
        assert (await job.until_ended()).state == "done"
    assert await job.effects() == ONE_OF_EACH


async def _started(desk: Rig, payloads: list[Payload]) -> dict[str, Any]:
    workflow_id = f"order:acme/{uuid.uuid4().hex}"
    await desk.client.workflow_service.start_workflow_execution(
        StartWorkflowExecutionRequest(
            namespace=desk.client.namespace,
            workflow_id=workflow_id,
            workflow_type=WorkflowType(name="OrderToInvoiceWorkflow"),
            task_queue=TaskQueue(name=desk.stack.task_queue),
            input=Payloads(payloads=payloads),
            request_id=uuid.uuid4().hex,
        )
    )
    answer = await desk.client.get_workflow_handle(workflow_id).result()
    assert isinstance(answer, dict)
    return answer


async def _signal(job: Job, name: str, payloads: list[Payload]) -> None:
    await job.desk.client.workflow_service.signal_workflow_execution(
        SignalWorkflowExecutionRequest(
            namespace=job.desk.client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=job.parent.id),
            signal_name=name,
            input=Payloads(payloads=payloads),
            request_id=uuid.uuid4().hex,
        )
    )


async def _update(job: Job, payloads: list[Payload]) -> dict[str, Any]:
    stage = UpdateWorkflowExecutionLifecycleStage.UPDATE_WORKFLOW_EXECUTION_LIFECYCLE_STAGE_COMPLETED
    answer = await job.desk.client.workflow_service.update_workflow_execution(
        UpdateWorkflowExecutionRequest(
            namespace=job.desk.client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=job.parent.id),
            wait_policy=WaitPolicy(lifecycle_stage=stage),
            request=Request(
                meta=Meta(update_id=uuid.uuid4().hex), input=Input(name="ask", args=Payloads(payloads=payloads))
            ),
        )
    )
    assert answer.outcome.HasField("success"), answer.outcome
    (told,) = await job.desk.client.data_converter.decode(list(answer.outcome.success.payloads))
    assert isinstance(told, dict)
    return told
