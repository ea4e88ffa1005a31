"""What was let through without a person: read under the target lock, before another waiver."""

from datetime import datetime

from ledger.model import Operation
from ledger.policy import Totals
from ledger.store.database import Connection, one


async def waived(conn: Connection, operation: Operation, now: datetime) -> Totals:
    """Minor units waived on this target, and for this actor in the 24 hours before `now`, this operation left out.

    A waiver counts from when it was given, not from the proposal: proposals that waited must not be one day's surprise.
    Everything waived that may have had an effect counts: approved, sent, unsettled, or succeeded and not void.
    The actor's total is serialized by a row of its own beside the targets, since it spans them. An advisory lock would not do:
    every login may take and keep one, also a reader's and the inbox's, and no claim of the actor would get through.
    """
    await conn.execute("select lock_target('waived', %s, false, %s)", [operation.tenant, operation.actor])
    row = await one(
        conn,
        "select coalesce(sum(amount_minor) filter ("
        "   where (provider, account, livemode, target) = (%(provider)s, %(account)s, %(livemode)s, %(target)s)), 0)"
        "   as target_minor,"
        " coalesce(sum(amount_minor) filter ("
        "   where tenant = %(tenant)s and actor = %(actor)s and waived_at > %(now)s - interval '24 hours'), 0)"
        "   as actor_day_minor"
        " from operations where people_needed = 0 and currency = %(currency)s and operation_id <> %(operation_id)s"
        " and (tenant = %(tenant)s and actor = %(actor)s and waived_at > %(now)s - interval '24 hours'"
        "   or (provider, account, livemode, target) = (%(provider)s, %(account)s, %(livemode)s, %(target)s))"
        " and state in ('approved', 'in_flight', 'unknown', 'needs_review', 'undetermined', 'succeeded')"
        " and standing is distinct from 'void'",
        {**vars(operation), "now": now, "arguments": None, "evidence": None, "distinct_from": None, "depends_on": None,
         "frozen_request": None, "frozen_contract": None},
    )  # fmt: skip
    return Totals(target_waived_minor=int(row["target_minor"]), actor_day_waived_minor=int(row["actor_day_minor"]))
