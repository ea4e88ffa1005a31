"""The fault plan: which armed rule meets a request, and how an exchange is broken on the real connection."""

from __future__ import annotations

import asyncio
import socket
import struct
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from devstack.stripe_standin.call import Answer, Call, json_answer
from devstack.stripe_standin.errors import server_error
from devstack.stripe_standin.records import Records
from devstack.stripe_standin.rules import Match, Rule
from devstack.stripe_standin.world import World

HTML = {
    "html200": (200, "<!doctype html><title>Welcome</title><p>You are behind a captive portal.</p>"),
    "html502": (502, "<html><head><title>502 Bad Gateway</title></head><body>502 Bad Gateway</body></html>"),
    "html503": (503, "<html><head><title>503 Service Unavailable</title></head><body>503</body></html>"),
}


class FaultProtocol(H11Protocol):
    """Uvicorn's protocol, which also shows its transport to the application (in `scope["state"]`)."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.app_state = {**self.app_state, "transport": transport}
        super().connection_made(transport)


class Fired(NamedTuple):
    number: int
    rule: Rule


class Plan:
    """Rules are tried in the order in which they were made; the first that fits fires."""

    def __init__(self, world: World, records: Records) -> None:
        self.world = world
        self.records = records

    def fire(self, call: Call, *kinds: str, when: str | None = None) -> Fired | None:
        for number, rule, _ in self.records.rules():
            if rule.kind not in kinds or (when is not None and rule.when != when) or not meets(rule.match, call):
                continue
            with self.records.database.transaction():
                self.records.take_rule(number, rule, call.arrival, self.world.now())
                if rule.kind == "incomplete_list":
                    self.records.add_rule(_error_of_next_page(rule))
            return Fired(number, rule)
        return None


def meets(match: Match, call: Call) -> bool:
    if match.method is not None and match.method != call.method:
        return False
    if match.path is not None and not fnmatchcase(call.path, match.path):
        return False
    wanted: tuple[tuple[Any, Any], ...] = (
        (match.operation_id, call.marker),
        (match.idempotency_key, call.idempotency_key),
        (match.payment_intent, call.payment_intent),
        (match.replay, call.replay),
        (match.later_page, "starting_after" in call.params),
    )
    return all(asked is None or asked == found for asked, found in wanted)


def _error_of_next_page(rule: Rule) -> Rule:
    match = rule.match.model_copy(update={"method": "GET", "path": "/v1/refunds", "later_page": True})
    return Rule(kind="answer", when="before", answer_status=500, match=match)


class Holds:
    """Exchanges that hang until they are released; they end with this process."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[int, str], asyncio.Event] = {}

    def open(self, rule: int, request_id: str) -> asyncio.Event:
        event = self._waiting[(rule, request_id)] = asyncio.Event()
        return event

    async def wait(self, event: asyncio.Event, seconds: float | None) -> None:
        try:
            await asyncio.wait_for(event.wait(), seconds)
        except TimeoutError:
            pass
        finally:
            self._waiting = {key: other for key, other in self._waiting.items() if other is not event}

    def release(self, rule: int | None) -> int:
        """Frees the exchanges that one rule (or any) holds at this moment, and says how many."""
        held = [event for (number, _), event in self._waiting.items() if rule in (None, number)]
        for event in held:
            event.set()
        return len(held)


class Wire:
    """The connection of one exchange: how an answer is written, or how it is not."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.transport: asyncio.Transport = scope["state"]["transport"]
        self.receive = receive
        self.send = send

    @property
    def gone(self) -> bool:
        return self.transport.is_closing()

    async def write(self, status: int, headers: list[tuple[bytes, bytes]], content: bytes) -> None:
        await self._start(status, headers)
        await self.send({"type": "http.response.body", "body": content})

    async def drip(
        self, status: int, headers: list[tuple[bytes, bytes]], content: bytes, piece: int, interval: float
    ) -> None:
        """Headers at once, then a few bytes at a time: a read timeout of the caller never fires."""
        await self._start(status, headers)
        for start in range(0, len(content), piece):
            if self.gone:
                return
            last = start + piece >= len(content)
            await self.send(
                {"type": "http.response.body", "body": content[start : start + piece], "more_body": not last}
            )
            await asyncio.sleep(interval)

    async def truncate(self, status: int, headers: list[tuple[bytes, bytes]], content: bytes) -> None:
        await self._start(status, headers)
        await self.send({"type": "http.response.body", "body": content[: len(content) // 2], "more_body": True})
        await self.finish()

    async def finish(self) -> None:
        """Closes in good order (FIN), whether or not an answer is due."""
        self.transport.close()
        await self._closed()

    async def reset(self) -> None:
        """A real RST: with a linger time of zero the kernel throws the connection away."""
        sock: socket.socket = self.transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()
        await self._closed()

    async def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        await self.send({"type": "http.response.start", "status": status, "headers": headers})

    async def _closed(self) -> None:
        # Returning earlier would make uvicorn write a 500 of its own.
        while (await self.receive())["type"] != "http.disconnect":
            pass


def spoiled(rule: Rule) -> Answer:
    """The answer that a rule puts in the place of the real one."""
    if rule.kind in HTML:
        status, page = HTML[rule.kind]
        return Answer(status, page.encode(), {"Content-Type": "text/html; charset=utf-8"})
    return json_answer(rule.answer_status, server_error().body() if rule.body is None else rule.body, rule.headers)
