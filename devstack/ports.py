"""Free TCP ports on this machine's loopback address."""

import secrets
import socket

LOOPBACK = "127.0.0.1"

# Below the ranges from which Linux (32768+) and macOS (49152+) take ports for outgoing connections: a server that is
# killed and restarted on its port must not find that a client's connection has taken it meanwhile.
_LOWEST, _HIGHEST = 20_000, 32_767
_TRIES = 200


def free_port() -> int:
    """A port nobody listens on at this moment; whoever binds it must still expect to lose a race for it."""
    for _ in range(_TRIES):
        port = _LOWEST + secrets.randbelow(_HIGHEST - _LOWEST + 1)
        if _can_bind(port):
            return port
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def _can_bind(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True
