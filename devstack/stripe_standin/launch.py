"""The stand-in as a child process that can be killed and started again on the same port and state."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from devstack.stripe_standin.control import StandInControl

ROOT = Path(__file__).resolve().parents[2]


class StandInProcess:
    """Ends with the `with` block; `control` stays usable over a restart."""

    def __init__(self, state: Path, *, port: int = 0, secret_keys: tuple[str, ...] = ()) -> None:
        self.state = state
        self.secret_keys = secret_keys
        self._child = self._start(port)
        self.base_url = self._announced()
        self.port = int(self.base_url.rpartition(":")[2])
        self.control = StandInControl(self.base_url)

    def kill(self) -> None:
        """SIGKILL: nothing is written any more."""
        self._child.kill()
        self._reap()

    def restart(self) -> None:
        """The process has to be dead; the port is the same again."""
        self._child = self._start(self.port)
        self._announced()

    def stop(self) -> None:
        self.control.close()
        self._child.terminate()
        try:
            self._child.wait(3)
        except subprocess.TimeoutExpired:
            self._child.kill()
        self._reap()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _start(self, port: int) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "devstack.stripe_standin", "--port", str(port), "--state", str(self.state)]
        for secret_key in self.secret_keys:
            command += ["--secret-key", secret_key]
        return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)  # noqa: S603 (our own module)

    def _announced(self) -> str:
        """The line is written when the port is listening, so nobody has to wait for it."""
        line = self._child.stdout.readline() if self._child.stdout is not None else ""
        if "http://" not in line:
            raise RuntimeError("the stand-in did not start; its own words are on stderr")
        return line.split()[-1]

    def _reap(self) -> None:
        self._child.wait()
        if self._child.stdout is not None:
            self._child.stdout.close()
