"""The line to Stripe: one SDK client per call of the port, over a wire that asks the guard and records everything.

It judges no answer: it tells what came back and how far the request got. What of it is not Stripe's is in wire.py.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

import httpx
import stripe

from ledger.errors import Broken
from providers import wire
from providers.port import AfterWrite, Credential, SendGuard
from providers.wire import Stopped, Wire, check_header, words

if TYPE_CHECKING:
    from stripe._v1_services import V1Services

# Telemetry writes a file into the home directory and tells about earlier calls in a header.
stripe.enable_telemetry = False

MAX_PAGES = 200
KEPT_HEADERS = ("request-id", "original-request", "idempotent-replayed", "stripe-should-retry", "retry-after", "date")


class Answer(wire.Answer):
    """What Stripe answered."""

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
            "type": words(error.get("type")),
            "code": words(error.get("code")),
            "param": words(error.get("param")),
            "message": words(error.get("message")),
            "request_id": words(self.headers.get("request-id")),
            "original_request": words(self.headers.get("original-request")),
            "replayed": self.replayed,
        }
        return self.told() | {name: value for name, value in told.items() if value is not None and value != ""}


@dataclass(frozen=True)
class Listing:
    """The items of a list. `complete` means: read page by page to the provider's own "no more"."""

    complete: bool
    items: tuple[dict[str, Any], ...]
    last: Answer
    why: str = ""  # why it is not complete


@dataclass(frozen=True)
class ListPage:
    """One page of a list; `items` is None where it could not be read."""

    items: list[dict[str, Any]] | None
    more: bool
    answer: Answer


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
        self._wire = _SdkWire(
            Wire(cut=(credential.secret,), kept_headers=KEPT_HEADERS, guard=guard, after_write=after_write)
        )
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
        await self._wire.http.close()

    async def ask(self, call: Callable[["V1Services"], Awaitable[object]]) -> Answer:
        """Run one SDK call; the recorded exchange is the answer, whatever the SDK makes of it."""
        self._wire.http.begin()
        try:
            async with asyncio.timeout_at(self._deadline):
                await call(self._client.v1)
        except Broken:
            raise
        except (stripe.StripeError, httpx.HTTPError, OSError, Stopped) as error:
            self._wire.http.end(error)
        except Exception as error:
            # The SDK may choke on an answer in ways of its own; before the first byte this is a bug of ours.
            if not self._wire.http.sent:
                raise
            self._wire.http.end(error)
        return Answer(**vars(self._wire.http.answer()))

    async def ask_page(self, call: Callable[["V1Services"], Awaitable[object]]) -> ListPage:
        """One page of a list; whether more follow is the provider's word."""
        answer = await self.ask(call)
        return ListPage(*_page(answer), answer)

    async def ask_all(self, page: Callable[["V1Services", dict[str, Any]], Awaitable[object]]) -> Listing:
        """Read a list to its end; a page that errs, repeats items or leaves open whether there are more stops it."""
        items: list[dict[str, Any]] = []
        known: set[str] = set()
        cursor: dict[str, Any] = {"limit": 100}
        answer = Answer(sent=False)
        for _ in range(MAX_PAGES):
            told = await self.ask_page(lambda v1: page(v1, dict(cursor)))
            found, answer = told.items, told.answer
            if found is None:
                return Listing(False, tuple(items), answer, "a page could not be read")
            if any(item["id"] in known for item in found):
                return Listing(False, tuple(items), answer, "the list repeats itself")
            items.extend(found)
            known.update(item["id"] for item in found)
            if not told.more:
                return Listing(True, tuple(items), answer)
            if not found:
                return Listing(False, tuple(items), answer, "an empty page says that there are more")
            cursor["starting_after"] = found[-1]["id"]
        return Listing(False, tuple(items), answer, f"more than {MAX_PAGES} pages")


class _SdkWire(stripe.HTTPClient):
    """The wire as the SDK wants a transport to look."""

    name = "httpx"

    def __init__(self, http: Wire) -> None:
        super().__init__()
        self.http = http

    async def request_async(
        self, method: str, url: str, headers: Mapping[str, str], post_data: Any = None
    ) -> tuple[bytes, int, Mapping[str, str]]:
        body, status, told = await self.http.request(method, url, headers, post_data)
        # The SDK warns about this header before it parses the body: under warnings-as-errors an answer would be lost.
        told.pop("stripe-notice", None)
        return body, status, told

    async def sleep_async(self, secs: float) -> None:
        """The SDK sleeps before a retry only, and nothing here is ever retried: the answer it has is the answer."""
        raise Stopped("retry")

    async def close_async(self) -> None:
        await self.http.close()


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
