"""Tryton's own server as a child of this process, over a database in an embedded Postgres; gone when we are.

Its version check is a look followed by a write. Only PostgreSQL makes the two one step, so no other database is offered.
"""

import base64
import os
import signal
import time
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import httpx

from devstack.child import Child, DevstackError, lock_folder
from devstack.ports import LOOPBACK, free_port
from devstack.postgres import Postgres
from devstack.tryton.names import Login
from devstack.tryton.rpc import TrytonSession

ROOT = Path(__file__).resolve().parents[2]
ROLE = "tryton"

_READY_SECONDS = 90.0
_STOP_SECONDS = 5.0
_PORT_TRIES = 5


class TrytonServerError(DevstackError):
    """Tryton cannot be found, made, started or reached."""


class TrytonServer:
    """One `trytond` for one database; as a context manager it is started on the way in and stopped on the way out."""

    def __init__(self, root: Path, postgres: Postgres, *, password: str, database: str = "erp") -> None:
        """`root` is this server's folder; `password` is that of the role `tryton` in `postgres`, which has to run."""
        self.root = root.resolve()
        self.database = database
        self.postgres = postgres
        self._password = password
        self._child: Child | None = None
        self._lock: IO[str] | None = None
        self._port: int | None = None

    def start(self) -> None:
        """Returns once calls are answered; FolderInUse if another launcher has this folder."""
        if self._lock is not None:
            raise TrytonServerError(f"this Tryton server in {self.root} is already started: stop() comes first")
        self._lock = lock_folder(self.root, "tryton.lock")
        try:
            for remaining in reversed(range(_PORT_TRIES)):
                self._port = free_port()
                if self._launch(last_try=remaining == 0):
                    return
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop the server; what it wrote stays in Postgres."""
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
        """Up again on the same port and database; after `kill()` or from running. Sessions are still valid."""
        self._running().stop()
        self._launch(last_try=True)

    def pause(self) -> None:
        """SIGSTOP: calls hang, as when the network swallows them."""
        self._running().signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT: calls that hung are answered."""
        self._running().signal(signal.SIGCONT)

    def session(self, login: Login) -> TrytonSession:
        """A session of its own for this user; the caller closes it."""
        return TrytonSession(self.base_url, self.database, login.name, login.password)

    @property
    def pid(self) -> int:
        """The process that serves now."""
        return self._running().pid

    @property
    def base_url(self) -> str:
        """Where the server answers; calls go to `/<database>/rpc/` under it."""
        if self._port is None:
            raise TrytonServerError(f"the Tryton server in {self.root} has not been started")
        return f"http://{LOOPBACK}:{self._port}"

    @property
    def dsn(self) -> str:
        """The ERP's own database, as its superuser: for locks and for looking, never for writing."""
        return self.postgres.dsn(self.database)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    def _running(self) -> Child:
        if self._child is None:
            raise TrytonServerError(f"the Tryton server in {self.root} has not been started")
        return self._child

    def _launch(self, *, last_try: bool) -> bool:
        config = write_config(self.root, self.postgres, self._password, port=self._port)
        self._child = Child.spawn(
            # Named on the command line a database is loaded before the port is opened.
            [str(find_program("trytond")), "-c", str(config), "-d", self.database, "-v"],
            name="tryton",
            log=self.root / "tryton.log",
            env=plain_environment(self.root),
            cwd=self.root,
            grace_seconds=_STOP_SECONDS,
        )
        deadline = time.monotonic() + _READY_SECONDS
        while self._child.alive:
            # Asked again, because the answer may have come from a stranger who was on our port first.
            if self._answers() and self._child.alive:
                return True
            if time.monotonic() >= deadline:
                raise TrytonServerError(
                    f"Tryton does not answer after {_READY_SECONDS:.0f} s; its last lines:\n{self._child.log_tail()}"
                )
            time.sleep(0.02)
        if last_try or "Address already in use" not in self._child.log_tail():
            raise TrytonServerError(
                f"Tryton ended with {self._child.returncode}; its last lines:\n{self._child.log_tail()}"
            )
        return False

    def _answers(self) -> bool:
        """Whether calls reach the database: an unknown session is looked up there before it is refused."""
        call = {"id": 1, "method": "model.res.user.search", "params": [[], 0, 1, None, {}]}
        nobody = {"Authorization": f"Session {base64.b64encode(b'nobody:0:none').decode()}"}
        try:
            answer = httpx.post(f"{self.base_url}/{self.database}/rpc/", json=call, headers=nobody, timeout=2.0)
        except httpx.TransportError:
            return False
        return answer.status_code == httpx.codes.UNAUTHORIZED


def write_config(root: Path, postgres: Postgres, password: str, *, port: int | None = None) -> Path:
    """The configuration file of trytond and trytond-admin, readable by its owner alone."""
    root.mkdir(parents=True, exist_ok=True)
    path = root / "trytond.conf"
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(
            f"[database]\nuri = postgresql://{ROLE}:{password}@{LOOPBACK}:{postgres.port}/\n"
            f"path = {root / 'files'}\nlist = False\n"
            # Without a queue's worker a confirmed order is processed at once; and what the queue holds would be done
            # after the commit, so that a refusal could come back although the change stands.
            "[queue]\nworker = True\n"
        )
        if port is not None:
            file.write(f"[web]\nlisten = {LOOPBACK}:{port}\n")
    return path


def plain_environment(root: Path) -> dict[str, str]:
    """Nothing of the caller's TRYTOND_* and PG* settings reaches the programs."""
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8", "HOME": str(root)}


def find_program(name: str) -> Path:
    """`trytond` or `trytond-admin`: in the folder TRYTON_BIN names, else in this checkout's `.venv-erp`."""
    chosen = os.environ.get("TRYTON_BIN")
    program = Path(chosen or ROOT / ".venv-erp" / "bin") / name
    if os.access(program, os.X_OK):
        return program
    if chosen:
        raise TrytonServerError(f"TRYTON_BIN={chosen} holds no {name}: set it to the bin folder of a venv with Tryton")
    raise TrytonServerError(f"{program} is not there: `make .venv-erp/.installed` builds it")
