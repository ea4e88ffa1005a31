"""Dependencies between operations: resolved before anything is recorded, and asked about again before every first send.

1. What is needed is named by its business key, within one tenant, and exists already: there is no circle and no hole.
2. A receipt becomes an argument before the operation is recorded, fingerprinted and approved.
3. A need is met, still open, or can no longer be met; only the last one blocks.
"""

import copy
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from uuid import UUID

from activities.messages import Proposal
from ledger import fingerprint
from ledger.errors import Refused
from ledger.model import Operation
from ledger.states import ENDED, State
from ledger.store import dependencies
from ledger.store.database import Connection
from ledger.store.dependencies import Needed

MOST_NEEDED = 10
PLACE = "{receipt}"
_PARTS = {"business_key", "state", "into"}


class Met(StrEnum):
    """What became of everything that an operation depends on."""

    YES = "yes"
    OPEN = "open"  # something has not ended: wait
    NEVER = "never"  # something ended otherwise, is contradicted, or was undone


@dataclass(frozen=True)
class Resolved:
    """The part of a proposal that names other operations, as it is recorded."""

    arguments: dict[str, Any]  # with the receipts in their places
    depends_on: list[dict[str, str]]
    supersedes: str | None


async def resolve(conn: Connection, namespace: UUID, proposal: Proposal) -> Resolved:
    """Look up everything that the proposal names. Refuses what is malformed, unknown, or not there yet, with its field."""
    needs = [_checked(need, f"depends_on[{at}]") for at, need in enumerate(proposal.depends_on)]
    if len(needs) > MOST_NEEDED:
        raise Refused("dependency_malformed", f"depend on at most {MOST_NEEDED} operations", field="depends_on")
    ids = [
        _id_of(namespace, proposal.tenant, need["business_key"], f"depends_on[{at}].business_key")
        for at, need in enumerate(needs)
    ]
    found = await dependencies.read(conn, ids)
    arguments, recorded = proposal.arguments, []
    for at, (need, operation_id) in enumerate(zip(needs, ids, strict=True)):
        field = f"depends_on[{at}]"
        needed = found.get(operation_id)
        if needed is None:
            raise Refused("dependency_unknown", "propose first what this one depends on", field=field)
        told = {"operation_id": str(operation_id), "business_key": need["business_key"], "state": need["state"]}
        if "into" in need:
            receipt = _receipt(needed, need["state"], field)
            arguments = _with(arguments, need["into"].split("."), receipt, field)
            told |= {"into": need["into"], "receipt": receipt}
        recorded.append(told)
    _no_hole(arguments, "arguments")
    return Resolved(arguments, recorded, await _superseded(conn, namespace, proposal))


async def met(conn: Connection, operation: Operation) -> Met:
    """Whether what the operation depends on has ended as it must, and still stands."""
    found = await dependencies.read(conn, [UUID(need["operation_id"]) for need in operation.depends_on])
    if any(one.may_exist for one in await dependencies.revised(conn, operation.operation_id)):
        return Met.NEVER  # what it was to be done instead of is there, or may be
    told = Met.YES
    for need in operation.depends_on:
        needed = found[UUID(need["operation_id"])]
        if needed.state not in ENDED and not needed.contradicted:
            told = Met.OPEN
        elif not needed.stands or needed.state != need["state"]:
            return Met.NEVER
    return told


async def approved_before(conn: Connection, operation: Operation) -> frozenset[str]:
    """The actions of met dependencies that `waive_after` of a rule may rest on. Call it under the target lock.

    Approved by people, on the same target, and not yet used for another operation of this action: one approved invoice lets
    one mail to its customer through, not any number of mails to anybody.
    """
    found = await dependencies.read(conn, [UUID(need["operation_id"]) for need in operation.depends_on])
    standing = [n for n in found.values() if n.stands and n.state is State.SUCCEEDED and n.people_needed]
    fitting = [n for n in standing if n.target == operation.target]
    return frozenset(
        [n.action for n in fitting if not await dependencies.waived_after(conn, operation, n.operation_id)]
    )


def _id_of(namespace: UUID, tenant: str, business_key: str, field: str) -> UUID:
    try:
        return fingerprint.operation_id(namespace, tenant, business_key)
    except Refused as refused:
        raise Refused(refused.rule, str(refused), field=field) from refused


def _checked(need: dict[str, str], field: str) -> dict[str, str]:
    if not {"business_key", "state"} <= set(need) <= _PARTS:
        raise Refused("dependency_malformed", f"give {', '.join(sorted(_PARTS))} (into may be left out)", field=field)
    if need["state"] not in ENDED:
        raise Refused("dependency_malformed", f"state is one of {', '.join(sorted(ENDED))}", field=f"{field}.state")
    if "into" in need:
        fingerprint.check_text(need["into"], f"{field}.into", 120)
        if need["state"] != State.SUCCEEDED:
            raise Refused("dependency_malformed", "only what succeeded has a receipt", field=f"{field}.state")
    return need


def _no_hole(value: object, path: str) -> None:
    """Nothing is approved with a hole in it: a place that no dependency filled is a mistake of the caller's."""
    if isinstance(value, str) and PLACE in value:
        raise Refused(
            "reference_missing", f"say in depends_on whose receipt goes here, with into {path[10:]}", field=path
        )
    if isinstance(value, dict):
        for name, part in value.items():
            _no_hole(part, f"{path}.{name}")
    if isinstance(value, list):
        for at, part in enumerate(value):
            _no_hole(part, f"{path}[{at}]")


def _receipt(needed: Needed, state: str, field: str) -> str:
    if not needed.stands or needed.state != state or needed.receipt is None:
        why = f"{needed.business_key} has no receipt yet, or none that stands: it is {needed.state}; ask again then"
        raise Refused("dependency_unmet", why, field=field)
    return needed.receipt


def _with(arguments: dict[str, Any], path: list[str], receipt: str, field: str) -> dict[str, Any]:
    """The arguments with the receipt at the path: as the value where there is none, or for `{receipt}` in the text there."""
    filled = copy.deepcopy(arguments)
    at: Any = filled
    for part in path[:-1]:
        at = at.get(part) if isinstance(at, dict) else None
    text = at.get(path[-1], PLACE) if isinstance(at, dict) else None
    if type(text) is not str or text.count(PLACE) != 1:
        message = f"leave {'.'.join(path)} out of the arguments, or write {PLACE} once where the receipt goes"
        raise Refused("reference_misplaced", message, field=f"{field}.into")
    at[path[-1]] = text.replace(PLACE, receipt)
    return filled


async def _superseded(conn: Connection, namespace: UUID, proposal: Proposal) -> str | None:
    """The id of the operation to be revised: ended, without an effect that stands, and not revised before."""
    if proposal.supersedes is None:
        return None
    old_id = _id_of(namespace, proposal.tenant, proposal.supersedes, "supersedes")
    old = (await dependencies.read(conn, [old_id])).get(old_id)
    if old is None:
        raise Refused("superseded_unknown", "name the business key of an operation that ended", field="supersedes")
    if old.state not in ENDED:
        raise Refused("superseded_open", f"it is {old.state}: ask for it with its own key", field="supersedes")
    if old.actor != proposal.actor:
        raise Refused("superseded_anothers", f"only {old.actor} revises it", field="supersedes")
    if any(one.may_exist for one in [old, *await dependencies.revised(conn, old_id)]):
        why = f"it is {old.state}: its effect exists, or may; what is asked anew is another intent, without supersedes"
        raise Refused("superseded_exists", why, field="supersedes")
    if revised := await dependencies.revision_of(conn, old_id):
        raise Refused("already_superseded", f"{revised} revises it already: supersede that one", field="supersedes")
    return str(old_id)
