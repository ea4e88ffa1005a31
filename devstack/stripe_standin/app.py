"""The API itself: one request from arrival to its end, in Stripe's order of checks.

Key and account (401, 403), rate limit (429), idempotency (replay, 400, 409), validation (400, not stored), execution.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.types import Receive, Scope, Send

from devstack.stripe_standin import errors
from devstack.stripe_standin import params as read
from devstack.stripe_standin.call import Answer, Call, json_answer, read_call
from devstack.stripe_standin.errors import StripeError
from devstack.stripe_standin.execution import CreateFaults, Execution
from devstack.stripe_standin.faults import Fired, Holds, Plan, Wire, spoiled
from devstack.stripe_standin.idempotency import Idempotency, headers_of
from devstack.stripe_standin.params import Params
from devstack.stripe_standin.records import Records
from devstack.stripe_standin.refunds import read_metadata_change, read_order, read_query
from devstack.stripe_standin.rules import ENDINGS
from devstack.stripe_standin.shapes import expanded
from devstack.stripe_standin.world import World


@dataclass(frozen=True)
class Endpoint:
    """`check` reads the parameters and is validation; `run` is execution."""

    method: str
    path: re.Pattern[str]
    check: Callable[[Params], Any]
    run: Callable[[Execution, Call, str, Any, CreateFaults], dict[str, Any]]
    creates: bool = False


def _only(*names: str) -> Callable[[Params], None]:
    return lambda params: read.check_known(params, frozenset({"expand", *names}))


def _path(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern.replace("{id}", "([A-Za-z0-9_]+)") + "$")


ENDPOINTS = (
    Endpoint(
        "POST",
        _path("/v1/refunds"),
        read_order,
        lambda run, call, _, order, faults: run.create(call, order, faults),
        creates=True,
    ),
    Endpoint("GET", _path("/v1/refunds"), read_query, lambda run, call, _, query, __: run.list(call, query)),
    Endpoint("GET", _path("/v1/refunds/{id}"), _only(), lambda run, call, name, _, __: run.retrieve(call, name)),
    Endpoint(
        "POST",
        _path("/v1/refunds/{id}"),
        read_metadata_change,
        lambda run, call, name, change, _: run.update(call, name, change),
    ),
    Endpoint("POST", _path("/v1/refunds/{id}/cancel"), _only(), lambda run, call, name, _, __: run.cancel(call, name)),
    Endpoint(
        "GET",
        _path("/v1/payment_intents/{id}"),
        _only("client_secret"),
        lambda run, call, name, _, __: run.payment_intent(call, name),
    ),
    Endpoint("GET", _path("/v1/charges/{id}"), _only(), lambda run, call, name, _, __: run.charge(call, name)),
    Endpoint("GET", _path("/v1/account"), _only(), lambda run, call, _, __, ___: run.account(call)),
)


class Api:
    """The ASGI application under /v1."""

    def __init__(self, world: World, records: Records) -> None:
        self.world = world
        self.records = records
        self.plan = Plan(world, records)
        self.execution = Execution(world, self.plan)
        self.idempotency = Idempotency(world, records)
        self.holds = Holds()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.execution.settle_due()
        call = await read_call(scope, receive, self.world)
        self._arrive(call)
        wire = Wire(scope, receive, send)
        early = self.plan.fire(call, *ENDINGS, when="before")
        if early is not None:
            if early.rule.kind != "hang" or early.rule.then == "drop":
                await self._end(call, wire, None, early)
                return
            await self._hang(call, early)
        answer = await self._judge(call)
        await self._end(call, wire, answer, self.plan.fire(call, *ENDINGS, when="after"))

    # Before and after: journal and connection.

    def _arrive(self, call: Call) -> None:
        scope = call.scope
        call.replay = scope is not None and self.idempotency.find(scope) is not None
        call.arrival = self.records.arrive(
            {
                "request_id": call.request_id,
                "at": self.world.now(),
                "method": call.method,
                "path": call.path,
                "idempotency_key": call.idempotency_key,
                "account": call.account,
                "livemode": None if call.account is None else call.livemode,
                "params": call.params,
                "params_sha256": call.params_sha256,
                "body_sha256": call.body_sha256,
                "marker": call.marker,
                "payment_intent": call.payment_intent,
                "refunded_before": self._refunded(call),
            }
        )

    def _refunded(self, call: Call) -> int | None:
        if call.payment_intent is None or self.world.find_payment(call.payment_intent) is None:
            return None
        return self.world.refunded(call.payment_intent)

    def _note(self, call: Call, ended: str, answer: Answer | None) -> None:
        """Written before the first byte leaves, so that whoever has an answer finds it in the journal."""
        self.records.end(
            call.arrival,
            ended,
            answer=None if answer is None else answer.status,
            replayed=answer is not None and answer.replayed,
            refunded=self._refunded(call),
            at=self.world.now(),
        )

    async def _hang(self, call: Call, fired: Fired) -> None:
        event = self.holds.open(fired.number, call.request_id)
        self._note(call, "hang", None)
        await self.holds.wait(event, fired.rule.seconds)
        self.execution.settle_due()

    async def _end(self, call: Call, wire: Wire, answer: Answer | None, fired: Fired | None) -> None:
        """`answer` is None when nothing was executed and the rule alone says what the caller gets."""
        rule = None if fired is None else fired.rule
        if fired is not None and rule is not None and rule.kind == "hang":
            await self._hang(call, fired)
        if rule is not None and (rule.kind in ("rst", "fin") or (rule.kind == "hang" and rule.then == "drop")):
            self._note(call, "rst" if rule.kind == "rst" else "fin", None)
            await (wire.reset() if rule.kind == "rst" else wire.finish())
            return
        if rule is not None and (answer is None or rule.kind.startswith("html") or rule.kind == "answer"):
            answer = spoiled(rule)
        if answer is None:
            raise AssertionError("a request without a rule has an answer")
        written = (answer.status, answer.raw_headers(call, self.world.now()), answer.content)
        if rule is not None and rule.kind in ("drip", "truncated"):
            self._note(call, rule.kind, answer)
            if rule.kind == "drip":
                await wire.drip(*written, rule.piece, rule.interval)
            else:
                await wire.truncate(*written)
            return
        self._note(call, "gone" if wire.gone else "answered", answer)
        await wire.write(*written)

    # The checks, in order.

    async def _judge(self, call: Call) -> Answer:
        try:
            self._authorize(call)
            if self.plan.fire(call, "rate_limit") is not None:
                raise errors.rate_limited()
            return await self._keyed(call)
        except StripeError as error:
            return json_answer(error.status, error.body(), error.headers)

    def _authorize(self, call: Call) -> None:
        found = self.world.find_key(call.secret_key) if call.secret_key else None
        if found is None or call.secret_key is None or self.plan.fire(call, "unauthorized") is not None:
            raise errors.unauthorized(call.secret_key)
        account = call.account or ""
        known = self.world.find_account(account)
        allowed = account == found[0] or (known is not None and known[0] == found[0])
        if not allowed or self.plan.fire(call, "forbidden") is not None:
            raise errors.forbidden(call.secret_key, account)

    async def _keyed(self, call: Call) -> Answer:
        scope = call.scope
        if scope is not None and len(scope.idempotency_key) > 255:
            raise StripeError(400, "Idempotency keys can be at most 255 characters long.", kind="idempotency_error")
        if scope is None:
            return await self._execute(call)
        if self.plan.fire(call, "in_use") is not None:
            raise errors.key_in_use(scope.idempotency_key)
        if self.plan.fire(call, "prune_key") is not None:
            self.records.forget_answer(scope)
        replayed = self.idempotency.replay(call, scope)
        if replayed is not None:
            return replayed
        self.idempotency.begin(scope)
        try:
            return await self._execute(call)
        finally:
            self.idempotency.over(scope)

    async def _execute(self, call: Call) -> Answer:
        endpoint, name = _endpoint_of(call)
        checked = endpoint.check(call.params)
        paths = read.expansions(call.params)
        delay = self.plan.fire(call, "exec_delay")
        if delay is not None:
            await asyncio.sleep(delay.rule.seconds or 0)
            self.execution.settle_due()
        if self.plan.fire(call, "lock_timeout") is not None:
            raise errors.lock_timeout()
        # From here to the commit nothing awaits: effect, journal and stored answer are one transaction.
        with self.world.database.transaction():
            status, body = self._run(call, endpoint, name, checked, paths)
            headers = {}
            if call.scope is not None:
                self.idempotency.keep(call, call.scope, status, body)
                headers = headers_of(call.scope, call.request_id)
                if status >= 500:
                    # On the first 500 Stripe leaves the decision to the client; only its replay says no.
                    del headers["Stripe-Should-Retry"]
        return json_answer(status, body, headers)

    def _run(
        self, call: Call, endpoint: Endpoint, name: str, checked: Any, paths: list[str]
    ) -> tuple[int, dict[str, Any]]:
        """The answer that the key keeps; what is not to be kept is raised and rolls everything back."""
        broken = self.plan.fire(call, "stored_500") if endpoint.creates else None
        if broken is not None and not broken.rule.effect:
            if broken.rule.roll_forward_after_seconds is not None:
                self.execution.roll_forward_later(call, checked, broken.rule.roll_forward_after_seconds)
            return 500, errors.server_error().body()
        try:
            faults = self._create_faults(call) if endpoint.creates else CreateFaults()
            body = endpoint.run(self.execution, call, name, checked, faults)
            refund = body["id"] if broken is not None else None
            body = expanded(body, paths, self.execution.finder(call))
        except StripeError as error:
            if not error.stored:
                raise
            return error.status, error.body()
        if broken is None:
            return 200, body
        if broken.rule.roll_back_after_seconds is not None:
            due = self.world.now() + broken.rule.roll_back_after_seconds
            self.world.schedule(due, "roll_back", {"refund": refund})
        return 500, errors.server_error().body()

    def _create_faults(self, call: Call) -> CreateFaults:
        fired = {kind: self.plan.fire(call, kind) for kind in ("duplicate", "tamper", "standing")}
        return CreateFaults(**{kind: None if rule is None else rule.rule for kind, rule in fired.items()})


def _endpoint_of(call: Call) -> tuple[Endpoint, str]:
    for endpoint in ENDPOINTS:
        match = endpoint.path.match(call.path)
        if match is not None and endpoint.method == call.method:
            return endpoint, match[1] if match.groups() else ""
    raise StripeError(
        404,
        f"Unrecognized request URL ({call.method}: {call.path}). Please see https://stripe.com/docs or we can help at"
        " https://support.stripe.com/.",
    )
