"""What the tests of adapters share: operations, a raw server that records bytes, and one rig per registered action.

A rig drives one adapter against its stand-in, and reads the stand-in's journal: the journal is the judge.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from devstack.stripe_standin.launch import StandInProcess
from devstack.stripe_standin.presets import FAULTS
from devstack.stripe_standin.rules import Rule
from ledger.contract import Contract
from ledger.model import Hint, Operation, Outcome, Standing
from providers.port import Classified, Credential, Provider, Request
from providers.registry import Registry, default_registry
from tests.providers.refund_operations import an_operation
from tests.providers.rigs_carddav import carddav_create_rig, carddav_stage, carddav_update_rig
from tests.providers.rigs_mail import mail_proxies, mail_rig, mail_server, mail_unarchived_rig
from tests.providers.rigs_stripe_peers import (
    localstripe_rig,
    localstripe_stage,
    peer_rig,
    stateful_mock_rig,
    stateful_mock_stage,
)
from tests.providers.rigs_tryton_invoices import tryton_invoices_rig, tryton_invoices_server
from tests.providers.rigs_tryton_updates import (
    tryton_customers_rig,
    tryton_delivery_rig,
    tryton_updates_server,
    tryton_updates_stage,
)

# Fixtures of the rigs below, given to every test here.
__all__ = [
    "carddav_create_rig",
    "carddav_stage",
    "carddav_update_rig",
    "localstripe_rig",
    "localstripe_stage",
    "mail_proxies",
    "mail_rig",
    "mail_server",
    "mail_unarchived_rig",
    "peer_rig",
    "stateful_mock_rig",
    "stateful_mock_stage",
    "tryton_customers_rig",
    "tryton_delivery_rig",
    "tryton_invoices_rig",
    "tryton_invoices_server",
    "tryton_updates_server",
    "tryton_updates_stage",
]

SECRET = "sk_test_oftheadapters0000"  # noqa: S105 (known to the stand-in only)
LIVE_SECRET = "sk_live_oftheadapters0000"  # noqa: S105


@dataclass(frozen=True)
class Fault:
    """One way in which the stand-in misbehaves, and what the adapter must say about a send that meets it."""

    name: str
    rule: Rule
    outcome: Outcome
    hint: Hint = Hint.NONE
    effects: int = 0  # that the journal must hold afterwards
    stored: bool = False
    standing: Standing | None = None


def _stripe_faults() -> list[Fault]:
    unknown, refusal = Outcome.UNKNOWN, Outcome.NO_EFFECT
    before, after = {"when": "before"}, {"when": "after"}

    def rule(preset: str, **changes: Any) -> Rule:
        return FAULTS[preset].model_copy(update=changes)

    return [
        Fault("reset before", rule("lost-request"), unknown, Hint.LOST),
        Fault("reset after", rule("lost-answer"), unknown, Hint.LOST, 1),
        Fault("closed before", rule("closed-request"), unknown, Hint.LOST),
        Fault("closed after", rule("closed-answer"), unknown, Hint.LOST, 1),
        Fault("hangs before", rule("hang-before"), unknown, Hint.LOST),
        Fault("hangs after", rule("hang-after"), unknown, Hint.LOST, 1),
        Fault("drips longer than the deadline", rule("drip"), unknown, Hint.LOST, 1),
        Fault("drips within the deadline", rule("drip", piece=400, interval=0.01), Outcome.APPLIED, effects=1),
        Fault("truncated", rule("truncated"), unknown, Hint.LOST, 1),
        Fault("html 200 before", rule("html-200", **before), unknown, Hint.UNREADABLE),
        Fault("html 200 after", rule("html-200", **after), unknown, Hint.UNREADABLE, 1),
        Fault("html 502 before", rule("html-502", **before), unknown, Hint.LOST),
        Fault("html 502 after", rule("html-502", **after), unknown, Hint.LOST, 1),
        Fault("html 503 before", rule("html-503"), unknown, Hint.LOST),
        Fault("html 503 after", rule("html-503", **after), unknown, Hint.LOST, 1),
        Fault("stored 500 executed", rule("stored-500-executed"), unknown, Hint.STORED_ERROR, 1, stored=True),
        Fault("stored 500 no effect", rule("stored-500-no-effect"), unknown, Hint.STORED_ERROR, stored=True),
        Fault("in use", rule("in-flight-409"), unknown, Hint.BUSY),
        Fault("rate limit", rule("rate-limited"), refusal),
        Fault("lock timeout", rule("lock-timeout"), refusal),
        Fault("unauthorized", rule("unauthorized"), refusal),
        Fault("forbidden", rule("forbidden"), refusal),
        Fault("marker not kept", rule("tampered-marker"), unknown, Hint.MISMATCH, 1),
        Fault("another amount answered", rule("wrong-amount"), unknown, Hint.MISMATCH, 1),
        Fault("executed twice", rule("duplicate"), Outcome.APPLIED, effects=2),
        Fault("slow", rule("slow", seconds=0.1), Outcome.APPLIED, effects=1, standing=Standing.GOOD),
        Fault("pending", rule("pending"), Outcome.APPLIED, effects=1, standing=Standing.PENDING),
        Fault("born void", rule("late-void", refund_status="failed", moves=()), Outcome.APPLIED, effects=1,
              standing=Standing.VOID),
    ]  # fmt: skip


@dataclass
class StripeRig:
    """The refunds adapter with its stand-in."""

    process: StandInProcess
    provider: Provider
    account: str
    faults: list[Fault] = field(default_factory=_stripe_faults)

    @property
    def world(self) -> Any:
        """The stand-in's control client."""
        return self.process.control

    @property
    def credential(self) -> Credential:
        return Credential(self.account, False, SECRET)

    def reset(self) -> None:
        """An empty world, an empty journal."""
        self.world.reset()

    def operation(self, amount: int = 1000, paid: int = 50_000, **changes: Any) -> Operation:
        """An operation on a fresh payment, or on `target`."""
        if "target" not in changes:
            changes["target"] = self.world.create_payment(paid, "eur").payment_intent
        arguments = {"amount_minor": amount, "currency": "eur"}
        return an_operation(account=self.account, arguments=arguments, **changes)

    def brief_contract(self, seconds: float = 1.0) -> Contract:
        """The contract with a deadline that a test can wait for."""
        timing = self.provider.contract.timing.model_copy(update={"call_deadline": seconds})
        return self.provider.contract.model_copy(update={"timing": timing})

    async def request(self, operation: Operation) -> Request:
        """What would be sent."""
        return self.provider.build_request(operation, {})

    @contextmanager
    def cut(self, when: Literal["before", "after"]) -> Iterator[None]:
        """The next refund is lost on its way to the stand-in, or its answer on the way back."""
        self.world.fault("lost-request" if when == "before" else "lost-answer")
        yield

    def break_receiver(self) -> None:
        """The stand-in is gone at once."""
        self.process.kill()

    def mend(self) -> None:
        """It is back, with all that it kept."""
        self.process.restart()

    async def send(self, operation: Operation, *, allowed: bool = True, contract: Contract | None = None) -> Classified:
        """Send the operation's own request."""

        async def guard() -> bool:
            return allowed

        request = self.provider.build_request(operation, {})
        kept = contract or self.provider.contract
        return await self.provider.send(self.credential, operation, request, kept, guard, lambda: None)

    def arm(self, fault: Fault, operation: Operation) -> None:
        """The fault meets this operation's next write."""
        self.world.fault(fault.rule, operation_id=str(operation.operation_id))

    def effects(self, operation: Operation) -> list[Any]:
        """What the journal says this operation did."""
        return list(self.world.journal(marker=str(operation.operation_id)).effects)

    def arrivals(self) -> int:
        """How many refunds were asked for, whoever asked."""
        return sum(line.method == "POST" for line in self.world.journal().arrivals)

    def writes(self, operation: Operation) -> list[Any]:
        """The writes of this operation that arrived."""
        arrivals = self.world.journal(marker=str(operation.operation_id)).arrivals
        return [line for line in arrivals if line.method == "POST"]


@pytest.fixture(scope="session")
def stripe_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandInProcess]:
    state = tmp_path_factory.mktemp("stripe") / "state.sqlite"
    with StandInProcess(state, secret_keys=(SECRET, LIVE_SECRET)) as process:
        yield process


@pytest.fixture(scope="session")
def registry(stripe_process: StandInProcess) -> Registry:
    return default_registry(stripe_process.base_url)


@pytest.fixture
def stripe_rig(stripe_process: StandInProcess, registry: Registry) -> StripeRig:
    stripe_process.control.reset()
    account = stripe_process.control.wait_ready()
    return StripeRig(stripe_process, registry.for_action("refund"), account)


# One rig for every action: what the shared suite drives.
RIGS = {
    "refund": "stripe_rig",
    "create_draft_invoice": "tryton_invoices_rig",
    "change_delivery_date": "tryton_delivery_rig",
    "update_customer": "tryton_customers_rig",
    "create_contact": "carddav_create_rig",
    "update_contact": "carddav_update_rig",
    "send_mail": "mail_rig",
    "send_mail_unarchived": "mail_unarchived_rig",
}

# Further receivers of the same adapters, which lack something.
PEERS = {
    "refund at localstripe": "localstripe_rig",
    "refund at stripe-stateful-mock": "stateful_mock_rig",
}


@pytest.fixture(params=sorted(RIGS | PEERS))
def rig(request: pytest.FixtureRequest) -> Any:
    """One rig after the other; a registered action without one fails `test_every_registered_action_has_a_rig`."""
    return request.getfixturevalue((RIGS | PEERS)[request.param])


@pytest.fixture
def rigs() -> dict[str, str]:
    return RIGS


@pytest.fixture
def operation_of() -> Callable[..., Operation]:
    return an_operation


@dataclass
class RawServer:
    """A server of the test's own making: counts connections, keeps every byte that came."""

    base_url: str = ""
    connections: int = 0
    seen: bytearray = field(default_factory=bytearray)


Reply = Callable[[asyncio.StreamReader, asyncio.StreamWriter, RawServer], Awaitable[None]]


@asynccontextmanager
async def _serve(reply: Reply) -> AsyncIterator[RawServer]:
    raw = RawServer()
    tasks: set[asyncio.Task[None]] = set()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raw.connections += 1
        task = asyncio.current_task()
        if task is not None:
            tasks.add(task)
        try:
            await reply(reader, writer, raw)
        finally:
            writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    raw.base_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield raw
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture
def serve() -> Callable[[Reply], Any]:
    """`async with serve(reply) as raw`: a raw server on loopback."""
    return _serve
