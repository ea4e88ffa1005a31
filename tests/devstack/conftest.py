"""What the tests of the Stripe stand-in share: one process per file, a new world per test, and the real SDK."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import stripe

from devstack.stripe_standin.control import StandInControl
from devstack.stripe_standin.launch import StandInProcess

TEST_KEY = "sk_test_fromthetests0000"
LIVE_KEY = "sk_live_fromthetests0000"
DAY = 86400


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandInProcess]:
    """The stand-in, as a process of its own."""
    stripe.enable_telemetry = False
    state: Path = tmp_path_factory.mktemp("standin") / "state.sqlite"
    with StandInProcess(state, secret_keys=(TEST_KEY, LIVE_KEY)) as running:
        yield running


@pytest.fixture
def world(process: StandInProcess) -> StandInControl:
    """Its control API, after a reset."""
    process.control.reset()
    return process.control


@pytest.fixture
def sdk(process: StandInProcess, world: StandInControl) -> stripe.StripeClient:
    """Stripe's client on the new world."""
    return client(process)


def client(process: StandInProcess, key: str = TEST_KEY, *, timeout: float = 5, **options: Any) -> stripe.StripeClient:
    """Stripe's client without retries of its own."""
    return stripe.StripeClient(
        key,
        base_addresses={"api": process.base_url},
        max_network_retries=0,
        http_client=stripe.RequestsClient(timeout=timeout),
        **options,
    )


def refund(
    sdk: stripe.StripeClient, pi: str, amount: int | None = 1000, key: str | None = None, **more: Any
) -> stripe.Refund:
    """A refund of a payment, with a marker; of all that is left if `amount` is None."""
    params: Any = {"payment_intent": pi, "metadata": {"operation_id": "op"}, **more}
    if amount is not None:
        params["amount"] = amount
    return sdk.v1.refunds.create(params, {"idempotency_key": key} if key else {})


def headers(answer: Any) -> dict[str, str]:
    """The headers of an answer or of an error, by lower-case name."""
    found: Any = answer.headers if isinstance(answer, stripe.StripeError) else answer.last_response.headers
    return {name.lower(): value for name, value in found.items()}
