"""The configuration: who may ask for what, who may permit it, and where it goes; one immutable document per version.

1. Four texts (tenants, policy, grants, people) make one document; unknown keys are refused, so that no typo is a rule.
2. The canonical form does not depend on the order or the comments of the texts; its SHA-256 is the version's digest.
3. A public key is never deleted and never comes back from revocation: every old signature can be verified for ever.
4. Secrets appear by name only.
5. Nothing is allowed by default: no rule, no grant, no role means no.
"""

import hashlib
import json
import tomllib
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StringConstraints, ValidationError, model_validator

from ledger.errors import Refused
from ledger.fingerprint import MAX_INTEGER, canonical_bytes, visible
from ledger.money import CURRENCIES, shown
from ledger.statement import PRINCIPAL, PublicKeyEntry, public_key

# Which file holds which section of the document.
FILES: Mapping[str, tuple[str, ...]] = {
    "tenants.toml": ("ledger", "bindings"),
    "policy.toml": ("rules",),
    "grants.toml": ("grants",),
    "people.toml": ("people",),
}
MAX_DOCUMENT = 1024 * 1024
EVERYTHING = "*"  # in `operator_of`: every tenant, and holds that concern no single tenant

TenantName = Annotated[str, StringConstraints(strict=True, pattern=r"^[a-z0-9-]{1,40}$")]
Principal = Annotated[str, StringConstraints(strict=True, pattern=PRINCIPAL)]
Word = Annotated[str, StringConstraints(strict=True, pattern=r"^[a-z][a-z0-9_.-]{0,59}$")]
Kid = Annotated[str, StringConstraints(strict=True, pattern=r"^[A-Za-z0-9_.@+-]{1,140}$")]
Account = Annotated[str, StringConstraints(strict=True, pattern=r"^[A-Za-z0-9_.:/-]{1,120}$")]
Line = Annotated[str, StringConstraints(strict=True, pattern=r"^[ -~]{0,120}$")]
Code = Annotated[str, StringConstraints(strict=True, pattern=r"^([a-z]{3})?$")]
Minor = Annotated[int, Field(strict=True, ge=0, le=MAX_INTEGER)]
Seconds = Annotated[int, Field(strict=True, ge=60, le=366 * 24 * 3600)]
People = Annotated[int, Field(strict=True, ge=0, le=10)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Ledger(_Frozen):
    """This ledger. `name` is the audience of every signature: unique among all ledgers, never changed."""

    name: Principal


class Binding(_Frozen):
    """Where a tenant's effects at one provider go. The credential that `secret` names must belong to exactly this."""

    tenant: TenantName
    provider: Word
    account: Account
    livemode: StrictBool
    secret: Word
    connected: StrictBool = False  # the secret is a platform's, and acts for `account`

    @model_validator(mode="after")
    def _names_its_secret(self) -> Self:
        if self.secret.startswith(("sk_", "rk_", "pk_", "whsec_")):
            raise ValueError("name the secret here, never write it; and replace this one at the provider: it is known")
        return self


class Rule(_Frozen):
    """What one tenant permits for one action in one currency (empty for actions without money); minor units.

    A person is waived only within all three waiver bounds, or by `approvers = 0`, which money actions cannot have.
    """

    tenant: TenantName
    action: Word
    currency: Code = ""
    max_amount_minor: Minor = 0
    approvers: People
    role: Word
    waive_up_to_minor: Minor = 0  # 0: never
    waive_total_per_target_minor: Minor = 0
    waive_total_per_actor_day_minor: Minor = 0
    reserves: StrictBool = True  # the amount is held against what the target has left
    evidence_required: StrictBool = True
    approval_lifetime_seconds: Seconds  # from proposal to the last moment of a first send
    review_after_seconds: Seconds  # from the first claim until a person is told
    statement_lifetime_seconds: Seconds  # longest exp - iat of a statement


class Key(_Frozen):
    """One public key. Revoked keys stay."""

    kid: Kid
    x: Line
    revoked: StrictBool = False
    revoked_at: Line = ""  # words for people; what counts is `revoked` and when this version was applied


class Grant(Key):
    """A service's key and what may be proposed with it. With a maximum, only that currency may be proposed."""

    name: Principal
    tenant: TenantName
    actors: tuple[Principal, ...]
    actions: tuple[Word, ...]
    max_amount_minor: Minor | None = None
    currency: Code = ""


class Role(_Frozen):
    """What a person may approve: up to `limit_minor` in `currency`, or (both left out) what has no amount."""

    tenant: TenantName
    role: Word
    limit_minor: Minor | None = None
    currency: Code = ""


class Person(_Frozen):
    """Somebody who signs. `operator_of` names tenants, or "*" for all and for what concerns no single tenant."""

    name: Principal
    keys: tuple[Key, ...]
    roles: tuple[Role, ...] = ()
    operator_of: tuple[TenantName | Annotated[str, StringConstraints(strict=True, pattern=r"^\*$")], ...] = ()
    revoked: StrictBool = False


class Document(_Frozen):
    """One version of the configuration. Lists are in the order of their names, whatever order they were written in."""

    ledger: Ledger
    bindings: tuple[Binding, ...]
    rules: tuple[Rule, ...]
    grants: tuple[Grant, ...] = ()
    people: tuple[Person, ...]

    def in_order(self) -> Self:
        """The same in the order of names, so that moving lines in a file changes nothing."""
        return self.model_copy(
            update={
                "bindings": tuple(sorted(self.bindings, key=lambda binding: (binding.tenant, binding.provider))),
                "rules": tuple(sorted(self.rules, key=_rule_name)),
                "grants": tuple(sorted(self.grants, key=lambda grant: grant.kid)),
                "people": tuple(sorted(self.people, key=lambda person: person.name)),
            }
        )

    @property
    def tenants(self) -> list[str]:
        """The names of all tenants: whoever is bound to a provider."""
        return sorted({binding.tenant for binding in self.bindings})

    def all_keys(self) -> list[tuple[Key, str]]:
        """Every public key there is, with whose it is in words."""
        granted = [(grant, f"the grant {grant.name} of {grant.tenant}") for grant in self.grants]
        return [*granted, *((key, person.name) for person in self.people for key in person.keys)]

    def to_canonical(self) -> bytes:
        """The bytes that are stored and digested. Refused: `too_large` above 1 MiB."""
        # Without defaults: a field that a later release adds leaves the bytes of documents that do not use it.
        return canonical_bytes(self.model_dump(mode="json", exclude_defaults=True), max_bytes=MAX_DOCUMENT)

    def digest(self) -> bytes:
        """SHA-256 of the canonical form, 32 bytes; equal documents have equal digests."""
        return hashlib.sha256(self.to_canonical()).digest()

    def binding(self, tenant: str, provider: str) -> Binding:
        """Where this tenant's effects go. Refused: `tenant_unknown`, `provider_not_bound`."""
        self._check_tenant(tenant)
        for binding in self.bindings:
            if (binding.tenant, binding.provider) == (tenant, provider):
                return binding
        raise Refused("provider_not_bound", f"bind {tenant} to {visible(provider)} in tenants.toml", field="provider")

    def rule_for(self, tenant: str, action: str, currency: str | None) -> Rule:
        """The one rule that applies. Refused: `tenant_unknown`, `action_not_allowed`, `currency_not_allowed`."""
        self._check_tenant(tenant)
        rules = [rule for rule in self.rules if (rule.tenant, rule.action) == (tenant, action)]
        if not rules:
            raise Refused("action_not_allowed", f"no rule of {tenant} allows {visible(action)}", field="action")
        for rule in rules:
            if rule.currency == (currency or ""):
                return rule
        allowed = ", ".join(rule.currency or "no currency" for rule in rules)
        raise Refused("currency_not_allowed", f"{tenant} allows {action} with {allowed}", field="currency")

    def _check_tenant(self, tenant: str) -> None:
        if tenant not in self.tenants:
            raise Refused("tenant_unknown", f"name a tenant of tenants.toml; {visible(tenant)} is none", field="tenant")

    def person(self, name: str) -> Person | None:
        """The person of this name, revoked or not."""
        return next((person for person in self.people if person.name == name), None)

    def grant(self, kid: str) -> Grant | None:
        """The grant of this key, revoked or not."""
        return next((grant for grant in self.grants if grant.kid == kid), None)

    def person_keys(self) -> dict[str, PublicKeyEntry]:
        """Every key of a person by kid, for `statement.verify`. A revoked person's keys are revoked."""
        return {
            key.kid: PublicKeyEntry(key.kid, key.x, person.name, key.revoked or person.revoked)
            for person in self.people
            for key in person.keys
        }

    def grant_keys(self) -> dict[str, PublicKeyEntry]:
        """Every granted key by kid, for `statement.verify_proposal`."""
        return {g.kid: PublicKeyEntry(g.kid, g.x, g.name, g.revoked, g.tenant) for g in self.grants}


def parse(files: Mapping[str, str]) -> Document:
    """The document in these texts, by file name (`FILES`). Every part is well-formed; whether it fits is for `check`.

    Refused, naming file and key: `config_file_missing`, `config_not_toml`, `config_misplaced`, `config_invalid`.
    """
    found: dict[str, object] = {}
    for name, sections in FILES.items():
        if name not in files:
            raise Refused("config_file_missing", f"add {name}; the configuration is {', '.join(FILES)}", field=name)
        try:
            text = tomllib.loads(files[name])
        except tomllib.TOMLDecodeError as error:
            raise Refused("config_not_toml", f"{name}: {error}", field=name) from error
        for key in text.keys() - set(sections):
            message = f"{name}: {visible(key)} does not belong here; this file holds {', '.join(sections)}"
            raise Refused("config_misplaced", message, field=f"{name}:{visible(key)}")
        found |= text
    return _validated(lambda: Document.model_validate(found)).in_order()


def from_canonical(document: bytes) -> Document:
    """The document in these bytes. Refused: `config_invalid`, `config_not_canonical`."""
    read = _validated(lambda: Document.model_validate_json(document))
    if read.in_order().to_canonical() != document:
        raise Refused("config_not_canonical", "store what `to_canonical` returns, nothing else", field="document")
    return read


def _validated(read: Callable[[], Document]) -> Document:
    try:
        return read()
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        loc = found[0]["loc"]
        file = next((name for name, sections in FILES.items() if loc and loc[0] in sections), "document")
        where = visible("".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc)[1:120])
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        message = f"{file}: {where}: {found[0]['msg']}{more}"
        raise Refused("config_invalid", message, field=f"{file}:{where}") from None


def check(document: Document) -> None:
    """Return only if the document fits together. Raises the first of `problems`."""
    for problem in problems(document):
        raise problem


def problems(document: Document) -> Iterator[Refused]:
    """Everything that does not fit together, each as a `Refused` that says what to change."""
    yield from _twice(document)
    yield from _bad_keys(document)
    yield from _bad_names(document)
    for rule in document.rules:
        yield from _bad_rule(document, rule)
    for scope in (*document.tenants, EVERYTHING):
        operators = [p for p in document.people if not p.revoked and {scope, EVERYTHING} & set(p.operator_of)]
        if len(operators) == 1 or (not operators and scope != EVERYTHING):
            message = f"name two operators of {scope} in people.toml: releases and ends without proof need two"
            yield Refused("operators_too_few", message, field=scope)


def _twice(document: Document) -> Iterator[Refused]:
    bindings = [f"{binding.tenant} {binding.provider}" for binding in document.bindings]
    owners = {(key.x, owner) for key, owner in document.all_keys()}
    for rule, message, names in (
        ("provider_twice", "bind a tenant to a provider once", bindings),
        ("rule_twice", "write one rule per tenant, action and currency", [_rule_name(rule) for rule in document.rules]),
        ("person_twice", "write each person once", [person.name for person in document.people]),
        ("kid_twice", "give every key its own kid", [key.kid for key, _ in document.all_keys()]),
        ("key_shared", "give every person and every grant a key of their own", [x for x, _ in owners]),
    ):
        for name in sorted({name for name in names if names.count(name) > 1}):
            yield Refused(rule, f"{message}; {name} is there more than once", field=name)


def _bad_keys(document: Document) -> Iterator[Refused]:
    for key, owner in document.all_keys():
        try:
            public_key(key.x)
        except Refused as error:
            yield Refused(error.rule, f"{key.kid} of {owner}: {error}", field=key.kid)


def _bad_rule(document: Document, rule: Rule) -> Iterator[Refused]:
    name = _rule_name(rule)
    totals = (rule.waive_total_per_target_minor, rule.waive_total_per_actor_day_minor)
    if rule.currency and rule.currency not in CURRENCIES:
        yield Refused("currency_unknown", f"{name}: use a currency that this ledger handles", field=name)
    if rule.currency and not rule.max_amount_minor:
        yield Refused("maximum_missing", f"{name}: set max_amount_minor; without it nothing is allowed", field=name)
    if rule.currency and not rule.approvers:
        yield Refused("approvers_missing", f"{name}: ask at least one person; waive small amounts instead", field=name)
    if not rule.currency and any((rule.max_amount_minor, rule.waive_up_to_minor, *totals)):
        yield Refused("currency_missing", f"{name}: an amount means nothing without a currency", field=name)
    if rule.waive_up_to_minor > rule.max_amount_minor:
        yield Refused("waiver_above_maximum", f"{name}: waive_up_to_minor must not exceed max_amount_minor", field=name)
    if min(totals) < rule.waive_up_to_minor or (max(totals) and not rule.waive_up_to_minor):
        message = f"{name}: set both waiver totals to at least waive_up_to_minor, or all three to 0"
        yield Refused("waiver_totals", message, field=name)
    able = [p for p in document.people if _could_approve(p, rule)]
    if len(able) < max(1, rule.approvers):
        wish = f"up to {shown(rule.max_amount_minor, rule.currency)} " if rule.currency else ""
        message = f"{name}: {max(1, rule.approvers)} must hold role {rule.role} {wish}in people.toml; {len(able)} do"
        yield Refused("people_too_few", message, field=name)


def _could_approve(person: Person, rule: Rule) -> bool:
    wanted = (rule.tenant, rule.role, rule.currency)
    fitting = [role for role in person.roles if (role.tenant, role.role, role.currency) == wanted]
    highest = max((role.limit_minor or 0 for role in fitting), default=-1)
    return not person.revoked and any(not key.revoked for key in person.keys) and highest >= rule.max_amount_minor


def _bad_names(document: Document) -> Iterator[Refused]:
    named = [(_rule_name(rule), rule.tenant) for rule in document.rules]
    named += [(grant.kid, grant.tenant) for grant in document.grants]
    named += [(p.name, name) for p in document.people for name in (*p.operator_of, *(role.tenant for role in p.roles))]
    for holder, tenant in named:
        if tenant not in (*document.tenants, EVERYTHING):
            yield Refused("tenant_unknown", f"{holder}: {tenant} is not in tenants.toml", field=holder)
    ruled = {(rule.tenant, rule.action) for rule in document.rules}
    for grant in document.grants:
        for action in grant.actions:
            if (grant.tenant, action) not in ruled:
                yield Refused("action_not_allowed", f"{grant.kid}: no rule allows {action}", field=grant.kid)
    limits = [(grant.kid, grant.max_amount_minor, grant.currency) for grant in document.grants]
    limits += [(person.name, role.limit_minor, role.currency) for person in document.people for role in person.roles]
    for holder, limit, currency in limits:
        if currency not in CURRENCIES if limit is not None else currency:
            message = f"{holder}: give a limit and a currency that this ledger handles, or neither"
            yield Refused("limit_malformed", message, field=holder)


def check_succession(old: Document, new: Document) -> None:
    """Return only if `new` may follow `old`: old signatures stay verifiable and no revoked key comes back.

    Refused: `ledger_renamed`, `key_deleted`, `key_changed` (another x or owner), `key_unrevoked`.
    """
    if old.ledger.name != new.ledger.name:
        raise Refused("ledger_renamed", "keep the name: every signature is made out to it", field="ledger.name")
    after = {key.kid: (key, owner) for key, owner in new.all_keys()}
    for key, owner in old.all_keys():
        kept, owner_after = after.get(key.kid, (None, ""))
        if kept is None:
            raise Refused("key_deleted", f"keep {key.kid} and set revoked = true", field=key.kid)
        if (kept.x, owner_after) != (key.x, owner):
            raise Refused("key_changed", f"keep {key.kid} as it was and add a new key beside it", field=key.kid)
        if key.revoked and not kept.revoked:
            raise Refused("key_unrevoked", f"{key.kid} was revoked: add a new key instead", field=key.kid)


def diff(old: Document, new: Document) -> list[str]:
    """What changes from `old` to `new`, one sentence a change, in the order of the document; empty if nothing does."""
    before, after = _flat(old), _flat(new)
    told = [f"{name} is removed" for name in before if name not in after]
    for name, fields in after.items():
        if name not in before:
            told.append(f"{name} is added: {json.dumps(fields)}")
            continue
        for field, value in fields.items():
            if value != before[name][field]:
                told.append(f"{name}: {field} changes from {json.dumps(before[name][field])} to {json.dumps(value)}")
    return told


def _flat(document: Document) -> dict[str, dict[str, object]]:
    flat = {"the ledger": document.ledger.model_dump(mode="json")}
    flat |= {f"binding {b.tenant} {b.provider}": b.model_dump(mode="json") for b in document.bindings}
    flat |= {f"rule {_rule_name(rule)}": rule.model_dump(mode="json") for rule in document.rules}
    flat |= {f"grant {grant.kid}": grant.model_dump(mode="json") for grant in document.grants}
    for person in document.people:
        flat[f"person {person.name}"] = person.model_dump(mode="json", exclude={"keys"})
        flat |= {f"key {key.kid} of {person.name}": key.model_dump(mode="json") for key in person.keys}
    return flat


def rule_version(document: Document, tenant: str, action: str, currency: str | None) -> str:
    """The digest (64 hex digits) of the one rule that applies: `policy_version`. Refuses as `rule_for`."""
    rule = document.rule_for(tenant, action, currency).model_dump(mode="json", exclude_defaults=True)
    return hashlib.sha256(canonical_bytes(rule)).hexdigest()


def _rule_name(rule: Rule) -> str:
    return f"{rule.tenant} {rule.action} {rule.currency}".strip()
