"""Real workers, killed or stopped at every named point of a dispatch: never a second effect, never an operation that hangs."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from activities.seams import NAMES
from devstack.child import Child
from tests.conftest import Rig
from tests.matrix import AFTER, BEFORE, Trouble, note

# Short bounds: a lease of 8 s (1 + 2 + 5) instead of 45, so that a takeover is seen soon; pauses of 0.2 s.
QUICK = {"EFFECTS_SEND_WITHIN": "1", "EFFECTS_CALL_DEADLINE": "2", "EFFECTS_BACKOFF": "0.2"}
A_DAY_AND_AN_HOUR = 25 * 3600.0


def _armed(tmp_path: Path, name: str, action: str) -> tuple[dict[str, str], Path]:
    flag = tmp_path / "armed"
    flag.touch()
    return {**QUICK, "EFFECTS_SEAM": f"{name}:{action}:{flag}"}, flag


async def _fired(flag: Path, worker: Child, *, ended: bool) -> None:
    """Wait until the crash point fired, and, for a kill, until the worker is gone."""
    for _ in range(600):
        if not flag.exists() and (not ended or not worker.alive):
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"the crash point did not fire\n{worker.log_tail(30)}")


@pytest.mark.parametrize("point", NAMES)
async def test_a_worker_killed_inside_the_window_leaves_one_refund(rig: Rig, tmp_path: Path, point: str) -> None:
    """SIGKILL between "claim committed" and after "outcome committed"; a second worker settles it within the key window.

    Red: make `recovery.key_window_ends` count from the latest claim and the key a fresh one per attempt.
    """
    target = rig.payment()
    armed, flag = _armed(tmp_path, point, "kill")
    first = rig.stack.worker(**armed)
    proposal = rig.proposal(target)
    answer = await rig.propose(proposal)
    await _fired(flag, first, ended=True)
    rig.stack.worker(**QUICK)
    await rig.advance(10)  # past the lease
    operation = await rig.until(answer.operation_id, "succeeded", seconds=40)
    assert [e.refund for e in rig.effects(target)] == [operation.receipt]
    assert {a.idempotency_key for a in rig.posts(target)} == {operation.idempotency_key}


@pytest.mark.matrix
@pytest.mark.parametrize("point", ["claimed", "guarded", "written", "answered"])
async def test_a_worker_killed_and_found_25_hours_later_sends_nothing_more(
    rig: Rig, tmp_path: Path, point: str
) -> None:
    """Both clocks moved, keys pruned at the stand-in. Killed before the send: review. After it: found by its marker.

    Red: return REPEAT in `recovery._d7_repeat_with_key` without looking at the window.
    """
    target = rig.payment()
    armed, flag = _armed(tmp_path, point, "kill")
    first = rig.stack.worker(**armed)
    answer = await rig.propose(rig.proposal(target))
    await _fired(flag, first, ended=True)
    sent = len(rig.posts(target))
    await rig.advance(A_DAY_AND_AN_HOUR)
    rig.stack.worker(**QUICK)
    operation = await rig.until(answer.operation_id, "succeeded", "needs_review", seconds=60)
    assert len(rig.posts(target)) == sent
    assert operation.state == ("succeeded" if rig.effects(target) else "needs_review")
    assert len(rig.effects(target)) == (1 if point == "answered" else len(rig.effects(target)))
    if point != "written":  # there the receiver may have it or not
        when = AFTER if point == "answered" else BEFORE
        await note(rig, Trouble.KEY_EXPIRED, when, answer.operation_id, len(rig.effects(target)))


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
