"""What the audit makes of one listed effect: a whole table."""

import uuid
from dataclasses import replace
from typing import Any

import pytest

from ledger.audit import FindingKind, ListedEffect, compare, marker_from, missing
from ledger.model import Operation, Standing
from ledger.states import State
from tests.providers.refund_operations import an_operation

OURS = uuid.uuid5(uuid.NAMESPACE_OID, "ours")
GOOD = ListedEffect("re_1", Standing.GOOD, OURS, ("pi_1", "ch_1"), 1_500, "eur")
K = FindingKind


def an(state: State = State.SUCCEEDED, receipt: str | None = "re_1", **changes: Any) -> Operation:
    """The operation of `GOOD`, unless told otherwise."""
    made = an_operation(
        operation_id=OURS, account="acct_1", target="pi_1", arguments={"amount_minor": 1_500, "currency": "eur"}
    )
    standing = None if receipt is None else Standing.GOOD
    return replace(made, **{"state": state, "receipt": receipt, "standing": standing, **changes})


OTHERS = an(operation_id=uuid.uuid5(uuid.NAMESPACE_OID, "theirs"), receipt="re_1")
CASES: list[tuple[str, ListedEffect, Operation | None, Operation | None, list[FindingKind]]] = [
    ("nobody's", replace(GOOD, marker=None), None, None, []),
    ("ours, as recorded", GOOD, an(), an(), []),
    ("ours, under way", GOOD, an(State.UNKNOWN, None), None, []),
    ("ours, on another target", replace(GOOD, targets=("pi_2", "ch_2")), an(State.UNKNOWN, None), None, [K.DIFFERS]),
    ("proposed, and there", GOOD, an(State.PROPOSED, None), None, [K.UNSENT]),
    ("not approved yet, and there", GOOD, an(State.AWAITING_APPROVAL, None), None, [K.UNSENT]),
    ("not sent yet, and there", GOOD, an(State.APPROVED, None), None, [K.UNSENT]),
    ("not sent yet, and void", replace(GOOD, standing=Standing.VOID), an(State.APPROVED, None), None, []),
    ("no operation", GOOD, None, None, [K.WITHOUT_RECORD]),
    ("no operation, and void: nothing was done", replace(GOOD, standing=Standing.VOID), None, None, []),
    ("a second one", replace(GOOD, receipt="re_2"), an(), None, [K.DUPLICATE]),
    ("a second one, void", replace(GOOD, receipt="re_2", standing=Standing.VOID), an(), None, []),
    ("a second one, in a state that we do not know", replace(GOOD, receipt="re_2", standing=None), an(), None, [K.DUPLICATE]),
    ("ended without", GOOD, an(State.REJECTED, None), None, [K.ENDED_WITHOUT]),
    ("never sent", GOOD, an(State.BLOCKED, None), None, [K.ENDED_WITHOUT]),
    ("nobody could know, and here it is", GOOD, an(State.UNDETERMINED, None), None, [K.ENDED_WITHOUT]),
    ("rejected on a void receipt, which stands again", GOOD, an(State.REJECTED), an(State.REJECTED), [K.ENDED_WITHOUT]),
    ("another amount", replace(GOOD, amount_minor=1_501), an(), an(), [K.DIFFERS]),
    ("another currency", replace(GOOD, currency="usd"), an(), an(), [K.DIFFERS]),
    ("an amount that is not told", replace(GOOD, amount_minor=None), an(), an(), []),
    ("another target", replace(GOOD, targets=("pi_2", "ch_2")), an(), an(), [K.DIFFERS]),
    ("a target under its other name", replace(GOOD, targets=("ch_1", "pi_1")), an(), an(), []),
    ("void, and counted", replace(GOOD, standing=Standing.VOID), an(), an(), [K.VOID]),
    ("void, and known", replace(GOOD, standing=Standing.VOID), an(standing=Standing.VOID), an(standing=Standing.VOID), []),
    ("pending, and counted as good", replace(GOOD, standing=Standing.PENDING), an(), an(), []),
    ("its marker edited away", replace(GOOD, marker=None), None, an(), []),
    ("its marker edited to another's", GOOD, an(State.UNKNOWN, None), OTHERS, [K.DIFFERS]),
]  # fmt: skip


@pytest.mark.parametrize(("effect", "named", "holder", "kinds"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_what_does_not_fit_about_one_effect(
    effect: ListedEffect, named: Operation | None, holder: Operation | None, kinds: list[FindingKind]
) -> None:
    found = list(compare(effect, named, holder))
    assert [finding.kind for finding in found] == kinds
    assert all(finding.name == effect.receipt and finding.what for finding in found)


def test_a_counted_effect_that_its_provider_does_not_show_is_gone() -> None:
    """What the ledger knows to be void need not be shown. Red: leave out the standing."""
    assert [f.kind for f in missing(an())] == [K.GONE]
    assert list(missing(an(standing=Standing.VOID))) == []


MARKERS = [
    (str(OURS), OURS), ("35613a7e-d085-4628-9b15-84edf4af54ad", None), (str(OURS).upper(), None), ("", None), (None, None),
    (7, None), ("x", None),
]  # fmt: skip


@pytest.mark.parametrize(("text", "found"), MARKERS)
def test_only_an_id_that_a_ledger_derived_is_a_marker(text: object, found: uuid.UUID | None) -> None:
    """Others write ids of their own into the same field: those have version 4, or another form."""
    assert marker_from(text) == found
