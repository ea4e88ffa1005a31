"""Servers once a session, a ledger with its own stand-in per test: nothing is shared that a test could change."""

import asyncio
import os
import signal
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import pytest_asyncio
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import Client
from temporalio.service import RPCError

from activities.messages import Answer, Proposal
from activities.order import Order, OrderAnswer
from activities.settings import Settings
from devstack.fault_proxy import FaultProxy
from devstack.people import Holder
from devstack.ports import LOOPBACK
from devstack.receivers import Receivers
from devstack.signing import Signer
from devstack.stack import WEBHOOK_SECRET, Servers, Stack
from devstack.stripe_standin.control import Journal
from devstack.stripe_standin.launch import StandInProcess
from devstack.stripe_standin.webhooks import deliver
from inbox.serve import receiving
from ledger.model import Operation
from ledger.statement import StatementType
from ledger.store import events, operations, statements
from ledger.store.database import Ledger, now
from ledger.trail import Event, EventKind
from worker import running
from workflows.client import ask_order, propose, sign, sign_order
from workflows.names import order_id, workflow_id

TESTS = Path(__file__).parent

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Started with a shell's `&`: children would inherit an ignored Ctrl-C, which some tests are about.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# On a busy machine one example may take a second: how long it took says nothing about the code.
hypothesis.settings.register_profile("without a deadline", deadline=None)
hypothesis.settings.load_profile("without a deadline")


# With pytest-xdist a file goes to one process, in this order: the long ones first, so that none is left for the end.
ORDER = ("recovery", "workflows", "e2e", "devstack", "providers", "store", "exploration", "unit")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow folders first; the tests of a file stay together and in order."""
    items.sort(key=lambda item: ORDER.index(item.path.relative_to(TESTS).parts[0]))


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """Postgres (without fsync: process kills are safe) and the Temporal dev server, real ones."""
    with Servers(tmp_path_factory.mktemp("servers"), durable=False, ui=False, say=lambda text: None) as running_servers:
        yield running_servers
    running_servers.postgres.remove()


@dataclass
class Rig:
    """One ledger with everything around it, and the words tests speak in."""

    stack: Stack
    client: Client
    ledger: Ledger
    keys: list[str] = field(default_factory=list)

    def payment(self, amount: int = 10_000, currency: str = "eur", **extra: Any) -> str:
        """A payment at the stand-in; returns its pi_… id."""
        return self.stack.stripe.control.create_payment(amount, currency, **extra).payment_intent

    def proposal(self, target: str, amount: int = 1_500, key: str = "", **extra: Any) -> Proposal:
        """A signed proposal of support-bot for mia. Up to 20.00 EUR the example policy waives the person."""
        fields: dict[str, Any] = {
            "tenant": "acme",
            "business_key": key or f"order-{uuid.uuid4().hex[:12]}",
            "action": "refund",
            "target": target,
            "arguments": {"amount_minor": amount, "currency": "eur"},
            "actor": "support-bot",
            "requested_by": "mia",
            "evidence": [{"kind": "ticket", "reference": "T-1"}],
            **extra,
        }
        bot = self.holder("support-bot")
        return sign(Proposal(**fields), bot.key, kid=bot.kid, iss=bot.name, aud=self.stack.household.audience)

    def ask_for(self, action: str, target: str, arguments: dict[str, Any], **extra: Any) -> Proposal:
        """A proposal of order-bot for mia, signed."""
        fields: dict[str, Any] = {
            "tenant": "acme",
            "business_key": f"{action}-{uuid.uuid4().hex[:12]}",
            "action": action,
            "target": target,
            "arguments": arguments,
            "actor": "order-bot",
            "requested_by": "mia",
            "evidence": [{"kind": "ticket", "reference": "T-1"}],
            **extra,
        }
        bot = self.holder("order-bot")
        return sign(Proposal(**fields), bot.key, kid=bot.kid, iss=bot.name, aud=self.stack.household.audience)

    def order(self, customer: str, **changes: Any) -> Order:
        """A signed order of three widgets and a survey, by order-bot for mia."""
        fields: dict[str, Any] = {
            "tenant": "acme",
            "order": f"O-{uuid.uuid4().hex[:10]}",
            "actor": "order-bot",
            "requested_by": "mia",
            "customer": customer,
            "currency": "eur",
            "items": [
                {"product": "WIDGET", "quantity": 3, "unit_price_minor": 1_250},
                {"product": "SURVEY", "quantity": 1, "unit_price_minor": 18_000},
            ],
            "total_minor": 21_750,
            "mail": {"reference": "<4711@customer.test>", "digest": "sha256:" + "ab" * 32},
            "confirm_to": f"buyer-{uuid.uuid4().hex[:8]}@customer.test",
            **changes,
        }
        bot = self.holder("order-bot")
        return sign_order(
            Order.model_validate(fields), bot.key, kid=bot.kid, iss=bot.name, aud=self.stack.household.audience
        )

    async def ask_order(self, order: Order) -> OrderAnswer:
        """Give the order, or ask how it went. If Temporal has no answer, say what its history does."""
        try:
            return await ask_order(self.client, order, task_queue=self.stack.task_queue)
        except RPCError as error:
            history = await self.client.get_workflow_handle(order_id(order.tenant, order.order)).fetch_history()
            wrong = [e.workflow_task_failed_event_attributes for e in history.events]
            told = [f"{a.cause} {a.failure.message} {a.failure.stack_trace}" for a in wrong if a.cause]
            raise AssertionError(f"{error.message}: {told}") from error

    async def approve(self, proposal_id: str, who: str = "alice") -> None:
        """A signed approval on the latest sheet, given to the operation's workflow."""
        operation = await self.operation(proposal_id)
        handle = self.client.get_workflow_handle(workflow_id(operation.tenant, operation.business_key))
        await handle.signal("decide", await self.signed(proposal_id, who, "approval"))
        await self.accepted(proposal_id, who)

    @property
    def world(self) -> Receivers:
        """The outside systems of this rig."""
        assert self.stack.receivers is not None
        return self.stack.receivers

    @property
    def stripe_url(self) -> str:
        """The stand-in behind its fault proxy, for workers that are to meet it there."""
        return f"http://{LOOPBACK}:{self.world.proxies['stripe'].port}"

    def holder(self, name: str) -> Holder:
        """Somebody's key: support-bot, alice, bob (approvers), olga, oscar (operators)."""
        return self.stack.household.holders[name]

    async def propose(self, proposal: Proposal) -> Answer:
        """Ask, or ask again."""
        return await propose(self.client, proposal, task_queue=self.stack.task_queue)

    def handle(self, proposal: Proposal) -> Any:
        """The workflow of a proposal."""
        return self.client.get_workflow_handle(workflow_id(proposal.tenant, proposal.business_key))

    async def reset(self, handle: Any) -> None:
        """Replay a workflow from its first task, as the Web UI's reset does; nothing happens before that task."""
        history = await handle.fetch_history()
        tasks = [e.event_id for e in history.events if e.HasField("workflow_task_completed_event_attributes")]
        if not tasks:
            return
        run = (await handle.describe()).run_id
        await self.client.workflow_service.reset_workflow_execution(
            ResetWorkflowExecutionRequest(
                namespace=self.client.namespace,
                workflow_execution=WorkflowExecution(workflow_id=handle.id, run_id=run),
                workflow_task_finish_event_id=tasks[0],
                reason="test",
                request_id=run,
            )
        )

    async def operation(self, operation_id: str) -> Operation:
        """The operation as the ledger has it now."""
        async with self.ledger.transaction() as conn:
            found = await operations.find(conn, uuid.UUID(operation_id))
        assert found is not None
        return found

    async def trail(self, operation_id: str) -> list[Event]:
        """Its trail."""
        async with self.ledger.transaction() as conn:
            return await events.read(conn, uuid.UUID(operation_id))

    async def signed(self, operation_id: str, who: str, typ: str, **claims: Any) -> dict[str, str]:
        """A statement as it crosses Temporal: on the latest sheet, or on the trail's head, valid for ten minutes."""
        operation = await self.operation(operation_id)
        async with self.ledger.transaction() as conn:
            signer = Signer(self.stack.household, await now(conn))
            sheet = await statements.latest_sheet(conn, operation.operation_id) or b""
        return signer.about(operation, who, StatementType(typ), sheet, **claims)

    async def decide(self, proposal: Proposal, envelope: dict[str, Any]) -> Answer:
        """Send a decision and hear what became of it."""
        answer: Answer = await self.handle(proposal).execute_update("decide", envelope, result_type=Answer)
        return answer

    async def refusals(self, operation_id: str) -> list[str]:
        """The rules by which messages about an operation were refused, in the order of its trail."""
        return [e.body["rule"] for e in await self.trail(operation_id) if e.kind == EventKind.STATEMENT_REFUSED]

    async def accepted(self, operation_id: str, who: str, seconds: float = 60.0) -> None:
        """Wait until a statement of this person stands in the trail; fail on a refusal."""
        deadline = asyncio.get_running_loop().time() + seconds
        while not any(
            e.kind == EventKind.STATEMENT_ACCEPTED and e.body["person"] == who for e in await self.trail(operation_id)
        ):
            refused = await self.refusals(operation_id)
            assert not refused and asyncio.get_running_loop().time() < deadline, (who, refused)
            await asyncio.sleep(0.1)

    async def settled(self, operation_id: str) -> None:
        """Wait until nothing is added to the trail any more: two equal readings half a second apart."""
        count = -1
        while (now_at := (await self.operation(operation_id)).event_count) != count:
            count = now_at
            await asyncio.sleep(0.5)

    async def until(self, operation_id: str, *states: str, seconds: float = 60.0) -> Operation:
        """Wait until the operation stands in one of these states. Asks often at first: most waits are short."""
        deadline, pause = asyncio.get_running_loop().time() + seconds, 0.02
        while True:
            operation = await self.operation(operation_id)
            if operation.state in states:
                return operation
            if asyncio.get_running_loop().time() > deadline:
                told = [f"{e.number} {e.kind} {e.source} {e.target} {e.body}" for e in await self.trail(operation_id)]
                raise AssertionError("\n".join([f"still {operation.state}, next {operation.next_step}", *told]))
            await asyncio.sleep(pause := min(pause * 1.5, 0.25))

    def effects(self, target: str) -> list[Any]:
        """Living refunds of a payment, by the stand-in's own journal."""
        return [e for e in self.journal(target).effects if e.voided is None]

    def posts(self, target: str) -> list[Any]:
        """Refund requests that reached the stand-in for a payment."""
        return [a for a in self.journal(target).arrivals if a.method == "POST" and a.path == "/v1/refunds"]

    def events(self, target: str) -> list[bytes]:
        """What the stand-in has to tell by webhook about a payment; whether it is delivered is for the test to say."""
        return self.stack.stripe.control.events(target)

    def journal(self, target: str) -> Journal:
        """The stand-in's journal of one payment."""
        return self.stack.stripe.control.journal(payment_intent=target)

    async def advance(self, seconds: float) -> None:
        """Move both clocks and wake every open operation."""
        await self.stack.advance(seconds, self.client)

    def settings(self, **extra: Any) -> Settings:
        """Settings of a worker on this rig."""
        given = {k.removeprefix("EFFECTS_").lower(): v for k, v in self.stack.environment().items() if "EFFECTS" in k}
        return Settings(**{**given, "backoff": 0.2, "take_events_every": 0.0, "audit_every": 0.0, **extra})

    @asynccontextmanager
    async def inbox(self, client: Client | None = None, **extra: Any) -> AsyncIterator["Door"]:
        """The inbox inside this process, on a port of its own."""
        async with receiving(self.settings(**extra), client or self.client) as address:
            yield Door(f"{address}/stripe", self)

    @asynccontextmanager
    async def worker(self, **extra: Any) -> AsyncIterator[None]:
        """A worker inside this process, for tests that kill nothing."""
        os.environ["TEMPORAL_ADDRESS"] = self.stack.servers.temporal.address
        async with running(self.settings(**extra)):
            yield


@dataclass
class Door:
    """The address for webhooks, and the words of whoever delivers them."""

    url: str
    rig: Rig

    async def deliver(self, *events: bytes, secret: str = WEBHOOK_SECRET, at: float | None = None) -> list[int]:
        """Deliver each in this order, and tell how each was answered."""
        return [(await asyncio.to_thread(deliver, self.url, e, secret, at=at)).status_code for e in events]

    async def rows(self) -> list[dict[str, Any]]:
        """What the inbox keeps, in the order in which it came."""
        async with self.rig.ledger.transaction() as conn:
            found = await conn.execute("select type, receipt, taken_at, woken from inbox_events order by number")
            return await found.fetchall()

    async def taken(self, seconds: float = 15.0) -> list[list[uuid.UUID]]:
        """Wait until nothing is left, and tell whom each event woke."""
        deadline = asyncio.get_running_loop().time() + seconds
        while any(row["taken_at"] is None for row in await self.rows()):
            assert asyncio.get_running_loop().time() < deadline, await self.rows()
            await asyncio.sleep(0.05)
        return [row["woken"] for row in await self.rows()]


@pytest.fixture(scope="session")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandInProcess]:
    """The Stripe stand-in; every rig begins with a new world in it."""
    with StandInProcess(tmp_path_factory.mktemp("stripe") / "stripe.sqlite") as running_stand_in:
        running_stand_in.control.wait_ready()
        yield running_stand_in


@pytest.fixture(scope="session")
def receivers(
    servers: Servers, stand_in: StandInProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Receivers]:
    """A real ERP, address book and mail server, each behind a fault proxy, as is the Stripe stand-in for who wants it."""
    root = tmp_path_factory.mktemp("receivers")
    with (
        Receivers(root, servers.postgres, say=lambda text: None) as running_receivers,
        FaultProxy(stand_in.port) as before_stripe,
    ):
        running_receivers.proxies["stripe"] = before_stripe
        yield running_receivers


@pytest_asyncio.fixture
async def rig(servers: Servers, stand_in: StandInProcess, tmp_path: Path) -> AsyncIterator[Rig]:
    """A fresh ledger and a new world in the stand-in; no worker runs yet."""
    async with _fresh(servers, stand_in, tmp_path, None) as fresh:
        yield fresh


@pytest_asyncio.fixture
async def desk(servers: Servers, stand_in: StandInProcess, receivers: Receivers, tmp_path: Path) -> AsyncIterator[Rig]:
    """A rig whose tenant is bound to the ERP, the address book and the mail server as well."""
    async with _fresh(servers, stand_in, tmp_path, receivers) as fresh:
        yield fresh
        for proxy in receivers.proxies.values():
            proxy.disarm()


@asynccontextmanager
async def _fresh(
    servers: Servers, stand_in: StandInProcess, tmp_path: Path, receivers: Receivers | None
) -> AsyncIterator[Rig]:
    if receivers is not None:
        receivers.refresh()  # an earlier test may have killed Postgres
    name = f"t{uuid.uuid4().hex[:12]}"
    stand_in.control.reset()
    with Stack(servers, tmp_path, name=name, stripe=stand_in, receivers=receivers, say=lambda text: None) as stack:
        await stack.prepare()
        ledger = Ledger(stack.owner_dsn, max_size=4)
        await ledger.open()
        try:
            yield Rig(stack, await stack.client(), ledger)
        finally:
            await ledger.close()
