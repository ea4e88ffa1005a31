"""Real workers, killed or stopped at every named point of a dispatch: never a second effect, never an operation that hangs."""

import asyncio
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from activities.seams import NAMES
from devstack.child import Child
from tests.conftest import Rig
from tests.matrix import AFTER, BEFORE, Trouble, note
from tests.recovery.order_world import Forked, brood, one_worker_for
from workflows.client import propose

# Short bounds: a lease of 8 s (1 + 2 + 5) instead of 45, so that a takeover is seen soon; pauses of 0.2 s.
QUICK = {"EFFECTS_SEND_WITHIN": "1", "EFFECTS_CALL_DEADLINE": "2", "EFFECTS_BACKOFF": "0.2"}
TAKEN_OVER = {"send_within": 1.0, "call_deadline": 2.0, "backoff": 0.2}
A_DAY_AND_AN_HOUR = 25 * 3600.0


def _armed(tmp_path: Path, name: str, action: str) -> tuple[dict[str, str], Path]:
    flag = tmp_path / "armed"
    flag.touch()
    return {**QUICK, "EFFECTS_SEAM": f"{name}:{action}:{flag}"}, flag


async def _fired(flag: Path, worker: Child | Forked, *, ended: bool) -> None:
    """Wait until the crash point fired, and, for a kill, until the worker is gone."""
    for _ in range(1200):
        if not flag.exists() and (not ended or not worker.alive):
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"the crash point did not fire: {worker}")


@dataclass(frozen=True)
class Killed:
    """A refund whose worker died at a point, and how many requests had reached the stand-in by then."""

    point: str
    target: str
    queue: str
    operation_id: str
    sent: int


async def killed_at(rig: Rig, folder: Path, points: Sequence[str]) -> list[Killed]:
    """One refund for each point, each with a worker process and a task queue of its own, all killed at the same time."""
    flags = [folder / f"armed-{point}" for point in points]
    queues = [f"{rig.stack.name}-{point}" for point in points]
    settings = [
        {**QUICK, "EFFECTS_SEAM": f"{point}:kill:{flag}", "EFFECTS_TASK_QUEUE": queue}
        for point, flag, queue in zip(points, flags, queues, strict=True)
    ]
    for flag in flags:
        flag.touch()
    workers = await brood(rig, folder, settings)
    targets = [rig.payment() for _ in points]
    asked = [propose(rig.client, rig.proposal(t), task_queue=q) for t, q in zip(targets, queues, strict=True)]
    answers = await asyncio.gather(*asked)
    await asyncio.gather(*(_fired(flag, worker, ended=True) for flag, worker in zip(flags, workers, strict=True)))
    return [
        Killed(point, target, queue, answer.operation_id, len(rig.posts(target)))
        for point, target, queue, answer in zip(points, targets, queues, answers, strict=True)
    ]


async def test_a_worker_killed_inside_the_window_leaves_one_refund(rig: Rig, tmp_path: Path) -> None:
    """SIGKILL between "claim committed" and after "outcome committed"; a second worker settles it within the key window.

    Red: make `recovery.key_window_ends` count from the latest claim and the key a fresh one per attempt.
    """
    killed = await killed_at(rig, tmp_path, NAMES)
    async with one_worker_for(rig, [one.queue for one in killed], **TAKEN_OVER):
        await rig.advance(10)  # past the lease
        for one in killed:
            operation = await rig.until(one.operation_id, "succeeded")
            assert [e.refund for e in rig.effects(one.target)] == [operation.receipt], one
            assert {a.idempotency_key for a in rig.posts(one.target)} == {operation.idempotency_key}, one


@pytest.mark.matrix
async def test_a_worker_killed_and_found_25_hours_later_sends_nothing_more(rig: Rig, tmp_path: Path) -> None:
    """Both clocks moved, keys pruned at the stand-in. Killed before the send: review. After it: found by its marker.

    Red: return REPEAT in `recovery._d7_repeat_with_key` without looking at the window.
    """
    killed = await killed_at(rig, tmp_path, ["claimed", "guarded", "written", "answered"])
    await rig.advance(A_DAY_AND_AN_HOUR)
    async with one_worker_for(rig, [one.queue for one in killed], **TAKEN_OVER):
        for one in killed:
            operation = await rig.until(one.operation_id, "succeeded", "needs_review")
            made = len(rig.effects(one.target))
            assert (len(rig.posts(one.target)), operation.state) == (one.sent, "succeeded" if made else "needs_review")
            assert made == 1 if one.point == "answered" else made <= 1, one
            if one.point != "written":  # there the receiver may have it or not
                when = AFTER if one.point == "answered" else BEFORE
                await note(rig, Trouble.KEY_EXPIRED, when, one.operation_id, made)


async def test_a_worker_stopped_before_its_send_and_resumed_a_day_later_sends_nothing(rig: Rig, tmp_path: Path) -> None:
    """SIGSTOP after the claim; another worker takes over after lease and pruning; SIGCONT: the guard says no.

    Red: let `Dispatch._may_still_send` return True at once.
    """
    target = rig.payment()
    armed, flag = _armed(tmp_path, "claimed", "stop")
    # One slot: a stopped worker with a poll open would take the retry, and nobody would see it for half a minute.
    # A wide S, so that CLOCK_BOOTTIME allows the send and only the fence can refuse it.
    stopped = rig.stack.worker(**{**armed, "EFFECTS_SEND_WITHIN": "90", "EFFECTS_ACTIVITIES_AT_ONCE": "1"})
    answer = await rig.propose(rig.proposal(target))
    await _fired(flag, stopped, ended=False)
    await rig.advance(A_DAY_AND_AN_HOUR)
    rig.stack.worker(**QUICK)
    await rig.until(answer.operation_id, "needs_review", seconds=60)
    os.kill(stopped.pid, signal.SIGCONT)
    for _ in range(400):
        kinds = [e.kind for e in await rig.trail(answer.operation_id)]
        if "late_answer" in kinds:
            break
        await asyncio.sleep(0.05)
    late = [e.body for e in await rig.trail(answer.operation_id) if e.kind == "late_answer"]
    assert [(b["outcome"], b["hint"]) for b in late] == [("no_effect", "not_sent")]
    # Its late answer is proof that nothing was sent: no person is needed, and a new claim sends it once, well approved.
    await rig.until(answer.operation_id, "succeeded", seconds=40)
    assert len(rig.posts(target)) == len(rig.effects(target)) == 1


async def test_a_worker_stopped_inside_the_guard_is_noticed_by_boottime(rig: Rig, tmp_path: Path) -> None:
    """Stopped after the fence was read again, resumed later than S by CLOCK_BOOTTIME: nothing leaves.

    Red: drop the comparison with `send_until` at the end of the guard.
    """
    target = rig.payment()
    armed, flag = _armed(tmp_path, "guarded", "stop")
    worker = rig.stack.worker(**armed)
    answer = await rig.propose(rig.proposal(target))
    await _fired(flag, worker, ended=False)
    await asyncio.sleep(1.2)  # longer than S = 1 s; CLOCK_BOOTTIME cannot be moved
    os.kill(worker.pid, signal.SIGCONT)
    await rig.until(answer.operation_id, "succeeded", seconds=40)
    first = next(e.body for e in await rig.trail(answer.operation_id) if e.kind in ("attempt_answered", "late_answer"))
    assert (first["outcome"], first["hint"]) == ("no_effect", "not_sent")
    assert len(rig.posts(target)) == 1
    assert len(rig.effects(target)) == 1


async def test_two_workers_share_many_operations_and_send_each_once(rig: Rig) -> None:
    """Two processes, one queue, twelve operations on twelve payments: twelve refunds."""
    for _ in range(2):
        rig.stack.worker(**QUICK)
    targets = [rig.payment() for _ in range(12)]
    answers = await asyncio.gather(*(rig.propose(rig.proposal(target, amount=1_000)) for target in targets))
    for answer in answers:
        await rig.until(answer.operation_id, "succeeded", seconds=60)
    assert [len(rig.effects(target)) for target in targets] == [1] * 12
    assert [len(rig.posts(target)) for target in targets] == [1] * 12
