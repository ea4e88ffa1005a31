"""Stripe's webhook events: verified on the raw bytes, then read down to the few ids that the ledger may keep.

1. Pure and total: any bytes under any header are an event or a `Refused`; nothing else is raised.
2. The SDK verifies the signature. What it leaves open is closed here: exactly one time, not from the future, a size.
3. Ids and times are kept. The body may hold personal data and goes no further than its digest.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from stripe import SignatureVerificationError, WebhookSignature

from ledger.errors import Refused
from ledger.model import InboxEvent
from providers.stripe_answers import is_id, marker_on

PROVIDER = "stripe"
MAX_BODY = 256 * 1024  # bytes; Stripe's events about refunds and charges are a few KiB
MAX_HEADER = 4096
CLOCKS_DIFFER_BY = 300  # seconds between the signing and now, either way
_LATEST = 2**33  # seconds since the epoch; what a column of the ledger certainly holds
_TYPE = re.compile(r"[a-z0-9_]{1,40}(\.[a-z0-9_]{1,40}){0,3}")


def read_event(body: bytes, header: str, secrets: Sequence[str], at: float, *, own_account: str) -> InboxEvent:
    """The event in a verified delivery. `at` is now; `own_account` is whose endpoint this is: its own events name none.

    Refused: `body_too_large`, `signature_missing`, `signature_malformed`, `signature_wrong`, `signature_old`,
    `signature_future`, `event_malformed`.
    """
    verify(body, header, secrets, at)
    return parse(body, own_account)


def verify(body: bytes, header: str, secrets: Sequence[str], at: float) -> None:
    """Refuse whatever was not signed with one of these secrets, over exactly these bytes, within five minutes of `at`."""
    if len(body) > MAX_BODY:
        raise Refused("body_too_large", f"a delivery has at most {MAX_BODY} bytes")
    if not header:
        raise Refused("signature_missing", "send Stripe's header Stripe-Signature", field="Stripe-Signature")
    signed_at = _time_in(header)
    if not any(_signed(body, header, secret) for secret in secrets):
        raise Refused(
            "signature_wrong",
            "no signature over this body fits a secret of this endpoint: compare the secret with the one in Stripe's"
            " dashboard, and let nothing between Stripe and here change the body",
            field="Stripe-Signature",
        )
    if at - signed_at > CLOCKS_DIFFER_BY:
        raise Refused("signature_old", f"signed more than {CLOCKS_DIFFER_BY} s ago", field="Stripe-Signature")
    if signed_at - at > CLOCKS_DIFFER_BY:
        # The SDK takes any time from the future: whoever recorded such a delivery could replay it until then.
        raise Refused(
            "signature_future", f"signed {CLOCKS_DIFFER_BY} s in the future or more", field="Stripe-Signature"
        )


def parse(body: bytes, own_account: str) -> InboxEvent:
    """The ids of an event. Of a type that we do not know, whatever ids can be read; of anything else, `event_malformed`."""
    event = _object_in(body)
    event_id, kind, created, livemode = (event.get(name) for name in ("id", "type", "created", "livemode"))
    account = event.get("account") or own_account
    if not is_id(event_id) or not is_id(account) or not isinstance(livemode, bool):
        raise Refused("event_malformed", "an event has an id, an account and a mode", field="id")
    if not isinstance(kind, str) or not _TYPE.fullmatch(kind):
        raise Refused("event_malformed", "an event has a type like refund.updated", field="type")
    if not isinstance(created, int) or isinstance(created, bool) or not 0 <= created < _LATEST:
        raise Refused("event_malformed", "an event was created at a time", field="created")
    about = event.get("data")
    thing = about.get("object") if isinstance(about, Mapping) else None
    receipt, target, marker = _ids_of(thing if isinstance(thing, Mapping) else {})
    return InboxEvent(
        provider=PROVIDER,
        event_id=str(event_id),
        account=str(account),
        livemode=livemode,
        type=kind,
        created_at=datetime.fromtimestamp(created, UTC),
        receipt=receipt,
        target=target,
        marker=marker,
        body_digest=hashlib.sha256(body).digest(),
    )


def _time_in(header: str) -> int:
    """The one time of the header. The SDK takes the first of several, and texts that only Python calls a number."""
    told = [item.partition("=") for item in header.split(",")]
    times = [value for name, _, value in told if name == "t"]
    if (
        len(header) > MAX_HEADER
        or not header.isascii()
        or len(times) != 1
        or not re.fullmatch(r"[0-9]{1,12}", times[0])
    ):
        raise Refused("signature_malformed", "the header is t=TIME,v1=SIGNATURE", field="Stripe-Signature")
    return int(times[0])


def _signed(body: bytes, header: str, secret: str) -> bool:
    """The age is not the SDK's to judge: it reads a clock of its own."""
    try:
        return bool(WebhookSignature.verify_header(body, header, secret, tolerance=None))
    except (SignatureVerificationError, UnicodeDecodeError):
        return False


def _object_in(body: bytes) -> dict[str, Any]:
    try:
        event = json.loads(body.decode())
    except (ValueError, RecursionError) as error:
        raise Refused("event_malformed", "the body is not JSON") from error
    if not isinstance(event, dict) or event.get("object") != "event":
        raise Refused("event_malformed", "the body is not an event of API v1 with its object (a snapshot)")
    return event


def _ids_of(thing: Mapping[str, Any]) -> tuple[str | None, str | None, UUID | None]:
    """(receipt, target, marker): the target as adapters name it, a charge only where it has no payment intent."""
    kind, own = thing.get("object"), _id(thing.get("id"))
    if kind == "payment_intent":
        return None, own, None
    target = _id(thing.get("payment_intent")) or (own if kind == "charge" else _id(thing.get("charge")))
    if kind != "refund":
        return None, target, None
    return own, target, _uuid(marker_on(thing))


def _id(value: object) -> str | None:
    """An id, or the id of the object that stands in its place."""
    found = value.get("id") if isinstance(value, Mapping) else value
    return found if isinstance(found, str) and is_id(found) else None


def _uuid(marker: str | None) -> UUID | None:
    """Only as our adapter writes it: whatever else stands there is somebody else's, and may be personal."""
    try:
        found = UUID(marker or "")
    except ValueError:
        return None
    return found if str(found) == marker else None
