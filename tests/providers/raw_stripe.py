"""Raw servers' answers about refunds, byte by byte, and a send to such a server."""

import asyncio
import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from ledger.contract import Contract
from ledger.model import Operation
from providers.port import Classified, Credential
from providers.stripe_refunds import CONTRACT, StripeRefunds

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
    request = adapter.build_request(operation, {})
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
