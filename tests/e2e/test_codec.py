"""`effects codec` as people run it: over HTTP, for Temporal's own command line, and what is said when it cannot run."""

import asyncio
import os
import signal
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from commands.exits import Exit
from devstack.child import Child
from devstack.ports import LOOPBACK, free_port
from devstack.stack import ROOT, clean
from devstack.temporal_server import find_program
from tests.conftest import Rig
from tests.e2e.test_webhooks import answers
from tests.workflows.encrypted import encrypting, payloads_in

KEY, TOKEN, ORIGIN = "payload_key_1", uuid.uuid4().hex, "https://temporal.example.com"


@asynccontextmanager
async def decoding(rig: Rig, folder: Path, origin: str = ORIGIN) -> AsyncIterator[str]:
    """`effects codec` with the key of the rig, and neither ledger nor Temporal; its address."""
    port = free_port()
    secrets = rig.stack.household.folder / "secrets"
    (secrets / "codec_token").write_text(TOKEN)
    settings = {
        "EFFECTS_SECRETS_DIR": str(secrets),
        "EFFECTS_PAYLOAD_KEYS": KEY,
        "EFFECTS_CODEC_PORT": str(port),
        "EFFECTS_CODEC_ORIGIN": origin,
    }
    child = Child.spawn(
        [sys.executable, str(ROOT / "starter.py"), "codec"],
        name="codec",
        log=folder / "codec.log",
        env=clean(os.environ) | settings,
        cwd=folder,
        grace_seconds=20,
    )
    try:
        await answers(f"http://{LOOPBACK}:{port}", child)
        yield f"http://{LOOPBACK}:{port}"
        os.kill(child.pid, signal.SIGTERM)
        assert await asyncio.to_thread(child.wait, 10) == Exit.ASKED
    finally:
        await asyncio.to_thread(child.stop)


async def shown(rig: Rig, workflow_id: str, *options: str) -> str:
    """What Temporal's own command line shows of a workflow's payloads; nothing where the codec refuses it."""
    running = await asyncio.create_subprocess_exec(
        str(find_program()),
        *("workflow", "show", "--workflow-id", workflow_id, "--output", "json"),
        *("--address", rig.stack.servers.temporal.address, *options),
        env=clean(os.environ),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    out, _ = await asyncio.wait_for(running.communicate(), 30)
    return "" if running.returncode else str([payload.data for _, payload in payloads_in(out.decode())])


async def test_with_the_token_temporals_command_line_reads_and_without_it_does_not(rig: Rig, tmp_path: Path) -> None:
    """The process has the key and nothing else of a worker's. Red: admit everybody in commands/decoding.py."""
    ours, asker = await encrypting(rig, KEY), f"canary-{uuid.uuid4().hex}"
    proposal = rig.proposal(rig.payment(), amount=5_000, requested_by=asker)
    async with rig.worker(payload_keys=KEY):
        assert (await ours.propose(proposal)).state == "awaiting_approval"
    workflow_id = rig.handle(proposal).id
    async with decoding(rig, tmp_path) as address:
        told = await shown(rig, workflow_id, "--codec-endpoint", address, "--codec-auth", f"Bearer {TOKEN}")
        assert asker in told
        wrong = f"Bearer {TOKEN[:-1]}"
        assert asker not in await shown(rig, workflow_id, "--codec-endpoint", address, "--codec-auth", wrong)
        assert asker not in await shown(rig, workflow_id)
    log = (tmp_path / "codec.log").read_text()
    assert '"event": "payloads decoded"' in log and "token_wrong" in log
    assert asker not in log and TOKEN not in log
