"""What a provider promises about one effect, as a value with a source for every term.

An unknown term counts as "no". Where recovery needs a bound that the provider does not publish, the contract states a
conservative assumption and marks it as one. All durations are seconds.
"""

from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ledger.errors import Broken


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Source(_Frozen):
    """Where a term comes from: a page and the day it was read, a program it was tried on, or an assumption's reason."""

    term: str
    text: str
    url: str = ""
    read_on: str = ""  # ISO date
    measured_on: str = ""  # the program and version that was seen to behave so
    assumption: bool = False


class KeyTerms(_Frozen):
    """What the provider promises about idempotency keys."""

    lifetime: float = Field(gt=0, description="a key is honoured at least this long after its first use")
    margin: float = Field(gt=0, description="we stop repeating this long before the lifetime ends")
    stores_server_errors: bool  # a 5xx that was stored is replayed: repeating it cannot help
    stores_refusals: bool  # a refusal after execution began is replayed for the key
    replay_marker: str = ""  # the header that says an answer was replayed
    on_changed_parameters: str = ""
    while_first_runs: str = ""


class LookupTerms(_Frozen):
    """What the provider promises about finding our effect by our marker."""

    marker: str
    settling: float = Field(ge=0, description="an effect may stay invisible this long after it was made")
    complete: bool  # the listing can be read to its end and then holds every effect on the target
    marker_editable: bool  # somebody can remove the marker later: its absence alone proves nothing


class Timing(_Frozen):
    """Our own bounds on one dispatch (design, section 6, send guard)."""

    send_within: float = Field(default=10.0, gt=0, description="S: longest delay from claim to first byte")
    call_deadline: float = Field(default=30.0, gt=0, description="D: total deadline of the call")
    slack: float = Field(
        default=5.0, gt=0, description="between guard and first byte, and for the write of the outcome"
    )
    backoff: float = Field(default=2.0, gt=0, description="first pause before a repeat or a second look")
    backoff_cap: float = Field(default=300.0, gt=0, description="longest pause")

    @property
    def lease(self) -> float:
        """How long a claim holds: S + D + slack."""
        return self.send_within + self.call_deadline + self.slack


class Contract(_Frozen):
    """Everything recovery needs to know about one provider effect. Frozen with the operation at its first claim.

    What a key stores, how a replay is marked and how other answers look is for people and adapters; recovery reads the
    outcome and hint that the adapter's classification made of it.
    """

    name: str
    api_version: str = ""
    key: KeyTerms | None = None
    lookup: LookupTerms | None = None
    processing: float = Field(gt=0, description="longest time the provider works on a request after its last byte")
    roll_forward: float = Field(
        default=0.0, ge=0, description="an effect may still appear this long after a stored 5xx"
    )
    conditional_write: bool = False
    versions_return: bool = False  # a version can come back, as a content hash does: unchanged is not untouched
    witness: bool = False  # an append-only record at the provider that names the writer
    effect_can_change: bool = False  # an applied effect may turn void later
    timing: Timing = Timing()
    sources: tuple[Source, ...] = ()

    @classmethod
    def from_frozen(cls, frozen: dict[str, Any]) -> Self:
        """The contract as it was frozen. `Broken` when this code cannot read it: then nothing may be decided by it."""
        try:
            return cls.model_validate(frozen)
        except ValidationError as error:
            raise Broken(f"the frozen contract {frozen.get('name')} cannot be read by this code: {error}") from error

    @model_validator(mode="after")
    def _margin_covers_processing(self) -> Self:
        # A repeat claimed at the last permitted moment, and stopped between guard and first byte for as long as nobody
        # would notice, must be executed before the key can be pruned.
        longest = max(self.processing, self.timing.slack)
        if self.key is not None and self.key.margin < longest:
            raise ValueError(
                f"contract {self.name}: margin {self.key.margin} is shorter than processing or slack {longest}"
            )
        return self
