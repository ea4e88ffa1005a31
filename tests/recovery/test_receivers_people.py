"""What only people can settle about real receivers, and what even they may not say yet.

The judges are the receivers' own records, as in test_receivers_faults.py.
"""

import asyncio
from email.message import EmailMessage
from typing import Any

import pytest

from devstack.faults import BlackHole, CutReply, CutRequest
from ledger.trail import EventKind
from tests.conftest import Rig
from tests.recovery.test_receivers_faults import (
    BETWEEN_LOOKS_SECONDS,
    TO_ABSENCE_SECONDS,
    Aim,
    Job,
    a_job,
    approve,
    arm,
    aside,
    nothing_is_overdue,
    until_states,
    waiting,
)

pytestmark = pytest.mark.timeout(300)
NOBODY_KNOWS = {"decision": "undetermined", "evidence": "the server keeps no log, and the recipient does not answer"}
NOTHING = {"decision": "did_not_happen", "evidence": "the receiver's own log, read by two"}
QUIET_SECONDS = 650.0  # quiet_at of a mail, with the deadline below


async def say(desk: Rig, job: Job, who: str, **said: Any) -> str:
    """Sign on the trail as it stands; the rule by which it was refused, or nothing when it was accepted."""
    before = await answers(desk, job)
    await desk.handle(job.proposal).signal("resolve", await desk.signed(job.operation_id, who, "resolution", **said))
    deadline = asyncio.get_running_loop().time() + 20
    while (now := await answers(desk, job)) == before:
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.05)
    return now[-1]


async def answers(desk: Rig, job: Job) -> list[str]:
    """What became of each statement of an operator."""
    told = []
    for event in await desk.trail(job.operation_id):
        if event.kind == EventKind.STATEMENT_REFUSED:
            told.append(str(event.body["rule"]))
        elif event.kind == EventKind.STATEMENT_ACCEPTED and event.body["typ"] == "resolution":
            told.append("")
    return told


async def state(desk: Rig, job: Job) -> str:
    return (await desk.operation(job.operation_id)).state.value


async def test_a_lost_mail_without_an_archive_is_certified_by_two(desk: Rig) -> None:
    """Of four lost mails two were delivered. At once a person is asked; nobody may say anything before the mail server must
    have ended, one operator is never enough, and the same one twice is one.

    Red: let `policy.PEOPLE_WITHOUT_PROOF` be 1; drop `not_quiet` in `check_undeterminable` or `check_absence`.
    """
    jobs = [await aside(a_job, desk, "send_mail_unarchived") for _ in range(4)]
    aim = Aim()
    async with desk.worker(call_deadline=3.0):
        await waiting(desk, *jobs)
        for job, fault in zip(jobs, (CutReply(), CutRequest(), CutReply(), CutRequest()), strict=True):
            arm(aim, job, fault)
        await approve(desk, *jobs)
        await until_states(desk, jobs, ["needs_review"] * 4)
        assert [await job.effects() for job in jobs] == [1, 0, 1, 0]
        sent, unsent, known, absent = jobs
        assert await say(desk, sent, "olga", **NOBODY_KNOWS) == "not_quiet"
        assert await say(desk, absent, "olga", **NOTHING) == "not_quiet"
        await desk.advance(QUIET_SECONDS)
        assert await say(desk, sent, "alice", **NOBODY_KNOWS) == "not_operator"
        happened = {"decision": "happened", "evidence": "250 in the server's log"}
        happened["receipt"] = f"<{known.operation_id}@acme.test>"
        for job, said, end in (
            (sent, NOBODY_KNOWS, "undetermined"),
            (unsent, NOBODY_KNOWS, "undetermined"),
            (known, happened, "succeeded"),
            (absent, NOTHING, "rejected"),
        ):
            assert await say(desk, job, "olga", **said) == await say(desk, job, "olga", **said) == ""
            assert await state(desk, job) == "needs_review"
            assert await say(desk, job, "oscar", **said) == ""
            await desk.until(job.operation_id, end)
        await nothing_is_overdue(desk)
    assert [await job.effects() for job in jobs] == [1, 0, 1, 0]
    assert [job.arrivals for job in jobs] == [1, 1, 1, 1]


class Forgery:
    """Somebody puts our marker on an effect that is not ours, so that a person is asked early; and takes it away again."""

    def __init__(self, desk: Rig, job: Job, other: Job) -> None:
        self._desk, self._job, self._other = desk, job, other
        self._card = ""

    def make(self) -> None:
        """On another invoice, on another card, on another mail."""
        world, marker = self._desk.world, self._job.operation_id
        match self._job.proposal.action:
            case "create_draft_invoice":
                self._mark_invoice(marker)
            case "create_contact":
                self._card = world.book.add("Somebody Else", f"X-EFFECT-OPERATION:{marker}").href
            case _:
                mail = EmailMessage()
                mail["From"], mail["To"] = "somebody@acme.test", "else@customer.test"
                mail["X-Effect-Operation"] = marker
                mail.set_content("something else")
                world.box.append(mail)

    def undo(self) -> None:
        """As it was before."""
        world, marker = self._desk.world, self._job.operation_id
        match self._job.proposal.action:
            case "create_draft_invoice":
                self._mark_invoice(self._other.operation_id)
            case "create_contact":
                world.book.delete(self._card)
            case _:
                for mail in world.box.with_header("X-Effect-Operation", marker):
                    world.box.delete(mail)

    def _mark_invoice(self, marker: str) -> None:
        erp = self._desk.world.erp
        (found,) = [*erp.invoices(self._other.operation_id), *erp.invoices(self._job.operation_id)]
        erp.edit_record("account.invoice", found.id, reference=marker)


async def look(desk: Rig, job: Job) -> None:
    """A look, now; returns when it stands in the trail."""
    kinds = (EventKind.SIGHTING, EventKind.SIGHTING_SAME)

    async def looks() -> int:
        return sum(event.kind in kinds for event in await desk.trail(job.operation_id))

    before, deadline = await looks(), asyncio.get_running_loop().time() + 20
    await desk.handle(job.proposal).signal("look_now")
    while await looks() == before:
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.05)


async def test_that_nothing_happened_is_certified_by_two_and_only_when_nothing_can_come_any_more(desk: Rig) -> None:
    """An invoice, a contact and a mail that never arrived; each comes to a person early, since somebody else's effect bears
    its marker for a while. Then: too early, seen once only, one operator, two.

    Red: drop `not_quiet` or the call of `qualified_absence` in `resolve.check_absence`.
    """
    invoice, other, contact, mail = [
        await aside(a_job, desk, action)
        for action in ("create_draft_invoice", "create_draft_invoice", "create_contact", "send_mail")
    ]
    jobs, aim = [invoice, contact, mail], desk.world.proxies["tryton"].arm(Aim())
    forgeries = [Forgery(desk, job, other) for job in jobs]
    async with desk.worker(call_deadline=3.0):
        await waiting(desk, other, *jobs)
        await approve(desk, other)
        await desk.until(other.operation_id, "succeeded")
        lost = [arm(aim, job, BlackHole()) for job in jobs]
        await approve(desk, *jobs)
        for fault, forgery in zip(lost, forgeries, strict=True):
            await aside(fault.wait_fired)
            await aside(forgery.make)
        for job, forgery in zip(jobs, forgeries, strict=True):
            await desk.until(job.operation_id, "needs_review")
            await aside(forgery.undo)
            await look(desk, job)
            assert await say(desk, job, "olga", **NOTHING) == "not_quiet"
            assert await state(desk, job) == "needs_review"
        await desk.advance(TO_ABSENCE_SECONDS)
        await look(desk, mail)
        assert await say(desk, mail, "olga", **NOTHING) == "absence_unproved"
        await desk.advance(BETWEEN_LOOKS_SECONDS)
        for job in jobs:
            await look(desk, job)
            assert await say(desk, job, "olga", **NOTHING) == await say(desk, job, "olga", **NOTHING) == ""
            assert await state(desk, job) == "needs_review"
            assert await say(desk, job, "oscar", **NOTHING) == ""
            await desk.until(job.operation_id, "rejected")
        await nothing_is_overdue(desk)
    assert [await job.effects() for job in jobs] == [0, 0, 0] and await other.effects() == 1
    assert [job.arrivals for job in jobs] == [1, 1, 1]
