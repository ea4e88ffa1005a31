"""What both ends of the control endpoint share: fault rules, settings, and lines of the journal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Status = Literal["pending", "requires_action", "succeeded", "failed", "canceled"]
Kind = Literal[
    # How an exchange ends.
    "rst",
    "fin",
    "hang",
    "drip",
    "truncated",
    "html200",
    "html502",
    "html503",
    "answer",
    # Refusals in the order of checks, which never have an effect and are never stored.
    "unauthorized",
    "forbidden",
    "rate_limit",
    "in_use",
    "lock_timeout",
    # What execution does.
    "stored_500",
    "exec_delay",
    "prune_key",
    "duplicate",
    "tamper",
    "standing",
    # What lookups show.
    "list_lag",
    "retrieve_lag",
    "incomplete_list",
]
ENDINGS: frozenset[str] = frozenset(
    {"rst", "fin", "hang", "drip", "truncated", "html200", "html502", "html503", "answer"}
)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Match(_Strict):
    """Which arrivals a rule meets; what is left out meets everything."""

    method: str | None = None
    path: str | None = Field(default=None, description="shell pattern, for example /v1/refunds or /v1/refunds/*")
    operation_id: str | None = None
    idempotency_key: str | None = None
    payment_intent: str | None = None
    replay: bool | None = Field(default=None, description="only arrivals whose key has (or has not) a stored answer")
    later_page: bool | None = Field(default=None, description="only lists with (or without) starting_after")


class Move(_Strict):
    """A later change of a refund's status, on the movable clock."""

    after_seconds: float
    status: Status
    failure_reason: str | None = None


class Rule(_Strict):
    """One order to misbehave."""

    kind: Kind
    match: Match = Match()
    times: int | None = Field(default=1, ge=1, description="how often it fires; None: always")
    when: Literal["before", "after"] = Field(default="after", description="endings only: before or after execution")
    seconds: float | None = Field(default=None, description="hang (None: until released), exec_delay, lags")
    then: Literal["continue", "drop"] = Field(default="continue", description="hang: what follows")
    interval: float = Field(default=0.05, description="drip: pause between pieces, in real seconds")
    piece: int = Field(default=1, ge=1, description="drip: bytes in a piece")
    answer_status: int = Field(default=500, description="answer: HTTP status")
    body: Any = Field(default=None, description="answer: JSON body; None: an api_error")
    headers: dict[str, str] = Field(default_factory=dict, description="answer: additional headers")
    effect: bool = Field(default=True, description="stored_500: whether the refund is made")
    roll_forward_after_seconds: float | None = Field(default=None, description="stored_500 without effect")
    roll_back_after_seconds: float | None = Field(default=None, description="stored_500 with effect")
    metadata: dict[str, str] = Field(default_factory=dict, description="tamper: stored; an empty value removes a key")
    fields: dict[str, Any] = Field(default_factory=dict, description="tamper: fields of the answer only")
    items: int = Field(default=1, ge=1, description="incomplete_list: items on the first page")
    refund_status: Status | None = Field(default=None, description="standing: status of the new refund")
    moves: tuple[Move, ...] = Field(default=(), description="standing: later changes")

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        if self.kind in ("drip", "truncated") and self.when == "before":
            raise ValueError(f"{self.kind} spoils an answer, so it can only act after execution")
        if self.kind in ("exec_delay", "list_lag", "retrieve_lag") and self.seconds is None:
            raise ValueError(f"{self.kind} needs seconds")
        if self.kind == "standing" and self.refund_status is None:
            raise ValueError("standing needs refund_status")
        if self.roll_forward_after_seconds is not None and (self.kind != "stored_500" or self.effect):
            raise ValueError("only a stored_500 without effect can be rolled forward")
        if self.roll_back_after_seconds is not None and (self.kind != "stored_500" or not self.effect):
            raise ValueError("only a stored_500 with effect can be rolled back")
        return self

    def for_(self, **match: Any) -> Rule:
        """The same rule for fewer arrivals."""
        return self.model_copy(update={"match": Match(**{**self.match.model_dump(), **match})})


class Settings(_Strict):
    """How the world behaves when no rule says otherwise."""

    refund_status: Status = "succeeded"
    pending_reason: Literal["charge_pending", "insufficient_funds", "processing"] = "processing"
    moves: tuple[Move, ...] = ()
    balance: Literal["ok", "pending", "refuse"] = Field(default="ok", description="an insufficient balance")
    key_lifetime_seconds: float = Field(default=86400, description="keys of this age are forgotten")
    # Documented for neither case, so both can be had.
    store_missing: bool = Field(default=False, description="store and replay the 404 of an unknown payment")
    list_unknown_payment: Literal["error", "empty"] = "error"
    pending_in_amount_refunded: bool = True


@dataclass(frozen=True)
class Arrival:
    """One request that reached the stand-in, and how it ended (None while it is open, or after a kill)."""

    number: int
    request_id: str
    at: float
    method: str
    path: str
    idempotency_key: str | None
    account: str | None
    livemode: bool | None
    params: dict[str, Any]
    params_sha256: str
    body_sha256: str
    marker: str | None
    payment_intent: str | None
    faults: tuple[str, ...]
    replayed: bool
    answer: int | None
    ended: str | None
    refunded_before: int | None
    refunded_after: int | None


@dataclass(frozen=True)
class Effect:
    """One refund that was made, by whom, and whether its money came back (voided: failed, canceled, rolled_back)."""

    number: int
    arrival: int | None
    refund: str
    payment_intent: str
    account: str
    livemode: bool
    amount: int
    currency: str
    marker: str | None
    origin: str
    at: float
    voided: str | None


@dataclass(frozen=True)
class Journal:
    arrivals: tuple[Arrival, ...]
    effects: tuple[Effect, ...]
