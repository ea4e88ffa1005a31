"""The messages that cross Temporal."""

import pytest
from pydantic import BaseModel

from activities.messages import ADVICE, Answer, Progress, Proposal, request_digest
from ledger import fingerprint
from ledger.states import State

PROPOSAL = Proposal(
    tenant="acme",
    business_key="order-7",
    action="refund",
    target="pi_1",
    arguments={"currency": "eur", "amount_minor": 1500, "note": "Größe – 東京 🎈"},
    actor="support-bot",
    requested_by="mia",
    evidence=[{"reference": "T-77", "kind": "ticket"}],
    distinct_from=["b", "a"],
)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"target": "pi_2"},
        {"arguments": {}},
        {"evidence": []},
        {"expected_version": "v1"},
        {"depends_on": [{"business_key": "b", "state": "succeeded"}]},
        {"supersedes": "a"},
    ],
)
def test_the_client_computes_the_ledgers_digest(change: dict[str, object]) -> None:
    """The small client has no rfc8785; its digest must be equal for everything that the ledger accepts."""
    proposal = PROPOSAL.model_copy(update=change)
    ours = fingerprint.request_digest(
        proposal.action,
        proposal.target,
        proposal.arguments,
        proposal.evidence,
        proposal.distinct_from,
        proposal.expected_version,
        proposal.depends_on,
        proposal.supersedes,
    )
    assert request_digest(proposal) == ours.hex()


def test_identity_of_the_caller_is_not_in_the_digest() -> None:
    """The same intent, asked again by a rotated key or another service of the tenant, is the same intent."""
    assert request_digest(PROPOSAL.model_copy(update={"token": "x", "actor": "other"})) == request_digest(PROPOSAL)


@pytest.mark.parametrize("state", [*State, "refused", "unrecorded", "key_used"])
def test_every_state_has_its_advice(state: str) -> None:
    """A fixed sentence for the model that asked; never free text."""
    assert ADVICE[state].endswith(".")


@pytest.mark.parametrize("model", [Answer, Progress])
def test_what_comes_back_can_grow(model: type[BaseModel]) -> None:
    """New fields come with defaults only: an older reader and an older history still fit."""
    optional = [name for name, field in model.model_fields.items() if not field.is_required()]
    assert set(model.model_fields) - set(optional) <= {"state"}
