"""What an operation rests on: other operations that must have ended well, and the ended one that it revises."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from ledger.model import Operation, Standing
from ledger.states import ENDED, State
from ledger.store.database import Connection, one


@dataclass(frozen=True)
class Needed:
    """Another operation as it stands now, as far as somebody who depends on it must know."""

    operation_id: UUID
    business_key: str
    actor: str
    action: str
    target: str
    state: State
    standing: Standing | None
    contradicted: bool
    receipt: str | None
    people_needed: int | None

    @property
    def may_exist(self) -> bool:
        """Whether it has an effect, or may: nothing is done in its place. What was undone is gone."""
        undone = self.state is State.SUCCEEDED and self.standing is Standing.VOID
        return not undone and (self.contradicted or self.state in (State.SUCCEEDED, State.UNDETERMINED))

    @property
    def stands(self) -> bool:
        """Whether its end holds: nothing contradicts it, and an effect that it made was not undone."""
        undone = self.state is State.SUCCEEDED and self.standing is Standing.VOID
        return self.state in ENDED and not self.contradicted and not undone


async def read(conn: Connection, operation_ids: Sequence[UUID]) -> dict[UUID, Needed]:
    """These operations, by id, as committed now; one that does not exist is left out."""
    if not operation_ids:
        return {}
    rows = await (
        await conn.execute(
            "select operation_id, business_key, actor, action, target, state, standing, contradicted, receipt, people_needed"
            " from operations where operation_id = any(%s)",
            [list(operation_ids)],
        )
    ).fetchall()
    found = {}
    for row in rows:
        standing = None if row["standing"] is None else Standing(row["standing"])
        fields: dict[str, Any] = {**row, "state": State(row["state"]), "standing": standing}
        found[row["operation_id"]] = Needed(**fields)
    return found


async def waived_after(conn: Connection, operation: Operation, needed: UUID) -> bool:
    """Whether another operation of this action was let through because it rests on the same one, and may have an effect."""
    row = await one(
        conn,
        "select exists (select from operations where depends_on <> '[]' and waived_at is not null"
        " and depends_on @> jsonb_build_array(jsonb_build_object('operation_id', %s::text))"
        " and action = %s and operation_id <> %s and (state not in ('blocked', 'rejected') or contradicted)) as there",
        [str(needed), operation.action, operation.operation_id],
    )
    return bool(row["there"])


async def revised(conn: Connection, operation_id: UUID) -> list[Needed]:
    """What this operation revises, and what that one revises, to the first."""
    rows = await (
        await conn.execute(
            "with recursive chain as (select supersedes from operations where operation_id = %s"
            " union select o.supersedes from operations as o join chain on o.operation_id = chain.supersedes)"
            " select supersedes from chain where supersedes is not null",
            [operation_id],
        )
    ).fetchall()
    return list((await read(conn, [row["supersedes"] for row in rows])).values())


async def revision_of(conn: Connection, operation_id: UUID) -> str | None:
    """The business key of the operation that supersedes this one; None if nothing does."""
    row = await (
        await conn.execute("select business_key from operations where supersedes = %s", [operation_id])
    ).fetchone()
    return None if row is None else str(row["business_key"])
