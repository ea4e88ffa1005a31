"""The refunds adapter with two stand-ins for Stripe that nobody here wrote, each behind a fault proxy.

Their own lists of refunds, read past the adapter, are the judge. What a peer lacks of Stripe has a name and a reason here. A test
that names it with `needs` runs there all the same, and must fail: no lack outlives its reason.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from devstack.fault_proxy import FaultProxy
from devstack.faults import CutReply, CutRequest, Fault
from devstack.ports import LOOPBACK
from devstack.stripe_peers import SECRET, LocalStripe, Peer, StatefulMock
from ledger.contract import Contract
from ledger.model import Operation
from providers.port import Classified, Credential, Request
from providers.stripe_answers import MARKER
from providers.stripe_refunds import CONTRACT, StripeRefunds
from tests.providers.refund_operations import an_operation

WRITE = b"POST /v1/refunds "  # the marker of a write, for faults

NO_OWNER = "it has no GET /v1/account, so that it names nobody as the owner of a secret"
STATEFUL_MOCK_LACKS = {"owner": NO_OWNER}
LOCALSTRIPE_LACKS = {
    "owner": NO_OWNER,
    "preflight": "its charges do not say whether they are disputed, and the adapter takes no silence for a no",
    "codes": "its errors carry none, and a 404 that says nothing more may be anybody's",
    "keys": "it knows no idempotency keys, so that the contract of its rig has none either",
    "limit": "it refunds more than was paid",
    "listing": "its list of refunds takes no time as a bound",
}


class KeylessRefunds(StripeRefunds):
    """The adapter under the contract that localstripe keeps: only a look can settle an unknown.

    It honours no key, so that it stores no answer either, and there is no stored 500 to be rolled forward.
    """

    contract = CONTRACT.model_copy(
        update={
            "key": None,
            "roll_forward": 0.0,
            "sources": tuple(s for s in CONTRACT.sources if not s.term.startswith(("key.", "roll_forward"))),
        }
    )


@dataclass
class PeerRig:
    """The adapter, one peer, and what can go wrong in between."""

    provider: StripeRefunds
    server: Peer
    proxy: FaultProxy
    _away: ExitStack = field(default_factory=ExitStack)

    @property
    def credential(self) -> Credential:
        """No peer binds a secret to an account, so that any name will do."""
        return Credential("acct_default", False, SECRET)

    def operation(self, amount: int = 1000, paid: int = 50_000, **changes: Any) -> Operation:
        """An operation on a fresh payment, or on `target`."""
        target = changes.pop("target", None) or self.server.pay(paid)
        arguments = {"amount_minor": amount, "currency": "eur"}
        return an_operation(account="acct_default", target=target, arguments=arguments, **changes)

    async def request(self, operation: Operation) -> Request:
        """What would be sent."""
        return self.provider.build_request(operation, {})

    async def send(self, operation: Operation, *, allowed: bool = True, contract: Contract | None = None) -> Classified:
        """Send the operation's own request."""

        async def guard() -> bool:
            return allowed

        request, kept = await self.request(operation), contract or self.provider.contract
        return await self.provider.send(self.credential, operation, request, kept, guard, lambda: None)

    def effects(self, operation: Operation) -> list[str]:
        """The refunds that the peer's own list holds of this operation."""
        marker = str(operation.operation_id)
        return [refund["id"] for refund in self.server.refunds() if refund["metadata"].get(MARKER) == marker]

    def arrivals(self) -> int:
        """How many refunds have been asked for so far, by whomever."""
        return self.proxy.count(WRITE)

    @contextmanager
    def cut(self, when: Literal["before", "after"]) -> Iterator[Fault]:
        """The next refund is lost: before the peer has it, or after it was carried out. One must come."""
        fault = self.proxy.arm(CutRequest(after=WRITE) if when == "before" else CutReply(after=WRITE))
        try:
            yield fault
            fault.wait_fired()
        finally:
            self.proxy.disarm(fault)

    def break_receiver(self) -> None:
        """Nobody listens any more. A peer that was killed would have forgotten everything."""
        self._away.enter_context(self.proxy.down())

    def mend(self) -> None:
        """Somebody listens again."""
        self._away.close()


@dataclass(frozen=True)
class Stage:
    """What all tests of a peer share."""

    server: Peer
    proxy: FaultProxy


def _rig(
    test: pytest.FixtureRequest, adapter: type[StripeRefunds], stage: Stage, lacks: dict[str, str]
) -> Iterator[PeerRig]:
    for needed in test.node.iter_markers("needs"):
        if reason := lacks.get(needed.args[0]):
            test.applymarker(pytest.mark.xfail(reason=reason, raises=AssertionError, strict=True))
    rig = PeerRig(adapter(f"http://{LOOPBACK}:{stage.proxy.port}"), stage.server, stage.proxy)
    yield rig
    rig.mend()
    stage.proxy.disarm()


@pytest.fixture(scope="session")
def localstripe_stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with LocalStripe(tmp_path_factory.mktemp("localstripe")) as server, FaultProxy(server.port) as proxy:
        yield Stage(server, proxy)


@pytest.fixture(scope="session")
def stateful_mock_stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Skipped with its reason where npm has installed nothing; in CI it is not optional, and fails."""
    if StatefulMock.missing() and os.environ.get("CI") != "true":
        pytest.skip(StatefulMock.missing())
    with StatefulMock(tmp_path_factory.mktemp("stateful-mock")) as server, FaultProxy(server.port) as proxy:
        yield Stage(server, proxy)


@pytest.fixture
def localstripe_rig(localstripe_stage: Stage, request: pytest.FixtureRequest) -> Iterator[PeerRig]:
    yield from _rig(request, KeylessRefunds, localstripe_stage, LOCALSTRIPE_LACKS)


@pytest.fixture
def stateful_mock_rig(stateful_mock_stage: Stage, request: pytest.FixtureRequest) -> Iterator[PeerRig]:
    yield from _rig(request, StripeRefunds, stateful_mock_stage, STATEFUL_MOCK_LACKS)


@pytest.fixture(params=["localstripe", "stateful_mock"])
def peer_rig(request: pytest.FixtureRequest) -> PeerRig:
    """One peer after the other."""
    rig: PeerRig = request.getfixturevalue(f"{request.param}_rig")
    return rig
