"""The refunds adapter in the stand-in's world: refusals, changes, looks that see too little or too much, preflight."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from devstack.stripe_standin.rules import Match, Rule
from ledger.model import Hint, Operation, Outcome, SeenEffect, Standing
from providers.port import Credential, Look, Preflight
from tests.providers.conftest import StripeRig

pytestmark = pytest.mark.asyncio
DAY = 86400


async def look(rig: StripeRig, operation: Operation, *, since: float | None = None) -> Look:
    moment = datetime.fromtimestamp(rig.world.now() - 60 if since is None else since, UTC)
    return await rig.provider.look(rig.credential, operation, moment)


async def preflight(rig: StripeRig, operation: Operation, **changes: Any) -> Preflight:
    target = changes.pop("target", operation.target)
    credential = changes.pop("credential", rig.credential)
    arguments = operation.arguments | changes
    return await rig.provider.preflight(credential, target, arguments, str(operation.operation_id))


def ours(seen: Look) -> list[SeenEffect]:
    return [effect for effect in seen.effects if effect.ours]


# Refusals.


async def test_a_key_that_was_used_for_something_else_is_misused(stripe_rig: StripeRig) -> None:
    first = stripe_rig.operation(1000)
    await stripe_rig.send(first)
    second = stripe_rig.operation(900, target=first.target, idempotency_key=first.idempotency_key)
    seen = await stripe_rig.send(second)
    assert (seen.outcome, seen.hint, seen.detail["type"]) == (Outcome.UNKNOWN, Hint.MISUSED, "idempotency_error")
    assert len(stripe_rig.world.journal().effects) == 1


async def test_a_refusal_after_execution_is_stored_and_replayed(stripe_rig: StripeRig) -> None:
    """Money that frees itself later does not change the stored answer: `stored` must be true the first time already."""
    operation = stripe_rig.operation(1000, paid=1000)
    other = stripe_rig.world.foreign_refund(operation.target, 1000)
    first = await stripe_rig.send(operation)
    assert (first.outcome, first.stored, first.detail["code"]) == (Outcome.REFUSED, True, "charge_already_refunded")
    stripe_rig.world.set_refund(other, status="failed")
    second = await stripe_rig.send(operation)
    assert (second.outcome, second.stored, second.detail["replayed"]) == (Outcome.REFUSED, True, True)
    assert stripe_rig.effects(operation) == []


async def test_more_than_is_left_is_refused_without_a_code(stripe_rig: StripeRig) -> None:
    seen = await stripe_rig.send(stripe_rig.operation(1001, paid=1000))
    assert (seen.outcome, seen.stored, "code" in seen.detail) == (Outcome.REFUSED, True, False)
    assert stripe_rig.world.journal().effects == ()


async def test_a_dispute_refuses(stripe_rig: StripeRig) -> None:
    operation = stripe_rig.operation()
    stripe_rig.world.set_payment(operation.target, disputed=True)
    seen = await stripe_rig.send(operation)
    assert (seen.outcome, seen.stored, seen.detail["code"]) == (Outcome.REFUSED, True, "charge_disputed")


async def test_an_empty_balance_refuses_or_waits(stripe_rig: StripeRig) -> None:
    stripe_rig.world.set_defaults(balance="refuse")
    refused = await stripe_rig.send(stripe_rig.operation())
    assert (refused.outcome, refused.stored) == (Outcome.REFUSED, True)
    stripe_rig.world.set_defaults(balance="pending")
    waits = await stripe_rig.send(stripe_rig.operation())
    assert (waits.outcome, waits.standing) == (Outcome.APPLIED, Standing.PENDING)


async def test_an_unknown_payment_is_refused_and_not_stored(stripe_rig: StripeRig) -> None:
    seen = await stripe_rig.send(stripe_rig.operation(target="pi_nobody"))
    assert (seen.outcome, seen.stored, seen.detail["http_status"]) == (Outcome.REFUSED, False, 404)


async def test_an_invalid_parameter_is_refused_and_not_stored(stripe_rig: StripeRig) -> None:
    body = {"error": {"type": "invalid_request_error", "code": "parameter_unknown", "message": "x", "param": "y"}}
    rule = Rule(kind="answer", when="before", answer_status=400, body=body, match=Match(method="POST"))
    stripe_rig.world.fault(rule)
    seen = await stripe_rig.send(stripe_rig.operation())
    assert (seen.outcome, seen.stored) == (Outcome.REFUSED, False)


async def test_a_stored_500_stays_whatever_is_repeated(stripe_rig: StripeRig) -> None:
    operation = stripe_rig.operation()
    stripe_rig.world.fault("stored-500-roll-forward", operation_id=str(operation.operation_id))
    for _ in range(2):
        seen = await stripe_rig.send(operation)
        assert (seen.outcome, seen.hint, seen.stored) == (Outcome.UNKNOWN, Hint.STORED_ERROR, True)
    assert seen.detail["replayed"] and stripe_rig.effects(operation) == []
    assert (await look(stripe_rig, operation)).effects == ()
    stripe_rig.world.advance(700)
    assert [e.receipt for e in ours(await look(stripe_rig, operation, since=0))] == [
        effect.refund for effect in stripe_rig.effects(operation)
    ]
    assert len(stripe_rig.effects(operation)) == 1


# Changes.


@pytest.mark.parametrize(("moved", "standing"), [("failed", Standing.VOID), ("succeeded", Standing.GOOD)])
async def test_a_replay_is_read_again(moved: str, standing: Standing, stripe_rig: StripeRig) -> None:
    """Break `_as_of_now` and the replay's old `pending` is believed."""
    stripe_rig.world.set_defaults(refund_status="pending")
    operation = stripe_rig.operation()
    first = await stripe_rig.send(operation)
    assert first.standing is Standing.PENDING
    stripe_rig.world.set_refund(first.receipt, status=moved)
    again = await stripe_rig.send(operation)
    assert (again.outcome, again.standing, again.receipt) == (Outcome.APPLIED, standing, first.receipt)
    assert again.detail["replayed"] and again.detail["read_again"]


async def test_a_good_replay_that_cannot_be_read_again_is_pending(stripe_rig: StripeRig) -> None:
    operation = stripe_rig.operation()
    await stripe_rig.send(operation)
    stripe_rig.world.fault(Rule(kind="rst", match=Match(method="GET", path="/v1/refunds/*")))
    again = await stripe_rig.send(operation)
    assert (again.outcome, again.standing, again.detail["read_again"]) == (Outcome.APPLIED, Standing.PENDING, False)


async def test_an_outlived_key_pays_again_which_the_margin_prevents(stripe_rig: StripeRig) -> None:
    """Why the contract stops repeating before the key's lifetime is over."""
    contract = stripe_rig.provider.contract
    assert contract.key is not None
    operation = stripe_rig.operation()
    await stripe_rig.send(operation)
    stripe_rig.world.advance(contract.key.lifetime - contract.key.margin)
    assert (await stripe_rig.send(operation)).detail["replayed"]
    assert len(stripe_rig.effects(operation)) == 1
    stripe_rig.world.advance(contract.key.margin + 1)
    assert not (await stripe_rig.send(operation)).detail["replayed"]
    assert len(stripe_rig.effects(operation)) == 2
    assert len(ours(await look(stripe_rig, operation, since=0))) == 2


# Looks.


async def test_a_look_reads_every_page(stripe_rig: StripeRig) -> None:
    """Stop `ask_all` after its first page: ours is the oldest of 231 refunds, and is not seen."""
    operation = stripe_rig.operation()
    await stripe_rig.send(operation)
    for _ in range(230):
        stripe_rig.world.foreign_refund(operation.target, 1)
    seen = await look(stripe_rig, operation)
    assert seen.complete and len(seen.effects) == 231 and len(ours(seen)) == 1


@pytest.mark.parametrize("fault", ["broken-lookup", "lost-lookup", "incomplete-lookup"])
async def test_a_look_that_was_cut_short_is_not_complete(fault: str, stripe_rig: StripeRig) -> None:
    """Call a listing complete although a page failed, and absence would be believed."""
    operation = stripe_rig.operation()
    for _ in range(3):
        stripe_rig.world.foreign_refund(operation.target, 1)
    stripe_rig.world.fault(fault)
    seen = await look(stripe_rig, operation)
    assert not seen.complete and seen.detail["why"]
    stripe_rig.world.clear_faults()
    assert (await look(stripe_rig, operation)).complete


async def test_a_hidden_refund_appears_later(stripe_rig: StripeRig) -> None:
    """A complete look can still see nothing: that is what the contract's settling time is for."""
    operation = stripe_rig.operation()
    await stripe_rig.send(operation)
    rule = stripe_rig.world.fault("hidden-lookup", times=None)
    seen = await look(stripe_rig, operation)
    assert seen.complete and seen.effects == ()
    stripe_rig.world.clear_faults(rule)
    assert len(ours(await look(stripe_rig, operation))) == 1


async def test_foreign_refunds_are_told_apart(stripe_rig: StripeRig) -> None:
    operation = stripe_rig.operation(1000)
    await stripe_rig.send(operation)
    twin = stripe_rig.world.foreign_refund(operation.target, 1000)
    stripe_rig.world.foreign_refund(operation.target, 999)
    other = stripe_rig.world.foreign_refund(operation.target, 1000, metadata={"operation_id": str(uuid4())})
    stranger = stripe_rig.world.foreign_refund(
        operation.target, 1, metadata={"operation_id": str(operation.operation_id)}
    )
    seen = await look(stripe_rig, operation)
    assert len(seen.effects) == 5 and len(ours(seen)) == 1
    assert {e.receipt for e in seen.effects if e.look_alike} == {twin, other}
    assert [e.receipt for e in seen.effects if e.marked and not e.matching] == [stranger]


async def test_a_refund_whose_marker_was_edited_is_a_look_alike(stripe_rig: StripeRig) -> None:
    operation = stripe_rig.operation()
    sent = await stripe_rig.send(operation)
    stripe_rig.world.set_refund(sent.receipt, metadata={"operation_id": ""})
    (effect,) = (await look(stripe_rig, operation)).effects
    assert effect.look_alike and effect.receipt == sent.receipt


async def test_a_refund_older_than_the_operation_is_not_its_look_alike(stripe_rig: StripeRig) -> None:
    operation = stripe_rig.operation()
    stripe_rig.world.foreign_refund(operation.target, 1000)
    (effect,) = (await look(stripe_rig, operation, since=stripe_rig.world.now() + 60)).effects
    assert not effect.look_alike


async def test_a_receipt_is_read_again(stripe_rig: StripeRig) -> None:
    operation = stripe_rig.operation()
    sent = await stripe_rig.send(operation)
    assert sent.receipt is not None
    seen = await stripe_rig.provider.read_receipt(stripe_rig.credential, operation, sent.receipt)
    assert seen is not None and seen.ours and seen.standing is Standing.GOOD
    stripe_rig.world.set_refund(sent.receipt, status="failed", failure_reason="declined")
    seen = await stripe_rig.provider.read_receipt(stripe_rig.credential, operation, sent.receipt)
    assert seen is not None and seen.standing is Standing.VOID and seen.summary["failure_reason"] == "declined"
    before = len(stripe_rig.world.journal().arrivals)
    for wrong in ("re_nobody", "../account", ""):
        assert await stripe_rig.provider.read_receipt(stripe_rig.credential, operation, wrong) is None
    assert len(stripe_rig.world.journal().arrivals) == before + 1  # what cannot be an id is not asked about


# Preflight.


async def test_preflight_tells_what_is_left_and_whose_it_was(stripe_rig: StripeRig) -> None:
    earlier = stripe_rig.operation(1000, paid=5000)
    sent = await stripe_rig.send(earlier)
    pending = stripe_rig.world.foreign_refund(earlier.target, 300, status="pending")
    void = stripe_rig.world.foreign_refund(earlier.target, 700, status="failed")
    operation = stripe_rig.operation(1000, target=earlier.target)
    told = await preflight(stripe_rig, operation)
    assert told.complete and told.unfit == "" and told.currency == "eur"
    assert (told.amount_minor, told.facts["refunded_minor"]) == (5000, 1300)
    assert told.markers == {sent.receipt: str(earlier.operation_id)}
    assert {effect.receipt: effect.standing for effect in told.effects} == {
        sent.receipt: Standing.GOOD, pending: Standing.PENDING, void: Standing.VOID,
    }  # fmt: skip
    assert not any(effect.marked for effect in told.effects)
    assert (await preflight(stripe_rig, earlier)).effects[-1].ours


async def test_preflight_reads_every_page(stripe_rig: StripeRig) -> None:
    operation = stripe_rig.operation(1000, paid=5000)
    for _ in range(130):
        stripe_rig.world.foreign_refund(operation.target, 10)
    told = await preflight(stripe_rig, operation)
    assert (told.facts["refunded_minor"], len(told.effects)) == (1300, 130)


async def test_a_charge_and_its_payment_intent_are_one_target(stripe_rig: StripeRig) -> None:
    """Take the charge for canonical and two operations could each refund the whole payment."""
    paid = stripe_rig.world.create_payment(5000, "eur")
    operation = stripe_rig.operation(target=paid.payment_intent)
    for name in (paid.payment_intent, paid.charge):
        told = await preflight(stripe_rig, operation, target=name)
        assert (told.target, told.unfit) == (paid.payment_intent, "")


UNFIT: list[tuple[str, dict[str, Any], str]] = [
    ("uncaptured", {"status": "requires_capture", "captured": 0}, "not_captured"),
    ("unpaid", {"status": "requires_payment_method", "captured": 0}, "not_paid"),
    ("canceled", {"status": "canceled", "captured": 0}, "not_paid"),
    ("disputed", {"disputed": True}, "disputed"),
    ("other currency", {"currency": "usd"}, "currency_mismatch"),
]


@pytest.mark.parametrize(("name", "payment", "unfit"), UNFIT, ids=[row[0] for row in UNFIT])
async def test_a_payment_that_cannot_be_refunded_is_unfit(
    name: str, payment: dict[str, Any], unfit: str, stripe_rig: StripeRig
) -> None:
    made = stripe_rig.world.create_payment(5000, **({"currency": "eur"} | payment))
    told = await preflight(stripe_rig, stripe_rig.operation(target=made.payment_intent))
    assert told.complete and told.unfit == unfit and told.facts["unfit"]


async def test_a_missing_payment_is_unfit(stripe_rig: StripeRig) -> None:
    for target in ("pi_nobody", "ch_nobody"):
        told = await preflight(stripe_rig, stripe_rig.operation(target=target))
        assert told.complete and told.unfit == "payment_missing" and told.facts["unfit"]


async def test_a_spent_payment_is_unfit_unless_we_spent_it(stripe_rig: StripeRig) -> None:
    """Without the exception, a ledger restored from a backup would block an operation whose refund was made."""
    operation = stripe_rig.operation(1000, paid=1000)
    await stripe_rig.send(operation)
    assert (await preflight(stripe_rig, operation)).unfit == ""
    other = stripe_rig.operation(1000, target=operation.target)
    assert (await preflight(stripe_rig, other)).unfit == "fully_refunded"


async def test_a_payment_of_the_other_mode_is_unfit(stripe_rig: StripeRig) -> None:
    """A test key cannot see live payments; a credential that claims the wrong mode is found by what Stripe says."""
    told = await preflight(
        stripe_rig, stripe_rig.operation(), credential=Credential("acct", True, stripe_rig.credential.secret)
    )
    assert told.unfit == "livemode_mismatch"


@pytest.mark.parametrize(
    "match",
    [Match(path="/v1/payment_intents/*"), Match(path="/v1/refunds")],
    ids=["payment", "refunds"],
)
@pytest.mark.parametrize("kind", ["rst", "html200", "html502", "answer", "rate_limit", "unauthorized", "truncated"])
async def test_what_cannot_be_read_is_incomplete_and_never_unfit(
    kind: Any, match: Match, stripe_rig: StripeRig
) -> None:
    operation = stripe_rig.operation()
    stripe_rig.world.fault(Rule(kind=kind, match=match))
    told = await preflight(stripe_rig, operation)
    assert not told.complete and told.unfit == "" and told.detail["why"]


# Whose.


async def test_a_secret_says_whose_it_is(stripe_rig: StripeRig) -> None:
    found = await stripe_rig.provider.whose(Credential("acct_claimed", True, stripe_rig.credential.secret))
    assert found == stripe_rig.credential
    live = stripe_rig.credential.secret.replace("test", "live", 1)
    found = await stripe_rig.provider.whose(Credential(stripe_rig.account, False, live))
    assert found is not None and found.livemode
    assert await stripe_rig.provider.whose(Credential("acct_1", False, "sk_test_nobody")) is None


async def test_a_platform_acts_for_its_connected_account_only_by_name(stripe_rig: StripeRig) -> None:
    stripe_rig.world.add_account("acct_connected", platform=stripe_rig.account)
    paid = stripe_rig.world.create_payment(5000, "eur", account="acct_connected")
    credential = Credential("acct_connected", False, stripe_rig.credential.secret, connected=True)
    operation = stripe_rig.operation(target=paid.payment_intent)
    assert await stripe_rig.provider.whose(credential) == credential
    assert (await preflight(stripe_rig, operation, credential=credential)).unfit == ""
    assert (await preflight(stripe_rig, operation)).unfit == "payment_missing"


async def test_reads_send_no_key_and_no_body(stripe_rig: StripeRig) -> None:
    operation = stripe_rig.operation()
    await preflight(stripe_rig, operation)
    await look(stripe_rig, operation)
    await stripe_rig.provider.whose(stripe_rig.credential)
    arrivals = stripe_rig.world.journal().arrivals
    assert len(arrivals) == 4 and {(line.method, line.idempotency_key) for line in arrivals} == {("GET", None)}


async def test_a_send_soon_after_is_found_from_its_first_second(stripe_rig: StripeRig) -> None:
    operation = stripe_rig.operation()
    since = datetime.fromtimestamp(stripe_rig.world.now(), UTC)
    await stripe_rig.send(operation)
    assert len(ours(await stripe_rig.provider.look(stripe_rig.credential, operation, since))) == 1
    late = since + timedelta(days=1)
    assert ours(await stripe_rig.provider.look(stripe_rig.credential, operation, late)) == []
