"""The wire under the SDK, against raw servers: the guard, how far a send got, deadlines, one request per send.

Each raw server records the bytes that arrived; they are the judge.
"""

import asyncio
import json
import warnings
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from devstack.ports import free_port
from ledger.contract import Contract
from ledger.errors import Broken, Unavailable
from ledger.model import Hint, Operation, Outcome, Standing
from providers.port import Classified, Credential
from providers.stripe_refunds import CONTRACT, StripeRefunds

pytestmark = pytest.mark.asyncio
OperationOf = Callable[..., Operation]
Serve = Callable[..., AbstractAsyncContextManager[Any]]
SECRET = "sk_test_sesame12345"  # noqa: S105
CREDENTIAL = Credential("acct_1", False, SECRET)


def within(seconds: float) -> Contract:
    return CONTRACT.model_copy(update={"timing": CONTRACT.timing.model_copy(update={"call_deadline": seconds})})


async def send(
    base_url: str,
    operation: Operation,
    *,
    guard: Any = None,
    seconds: float = 5.0,
    credential: Credential = CREDENTIAL,
    after_write: Callable[[], None] = lambda: None,
) -> Classified:
    async def yes() -> bool:
        return True

    adapter = StripeRefunds(base_url)
    request = adapter.build_request(operation)
    return await adapter.send(credential, operation, request, within(seconds), guard or yes, after_write)


def refund_of(operation: Operation, **changes: Any) -> dict[str, Any]:
    return {
        "id": "re_1", "object": "refund", "amount": operation.amount_minor, "currency": operation.currency,
        "payment_intent": operation.target, "status": "succeeded", "created": 1_767_225_600,
        "metadata": {"operation_id": str(operation.operation_id)},
    } | changes  # fmt: skip


async def read_request(reader: asyncio.StreamReader, raw: Any) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    raw.seen += head
    length = [line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
    body = await reader.readexactly(int(length[0].split(b":")[1])) if length else b""
    raw.seen += body
    return head + body


def http(status: int, body: Any, *headers: str) -> bytes:
    raw = json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} X", f"content-length: {len(raw)}", "content-type: application/json", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + raw


def answering(*answers: bytes) -> Any:
    """One connection after the other gets the next answer, and the last one for ever."""

    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, raw: Any) -> None:
        await read_request(reader, raw)
        writer.write(answers[min(raw.connections, len(answers)) - 1])
        await writer.drain()

    return reply


async def recording(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, raw: Any) -> None:
    raw.seen += await reader.read()


async def test_a_guard_that_says_no_leaves_the_wire_empty(operation_of: OperationOf, serve: Serve) -> None:
    """Break `_ask_guard` (ignore its answer): the server sees a whole request."""

    async def no() -> bool:
        return False

    written: list[int] = []
    async with serve(recording) as raw:
        seen = await send(raw.base_url, operation_of(), guard=no, after_write=lambda: written.append(1))
        await asyncio.sleep(0.05)
        assert (raw.connections, bytes(raw.seen)) == (1, b"")
    assert (seen.outcome, seen.hint, written) == (Outcome.NO_EFFECT, Hint.NOT_SENT, [])


async def test_a_guard_that_cannot_answer_is_a_no(operation_of: OperationOf, serve: Serve) -> None:
    """Break `_ask_guard` (let errors pass as yes) and bytes arrive."""

    async def away() -> bool:
        raise Unavailable("no database")

    async with serve(recording) as raw:
        seen = await send(raw.base_url, operation_of(), guard=away)
        await asyncio.sleep(0.05)
        assert bytes(raw.seen) == b""
    assert (seen.hint, seen.detail["ended"]) == (Hint.NOT_SENT, "guard raised Unavailable")


async def test_a_broken_guard_stops_everything(operation_of: OperationOf, serve: Serve) -> None:
    async def broken() -> bool:
        raise Broken("impossible row")

    async with serve(recording) as raw:
        with pytest.raises(Broken):
            await send(raw.base_url, operation_of(), guard=broken)
        assert bytes(raw.seen) == b""


async def test_the_guard_runs_last_before_the_first_byte_and_the_write_is_told_once(
    operation_of: OperationOf, serve: Serve
) -> None:
    """Move the guard to before the connection and the order goes red."""
    order: list[str] = []

    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, raw: Any) -> None:
        order.append("connected")
        await read_request(reader, raw)
        order.append("arrived")
        writer.write(http(200, refund_of(operation)))
        await writer.drain()

    async def guard() -> bool:
        await asyncio.sleep(0.05)
        order.append("guard")
        return True

    operation = operation_of()
    async with serve(reply) as raw:
        seen = await send(raw.base_url, operation, guard=guard, after_write=lambda: order.append("written"))
    assert seen.outcome is Outcome.APPLIED
    assert sorted(order) == ["arrived", "connected", "guard", "written"]
    assert order[:2] == ["connected", "guard"]


async def test_the_loop_does_not_turn_between_guard_and_first_byte(operation_of: OperationOf, serve: Serve) -> None:
    """Work that became ready during the guard runs after the write: put an await behind `_ask_guard` to see it red."""
    order: list[str] = []

    async def guard() -> bool:
        asyncio.get_running_loop().call_soon(order.append, "other work")
        return True

    operation = operation_of()
    async with serve(answering(http(200, refund_of(operation)))) as raw:
        original = asyncio.selector_events._SelectorSocketTransport.write  # type: ignore[attr-defined]

        def write(transport: Any, content: bytes) -> None:
            if content.startswith(b"POST"):
                order.append("first byte")
            original(transport, content)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(asyncio.selector_events._SelectorSocketTransport, "write", write)  # type: ignore[attr-defined]
            await send(raw.base_url, operation, guard=guard)
    assert order == ["first byte", "other work"]


async def test_a_refused_connection_is_not_sent(operation_of: OperationOf) -> None:
    seen = await send(f"http://127.0.0.1:{free_port()}", operation_of())
    assert (seen.outcome, seen.hint, seen.detail["sent"]) == (Outcome.NO_EFFECT, Hint.NOT_SENT, False)


async def test_a_tunnel_that_the_proxy_refuses_is_not_sent(
    operation_of: OperationOf, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The CONNECT of our own proxy is not the request: drop that line in `_trace` and the guard runs too early."""
    asked: list[int] = []

    async def guard() -> bool:
        asked.append(1)
        return True

    async with serve(answering(b"HTTP/1.1 403 No\r\ncontent-length: 0\r\n\r\n")) as raw:
        monkeypatch.setenv("HTTPS_PROXY", raw.base_url)
        seen = await send("https://payments.invalid", operation_of(), guard=guard)
        assert raw.seen.startswith(b"CONNECT payments.invalid:443")
    assert (seen.outcome, seen.hint, asked) == (Outcome.NO_EFFECT, Hint.NOT_SENT, [])


@pytest.mark.parametrize("drip", [False, True])
async def test_the_deadline_is_total(drip: bool, operation_of: OperationOf, serve: Serve) -> None:
    """A server that drips satisfies every read timeout: take `asyncio.timeout_at` away and this takes seconds."""
    written: list[int] = []

    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, raw: Any) -> None:
        await read_request(reader, raw)
        for byte in http(200, refund_of(operation)):
            await asyncio.sleep(0.05 if drip else 60)
            writer.write(bytes([byte]))

    operation = operation_of()
    async with serve(reply) as raw:
        began = asyncio.get_running_loop().time()
        seen = await send(raw.base_url, operation, seconds=0.4, after_write=lambda: written.append(1))
        assert asyncio.get_running_loop().time() - began < 2
        assert raw.connections == 1
    assert (seen.outcome, seen.hint, seen.detail["ended"]) == (Outcome.UNKNOWN, Hint.LOST, "deadline")
    assert written == [1]


async def test_a_deadline_before_the_first_byte_is_not_sent(operation_of: OperationOf, serve: Serve) -> None:
    async def slow() -> bool:
        await asyncio.sleep(60)
        return True

    async with serve(recording) as raw:
        seen = await send(raw.base_url, operation_of(), guard=slow, seconds=0.2)
        assert bytes(raw.seen) == b""
    assert (seen.outcome, seen.hint) == (Outcome.NO_EFFECT, Hint.NOT_SENT)


async def test_the_caller_s_cancellation_passes_through(operation_of: OperationOf, serve: Serve) -> None:
    """Swallow CancelledError in `ask` and a cancelled activity would record an answer that it must not have."""

    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, raw: Any) -> None:
        await read_request(reader, raw)
        arrived.set()
        await asyncio.sleep(60)

    arrived = asyncio.Event()
    async with serve(reply) as raw:
        task = asyncio.create_task(send(raw.base_url, operation_of()))
        await arrived.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_one_send_is_one_request_on_a_connection_of_its_own(operation_of: OperationOf, serve: Serve) -> None:
    """Set max_network_retries to 2 and the second request is Broken; drop `_guarded_once` too and it arrives."""
    operation = operation_of()
    retry = http(503, {"error": {"type": "api_error", "message": "x"}}, "Stripe-Should-Retry: true", "Request-Id: r")
    async with serve(answering(retry)) as raw:
        seen = await send(raw.base_url, operation)
        assert (raw.connections, raw.seen.count(b"POST /v1/refunds")) == (1, 1)
        assert seen.hint is Hint.STORED_ERROR
        await send(raw.base_url, operation)
        assert raw.connections == 2


async def test_a_server_that_closes_on_us_gets_no_second_request(operation_of: OperationOf, serve: Serve) -> None:
    """httpx would use a kept connection again; with one client per send there is none to be stale."""

    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, raw: Any) -> None:
        await read_request(reader, raw)

    async with serve(reply) as raw:
        for count in (1, 2):
            seen = await send(raw.base_url, operation_of())
            assert (seen.outcome, seen.hint) == (Outcome.UNKNOWN, Hint.LOST)
            assert raw.connections == count


async def test_a_redirect_is_not_followed(operation_of: OperationOf, serve: Serve) -> None:
    async with serve(answering(b"HTTP/1.1 307 X\r\nlocation: /v1/elsewhere\r\ncontent-length: 0\r\n\r\n")) as raw:
        seen = await send(raw.base_url, operation_of())
        assert (raw.connections, seen.hint) == (1, Hint.UNREADABLE)


async def test_a_notice_is_no_reason_to_lose_an_answer(operation_of: OperationOf, serve: Serve) -> None:
    """The SDK warns about this header before it parses: keep the header and, under -W error, the call ends early."""
    operation = operation_of()
    notice = http(200, refund_of(operation), "Stripe-Notice: please upgrade")
    async with serve(answering(notice)) as raw:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            seen = await send(raw.base_url, operation)
    assert (seen.outcome, "ended" in seen.detail) == (Outcome.APPLIED, False)


async def test_the_secret_never_leaves_in_an_answer(operation_of: OperationOf, serve: Serve) -> None:
    """Take the replacement out of `_Wire.answer` and an echo of the key ends in the ledger."""
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
    request = adapter.build_request(operation)

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
    request = StripeRefunds().build_request(operation)
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


async def test_many_sends_at_once_keep_their_own_guards(operation_of: OperationOf, serve: Serve) -> None:
    """Share one transport between sends and a "no" stops, or a "yes" frees, somebody else's request."""

    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, raw: Any) -> None:
        arrived = await read_request(reader, raw)
        mine = next(op for op in operations if op.idempotency_key.encode() in arrived)
        await asyncio.sleep(0.02)
        writer.write(http(200, refund_of(mine, id=f"re_{operations.index(mine)}")))
        await writer.drain()

    async def answer_of(number: int) -> bool:
        await asyncio.sleep(0.01 * (number % 3))
        return number % 2 == 0

    operations = [operation_of() for _ in range(20)]
    async with serve(reply) as raw:
        seen = await asyncio.gather(
            *(send(raw.base_url, op, guard=lambda n=n: answer_of(n)) for n, op in enumerate(operations))
        )
        assert raw.seen.count(b"POST /v1/refunds") == 10
    for number, got in enumerate(seen):
        expected = f"re_{number}" if number % 2 == 0 else None
        assert got.receipt == expected


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


async def test_an_endless_body_is_cut(operation_of: OperationOf, serve: Serve) -> None:
    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, raw: Any) -> None:
        await read_request(reader, raw)
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"100000\r\n" + b" " * 0x100000 + b"\r\n")
            await writer.drain()

    async with serve(reply) as raw:
        seen = await send(raw.base_url, operation_of())
    assert (seen.hint, seen.detail["ended"]) == (Hint.LOST, "body_too_long")
