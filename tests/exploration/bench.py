"""The real activities, one transaction a call: what they made of the rows, what they moved, and what they told their worker.

1. Everything that decides is imported and executed: claims, guard, settling, looking, judging, resolving.
2. A call is a function of the rows and its arguments, so its outcome is kept and never computed twice.
3. Mirrored is only which transaction follows which (`system.py`), and that people's signatures were verified.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

from activities import acceptance, dispatch, judgement, reconcile, resolve, settle
from activities.approve import Approve
from activities.dispatch import Claim, Dispatch, Wire
from activities.messages import Message, MessageKind, OperationRef
from activities.ports import Ports, Secrets
from activities.reconcile import Reconcile
from activities.resolve import Resolve
from ledger.contract import Contract
from ledger.errors import LedgerError, Refused
from ledger.model import Operation, Outcome, SeenEffect, Standing
from ledger.states import State
from ledger.store import operations
from providers.port import Classified, Look, Preflight, Request
from tests.exploration.memory import CREDENTIAL, Desk, Move, Rows, Write, run
from tests.exploration.shapes import CAPTURED, TICK, at, document

STRANGER = 9  # the owner of what carries our marker and is something else
LOOK_AND_SETTLE = reconcile.look_and_settle


class Context(NamedTuple):
    """What a transaction finds besides rows: ticks of ledger time, how far that is ahead of the wall, holds, authority."""

    now: int
    ahead: int
    held: bool
    config: int


class Effect(NamedTuple):
    """One effect at the receiver, as it is there."""

    owner: int  # the operation that asked for it
    receipt: int
    tick: int
    standing: Standing
    marked: bool

    @property
    def living(self) -> bool:
        """Whether it is there, or is still to be: not void."""
        return self.standing is not Standing.VOID


class Seen(NamedTuple):
    """What a reading or a look showed."""

    complete: bool
    effects: tuple[Effect, ...]
    moved: bool
    tick: int


class Told(NamedTuple):
    """The outcome of a call: rows by number, what the worker goes on with, and what was moved."""

    rows: int
    word: Any
    moves: tuple[Move, ...]
    writes: tuple[Write, ...]


class _Ports(Ports):
    """Ports whose contract is the shape's: freezing is the store's matter, not explored here."""

    def contract_of(self, operation: Operation) -> Contract:
        return self.registry.contract  # type: ignore[attr-defined,no-any-return]


@dataclass
class Adapter:
    """A provider that answers from what the receiver of the model showed."""

    contract: Contract
    looked: Look = field(default_factory=lambda: Look(complete=False))
    read: SeenEffect | None = None
    asks: str = "guard"
    allowed: bool = False

    def for_action(self, action: str) -> "Adapter":
        """The registry of one."""
        return self

    def build_request(self, operation: Operation, basis: Mapping[str, Any]) -> Request:
        """One refund."""
        return Request("refund", {}, operation.idempotency_key, operation.account, "1")

    async def send(
        self, credential: Any, operation: Operation, request: Any, contract: Any, guard: Any, after_write: Any
    ) -> Classified:
        """Ask the guard, or tell that the bytes left: the worker of the model does these at different moments."""
        if self.asks == "guard":
            self.allowed = await guard()
        else:
            after_write()
        return Classified(Outcome.UNKNOWN)

    async def look(self, credential: Any, operation: Operation, since: datetime) -> Look:
        """What was seen."""
        return self.looked

    async def read_receipt(self, credential: Any, operation: Operation, receipt: str) -> SeenEffect | None:
        """What was seen of this receipt."""
        return self.read


class Bench:
    """All rows that were reached, by number, and the calls that lead from one to the next."""

    def __init__(self, contract: Contract) -> None:
        self.contract = contract
        self.rows: list[Rows] = []
        self._numbers: dict[Any, int] = {}
        self._told: dict[Any, Told] = {}
        self._adapter = Adapter(contract)

    def number(self, rows: Rows) -> int:
        """The number of these rows; equal rows have one."""
        key = (rows.operation.fingerprint, rows.key())
        found = self._numbers.setdefault(key, len(self.rows))
        if found == len(self.rows):
            self.rows.append(rows)
        return found

    def call(self, name: str, at_rows: tuple[int, ...], i: int, context: Context, *given: Any) -> Told:
        """One transaction of an activity on operation `i`."""
        key = (name, at_rows, i, context, given)
        told = self._told.get(key)
        if told is None:
            told = self._told[key] = self._call(name, at_rows, i, context, given)
        return told

    def _call(self, name: str, at_rows: tuple[int, ...], i: int, context: Context, given: tuple[Any, ...]) -> Told:
        others = tuple(self.rows[n] for k, n in enumerate(at_rows) if k != i)
        desk = Desk(
            self.rows[at_rows[i]],
            others=others,
            times=[at(context.now)],
            ahead=context.ahead * TICK,
            held=context.held,
            config=context.config,
        )
        ports = _Ports(ledger=desk, registry=self._adapter, secrets=Secrets(None), worker="w")  # type: ignore[arg-type]
        try:
            word = getattr(self, f"_{name}")(desk, ports, i, *given)
        except Refused as refused:
            word = ("refused", refused.rule)
        except (LedgerError, AssertionError, LookupError) as error:
            word = ("broke", f"{type(error).__name__}: {error}")
        return Told(self.number(desk.rows), word, tuple(desk.moves), tuple(desk.writes))

    def _judge(self, desk: Desk, ports: Ports, i: int, reading: Seen) -> None:
        operation = desk.rows.operation
        if operation.state in (State.PROPOSED, State.AWAITING_APPROVAL):  # as in `Propose.judge`
            run(judgement.judge(desk, operation, self._reading(desk, i, reading)))  # type: ignore[arg-type]

    def _claim(self, desk: Desk, ports: Ports, i: int, stamp: int, reading: Seen) -> Any:
        desk.reading, desk.boot, desk.began = self._reading(desk, i, reading), stamp * TICK, at(stamp)
        with patch.object(dispatch, "boottime", lambda: desk.boot):
            claim = run(Dispatch(ports)._claim(_ref(desk)))
        if not isinstance(claim, Claim):
            return None
        return claim.operation.fence, bool(claim.found)

    def _guard(self, desk: Desk, ports: Ports, i: int, fence: int, stamp: int, boot: int) -> Any:
        """The first half of the guard: the ledger read again."""
        with patch.object(dispatch, "boottime", lambda: boot * TICK):
            return run(Dispatch(ports)._may_still_send(self._claimed(desk, fence, stamp)))

    def _in_time(self, desk: Desk, ports: Ports, i: int, stamp: int, boot: int) -> bool:
        """The second half: the clock. Run by the real closures of `_send`, with the first half answered yes."""
        self._adapter.asks = "guard"
        yes = patch.object(Dispatch, "_may_still_send", _yes)
        with yes, patch.object(dispatch, "boottime", lambda: boot * TICK):
            run(Dispatch(ports)._send(self._claimed(desk, 1, stamp), Wire()))
        return self._adapter.allowed

    def _late(self, desk: Desk, ports: Ports, i: int, stamp: int, boot: int) -> bool:
        """Whether the real closure of `_send` calls this write late."""
        wire = Wire()
        self._adapter.asks = "written"
        with patch.object(dispatch, "boottime", lambda: boot * TICK):
            run(Dispatch(ports)._send(self._claimed(desk, 1, stamp), wire))
        return wire.late

    def _record(self, desk: Desk, ports: Ports, i: int, fence: int, answer: tuple[Any, ...], late: bool) -> Any:
        """The answer is written down; told is whether it came after the lease was lost."""
        outcome, hint, stored, receipt, standing = answer
        classified = Classified(outcome, hint, stored, None if receipt is None else f"re_{receipt}", standing)
        return run(Dispatch(ports)._record_once(self._claimed(desk, fence, 0), classified, Wire(late)))[1]

    def _found(self, desk: Desk, ports: Ports, i: int, fence: int, reading: Seen) -> None:
        effects = self._reading(desk, i, reading).preflight.effects
        claim = self._claimed(desk, fence, 0, tuple(e for e in effects if e.marked))
        run(Dispatch(ports)._record_once(claim, dispatch._found_before_send(claim), Wire()))

    def _reconcile(self, desk: Desk, ports: Ports, i: int, look_now: bool) -> Any:
        """The first transaction of `reconcile`; a look that it wants is the worker's next step."""
        with patch.object(reconcile, "look_and_settle", _wants_look), patch.object(Reconcile, "_follow", _wants_follow):
            return run(Reconcile(ports).reconcile(_ref(desk, look_now)))

    def _follow(self, desk: Desk, ports: Ports, i: int, before: Standing, effect: Effect | None) -> None:
        """What was read of the receipt is written down; `before` is the standing of when the worker began to read."""
        self._adapter.read = None
        if effect is not None:
            (self._adapter.read,) = self._effects(desk, i, Seen(True, (effect,), True, 0))
        begun: Any = _changed(desk.rows.operation, {"standing": before})
        run(Reconcile(ports)._follow(begun, None))  # type: ignore[arg-type]

    def _look(self, desk: Desk, ports: Ports, i: int, began: int, seen: Seen) -> None:
        desk.times = [at(began), *desk.times]
        self._adapter.looked = self._looked(desk, i, seen)
        run(reconcile.look(ports, desk.rows.operation))

    def _settle(self, desk: Desk, ports: Ports, i: int) -> None:
        with patch.object(reconcile, "look", _looked_before):
            run(LOOK_AND_SETTLE(ports, desk.rows.operation))

    def _say(self, desk: Desk, ports: Ports, i: int, person: str) -> None:
        """An approval, already verified: `Approve._accept` keeps it and asks for judgement."""
        desk.rows = desk.rows._replace(said=(*desk.rows.said, person))
        if desk.rows.operation.state is State.AWAITING_APPROVAL:
            noted = {"next_step": "judge", "next_step_at": desk.times[0]}
            run(operations.note(desk, desk.rows.operation, _changed(desk.rows.operation, noted)))  # type: ignore[arg-type]

    def _withdraw(self, desk: Desk, ports: Ports, i: int) -> None:
        desk.rows = desk.rows._replace(said=(*desk.rows.said, "withdrawal"))
        run(Approve(ports)._withdraw(desk, desk.rows.operation, desk.times[0], {}))  # type: ignore[arg-type]

    def _look_again(self, desk: Desk, ports: Ports, i: int) -> None:
        desk.times = [desk.times[0] + timedelta(seconds=TICK / 2)]  # strictly after every look of this tick
        with _signed(""):
            run(Resolve(ports)._look_again(desk.rows.operation.operation_id, _MESSAGE))

    def _certify(self, desk: Desk, ports: Ports, i: int, decision: str, seen: Seen) -> None:
        """Two operators say `did_not_happen` or `undetermined`, on a look of this moment."""
        self._adapter.looked = self._looked(desk, i, seen)
        with _signed(decision) as claims:
            run(Resolve(ports)._no_effect_or_nobody_knows(desk.rows.operation.operation_id, _MESSAGE, claims))

    def _happened(self, desk: Desk, ports: Ports, i: int, seen: Seen) -> None:
        """An operator names the receipt that they found; it is read again."""
        (self._adapter.read,) = self._looked(desk, i, seen).effects
        with _signed("happened", self._adapter.read.receipt) as claims:
            run(Resolve(ports)._happened(desk.rows.operation.operation_id, _MESSAGE, claims))

    def _decision(self, desk: Desk, ports: Ports, i: int) -> tuple[str, str]:
        """What the settling code would decide here: for invariants, not for a worker."""
        facts = run(settle.evidence(desk, ports, desk.rows.operation))  # type: ignore[arg-type]
        decided = facts.decide()
        return decided.row, decided.step.value

    def _claimed(self, desk: Desk, fence: int, stamp: int, found: tuple[SeenEffect, ...] = ()) -> Claim:
        lease = next((a.lease_until for a in desk.rows.attempts if a.number == fence), None)
        snapshot = _changed(desk.rows.operation, {"fence": fence, "state": State.IN_FLIGHT, "lease_until": lease})
        request = self._adapter.build_request(snapshot, {})
        return Claim(snapshot, request, self.contract, CREDENTIAL, stamp * TICK, found)

    def _reading(self, desk: Desk, i: int, seen: Seen) -> judgement.Reading:
        operation = desk.rows.operation
        ids = dict(zip((i, 1 - i), [str(o.operation_id) for o in (operation, *desk.others_operations)], strict=False))
        preflight = Preflight(
            complete=seen.complete,
            target=operation.target,
            version=None if operation.expected_version is None else "v2" if seen.moved else "v1",
            amount_minor=CAPTURED,
            currency="eur",
            effects=self._effects(desk, i, seen),
            markers={f"re_{e.receipt}": ids[e.owner] for e in seen.effects if e.marked and e.owner in ids},
        )
        return judgement.Reading(preflight, CREDENTIAL, at(seen.tick), "" if seen.complete else "provider unreadable")

    def _effects(self, desk: Desk, i: int, seen: Seen) -> tuple[SeenEffect, ...]:
        every = (desk.rows.operation, *desk.others_operations)
        amounts = dict(zip((i, 1 - i), [o.amount_minor for o in every], strict=False))
        ids = dict(zip((i, 1 - i), [str(o.operation_id) for o in every], strict=False))
        return tuple(
            SeenEffect(
                f"re_{e.receipt}",
                e.standing,
                marked=e.marked and e.owner in (i, STRANGER),
                matching=amounts.get(e.owner) == amounts[i],
                summary={"amount": amounts.get(e.owner, 1), "marker": ids.get(e.owner) if e.marked else None},
            )
            for e in seen.effects
        )

    def _looked(self, desk: Desk, i: int, seen: Seen) -> Look:
        if not seen.complete:
            return Look(complete=False)
        versioned = self.contract.conditional_write
        witness = any(e.owner == i for e in seen.effects) if self.contract.witness else None
        return Look(True, self._effects(desk, i, seen), seen.moved if versioned else None, witness)


@lru_cache
def bench_of(contract: Contract) -> Bench:
    """One bench for every scenario of this contract: what one computed, the next one knows. Not for code that is changed."""
    return Bench(contract)


_MESSAGE = Message(kind=MessageKind.RESOLVE)


@contextmanager
def _signed(decision: str, receipt: str = "") -> Iterator[Any]:
    """People's sentences are taken as verified, and two operators as agreeing: what is explored is what they may say."""
    claims = SimpleNamespace(decision=decision, receipt=receipt, evidence="", foreign=[], typ="resolution")
    signed = SimpleNamespace(claims=claims, document=document(0), verified=SimpleNamespace(person="olga", kid=""))

    async def signed_now(self: Any, conn: Any, operation: Operation, message: Any) -> Any:
        if operation.state is not State.NEEDS_REVIEW:
            raise Refused("not_in_review", "nothing to resolve")
        return signed

    with (
        patch.object(Resolve, "_signed", signed_now),
        patch.object(acceptance, "keep", _kept),
        patch.object(resolve, "people_missing", _nobody_missing),
        patch.object(resolve, "agreeing", _both),
    ):
        yield claims


async def _kept(conn: Any, operation: Operation, signed: Any, at: datetime) -> tuple[Operation, bool]:
    return operation, True


async def _nobody_missing(*_: Any) -> int:
    return 0


async def _both(*_: Any) -> list[str]:
    return ["olga", "oscar"]


async def _yes(*_: Any) -> bool:
    return True


async def _wants_look(ports: Any, operation: Operation) -> str:
    return "look"


async def _wants_follow(self: Any, operation: Operation, progress: Any) -> str:
    return "follow"


async def _looked_before(ports: Any, operation: Operation) -> Operation:
    return operation


def _changed(operation: Operation, fields: dict[str, Any]) -> Operation:
    return replace(operation, **fields)


def _ref(desk: Desk, look_now: bool = False) -> OperationRef:
    return OperationRef(operation_id=str(desk.rows.operation.operation_id), look_now=look_now)
