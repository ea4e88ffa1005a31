"""Every adapter of the registry against its stand-in: what it says about a send and a look, and what really happened.

The judge is the stand-in's journal: the number of effects and of arrivals, never the adapter's own answer.
"""

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from ledger.model import Hint, Outcome, Standing
from providers.registry import Registry
from tests.providers.conftest import StripeRig

pytestmark = pytest.mark.asyncio


async def test_every_registered_action_has_a_rig(registry: Registry, rigs: dict[str, str]) -> None:
    assert {provider.action for provider in registry} == set(rigs)


async def test_the_pure_part_of_the_port(rig: StripeRig) -> None:
    provider, operation = rig.provider, rig.operation()
    provider.check_arguments(operation.arguments)
    provider.check_target(operation.target)
    request = provider.build_request(operation, {})
    assert request == provider.build_request(operation, {})
    assert request.idempotency_key == operation.idempotency_key and request.account == operation.account
    assert provider.marker_of(operation) == str(operation.operation_id)
    assert provider.equivalence_key(operation.target, operation.arguments)
    assert provider.resolution and provider.contract.sources and provider.contract.name == provider.action


async def test_a_plain_send_makes_one_effect_and_its_look_finds_it(rig: StripeRig) -> None:
    operation = rig.operation()
    began = rig.world.now()
    seen = await rig.send(operation)
    (effect,) = rig.effects(operation)
    assert (seen.outcome, seen.receipt, seen.standing) == (Outcome.APPLIED, effect.refund, Standing.GOOD)
    look = await rig.provider.look(rig.credential, operation, _time(began))
    assert look.complete and [(e.receipt, e.ours) for e in look.effects] == [(effect.refund, True)]
    assert len(rig.writes(operation)) == 1


async def test_a_repeat_has_no_second_effect_and_keeps_the_receipt(rig: StripeRig) -> None:
    operation = rig.operation()
    first, second = await rig.send(operation), await rig.send(operation)
    assert first.receipt == second.receipt and second.detail["replayed"]
    assert len(rig.effects(operation)) == 1
    keys = {line.idempotency_key for line in rig.writes(operation)}
    assert keys == {operation.idempotency_key}
    assert len({line.body_sha256 for line in rig.writes(operation)}) == 1


async def test_every_fault_is_judged_as_the_journal_does(rig: StripeRig) -> None:
    """One send per fault, all at once: outcome, hint, effects, and exactly one arrival.

    Call a timeout or a 5xx `refused` in `classify`, or let the SDK retry, to see it red.
    """
    contract = rig.brief_contract()

    async def one(fault: Any) -> list[str]:
        operation = rig.operation()
        rig.arm(fault, operation)
        seen = await rig.send(operation, contract=contract)
        effects, writes = rig.effects(operation), rig.writes(operation)
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

    found = await asyncio.gather(*(one(fault) for fault in rig.faults))
    rig.world.release()
    assert [line for lines in found for line in lines] == []


async def test_after_every_fault_a_repeat_or_a_look_settles_on_one_effect(rig: StripeRig) -> None:
    """Nothing that any fault leaves behind makes a second effect, except a provider that executes twice by itself."""
    contract = rig.brief_contract()

    async def one(fault: Any) -> list[str]:
        operation = rig.operation()
        began = rig.world.now()
        rig.arm(fault, operation)
        await rig.send(operation, contract=contract)
        again = await rig.send(operation)
        look = await rig.provider.look(rig.credential, operation, _time(began))
        effects = rig.effects(operation)
        most = max(fault.effects, 1)
        wrong = [] if look.complete and len(effects) <= most else [f"{fault.name}: {len(effects)} effects"]
        seen = {effect.receipt for effect in look.effects if effect.marked or effect.look_alike}
        if seen != {effect.refund for effect in effects}:
            wrong.append(f"{fault.name}: the look saw {seen}")
        if again.outcome in (Outcome.REFUSED, Outcome.NO_EFFECT):
            wrong.append(f"{fault.name}: the repeat was {again.outcome}")
        return wrong

    found = await asyncio.gather(*(one(fault) for fault in rig.faults))
    rig.world.release()
    assert [line for lines in found for line in lines] == []


async def test_a_no_of_the_guard_arrives_nowhere(rig: StripeRig) -> None:
    operation = rig.operation()
    seen = await rig.send(operation, allowed=False)
    assert (seen.outcome, seen.hint) == (Outcome.NO_EFFECT, Hint.NOT_SENT)
    assert rig.writes(operation) == [] and rig.effects(operation) == []


async def test_the_same_key_at_the_same_time_has_one_effect(rig: StripeRig) -> None:
    """The second of two workers is told `busy` (or replayed), never refused."""
    operation = rig.operation()
    rig.world.fault("slow", operation_id=str(operation.operation_id))
    seen = await asyncio.gather(*(rig.send(operation, contract=rig.brief_contract(2)) for _ in range(4)))
    rig.world.release()
    await asyncio.to_thread(
        rig.world.until, lambda journal: len(journal.effects) == 1, marker=str(operation.operation_id), timeout=10
    )
    assert all((got.outcome, got.hint) != (Outcome.REFUSED, Hint.NONE) for got in seen)
    assert Hint.BUSY in {got.hint for got in seen}
    assert len(rig.effects(operation)) == 1


async def test_a_provider_that_is_gone_was_not_reached(rig: StripeRig) -> None:
    """Connection refused is proof that nothing was sent; a look that cannot be made is not complete."""
    operation = rig.operation()
    rig.process.kill()
    try:
        seen = await rig.send(operation)
        look = await rig.provider.look(rig.credential, operation, _time(0))
        told = await rig.provider.preflight(rig.credential, operation.target, operation.arguments, "m")
        assert await rig.provider.whose(rig.credential) is None
        assert await rig.provider.read_receipt(rig.credential, operation, "re_1") is None
    finally:
        rig.process.restart()
    assert (seen.outcome, seen.hint) == (Outcome.NO_EFFECT, Hint.NOT_SENT)
    assert not look.complete and not told.complete and told.unfit == ""
    assert rig.effects(operation) == []


def _time(seconds: float) -> datetime:

    return datetime.fromtimestamp(seconds, UTC)
