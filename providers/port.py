"""What an adapter must offer, and the values that cross between it and the activities.

An adapter never raises for an answer of its provider: whatever came back, or did not, is a value. It reads no ledger.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol, runtime_checkable

from ledger.audit import ListedEffect
from ledger.contract import Contract
from ledger.model import Hint, Operation, Outcome, SeenEffect, Standing


@dataclass(frozen=True)
class Credential:
    """A secret with what it must belong to. The secret never appears in a repr, a log or an event."""

    account: str
    livemode: bool
    secret: str = field(repr=False)
    connected: bool = False  # the secret belongs to a platform that acts for `account`
    endpoint: str = ""  # where the account is reached; empty where the adapter knows it
    archive: str = ""  # where effects can be looked up, if that is another place


@dataclass(frozen=True)
class Request:
    """The exact parameters of one write, frozen in the ledger at the first claim; a repeat sends these again."""

    operation: str  # the provider's endpoint or method
    parameters: dict[str, Any]
    idempotency_key: str
    account: str
    api_version: str
    endpoint: str = ""  # of the credential that it was frozen for; the core fills in both
    archive: str = ""


@dataclass(frozen=True)
class Classified:
    """What one answer (or its absence) means for the attempt."""

    outcome: Outcome
    hint: Hint = Hint.NONE
    stored: bool = False  # by contract the provider will answer a repeat with this same answer
    receipt: str | None = None
    standing: Standing | None = None
    detail: dict[str, Any] = field(default_factory=dict)  # http_status, type, code, request_id, replayed, sent


@dataclass(frozen=True)
class Look:
    """What one look saw. The adapter fills everything but the ledger's times."""

    complete: bool
    effects: tuple[SeenEffect, ...] = ()
    version_moved: bool | None = None
    witness_has_marker: bool | None = None
    detail: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Preflight:
    """What the provider says about the target before anything is sent.

    `complete` False means that the provider could not be read: nothing may be concluded, try again.
    `unfit` is empty or names the reason why the target cannot take this effect, `unfit_field` the field to correct.
    """

    complete: bool
    target: str = ""  # canonical
    unfit: str = ""
    unfit_field: str = "target"
    version: str | None = None  # conditional writes: of everything that the write would touch, opaque
    basis: Mapping[str, Any] = field(default_factory=dict)  # what the request builds on, as it stands at `version`
    amount_minor: int | None = None  # paid and captured, minor units
    currency: str | None = None
    effects: tuple[SeenEffect, ...] = ()  # all effects on the target; `marked` against this operation
    markers: Mapping[str, str] = field(default_factory=dict)  # receipt -> operation id on it, of any operation
    facts: dict[str, Any] = field(default_factory=dict)  # shown on the sheet as "read from the provider by us"
    detail: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class EffectPage:
    """One page of everything that an account shows. Not `complete`: it could not be read, and nothing may be concluded."""

    complete: bool
    effects: tuple[ListedEffect, ...] = ()
    go_on: str = ""  # where the next page begins; empty after the last one
    detail: dict[str, Any] = field(default_factory=dict)  # of the answer, where it could not be read


# Called inside the transport immediately before the first byte; returns False when nothing may be sent any more.
SendGuard = Callable[[], Awaitable[bool]]
# Called inside the transport right after the request was written.
AfterWrite = Callable[[], None]


class Provider(Protocol):
    """One effect at one provider."""

    action: str
    provider: str
    contract: Contract
    resolution: str  # the evidence that a person must bring, per resolution, in words

    def check_arguments(self, arguments: dict[str, Any]) -> None:
        """Raise `Refused` with field and rule unless these are complete, well-formed arguments of the action. Pure."""

    def check_target(self, target: str) -> None:
        """Raise `Refused` unless this can name a target of the action. Pure."""

    def pure_target(self, target: str) -> str | None:
        """The canonical target when no read is needed to know it, else None. Pure."""

    def equivalence_key(self, target: str, arguments: dict[str, Any]) -> str:
        """Two operations with equal keys would do the same thing twice. Pure."""

    def build_request(self, operation: Operation, basis: Mapping[str, Any]) -> Request:
        """The one request of this operation on `basis`, which preflight read at the version that the operation expects.

        Pure; equal operations on equal bases give equal requests. Raises `Broken` where it would be unconditional though
        the contract promises a condition.
        """

    def marker_of(self, operation: Operation) -> str:
        """What the effect carries so that a lookup can find it. Pure."""

    async def preflight(self, credential: Credential, target: str, arguments: dict[str, Any], marker: str) -> Preflight:
        """Read the target and *all* effects on it. Never raises for an answer."""

    async def send(
        self,
        credential: Credential,
        operation: Operation,
        request: Request,
        contract: Contract,
        guard: SendGuard,
        after_write: AfterWrite,
    ) -> Classified:
        """Send the frozen request once, with the guard run inside the transport; total deadline from the contract."""

    async def look(self, credential: Credential, operation: Operation, since: datetime) -> Look:
        """Look for our effect. `since` is the earliest provider time an effect of ours can bear."""

    async def read_receipt(self, credential: Credential, operation: Operation, receipt: str) -> SeenEffect | None:
        """Re-read one effect by its receipt; None when it cannot be read."""

    async def whose(self, credential: Credential) -> Credential | None:
        """The account and mode this secret really belongs to; None when the provider could not be asked."""

    def link(self, operation: Operation) -> str:
        """A page at the provider for a person to look at; empty when there is none."""


@runtime_checkable
class Lists(Protocol):
    """What an adapter offers as well whose provider can list every effect of an account: the audit reads it."""

    async def list_effects(self, credential: Credential, since: datetime | None, go_on: str) -> EffectPage:
        """One page of the effects made since then (None: of all), those of others too. Never raises for an answer.

        `go_on` is empty for the first page, and then what the page before said. An effect that is made meanwhile may stand
        on no page; one that was there at the beginning stands on exactly one.
        """

    async def read_effect(self, credential: Credential, receipt: str) -> EffectPage:
        """The effect of this receipt as it is now, as a page; a complete one without it: the provider says it has none."""
