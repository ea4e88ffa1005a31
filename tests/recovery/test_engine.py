"""What surrounds us dies with a request of every action under way: workers, Postgres, Temporal, the workflows themselves.

All eight actions meet each fault at the same time, before and after their receiver carried them out. The judges are the
receivers' own records.
"""

import asyncio
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from temporalio.client import WorkflowUpdateRPCTimeoutOrCancelledError

from devstack.fault_proxy import FaultProxy
from devstack.faults import BlackHole, Fault, HoldReply, HoldRequest
from devstack.ports import LOOPBACK
from ledger.errors import Unavailable
from tests.conftest import Rig
from tests.matrix import AFTER, BEFORE, Trouble, note_each
from tests.recovery import order_world
from tests.recovery.order_world import Forked, until
from tests.recovery.test_receivers_faults import (
    BLIND,
    KEYED,
    LOOKED_FOR,
    REPEATED,
    Aim,
    Job,
    a_job,
    approve,
    arm,
    aside,
    in_batches,
    nothing_is_overdue,
    until_states,
    waiting,
)
from workflows.client import propose

pytestmark = [pytest.mark.matrix, pytest.mark.long, pytest.mark.timeout(300)]
ALL = (*KEYED, *REPEATED, *LOOKED_FOR, *BLIND)
AT_ERP = ("change_delivery_date", "update_customer", "create_draft_invoice")
# No call ends by its deadline while a test brings sixteen of them to the same point; a lease of 110 s.
PATIENT = {"send_within": 5.0, "call_deadline": 100.0, "backoff": 0.2, "activities_at_once": 60}
PAST_THE_LEASE_SECONDS = 120.0
# Of a call whose request or answer is lost, before and after the effect: how it ends, and how many effects there are.
LOST_BEFORE = {action: ("succeeded", 1) if action in KEYED + REPEATED else ("needs_review", 0) for action in ALL}
LOST_AFTER = {action: ("needs_review" if action in BLIND else "succeeded", 1) for action in ALL}
DONE = dict.fromkeys(ALL, ("succeeded", 1))


async def one_of_each(desk: Rig) -> list[Job]:
    """A job of every action."""
    return [await aside(a_job, desk, action) for action in ALL]


async def under_way(desk: Rig, aim: Aim, jobs: Sequence[Job], fault: type[Fault]) -> list[Fault]:
    """Approve them: their writes have left us, and are held by these faults."""
    held: list[Fault] = []
    for some in in_batches(jobs):
        armed = [arm(aim, job, fault()) for job in some]
        await approve(desk, *some)
        for one in armed:
            await aside(one.wait_fired)
        held += armed
    return held


async def let_go(*faults: Fault) -> None:
    """What is held comes through, to whoever still listens."""
    for fault in faults:
        assert isinstance(fault, HoldReply | HoldRequest)
        await aside(fault.release)


async def ledger_answers(desk: Rig) -> bool:
    """A pool finds a server that was restarted when it tries next."""
    with suppress(Unavailable):
        async with desk.ledger.transaction():
            return True
    return False


async def every_line_dies(desk: Rig) -> None:
    """What is held does not come through any more."""
    for name in ("tryton", "carddav", "smtp", "stripe"):
        await aside(desk.world.proxies[name].drop_connections)


async def all_end(desk: Rig, *told: tuple[Trouble, str, Sequence[Job], dict[str, tuple[str, int]]]) -> None:
    """Every job of every group ends as it must, is written down, and stays so for hours."""
    every = [job for _, _, jobs, _ in told for job in jobs]
    wanted = [ends[job.proposal.action] for _, _, jobs, ends in told for job in jobs]
    await until_states(desk, every, [state for state, _ in wanted])
    await nothing_is_overdue(desk)
    found = [(job.proposal.action, await job.effects()) for job in every]
    assert found == [(job.proposal.action, made) for job, (_, made) in zip(every, wanted, strict=True)]
    for trouble, when, jobs, _ in told:
        await note_each(desk, trouble, when, jobs)


async def test_workers_that_are_killed_or_stopped_past_their_lease(desk: Rig, tmp_path: Path) -> None:
    """One worker is killed, and another stopped, with eight requests and eight answers on the line. Eight more stop themselves
    after their claim and before their send. A worker takes over; then all that were stopped go on.

    A stopped worker's connections to Temporal are cut: a task that it had polled would wait there for its time-out.
    Red: let `Dispatch._may_still_send` return True at once; let `settle.close_attempt_as_unknown` write NO_EFFECT.
    """
    killed_before, killed_after, stopped_before, stopped_after = [await one_of_each(desk) for _ in range(4)]
    queues = {"killed": f"{desk.stack.name}-killed", "stopped": f"{desk.stack.name}-stopped"}
    queues |= {job.proposal.action: f"{desk.stack.name}-{job.proposal.action}" for job in stopped_before}
    flags = {job.proposal.action: tmp_path / f"armed-{job.proposal.action}" for job in stopped_before}
    aim = desk.world.proxies["tryton"].arm(Aim())
    with FaultProxy(int(desk.stack.servers.temporal.address.rpartition(":")[2])) as to_temporal:
        workers = await _forked(desk, tmp_path, queues, flags, f"{LOOPBACK}:{to_temporal.port}")
        at = {job.proposal.business_key: queues["killed"] for job in (*killed_before, *killed_after)}
        at |= {job.proposal.business_key: queues["stopped"] for job in stopped_after}
        at |= {job.proposal.business_key: queues[job.proposal.action] for job in stopped_before}
        every = (*killed_before, *killed_after, *stopped_before, *stopped_after)
        await _waiting_on(desk, every, at)
        await under_way(desk, aim, killed_before, BlackHole)
        await under_way(desk, aim, (*killed_after, *stopped_after), HoldReply)
        await _stop_themselves(desk, stopped_before, flags)
        os.kill(workers["killed"].pid, signal.SIGKILL)
        os.kill(workers["stopped"].pid, signal.SIGSTOP)
        await every_line_dies(desk)
        with to_temporal.down():
            await aside(to_temporal.drop_connections)
            async with order_world.one_worker_for(
                desk, list(queues.values()), **PATIENT, stripe_base_url=desk.stripe_url
            ):
                await desk.advance(PAST_THE_LEASE_SECONDS)
                lost = [LOST_BEFORE[job.proposal.action][0] for job in killed_before]
                await until_states(desk, [*killed_before, *stopped_before], [*lost, *lost])
                for name in ("stopped", *flags):
                    os.kill(workers[name].pid, signal.SIGCONT)
                await all_end(
                    desk,
                    (Trouble.SIGKILL, BEFORE, killed_before, LOST_BEFORE),
                    (Trouble.SIGKILL, AFTER, killed_after, LOST_AFTER),
                    (Trouble.SIGSTOP, BEFORE, stopped_before, DONE),
                    (Trouble.SIGSTOP, AFTER, stopped_after, LOST_AFTER),
                )
    assert [job.arrivals for job in stopped_before] == [1] * len(ALL)


async def _forked(
    desk: Rig, folder: Path, queues: dict[str, str], flags: dict[str, Path], temporal: str
) -> dict[str, Forked]:
    """A worker process for each queue; those with a flag stop themselves between their claim and their send."""
    settings = [
        {f"EFFECTS_{setting.upper()}": str(value) for setting, value in PATIENT.items()}
        | {"EFFECTS_TASK_QUEUE": queue, "EFFECTS_STRIPE_BASE_URL": desk.stripe_url}
        | ({} if name == "killed" else {"TEMPORAL_ADDRESS": temporal})
        | ({"EFFECTS_SEAM": f"claimed:stop:{flags[name]}"} if name in flags else {})
        for name, queue in queues.items()
    ]
    workers = await order_world.brood(desk, folder, settings)
    for worker in workers:
        await order_world.polls(worker)
    return dict(zip(queues, workers, strict=True))


async def _waiting_on(desk: Rig, jobs: Sequence[Job], queue_of: dict[str, str]) -> None:
    """Propose them, each on its queue: each waits for a person."""

    async def waits(job: Job) -> None:
        while not job.operation_id:
            with suppress(WorkflowUpdateRPCTimeoutOrCancelledError):
                queue = queue_of[job.proposal.business_key]
                job.operation_id = (await propose(desk.client, job.proposal, task_queue=queue)).operation_id
        await desk.until(job.operation_id, "awaiting_approval")

    for some in in_batches(jobs):
        await asyncio.gather(*(waits(job) for job in some))


async def _stop_themselves(desk: Rig, jobs: Sequence[Job], flags: dict[str, Path]) -> None:
    for some in in_batches(jobs):
        for job in some:
            flags[job.proposal.action].touch()
        await approve(desk, *some)

        async def stopped(some: Sequence[Job] = some) -> bool:
            return not any(flags[job.proposal.action].exists() for job in some)

        await until(stopped, "workers to stop themselves after their claims")
    assert [job.arrivals for job in jobs] == [0] * len(jobs)


async def test_postgres_and_then_temporal_are_killed_with_requests_and_answers_on_the_line(desk: Rig) -> None:
    """What was answered meanwhile is kept: in the worker's memory without Postgres, in the ledger without Temporal.

    The ERP loses its database with the ledger and is restarted, so that requests to it that were on the line are lost.
    Red: let `Dispatch._record` raise the first Unavailable; start the servers with `remember=False`.
    """
    early, late, before, after = [await one_of_each(desk) for _ in range(4)]
    aim = desk.world.proxies["tryton"].arm(Aim())
    world, servers = desk.world, desk.stack.servers
    settings = {f"EFFECTS_{setting.upper()}": str(value) for setting, value in PATIENT.items()}
    worker = desk.stack.worker(**settings, EFFECTS_STRIPE_BASE_URL=desk.stripe_url)

    async def told(words: str, times: int) -> bool:
        return worker.log_tail(2_000).count(words) >= times

    await until(lambda: told("worker polls", 1), "the worker to start")
    await waiting(desk, *early, *late, *before, *after)

    asked, answered = await under_way(desk, aim, early, HoldRequest), await under_way(desk, aim, late, HoldReply)
    elsewhere = [fault for fault, job in zip(asked, early, strict=True) if job.proposal.action not in AT_ERP]
    await aside(servers.postgres.kill)
    await let_go(*elsewhere)
    await until(lambda: told("waits in memory", len(elsewhere)), "answers to wait for the ledger")
    await aside(servers.postgres.restart)
    await aside(world.tryton.restart)
    await until(lambda: ledger_answers(desk), "the ledger to answer this test again")
    await let_go(*answered)
    lost = [job for job in early if job.proposal.action in AT_ERP]
    for job in (*late, *(job for job in early if job not in lost)):
        await desk.until(job.operation_id, "succeeded")

    asked, answered = await under_way(desk, aim, before, HoldRequest), await under_way(desk, aim, after, HoldReply)
    await aside(servers.temporal.kill)
    await let_go(*asked, *answered)
    for job in (*before, *after):
        await desk.until(job.operation_id, "succeeded", seconds=60)
    await aside(servers.temporal.restart)
    await all_end(
        desk,
        (Trouble.POSTGRES, BEFORE, early, DONE | {action: LOST_BEFORE[action] for action in AT_ERP}),
        (Trouble.POSTGRES, AFTER, late, DONE),
        (Trouble.TEMPORAL, BEFORE, before, DONE),
        (Trouble.TEMPORAL, AFTER, after, DONE),
    )
    assert [job.arrivals for job in (*late, *before, *after)] == [1] * (3 * len(ALL))


async def test_workflows_are_reset_or_terminated_and_started_again_with_requests_and_answers_on_the_line(
    desk: Rig,
) -> None:
    """Their new runs find the operations in flight, and wait; the sends of the old ones run to their end.

    Red: use the run's id in the idempotency key; let a claim do without its compare-and-set.
    """
    reset_before, reset_after, started_before, started_after = [await one_of_each(desk) for _ in range(4)]
    aim = desk.world.proxies["tryton"].arm(Aim())
    async with desk.worker(**PATIENT, stripe_base_url=desk.stripe_url):
        every = (*reset_before, *reset_after, *started_before, *started_after)
        await waiting(desk, *every)
        held = await under_way(desk, aim, (*reset_before, *started_before), HoldRequest)
        held += await under_way(desk, aim, (*reset_after, *started_after), HoldReply)
        for job in (*reset_before, *reset_after):
            await desk.reset(desk.handle(job.proposal))
        for job in (*started_before, *started_after):
            await desk.handle(job.proposal).terminate("test")
            assert (await desk.propose(job.proposal)).operation_id == job.operation_id
        await let_go(*held)
        await all_end(
            desk,
            (Trouble.WORKFLOW_RESET, BEFORE, reset_before, DONE),
            (Trouble.WORKFLOW_RESET, AFTER, reset_after, DONE),
            (Trouble.TERMINATED, BEFORE, started_before, DONE),
            (Trouble.TERMINATED, AFTER, started_after, DONE),
        )
    assert [job.arrivals for job in every] == [1] * len(every)
