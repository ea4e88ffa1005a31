"""Refunds and every fault that the stand-in knows: what the adapter says about a send and a look, and what really happened.

The judge is the stand-in's journal: the number of effects and of arrivals, never the adapter's own answer.
"""

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from ledger.model import Hint, Outcome, Standing
from tests.providers.conftest import StripeRig

pytestmark = pytest.mark.asyncio


async def test_a_plain_send_makes_one_effect_and_its_look_finds_it(stripe_rig: StripeRig) -> None:
    operation = stripe_rig.operation()
    began = stripe_rig.world.now()
    seen = await stripe_rig.send(operation)
    (effect,) = stripe_rig.effects(operation)
    assert (seen.outcome, seen.receipt, seen.standing) == (Outcome.APPLIED, effect.refund, Standing.GOOD)
    look = await stripe_rig.provider.look(stripe_rig.credential, operation, _time(began))
    assert look.complete and [(e.receipt, e.ours) for e in look.effects] == [(effect.refund, True)]
    assert len(stripe_rig.writes(operation)) == 1


async def test_a_repeat_has_no_second_effect_and_keeps_the_receipt(stripe_rig: StripeRig) -> None:
    operation = stripe_rig.operation()
    first, second = await stripe_rig.send(operation), await stripe_rig.send(operation)
    assert first.receipt == second.receipt and second.detail["replayed"]
    assert len(stripe_rig.effects(operation)) == 1
    keys = {line.idempotency_key for line in stripe_rig.writes(operation)}
    assert keys == {operation.idempotency_key}
    assert len({line.body_sha256 for line in stripe_rig.writes(operation)}) == 1


async def test_every_fault_is_judged_as_the_journal_does(stripe_rig: StripeRig) -> None:
    """One send per fault, all at once: outcome, hint, effects, and exactly one arrival.

    Call a timeout or a 5xx `refused` in `classify`, or let the SDK retry, to see it red.
    """
    contract = stripe_rig.brief_contract()

    async def one(fault: Any) -> list[str]:
        operation = stripe_rig.operation()
        stripe_rig.arm(fault, operation)
        seen = await stripe_rig.send(operation, contract=contract)
        effects, writes = stripe_rig.effects(operation), stripe_rig.writes(operation)
        told = (seen.outcome, seen.hint, seen.stored, len(effects), len(writes))
        wanted = (fault.outcome, fault.hint, fault.stored, fault.effects, 1)
        wrong = [] if told == wanted else [f"{fault.name}: {told} instead of {wanted}"]
        if fault.standing not in (None, seen.standing):
            wrong.append(f"{fault.name}: standing {seen.standing}")
        if seen.receipt is not None and seen.receipt not in {effect.refund for effect in effects}:
            wrong.append(f"{fault.name}: receipt {seen.receipt} is not in the journal")
        if seen.outcome in (Outcome.NO_EFFECT, Outcome.REFUSED) and effects:
            wrong.append(f"{fault.name}: called {seen.outcome}, and there is an effect")
        return wrong

    found = await asyncio.gather(*(one(fault) for fault in stripe_rig.faults))
    stripe_rig.world.release()
    assert [line for lines in found for line in lines] == []


async def test_after_every_fault_a_repeat_or_a_look_settles_on_one_effect(stripe_rig: StripeRig) -> None:
    """Nothing that any fault leaves behind makes a second effect, except a provider that executes twice by itself."""
    contract = stripe_rig.brief_contract()

    async def one(fault: Any) -> list[str]:
        operation = stripe_rig.operation()
        began = stripe_rig.world.now()
        stripe_rig.arm(fault, operation)
        await stripe_rig.send(operation, contract=contract)
        again = await stripe_rig.send(operation)
        look = await stripe_rig.provider.look(stripe_rig.credential, operation, _time(began))
        effects = stripe_rig.effects(operation)
        most = max(fault.effects, 1)
        wrong = [] if look.complete and len(effects) <= most else [f"{fault.name}: {len(effects)} effects"]
        seen = {effect.receipt for effect in look.effects if effect.marked or effect.look_alike}
        if seen != {effect.refund for effect in effects}:
            wrong.append(f"{fault.name}: the look saw {seen}")
        if again.outcome in (Outcome.REFUSED, Outcome.NO_EFFECT):
            wrong.append(f"{fault.name}: the repeat was {again.outcome}")
        return wrong

    found = await asyncio.gather(*(one(fault) for fault in stripe_rig.faults))
    stripe_rig.world.release()
    assert [line for lines in found for line in lines] == []


async def test_the_same_key_at_the_same_time_has_one_effect(stripe_rig: StripeRig) -> None:
    """The second of two workers is told `busy` (or replayed), never refused."""
    operation = stripe_rig.operation()
    stripe_rig.world.fault("slow", operation_id=str(operation.operation_id))
    seen = await asyncio.gather(*(stripe_rig.send(operation, contract=stripe_rig.brief_contract(2)) for _ in range(4)))
    stripe_rig.world.release()
    await asyncio.to_thread(
        stripe_rig.world.until,
        lambda journal: len(journal.effects) == 1,
        marker=str(operation.operation_id),
        timeout=10,
    )
    assert all((got.outcome, got.hint) != (Outcome.REFUSED, Hint.NONE) for got in seen)
    assert Hint.BUSY in {got.hint for got in seen}
    assert len(stripe_rig.effects(operation)) == 1


def _time(seconds: float) -> datetime:

    return datetime.fromtimestamp(seconds, UTC)
