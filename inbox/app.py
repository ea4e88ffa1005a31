"""The inbox's web application: one delivery is verified, kept in the ledger, and then answered with 200.

1. Nothing is kept of a delivery that is not verified, and 200 is said only after the commit: Stripe sends everything else
   again, for three days.
2. An event is a reason to look, never a fact: whoever forged one would cause a read at the provider and nothing else.
3. Every refusal is JSON with a rule and a sentence; nothing of what was sent is repeated in it, nor in a log line.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import structlog
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from ledger.errors import LedgerError, Refused, Unavailable
from ledger.model import InboxEvent
from providers.stripe_events import MAX_BODY, read_event

BODY_SECONDS = 10.0  # to send a body; a slow sender holds a connection no longer
HEADER = "stripe-signature"

log = structlog.get_logger()


class Bucket:
    """A token bucket: `rate` a second on average, twice as many at once. Says no, and never waits."""

    def __init__(self, rate: float, clock: Callable[[], float]) -> None:
        """`clock` tells seconds that only grow."""
        self._rate = rate
        self._most = max(2 * rate, 1.0)
        self._clock = clock
        self._left = self._most
        self._seen = clock()

    def take(self) -> bool:
        """Whether one more may come in now."""
        now = self._clock()
        self._left = min(self._most, self._left + (now - self._seen) * self._rate)
        self._seen = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


@dataclass(frozen=True)
class Inside:
    """What the application is given: everything behind the door."""

    keep: Callable[[InboxEvent], Awaitable[bool]]  # returns after the commit: True for a new event
    hint: Callable[[], Awaitable[None]]  # after an answer; never raises
    answers: Callable[[], Awaitable[None]]  # raises `Unavailable` when the ledger does not
    secrets: Callable[[], Sequence[str]]  # read anew for each delivery, so that a rotation needs no restart
    account: str  # whose endpoint it is
    clock: Callable[[], float]  # seconds since the epoch, for the time of a signature
    bucket: Bucket


def application(inside: Inside) -> Starlette:
    """The application; a reverse proxy before it brings TLS."""

    async def stripe(request: Request) -> JSONResponse:
        try:
            return await _deliver(request, inside)
        except Refused as refused:
            log.warning("webhook refused", rule=refused.rule)
            return _refusal(_CODES.get(refused.rule, 400), refused.rule, str(refused))
        except Unavailable:
            log.warning("webhook not kept: the ledger's Postgres did not answer")
            return _refusal(503, "ledger_silent", "not kept: send it again later")
        except LedgerError as error:
            log.error("webhook not kept", error=type(error).__name__, what=str(error))
            return _refusal(500, "broken", "not kept: send it again later")

    async def health(request: Request) -> JSONResponse:
        try:
            await inside.answers()
        except LedgerError:
            return _refusal(503, "ledger_silent", "the ledger's Postgres does not answer")
        return JSONResponse({"answers": True})

    return Starlette(
        routes=[Route("/stripe", stripe, methods=["POST"]), Route("/health", health, methods=["GET"])],
    )


async def _deliver(request: Request, inside: Inside) -> JSONResponse:
    if not inside.bucket.take():
        raise Refused("too_many", "more deliveries than this inbox accepts: send it again later")
    body = await body_of(request, MAX_BODY)
    # Exactly one: which of two was meant would be a guess.
    headers = request.headers.getlist(HEADER)
    header = headers[0] if len(headers) == 1 else ""
    event = read_event(body, header, inside.secrets(), inside.clock(), own_account=inside.account)
    new = await inside.keep(event)
    log.info("webhook kept" if new else "webhook kept before", event_id=event.event_id, type=event.type)
    # Also for one that was kept before: it comes again because an answer was lost, and the hint may have been as well.
    return JSONResponse({"event": event.event_id, "new": new}, background=BackgroundTask(inside.hint))


async def body_of(request: Request, most: int) -> bytes:
    """The raw bytes, `most` at most. What a header says about their number is believed only to refuse.

    Refused: `body_too_large`, `body_slow`.
    """
    told = request.headers.get("content-length", "")
    if told.isdecimal() and len(told) < 20 and int(told) > most:
        raise _too_large(most)
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for piece in request.stream():
                body += piece
                if len(body) > most:
                    raise _too_large(most)
    except (TimeoutError, ClientDisconnect) as error:
        raise Refused("body_slow", f"the body did not come within {BODY_SECONDS:.0f} s") from error
    return bytes(body)


def _too_large(most: int) -> Refused:
    return Refused("body_too_large", f"a body has at most {most} bytes")


# Of refusals that are not about the delivery itself. Stripe sends again whatever is not answered with 2xx.
_CODES = {"too_many": 429, "body_too_large": 413, "body_slow": 408, "secret_missing": 503, "secret_malformed": 503}


def _refusal(code: int, rule: str, words: str) -> JSONResponse:
    headers = {"Retry-After": "1"} if code == 429 else {}
    return JSONResponse({"error": {"rule": rule, "message": words}}, status_code=code, headers=headers)
