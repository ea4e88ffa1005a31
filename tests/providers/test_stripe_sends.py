"""What one send says on the wire (key, version, account, parameters), no secret in its answer, what a replay says."""

import warnings
from typing import Any

import pytest

from ledger.errors import Broken
from ledger.model import Outcome, Standing
from providers.port import Credential
from providers.stripe_refunds import CONTRACT, StripeRefunds
from tests.providers.raw_stripe import (
    CREDENTIAL,
    SECRET,
    OperationOf,
    Serve,
    answering,
    http,
    recording,
    refund_of,
    send,
)

pytestmark = pytest.mark.asyncio


async def test_a_notice_is_no_reason_to_lose_an_answer(operation_of: OperationOf, serve: Serve) -> None:
    """The SDK warns about this header before it parses: keep the header, and its warning or its error comes up."""
    operation = operation_of()
    notice = http(200, refund_of(operation), "Stripe-Notice: please upgrade")
    async with serve(answering(notice)) as raw:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            seen = await send(raw.base_url, operation)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            await send(raw.base_url, operation)
    assert seen.outcome is Outcome.APPLIED
    assert [str(warning.message) for warning in caught if "upgrade" in str(warning.message)] == []


async def test_the_secret_never_leaves_in_an_answer(operation_of: OperationOf, serve: Serve) -> None:
    """Take the replacement out of `Wire.answer` and an echo of the key ends in the ledger."""
    echo = {"error": {"type": "invalid_request_error", "message": f"Invalid API Key provided: {SECRET}"}}
    async with serve(answering(http(401, echo, f"Request-Id: {SECRET}"))) as raw:
        seen = await send(raw.base_url, operation_of())
        assert f"Bearer {SECRET}".encode() in raw.seen
    assert seen.outcome is Outcome.NO_EFFECT
    assert "sesame" not in repr(seen) and "sesame" not in repr(CREDENTIAL)


@pytest.mark.parametrize("secret", ["", "sk_test_x\n", "sk test"])
async def test_a_secret_that_no_header_can_carry_is_broken(secret: str, operation_of: OperationOf) -> None:
    with pytest.raises(Broken):
        await send("http://127.0.0.1:9", operation_of(), credential=Credential("acct_1", False, secret))


async def test_headers_say_key_version_and_account_only_when_connected(operation_of: OperationOf, serve: Serve) -> None:
    operation = operation_of()
    async with serve(answering(http(200, refund_of(operation)))) as raw:
        await send(raw.base_url, operation)
        plain = bytes(raw.seen).lower()
        await send(raw.base_url, operation, credential=Credential("acct_1", False, SECRET, connected=True))
        connected = bytes(raw.seen).lower()[len(plain) :]
    assert f"idempotency-key: {operation.idempotency_key}".encode() in plain
    assert b"stripe-version: 2026-10-28.endive" in plain
    assert b"stripe-account" not in plain and b"stripe-account: acct_1" in connected
    assert b"telemetry" not in plain


async def test_the_frozen_version_and_parameters_are_what_is_sent(operation_of: OperationOf, serve: Serve) -> None:
    """A repeat after an upgrade sends the version of then, and equal bytes whatever order a database gave back."""
    operation = operation_of()
    adapter = StripeRefunds()
    request = adapter.build_request(operation, {})

    async def yes() -> bool:
        return True

    bodies = []
    for parameters in (request.parameters, dict(reversed(request.parameters.items()))):
        async with serve(answering(http(200, refund_of(operation)))) as raw:
            old = type(request)(request.operation, parameters, request.idempotency_key, request.account, "2020-08-27")
            await StripeRefunds(raw.base_url).send(CREDENTIAL, operation, old, CONTRACT, yes, lambda: None)
            head, _, body = bytes(raw.seen).partition(b"\r\n\r\n")
            assert b"2020-08-27" in head
            bodies.append(body)
    assert bodies[0] == bodies[1] and b"amount=1000" in bodies[0]


@pytest.mark.parametrize(
    "change",
    [{"amount": 999}, {"payment_intent": "pi_2"}, {"metadata": {}}, {"amount": None}],
    ids=["amount", "payment", "marker", "no amount"],
)
async def test_a_frozen_request_of_something_else_is_never_sent(
    change: dict[str, Any], operation_of: OperationOf, serve: Serve
) -> None:
    """Remove `_check_frozen` and a changed row moves other money than a person approved."""
    operation = operation_of()
    request = StripeRefunds().build_request(operation, {})
    other = type(request)(
        request.operation, request.parameters | change, request.idempotency_key, request.account, request.api_version
    )

    async def yes() -> bool:
        return True

    async with serve(recording) as raw:
        with pytest.raises(Broken):
            await StripeRefunds(raw.base_url).send(CREDENTIAL, operation, other, CONTRACT, yes, lambda: None)
        assert raw.connections == 0


@pytest.mark.parametrize("credential", [Credential("acct_2", False, SECRET), Credential("acct_1", True, SECRET)])
async def test_a_credential_of_another_account_or_mode_sends_nothing(
    credential: Credential, operation_of: OperationOf, serve: Serve
) -> None:
    async with serve(recording) as raw:
        with pytest.raises(Broken):
            await send(raw.base_url, operation_of(), credential=credential)
        assert raw.connections == 0


@pytest.mark.parametrize(
    ("again", "standing", "read_again"),
    [
        ({"status": "succeeded"}, Standing.GOOD, True),
        ({"status": "failed"}, Standing.VOID, True),
        ({"status": "paused"}, Standing.PENDING, False),
        ({"amount": 1}, Standing.PENDING, False),
        (None, Standing.PENDING, False),
    ],
)
async def test_a_replay_tells_the_past(
    again: dict[str, Any] | None, standing: Standing, read_again: bool, operation_of: OperationOf, serve: Serve
) -> None:
    """Take `_as_of_now` out of `send`: a refund that failed since is called good."""
    operation = operation_of()
    replay = http(200, refund_of(operation), "Idempotent-Replayed: true")
    later = http(200, refund_of(operation, **again)) if again is not None else http(404, {"error": {}})
    async with serve(answering(replay, later)) as raw:
        seen = await send(raw.base_url, operation)
        assert raw.connections == 2 and b"GET /v1/refunds/re_1" in raw.seen
    assert (seen.outcome, seen.receipt, seen.standing) == (Outcome.APPLIED, "re_1", standing)
    assert seen.detail["read_again"] is read_again
