"""A provider that answers from values, for tests whose subject is the ledger: it sends nothing and counts what it would."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ledger.contract import Contract, KeyTerms, LookupTerms
from ledger.model import Operation, Outcome, SeenEffect, Standing
from providers.port import AfterWrite, Classified, Credential, Look, Preflight, Request, SendGuard

ACCOUNT = "acct_1"
CONTRACT = Contract(
    name="bank refund",
    key=KeyTerms(lifetime=86_400, margin=3_600, stores_server_errors=False, stores_refusals=False),
    lookup=LookupTerms(marker="operation id", settling=5, complete=True, marker_editable=False),
    processing=60,
)


async def nothing() -> None:
    """What happens while the bank is asked, unless a test wants something."""


@dataclass
class Bank:
    """Every target holds `captured` and has no effects; every send is answered `applied` once its guard said yes."""

    captured: int = 100_000
    effects: tuple[SeenEffect, ...] = ()
    sent: list[Request] = field(default_factory=list)
    while_asked: Callable[[], Awaitable[None]] = nothing

    action: str = "refund"
    provider: str = "bank"
    contract: Contract = CONTRACT
    resolution: str = "a statement of account"

    def check_arguments(self, arguments: dict[str, Any]) -> None:
        """Anything goes."""

    def check_target(self, target: str) -> None:
        """Anything goes."""

    def pure_target(self, target: str) -> str | None:
        """A target has one name."""
        return target

    def equivalence_key(self, operation_target: str, arguments: dict[str, Any]) -> str:
        """The same money from the same target is the same thing."""
        return f"{operation_target}/{arguments['amount_minor']}/{arguments['currency']}"

    def build_request(self, operation: Operation, basis: Mapping[str, Any]) -> Request:
        """One refund."""
        return Request("refund", {"target": operation.target}, operation.idempotency_key, operation.account, "1")

    def marker_of(self, operation: Operation) -> str:
        """The operation's id."""
        return str(operation.operation_id)

    async def preflight(self, credential: Credential, target: str, arguments: dict[str, Any], marker: str) -> Preflight:
        """The target as the fields say."""
        await self.while_asked()
        return Preflight(
            complete=True,
            target=target,
            amount_minor=self.captured,
            currency="eur",
            effects=self.effects,
            facts={"paid_minor": self.captured},
        )

    async def send(
        self,
        credential: Credential,
        operation: Operation,
        request: Request,
        contract: Contract,
        guard: SendGuard,
        after_write: AfterWrite,
    ) -> Classified:
        """Counted in `sent`, if the guard lets it pass."""
        if not await guard():
            return Classified(Outcome.NO_EFFECT)
        self.sent.append(request)
        after_write()
        return Classified(Outcome.APPLIED, receipt=f"re_{operation.operation_id.hex}", standing=Standing.GOOD)

    async def look(self, credential: Credential, operation: Operation, since: datetime) -> Look:
        """All effects there are."""
        return Look(complete=True, effects=self.effects)

    async def read_receipt(self, credential: Credential, operation: Operation, receipt: str) -> SeenEffect | None:
        """Nothing can be read again."""
        return None

    async def whose(self, credential: Credential) -> Credential | None:
        """The credential is what it says."""
        return credential

    def link(self, operation: Operation) -> str:
        """There is no page."""
        return ""
