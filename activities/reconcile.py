"""Reconcile: turn unknown into known by evidence. Decide; when the step is a look, look, record it, and decide again."""

from dataclasses import replace
from datetime import datetime, timedelta
from uuid import UUID

from temporalio import activity

from activities.errors import heartbeating, translated
from activities.judgement import is_of
from activities.messages import OperationRef, Progress
from activities.ports import Ports
from activities.progress import tell
from activities.settle import SLOW_LOOK_SECONDS, Evidence, against_end, evidence, note_standing, settle
from ledger import recovery
from ledger.errors import Refused
from ledger.model import Operation, Sighting, Standing, Step
from ledger.states import State
from ledger.store import attempts, configuration, inbox, operations
from ledger.store.database import Connection, now
from providers.port import Credential, Look

SETTLING_STATES = (State.IN_FLIGHT, State.UNKNOWN, State.NEEDS_REVIEW)
CLOCKS_DIFFER_BY = timedelta(minutes=5)  # between the ledger and a provider, at most
FOLLOW_FIRST, FOLLOW_LAST = 30.0, 6 * 3600.0  # seconds between two reads of a pending receipt


class Reconcile:
    """The activity that settles what was sent."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports

    @activity.defn(name="read")
    async def read(self, ref: OperationRef) -> Progress:
        """Where the operation stands, from the ledger alone. Local to its worker, so nobody else can answer for it."""
        async with translated(), self._ports.ledger.transaction() as conn:
            return await tell(conn, await operations.lock(conn, UUID(ref.operation_id), known_events=ref.known_events))

    @activity.defn(name="reconcile")
    async def reconcile(self, ref: OperationRef) -> Progress:
        """Move as far as the evidence allows; look at the provider when a look is due, or now if asked to."""
        async with translated(), heartbeating():
            async with self._ports.ledger.transaction() as conn:
                operation = await operations.lock(conn, UUID(ref.operation_id), known_events=ref.known_events)
                if operation.state not in SETTLING_STATES:
                    progress = await tell(conn, operation)
                    look = operation.ended_at is not None and ref.look_now
                else:
                    operation, progress = await settle(conn, self._ports, operation)
                    look = await self._look_is_due(conn, operation, look_now=ref.look_now)
            if operation.erased_at is not None:
                return progress  # what it was about is gone: no effect could be compared with it
            if operation.ended_at is not None and operation.state is State.SUCCEEDED:
                return await self._follow(operation, progress)
            if not look:
                return progress
            return await look_and_settle(self._ports, operation)

    async def _look_is_due(self, conn: Connection, operation: Operation, *, look_now: bool) -> bool:
        if operation.state not in (State.UNKNOWN, State.NEEDS_REVIEW):
            return False
        facts = await evidence(conn, self._ports, operation)
        if facts.contract.lookup is None and not facts.contract.conditional_write:
            return False
        if operation.state is State.NEEDS_REVIEW:
            return look_now or _slow_look_is_due(facts)
        decision = facts.decide()
        return decision.step is Step.LOOK and (look_now or decision.delay_seconds <= 0)

    async def _follow(self, operation: Operation, progress: Progress) -> Progress:
        """Read a receipt again whose effect may still change; the workflow stays open while it is pending."""
        contract = self._ports.contract_of(operation)
        if not contract.effect_can_change or operation.receipt is None or operation.standing is Standing.VOID:
            return progress
        credential = await credential_of(self._ports, operation)
        provider = self._ports.registry.for_action(operation.action)
        seen = None
        if credential is not None:
            seen = await provider.read_receipt(credential, operation, operation.receipt)
        async with self._ports.ledger.transaction() as conn:
            locked = await operations.lock(conn, operation.operation_id)
            at = await now(conn)
            # What is not void may have been read before somebody else told more: only an unchanged standing takes it over.
            if seen is not None and (seen.standing is Standing.VOID or locked.standing is operation.standing):
                locked = await note_standing(conn, locked, seen.standing, at)
            if locked.standing is not Standing.PENDING:
                return await tell(conn, locked)
            age = (at - (locked.ended_at or at)).total_seconds()
            delay = min(max(age / 2, FOLLOW_FIRST), FOLLOW_LAST)
            noted = replace(locked, next_step="follow", next_step_at=at + timedelta(seconds=delay))
            return await tell(conn, await operations.note(conn, locked, noted))


async def look_and_settle(ports: Ports, operation: Operation) -> Progress:
    """One look at the provider, recorded whatever it saw, and then the decision again."""
    operation = await look(ports, operation)
    async with ports.ledger.transaction() as conn:
        locked = await operations.lock(conn, operation.operation_id)
        if locked.state not in SETTLING_STATES:
            return await tell(conn, locked)
        _, progress = await settle(conn, ports, locked)
        return progress


async def look(ports: Ports, operation: Operation) -> Operation:
    """Ask the provider whether our effect exists and record the sighting. A look that could not be is recorded too."""
    async with ports.ledger.transaction() as conn:
        began_at = await now(conn)
        every = await attempts.read_attempts(conn, operation.operation_id)
        claimed_at = recovery.anchor(every) or operation.proposed_at
        told_by = await inbox.latest_about(conn, operation.operation_id, claimed_at)
    since = claimed_at - CLOCKS_DIFFER_BY
    credential = await credential_of(ports, operation)
    seen = Look(complete=False, detail={"problem": "no credential"})
    if credential is not None:
        seen = await ports.registry.for_action(operation.action).look(credential, operation, since)
    async with ports.ledger.transaction() as conn:
        locked = await operations.lock(conn, operation.operation_id)
        known = {str(o.operation_id): o for o in await operations.on_target(conn, operation)}
        effects = tuple(
            replace(e, matching=False)
            if e.look_alike and is_of(known.get(str(e.summary.get("marker"))), e.receipt)
            else e
            for e in seen.effects
        )
        sighting = Sighting(
            began_at=began_at,
            finished_at=await now(conn),
            complete=seen.complete,
            effects=effects,
            version_moved=seen.version_moved,
            witness_has_marker=seen.witness_has_marker,
            detail=seen.detail | ({"webhook": told_by} if told_by else {}),
        )
        if locked.erased_at is not None:  # while we looked: what it saw counts, what it says would come back for ever
            said_nothing = tuple(replace(e, summary={}) for e in effects)
            sighting = replace(sighting, effects=said_nothing, detail={})
        locked = await attempts.record_sighting(conn, locked, sighting)
        if locked.ended_at is None:
            return locked
        about = {e.receipt for e in effects if e.ours or e.receipt == locked.receipt}
        return await against_end(conn, locked, about, "its effect exists")


async def credential_of(ports: Ports, operation: Operation) -> Credential | None:
    """The credential of the operation's own account; None when it is missing or belongs to another.

    Whose it is, is asked at the provider: another account's list says nothing about this effect.
    """
    async with ports.ledger.transaction() as conn:
        _, document = await configuration.in_force(conn)
    try:
        credential = ports.secrets.credential(document, operation)
    except Refused:
        return None
    owner = await ports.registry.for_action(operation.action).whose(credential)
    if owner is None or (owner.account, owner.livemode) != (operation.account, operation.livemode):
        return None
    return credential


def _slow_look_is_due(facts: Evidence) -> bool:
    last: datetime | None = max((s.finished_at for s in facts.sightings), default=None)
    return last is None or (facts.now - last).total_seconds() >= SLOW_LOOK_SECONDS
