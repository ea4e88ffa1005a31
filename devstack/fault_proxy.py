"""A TCP proxy that goes wrong on command, between any client and any server: a test can lose an answer for certain.

All of it runs in one thread of the test's process; clients and servers may be in any process.

1. Bytes pass both ways as they are until the marker of an armed fault (`devstack.faults`) goes by, coming from a client.
2. A fault begins before its marker goes on to the server: no answer to it can slip through.
3. A marker is found wherever packets are split, and in either case of letters.
4. A fault without a marker takes the next new connection from its first byte. One over which something has come back is
   out of its reach; one that has only just been opened may still be the next.
5. No protocol is understood, and nothing is seen inside TLS: after STARTTLS no marker is ever found.
"""

import asyncio
import socket
import struct
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Self, TypeVar

from devstack.child import DevstackError
from devstack.faults import Cut, Fault
from devstack.ports import LOOPBACK, free_port

_PATIENCE = 30.0
_PORT_TRIES = 20
_CHUNK = 65_536
LONGEST_MARKER = 1024
_CONNECT_SECONDS = 10.0
F = TypeVar("F", bound=Fault)
T = TypeVar("T")


class Conversation:
    """One client's connection, with all that went over it. Tests read the records; the methods are for faults."""

    def __init__(self, proxy: "FaultProxy", client: socket.socket) -> None:
        """Use the proxy's `conversations`."""
        self.sent = bytearray()
        """What the client sent."""
        self.delivered = bytearray()
        """What of it went to the server."""
        self.answered = bytearray()
        """What the server sent."""
        self.returned = bytearray()
        """What of it went to the client."""
        self.passed = 0
        """How far the current fault has come, by its own count."""
        self._proxy = proxy
        self._client = client
        self._upstream: socket.socket | None = None
        self._fault: Fault | None = None
        self._tail = b""
        # What was held and is released must stay ahead of new bytes that are already coming in behind it.
        self._delivery, self._return = asyncio.Lock(), asyncio.Lock()

    async def deliver(self, piece: bytes) -> None:
        """On to the server; bytes for a server that is gone are lost, as they would be without a proxy."""
        async with self._delivery:
            if self._upstream is not None and piece:
                with suppress(OSError):
                    self.delivered += piece
                    await asyncio.get_running_loop().sock_sendall(self._upstream, piece)

    async def give_back(self, piece: bytes) -> None:
        """On to the client, if it is still there."""
        async with self._return:
            if piece:
                with suppress(OSError):
                    self.returned += piece
                    await asyncio.get_running_loop().sock_sendall(self._client, piece)

    def end_delivery(self) -> None:
        """Tell the server that nothing more will come."""
        if self._upstream is not None:
            with suppress(OSError):
                self._upstream.shutdown(socket.SHUT_WR)

    def end_reply(self) -> None:
        """Tell the client that nothing more will come."""
        with suppress(OSError):
            self._client.shutdown(socket.SHUT_WR)

    async def run(self) -> None:
        """Until both sides have ended, or a fault has cut them off; dropped from outside, it ends with a reset."""
        orderly = False
        try:
            try:
                await self._talk()
            except* Cut as cuts:
                await self._cut(_first(cuts))
            orderly = True
        finally:
            self._close(reset=not orderly)

    async def _cut(self, cut: Cut) -> None:
        if cut.reset:
            self._close(reset=True)
            cut.tell()
            return
        self.end_reply()
        if self._upstream is not None:
            _close(self._upstream, reset=False)
        cut.tell()
        # Closed with bytes unread, the kernel would send a reset and not an end.
        while await _receive(self._client):
            pass

    async def _talk(self) -> None:
        self._fault = self._proxy.claim_connection()
        if self._fault is not None:
            self._fault.take(self)
        if self._fault is None or self._fault.connects:
            self._upstream = await self._connect()
        if self._fault is not None:
            await self._fault.begin(self)
        async with asyncio.TaskGroup() as pumps:
            pumps.create_task(self._pump_requests())
            if self._upstream is not None:
                pumps.create_task(self._pump_replies(self._upstream))

    async def _connect(self) -> socket.socket:
        upstream = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        upstream.setblocking(False)
        upstream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                await asyncio.get_running_loop().sock_connect(upstream, self._proxy.address)
        except OSError as error:
            upstream.close()
            raise Cut(reset=True) from error
        return upstream

    async def _pump_requests(self) -> None:
        while piece := await _receive(self._client):
            self.sent += piece
            await self._forward(piece)
        if self._fault is not None:
            await self._fault.request_ended(self)
        else:
            self.end_delivery()

    async def _forward(self, piece: bytes) -> None:
        while piece:
            if self._fault is not None and self._fault.holds(self):
                await self._fault.request(self, piece)
                return
            self._fault = None
            found = self._proxy.claim(self._tail + piece, len(self._tail))
            if found is None:
                self._tail = (self._tail + piece)[-LONGEST_MARKER:]
                await self.deliver(piece)
                return
            fault, end = found
            head, piece = piece[:end], piece[end:]
            self._tail = b""
            self.passed = 0
            fault.take(self)
            self._fault = fault
            await self.deliver(head)
            await fault.begin(self)

    async def _pump_replies(self, upstream: socket.socket) -> None:
        while True:
            try:
                piece = await asyncio.get_running_loop().sock_recv(upstream, _CHUNK)
            except OSError as error:
                raise Cut(reset=True) from error
            if not piece:
                break
            self.answered += piece
            if self._fault is not None:
                await self._fault.reply(self, piece)
            else:
                await self.give_back(piece)
        if self._fault is not None:
            await self._fault.reply_ended(self)
        else:
            self.end_reply()

    def _close(self, *, reset: bool) -> None:
        _close(self._client, reset=reset)
        if self._upstream is not None:
            _close(self._upstream, reset=reset)


class FaultProxy:
    """Listens on a loopback port in front of `upstream`; as a context manager it is started and stopped."""

    def __init__(self, upstream: int | tuple[str, int]) -> None:
        """`upstream` is a port on loopback, or host and port; it may be set anew at any time, for connections to come."""
        self.upstream = upstream
        self.conversations: list[Conversation] = []
        """All connections that were accepted, in that order."""
        self.port = 0
        self._armed: list[Fault] = []
        self._hits: dict[Fault, int] = {}
        self._lock = threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault proxy", daemon=True)
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._talks: set[asyncio.Task[None]] = set()
        self._broken: list[BaseException] = []

    def start(self) -> None:
        """Returns once it listens on `port`, which stays the same for good."""
        self._thread.start()
        for remaining in reversed(range(_PORT_TRIES)):
            self.port = free_port()
            try:
                self.call(self._listen())
            except OSError:
                if not remaining:
                    raise
            else:
                return

    def stop(self) -> None:
        """End all connections. Raises what went wrong in the proxy itself, if anything did."""
        if not self._thread.is_alive():
            self._loop.close()
            return
        self.call(self._deafen())
        self.drop_connections()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_PATIENCE)
        self._loop.close()
        if self._broken:
            raise DevstackError("the fault proxy itself broke") from self._broken[0]

    def arm(self, fault: F) -> F:
        """From now on, until it has taken as many as it may; the fault, to wait on."""
        if len(fault.after) > LONGEST_MARKER:
            raise DevstackError(f"a marker may have {LONGEST_MARKER} bytes")
        fault.armed_by(self)
        with self._lock:
            self._armed.append(fault)
        return fault

    def disarm(self, *faults: Fault) -> None:
        """Take no more conversations: these faults, or all. What they have begun goes on."""
        with self._lock:
            self._armed = [fault for fault in self._armed if faults and fault not in faults]

    def count(self, marker: bytes) -> int:
        """How often clients have sent these bytes, in either case of letters."""
        return sum(bytes(talk.sent).lower().count(marker.lower()) for talk in self.conversations)

    @contextmanager
    def down(self) -> Iterator[None]:
        """Nobody listens meanwhile: new connections are refused by the system. Connections that stand are left alone."""
        self.call(self._deafen())
        try:
            yield
        finally:
            self.call(self._listen())

    def drop_connections(self) -> None:
        """Reset all connections that stand, as a restarted gateway does to idle ones."""
        self.call(self._drop())

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    @property
    def address(self) -> tuple[str, int]:
        """The upstream's host and port."""
        return (LOOPBACK, self.upstream) if isinstance(self.upstream, int) else self.upstream

    def claim(self, text: bytes, old: int) -> tuple[Fault, int] | None:
        """The armed fault whose marker ends first behind the `old` bytes, and where; from now on it is the caller's."""
        letters = text.lower()
        with self._lock:
            found: tuple[Fault, int] | None = None
            for fault in self._armed:
                marker = fault.after.lower()
                at = letters.find(marker, max(0, old + 1 - len(marker))) if marker else -1
                if at >= 0 and (found is None or at + len(marker) - old < found[1]):
                    found = fault, at + len(marker) - old
            if found is not None:
                self._spend(found[0])
            return found

    def claim_connection(self) -> Fault | None:
        """The first armed fault without a marker, if there is one; from now on it is the caller's."""
        with self._lock:
            for fault in self._armed:
                if not fault.after:
                    self._spend(fault)
                    return fault
        return None

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Do this in the proxy's thread and return what it returns."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_PATIENCE)

    def _spend(self, fault: Fault) -> None:
        self._hits[fault] = self._hits.get(fault, 0) + 1
        if self._hits[fault] == fault.times:
            self._armed.remove(fault)

    async def _listen(self) -> None:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((LOOPBACK, self.port))
            listener.listen(128)
            listener.setblocking(False)
        except BaseException:
            listener.close()
            raise
        self._listener = listener
        self._accepting = self._loop.create_task(self._accept(listener))

    async def _deafen(self) -> None:
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.wait([self._accepting])
        if self._listener is not None:
            self._listener.close()

    async def _accept(self, listener: socket.socket) -> None:
        while True:
            client, _ = await self._loop.sock_accept(listener)
            client.setblocking(False)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            talk = Conversation(self, client)
            self.conversations.append(talk)
            task = self._loop.create_task(talk.run())
            self._talks.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._talks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._broken.append(error)

    async def _drop(self) -> None:
        for task in list(self._talks):
            task.cancel()
        if self._talks:
            await asyncio.wait(list(self._talks))


async def _receive(sock: socket.socket) -> bytes:
    """The next bytes; nothing when the other side has ended, in whatever way."""
    try:
        return await asyncio.get_running_loop().sock_recv(sock, _CHUNK)
    except OSError:
        return b""


def _close(sock: socket.socket, *, reset: bool) -> None:
    if reset:
        with suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def _first(cuts: BaseExceptionGroup[Cut]) -> Cut:
    """Both directions may have been cut at once; one of them speaks for both."""
    first = cuts.exceptions[0]
    return first if isinstance(first, Cut) else _first(first)
