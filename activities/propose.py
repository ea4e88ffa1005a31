"""Propose: refuse what is invalid before anything is stored, record the operation, read its target and judge it."""

import asyncio
from datetime import timedelta
from typing import Any
from uuid import UUID

from temporalio import activity

from activities import admission, dependencies
from activities.errors import heartbeating, translated
from activities.judgement import READ_SECONDS, judge, read_target
from activities.messages import Next, OperationRef, Progress, Proposal
from activities.ports import Ports
from activities.progress import tell
from ledger import fingerprint
from ledger.config import Document, rule_version
from ledger.errors import Refused
from ledger.model import Operation
from ledger.statement import VerifiedProposal
from ledger.states import State
from ledger.store import configuration, operations
from ledger.store.database import now
from providers.port import Preflight

ANSWER_READ_SECONDS = 3.0  # the caller waits for this one; a slower provider is read again by `judge`


class Propose:
    """The activities before the first send."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports

    @activity.defn(name="propose")
    async def propose(self, proposal: Proposal) -> Progress:
        """Record once and judge; the same proposal again tells where the operation stands. Refusals store nothing."""
        async with translated():
            try:
                operation = await self._find_or_record(proposal)
            except Refused as refused:
                self._ports.meters.proposal_refused(refused.rule)
                return Progress(
                    state="refused", reason=refused.rule, field=refused.field, message=str(refused), next=Next.DONE
                )
            return await self._judge(operation, within=ANSWER_READ_SECONDS)

    @activity.defn(name="judge")
    async def judge(self, ref: OperationRef) -> Progress:
        """Judge again what was not sent: the target was unreadable, people spoke, or the approval may have expired."""
        async with translated(), heartbeating():
            async with self._ports.ledger.transaction() as conn:
                operation = await operations.lock(conn, UUID(ref.operation_id), known_events=ref.known_events)
            return await self._judge(operation, within=READ_SECONDS)

    async def _judge(self, operation: Operation, within: float) -> Progress:
        if operation.state not in (State.PROPOSED, State.AWAITING_APPROVAL):
            async with self._ports.ledger.transaction() as conn:
                return await tell(conn, operation)
        reading = await read_target(self._ports, operation, within)
        async with self._ports.ledger.transaction() as conn:
            await operations.lock_target(conn, operation)
            locked = await operations.lock(conn, operation.operation_id)
            if locked.state not in (State.PROPOSED, State.AWAITING_APPROVAL):
                return await tell(conn, locked)
            return await tell(conn, await judge(conn, locked, reading))

    async def _find_or_record(self, proposal: Proposal) -> Operation:
        """The one operation of this intent. Refused: whatever is wrong with the proposal, with field and rule."""
        fingerprint.check_name_fields(proposal.tenant, proposal.business_key)
        digest = fingerprint.request_digest(
            proposal.action,
            proposal.target,
            proposal.arguments,
            proposal.evidence,
            proposal.distinct_from,
            proposal.expected_version,
            proposal.depends_on,
            proposal.supersedes,
        )
        async with self._ports.ledger.transaction() as conn:
            namespace = await operations.namespace(conn)
            operation_id = fingerprint.operation_id(namespace, proposal.tenant, proposal.business_key)
            known = await operations.find(conn, operation_id)
            if known is not None and known.request_digest == digest:
                self._ports.meters.asked_again()
                return known  # a poll, a restart or a repair: it gives nobody new power, and needs no key
            version, document = await configuration.in_force(conn)
            signed = await admission.principal(conn, document, proposal)
            if known is not None:
                raise _other_content(known, digest)
            resolved = await dependencies.resolve(conn, namespace, proposal)
            proposal = proposal.model_copy(update={"arguments": resolved.arguments})
            admission.check(self._ports.registry, document, proposal, signed.kid)
        target, at_version = await self._read_first(document, proposal, str(operation_id))
        return await self._record(
            proposal,
            document,
            operation_id=operation_id,
            target=target,
            expected_version=at_version,
            depends_on=resolved.depends_on,
            supersedes=resolved.supersedes,
            config_version=version,
            request_digest=digest,
            signed=signed,
        )

    async def _read_first(self, document: Document, proposal: Proposal, marker: str) -> tuple[str, str | None]:
        """The target's one name, and the version that a conditional write is for: read by us, whoever proposes.

        Where that needs a read and the provider does not answer, or the target cannot take it, nothing is recorded.
        """
        provider = self._ports.registry.for_action(proposal.action)
        pure = provider.pure_target(proposal.target)
        if pure is not None and not provider.contract.conditional_write:
            return pure, None
        credential = self._ports.secrets.credential_of(document, proposal.tenant, provider.provider)
        try:
            async with asyncio.timeout(ANSWER_READ_SECONDS):
                found = await provider.preflight(credential, proposal.target, proposal.arguments, marker)
        except TimeoutError:
            found = Preflight(complete=False)
        if not found.complete or not found.target:
            why = "the provider did not say what this is: ask again, or name it by its canonical id"
            raise Refused("target_unreadable", why, field="target")
        if not provider.contract.conditional_write:
            return found.target, None
        if found.unfit:
            raise Refused("target_unfit", str(found.facts.get("unfit", found.unfit)), field=found.unfit_field)
        if not found.version:
            raise Refused(
                "version_missing", "the provider shows no version: nothing can be conditional on it", field="target"
            )
        if proposal.expected_version not in (None, found.version):
            raise Refused(
                "version_stale", "the record is no longer at this version: read it again", field="expected_version"
            )
        return found.target, found.version

    async def _record(
        self, proposal: Proposal, document: Document, *, signed: VerifiedProposal, **identity: Any
    ) -> Operation:
        """Record the operation, or find the one that somebody else just recorded for the same intent."""
        provider = self._ports.registry.for_action(proposal.action)
        binding = document.binding(proposal.tenant, provider.provider)
        currency = proposal.arguments.get("currency")
        rule = document.rule_for(proposal.tenant, proposal.action, currency)
        identity |= {
            "tenant": proposal.tenant,
            "business_key": proposal.business_key,
            "actor": proposal.actor,
            "requested_by": proposal.requested_by,
            "action": proposal.action,
            "provider": provider.provider,
            "account": binding.account,
            "livemode": binding.livemode,
            "arguments": proposal.arguments,
            "amount_minor": proposal.arguments.get("amount_minor"),
            "currency": currency,
            "evidence": proposal.evidence,
            "distinct_from": proposal.distinct_from,
            "equivalence_key": provider.equivalence_key(identity["target"], proposal.arguments),
            "policy_version": rule_version(document, proposal.tenant, proposal.action, currency),
            "idempotency_key": fingerprint.idempotency_key(identity["operation_id"]),
        }
        async with self._ports.ledger.transaction() as conn:
            await admission.check_time(conn, proposal, signed)
            at = await now(conn)
            expires = (at + timedelta(seconds=rule.approval_lifetime_seconds)).replace(microsecond=0)
            canonical = fingerprint.canonical_bytes(
                fingerprint.identity(**identity, approval_expires_at=int(expires.timestamp()))
            )
            operation = Operation(
                **identity,
                canonical=canonical,
                fingerprint=fingerprint.fingerprint(canonical),
                approval_expires_at=expires,
                kid=signed.kid,
                token=proposal.token,
                state=State.PROPOSED,
                proposed_at=at,
                next_step="judge",  # written with the row: lost before it is judged, it is overdue and seen
                next_step_at=at,
            )
            if operation.expected_version is not None and await operations.is_being_changed(conn, operation):
                # Recorded now it would be blocked, for good: its version is about to move.
                why = "another change of this is under way: ask again when that has ended"
                raise Refused("target_busy", why, field="target")
            recorded = await operations.insert(conn, operation, {"kid": signed.kid, "token_of": proposal.actor})
            if recorded is not None:
                return recorded
            known = await operations.find(conn, operation.operation_id)
            if known is None:
                raise Refused(
                    "already_superseded", "somebody revised it just now: supersede that one", field="supersedes"
                )
            if known.request_digest != operation.request_digest:
                raise _other_content(known, operation.request_digest)
            return known


def _other_content(known: Operation, digest: bytes) -> Refused:
    kept, now_sent = known.request_digest.hex()[:16], digest.hex()[:16]
    words = f"this business key stands for {kept}, and was now sent with {now_sent}: one key is one intent"
    return Refused("key_used", words, field="business_key")
