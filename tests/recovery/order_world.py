"""Words for tests of the order job: give an order, follow its steps in the ledger, count at the receivers what came of it.

Run as a program it is the nursery of `brood`: it imports the worker once and forks it, as starting takes seconds each.
"""

import asyncio
import ctypes
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import UUID

from temporalio.client import Client, WorkflowHandle, WorkflowUpdateRPCTimeoutOrCancelledError

from activities.order import Order, OrderAnswer, Step, StepView, business_key
from activities.ports import Ports, Secrets
from devstack.child import Child
from devstack.signing import Signer
from devstack.stack import clean
from devstack.tryton.world import Customer
from ledger.config import Document
from ledger.model import Operation
from ledger.statement import StatementType
from ledger.store import attempts, configuration, views
from ledger.store.database import Ledger, now
from providers.registry import default_registry
from tests.conftest import Rig
from worker import create_worker, waker
from workflows.client import ask_order, sign_order
from workflows.names import order_id, workflow_id

ROOT = Path(__file__).parents[2]
SURVEY = {"product": "SURVEY", "quantity": 1, "unit_price_minor": 18_000}
FINAL_DOT = b"\r\n.\r\n"
CREATE = b'"method":"model.account.invoice.create"'
WRITE = b'"method":"model.party.party.write"'


@dataclass(frozen=True)
class Effects:
    """What the receivers have for one order, whichever of our operations made it: their own records, read past the proxies."""

    invoices: int
    notes: int
    mails: int


ONE_OF_EACH = Effects(1, 1, 1)
NOTHING = Effects(0, 0, 0)


@dataclass(frozen=True)
class Job:
    """One order of a fresh customer, on a task queue; nobody else writes about this customer or to this address."""

    desk: Rig
    customer: Customer
    order: Order
    queue: str

    async def ask(self, client: Client | None = None) -> OrderAnswer:
        """Give the order, or ask how it went. Without an answer, as before a worker polls, asking again is right."""
        while True:
            with suppress(WorkflowUpdateRPCTimeoutOrCancelledError):
                return await ask_order(client or self.desk.client, self.order, task_queue=self.queue)

    @property
    def parent(self) -> WorkflowHandle[Any, Any]:
        """The order's own workflow, its latest run."""
        return self.desk.client.get_workflow_handle(order_id(self.order.tenant, self.order.order))

    def step(self, step: Step) -> WorkflowHandle[Any, Any]:
        """The workflow of one step, its latest run."""
        return self.desk.client.get_workflow_handle(workflow_id(self.order.tenant, business_key(self.order, step)))

    async def operation(self, step: Step) -> Operation | None:
        """The step's operation as the ledger has it; None while nothing is recorded."""
        async with self.desk.ledger.transaction() as conn:
            return await views.by_key(conn, self.order.tenant, business_key(self.order, step))

    async def id_of(self, step: Step) -> str:
        """The id of the step's operation, which must be recorded."""
        operation = await self.operation(step)
        assert operation is not None
        return str(operation.operation_id)

    async def until(self, step: Step, *states: str, seconds: float = 60.0) -> Operation:
        """Wait until the step stands in one of these states of the ledger."""
        found: Operation | None = None

        async def there() -> bool:
            nonlocal found
            found = await self.operation(step)
            return found is not None and found.state in states

        await until(there, f"{step} of {self.order.order} to be {' or '.join(states)}", seconds)
        assert found is not None
        return found

    async def until_ended(self, seconds: float = 60.0) -> OrderAnswer:
        """Wait until nothing more happens by itself. Nobody asks meanwhile."""
        named = order_id(self.order.tenant, self.order.order)
        ended = self.desk.client.get_workflow_handle(named, result_type=OrderAnswer)
        told: OrderAnswer = await asyncio.wait_for(ended.result(), seconds)
        return told

    async def approve(self, step: Step) -> str:
        """Wait until the step waits for people, and approve it as alice; returns the operation's id."""
        operation = await self.until(step, "awaiting_approval")
        await self.desk.approve(str(operation.operation_id))
        return str(operation.operation_id)

    async def effects(self) -> Effects:
        """Every invoice of this customer in whatever state, every note on it, every mail to its address."""
        return await asyncio.to_thread(self._effects)

    def _effects(self) -> Effects:
        world = self.desk.world
        of_customer = [["party", "=", self.customer.id], ["type", "=", "out"]]
        invoices = world.erp.admin.find("account.invoice", of_customer, ["state"])
        notes = [text for text in world.erp.customer(self.customer.id).contacts if self.order.order in text]
        return Effects(len(invoices), len(notes), len(world.box.to(self.order.confirm_to)))

    async def revised(self, *steps: Step) -> "Job":
        """The same order with a further revision of these steps, signed now."""
        counts = {step.value: self.order.revisions.get(step, 0) + 1 for step in steps}
        order = self.order.model_copy(update={"revisions": self.order.revisions | counts, "tokens": {}})
        return replace(self, order=await signed(self.desk, order))


def view(answer: OrderAnswer, step: Step) -> StepView:
    """What the answer says of a step."""
    return next(told for told in answer.steps if told.step is step)


async def until(true: Callable[[], Awaitable[bool]], words: str, seconds: float = 60.0, pause: float = 0.25) -> None:
    """Wait for a condition that must come true."""
    deadline = asyncio.get_running_loop().time() + seconds
    while not await true():
        assert asyncio.get_running_loop().time() < deadline, f"still waiting for {words}"
        await asyncio.sleep(pause)


async def signed(desk: Rig, order: Order, by: str = "order-bot") -> Order:
    """The order with a token for each step, by the ledger's time, which tests move."""
    async with desk.ledger.transaction() as conn:
        at = int((await now(conn)).timestamp())
    bot = desk.holder(by)
    return sign_order(order, bot.key, kid=bot.kid, iss=bot.name, aud=desk.stack.household.audience, at=at)


async def a_job(desk: Rig, queue: str = "", **changes: Any) -> Job:
    """A fresh customer with a signed order that nobody has given yet."""
    customer = await asyncio.to_thread(desk.world.erp.add_customer)
    order = await signed(desk, desk.order(customer.code, **{"items": [SURVEY], "total_minor": 18_000, **changes}))
    return Job(desk, customer, order, queue or desk.stack.task_queue)


async def ask_people_for_every_step(desk: Rig) -> None:
    """A policy without waivers: each step waits for a person, so a test says when it becomes due."""
    document = desk.stack.household.document
    rules = [rule.model_dump() | {"waive_after": ""} for rule in document.rules]
    strict = Document.model_validate({**document.model_dump(), "rules": rules}).in_order()
    async with desk.ledger.transaction() as conn:
        await configuration.apply(conn, strict, "ops")


async def hold(desk: Rig, scope: str) -> None:
    """Olga stops sending in a scope."""
    await _say(desk, scope, "olga", StatementType.HOLD)


async def release(desk: Rig, scope: str) -> None:
    """Two operators let it go on."""
    for who in ("olga", "oscar"):
        await _say(desk, scope, who, StatementType.RELEASE)


async def _say(desk: Rig, scope: str, who: str, typ: StatementType) -> None:
    async with desk.ledger.transaction() as conn:
        said = Signer(desk.stack.household, await now(conn)).on_scope(scope, who, typ, "a test")
    named = f"{typ}-{who}-{desk.stack.name}-{scope}"
    told = await desk.client.execute_workflow("HoldWorkflow", said, id=named, task_queue=desk.stack.task_queue)
    assert told["accepted"], told


async def certify_nothing_happened(desk: Rig, operation_id: str) -> None:
    """Two operators sign, each on all the evidence there is, that the operation had no effect."""
    said = {"decision": "did_not_happen", "evidence": "the receivers' logs, read by two"}
    operation = await desk.operation(operation_id)
    handle = desk.client.get_workflow_handle(workflow_id(operation.tenant, operation.business_key))
    for who in ("olga", "oscar"):
        await desk.settled(operation_id)
        await handle.signal("resolve", await desk.signed(operation_id, who, "resolution", **said))
        await desk.accepted(operation_id, who)
    await desk.until(operation_id, "rejected")


@dataclass(frozen=True)
class Forked:
    """A worker process of its own, forked by the nursery; `log` is what it says."""

    pid: int
    log: Path

    @property
    def alive(self) -> bool:
        """Whether it runs; the nursery leaves no zombies."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        return True


async def brood(desk: Rig, folder: Path, settings: Sequence[dict[str, str]]) -> list[Forked]:
    """One worker process for each of these settings, all with the same start; they die with this process, as all children."""
    logs = [folder / f"worker-{number}.log" for number in range(len(settings))]
    order = [
        {"env": {**clean(os.environ), **desk.stack.environment(), **extra}, "log": str(log)}
        for extra, log in zip(settings, logs, strict=True)
    ]
    (folder / "brood.json").write_text(json.dumps(order))
    nursery = Child.spawn(
        [sys.executable, __file__, str(folder)],
        name="nursery",
        log=folder / "nursery.log",
        env={**clean, "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
    )
    desk.stack.workers.append(nursery)  # stopped with the stack

    async def born() -> bool:
        return (folder / "pids.json").exists()

    await until(born, f"the nursery to fork\n{nursery.log_tail(20)}")
    pids = json.loads((folder / "pids.json").read_text())
    return [Forked(pid, log) for pid, log in zip(pids, logs, strict=True)]


def nurse(folder: Path) -> None:
    """The nursery: fork a worker for each setting, and stay as their parent, with whom they die."""
    import worker

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    nursery, pids = os.getpid(), []
    for wanted in json.loads((folder / "brood.json").read_text()):
        if pid := os.fork():
            pids.append(pid)
            continue
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != nursery:
            os._exit(1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        with open(wanted["log"], "ab") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        os.environ.clear()
        os.environ.update(wanted["env"])
        sys.exit(worker.main())
    (folder / "pids.new").write_text(json.dumps(pids))
    (folder / "pids.new").rename(folder / "pids.json")
    signal.pause()


@asynccontextmanager
async def one_worker_for(desk: Rig, queues: Sequence[str], **extra: Any) -> AsyncIterator[None]:
    """One worker inside this process that polls all of these queues."""
    settings = desk.settings(**extra)
    ledger = Ledger(settings.ledger_dsn, max_size=20)
    await ledger.open()
    ports = Ports(
        ledger=ledger,
        registry=default_registry(settings.stripe_base_url),
        secrets=Secrets(settings.secrets_dir),
        worker="the second worker",
        timing=settings.timing(),
        wake=waker(desk.client),
    )
    try:
        async with AsyncExitStack() as polling:
            for queue in queues:
                of_queue = settings.model_copy(update={"task_queue": queue})
                await polling.enter_async_context(create_worker(desk.client, ports, of_queue))
            yield
    finally:
        await ledger.close()


async def polls(worker: Forked, seconds: float = 60.0) -> None:
    """Wait until a worker has started."""

    async def said() -> bool:
        return "worker polls" in worker.log.read_text()

    await until(said, "a worker to poll", seconds, pause=0.1)


async def recorded(desk: Rig) -> int:
    """How many operations the ledger has."""
    async with desk.ledger.transaction() as conn:
        row = await (await conn.execute("select count(*) as n from operations")).fetchone()
    assert row is not None
    return int(row["n"])


async def sightings(desk: Rig, operation_id: str) -> list[bool]:
    """Of every look at the provider that was recorded, whether it was complete."""
    async with desk.ledger.transaction() as conn:
        return [seen.complete for seen in await attempts.read_sightings(conn, UUID(operation_id))]


if __name__ == "__main__":
    nurse(Path(sys.argv[1]))
