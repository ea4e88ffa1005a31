"""What a rule, a target and a person permit: pure judgement over facts that the caller read under its locks.

1. First what may be recorded at all (`check_against_rule`, `may_propose`): refused before anything is stored.
2. Then what may be sent (`judge`): denied with a reason, left to people, or waived by the rule: within its three bounds,
   or once after an approved operation that it names.
3. Claiming to be distinct from an equivalent effect is possible, and always needs a person.
4. A person never approves what they propose or asked for, and counts once, however many keys they hold.
5. Every function takes the configuration it judges by: the version in force, not the one of the proposal.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Literal

from ledger.config import EVERYTHING, Document, Grant, Person, Rule, rule_version
from ledger.errors import Refused
from ledger.fingerprint import check_evidence, visible
from ledger.model import Operation, Standing
from ledger.money import check_amount, shown
from ledger.states import BlockReason

PEOPLE_WITHOUT_PROOF = 2  # different operators, where a person's word stands in for proof, and to release a hold


class VerdictKind(StrEnum):
    """What may become of a recorded proposal."""

    DENY = "deny"  # block it: edges 4, 6, 8
    ASK = "ask"  # people must sign: edge 2
    WAIVE = "waive"  # the rule stands in for the person: edge 3


@dataclass(frozen=True)
class Verdict:
    """The judgement. `reason` and `field` are empty unless denied; `people_needed` is 0 unless people are asked."""

    kind: VerdictKind
    sentence: str
    reason: BlockReason | Literal[""] = ""
    field: str = ""
    people_needed: int = 0


@dataclass(frozen=True)
class Totals:
    """What was already approved under waivers, without this operation, in minor units of its currency."""

    target_waived_minor: int = 0
    actor_day_waived_minor: int = 0


@dataclass(frozen=True)
class ListedEffect:
    """One effect in the provider's listing of the target."""

    receipt: str
    standing: Standing
    amount_minor: int


@dataclass(frozen=True)
class Reserving:
    """One of our operations that holds its amount on the target: in `RESERVING`, and its receipt not void."""

    operation_id: str
    receipt: str | None
    amount_minor: int


@dataclass(frozen=True)
class TargetFacts:
    """What preflight read at the provider. `unfit` is empty or says why the target cannot take the effect.

    `effects` is the complete listing; `markers` maps a receipt to the operation id found on it.
    """

    unfit: str = ""
    unfit_field: str = "target"
    version_stale: bool = False  # the record is no longer at the expected version
    captured_minor: int | None = None
    currency: str | None = None
    effects: tuple[ListedEffect, ...] = ()
    markers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Signed:
    """One accepted statement that still has to stand: who signed, and with which key."""

    person: str
    kid: str


def may_propose(
    document: Document,
    kid: str,
    *,
    tenant: str,
    actor: str,
    action: str,
    amount_minor: int | None,
    currency: str | None,
) -> Grant:
    """The grant that permits this proposal; also asked again before a first send.

    Refused: `grant_unknown`, `grant_revoked`, `tenant_not_granted`, `actor_not_granted`, `action_not_granted`,
    `amount_not_granted`.
    """
    grant = document.grant(kid)
    if grant is None:
        raise Refused("grant_unknown", "propose with a key that grants.toml names", field="kid")
    if grant.revoked:
        raise Refused("grant_revoked", "propose with a key that is not revoked", field="kid")
    if grant.tenant != tenant:
        raise Refused("tenant_not_granted", f"this key proposes for {grant.tenant} only", field="tenant")
    if actor not in grant.actors:
        raise Refused("actor_not_granted", f"this key does not speak for {visible(actor)}", field="actor")
    if action not in grant.actions:
        raise Refused("action_not_granted", f"this key may not propose {visible(action)}", field="action")
    if grant.max_amount_minor is not None and (
        currency != grant.currency or amount_minor is None or amount_minor > grant.max_amount_minor
    ):
        most = shown(grant.max_amount_minor, grant.currency)
        raise Refused("amount_not_granted", f"this key may propose at most {most}", field="amount_minor")
    return grant


def check_against_rule(
    document: Document,
    *,
    tenant: str,
    provider: str,
    action: str,
    amount_minor: int | None,
    currency: str | None,
    evidence: list[dict[str, str]],
) -> Rule:
    """The rule by which this proposal will be judged, once it is sure that it can be recorded at all.

    An amount above the rule's maximum passes here: it is recorded, then denied, so that somebody sees it was asked for.
    Refused: `tenant_unknown`, `provider_not_bound`, `action_not_allowed`, `currency_not_allowed`,
    `currency_without_amount`, `evidence_required`, and the rules of `check_amount` and `check_evidence`.
    """
    document.binding(tenant, provider)
    if (amount_minor is None) != (currency is None):
        raise Refused("currency_without_amount", "give an amount and its currency, or neither", field="currency")
    rule = document.rule_for(tenant, action, currency)
    if currency is not None:
        check_amount(amount_minor, currency)
    check_evidence(evidence)
    if rule.evidence_required and not evidence:
        raise Refused("evidence_required", "name what this rests on: the order, the ticket, the mail", field="evidence")
    return rule


def judge(
    rule: Rule,
    operation: Operation,
    target: TargetFacts,
    totals: Totals,
    equivalents: Sequence[str] = (),
    reserving: Sequence[Reserving] = (),
    approved_before: Collection[str] = (),
) -> Verdict:
    """What may become of the operation by this rule, on these facts. Total: never raises, the first objection wins.

    `equivalents` names every other reserving operation (by id) and foreign effect (by receipt) that would be the same
    thing done twice; `reserving` holds our other reserving operations on the target. Both exclude the operation itself
    and are read under the target lock, as `totals` are. `approved_before` are the actions of what it depends on, as far
    as people approved it and it exists.
    """
    denied = _above_rule(rule, operation) or _unfit(operation, target)
    denied = denied or _exceeds(rule, operation, target, reserving) or _equivalent(operation, equivalents)
    if denied is not None:
        return denied
    people = max(1, rule.approvers)
    asked = f"{people} with role {rule.role} must approve"
    if operation.distinct_from:
        named = visible(", ".join(operation.distinct_from))
        return Verdict(VerdictKind.ASK, f"Said to be distinct from {named}: {asked}.", people_needed=people)
    if rule.approvers == 0:
        return Verdict(VerdictKind.WAIVE, "The rule asks nobody for this action.")
    if rule.waive_after and rule.waive_after in approved_before:
        return Verdict(VerdictKind.WAIVE, f"It follows an approved {rule.waive_after} that exists.")
    over = _over_waiver(rule, operation, totals)
    if over:
        return Verdict(VerdictKind.ASK, f"{over}: {asked}.", people_needed=people)
    return Verdict(VerdictKind.WAIVE, f"Within the waiver of {shown(rule.waive_up_to_minor, rule.currency)}.")


def remaining_minor(
    captured_minor: int,
    effects: Iterable[ListedEffect],
    markers: Mapping[str, str],
    reserving: Iterable[Reserving],
) -> int:
    """What the target has left, in minor units; may be negative.

    That is: captured, less what the listing shows as good or pending, less what our operations hold that the listing
    does not show. It shows an operation if its receipt is there, whatever its standing, or an effect with its marker.
    A receipt listed twice counts once, at its larger amount.
    """
    taken: dict[str, int] = {}
    for effect in effects:
        amount = 0 if effect.standing is Standing.VOID else effect.amount_minor
        taken[effect.receipt] = max(amount, taken.get(effect.receipt, 0))
    marked = {markers[receipt] for receipt in taken if receipt in markers}
    held = sum(
        other.amount_minor for other in reserving if other.receipt not in taken and other.operation_id not in marked
    )
    return captured_minor - sum(taken.values()) - held


def _above_rule(rule: Rule, operation: Operation) -> Verdict | None:
    if (operation.currency or "") != rule.currency:
        return _deny(BlockReason.POLICY_DENIED, "currency", "The rule is for another currency.")
    if operation.amount_minor is not None and operation.amount_minor > rule.max_amount_minor:
        most = shown(rule.max_amount_minor, rule.currency)
        return _deny(BlockReason.POLICY_DENIED, "amount_minor", f"The rule allows at most {most}.")
    return None


def _unfit(operation: Operation, target: TargetFacts) -> Verdict | None:
    if target.unfit:
        return _deny(
            BlockReason.TARGET_UNFIT, target.unfit_field, f"The target cannot take this: {visible(target.unfit)}."
        )
    if target.version_stale:
        sentence = "The record is no longer at the expected version."
        return _deny(BlockReason.VERSION_STALE, "expected_version", sentence)
    if operation.currency is not None and target.currency not in (None, operation.currency):
        sentence = f"The target is in {visible(target.currency or '')}, not {operation.currency}."
        return _deny(BlockReason.TARGET_UNFIT, "currency", sentence)
    return None


def _exceeds(rule: Rule, operation: Operation, target: TargetFacts, reserving: Sequence[Reserving]) -> Verdict | None:
    if operation.amount_minor is None or not rule.reserves:
        return None
    if target.captured_minor is None:
        return _deny(BlockReason.TARGET_UNFIT, "target", "The provider does not say how much the target holds.")
    left = remaining_minor(target.captured_minor, target.effects, target.markers, reserving)
    if operation.amount_minor <= left:
        return None
    sentence = f"Only {shown(max(left, 0), rule.currency)} is left on the target."
    return _deny(BlockReason.AMOUNT_EXCEEDS_REMAINING, "amount_minor", sentence)


def _equivalent(operation: Operation, equivalents: Sequence[str]) -> Verdict | None:
    # Of two changes made for one version only one can apply: no word makes them distinct.
    distinct = operation.distinct_from if operation.expected_version is None else ()
    unnamed = [other for other in equivalents if other not in distinct]
    if not unnamed:
        return None
    sentence = f"The same thing is already there or under way: {visible(', '.join(unnamed))}."
    return _deny(BlockReason.EQUIVALENT_OPERATION, "distinct_from", sentence)


def _over_waiver(rule: Rule, operation: Operation, totals: Totals) -> str:
    """Why a person is needed; empty if the rule waives one."""
    amount = operation.amount_minor
    if amount is None or not rule.waive_up_to_minor:
        return "The rule waives nobody"
    for taken, most, what in (
        (0, rule.waive_up_to_minor, "one operation"),
        (totals.target_waived_minor, rule.waive_total_per_target_minor, "one target"),
        (totals.actor_day_waived_minor, rule.waive_total_per_actor_day_minor, "one actor and day"),
    ):
        if taken + amount > most:
            return f"Waived is at most {shown(most, rule.currency)} for {what}"
    return ""


def _deny(reason: BlockReason, field: str, sentence: str) -> Verdict:
    return Verdict(VerdictKind.DENY, sentence, reason, field)


def policy_changed(document: Document, operation: Operation) -> bool:
    """Whether the rule that the operation was recorded under is gone or says something else now."""
    try:
        now = rule_version(document, operation.tenant, operation.action, operation.currency)
    except Refused:
        return True
    return now != operation.policy_version


def may_approve(document: Document, person: str, operation: Operation, kid: str = "") -> None:
    """Return only if this person may approve this operation now, with this key if one is named.

    Refused: `own_proposal`, `role_missing`, `limit_exceeded`, the rules of `rule_for`, and of standing as a person:
    `person_unknown`, `person_revoked`, `key_unknown`, `key_revoked`.
    """
    known = _standing_person(document, person, kid)
    if person in (operation.actor, operation.requested_by):
        raise Refused("own_proposal", "somebody else must approve what you propose or asked for", field="iss")
    rule = document.rule_for(operation.tenant, operation.action, operation.currency)
    roles = [role for role in known.roles if (role.tenant, role.role) == (operation.tenant, rule.role)]
    if not roles:
        raise Refused("role_missing", f"somebody with role {rule.role} of {operation.tenant} must sign", field="iss")
    limits = [role.limit_minor or 0 for role in roles if role.currency == rule.currency]
    if not limits or (operation.amount_minor or 0) > max(limits):
        raise Refused("limit_exceeded", "somebody with a higher limit in this currency must sign", field="iss")


def may_decline(document: Document, person: str, operation: Operation, kid: str = "") -> None:
    """Return only if this person may decline: as `may_approve`, whatever the limit, own proposals included."""
    known = _standing_person(document, person, kid)
    rule = document.rule_for(operation.tenant, operation.action, operation.currency)
    if all((role.tenant, role.role) != (operation.tenant, rule.role) for role in known.roles):
        raise Refused("role_missing", f"somebody with role {rule.role} of {operation.tenant} must sign", field="iss")


def may_withdraw(document: Document, person: str, operation: Operation, kid: str = "") -> None:
    """Return only for the person it was requested by, or an operator of its tenant. Refused as `may_decline`."""
    known = _standing_person(document, person, kid)
    if person != operation.requested_by and not {operation.tenant, EVERYTHING} & set(known.operator_of):
        raise Refused("role_missing", "whoever asked for it, or an operator, must withdraw it", field="iss")


def may_operate(document: Document, person: str, tenant: str, kid: str = "") -> None:
    """Return only if this person is an operator of this tenant; of everything, if `tenant` is "*".

    Refused: `not_operator`, `person_unknown`, `person_revoked`, `key_unknown`, `key_revoked`.
    """
    known = _standing_person(document, person, kid)
    if not {tenant, EVERYTHING} & set(known.operator_of):
        raise Refused("not_operator", f"an operator of {visible(tenant)} must sign", field="iss")


def approvals_stand(document: Document, operation: Operation, approvals: Iterable[Signed]) -> int:
    """How many different people's approvals count under this configuration. Declines are the caller's to look for."""
    standing = [a for a in approvals if _passes(partial(may_approve, document, a.person, operation, a.kid))]
    return len({approval.person for approval in standing})


def operators_stand(document: Document, tenant: str, signed: Iterable[Signed]) -> int:
    """How many different operators of this tenant ("*": of everything) are among the signers."""
    standing = [one for one in signed if _passes(partial(may_operate, document, one.person, tenant, one.kid))]
    return len({one.person for one in standing})


def _standing_person(document: Document, name: str, kid: str) -> Person:
    known = document.person(name)
    if known is None:
        raise Refused("person_unknown", f"{visible(name)} is not in people.toml", field="iss")
    if known.revoked:
        raise Refused("person_revoked", f"{name} may no longer sign; ask somebody else", field="iss")
    if kid:
        key = next((key for key in known.keys if key.kid == kid), None)
        if key is None:
            raise Refused("key_unknown", f"{visible(kid)} is not a key of {name}", field="kid")
        if key.revoked:
            raise Refused("key_revoked", f"{kid} is revoked; sign with another key", field="kid")
    return known


def _passes(check: Callable[[], None]) -> bool:
    try:
        check()
    except Refused:
        return False
    return True
