"""The Stripe stand-in misbehaves exactly as ordered, and its journal says what really happened (real SDK, real TCP)."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
import stripe

from devstack.stripe_standin.control import FAULTS, ControlRefused, StandInControl
from devstack.stripe_standin.launch import StandInProcess
from devstack.stripe_standin.rules import Match, Rule
from tests.devstack.conftest import TEST_KEY, client, headers

CREATE = Match(method="POST", path="/v1/refunds")


@pytest.fixture
def pi(world: StandInControl) -> str:
    return world.create_payment(100_000).payment_intent


def refund(sdk: stripe.StripeClient, pi: str, key: str = "k1", marker: str = "op", amount: int = 1000) -> stripe.Refund:
    return sdk.v1.refunds.create(
        {"payment_intent": pi, "amount": amount, "metadata": {"operation_id": marker}}, {"idempotency_key": key}
    )


def chain(error: BaseException | None) -> str:
    return "" if error is None else f"{error!r} {chain(error.__cause__ or error.__context__)}"


# How an exchange ends.


@pytest.mark.parametrize(
    ("preset", "ended", "effects", "words"),
    [
        ("lost-answer", "rst", 1, "reset by peer"),
        ("lost-request", "rst", 0, "reset by peer"),
        ("closed-answer", "fin", 1, "without response"),
        ("closed-request", "fin", 0, "without response"),
        ("truncated", "truncated", 1, "IncompleteRead"),
    ],
)
def test_a_broken_connection_before_and_after_the_effect(
    sdk: stripe.StripeClient, world: StandInControl, pi: str, preset: str, ended: str, effects: int, words: str
) -> None:
    """The caller cannot tell the two apart; the journal can, and the repeat is a replay or a first execution."""
    world.fault(preset)
    with pytest.raises(stripe.APIConnectionError) as lost:
        refund(sdk, pi)
    assert words in chain(lost.value)
    journal = world.journal(marker="op")
    assert (journal.arrivals[0].ended, len(journal.effects)) == (ended, effects)
    again = refund(sdk, pi)
    assert headers(again).get("idempotent-replayed") == ("true" if effects else None)
    journal = world.journal(marker="op")
    assert len(journal.effects) == 1 and len(journal.arrivals) == 2
    assert journal.arrivals[0].faults == (FAULTS[preset].kind,) and journal.arrivals[1].faults == ()


def test_a_reset_is_a_real_one(process: StandInProcess, world: StandInControl, pi: str) -> None:
    world.fault("lost-answer")
    body = f"payment_intent={pi}&amount=5".encode()
    with socket.create_connection(("127.0.0.1", process.port), timeout=5) as raw:
        raw.sendall(
            b"POST /v1/refunds HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "
            + TEST_KEY.encode()
            + b"\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: "
            + str(len(body)).encode()
            + b"\r\n\r\n"
            + body
        )
        with pytest.raises(ConnectionResetError):
            raw.recv(1000)
    assert len(world.journal().effects) == 1


@pytest.mark.parametrize(
    ("preset", "code", "effects"),
    [("html-200", 200, 1), ("html-502", 502, 1), ("html-503", 503, 0)],
)
def test_an_answer_that_is_not_stripes(
    sdk: stripe.StripeClient, world: StandInControl, pi: str, preset: str, code: int, effects: int
) -> None:
    world.fault(preset)
    with pytest.raises(stripe.APIError) as odd:
        refund(sdk, pi)
    assert odd.value.http_status == code
    assert world.journal().arrivals[0].answer == code
    assert len(world.journal().effects) == effects
    assert headers(refund(sdk, pi)).get("idempotent-replayed") == ("true" if effects else None)


def test_hanging_after_the_effect_until_released(process: StandInProcess, world: StandInControl, pi: str) -> None:
    rule = world.fault(Rule(kind="hang", match=CREATE))
    with pytest.raises(stripe.APIConnectionError, match="communicating"):
        refund(client(process, timeout=0.15), pi)
    journal = world.journal(marker="op")
    assert (journal.arrivals[0].ended, len(journal.effects)) == ("hang", 1)
    assert world.release(rule) == 1
    assert world.until(lambda seen: seen.arrivals[0].ended == "gone", marker="op").arrivals[0].answer == 200
    assert world.release() == 0


def test_a_request_that_hung_before_its_effect_can_arrive_late(
    process: StandInProcess, world: StandInControl, pi: str
) -> None:
    """Released after its caller has gone: the effect comes although nobody waits for it."""
    rule = world.fault(Rule(kind="hang", when="before", match=CREATE))
    with pytest.raises(stripe.APIConnectionError):
        refund(client(process, timeout=0.15), pi)
    assert world.journal(marker="op").effects == ()
    world.release(rule)
    world.until(lambda seen: len(seen.effects) == 1, marker="op")
    assert headers(refund(client(process), pi))["idempotent-replayed"] == "true"


def test_a_request_that_hangs_and_is_dropped_has_no_effect(
    sdk: stripe.StripeClient, world: StandInControl, pi: str
) -> None:
    world.fault(Rule(kind="hang", when="before", seconds=0.1, then="drop", match=CREATE))
    with pytest.raises(stripe.APIConnectionError):
        refund(sdk, pi)
    journal = world.journal(marker="op")
    assert (journal.arrivals[0].ended, journal.effects) == ("fin", ())


def test_dripping_outlives_a_read_timeout(process: StandInProcess, world: StandInControl, pi: str) -> None:
    world.fault(Rule(kind="drip", interval=0.05, piece=60, match=CREATE))
    begun = time.monotonic()
    assert refund(client(process, timeout=0.3), pi).amount == 1000
    assert time.monotonic() - begun > 0.5
    assert world.journal().arrivals[0].ended == "drip"


def test_a_rule_for_replays_waits_for_one(sdk: stripe.StripeClient, world: StandInControl, pi: str) -> None:
    world.fault("lost-answer", replay=True)
    first = refund(sdk, pi)
    with pytest.raises(stripe.APIConnectionError):
        refund(sdk, pi)
    assert refund(sdk, pi).id == first.id
    assert [line.faults for line in world.journal().arrivals] == [(), ("rst",), ()]


def test_rules_meet_only_what_they_match(sdk: stripe.StripeClient, world: StandInControl, pi: str) -> None:
    other = world.create_payment(1000).payment_intent
    world.fault("rate-limited", operation_id="op-b")
    world.fault("unauthorized", idempotency_key="k-c")
    world.fault("in-flight-409", payment_intent=other)
    assert refund(sdk, pi, "k-a", "op-a")
    with pytest.raises(stripe.RateLimitError):
        refund(sdk, pi, "k-b", "op-b")
    with pytest.raises(stripe.AuthenticationError):
        refund(sdk, pi, "k-c", "op-c")
    with pytest.raises(stripe.APIError):
        refund(sdk, other, "k-d", "op-d")
    assert [refund(sdk, pi, f"k-{n}", f"op-{n}").status for n in "bc"] == ["succeeded"] * 2
    assert all(line["remaining"] == 0 for line in world.faults())


# Refusals and stored answers.


@pytest.mark.parametrize(
    ("preset", "code", "status"),
    [
        ("rate-limited", "rate_limit", 429),
        ("lock-timeout", "lock_timeout", 429),
        ("unauthorized", None, 401),
        ("forbidden", "account_invalid", 403),
        ("in-flight-409", "idempotency_key_in_use", 409),
    ],
)
def test_a_refusal_has_no_effect_and_is_not_stored(
    sdk: stripe.StripeClient, world: StandInControl, pi: str, preset: str, code: str | None, status: int
) -> None:
    world.fault(preset)
    with pytest.raises(stripe.StripeError) as refused:
        refund(sdk, pi)
    assert refused.value.http_status == status
    assert refused.value.error is not None and refused.value.error.code == code
    retry = "true" if preset == "lock-timeout" else None
    assert headers(refused.value).get("stripe-should-retry") == retry
    assert world.journal().effects == ()
    assert "idempotent-replayed" not in headers(refund(sdk, pi))


@pytest.mark.parametrize("preset", ["stored-500-executed", "stored-500-no-effect"])
def test_a_stored_500_never_changes(sdk: stripe.StripeClient, world: StandInControl, pi: str, preset: str) -> None:
    world.fault(preset)
    seen = []
    for _ in range(2):
        with pytest.raises(stripe.APIError) as broken:
            refund(sdk, pi)
        assert broken.value.http_status == 500
        seen.append(headers(broken.value))
    assert "stripe-should-retry" not in seen[0] and seen[0]["original-request"] == seen[0]["request-id"]
    assert seen[1]["idempotent-replayed"] == "true" and seen[1]["stripe-should-retry"] == "false"
    listed = sdk.v1.refunds.list({"payment_intent": pi}).data
    assert len(world.journal().effects) == len(listed) == (preset == "stored-500-executed")


def test_a_stored_500_is_rolled_forward_later(sdk: stripe.StripeClient, world: StandInControl, pi: str) -> None:
    world.fault("stored-500-roll-forward")
    with pytest.raises(stripe.APIError):
        refund(sdk, pi)
    assert sdk.v1.refunds.list({"payment_intent": pi}).data == []
    world.advance(599)
    assert world.journal(marker="op").effects == ()
    world.advance(1)
    (found,) = sdk.v1.refunds.list({"payment_intent": pi}).data
    assert found.metadata is not None and found.metadata.to_dict() == {"operation_id": "op"}
    journal = world.journal(marker="op")
    assert journal.effects[0].origin == "roll_forward" and journal.effects[0].arrival == journal.arrivals[0].number
    with pytest.raises(stripe.APIError):
        refund(sdk, pi)
    assert len(world.journal().effects) == 1


def test_a_stored_500_is_rolled_back_later(sdk: stripe.StripeClient, world: StandInControl, pi: str) -> None:
    world.fault("stored-500-roll-back")
    with pytest.raises(stripe.APIError):
        refund(sdk, pi)
    assert len(sdk.v1.refunds.list({"payment_intent": pi}).data) == 1
    world.advance(600)
    assert sdk.v1.refunds.list({"payment_intent": pi}).data == []
    assert sdk.v1.payment_intents.retrieve(pi, {"expand": ["latest_charge"]}).latest_charge.amount_refunded == 0  # type: ignore[union-attr]
    assert [line.voided for line in world.journal().effects] == ["rolled_back"]


def test_an_arbitrary_answer(sdk: stripe.StripeClient, world: StandInControl, pi: str) -> None:
    body = {"error": {"type": "card_error", "code": "new_code", "message": "unheard of"}}
    world.fault(Rule(kind="answer", answer_status=402, body=body, headers={"Stripe-Should-Retry": "true"}))
    with pytest.raises(stripe.CardError, match="unheard of") as odd:
        refund(sdk, pi)
    assert headers(odd.value)["stripe-should-retry"] == "true"
    assert len(world.journal().effects) == 1


# Execution and lookups.


def test_duplicates_and_tampering(sdk: stripe.StripeClient, world: StandInControl, pi: str) -> None:
    world.fault("duplicate")
    refund(sdk, pi)
    twins = world.journal(marker="op").effects
    assert [line.origin for line in twins] == ["api", "duplicate"]
    marks = [item.metadata.to_dict() for item in sdk.v1.refunds.list({"payment_intent": pi}).data if item.metadata]
    assert marks == [{"operation_id": "op"}] * 2
    world.fault("tampered-marker")
    tampered = refund(sdk, pi, "k2", "op-2")
    assert tampered.metadata is not None and tampered.metadata["operation_id"] == "somebody-else"
    assert len(world.journal(marker="op-2").effects) == 1
    world.fault("wrong-amount")
    wrong = refund(sdk, pi, "k3")
    assert (wrong.amount, sdk.v1.refunds.retrieve(wrong.id).amount) == (1, 1000)


def test_standing_presets(sdk: stripe.StripeClient, world: StandInControl, pi: str) -> None:
    made = {}
    for preset in ("pending", "pending-then-void", "late-void"):
        world.fault(preset)
        made[preset] = refund(sdk, pi, preset)
    assert [item.status for item in made.values()] == ["pending", "pending", "succeeded"]
    world.advance(3601)
    assert [sdk.v1.refunds.retrieve(item.id).status for item in made.values()] == ["succeeded", "failed", "failed"]


def test_lookups_lag_separately_on_the_movable_clock(sdk: stripe.StripeClient, world: StandInControl, pi: str) -> None:
    made = refund(sdk, pi)
    world.fault("hidden-lookup")
    assert sdk.v1.refunds.list({"payment_intent": pi}).data == []
    assert sdk.v1.refunds.retrieve(made.id).id == made.id
    world.fault("hidden-refund")
    with pytest.raises(stripe.InvalidRequestError) as hidden:
        sdk.v1.refunds.retrieve(made.id)
    assert hidden.value.http_status == 404
    world.advance(121)
    assert [item.id for item in sdk.v1.refunds.list({"payment_intent": pi}).data] == [made.id]
    assert sdk.v1.refunds.retrieve(made.id).id == made.id


def test_lookups_break(sdk: stripe.StripeClient, world: StandInControl, pi: str) -> None:
    for number in range(3):
        refund(sdk, pi, f"k{number}")
    world.fault("broken-lookup")
    with pytest.raises(stripe.APIError):
        sdk.v1.refunds.list({"payment_intent": pi})
    world.fault("lost-lookup")
    with pytest.raises(stripe.APIConnectionError):
        sdk.v1.refunds.list({"payment_intent": pi})
    world.fault("incomplete-lookup")
    first = sdk.v1.refunds.list({"payment_intent": pi})
    assert len(first.data) == 1 and first.has_more
    with pytest.raises(stripe.APIError):
        list(first.auto_paging_iter())
    assert len(list(sdk.v1.refunds.list({"payment_intent": pi}).auto_paging_iter())) == 3


def test_every_preset_can_be_armed_and_disarmed(world: StandInControl) -> None:
    for name in FAULTS:
        world.fault(name, operation_id="op")
    assert len(world.faults()) == len(FAULTS) == world.clear_faults()


def test_a_senseless_rule_is_refused(world: StandInControl, process: StandInProcess) -> None:
    with pytest.raises(ValueError, match="after execution"):
        Rule(kind="drip", when="before")
    answer = httpx.post(f"{process.base_url}/_control/faults", json={"kind": "rst", "colour": 1}, trust_env=False)
    assert answer.status_code == 400
    with pytest.raises(ControlRefused):
        world.foreign_refund("pi_none", 1)


# A death of the stand-in itself.


def test_state_survives_sigkill(process: StandInProcess, world: StandInControl, pi: str) -> None:
    sdk = client(process)
    first = refund(sdk, pi)
    world.advance(5000)
    world.fault("lost-answer")
    with pytest.raises(stripe.APIConnectionError):
        refund(sdk, pi, "k2", "op-2")
    world.fault("stored-500-roll-forward")
    with pytest.raises(stripe.APIError):
        refund(sdk, pi, "k3", "op-3")
    before = world.journal()
    process.kill()
    process.restart()
    sdk = client(process)
    assert world.journal() == before and world.offset() == 5000
    assert headers(refund(sdk, pi))["original-request"] == headers(first)["request-id"]
    assert headers(refund(sdk, pi, "k2", "op-2"))["idempotent-replayed"] == "true"
    world.advance(600)
    assert [line.origin for line in world.journal().effects] == ["api", "api", "roll_forward"]


def test_a_kill_during_execution_leaves_the_key_free_and_no_effect(
    process: StandInProcess, world: StandInControl, pi: str
) -> None:
    """The rule fired before it acted, so the restarted process does not delay again."""
    world.fault(Rule(kind="exec_delay", seconds=30))
    with ThreadPoolExecutor() as pool:
        first = pool.submit(refund, client(process), pi)
        world.until(lambda seen: any("exec_delay" in line.faults for line in seen.arrivals))
        process.kill()
        assert isinstance(first.exception(5), stripe.APIConnectionError)
    process.restart()
    assert "idempotent-replayed" not in headers(refund(client(process), pi))
    journal = world.journal(marker="op")
    assert len(journal.effects) == 1 and [line.ended for line in journal.arrivals] == [None, "answered"]
