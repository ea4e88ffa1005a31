"""Operations: insert, lock, move. A move is a compare-and-set on state, fence and event count, with its event beside it."""

from dataclasses import replace
from datetime import datetime
from typing import Any, Final, LiteralString
from uuid import UUID

from psycopg.rows import DictRow
from psycopg.types.json import Json, Jsonb

from ledger import states
from ledger.errors import Broken, Superseded
from ledger.fingerprint import fingerprint
from ledger.model import Operation, Standing
from ledger.states import State
from ledger.store import events, facts
from ledger.store.database import Connection, one
from ledger.store.facts import Fact
from ledger.trail import EventKind

COLUMNS: Final[LiteralString] = (
    " operation_id, tenant, business_key, actor, requested_by, action, provider, account, livemode, target, arguments,"
    " amount_minor, currency, expected_version, evidence, distinct_from, depends_on,"
    " supersedes::text, equivalence_key, policy_version, config_version,"
    " canonical, request_digest, fingerprint, approval_expires_at, idempotency_key, kid, token, state, reason, people_needed,"
    " fence, lease_until, frozen_request, frozen_contract, proposed_at, first_claimed_at, ended_at, next_step,"
    " next_step_at, review_at, look_again_at, receipt, standing, event_count, head_hash, erased_at "
)
_FIND: Final[LiteralString] = "select" + COLUMNS + "from operations where operation_id = %s"
_LOCK: Final[LiteralString] = "select" + COLUMNS + "from operations where operation_id = %s for update"
_ON_TARGET: Final[LiteralString] = (
    "select" + COLUMNS + "from operations where (provider, account, livemode, target) = (%s, %s, %s, %s)"
    " and operation_id <> %s order by proposed_at, operation_id"
)


async def namespace(conn: Connection) -> UUID:
    """This ledger's namespace, from which operation ids derive."""
    return (await one(conn, "select namespace from ledger_identity"))["namespace"]  # type: ignore[no-any-return]


async def find(conn: Connection, operation_id: UUID) -> Operation | None:
    """The operation, or None."""
    row = await (await conn.execute(_FIND, [operation_id])).fetchone()
    return None if row is None else from_row(row)


async def lock(conn: Connection, operation_id: UUID, *, known_events: int = 0) -> Operation:
    """The operation under its row lock. `Broken` when it is missing, or when the caller knows more than this ledger does."""
    row = await (await conn.execute(_LOCK, [operation_id])).fetchone()
    if row is None:
        raise Broken(f"the ledger has no operation {operation_id}: is it restored from an older backup?")
    operation = from_row(row)
    if operation.event_count < known_events:
        raise Broken(
            f"operation {operation_id} has {operation.event_count} events, but {known_events} were seen before:"
            " the ledger was restored from an older backup"
        )
    return operation


async def lock_target(conn: Connection, operation: Operation) -> None:
    """Serialize with every other reservation on this target. Taken before any operation's lock."""
    await conn.execute(
        "select lock_target(%s, %s, %s, %s)",
        [operation.provider, operation.account, operation.livemode, operation.target],
    )


async def on_target(conn: Connection, operation: Operation) -> list[Operation]:
    """Every other operation on the same target, of any tenant and in any state. Call it under the target lock."""
    rows = await (
        await conn.execute(
            _ON_TARGET,
            [operation.provider, operation.account, operation.livemode, operation.target, operation.operation_id],
        )
    ).fetchall()
    return [from_row(row) for row in rows]


async def is_being_changed(conn: Connection, operation: Operation) -> bool:
    """Whether an equivalent operation on this target is approved, being sent, unknown or in review."""
    row = await one(
        conn,
        "select exists (select from operations where (provider, account, livemode, target) = (%s, %s, %s, %s)"
        " and equivalence_key = %s and operation_id <> %s"
        " and state in ('approved', 'in_flight', 'unknown', 'needs_review')) as there",
        [operation.provider, operation.account, operation.livemode, operation.target, operation.equivalence_key,
         operation.operation_id],
    )  # fmt: skip
    return bool(row["there"])


async def insert(conn: Connection, operation: Operation, body: dict[str, Any]) -> Operation | None:
    """Record a new operation as proposed (edge 1); None when this id or key exists already (read that one instead)."""
    inserted = await (
        await conn.execute(
            "insert into operations (operation_id, tenant, business_key, actor, requested_by, action, provider, account,"
            " livemode, target, arguments, amount_minor, currency, expected_version, evidence, distinct_from,"
            " depends_on, supersedes, equivalence_key, policy_version, config_version, canonical, request_digest, fingerprint,"
            " approval_expires_at, idempotency_key, kid, token, state, proposed_at,"
            " next_step, next_step_at)"
            " values (%(operation_id)s, %(tenant)s, %(business_key)s, %(actor)s, %(requested_by)s, %(action)s,"
            " %(provider)s, %(account)s, %(livemode)s, %(target)s, %(arguments)s, %(amount_minor)s, %(currency)s,"
            " %(expected_version)s, %(evidence)s, %(distinct_from)s, %(depends_on)s,"
            " %(supersedes)s, %(equivalence_key)s, %(policy_version)s,"
            " %(config_version)s, %(canonical)s, %(request_digest)s, %(fingerprint)s, %(approval_expires_at)s,"
            " %(idempotency_key)s, %(kid)s, %(token)s, 'proposed', %(proposed_at)s,"
            " %(next_step)s, %(next_step_at)s)"
            " on conflict do nothing returning operation_id",
            _parameters(operation),
        )
    ).fetchone()
    if inserted is None:
        return None
    states.edge(1, None, State.PROPOSED)
    count, head = await events.append_move(conn, operation.operation_id, 1, None, State.PROPOSED, 0, body)
    recorded = replace(operation, state=State.PROPOSED, event_count=count, head_hash=head)
    facts.tell(Fact(EventKind.MOVED, body, recorded, 1))
    return recorded


async def move(
    conn: Connection, before: Operation, after: Operation, edge: int, now: datetime, body: dict[str, Any]
) -> Operation:
    """Move `before` along `edge` to what `after` says, with its event. `before` must be as locked in this transaction.

    `Broken` if the design has no such edge; `Superseded` if the row is no longer as `before` says (nothing is written).
    """
    states.edge(edge, before.state, after.state)
    after = replace(after, ended_at=now if after.state in states.ENDED else None)
    if after.state is not State.IN_FLIGHT:
        after = replace(after, lease_until=None)
    await _write(conn, before, after)
    told = {"reason": after.reason, **body}
    count, head = await events.append_move(
        conn, before.operation_id, edge, before.state, after.state, after.fence, told
    )
    moved = replace(after, event_count=count, head_hash=head)
    facts.tell(Fact(EventKind.MOVED, told, moved, edge, before.state))
    return moved


async def note(conn: Connection, before: Operation, after: Operation) -> Operation:
    """Write what is no move: next step, standing of a receipt. Same compare-and-set; the state must be equal."""
    if before.state is not after.state:
        raise Broken("a note moves nothing")
    await _write(conn, before, after)
    return after


async def mark_contradicted(conn: Connection, operation_id: UUID) -> None:
    """List the operation for review although it ended; the event says why."""
    await conn.execute("update operations set contradicted = true where operation_id = %s", [operation_id])


async def receipt_taken(conn: Connection, operation: Operation, receipt: str) -> bool:
    """Whether another operation already has this receipt."""
    row = await one(
        conn,
        "select exists (select from operations where (provider, account, receipt) = (%s, %s, %s)"
        " and operation_id <> %s) as taken",
        [operation.provider, operation.account, receipt, operation.operation_id],
    )
    return bool(row["taken"])


def check_fingerprint(operation: Operation) -> None:
    """`Broken` unless the fingerprint is the one of the canonical bytes: such a row is never sent."""
    if fingerprint(operation.canonical) != operation.fingerprint:
        raise Broken(f"operation {operation.operation_id}: its fingerprint is not the one of its bytes")


async def _write(conn: Connection, before: Operation, after: Operation) -> None:
    written = await conn.execute(
        "update operations set state = %(state)s, reason = %(reason)s, people_needed = %(people_needed)s,"
        " fence = %(fence)s, lease_until = %(lease_until)s,"
        " frozen_request = %(frozen_request)s, frozen_contract = %(frozen_contract)s,"
        " first_claimed_at = %(first_claimed_at)s, ended_at = %(ended_at)s, next_step = %(next_step)s,"
        " next_step_at = %(next_step_at)s, review_at = %(review_at)s, look_again_at = %(look_again_at)s,"
        " receipt = %(receipt)s, standing = %(standing)s"
        " where operation_id = %(operation_id)s and state = %(expected_state)s and fence = %(expected_fence)s"
        " and event_count = %(expected_events)s",
        {
            **_parameters(after),
            "expected_state": before.state,
            "expected_fence": before.fence,
            "expected_events": before.event_count,
        },
    )
    if written.rowcount != 1:
        raise Superseded(f"operation {before.operation_id} is no longer {before.state} at fence {before.fence}")


def _parameters(operation: Operation) -> dict[str, Any]:
    return {
        **vars(operation),
        "arguments": Jsonb(operation.arguments),
        "evidence": Jsonb(operation.evidence),
        "distinct_from": Jsonb(operation.distinct_from),
        "depends_on": Jsonb(operation.depends_on),
        "frozen_request": None if operation.frozen_request is None else Json(operation.frozen_request),
        "frozen_contract": None if operation.frozen_contract is None else Json(operation.frozen_contract),
    }


def from_row(row: DictRow) -> Operation:
    """A row of `COLUMNS` as a value."""
    fields: dict[str, Any] = {
        **row,
        "state": State(row["state"]),
        "standing": None if row["standing"] is None else Standing(row["standing"]),
        "canonical": bytes(row["canonical"]),
    }
    return Operation(**fields)
