"""The stage of the demo: a running stack, its clocks and workers, and the words in which scenarios speak."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from temporalio.client import Client, WorkflowHandle

from activities.messages import Answer, HoldAnswer, Proposal
from devstack.child import Child
from devstack.demo.promises import Promise, Row, count, differences
from devstack.demo.show import Show
from devstack.signing import AGENT, Signer
from devstack.stack import Stack
from devstack.stripe_standin.control import Journal
from ledger.model import Operation, Standing
from ledger.statement import StatementType
from ledger.store import attempts, events, operations, statements
from ledger.store.database import Ledger, now
from ledger.trail import Event, EventKind, sentence
from workflows.client import propose
from workflows.names import workflow_id

HOUR = 3600.0
NIGHT = 25 * HOUR
PATIENCE = 60.0

# Bounds of the send guard, shorter than the contract's (10 s and 30 s) so that nobody has to watch a lost answer being
# waited for, and a first pause of a third of a second. Everything else is as in production.
SEND_WITHIN, CALL_DEADLINE, BACKOFF = 5.0, 4.0, 0.3
WORKER_SETTINGS = {
    "EFFECTS_SEND_WITHIN": str(SEND_WITHIN),
    "EFFECTS_CALL_DEADLINE": str(CALL_DEADLINE),
    "EFFECTS_BACKOFF": str(BACKOFF),
}
SMALL, LARGE, PAID = 12_00, 150_00, 200_00  # eur; up to 20.00 the example policy waives the person


class NotSeen(Exception):
    """What a scenario waited for did not come in time."""


@dataclass
class Scene:
    """One row of the table while it is played."""

    number: int
    name: str
    promise: Promise
    target: str
    proposal: Proposal | None = None
    operation_id: str = ""
    ended: str = ""  # told by the scenario itself where no operation is behind it
    signers: set[str] = field(default_factory=set)  # who signed what does not stand in the operation's own trail
    objections: list[str] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    def expect(self, holds: bool, otherwise: str) -> None:
        """Note an objection unless it holds; the scenario goes on, and the table says it."""
        if not holds:
            self.objections.append(otherwise)


class Stage:
    """Everything that scenarios share."""

    def __init__(self, stack: Stack, client: Client, ledger: Ledger, show: Show) -> None:
        self.stack = stack
        self.client = client
        self.ledger = ledger
        self.show = show
        self._rows: dict[int, tuple[Row, list[str]]] = {}
        self.begun = 0  # scenarios
        self.trails: list[str] = []
        self.flag = stack.root / "crash-here"

    # Scenes.

    @asynccontextmanager
    async def play(self, name: str, promise: Promise) -> AsyncIterator[Scene]:
        """A new row, on a payment of its own of 200.00 EUR. Whatever breaks the scenario is said in its row."""
        self.begun += 1
        payment = self.stack.stripe.control.create_payment(PAID, "eur")
        scene = Scene(self.begun, name, promise, payment.payment_intent)
        try:
            yield scene
        except Exception as error:
            scene.objections.append(f"{type(error).__name__}: {error}")
        await self._close(scene)

    @property
    def rows(self) -> list[tuple[Row, list[str]]]:
        """Every row so far with what is not as promised, in the order in which the scenarios began."""
        return [self._rows[number] for number in sorted(self._rows)]

    async def _close(self, scene: Scene) -> None:
        people = set(scene.signers)
        ended = scene.ended
        if scene.operation_id:
            operation, trail = await self.operation(scene), await self.trail(scene)
            people |= {str(e.body["person"]) for e in trail if e.kind is EventKind.STATEMENT_ACCEPTED}
            ended = told(operation)
        seconds = time.monotonic() - scene.began
        counts = count(self.journal(scene), self._cut_off(scene))
        row = Row(scene.name, ended, counts, tuple(sorted(people)), seconds, tuple(scene.objections))
        wrong = differences(row, scene.promise)
        self._rows[scene.number] = (row, wrong)
        if wrong:
            self.trails.append(await self._evidence(scene))

    def _cut_off(self, scene: Scene) -> set[str]:
        """Kinds of faults that were ordered to act on this payment before Stripe reads the request."""
        ordered = self.stack.stripe.control.faults()
        early = [r for r in ordered if r["when"] == "before" and r["match"]["payment_intent"] == scene.target]
        return {str(rule["kind"]) for rule in early}

    async def _evidence(self, scene: Scene) -> str:
        journal = self.journal(scene)
        lines = [f"--- {scene.name}: the stand-in's journal of {scene.target}"]
        for a in journal.arrivals:
            replay = " replayed" if a.replayed else ""
            lines.append(f"    {a.method} {a.path} key {a.idempotency_key} {a.faults} {a.ended} {a.answer}{replay}")
        lines += [f"    effect {e.refund} {e.amount} {e.currency} {e.origin} {e.voided or ''}" for e in journal.effects]
        if scene.operation_id:
            lines.append(f"    trail of {scene.operation_id}")
            lines += [f"    {e.number} {e.at:%d %H:%M:%S} {sentence(e)}" for e in await self.trail(scene)]
        return "\n".join(lines)

    # The agent and the people.

    async def signer(self) -> Signer:
        """Signs at the ledger's time."""
        async with self.ledger.transaction() as conn:
            return Signer(self.stack.household, await now(conn))

    async def propose(self, scene: Scene, amount_minor: int = SMALL, requested_by: str = "mia") -> Answer:
        """Let the agent ask for the refund of this scene; asking again is the poll."""
        if scene.proposal is None:
            proposal = Proposal(
                tenant="acme",
                business_key=f"demo/{uuid.uuid4().hex[:12]}",
                action="refund",
                target=scene.target,
                arguments={"amount_minor": amount_minor, "currency": "eur"},
                actor=AGENT,
                requested_by=requested_by,
                evidence=[{"kind": "ticket", "reference": "T-4711"}],
            )
            scene.proposal = (await self.signer()).proposal(proposal)
        deadline = time.monotonic() + PATIENCE
        while True:
            answer = await propose(self.client, scene.proposal, task_queue=self.stack.task_queue)
            if answer.state != "unrecorded" or time.monotonic() > deadline:
                break
        if not answer.operation_id:
            raise NotSeen(f"not recorded: {answer.state} {answer.reason} {answer.field} {answer.message}")
        scene.operation_id = answer.operation_id
        return answer

    async def statement(self, scene: Scene, who: str, typ: StatementType, **claims: Any) -> dict[str, str]:
        """What somebody signs about the operation as it stands now."""
        return (await self.signer()).about(await self.operation(scene), who, typ, await self.sheet(scene), **claims)

    async def resolve(self, scene: Scene, who: str, decision: str, evidence: str) -> None:
        """An operator signs how it ended; returns when the trail has it, accepted or refused."""
        seen = len(await self.trail(scene))
        signed = await self.statement(scene, who, StatementType.RESOLUTION, decision=decision, evidence=evidence)
        await self.workflow(scene).signal("resolve", signed)
        kinds = (EventKind.STATEMENT_ACCEPTED, EventKind.STATEMENT_REFUSED)

        async def spoken() -> bool:
            return any(e.kind in kinds for e in (await self.trail(scene))[seen:])

        await self.until(spoken, f"the word of {who} in the trail")

    async def hold(self, scope: str, who: str, typ: StatementType, reason: str) -> HoldAnswer:
        """Let an operator hold or release a scope."""
        signed = (await self.signer()).on_scope(scope, who, typ, reason)
        answer: HoldAnswer = await self.client.execute_workflow(
            "HoldWorkflow",
            signed,
            id=f"demo-hold/{uuid.uuid4().hex}",
            task_queue=self.stack.task_queue,
            result_type=HoldAnswer,
        )
        return answer

    def workflow(self, scene: Scene) -> WorkflowHandle[Any, Any]:
        """The operation's workflow."""
        assert scene.proposal is not None
        return self.client.get_workflow_handle(workflow_id(scene.proposal.tenant, scene.proposal.business_key))

    # What is there.

    def journal(self, scene: Scene) -> Journal:
        """The stand-in's journal of this scene's payment."""
        return self.stack.stripe.control.journal(payment_intent=scene.target)

    def reached(self, scene: Scene) -> int:
        """Refund requests that reached Stripe so far."""
        return count(self.journal(scene), self._cut_off(scene)).reached

    async def operation(self, scene: Scene) -> Operation:
        """The operation as the ledger has it now."""
        async with self.ledger.transaction() as conn:
            found = await operations.find(conn, uuid.UUID(scene.operation_id))
        assert found is not None
        return found

    async def trail(self, scene: Scene) -> list[Event]:
        """Its trail."""
        async with self.ledger.transaction() as conn:
            return await events.read(conn, uuid.UUID(scene.operation_id))

    async def sheet(self, scene: Scene) -> bytes:
        """The latest sheet that approvers of this operation sign on; nothing if nobody is asked."""
        async with self.ledger.transaction() as conn:
            return await statements.latest_sheet(conn, uuid.UUID(scene.operation_id)) or b""

    async def evidence_lines(self, scene: Scene) -> list[str]:
        """What a person in review sees: every attempt and every look."""
        async with self.ledger.transaction() as conn:
            sent = await attempts.read_attempts(conn, uuid.UUID(scene.operation_id))
            seen = await attempts.read_sightings(conn, uuid.UUID(scene.operation_id))
        lines = [
            f"attempt {a.number}, claimed {a.claimed_at:%d %H:%M:%S}: {a.outcome}"
            f"{f' ({a.hint})' if a.hint else ''}, HTTP {a.detail.get('http_status', 'none')}"
            for a in sent
        ]
        return lines + [
            f"looked {s.began_at:%d %H:%M:%S}, {'to the end of the list' if s.complete else 'incompletely'}: "
            f"{len(s.effects)} refund(s) on the payment that could be ours"
            for s in seen
        ]

    async def until(self, true_now: Callable[[], Awaitable[bool]], what: str, seconds: float = PATIENCE) -> None:
        """Wait until it is so; raises NotSeen in the end."""
        deadline = time.monotonic() + seconds
        while not await true_now():
            if time.monotonic() > deadline:
                raise NotSeen(f"not within {seconds:.0f} s: {what}")
            await asyncio.sleep(0.05)

    async def until_state(self, scene: Scene, *states: str, seconds: float = PATIENCE) -> Operation:
        """Wait until the operation stands in one of these states."""

        async def there() -> bool:
            return (await self.operation(scene)).state in states

        with self.show.waiting(f"{scene.name}: waiting for {' or '.join(states)}"):
            await self.until(there, f"{scene.name} is {' or '.join(states)}", seconds)
        return await self.operation(scene)

    # Clocks and workers.

    async def sleep_a_night(self) -> None:
        """Move both clocks by 25 hours and wake what still runs."""
        await self.stack.advance(NIGHT, self.client)

    def start_worker(self, crash: str = "", **settings: str) -> Child:
        """One more worker process; `crash` is NAME:kill or NAME:stop, which fires once after `arm`."""
        seam = {"EFFECTS_SEAM": f"{crash}:{self.flag}"} if crash else {}
        return self.stack.worker(grace_seconds=5.0, **WORKER_SETTINGS, **seam, **settings)

    async def until_dead(self, worker: Child) -> None:
        """Wait until this worker has ended."""

        async def dead() -> bool:
            return not worker.alive

        await self.until(dead, f"{worker.name} has ended")

    @property
    def worker(self) -> Child:
        """The worker that was started last."""
        return self.stack.workers[-1]

    def arm(self) -> None:
        """The next dispatch that passes the crash point is the last of its worker."""
        self.flag.touch()


def told(operation: Operation) -> str:
    """How an operation stands, with the standing of its receipt unless it is good."""
    standing = operation.standing
    return operation.state.value + (f", {standing.value}" if standing not in (None, Standing.GOOD) else "")


@asynccontextmanager
async def open_stage(stack: Stack, show: Show) -> AsyncIterator[Stage]:
    """Schema, configuration and connections."""
    await stack.prepare()
    async with stack.owner() as ledger:
        yield Stage(stack, await stack.client(), ledger, show)
