"""Judging an operation that was not sent: read the target at the provider, then apply policy under the target lock."""

import asyncio
import hashlib
import json
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from activities import dependencies
from activities.dependencies import Met
from activities.ports import Ports
from ledger import policy
from ledger.config import Document
from ledger.errors import Refused
from ledger.model import Operation, Standing
from ledger.money import shown
from ledger.recovery import JUST_AFTER
from ledger.statement import StatementType, build_sheet, read_sheet, sheet_digest
from ledger.states import BLOCK_EDGE, RESERVING, BlockReason, State
from ledger.store import configuration, events, operations, statements, totals
from ledger.store.database import Connection, now
from ledger.trail import EventKind
from providers.port import Credential, Preflight

UNREADABLE_PAUSE = 10.0
READ_SECONDS = 45.0  # for reading one target to its end, page by page
MOST_COMPETING = 50  # listed on a sheet


@dataclass(frozen=True)
class Reading:
    """The target as read just now, with the credential it was read with; `problem` says why it could not be."""

    preflight: Preflight
    credential: Credential | None
    began_at: datetime
    problem: str = ""


@dataclass(frozen=True)
class Refusal:
    """Why a first send may not be; `ask_again` when only an approver is gone and another may sign."""

    reason: str
    field: str = ""
    sentence: str = ""
    ask_again: bool = False

    def body(self) -> dict[str, str]:
        """What the trail says about it."""
        return {"field": self.field, "why": self.sentence}


async def read_target(ports: Ports, operation: Operation, within: float = READ_SECONDS) -> Reading:
    """Ask the provider about the target, and the credential whose it is, for at most `within` seconds.

    No transaction is open meanwhile.
    """
    async with ports.ledger.transaction() as conn:
        _, document = await configuration.in_force(conn)
        began_at = await now(conn)
    provider = ports.registry.for_action(operation.action)
    try:
        credential = ports.secrets.credential(document, operation)
    except Refused as refusal:
        return Reading(Preflight(complete=False), None, began_at, refusal.rule)
    try:
        async with asyncio.timeout(within):
            owner = await provider.whose(credential)
            if owner is None:
                return Reading(Preflight(complete=False), credential, began_at, "provider unreadable")
            if (owner.account, owner.livemode) != (operation.account, operation.livemode):
                return Reading(Preflight(complete=False), None, began_at, "credential of another account or mode")
            preflight = await provider.preflight(
                credential, operation.target, operation.arguments, provider.marker_of(operation)
            )
    except TimeoutError:
        return Reading(Preflight(complete=False), credential, began_at, "provider slow")
    return Reading(preflight, credential, began_at, "" if preflight.complete else "provider unreadable")


async def judge(conn: Connection, operation: Operation, reading: Reading) -> Operation:
    """Edges 2 to 6 for a locked operation whose target is locked. Waits when the provider could not be read."""
    _, document = await configuration.in_force(conn)
    at = await now(conn)
    refusal = await _standing_refusal(conn, document, operation, at)
    if refusal is not None:
        return await block(conn, operation, refusal, at, reading)
    if not reading.preflight.complete:
        return await _wait(conn, operation, at + timedelta(seconds=UNREADABLE_PAUSE), reading.problem)
    verdict = await _verdict(conn, document, operation, reading.preflight, at)
    if verdict.kind is policy.VerdictKind.DENY:
        return await block(conn, operation, Refusal(verdict.reason, verdict.field, verdict.sentence), at, reading)
    if operation.state is State.PROPOSED:
        # The facts themselves stand on the sheet, if people are asked: a mail's text is nobody's business for ever.
        digest = hashlib.sha256(json.dumps(reading.preflight.facts, sort_keys=True).encode()).hexdigest()
        body = {"complete": True, "facts_digest": digest}
        operation = await events.append(conn, operation, EventKind.PREFLIGHT, body)
        if verdict.kind is policy.VerdictKind.WAIVE:
            return await _approve(conn, operation, 3, 0, at, {"waived": verdict.sentence})
        return await _ask(conn, operation, reading.preflight, verdict, at)
    given = await approvals(conn, operation)
    assert operation.people_needed is not None
    if policy.approvals_stand(document, operation, given) >= operation.people_needed:
        people = sorted({s.person for s in given})
        return await _approve(conn, operation, 5, operation.people_needed, at, {"people": people})
    return await _wait(conn, operation, operation.approval_expires_at + JUST_AFTER, "people")


async def approvals(conn: Connection, operation: Operation) -> list[policy.Signed]:
    """Who approved and with which key; whether that still counts is for the configuration in force to say."""
    given = await statements.of_operation(conn, operation.operation_id)
    return [policy.Signed(s.person, s.kid) for s in given if s.typ == StatementType.APPROVAL]


async def first_send_refusal(
    conn: Connection, document: Document, operation: Operation, reading: Reading, at: datetime
) -> Refusal | None:
    """The full recheck of edge 7, without holds: authority, policy, expiry, and the target as just read."""
    if any(e.marked for e in reading.preflight.effects) and await dependencies.met(conn, operation) is Met.YES:
        # What it would do is already there: the claim settles on that, and sends nothing. While something that it depends on
        # is open it cannot be claimed, and so expires like any other: blocked, and told as contradicted.
        return None
    refusal = await _standing_refusal(conn, document, operation, at)
    if refusal is None and operation.people_needed:
        given = await approvals(conn, operation)
        if policy.approvals_stand(document, operation, given) < operation.people_needed:
            return Refusal(BlockReason.AUTHORITY_REVOKED, "approvers", ask_again=True)
    if refusal is None and reading.preflight.complete:
        verdict = await _verdict(conn, document, operation, reading.preflight, at)
        if verdict.kind is policy.VerdictKind.DENY:
            return Refusal(verdict.reason, verdict.field, verdict.sentence)
    return refusal


async def _standing_refusal(conn: Connection, document: Document, operation: Operation, at: datetime) -> Refusal | None:
    """What no reading of the target can mend: declined, expired, key revoked, policy changed."""
    given = await statements.of_operation(conn, operation.operation_id)
    if any(s.typ == StatementType.WITHDRAWAL for s in given):
        return Refusal(BlockReason.WITHDRAWN)
    if any(s.typ == StatementType.DECLINE for s in given):
        return Refusal(BlockReason.APPROVAL_DECLINED)
    if at > operation.approval_expires_at:
        return Refusal(BlockReason.APPROVAL_EXPIRED)
    if problem := grant_problem(document, operation):
        return Refusal(BlockReason.AUTHORITY_REVOKED, problem)
    if policy.policy_changed(document, operation):
        return Refusal(BlockReason.POLICY_CHANGED, "policy_version")
    if await dependencies.met(conn, operation) is Met.NEVER:
        return Refusal(BlockReason.DEPENDENCY_ENDED, "depends_on")
    try:
        binding = document.binding(operation.tenant, operation.provider)
    except Refused as refused:
        return Refusal(BlockReason.POLICY_CHANGED, refused.field)
    if (binding.account, binding.livemode) != (operation.account, operation.livemode):
        return Refusal(BlockReason.POLICY_CHANGED, "account")
    return None


async def _verdict(
    conn: Connection, document: Document, operation: Operation, preflight: Preflight, at: datetime
) -> policy.Verdict:
    """Policy on the target as read, against every other reserving operation, of any tenant. Under the target lock."""
    rule = document.rule_for(operation.tenant, operation.action, operation.currency)
    void = {e.receipt for e in preflight.effects if e.standing is Standing.VOID}
    on_target = await operations.on_target(conn, operation)
    others = [o for o in on_target if reserves(o) and (o.receipt is None or o.receipt not in void)]
    known = {str(o.operation_id): o for o in on_target}
    ours = {o.receipt for o in others}
    equivalents = [str(o.operation_id) for o in others if _equivalent(o, operation)]
    # An effect that somebody else made counts as well; one of our own operations was compared by its key already.
    equivalents += [
        e.receipt
        for e in preflight.effects
        if e.look_alike
        and e.standing is not Standing.VOID
        and e.receipt not in ours
        and not _compared(known.get(preflight.markers.get(e.receipt, "")), e.receipt)
    ]
    target = policy.TargetFacts(
        unfit=preflight.unfit or _incomplete(preflight, operation),
        unfit_field=preflight.unfit_field,
        version_stale=preflight.version != operation.expected_version,
        captured_minor=preflight.amount_minor,
        currency=preflight.currency,
        effects=tuple(
            policy.ListedEffect(e.receipt, e.standing, int(e.summary.get("amount") or 0))
            for e in preflight.effects
            if not e.marked  # our own effect is what is asked for: it does not compete with itself
        ),
        markers=preflight.markers,
    )
    reserving = [policy.Reserving(str(o.operation_id), o.receipt, o.amount_minor or 0) for o in others]
    waived = await totals.waived(conn, operation, at)
    before = await dependencies.approved_before(conn, operation)
    return policy.judge(rule, operation, target, waived, equivalents, reserving, before)


def _equivalent(other: Operation, operation: Operation) -> bool:
    """Whether the other one, which reserves, would do the same. A versioned write that ended has moved the version."""
    ended = operation.expected_version is not None and other.ended_at is not None
    return other.equivalence_key == operation.equivalence_key and not ended


def _compared(other: Operation | None, receipt: str) -> bool:
    """Whether the effect is of another operation that reserves it: that one was compared by its key."""
    return other is not None and reserves(other) and is_of(other, receipt)


def is_of(other: Operation | None, receipt: str) -> bool:
    """Whether the effect belongs to this other operation of the ledger: a marker alone can be edited to any id."""
    return other is not None and other.receipt in (None, receipt) and other.first_claimed_at is not None


def _incomplete(preflight: Preflight, operation: Operation) -> str:
    """Why the reading cannot be judged by: it is of another target, or an effect on it does not say how much it took."""
    if preflight.target not in ("", operation.target):
        return "another target"
    if operation.amount_minor is not None and any(type(e.summary.get("amount")) is not int for e in preflight.effects):
        return "an effect without an amount"
    return ""


def reserves(operation: Operation) -> bool:
    """Whether it holds its amount: approved, sent, open, undetermined, or done with a receipt that is not void."""
    if operation.state is State.SUCCEEDED and operation.standing is Standing.VOID:
        return False
    return operation.state in RESERVING


def grant_problem(document: Document, operation: Operation) -> str:
    """Empty while the key that proposed the operation may still propose it; else the field that is no longer granted."""
    try:
        policy.may_propose(
            document,
            operation.kid,
            tenant=operation.tenant,
            actor=operation.actor,
            action=operation.action,
            amount_minor=operation.amount_minor,
            currency=operation.currency,
        )
    except Refused as refused:
        return refused.field
    return ""


async def _approve(
    conn: Connection, operation: Operation, edge: int, needed: int, at: datetime, body: dict[str, Any]
) -> Operation:
    after = replace(
        operation, state=State.APPROVED, reason="", people_needed=needed, next_step="dispatch", next_step_at=at
    )
    return await operations.move(conn, operation, after, edge, at, body)


async def block(conn: Connection, operation: Operation, refusal: Refusal, at: datetime, reading: Reading) -> Operation:
    """Edges 4, 6 and 8: it was never sent, as far as this ledger knows; that its effect exists is a contradiction."""
    edge = BLOCK_EDGE[operation.state]
    after = replace(operation, state=State.BLOCKED, reason=refusal.reason, next_step="", next_step_at=None)
    moved = await operations.move(conn, operation, after, edge, at, refusal.body())
    living = [e.receipt for e in reading.preflight.effects if e.marked and e.standing is not Standing.VOID]
    if living:  # a ledger restored from an old backup: it says "never sent", and the provider shows the effect
        await operations.mark_contradicted(conn, operation.operation_id)
        body = {"what": "blocked as never sent, but its effect exists", "receipts": living}
        moved = await events.append(conn, moved, EventKind.CONTRADICTION, body)
    return moved


async def _ask(
    conn: Connection, operation: Operation, preflight: Preflight, verdict: policy.Verdict, at: datetime
) -> Operation:
    """Edge 2, with the sheet that people sign on; sheets of competing proposals are made anew so that they name this one."""
    expires = operation.approval_expires_at
    after = replace(
        operation,
        state=State.AWAITING_APPROVAL,
        reason="",
        people_needed=verdict.people_needed,
        next_step="people",
        next_step_at=expires,
    )
    moved = await operations.move(
        conn, operation, after, 2, at, {"people_needed": verdict.people_needed, "why": verdict.sentence}
    )
    moved = await make_sheet(conn, moved, preflight.facts, at)
    for other in await operations.on_target(conn, moved):
        if other.state is State.AWAITING_APPROVAL:
            sheet = await statements.latest_sheet(conn, other.operation_id)
            read = read_sheet(sheet)["read_from_provider_by_us"] if sheet is not None else {}
            await make_sheet(conn, await operations.lock(conn, other.operation_id), read, at)
    return moved


async def make_sheet(conn: Connection, operation: Operation, facts: dict[str, Any], at: datetime) -> Operation:
    """Keep what an approver shall read and sign: the canonical bytes, what we read ourselves, and who else asks."""
    competing = [
        {
            "operation_id": str(o.operation_id),
            "tenant": o.tenant,
            "state": o.state.value,
            "amount": "" if o.amount_minor is None or o.currency is None else shown(o.amount_minor, o.currency),
            "proposed_at": o.proposed_at.isoformat(timespec="seconds"),
        }
        for o in await operations.on_target(conn, operation)
        if o.ended_at is None or reserves(o)
    ]
    if len(competing) > MOST_COMPETING:  # a sheet has a size; that there are more is what matters then
        competing = [*competing[:MOST_COMPETING], {"more": str(len(competing) - MOST_COMPETING)}]
    document = build_sheet(
        json.loads(operation.canonical), facts, competing, int(at.timestamp()), operation.people_needed or 1
    )
    digest = sheet_digest(document)
    await statements.add_sheet(conn, operation.operation_id, digest, document, at)
    return await events.append(conn, operation, EventKind.SHEET_MADE, {"digest": digest.hex()})


async def _wait(conn: Connection, operation: Operation, until: datetime, why: str) -> Operation:
    return await operations.note(conn, operation, replace(operation, next_step=why, next_step_at=until))
