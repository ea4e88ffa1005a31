"""No child outlives its launcher, whichever way that one dies: with real processes and real signals."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import devstack
from devstack.child import Account, Child, ChildError, FolderInUse, StillRuns, lock_folder

REPOSITORY = Path(devstack.__file__).parents[1]
PATIENCE = 15.0

# Starts one child, tells its number, and waits to be killed.
LAUNCHER = """
import sys, time
from pathlib import Path
from devstack.child import Child
child = Child.spawn(sys.argv[2:], name="child", log=Path(sys.argv[1]), grace_seconds=0.2)
print(child.pid, flush=True)
time.sleep(600)
"""

# Starts two children that note when they are told to stop, and leaves them to the end of the with-block.
ORDERLY_LAUNCHER = """
import sys, time
from contextlib import ExitStack
from pathlib import Path
from devstack.child import Child
log = Path(sys.argv[1])
with ExitStack() as stack:
    for name in ("first", "second"):
        script = f"trap 'echo {name}; exit 0' TERM INT; echo up; while :; do sleep 0.02; done"
        stack.enter_context(Child.spawn(["sh", "-c", script], name=name, log=log))
    while log.read_text().count("up") < 2:
        time.sleep(0.01)
    print("ready", flush=True)
    time.sleep(600)
"""

# Forks a copy of itself that stays after it has died.
FORKING_LAUNCHER = """
import os, sys, time
from pathlib import Path
from devstack.child import Child
child = Child.spawn(["sleep", "600"], name="child", log=Path(sys.argv[1]), grace_seconds=0.2)
copy = os.fork()
if copy:
    print(child.pid, copy, flush=True)
time.sleep(600)
"""


def test_the_pid_is_the_childs_own_and_its_output_goes_to_the_log(tmp_path: Path) -> None:
    with Child.spawn(["sh", "-c", "echo I am $$; echo oh >&2"], name="child", log=tmp_path / "log") as child:
        assert child.wait(PATIENCE) == 0
        assert child.log_tail() == f"I am {child.pid}\noh"


def test_the_tail_shows_only_what_this_child_wrote(tmp_path: Path) -> None:
    for words in ("one", "two"):
        with Child.spawn(["echo", words], name="child", log=tmp_path / "log") as child:
            child.wait(PATIENCE)
            assert child.log_tail() == words
    assert (tmp_path / "log").read_text() == "one\ntwo\n"


def test_environment_and_folder_are_the_callers_choice(tmp_path: Path) -> None:
    argv = ["/bin/sh", "-c", "echo $COLOUR; pwd"]
    with Child.spawn(argv, name="child", log=tmp_path / "log", env={"COLOUR": "red"}, cwd=Path("/")) as child:
        child.wait(PATIENCE)
        assert child.log_tail() == "red\n/"


def test_stop_sends_the_chosen_signal(tmp_path: Path) -> None:
    with _ready(tmp_path, "trap 'exit 7' INT; echo up; while :; do sleep 0.02; done", signal.SIGINT) as child:
        child.stop()
        assert child.returncode == 7
        assert not child.alive


def test_stop_kills_a_child_that_ignores_its_signal_and_what_that_one_started(tmp_path: Path) -> None:
    script = "trap '' TERM; sleep 600 & echo $! up; wait; sleep 600"
    with _ready(tmp_path, script) as child:
        grandchild = int(child.log_tail().split()[0])
        child.stop()
        assert child.returncode == -signal.SIGKILL
        _poll_until(lambda: not _runs(grandchild))


def test_stop_reaches_a_child_that_somebody_has_stopped(tmp_path: Path) -> None:
    """SIGTERM alone would stay pending for ever, so the child is continued and can leave in order."""
    with _ready(tmp_path, "trap 'exit 7' TERM; echo up; while :; do sleep 0.02; done") as child:
        child.signal(signal.SIGSTOP)
        assert child.alive
        child.stop()
        assert child.returncode == 7


def test_kill_ends_even_a_stopped_child_at_once(tmp_path: Path) -> None:
    with Child.spawn(["sleep", "600"], name="child", log=tmp_path / "log") as child:
        child.signal(signal.SIGSTOP)
        child.kill()
        assert child.returncode == -signal.SIGKILL
        child.kill()
        with pytest.raises(ChildError, match="child has already ended with -9"):
            child.signal(signal.SIGTERM)


def test_a_kill_from_outside_is_seen(tmp_path: Path) -> None:
    with Child.spawn(["sleep", "600"], name="child", log=tmp_path / "log") as child:
        os.kill(child.pid, signal.SIGKILL)
        assert child.wait(PATIENCE) == -signal.SIGKILL


def test_start_and_end_reported_in_one_piece_are_both_heard(tmp_path: Path) -> None:
    """A child that ends at once may do that by luck; a guard played by this test does it for certain."""
    (tmp_path / "log").touch()
    reports, guards_end = os.pipe()
    guard = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    child = Child(guard, reports, name="child", log=tmp_path / "log", start=0, grace=1.0)
    os.write(guards_end, b"pid 4711\nexit 7\n")
    child._await_start()
    assert child.wait(PATIENCE) == 7
    os.close(guards_end)


def test_wait_gives_up_when_told_to(tmp_path: Path) -> None:
    with (
        Child.spawn(["sleep", "600"], name="child", log=tmp_path / "log") as child,
        pytest.raises(StillRuns, match="child still runs after 0.01 s"),
    ):
        child.wait(0.01)


def test_a_program_that_cannot_be_executed_is_an_error_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(ChildError, match="nosuch could not be started: .*No such file"):
        Child.spawn([str(tmp_path / "nosuch")], name="nosuch", log=tmp_path / "log")


def test_a_child_can_run_as_another_account(tmp_path: Path) -> None:
    nobody = Account.find("no-such-account", "nobody")
    if os.geteuid() != 0 or nobody is None:
        pytest.skip("only root can demote a child, to an account that exists")
    script = "id -u; id -g; id -G"
    with Child.spawn(["sh", "-c", script], name="child", log=tmp_path / "log", account=nobody, cwd=Path("/")) as child:
        child.wait(PATIENCE)
        assert child.log_tail().split() == [str(nobody.uid), str(nobody.gid), str(nobody.gid)]


@pytest.mark.parametrize("stopped", [False, True], ids=["running", "stopped"])
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_child_dies_with_its_launcher(tmp_path: Path, end: signal.Signals, stopped: bool) -> None:
    with _launched(LAUNCHER, tmp_path, "sleep", "600") as (launcher, said):
        child = int(said)
        if stopped:
            os.kill(child, signal.SIGSTOP)
        launcher.send_signal(end)
        _poll_until(lambda: not _runs(child))


def test_a_child_that_ignores_everything_dies_with_its_launcher(tmp_path: Path) -> None:
    with _launched(LAUNCHER, tmp_path, "sh", "-c", "trap '' TERM INT HUP; while :; do sleep 0.02; done") as (
        launcher,
        said,
    ):
        launcher.kill()
        _poll_until(lambda: not _runs(int(said)))


def test_a_forked_copy_of_the_launcher_does_not_keep_the_child(tmp_path: Path) -> None:
    with _launched(FORKING_LAUNCHER, tmp_path) as (launcher, said):
        child, copy = map(int, said.split())
        try:
            launcher.kill()
            _poll_until(lambda: not _runs(child))
            assert _runs(copy)
        finally:
            os.kill(copy, signal.SIGKILL)


def test_ctrl_c_leaves_the_order_to_the_launcher(tmp_path: Path) -> None:
    """The terminal signals the whole foreground group; a child in it would stop by itself, before its dependents."""
    with _launched(ORDERLY_LAUNCHER, tmp_path) as (launcher, _):
        os.killpg(launcher.pid, signal.SIGINT)
        launcher.wait(PATIENCE)
        assert (tmp_path / "log").read_text().split() == ["up", "up", "second", "first"]


def test_a_launcher_stopped_with_its_whole_group_and_killed_leaves_no_child(tmp_path: Path) -> None:
    """As by Ctrl-Z and then `kill -9`: a guard inside the group would be stopped with it."""
    with _launched(LAUNCHER, tmp_path, "sleep", "600") as (launcher, said):
        os.killpg(launcher.pid, signal.SIGSTOP)
        launcher.kill()
        _poll_until(lambda: not _runs(int(said)))


def test_a_child_whose_guard_was_killed_is_ended_when_noticed(tmp_path: Path) -> None:
    with Child.spawn(["sleep", "600"], name="child", log=tmp_path / "log") as child:
        child._guard.kill()
        assert child.wait(PATIENCE) == -signal.SIGKILL
        _poll_until(lambda: not _runs(child.pid))


def test_a_folder_has_one_launcher_at_a_time(tmp_path: Path) -> None:
    lock = lock_folder(tmp_path / "place")
    with pytest.raises(FolderInUse, match=rf"another run is using .*place \(process {os.getpid()}\): stop it first"):
        lock_folder(tmp_path / "place")
    lock.close()
    lock_folder(tmp_path / "place").close()


@contextmanager
def _ready(folder: Path, script: str, stop_signal: signal.Signals = signal.SIGTERM) -> Iterator[Child]:
    """A shell child that has set its traps, which it tells by a line with "up" in it."""
    with Child.spawn(
        ["sh", "-c", script], name="child", log=folder / "log", stop_signal=stop_signal, grace_seconds=1.0
    ) as child:
        _poll_until(lambda: "up" in child.log_tail())
        yield child


@contextmanager
def _launched(code: str, folder: Path, *argv: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A launcher in a group of its own, like a command in a terminal, and the first line it says."""
    launcher = subprocess.Popen(
        [sys.executable, "-c", code, str(folder / "log"), *argv],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    with launcher:
        try:
            assert launcher.stdout is not None
            yield launcher, launcher.stdout.readline()
        finally:
            launcher.kill()


def _runs(pid: int) -> bool:
    """Whether the process can still do anything: a dead one that nobody has reaped cannot."""
    shown = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    return shown.stdout.strip()[:1] not in ("", "Z", "X")


def _poll_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "the condition was not met in time"
        time.sleep(0.01)
