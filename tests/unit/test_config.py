"""The configuration: the example parses, every mistake is named with file and key, and keys only ever get revoked."""

import hashlib
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ledger import config
from ledger.config import Document, from_canonical, parse, rule_version
from ledger.config_check import check, check_succession, diff, problems
from ledger.errors import Refused
from ledger.statement import PublicKeyEntry, key_id, public_x

EXAMPLE = Path(__file__).parents[2] / "config"


def x_of(seed: str) -> str:
    return public_x(Ed25519PrivateKey.from_private_bytes(seed.encode().ljust(32, b"_")))


def key(kid: str, seed: str = "", **more: Any) -> dict[str, Any]:
    return {"kid": kid, "x": x_of(seed or kid), **more}


RULE: dict[str, Any] = {
    "tenant": "acme",
    "action": "refund",
    "currency": "eur",
    "max_amount_minor": 50_000,
    "approvers": 1,
    "role": "refunds",
    "waive_up_to_minor": 2_000,
    "waive_total_per_target_minor": 4_000,
    "waive_total_per_actor_day_minor": 20_000,
    "approval_lifetime_seconds": 3600,
    "review_after_seconds": 3600,
    "statement_lifetime_seconds": 3600,
}
MAIL: dict[str, Any] = {
    **{name: value for name, value in RULE.items() if not name.endswith("_minor") and name != "currency"},
    "action": "mail",
    "approvers": 0,
    "role": "writers",
}
ROLE: dict[str, Any] = {"tenant": "acme", "role": "refunds", "limit_minor": 50_000, "currency": "eur"}
CONTENT: dict[str, Any] = {
    "ledger": {"name": "ledger-test"},
    "bindings": [
        {"tenant": "acme", "provider": "stripe", "account": "acct_1", "livemode": False, "secret": "stripe_acme"},
    ],
    "rules": [RULE, MAIL],
    "grants": [
        {**key("bot-1"), "name": "bot", "tenant": "acme", "actors": ["bot"], "actions": ["refund", "mail"]},
    ],
    "people": [
        {"name": "alice", "keys": [key("alice-1"), key("alice-2")], "roles": [ROLE]},
        {"name": "bob", "keys": [key("bob-1")], "roles": [ROLE, {"tenant": "acme", "role": "writers"}]},
        {"name": "olga", "keys": [key("olga-1")], "operator_of": ["*"]},
        {"name": "oscar", "keys": [key("oscar-1")], "operator_of": ["*"]},
    ],
}


def document(change: Any = None) -> Document:
    """The document above, after `change` has altered a copy of its plain content."""
    content = Document.model_validate(CONTENT).model_dump(mode="json")
    if change is not None:
        change(content)
    return Document.model_validate(content).in_order()


def setting(path: str, value: Any) -> Any:
    """A change: sets what the dotted path names; a `+` at its end appends to the list there."""

    def change(content: Any) -> None:
        *steps, last = [int(step) if step.isdigit() else step for step in path.split(".")]
        for step in steps:
            content = content[step]
        if last == "+":
            content.append(value)
        else:
            content[last] = value

    return change


def removing(section: str, index: int) -> Any:
    return lambda content: content[section].pop(index)


def refusal(call: Any, *args: Any) -> Refused:
    with pytest.raises(Refused) as refused:
        call(*args)
    assert str(refused.value)
    return refused.value


def example() -> dict[str, str]:
    return {name: (EXAMPLE / name).read_text() for name in config.FILES}


# Reading


def test_the_example_parses_and_fits_together() -> None:
    read = parse(example())
    assert list(problems(read)) == []
    assert read.tenants == ["acme"]
    assert read.binding("acme", "stripe").account == "acct_acme"
    assert read.rule_for("acme", "refund", "eur").max_amount_minor == 50_000
    assert [person.name for person in read.people] == ["alice", "bob", "olga", "oscar"]


def test_the_canonical_form_reads_back_and_is_digested() -> None:
    read = parse(example())
    assert from_canonical(read.to_canonical()) == read
    assert read.digest() == hashlib.sha256(read.to_canonical()).digest()


def test_order_and_comments_do_not_change_the_version() -> None:
    files = example()
    blocks = files["people.toml"].split("[[people]]")
    files["people.toml"] = "# turned round\n" + "[[people]]".join([blocks[0], *reversed(blocks[1:])])
    assert parse(files).digest() == parse(example()).digest()


@pytest.mark.parametrize("name", config.FILES)
def test_a_missing_file_is_named(name: str) -> None:
    files = example()
    del files[name]
    refused = refusal(parse, files)
    assert (refused.rule, refused.field) == ("config_file_missing", name)


@pytest.mark.parametrize("name", config.FILES)
def test_a_file_that_is_no_toml_is_named_with_the_line(name: str) -> None:
    refused = refusal(parse, {**example(), name: "a = 1\nb = = 2\n"})
    assert (refused.rule, refused.field) == ("config_not_toml", name)
    assert "line 2" in str(refused)


def test_a_section_in_the_wrong_file_is_named() -> None:
    files = example()
    refused = refusal(parse, {**files, "policy.toml": files["policy.toml"] + "\n[[grants]]\n"})
    assert (refused.rule, refused.field) == ("config_misplaced", "policy.toml:grants")


@pytest.mark.parametrize(
    ("name", "old", "new", "field"),
    [
        ("policy.toml", "approvers = 1", "approver = 1", "policy.toml:rules[0].approvers"),
        ("policy.toml", "approvers = 1", "approvers = 1.0", "policy.toml:rules[0].approvers"),
        ("policy.toml", "approvers = 1", "approvers = true", "policy.toml:rules[0].approvers"),
        ("policy.toml", "approvers = 1", "approvers = 11", "policy.toml:rules[0].approvers"),
        ("policy.toml", "= 500_00", '= "50000"', "policy.toml:rules[0].max_amount_minor"),
        ("policy.toml", "= 500_00", "= -1", "policy.toml:rules[0].max_amount_minor"),
        ("policy.toml", '"eur"', '"EUR"', "policy.toml:rules[0].currency"),
        ("policy.toml", "3_600", "5", "policy.toml:rules[0].statement_lifetime_seconds"),
        ("policy.toml", "evidence_required = true", "evidence_required = 1", "policy.toml:rules[0].evidence_required"),
        ("policy.toml", "evidence_required", "evidence_requird", "policy.toml:rules[0].evidence_requird"),
        ("tenants.toml", "livemode = false", 'livemode = "false"', "tenants.toml:bindings[0].livemode"),
        ("tenants.toml", '"acme"', '"Acme"', "tenants.toml:bindings[0].tenant"),
        ("tenants.toml", '"stripe_acme"', '"sk_test_4eC39"', "tenants.toml:bindings[0].secret"),
        ("tenants.toml", '"stripe_acme"', '"rk_live_abc"', "tenants.toml:bindings[0]"),
        ("grants.toml", 'name = "support-bot"', 'name = "Support"', "grants.toml:grants[0].name"),
        ("people.toml", 'operator_of = ["*"]', 'operator_of = "*"', "people.toml:people[2].operator_of"),
        ("people.toml", 'name = "bob"', 'name = "bob\\n"', "people.toml:people[1].name"),
    ],
)
def test_a_mistake_is_named_with_file_and_key(name: str, old: str, new: str, field: str) -> None:
    files = example()
    assert old in files[name]
    refused = refusal(parse, {**files, name: files[name].replace(old, new, 1)})
    assert (refused.rule, refused.field) == ("config_invalid", field)
    assert str(refused).startswith(f"{name}: ")


def test_a_secret_written_into_the_configuration_is_not_repeated_in_the_refusal() -> None:
    files = example()
    files["tenants.toml"] = files["tenants.toml"].replace("stripe_acme", "rk_live_abc")
    assert "rk_live_abc" not in str(refusal(parse, files))


@pytest.mark.parametrize(
    ("stored", "rule"),
    [
        (b"", "config_invalid"),
        (b"[]", "config_invalid"),
        (b"{}", "config_invalid"),
        (document().to_canonical() + b" ", "config_not_canonical"),
        (Document.model_validate({**CONTENT, "rules": [MAIL, RULE][::-1]}).to_canonical(), "config_not_canonical"),
    ],
)
def test_stored_bytes_must_be_canonical(stored: bytes, rule: str) -> None:
    assert refusal(from_canonical, stored).rule == rule


# Looking up


def test_what_is_not_configured_is_refused() -> None:
    known = document()
    assert refusal(known.binding, "other", "stripe").rule == "tenant_unknown"
    assert refusal(known.binding, "acme", "paypal").rule == "provider_not_bound"
    assert refusal(known.rule_for, "other", "refund", "eur").rule == "tenant_unknown"
    assert refusal(known.rule_for, "acme", "payout", "eur").rule == "action_not_allowed"
    assert refusal(known.rule_for, "acme", "refund", "usd").rule == "currency_not_allowed"
    assert refusal(known.rule_for, "acme", "refund", None).rule == "currency_not_allowed"
    assert refusal(known.rule_for, "acme", "mail", "eur").rule == "currency_not_allowed"
    assert (known.person("nobody"), known.grant("nobody")) == (None, None)


def test_what_is_configured_is_found() -> None:
    known = document()
    assert known.rule_for("acme", "mail", None).action == "mail"
    assert known.rule_for("acme", "refund", "eur").currency == "eur"
    alice, bot = known.person("alice"), known.grant("bot-1")
    assert alice is not None and alice.name == "alice"
    assert bot is not None and bot.name == "bot"


def test_the_keys_say_who_holds_them_and_whether_they_are_revoked() -> None:
    def change(content: Any) -> None:
        content["people"][0]["keys"][0]["revoked"] = True
        content["people"][1]["revoked"] = True

    keys = document(change).person_keys()
    revoked = {"alice-1": True, "alice-2": False, "bob-1": True, "olga-1": False, "oscar-1": False}
    assert {kid: entry.revoked for kid, entry in keys.items()} == revoked
    assert keys["alice-2"] == PublicKeyEntry("alice-2", x_of("alice-2"), "alice")
    assert document().grant_keys() == {"bot-1": PublicKeyEntry("bot-1", x_of("bot-1"), "bot", False, "acme")}


def test_the_rule_version_changes_with_this_rule_only() -> None:
    version = rule_version(document(), "acme", "refund", "eur")
    assert len(version) == 64
    other = document(setting("rules.1.approvers", 1))
    assert rule_version(other, "acme", "refund", "eur") == version
    assert rule_version(other, "acme", "mail", None) != rule_version(document(), "acme", "mail", None)
    for field, value in (("approvers", 2), ("max_amount_minor", 1), ("reserves", False), ("role", "other")):
        changed = document(setting(f"rules.0.{field}", value))
        assert rule_version(changed, "acme", "refund", "eur") != version
    assert refusal(rule_version, document(), "acme", "payout", "eur").rule == "action_not_allowed"


# Fitting together

WEAK = "AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"


@pytest.mark.parametrize(
    ("path", "value", "rule"),
    [
        ("bindings.+", CONTENT["bindings"][0], "provider_twice"),
        ("rules.+", RULE, "rule_twice"),
        ("people.+", CONTENT["people"][0], "person_twice"),
        ("people.0.keys.+", key("bob-1", "fresh"), "kid_twice"),
        ("grants.0.kid", "alice-1", "kid_twice"),
        ("grants.0.x", x_of("alice-1"), "key_shared"),
        ("people.0.keys.+", key("alice-3", "bob-1"), "key_shared"),
        ("people.0.keys.0.x", "AAAA", "key_malformed"),
        ("grants.0.x", WEAK, "key_weak"),
        ("rules.0.tenant", "other", "tenant_unknown"),
        ("grants.0.tenant", "other", "tenant_unknown"),
        ("people.2.operator_of.+", "other", "tenant_unknown"),
        ("people.0.roles.+", {**ROLE, "tenant": "other"}, "tenant_unknown"),
        ("grants.0.actions.+", "payout", "action_not_allowed"),
        ("grants.0.max_amount_minor", 5, "limit_malformed"),
        ("grants.0.currency", "eur", "limit_malformed"),
        ("grants.0.currency", "xxx", "limit_malformed"),
        ("people.0.roles.+", {**ROLE, "currency": ""}, "limit_malformed"),
        ("people.0.roles.+", {**ROLE, "limit_minor": None}, "limit_malformed"),
        ("people.0.roles.+", {**ROLE, "currency": "twd"}, "limit_malformed"),
        ("rules.0.currency", "twd", "currency_unknown"),
        ("rules.0.max_amount_minor", 0, "maximum_missing"),
        ("rules.0.approvers", 0, "approvers_missing"),
        ("rules.0.currency", "", "currency_missing"),
        ("rules.1.waive_total_per_actor_day_minor", 5, "currency_missing"),
        ("rules.0.waive_up_to_minor", 50_001, "waiver_above_maximum"),
        ("rules.0.waive_total_per_target_minor", 1_999, "waiver_totals"),
        ("rules.0.waive_total_per_actor_day_minor", 0, "waiver_totals"),
        ("rules.0.waive_up_to_minor", 0, "waiver_totals"),
        ("rules.0.approvers", 3, "people_too_few"),
        ("rules.0.role", "nobody-holds-it", "people_too_few"),
        ("rules.0.max_amount_minor", 50_001, "people_too_few"),
        ("rules.1.role", "nobody-holds-it", "people_too_few"),
        ("people.1.revoked", True, "people_too_few"),
        ("people.1.keys.0.revoked", True, "people_too_few"),
        ("people.2.operator_of", [], "operators_too_few"),
        ("people.2.operator_of", ["acme"], "operators_too_few"),
        ("people.2.revoked", True, "operators_too_few"),
    ],
)
def test_what_does_not_fit_together_is_found(path: str, value: Any, rule: str) -> None:
    wrong = document(setting(path, value))
    found = [problem.rule for problem in problems(wrong)]
    assert rule in found
    assert refusal(check, wrong).rule == found[0]


def test_a_document_that_fits_together_passes() -> None:
    check(document())
    check(document(lambda content: [person.update(operator_of=["acme"]) for person in content["people"][2:]]))


def test_one_good_key_and_the_highest_limit_are_enough_to_approve() -> None:
    def change(content: Any) -> None:
        content["rules"][0]["approvers"] = 2
        content["people"][0]["keys"][0]["revoked"] = True
        content["people"][0]["roles"].append({**ROLE, "limit_minor": 5})

    check(document(change))


def test_a_single_total_without_a_waiver_is_found() -> None:
    def change(content: Any) -> None:
        content["rules"][0].update(waive_up_to_minor=0, waive_total_per_target_minor=0)

    assert refusal(check, document(change)).rule == "waiver_totals"


# From version to version


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (setting("ledger.name", "another"), "ledger_renamed"),
        (removing("people", 0), "key_deleted"),
        (removing("grants", 0), "key_deleted"),
        (lambda content: content["people"][0]["keys"].pop(), "key_deleted"),
        (setting("people.0.keys.0.x", x_of("fresh")), "key_changed"),
        (setting("grants.0.x", x_of("fresh")), "key_changed"),
        (setting("people.0.name", "alicia"), "key_changed"),
        (setting("grants.0.tenant", "other"), "key_changed"),
        (setting("people.0.keys.0.revoked", False), "key_unrevoked"),
    ],
)
def test_keys_are_never_deleted_changed_or_brought_back(change: Any, rule: str) -> None:
    def both(content: Any) -> None:
        content["people"][0]["keys"][0]["revoked"] = True
        change(content)

    before = document(setting("people.0.keys.0.revoked", True))
    assert refusal(check_succession, before, document(both)).rule == rule


@pytest.mark.parametrize(
    "change",
    [
        None,
        setting("people.0.keys.0.revoked", True),
        setting("grants.0.revoked", True),
        setting("people.0.revoked", True),
        setting("people.0.keys.+", key("alice-3")),
        setting("rules", []),
        setting("bindings.0.account", "acct_2"),
    ],
)
def test_anything_else_may_change(change: Any) -> None:
    check_succession(document(), document(change))


def test_the_difference_is_told_in_sentences() -> None:
    def change(content: Any) -> None:
        content["rules"][0]["max_amount_minor"] = 60_000
        content["people"][0]["keys"][0]["revoked"] = True
        content["people"][1]["revoked"] = True
        content["grants"][0]["actors"] = []
        content["people"].append({"name": "zoe", "keys": [key("zoe-1")]})
        content["bindings"] = []

    told = diff(document(), document(change))
    assert told[0] == "binding acme stripe is removed"
    assert "rule acme refund eur: max_amount_minor changes from 50000 to 60000" in told
    assert "key alice-1 of alice: revoked changes from false to true" in told
    assert "person bob: revoked changes from false to true" in told
    assert 'grant bot-1: actors changes from ["bot"] to []' in told
    assert sum(sentence.startswith(("person zoe is added", "key zoe-1 of zoe is added")) for sentence in told) == 2
    assert len(told) == 7


def test_no_difference_is_nothing_to_tell() -> None:
    assert diff(document(), document()) == []


def test_kids_of_the_example_carry_their_thumbprints() -> None:
    read = parse(example())
    assert all(one.kid == key_id(one.kid[: -len("-12345678")], one.x) for one, _ in read.all_keys())
