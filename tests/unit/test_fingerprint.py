"""Canonical bytes, names, digests, the sheet: one form for one value, a refusal with a path for everything else."""

import enum
import hashlib
import json
import uuid
from collections import OrderedDict
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ledger import fingerprint as fp
from ledger.errors import Refused

NAMESPACE = uuid.UUID("8f4d7c1e-0000-4000-8000-000000000001")


def refusal(call: Any, *args: Any, **kwargs: Any) -> tuple[str, str]:
    with pytest.raises(Refused) as refused:
        call(*args, **kwargs)
    assert str(refused.value)
    return refused.value.rule, refused.value.field


def some_identity(**changes: Any) -> dict[str, Any]:
    operation = fp.operation_id(NAMESPACE, "acme", "order-1/refund")
    fields: dict[str, Any] = {
        "operation_id": operation,
        "tenant": "acme",
        "business_key": "order-1/refund",
        "actor": "support-bot",
        "requested_by": "carol",
        "action": "refund",
        "provider": "stripe",
        "account": "acct_acme",
        "livemode": False,
        "target": "ch_1",
        "arguments": {"amount": 1500, "note": "späte Lieferung"},
        "amount_minor": 1500,
        "currency": "eur",
        "expected_version": None,
        "evidence": [{"kind": "ticket", "reference": "T-1"}],
        "distinct_from": [],
        "depends_on": [],
        "supersedes": None,
        "equivalence_key": "ch_1/1500/eur",
        "policy_version": "ab" * 32,
        "config_version": 3,
        "request_digest": b"\x01" * 32,
        "idempotency_key": fp.idempotency_key(operation),
        "approval_expires_at": 1_800_000_000,
    }
    return fp.identity(**{**fields, **changes})


SOME = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # shared machines are slow at times
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-fp.MAX_INTEGER, fp.MAX_INTEGER) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


@settings(SOME, max_examples=80)
@given(JSON)
def test_canonical_bytes_read_back_as_the_value(value: object) -> None:
    written = fp.canonical_bytes(value)
    again = json.loads(written)
    assert again == value
    assert fp.canonical_bytes(again) == written


@settings(SOME, max_examples=40)
@given(st.dictionaries(TEXT, JSON, max_size=5))
def test_the_order_of_keys_does_not_matter(value: dict[str, object]) -> None:
    assert fp.canonical_bytes(dict(reversed(value.items()))) == fp.canonical_bytes(value)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ({"b": 1, "a": [True, None, -5]}, b'{"a":[true,null,-5],"b":1}'),
        ("é", b'"\xc3\xa9"'),
        ("e\u0301", b'"e\xcc\x81"'),
        ("\u2028\n", b'"\xe2\x80\xa8\\n"'),
        # RFC 8785 sorts by UTF-16 units: U+1F600 (a surrogate pair) comes before U+FB01.
        ({"\ufb01": 1, "\U0001f600": 2}, '{"\U0001f600":2,"\ufb01":1}'.encode()),
    ],
)
def test_known_canonical_forms(value: object, written: bytes) -> None:
    assert fp.canonical_bytes(value) == written


class _Word(enum.StrEnum):
    A = "a"


class _Text(str):
    __slots__ = ()


class _List(list[Any]):
    __slots__ = ()


class _Number(enum.IntEnum):
    ONE = 1


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "rule", "field"),
    [
        (1.0, "value_type", "$"),
        ({"a": [0, 1.5]}, "value_type", "$.a[1]"),
        ({"a": float("nan")}, "value_type", "$.a"),
        ((1,), "value_type", "$"),
        ({"a": (1,)}, "value_type", "$.a"),
        (b"a", "value_type", "$"),
        ({1}, "value_type", "$"),
        (_Word.A, "value_type", "$"),
        (_Number.ONE, "value_type", "$"),
        (_Text("a"), "value_type", "$"),
        ({"a": OrderedDict(b=1)}, "value_type", "$.a"),
        ([_List()], "value_type", "$[0]"),
        (uuid.uuid4(), "value_type", "$"),
        ({"a": {1: 2}}, "key_type", "$.a"),
        ({"a": {_Word.A: 2}}, "key_type", "$.a"),
        ({None: 2}, "key_type", "$"),
        ({"a": 2**53}, "integer_too_large", "$.a"),
        (-(2**53), "integer_too_large", "$"),
        (["\ud800"], "text_not_unicode", "$[0]"),
        (["a\0b"], "text_nul", "$[0]"),
        ({"\udfff": 1}, "text_not_unicode", "$"),
        (nested(18), "too_deep", "$" + "[0]" * 17),
        ("x" * 65_536, "too_large", "$"),
        ("\x01" * 20_000, "too_large", "$"),  # 20,000 characters, but 120,000 bytes when escaped
        ([0] * 70_000, "too_large", "$[65534]"),
        ({"\u202e": 1.0}, "value_type", "$.⟦U+202E⟧"),
    ],
)
def test_what_has_no_canonical_form_is_refused_with_its_path(value: object, rule: str, field: str) -> None:
    assert refusal(fp.canonical_bytes, value) == (rule, field)


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    assert refusal(fp.canonical_bytes, loop)[0] == "too_deep"


def test_the_limits_themselves_pass() -> None:
    assert fp.canonical_bytes(nested(17)) == b"[" * 17 + b"]" * 17
    assert len(fp.canonical_bytes("x" * 65_534)) == fp.MAX_BYTES
    assert fp.canonical_bytes([fp.MAX_INTEGER, -fp.MAX_INTEGER])
    assert len(fp.canonical_bytes("x" * 70_000, max_bytes=80_000)) == 70_002


def test_the_operation_id_depends_on_namespace_tenant_and_key_only() -> None:
    first = fp.operation_id(NAMESPACE, "acme", "order-1")
    assert first == fp.operation_id(NAMESPACE, "acme", "order-1")
    assert first.version == 5
    pairs = [("acme2", "order-1"), ("acme", "order-2"), ("acm", "eorder-1")]
    others = {fp.operation_id(NAMESPACE, *pair) for pair in pairs}
    assert len(others | {first, fp.operation_id(uuid.UUID(int=1), "acme", "order-1")}) == 5


def test_the_operation_id_never_changes_between_releases() -> None:
    """The number was computed once: a restored backup must derive the same id and the same idempotency key."""
    known = fp.operation_id(NAMESPACE, "acme", "order-1")
    assert fp.idempotency_key(known) == "effect-b7ac88f0-edec-5caf-b422-26fa648bb804"


@pytest.mark.parametrize("tenant", ["", "Acme", "a" * 41, "acme ", "acme\n", "a_b", "a/b", None, 1, b"acme", "аcme"])
def test_a_tenant_that_is_no_name_is_refused(tenant: object) -> None:
    assert refusal(fp.check_name_fields, tenant, "k") == ("tenant_malformed", "tenant")


@pytest.mark.parametrize("key", ["", "k" * 121, "a b", "a\n", " a", "a:b", "é", "a\u200b", None, 1])
def test_a_business_key_that_is_no_name_is_refused(key: object) -> None:
    assert refusal(fp.check_name_fields, "acme", key) == ("business_key_malformed", "business_key")
    assert refusal(fp.operation_id, NAMESPACE, "acme", key)[0] == "business_key_malformed"


def test_names_at_their_limits_pass() -> None:
    fp.check_name_fields("a" * 40, "A9._/-" * 20)


@pytest.mark.parametrize(
    ("value", "rule"),
    [
        (None, "text_type"),
        (5, "text_type"),
        (_Word.A, "text_type"),
        ("", "text_empty"),
        ("x" * 11, "text_too_long"),
        ("a\nb", "text_hidden"),
        ("a\tb", "text_hidden"),
        ("a\x7f", "text_hidden"),
        ("\x1b[2J", "text_hidden"),
        ("a\u202eb", "text_hidden"),
        ("a\u2066b", "text_hidden"),
        ("a\u200bb", "text_hidden"),
        ("a\u200db", "text_hidden"),
        ("\ufeffa", "text_hidden"),
        ("a\u00adb", "text_hidden"),
        ("a\u2028b", "text_hidden"),
        ("a\u3164b", "text_hidden"),
        ("a\ufe0fb", "text_hidden"),
        ("a\U000e0041", "text_hidden"),
        ("\ud800", "text_hidden"),
    ],
)
def test_text_that_cannot_be_seen_or_held_is_refused(value: object, rule: str) -> None:
    assert refusal(fp.check_text, value, "note", 10) == (rule, "note")


@pytest.mark.parametrize("value", ["a", "ä ß 漢字", "x" * 10, "‘q’ €1"])
def test_text_that_can_be_seen_passes(value: str) -> None:
    fp.check_text(value, "note", 10)


def test_empty_text_passes_where_it_may_be_empty() -> None:
    fp.check_text("", "note", 10, empty=True)


@pytest.mark.parametrize(
    ("evidence", "rule", "field"),
    [
        ({}, "evidence_malformed", "evidence"),
        ([{"a": "b"}] * 21, "evidence_malformed", "evidence"),
        (["T-1"], "evidence_malformed", "evidence[0]"),
        ([{}], "evidence_malformed", "evidence[0]"),
        ([{"a": "b"}, {f"k{i}": "v" for i in range(9)}], "evidence_malformed", "evidence[1]"),
        ([{"a b": "c"}], "evidence_malformed", "evidence[0]"),
        ([{1: "c"}], "evidence_malformed", "evidence[0]"),
        ([{"a": 1}], "text_type", "evidence[0].a"),
        ([{"a": "b\u202ec"}], "text_hidden", "evidence[0].a"),
        ([{"a": "x" * 501}], "text_too_long", "evidence[0].a"),
    ],
)
def test_evidence_that_is_no_list_of_references_is_refused(evidence: object, rule: str, field: str) -> None:
    assert refusal(fp.check_evidence, evidence) == (rule, field)


def test_evidence_of_flat_references_passes() -> None:
    fp.check_evidence([{"kind": "mail", "reference": "<id@example>", "sha256": "ab" * 32}] * 20)
    fp.check_evidence([{f"part-{number}": "v" for number in range(8)}])
    fp.check_evidence([])


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ä 漢", "plain ä 漢"),
        ("a\u202eb", "a⟦U+202E⟧b"),
        ("a\nb\x1b", "a⟦U+000A⟧b⟦U+001B⟧"),
        ("⟦U+202E⟧", "⟦U+27E6⟧U+202E⟧"),
        ("\U000e0041", "⟦U+E0041⟧"),
    ],
)
def test_unseen_characters_are_written_out(text: str, shown: str) -> None:
    assert fp.visible(text) == shown


@settings(SOME, max_examples=60)
@given(st.text(max_size=12), st.text(max_size=12))
def test_two_texts_are_never_shown_alike(one: str, other: str) -> None:
    assert (fp.visible(one) == fp.visible(other)) == (one == other)


def asked(**changes: Any) -> bytes:
    content: dict[str, Any] = {"action": "refund", "target": "pi_1", "arguments": {"amount": 1500}}
    content |= {
        "evidence": [{"kind": "ticket"}],
        "distinct_from": [],
        "expected_version": None,
        "depends_on": [],
        "supersedes": None,
    }
    return fp.request_digest(**{**content, **changes})


def test_the_request_digest_changes_with_each_part_of_what_the_caller_asks() -> None:
    digests = {
        asked(),
        asked(action="cancel"),
        asked(target="ch_1"),
        asked(arguments={"amount": 1501}),
        asked(evidence=[]),
        asked(distinct_from=["x"]),
        asked(expected_version="v1"),
        asked(expected_version=""),
        asked(depends_on=[{"business_key": "order-1", "state": "succeeded"}]),
        asked(supersedes="order-1"),
    }
    assert len(digests) == 10
    assert all(len(digest) == 32 for digest in digests)


def test_the_request_digest_names_the_path_of_what_it_refuses() -> None:
    assert refusal(asked, arguments={"amount": 15.0}) == ("value_type", "$.arguments.amount")


def test_the_fingerprint_is_what_the_database_recomputes() -> None:
    canonical = fp.canonical_bytes(some_identity())
    assert fp.fingerprint(canonical) == hashlib.sha256(b"effect-ledger/operation/v1\n" + canonical).digest()


CHANGED: dict[str, Any] = {"operation_id": uuid.UUID(int=5), "request_digest": b"\x02" * 32}


@pytest.mark.parametrize("field", sorted(fp.IDENTITY_FIELDS))
def test_every_field_of_the_identity_changes_the_fingerprint(field: str) -> None:
    """The value's type does not matter to the digest, so one other value does for almost all."""
    changed = some_identity(**{field: CHANGED.get(field, "another")})
    assert fp.fingerprint(fp.canonical_bytes(changed)) != fp.fingerprint(fp.canonical_bytes(some_identity()))


def test_the_identity_holds_exactly_the_identity_fields() -> None:
    assert some_identity().keys() == fp.IDENTITY_FIELDS


def some_sheet() -> bytes:
    return fp.build_sheet(some_identity(), {"paid_minor": 9000}, [{"business_key": "order-1/other"}], 1_799_999_000, 2)


def test_the_sheet_sets_apart_what_we_read_and_what_the_agent_claims() -> None:
    parts = fp.read_sheet(some_sheet())
    assert parts["read_from_provider_by_us"] == {"paid_minor": 9000}
    assert parts["claimed_by_agent"]["requested_by"] == "carol"
    assert set(parts["claimed_by_agent"]) == set(fp.CLAIMED_BY_AGENT)
    assert parts["competing_proposals"] == [{"business_key": "order-1/other"}]
    assert (parts["made_at"], parts["people_needed"], parts["kind"]) == (1_799_999_000, 2, fp.SHEET_KIND)
    assert parts["operation"] == some_identity()
    assert parts["fingerprint"] == fp.fingerprint(fp.canonical_bytes(some_identity())).hex()
    assert fp.sheet_digest(some_sheet()) == hashlib.sha256(some_sheet()).digest()


def altered(path: list[str], value: Any) -> bytes:
    parts = json.loads(some_sheet())
    inner = parts
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return fp.canonical_bytes(parts)


@pytest.mark.parametrize(
    "sheet",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b"\xff",
        b"[" * 100_000,
        some_sheet() + b"\n",
        some_sheet().replace(b'"made_at":', b'"made_at": '),
        altered(["kind"], "other"),
        altered(["more"], 1),
        altered(["operation", "more"], 1),
        altered(["operation"], {"tenant": "acme"}),
        altered(["operation"], None),
        altered(["claimed_by_agent", "requested_by"], "alice"),
        altered(["claimed_by_agent"], {}),
        json.dumps({**json.loads(some_sheet()), "made_at": 1.5}).encode(),
        b" " * (fp.MAX_SHEET + 1),
    ],
)
def test_a_sheet_that_build_sheet_would_not_make_is_refused(sheet: bytes) -> None:
    assert refusal(fp.read_sheet, sheet) == ("sheet_malformed", "sheet")


def test_a_sheet_needs_the_whole_identity_and_plain_facts() -> None:
    part = {key: value for key, value in some_identity().items() if key != "tenant"}
    assert refusal(fp.build_sheet, part, {}, [], 1, 1) == ("sheet_malformed", "operation")
    assert refusal(fp.build_sheet, some_identity(), {"paid": 1.5}, [], 1, 1)[1] == "$.read_from_provider_by_us.paid"


def test_whatever_could_be_recorded_can_be_put_on_a_sheet() -> None:
    deepest, largest = some_identity(arguments={"a": nested(15)}), some_identity(arguments={"a": "x" * 64_000})
    for identity in (deepest, largest):
        assert fp.canonical_bytes(identity)
        assert fp.read_sheet(fp.build_sheet(identity, {}, [], 1, 1))["operation"] == identity
    assert refusal(fp.canonical_bytes, some_identity(arguments={"a": nested(16)}))[0] == "too_deep"


@pytest.mark.parametrize("raw", [b"", b"a", b"ab", b"abc", bytes(range(256))])
def test_base64url_has_one_spelling(raw: bytes) -> None:
    text = fp.to_base64url(raw)
    assert "=" not in text
    assert fp.from_base64url(text, 256) == raw


@pytest.mark.parametrize("text", ["YQ==", "YR", "Y", "Y+", "YQ\n", "é", "YWFhYQ"])
def test_any_other_spelling_and_anything_too_long_is_none(text: str) -> None:
    assert fp.from_base64url(text, 3) is None
