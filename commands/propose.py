"""`propose`: sign a proposal as a service does, ask for it, and wait if asked to."""

import asyncio
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from temporalio.client import WorkflowUpdateFailedError

from activities.messages import ADVICE, Answer, Proposal
from activities.settings import Settings
from commands.amounts import minor_units
from commands.exits import Exit, Misuse
from commands.keys import Signer, signer
from commands.page import Page
from commands.reading import Reader, reading
from commands.surroundings import ledger_dsn, only_dev, settings
from commands.temporal import Temporal, connected
from commands.voice import Voice
from ledger.errors import Refused
from ledger.fingerprint import check_name_fields, check_text, request_digest
from ledger.model import Operation
from ledger.states import State
from ledger.store import events, operations
from ledger.trail import EventKind
from workflows.client import propose as ask
from workflows.client import sign

POLL_SECONDS = 0.2
REFUSALS = (State.BLOCKED, State.REJECTED, State.UNDETERMINED)


@dataclass(frozen=True)
class Wanted:
    """What the caller typed."""

    target: str
    amount: str
    currency: str
    business_key: str
    requested_by: str
    tenant: str = ""
    actor: str = ""
    reason: str = ""
    evidence: list[str] = field(default_factory=list)
    distinct_from: list[str] = field(default_factory=list)


async def refund(
    voice: Voice, wanted: Wanted, name: str, key_file: Path | None, wait: float | None, fault: str
) -> Page:
    """Propose a refund; exit code 3 when it is refused or blocked, 6 when it is not settled after `wait` seconds."""
    given = settings()
    if fault:
        check_fault(given, fault)
    arguments: dict[str, Any] = {
        "amount_minor": minor_units(wanted.amount, wanted.currency),
        "currency": wanted.currency,
        **({"reason": wanted.reason} if wanted.reason else {}),
    }
    evidence = [reference(text) for text in wanted.evidence]
    async with reading(ledger_dsn(given)) as reader:
        who = await signer(reader, name, key_file, granted=True)
        proposal = signed(fitting(wanted, who, arguments, evidence), who)
        temporal = await connected(given)
        if fault:
            number = arm(given, fault, wanted.target)
            voice.note(f"fault {fault} is set at the stand-in for {wanted.target} (rule {number}, fires once)")
        answer = await asked(temporal, proposal)
        if not answer.operation_id:
            return answer_page(answer, None, {}, waited=wait is not None)
        operation = await settled(reader, answer.operation_id, wait, voice)
        async with reader.snapshot() as conn:
            moved = await events.latest_body(conn, UUID(answer.operation_id), EventKind.MOVED)
    return answer_page(answer, operation, moved, waited=wait is not None)


def fitting(wanted: Wanted, who: Signer, arguments: dict[str, Any], evidence: list[dict[str, str]]) -> Proposal:
    """The proposal; tenant and actor default to what the key is granted for."""
    grant = who.document.grant(who.kid)
    assert grant is not None
    actor = wanted.actor or (grant.actors[0] if len(grant.actors) == 1 else "")
    if not actor:
        raise Misuse(f"say in whose name: --actor, one of {', '.join(grant.actors)}")
    return Proposal(
        tenant=wanted.tenant or grant.tenant,
        business_key=wanted.business_key,
        action="refund",
        target=wanted.target,
        arguments=arguments,
        actor=actor,
        requested_by=wanted.requested_by,
        evidence=evidence,
        distinct_from=wanted.distinct_from,
    )


def signed(proposal: Proposal, who: Signer) -> Proposal:
    """The proposal with its token, by the ledger's clock. Refused before anything is sent: what can have no signature."""
    check_name_fields(proposal.tenant, proposal.business_key)
    check_text(proposal.actor, "actor", 120)
    check_text(proposal.requested_by, "requested_by", 120)
    request_digest(
        proposal.action,
        proposal.target,
        proposal.arguments,
        proposal.evidence,
        proposal.distinct_from,
        proposal.expected_version,
        proposal.depends_on,
        proposal.supersedes,
    )
    return sign(proposal, who.key, kid=who.kid, iss=who.owner, aud=who.audience, at=int(who.now.timestamp()))


def reference(text: str) -> dict[str, str]:
    """`ticket=T-77` as evidence. Misuse without a kind or a reference."""
    kind, equals, named = text.partition("=")
    if not (kind and equals and named):
        raise Misuse(f"write evidence as kind=reference, like ticket=T-77, not {text!r}")
    return {"kind": kind, "reference": named}


def check_fault(given: Settings, fault: str) -> None:
    """Return only for a fault that the stand-in of a dev stack can be told. Refused elsewhere: nobody breaks a real one."""
    only_dev(given, "--fault")
    if not given.stripe_base_url:
        raise Refused("not_dev", "--fault needs the stand-in: EFFECTS_STRIPE_BASE_URL is not set", field="fault")
    from devstack.stripe_standin.presets import FAULTS

    if fault not in FAULTS:
        raise Misuse(f"--fault knows {', '.join(FAULTS)}")


def arm(given: Settings, fault: str, target: str) -> int:
    """Set the fault for this payment at the stand-in; the number of its rule."""
    from httpx import HTTPError

    from commands.exits import Silent
    from devstack.stripe_standin.control import StandInControl

    assert given.stripe_base_url is not None
    match: dict[str, Any] = {"payment_intent": target} if target.startswith("pi_") else {}
    try:
        with StandInControl(given.stripe_base_url) as control:
            return control.fault(fault, **match)
    except HTTPError as error:
        raise Silent("the Stripe stand-in", given.stripe_base_url, type(error).__name__) from error


async def asked(temporal: Temporal, proposal: Proposal) -> Answer:
    """The answer to this proposal. Refused: `proposal_malformed`, when its workflow cannot read it."""
    try:
        async with temporal.calling():
            return await ask(temporal.client, proposal, task_queue=temporal.task_queue)
    except Refused as refused:
        if isinstance(refused.__cause__, WorkflowUpdateFailedError):
            raise Refused("proposal_malformed", str(refused)) from refused
        raise


async def settled(reader: Reader, operation_id: str, wait: float | None, voice: Voice) -> Operation | None:
    """The operation as the ledger has it, as soon as it ended with nothing pending, or when the wait is over."""
    loop = asyncio.get_running_loop()
    until = loop.time() + (wait or 0.0)
    told = ""
    while True:
        async with reader.snapshot() as conn:
            operation = await operations.find(conn, UUID(operation_id))
        if operation is None or rests(operation) or loop.time() >= until:
            return operation
        if told != operation.state:
            told = operation.state.value
            voice.note(f"{told} …")
        await asyncio.sleep(POLL_SECONDS)


def rests(operation: Operation) -> bool:
    """Whether it ended and nothing about its receipt is pending."""
    return operation.ended_at is not None and operation.standing != "pending"


def answer_page(answer: Answer, operation: Operation | None, moved: dict[str, Any], *, waited: bool) -> Page:
    """What was answered, and where the ledger stands since, with what its last move says; the later word counts."""
    if operation is not None:
        answer = answer.model_copy(
            update={
                "state": operation.state.value,
                "reason": operation.reason,
                "field": str(moved.get("field") or ""),
                "message": str(moved.get("why") or ""),
                "receipt": operation.receipt or "",
                "ended": operation.ended_at is not None,
                "advice": ADVICE[operation.state.value],
                "until": _iso(operation.next_step_at),
            }
        )
    page = Page(answer.model_dump(mode="json"), exit_code(answer, operation, waited=waited))
    page.title(answer.state + (f": {answer.reason}" if answer.reason else ""))
    page.fact("operation", answer.operation_id)
    page.fact("field", answer.field)
    page.fact("what to do" if page.exit is Exit.REFUSED else "why", answer.message)
    page.fact("receipt", answer.receipt)
    page.fact("next step", answer.until)
    page.say(answer.advice)
    return page


def exit_code(answer: Answer, operation: Operation | None, *, waited: bool) -> Exit:
    """0 unless refused or ended without the effect, or waited for in vain, or not even recorded."""
    if answer.state == "refused" or answer.state in REFUSALS:
        return Exit.REFUSED
    if answer.state == "unrecorded" or (waited and not (operation is not None and rests(operation))):
        return Exit.UNSETTLED
    return Exit.ASKED


def _iso(moment: datetime | None) -> str:
    return "" if moment is None else moment.isoformat(timespec="seconds")
