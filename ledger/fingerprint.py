"""Canonical bytes of what the ledger stores and people sign, and the names, digests and keys derived from them.

1. One value has one canonical form (RFC 8785) and only plain JSON without fractions has a canonical form at all.
2. Strings are compared byte by byte: nothing is trimmed, case-folded or normalised; what does not fit is refused.
3. Every digest has a versioned prefix, so that the digest of one kind of thing can never stand for another kind.
4. Operation id and idempotency key depend on nothing but this ledger's namespace, the tenant and the business key.
"""

import base64
import hashlib
import json
import re
import unicodedata
import uuid
from typing import Any
from uuid import UUID

import rfc8785

from ledger.errors import Refused

FINGERPRINT_PREFIX = b"effect-ledger/operation/v1\n"  # Postgres recomputes sha256(prefix || canonical) in a check
SHEET_KIND = "effect-ledger/sheet/v1"
REQUEST_PREFIX = b"effect-ledger/request/v1\n"

MAX_DEPTH = 16
MAX_BYTES = 64 * 1024
MAX_SHEET = 256 * 1024  # an operation twice (whole, and what the agent claims), our facts, and competing proposals
MAX_INTEGER = 2**53 - 1  # beyond it two JSON readers may see two numbers

_FIELDS = """
operation_id tenant business_key actor requested_by action provider account livemode target arguments amount_minor
currency expected_version evidence distinct_from depends_on supersedes equivalence_key policy_version config_version
request_digest idempotency_key approval_expires_at
"""
IDENTITY_FIELDS: frozenset[str] = frozenset(_FIELDS.split())

# What the sheet sets apart because nobody has checked it.
CLAIMED_BY_AGENT = ("requested_by", "arguments", "evidence", "distinct_from")

_TENANT = re.compile(r"[a-z0-9-]{1,40}")
_BUSINESS_KEY = re.compile(r"[A-Za-z0-9._/-]{1,120}")
_BASE64URL = re.compile(r"[A-Za-z0-9_-]*")
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]{1,40}")

# Invisible or direction-changing characters that Unicode does not put into its control and format categories:
# grapheme joiner, Hangul fillers, Khmer inherent vowels, Mongolian and other variation selectors, blank braille.
_HIDDEN = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0") | frozenset(
    map(chr, (*range(0x180B, 0x1810), *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0)))
)
# Control, format (bidi, zero-width), surrogate, line separator, paragraph separator.
_UNSEEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def canonical_bytes(value: object, *, max_bytes: int = MAX_BYTES, max_depth: int = MAX_DEPTH) -> bytes:
    """The one canonical form of a plain JSON value: equal values give equal bytes, which read back as the value.

    Refused, with the path of the offending part as field: `value_type` (float, tuple, bytes, enum, any subclass),
    `key_type`, `integer_too_large`, `text_not_unicode` (lone surrogate), `text_nul`, `too_deep` (over `max_depth` levels),
    `too_large` (over `max_bytes`).
    """
    _gate(value, "$", 0, _Budget(max_bytes, max_depth))
    written = rfc8785.dumps(value)  # type: ignore[arg-type]  # the gate has just proved the type
    if len(written) > max_bytes:
        raise Refused("too_large", f"keep it within {max_bytes} bytes; refer to large content by its digest", field="$")
    return written


def operation_id(namespace: UUID, tenant: str, business_key: str) -> UUID:
    """The id of the one operation for this intent: the same in every copy of this ledger. Refuses bad names.

    The pair is encoded as a JSON array, so that no two pairs can join to the same text.
    """
    check_name_fields(tenant, business_key)
    return uuid.uuid5(namespace, canonical_bytes([tenant, business_key]).decode())


def idempotency_key(operation: UUID) -> str:
    """The one key under which a provider is ever asked for this operation; 43 ASCII characters."""
    return f"effect-{operation}"


def check_name_fields(tenant: object, business_key: object) -> None:
    """Return only if both are well-formed names. Refused: `tenant_malformed`, `business_key_malformed`."""
    if type(tenant) is not str or not _TENANT.fullmatch(tenant):
        raise Refused("tenant_malformed", "give a tenant of 1 to 40 of a-z, 0-9 and -", field="tenant")
    if type(business_key) is not str or not _BUSINESS_KEY.fullmatch(business_key):
        raise Refused(
            "business_key_malformed",
            "give a business key of 1 to 120 of A-Z, a-z, 0-9, . _ / and -, made by code from the intent",
            field="business_key",
        )


def check_text(value: object, field: str, max_length: int, *, empty: bool = False) -> None:
    """Return only for text of 1 (or 0, if `empty`) to `max_length` characters, all of which a person can see.

    Refused: `text_type`, `text_empty`, `text_too_long`, `text_hidden` (control, line break, bidi, zero-width).
    """
    if type(value) is not str:
        raise Refused("text_type", "give text", field=field)
    if not value and not empty:
        raise Refused("text_empty", "give text that is not empty", field=field)
    if len(value) > max_length:
        raise Refused("text_too_long", f"give at most {max_length} characters", field=field)
    hidden = sorted({f"U+{ord(c):04X}" for c in value if _is_unseen(c)})
    if hidden:
        raise Refused("text_hidden", f"remove characters that cannot be seen: {', '.join(hidden[:5])}", field=field)


def check_evidence(evidence: object) -> None:
    """Return only for a list of at most 20 flat references, each of one to eight texts of 500 visible characters.

    Refused: `evidence_malformed`, and what `check_text` refuses.
    """
    if type(evidence) is not list or len(evidence) > 20:
        raise Refused("evidence_malformed", "give evidence as a list of at most 20 references", field="evidence")
    for index, item in enumerate(evidence):
        field = f"evidence[{index}]"
        if type(item) is not dict or not 1 <= len(item) <= 8:
            raise Refused("evidence_malformed", "give each reference as an object of one to eight texts", field=field)
        for key, value in item.items():
            if type(key) is not str or not _PLAIN_KEY.fullmatch(key):
                raise Refused("evidence_malformed", "name its parts with letters, digits, _ and -", field=field)
            check_text(value, f"{field}.{key}", 500)


def request_digest(
    action: str,
    target: str,
    arguments: dict[str, Any],
    evidence: list[dict[str, str]],
    distinct_from: list[str],
    expected_version: str | None,
    depends_on: list[dict[str, str]],
    supersedes: str | None,
) -> bytes:
    """SHA-256 of what the caller asks for and nothing we add: the same key with another digest is another intent.

    Lists count in the order given. Refuses what `canonical_bytes` refuses, with a path like `$.arguments.amount`.
    """
    content = {
        "action": action,
        "target": target,
        "arguments": arguments,
        "evidence": evidence,
        "distinct_from": distinct_from,
        "expected_version": expected_version,
        "depends_on": depends_on,
        "supersedes": supersedes,
    }
    return hashlib.sha256(REQUEST_PREFIX + canonical_bytes(content)).digest()


def identity(
    *,
    operation_id: UUID,
    tenant: str,
    business_key: str,
    actor: str,
    requested_by: str,
    action: str,
    provider: str,
    account: str,
    livemode: bool,
    target: str,
    arguments: dict[str, Any],
    amount_minor: int | None,
    currency: str | None,
    expected_version: str | None,
    evidence: list[dict[str, str]],
    distinct_from: list[str],
    depends_on: list[dict[str, str]],
    supersedes: str | None,
    equivalence_key: str,
    policy_version: str,
    config_version: int,
    request_digest: bytes,
    idempotency_key: str,
    approval_expires_at: int,
) -> dict[str, Any]:
    """Everything that makes the operation what it is, as one plain JSON document: what is fingerprinted and signed.

    `approval_expires_at` is whole seconds since the epoch. Pass the document to `canonical_bytes`; it holds exactly
    `IDENTITY_FIELDS`, and nothing in it ever changes.
    """
    return {
        "operation_id": str(operation_id),
        "tenant": tenant,
        "business_key": business_key,
        "actor": actor,
        "requested_by": requested_by,
        "action": action,
        "provider": provider,
        "account": account,
        "livemode": livemode,
        "target": target,
        "arguments": arguments,
        "amount_minor": amount_minor,
        "currency": currency,
        "expected_version": expected_version,
        "evidence": evidence,
        "distinct_from": distinct_from,
        "depends_on": depends_on,
        "supersedes": supersedes,
        "equivalence_key": equivalence_key,
        "policy_version": policy_version,
        "config_version": config_version,
        "request_digest": request_digest.hex(),
        "idempotency_key": idempotency_key,
        "approval_expires_at": approval_expires_at,
    }


def fingerprint(canonical: bytes) -> bytes:
    """SHA-256 of the canonical operation under its prefix, 32 bytes: what every approval binds to."""
    return hashlib.sha256(FINGERPRINT_PREFIX + canonical).digest()


def build_sheet(
    identity: dict[str, Any],
    provider_facts: dict[str, Any],
    competing: list[dict[str, Any]],
    made_at: int,
    needed: int,
) -> bytes:
    """The canonical document an approver signs on. What we read at the provider stands apart from the agent's claims.

    `identity` is that of `identity()`, `made_at` seconds since the epoch (ledger time), `needed` the number of
    people. Refused: `sheet_malformed`, and what `canonical_bytes` refuses (a float among the facts, say).
    """
    if set(identity) != IDENTITY_FIELDS:
        raise Refused("sheet_malformed", "build the sheet from the whole identity of an operation", field="operation")
    return canonical_bytes(
        {
            "kind": SHEET_KIND,
            "operation": identity,
            "read_from_provider_by_us": provider_facts,
            "claimed_by_agent": {name: identity[name] for name in CLAIMED_BY_AGENT},
            "competing_proposals": competing,
            "made_at": made_at,
            "people_needed": needed,
        },
        max_bytes=MAX_SHEET,
        max_depth=MAX_DEPTH + 1,  # the operation stands one level deeper here: what was recorded can be shown
    )


def sheet_digest(sheet: bytes) -> bytes:
    """SHA-256 of the sheet, 32 bytes: what `sheet` in the claims names."""
    return hashlib.sha256(sheet).digest()


def read_sheet(sheet: bytes) -> dict[str, Any]:
    """The parts of the sheet, plus `fingerprint` (hex), computed here from the operation that is shown.

    Refused: `sheet_malformed` unless these are exactly the bytes that `build_sheet` makes of the parts.
    """
    try:
        parts: dict[str, Any] = json.loads(sheet) if len(sheet) <= MAX_SHEET else {}
        again = build_sheet(
            parts["operation"],
            parts["read_from_provider_by_us"],
            parts["competing_proposals"],
            parts["made_at"],
            parts["people_needed"],
        )
        shown = fingerprint(canonical_bytes(parts["operation"])).hex()
    except (ValueError, TypeError, KeyError, RecursionError, Refused) as error:
        raise Refused("sheet_malformed", "ask the ledger for the sheet again", field="sheet") from error
    if again != sheet:
        raise Refused("sheet_malformed", "ask the ledger for the sheet again", field="sheet")
    return {**parts, "fingerprint": shown}


def visible(text: str) -> str:
    """The text on one line with every unseen character written out, like `⟦U+202E⟧`. Nothing else changes.

    Two different texts are never shown alike: the opening bracket itself is written out too.
    """
    return "".join(f"⟦U+{ord(c):04X}⟧" if c == "⟦" or _is_unseen(c) else c for c in text)


def to_base64url(raw: bytes) -> str:
    """Base64url without padding."""
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def from_base64url(text: str, max_bytes: int) -> bytes | None:
    """The bytes, or None unless this is their only spelling and they fit; bounded before anything is decoded."""
    if len(text) <= max_bytes * 4 // 3 + 2 and len(text) % 4 != 1 and _BASE64URL.fullmatch(text):
        raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        if to_base64url(raw) == text and len(raw) <= max_bytes:
            return raw
    return None


def _is_unseen(character: str) -> bool:
    return unicodedata.category(character) in _UNSEEN_CATEGORIES or character in _HIDDEN


class _Budget:
    """How many bytes the value may still take; stops the walk over something huge before it costs memory."""

    def __init__(self, max_bytes: int, max_depth: int) -> None:
        self.max_bytes, self.max_depth = max_bytes, max_depth
        self.left = max_bytes

    def spend(self, amount: int, path: str) -> None:
        self.left -= amount
        if self.left < 0:
            message = f"keep it within {self.max_bytes} bytes; refer to large content by its digest"
            raise Refused("too_large", message, field=path)


def _gate(value: object, path: str, depth: int, budget: _Budget) -> None:
    """Return only for exactly dict, list, str, int, bool and None: rfc8785 would also take subclasses and enums."""
    kind = type(value)
    if depth > budget.max_depth:
        raise Refused("too_deep", f"nest at most {budget.max_depth} levels", field=path)
    if isinstance(value, str) and kind is str:
        _gate_text(value, path, budget)
    elif isinstance(value, int) and kind is int:
        budget.spend(1, path)
        if not -MAX_INTEGER <= value <= MAX_INTEGER:
            raise Refused("integer_too_large", f"keep integers within ±{MAX_INTEGER}", field=path)
    elif isinstance(value, list) and kind is list:
        budget.spend(2, path)
        for index, item in enumerate(value):
            _gate(item, f"{path}[{index}]", depth + 1, budget)
    elif isinstance(value, dict) and kind is dict:
        budget.spend(2, path)
        for key, item in value.items():
            if type(key) is not str:
                raise Refused("key_type", "use text as the keys of an object", field=path)
            _gate_text(key, path, budget)
            _gate(item, f"{path}.{visible(key[:60])}", depth + 1, budget)
    elif value is None or kind is bool:
        budget.spend(4, path)
    else:
        message = f"{kind.__name__} has no canonical form; use object, list, text, integer, true, false or null"
        raise Refused("value_type", message, field=path)


def _gate_text(text: str, path: str, budget: _Budget) -> None:
    budget.spend(len(text) + 2, path)
    if any("\ud800" <= c <= "\udfff" for c in text):
        raise Refused("text_not_unicode", "remove the lone surrogate; it cannot be stored", field=path)
    if "\0" in text:
        raise Refused("text_nul", "remove the NUL character; it cannot be stored", field=path)
