"""The words of the ledger as frozen values, in the order of the flow: proposal, operation, attempt, sighting, decision.

Times are aware UTC datetimes of the ledger's clock, amounts integers in the provider's minor unit, digests 32 raw bytes.
"""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from ledger.states import State


class Outcome(StrEnum):
    """What one attempt is known to have done."""

    APPLIED = "applied"  # a parsed answer whose every field matches: the effect exists
    REFUSED = "refused"  # a definite no, executed against current state
    NO_EFFECT = "no_effect"  # proved not executed
    UNKNOWN = "unknown"  # everything else


class Hint(StrEnum):
    """Why an attempt is unknown, or what a definite answer still says about recovery."""

    NONE = ""
    NOT_SENT = "not_sent"  # the send guard stopped it, or no connection was made
    BUSY = "busy"  # an earlier request with this key is still running
    MISUSED = "misused"  # the key was used for something else: a bug or tampering
    STORED_ERROR = "stored_error"  # an error that the provider will replay for this key
    UNREADABLE = "unreadable"  # an answer that could not be parsed
    MISMATCH = "mismatch"  # an answer about another effect than ours
    LOST = "lost"  # no answer, or the worker died holding it
    # What kind of no a refusal was; it becomes the reason of the operation.
    VERSION_STALE = "version_stale"  # the record is no longer at the version that the write was made for
    BUSINESS_RULE = "business_rule"  # the receiver's own rules forbid it as things stand
    NOT_PERMITTED = "not_permitted"  # the credential may not do this
    MALFORMED = "malformed"  # the receiver cannot read the request: a bug of ours


class Standing(StrEnum):
    """What became of an effect that exists at the provider."""

    GOOD = "good"  # it stands
    PENDING = "pending"  # it exists; the provider has not finished it
    VOID = "void"  # it was undone: it counts in no amount


class MaySend(StrEnum):
    """Whether authority allows sending now."""

    YES = "yes"
    HELD = "held"  # not now: a person stopped sending
    REVOKED = "revoked"  # not on this authority any more


@dataclass(frozen=True)
class Operation:
    """The one record of one intended effect. Identity fields never change after the insert; the rest moves along edges."""

    operation_id: UUID
    tenant: str
    business_key: str
    actor: str
    requested_by: str
    action: str
    provider: str
    account: str
    livemode: bool
    target: str  # canonical: every alias of the same thing is one target
    arguments: dict[str, Any]
    amount_minor: int | None
    currency: str | None
    expected_version: str | None
    evidence: list[dict[str, str]]
    distinct_from: list[str]
    # each with operation_id, business_key, the state it must end in, and with `into` an argument, the receipt it became
    depends_on: list[dict[str, str]]
    supersedes: str | None  # the id of the ended operation that this one revises
    equivalence_key: str
    policy_version: str
    config_version: int
    canonical: bytes
    request_digest: bytes
    fingerprint: bytes
    approval_expires_at: datetime
    idempotency_key: str
    kid: str  # the service key that proposed it
    proposed_at: datetime
    state: State
    token: str = field(default="", repr=False)  # the signed proposal, as it came
    reason: str = ""
    people_needed: int | None = None  # None until judged; 0 where the rule waives the person
    fence: int = 0
    lease_until: datetime | None = None
    frozen_request: dict[str, Any] | None = None
    frozen_contract: dict[str, Any] | None = None
    first_claimed_at: datetime | None = None
    ended_at: datetime | None = None
    next_step: str = ""
    next_step_at: datetime | None = None
    review_at: datetime | None = None
    look_again_at: datetime | None = None
    receipt: str | None = None
    standing: Standing | None = None
    event_count: int = 0
    head_hash: bytes = b""
    erased_at: datetime | None = None  # its personal fields were emptied; nothing is looked for any more

    @property
    def name(self) -> str:
        """What people call it, and the id of its workflow: tenant/business-key."""
        return f"{self.tenant}/{self.business_key}"


@dataclass(frozen=True)
class Attempt:
    """One dispatch. `number` is the fence it was claimed under; an `outcome` of None means open."""

    number: int
    claimed_at: datetime
    lease_until: datetime
    outcome: Outcome | None = None
    hint: Hint = Hint.NONE
    stored: bool = False  # by contract, the provider answers a repeat with this same answer
    receipt: str | None = None
    standing: Standing | None = None
    answered_at: datetime | None = None
    late_send_at: datetime | None = None  # the bytes left later than the guard allows; quiet_at counts from here
    # http status, provider codes and request id: evidence for a person
    detail: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SeenEffect:
    """One effect at the provider as one look saw it."""

    receipt: str
    standing: Standing
    marked: bool  # carries our marker
    matching: bool  # target, amount, currency, account and time fit the operation
    summary: dict[str, Any] = field(default_factory=dict)  # provider fields worth showing to a person

    @property
    def ours(self) -> bool:
        """Whether this is the effect of the operation: marked and matching."""
        return self.marked and self.matching

    @property
    def look_alike(self) -> bool:
        """Whether it could be ours with its marker edited away: matching in everything but the marker."""
        return self.matching and not self.marked


@dataclass(frozen=True)
class Sighting:
    """What one look at the provider saw. `complete` means: everything that could hold our effect was read to its end."""

    began_at: datetime
    finished_at: datetime
    complete: bool
    effects: tuple[SeenEffect, ...] = ()
    version_moved: bool | None = None  # conditional writes: the record is no longer at the version we expected
    witness_has_marker: bool | None = None  # conditional writes: the append-only witness names us
    detail: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class InboxEvent:
    """What a provider told by webhook, verified: a reason to look, never a fact about an effect."""

    provider: str
    event_id: str  # the provider's own, unique there
    account: str
    livemode: bool
    type: str
    created_at: datetime  # by the provider's clock
    receipt: str | None  # the effect that it is about
    target: str | None
    marker: UUID | None  # the operation that the effect names
    body_digest: bytes


class Step(StrEnum):
    """What may be done next about an operation that was sent."""

    WAIT = "wait"
    CLOSE_ATTEMPT = "close_attempt"  # the lease is over: the open attempt becomes unknown (edge 13)
    SUCCEED = "succeed"
    REJECT = "reject"
    APPROVE_AGAIN = "approve_again"  # nothing happened: back to approved
    REPEAT = "repeat"
    LOOK = "look"
    REVIEW = "review"


@dataclass(frozen=True)
class Decision:
    """The next permitted step, the row of the table that said so, and why. `delay_seconds` counts from `now`."""

    row: str
    step: Step
    reason: str
    delay_seconds: float = 0.0
    receipt: str | None = None
    standing: Standing | None = None
