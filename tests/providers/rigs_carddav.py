"""The contacts adapters with a real Radicale behind a fault proxy. Radicale's own journal of every card is the judge."""

import asyncio
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields
from typing import Any, Literal
from uuid import UUID, uuid4

import pytest

from devstack.fault_proxy import FaultProxy
from devstack.faults import CutReply, CutRequest, Fault
from devstack.ports import LOOPBACK
from devstack.radicale import SERVICE, AddressBook, RadicaleServer, Written
from ledger.contract import Contract
from ledger.model import Operation
from providers.carddav_contacts import CardDavContacts, CardDavCreate, CardDavUpdate
from providers.port import Classified, Credential, Request

ACCOUNT = "crm/contacts"
SECRET = f"{SERVICE.user}:{SERVICE.password}"
WRITE = b"PUT /crm/contacts/"  # the marker of a write, for faults
NEW = {"full_name": "Grace Hopper", "email": "grace@example.com", "phone": "+1 202 555 0100"}
CHANGE = {"phone": "+49 30 7654321"}


def a_contact_operation(action: str, target: str, version: str | None, **changes: Any) -> Operation:
    """An operation as the ledger would hold it."""
    operation_id = changes.pop("operation_id", None) or uuid4()
    known: dict[str, Any] = {
        "operation_id": operation_id,
        "tenant": "shop",
        "action": action,
        "provider": "carddav",
        "account": ACCOUNT,
        "livemode": False,
        "target": target,
        "arguments": dict(NEW if action == "create_contact" else CHANGE),
        "expected_version": version,
        "idempotency_key": f"effect-{operation_id}",
    }
    # Adapters read identity only; whatever else an operation has is left out.
    nothing: dict[str, Any] = dict.fromkeys(one.name for one in fields(Operation))
    return Operation(**nothing | known | changes)


@dataclass
class CardDavRig:
    """One of the two adapters, its receiver, and what can go wrong in between."""

    provider: CardDavContacts
    server: RadicaleServer
    proxy: FaultProxy
    book: AddressBook
    frozen: dict[UUID, Request] = field(default_factory=dict)
    _away: ExitStack = field(default_factory=ExitStack)

    @property
    def action(self) -> str:
        return self.provider.action

    @property
    def credential(self) -> Credential:
        """Through the proxy."""
        return Credential(ACCOUNT, False, SECRET, endpoint=f"http://{LOOPBACK}:{self.proxy.port}")

    async def operation(self, **changes: Any) -> Operation:
        """An operation on a card of its own; the version is what the adapter reads unless it is given."""
        target, given = changes.pop("target", None) or self.a_target(), "expected_version" in changes
        operation = a_contact_operation(self.action, target, changes.pop("expected_version", None), **changes)
        if given:
            return operation
        read = await self.provider.preflight(self.credential, target, operation.arguments, "")
        assert read.complete and not read.unfit, read
        changes |= {"operation_id": operation.operation_id}
        return a_contact_operation(self.action, target, read.version, **changes)

    def a_target(self) -> str:
        """A name that nothing stands under, or that of a card that the clerk made just now."""
        if self.action == "create_contact":
            return f"customer-{secrets.token_hex(6)}"
        card = self.book.add("Ada Lovelace", "EMAIL;TYPE=INTERNET:ada@example.com", "NOTE:met in London", version="3.0")
        return card.href.rpartition("/")[2].removesuffix(".vcf")

    def href(self, operation: Operation) -> str:
        """Of its card, as the clerk names it."""
        return f"/{ACCOUNT}/{operation.target}.vcf"

    async def request(self, operation: Operation) -> Request:
        """What the first claim would freeze; the same every time."""
        if operation.operation_id not in self.frozen:
            marker = self.provider.marker_of(operation)
            read = await self.provider.preflight(self.credential, operation.target, operation.arguments, marker)
            assert read.complete, read
            self.frozen[operation.operation_id] = self.provider.build_request(operation, read.basis)
        return self.frozen[operation.operation_id]

    async def send(
        self,
        operation: Operation,
        *,
        allowed: bool = True,
        contract: Contract | None = None,
        through: str | None = None,
    ) -> Classified:
        """Send the operation's frozen request, through the proxy or to another endpoint."""

        async def guard() -> bool:
            return allowed

        credential = self.credential if through is None else Credential(ACCOUNT, False, SECRET, endpoint=through)
        request, kept = await self.request(operation), contract or self.provider.contract
        return await self.provider.send(credential, operation, request, kept, guard, lambda: None)

    def brief_contract(self, seconds: float = 1.0) -> Contract:
        """The contract with a deadline that a test can wait for."""
        timing = self.provider.contract.timing.model_copy(update={"call_deadline": seconds})
        return self.provider.contract.model_copy(update={"timing": timing})

    def effects(self, operation: Operation) -> list[str]:
        """A receipt for every content that our login stored with this operation as the newest marker on it."""
        receipt = f"{ACCOUNT}/{operation.target}.vcf#{operation.operation_id}"
        return [receipt for one in self.written(operation) if _newest(one.content.decode(), operation)]

    def arrivals(self) -> int:
        """How many writes have been sent so far, by whomever."""
        return self.proxy.count(WRITE)

    def written(self, operation: Operation) -> list[Written]:
        """What our login did to the card, by Radicale's own journal."""
        return [one for one in self.book.written(self.href(operation)) if one.who == SERVICE.user]

    def writes(self, operation: Operation) -> list[int]:
        """The codes with which Radicale answered the writes of our login to this card."""
        answered = self.book.answered(self.href(operation))
        return [one.code for one in answered if one.verb == "PUT" and one.who in (SERVICE.user, "")]

    @contextmanager
    def cut(self, when: Literal["before", "after"]) -> Iterator[Fault]:
        """The next write is lost: before Radicale has it, or after it was carried out. One must come."""
        fault = self.proxy.arm(CutRequest(after=WRITE) if when == "before" else CutReply(after=WRITE))
        try:
            yield fault
            fault.wait_fired()
        finally:
            self.proxy.disarm(fault)

    def break_receiver(self) -> None:
        """Nobody listens any more."""
        self._away.enter_context(self.proxy.down())

    def mend(self) -> None:
        """Somebody listens again."""
        self._away.close()


def _newest(text: str, operation: Operation) -> bool:
    markers = [line.partition(":")[2] for line in text.splitlines() if line.startswith("X-EFFECT-OPERATION:")]
    return bool(markers) and markers[-1] == str(operation.operation_id)


@dataclass(frozen=True)
class CardDavStage:
    """What both rigs share."""

    server: RadicaleServer
    proxy: FaultProxy
    book: AddressBook


@pytest.fixture(scope="session")
def carddav_stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CardDavStage]:
    root = tmp_path_factory.mktemp("radicale")
    with RadicaleServer(root) as server, server.book() as book, FaultProxy(server.port) as proxy:
        yield CardDavStage(server, proxy, book)


@pytest.fixture
def carddav_create_rig(carddav_stage: CardDavStage) -> Iterator[CardDavRig]:
    rig = CardDavRig(CardDavCreate(), carddav_stage.server, carddav_stage.proxy, carddav_stage.book)
    yield rig
    rig.mend()
    carddav_stage.proxy.disarm()


@pytest.fixture
def carddav_update_rig(carddav_stage: CardDavStage) -> Iterator[CardDavRig]:
    rig = CardDavRig(CardDavUpdate(), carddav_stage.server, carddav_stage.proxy, carddav_stage.book)
    yield rig
    rig.mend()
    carddav_stage.proxy.disarm()


@pytest.fixture(params=["create", "update"])
def carddav_rig(request: pytest.FixtureRequest) -> Any:
    """One rig after the other."""
    return request.getfixturevalue(f"carddav_{request.param}_rig")


async def off_loop(call: Any, *arguments: Any) -> Any:
    """A blocking call of a test, without stopping the loop on which the adapter runs."""
    return await asyncio.to_thread(call, *arguments)
