"""Take an order: check all of it before its first step, and tell where its steps stand. Starts and sends nothing itself."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

from temporalio import activity

from activities import admission
from activities.dependencies import PLACE
from activities.errors import translated
from activities.messages import Next, Proposal
from activities.order import Keys, Order, Plan, PlannedStep, Step, StepView, Views, plan
from activities.ports import Ports
from activities.progress import next_of, objection
from ledger import fingerprint
from ledger.config import Document
from ledger.errors import Refused
from ledger.model import Operation, Sighting
from ledger.states import State
from ledger.store import attempts, configuration, dependencies, events, operations
from ledger.store.database import Connection
from ledger.trail import EventKind


class TakeOrder:
    """The activities of `OrderToInvoiceWorkflow`, both local to its worker."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports

    @activity.defn(name="plan_order")
    async def plan_order(self, order: Order) -> Plan:
        """The steps of the order; or what is wrong with one of them, and nothing is begun.

        Once a step is recorded, an order is no longer refused as a whole: each step tells for itself where it stands.
        """
        async with translated():
            try:
                steps = plan(order)
                for planned in steps:
                    with _naming(planned.step):
                        self._check_form(planned.proposal)
                async with self._ports.ledger.transaction() as conn:
                    if not await _any_recorded(conn, steps):
                        _, document = await configuration.in_force(conn)
                        for planned in steps:
                            with _naming(planned.step):
                                await self._check_leave(conn, document, planned.proposal)
            except Refused as refused:
                return Plan(reason=refused.rule, field=refused.field, message=str(refused))
            return Plan(steps=steps)

    def _check_form(self, proposal: Proposal) -> None:
        """A wrong address is found before somebody approves the invoice, not after it exists."""
        fingerprint.check_name_fields(proposal.tenant, proposal.business_key)
        fingerprint.check_evidence(proposal.evidence)
        provider = self._ports.registry.for_action(proposal.action)
        provider.check_target(proposal.target)
        provider.check_arguments(_with_some_receipt(proposal.arguments))

    async def _check_leave(self, conn: Connection, document: Document, proposal: Proposal) -> None:
        """So is a key that may not send the mail, or a tenant that has no address book. Asked again when it is recorded."""
        signed = await admission.principal(conn, document, proposal)
        filled = proposal.model_copy(update={"arguments": _with_some_receipt(proposal.arguments)})
        admission.check(self._ports.registry, document, filled, signed.kid)

    @activity.defn(name="order_steps")
    async def order_steps(self, keys: Keys) -> Views:
        """Where the steps stand, from the ledger alone."""
        async with translated(), self._ports.ledger.transaction() as conn:
            namespace = await operations.namespace(conn)
            views = []
            for step, business_key in keys.steps.items():
                operation_id = fingerprint.operation_id(namespace, keys.tenant, business_key)
                operation = await operations.find(conn, operation_id)
                if operation is not None and operation.request_digest.hex() != keys.digests[step]:
                    views.append(_another_content(step, operation))
                    continue
                views.append(
                    StepView(step=step, business_key=business_key)
                    if operation is None
                    else await _view(conn, operation, step)
                )
            return Views(steps=views)


async def _any_recorded(conn: Connection, steps: list[PlannedStep]) -> bool:
    """Whether one of these keys was used already, in this revision."""
    namespace = await operations.namespace(conn)
    for proposal in (planned.proposal for planned in steps):
        operation_id = fingerprint.operation_id(namespace, proposal.tenant, proposal.business_key)
        if await operations.find(conn, operation_id) is not None:
            return True
    return False


@contextmanager
def _naming(step: Step) -> Iterator[None]:
    """A refusal names the step that it is about."""
    try:
        yield
    except Refused as refused:
        where = f"{step}: {refused.field}" if refused.field else step.value
        raise Refused(refused.rule, str(refused), field=where) from refused


@dataclass(frozen=True)
class _Facts:
    operation: Operation
    since: datetime
    looked: Sighting | None
    why: str  # it was blocked


async def _view(conn: Connection, operation: Operation, step: Step) -> StepView:
    needed = (await dependencies.read(conn, [operation.operation_id]))[operation.operation_id]
    trail = await events.read(conn, operation.operation_id)
    since = next(e.at for e in reversed(trail) if e.kind is EventKind.MOVED)
    seen = await attempts.read_sightings(conn, operation.operation_id)
    met = needed.state is State.SUCCEEDED and needed.stands
    field, message = objection(operation, trail)
    facts = _Facts(operation, since, seen[-1] if seen else None, message)
    return StepView(
        step=step,
        business_key=operation.business_key,
        operation_id=str(operation.operation_id),
        state=operation.state,
        reason=operation.reason,
        field=field,
        message=message,
        receipt=operation.receipt or "",
        since=_clock(since),
        until="" if operation.next_step_at is None else _clock(operation.next_step_at),
        # what is pending at the provider is followed by its own workflow
        ended=operation.ended_at is not None,
        met=met,
        sentence=_sentence(facts, met=met),
    )


def _another_content(step: Step, operation: Operation) -> StepView:
    """The key was used for something else: an order that changed is not done because its former self was."""
    done = operation.state is State.SUCCEEDED
    rest = (
        "it is done, and never revised: give a changed order a number of its own" if done else _how_to_revise(operation)
    )
    why = f"its key stands for another content, recorded {_clock(operation.proposed_at)}: {rest}"
    return StepView(
        step=step,
        business_key=operation.business_key,
        operation_id=str(operation.operation_id),
        state="refused",
        reason="key_used",
        field="order",
        message=why,
        ended=True,
        sentence=why,
    )


def _sentence(facts: _Facts, *, met: bool) -> str:
    """One sentence for people: what is known, since when, and what happens next."""
    operation, since = facts.operation, _clock(facts.since)
    due = "" if operation.next_step_at is None else _clock(operation.next_step_at)
    match operation.state:
        case State.SUCCEEDED:
            return (
                f"done: {operation.receipt}"
                if met
                else f"was done as {operation.receipt}, and is contradicted or undone"
            )
        case State.UNKNOWN:
            looked = "" if facts.looked is None else f", last looked at {_clock(facts.looked.finished_at)}"
            return f"unknown since {since}{looked}, next {operation.next_step} at {due}"
        case State.NEEDS_REVIEW:
            return f"unknown, a person must settle it (in review since {since}: {operation.reason})"
        case State.AWAITING_APPROVAL:
            return f"waits for people since {since}, until {due}"
        case State.REJECTED | State.BLOCKED | State.UNDETERMINED:
            why = f" ({facts.why})" if facts.why else ""
            told = f"{operation.state} since {since}: {operation.reason or 'nobody can know'}{why}"
            return told if operation.state is State.UNDETERMINED else f"{told}; {_how_to_revise(operation)}"
        case _:
            doing = "" if next_of(operation) is Next.DONE else f", next {operation.next_step} at {due}"
            return f"{operation.state} since {since}{doing}"


def _how_to_revise(operation: Operation) -> str:
    step, _, number = operation.business_key.rpartition("/")[2].partition(".")
    return f'to try anew, give the order with "revisions": {{"{step}": {int(number or 0) + 1}}}'


def _clock(at: datetime) -> str:
    return at.strftime("%Y-%m-%d %H:%M:%S UTC")


def _with_some_receipt(value: object) -> dict[str, object]:
    """The arguments as they will look: with a receipt in its place, whichever it will be."""

    def filled(part: object) -> object:
        if isinstance(part, dict):
            return {name: filled(inner) for name, inner in part.items()}
        if isinstance(part, list):
            return [filled(inner) for inner in part]
        return part.replace(PLACE, "account.invoice,1") if isinstance(part, str) else part

    told = filled(value)
    assert isinstance(told, dict)
    return told
