"""What a worker tells about the whole ledger every few seconds, and what `effects doctor` shows of it.

One statement, and each part of it reads an index of open work only: its cost follows what is open, not what was ever done
(tests/store/test_gauges.py counts the pages). Nothing is locked, and nothing may be decided on it.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Final, LiteralString
from uuid import UUID

from ledger.store.database import Connection, one

# Operations of which nobody knows whether they happened: `unknown`, and those whose request is being repeated just now.
# `since` is the anchor of `recovery`; `closes_at` its key window, null without key terms or where a repeat would only hear a
# kept answer again (a test compares both with `recovery`).
_SENT: Final[LiteralString] = """
  moment as materialized (select ledger_now() as now),
  sent as materialized (
    select o.operation_id, o.tenant, o.business_key, o.review_at, a.since,
           case when not a.kept then a.since + make_interval(secs =>
             (o.frozen_contract -> 'key' ->> 'lifetime')::float8 - (o.frozen_contract -> 'key' ->> 'margin')::float8
             - (o.frozen_contract -> 'timing' ->> 'send_within')::float8
             - (o.frozen_contract -> 'timing' ->> 'call_deadline')::float8
             - (o.frozen_contract ->> 'processing')::float8) end as closes_at
      from operations as o cross join lateral (
           select min(claimed_at) filter (where outcome is distinct from 'no_effect') as since,
                  bool_or(hint in ('stored_error', 'mismatch') or (outcome = 'refused' and stored)
                          or late_send_at is not null) as kept,
                  bool_or(outcome = 'unknown') as lost
             from attempts where attempts.operation_id = o.operation_id) as a
     where o.ended_at is null and (o.state = 'unknown' or (o.state = 'in_flight' and a.lost)))"""

_READ: Final[LiteralString] = (
    "with"
    + _SENT
    + """,
  open as materialized (
    select state, action, provider, count(*) as number, min(state_since) as since
      from operations where ended_at is null group by state, action, provider)
select
  (select coalesce(json_agg(json_build_array(state, action, provider, number)), '[]') from open) as operations,
  (select coalesce(json_object_agg(state, age), '{}') from (
     select state, extract(epoch from max(now - since))::float8 as age from open, moment group by state) as ages) as oldest,
  (select extract(epoch from max(now - since))::float8 from sent, moment) as oldest_unknown,
  (select count(*) from sent, moment where review_at < now) as unknown_past_target,
  (select extract(epoch from min(closes_at - now))::float8 from sent, moment where closes_at > now) as key_window_closes,
  (select count(*) from operations, moment where ended_at is null and next_step_at < now - interval '60 seconds')
    + (select count(*) from operations, moment where next_step = 'follow' and ended_at is not null
          and next_step_at < now - interval '60 seconds') as overdue,
  (select count(*) from operations where contradicted) as contradicted,
  (select count(*) from events, moment where kind = 'contradiction' and at > now - interval '1 day') as contradictions_last_day,
  (select count(*) from holds where held) as held,
  (select (held or not at_home())::int from holds where scope = 'restored') as restored,
  (select extract(epoch from now - coalesce((select ended_at from audits where complete order by number desc limit 1),
     (select applied_at from config_versions where version = 1)))::float8 from moment) as audit_age,
  (select count(*) from inbox_events where taken_at is null) as inbox_waiting,
  (select count(*) from notices where ended_at is null and tries > 0) as notices_unheard,
  (select count(*) from audit_findings where gone_at is null and action <> '') as audit_findings"""
)

_UNKNOWN: Final[LiteralString] = (
    "with"
    + _SENT
    + """
select operation_id, tenant, business_key, since, closes_at, review_at, coalesce(review_at < now, false) as past_target
  from sent, moment where closes_at is null or closes_at > now or not %(closing)s
 order by case when %(closing)s then closes_at end nulls last, since limit 1"""
)


@dataclass(frozen=True)
class Gauges:
    """The ledger at one moment, in numbers. Durations are seconds of ledger time."""

    operations: dict[tuple[str, str, str], int]  # that have not ended, by (state, action, provider)
    # by state, how long its oldest operation has been in it; `unknown` counts from its first claim
    oldest: dict[str, float]
    unknown_past_target: int  # unknown for longer than the rule's review_after_seconds
    key_window_closes: float | None  # until a key that could still settle an unknown is no longer honoured
    overdue: int  # steps that nobody has taken for more than a minute
    contradicted: int  # operations with evidence against their end, ever
    contradictions_last_day: int
    held: int  # scopes in which nothing is sent
    restored: int  # 1 while nothing is sent since the ledger was restored, whether somebody said so or not
    audit_age: float | None  # since an audit ended that could read everything, or since the first configuration
    inbox_waiting: int  # webhooks that woke nobody yet
    notices_unheard: int  # notices that were posted, and that no receiver has acknowledged
    audit_findings: int  # what audits found at providers, and what fits no better since


@dataclass(frozen=True)
class Unknown:
    """One effect of which nobody knows whether it happened."""

    operation_id: UUID
    tenant: str
    business_key: str
    since: datetime
    closes_at: datetime | None  # after it, its key is no longer honoured
    review_at: datetime | None
    past_target: bool


async def read(conn: Connection) -> Gauges:
    """All gauges, by one statement."""
    row = await one(conn, _READ)
    oldest = dict(row.pop("oldest"))
    unknown = row.pop("oldest_unknown")
    if unknown is not None:
        oldest["unknown"] = unknown
    else:
        oldest.pop("unknown", None)
    operations = {(state, action, provider): number for state, action, provider, number in row.pop("operations")}
    return Gauges(operations=operations, oldest=oldest, **row)


async def oldest_unknown(conn: Connection) -> Unknown | None:
    """The unknown effect with the earliest claim."""
    return await _unknown(conn, closing=False)


async def next_closing(conn: Connection) -> Unknown | None:
    """The unknown effect whose key is honoured for the shortest time from now on."""
    found = await _unknown(conn, closing=True)
    return found if found is not None and found.closes_at is not None else None


async def _unknown(conn: Connection, *, closing: bool) -> Unknown | None:
    row = await (await conn.execute(_UNKNOWN, {"closing": closing})).fetchone()
    return None if row is None else Unknown(**row)
