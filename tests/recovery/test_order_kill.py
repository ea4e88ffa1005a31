"""A worker killed at every named point of every step of an order: in the end one invoice, one note and one mail.

All fifteen deaths happen on one ledger at the same time, each on a task queue of its own with a worker process of its own;
then a second worker takes over each queue. What is told of each is judged case by case. Here every step waits for a person,
so it is the approval that makes step N due, and the crash point, which needs its flag file, is armed just before it.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import pytest_asyncio

from activities.order import Step
from activities.seams import NAMES
from devstack.faults import HoldReply
from devstack.receivers import Receivers
from devstack.stack import Servers
from devstack.stripe_standin.launch import StandInProcess
from tests.conftest import Rig, _fresh
from tests.recovery import order_world
from tests.recovery.order_world import FINAL_DOT, NOTHING, ONE_OF_EACH, WRITE, Effects, Forked, Job, a_job, until

pytestmark = pytest.mark.timeout(240)

# S + D + slack: a lease of 20 s, which the ledger's clock jumps over.
QUICK = {"EFFECTS_SEND_WITHIN": "5", "EFFECTS_CALL_DEADLINE": "10", "EFFECTS_BACKOFF": "0.2"}
TAKEN_OVER = {"send_within": 5.0, "call_deadline": 10.0}
PAST_THE_LEASE = 25.0
PAST_THE_LONGEST_CALL = 2 * 3600.0  # an hour for Tryton, ten minutes for a mail server, and their settling
PAST_HALF_THE_SETTLING = 360.0

AT_ONCE = 5  # orders that are brought to their crash point together

CASES = [(step, point) for step in Step for point in NAMES]
BEFORE_THE_SEND = ("claimed", "guarded")  # killed there, nothing has left


@dataclass
class Death:
    """One killed worker and what became of its order."""

    job: Job
    step: Step
    point: str
    operation_id: str = ""
    taken_over: str = ""  # the step's state once the lease was over and its receiver was looked at
    reviewed: bool = False  # whether people had to settle it
    evidence: list[bool] = field(default_factory=list)  # the looks that people are shown: whether each was complete
    meanwhile: Effects = NOTHING  # at the receivers, when machines had done all that they may
    attempts: int = 0  # of the killed operation, in the end
    supersedes: str = ""  # the id that the revision of it names
    end: str = ""  # of the order
    effects: Effects = NOTHING  # and at the receivers then


@pytest_asyncio.fixture(scope="module")
async def deaths(
    servers: Servers, stand_in: StandInProcess, receivers: Receivers, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[dict[tuple[Step, str], Death]]:
    """Fifteen orders, each killed at its step and point, and carried on to their ends."""
    folder = tmp_path_factory.mktemp("deaths")
    async with _fresh(servers, stand_in, folder, receivers) as desk:
        await order_world.ask_people_for_every_step(desk)
        told = [Death(await a_job(desk, queue=f"{desk.stack.name}-{at}"), *case) for at, case in enumerate(CASES)]
        flags = [folder / f"armed-{death.job.queue}" for death in told]
        settings = [
            {**QUICK, "EFFECTS_SEAM": f"{death.point}:kill:{flag}", "EFFECTS_TASK_QUEUE": death.job.queue}
            for death, flag in zip(told, flags, strict=True)
        ]
        workers = await order_world.brood(desk, folder, settings)
        at_once = asyncio.Semaphore(AT_ONCE)
        await asyncio.gather(*(_die(*one, at_once) for one in zip(told, workers, flags, strict=True)))
        async with order_world.one_worker_for(desk, [death.job.queue for death in told], **TAKEN_OVER):
            await _settle(desk, told)
            await asyncio.gather(*(_carry_on(desk, death) for death in told))
        yield {(death.step, death.point): death for death in told}


async def _die(death: Death, worker: Forked, flag: Path, at_once: asyncio.Semaphore) -> None:
    """Everything before the step is done; then it becomes due, and its worker is killed at the point."""
    job = death.job
    await order_world.polls(worker)
    async with at_once:
        await job.ask()
        for earlier in list(Step)[: list(Step).index(death.step)]:
            await job.approve(earlier)
            await job.until(earlier, "succeeded")
        await job.until(death.step, "awaiting_approval")
        flag.touch()
        death.operation_id = await job.approve(death.step)

        async def killed() -> bool:
            return not flag.exists() and not worker.alive

        await until(killed, f"the worker to be killed at {death.point} of {death.step}: {worker.log}")


async def _settle(desk: Rig, told: list[Death]) -> None:
    """Over the lease, then over the longest that a request may be worked on, then far enough for a second look."""
    await asyncio.gather(*(_approve_the_others(death) for death in told))
    await desk.advance(PAST_THE_LEASE)
    await asyncio.gather(*(_see_taken_over(desk, death) for death in told))
    open_ones = [death for death in told if death.taken_over == "unknown"]
    for seconds in (PAST_THE_LONGEST_CALL, PAST_HALF_THE_SETTLING, PAST_HALF_THE_SETTLING):
        # the second look counts, or the third: one that began before the clock was moved does not
        before = [len(await order_world.sightings(desk, death.operation_id)) for death in open_ones]
        await desk.advance(seconds)
        await asyncio.gather(*(_see_looked_at(desk, *one) for one in zip(open_ones, before, strict=True)))
    for death in open_ones:
        operation = await desk.until(death.operation_id, "needs_review", "succeeded")
        death.reviewed = operation.state == "needs_review"
        if death.reviewed:
            death.evidence = await order_world.sightings(desk, death.operation_id)
    for death in told:
        death.meanwhile = await death.job.effects()


async def _see_taken_over(desk: Rig, death: Death) -> None:
    """By the second worker, which has looked at the receiver where the answer was lost."""

    async def seen() -> bool:
        operation = await desk.operation(death.operation_id)
        death.taken_over = operation.state
        looked = any(await order_world.sightings(desk, death.operation_id))
        return operation.state == "succeeded" or (operation.state == "unknown" and looked)

    await until(seen, f"{death.step} killed at {death.point} to be taken over")
    if death.step is Step.CUSTOMER:  # the unchanged version lets a machine repeat it
        death.taken_over = (await desk.until(death.operation_id, "succeeded", seconds=60)).state


async def _see_looked_at(desk: Rig, death: Death, before: int) -> None:
    """Once more than before, or settled."""

    async def seen() -> bool:
        state = (await desk.operation(death.operation_id)).state
        return state != "unknown" or len(await order_world.sightings(desk, death.operation_id)) > before

    await until(seen, f"a further look at {death.step} killed at {death.point}")


async def _approve_the_others(death: Death) -> None:
    """What does not rest on the killed step goes on meanwhile."""
    if death.step is Step.CUSTOMER:
        await death.job.approve(Step.MAIL)
        await death.job.until(Step.MAIL, "succeeded")


async def _carry_on(desk: Rig, death: Death) -> None:
    """To the end of the order: where people had to settle it, two certify that nothing happened, and it is revised."""
    job = death.job
    if death.reviewed:
        await order_world.certify_nothing_happened(desk, death.operation_id)
        assert (await job.until_ended()).state == "ended"
        job = await job.revised(death.step)
        await job.ask()
        death.supersedes = str((await job.until(death.step, "awaiting_approval")).supersedes)
    for step in Step:
        operation = await job.until(step, "awaiting_approval", "succeeded")
        if operation.state == "awaiting_approval":
            await desk.approve(str(operation.operation_id))
        await job.until(step, "succeeded")
    death.end = (await job.until_ended()).state
    death.effects = await job.effects()
    death.attempts = (await desk.operation(death.operation_id)).fence


@pytest.mark.parametrize("step, point", CASES, ids=str)
def test_a_killed_worker_leaves_one_of_each(deaths: dict[tuple[Step, str], Death], step: Step, point: str) -> None:
    """Judged by the receivers: nothing twice, nothing missing.

    Red: let `settle.close_attempt_as_unknown` write NO_EFFECT (lost invoices and mails are sent again), and take `found` of
    `Dispatch._first_claim` to be empty.
    """
    death = deaths[step, point]
    assert (death.end, death.effects) == ("done", ONE_OF_EACH)


@pytest.mark.parametrize("step, point", CASES, ids=str)
def test_after_a_kill_people_are_asked_only_where_nothing_safe_is_left(
    deaths: dict[tuple[Step, str], Death], step: Step, point: str
) -> None:
    """An effect that exists is found, an unchanged customer is written again, and of the rest nothing is sent unasked.

    Killed while it was written, the receiver may have taken the request or not: its records say which of the two it must be.
    Red: let D8 of `recovery` do without `conditional_write`'s look, or `_d10_review` repeat.
    """
    death = deaths[step, point]
    made = (death.meanwhile.invoices, death.meanwhile.notes, death.meanwhile.mails)[list(Step).index(step)]
    if point in BEFORE_THE_SEND and step is not Step.CUSTOMER:
        assert made == 0
    elif point != "written":
        assert made == 1
    assert death.reviewed == (made == 0)
    if death.reviewed:
        assert (death.taken_over, death.attempts) == ("unknown", 1)
        assert sum(death.evidence) >= 2 and death.supersedes == death.operation_id
    elif step is Step.CUSTOMER and point in BEFORE_THE_SEND:
        assert death.attempts == 2
    else:
        assert death.attempts == 1 or step is Step.CUSTOMER


@pytest.mark.parametrize("step, point", CASES, ids=str)
def test_a_kill_holds_only_what_depends_on_the_step(
    deaths: dict[tuple[Step, str], Death], step: Step, point: str
) -> None:
    """While the invoice is unknown nothing rests on it; note and mail do not wait for each other."""
    death = deaths[step, point]
    if step is Step.INVOICE:
        assert (death.meanwhile.notes, death.meanwhile.mails) == (0, 0)
    elif step is Step.CUSTOMER:
        assert (death.meanwhile.invoices, death.meanwhile.mails) == (1, 1)
    else:
        assert (death.meanwhile.invoices, death.meanwhile.notes) == (1, 1)


async def test_a_worker_killed_with_note_and_mail_under_way_leaves_one_of_each(desk: Rig) -> None:
    """Both have reached their receivers, whose answers are held back; nobody is asked, both are found.

    Red: let `settle.close_attempt_as_unknown` write NO_EFFECT (both are sent again), and take `found` of
    `Dispatch._first_claim` to be empty.
    """
    job = await a_job(desk)
    writing = desk.world.proxies["tryton"].arm(HoldReply(after=WRITE))
    mailing = desk.world.proxies["smtp"].arm(HoldReply(after=FINAL_DOT))
    worker = desk.stack.worker(**QUICK)
    await job.ask()
    await job.approve(Step.INVOICE)
    await asyncio.to_thread(writing.wait_fired)
    await asyncio.to_thread(mailing.wait_fired)
    worker.kill()
    async with desk.worker(**TAKEN_OVER):
        await desk.advance(PAST_THE_LEASE)
        writing.release()
        mailing.release()
        for step in (Step.CUSTOMER, Step.MAIL):
            assert (await job.until(step, "succeeded")).fence == 1
        assert (await job.until_ended()).state == "done"
    assert await job.effects() == ONE_OF_EACH
