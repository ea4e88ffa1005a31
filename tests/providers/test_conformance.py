"""What every adapter must do, whatever it speaks to: one suite over the registry, each action against its real receiver.

The judge is the receiver's own records: the number of effects, never the adapter's own answer. A new adapter needs a rig in
conftest's RIGS and passes all of this as it stands.
"""

import asyncio
import json
import secrets
from collections.abc import Awaitable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import NAMESPACE_OID, uuid5
from zoneinfo import ZoneInfo

import pytest

from ledger import recovery
from ledger.audit import ListedEffect
from ledger.errors import Broken
from ledger.model import Attempt, Hint, MaySend, Operation, Outcome, Sighting, Standing, Step
from providers.port import Lists, Look
from providers.registry import Registry

pytestmark = pytest.mark.timeout(900)

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


async def made(rig: Any, **changes: Any) -> Operation:
    """A fresh operation; a rig may have to ask its receiver for the version."""
    operation = rig.operation(**changes)
    return await operation if isinstance(operation, Awaitable) else operation


async def effects(rig: Any, operation: Operation) -> list[Any]:
    """What the receiver's own records hold of it."""
    return list(await asyncio.to_thread(rig.effects, operation))


async def look(rig: Any, operation: Operation) -> Look:
    found: Look = await rig.provider.look(rig.credential, operation, LONG_AGO)
    return found


def can_look(rig: Any) -> bool:
    return rig.provider.contract.lookup is not None


def test_every_registered_action_has_a_rig(registry: Registry, rigs: dict[str, str]) -> None:
    assert {provider.action for provider in registry} == set(rigs)


async def test_the_pure_part_of_the_port(rig: Any) -> None:
    """Equal operations give equal requests, of plain JSON; nothing secret is in them; every term has a source."""
    provider, operation = rig.provider, await made(rig)
    provider.check_arguments(operation.arguments)
    provider.check_target(operation.target)
    request = await rig.request(operation)
    assert request == await rig.request(operation)
    assert request.idempotency_key == operation.idempotency_key and request.account == operation.account
    assert json.loads(json.dumps(vars(request))) == vars(request)
    assert rig.credential.secret.rpartition(":")[2] not in json.dumps(vars(request))
    assert provider.equivalence_key(operation.target, operation.arguments) == provider.equivalence_key(
        operation.target, dict(operation.arguments)
    )
    assert provider.resolution and provider.contract.name == provider.action
    terms = {source.term for source in provider.contract.sources}
    assert "processing" in terms, "the longest processing is what quiet_at rests on: say where it comes from"
    for resolution in ("happened", "did_not_happen", "undetermined"):
        assert f"{resolution}:" in provider.resolution, f"say what a person must bring for {resolution}"


async def test_unknown_and_missing_arguments_are_refused_with_their_field(rig: Any) -> None:
    provider, operation = rig.provider, await made(rig)
    with pytest.raises(Exception) as unknown:
        provider.check_arguments({**operation.arguments, "surprise": "x"})
    assert type(unknown.value).__name__ == "Refused" and "surprise" in unknown.value.field  # type: ignore[attr-defined]
    with pytest.raises(Exception) as missing:
        provider.check_arguments({})
    assert type(missing.value).__name__ == "Refused" and missing.value.field  # type: ignore[attr-defined]
    with pytest.raises(Exception) as target:
        provider.check_target("no such\ntarget")
    assert target.value.field == "target"  # type: ignore[attr-defined]


@pytest.mark.needs("preflight")
async def test_preflight_reads_the_target_and_sees_no_effect_of_ours(rig: Any) -> None:
    operation = await made(rig)
    provider, marker = rig.provider, rig.provider.marker_of(operation)
    read = await provider.preflight(rig.credential, operation.target, operation.arguments, marker)
    assert read.complete and not read.unfit and not any(e.marked for e in read.effects)
    assert (read.version is not None) == provider.contract.conditional_write
    assert read.version == operation.expected_version
    json.dumps(read.facts), json.dumps(dict(read.basis))


async def test_a_plain_send_makes_one_effect_and_its_look_finds_it(rig: Any) -> None:
    operation = await made(rig)
    seen = await rig.send(operation)
    assert (seen.outcome, len(await effects(rig, operation))) == (Outcome.APPLIED, 1)
    assert seen.receipt and len(seen.receipt) <= 200 and seen.receipt.isprintable()
    assert seen.standing in (Standing.GOOD, Standing.PENDING)
    if can_look(rig):
        found = await look(rig, operation)
        assert found.complete and [(e.receipt, e.ours) for e in found.effects if e.marked] == [(seen.receipt, True)]
        again = await rig.provider.read_receipt(rig.credential, operation, seen.receipt)
        assert again is not None and again.ours and again.standing is seen.standing


@pytest.mark.needs("listing")
async def test_what_was_made_stands_once_in_the_listing_of_the_account(rig: Any) -> None:
    """With what it was done to, its sum and its marker; and it can be read by its receipt. Red: list what is void only."""
    if not isinstance(rig.provider, Lists):
        return
    operation = await made(rig, operation_id=uuid5(NAMESPACE_OID, secrets.token_hex(8)))
    seen = await rig.send(operation)
    listed: list[ListedEffect] = []
    since = datetime.now(ZoneInfo("Asia/Tokyo")) - timedelta(days=1)  # a database may tell times in any zone
    page = await rig.provider.list_effects(rig.credential, since, "")
    while page.complete and page.go_on:
        listed += page.effects
        page = await rig.provider.list_effects(rig.credential, since, page.go_on)
    assert page.complete, page
    (effect,) = [effect for effect in (*listed, *page.effects) if effect.receipt == seen.receipt]
    assert (effect.standing, effect.marker) == (seen.standing, operation.operation_id)
    assert operation.target in effect.targets
    assert (effect.amount_minor, effect.currency) == (operation.amount_minor, operation.currency)
    again = await rig.provider.read_effect(rig.credential, seen.receipt)
    assert again.complete and again.effects == (effect,)
    rig.break_receiver()
    try:
        assert not (await rig.provider.list_effects(rig.credential, None, "")).complete
        assert not (await rig.provider.read_effect(rig.credential, seen.receipt)).complete
    finally:
        rig.mend()


async def test_another_operation_does_not_take_the_effect_for_its_own(rig: Any) -> None:
    """Red: compare a marker by containment, or trust the receiver's filter."""
    operation = await made(rig)
    other = await made(rig)
    await rig.send(operation)
    if can_look(rig):
        twin = replace(operation, operation_id=other.operation_id, idempotency_key=other.idempotency_key)
        assert not any(e.marked for e in (await look(rig, twin)).effects)


async def test_the_guard_s_no_reaches_nobody(rig: Any) -> None:
    """Red: ask the guard after the first byte."""
    operation = await made(rig)
    await rig.request(operation)
    before = rig.arrivals() if hasattr(rig, "arrivals") else 0
    seen = await rig.send(operation, allowed=False)
    assert (seen.outcome, seen.hint) == (Outcome.NO_EFFECT, Hint.NOT_SENT)
    assert await effects(rig, operation) == []
    assert (rig.arrivals() if hasattr(rig, "arrivals") else 0) == before


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_lost_answer_is_unknown_and_the_look_says_what_is(rig: Any, when: str) -> None:
    """Red: call a broken connection `refused` or `no_effect`."""
    operation = await made(rig)
    await rig.request(operation)
    with rig.cut(when):
        seen = await rig.send(operation)
    there = await effects(rig, operation)
    assert len(there) == (1 if when == "after" else 0)
    assert (seen.outcome, seen.hint) == (Outcome.UNKNOWN, Hint.LOST)
    if can_look(rig):
        found = await look(rig, operation)
        assert found.complete and len([e for e in found.effects if e.ours]) == len(there)


@pytest.mark.parametrize("when", ["before", "after"])
async def test_what_recovery_makes_of_a_lost_answer_never_adds_an_effect(rig: Any, when: str) -> None:
    """Decide on what this adapter really says, for hours of ledger time, and do whatever is decided: at most one effect.

    Red: give the contract a key that its receiver does not honour, or let D8 repeat on a version that can come back.
    """
    operation = await made(rig)
    contract, claimed = rig.provider.contract, datetime(2026, 1, 1, tzinfo=UTC)
    with rig.cut(when):
        first = await rig.send(operation)
    attempts = [_attempt(1, claimed, first)]
    sightings: list[Sighting] = []
    now, review_at = claimed + timedelta(seconds=40), claimed + timedelta(hours=4)
    for _ in range(60):
        told = recovery.decide(contract, attempts, sightings, now, MaySend.YES, review_at)
        if told.delay_seconds > 0:
            now += timedelta(seconds=told.delay_seconds)
            continue
        if told.step is Step.REPEAT:
            attempts.append(_attempt(len(attempts) + 1, now, await rig.send(operation)))
        elif told.step is Step.LOOK:
            found = await look(rig, operation)
            sightings.append(
                Sighting(now, now + timedelta(seconds=1), found.complete, found.effects, found.version_moved,
                         found.witness_has_marker)
            )  # fmt: skip
        else:
            break
        now += timedelta(seconds=2)
    there = await effects(rig, operation)
    assert len(there) <= 1 and told.step in (Step.SUCCEED, Step.REVIEW, Step.REJECT), told
    if told.step is Step.SUCCEED:
        assert len(there) == 1
    if told.step is Step.REJECT:
        assert there == []
    if can_look(rig) and when == "after":
        assert told.step is Step.SUCCEED, told


async def test_a_repeat_has_at_most_the_effect_that_its_contract_allows(rig: Any) -> None:
    """With a key or a condition the same request again makes no second effect; without, nobody repeats it."""
    contract = rig.provider.contract
    if contract.key is None and not contract.conditional_write:
        facts = [_attempt(1, LONG_AGO, replace(await rig.send(await made(rig)), outcome=Outcome.UNKNOWN, receipt=None))]
        told = recovery.decide(contract, facts, [], LONG_AGO + timedelta(minutes=1), MaySend.YES, LONG_AGO)
        assert told.step is not Step.REPEAT
        return
    operation = await made(rig)
    await rig.send(operation)
    again = await rig.send(operation)
    assert len(await effects(rig, operation)) == 1
    assert again.outcome in (Outcome.APPLIED, Outcome.REFUSED, Outcome.UNKNOWN)
    if again.outcome is Outcome.REFUSED:
        assert again.hint is Hint.VERSION_STALE


async def test_a_receiver_that_is_gone_was_not_reached(rig: Any) -> None:
    """Connection refused is proof that nothing was sent; a look that cannot be made is not complete."""
    done, operation = await made(rig), await made(rig)
    receipt = (await rig.send(done)).receipt
    await rig.send(operation, allowed=False)  # its request is frozen now, as in the ledger
    rig.break_receiver()
    try:
        seen = await rig.send(operation)
        marker = rig.provider.marker_of(operation)
        told = await rig.provider.preflight(rig.credential, operation.target, operation.arguments, marker)
        assert not (await look(rig, operation)).complete
        assert await rig.provider.whose(rig.credential) is None
        assert await rig.provider.read_receipt(rig.credential, done, receipt) is None
    finally:
        rig.mend()
    assert (seen.outcome, seen.hint) == (Outcome.NO_EFFECT, Hint.NOT_SENT)
    assert not told.complete and told.unfit == ""
    assert await effects(rig, operation) == []


@pytest.mark.needs("owner")
async def test_a_credential_says_whose_it_is(rig: Any) -> None:
    owner = await rig.provider.whose(rig.credential)
    assert owner is not None and (owner.account, owner.livemode) == (rig.credential.account, rig.credential.livemode)
    assert rig.credential.secret not in repr(rig.credential)


async def test_a_request_of_another_operation_is_never_sent(rig: Any) -> None:
    """Red: leave out the comparison of the frozen request with the operation."""
    operation, other = await made(rig), await made(rig)
    request = await rig.request(operation)

    async def guard() -> bool:
        return True

    with pytest.raises(Broken):
        await rig.provider.send(rig.credential, other, request, rig.provider.contract, guard, lambda: None)
    assert await effects(rig, operation) == [] == await effects(rig, other)


def _attempt(number: int, claimed: datetime, seen: Any) -> Attempt:
    answered = claimed + timedelta(seconds=30)
    return Attempt(
        number, claimed, claimed + timedelta(seconds=45), seen.outcome, seen.hint, seen.stored, seen.receipt,
        seen.standing, answered,
    )  # fmt: skip
