"""Webhooks: the events that Stripe would tell, how a delivery is signed, and the sender that delivers and tries again.

Tests take the events from the control endpoint and deliver them themselves: twice, late, in another order, or never.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import time
from collections.abc import Callable
from typing import Any

import httpx

from devstack.stripe_standin.shapes import Payment, Refund, charge_body, refund_body

API_VERSION = "2026-10-28.endive"
LONGEST_PAUSE = 30.0  # real seconds between two tries of one event


def events_of_new(refund: Refund, payment: Payment, refunded: int) -> list[tuple[str, dict[str, Any]]]:
    """(type, object) of what follows when a refund is made."""
    return [("refund.created", refund_body(refund)), ("charge.refunded", charge_body(payment, refunded))]


def events_of_change(refund: Refund, before: str) -> list[tuple[str, dict[str, Any]]]:
    """(type, object) of what follows when a refund changes. There is no refund.canceled: it comes as refund.updated."""
    body = refund_body(refund)
    told = [("refund.updated", body), ("charge.refund.updated", body)]
    return [*told, ("refund.failed", body)] if refund.status == "failed" != before else told


def event_text(
    event_id: str, kind: str, thing: dict[str, Any], *, at: float, livemode: bool, account: str | None, request: Any
) -> str:
    """The body of one event. `account` stands only in events of accounts that are connected to a platform."""
    event = {
        "id": event_id,
        "object": "event",
        "api_version": API_VERSION,
        "created": int(at),
        "data": {"object": thing},
        "livemode": livemode,
        "pending_webhooks": 1,
        "request": request,
        "type": kind,
    }
    return json.dumps(event if account is None else event | {"account": account}, indent=2)


def signature(body: bytes, secret: str, at: float) -> str:
    """The header Stripe-Signature over exactly these bytes."""
    seal = hmac.new(secret.encode(), b"%d." % int(at) + body, hashlib.sha256)
    return f"t={int(at)},v1={seal.hexdigest()}"


def deliver(url: str, body: bytes, secret: str, *, at: float | None = None) -> httpx.Response:
    """One delivery as Stripe makes it; `at` is when it claims to be signed, by default now."""
    signed = signature(body, secret, time.time() if at is None else at)
    headers = {"Stripe-Signature": signed, "Content-Type": "application/json; charset=utf-8"}
    return httpx.post(url, content=body, headers=headers, timeout=10, trust_env=False)


class Sender:
    """Delivers every event to one endpoint, oldest first, and those that were not answered with 200 again, freshly signed."""

    def __init__(self, due: Callable[[float], list[tuple[int, int, str]]], tried: Callable[[int, bool, float], None]):
        self._due = due
        self._tried = tried
        self._running: asyncio.Task[None] | None = None

    def send_to(self, url: str, secret: str) -> None:
        """From now on, until it is told otherwise."""
        self.stop()
        self._running = asyncio.get_running_loop().create_task(self._send(url, secret))

    def stop(self) -> None:
        if self._running is not None:
            self._running.cancel()
        self._running = None

    async def _send(self, url: str, secret: str) -> None:
        async with httpx.AsyncClient(timeout=5, trust_env=False) as client:
            while True:
                for number, tries, text in self._due(time.time()):
                    body = text.encode()
                    headers = {"Stripe-Signature": signature(body, secret, time.time())}
                    try:
                        taken = (await client.post(url, content=body, headers=headers)).status_code == 200
                    except httpx.HTTPError:
                        taken = False
                    self._tried(number, taken, time.time() + min(2.0**tries, LONGEST_PAUSE))
                await asyncio.sleep(0.2)
