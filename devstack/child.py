"""Child processes that never outlive the process that launched them, however that one dies.

Between launcher and child stands a guard: a small Python process that runs as the launcher's user, in a session of its
own, and holds one end of a pipe, the lifeline. When the launcher closes its end, or dies in any way at all, the guard
reads end-of-file, sends the child its stop signal, waits the grace, and then kills it. This needs nothing but POSIX.
"""

import fcntl
import inspect
import json
import os
import pwd
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Self

# How long a guard may take to answer beyond the time its child is allowed; reached only on a machine out of breath.
_GUARD_SECONDS = 20.0
_TAIL_BYTES = 64 * 1024


class DevstackError(Exception):
    """Something on this machine does not stand; the text says what to do."""


class ChildError(DevstackError):
    """A child process could not be started, steered or stopped."""


class StillRuns(ChildError, TimeoutError):
    """A child has not ended in the time given."""


class FolderInUse(DevstackError):
    """Another launcher works in the same folder."""


@dataclass(frozen=True)
class Account:
    """The user a child is demoted to; only root can do that."""

    name: str
    uid: int
    gid: int

    @classmethod
    def find(cls, *names: str) -> Self | None:
        """The first of these accounts that exists here."""
        for name in names:
            try:
                entry = pwd.getpwnam(name)
            except KeyError:
                continue
            return cls(name=name, uid=entry.pw_uid, gid=entry.pw_gid)
        return None

    def can_run(self, argv: Sequence[str]) -> bool:
        """Tried, not computed: folders, access lists, mount options and libraries all have a say."""
        try:
            subprocess.run(
                argv, check=True, capture_output=True, cwd="/", user=self.uid, group=self.gid, extra_groups=[]
            )
        except (OSError, subprocess.CalledProcessError):
            return False
        return True


class Child:
    """One running child; as a context manager it is stopped on the way out."""

    def __init__(
        self, guard: subprocess.Popen[bytes], reports: int, *, name: str, log: Path, start: int, grace: float
    ) -> None:
        """Use `spawn`."""
        self.name = name
        self._guard = guard
        self._reports = os.fdopen(reports, "rb", buffering=0)
        self._log = log
        self._log_start = start
        self._grace = grace
        self._lock = threading.RLock()
        self._unread = b""
        self._pid: int | None = None
        self._returncode: int | None = None
        self._closed = False
        _living.add(self)

    @classmethod
    def spawn(
        cls,
        argv: Sequence[str],
        *,
        name: str,
        log: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        account: Account | None = None,
        stop_signal: signal.Signals = signal.SIGTERM,
        grace_seconds: float = 10.0,
    ) -> "Child":
        """Start `argv`, its output appended to `log`; raises ChildError if the program cannot be executed."""
        read_end, write_end = os.pipe()
        order = {
            "argv": list(argv),
            "cwd": None if cwd is None else str(cwd),
            "account": None if account is None else [account.uid, account.gid],
            "stop_signal": int(stop_signal),
            "grace_seconds": grace_seconds,
            "reports": write_end,
        }
        log.parent.mkdir(parents=True, exist_ok=True)
        try:
            with log.open("ab") as output:
                start = output.tell()
                guard = subprocess.Popen(
                    # -I and -S: nothing in the environment or in site-packages may change what the guard does.
                    [sys.executable, "-I", "-S", "-c", _GUARD_SOURCE, f"guard of {name}", json.dumps(order)],
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=output,
                    env=None if env is None else dict(env),
                    pass_fds=(write_end,),
                    # Ctrl-C goes to the whole foreground group; here the launcher alone decides who stops and when.
                    start_new_session=True,
                )
        except BaseException:
            os.close(read_end)
            raise
        finally:
            os.close(write_end)
        child = cls(guard, read_end, name=name, log=log, start=start, grace=grace_seconds)
        try:
            child._await_start()
        except BaseException:
            child._close()
            raise
        return child

    @property
    def pid(self) -> int:
        """The child's own process id; it stays reserved until the child's end has been seen here."""
        if self._pid is None:
            raise ChildError(f"{self.name} has not started")
        return self._pid

    @property
    def alive(self) -> bool:
        """Whether the child still runs (a stopped one, as by SIGSTOP, counts as running)."""
        return self._poll(0.0) is None

    @property
    def returncode(self) -> int | None:
        """The exit code, or minus the number of the signal that ended it; None while it runs."""
        return self._poll(0.0)

    def signal(self, sig: signal.Signals) -> None:
        """Send a signal to the child itself; refuses when it has ended."""
        with self._lock:
            if self._poll(0.0) is not None:
                raise ChildError(f"{self.name} has already ended with {self._returncode}")
            # Cannot hit a stranger: the guard leaves the dead child unreaped until we have read of its end.
            os.kill(self.pid, sig)

    def kill(self) -> None:
        """End the child at once with SIGKILL and wait until it is gone; nothing happens when it has ended."""
        with self._lock:
            if self._poll(0.0) is None:
                os.kill(self.pid, signal.SIGKILL)
        try:
            self.wait(_GUARD_SECONDS)
        except StillRuns:
            raise ChildError(f"{self.name} (process {self._pid}) does not die; see {self._log}") from None
        self._close()

    def stop(self) -> None:
        """Send the stop signal, wait the grace, then SIGKILL; returns when the child is gone."""
        with self._lock:
            if self._guard.stdin is not None:
                self._guard.stdin.close()
        try:
            self.wait(self._grace + _GUARD_SECONDS)
        except StillRuns:
            raise ChildError(f"{self.name} (process {self._pid}) does not stop; see {self._log}") from None
        self._close()

    def wait(self, timeout: float | None = None) -> int:
        """The return code once the child has ended; StillRuns, a TimeoutError, after `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            code = self._poll(None if deadline is None else max(0.0, deadline - time.monotonic()))
            if code is not None:
                return code
            if deadline is not None and time.monotonic() >= deadline:
                raise StillRuns(f"{self.name} still runs after {timeout} s")

    def log_tail(self, lines: int = 20) -> str:
        """The last lines that this child wrote, not those of an earlier one with the same log."""
        with self._log.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(self._log_start, size - _TAIL_BYTES))
            text = log.read().decode(errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    def _await_start(self) -> None:
        deadline = time.monotonic() + _GUARD_SECONDS
        while self._pid is None:
            line = self._next_line(max(0.0, deadline - time.monotonic()))
            if line is None:
                raise ChildError(f"{self.name} did not start within {_GUARD_SECONDS:.0f} s; see {self._log}")
            word, _, rest = line.partition(" ")
            if word != "pid":
                raise ChildError(f"{self.name} could not be started: {rest or 'its guard died'}; see {self._log}")
            self._pid = int(rest)

    def _poll(self, timeout: float | None) -> int | None:
        """The return code if the child's end is known or becomes known within `timeout`."""
        if self._returncode is None:
            line = self._next_line(timeout)
            if line is not None:
                self._end(line)
        return self._returncode

    def _end(self, line: str) -> None:
        with self._lock:
            if self._returncode is not None:
                return
            word, _, rest = line.partition(" ")
            if word == "exit":
                self._returncode = int(rest)
            else:
                # Somebody killed the guard: its child must go too. It leads a session of its own, which a stranger that
                # has inherited the number does not.
                if self._pid is not None and _leads_session(self._pid):
                    os.kill(self._pid, signal.SIGKILL)
                self._returncode = -int(signal.SIGKILL)
            self._close()

    def _next_line(self, timeout: float | None) -> str | None:
        """The guard's next report, "" if it died without one, None if there was none in time."""
        poller = select.poll()
        with self._lock:
            if self._closed:
                return None
            poller.register(self._reports, select.POLLIN)
            # A child that ends at once has its start and its end reported in one piece: then nothing more will come.
            at_hand = b"\n" in self._unread
        if not at_hand:
            poller.poll(None if timeout is None else timeout * 1000)
        with self._lock:
            # Another thread may have read what we were waiting for.
            if not self._closed and b"\n" not in self._unread and poller.poll(0):
                chunk = self._reports.read(4096)
                if not chunk:
                    return ""
                self._unread += chunk
            if self._closed or b"\n" not in self._unread:
                return None
            line, self._unread = self._unread.split(b"\n", 1)
            return line.decode(errors="replace")

    def _close(self) -> None:
        """Let the guard go; it reaps the child, or stops it if it still runs."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            _living.discard(self)
            if self._guard.stdin is not None:
                self._guard.stdin.close()
            self._reports.close()
        self._guard.wait(self._grace + _GUARD_SECONDS)


def lock_folder(folder: Path, name: str = "lock") -> IO[str]:
    """Take the folder for this process until the file returned is closed or the process dies; FolderInUse otherwise."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = (folder / name).open("a+", encoding="utf-8")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.seek(0)
        holder = lock.read().strip() or "unknown"
        lock.close()
        raise FolderInUse(
            f"another run is using {folder} (process {holder}): stop it first, or choose another folder"
        ) from None
    lock.truncate(0)
    lock.write(f"{os.getpid()}\n")
    lock.flush()
    return lock


def _leads_session(pid: int) -> bool:
    try:
        return os.getsid(pid) == pid
    except OSError:
        return False


def _guard() -> None:
    """The guard's whole program; it is sent as source text, so it may use nothing from outside this function."""
    import contextlib
    import json
    import os
    import select
    import signal
    import subprocess
    import sys
    import time

    order = json.loads(sys.argv[2])
    lifeline = 0

    def report(line: str) -> None:
        with contextlib.suppress(OSError):  # The launcher may be dead: then nobody is left to tell.
            os.write(order["reports"], f"{line}\n".encode())

    wake, wake_write = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    # Handlers and not SIG_IGN: exec resets a handler, so that the child starts with a clean slate even if the
    # launcher itself was started with signals ignored or blocked.
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    demotion = {}
    if order["account"] is not None:
        demotion = {"user": order["account"][0], "group": order["account"][1], "extra_groups": []}
    try:
        child = subprocess.Popen(
            order["argv"], stdin=subprocess.DEVNULL, cwd=order["cwd"], start_new_session=True, **demotion
        )
    except OSError as error:
        report(f"error {error}")
        return
    report(f"pid {child.pid}")

    def ended() -> int | None:
        if not hasattr(os, "waitid"):  # macOS before Python 3.13: reaped early, the number is not reserved there.
            return child.poll()
        seen = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if seen is None:
            return None
        return seen.si_status if seen.si_code == os.CLD_EXITED else -seen.si_status

    deadline = None
    killed = False
    while (code := ended()) is None:
        watched = [wake] if deadline is not None else [wake, lifeline]
        left = None if deadline is None or killed else max(0.0, deadline - time.monotonic())
        ready = select.select(watched, [], [], left)[0]
        heard = os.read(wake, 512) if wake in ready else b""
        if deadline is None and (int(signal.SIGTERM) in heard or (lifeline in ready and not os.read(lifeline, 1))):
            with contextlib.suppress(OSError):
                os.kill(child.pid, order["stop_signal"])
                os.kill(child.pid, signal.SIGCONT)  # A child that somebody stopped could not act on the signal.
            deadline = time.monotonic() + order["grace_seconds"]
        elif deadline is not None and not killed and time.monotonic() >= deadline:
            with contextlib.suppress(OSError):
                os.kill(child.pid, signal.SIGKILL)
            killed = True
    with contextlib.suppress(OSError):
        os.killpg(child.pid, signal.SIGKILL)  # What the child has started itself goes with it.
    report(f"exit {code}")
    while os.read(lifeline, 1):  # Until the launcher has read this, the dead child keeps its number from strangers.
        pass
    child.wait()


def _drop_lifelines() -> None:
    """A forked copy of the launcher must not keep its children alive."""
    for child in list(_living):
        if child._guard.stdin is not None:
            child._guard.stdin.close()


_GUARD_SOURCE = f"{inspect.getsource(_guard)}\n_guard()\n"
_living: weakref.WeakSet[Child] = weakref.WeakSet()
os.register_at_fork(after_in_child=_drop_lifelines)
