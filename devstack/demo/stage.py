"""The stage of the demo: a running stack, its clocks and workers, and the words in which scenarios speak."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from temporalio.client import Client, WorkflowHandle

from activities.messages import Answer, HoldAnswer, Proposal
from devstack.child import Child
from devstack.demo.promises import Counts, Number, Promise, Row, differences
from devstack.demo.records import Payment, Records
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

S = TypeVar("S", bound="Stage")


class NotSeen(Exception):
    """What a scenario waited for did not come in time."""


@dataclass
class Scene:
    """One row of the table while it is played."""

    number: int
    name: str
    promise: Promise
    records: Records | None = None
    target: str = ""
    proposal: Proposal | None = None
    operation_id: str = ""
    others: list[str] = field(default_factory=list)  # further operations that belong to the row
    ended: str = ""  # told by the scenario itself where it is not one operation that says it
    signers: set[str] = field(default_factory=set)  # who signed what does not stand in the operation's own trail
    objections: list[str] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    def expect(self, holds: bool, otherwise: str) -> None:
        """Note an objection unless it holds; the scenario goes on, and the table says it."""
        if not holds:
            self.objections.append(otherwise)


class Stage:
    """Everything that scenarios share."""

    settings: Mapping[str, str] = WORKER_SETTINGS
    """Of every worker."""

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
        """A new row, on a payment of its own of 200.00 EUR."""
        control = self.stack.stripe.control
        payment = Payment(control, control.create_payment(PAID, "eur").payment_intent)
        async with self.scene(name, promise) as scene:
            scene.target, scene.records = payment.target, payment
            yield scene

    @asynccontextmanager
    async def scene(self, name: str, promise: Promise) -> AsyncIterator[Scene]:
        """A new row, judged by its `records`, which the scenario sets. Whatever breaks the scenario is said in its row."""
        self.begun += 1
        scene = Scene(self.begun, name, promise)
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
        for operation_id in self._operations(scene):
            trail = await self.trail_of(operation_id)
            people |= {str(e.body["person"]) for e in trail if e.kind is EventKind.STATEMENT_ACCEPTED}
        operation = await self.find(scene.operation_id) if scene.operation_id else None
        ended = scene.ended or ("" if operation is None else told(operation))
        seconds = time.monotonic() - scene.began
        try:
            counts = await asyncio.to_thread(_records_of(scene).counts)
        except Exception as error:
            counts = Counts(0, 0, 0)
            scene.objections.append(f"its records cannot be read: {type(error).__name__}: {error}")
        row = Row(scene.name, ended, counts, tuple(sorted(people)), seconds, tuple(scene.objections))
        wrong = differences(row, scene.promise)
        self._rows[scene.number] = (row, wrong)
        if wrong:
            self.trails.append(await self._evidence(scene))

    async def _evidence(self, scene: Scene) -> str:
        lines = [f"--- {scene.name}"]
        with suppress(Exception):  # the row says already that they cannot be read
            lines += await asyncio.to_thread(_records_of(scene).lines)
        for operation_id in self._operations(scene):
            lines.append(f"    trail of {operation_id}")
            lines += [f"    {e.number} {e.at:%d %H:%M:%S} {sentence(e)}" for e in await self.trail_of(operation_id)]
        return "\n".join(lines)

    @staticmethod
    def _operations(scene: Scene) -> list[str]:
        return [operation_id for operation_id in (scene.operation_id, *scene.others) if operation_id]

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
        return await self.ask(scene)

    async def ask(self, scene: Scene) -> Answer:
        """Give this scene's signed proposal, or ask how it went."""
        assert scene.proposal is not None
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

    def reached(self, scene: Scene) -> Number:
        """Requests that reached the receiver so far."""
        return _records_of(scene).counts().reached

    async def operation(self, scene: Scene) -> Operation:
        """The operation as the ledger has it now."""
        found = await self.find(scene.operation_id)
        assert found is not None
        return found

    async def find(self, operation_id: str) -> Operation | None:
        """Any operation, by id; None while nothing is recorded."""
        async with self.ledger.transaction() as conn:
            return await operations.find(conn, uuid.UUID(operation_id))

    async def trail(self, scene: Scene) -> list[Event]:
        """Its trail."""
        return await self.trail_of(scene.operation_id)

    async def trail_of(self, operation_id: str) -> list[Event]:
        """The trail of any operation."""
        async with self.ledger.transaction() as conn:
            return await events.read(conn, uuid.UUID(operation_id))

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
        return self.stack.worker(grace_seconds=5.0, **{**self.settings, **seam, **settings})

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


def _records_of(scene: Scene) -> Records:
    if scene.records is None:
        raise NotSeen("nothing was begun")
    return scene.records


def told(operation: Operation) -> str:
    """How an operation stands, with the standing of its receipt unless it is good."""
    standing = operation.standing
    return operation.state.value + (f", {standing.value}" if standing not in (None, Standing.GOOD) else "")


@asynccontextmanager
async def open_stage(kind: type[S], stack: Stack, show: Show) -> AsyncIterator[S]:
    """Schema, configuration and connections, and a stage of this kind on them."""
    await stack.prepare()
    async with stack.owner() as ledger:
        yield kind(stack, await stack.client(), ledger, show)
