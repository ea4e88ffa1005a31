"""What crosses Temporal: flat models with a StrEnum discriminator, never a union. New fields come with defaults only.

Amounts are integers in the provider's minor unit, times ISO 8601 in UTC, durations seconds.
"""

import hashlib
import json
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict

TASK_QUEUE = "effect-ledger"
ASKED_AGAIN = "effect_ledger_asked_again"  # the one metric that a workflow counts itself
OPERATION_WORKFLOW = "OperationWorkflow"
TAKE_EVENTS_WORKFLOW = "TakeEventsWorkflow"
AUDIT_WORKFLOW = "AuditWorkflow"


class Proposal(BaseModel):
    """What an agent asks for. It has no authority by itself: `token` proves who asks, policy and people decide.

    `arguments` are the action's own, for a refund {"amount_minor": 1500, "currency": "eur", "reason": "duplicate"}.
    `evidence` names what the proposal rests on, as [{"kind": "ticket", "reference": "T-77", "digest": "sha256:…"}].
    `distinct_from` names operations that look the same and are not; a person is then always asked.
    `depends_on` names, by their business keys, operations of the same tenant that must have ended well before this one is
    sent: [{"business_key": "order-7/invoice", "state": "succeeded", "into": "fields.invoice"}]. With `into` the receipt
    of that operation becomes this argument, or stands for `{receipt}` in its text, before anything is recorded: nothing
    is approved with a hole in it.
    `supersedes` is the business key of the ended operation that this one is a revision of.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    tenant: str
    business_key: str
    action: str
    target: str
    arguments: dict[str, Any]
    actor: str
    requested_by: str = ""
    evidence: list[dict[str, str]] = []
    distinct_from: list[str] = []
    expected_version: str | None = None
    depends_on: list[dict[str, str]] = []
    supersedes: str | None = None
    token: str = ""


ASKED = {
    "action",
    "target",
    "arguments",
    "evidence",
    "distinct_from",
    "expected_version",
    "depends_on",
    "supersedes",
}
REQUEST_PREFIX = b"effect-ledger/request/v1\n"


def request_digest(proposal: Proposal) -> str:
    """SHA-256 (hex) of what is asked for: equal to the ledger's own for every proposal that it accepts (a test compares)."""
    asked = proposal.model_dump(include=ASKED)
    text = json.dumps(asked, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(REQUEST_PREFIX + text.encode(errors="surrogatepass")).hexdigest()


class Next(StrEnum):
    """What the workflow does next about an operation."""

    JUDGE = "judge"  # read the target again and judge
    PEOPLE = "people"  # wait for people until the approval expires
    DISPATCH = "dispatch"  # claim and send
    RECONCILE = "reconcile"  # settle what is unknown, or follow a pending receipt
    REVIEW = "review"  # a person must settle it; late evidence is looked for slowly
    DONE = "done"


class Progress(BaseModel):
    """Where an operation stands, as the ledger says: what every activity returns and the only thing a workflow acts on."""

    operation_id: str = ""
    state: str = ""  # a ledger state, or `refused`: nothing was recorded
    next: Next = Next.DONE
    delay_seconds: float = 0.0
    reason: str = ""
    field: str = ""
    message: str = ""
    request_digest: str = ""  # hex; what this operation is, in its caller's words
    refused_rule: str = ""  # the message just recorded did not count, and why
    events: int = 0  # the highest event number seen
    until: str = ""  # when the next step falls due
    tenant: str = ""
    action: str = ""
    provider: str = ""
    amount_minor: int = 0
    currency: str = ""
    attempt: int = 0  # number of the latest attempt
    receipt: str = ""
    standing: str = ""
    details: str = ""  # markdown for the Web UI


class Answer(BaseModel):
    """What a caller is told. `advice` is a fixed sentence for the model that asked; the same key again is the poll."""

    operation_id: str = ""
    state: str
    reason: str = ""
    field: str = ""
    message: str = ""
    until: str = ""
    ended: bool = False
    advice: str = ""
    receipt: str = ""


class OperationRef(BaseModel):
    """An operation, and the highest event number that the caller saw of it."""

    operation_id: str
    known_events: int = 0
    look_now: bool = False


class MessageKind(StrEnum):
    """Which signal or update brought a message."""

    DECIDE = "decide"
    RESOLVE = "resolve"
    WITHDRAW = "withdraw"
    LOOK_NOW = "look_now"
    CANCEL = "cancel"  # the workflow was cancelled: before the first send this withdraws
    JUNK = "junk"  # nothing that could be read; counted and recorded


class Message(BaseModel):
    """One message of a person, as it came: not yet verified."""

    kind: MessageKind
    operation_id: str = ""
    known_events: int = 0
    statement: str = ""
    scheme: str = ""
    proof: str = ""
    sheet: str = ""
    count: int = 1
    problem: str = ""  # what was wrong with junk


class Resume(BaseModel):
    """What a workflow carries over continue-as-new."""

    operation_id: str
    known_events: int = 0
    waiting: list[Message] = []


class HoldRequest(BaseModel):
    """A signed hold or release, as the hold workflow takes it."""

    statement: str
    scheme: str
    proof: str


class HoldAnswer(BaseModel):
    """What became of a hold or release."""

    accepted: bool
    held: bool = False
    scope: str = ""
    rule: str = ""
    message: str = ""
    still_needed: int = 0
    wake: list[str] = []  # workflow ids of open operations in the scope


class Taking(BaseModel):
    """How many events of the inbox are taken at once."""

    at_most: int = 100


class Taken(BaseModel):
    """What became of them. `left` says that more may wait."""

    taken: int = 0
    woken: int = 0
    left: bool = False


class Auditing(BaseModel):
    """What an audit does beside comparing."""

    repair: bool = False  # start or wake what nobody works on


class Audited(BaseModel):
    """What an audit did. The findings themselves stand in the ledger."""

    listed: int = 0  # effects that were compared
    findings: int = 0  # that are open now
    repaired: list[str] = []  # workflow ids
    left_out: list[str] = []  # listings that were not read to their end, and why


ADVICE: dict[str, str] = {
    "refused": "Not recorded: correct the named field and ask again with the same key.",
    "key_used": "This key stands for another request: ask with exactly that request to learn how it went. A different "
    "effect is a new intent, and for a person to decide.",
    "proposed": "Recorded. Do not try again under another key; ask again with this key to learn how it went.",
    "awaiting_approval": "Recorded, a person must approve. Do not try again under another key.",
    "approved": "Recorded and approved; it is sent as soon as nothing holds it. Do not try again under another key.",
    "in_flight": "Being sent. Do not try again under another key.",
    "unknown": "Sent, and no proof yet whether it happened. Do not try again: it is being settled. It has not been lost.",
    "needs_review": "Sent, and nobody knows yet whether it happened. A person is settling it. Do not try again.",
    "succeeded": "Done; the effect exists. Do not ask for it again.",
    "rejected": "Proved not to have happened, and it will not. A new attempt needs a new key and a reason.",
    "undetermined": "Two people certified that nobody can know whether it happened. Do not try again.",
    "blocked": "Never sent; the reason is given. Do not try again under another key without a person.",
    "unrecorded": "Not yet recorded: the ledger or the provider did not answer in time. Ask again with the same key.",
}
