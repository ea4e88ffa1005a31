"""From an order to its draft invoice, the customer's record and the confirmation: three operations, each with its own end.

This workflow orders and waits. What may be sent, the ledger asks again at every claim; losing this workflow, or starting it
twice, changes nothing about any effect. Its steps outlive it: each is an operation with a workflow of its own.
"""

import asyncio
import math
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import ChildWorkflowError, WorkflowAlreadyStartedError

with workflow.unsafe.imports_passed_through():
    from activities.messages import OPERATION_WORKFLOW, Answer, request_digest
    from activities.order import (
        ORDER_WORKFLOW,
        Keys,
        Order,
        OrderAnswer,
        Plan,
        PlannedStep,
        Step,
        StepView,
        business_key,
        read_order,
    )
    from ledger.errors import Refused
    from workflows import calls
    from workflows.names import TELL_PARENT, workflow_id

LONGEST_WAIT = timedelta(minutes=10)  # a step that somebody else started tells us nothing: it is read now and then
# Refusals that say nothing about the order: what was not there, or did not answer, is asked again.
ASK_AGAIN = {"target_unreadable", "target_busy", "dependency_unmet", "secret_missing", "secret_malformed"}
FIRST_PAUSE, LONGEST_PAUSE = 15.0, 600.0  # seconds before a step that was refused so is tried again
ANSWER_WITHIN = timedelta(seconds=5)
MOST_SIGNALS = 500


@workflow.defn(name=ORDER_WORKFLOW)
class OrderToInvoiceWorkflow:
    """Starts each step when what it needs has succeeded, and ends when nothing more can happen."""

    @workflow.init
    def __init__(self, *args: Any) -> None:
        # Handlers run before `run`, so everything they touch stands here.
        self._order: Order | None = None
        self._refusal = OrderAnswer(state="refused", ended=True)
        try:
            self._order = read_order(args[0] if len(args) == 1 else None)
        except Refused as refused:
            self._refusal = _refused("", refused.rule, refused.field, str(refused))
        self._plan: Plan | None = None
        self._views: dict[Step, StepView] = {}
        self._running: set[Step] = set()  # whose workflow this run started and has not seen ending
        self._lost: set[Step] = set()  # of the running ones, whose workflow failed or was terminated
        self._said: dict[Step, Answer] = {}  # steps of which nothing was recorded, and why
        self._again: dict[Step, float] = {}  # of these, when (workflow time) one is tried again
        self._tries: dict[Step, int] = {}
        self._news = True
        self._signals = 0

    @workflow.run
    async def run(self, *args: Any) -> OrderAnswer:
        """From the order to the end of all that can be done about it."""
        if self._order is None:
            return self._refusal
        self._plan = await calls.plan_order(self._order)
        if self._plan.reason:
            why = self._plan
            self._refusal = _refused(self._order.order, why.reason, why.field, why.message)
            return self._refusal
        while True:
            self._news = False
            await self._read()
            for planned in self._plan.steps:
                if self._may_start(planned):
                    await self._begin(planned)
            if self._ended():
                # somebody still waits for an answer, or has just asked for more
                await workflow.wait_condition(lambda: self._news or workflow.all_handlers_finished())
                if not self._news:
                    return self.state()
            else:
                await self._wait()

    def _may_start(self, planned: PlannedStep) -> bool:
        step = planned.step
        if step in self._running or self._views[step].ended:
            return False
        if step in self._said and workflow.time() < self._again.get(step, math.inf):
            return False
        return all(self._views[need].met for need in planned.needs)

    def _ended(self) -> bool:
        """Whether no step runs or can still be started."""
        assert self._plan is not None
        open_ones = {s for s, view in self._views.items() if view.operation_id and not view.ended}
        open_ones |= self._running | set(self._again)
        return not open_ones and not any(self._may_start(planned) for planned in self._plan.steps)

    async def _begin(self, planned: PlannedStep) -> None:
        """Start the step's own workflow, which outlives this one. One that runs already is only watched."""
        proposal = planned.proposal
        self._running.add(planned.step)
        self._said.pop(planned.step, None)
        self._again.pop(planned.step, None)
        try:
            started = await workflow.start_child_workflow(
                OPERATION_WORKFLOW,
                proposal.model_dump(mode="json"),
                id=workflow_id(proposal.tenant, proposal.business_key),
                id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
                parent_close_policy=workflow.ParentClosePolicy.ABANDON,
                cancellation_type=workflow.ChildWorkflowCancellationType.ABANDON,
                memo={TELL_PARENT: True},
                result_type=Answer,
                static_summary=f"{planned.step} of order {_plain(proposal.business_key)}",
            )
        except WorkflowAlreadyStartedError:
            # Somebody else started it. Until it has ended it is tried again at every look: its workflow may get lost.
            self._running.discard(planned.step)
            return
        asyncio.create_task(self._follow(planned.step, started))

    async def _follow(self, step: Step, started: workflow.ChildWorkflowHandle[Any, Answer]) -> None:
        try:
            answer = await started
            self._running.discard(step)
            if answer.state == "refused":
                self._said[step] = answer
                if answer.reason in ASK_AGAIN:
                    self._tries[step] = tried = self._tries.get(step, 0) + 1
                    pause = min(FIRST_PAUSE * 2.0 ** min(tried - 1, 10), LONGEST_PAUSE)
                    self._again[step] = workflow.time() + pause
        except ChildWorkflowError:
            # Broken, or ended by somebody: operators are paged by that. It is started again when the order is asked for.
            self._lost.add(step)
        self._news = True

    async def _read(self) -> None:
        """Take over what the ledger says of every step, and show it."""
        assert self._order is not None
        assert self._plan is not None
        told = await calls.order_steps(_keys(self._order.tenant, self._plan))
        self._views = {view.step: view for view in told.steps}
        for step, view in self._views.items():
            if view.ended:
                self._running.discard(step)
        workflow.set_current_details(_details(self.state()))

    async def _wait(self) -> None:
        with suppress(TimeoutError):
            await workflow.wait_condition(
                lambda: self._news, timeout=self._patience(), timeout_summary="waiting for steps"
            )
        info = workflow.info()
        if (info.is_continue_as_new_suggested() or self._signals >= MOST_SIGNALS) and workflow.all_handlers_finished():
            assert self._order is not None
            workflow.continue_as_new(self._order.model_dump(mode="json"))

    def _patience(self) -> timedelta | None:
        """Until a step is tried again. What this run started tells when it moves; anything else is read now and then."""
        waits = [max(at - workflow.time(), 0.0) for at in self._again.values()]
        watched = {s for s, view in self._views.items() if view.operation_id and not view.ended} - self._running
        if watched or self._lost or not (waits or self._running):
            waits.append(LONGEST_WAIT.total_seconds())
        return timedelta(seconds=min(waits)) if waits else None

    @workflow.query(description="The steps as they were read last; the update `ask` reads them again.")
    def state(self) -> OrderAnswer:
        """Where the order stands."""
        if self._order is None or (self._plan is not None and self._plan.reason):
            return self._refusal
        steps = [self._shown(step) for step in Step]
        ended = bool(self._views) and self._plan is not None and self._ended()
        done = all(view.met for view in steps)
        told = "done" if done else "ended" if ended else "under_way"
        return OrderAnswer(order=self._order.order, state=told, ended=done or ended, steps=steps)

    def _shown(self, step: Step) -> StepView:
        assert self._order is not None
        view = self._views.get(step) or StepView(step=step, business_key=business_key(self._order, step))
        if view.operation_id:
            return view
        if step in self._lost:
            return view.model_copy(update={"sentence": "its workflow ended without an answer: ask again to start it"})
        if (said := self._said.get(step)) and step in self._again:
            return view.model_copy(update={"sentence": f"not recorded yet: {said.message}; it is tried again"})
        if said:
            why = f"not recorded: {said.field}: {said.message}" if said.field else f"not recorded: {said.message}"
            refused = {"state": "refused", "reason": said.reason, "field": said.field, "message": said.message}
            return view.model_copy(update={**refused, "ended": True, "sentence": why})
        needs = next((p.needs for p in self._plan.steps if p.step is step), []) if self._plan else []
        missing = [need for need in needs if not (self._views.get(need) and self._views[need].met)]
        gone = [need for need in missing if self._views.get(need) and (self._views[need].ended or need in self._said)]
        if gone:
            return view.model_copy(update={"sentence": f"not started: {gone[0]} did not succeed"})
        words = f"not started: waits for {missing[0]}" if missing else "being started"
        return view.model_copy(update={"sentence": words})

    @workflow.signal(description="A step moved; it is read again. Needs no input, and gives nobody any power.")
    def look_now(self, *args: Any) -> None:
        """Read the steps again."""
        self._signals += 1
        self._news = True

    @workflow.update(description="Give the order, or ask how it went: the same order again is the poll.")
    async def ask(self, *args: Any) -> OrderAnswer:
        """Answer within seconds with what the ledger says now."""
        self._signals += 1
        asked = self._asked(args)
        if isinstance(asked, OrderAnswer):
            return asked
        with suppress(TimeoutError):
            await workflow.wait_condition(self._has_begun, timeout=ANSWER_WITHIN)
        if self._plan is not None and not self._plan.reason:
            self._running -= self._lost
            self._lost.clear()
            self._take_signatures(asked)
            self._news = True
            await self._read()
        return self.state()

    def _has_begun(self) -> bool:
        """Whether every step that this run has started was heard of: judged, or refused."""
        if self._order is None or (self._plan is not None and bool(self._plan.reason)):
            return True
        heard = {s for s, view in self._views.items() if view.state not in ("", "proposed")} | set(self._said)
        return Step.INVOICE in heard and self._running <= heard

    def _take_signatures(self, asked: Order) -> None:
        """Signed again, because a signature had expired or its key was replaced: what was refused is tried with these."""
        if self._order is None or self._plan is None or asked.tokens == self._order.tokens:
            return
        self._order = asked
        for planned in self._plan.steps:
            planned.proposal = planned.proposal.model_copy(update={"token": asked.tokens.get(planned.step, "")})
        self._said.clear()
        self._again.clear()

    def _asked(self, args: Sequence[Any]) -> Order | OrderAnswer:
        """The order, or why it is refused: another one under the number of one under way is not merged with it."""
        try:
            asked = read_order(args[0] if len(args) == 1 else None)
        except Refused as refused:
            return _refused("", refused.rule, refused.field, str(refused))
        if self._order is not None and _content(asked) != _content(self._order):
            words = "this order is under way with another content: ask with the same, or wait for its end and revise"
            return _refused(asked.order, "order_used", "order", words)
        return asked


def _keys(tenant: str, plan: Plan) -> Keys:
    keys = {planned.step: planned.proposal.business_key for planned in plan.steps}
    return Keys(tenant=tenant, steps=keys, digests={p.step: request_digest(p.proposal) for p in plan.steps})


def _content(order: Order) -> dict[str, Any]:
    """Everything but the signatures, which may be made again."""
    return order.model_dump(exclude={"tokens"})


def _refused(order: str, rule: str, field: str, message: str) -> OrderAnswer:
    return OrderAnswer(order=order, state="refused", reason=rule, field=field, message=message, ended=True)


def _plain(text: str) -> str:
    return "".join(c if c.isalnum() or c in " ._/-" else " " for c in text)[:200]


def _details(answer: OrderAnswer) -> str:
    """Markdown for the Web UI: our own words and checked names only."""
    lines = [f"### order {answer.order}: {answer.state.replace('_', ' ')}"]
    for view in answer.steps:
        named = f" (operation `{view.operation_id}`)" if view.operation_id else ""
        lines.append(f"- **{view.step}**{named}: {_plain_words(view.sentence)}")
    return "\n".join(lines)


def _plain_words(text: str) -> str:
    return "".join(c if c.isalnum() or c in " .,:;_+()/#@-" else " " for c in text)[:300]
