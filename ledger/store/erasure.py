"""Erasing the personal fields of operations that have ended (owner's role): what is emptied, and what is told about it."""

import hashlib
from datetime import datetime
from typing import Any, Final, LiteralString

from psycopg.types.json import Jsonb

from ledger import erasure
from ledger.errors import Refused
from ledger.model import Operation
from ledger.states import ENDED
from ledger.store import events, operations, statements
from ledger.store.database import Connection
from ledger.store.operations import COLUMNS, from_row
from ledger.trail import EventKind, body_text

_ENDED_BEFORE: Final[LiteralString] = (
    "select"
    + COLUMNS
    + "from operations where ended_at < %s and erased_at is null and next_step = '' and not contradicted"
    " order by ended_at limit %s"
)


async def ended_before(conn: Connection, moment: datetime, limit: int) -> list[Operation]:
    """What ended before this moment and can be erased, oldest first. What people must look at is left out."""
    return [from_row(row) for row in await (await conn.execute(_ENDED_BEFORE, [moment, limit])).fetchall()]


async def erase(conn: Connection, operation: Operation, by: str, reason: str) -> Operation:
    """Empty the personal fields of one operation and tell it in its trail. Erased before: nothing is done.

    Refused: `not_ended`, where it has not ended or its receipt is still followed.
    """
    operation = await operations.lock(conn, operation.operation_id)
    if operation.erased_at is not None:
        return operation
    if operation.state not in ENDED or operation.next_step:
        raise Refused("not_ended", f"it is {operation.state}: something is still to be done", field="operation")
    digests = await _digests(conn, operation)
    await conn.execute(
        "update operations set erased_at = ledger_now(), requested_by = '', token = '', arguments = '{}', evidence = '[]',"
        " distinct_from = '[]', canonical = '', frozen_request = null where operation_id = %s",
        [operation.operation_id],
    )
    await _empty_facts(conn, operation)
    await _empty_bodies(conn, operation)
    left = await operations.lock(conn, operation.operation_id)
    bodies = [text for _, text, _ in await events.bodies(conn, operation.operation_id)]
    body = {"by": by, "reason": reason, "digests": digests, "remains": erasure.remains(left, bodies).hex()}
    return await events.append(conn, left, EventKind.ERASED, body)


async def _digests(conn: Connection, operation: Operation) -> dict[str, str]:
    """Of what stands nowhere else as a digest: whoever kept a copy can still prove that it is the one."""
    found = {"token": hashlib.sha256(operation.token.encode()).hexdigest()}
    for said in await statements.of_operation(conn, operation.operation_id):
        found[f"statement {said.jti}"] = hashlib.sha256(said.statement).hexdigest()
    return found


async def _empty_facts(conn: Connection, operation: Operation) -> None:
    """Sheets, signed bytes, and what providers said."""
    about = [operation.operation_id]
    await conn.execute("update sheets set document = '' where operation_id = %s", about)
    await conn.execute("update statements set statement = '', proof = '' where operation_id = %s", about)
    await conn.execute("update attempts set detail = '{}' where operation_id = %s and detail <> '{}'", about)
    rows = await (await conn.execute("select number, effects from sightings where operation_id = %s", about)).fetchall()
    for row in rows:
        effects: list[dict[str, Any]] = [erasure.remaining(effect) for effect in row["effects"]]
        await conn.execute(
            "update sightings set effects = %s, detail = '{}' where operation_id = %s and number = %s",
            [Jsonb(effects), operation.operation_id, row["number"]],
        )


async def _empty_bodies(conn: Connection, operation: Operation) -> None:
    for event in await events.read(conn, operation.operation_id):
        kept = erasure.remaining(event.body)
        if kept != event.body:
            await conn.execute(
                "update events set body = %s where stream = %s and number = %s",
                [body_text(kept), operation.operation_id, event.number],
            )
