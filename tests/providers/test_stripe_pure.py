"""The pure functions of the refunds adapter: arguments, targets, the frozen request, the contract."""

import json
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
import stripe

from ledger.contract import Contract, KeyTerms, LookupTerms
from ledger.errors import Broken, Refused
from ledger.model import Operation
from providers.registry import Registry, default_registry
from providers.stripe_refunds import (
    API_VERSION,
    CONTRACT,
    RESOLUTION,
    StripeRefunds,
    build_request,
    check_arguments,
    check_target,
    equivalence_key,
    pure_target,
)

FINE = {"amount_minor": 1000, "currency": "eur"}
OperationOf = Callable[..., Operation]


@pytest.mark.parametrize("more", [{}, {"reason": "duplicate"}, {"reason": "requested_by_customer"}])
def test_complete_arguments_pass(more: dict[str, Any]) -> None:
    check_arguments(FINE | more)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({}, "amount_minor"),
        ({"amount_minor": 1000}, "currency"),
        ({"currency": "eur"}, "amount_minor"),
        (FINE | {"amount_minor": 0}, "amount_minor"),
        (FINE | {"amount_minor": True}, "amount_minor"),
        (FINE | {"amount_minor": "1000"}, "amount_minor"),
        (FINE | {"currency": "EUR"}, "currency"),
        (FINE | {"reason": "fraudulent"}, "reason"),
        (FINE | {"reason": None}, "reason"),
        (FINE | {"reason": ["duplicate"]}, "reason"),
        (FINE | {"reverse_transfer": True}, "reverse_transfer"),
        (FINE | {"metadata": {}}, "metadata"),
    ],
)
def test_anything_else_is_refused_with_its_field(arguments: dict[str, Any], field: str) -> None:
    with pytest.raises(Refused) as caught:
        check_arguments(arguments)
    assert caught.value.field == field and caught.value.rule


@pytest.mark.parametrize("target", ["pi_1", "ch_3Nx", "py_1a"])
def test_payments_and_charges_are_targets(target: str) -> None:
    check_target(target)


@pytest.mark.parametrize(
    "target", ["", "re_1", "pi_", "pi_1/../x", "PI_1", "pi_1\n", " pi_1", "pi_1?x=1", "pi_" + "a" * 300]
)
def test_anything_else_is_no_target(target: str) -> None:
    with pytest.raises(Refused) as caught:
        check_target(target)
    assert caught.value.field == "target"


def test_only_a_payment_intent_is_canonical_without_a_read() -> None:
    assert pure_target("pi_1") == "pi_1"
    assert pure_target("ch_1") is None and pure_target("py_1") is None


def test_equivalence_is_payment_amount_and_currency() -> None:
    one = equivalence_key("pi_1", FINE)
    assert one == equivalence_key("pi_1", FINE | {"reason": "duplicate"})
    others = [("pi_2", FINE), ("pi_1", FINE | {"amount_minor": 999}), ("pi_1", FINE | {"currency": "usd"})]
    assert one not in {equivalence_key(target, arguments) for target, arguments in others}


def test_the_request_holds_what_was_approved_and_nothing_that_changes(operation_of: OperationOf) -> None:
    """Two builds are equal byte for byte: put a time or an attempt number into the parameters to see it red."""
    operation_id = UUID("8f14e45f-ceea-467f-a0e6-1d1f8b5f1c11")
    operation = operation_of(operation_id=operation_id, arguments=FINE | {"reason": "duplicate"}, fence=1)
    request = build_request(operation, {})
    assert request.parameters == {
        "amount": 1000,
        "payment_intent": "pi_1",
        "reason": "duplicate",
        "metadata": {"operation_id": str(operation_id)},
    }
    assert (request.idempotency_key, request.api_version) == (operation.idempotency_key, API_VERSION)
    later = operation_of(operation_id=operation_id, arguments=FINE | {"reason": "duplicate"}, fence=7)
    assert json.dumps(build_request(later, {}).parameters) == json.dumps(request.parameters)


def test_a_charge_is_refunded_as_charge(operation_of: OperationOf) -> None:
    parameters = build_request(operation_of(target="ch_1"), {}).parameters
    assert parameters["charge"] == "ch_1" and "payment_intent" not in parameters


@pytest.mark.parametrize("key", ["", "with space", "line\nbreak", "ü"])
def test_a_key_that_no_header_can_carry_is_broken(key: str, operation_of: OperationOf) -> None:
    """The SDK silently replaces an empty key by a random one: remove `check_header` and a repeat would pay twice."""
    with pytest.raises(Broken):
        build_request(operation_of(idempotency_key=key), {})


def test_an_amount_that_is_not_the_arguments_is_broken(operation_of: OperationOf) -> None:
    with pytest.raises(Broken):
        build_request(operation_of(amount_minor=999), {})


def test_every_term_of_the_contract_has_a_source() -> None:
    terms = {f"key.{name}" for name in KeyTerms.model_fields} | {f"lookup.{name}" for name in LookupTerms.model_fields}
    terms |= {"api_version", "processing", "roll_forward", "effect_can_change"}
    sources = {source.term: source for source in CONTRACT.sources}
    assert set(sources) == terms and len(sources) == len(CONTRACT.sources)
    assert all(source.read_on and (source.url or source.assumption) for source in CONTRACT.sources)


def test_the_contract_survives_freezing() -> None:
    assert Contract.model_validate_json(CONTRACT.model_dump_json()) == CONTRACT


def test_the_pinned_version_is_the_sdk_s() -> None:
    """A new SDK speaks a new version: raise API_VERSION and read the changelog of refunds."""
    assert stripe.api_version == API_VERSION


def test_telemetry_is_off() -> None:
    assert stripe.enable_telemetry is False


def test_each_resolution_names_its_evidence() -> None:
    for word in ("happened:", "did_not_happen:", "undetermined:"):
        assert word in RESOLUTION


def test_the_link_shows_account_mode_and_payment(operation_of: OperationOf) -> None:
    adapter = StripeRefunds()
    assert adapter.link(operation_of()) == "https://dashboard.stripe.com/acct_1/test/payments/pi_1"
    assert adapter.link(operation_of(livemode=True)) == "https://dashboard.stripe.com/acct_1/payments/pi_1"


def test_the_registry_knows_its_actions() -> None:
    registry = default_registry()
    actions = [provider.action for provider in registry]
    assert actions == sorted(actions) and "refund" in actions and len(registry) == len(set(actions)) == 8
    with pytest.raises(Refused) as caught:
        registry.for_action("payout")
    assert (caught.value.rule, caught.value.field) == ("unknown_action", "action")
    with pytest.raises(Broken):
        Registry([StripeRefunds(), StripeRefunds()])
