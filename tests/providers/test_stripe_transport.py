"""The wire under the SDK, against raw servers: the guard, how far a send got, deadlines, one request per send.

Each raw server records the bytes that arrived; they are the judge.
"""

import asyncio
from typing import Any

import pytest

from devstack.ports import free_port
from ledger.errors import Broken, Unavailable
from ledger.model import Hint, Outcome
from providers.stripe_http import Session
from tests.providers.raw_stripe import (
    CREDENTIAL,
    OperationOf,
    Serve,
    answering,
    http,
    read_request,
    recording,
    refund_of,
    send,
)

pytestmark = pytest.mark.asyncio


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
    """Allow retries, let `sleep_async` sleep, drop `_guarded_once`: only all three together send a second time."""
    operation = operation_of()
    retry = http(503, {"error": {"type": "api_error", "message": "x"}}, "Stripe-Should-Retry: true", "Request-Id: r")
    async with serve(answering(retry)) as raw:
        seen = await send(raw.base_url, operation)
        assert (raw.connections, raw.seen.count(b"POST /v1/refunds")) == (1, 1)
        assert seen.hint is Hint.STORED_ERROR
        await send(raw.base_url, operation)
        assert raw.connections == 2


async def test_even_an_sdk_that_wants_to_retry_sends_once_and_keeps_its_answer(
    operation_of: OperationOf, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drop `sleep_async` of the wire: the second request is then `Broken`, and the answer of the first is lost."""
    monkeypatch.setattr("stripe.HTTPClient._should_retry", lambda *_: True)
    operation = operation_of()
    async with serve(answering(http(200, refund_of(operation)))) as raw:
        seen = await send(raw.base_url, operation)
        assert (raw.connections, seen.outcome) == (1, Outcome.APPLIED)


async def test_a_guarded_session_carries_one_request(serve: Serve) -> None:
    """Drop `_guarded_once`: a permission that was asked for once would carry two requests."""

    async def yes() -> bool:
        return True

    async with serve(answering(http(200, {"object": "account", "id": "acct_1"}))) as raw:
        session = Session(CREDENTIAL, base_url=raw.base_url, api_version="v", deadline_seconds=5, guard=yes)
        async with session:
            await session.ask(lambda v1: v1.accounts.retrieve_current_async())
            with pytest.raises(Broken):
                await session.ask(lambda v1: v1.accounts.retrieve_current_async())
        assert raw.connections == 1


@pytest.mark.parametrize("broken_at", [b"POST", b"amount="], ids=["headers", "body"])
async def test_a_write_that_breaks_is_told_and_unknown(
    broken_at: bytes, operation_of: OperationOf, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Take an event out of _WRITE_ENDED, and nobody reads the clock after a write that broke."""
    transport = asyncio.selector_events._SelectorSocketTransport  # type: ignore[attr-defined]
    original, written = transport.write, []

    def write(self: Any, content: bytes) -> None:
        if content.startswith(broken_at):
            raise RuntimeError("broken")
        original(self, content)

    monkeypatch.setattr(transport, "write", write)
    async with serve(recording) as raw:
        seen = await send(raw.base_url, operation_of(), after_write=lambda: written.append(1))
    assert (seen.outcome, seen.hint, written) == (Outcome.UNKNOWN, Hint.LOST, [1])


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
