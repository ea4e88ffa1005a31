"""One operation of a soak: what is asked for, what goes wrong on its line, what people and strangers do with it.

All of that is drawn from the seed and the operation's number, so that a seed plays the same operations again. Only what
meets what at which moment is left to the machine.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx
import psycopg
from temporalio.client import WorkflowUpdateFailedError, WorkflowUpdateRPCTimeoutOrCancelledError
from temporalio.service import RPCError

from commands.exits import Silent, Unsettled
from commands.temporal import Temporal
from devstack.child import DevstackError
from devstack.faults import Fault, HoldRequest
from devstack.stripe_standin.control import ControlRefused
from ledger.errors import LedgerError
from ledger.model import Operation
from ledger.store.database import now
from tests.conftest import Rig
from tests.recovery.test_receivers_faults import Aim, Job, a_job, arm, aside
from tests.recovery.wire_cases import BLIND, CASES, KEYED, LOOKED_FOR, REPEATED, Case
from workflows.client import sign

ALL = (*KEYED, *REPEATED, *LOOKED_FOR, *BLIND)
PRESETS = ("stored-500-executed", "stored-500-no-effect", "stored-500-roll-forward", "in-flight-409", "lock-timeout",
           "rate-limited", "wrong-amount", "hidden-lookup", "incomplete-lookup")  # fmt: skip
# What servers that are being killed may do to a call of ours: it is tried again.
PASSING = (
    psycopg.Error, httpx.HTTPError, LedgerError, RPCError, WorkflowUpdateFailedError, ControlRefused, DevstackError,
    WorkflowUpdateRPCTimeoutOrCancelledError, Silent, Unsettled, OSError, TimeoutError, AssertionError,
)  # fmt: skip
PROPOSALS_AT_ONCE = 4
T = TypeVar("T")


@dataclass(frozen=True)
class Plan:
    """What the seed has in store for one operation."""

    action: str
    case: Case | None
    preset: str
    people: str
    meddling: str
    after_seconds: float
    settles: bool  # whether people settle it, should it come to review


def plan(seed: int, number: int) -> Plan:
    """Of the operation of this number."""
    drawn = random.Random(f"{seed}:{number}")
    action = ALL[number % len(ALL)]
    fitting = [case for case in CASES if action in case.by]
    case = drawn.choice(fitting) if drawn.random() < 0.7 else None
    preset = drawn.choice(PRESETS) if action in KEYED and drawn.random() < 0.5 else ""
    return Plan(
        action,
        case,
        preset,
        drawn.choices(("approve", "decline", "withdraw", "nobody"), (85, 5, 5, 5))[0],
        drawn.choices(("", "reset", "terminate", "cancel", "ask again", "look"), (40, 15, 15, 5, 15, 10))[0],
        drawn.uniform(0.0, 3.0),
        drawn.random() < 0.8,
    )


@dataclass
class Played:
    """An operation that is being played, or was."""

    number: int
    plan: Plan
    job: Job | None = None
    armed: list[Fault] = field(default_factory=list)

    @property
    def name(self) -> str:
        """For the report."""
        fault = self.plan.case.name if self.plan.case else "no fault"
        return " / ".join(
            filter(None, (f"{self.number} {self.plan.action}", fault, self.plan.preset, self.plan.meddling))
        )


async def persist(work: Callable[[], Awaitable[T]], seconds: float = 60.0) -> T:
    """Do it until it is done: whatever it needs may just be dead."""
    deadline = asyncio.get_running_loop().time() + seconds
    while True:
        try:
            async with asyncio.timeout(20):
                return await work()
        except PASSING:
            if asyncio.get_running_loop().time() > deadline:
                raise
            await asyncio.sleep(0.3)


class Player:
    """Plays operations on a desk."""

    def __init__(self, desk: Rig, aim: Aim) -> None:
        self._desk, self._aim = desk, aim
        # A proposal's token is checked, the target read, and then it is recorded: hours that pass in between are not of
        # this world. A jump waits for the proposals that are being made, and they for it.
        self.no_jump = asyncio.Semaphore(PROPOSALS_AT_ONCE)
        address = desk.stack.servers.temporal.address
        self.temporal = Temporal(desk.client, address, desk.stack.task_queue)

    async def play(self, one: Played) -> None:
        """Ask, spoil the line, let people and meddlers do what the plan says."""
        desk = self._desk
        job = one.job = await persist(lambda: aside(a_job, desk, one.plan.action))
        if one.plan.preset:
            target = job.proposal.target
            await persist(lambda: aside(desk.stack.stripe.control.fault, one.plan.preset, payment_intent=target))
        await persist(lambda: self._propose(job))
        if one.plan.case is not None:
            one.armed.append(arm(self._aim, job, one.plan.case.fault(job)))
        meddling = asyncio.create_task(self._meddle(one, job))
        await persist(lambda: self._people(one, job))
        await meddling

    async def operation(self, job: Job) -> Operation:
        """As the ledger has it."""
        return await persist(lambda: self._desk.operation(job.operation_id))

    async def signal(self, job: Job, name: str, payload: dict[str, Any] | None = None) -> None:
        """To its workflow, which is started again if it is gone."""
        await persist(lambda: self._signal(job, name, payload))

    async def _signal(self, job: Job, name: str, payload: dict[str, Any] | None) -> None:
        await self.temporal.signal(await self._desk.operation(job.operation_id), name, payload)

    async def _propose(self, job: Job) -> None:
        async with self.no_jump:
            await self._signed_and_proposed(job)

    async def _signed_and_proposed(self, job: Job) -> None:
        desk = self._desk
        async with desk.ledger.transaction() as conn:
            at = int((await now(conn)).timestamp())
        bot = desk.holder(job.proposal.actor)
        aud = desk.stack.household.audience
        job.proposal = sign(job.proposal, bot.key, kid=bot.kid, iss=bot.name, aud=aud, at=at)
        answer = await desk.propose(job.proposal)
        job.operation_id = answer.operation_id or job.operation_id
        assert job.operation_id, answer

    async def _people(self, one: Played, job: Job) -> None:
        """What they decide, again until it counts: signatures on a sheet may be lost with a run."""
        for _ in range(60):
            operation = await self.operation(job)
            if operation.state == "awaiting_approval":
                match one.plan.people:
                    case "approve" | "decline":
                        typ = "approval" if one.plan.people == "approve" else "decline"
                        await self.signal(job, "decide", await self._desk.signed(job.operation_id, "alice", typ))
                    case "withdraw":
                        await self._desk.handle(job.proposal).cancel()
                    case _:
                        return
            elif operation.state != "proposed":
                return
            await asyncio.sleep(0.5)

    async def _meddle(self, one: Played, job: Job) -> None:
        await asyncio.sleep(one.plan.after_seconds)
        handle = self._desk.handle(job.proposal)
        try:
            match one.plan.meddling:
                case "terminate":
                    await handle.terminate("soak")
                    await asyncio.sleep(one.plan.after_seconds)
                    await self.signal(job, "look_now")
                case "cancel":
                    await handle.cancel()
                case "reset":
                    await self._desk.reset(handle)
                case "ask again":
                    await persist(lambda: self._propose(job))
                case "look":
                    await self.signal(job, "look_now")
        except PASSING:
            pass  # it has ended, or Temporal is dead: nobody meddles


def held_requests(every: list[Played]) -> list[HoldRequest]:
    """Requests that the network may still deliver."""
    return [fault for one in every for fault in one.armed if isinstance(fault, HoldRequest) and fault.fired]
