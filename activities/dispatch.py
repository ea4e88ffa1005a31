"""Dispatch: claim, send once, write down what came back. Claim, guard and send are one activity; a retry inherits nothing."""

import asyncio
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from temporalio import activity

from activities import dependencies
from activities.dependencies import Met
from activities.errors import heartbeating, translated
from activities.judgement import UNREADABLE_PAUSE, Reading, block, first_send_refusal, read_target
from activities.messages import OperationRef, Progress
from activities.ports import Ports, boottime
from activities.progress import tell
from activities.reconcile import credential_of
from activities.settle import CLOCK_TRUSTED, against_end, authority_gone, distrust_ages, evidence, settle
from ledger import recovery
from ledger.contract import Contract
from ledger.errors import Broken, Refused, Unavailable
from ledger.model import Attempt, Hint, Operation, Outcome, SeenEffect, Sighting, Step
from ledger.states import State
from ledger.store import attempts, clock, configuration, holds, operations
from ledger.store.database import Connection, now
from providers.port import Classified, Credential, Request

HELD_PAUSE = 300.0
DEPENDENCY_FIRST, DEPENDENCY_LAST = 2.0, 600.0  # seconds between two questions whether a dependency has ended


@dataclass(frozen=True)
class Claim:
    """A committed right to send once: the fence, the frozen request, and when the guard started to count."""

    operation: Operation
    request: Request | None  # None where the effect is there already: nothing is sent then
    contract: Contract
    credential: Credential
    stamp: float  # CLOCK_BOOTTIME before the claim's transaction began
    found: tuple[SeenEffect, ...] = ()  # effects with our marker that were there before the first send

    def is_of(self, operation: Operation) -> bool:
        """Whether the operation is in flight by this claim. A restored ledger can give a fence twice, but no lease."""
        own = (self.operation.fence, self.operation.lease_until)
        return (operation.fence, operation.lease_until) == own

    @property
    def send_until(self) -> float:
        """CLOCK_BOOTTIME after which nothing may leave."""
        return self.stamp + self.contract.timing.send_within


@dataclass
class Wire:
    """What the transport told us about one send."""

    late: bool = False  # the bytes left later than the guard allows


class Dispatch:
    """The activity that sends."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports

    @activity.defn(name="dispatch")
    async def dispatch(self, ref: OperationRef) -> Progress:
        """Send the operation once if it may be sent now, and settle on what came back."""
        async with translated(), heartbeating():
            claim = await self._claim(ref)
            if isinstance(claim, Progress):
                return claim
            self._ports.seam("claimed")
            return await _to_its_end(self._send_and_record(claim))

    async def _send_and_record(self, claim: Claim) -> Progress:
        if claim.found:
            # The first send was preceded by a look: what it would do is done (a ledger restored from an old backup).
            return await self._record(claim, _found_before_send(claim), Wire())
        wire = Wire()
        classified = await self._send(claim, wire)
        self._ports.seam("answered")
        progress = await self._record(claim, classified, wire)
        self._ports.seam("recorded")
        return progress

    async def _claim(self, ref: OperationRef) -> Claim | Progress:
        operation_id = UUID(ref.operation_id)
        async with self._ports.ledger.transaction() as conn:
            operation = await operations.lock(conn, operation_id, known_events=ref.known_events)
            if operation.state not in (State.APPROVED, State.UNKNOWN):
                return await tell(conn, operation)
        # Whose the credential is, is asked before every send: a secret can be replaced under the same name.
        reading = await read_target(self._ports, operation) if operation.state is State.APPROVED else None
        credential = await credential_of(self._ports, operation) if operation.state is State.UNKNOWN else None
        stamp = boottime()
        async with self._ports.ledger.transaction() as conn:
            await operations.lock_target(conn, operation)
            locked = await operations.lock(conn, operation_id)
            if locked.state is State.APPROVED and reading is not None:
                return await self._first_claim(conn, locked, reading, stamp)
            if locked.state is State.UNKNOWN:
                return await self._repeat_claim(conn, locked, credential, stamp)
            return await tell(conn, locked)

    async def _first_claim(
        self, conn: Connection, operation: Operation, reading: Reading, stamp: float
    ) -> Claim | Progress:
        """Edge 7 with its full recheck, or 8 or 9, or a wait. Binds every send before which no effect was possible."""
        held = await holds.in_force(conn, operation)
        version, document = await configuration.in_force(conn)
        at = await now(conn)
        operations.check_fingerprint(operation)
        every = await attempts.read_attempts(conn, operation.operation_id)
        refusal = await first_send_refusal(conn, document, operation, reading, at)
        if refusal is not None:
            if not refusal.ask_again:
                return await tell(conn, await block(conn, operation, refusal, at, reading))
            after = replace(
                operation, state=State.AWAITING_APPROVAL, reason=refusal.reason, next_step="judge", next_step_at=at
            )
            return await tell(conn, await operations.move(conn, operation, after, 9, at, refusal.body()))
        found = tuple(e for e in reading.preflight.effects if e.marked)
        if any(hold.scope == holds.RESTORED for hold in held):  # nothing at all is claimed: it may have been before
            return await self._wait(conn, operation, HELD_PAUSE, "restored: held until people release it", at)
        if held and not found:  # what is there already is settled on, and nothing is sent
            return await self._wait(conn, operation, HELD_PAUSE, "held", at)
        if await dependencies.met(conn, operation) is not Met.YES:
            return await self._wait(conn, operation, _dependency_pause(operation, at), "a dependency", at)
        if not reading.preflight.complete or reading.credential is None:
            return await self._wait(conn, operation, UNREADABLE_PAUSE, reading.problem, at)
        if await clock.ahead_seconds(conn) > CLOCK_TRUSTED:
            return await self._wait(conn, operation, UNREADABLE_PAUSE, "the clock was set back", at)
        pause = _pause_after_no_effect(self._ports.contract_of(operation), every, at)
        if pause > 0:
            return await self._wait(conn, operation, pause, "backing off", at)
        contract = self._ports.contract_of(operation)
        # Where our own effect has moved the version, no request could be built any more, and none is needed.
        request = None if found else self._request(operation, reading.preflight.basis, reading.credential)
        rule = document.rule_for(operation.tenant, operation.action, operation.currency)
        prepared = replace(
            operation,
            frozen_request=operation.frozen_request or (vars(request) if request else None),
            frozen_contract=operation.frozen_contract or contract.model_dump(mode="json"),
            first_claimed_at=operation.first_claimed_at or at,
            review_at=operation.review_at or at + timedelta(seconds=rule.review_after_seconds),
        )
        body = {"config_version": version, "review_at": prepared.review_at and prepared.review_at.isoformat()}
        claimed = await self._open(conn, operation, prepared, contract, 7, at, body)
        if found:
            look = Sighting(reading.began_at, at, True, reading.preflight.effects, detail={"preflight": True})
            claimed = await attempts.record_sighting(conn, claimed, look)
        return Claim(claimed, request, contract, reading.credential, stamp, found)

    async def _repeat_claim(
        self, conn: Connection, operation: Operation, credential: Credential | None, stamp: float
    ) -> Claim | Progress:
        """Edge 14: the decision is taken again here, under the locks; anything but a repeat is for `reconcile`."""
        operation = await distrust_ages(conn, operation)
        facts = await evidence(conn, self._ports, operation)
        operations.check_fingerprint(operation)
        if facts.decide().step is not Step.REPEAT:
            _, progress = await settle(conn, self._ports, operation)
            return progress
        if credential is None:
            return await self._wait(conn, operation, UNREADABLE_PAUSE, "credential", facts.now)
        request = self._request(operation, {}, credential)
        body = {"row": facts.decide().row}
        claimed = await self._open(conn, operation, operation, facts.contract, 14, facts.now, body)
        return Claim(claimed, request, facts.contract, credential, stamp)

    async def _open(
        self,
        conn: Connection,
        before: Operation,
        prepared: Operation,
        contract: Contract,
        edge: int,
        at: datetime,
        body: Mapping[str, Any],
    ) -> Operation:
        lease_until = at + timedelta(seconds=contract.timing.lease)
        after = replace(
            prepared,
            state=State.IN_FLIGHT,
            reason="",
            fence=before.fence + 1,
            lease_until=lease_until,
            next_step="answer",
            next_step_at=lease_until,
        )
        moved = await operations.move(conn, before, after, edge, at, dict(body))
        attempt = Attempt(number=moved.fence, claimed_at=at, lease_until=lease_until)
        return await attempts.open_attempt(conn, moved, attempt, self._ports.worker)

    def _request(self, operation: Operation, basis: Mapping[str, Any], credential: Credential) -> Request:
        """The frozen request; before the first claim, the one that will be frozen."""
        if operation.frozen_request is not None:
            return Request(**operation.frozen_request)
        built = self._ports.registry.for_action(operation.action).build_request(operation, basis)
        return replace(built, endpoint=credential.endpoint, archive=credential.archive)

    async def _send(self, claim: Claim, wire: Wire) -> Classified:
        assert claim.request is not None
        provider = self._ports.registry.for_action(claim.operation.action)

        async def guard() -> bool:
            if not await self._may_still_send(claim):
                return False
            self._ports.seam("guarded")
            return boottime() < claim.send_until

        def after_write() -> None:
            wire.late = boottime() >= claim.send_until
            self._ports.seam("written")

        return await provider.send(claim.credential, claim.operation, claim.request, claim.contract, guard, after_write)

    async def _may_still_send(self, claim: Claim) -> bool:
        """Own fence, still in flight, nothing held or revoked since the claim. Any doubt is a no."""
        try:
            async with asyncio.timeout(max(claim.send_until - boottime(), 0.0)):
                async with self._ports.ledger.transaction() as conn:
                    operation = await operations.lock(conn, claim.operation.operation_id)
                    if operation.state is not State.IN_FLIGHT or not claim.is_of(operation):
                        return False
                    if await holds.in_force(conn, operation):
                        return False
                    _, document = await configuration.in_force(conn)
                    return not await authority_gone(conn, document, operation)
        except (Unavailable, Refused, TimeoutError):
            return False

    async def _record(self, claim: Claim, classified: Classified, wire: Wire) -> Progress:
        """Write the answer down, however long our own Postgres takes: an answer not kept is an effect not proved."""
        pause = 0.2
        while True:
            try:
                progress, late = await self._record_once(claim, classified, wire)
            except Unavailable:
                activity.logger.warning("the ledger does not answer; the answer of the provider waits in memory")
                await asyncio.sleep(pause)
                pause = min(pause * 2, 5.0)
                continue
            if late:
                # The workflow went on without this answer: it may settle now what it could not before.
                await self._ports.wake(claim.operation.name)
            return progress

    async def _record_once(self, claim: Claim, classified: Classified, wire: Wire) -> tuple[Progress, bool]:
        """The progress, and whether the lease was lost meanwhile: then this is evidence, and moves nothing by itself."""
        async with self._ports.ledger.transaction() as conn:
            operation = await operations.lock(conn, claim.operation.operation_id)
            at = await now(conn)
            number = claim.operation.fence
            every = await attempts.read_attempts(conn, operation.operation_id)
            own = (number, claim.operation.lease_until)
            before = next((a for a in every if (a.number, a.lease_until) == own), None)
            if before is None:
                raise Broken(
                    f"operation {operation.operation_id}: this ledger forgot attempt {number}; it was restored"
                )
            answered = replace(
                before,
                outcome=classified.outcome,
                hint=classified.hint,
                stored=classified.stored,
                receipt=classified.receipt,
                standing=classified.standing,
                answered_at=at,
                # The moment of the late byte is not known in ledger time; now is later, which is the safe side.
                late_send_at=at if wire.late else None,
                detail={} if operation.erased_at is not None else classified.detail,
            )
            operation = await attempts.answer(conn, operation, answered)
            if operation.state is State.IN_FLIGHT and claim.is_of(operation):
                _, progress = await settle(conn, self._ports, operation)
                return progress, False
            if operation.ended_at is not None and classified.outcome is Outcome.APPLIED:
                operation = await against_end(
                    conn, operation, {classified.receipt or ""}, "a late answer tells of an effect"
                )
            return await tell(conn, operation), True

    async def _wait(self, conn: Connection, operation: Operation, seconds: float, why: str, at: datetime) -> Progress:
        after = replace(operation, next_step=f"dispatch ({why})", next_step_at=at + timedelta(seconds=seconds))
        return await tell(conn, await operations.note(conn, operation, after))


async def _to_its_end(sending: Coroutine[Any, Any, Progress]) -> Progress:
    """Send and record even when Temporal gave this try up meanwhile, as after a stopped process: evidence is never dropped.

    Only a worker that shuts down and has waited longer than any lease gives up; the attempt is then found open.
    """
    task = asyncio.ensure_future(sending)
    while True:
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled() or activity.is_worker_shutdown():
                task.cancel()
                raise


def _found_before_send(claim: Claim) -> Classified:
    """What the look before the first send means: exactly one effect of ours is the effect, anything else a person sees."""
    ours = [e for e in claim.found if e.ours]
    if len(claim.found) == 1 and ours:
        detail = {"found_before_send": True}
        return Classified(Outcome.APPLIED, receipt=ours[0].receipt, standing=ours[0].standing, detail=detail)
    return Classified(Outcome.UNKNOWN, Hint.MISMATCH, detail={"found_before_send": len(claim.found)})


def _dependency_pause(operation: Operation, at: datetime) -> float:
    """A tenth of the time since the proposal: prompt where the other one is quick, cheap where people take days."""
    waited = (at - operation.proposed_at).total_seconds()
    return min(max(waited / 10, DEPENDENCY_FIRST), DEPENDENCY_LAST)


def _pause_after_no_effect(contract: Contract, every: list[Attempt], at: datetime) -> float:
    if not every:
        return 0.0
    told = every[-1].answered_at or every[-1].lease_until
    return (told + timedelta(seconds=recovery.backoff_seconds(contract, len(every))) - at).total_seconds()
