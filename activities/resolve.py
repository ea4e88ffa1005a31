"""Resolve: judge what operators signed about an operation in review against the evidence (edges 19 to 22)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from temporalio import activity

from activities import acceptance
from activities.errors import heartbeating, translated
from activities.judgement import is_of
from activities.messages import Message, Progress
from activities.ports import Ports
from activities.progress import tell
from activities.reconcile import credential_of, look
from activities.settle import Evidence, evidence, settled
from ledger import policy, recovery
from ledger.config import Document
from ledger.errors import Refused
from ledger.model import Operation, SeenEffect, Sighting, Standing
from ledger.statement import Claims, StatementType
from ledger.states import State
from ledger.store import attempts, events, operations, statements
from ledger.store.database import Connection
from ledger.store.statements import Statement
from ledger.trail import EVIDENCE


class Resolve:
    """The activity that settles by people what machines cannot."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports

    @activity.defn(name="resolve")
    async def resolve(self, message: Message) -> Progress:
        """Accept the statement if its signer may say it on the evidence there is; end the operation if that is enough."""
        async with translated(), heartbeating():
            operation_id = UUID(message.operation_id)
            try:
                claims, person = await self._check(operation_id, message)
                if claims.typ is StatementType.LOOK_AGAIN:
                    return await self._look_again(operation_id, message)
                if claims.decision == "happened":
                    return await self._happened(operation_id, message, claims)
                return await self._no_effect_or_nobody_knows(operation_id, message, claims)
            except Refused as refused:
                async with self._ports.ledger.transaction() as conn:
                    operation = await operations.lock(conn, operation_id)
                    operation = await acceptance.refuse(conn, operation, message, refused)
                    progress = await tell(conn, operation)
                    told = {"refused_rule": refused.rule, "field": refused.field, "message": str(refused)}
                    return progress.model_copy(update=told)

    async def _check(self, operation_id: UUID, message: Message) -> tuple[Claims, str]:
        """Who says what, before any network call. Refused with the rule that was broken."""
        async with self._ports.ledger.transaction() as conn:
            operation = await operations.lock(conn, operation_id, known_events=message.known_events)
            signed = await self._signed(conn, operation, message)
            return signed.claims, signed.verified.person

    async def _signed(self, conn: Connection, operation: Operation, message: Message) -> acceptance.Signed:
        signed = await acceptance.read_signed(conn, message, await acceptance.longest_statement(conn, operation))
        claims = signed.claims
        if claims.typ not in (StatementType.RESOLUTION, StatementType.LOOK_AGAIN):
            raise Refused("type_wrong", "resolve takes a resolution or a look_again", field="typ")
        acceptance.check_about(claims, operation)
        policy.may_operate(signed.document, signed.verified.person, operation.tenant, signed.verified.kid)
        if operation.state is not State.NEEDS_REVIEW:
            raise Refused(
                "not_in_review", f"the operation stands at {operation.state}: nothing to resolve", field="sub"
            )
        if await _unseen_evidence(conn, operation, bytes.fromhex(claims.trail_head)):
            raise Refused(
                "evidence_unseen", "evidence came after what you saw: read `effects review` again", field="trail_head"
            )
        return signed

    async def _look_again(self, operation_id: UUID, message: Message) -> Progress:
        """Edge 22: back to unknown, and the next step is a look."""
        async with self._ports.ledger.transaction() as conn:
            operation = await operations.lock(conn, operation_id)
            signed = await self._signed(conn, operation, message)
            contract = self._ports.contract_of(operation)
            if contract.lookup is None:
                raise Refused("no_lookup", "this provider cannot be asked: resolve on other evidence", field="decision")
            facts = await evidence(conn, self._ports, operation)
            operation, _ = await acceptance.keep(conn, operation, signed, facts.now)
            after = replace(
                operation,
                state=State.UNKNOWN,
                reason="look_again",
                look_again_at=facts.now,
                next_step="look",
                next_step_at=facts.now,
            )
            body = {"person": signed.verified.person}
            moved = await operations.move(conn, operation, after, 22, facts.now, body)
            return await tell(conn, moved)

    async def _happened(self, operation_id: UUID, message: Message, claims: Claims) -> Progress:
        """Edge 19: the named receipt is read at the provider; where it cannot be read, two operators must say so."""
        async with self._ports.ledger.transaction() as conn:
            operation = await operations.lock(conn, operation_id)
        seen = await self._read_receipt(operation, claims.receipt)
        async with self._ports.ledger.transaction() as conn:
            operation = await operations.lock(conn, operation_id)
            signed = await self._signed(conn, operation, message)
            facts = await evidence(conn, self._ports, operation)
            if seen is not None and not (seen.ours or seen.look_alike):
                raise Refused(
                    "receipt_differs",
                    "that receipt is another effect than the one asked for: name the one that is",
                    field="receipt",
                )
            if seen is not None and seen.standing is Standing.VOID:
                raise Refused(
                    "receipt_void",
                    "that effect exists no longer: name one that exists, or say did_not_happen",
                    field="receipt",
                )
            if claims.receipt in operation.distinct_from:
                raise Refused(
                    "receipt_distinct",
                    "what was approved says that this effect is another one: name the one that is ours",
                    field="receipt",
                )
            if await _is_anothers(conn, operation, claims.receipt, seen):
                raise Refused(
                    "receipt_taken",
                    "that receipt belongs to another operation: name the one that belongs to this",
                    field="receipt",
                )
            operation, _ = await acceptance.keep(conn, operation, signed, facts.now)
            if seen is None and (missing := await people_missing(conn, signed.document, operation, claims)):
                return await _wait_for_people(conn, operation, missing)
            after = replace(
                operation,
                state=State.SUCCEEDED,
                reason="resolved",
                receipt=claims.receipt,
                standing=seen.standing if seen is not None else Standing.GOOD,
                next_step="follow" if seen is not None and seen.standing is Standing.PENDING else "",
                next_step_at=facts.now if seen is not None and seen.standing is Standing.PENDING else None,
            )
            body: dict[str, Any] = {
                "by": signed.verified.person,
                "read_at_provider": seen is not None,
                "evidence": claims.evidence,
            }
            body |= settled(facts, "person")
            moved = await operations.move(conn, operation, after, 19, facts.now, body)
            return await tell(conn, moved)

    async def _read_receipt(self, operation: Operation, receipt: str) -> SeenEffect | None:
        credential = await credential_of(self._ports, operation)
        if credential is None:
            return None
        provider = self._ports.registry.for_action(operation.action)
        return await provider.read_receipt(credential, operation, receipt)

    async def _no_effect_or_nobody_knows(self, operation_id: UUID, message: Message, claims: Claims) -> Progress:
        """Edges 20 and 21: two operators, on evidence looked up at this moment."""
        async with self._ports.ledger.transaction() as conn:
            operation = await operations.lock(conn, operation_id)
        contract = self._ports.contract_of(operation)
        if contract.lookup is not None:
            await look(self._ports, operation)  # what they certify is checked against what is there now
        async with self._ports.ledger.transaction() as conn:
            operation = await operations.lock(conn, operation_id)
            signed = await self._signed(conn, operation, message)
            facts = await evidence(conn, self._ports, operation)
            if claims.decision == "did_not_happen":
                check_absence(facts, claims, await attempts.read_sightings(conn, operation_id))
            else:
                check_undeterminable(facts)
            operation, _ = await acceptance.keep(conn, operation, signed, facts.now)
            if missing := await people_missing(conn, signed.document, operation, claims):
                return await _wait_for_people(conn, operation, missing)
            edge, state = (20, State.REJECTED) if claims.decision == "did_not_happen" else (21, State.UNDETERMINED)
            after = replace(operation, state=state, reason="resolved", next_step="", next_step_at=None)
            body: dict[str, Any] = {
                "by": await agreeing(conn, signed.document, operation, claims),
                "evidence": claims.evidence,
            }
            body |= settled(facts, "person")
            moved = await operations.move(conn, operation, after, edge, facts.now, body)
            return await tell(conn, moved)


async def agreeing(conn: Connection, document: Document, operation: Operation, claims: Claims) -> list[str]:
    """Different operators who said the same, each on all the evidence there is, and may still say it."""
    given = [s for s in await statements.of_operation(conn, operation.operation_id) if _says_the_same(s, claims)]
    return sorted({s.person for s in given if await still_counts(conn, document, operation, s)})


async def people_missing(conn: Connection, document: Document, operation: Operation, claims: Claims) -> int:
    """How many more operators must say the same where there is no proof."""
    return max(policy.PEOPLE_WITHOUT_PROOF - len(await agreeing(conn, document, operation, claims)), 0)


async def still_counts(conn: Connection, document: Document, operation: Operation, said: Statement) -> bool:
    """Whether the signer of an accepted resolution may still say it, and had seen all evidence there is."""
    signer = policy.Signed(said.person, said.kid)
    if said.trail_head is None or not policy.operators_stand(document, operation.tenant, [signer]):
        return False
    return not await _unseen_evidence(conn, operation, said.trail_head)


def check_absence(facts: Evidence, claims: Claims, ever: Sequence[Sighting]) -> None:
    """Whether two people may certify that nothing happened. Refused: what still could happen, or what was seen."""
    closes = recovery.key_window_ends(facts.contract, facts.attempts)
    if any(a.outcome is None for a in facts.attempts):
        raise Refused("attempt_open", "an attempt is still open: wait for its lease", field="decision")
    if any(a.late_send_at is not None for a in facts.attempts):
        raise Refused(
            "late_send", "a request left later than its guard allows: only `undetermined` is possible", field="decision"
        )
    if closes is not None and facts.now <= closes:
        raise Refused("window_open", f"our key is honoured until {closes:%Y-%m-%d %H:%M:%S}Z: wait", field="decision")
    quiet = recovery.quiet_at(facts.contract, facts.attempts)
    if quiet is not None and facts.now <= quiet:
        raise Refused(
            "not_quiet", f"a request may be worked on until {quiet:%Y-%m-%d %H:%M:%S}Z: wait", field="decision"
        )
    if facts.contract.lookup is None:
        return
    foreign = set(claims.foreign)
    if foreign & set(recovery.known_receipts(facts.attempts, ever)):  # also what a look-again set aside
        raise Refused(
            "receipt_is_ours", "a receipt that carried our marker cannot be certified as foreign", field="foreign"
        )
    kept = tuple(
        replace(s, effects=tuple(e for e in s.effects if e.marked or e.receipt not in foreign)) for s in facts.sightings
    )
    if not recovery.qualified_absence(facts.contract, facts.attempts, kept):
        raise Refused(
            "absence_unproved",
            "two complete looks must show no effect that could be ours; name look-alikes that are others' in --foreign",
            field="foreign",
        )


async def _is_anothers(conn: Connection, operation: Operation, receipt: str, seen: SeenEffect | None) -> bool:
    """Whether the receipt belongs to another operation: it has it already, or the effect carries its marker."""
    if await operations.receipt_taken(conn, operation, receipt):
        return True
    if seen is None or seen.marked:
        return False
    known = {str(o.operation_id): o for o in await operations.on_target(conn, operation)}
    return is_of(known.get(str(seen.summary.get("marker"))), receipt)


def check_undeterminable(facts: Evidence) -> None:
    """Whether people may give up: only when nothing is pending that could still tell, and no effect is known."""
    if any(s is not Standing.VOID for s in recovery.known_receipts(facts.attempts, facts.sightings).values()):
        raise Refused(
            "effect_known", "an effect of ours is on record: resolve `happened` with its receipt", field="decision"
        )
    quiet = recovery.quiet_at(facts.contract, facts.attempts)
    if quiet is not None and facts.now <= quiet:
        raise Refused(
            "not_quiet", f"a request may be worked on until {quiet:%Y-%m-%d %H:%M:%S}Z: wait", field="decision"
        )
    if any(a.outcome is None for a in facts.attempts):
        raise Refused("attempt_open", "an attempt is still open: wait for its lease", field="decision")
    closes = recovery.key_window_ends(facts.contract, facts.attempts)
    if closes is not None and facts.now <= closes:
        raise Refused("window_open", f"our key is honoured until {closes:%Y-%m-%d %H:%M:%S}Z: wait", field="decision")


async def _unseen_evidence(conn: Connection, operation: Operation, head: bytes) -> bool:
    later = await events.evidence_since(conn, operation.operation_id, head, sorted(EVIDENCE))
    return later is None or later > 0


def _says_the_same(said: Statement, claims: Claims) -> bool:
    if said.typ != StatementType.RESOLUTION:
        return False
    other = Claims.from_bytes(said.statement)
    return (other.decision, other.receipt, set(other.foreign)) == (claims.decision, claims.receipt, set(claims.foreign))


async def _wait_for_people(conn: Connection, operation: Operation, missing: int) -> Progress:
    words = f"accepted; {missing} more operator must sign the same"
    return (await tell(conn, operation)).model_copy(update={"message": words})
