"""What does not fit together in a configuration, what may follow another, and what changes between two."""

import json
from collections.abc import Iterator

from ledger.config import EVERYTHING, Document, Person, Rule
from ledger.errors import Refused
from ledger.money import CURRENCIES, shown
from ledger.statement import public_key


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
        ("rule_twice", "write one rule per tenant, action and currency", [rule.title for rule in document.rules]),
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
    name = rule.title
    totals = (rule.waive_total_per_target_minor, rule.waive_total_per_actor_day_minor)
    if rule.currency and rule.currency not in CURRENCIES:
        yield Refused("currency_unknown", f"{name}: use a currency that this ledger handles", field=name)
    if rule.currency and not rule.max_amount_minor:
        yield Refused("maximum_missing", f"{name}: set max_amount_minor; without it nothing is allowed", field=name)
    if rule.waive_after and (
        rule.currency or rule.waive_after not in {r.action for r in document.rules if r.tenant == rule.tenant}
    ):
        message = f"{name}: waive_after names another action of {rule.tenant}, and is for actions without money"
        yield Refused("waiver_misplaced", message, field=name)
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
    named = [(rule.title, rule.tenant) for rule in document.rules]
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
    flat |= {f"rule {rule.title}": rule.model_dump(mode="json") for rule in document.rules}
    flat |= {f"grant {grant.kid}": grant.model_dump(mode="json") for grant in document.grants}
    for person in document.people:
        flat[f"person {person.name}"] = person.model_dump(mode="json", exclude={"keys"})
        flat |= {f"key {key.kid} of {person.name}": key.model_dump(mode="json") for key in person.keys}
    return flat
