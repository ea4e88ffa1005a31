"""A server of other people's making, from an environment of its own, as a child of this process: what all of them share."""

import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from devstack.child import Child, DevstackError
from devstack.ports import free_port

ROOT = Path(__file__).parents[1]

_READY_SECONDS = 60.0
_STOP_SECONDS = 5.0
_PORT_TRIES = 5
_LOG_LINES = 400


class ReceiverError(DevstackError):
    """A receiver cannot be found or started."""


class Receiver:
    """One server; as a context manager it is started on the way in and stopped on the way out. Subclasses say which."""

    name: ClassVar[str]
    ready_words: ClassVar[str]
    """What the server writes to its log once it listens on all its ports."""

    def __init__(self, root: Path, *, ports: int) -> None:
        """`root` is the folder for everything it writes; `ports` is how many it listens on."""
        self.root = root.resolve()
        self.log = self.root / f"{self.name}.log"
        self.ports: list[int] = []
        self._ports_wanted = ports
        self._child: Child | None = None

    def program(self) -> Path:
        """What runs `command`: the Python of `.venv-erp`, unless a subclass has another one."""
        return erp_python()

    def command(self) -> Sequence[str]:
        """What to run on `self.ports`, behind the name of the program; may write files under `root`."""
        raise NotImplementedError

    def start(self) -> None:
        """Returns once it listens."""
        if self._child is not None:
            raise ReceiverError(f"{self.name} in {self.root} is already started: stop() comes first")
        self.root.mkdir(parents=True, exist_ok=True)
        try:
            for remaining in reversed(range(_PORT_TRIES)):
                self.ports = _different_ports(self._ports_wanted)
                if self._launch(last_try=remaining == 0):
                    return
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End it in good order."""
        if self._child is not None:
            self._child.stop()
            self._child = None

    def kill(self) -> None:
        """SIGKILL, as a crash would do it; follow with `restart()` or `stop()`."""
        self._running().kill()

    def restart(self) -> None:
        """Up again on the same ports; after `kill()` or from running."""
        self._running().stop()
        self._launch(last_try=True)

    def pause(self) -> None:
        """SIGSTOP: connections are accepted by the kernel and nobody answers."""
        self._running().signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT: what was waiting is answered."""
        self._running().signal(signal.SIGCONT)

    @property
    def pid(self) -> int:
        """The process that serves now."""
        return self._running().pid

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    def _running(self) -> Child:
        if self._child is None:
            raise ReceiverError(f"{self.name} in {self.root} has not been started")
        return self._child

    def _launch(self, *, last_try: bool) -> bool:
        """Whether it listens; False if somebody else has taken one of the ports, and there are tries left."""
        self._child = Child.spawn(
            [str(self.program()), *self.command()], name=self.name, log=self.log, cwd=ROOT, grace_seconds=_STOP_SECONDS
        )
        deadline = time.monotonic() + _READY_SECONDS
        while True:
            # Asked before the log is read: what a dead server wrote is all there.
            alive = self._child.alive
            words = self._child.log_tail(_LOG_LINES)
            if alive and self.ready_words in words:
                return True
            if not alive and not last_try and "address already in use" in words.lower():
                return False
            if not alive or time.monotonic() >= deadline:
                raise ReceiverError(f"{self.name} did not start; its last words:\n{self._child.log_tail()}")
            time.sleep(0.01)


def erp_python() -> Path:
    """The Python of `.venv-erp`; ReceiverError says how to build it."""
    python = ROOT / ".venv-erp" / "bin" / "python"
    if not python.exists():
        raise ReceiverError(f"{python} is not there: `make .venv-erp/.installed` builds it (this is {sys.executable})")
    return python


def _different_ports(wanted: int) -> list[int]:
    ports: set[int] = set()
    while len(ports) < wanted:
        ports.add(free_port())
    return list(ports)
