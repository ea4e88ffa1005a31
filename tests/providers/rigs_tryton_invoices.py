"""Draft invoices against a real Tryton behind a fault proxy. The judge is the ERP's own books, read by its administrator."""

import asyncio
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal
from uuid import UUID, uuid4

import pytest

from devstack.fault_proxy import FaultProxy
from devstack.faults import CutReply, CutRequest
from devstack.ports import LOOPBACK
from devstack.postgres import Postgres
from devstack.tryton import names
from devstack.tryton.server import TrytonServer
from devstack.tryton.snapshot import ready_server
from devstack.tryton.world import Invoice, TrytonWorld
from ledger.contract import Contract
from ledger.model import Operation
from providers.port import Classified, Credential, Provider, Request
from providers.tryton_invoices import ACTION, METHOD, TrytonInvoices

# In the bytes of a create and of nothing else that the adapter sends.
CREATE = f'"method":"{METHOD}"'.encode()
WIDGETS: dict[str, Any] = {"product": "WIDGET", "quantity": 3, "unit_price_minor": 1250}
SURVEY: dict[str, Any] = {"product": "SURVEY", "quantity": 1, "unit_price_minor": 18_000}


def an_invoice_operation(**changes: Any) -> Operation:
    """An operation as the ledger would hold it: 217.50 EUR for three widgets and a survey, unless told otherwise."""
    operation_id = changes.pop("operation_id", uuid4())
    arguments = changes.pop("arguments", None) or arguments_of(WIDGETS, SURVEY)
    known: dict[str, Any] = {
        "operation_id": operation_id,
        "tenant": "shop",
        "action": ACTION,
        "provider": "tryton",
        "account": "erp/1",
        "livemode": False,
        "target": names.CUSTOMER_NORTHWIND,
        "arguments": arguments,
        "amount_minor": arguments["amount_minor"],
        "currency": arguments["currency"],
        "idempotency_key": f"effect-{operation_id}",
    }
    # Adapters read identity only; whatever else an operation has is left out.
    nothing: dict[str, Any] = dict.fromkeys(each.name for each in fields(Operation))
    return Operation(**nothing | known | changes)


def arguments_of(*items: dict[str, Any], currency: str = "eur", order: str = "") -> dict[str, Any]:
    """Arguments of an order that nobody has billed yet, whose sum is right."""
    total = sum(item["quantity"] * item["unit_price_minor"] for item in items)
    return {
        "order": order or f"SO-{secrets.token_hex(6)}",
        "currency": currency,
        "amount_minor": total,
        "items": [dict(item) for item in items],
    }


@dataclass
class TrytonInvoicesRig:
    """The adapter, the server it writes to, the proxy between them, and the books."""

    provider: Provider
    server: TrytonServer
    world: TrytonWorld
    proxy: FaultProxy
    account: str
    requests: dict[UUID, Request] = field(default_factory=dict)
    _away: ExitStack = field(default_factory=ExitStack)

    @property
    def credential(self) -> Credential:
        secret = f"{names.SERVICE.name}:{names.SERVICE.password}"
        return Credential(self.account, False, secret, endpoint=f"http://{LOOPBACK}:{self.proxy.port}")

    def operation(self, **changes: Any) -> Operation:
        """An operation on a customer of its own, or on `target`."""
        if "target" not in changes:
            changes["target"] = self.world.add_customer().code
        return an_invoice_operation(account=self.account, **changes)

    def brief_contract(self, seconds: float = 1.5) -> Contract:
        """The contract with a deadline that a test can wait for."""
        timing = self.provider.contract.timing.model_copy(update={"call_deadline": seconds})
        return self.provider.contract.model_copy(update={"timing": timing})

    async def request(self, operation: Operation) -> Request:
        """What would be sent now, on what is read now."""
        marker = self.provider.marker_of(operation)
        read = await self.provider.preflight(self.credential, operation.target, operation.arguments, marker)
        assert read.complete and not read.unfit, read
        return self.provider.build_request(operation, read.basis)

    async def send(
        self,
        operation: Operation,
        *,
        allowed: bool = True,
        contract: Contract | None = None,
        through: str | None = None,
    ) -> Classified:
        """Send the operation's own request, the same each time; `through` is another way to the server."""

        async def guard() -> bool:
            return allowed

        if operation.operation_id not in self.requests:
            self.requests[operation.operation_id] = await self.request(operation)
        request = self.requests[operation.operation_id]
        credential = replace(self.credential, endpoint=through or self.credential.endpoint)
        kept = contract or self.provider.contract
        return await self.provider.send(credential, operation, request, kept, guard, lambda: None)

    def effects(self, operation: Operation) -> list[str]:
        """The receipts of all invoices in the books that carry this operation's marker."""
        return [f"account.invoice,{invoice.id}" for invoice in self.books(operation)]

    def books(self, operation: Operation) -> list[Invoice]:
        """These invoices, in full."""
        return self.world.invoices(str(operation.operation_id))

    def arrivals(self) -> int:
        """How many creates have been sent so far, whoever sent them."""
        return self.proxy.count(CREATE)

    @contextmanager
    def cut(self, when: Literal["before", "after"]) -> Iterator[None]:
        """The next create is lost on its way to the server, or its answer on the way back."""
        fault = CutRequest(after=CREATE) if when == "before" else CutReply(after=CREATE)
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
        """Nobody listens any more."""
        self._away.enter_context(self.proxy.down())

    def mend(self) -> None:
        """Somebody listens again."""
        self._away.close()


@pytest.fixture(scope="session")
def tryton_invoices_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrytonServer]:
    """One ERP for all tests of invoices; each makes its own customers."""
    root = tmp_path_factory.mktemp("tryton-invoices")
    postgres = Postgres(root / "postgres", durable=False)
    try:
        postgres.start()
        with ready_server(root / "server", postgres) as server:
            yield server
    finally:
        postgres.remove()


@pytest.fixture(scope="session")
def tryton_invoices_rig(tryton_invoices_server: TrytonServer) -> Iterator[TrytonInvoicesRig]:
    """The rig; what a test leaves in the books no other test meets."""
    port = int(tryton_invoices_server.base_url.rpartition(":")[2])
    with TrytonWorld(tryton_invoices_server) as world, FaultProxy(port) as proxy:
        account = f"{tryton_invoices_server.database}/{world.companies[names.ACME]}"
        yield TrytonInvoicesRig(TrytonInvoices(), tryton_invoices_server, world, proxy, account)
