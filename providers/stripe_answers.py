"""What Stripe's answers about a refund mean: to the write, and in a list.

1. Pure and total: any bytes that a server may send get a meaning, and none raises.
2. Judged is what was on the wire (status, error type and code, replay header, how far the request got), never an
   exception of the SDK. What is not listed in `classify` is unknown.
3. A refund is ours if it carries our marker and its payment, amount and currency fit.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ledger.model import Hint, Operation, Outcome, SeenEffect, Standing
from providers.port import Classified
from providers.stripe_http import Answer
from providers.wire import words

MARKER = "operation_id"
STANDINGS = {
    "succeeded": Standing.GOOD,
    "pending": Standing.PENDING,
    "requires_action": Standing.PENDING,
    "failed": Standing.VOID,
    "canceled": Standing.VOID,
}
# Refusals that need the state of the payment, so that they come after execution began and are kept for the key.
_EXECUTED = frozenset(
    {
        "charge_already_refunded",
        "charge_disputed",
        "charge_not_refundable",
        "refund_disputed_payment",
        "balance_insufficient",
        "insufficient_funds",
        "amount_too_large",
    }
)
_NEVER_EXECUTED = frozenset({"resource_missing", "parameters_exclusive", "parameter_missing", "parameter_unknown"})


@dataclass(frozen=True)
class Wanted:
    """What a refund must say to be the effect of one operation."""

    target: str  # canonical
    amount_minor: int
    currency: str
    marker: str

    def fits(self, refund: Mapping[str, Any]) -> bool:
        """Whether payment, amount and currency are the ones asked for. Says nothing about the marker."""
        amount = refund.get("amount")
        return (
            target_of(refund, self.target) == self.target
            and isinstance(amount, int)
            and not isinstance(amount, bool)
            and amount == self.amount_minor
            and refund.get("currency") == self.currency
        )


def wanted_by(operation: Operation) -> Wanted:
    """What the refund of this operation must say."""
    arguments = operation.arguments
    return Wanted(operation.target, arguments["amount_minor"], arguments["currency"], str(operation.operation_id))


def classify(answer: Answer, wanted: Wanted) -> Classified:
    """What one answer to the write, or its absence, means. Total and pure; everything unlisted is unknown."""
    detail = answer.detail()
    if not answer.sent:
        return Classified(Outcome.NO_EFFECT, Hint.NOT_SENT, detail=detail)
    if answer.status is not None and answer.status >= 500 and (answer.replayed or _from_stripe(answer)):
        return Classified(Outcome.UNKNOWN, Hint.STORED_ERROR, stored=True, detail=detail)
    if not answer.whole or answer.status is None or answer.status >= 500:
        return Classified(Outcome.UNKNOWN, Hint.LOST, detail=detail)
    if answer.status == 200:
        return _classify_refund(answer, wanted, detail)
    error = answer.error
    kind, code = error.get("type"), error.get("code")
    match answer.status:
        case 400 if kind == "idempotency_error":
            return Classified(Outcome.UNKNOWN, Hint.MISUSED, detail=detail)
        case 409 if code == "idempotency_key_in_use":
            return Classified(Outcome.UNKNOWN, Hint.BUSY, detail=detail)
        case 401 | 403 | 429 if kind and not answer.replayed:
            return Classified(Outcome.NO_EFFECT, detail=detail)
        case 400 | 402 | 404 if _definite(answer.status, error):
            return Classified(Outcome.REFUSED, stored=answer.replayed or _after_execution(error), detail=detail)
        case _:
            return Classified(Outcome.UNKNOWN, Hint.UNREADABLE, detail=detail)


def read_sighting(refund: Mapping[str, Any], wanted: Wanted, since: datetime | None = None) -> SeenEffect:
    """One listed refund, seen by this operation.

    One with another marker is a look-alike as well: whether that marker is really another operation's, the ledger says.
    A status that we do not know never matches, so that with our marker on it a person must look.
    """
    marker, status, created = marker_on(refund), refund.get("status"), refund.get("created")
    standing = STANDINGS.get(status) if isinstance(status, str) else None
    in_time = since is None or (isinstance(created, int) and created >= int(since.timestamp()))
    marked = marker == wanted.marker
    return SeenEffect(
        receipt=str(refund.get("id")),
        standing=standing or Standing.PENDING,
        marked=marked,
        matching=wanted.fits(refund) and in_time and standing is not None,
        summary={
            "amount": refund.get("amount"),
            "currency": words(refund.get("currency")),
            "status": words(status),
            "created": created,
            "reason": words(refund.get("reason")),
            "failure_reason": words(refund.get("failure_reason")),
            "marker": words(marker),
        },
    )


def marker_on(refund: Mapping[str, Any]) -> str | None:
    """The operation id that the refund carries, whosever it is."""
    metadata = refund.get("metadata")
    found = metadata.get(MARKER) if isinstance(metadata, Mapping) else None
    return found if isinstance(found, str) and found else None


def _classify_refund(answer: Answer, wanted: Wanted, detail: dict[str, Any]) -> Classified:
    refund = answer.object
    if refund is None or refund.get("object") != "refund" or not is_id(refund.get("id")):
        return Classified(Outcome.UNKNOWN, Hint.UNREADABLE, detail=detail)
    status = refund.get("status")
    detail = detail | {"receipt": words(refund["id"]), "refund_status": words(status)}
    if not wanted.fits(refund) or marker_on(refund) != wanted.marker:
        return Classified(Outcome.UNKNOWN, Hint.MISMATCH, detail=detail)
    standing = STANDINGS.get(status) if isinstance(status, str) else None
    if standing is None:
        return Classified(Outcome.UNKNOWN, Hint.UNREADABLE, detail=detail)
    return Classified(Outcome.APPLIED, receipt=refund["id"], standing=standing, detail=detail)


def _from_stripe(answer: Answer) -> bool:
    """An error of the API itself; a page of its edge has no error object."""
    return bool(answer.error.get("type")) and "request-id" in answer.headers


def _definite(status: int, error: Mapping[str, str]) -> bool:
    """A refusal that we know. Without a code it is a 400 about what was asked, for example an amount above the rest."""
    kind, code = error.get("type"), error.get("code")
    if kind == "card_error":
        return status == 402
    if kind != "invalid_request_error":
        return False
    if code is None:
        return status == 400
    return code in _EXECUTED or code in _NEVER_EXECUTED or code.startswith("parameter_invalid_")


def _after_execution(error: Mapping[str, str]) -> bool:
    """Whether the refusal rests on the state of the payment, so that Stripe replays it for the key."""
    code = error.get("code")
    if code is not None:
        return code in _EXECUTED
    # Neither an amount above the rest nor an empty balance has a code. Any other stays "not stored", the safe side.
    return error.get("param") == "amount" or error.get("message", "").lower().startswith("insufficient funds")


def target_parameter(target: str) -> str:
    """The parameter, and the field of a refund, that names a target of this kind."""
    return "payment_intent" if target.startswith("pi_") else "charge"


def target_of(refund: Mapping[str, Any], like: str) -> object:
    """What the refund gives back, by the kind of target that `like` is."""
    found = refund.get(target_parameter(like))
    return found.get("id") if isinstance(found, Mapping) else found


def is_id(value: object) -> bool:
    """Whether this can be an id of Stripe: nothing that could change the path of a request."""
    return isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9_]{1,255}", value) is not None
