"""`make up`: the stack stands, says how to reach it, and leaves no process behind, however its launcher ends."""

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from devstack.postgres import Postgres

ROOT = Path(__file__).parents[2]
UP = "import sys; from pathlib import Path; from devstack.up import run; sys.exit(run(Path(sys.argv[1]), erp='erp' in sys.argv))"
ENVIRONMENT = {
    "EFFECTS_LEDGER_DSN",
    "EFFECTS_SECRETS_DIR",
    "EFFECTS_STRIPE_BASE_URL",
    "EFFECTS_DEV",
    "EFFECTS_INBOX_ACCOUNT",
    "EFFECTS_INBOX_DSN",
    "EFFECTS_TASK_QUEUE",
    "TEMPORAL_ADDRESS",
    "EFFECTS_OWNER_DSN",
    "EFFECTS_KEYS_DIR",
    "EFFECTS_PASSPHRASE_FILE",
}

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="descendants are read from /proc"),
]


def until(true_now: Callable[[], bool], what: str, seconds: float = 90.0) -> None:
    """Poll until it is so."""
    deadline = time.monotonic() + seconds
    while not true_now():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.1)


def descendants(pid: int) -> dict[int, str]:
    """Children of all generations by process id, each with its start time, since ids are used again."""
    parents: dict[int, int] = {}
    starts: dict[int, str] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        number = int(entry.parent.name)
        parents[number], starts[number] = int(fields[1]), fields[19]
    found: set[int] = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return {child: starts[child] for child in found - {pid}}


def gone(children: dict[int, str]) -> bool:
    """Whether none of them lives; a dead one that nobody has reaped yet holds nothing."""
    for number, start in children.items():
        try:
            fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[19] == start and fields[0] != "Z":
            return False
    return True


@contextmanager
def stack(folder: Path, *extra: str) -> Iterator[subprocess.Popen[str]]:
    """`up` in a folder of its own, once it has said everything; killed in the end if it still runs."""
    with (folder.parent / "up.txt").open("w") as out:
        launcher = subprocess.Popen(
            [sys.executable, "-c", UP, str(folder), *extra], cwd=ROOT, stdout=out, stderr=out, text=True
        )
    try:

        def ready() -> bool:
            assert launcher.poll() is None, said(folder)
            return "Ctrl-C" in said(folder)

        until(ready, "the stack is up")
        yield launcher
    finally:
        children = descendants(launcher.pid)
        launcher.kill()
        launcher.wait()
        until(lambda: gone(children), "every process has ended")
        Postgres(folder / "postgres").remove()  # as root its cluster lies elsewhere


def said(folder: Path) -> str:
    """What the launcher printed."""
    return (folder.parent / "up.txt").read_text()


def told(folder: Path) -> dict[str, str]:
    """The environment file."""
    return dict(line.split("=", 1) for line in (folder / "environment").read_text().splitlines())


def test_it_says_how_to_reach_it_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    """Started, killed its worker, interrupted: a new worker came, the state stays, the processes do not."""
    folder = tmp_path / "stack"
    with stack(folder) as launcher:
        file = folder / "environment"
        assert file.stat().st_mode & 0o777 == 0o600
        environment = told(folder)
        assert set(environment) == ENVIRONMENT
        for name in ("EFFECTS_LEDGER_DSN", "EFFECTS_OWNER_DSN"):
            with psycopg.connect(environment[name]) as conn:
                assert conn.execute("select count(*) from operations").fetchone() == (0,)
        assert Path(environment["EFFECTS_KEYS_DIR"], "bob.pem").exists()
        assert "--fault lost-answer" in said(folder)
        assert "workflows?query=EffectState%3D'needs_review'" in said(folder)
        # A second start in the same folder is refused, and leaves the running one its settings.
        # Red: remove the environment file in a `finally` around the whole of `up.run`.
        second = [sys.executable, "-c", UP, str(folder)]
        refused = subprocess.run(second, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
        assert (refused.returncode, "another run is using" in refused.stdout) == (1, True)
        assert told(folder) == environment
        worker = int(said(folder).split("kill -9 ")[1].split(".")[0])
        os.kill(worker, signal.SIGKILL)
        until(lambda: "another one starts" in said(folder), "another worker starts")
        children = descendants(launcher.pid)
        assert len(children) >= 8  # guards and children of Postgres, Temporal, the stand-in and a worker
        launcher.send_signal(signal.SIGINT)
        assert launcher.wait(90) == 0, said(folder)
        assert gone(children)
        assert not file.exists()


def test_a_killed_launcher_leaves_no_process_behind(tmp_path: Path) -> None:
    """SIGKILL of the launcher alone: nobody is left to clean up but the children themselves."""
    folder = tmp_path / "stack"
    with stack(folder) as launcher:
        children = descendants(launcher.pid)
        launcher.kill()
        launcher.wait()
        until(lambda: gone(children), "every process has ended")


def test_with_the_erp_the_commands_that_it_prints_do_both_jobs(tmp_path: Path) -> None:
    """Word by word, in their order. Red: leave `receivers` out of the stack in `up.run`."""
    folder = tmp_path / "stack"
    with stack(folder, "erp"):
        environment = os.environ | told(folder)
        printed = [shlex.split(line) for line in said(folder).splitlines() if line.startswith("  ")]
        first = next(at for at, words in enumerate(printed) if words[1:3] == ["propose", "order"])
        played = []
        for words in printed[first:]:
            yes = ["--yes"] if words[1] == "approve" else []
            ran = subprocess.run(
                words + yes, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=90, check=False
            )
            assert ran.returncode == 0, (words, ran.stdout, ran.stderr)
            played.append((words[1], ran.stdout))
        assert [verb for verb, _ in played] == ["propose", "approve", "propose", "propose", "approve"]
        assert played[2][1].splitlines()[0].endswith(": done")
        name = printed[-1][2]
        until(lambda: "succeeded" in shown(environment, name), f"{name} is done")


def shown(environment: dict[str, str], operation: str) -> str:
    """What `effects show` says."""
    command = [str(Path(sys.executable).with_name("effects")), "show", operation]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False).stdout
