"""One HTTP exchange at a time over a transport that asks the send guard and records everything.

Touches the network and nothing else. It judges no answer: it tells what came back and how far the request got.

1. The guard runs when the connection stands and no byte of the request was written; its "no" leaves the wire empty.
2. A guarded wire sends one request, once: no retry, no redirect, no connection of an earlier call.
3. Whatever ends an exchange becomes an `Answer`. What escapes: `Broken`, the caller's cancellation, and bugs, the last
   only before the first byte.
"""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from ssl import SSLContext
from types import TracebackType
from typing import Any, Self

import httpx

from ledger.errors import Broken
from providers.port import AfterWrite, SendGuard

MAX_BODY = 16 * 1024 * 1024
MAX_WORDS = 300
_WRITE_ENDED = frozenset(
    {
        "http11.send_request_headers.failed",
        "http11.send_request_body.failed",
        "http11.send_request_body.complete",
    }
)


@dataclass(frozen=True)
class Answer:
    """What came back for one request, and how far the request got. The secrets were cut out of everything in it."""

    sent: bool  # the first byte may have left
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)  # lower-case names, the kept ones only
    body: bytes = b""
    whole: bool = False  # the body was read to its end
    ended: str = ""  # what ended the exchange early, in one word or the name of an exception

    @cached_property
    def object(self) -> dict[str, Any] | None:
        """The JSON object of a whole body; None for everything else."""
        if not self.whole:
            return None
        try:
            parsed = json.loads(self.body)
        except (ValueError, RecursionError):
            return None
        return parsed if isinstance(parsed, dict) else None

    def told(self) -> dict[str, Any]:
        """How the exchange went, in words short enough to keep as evidence; without empty ones."""
        found = {"http_status": self.status, "sent": self.sent, "bytes_seen": len(self.body), "ended": self.ended}
        return {name: value for name, value in found.items() if value is not None and value != ""}


class Stopped(Exception):
    """Nothing may be sent any more."""


class Wire:
    """One client. The current exchange is in plain fields: no exception can lose it."""

    def __init__(
        self,
        *,
        cut: tuple[str, ...] = (),
        kept_headers: tuple[str, ...] = (),
        guard: SendGuard | None = None,
        after_write: AfterWrite | None = None,
    ) -> None:
        """`cut` are the secrets that no answer may repeat. With a guard the wire carries one request only."""
        self._cut = tuple(secret for secret in cut if secret)
        self._kept_headers = kept_headers
        self._guard = guard
        self._after_write = after_write
        self._guarded_once = False
        # No redirects and no HTTP/2: the trace below knows the events of one HTTP/1.1 request. The caller's total
        # deadline is the only timeout.
        self._http = httpx.AsyncClient(timeout=None, verify=_tls(), http2=False, follow_redirects=False)  # noqa: S113
        self.begin()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def begin(self) -> None:
        """Forget the exchange before."""
        self.sent = False
        self._written = False
        self._status: int | None = None
        self._headers: dict[str, str] = {}
        self._body = bytearray()
        self._whole = False
        self._ended = ""

    def end(self, error: BaseException) -> None:
        """Note what ended the exchange. After a whole answer it is only somebody's opinion of it."""
        if not self._whole:
            name = "deadline" if isinstance(error, TimeoutError) else type(error.__cause__ or error).__name__
            self._ended = self._ended or name

    def answer(self) -> Answer:
        """The exchange as recorded so far."""
        body, headers = bytes(self._body), dict(self._headers)
        for secret in self._cut:
            body = body.replace(secret.encode(), b"[secret]")
            headers = {name: value.replace(secret, "[secret]") for name, value in headers.items()}
        return Answer(self.sent, self._status, headers, body, self._whole, self._ended)

    async def ask(
        self,
        method: str,
        url: str,
        *,
        deadline: float,
        headers: Mapping[str, str] | None = None,
        content: bytes | None = None,
    ) -> Answer:
        """One whole exchange, whatever becomes of it, until `deadline` (of the running loop's clock)."""
        self.begin()
        try:
            async with asyncio.timeout_at(deadline):
                await self.request(method, url, headers or {}, content)
        except (httpx.HTTPError, httpx.InvalidURL, OSError, Stopped) as error:
            self.end(error)
        return self.answer()

    async def request(
        self, method: str, url: str, headers: Mapping[str, str], content: Any = None
    ) -> tuple[bytes, int, httpx.Headers]:
        """Send and read to the end; the exchange is recorded whatever is raised."""
        if self._guard is not None:
            if self._guarded_once:
                raise Broken("a guarded wire sends one request, once: a second one was tried")
            self._guarded_once = True
        request = self._http.build_request(
            method, url, headers=dict(headers), content=content, extensions={"trace": self._trace}
        )
        response = await self._http.send(request, stream=True)
        try:
            self.sent = True
            self._status = response.status_code
            self._headers = {name: response.headers[name] for name in self._kept_headers if name in response.headers}
            async for piece in response.aiter_bytes():
                self._body += piece
                if len(self._body) > MAX_BODY:
                    self._ended = "body_too_long"
                    raise Stopped(self._ended)
            self._whole = True
        finally:
            await response.aclose()
        return bytes(self._body), response.status_code, response.headers

    async def close(self) -> None:
        """Close every connection."""
        await self._http.aclose()

    async def _trace(self, event: str, info: Mapping[str, Any]) -> None:
        if event == "http11.send_request_headers.started":
            if info["request"].method == b"CONNECT":
                return  # our own proxy is asked for a tunnel; the request itself comes later
            if self._guard is not None:
                await self._ask_guard(self._guard)
            # From here to the first byte nothing yields to the event loop.
            self.sent = True
        elif event in _WRITE_ENDED and self.sent and not self._written:
            self._written = True
            if self._after_write is not None:
                self._after_write()

    async def _ask_guard(self, guard: SendGuard) -> None:
        try:
            allowed = await guard()
        except Broken:
            raise
        except Exception as error:
            self._ended = f"guard raised {type(error).__name__}"
            raise Stopped(self._ended) from error
        if not allowed:
            self._ended = "guard"
            raise Stopped(self._ended)


@cache
def _tls() -> SSLContext:
    """Loading the certificates costs tens of milliseconds, and a client is made for every call."""
    return httpx.create_ssl_context()


def words(value: object) -> str | None:
    """Untrusted text, printable and short; None stays None."""
    if value is None:
        return None
    return "".join(c if c.isprintable() else " " for c in str(value)[: MAX_WORDS * 2]).strip()[:MAX_WORDS]


def check_header(name: str, value: str) -> None:
    """Raise `Broken` unless the value can stand in a header, alone and as it is."""
    if not value or not value.isascii() or not value.isprintable() or " " in value:
        raise Broken(f"the {name} is empty or has characters that no header can carry")
