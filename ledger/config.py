"""The configuration: who may ask for what, who may permit it, and where it goes; one immutable document per version.

1. Four texts (tenants, policy, grants, people) make one document; unknown keys are refused, so that no typo is a rule.
2. The canonical form does not depend on the order or the comments of the texts; its SHA-256 is the version's digest.
3. A public key is never deleted and never comes back from revocation: every old signature can be verified for ever.
4. Secrets appear by name only.
5. Nothing is allowed by default: no rule, no grant, no role means no.
"""

import hashlib
import tomllib
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StringConstraints, ValidationError, model_validator

from ledger.errors import Refused
from ledger.fingerprint import MAX_INTEGER, canonical_bytes, visible
from ledger.statement import PRINCIPAL, PublicKeyEntry

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
NoWord = Annotated[str, StringConstraints(strict=True, pattern=r"^([a-z][a-z0-9_.-]{0,59})?$")]
Kid = Annotated[str, StringConstraints(strict=True, pattern=r"^[A-Za-z0-9_.@+-]{1,140}$")]
Account = Annotated[str, StringConstraints(strict=True, pattern=r"^[A-Za-z0-9_.:/@+-]{1,120}$")]
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
    """Where a tenant's effects at one provider go. The credential that `secret` names must belong to exactly this.

    `endpoint` is where the account is reached, `archive` where its effects are looked up, for providers that need it.
    """

    tenant: TenantName
    provider: Word
    account: Account
    livemode: StrictBool
    secret: Word
    connected: StrictBool = False  # the secret is a platform's, and acts for `account`
    endpoint: Line = ""
    archive: Line = ""

    @model_validator(mode="after")
    def _names_its_secret(self) -> Self:
        if self.secret.startswith(("sk_", "rk_", "pk_", "whsec_")):
            raise ValueError("name the secret here, never write it; and replace this one at the provider: it is known")
        return self


class Rule(_Frozen):
    """What one tenant permits for one action in one currency (empty for actions without money); minor units.

    A person is waived only within all three waiver bounds, or by `approvers = 0` or `waive_after`, which money actions
    cannot have.
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
    waive_after: NoWord = ""  # waived once per effect of this action that it needs, on the same target and approved
    approval_lifetime_seconds: Seconds  # from proposal to the last moment of a first send
    review_after_seconds: Seconds  # from the first claim until a person is told
    statement_lifetime_seconds: Seconds  # longest exp - iat of a statement

    @property
    def title(self) -> str:
        """Tenant, action and currency: no two rules have the same."""
        return f"{self.tenant} {self.action} {self.currency}".strip()


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
                "rules": tuple(sorted(self.rules, key=lambda rule: rule.title)),
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


@lru_cache(maxsize=8)  # asked for in every transaction that decides; equal bytes are one frozen document
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


def rule_version(document: Document, tenant: str, action: str, currency: str | None) -> str:
    """The digest (64 hex digits) of the one rule that applies: `policy_version`. Refuses as `rule_for`."""
    rule = document.rule_for(tenant, action, currency).model_dump(mode="json", exclude_defaults=True)
    return hashlib.sha256(canonical_bytes(rule)).hexdigest()
