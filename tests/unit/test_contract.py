"""Contracts: what is refused at load, and that a frozen contract comes back from the ledger as it went in."""

import pytest
from pydantic import ValidationError

from ledger.contract import Contract, KeyTerms, Source, Timing
from providers.stripe_refunds import CONTRACT
from tests.unit.recovery_facts import SHAPES


def _key(margin: float) -> KeyTerms:
    return KeyTerms(lifetime=3600, margin=margin, stores_server_errors=True, stores_refusals=True)


def test_a_margin_shorter_than_processing_is_refused() -> None:
    """Else a repeat sent at the last permitted moment could be executed after its key was pruned: a second effect.

    Red without `_margin_covers_processing` in contract.py.
    """
    with pytest.raises(ValidationError, match="margin 119.0 is shorter than processing or slack 120.0"):
        Contract(name="tight", key=_key(119), processing=120)


def test_a_margin_of_exactly_processing_is_accepted() -> None:
    """The bound itself is safe, and without a key there is nothing to compare."""
    assert Contract(name="exact", key=_key(120), processing=120).key is not None
    assert Contract(name="keyless", processing=120).key is None


def test_a_frozen_contract_refuses_a_short_margin_as_well() -> None:
    """The ledger's copy passes the same check when it is read back."""
    stored = Contract(name="exact", key=_key(120), processing=120).model_dump(mode="json")
    stored["processing"] = 121
    with pytest.raises(ValidationError, match="shorter than processing"):
        Contract.model_validate(stored)


@pytest.mark.parametrize("contract", [*SHAPES, CONTRACT], ids=lambda c: c.name)
def test_a_contract_comes_back_from_json_equal(contract: Contract) -> None:
    """As the claim freezes it (model_dump) and as text."""
    assert Contract.model_validate(contract.model_dump(mode="json")) == contract
    assert Contract.model_validate_json(contract.model_dump_json()) == contract


def test_unknown_terms_and_wrong_bounds_are_refused() -> None:
    """A misspelt term would silently count as "no", or as the default."""
    for wrong in (
        {"procesing": 1, "processing": 120},
        {"processing": 0},
        {"processing": -1},
        {"processing": 120, "roll_forward": -1},
        {"processing": 120, "timing": {"send_within": 0}},
    ):
        with pytest.raises(ValidationError):
            Contract.model_validate({"name": "wrong", **wrong})


def test_a_contract_cannot_be_changed_after_it_was_made() -> None:
    """Attempts and looks of one operation are judged by one and the same contract."""
    with pytest.raises(ValidationError, match="frozen"):
        SHAPES[0].processing = 1.0


def test_the_lease_is_longer_than_send_and_call() -> None:
    """Lease ≥ S + D + slack: an attempt whose lease is over has nothing left to send."""
    timing = Timing(send_within=10, call_deadline=30, slack=5)
    assert timing.lease == 45
    assert timing.lease > timing.send_within + timing.call_deadline


def test_every_term_of_a_shipped_contract_has_a_source_or_a_reason() -> None:
    """A documented term names page and day; an assumption says why."""
    for source in CONTRACT.sources:
        assert isinstance(source, Source)
        assert source.text
        assert source.assumption or (source.url.startswith("https://") and source.read_on)
