"""Judgement: every refusal before recording, every reason to block, the three bounds of a waiver, who may sign what."""

import itertools
import uuid
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from ledger import policy
from ledger.config import Document, Rule, rule_version
from ledger.errors import Refused
from ledger.model import Operation, Standing
from ledger.policy import ListedEffect, Reserving, Signed, TargetFacts, Totals, Verdict, VerdictKind
from ledger.states import BlockReason, State

GOOD, PENDING, VOID = Standing.GOOD, Standing.PENDING, Standing.VOID
EUR: dict[str, Any] = {"tenant": "acme", "role": "refunds", "currency": "eur"}
LIFETIMES = dict.fromkeys(("approval_lifetime_seconds", "review_after_seconds", "statement_lifetime_seconds"), 3600)
REFUND = Rule.model_validate(
    {
        **LIFETIMES,
        **EUR,
        "action": "refund",
        "max_amount_minor": 50_000,
        "approvers": 2,
        "waive_up_to_minor": 2_000,
        "waive_total_per_target_minor": 3_000,
        "waive_total_per_actor_day_minor": 10_000,
    }
)
MAIL = Rule.model_validate(
    {**LIFETIMES, "tenant": "acme", "action": "mail", "approvers": 0, "role": "writers", "evidence_required": False}
)


def key(kid: str, revoked: bool = False) -> dict[str, Any]:
    return {"kid": kid, "x": "", "revoked": revoked}


DOCUMENT = Document.model_validate(
    {
        "ledger": {"name": "ledger-test"},
        "bindings": [{"tenant": "acme", "provider": "stripe", "account": "a", "livemode": False, "secret": "s"}],
        "rules": [REFUND, MAIL],
        "grants": [
            {**key("bot-1"), "name": "bot", "tenant": "acme", "actors": ["bot"], "actions": ["refund", "mail"]},
            {**key("bot-0", True), "name": "bot", "tenant": "acme", "actors": ["bot"], "actions": ["refund"]},
            {
                **{
                    **key("small-1"),
                    "name": "small",
                    "tenant": "acme",
                    "actors": ["bot"],
                    "actions": ["refund", "mail"],
                },
                **{"max_amount_minor": 1_000, "currency": "eur"},
            },
        ],
        "people": [
            {
                "name": "alice",
                "keys": [key("alice-1"), key("alice-0", True)],
                "roles": [{**EUR, "limit_minor": 50_000}],
            },
            {"name": "bob", "keys": [key("bob-1")], "roles": [{**EUR, "limit_minor": 1_500}]},
            {
                "name": "carol",
                "keys": [key("carol-1")],
                "roles": [{**EUR, "limit_minor": 50_000}],
                "operator_of": ["*"],
            },
            {"name": "dave", "keys": [key("dave-1")], "roles": [{**EUR, "currency": "usd", "limit_minor": 9_999}]},
            {"name": "erin", "keys": [key("erin-1")], "roles": [{"tenant": "acme", "role": "writers"}]},
            {"name": "frank", "keys": [key("frank-1")], "roles": [{**EUR, "tenant": "other", "limit_minor": 50_000}]},
            {"name": "gone", "keys": [key("gone-1")], "roles": [{**EUR, "limit_minor": 50_000}], "revoked": True},
            {"name": "olga", "keys": [key("olga-1")], "operator_of": ["acme"]},
            {"name": "gina", "keys": [key("gina-1")], "operator_of": ["*"], "revoked": True},
        ],
    }
)
NOW = datetime(2027, 1, 1, tzinfo=UTC)
OPERATION = Operation(
    operation_id=uuid.UUID(int=1),
    tenant="acme",
    business_key="order-1",
    actor="bot",
    requested_by="zoe",
    action="refund",
    provider="stripe",
    account="a",
    livemode=False,
    target="ch_1",
    arguments={},
    amount_minor=1_500,
    currency="eur",
    expected_version=None,
    evidence=[],
    distinct_from=[],
    depends_on=[],
    supersedes=None,
    equivalence_key="ch_1/1500/eur",
    policy_version=rule_version(DOCUMENT, "acme", "refund", "eur"),
    config_version=1,
    canonical=b"",
    request_digest=b"",
    fingerprint=b"",
    approval_expires_at=NOW,
    idempotency_key="",
    kid="bot-1",
    proposed_at=NOW,
    state=State.PROPOSED,
)
MAILING = replace(OPERATION, action="mail", amount_minor=None, currency=None)
TARGET = TargetFacts(captured_minor=9_000, currency="eur")


def refusal(call: Any, *args: Any, **kwargs: Any) -> str:
    with pytest.raises(Refused) as refused:
        call(*args, **kwargs)
    assert str(refused.value)
    assert refused.value.field
    return refused.value.rule


# Before anything is recorded

ASKED: dict[str, Any] = {"tenant": "acme", "actor": "bot", "action": "refund", "amount_minor": 1_000, "currency": "eur"}


@pytest.mark.parametrize(
    ("kid", "changes", "rule"),
    [
        ("nobody", {}, "grant_unknown"),
        ("alice-1", {}, "grant_unknown"),
        ("bot-0", {}, "grant_revoked"),
        ("bot-1", {"tenant": "other"}, "tenant_not_granted"),
        ("bot-1", {"actor": "alice"}, "actor_not_granted"),
        ("bot-1", {"action": "payout"}, "action_not_granted"),
        ("small-1", {"amount_minor": 1_001}, "amount_not_granted"),
        ("small-1", {"currency": "usd"}, "amount_not_granted"),
        ("small-1", {"action": "mail", "amount_minor": None, "currency": None}, "amount_not_granted"),
    ],
)
def test_a_key_proposes_only_what_it_was_granted(kid: str, changes: dict[str, Any], rule: str) -> None:
    assert refusal(policy.may_propose, DOCUMENT, kid, **{**ASKED, **changes}) == rule


def test_a_granted_proposal_passes_up_to_its_maximum() -> None:
    assert policy.may_propose(DOCUMENT, "small-1", **ASKED).name == "small"
    assert policy.may_propose(DOCUMENT, "bot-1", **{**ASKED, "amount_minor": 10**9}).name == "bot"


RECORDED: dict[str, Any] = {
    **{"tenant": "acme", "provider": "stripe", "action": "refund", "amount_minor": 1_000, "currency": "eur"},
    "evidence": [{"ticket": "T-1"}],
}


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"tenant": "other"}, "tenant_unknown"),
        ({"provider": "erp"}, "provider_not_bound"),
        ({"action": "payout"}, "action_not_allowed"),
        ({"currency": "usd"}, "currency_not_allowed"),
        ({"currency": None}, "currency_without_amount"),
        ({"amount_minor": None}, "currency_without_amount"),
        ({"currency": None, "amount_minor": None}, "currency_not_allowed"),
        ({"amount_minor": 0}, "amount_not_positive"),
        ({"amount_minor": True}, "amount_not_integer"),
        ({"evidence": []}, "evidence_required"),
        ({"evidence": [{"ticket": "T\u202e1"}]}, "text_hidden"),
        ({"evidence": "T-1"}, "evidence_malformed"),
    ],
)
def test_what_cannot_be_judged_is_not_recorded(changes: dict[str, Any], rule: str) -> None:
    assert refusal(policy.check_against_rule, DOCUMENT, **{**RECORDED, **changes}) == rule


def test_what_can_be_judged_gets_its_rule_even_above_the_maximum() -> None:
    assert policy.check_against_rule(DOCUMENT, **{**RECORDED, "amount_minor": 50_001}) == REFUND
    plain = {**RECORDED, "action": "mail", "amount_minor": None, "currency": None, "evidence": []}
    assert policy.check_against_rule(DOCUMENT, **plain) == MAIL


# The verdict


def judged(amount: int = 1_500, **changes: Any) -> Verdict:
    arguments: dict[str, Any] = {"rule": REFUND, "target": TARGET, "totals": Totals(), **changes}
    operation = replace(arguments.pop("operation", OPERATION), distinct_from=arguments.pop("distinct_from", []))
    if operation.amount_minor is not None:
        operation = replace(operation, amount_minor=amount)
    return policy.judge(operation=operation, **arguments)


@pytest.mark.parametrize(
    ("changes", "reason", "field"),
    [
        ({"amount": 50_001}, BlockReason.POLICY_DENIED, "amount_minor"),
        ({"rule": MAIL}, BlockReason.POLICY_DENIED, "currency"),
        ({"operation": MAILING}, BlockReason.POLICY_DENIED, "currency"),
        ({"target": replace(TARGET, unfit="disputed")}, BlockReason.TARGET_UNFIT, "target"),
        ({"target": replace(TARGET, currency="usd")}, BlockReason.TARGET_UNFIT, "currency"),
        ({"target": replace(TARGET, captured_minor=None)}, BlockReason.TARGET_UNFIT, "target"),
        ({"target": replace(TARGET, version_stale=True)}, BlockReason.VERSION_STALE, "expected_version"),
        ({"amount": 9_001}, BlockReason.AMOUNT_EXCEEDS_REMAINING, "amount_minor"),
        ({"reserving": [Reserving("o2", None, 7_501)]}, BlockReason.AMOUNT_EXCEEDS_REMAINING, "amount_minor"),
        (
            {"target": replace(TARGET, effects=(ListedEffect("re_1", GOOD, 7_501),))},
            *(BlockReason.AMOUNT_EXCEEDS_REMAINING, "amount_minor"),
        ),
        ({"equivalents": ["o2"]}, BlockReason.EQUIVALENT_OPERATION, "distinct_from"),
        ({"equivalents": ["o2", "re_9"], "distinct_from": ["o2"]}, BlockReason.EQUIVALENT_OPERATION, "distinct_from"),
    ],
)
def test_every_reason_to_block(changes: dict[str, Any], reason: BlockReason, field: str) -> None:
    verdict = judged(**changes)
    assert (verdict.kind, verdict.reason, verdict.field) == (VerdictKind.DENY, reason, field)
    assert (verdict.people_needed, verdict.sentence[-1]) == (0, ".")


def test_amounts_up_to_the_last_cent_are_not_denied() -> None:
    assert judged(9_000).kind is VerdictKind.ASK
    assert judged(1_500, reserving=[Reserving("o2", None, 7_500)]).kind is VerdictKind.WAIVE
    assert judged(50_000, target=replace(TARGET, captured_minor=50_000)).kind is VerdictKind.ASK


def test_a_rule_that_reserves_nothing_asks_for_no_remaining_amount() -> None:
    free = REFUND.model_copy(update={"reserves": False})
    assert judged(9_001, rule=free).kind is VerdictKind.ASK
    assert judged(1_500, rule=free, target=TargetFacts()).kind is VerdictKind.WAIVE


@pytest.mark.parametrize(
    ("amount", "target_total", "day_total"),
    list(itertools.product((1, 1_999, 2_000, 2_001), (0, 1_000, 1_001, 3_000), (0, 8_000, 8_001, 10_000))),
)
def test_the_rule_waives_a_person_only_within_all_three_bounds(amount: int, target_total: int, day_total: int) -> None:
    verdict = judged(amount, totals=Totals(target_total, day_total))
    within = amount <= 2_000 and target_total + amount <= 3_000 and day_total + amount <= 10_000
    assert verdict.kind is (VerdictKind.WAIVE if within else VerdictKind.ASK)
    assert verdict.people_needed == (0 if within else 2)
    assert (verdict.reason, verdict.field) == ("", "")


def test_without_a_waiver_people_are_asked_for_every_cent() -> None:
    strict = REFUND.model_copy(
        update=dict.fromkeys(
            ("waive_up_to_minor", "waive_total_per_target_minor", "waive_total_per_actor_day_minor"), 0
        )
    )
    assert judged(1, rule=strict).people_needed == 2


@pytest.mark.parametrize("equivalents", [[], ["o2"]])
def test_saying_that_it_is_distinct_always_needs_a_person(equivalents: list[str]) -> None:
    verdict = judged(1, equivalents=equivalents, distinct_from=["o2"])
    assert (verdict.kind, verdict.people_needed) == (VerdictKind.ASK, 2)
    verdict = judged(rule=MAIL, operation=MAILING, distinct_from=["o2"])
    assert (verdict.kind, verdict.people_needed) == (VerdictKind.ASK, 1)


def test_an_action_without_money_is_waived_by_a_rule_that_asks_nobody() -> None:
    assert judged(rule=MAIL, operation=MAILING, target=TargetFacts()).kind is VerdictKind.WAIVE
    asking = MAIL.model_copy(update={"approvers": 1})
    verdict = judged(rule=asking, operation=MAILING, target=TargetFacts())
    assert (verdict.kind, verdict.people_needed) == (VerdictKind.ASK, 1)


def test_what_the_provider_or_the_agent_wrote_is_shown_with_its_hidden_characters() -> None:
    assert "⟦U+202E⟧" in judged(target=replace(TARGET, unfit="a\u202eb")).sentence
    assert "⟦U+000A⟧" in judged(distinct_from=["a\nb"]).sentence


# What is left on the target


@pytest.mark.parametrize(
    ("effects", "markers", "reserving", "left"),
    [
        ([], {}, [], 9_000),
        ([("re_1", GOOD, 1_000), ("re_2", PENDING, 500), ("re_3", VOID, 700)], {}, [], 7_500),
        ([], {}, [("o1", None, 1_000), ("o2", "re_1", 500)], 7_500),
        # Listed under its receipt: the listing counts it, we do not count it again.
        ([("re_1", GOOD, 1_000)], {}, [("o1", "re_1", 1_000)], 8_000),
        # Listed under its marker, its answer lost: the same.
        ([("re_1", GOOD, 1_000)], {"re_1": "o1"}, [("o1", None, 1_000)], 8_000),
        # Somebody else's effect and an operation of ours that is not there yet: both count.
        ([("re_1", GOOD, 1_000)], {"re_1": "o9"}, [("o1", None, 1_000)], 7_000),
        ([("re_1", GOOD, 1_000)], {}, [("o1", None, 1_000)], 7_000),
        # Void at the provider while we still hold it good: it is in the listing, and takes nothing.
        ([("re_1", VOID, 1_000)], {}, [("o1", "re_1", 1_000)], 9_000),
        # A marker on a receipt that is not listed says nothing.
        ([], {"re_1": "o1"}, [("o1", None, 1_000)], 8_000),
        # Two pages overlapped.
        ([("re_1", GOOD, 1_000), ("re_1", GOOD, 1_000)], {}, [], 8_000),
        ([("re_1", VOID, 1_000), ("re_1", GOOD, 1_000)], {}, [], 8_000),
        # Two effects of one operation are two effects.
        ([("re_1", GOOD, 1_000), ("re_2", GOOD, 1_000)], {"re_1": "o1", "re_2": "o1"}, [("o1", None, 1_000)], 7_000),
        ([("re_1", GOOD, 9_000)], {}, [("o1", None, 1)], -1),
    ],
)
def test_what_is_left_on_the_target(effects: Any, markers: dict[str, str], reserving: Any, left: int) -> None:
    listed = [ListedEffect(*effect) for effect in effects]
    ours = [Reserving(*one) for one in reserving]
    assert policy.remaining_minor(9_000, listed, markers, ours) == left


# People


@pytest.mark.parametrize(
    ("person", "kid", "changes", "rule"),
    [
        ("nobody", "", {}, "person_unknown"),
        ("gone", "", {}, "person_revoked"),
        ("alice", "alice-0", {}, "key_revoked"),
        ("alice", "bob-1", {}, "key_unknown"),
        ("alice", "", {"actor": "alice"}, "own_proposal"),
        ("alice", "", {"requested_by": "alice"}, "own_proposal"),
        ("olga", "", {}, "role_missing"),
        ("erin", "", {}, "role_missing"),
        ("frank", "", {}, "role_missing"),
        ("dave", "", {}, "limit_exceeded"),
        ("bob", "", {"amount_minor": 1_501}, "limit_exceeded"),
        ("erin", "", {"action": "payout"}, "action_not_allowed"),
        ("alice", "", {"action": "mail", "amount_minor": None, "currency": None}, "role_missing"),
    ],
)
def test_who_may_not_approve(person: str, kid: str, changes: dict[str, Any], rule: str) -> None:
    assert refusal(policy.may_approve, DOCUMENT, person, replace(OPERATION, **changes), kid) == rule


def test_who_may_approve() -> None:
    policy.may_approve(DOCUMENT, "alice", OPERATION, "alice-1")
    policy.may_approve(DOCUMENT, "bob", OPERATION)
    policy.may_approve(DOCUMENT, "erin", MAILING)


def test_the_highest_limit_of_several_counts() -> None:
    bob = DOCUMENT.people[1]
    more = bob.model_copy(update={"roles": (*bob.roles, bob.roles[0].model_copy(update={"limit_minor": 5_000}))})
    policy.may_approve(DOCUMENT.model_copy(update={"people": (more,)}), "bob", replace(OPERATION, amount_minor=5_000))


def test_a_decline_needs_the_role_but_no_limit_and_no_distance() -> None:
    policy.may_decline(DOCUMENT, "bob", replace(OPERATION, amount_minor=50_000, requested_by="bob"), "bob-1")
    policy.may_decline(DOCUMENT, "dave", OPERATION)
    assert refusal(policy.may_decline, DOCUMENT, "olga", OPERATION) == "role_missing"
    assert refusal(policy.may_decline, DOCUMENT, "gone", OPERATION) == "person_revoked"


def test_a_withdrawal_is_for_whoever_asked_and_for_operators() -> None:
    policy.may_withdraw(DOCUMENT, "bob", replace(OPERATION, requested_by="bob"))
    policy.may_withdraw(DOCUMENT, "olga", OPERATION, "olga-1")
    policy.may_withdraw(DOCUMENT, "carol", OPERATION)
    assert refusal(policy.may_withdraw, DOCUMENT, "alice", OPERATION) == "role_missing"
    assert refusal(policy.may_withdraw, DOCUMENT, "nobody", OPERATION) == "person_unknown"


def test_operators_operate_their_tenants_only() -> None:
    policy.may_operate(DOCUMENT, "olga", "acme", "olga-1")
    policy.may_operate(DOCUMENT, "carol", "acme")
    policy.may_operate(DOCUMENT, "carol", "*")
    assert refusal(policy.may_operate, DOCUMENT, "olga", "*") == "not_operator"
    assert refusal(policy.may_operate, DOCUMENT, "olga", "other") == "not_operator"
    assert refusal(policy.may_operate, DOCUMENT, "alice", "acme") == "not_operator"
    assert refusal(policy.may_operate, DOCUMENT, "gina", "acme") == "person_revoked"


def test_different_people_are_counted_not_signatures() -> None:
    signed = [Signed("alice", "alice-1"), Signed("alice", "alice-1"), Signed("bob", "bob-1"), Signed("gone", "gone-1")]
    assert policy.approvals_stand(DOCUMENT, OPERATION, signed) == 2
    assert policy.approvals_stand(DOCUMENT, OPERATION, [Signed("alice", "alice-0")]) == 0
    assert policy.approvals_stand(DOCUMENT, replace(OPERATION, requested_by="bob"), signed) == 1
    assert policy.approvals_stand(DOCUMENT, OPERATION, []) == 0
    operators = [
        Signed("olga", "olga-1"),
        Signed("carol", "carol-1"),
        Signed("gina", "gina-1"),
        Signed("olga", "olga-1"),
    ]
    assert policy.operators_stand(DOCUMENT, "acme", operators) == 2
    assert policy.operators_stand(DOCUMENT, "*", operators) == 1


def test_a_rule_that_changed_or_is_gone_is_noticed() -> None:
    assert not policy.policy_changed(DOCUMENT, OPERATION)
    assert policy.policy_changed(DOCUMENT, replace(OPERATION, policy_version="other"))
    assert policy.policy_changed(DOCUMENT.model_copy(update={"rules": (MAIL,)}), OPERATION)
    stricter = REFUND.model_copy(update={"approvers": 3})
    assert policy.policy_changed(DOCUMENT.model_copy(update={"rules": (stricter, MAIL)}), OPERATION)
