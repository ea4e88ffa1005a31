"""What can go wrong between a client and a server; `devstack.fault_proxy` makes it happen.

`after` is the marker: bytes that the client sends, found in either case of letters. They still go on to the server; the fault
concerns what follows them. Without a marker a fault takes a new connection from its first byte. `times` is how many
connections or requests it takes, None for all from now on. `fired` counts those in which it has done its harm; a client may
see the harm a moment earlier, so tests `wait_fired`.

| fault | the server hears | the client sees |
| --- | --- | --- |
| `Refuse` | nothing, not even a connection | an end as soon as it is connected |
| `CutRequest` | up to the marker and `passing` bytes, then an end | an end without an answer |
| `CutReply` | everything, and it has answered | `passing` bytes of the answer, then an end |
| `HoldReply` | everything, and it has answered | `passing` bytes of the answer; the rest when released |
| `HoldRequest` | up to the marker; the rest when released, also if the client has gone | silence until then |
| `BlackHole` | up to the marker | silence for ever |
| `DripReply` | everything | the answer a byte at a time |
| `ReplaceReply` | everything, or only up to the marker | another answer |

An end is a reset (RST), or with `reset=False` the orderly one (FIN).
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from devstack.child import DevstackError

if TYPE_CHECKING:
    from devstack.fault_proxy import Conversation, FaultProxy

_PATIENCE = 90.0


class Cut(Exception):
    """Raised where a conversation ends now; `fault` is told once the client's connection is gone."""

    def __init__(self, *, reset: bool, fault: "Fault | None" = None) -> None:
        """`reset` is RST, else FIN."""
        super().__init__()
        self.reset = reset
        self._fault = fault

    def tell(self) -> None:
        """The client's connection is gone."""
        if self._fault is not None:
            self._fault.note_fired()


@dataclass(eq=False, kw_only=True)
class Fault:
    """The base of all: lets everything pass. A subclass overrides what it disturbs; all of it runs in the proxy's thread."""

    after: bytes = b""
    times: int | None = 1
    fired: int = field(default=0, init=False)
    connects: ClassVar[bool] = True  # whether the server hears of a connection taken from its first byte
    _news: threading.Condition = field(default_factory=threading.Condition, init=False, repr=False)
    _proxy: "FaultProxy | None" = field(default=None, init=False, repr=False)

    def wait_fired(self, timeout: float = _PATIENCE, *, times: int = 1) -> None:
        """Returns once it has done its harm, `times` times in all; TimeoutError if not. A coroutine uses `asyncio.to_thread`."""
        self.wait_for(lambda: self.fired >= times, timeout, f"fired {times} times")

    def in_proxy(self, work: Coroutine[Any, Any, None]) -> None:
        """Stop taking new conversations, and do this in the proxy's thread; returns when it is done."""
        if self._proxy is None:
            work.close()
            raise DevstackError(f"{self} was never armed")
        self._proxy.disarm(self)
        self._proxy.call(work)

    def armed_by(self, proxy: "FaultProxy") -> None:
        """Its proxy, for good."""
        self._proxy = proxy

    def note_fired(self) -> None:
        """The harm is done, once more."""
        with self._news:
            self.fired += 1
            self._news.notify_all()

    def wait_for(self, true: Callable[[], bool], timeout: float, words: str) -> None:
        """Returns once `true()`, which is asked at every `notify`."""
        with self._news:
            if not self._news.wait_for(true, timeout):
                raise TimeoutError(f"{self} has not {words} in {timeout} s")

    def take(self, conversation: "Conversation") -> None:
        """It is this conversation's turn. Runs before the marker goes on to the server."""

    async def begin(self, conversation: "Conversation") -> None:
        """The marker has gone on to the server, or a new connection stands."""

    def holds(self, conversation: "Conversation") -> bool:
        """Whether the client's next bytes still concern this fault; if not, they may meet another one."""
        return True

    async def request(self, conversation: "Conversation", piece: bytes) -> None:
        """Bytes from the client, behind the marker."""
        await conversation.deliver(piece)

    async def request_ended(self, conversation: "Conversation") -> None:
        """The client will send no more."""
        conversation.end_delivery()

    async def reply(self, conversation: "Conversation", piece: bytes) -> None:
        """Bytes from the server."""
        await conversation.give_back(piece)

    async def reply_ended(self, conversation: "Conversation") -> None:
        """The server will send no more."""
        conversation.end_reply()


@dataclass(eq=False, kw_only=True)
class Refuse(Fault):
    """The connection is accepted and ended at once. For one that is not even accepted see `FaultProxy.down`."""

    reset: bool = True
    connects: ClassVar[bool] = False

    async def begin(self, conversation: "Conversation") -> None:
        """At once."""
        raise Cut(reset=self.reset, fault=self)


@dataclass(eq=False, kw_only=True)
class CutRequest(Fault):
    """The line dies while the request is under way. The server may still be busy with its part when this has fired."""

    passing: int = 0
    reset: bool = True

    async def begin(self, conversation: "Conversation") -> None:
        """With nothing to pass, here."""
        await self.request(conversation, b"")

    async def request(self, conversation: "Conversation", piece: bytes) -> None:
        """What may pass, and the end."""
        part = piece[: self.passing - conversation.passed]
        conversation.passed += len(part)
        await conversation.deliver(part)
        if conversation.passed >= self.passing:
            raise Cut(reset=self.reset, fault=self)


@dataclass(eq=False, kw_only=True)
class CutReply(Fault):
    """The answer is lost: the server has begun to answer, so it has done what was asked, and the client never learns."""

    passing: int = 0
    reset: bool = True

    async def reply(self, conversation: "Conversation", piece: bytes) -> None:
        """What may pass, and the end; an answer that is no longer than that passes whole and loses its end only."""
        part = piece[: self.passing - conversation.passed]
        conversation.passed += len(part)
        await conversation.give_back(part)
        if len(part) < len(piece) or conversation.passed >= self.passing:
            raise Cut(reset=self.reset, fault=self)

    async def reply_ended(self, conversation: "Conversation") -> None:
        """The server hung up without an answer of that length."""
        raise Cut(reset=self.reset, fault=self)


@dataclass(eq=False, kw_only=True)
class BlackHole(Fault):
    """The network swallows everything: no answer, no end."""

    connects: ClassVar[bool] = False

    async def begin(self, conversation: "Conversation") -> None:
        """From here on."""
        self.note_fired()

    async def request(self, conversation: "Conversation", piece: bytes) -> None:
        """Swallowed."""

    async def request_ended(self, conversation: "Conversation") -> None:
        """The client gave up; the server, if it was in the conversation, learns only that."""
        conversation.end_delivery()

    async def reply(self, conversation: "Conversation", piece: bytes) -> None:
        """Swallowed."""

    async def reply_ended(self, conversation: "Conversation") -> None:
        """Swallowed."""


@dataclass(eq=False, kw_only=True)
class DripReply(Fault):
    """The answer comes a byte at a time: each wait is short, the whole is long. Lasts as long as the connection."""

    pause: float = 0.05

    async def reply(self, conversation: "Conversation", piece: bytes) -> None:
        """One by one."""
        for byte in piece:
            await conversation.give_back(bytes([byte]))
            if conversation.passed == 0:
                self.note_fired()
            conversation.passed += 1
            await asyncio.sleep(self.pause)


@dataclass(eq=False, kw_only=True)
class ReplaceReply(Fault):
    """Another answer than the server's. Undelivered, it comes at once and ends the connection.

    Delivered, it comes when the server has answered, whose own words are swallowed until the client speaks again. An HTTP
    answer should say `Connection: close`, as where the server's own one ends is not known here.
    """

    answer: bytes
    deliver: bool = True

    async def begin(self, conversation: "Conversation") -> None:
        """Undelivered, here."""
        if not self.deliver:
            conversation.end_delivery()
            await conversation.give_back(self.answer)
            conversation.end_reply()
            self.note_fired()

    def holds(self, conversation: "Conversation") -> bool:
        """Until the client goes on after its answer."""
        return not self.deliver or conversation.passed == 0

    async def request(self, conversation: "Conversation", piece: bytes) -> None:
        """The rest of the request."""
        if self.deliver:
            await conversation.deliver(piece)

    async def reply(self, conversation: "Conversation", piece: bytes) -> None:
        """Swallowed; the first of it brings the other answer."""
        if self.deliver and conversation.passed == 0:
            conversation.passed = 1
            await conversation.give_back(self.answer)
            self.note_fired()

    async def reply_ended(self, conversation: "Conversation") -> None:
        """The server's end is passed on, if it is the answer's."""
        if self.deliver:
            conversation.end_reply()


@dataclass
class _Kept:
    """What is kept back of one conversation."""

    piece: bytearray = field(default_factory=bytearray)
    ended: bool = False
    let_go: bool = False


@dataclass(eq=False, kw_only=True)
class HoldReply(Fault):
    """The server has answered and the client waits; `release` lets the answer go on, also to a client that has gone."""

    passing: int = 0
    _kept: "dict[Conversation, _Kept]" = field(default_factory=dict, init=False, repr=False)

    def release(self) -> None:
        """Give back everything that is held, and hold nothing more."""
        self.in_proxy(self._release())

    def take(self, conversation: "Conversation") -> None:
        """From here on."""
        self._kept[conversation] = _Kept()

    def holds(self, conversation: "Conversation") -> bool:
        """Until released."""
        return conversation in self._kept

    async def reply(self, conversation: "Conversation", piece: bytes) -> None:
        """What may pass; the rest is kept."""
        kept = self._kept.get(conversation)
        if kept is None:
            await conversation.give_back(piece)
            return
        part = piece[: self.passing - conversation.passed]
        conversation.passed += len(part)
        await conversation.give_back(part)
        if len(part) < len(piece):
            if not kept.piece:
                self.note_fired()
            kept.piece += piece[len(part) :]

    async def reply_ended(self, conversation: "Conversation") -> None:
        """The end is kept with the rest."""
        kept = self._kept.get(conversation)
        if kept is None:
            conversation.end_reply()
        else:
            kept.ended = True

    async def _release(self) -> None:
        while self._kept:
            conversation, kept = self._kept.popitem()
            await conversation.give_back(bytes(kept.piece))
            if kept.ended:
                conversation.end_reply()


@dataclass(eq=False, kw_only=True)
class HoldRequest(Fault):
    """The request is under way and nobody knows; `release` delivers it, also for a client that has given up and gone."""

    _kept: "dict[Conversation, _Kept]" = field(default_factory=dict, init=False, repr=False)

    def release(self, timeout: float = _PATIENCE) -> None:
        """Deliver what is held and hold nothing more. Returns when the server has answered all of it; TimeoutError if not."""
        self.in_proxy(self._release())
        self.wait_for(lambda: not self._kept, timeout, "been answered")

    def take(self, conversation: "Conversation") -> None:
        """From here on."""
        self._kept[conversation] = _Kept()

    def holds(self, conversation: "Conversation") -> bool:
        """Until the server has answered what was held."""
        return conversation in self._kept

    async def request(self, conversation: "Conversation", piece: bytes) -> None:
        """Kept."""
        kept = self._kept[conversation]
        if kept.let_go:
            await conversation.deliver(piece)
            return
        if not kept.piece:
            self.note_fired()
        kept.piece += piece

    async def request_ended(self, conversation: "Conversation") -> None:
        """The end waits for the answer: a server that sees it too soon may drop what it has only just been given."""
        kept = self._kept.get(conversation)
        if kept is None:
            conversation.end_delivery()
        else:
            kept.ended = True

    async def reply(self, conversation: "Conversation", piece: bytes) -> None:
        """An earlier one, or the answer to what was held."""
        await conversation.give_back(piece)
        self._answered(conversation)

    async def reply_ended(self, conversation: "Conversation") -> None:
        """The server hung up, which is an answer to what was delivered."""
        conversation.end_reply()
        self._answered(conversation)

    def _answered(self, conversation: "Conversation") -> None:
        kept = self._kept.get(conversation)
        if kept is None or not kept.let_go:
            return
        if kept.ended:
            conversation.end_delivery()
        with self._news:
            del self._kept[conversation]
            self._news.notify_all()

    async def _release(self) -> None:
        for conversation, kept in list(self._kept.items()):
            kept.let_go = True
            if kept.piece:
                await conversation.deliver(bytes(kept.piece))
                continue
            if kept.ended:
                conversation.end_delivery()
            del self._kept[conversation]
