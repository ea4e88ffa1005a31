"""Other people's stand-ins as they are started here: heard on loopback alone, and leaving nothing behind."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

import devstack.stripe_peers
from devstack.receiver import ReceiverError
from devstack.stripe_peers import LocalStripe, Peer, StatefulMock

OF_ALL_WHO_RUN_IT = Path("/tmp/localstripe.pickle")  # what localstripe would write by itself, and read again


@pytest.fixture(params=[LocalStripe, StatefulMock])
def peer(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Peer]:
    """One after the other, just started."""
    if request.param is StatefulMock and StatefulMock.missing() and os.environ.get("CI") != "true":
        pytest.skip(StatefulMock.missing())
    with request.param(tmp_path) as running:
        yield running


def test_a_peer_is_heard_on_loopback_alone(peer: Peer) -> None:
    """127.0.0.2 is this machine too, and reaches whatever listens on all addresses. Red: start one with 0.0.0.0 as its host."""
    socket.create_connection(("127.0.0.1", peer.port), timeout=5).close()
    for family, address in ((socket.AF_INET, "127.0.0.2"), (socket.AF_INET6, "::1")):
        with socket.socket(family, socket.SOCK_STREAM) as client, pytest.raises(OSError):
            client.settimeout(5)
            client.connect((address, peer.port))


def test_a_peer_keeps_what_it_was_told_until_it_ends_and_writes_none_of_it_down(peer: Peer) -> None:
    """Red: leave the line about `dump_to_disk` out of localstripe's start."""
    before = OF_ALL_WHO_RUN_IT.stat() if OF_ALL_WHO_RUN_IT.exists() else None
    payment = peer.pay(1000)
    refunds = [peer.refund(payment, 300), peer.refund(payment, 300)]
    assert sorted(refund["id"] for refund in peer.refunds()) == sorted(refunds)
    peer.kill()
    peer.restart()
    assert peer.refunds() == []
    assert (OF_ALL_WHO_RUN_IT.stat() if OF_ALL_WHO_RUN_IT.exists() else None) == before


def test_what_is_missing_is_said_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devstack.stripe_peers, "_VENV", tmp_path)
    monkeypatch.setattr(devstack.stripe_peers, "_MOCK", tmp_path)
    with pytest.raises(ReceiverError, match=r"`make \.venv-peers/\.installed` builds it"):
        LocalStripe(tmp_path).start()
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    with pytest.raises(ReceiverError, match=r"`make \.venv-peers/npm/\.installed` does that, and needs npm"):
        StatefulMock(tmp_path).start()
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(ReceiverError, match="no node on the path"):
        StatefulMock(tmp_path).start()
