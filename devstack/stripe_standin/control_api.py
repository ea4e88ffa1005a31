"""The control endpoint (/_control): makes payments and accounts, orders faults, moves the clock, shows the journal."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import asdict, replace
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from devstack.stripe_standin.app import Api
from devstack.stripe_standin.refunds import changed_metadata
from devstack.stripe_standin.rules import Move, Rule, Settings, Status
from devstack.stripe_standin.shapes import Payment
from devstack.stripe_standin.webhooks import Sender
from devstack.stripe_standin.world import World, new_id


class _Order(BaseModel):
    model_config = ConfigDict(extra="forbid")


class NewPayment(_Order):
    amount: int = Field(ge=1)
    currency: str = "usd"
    payment_intent: str | None = Field(default=None, pattern="^[A-Za-z0-9_]+$")
    charge: str | None = Field(default=None, pattern="^[A-Za-z0-9_]+$")
    captured: int | None = None
    status: str = "succeeded"
    disputed: bool = False
    is_charge_refundable: bool = False
    account: str | None = None
    livemode: bool = False
    customer: str | None = None
    metadata: dict[str, str] = {}


class PaymentChange(_Order):
    captured: int | None = None
    status: str | None = None
    disputed: bool | None = None
    is_charge_refundable: bool | None = None
    metadata: dict[str, str] | None = None


class ForeignRefund(_Order):
    payment_intent: str
    amount: int = Field(ge=1)
    status: Status = "succeeded"
    reason: str | None = None
    metadata: dict[str, str] = {}


class RefundChange(_Order):
    status: Status | None = None
    failure_reason: str | None = None
    pending_reason: str | None = None
    metadata: dict[str, str] | None = None
    after_seconds: float | None = None


class NewAccount(_Order):
    account: str = Field(pattern="^acct_[A-Za-z0-9]+$")
    platform: str | None = None
    secret_keys: list[str] = []


class ClockChange(_Order):
    advance: float | None = None
    offset: float | None = None
    set: float | None = None


class Endpoint(_Order):
    url: str = Field(pattern="^http://127\\.0\\.0\\.1:[0-9]+/")
    secret: str


class Refusal(Exception):
    """The control endpoint cannot do what it was asked."""


class Control:
    """Runs between two awaits, like everything that writes."""

    def __init__(self, api: Api, initial: Callable[[World], str]) -> None:
        self.api = api
        self.world = api.world
        self.records = api.records
        self.initial = initial
        self.own_account = initial(self.world)
        self.sender = Sender(self._events_due, self.world.event_tried)

    def routes(self) -> list[Route]:
        table: tuple[tuple[str, str, Callable[[Request, bytes], Any]], ...] = (
            ("GET", "/health", lambda _, __: {"account": self.own_account}),
            ("POST", "/accounts", self.add_account),
            ("POST", "/payments", self.add_payment),
            ("POST", "/payments/{id}", self.change_payment),
            ("POST", "/foreign_refunds", self.foreign_refund),
            ("POST", "/refunds/{id}", self.change_refund),
            ("GET", "/settings", lambda _, __: self.world.settings().model_dump()),
            ("POST", "/settings", self.change_settings),
            ("GET", "/faults", self.faults),
            ("POST", "/faults", lambda _, body: {"rule": self.records.add_rule(Rule.model_validate_json(body))}),
            ("DELETE", "/faults", self.disarm),
            ("POST", "/release", self.release),
            ("GET", "/clock", lambda _, __: self.clock()),
            ("POST", "/clock", self.change_clock),
            ("GET", "/journal", self.journal),
            ("GET", "/events", self.events),
            ("POST", "/webhooks", self.send_webhooks),
            ("POST", "/reset", self.reset),
        )
        return [Route(path, self._endpoint(act), methods=[method]) for method, path, act in table]

    def _endpoint(self, act: Callable[[Request, bytes], Any]) -> Callable[[Request], Awaitable[JSONResponse]]:
        async def endpoint(request: Request) -> JSONResponse:
            body = await request.body()
            try:
                self.api.execution.settle_due()
                with self.world.database.transaction():
                    found = act(request, body)
                return JSONResponse(found)
            except (ValidationError, ValueError) as error:
                return JSONResponse({"error": str(error)}, status_code=400)
            except Refusal as error:
                return JSONResponse({"error": str(error)}, status_code=409)

        return endpoint

    # The world.

    def add_account(self, _: Request, body: bytes) -> Any:
        order = NewAccount.model_validate_json(body)
        self.world.add_account(order.account, order.platform)
        for secret_key in order.secret_keys:
            if not secret_key.startswith(("sk_test_", "sk_live_", "rk_test_", "rk_live_")):
                raise ValueError("a secret key starts with sk_test_, sk_live_, rk_test_ or rk_live_")
            self.world.add_key(secret_key, order.account)
        return {"account": order.account}

    def add_payment(self, _: Request, body: bytes) -> Any:
        order = NewPayment.model_validate_json(body)
        payment_intent = order.payment_intent or new_id("pi")
        charge = order.charge or "ch_" + payment_intent.partition("_")[2]
        paid = order.status in ("succeeded", "requires_capture")
        account = order.account or self.own_account
        if self.world.find_account(account) is None:
            raise Refusal(f"no account {account}")
        if self.world.find_payment(payment_intent) is not None or self.world.find_charge(charge) is not None:
            raise Refusal(f"{payment_intent} or {charge} exists")
        captured = order.captured if order.captured is not None else order.amount * (order.status == "succeeded")
        self.world.add_payment(
            Payment(
                payment_intent=payment_intent,
                charge=charge if paid else None,
                account=account,
                livemode=order.livemode,
                amount=order.amount,
                captured=captured,
                currency=order.currency.lower(),
                status=order.status,
                disputed=order.disputed,
                refundable=order.is_charge_refundable,
                customer=order.customer,
                metadata=order.metadata,
                created=self.world.now(),
            )
        )
        return {"payment_intent": payment_intent, "charge": charge if paid else None}

    def change_payment(self, request: Request, body: bytes) -> Any:
        order = PaymentChange.model_validate_json(body)
        payment = self._payment(request.path_params["id"])
        changes = {name: value for name, value in order.model_dump().items() if value is not None}
        if "is_charge_refundable" in changes:
            changes["refundable"] = changes.pop("is_charge_refundable")
        self.world.change_payment(replace(payment, **changes))
        return {"payment_intent": payment.payment_intent}

    def foreign_refund(self, _: Request, body: bytes) -> Any:
        order = ForeignRefund.model_validate_json(body)
        payment = self._payment(order.payment_intent)
        if order.amount > payment.captured - self.world.refunded(payment.payment_intent):
            raise Refusal("the payment has less left")
        refund = self.world.add_refund(
            payment,
            amount=order.amount,
            status=order.status,
            at=self.world.now(),
            origin="foreign",
            arrival=None,
            marker=order.metadata.get("operation_id"),
            reason=order.reason,
            metadata=order.metadata,
        )
        return {"refund": refund.refund}

    def change_refund(self, request: Request, body: bytes) -> Any:
        order = RefundChange.model_validate_json(body)
        refund = self.world.find_refund(request.path_params["id"])
        if refund is None:
            raise Refusal("no such refund")
        if order.after_seconds is not None and order.status is not None:
            move = Move(after_seconds=order.after_seconds, status=order.status, failure_reason=order.failure_reason)
            self.api.execution.schedule_move(refund.refund, move)
            order.status = None
        metadata = None if order.metadata is None else changed_metadata(refund.metadata, order.metadata)
        self.api.execution.change(
            refund,
            status=order.status,
            failure_reason=order.failure_reason,
            pending_reason=order.pending_reason,
            metadata=metadata,
        )
        return {"refund": refund.refund}

    def change_settings(self, _: Request, body: bytes) -> Any:
        """Only what is named changes."""
        named = Settings.model_validate_json(body).model_dump(exclude_unset=True)
        settings = Settings(**{**self.world.settings().model_dump(), **named})
        self.world.set_settings(settings)
        return settings.model_dump()

    def _payment(self, reference: str) -> Payment:
        payment = self.world.find_payment(reference) or self.world.find_charge(reference)
        if payment is None:
            raise Refusal(f"no payment {reference}")
        return payment

    # Faults.

    def faults(self, _: Request, __: bytes) -> Any:
        return {
            "rules": [
                {"rule": number, "remaining": remaining, **rule.model_dump()}
                for number, rule, remaining in self.records.rules(armed_only=False)
            ]
        }

    def disarm(self, request: Request, _: bytes) -> Any:
        return {"disarmed": self.records.disarm(_number(request))}

    def release(self, request: Request, _: bytes) -> Any:
        return {"released": self.api.holds.release(_number(request))}

    # Clock, journal, reset.

    def clock(self) -> Any:
        return {"now": self.world.now(), "offset_seconds": self.world.offset()}

    def change_clock(self, _: Request, body: bytes) -> Any:
        """By a number of seconds, to an offset, or to a moment; what falls due on the way happens now."""
        order = ClockChange.model_validate_json(body)
        if len(order.model_fields_set) != 1:
            raise ValueError("give exactly one of advance, offset, set")
        if order.advance is not None:
            self.world.set_offset(self.world.offset() + order.advance)
        elif order.offset is not None:
            self.world.set_offset(order.offset)
        elif order.set is not None:
            self.world.set_offset(self.world.offset() + order.set - self.world.now())
        self.api.execution.settle_due()
        return self.clock()

    def journal(self, request: Request, _: bytes) -> Any:
        query = request.query_params
        wanted = (query.get("marker"), query.get("payment_intent"), query.get("idempotency_key"))
        return {
            "arrivals": [asdict(line) for line in self.records.arrivals(*wanted)],
            "effects": [asdict(line) for line in self.records.effects(*wanted)],
        }

    # Webhooks.

    def events(self, request: Request, _: bytes) -> Any:
        return {"events": self.world.events(request.query_params["payment_intent"])}

    def send_webhooks(self, _: Request, body: bytes) -> Any:
        """Every event from the first one on goes to this endpoint, until the next reset."""
        order = Endpoint.model_validate_json(body)
        self.sender.send_to(order.url, order.secret)
        return {"url": order.url}

    def _events_due(self, now: float) -> list[tuple[int, int, str]]:
        self.api.execution.settle_due()
        return self.world.events_due(now)

    def reset(self, _: Request, __: bytes) -> Any:
        """A new world; whatever hangs in the old one is let go first."""
        self.sender.stop()
        self.api.holds.release(None)
        self.world.database.reset()
        self.own_account = self.initial(self.world)
        return {"account": self.own_account}


def _number(request: Request) -> int | None:
    value = request.query_params.get("rule")
    return None if value is None else int(value)
