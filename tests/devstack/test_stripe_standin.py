"""The Stripe stand-in keeps the recorded contract: objects, keys, accounts, journal (real SDK, real process)."""

from __future__ import annotations

import asyncio
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
import stripe

from devstack.stripe_standin.control import StandInControl
from devstack.stripe_standin.launch import StandInProcess
from devstack.stripe_standin.rules import Rule
from tests.devstack.conftest import DAY, LIVE_KEY, TEST_KEY, client, headers, refund

# Objects.


def test_a_refund_has_the_fields_of_the_sdk_and_no_livemode(sdk: stripe.StripeClient, world: StandInControl) -> None:
    paid = world.create_payment(5000, "eur")
    made = refund(sdk, paid.payment_intent, 1200, reason="requested_by_customer")
    body = made.to_dict()
    assert (made.amount, made.currency, made.status, made.reason) == (1200, "eur", "succeeded", "requested_by_customer")
    assert (made.charge, made.payment_intent) == (paid.charge, paid.payment_intent)
    assert body["metadata"] == {"operation_id": "op"}
    assert set(body) <= set(stripe.Refund.__annotations__)
    assert not {"livemode", "failure_reason", "pending_reason", "failure_balance_transaction"} & set(body)
    assert sdk.v1.refunds.retrieve(made.id).to_dict() == body


def test_payment_and_charge_are_read_with_expand(sdk: stripe.StripeClient, world: StandInControl) -> None:
    paid = world.create_payment(5000, payment_intent="pi_chosen", charge="ch_chosen")
    refund(sdk, "pi_chosen", 1200)
    plain = sdk.v1.payment_intents.retrieve("pi_chosen")
    assert (plain.latest_charge, plain.livemode, plain.amount_received) == (paid.charge, False, 5000)
    assert set(plain.to_dict()) <= set(stripe.PaymentIntent.__annotations__)
    wide = sdk.v1.payment_intents.retrieve("pi_chosen", {"expand": ["latest_charge.refunds"]}).latest_charge
    assert isinstance(wide, stripe.Charge)
    assert (wide.amount_captured, wide.amount_refunded, wide.refunded, wide.disputed) == (5000, 1200, False, False)
    assert set(wide.to_dict()) <= set(stripe.Charge.__annotations__)
    assert wide.refunds is not None and len(wide.refunds.data) == 1
    assert sdk.v1.charges.retrieve("ch_chosen").amount_refunded == 1200
    made = refund(sdk, "pi_chosen", 1, expand=["charge", "payment_intent"])
    assert isinstance(made.charge, stripe.Charge) and isinstance(made.payment_intent, stripe.PaymentIntent)
    with pytest.raises(stripe.InvalidRequestError, match="cannot be expanded"):
        refund(sdk, "pi_chosen", 1, expand=["nonsense"])
    assert len(world.journal().effects) == 2


def test_the_async_client_of_the_sdk_works(process: StandInProcess, world: StandInControl) -> None:
    paid = world.create_payment(5000)

    async def run() -> tuple[str, list[str]]:
        transport = stripe.HTTPXClient(timeout=5)
        own = stripe.StripeClient(
            TEST_KEY, base_addresses={"api": process.base_url}, max_network_retries=0, http_client=transport
        )
        made = await own.v1.refunds.create_async({"payment_intent": paid.payment_intent, "amount": 1})
        listed = await own.v1.refunds.list_async({"payment_intent": paid.payment_intent})
        found = [item.id async for item in listed.auto_paging_iter()]
        await transport.close_async()  # type: ignore[no-untyped-call]
        return made.id, found

    made, listed = asyncio.run(run())
    assert listed == [made]


# Idempotency keys.


def test_a_repeat_with_the_same_key_is_replayed_with_its_headers(
    sdk: stripe.StripeClient, world: StandInControl
) -> None:
    pi = world.create_payment(5000).payment_intent
    first = refund(sdk, pi, key="k1")
    again = refund(sdk, pi, key="k1")
    one, two = headers(first), headers(again)
    assert first.to_dict() == again.to_dict()
    assert one["original-request"] == one["request-id"] and one["idempotency-key"] == "k1"
    assert "idempotent-replayed" not in one
    assert two["idempotent-replayed"] == "true" and two["idempotency-key"] == "k1"
    assert two["original-request"] == one["request-id"] != two["request-id"]
    assert two["stripe-should-retry"] == "false"
    journal = world.journal(marker="op")
    assert len(journal.effects) == 1 and journal.effects[0].arrival == journal.arrivals[0].number
    assert [line.replayed for line in journal.arrivals] == [False, True]
    assert len({line.body_sha256 for line in journal.arrivals}) == 1


def test_a_replay_shows_the_old_body_after_the_refund_moved(sdk: stripe.StripeClient, world: StandInControl) -> None:
    pi = world.create_payment(5000).payment_intent
    made = refund(sdk, pi, key="k1")
    world.set_refund(made.id, status="failed", failure_reason="declined")
    assert refund(sdk, pi, key="k1").status == "succeeded"
    assert sdk.v1.refunds.retrieve(made.id).failure_reason == "declined"


def test_the_same_key_with_other_params_or_endpoint_is_refused(sdk: stripe.StripeClient, world: StandInControl) -> None:
    pi = world.create_payment(5000).payment_intent
    made = refund(sdk, pi, key="k1")
    with pytest.raises(stripe.IdempotencyError, match="same parameters") as other_params:
        refund(sdk, pi, 999, key="k1")
    assert other_params.value.http_status == 400
    assert other_params.value.error is not None
    assert other_params.value.error.type == "idempotency_error"
    assert other_params.value.error.code is None
    with pytest.raises(stripe.IdempotencyError, match="same endpoint"):
        sdk.v1.refunds.update(made.id, {"metadata": {"a": "b"}}, {"idempotency_key": "k1"})
    assert refund(sdk, pi, key="k1").id == made.id
    assert len(world.journal().effects) == 1


def test_a_second_request_meets_409_while_the_first_runs(sdk: stripe.StripeClient, world: StandInControl) -> None:
    pi = world.create_payment(5000).payment_intent
    world.fault(Rule(kind="exec_delay", seconds=0.4))
    with ThreadPoolExecutor() as pool:
        first = pool.submit(refund, sdk, pi, 1000, "k1")
        world.until(lambda seen: any("exec_delay" in line.faults for line in seen.arrivals))
        with pytest.raises(stripe.APIError) as busy:
            refund(sdk, pi, key="k1")
        assert first.result().amount == 1000
    assert busy.value.http_status == 409
    assert busy.value.error is not None and busy.value.error.code == "idempotency_key_in_use"
    assert headers(refund(sdk, pi, key="k1"))["idempotent-replayed"] == "true"
    assert len(world.journal().effects) == 1


def test_keys_are_pruned_by_the_movable_clock(sdk: stripe.StripeClient, world: StandInControl) -> None:
    pi = world.create_payment(5000).payment_intent
    first = refund(sdk, pi, key="k1")
    world.advance(DAY - 60)
    assert refund(sdk, pi, key="k1").id == first.id
    world.advance(60)
    second = refund(sdk, pi, key="k1")
    assert second.id != first.id and second.created >= first.created + DAY
    world.set_defaults(key_lifetime_seconds=2 * DAY)
    world.advance(DAY + 60)
    assert refund(sdk, pi, key="k1").id == second.id
    world.set_defaults(key_lifetime_seconds=60)
    assert refund(sdk, pi, key="k1").id != second.id
    assert len(world.journal().effects) == 3


def test_a_rule_forgets_a_key_before_its_time(sdk: stripe.StripeClient, world: StandInControl) -> None:
    pi = world.create_payment(5000).payment_intent
    world.fault("key-forgotten")
    first = refund(sdk, pi, key="k1")
    assert refund(sdk, pi, key="k1").id != first.id


def test_a_refusal_of_execution_is_stored_and_one_of_validation_is_not(
    sdk: stripe.StripeClient, world: StandInControl
) -> None:
    pi = world.create_payment(1000).payment_intent
    with pytest.raises(stripe.InvalidRequestError, match="unknown parameter: colour") as unknown:
        refund(sdk, pi, key="k1", colour="red")
    assert (unknown.value.http_status, unknown.value.code) == (400, "parameter_unknown")
    made = refund(sdk, pi, key="k1")
    for replayed in (None, "true"):
        with pytest.raises(stripe.InvalidRequestError) as already:
            refund(sdk, pi, key="k2")
        assert already.value.code == "charge_already_refunded"
        assert headers(already.value).get("idempotent-replayed") == replayed
    world.set_refund(made.id, status="failed")
    with pytest.raises(stripe.InvalidRequestError):
        refund(sdk, pi, key="k2")
    assert refund(sdk, pi, key="k3").amount == 1000


def test_get_ignores_keys(process: StandInProcess, world: StandInControl) -> None:
    for _ in range(2):
        answer = raw(process, "GET", "/v1/account", headers={"Idempotency-Key": "k1"})
        assert "idempotent-replayed" not in answer.headers and "idempotency-key" not in answer.headers


# Accounts and keys.


def test_mode_and_accounts_are_isolated(process: StandInProcess, world: StandInControl) -> None:
    test, live = client(process), client(process, LIVE_KEY)
    own = test.v1.accounts.retrieve_current().id
    assert own == world.wait_ready() == live.v1.accounts.retrieve_current().id
    world.add_account("acct_shop", platform=own)
    world.add_account("acct_stranger", secret_keys=["sk_test_stranger"])
    assert client(process, "sk_test_stranger").v1.accounts.retrieve_current().id == "acct_stranger"
    mine = world.create_payment(5000).payment_intent
    theirs = world.create_payment(5000, account="acct_shop").payment_intent
    real = world.create_payment(5000, livemode=True).payment_intent
    shop: Any = {"stripe_account": "acct_shop"}
    made = test.v1.refunds.create({"payment_intent": theirs, "amount": 1, "reverse_transfer": True}, shop)
    assert made.transfer_reversal is not None
    assert [item.id for item in test.v1.refunds.list({}, shop).data] == [made.id]
    assert test.v1.refunds.list().data == [] == live.v1.refunds.list().data
    assert live.v1.payment_intents.retrieve(real).livemode is True
    for wrong, pi in ((test, theirs), (test, real), (live, mine)):
        with pytest.raises(stripe.InvalidRequestError, match="No such"):
            refund(wrong, pi)
        with pytest.raises(stripe.InvalidRequestError, match="No such"):
            wrong.v1.payment_intents.retrieve(pi)
    for account in ("acct_nowhere", "acct_stranger"):
        with pytest.raises(stripe.PermissionError) as refused:
            test.v1.refunds.list({}, {"stripe_account": account})
        assert refused.value.http_status == 403
    # One key, two accounts and two modes: three different requests.
    assert refund(test, mine, key="k").id != refund(live, real, key="k").id
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shop["idempotency_key"] = "k"
        test.v1.refunds.create({"payment_intent": theirs, "amount": 1}, shop)
    assert len(world.journal().effects) == 4


def raw(process: StandInProcess, method: str, path: str, **sent: Any) -> httpx.Response:
    sent["headers"] = {"Authorization": f"Bearer {TEST_KEY}"} | sent.get("headers", {})
    return httpx.request(method, process.base_url + path, trust_env=False, timeout=5, **sent)


def test_the_order_of_checks(process: StandInProcess, world: StandInControl) -> None:
    """Every request below is wrong in all later respects too."""
    world.fault("rate-limited", times=None)
    key = {"Idempotency-Key": "k1"}
    for authorization in ("", "Bearer sk_test_wrong", "Basic bm90IGEga2V5Og=="):
        answer = raw(process, "POST", "/v1/refunds", headers={**key, "Authorization": authorization}, data={"x": "y"})
        assert answer.status_code == 401 and answer.headers["request-id"].startswith("req_")
    answer = raw(process, "POST", "/v1/refunds", headers={**key, "Stripe-Account": "acct_none"}, data={"x": "y"})
    assert answer.status_code == 403
    answer = raw(process, "POST", "/v1/refunds", headers=key, data={"x": "y"})
    assert answer.status_code == 429 and answer.json()["error"]["code"] == "rate_limit"
    assert "stripe-should-retry" not in answer.headers
    world.clear_faults()
    world.fault("in-flight-409")
    assert raw(process, "POST", "/v1/refunds", headers=key, data={"x": "y"}).status_code == 409
    answer = raw(process, "POST", "/v1/refunds", headers=key, data={"x": "y"})
    assert answer.status_code == 400 and "idempotency-key" not in answer.headers
    answer = raw(process, "POST", "/v1/refunds", headers={"Idempotency-Key": "k" * 256}, data={"x": "y"})
    assert answer.status_code == 400 and answer.json()["error"]["type"] == "idempotency_error"
    answer = raw(process, "GET", "/v2/nothing")
    assert answer.status_code == 404 and answer.headers["request-id"]
    journal = world.journal()
    assert [line.answer for line in journal.arrivals] == [401, 401, 401, 403, 429, 409, 400, 400, 404]
    assert journal.effects == ()


def test_the_journal_has_what_arrived(process: StandInProcess, world: StandInControl) -> None:
    paid = world.create_payment(5000)
    sent = {"payment_intent": paid.payment_intent, "amount": "700", "metadata[operation_id]": "op-7"}
    for _ in range(2):
        raw(process, "POST", "/v1/refunds", data=sent, headers={"Idempotency-Key": "k7"})
    raw(process, "GET", f"/v1/payment_intents/{paid.payment_intent}")
    journal = world.journal(payment_intent=paid.payment_intent)
    first, second, read = journal.arrivals
    assert first.params == {
        "payment_intent": paid.payment_intent,
        "amount": "700",
        "metadata": {"operation_id": "op-7"},
    }
    assert (first.marker, first.idempotency_key, first.account) == ("op-7", "k7", world.wait_ready())
    assert (first.refunded_before, first.refunded_after, second.refunded_after) == (0, 700, 700)
    assert first.params_sha256 == second.params_sha256 != read.params_sha256
    assert (read.method, read.idempotency_key, read.ended) == ("GET", None, "answered")
    assert len(world.journal(marker="op-7").arrivals) == len(world.journal(idempotency_key="k7").arrivals) == 2
    assert abs(first.at - world.now()) < 5
    (effect,) = journal.effects
    assert (effect.amount, effect.currency, effect.marker, effect.origin) == (700, "usd", "op-7", "api")
    assert TEST_KEY not in str(journal)


def test_the_clock_is_set_and_read(world: StandInControl) -> None:
    start = world.now()
    assert world.advance(1000) >= start + 1000 and world.offset() == 1000
    assert abs(world.set_now(5_000_000_000) - 5_000_000_000) < 5
    world.set_offset(0)
    assert abs(world.now() - start) < 60
