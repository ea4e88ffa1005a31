"""What each fault of the stand-in leads to, end to end: how it ended, requests that arrived, refunds that exist."""

import asyncio
from dataclasses import dataclass

import pytest

from ledger.model import Operation
from tests.conftest import Rig
from tests.matrix import AFTER, BEFORE, Trouble, note

AN_HOUR = 3_600.0


@dataclass(frozen=True)
class Case:
    """A fault, and what must come of it. `hours` pass after the first answer, step by step, so that looks fall due."""

    fault: str
    ends: str
    posts: int
    effects: int
    reason: str  # why this is right
    hours: tuple[float, ...] = ()


CASES = [
    Case("lost-answer", "succeeded", 2, 1, "inside the window the same request is repeated, and replayed"),
    Case("closed-answer", "succeeded", 2, 1, "a clean close without an answer is a lost answer too"),
    Case("truncated", "succeeded", 2, 1, "half an answer is none"),
    Case("html-200", "succeeded", 2, 1, "a page with status 200 is no answer of the API"),
    Case("html-502", "succeeded", 2, 1, "an edge's 502 says nothing about what was executed"),
    Case("lost-request", "succeeded", 2, 1, "lost on the way there looks the same, and ends the same"),
    Case("closed-request", "succeeded", 2, 1, "closed before execution"),
    Case("html-503", "succeeded", 2, 1, "an edge's 503 before execution"),
    Case("rate-limited", "succeeded", 2, 1, "429 is proved without effect: sent again after a pause, nobody is asked"),
    Case("lock-timeout", "succeeded", 2, 1, "the other 429"),
    Case("unauthorized", "succeeded", 2, 1, "401: nothing happened; a new claim later"),
    Case("forbidden", "succeeded", 2, 1, "403"),
    Case("in-flight-409", "succeeded", 2, 1, "an earlier request runs: wait, same key"),
    Case("stored-500-executed", "succeeded", 1, 1, "a stored 500 is never repeated; its effect is found by its marker"),
    Case(
        "stored-500-no-effect", "needs_review", 1, 0, "nothing found until roll-forward is over: a person", (1, 12, 1)
    ),
    Case("stored-500-roll-forward", "succeeded", 1, 1, "rolled forward ten minutes later, found by a look", (0.5,)),
    Case("duplicate+stored-500-executed", "needs_review", 1, 2, "two refunds with our marker: a person must see it"),
    Case("wrong-amount", "succeeded", 1, 1, "an answer about another amount is not believed; what is listed is"),
    Case("pending", "succeeded", 1, 1, "pending is an effect; it is followed to its end", ()),
]


# Where these stand in docs/faults.md; what else can happen to a refund is played with all other actions.
ROWS = {
    "rate-limited": (Trouble.RATE_429, BEFORE),
    "lock-timeout": (Trouble.LOCK_429, BEFORE),
    "unauthorized": (Trouble.LOGIN_401, BEFORE),
    "in-flight-409": (Trouble.CONFLICT_409, BEFORE),
    "stored-500-executed": (Trouble.STORED_500, AFTER),
    "stored-500-no-effect": (Trouble.STORED_500, BEFORE),
    "stored-500-roll-forward": (Trouble.ROLLED_FORWARD, BEFORE),
}


@pytest.mark.matrix
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.fault)
async def test_fault(rig: Rig, case: Case) -> None:
    """The judge is the stand-in's journal. Red: classify the answer otherwise in providers/stripe_answers.py."""
    target = rig.payment()
    for fault in case.fault.split("+"):
        rig.stack.stripe.control.fault(fault, payment_intent=target)
    async with rig.worker():
        answer = await rig.propose(rig.proposal(target))
        operation = await _settled(rig, answer.operation_id, case)
    assert (operation.state, len(rig.posts(target)), len(rig.effects(target))) == (case.ends, case.posts, case.effects)
    if operation.state == "succeeded":
        assert [e.refund for e in rig.effects(target)] == [operation.receipt]
    if case.fault in ROWS:
        await note(rig, *ROWS[case.fault], answer.operation_id, len(rig.effects(target)))


async def _settled(rig: Rig, operation_id: str, case: Case) -> Operation:
    for hours in case.hours:
        await rig.until(operation_id, "unknown")
        await rig.advance(hours * AN_HOUR)
        await asyncio.sleep(0.3)
    return await rig.until(operation_id, case.ends, seconds=40)
