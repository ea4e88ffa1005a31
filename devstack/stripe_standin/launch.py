"""The stand-in as a child that can be killed and started again on the same port and state, and dies with its launcher."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from devstack.child import Child, ChildError
from devstack.stripe_standin.control import StandInControl

ROOT = Path(__file__).resolve().parents[2]
_READY_SECONDS = 30.0


class StandInProcess:
    """Ends with the `with` block; `control` stays usable over a restart."""

    def __init__(self, state: Path, *, port: int = 0, secret_keys: tuple[str, ...] = ()) -> None:
        self.state = state
        self.secret_keys = secret_keys
        self._child = self._start(port)
        self.base_url = self._announced()
        self.port = int(self.base_url.rpartition(":")[2])
        self.control = StandInControl(self.base_url)

    @property
    def pid(self) -> int:
        """The process that serves now."""
        return self._child.pid

    def kill(self) -> None:
        """SIGKILL: nothing is written any more."""
        self._child.kill()

    def restart(self) -> None:
        """The process has to be dead; the port is the same again."""
        self._child = self._start(self.port)
        self._announced()

    def stop(self) -> None:
        """End it in good order; the state stays."""
        self.control.close()
        self._child.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _start(self, port: int) -> Child:
        command = [sys.executable, "-m", "devstack.stripe_standin", "--port", str(port), "--state", str(self.state)]
        for secret_key in self.secret_keys:
            command += ["--secret-key", secret_key]
        log = self.state.with_suffix(".log")
        return Child.spawn(command, name="stripe stand-in", log=log, cwd=ROOT, grace_seconds=3.0)

    def _announced(self) -> str:
        """The line is written when the port is listening. Raises ChildError, with its last words, when it never comes."""
        deadline = time.monotonic() + _READY_SECONDS
        while True:
            alive = self._child.alive
            for line in self._child.log_tail().splitlines():
                if line.startswith("stripe stand-in on http://"):
                    return line.split()[-1]
            if not alive or time.monotonic() >= deadline:
                words = self._child.log_tail()
                self._child.stop()
                raise ChildError(f"the stand-in did not start; its last words:\n{words}")
            time.sleep(0.01)
