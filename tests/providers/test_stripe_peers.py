"""The refunds adapter with two stand-ins for Stripe that nobody here wrote: what we read in Stripe's pages, read by others.

What every receiver must stand is in test_conformance.py, which runs against both of them too. The judge is the peer's own list.
"""

import asyncio
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from devstack.stripe_peers import StatefulMock
from ledger import recovery
from ledger.model import Attempt, Hint, MaySend, Operation, Outcome, Sighting, Step
from providers.port import Classified, Look, Preflight
from tests.providers.rigs_stripe_peers import PeerRig

MORE_THAN_A_PAGE = 101
AT_ONCE = 6
CLAIMED = datetime(2026, 1, 1, tzinfo=UTC)


async def look(rig: PeerRig, operation: Operation) -> Look:
    return await rig.provider.look(rig.credential, operation, datetime(2020, 1, 1, tzinfo=UTC))


async def preflight(rig: PeerRig, operation: Operation) -> Preflight:
    arguments, marker = operation.arguments, rig.provider.marker_of(operation)
    return await rig.provider.preflight(rig.credential, operation.target, arguments, marker)


async def lost(rig: PeerRig, operation: Operation) -> Classified:
    """Sent and carried out, and the answer does not come."""
    with rig.cut("after"):
        seen = await rig.send(operation)
    assert (seen.outcome, seen.hint) == (Outcome.UNKNOWN, Hint.LOST)
    return seen


def decided(rig: PeerRig, seen: Classified, *found: Look) -> Step:
    """What recovery would do next, half an hour after this one attempt and these looks."""
    now = CLAIMED + timedelta(minutes=30)
    answered = CLAIMED + timedelta(seconds=30)
    attempt = Attempt(
        1, CLAIMED, CLAIMED + timedelta(seconds=45), seen.outcome, seen.hint, seen.stored, None, None, answered
    )
    sightings = [Sighting(now, now, each.complete, each.effects, None, None) for each in found]
    contract, review_at = rig.provider.contract, now + timedelta(hours=4)
    return recovery.decide(contract, [attempt], sightings, now, MaySend.YES, review_at).step


# A lost answer, where a key is kept: stripe-stateful-mock.


async def test_after_a_lost_answer_the_same_key_is_replayed_and_one_refund_exists(stateful_mock_rig: PeerRig) -> None:
    """Red: send a key of the attempt's own in `StripeRefunds.send`."""
    operation = stateful_mock_rig.operation()
    assert decided(stateful_mock_rig, await lost(stateful_mock_rig, operation)) is Step.REPEAT
    again = await stateful_mock_rig.send(operation)
    assert (again.outcome, again.detail["replayed"], again.detail["read_again"]) == (Outcome.APPLIED, True, True)
    assert again.detail["original_request"] != again.detail["request_id"]
    assert stateful_mock_rig.effects(operation) == [again.receipt]
    charge = stateful_mock_rig.server.ask("GET", f"charges/{operation.target}")
    assert (charge["amount_refunded"], len(charge["refunds"]["data"])) == (operation.amount_minor, 1)


# A lost answer, where no key is kept: localstripe.


async def test_without_keys_a_lost_answer_is_looked_for_and_its_one_refund_is_found(localstripe_rig: PeerRig) -> None:
    """Red: give the rig's contract its key back, or take no marker for ours in `read_sighting`."""
    operation, before = localstripe_rig.operation(), localstripe_rig.arrivals()
    seen = await lost(localstripe_rig, operation)
    assert decided(localstripe_rig, seen) is Step.LOOK
    found = await look(localstripe_rig, operation)
    assert decided(localstripe_rig, seen, found) is Step.SUCCEED
    assert [effect.receipt for effect in found.effects if effect.ours] == localstripe_rig.effects(operation)
    assert (len(found.effects), localstripe_rig.arrivals() - before) == (1, 1)


async def test_without_keys_a_blind_repeat_refunds_twice_and_a_person_must_look(localstripe_rig: PeerRig) -> None:
    """The control: what the test above proves is not the peer's doing."""
    operation = localstripe_rig.operation()
    seen = await lost(localstripe_rig, operation)
    assert (await localstripe_rig.send(operation)).outcome is Outcome.APPLIED
    assert len(localstripe_rig.effects(operation)) == 2
    assert decided(localstripe_rig, seen, await look(localstripe_rig, operation)) is Step.REVIEW


# What both have of Stripe, or one of them.


@pytest.mark.needs("keys")
async def test_equal_requests_at_once_make_one_refund(peer_rig: PeerRig) -> None:
    """And each of them is told of that one, or that it runs. Red: send a key of the attempt's own."""
    operation = peer_rig.operation()
    seen = await asyncio.gather(*(peer_rig.send(operation) for _ in range(AT_ONCE)))
    assert [*{each.receipt for each in seen if each.outcome is Outcome.APPLIED}] == peer_rig.effects(operation)
    assert {each.hint for each in seen if each.outcome is not Outcome.APPLIED} <= {Hint.BUSY}


@pytest.mark.needs("keys")
async def test_a_key_that_was_used_for_another_amount_is_misused(peer_rig: PeerRig) -> None:
    """Red: call every 400 a refusal."""
    first = peer_rig.operation(1000)
    await peer_rig.send(first)
    second = peer_rig.operation(900, target=first.target, idempotency_key=first.idempotency_key)
    seen = await peer_rig.send(second)
    assert (seen.outcome, seen.hint, seen.detail.get("type")) == (Outcome.UNKNOWN, Hint.MISUSED, "idempotency_error")
    assert peer_rig.effects(second) == []


@pytest.mark.needs("limit")
async def test_more_than_is_left_is_refused_and_the_refusal_is_kept_for_the_key(peer_rig: PeerRig) -> None:
    """It has no code, here as in the recordings of the real one. Red: leave `param` out of `_after_execution`."""
    operation = peer_rig.operation(1000, paid=1500)
    peer_rig.server.refund(operation.target, 600)
    for replayed in (False, True):
        seen = await peer_rig.send(operation)
        assert (seen.outcome, seen.stored, "code" in seen.detail) == (Outcome.REFUSED, True, False)
        assert seen.detail["replayed"] is replayed
    assert peer_rig.effects(operation) == []


@pytest.mark.needs("limit")
async def test_a_payment_of_which_nothing_is_left_is_unfit_and_refuses(peer_rig: PeerRig) -> None:
    operation = peer_rig.operation(1000, paid=1000)
    peer_rig.server.refund(operation.target, 1000)
    read = await preflight(peer_rig, operation)
    assert (read.complete, read.unfit, read.amount_minor) == (True, "fully_refunded", 1000)
    assert read.facts["refunded_minor"] == 1000
    seen = await peer_rig.send(operation)
    assert (seen.outcome, seen.stored, seen.detail["code"]) == (Outcome.REFUSED, True, "charge_already_refunded")


@pytest.mark.needs("codes")
async def test_an_unknown_payment_is_refused_and_not_stored(peer_rig: PeerRig) -> None:
    operation = peer_rig.operation(target=f"{peer_rig.server.pay(1000)[:3]}nobody")
    seen = await peer_rig.send(operation)
    assert (seen.outcome, seen.stored, seen.detail["http_status"]) == (Outcome.REFUSED, False, 404)


async def test_a_disputed_payment_is_unfit_and_refuses(stateful_mock_rig: PeerRig) -> None:
    """The peer lists no disputes, as a restricted key does not: the flag on the charge is the only word, and enough."""
    assert isinstance(stateful_mock_rig.server, StatefulMock)
    operation = stateful_mock_rig.operation(target=stateful_mock_rig.server.pay(5000, token="tok_createDispute"))
    while not stateful_mock_rig.server.ask("GET", f"charges/{operation.target}")["disputed"]:
        await asyncio.sleep(0.01)
    read = await preflight(stateful_mock_rig, operation)
    assert (read.complete, read.unfit, read.facts["disputed"]) == (True, "disputed", True)
    seen = await stateful_mock_rig.send(operation)
    assert (seen.outcome, seen.stored, seen.detail["code"]) == (Outcome.REFUSED, True, "charge_disputed")


async def test_a_look_reads_past_the_first_page_and_another_payment_s_refunds_are_not_ours(peer_rig: PeerRig) -> None:
    """Ours is the oldest, so that it is listed last. Red: stop `Session.ask_all` after one page."""
    operation = peer_rig.operation(1000)
    receipt = (await peer_rig.send(operation)).receipt
    other = peer_rig.operation(1000)
    await peer_rig.send(other)
    for _ in range(MORE_THAN_A_PAGE):
        peer_rig.server.refund(operation.target, 1)
    found = await look(peer_rig, operation)
    assert found.complete and len(found.effects) == 1 + MORE_THAN_A_PAGE
    assert [effect.receipt for effect in found.effects if effect.ours] == [receipt]


async def test_a_filter_that_the_peer_ignores_makes_nobody_s_refund_an_effect_here(stateful_mock_rig: PeerRig) -> None:
    """It knows no payment intents, and lists every refund instead. Red: take what is listed for what was asked in `look`."""
    await stateful_mock_rig.send(stateful_mock_rig.operation())
    found = await look(stateful_mock_rig, stateful_mock_rig.operation(target="pi_ofnobody"))
    assert found.complete and found.effects == () and found.detail["listed"] > 0


@pytest.mark.parametrize(("ci", "word"), [("true", "error"), ("", "skipped")])
def test_a_peer_that_is_not_there_is_skipped_with_its_reason_and_is_an_error_in_ci(ci: str, word: str) -> None:
    """Made by a path without node. Red: skip whatever CI says."""
    told = subprocess.run(
        [sys.executable, "-m", "pytest", __file__, "-k", "after_a_lost_answer_the_same_key", "-rsE"],
        cwd=Path(__file__).parents[2],
        env={"PATH": "/nowhere", "CI": ci, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert f"1 {word}" in told.stdout and "there is no node on the path" in told.stdout, told.stdout + told.stderr
