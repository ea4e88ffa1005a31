"""A ledger restored from a real base backup to a moment before a refund: it sends nothing that it forgot."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from temporalio.client import WorkflowFailureError

import workflows.waking
from activities.messages import HoldAnswer
from devstack.backup import ArchivingPostgres
from devstack.signing import Signer
from devstack.stack import Servers, Stack
from devstack.stripe_standin.launch import StandInProcess
from ledger.statement import StatementType
from ledger.store import events, holds, incarnation, verify
from ledger.store.database import Ledger, now
from ledger.trail import EventKind
from tests.conftest import Rig
from tests.e2e.spoken import Effects, speaking

HELD = "dispatch (restored: held until people release it)"


class Recoverable(Servers):
    """A Postgres of this test's own, which can be taken back, beside everybody's Temporal, which remembers."""

    def __init__(self, root: Path, shared: Servers) -> None:
        self.root = root
        self.postgres: ArchivingPostgres = ArchivingPostgres(root / "postgres", durable=False)
        self.temporal = shared.temporal


@pytest_asyncio.fixture
async def rig(servers: Servers, stand_in: StandInProcess, tmp_path: Path) -> AsyncIterator[Rig]:
    """A rig whose ledger lives in that Postgres."""
    own = Recoverable(tmp_path, servers)
    stand_in.control.reset()
    with own.postgres:
        name = f"t{uuid.uuid4().hex[:12]}"
        with Stack(own, tmp_path, name=name, stripe=stand_in, say=lambda text: None) as stack:
            await stack.prepare()
            ledger = Ledger(stack.owner_dsn, max_size=4)
            await ledger.open()
            yield Rig(stack, await stack.client(), ledger)
            await ledger.close()
    own.postgres.remove()


@pytest.fixture
def effects(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Iterator[Effects]:
    """Commands on it; a workflow is old enough at once."""
    monkeypatch.setattr(workflows.waking, "RECORDED_WITHIN", timedelta(0))
    yield from speaking(rig, monkeypatch)


async def release(rig: Rig, who: str) -> HoldAnswer:
    """A signed release after a restore."""
    async with rig.ledger.transaction() as conn:
        signer = Signer(rig.stack.household, await now(conn))
    signed = signer.on_scope("restored", who, StatementType.RELEASE, "compared")
    answer: HoldAnswer = await rig.client.execute_workflow(
        "HoldWorkflow", signed, id=f"hold-{uuid.uuid4()}", task_queue=rig.stack.task_queue, result_type=HoldAnswer
    )
    return answer


async def stands(rig: Rig, operation_id: str, next_step: str) -> None:
    """Wait until this is written down as what is next."""
    deadline = asyncio.get_running_loop().time() + 20
    while (found := (await rig.operation(operation_id)).next_step) != next_step:
        assert asyncio.get_running_loop().time() < deadline, found
        await asyncio.sleep(0.05)


def taken_back(rig: Rig) -> ArchivingPostgres:
    """The server under the rig."""
    server: Any = rig.stack.servers.postgres
    assert isinstance(server, ArchivingPostgres)
    return server


async def test_a_restored_ledger_sends_nothing_that_it_forgot(rig: Rig, effects: Effects) -> None:
    """Base backup, a mark, a refund, recovery to the mark; nobody says so at first. The journal of the stand-in judges.

    The same proposal gets the same id and key and is approved again, and stays unsent: before anybody says that there was a
    restore, after that, after one release. Then the refund that exists is found. What waited for people when the restore came
    has a workflow that knows more than the ledger: it stops.

    Red: let `at_home` return true (a claim goes through at once); drop the audit from `_audited`; begin without a hold in
    `incarnation.begin`.
    """
    server = taken_back(rig)
    backup = await asyncio.to_thread(server.back_up)
    target, other = rig.payment(), rig.payment()
    proposal, forgotten = rig.proposal(target), rig.proposal(other, amount=5_000)
    server.mark("before the refund")
    async with rig.worker():
        first = await rig.until((await rig.propose(proposal)).operation_id, "succeeded")
        waiting = await rig.propose(forgotten)
        assert waiting.state == "awaiting_approval"
    await asyncio.to_thread(server.go_back, backup, "before the refund")

    async with rig.worker():
        again = await rig.propose(proposal)
        await stands(rig, again.operation_id, HELD)
        second = await rig.operation(again.operation_id)
        assert (second.operation_id, second.idempotency_key) == (first.operation_id, first.idempotency_key)
        assert (second.state, second.fence) == ("approved", 0)
        with pytest.raises(WorkflowFailureError):
            await rig.handle(forgotten).signal("look_now")
            await rig.handle(forgotten).result()
        assert (await rig.propose(forgotten)).operation_id == waiting.operation_id
        assert (await effects("holds")).document["holds"][0]["reason"] == holds.UNSAID
        assert (await release(rig, "olga")).rule == "restore_unsaid"

        said = await effects("restored", "--by", "mira", "--reason", "disk lost, back to the mark")
        assert said.document == {"incarnation": 2, "held": "restored"}
        assert (await release(rig, "olga")).rule == "audit_missing"
        assert (await effects("audit")).code in (0, 3)
        assert [(await release(rig, who)).still_needed for who in ("olga", "olga")] == [1, 1]
        assert (await rig.operation(again.operation_id)).fence == 0
        assert len(rig.posts(target)) == 1
        assert (await release(rig, "oscar")).held is False
        found = await rig.until(again.operation_id, "succeeded")
    assert found.receipt == first.receipt
    assert [e.refund for e in rig.effects(target)] == [first.receipt]
    assert len(rig.posts(target)) == 1
    async with rig.ledger.transaction() as conn:
        assert await incarnation.current(conn) == incarnation.Incarnation(2, True)
        told = await events.latest_body(conn, (await _own(conn)), EventKind.RELEASED)
        assert (told["scope"], told["incarnation"], told["audit"]) == ("restored", 2, 1)
        assert (await verify.verify(conn)).differences == []


async def _own(conn: Any) -> uuid.UUID:
    row = await (await conn.execute("select namespace from ledger_identity")).fetchone()
    found: uuid.UUID = row["namespace"]
    return found
