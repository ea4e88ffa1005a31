"""A server of the test's own that speaks Tryton's JSON-RPC badly on demand: it answers what a test tells it to, and counts."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from providers.port import Credential

PASSWORD = "open-sesame-17"
TOKEN = "c0ffee" * 8
# What a handler gives for a call: bytes as they are, or (status, body); anything else is the call's result.
Handler = Callable[[str, list[Any]], Any]


@dataclass
class RawTryton:
    """Logs in whoever has the password; other calls go to `handler`, which may be replaced at any time."""

    handler: Handler
    base_url: str = ""
    calls: list[tuple[str, list[Any]]] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    heads: list[str] = field(default_factory=list)
    logins: int = 0

    @property
    def credential(self) -> Credential:
        return Credential("erp/1", False, f"robot:{PASSWORD}", endpoint=self.base_url)

    def methods(self) -> list[str]:
        """The methods of all calls but logins, in order."""
        return [method for method, _ in self.calls]

    def revoke(self) -> None:
        """Forget every session."""
        self.tokens.clear()

    def answer(self, head: str, body: bytes) -> bytes:
        call = json.loads(body)
        method, params = call["method"], call["params"]
        self.heads.append(head)
        if method == "common.db.login":
            self.logins += 1
            if params != ["robot", {"password": PASSWORD}]:
                return http(401, b"<html>no</html>")
            self.tokens.append(f"{TOKEN}{len(self.tokens)}{self.logins}")
            return result([7, self.tokens[-1], None])
        self.calls.append((method, params))
        if not any(f"authorization: session {ticket(token)}".lower() in head.lower() for token in self.tokens):
            return http(401, b"")
        made = self.handler(method, params)
        if isinstance(made, bytes):
            return made
        if isinstance(made, tuple):
            return http(*made)
        return result(made)


def ticket(token: str) -> str:
    return base64.b64encode(f"robot:7:{token}".encode()).decode()


def http(status: int, body: bytes, kind: str = "application/json") -> bytes:
    head = f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + body


def result(value: Any) -> bytes:
    return http(200, json.dumps({"id": 1, "result": value}).encode())


def error(*parts: Any) -> bytes:
    return http(200, json.dumps({"id": 1, "error": list(parts)}).encode())


@asynccontextmanager
async def raw_tryton(handler: Handler = lambda method, params: None) -> AsyncIterator[RawTryton]:
    raw = RawTryton(handler)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            length = int(head.lower().partition("content-length:")[2].split("\r\n")[0])
            writer.write(raw.answer(head, await reader.readexactly(length)))
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    raw.base_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield raw
    finally:
        server.close()
