"""The two conditional writes against a real Tryton behind a fault proxy. The judge is the ERP's own log and its books.

Every operation has an order or a customer of its own, so that all writes of our user there are this operation's.
"""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Literal
from uuid import UUID, uuid4

import pytest

from devstack.fault_proxy import FaultProxy
from devstack.faults import CutReply, CutRequest
from devstack.ports import LOOPBACK
from devstack.postgres import Postgres
from devstack.tryton import names
from devstack.tryton.server import TrytonServer
from devstack.tryton.snapshot import ready_server
from devstack.tryton.world import LogRow, TrytonWorld
from ledger.contract import Contract
from ledger.model import Operation
from providers.port import Classified, Credential, Look, Request
from providers.tryton_customers import TrytonCustomers
from providers.tryton_delivery import TrytonDelivery

DUE = (datetime.now(UTC) + timedelta(days=60)).date().isoformat()
CHANGE = {"email": "new.office@customer.example", "phone": "+32 2 555 12 12"}


def an_update(action: str, target: str, arguments: dict[str, Any], **changes: Any) -> Operation:
    """An operation as the ledger would hold it."""
    operation_id = changes.pop("operation_id", None) or uuid4()
    known: dict[str, Any] = {
        "operation_id": operation_id,
        "tenant": "shop",
        "action": action,
        "provider": "tryton",
        "account": "erp/1",
        "livemode": False,
        "target": target,
        "arguments": arguments,
        "idempotency_key": f"effect-{operation_id}",
    }
    # Adapters read identity only; whatever else an operation has is left out.
    nothing: dict[str, Any] = dict.fromkeys(each.name for each in fields(Operation))
    return Operation(**nothing | known | changes)


@dataclass
class TrytonUpdatesRig:
    """One of the two adapters, the server it writes to, the proxy between them, and the books."""

    server: TrytonServer
    world: TrytonWorld
    proxy: FaultProxy
    account: str
    provider: TrytonDelivery | TrytonCustomers
    requests: dict[UUID, Request] = field(default_factory=dict)
    _away: ExitStack = field(default_factory=ExitStack)
    action: ClassVar[str]
    # What our write leaves in the log of the record that it is called on.
    logged: ClassVar[str]

    @property
    def credential(self) -> Credential:
        """Through the proxy."""
        return self.credential_of(names.SERVICE)

    def credential_of(self, login: names.Login, endpoint: str = "") -> Credential:
        """Somebody's, through the proxy or by another way."""
        secret = f"{login.name}:{login.password}"
        return Credential(self.account, False, secret, endpoint=endpoint or f"http://{LOOPBACK}:{self.proxy.port}")

    @property
    def marker(self) -> bytes:
        """In the bytes of a write and of nothing else that the adapter sends."""
        return f'"method":"{self.provider.method}"'.encode()

    def a_target(self) -> str:
        """The name of a fresh record."""
        raise NotImplementedError

    def arguments(self) -> dict[str, Any]:
        """What is asked for unless a test says otherwise."""
        raise NotImplementedError

    async def operation(self, **changes: Any) -> Operation:
        """An operation on a record of its own; the version is what the adapter reads unless it is given."""
        target = changes.pop("target", None) or await asyncio.to_thread(self.a_target)
        arguments = changes.pop("arguments", None) or self.arguments()
        operation = an_update(self.action, target, arguments, account=self.account, **changes)
        if "expected_version" in changes:
            return operation
        read = await self.preflight(operation, "")
        assert read.complete and not read.unfit and read.version, read
        return replace(operation, expected_version=read.version)

    async def preflight(self, operation: Operation, marker: str | None = None) -> Any:
        """What the adapter reads for this operation."""
        wanted = self.provider.marker_of(operation) if marker is None else marker
        return await self.provider.preflight(self.credential, operation.target, operation.arguments, wanted)

    async def request(self, operation: Operation) -> Request:
        """What the first claim would freeze; the same every time."""
        if operation.operation_id not in self.requests:
            read = await self.preflight(operation)
            assert read.complete and not read.unfit, read
            self.requests[operation.operation_id] = self.provider.build_request(operation, read.basis)
        return self.requests[operation.operation_id]

    def claimed(self, operation: Operation) -> Operation:
        """The operation as the ledger holds it once its request is frozen."""
        request = self.requests.get(operation.operation_id)
        return operation if request is None else replace(operation, frozen_request=dict(vars(request)))

    async def send(
        self,
        operation: Operation,
        *,
        allowed: bool = True,
        contract: Contract | None = None,
        through: str | None = None,
        credential: Credential | None = None,
    ) -> Classified:
        """Send the operation's frozen request; `through` is another way to the server."""

        async def guard() -> bool:
            return allowed

        request = await self.request(operation)
        used = credential or replace(self.credential, endpoint=through or self.credential.endpoint)
        kept = contract or self.provider.contract
        return await self.provider.send(used, self.claimed(operation), request, kept, guard, lambda: None)

    async def look(self, operation: Operation) -> Look:
        """A look as `reconcile` takes it, for effects since a minute ago."""
        since = datetime.now(UTC) - timedelta(minutes=1)
        return await self.provider.look(self.credential, self.claimed(operation), since)

    def brief_contract(self, seconds: float = 1.5) -> Contract:
        """The contract with a deadline that a test can wait for."""
        kept: Contract = self.provider.contract
        return kept.model_copy(update={"timing": kept.timing.model_copy(update={"call_deadline": seconds})})

    def record(self, operation: Operation) -> int:
        """The id of the operation's record, by the books."""
        raise NotImplementedError

    def receipt(self, operation: Operation) -> str:
        """What the effect of this operation must be called."""
        return f"{self.provider.header},{self.record(operation)}#{operation.operation_id}"

    def effects(self, operation: Operation) -> list[str]:
        """A receipt for every transaction in which our user wrote the operation's record, by the ERP's own log."""
        return [self.receipt(operation) for _ in self.our_writes(operation)]

    def our_writes(self, operation: Operation) -> list[LogRow]:
        """The rows of these writes."""
        rows = self.world.log(self.provider.header, self.record(operation))
        return [row for row in rows if (row.user, row.event, row.target) == (names.SERVICE.name, "write", self.logged)]

    def arrivals(self) -> int:
        """How many writes have been sent so far, whoever sent them."""
        return self.proxy.count(self.marker)

    @contextmanager
    def cut(self, when: Literal["before", "after"]) -> Iterator[None]:
        """The next write is lost on its way to the server, or its answer on the way back."""
        fault = CutRequest(after=self.marker) if when == "before" else CutReply(after=self.marker)
        self.proxy.arm(fault)
        try:
            yield
            fault.wait_fired(1)
        finally:
            self.proxy.disarm(fault)

    async def committed(self, operation: Operation, seconds: float = 20.0) -> list[str]:
        """The receipts, once there are any."""
        async with asyncio.timeout(seconds):
            while not (found := await asyncio.to_thread(self.effects, operation)):
                await asyncio.sleep(0.05)
        return found

    def break_receiver(self) -> None:
        """Nobody listens any more: a server that is killed behind its proxy would leave open what was delivered to it."""
        self._away.enter_context(self.proxy.down())

    def mend(self) -> None:
        """Somebody listens again."""
        self._away.close()


@dataclass
class TrytonDeliveryRig(TrytonUpdatesRig):
    """change_delivery_date."""

    provider: TrytonDelivery = field(default_factory=TrytonDelivery)
    action: ClassVar[str] = "change_delivery_date"
    logged: ClassVar[str] = "comment,lines"

    def a_target(self) -> str:
        """A fresh confirmed order with two lines."""
        return str(self.world.place_order().number)

    def arguments(self) -> dict[str, Any]:
        """In two months."""
        return {"delivery_date": DUE}

    def record(self, operation: Operation) -> int:
        """The order's id."""
        return self.world.admin.only("purchase.purchase", [["number", "=", operation.target]])


@dataclass
class TrytonCustomersRig(TrytonUpdatesRig):
    """update_customer."""

    provider: TrytonCustomers = field(default_factory=TrytonCustomers)
    action: ClassVar[str] = "update_customer"
    logged: ClassVar[str] = "contact_mechanisms"

    def a_target(self) -> str:
        """A fresh party with an e-mail and no phone."""
        return self.world.add_customer().code

    def arguments(self) -> dict[str, Any]:
        """Another e-mail, and a first phone."""
        return dict(CHANGE)

    def record(self, operation: Operation) -> int:
        """The party's id, deactivated or not."""
        return self.world.admin.only("party.party", [["code", "=", operation.target]], active_test=False)


@pytest.fixture(scope="session")
def tryton_updates_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrytonServer]:
    """One ERP for all tests of updates; each makes its own orders and customers."""
    root = tmp_path_factory.mktemp("tryton-updates")
    postgres = Postgres(root / "postgres", durable=False)
    try:
        postgres.start()
        with ready_server(root / "server", postgres) as server:
            yield server
    finally:
        postgres.remove()


@dataclass(frozen=True)
class TrytonStage:
    """What both rigs share."""

    server: TrytonServer
    world: TrytonWorld
    proxy: FaultProxy
    account: str


@pytest.fixture(scope="session")
def tryton_updates_stage(tryton_updates_server: TrytonServer) -> Iterator[TrytonStage]:
    port = int(tryton_updates_server.base_url.rpartition(":")[2])
    with TrytonWorld(tryton_updates_server) as world, FaultProxy(port) as proxy:
        account = f"{tryton_updates_server.database}/{world.companies[names.ACME]}"
        yield TrytonStage(tryton_updates_server, world, proxy, account)


@pytest.fixture(scope="session")
def tryton_delivery_rig(tryton_updates_stage: TrytonStage) -> TrytonDeliveryRig:
    """The rig; what a test leaves in the books no other test meets."""
    stage = tryton_updates_stage
    return TrytonDeliveryRig(stage.server, stage.world, stage.proxy, stage.account)


@pytest.fixture(scope="session")
def tryton_customers_rig(tryton_updates_stage: TrytonStage) -> TrytonCustomersRig:
    """The rig; what a test leaves in the books no other test meets."""
    stage = tryton_updates_stage
    return TrytonCustomersRig(stage.server, stage.world, stage.proxy, stage.account)


@pytest.fixture(params=["delivery", "customers"])
def tryton_updates_rig(request: pytest.FixtureRequest) -> TrytonUpdatesRig:
    """One rig after the other."""
    rig: TrytonUpdatesRig = request.getfixturevalue(f"tryton_{request.param}_rig")
    return rig
