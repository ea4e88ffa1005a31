"""The line to Stripe: one SDK client per call of the port, over a transport that asks the guard and records everything.

Touches the network and nothing else. It judges no answer: it tells what came back and how far the request got.

1. The guard runs when the connection stands and no byte of the request was written; its "no" leaves the wire empty.
2. A guarded session sends one request, once: no retry, no redirect, no connection of an earlier call.
3. Whatever ends an exchange becomes an `Answer`. What escapes: `Broken`, the caller's cancellation, and bugs, the last
   only before the first byte.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from ssl import SSLContext
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

import httpx
import stripe

from ledger.errors import Broken
from providers.port import AfterWrite, Credential, SendGuard

if TYPE_CHECKING:
    from stripe._v1_services import V1Services

# Telemetry writes a file into the home directory and tells about earlier calls in a header.
stripe.enable_telemetry = False

MAX_BODY = 16 * 1024 * 1024
MAX_PAGES = 200
MAX_WORDS = 300
KEPT_HEADERS = ("request-id", "original-request", "idempotent-replayed", "stripe-should-retry", "retry-after", "date")
_WRITE_ENDED = frozenset(
    {
        "http11.send_request_headers.failed",
        "http11.send_request_body.failed",
        "http11.send_request_body.complete",
    }
)


@dataclass(frozen=True)
class Answer:
    """What came back for one request, and how far the request got. The secret was cut out of everything in it."""

    sent: bool  # the first byte may have left
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)  # lower-case names, KEPT_HEADERS only
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

    @property
    def error(self) -> dict[str, str]:
        """The texts of Stripe's error object; empty when the answer carries none, or one whose shape we do not know."""
        found = (self.object or {}).get("error")
        if not isinstance(found, dict):
            return {}
        told = {name: found[name] for name in ("type", "code", "param", "message") if found.get(name) is not None}
        return told if all(isinstance(text, str) for text in told.values()) else {}

    @property
    def replayed(self) -> bool:
        """Whether Stripe says that it executed nothing now and repeated the stored answer of this key."""
        return self.headers.get("idempotent-replayed", "").lower() == "true"

    def detail(self) -> dict[str, Any]:
        """The evidence worth keeping, short, printable, and without the secret."""
        error = self.error
        told: dict[str, Any] = {
            "http_status": self.status,
            "type": words(error.get("type")),
            "code": words(error.get("code")),
            "param": words(error.get("param")),
            "message": words(error.get("message")),
            "request_id": words(self.headers.get("request-id")),
            "original_request": words(self.headers.get("original-request")),
            "replayed": self.replayed,
            "sent": self.sent,
            "bytes_seen": len(self.body),
            "ended": self.ended,
        }
        return {name: value for name, value in told.items() if value is not None and value != ""}


@dataclass(frozen=True)
class Listing:
    """The items of a list. `complete` means: read page by page to the provider's own "no more"."""

    complete: bool
    items: tuple[dict[str, Any], ...]
    last: Answer
    why: str = ""  # why it is not complete


def words(value: object) -> str | None:
    """Untrusted text, printable and short; None stays None."""
    if value is None:
        return None
    return "".join(c if c.isprintable() else " " for c in str(value)[: MAX_WORDS * 2]).strip()[:MAX_WORDS]


class Session:
    """One call of the port: its credential, its connections, its total deadline.

    With a guard it can carry one request only. Use as an async context manager.
    """

    def __init__(
        self,
        credential: Credential,
        *,
        base_url: str | None,
        api_version: str,
        deadline_seconds: float,
        guard: SendGuard | None = None,
        after_write: AfterWrite | None = None,
    ) -> None:
        check_header("secret", credential.secret)
        check_header("account", credential.account)
        self._wire = _Wire(credential.secret, guard, after_write)
        self._deadline = asyncio.get_running_loop().time() + deadline_seconds
        self._client = stripe.StripeClient(
            credential.secret,
            # Only for connected accounts: a key needs no header to act for the account that it belongs to.
            stripe_account=credential.account if credential.connected else None,
            stripe_version=api_version,
            base_addresses={"api": base_url.rstrip("/")} if base_url else None,
            max_network_retries=0,
            http_client=self._wire,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._wire.close_async()

    async def ask(self, call: Callable[["V1Services"], Awaitable[object]]) -> Answer:
        """Run one SDK call; the recorded exchange is the answer, whatever the SDK makes of it."""
        self._wire.begin()
        try:
            async with asyncio.timeout_at(self._deadline):
                await call(self._client.v1)
        except Broken:
            raise
        except (stripe.StripeError, httpx.HTTPError, OSError, _Stopped) as error:
            self._wire.end(error)
        except Exception as error:
            # The SDK may choke on an answer in ways of its own; before the first byte this is a bug of ours.
            if not self._wire.sent:
                raise
            self._wire.end(error)
        return self._wire.answer()

    async def ask_all(self, page: Callable[["V1Services", dict[str, Any]], Awaitable[object]]) -> Listing:
        """Read a list to its end; a page that errs, repeats items or leaves open whether there are more stops it."""
        items: list[dict[str, Any]] = []
        known: set[str] = set()
        cursor: dict[str, Any] = {"limit": 100}
        answer = Answer(sent=False)
        for _ in range(MAX_PAGES):
            answer = await self.ask(lambda v1: page(v1, dict(cursor)))
            found, more = _page(answer)
            if found is None:
                return Listing(False, tuple(items), answer, "a page could not be read")
            if any(item["id"] in known for item in found):
                return Listing(False, tuple(items), answer, "the list repeats itself")
            items.extend(found)
            known.update(item["id"] for item in found)
            if not more:
                return Listing(True, tuple(items), answer)
            if not found:
                return Listing(False, tuple(items), answer, "an empty page says that there are more")
            cursor["starting_after"] = found[-1]["id"]
        return Listing(False, tuple(items), answer, f"more than {MAX_PAGES} pages")


class _Stopped(Exception):
    """Nothing may be sent any more."""


class _Wire(stripe.HTTPClient):
    """The transport under the SDK. The current exchange is in plain fields: no exception can lose it."""

    name = "httpx"

    def __init__(self, secret: str, guard: SendGuard | None, after_write: AfterWrite | None) -> None:
        super().__init__()
        self._secret = secret
        self._guard = guard
        self._after_write = after_write
        self._guarded_once = False
        # No redirects and no HTTP/2: the trace below knows the events of one HTTP/1.1 request. The session's total
        # deadline is the only timeout.
        self._http = httpx.AsyncClient(timeout=None, verify=_tls(), http2=False, follow_redirects=False)  # noqa: S113
        self.begin()

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
        """Note what ended the exchange. After a whole answer it is only the SDK's opinion of it."""
        if not self._whole:
            name = "deadline" if isinstance(error, TimeoutError) else type(error.__cause__ or error).__name__
            self._ended = self._ended or name

    def answer(self) -> Answer:
        """The exchange as recorded so far."""
        secret = self._secret.encode()
        headers = {name: value.replace(self._secret, "[secret]") for name, value in self._headers.items()}
        body = bytes(self._body).replace(secret, b"[secret]")
        return Answer(self.sent, self._status, headers, body, self._whole, self._ended)

    async def request_async(
        self, method: str, url: str, headers: Mapping[str, str], post_data: Any = None
    ) -> tuple[bytes, int, Mapping[str, str]]:
        if self._guard is not None:
            if self._guarded_once:
                raise Broken("a guarded session sends one request, once: the SDK tried a second one")
            self._guarded_once = True
        request = self._http.build_request(
            method, url, headers=dict(headers), content=post_data, extensions={"trace": self._trace}
        )
        response = await self._http.send(request, stream=True)
        try:
            self.sent = True
            self._status = response.status_code
            self._headers = {name: response.headers[name] for name in KEPT_HEADERS if name in response.headers}
            async for piece in response.aiter_bytes():
                self._body += piece
                if len(self._body) > MAX_BODY:
                    self._ended = "body_too_long"
                    raise _Stopped(self._ended)
            self._whole = True
        finally:
            await response.aclose()
        # The SDK warns about this header before it parses the body: under warnings-as-errors an answer would be lost.
        response.headers.pop("stripe-notice", None)
        return bytes(self._body), response.status_code, response.headers

    async def sleep_async(self, secs: float) -> None:
        """The SDK sleeps before a retry only, and nothing here is ever retried: the answer it has is the answer."""
        raise _Stopped("retry")

    async def close_async(self) -> None:
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
            raise _Stopped(self._ended) from error
        if not allowed:
            self._ended = "guard"
            raise _Stopped(self._ended)


@cache
def _tls() -> SSLContext:
    """Loading the certificates costs tens of milliseconds, and a client is made for every call."""
    return httpx.create_ssl_context()


def check_header(name: str, value: str) -> None:
    """Raise `Broken` unless the value can stand in a header: the SDK replaces an empty key by one of its own making."""
    if not value or not value.isascii() or not value.isprintable() or " " in value:
        raise Broken(f"the {name} is empty or has characters that no header can carry")


def _page(answer: Answer) -> tuple[list[dict[str, Any]] | None, bool]:
    body = answer.object
    if answer.status != 200 or body is None or body.get("object") != "list":
        return None, False
    found, more = body.get("data"), body.get("has_more")
    if not isinstance(found, list) or not isinstance(more, bool):
        return None, False
    if not all(isinstance(item, dict) and isinstance(item.get("id"), str) for item in found):
        return None, False
    return cast("list[dict[str, Any]]", found), more
