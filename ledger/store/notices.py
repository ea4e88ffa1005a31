"""Notices: what waits to be told to people, and what became of it. The database writes them, beside the event they are about."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any
from uuid import UUID

from ledger.states import State
from ledger.store.database import Connection


class NoticeKind(StrEnum):
    """What happened to the operation."""

    WAITING = "waiting"  # it waits for approval
    HALF_LIFE = "half_life"  # it waits still, at half of the time that it has
    REVIEW = "review"  # people must settle it
    CONTRADICTED = "contradicted"  # there is evidence against its end, or against a definite answer


@dataclass(frozen=True)
class Notice:
    """One notice that is due, with where its operation stands now."""

    operation_id: UUID
    kind: NoticeKind
    event_number: int
    tries: int
    tenant: str
    business_key: str
    action: str
    state: State
    approval_expires_at: datetime

    @property
    def name(self) -> str:
        """The same for every try, so that a receiver can tell a repeat."""
        return f"{self.operation_id}-{self.kind}-{self.event_number}"

    @property
    def over(self) -> bool:
        """Whether its reason is over, so that nobody needs to hear of it."""
        match self.kind:
            case NoticeKind.WAITING | NoticeKind.HALF_LIFE:
                return self.state is not State.AWAITING_APPROVAL
            case NoticeKind.REVIEW:
                return self.state is not State.NEEDS_REVIEW
            case NoticeKind.CONTRADICTED:
                return False


async def take_due(conn: Connection, limit: int, lease: timedelta) -> list[Notice]:
    """The oldest notices that are due; nobody else is given them before the lease is over."""
    rows = await (
        await conn.execute(
            "update notices as n set due_at = ledger_now() + %(lease)s, tries = n.tries + 1"
            " from (select operation_id, kind, event_number from notices where ended_at is null and due_at <= ledger_now()"
            "        order by due_at limit %(limit)s for update skip locked) as due, operations as o"
            " where (n.operation_id, n.kind, n.event_number) = (due.operation_id, due.kind, due.event_number)"
            "   and o.operation_id = n.operation_id"
            " returning n.operation_id, n.kind, n.event_number, n.tries, o.tenant, o.business_key, o.action, o.state,"
            "   o.approval_expires_at",
            {"limit": limit, "lease": lease},
        )
    ).fetchall()
    fields: list[dict[str, Any]] = [
        {**row, "kind": NoticeKind(row["kind"]), "state": State(row["state"])} for row in rows
    ]
    return [Notice(**each) for each in fields]


async def end(conn: Connection, notice: Notice, how: str) -> None:
    """It was acknowledged (`posted`), or its reason is `over`. Once: a later word changes nothing."""
    await conn.execute(
        "update notices set ended_at = ledger_now(), ended = %s, problem = ''"
        " where (operation_id, kind, event_number) = (%s, %s, %s) and ended_at is null",
        [how, notice.operation_id, notice.kind, notice.event_number],
    )


async def later(conn: Connection, notice: Notice, problem: str, delay: timedelta) -> None:
    """It was not acknowledged: try again after the delay."""
    await conn.execute(
        "update notices set due_at = ledger_now() + %s, problem = %s"
        " where (operation_id, kind, event_number) = (%s, %s, %s) and ended_at is null",
        [delay, problem[:100], notice.operation_id, notice.kind, notice.event_number],
    )
