"""A small typed client of the control endpoint, for tests and the demo."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import httpx

from devstack.stripe_standin.presets import FAULTS
from devstack.stripe_standin.rules import Arrival, Effect, Journal, Match, Move, Rule, Settings

__all__ = ["FAULTS", "Arrival", "Effect", "Journal", "Made", "Match", "Move", "Rule", "Settings", "StandInControl"]


@dataclass(frozen=True)
class Made:
    """A payment that exists; `charge` is None when it is not paid."""

    payment_intent: str
    charge: str | None


class ControlRefused(RuntimeError):
    """The stand-in did not do what it was told; the message says why."""


class StandInControl:
    """Every call is one short request to /_control."""

    def __init__(self, base_url: str, *, timeout: float = 10) -> None:
        self.base_url = base_url.rstrip("/")
        # Loopback only: a proxy of the environment must not come between.
        self._client = httpx.Client(base_url=self.base_url + "/_control", timeout=timeout, trust_env=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._client.close()

    def wait_ready(self, timeout: float = 10) -> str:
        """The account of the stand-in's own keys, as soon as it answers."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                return str(self._ask("GET", "/health")["account"])
            except httpx.TransportError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)

    # The world.

    def add_account(self, account: str, *, secret_keys: list[str] | None = None, platform: str | None = None) -> None:
        """`platform` is the account whose keys may name this one in Stripe-Account."""
        self._tell("/accounts", {"account": account, "platform": platform, "secret_keys": secret_keys or []})

    def create_payment(
        self,
        amount: int,
        currency: str = "usd",
        *,
        payment_intent: str | None = None,
        charge: str | None = None,
        captured: int | None = None,
        status: str = "succeeded",
        disputed: bool = False,
        is_charge_refundable: bool = False,
        account: str | None = None,
        livemode: bool = False,
        customer: str | None = None,
        metadata: dict[str, str] | None = None,
    ) -> Made:
        order = {
            "amount": amount,
            "currency": currency,
            "payment_intent": payment_intent,
            "charge": charge,
            "captured": captured,
            "status": status,
            "disputed": disputed,
            "is_charge_refundable": is_charge_refundable,
            "account": account,
            "livemode": livemode,
            "customer": customer,
            "metadata": metadata or {},
        }
        return Made(**self._tell("/payments", order))

    def set_payment(
        self,
        payment_intent: str,
        *,
        disputed: bool | None = None,
        is_charge_refundable: bool | None = None,
        captured: int | None = None,
        status: str | None = None,
        metadata: dict[str, str] | None = None,
    ) -> None:
        order = {
            "disputed": disputed,
            "is_charge_refundable": is_charge_refundable,
            "captured": captured,
            "status": status,
            "metadata": metadata,
        }
        self._tell(f"/payments/{payment_intent}", order)

    def foreign_refund(
        self,
        payment_intent: str,
        amount: int,
        *,
        status: str = "succeeded",
        reason: str | None = None,
        metadata: dict[str, str] | None = None,
    ) -> str:
        """A refund that somebody made in the dashboard; the id of the refund."""
        order = {
            "payment_intent": payment_intent,
            "amount": amount,
            "status": status,
            "reason": reason,
            "metadata": metadata or {},
        }
        return str(self._tell("/foreign_refunds", order)["refund"])

    def set_refund(
        self,
        refund: str,
        *,
        status: str | None = None,
        failure_reason: str | None = None,
        pending_reason: str | None = None,
        metadata: dict[str, str] | None = None,
        after_seconds: float | None = None,
    ) -> None:
        """Moves a refund now or later; an empty metadata value removes its key; an impossible move is refused."""
        order = {
            "status": status,
            "failure_reason": failure_reason,
            "pending_reason": pending_reason,
            "metadata": metadata,
            "after_seconds": after_seconds,
        }
        self._tell(f"/refunds/{refund}", order)

    def settings(self) -> Settings:
        return Settings.model_validate(self._ask("GET", "/settings"))

    def set_defaults(self, **changes: Any) -> Settings:
        """Changes the named fields of Settings."""
        order = Settings(**changes).model_dump(exclude_unset=True, mode="json")
        return Settings.model_validate(self._tell("/settings", order))

    # Faults.

    def fault(self, rule: Rule | str, *, times: int | None = 1, **match: Any) -> int:
        """Arms a rule or a preset by name, narrowed by fields of Match; `times` counts for presets only."""
        if isinstance(rule, str):
            preset = FAULTS[rule]
            rule = preset if times == 1 else preset.model_copy(update={"times": times})
        narrowed = rule.for_(**match) if match else rule
        return int(self._tell("/faults", narrowed.model_dump(mode="json"))["rule"])

    def faults(self) -> list[dict[str, Any]]:
        return list(self._ask("GET", "/faults")["rules"])

    def clear_faults(self, rule: int | None = None) -> int:
        return int(self._ask("DELETE", "/faults", params=_rule(rule))["disarmed"])

    def release(self, rule: int | None = None) -> int:
        """Lets go what hangs at this moment, of one rule or of all; how many exchanges that were."""
        return int(self._ask("POST", "/release", params=_rule(rule))["released"])

    # Webhooks.

    def events(self, payment_intent: str) -> list[bytes]:
        """The bodies of all events about a payment, oldest first, to be delivered by whoever asked."""
        found = self._ask("GET", "/events", params={"payment_intent": payment_intent})["events"]
        return [str(body).encode() for body in found]

    def send_webhooks(self, url: str, secret: str) -> None:
        """Have the stand-in deliver every event, and again until it is answered with 200."""
        self._tell("/webhooks", {"url": url, "secret": secret})

    # Clock, journal, reset.

    def now(self) -> float:
        return float(self._ask("GET", "/clock")["now"])

    def offset(self) -> float:
        return float(self._ask("GET", "/clock")["offset_seconds"])

    def advance(self, seconds: float) -> float:
        return float(self._tell("/clock", {"advance": seconds})["now"])

    def set_offset(self, seconds: float) -> float:
        return float(self._tell("/clock", {"offset": seconds})["now"])

    def set_now(self, moment: float) -> float:
        return float(self._tell("/clock", {"set": moment})["now"])

    def journal(
        self, marker: str | None = None, payment_intent: str | None = None, idempotency_key: str | None = None
    ) -> Journal:
        wanted = {"marker": marker, "payment_intent": payment_intent, "idempotency_key": idempotency_key}
        found = self._ask("GET", "/journal", params={name: value for name, value in wanted.items() if value})
        return Journal(
            arrivals=tuple(Arrival(**{**line, "faults": tuple(line["faults"])}) for line in found["arrivals"]),
            effects=tuple(Effect(**line) for line in found["effects"]),
        )

    def until(self, true_of: Callable[[Journal], bool], timeout: float = 5, **wanted: Any) -> Journal:
        """The first journal of which the condition is true; TimeoutError if there is none in time."""
        deadline = time.monotonic() + timeout
        while not true_of(journal := self.journal(**wanted)):
            if time.monotonic() > deadline:
                raise TimeoutError(f"not seen in the journal within {timeout} s")
            time.sleep(0.02)
        return journal

    def reset(self) -> None:
        self._ask("POST", "/reset")

    def _tell(self, path: str, order: dict[str, Any]) -> dict[str, Any]:
        return self._ask("POST", path, json=order)

    def _ask(self, method: str, path: str, **sent: Any) -> dict[str, Any]:
        answer = self._client.request(method, path, **sent)
        if answer.status_code != 200:
            raise ControlRefused(f"{method} {path}: {answer.text}")
        found: dict[str, Any] = answer.json()
        return found


def _rule(rule: int | None) -> dict[str, str]:
    return {} if rule is None else {"rule": str(rule)}
