"""Both mail actions against mail-devel behind fault proxies; the judge is the mailbox, read by itself.

The receiver is broken by its proxies, since a mail-devel that is killed forgets all mail.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from typing import Any, Literal
from uuid import UUID, uuid4

import pytest

from devstack.fault_proxy import FaultProxy
from devstack.faults import CutReply, CutRequest
from devstack.mail import Mail as StoredMail
from devstack.mail import MailServer
from ledger.contract import Contract
from ledger.model import Operation
from providers.mail import Mail
from providers.port import Classified, Credential, Request

ACCOUNT = "orders@acme.test"
FIELDS = {"customer": "Ada Lovelace", "order": "SO-4711", "delivery_date": "2026-12-24", "company": "Acme Ltd."}
PROPOSED_AT = datetime(2026, 11, 30, 9, 15, 27, 123456, tzinfo=UTC)
SINCE = datetime(2000, 1, 1, tzinfo=UTC)
MESSAGE_BEGAN = b"\r\nMessage-ID: <"  # said by a client within a message only
MESSAGE_ENDED = b"\r\n.\r\n"


def an_order_mail(**changes: Any) -> dict[str, Any]:
    """Well-formed arguments, for a recipient of their own unless told otherwise."""
    return {"to": f"{uuid4().hex}@example.org", "template": "order-confirmation-1", "fields": dict(FIELDS)} | changes


def a_mail_operation(action: str = "send_mail", **changes: Any) -> Operation:
    """An operation as the ledger would hold it."""
    operation_id = changes.pop("operation_id", None) or uuid4()
    known: dict[str, Any] = {
        "operation_id": operation_id,
        "tenant": "shop",
        "action": action,
        "provider": "mail",
        "account": ACCOUNT,
        "livemode": False,
        "target": f"C-{operation_id.hex[:8]}",
        "arguments": an_order_mail(),
        "idempotency_key": f"effect-{operation_id}",
        "proposed_at": PROPOSED_AT,
    }
    # Adapters read identity only; whatever else an operation has is left out.
    nothing: dict[str, Any] = dict.fromkeys(field.name for field in fields(Operation))
    return Operation(**nothing | known | changes)


async def yes() -> bool:
    """A guard that lets everything pass."""
    return True


@dataclass
class MailRig:
    """One action with its receiver."""

    provider: Mail
    server: MailServer
    smtp: FaultProxy
    imap: FaultProxy
    frozen: dict[UUID, Request] = field(default_factory=dict)
    broken: ExitStack = field(default_factory=ExitStack)

    @property
    def credential(self) -> Credential:
        """Accepted by both servers."""
        archive = f"imap://127.0.0.1:{self.imap.port}/INBOX" if self.provider.archived else ""
        secret = f"{self.server.user}:{self.server.password}"
        endpoint = f"smtp://127.0.0.1:{self.smtp.port}"
        return Credential(ACCOUNT, False, secret, endpoint=endpoint, archive=archive)

    def operation(self, **changes: Any) -> Operation:
        """To a recipient who has no other mail."""
        return a_mail_operation(self.provider.action, **changes)

    def brief_contract(self, seconds: float = 1.0) -> Contract:
        """The contract with a deadline that a test can wait for."""
        timing = self.provider.contract.timing.model_copy(update={"call_deadline": seconds})
        return self.provider.contract.model_copy(update={"timing": timing})

    async def request(self, operation: Operation) -> Request:
        """As the claim does it: read, then build."""
        marker = self.provider.marker_of(operation)
        read = await self.provider.preflight(self.credential, operation.target, operation.arguments, marker)
        assert read.complete, read.detail
        return self.provider.build_request(operation, read.basis)

    async def send(
        self,
        operation: Operation,
        *,
        allowed: bool = True,
        contract: Contract | None = None,
        through: str | None = None,
    ) -> Classified:
        """Send the frozen request, or freeze it first; `through` replaces the endpoint."""

        async def guard() -> bool:
            return allowed

        if operation.operation_id not in self.frozen:
            self.frozen[operation.operation_id] = self.provider.build_request(operation, {})
        credential = self.credential if through is None else replace(self.credential, endpoint=through)
        request = self.frozen[operation.operation_id]
        kept = contract or self.provider.contract
        return await self.provider.send(credential, operation, request, kept, guard, lambda: None)

    def mails(self, operation: Operation) -> list[StoredMail]:
        """What the mailbox has of it, forgeries too."""
        return self.server.box().with_message_id(f"<{operation.operation_id}@acme.test>")

    def effects(self, operation: Operation) -> list[str]:
        """The Message-IDs of the mails that came by SMTP: one for each time that people got it."""
        return [str(mail.message_id) for mail in self.mails(operation) if mail.sender is not None]

    @contextmanager
    def cut(self, when: Literal["before", "after"]) -> Iterator[None]:
        """The next mail is lost on its way, or the answer to its final dot is."""
        fault = CutRequest(after=MESSAGE_BEGAN) if when == "before" else CutReply(after=MESSAGE_ENDED)
        self.smtp.arm(fault)
        try:
            yield
            fault.wait_fired()
        finally:
            self.smtp.disarm(fault)

    def break_receiver(self) -> None:
        """Nobody listens any more, on either port."""
        self.broken.enter_context(self.smtp.down())
        self.broken.enter_context(self.imap.down())

    def mend(self) -> None:
        """As before."""
        self.broken.close()


@pytest.fixture(scope="session")
def mail_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MailServer]:
    """One mail-devel for all: mails are told apart by operation and recipient."""
    with MailServer(tmp_path_factory.mktemp("mail")) as server:
        yield server


@pytest.fixture(scope="session")
def mail_proxies(mail_server: MailServer) -> Iterator[tuple[FaultProxy, FaultProxy]]:
    """In front of its SMTP and IMAP."""
    with FaultProxy(mail_server.smtp_port) as smtp, FaultProxy(mail_server.imap_port) as imap:
        yield smtp, imap


def _rig(server: MailServer, proxies: tuple[FaultProxy, FaultProxy], *, archived: bool) -> Iterator[MailRig]:
    rig = MailRig(Mail(archived=archived), server, *proxies)
    yield rig
    rig.mend()
    for proxy in proxies:
        proxy.disarm()


@pytest.fixture
def mail_rig(mail_server: MailServer, mail_proxies: tuple[FaultProxy, FaultProxy]) -> Iterator[MailRig]:
    """With its archive."""
    yield from _rig(mail_server, mail_proxies, archived=True)


@pytest.fixture
def mail_unarchived_rig(mail_server: MailServer, mail_proxies: tuple[FaultProxy, FaultProxy]) -> Iterator[MailRig]:
    """Without one."""
    yield from _rig(mail_server, mail_proxies, archived=False)
