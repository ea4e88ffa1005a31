"""What others do at the receiver while our answer is lost, and a lookup that shows the past: for every action that can look.

All operations are under way at the same time, held by their proxies; then people do what they do, and every line dies. Of a
refund the answer is a 500 that is stored for its key: otherwise the key alone would settle it, whatever others do.
"""

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pytest

from activities.ports import Secrets
from devstack.faults import BlackHole, Fault, HoldReply
from ledger.model import Operation
from providers.port import Credential, Look
from providers.registry import default_registry
from tests.conftest import Rig
from tests.matrix import AFTER, BEFORE, Trouble, note
from tests.recovery.by_hand import Hands
from tests.recovery.test_receivers_faults import (
    KEYED,
    LOOKED_FOR,
    REPEATED,
    Aim,
    Job,
    a_job,
    approve,
    arm,
    aside,
    at_rest,
    in_batches,
    nothing_is_overdue,
    until_states,
    waiting,
)

pytestmark = [pytest.mark.matrix, pytest.mark.long, pytest.mark.timeout(300)]
CAN_LOOK = (*KEYED, *REPEATED, *LOOKED_FOR)
# Longer than the test: an answer is lost when its line dies, and not before.
DEADLINE_SECONDS = 100.0
ROLL_FORWARD_SECONDS = 12 * 3_600.0  # for so long a stored 500 may still become a refund


@dataclass
class Case:
    """One action in one row of the matrix, and how it must end: state, effects of ours, and how often it is sent at most."""

    trouble: Trouble
    when: str
    action: str
    ends: str
    sends: int
    job: Job
    made: int = 0  # effects of ours when its line died

    @property
    def effects(self) -> int:
        """Ours, in the end."""
        return int(self.when == AFTER)


def ends(trouble: Trouble, when: str, action: str) -> tuple[str, int]:
    """The state, and how often its write is sent.

    A key is repeated once, and answers with the stored 500. A version is repeated where a look shows it unchanged.
    """
    sends = 2 if action in KEYED else 1
    if trouble is Trouble.TWO_OBJECTS or trouble is Trouble.UNMARKED and action not in REPEATED:
        return "needs_review", sends
    if trouble is Trouble.FOREIGN_EQUAL and when == BEFORE:
        return ("rejected" if action in REPEATED else "needs_review"), sends
    return "succeeded", sends


def all_cases(desk: Rig) -> list[Case]:
    """Every row of this file with every action that it fits."""
    rows = [
        (Trouble.TWO_OBJECTS, AFTER, (*KEYED, *LOOKED_FOR)),
        (Trouble.FOREIGN_EQUAL, BEFORE, CAN_LOOK),
        (Trouble.FOREIGN_EQUAL, AFTER, CAN_LOOK),
        (Trouble.UNMARKED, AFTER, CAN_LOOK),
    ]
    return [
        Case(trouble, when, action, *ends(trouble, when, action), a_job(desk, action))
        for trouble, when, actions in rows
        for action in actions
    ]


def credential(desk: Rig, operation: Operation) -> Credential:
    """What a worker would use for this operation."""
    return Secrets(desk.settings().secrets_dir).credential(desk.stack.household.document, operation)


async def hands(desk: Rig, job: Job) -> Hands:
    """Of a person at the receiver, who has read the letter if it is one."""
    operation, letter = await desk.operation(job.operation_id), ""
    if operation.provider == "mail":
        provider = default_registry().for_action(operation.action)
        shown = await provider.preflight(credential(desk, operation), operation.target, operation.arguments, "")
        letter = "\n".join(shown.facts["text"]) + "\n"
    return Hands(desk, job, operation, letter)


async def under_way(desk: Rig, cases: list[Case]) -> None:
    """Every write has left us and is held: before its receiver has it, or with its answer. A refund's answer is a 500."""
    aim = desk.world.proxies["tryton"].arm(Aim())
    for some in in_batches(cases):
        armed: list[Fault] = []
        for case in some:
            held: Fault = BlackHole() if case.when == BEFORE else HoldReply()
            if case.action in KEYED:
                preset = "stored-500-no-effect" if case.when == BEFORE else "stored-500-executed"
                desk.stack.stripe.control.fault(preset, payment_intent=case.job.proposal.target)
                held = HoldReply()
            armed.append(arm(aim, case.job, held))
        await approve(desk, *(case.job for case in some))
        for fault in armed:
            await aside(fault.wait_fired)
    for case in cases:
        case.made = await case.job.effects()
        assert case.made == case.effects, case


async def every_line_dies(desk: Rig) -> None:
    """No answer that is held comes through any more."""
    for name in ("tryton", "carddav", "smtp", "stripe"):
        await aside(desk.world.proxies[name].drop_connections)


async def test_others_make_unmake_and_copy_while_the_answer_is_lost(desk: Rig) -> None:
    """A second object with our marker, the same by hand, our marker edited away.

    Red: believe the first of two marked objects in `recovery._d1_one_effect`; take a look-alike for ours in `SeenEffect.ours`;
    repeat in `_d10_review`.
    """
    cases = await aside(all_cases, desk)
    async with a_worker(desk):
        await waiting(desk, *(case.job for case in cases))
        await under_way(desk, cases)
        for case in cases:
            person = await hands(desk, case.job)
            await {
                Trouble.TWO_OBJECTS: person.copy,
                Trouble.FOREIGN_EQUAL: person.same,
                Trouble.UNMARKED: person.unmark,
            }[case.trouble]()
        await every_line_dies(desk)
        soon = [case for case in cases if case.action not in KEYED or case.ends == "succeeded"]
        await until_states(desk, [case.job for case in soon], [case.ends for case in soon])
        await desk.advance(ROLL_FORWARD_SECONDS)
        await until_states(desk, [case.job for case in cases], [case.ends for case in cases])
        await nothing_is_overdue(desk)
    for case in cases:
        assert case.job.arrivals == case.sends, case
        await note(desk, case.trouble, case.when, case.job.operation_id, case.made)


async def test_a_lookup_that_shows_the_past_ends_nothing_and_sends_nothing_twice(
    desk: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every look answers what it answered before the write, as a replica may; then, within the settling time, the truth.

    A version that looks unchanged lets a machine write again, on its condition: the receiver refuses that.
    Red: drop `_timestamp` in `tryton_versions.freeze` and `check_frozen`; let one early look count as absence.
    """
    past: dict[str, Look] = {}
    cases = [Case(Trouble.LOOKUP_LAGS, AFTER, a, "succeeded", 0, await aside(a_job, desk, a)) for a in CAN_LOOK]
    jobs = [case.job for case in cases]
    providers = {provider.action: provider for provider in default_registry(desk.stripe_url)}
    for kind in {type(provider) for provider in providers.values()}:
        monkeypatch.setattr(kind, "look", _lagging(kind.look, past))
    async with a_worker(desk):
        await waiting(desk, *jobs)
        seen = {}
        for job in jobs:
            operation = await desk.operation(job.operation_id)
            look = providers[operation.action].look
            seen[job.operation_id] = await look(credential(desk, operation), operation, operation.proposed_at)
            assert seen[job.operation_id].complete and not seen[job.operation_id].effects
        await under_way(desk, cases)
        past.update(seen)
        await every_line_dies(desk)
        await at_rest(desk)
        assert [(await desk.operation(job.operation_id)).state for job in jobs] == ["unknown"] * len(jobs)
        past.clear()
        await until_states(desk, jobs, ["succeeded"] * len(jobs))
        await nothing_is_overdue(desk)
    for job in jobs:
        assert await job.effects() == 1, job
        await note(desk, Trouble.LOOKUP_LAGS, AFTER, job.operation_id, await job.effects())


def a_worker(desk: Rig) -> AbstractAsyncContextManager[None]:
    """With room for all of them at once."""
    return desk.worker(
        call_deadline=DEADLINE_SECONDS, backoff=0.6, activities_at_once=60, stripe_base_url=desk.stripe_url
    )


def _lagging(real: Any, past: dict[str, Look]) -> Any:
    async def look(self: Any, credential: Credential, operation: Operation, since: datetime) -> Look:
        shown: Look = past.get(str(operation.operation_id)) or await real(self, credential, operation, since)
        return shown

    return look
