"""One request as it was read, and one answer as it will be written."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Any

from starlette.types import Receive, Scope

from devstack.stripe_standin import params as read
from devstack.stripe_standin.params import Params
from devstack.stripe_standin.records import KeyScope
from devstack.stripe_standin.world import World, new_id


@dataclass
class Call:
    """Who asks is resolved here without a judgement, so that refused requests are in the journal too."""

    request_id: str
    method: str
    path: str
    params: Params
    params_sha256: str
    body_sha256: str
    idempotency_key: str | None
    api_version: str | None
    secret_key: str | None
    asked_account: str | None
    # The account and mode that the key and Stripe-Account name, if the key is known.
    account: str | None
    livemode: bool
    marker: str | None
    payment_intent: str | None
    arrival: int = 0
    replay: bool = False

    @property
    def scope(self) -> KeyScope | None:
        """Only POST has idempotency keys in v1; elsewhere they are ignored."""
        if self.method != "POST" or not self.idempotency_key or self.account is None:
            return None
        return KeyScope(self.account, self.livemode, self.idempotency_key)


@dataclass
class Answer:
    status: int
    content: bytes
    headers: dict[str, str] = field(default_factory=dict)
    replayed: bool = False

    def raw_headers(self, call: Call, now: float) -> list[tuple[bytes, bytes]]:
        """Every answer has a Request-Id; dates are those of the movable clock."""
        headers = {
            "Content-Type": "application/json",
            "Content-Length": str(len(self.content)),
            "Date": formatdate(now, usegmt=True),
            "Request-Id": call.request_id,
        }
        if call.api_version is not None:
            headers["Stripe-Version"] = call.api_version
        return [(name.encode(), value.encode("latin-1", "replace")) for name, value in (headers | self.headers).items()]


def json_answer(status: int, body: Any, headers: dict[str, str] | None = None) -> Answer:
    return Answer(status, json.dumps(body, indent=2).encode(), dict(headers or {}))


async def read_body(receive: Receive) -> bytes:
    body = b""
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return body
        body += bytes(message.get("body", b""))
        if not message.get("more_body", False):
            return body


async def read_call(scope: Scope, receive: Receive, world: World) -> Call:
    body = await read_body(receive)
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
    path = str(scope["path"]).rstrip("/")
    params = read.decode(scope["query_string"].decode("latin-1"), body.decode("utf-8", "replace"))
    secret_key = _secret_key(headers.get("authorization", ""))
    known = world.find_key(secret_key) if secret_key else None
    asked = headers.get("stripe-account") or headers.get("stripe-context") or None
    tags = params.get("metadata")
    marker = tags.get("operation_id") if isinstance(tags, dict) else None
    return Call(
        request_id=new_id("req"),
        method=scope["method"],
        path=path,
        params=params,
        params_sha256=read.digest(params),
        body_sha256=hashlib.sha256(body).hexdigest(),
        idempotency_key=headers.get("idempotency-key") or None,
        api_version=headers.get("stripe-version"),
        secret_key=secret_key,
        asked_account=asked,
        account=None if known is None else asked or known[0],
        livemode=known is not None and known[1],
        marker=marker if isinstance(marker, str) else None,
        payment_intent=_payment_intent(path, params, world),
    )


def _secret_key(authorization: str) -> str | None:
    scheme, _, value = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return value.strip() or None
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(value, validate=True).decode().partition(":")[0] or None
        except (binascii.Error, UnicodeDecodeError):
            return None
    return None


def _payment_intent(path: str, params: Params, world: World) -> str | None:
    """The payment a request is about, however it names it: for the journal and for matching rules."""
    named, charge = params.get("payment_intent"), params.get("charge")
    parts = path.split("/")
    if isinstance(named, str):
        return named
    if len(parts) > 3 and parts[2] == "payment_intents":
        return parts[3]
    if len(parts) > 3 and parts[2] == "refunds":
        refund = world.find_refund(parts[3])
        return None if refund is None else refund.payment_intent
    if len(parts) > 3 and parts[2] == "charges":
        charge = parts[3]
    payment = world.find_charge(charge) if isinstance(charge, str) else None
    return None if payment is None else payment.payment_intent
