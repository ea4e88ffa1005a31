"""Erasure: which parts of what happened to an ended operation stay when its personal fields go, and how that is proved.

1. Names that are not listed here do not stay: a field that nobody thought of is erased.
2. Signers stay: who decided is what the trail is for.
3. The chain goes on over the digests of the bodies as they were. What remains of them, and of the operation's columns, is
   digested once, in the event of the erasure: a change after it is found like any other.
"""

import hashlib
from collections.abc import Iterable
from typing import Any

from ledger import fingerprint
from ledger.errors import Broken
from ledger.model import Operation

REMAINS_PREFIX = b"effect-ledger/remains/v1\n"

_MOVES = """
reason row waived people_needed config_version review_at field people by person kid token_of read_at_provider typ decision jti
rule count message_digest digest facts_digest
"""
_EVIDENCE = """
attempt outcome hint stored receipt receipts standing before answered_at late_send_at lease_until worker what began_at
finished_at complete effects version_moved witness_has_marker marked matching
"""
_KEPT = frozenset((_MOVES + _EVIDENCE).split())
_EMPTIED = frozenset({"detail", "summary"})  # what a provider said: the place stays


def remaining(body: dict[str, Any]) -> dict[str, Any]:
    """The parts of an event's body, or of a seen effect, that are no personal field."""
    kept: dict[str, Any] = {}
    for name, value in body.items():
        if name in _EMPTIED:
            kept[name] = {}
        elif name in _KEPT:
            kept[name] = (
                [remaining(v) if isinstance(v, dict) else v for v in value] if isinstance(value, list) else value
            )
    return kept


def remains(operation: Operation, bodies: Iterable[str]) -> bytes:
    """SHA-256 of what is left of an erased operation: its identity columns, and its event bodies before the erasure."""
    fields: dict[str, Any] = {name: getattr(operation, name) for name in fingerprint.IDENTITY_FIELDS}
    fields["approval_expires_at"] = int(operation.approval_expires_at.timestamp())
    left = hashlib.sha256(REMAINS_PREFIX + fingerprint.canonical_bytes(fingerprint.identity(**fields)))
    for body in bodies:
        left.update(hashlib.sha256(body.encode()).digest())
    return left.digest()


def check_remains(operation: Operation, bodies: list[tuple[int, str, bytes]], erased: int, told: str) -> None:
    """Raise `Broken` unless what is left, before event `erased`, is what that event says. Bodies as in `verify_bodies`."""
    if remains(operation, [text for number, text, _ in bodies if number < erased]).hex() != told:
        raise Broken("what remained after its erasure is not what was recorded then")
