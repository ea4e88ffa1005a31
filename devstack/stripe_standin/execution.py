"""What the API does once a request is allowed to run: create, read, list, update and cancel, and what comes later."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from devstack.stripe_standin.call import Call
from devstack.stripe_standin.errors import StripeError, no_such
from devstack.stripe_standin.faults import Plan
from devstack.stripe_standin.refunds import (
    RefundOrder,
    RefundQuery,
    amount_to_refund,
    changed_metadata,
    may_move,
)
from devstack.stripe_standin.rules import Move, Rule
from devstack.stripe_standin.shapes import (
    Finder,
    Payment,
    Refund,
    account_body,
    charge_body,
    list_body,
    payment_intent_body,
    refund_body,
)
from devstack.stripe_standin.world import World

CANNOT_CANCEL = "Canceling this refund is unsupported."


@dataclass(frozen=True)
class CreateFaults:
    """What the plan has in store for one execution of POST /v1/refunds."""

    duplicate: Rule | None = None
    tamper: Rule | None = None
    standing: Rule | None = None


class Execution:
    """Runs inside the caller's transaction."""

    def __init__(self, world: World, plan: Plan) -> None:
        self.world = world
        self.plan = plan

    def finder(self, call: Call) -> Finder:
        return Finder(
            payment=lambda reference: self._payment(call, reference),
            refunded=self.refunded_shown,
            refunds=self.world.refunds_of,
        )

    def refunded_shown(self, payment_intent: str) -> int:
        return self.world.refunded(payment_intent, with_pending=self.world.settings().pending_in_amount_refunded)

    # Refunds.

    def create(self, call: Call, order: RefundOrder, faults: CreateFaults) -> dict[str, Any]:
        payment = self._ordered_payment(call, order)
        amount = amount_to_refund(order, payment, self.world.refunded(payment.payment_intent))
        refund = self._make(call, order, payment, amount, faults, origin="api")
        if faults.duplicate is not None:
            # The second execution asks nobody whether the amount is still there: that is the accident.
            self._make(call, order, payment, amount, faults, origin="duplicate")
        return refund_body(refund) | (faults.tamper.fields if faults.tamper is not None else {})

    def _make(
        self, call: Call, order: RefundOrder, payment: Payment, amount: int, faults: CreateFaults, *, origin: str
    ) -> Refund:
        settings, now = self.world.settings(), self.world.now()
        status, moves, pending_reason = settings.refund_status, settings.moves, settings.pending_reason
        if faults.standing is not None and faults.standing.refund_status is not None:
            status, moves = faults.standing.refund_status, faults.standing.moves
        if settings.balance == "refuse":
            raise StripeError(400, "Insufficient funds in your Stripe balance to refund this amount.", stored=True)
        if settings.balance == "pending":
            status, pending_reason = "pending", "insufficient_funds"
        metadata = order.metadata
        if faults.tamper is not None:
            metadata = changed_metadata(metadata, faults.tamper.metadata)
        refund = self.world.add_refund(
            payment,
            amount=amount,
            status=status,
            at=now,
            origin=origin,
            arrival=call.arrival,
            marker=call.marker,
            reason=order.reason,
            pending_reason=pending_reason,
            metadata=metadata,
            flags=order.flags,
        )
        for move in moves:
            self.schedule_move(refund.refund, move)
        return refund

    def roll_forward_later(self, call: Call, order: RefundOrder, seconds: float) -> None:
        """After a stored 500 without effect the same request takes effect by itself, if the payment still allows it."""
        self._ordered_payment(call, order)
        self.world.schedule(
            self.world.now() + seconds,
            "roll_forward",
            {
                "order": asdict(order),
                "arrival": call.arrival,
                "marker": call.marker,
                "account": call.account,
                "livemode": call.livemode,
            },
        )

    def retrieve(self, call: Call, reference: str) -> dict[str, Any]:
        refund = self._refund(call, reference)
        lag = self.plan.fire(call, "retrieve_lag")
        if lag is not None and self.world.now() - refund.created < (lag.rule.seconds or 0):
            raise no_such("refund", reference, "id")
        return refund_body(refund)

    def list(self, call: Call, query: RefundQuery) -> dict[str, Any]:
        for payment, thing, reference, param in (
            (
                self._owned(call, self.world.find_payment(query.payment_intent or "")),
                "payment_intent",
                query.payment_intent,
                "payment_intent",
            ),
            (self._owned(call, self.world.find_charge(query.charge or "")), "charge", query.charge, "charge"),
        ):
            if reference is not None and payment is None and self.world.settings().list_unknown_payment == "error":
                raise no_such(thing, reference, param)
        cursor = None
        for name, pointed in (("starting_after", query.starting_after), ("ending_before", query.ending_before)):
            if pointed is not None:
                refund = self.world.find_refund(pointed)
                if refund is None or not self._mine(call, refund.account, refund.livemode):
                    raise no_such("refund", pointed, name)
                cursor = refund.number
        lag, cut = self.plan.fire(call, "list_lag"), None
        if query.starting_after is None:
            cut = self.plan.fire(call, "incomplete_list")
        found, has_more = self.world.list_refunds(
            query if cut is None else replace(query, limit=min(query.limit, cut.rule.items)),
            account=call.account or "",
            livemode=call.livemode,
            made_before=self.world.now() - (lag.rule.seconds or 0 if lag is not None else 0),
            cursor=cursor,
        )
        return list_body("/v1/refunds", [refund_body(refund) for refund in found], has_more or cut is not None)

    def update(self, call: Call, reference: str, change: dict[str, str] | None) -> dict[str, Any]:
        refund = self._refund(call, reference)
        self.change(refund, metadata=changed_metadata(refund.metadata, change))
        return refund_body(self._refund(call, reference))

    def cancel(self, call: Call, reference: str) -> dict[str, Any]:
        refund = self._refund(call, reference)
        if refund.status != "requires_action":
            raise StripeError(400, CANNOT_CANCEL, stored=True)
        self.change(refund, status="canceled")
        return refund_body(self._refund(call, reference))

    # The rest is read-only.

    def payment_intent(self, call: Call, reference: str) -> dict[str, Any]:
        return payment_intent_body(self._payment(call, reference))

    def charge(self, call: Call, reference: str) -> dict[str, Any]:
        payment = self._owned(call, self.world.find_charge(reference))
        if payment is None:
            raise no_such("charge", reference, "id")
        return charge_body(payment, self.refunded_shown(payment.payment_intent))

    def account(self, call: Call) -> dict[str, Any]:
        found = self.world.find_account(call.account or "")
        return account_body(call.account or "", 0 if found is None else found[1])

    # Changes that nobody asked for over the API.

    def change(
        self,
        refund: Refund,
        *,
        status: str | None = None,
        failure_reason: str | None = None,
        pending_reason: str | None = None,
        metadata: dict[str, str] | None = None,
        at: float | None = None,
    ) -> None:
        """A move that Stripe would not make raises ValueError."""
        if status is not None and status != refund.status and not may_move(refund.status, status):
            raise ValueError(f"a refund does not move from {refund.status} to {status}")
        self.world.change_refund(
            refund.refund,
            status=status or refund.status,
            failure_reason=failure_reason or refund.failure_reason,
            pending_reason=pending_reason or refund.pending_reason,
            metadata=refund.metadata if metadata is None else metadata,
            at=self.world.now() if at is None else at,
        )

    def schedule_move(self, refund: str, move: Move) -> None:
        self.world.schedule(self.world.now() + move.after_seconds, "move", {"refund": refund, **move.model_dump()})

    def settle_due(self) -> None:
        """Applies everything whose time has come on the movable clock, in order."""
        while (due := self.world.next_due(self.world.now())) is not None:
            number, at, what, body = due
            with self.world.database.transaction():
                self.world.mark_done(number)
                if what == "roll_forward":
                    self._roll_forward(body, at)
                elif what == "roll_back":
                    self.world.roll_back(body["refund"], at)
                else:
                    refund = self.world.find_refund(body["refund"])
                    # Somebody may have moved it elsewhere in the meantime.
                    if refund is not None and may_move(refund.status, body["status"]):
                        self.change(refund, status=body["status"], failure_reason=body["failure_reason"], at=at)

    def _roll_forward(self, body: dict[str, Any], at: float) -> None:
        order = RefundOrder(**body["order"])
        payment = self._by_order(order)
        if payment is None:
            return
        try:
            amount = amount_to_refund(order, payment, self.world.refunded(payment.payment_intent))
        except StripeError:
            return
        settings = self.world.settings()
        self.world.add_refund(
            payment,
            amount=amount,
            status=settings.refund_status,
            at=at,
            origin="roll_forward",
            arrival=body["arrival"],
            marker=body["marker"],
            reason=order.reason,
            pending_reason=settings.pending_reason,
            metadata=order.metadata,
            flags=order.flags,
        )

    # Whose object it is: another account's, or the other mode's, does not exist for the caller.

    def _mine(self, call: Call, account: str, livemode: bool) -> bool:
        return account == call.account and livemode == call.livemode

    def _owned(self, call: Call, payment: Payment | None) -> Payment | None:
        return payment if payment is not None and self._mine(call, payment.account, payment.livemode) else None

    def _payment(self, call: Call, reference: str) -> Payment:
        payment = self._owned(call, self.world.find_payment(reference))
        if payment is None:
            raise no_such("payment_intent", reference, "intent")
        return payment

    def _refund(self, call: Call, reference: str) -> Refund:
        refund = self.world.find_refund(reference)
        if refund is None or not self._mine(call, refund.account, refund.livemode):
            raise no_such("refund", reference, "id")
        return refund

    def _by_order(self, order: RefundOrder) -> Payment | None:
        if order.payment_intent is not None:
            return self.world.find_payment(order.payment_intent)
        return self.world.find_charge(order.charge or "")

    def _ordered_payment(self, call: Call, order: RefundOrder) -> Payment:
        payment = self._owned(call, self._by_order(order))
        if payment is None:
            stored = self.world.settings().store_missing
            if order.payment_intent is not None:
                raise no_such("payment_intent", order.payment_intent, "payment_intent", stored=stored)
            raise no_such("charge", order.charge or "", "charge", stored=stored)
        return payment
