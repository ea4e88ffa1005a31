"""One operation from proposal to end. The main flow is `run`: what the ledger says next is done, until nothing is next.

The workflow holds an operation id, timers and a box of messages. Losing it, resetting it or starting it twice changes
nothing about the effect: the ledger dedupes, and a new run finds the operation and goes on.
"""

import asyncio
import re
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.common import SearchAttributeKey
from temporalio.exceptions import FailureError

with workflow.unsafe.imports_passed_through():
    from pydantic import ValidationError

    from activities.messages import (
        ADVICE,
        ASKED_AGAIN,
        OPERATION_WORKFLOW,
        Answer,
        Message,
        MessageKind,
        Next,
        OperationRef,
        Progress,
        Proposal,
        Resume,
        request_digest,
    )
    from workflows import calls
    from workflows.names import TELL_PARENT

LONGEST_SLEEP = timedelta(minutes=10)  # the ledger's clock is not the workflow's: look at it now and then
ANSWER_WITHIN = timedelta(seconds=5)
MOST_SIGNALS = 500
MOST_CARRIED = 300_000  # characters of waiting messages over continue-as-new
LONGEST_TEXT = 400_000  # of one part of a signed message; the ledger's own bounds are tighter

STATE = SearchAttributeKey.for_keyword("EffectState")
NEXT = SearchAttributeKey.for_keyword("EffectNext")
TENANT = SearchAttributeKey.for_keyword("EffectTenant")
ACTION = SearchAttributeKey.for_keyword("EffectAction")
PROVIDER = SearchAttributeKey.for_keyword("EffectProvider")
OPERATION_ID = SearchAttributeKey.for_keyword("EffectOperation")
AMOUNT = SearchAttributeKey.for_int("EffectAmountMinor")
CURRENCY = SearchAttributeKey.for_keyword("EffectCurrency")
SEARCH_ATTRIBUTES: tuple[SearchAttributeKey[Any], ...] = (
    STATE,
    NEXT,
    TENANT,
    ACTION,
    PROVIDER,
    OPERATION_ID,
    AMOUNT,
    CURRENCY,
)

Told = TypeVar("Told")
_OPERATION_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_STATEMENT_SHAPE = 'Needs one JSON object: {"statement": …, "scheme": "jws", "proof": …} as `effects` signs it.'


@workflow.defn(name=OPERATION_WORKFLOW)
class OperationWorkflow:
    """Waits for people and time, and calls the activity that the ledger says is next."""

    @workflow.init
    def __init__(self, *args: Any) -> None:
        # Handlers run before `run`, so everything they touch stands here.
        self._start = _read_start(args)
        self._progress = Progress(state="", next=Next.JUDGE)
        self._box: list[Message] = list(self._start.waiting) if isinstance(self._start, Resume) else []
        self._taken = 0  # messages answered so far; the next one's ticket
        self._tickets = len(self._box)
        self._replies: dict[int, Progress] = {}
        self._signals = 0  # and updates: both have a limit per run
        self._asked = False  # whether a proposal came as an update
        self._due = 0.0  # workflow time of the next step
        self._told: dict[str, Any] = {}
        self._moved: tuple[str, str] = ("", "")  # what our parent was told last

    @workflow.run
    async def run(self, *args: Any) -> Answer:
        """From proposal to end; the answer is the same that `propose` gives."""
        await self._begin()
        await self._tell_parent()
        while not self._ended():
            if self._box:
                await self._settle_message(self._box[0])
            elif self._progress.next is Next.DONE:
                # somebody still waits for an answer, or is about to put a last message into the box
                await workflow.wait_condition(lambda: bool(self._box) or workflow.all_handlers_finished())
            else:
                await self._sleep()
                if not self._box:
                    await self._step()
            self._renew_history()
            await self._tell_parent()
        return _answer(self._progress)

    def _ended(self) -> bool:
        return self._progress.next is Next.DONE and not self._box and workflow.all_handlers_finished()

    async def _tell_parent(self) -> None:
        """An order that started this operation hears of every change; nobody else is told."""
        parent, moved = workflow.info().parent, (self._progress.state, self._progress.until)
        if parent is None or moved == self._moved or not workflow.memo_value(TELL_PARENT, False, type_hint=bool):
            return
        self._moved = moved
        with suppress(FailureError):  # it ended meanwhile: there is nobody to tell
            await self._finish(workflow.get_external_workflow_handle(parent.workflow_id).signal("look_now"))

    async def _begin(self) -> None:
        match self._start:
            case Proposal():
                self._tell(await self._finish(calls.propose(self._start)))
            case Resume():
                await self._act(Next.RECONCILE, self._start.operation_id, self._start.known_events)
            case Progress():
                self._tell(self._start)  # unreadable input: refused, nothing is stored

    async def _step(self) -> None:
        await self._act(self._progress.next, self._progress.operation_id, self._progress.events)

    async def _act(self, what: Next, operation_id: str, events: int, *, look_now: bool = False) -> None:
        """Do what is next, then read where that led. Nothing here decides: each activity asks the ledger again."""
        ref = OperationRef(operation_id=operation_id, known_events=events, look_now=look_now)
        match what:
            case Next.JUDGE | Next.PEOPLE:
                await self._finish(calls.judge(ref))
            case Next.DISPATCH:
                await self._finish(calls.dispatch(ref))
            case Next.RECONCILE | Next.REVIEW | Next.DONE:
                await self._finish(calls.reconcile(ref))
        # Whoever may write to the namespace can answer for a normal activity; the ledger, read locally, is believed.
        self._tell(await self._finish(calls.read(ref)))

    async def _settle_message(self, message: Message) -> None:
        operation_id, events = self._progress.operation_id, self._progress.events
        message = message.model_copy(update={"operation_id": operation_id, "known_events": events})
        reply = self._progress
        if not operation_id:
            pass  # refused at the start: there is nothing to speak about
        elif message.kind is MessageKind.LOOK_NOW:
            await self._act(self._progress.next, operation_id, events, look_now=True)
        elif message.kind is MessageKind.RESOLVE:
            await self._finish(calls.resolve(message))
            self._tell(await self._finish(calls.read(OperationRef(operation_id=operation_id, known_events=events))))
        else:
            reply = await self._finish(calls.record(message))
            self._tell(reply)
        self._box.pop(0)
        self._replies[self._taken] = reply
        self._taken += 1

    async def _sleep(self) -> None:
        pause = min(timedelta(seconds=self._due - workflow.time()), LONGEST_SLEEP)
        if pause <= timedelta():
            return
        try:
            await workflow.wait_condition(
                lambda: bool(self._box),
                timeout=pause,
                timeout_summary=f"waiting for {self._progress.next} until {self._progress.until}",
            )
        except TimeoutError:
            return
        except asyncio.CancelledError:
            self._cancelled()

    async def _finish(self, call: Coroutine[Any, Any, Told]) -> Told:
        """Await a call to its end even when the workflow is cancelled meanwhile: what was begun is settled."""
        task = asyncio.ensure_future(call)
        while True:
            try:
                return await asyncio.shield(task)
            except asyncio.CancelledError:
                if task.cancelled():
                    raise
                self._cancelled()

    def _cancelled(self) -> None:
        # Before the first send this withdraws; later it is swallowed and settling goes on.
        self._put(Message(kind=MessageKind.CANCEL))

    def _put(self, message: Message) -> int:
        """Queue a message; returns its ticket. Junk of one kind becomes one message with a count."""
        for place, waiting in enumerate(self._box):
            # not the first: that one is being settled
            if place and (waiting.kind, waiting.problem) == (MessageKind.JUNK, message.problem):
                self._box[place] = waiting.model_copy(update={"count": waiting.count + 1})
                return self._tickets - 1
        self._box.append(message)
        self._tickets += 1
        return self._tickets - 1

    def _take(self, kind: MessageKind, args: Sequence[Any]) -> None:
        self._signals += 1
        self._put(_read_message(kind, args))

    def _tell(self, progress: Progress) -> None:
        """Take over what the ledger says, and show it: current details and search attributes. Of people, signers are named."""
        self._progress = progress
        # Jitter only lengthens: a repeat or a look is never early.
        self._due = workflow.time() + progress.delay_seconds * (1 + 0.1 * workflow.random().random())
        workflow.set_current_details(progress.details or _why_nothing(progress))
        wanted: list[tuple[SearchAttributeKey[Any], Any]] = [(STATE, progress.state), (NEXT, progress.next.value)]
        if progress.operation_id:
            wanted += [
                (OPERATION_ID, progress.operation_id),
                (TENANT, progress.tenant),
                (ACTION, progress.action),
                (PROVIDER, progress.provider),
                (AMOUNT, progress.amount_minor),
                (CURRENCY, progress.currency),
            ]
        changed = [(key, value) for key, value in wanted if self._told.get(key.name) != value]
        if changed:
            workflow.upsert_search_attributes([key.value_set(value) for key, value in changed])
            self._told.update({key.name: value for key, value in changed})

    def _renew_history(self) -> None:
        long = workflow.info().is_continue_as_new_suggested() or self._signals >= MOST_SIGNALS
        # A handler that still waits for its answer would be cut off: it is served first.
        # What waits is carried over, and a payload has a limit: a long box is worked off first.
        small = sum(len(m.statement) + len(m.proof) + len(m.sheet) for m in self._box) < MOST_CARRIED
        if long and small and self._progress.operation_id and workflow.all_handlers_finished():
            resume = Resume(
                operation_id=self._progress.operation_id, known_events=self._progress.events, waiting=self._box
            )
            workflow.continue_as_new(resume.model_dump(mode="json"))

    @workflow.signal(description="A signed approval or decline. " + _STATEMENT_SHAPE)
    def decide(self, *args: Any) -> None:
        """Queue a decision; whether it counts is decided by its signature."""
        self._take(MessageKind.DECIDE, args)

    @workflow.signal(description="A signed resolution or look-again. " + _STATEMENT_SHAPE)
    def resolve(self, *args: Any) -> None:
        """Queue a resolution."""
        self._take(MessageKind.RESOLVE, args)

    @workflow.signal(description="A signed withdrawal, before anything was sent. " + _STATEMENT_SHAPE)
    def withdraw(self, *args: Any) -> None:
        """Queue a withdrawal."""
        self._take(MessageKind.WITHDRAW, args)

    @workflow.signal(description="Wake up: read the clock, the ledger and the provider now. Needs no input.")
    def look_now(self, *args: Any) -> None:
        """Queue a look; it gives nobody any power."""
        self._signals += 1
        if not any(m.kind is MessageKind.LOOK_NOW for m in self._box[1:]):
            self._put(Message(kind=MessageKind.LOOK_NOW))

    @workflow.update(name="decide", description="The same as the signal, with an answer. " + _STATEMENT_SHAPE)
    async def decide_and_answer(self, *args: Any) -> Answer:
        """Queue a decision and tell what became of it."""
        self._signals += 1
        ticket = self._put(_read_message(MessageKind.DECIDE, args))
        await workflow.wait_condition(lambda: ticket < self._taken)
        return _answer(self._replies.get(ticket, self._progress))

    @decide_and_answer.validator
    def _check_decision(self, *args: Any) -> None:
        if (message := _read_message(MessageKind.DECIDE, args)).kind is MessageKind.JUNK:
            raise ValueError(f"{message.problem}. {_STATEMENT_SHAPE}")

    @workflow.update(description="Ask for an effect, or ask how it went: the same proposal again is the poll.")
    async def propose(self, *args: Any) -> Answer:
        """Answer once judged, within five seconds at most."""
        self._signals += 1
        asked = _read_start(args)
        if self._asked:  # the first one is the question itself; a replay counts nothing
            workflow.metric_meter().create_counter(ASKED_AGAIN).add(1)
        self._asked = True
        with suppress(TimeoutError):
            await workflow.wait_condition(lambda: self._progress.state not in ("", "proposed"), timeout=ANSWER_WITHIN)
        kept = self._progress.request_digest
        if isinstance(asked, Proposal) and kept not in ("", request_digest(asked)):
            # One key is one intent: never merged, and the one that is under way is not disturbed.
            words = f"this business key stands for {kept[:16]}, and was now sent with {request_digest(asked)[:16]}"
            return Answer(
                state="refused",
                reason="key_used",
                field="business_key",
                message=words,
                ended=True,
                advice=ADVICE["key_used"],
            )
        return _answer(self._progress)

    @propose.validator
    def _check_proposal(self, *args: Any) -> None:
        if isinstance(asked := _read_start(args), Progress):
            raise ValueError(f"{asked.field}: {asked.message}" if asked.field else asked.message)


def _read_start(args: Sequence[Any]) -> Proposal | Resume | Progress:
    """The input of a run, or what is wrong with it. Never raises: a start that raises would wedge the run."""
    if len(args) != 1 or not isinstance(args[0], dict):
        words = "give one JSON object with the proposal, in clear or encrypted under a key that the workers have"
        return Progress(state="refused", reason="proposal_malformed", message=words)
    try:
        if set(args[0]) <= set(Resume.model_fields):
            resume = Resume.model_validate(args[0])
            if not _OPERATION_ID.fullmatch(resume.operation_id):
                message = "not the id of an operation"
                return Progress(state="refused", reason="resume_malformed", field="operation_id", message=message)
            return resume
        return Proposal.model_validate(args[0])
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        return Progress(
            state="refused",
            reason="proposal_malformed",
            field=".".join(str(part) for part in first["loc"]),
            message=first["msg"],
        )


def _read_message(kind: MessageKind, args: Sequence[Any]) -> Message:
    """A message as sent, or junk that says what was wrong. Never raises: anybody can send anything."""
    if len(args) != 1:
        return Message(kind=MessageKind.JUNK, problem=f"{kind} with {len(args)} payloads instead of one")
    if not isinstance(args[0], dict):
        return Message(kind=MessageKind.JUNK, problem=f"{kind} without a JSON object")
    given = args[0]
    texts = [given.get("statement"), given.get("scheme"), given.get("proof"), given.get("sheet") or ""]
    if not all(isinstance(text, str) and len(text) <= LONGEST_TEXT for text in texts):
        return Message(kind=MessageKind.JUNK, problem=f"{kind} without statement, scheme and proof as texts")
    statement, scheme, proof, sheet = map(str, texts)
    return Message(kind=kind, statement=statement, scheme=scheme, proof=proof, sheet=sheet)


def _why_nothing(progress: Progress) -> str:
    """For a run that recorded nothing. Only words of ours: field and message may repeat what somebody sent."""
    return (
        f"### {progress.state or 'not recorded yet'}\n- rule: `{progress.reason}`"
        if progress.reason
        else "not recorded yet"
    )


def _answer(progress: Progress) -> Answer:
    state = progress.state or "unrecorded"
    return Answer(
        operation_id=progress.operation_id,
        state=state,
        reason=progress.refused_rule or progress.reason,
        field=progress.field,
        message=progress.message,
        until=progress.until,
        ended=progress.next is Next.DONE,
        advice=ADVICE.get(progress.reason) or ADVICE.get(state, ""),
        receipt=progress.receipt,
    )
