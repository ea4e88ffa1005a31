"""The fault proxy, byte for byte, in front of a small server of our own. Real servers: `test_fault_proxy_real`."""

import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from devstack.child import DevstackError
from devstack.fault_proxy import FaultProxy
from devstack.faults import (
    BlackHole,
    CutReply,
    CutRequest,
    DripReply,
    Fault,
    HoldReply,
    HoldRequest,
    Refuse,
    ReplaceReply,
)
from devstack.ports import LOOPBACK

PATIENCE = 30.0
GREETING = b"hello\n"


class Lines(socketserver.ThreadingTCPServer):
    """Answers `heard LINE` to each line, and remembers what it heard."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, *, greeting: bytes = b"") -> None:
        self.heard: list[bytes] = []
        self.ended = threading.Semaphore(0)
        self.greeting = greeting
        super().__init__((LOOPBACK, 0), _Line)

    @property
    def port(self) -> int:
        return int(self.server_address[1])


class _Line(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        server: Any = self.server
        try:
            self.wfile.write(server.greeting)
            while line := self.rfile.readline():
                server.heard.append(line)
                self.wfile.write(b"heard " + line)
        except OSError:
            pass
        finally:
            server.ended.release()


@pytest.fixture
def lines() -> Iterator[Lines]:
    """The small server."""
    with _serving(Lines()) as server:
        yield server


@pytest.fixture
def proxy(lines: Lines) -> Iterator[FaultProxy]:
    """In front of it."""
    with FaultProxy(lines.port) as started:
        yield started


def test_without_faults_everything_passes_both_ways_and_is_recorded(proxy: FaultProxy, lines: Lines) -> None:
    with _client(proxy) as first, _client(proxy) as second:
        assert _ask(first, b"one\n") == b"heard one\n"
        big = b"x" * 3_000_000 + b"\n"
        second.sendall(big)
        assert _read(second, len(big) + 6) == b"heard " + big
        first.shutdown(socket.SHUT_WR)
        assert _read(first) == b""
    assert [bytes(talk.sent) for talk in proxy.conversations] == [b"one\n", big]
    talk = proxy.conversations[0]
    assert [bytes(one) for one in (talk.delivered, talk.answered, talk.returned)] == [b"one\n"] + [b"heard one\n"] * 2
    assert proxy.count(b"ONE\n") == 1


def test_a_lost_answer_was_given_and_never_seen(proxy: FaultProxy, lines: Lines) -> None:
    lost = proxy.arm(CutReply(after=b"two\n"))
    with _client(proxy) as client:
        assert _ask(client, b"one\n") == b"heard one\n"
        with pytest.raises(ConnectionResetError):
            _ask(client, b"two\n")
    lost.wait_fired()
    assert lines.heard == [b"one\n", b"two\n"]
    assert proxy.conversations[0].answered == b"heard one\nheard two\n"
    assert proxy.conversations[0].returned == b"heard one\n"
    with _client(proxy) as client:
        assert _ask(client, b"two\n") == b"heard two\n", "it takes one request and no more"


def test_an_orderly_end_is_one_and_part_of_an_answer_may_pass(proxy: FaultProxy, lines: Lines) -> None:
    proxy.arm(CutReply(after=b"two\n", passing=4, reset=False))
    with _client(proxy) as client:
        client.sendall(b"two\n")
        assert _read(client) == b"hear"
    assert lines.heard == [b"two\n"]


@pytest.mark.parametrize("reset", [True, False])
def test_a_request_is_cut_where_it_was_said(proxy: FaultProxy, lines: Lines, reset: bool) -> None:
    cut = proxy.arm(CutRequest(after=b"head ", passing=3, reset=reset))
    with _client(proxy) as client:
        client.sendall(b"head body and more\n" + b"x" * 1_000_000)
        if reset:
            with pytest.raises(ConnectionResetError):
                _read(client)
        else:
            assert _read(client) == b""
        cut.wait_fired()
    assert lines.ended.acquire(timeout=PATIENCE)
    assert proxy.conversations[0].delivered == b"head bod"
    # A reset may reach the server before it has read a line that was never ended.
    assert lines.heard in ([b"head bod"], []) if reset else lines.heard == [b"head bod"]


def test_a_marker_is_found_in_either_case_and_however_packets_are_split(proxy: FaultProxy, lines: Lines) -> None:
    cut = proxy.arm(CutRequest(after=b"\r\nmarker\r\n"))
    with _client(proxy) as client:
        sent = b""
        for piece in (b"before\r", b"\nMAR", b"K", b"ER\r\n"):
            sent += piece
            client.sendall(piece)
            _poll_until(proxy, sent)
        cut.wait_fired()
    assert proxy.conversations[0].delivered == b"before\r\nMARKER\r\n"


def test_the_fault_whose_marker_comes_first_takes_the_request(proxy: FaultProxy, lines: Lines) -> None:
    early = proxy.arm(ReplaceReply(after=b"one", answer=b"no\n"))
    late = proxy.arm(CutReply(after=b"three"))
    with _client(proxy) as client:
        assert _ask(client, b"one two three\n") == b"no\n"
        early.wait_fired()
        assert late.fired == 0
        assert _ask(client, b"two\n") == b"heard two\n"
        with pytest.raises(ConnectionResetError):
            _ask(client, b"three\n")
        late.wait_fired()
    assert lines.heard == [b"one two three\n", b"two\n", b"three\n"]


def test_without_a_marker_the_next_connection_is_taken_before_the_server_speaks() -> None:
    with _serving(Lines(greeting=GREETING)) as lines, FaultProxy(lines.port) as proxy:
        with _client(proxy) as standing:
            assert _read(standing, len(GREETING)) == GREETING
            lost = proxy.arm(CutReply())
            with _client(proxy) as client, pytest.raises(ConnectionResetError):
                _read(client)
            assert _ask(standing, b"one\n") == b"heard one\n"
        assert (lost.fired, lines.heard) == (1, [b"one\n"])


def test_a_refused_connection_never_reaches_the_server(proxy: FaultProxy, lines: Lines) -> None:
    refused = proxy.arm(Refuse(times=2))
    for _ in range(2):
        with pytest.raises((ConnectionResetError, BrokenPipeError)), _client(proxy) as client:
            _ask(client, b"one\n")
    refused.wait_fired(times=2)
    assert lines.heard == []
    with _client(proxy) as client:
        assert _ask(client, b"one\n") == b"heard one\n"


def test_while_it_is_down_the_system_refuses_and_the_port_stays(proxy: FaultProxy, lines: Lines) -> None:
    with _client(proxy) as standing:
        assert _ask(standing, b"one\n") == b"heard one\n"
        with proxy.down(), pytest.raises(ConnectionRefusedError):
            _client(proxy)
        assert _ask(standing, b"one\n") == b"heard one\n"
        with _client(proxy) as client:
            assert _ask(client, b"two\n") == b"heard two\n"
        proxy.drop_connections()
        with pytest.raises(ConnectionResetError):
            _ask(standing, b"three\n")
    assert lines.heard == [b"one\n", b"one\n", b"two\n"]


@pytest.mark.parametrize("after", [b"", b"two"])
def test_a_black_hole_swallows_and_says_nothing(proxy: FaultProxy, lines: Lines, after: bytes) -> None:
    hole = proxy.arm(BlackHole(after=after))
    with _client(proxy) as client:
        if after:
            assert _ask(client, b"one\n") == b"heard one\n"
        client.sendall(b"two\nthree\n")
        hole.wait_fired()
        client.settimeout(0.2)
        with pytest.raises(TimeoutError):
            client.recv(1)
    if after:
        assert lines.ended.acquire(timeout=PATIENCE)
    assert lines.heard == ([b"one\n", b"two"] if after else [])


def test_a_held_answer_comes_when_it_is_released(proxy: FaultProxy, lines: Lines) -> None:
    held = proxy.arm(HoldReply(after=b"one\n", passing=3))
    with _client(proxy) as client:
        client.sendall(b"one\n")
        held.wait_fired()
        assert lines.heard == [b"one\n"]
        client.settimeout(0.2)
        assert _read(client, 3) == b"hea"
        with pytest.raises(TimeoutError):
            client.recv(1)
        client.settimeout(PATIENCE)
        held.release()
        assert _read(client, 7) == b"rd one\n"
        assert _ask(client, b"two\n") == b"heard two\n"


def test_a_held_request_arrives_although_its_client_has_gone(proxy: FaultProxy, lines: Lines) -> None:
    """The answer that a lookup gives in the meantime is "not there", and it is wrong in the end."""
    late = proxy.arm(HoldRequest(after=b"one"))
    with _client(proxy) as client:
        client.sendall(b"one ")
        late.wait_fired()
        client.sendall(b"and a half\n")
    assert lines.heard == []
    late.release()
    assert lines.heard == [b"one and a half\n"]
    with _client(proxy) as client:
        assert _ask(client, b"one\n") == b"heard one\n"


def test_a_held_request_is_answered_to_a_client_that_waits(proxy: FaultProxy, lines: Lines) -> None:
    late = proxy.arm(HoldRequest(times=None))
    with _client(proxy) as client, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(_ask, client, b"one\n")
        late.wait_fired()
        assert lines.heard == []
        late.release()
        assert asked.result(PATIENCE) == b"heard one\n"
        assert _ask(client, b"two\n") == b"heard two\n"
    with _client(proxy) as client:
        assert _ask(client, b"three\n") == b"heard three\n", "released means disarmed"


def test_a_dripping_answer_comes_byte_by_byte(proxy: FaultProxy, lines: Lines) -> None:
    proxy.arm(DripReply(after=b"one\n", pause=0.02))
    with _client(proxy) as client:
        start = time.monotonic()
        client.sendall(b"one\n")
        assert client.recv(100) == b"h"
        assert _read(client, 9) == b"eard one\n"
        assert time.monotonic() - start >= 9 * 0.02


def test_another_answer_can_be_given_with_and_without_delivery(proxy: FaultProxy, lines: Lines) -> None:
    proxy.arm(ReplaceReply(after=b"one\n", answer=b"no\n"))
    proxy.arm(ReplaceReply(after=b"three", answer=b"never\n", deliver=False))
    with _client(proxy) as client:
        assert _ask(client, b"one\n") == b"no\n"
        assert _ask(client, b"two\n") == b"heard two\n"
        client.sendall(b"three and the rest\n")
        assert _read(client) == b"never\n"
    assert lines.ended.acquire(timeout=PATIENCE)
    assert lines.heard == [b"one\n", b"two\n", b"three"]


def test_a_server_that_is_gone_is_a_connection_that_is_reset_until_upstream_is_set_anew(
    proxy: FaultProxy, lines: Lines
) -> None:
    lines.server_close()
    with pytest.raises((ConnectionResetError, BrokenPipeError)), _client(proxy) as client:
        _ask(client, b"one\n")
    with _serving(Lines()) as other:
        proxy.upstream = other.port
        with _client(proxy) as client:
            assert _ask(client, b"one\n") == b"heard one\n"


def test_what_never_fires_or_was_never_armed_is_told(proxy: FaultProxy) -> None:
    quiet = proxy.arm(CutReply(after=b"never"))
    with pytest.raises(TimeoutError, match="has not fired 1 times"):
        quiet.wait_fired(0.05)
    proxy.disarm()
    with _client(proxy) as client:
        assert _ask(client, b"never\n") == b"heard never\n"
    with pytest.raises(DevstackError, match="was never armed"):
        HoldReply().release()
    with pytest.raises(DevstackError, match="a marker may have 1024 bytes"):
        proxy.arm(Fault(after=b"x" * 1025))


@contextmanager
def _serving(server: Lines) -> Iterator[Lines]:
    """Closed alone it would go round and round in its thread, and take the processor from every later test."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    with server:
        try:
            yield server
        finally:
            server.shutdown()
            thread.join(PATIENCE)


def _poll_until(proxy: FaultProxy, delivered: bytes) -> None:
    """Until the proxy has passed on exactly this."""
    deadline = time.monotonic() + PATIENCE
    while [bytes(talk.delivered) for talk in proxy.conversations] != [delivered]:
        assert time.monotonic() < deadline, "it was not delivered in time"
        time.sleep(0.001)


def _client(proxy: FaultProxy) -> socket.socket:
    return socket.create_connection((LOOPBACK, proxy.port), timeout=PATIENCE)


def _ask(client: socket.socket, line: bytes) -> bytes:
    """The answer, up to the end of its line or of the connection."""
    client.sendall(line)
    found = b""
    while not found.endswith(b"\n") and (piece := client.recv(65_536)):
        found += piece
    return found


def _read(client: socket.socket, size: int | None = None) -> bytes:
    """So many bytes, or all until the end."""
    found = b""
    while (size is None or len(found) < size) and (piece := client.recv(65_536)):
        found += piece
    return found
