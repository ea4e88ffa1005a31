"""After a signal: read the trail until it tells what became of a statement."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from commands.reading import Reader
from ledger.model import Operation
from ledger.store import events, operations, views
from ledger.trail import Event, EventKind, sentence

POLL_SECONDS = 0.1
GRACE_SECONDS = 1.0  # a refusal names no statement: somebody else's may have come between

# What a signer can do about a rule that the trail names; the ledger keeps the rule, not the sentence.
WHAT_TO_DO: dict[str, str] = {
    "absence_unproved": "two complete looks must show no effect that could be ours; name look-alikes of others with --foreign",
    "attempt_open": "an attempt is still open: wait for its lease, `effects show` tells until when",
    "evidence_unseen": "evidence came after what you saw: read `effects review` again and sign on that",
    "key_revoked": "this key is revoked: sign with another",
    "key_unknown": "the configuration in force does not name this key",
    "late_send": "a request left later than its guard allows: only --undetermined is possible",
    "limit_exceeded": "somebody with a higher limit in this currency must sign",
    "no_lookup": "this provider cannot be asked: resolve on other evidence",
    "not_in_review": "it does not stand in review: `effects show` tells where it stands",
    "not_operator": "an operator of this tenant must sign (operator_of in people.toml)",
    "not_quiet": "a request may still be worked on: `effects show` tells until when",
    "own_proposal": "somebody else must approve what you propose or asked for",
    "receipt_differs": "that receipt is another effect than the one asked for",
    "receipt_taken": "that receipt belongs to another operation",
    "receipt_void": "that effect exists no longer",
    "role_missing": "this needs a role that the signer has not (people.toml)",
    "sheet_unknown": "sign on the latest sheet: `effects sheet`",
    "statement_expired": "sign again: the signature was too old by the ledger's clock",
    "window_open": "our key is still honoured: wait until `repeat until` in `effects show` is over",
}


@dataclass(frozen=True)
class Heard:
    """What the trail told: accepted or refused and by which rule, or nothing yet; and the operation since."""

    operation: Operation
    accepted: bool = False
    rule: str = ""
    field: str = ""
    new: tuple[Event, ...] = ()

    @property
    def silent(self) -> bool:
        """Nobody took it yet."""
        return not self.accepted and not self.rule

    @property
    def what_to_do(self) -> str:
        """A sentence for the rule that refused it."""
        return WHAT_TO_DO.get(self.rule, "read the trail: `effects trail`")

    def sentences(self) -> list[str]:
        """The new events in words."""
        return [sentence(event) for event in self.new]


async def hear(reader: Reader, before: Operation, jti: str, kind: str, seconds: float) -> Heard:
    """Wait until the statement `jti` is accepted, or a message of this kind was refused after what `before` knows."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    refused_since: float | None = None
    while True:
        async with reader.snapshot() as conn:
            operation = await operations.find(conn, before.operation_id)
            new = [e for e in await events.read(conn, before.operation_id) if e.number > before.event_count]
            accepted = await views.accepted(conn, jti)
        assert operation is not None
        refusal = next(
            (e for e in reversed(new) if e.kind is EventKind.STATEMENT_REFUSED and e.body["typ"] == kind), None
        )
        if refusal is not None and refused_since is None:
            refused_since = loop.time()
        if accepted:
            return Heard(operation, True, new=tuple(new))
        if refusal is not None and refused_since is not None and loop.time() - refused_since >= GRACE_SECONDS:
            return Heard(operation, False, refusal.body["rule"], refusal.body["field"], tuple(new))
        if loop.time() > until:
            return Heard(operation, new=tuple(new))
        await asyncio.sleep(POLL_SECONDS)


async def until(reader: Reader, operation_id: UUID, holds: Callable[[Operation], bool], seconds: float) -> Operation:
    """The operation as soon as the condition is true of it, or as it is after so many seconds."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while True:
        async with reader.snapshot() as conn:
            operation = await operations.find(conn, operation_id)
        assert operation is not None
        if holds(operation) or loop.time() > deadline:
            return operation
        await asyncio.sleep(POLL_SECONDS)
