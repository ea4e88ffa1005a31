"""After a signal: read the trail until it tells what became of a statement."""

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from commands.reading import Reader
from ledger.errors import Refused
from ledger.model import Operation
from ledger.statement import Envelope
from ledger.store import events, operations, views
from ledger.trail import Event, EventKind, sentence

POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Heard:
    """What the trail told: accepted or refused and why, or nothing yet; and the operation since."""

    operation: Operation
    accepted: bool = False
    refusal: Refused | None = None
    new: tuple[Event, ...] = ()

    @property
    def silent(self) -> bool:
        """Nobody took it yet."""
        return not self.accepted and self.refusal is None

    def sentences(self) -> list[str]:
        """The new events in words."""
        return [sentence(event) for event in self.new]


async def hear(reader: Reader, before: Operation, jti: str, sent: Envelope, seconds: float) -> Heard:
    """Wait until the statement `jti`, sent in this envelope, is accepted or refused after what `before` knows."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    digest = hashlib.sha256(sent.statement.encode()).hexdigest()  # by which a refusal names what it refused
    while True:
        async with reader.snapshot() as conn:
            operation = await operations.find(conn, before.operation_id)
            new = [e for e in await events.read(conn, before.operation_id) if e.number > before.event_count]
            accepted = await views.accepted(conn, jti)
        assert operation is not None
        if accepted:
            return Heard(operation, True, new=tuple(new))
        refusals = [e.body for e in new if e.kind is EventKind.STATEMENT_REFUSED]
        ours = next((body for body in refusals if body.get("message_digest") == digest), None)
        if ours is not None:
            return Heard(operation, False, Refused(ours["rule"], ours["why"], field=ours["field"]), tuple(new))
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
