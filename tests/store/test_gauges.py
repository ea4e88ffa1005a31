"""The gauges: what they count, that they agree with `recovery`, and that they cost what is open, however much has ended.

`EFFECTS_ROWS=1000000 make test ARGS=tests/store/test_gauges.py` builds the large ledger with a million operations, in a minute.
"""

import os
import re
from dataclasses import replace
from datetime import timedelta
from typing import Any, LiteralString

import pytest

from ledger import recovery
from ledger.contract import Contract
from ledger.model import Attempt, Hint, Operation, Outcome
from ledger.states import State
from ledger.store import attempts, audits, events, gauges, incarnation, operations
from ledger.store.database import now
from ledger.store.migrate import migrations
from ledger.trail import EventKind
from providers.registry import default_registry
from tests.store.conftest import Book

ENDED, OPEN = int(os.environ.get("EFFECTS_ROWS", "30000")), 600
KEYED = default_registry(None).for_action("refund").contract


async def read(book: Book) -> gauges.Gauges:
    """As the worker reads them."""
    async with book.ledger.transaction() as conn:
        return await gauges.read(conn)


async def sent(book: Book, *tries: tuple[Outcome | None, Hint, bool], contract: Contract = KEYED) -> Operation:
    """An operation whose attempts ended so, one after another; unknown now, or in flight if the last one is open."""
    operation = await book.at(State.APPROVED)
    for number, (outcome, hint, late) in enumerate(tries, 1):
        async with book.ledger.transaction() as conn:
            at = await now(conn)
            lease = at + timedelta(seconds=45)
            claimed = replace(
                operation,
                state=State.IN_FLIGHT,
                fence=number,
                lease_until=lease,
                frozen_contract=contract.model_dump(mode="json"),
                first_claimed_at=operation.first_claimed_at or at,
                review_at=operation.review_at or at + timedelta(hours=4),
            )
            edge = 7 if operation.state is State.APPROVED else 14
            operation = await operations.move(conn, operation, claimed, edge, at, {})
            operation = await attempts.open_attempt(conn, operation, Attempt(number, at, lease), "test")
        if outcome is None:
            return operation
        async with book.ledger.transaction() as conn:
            at = await now(conn)
            told = Attempt(number, at, lease, outcome, hint, outcome is Outcome.REFUSED, None, None, at)
            operation = await attempts.answer(conn, operation, replace(told, late_send_at=at if late else None))
            edge, state = (12, State.APPROVED) if outcome is Outcome.NO_EFFECT else (13, State.UNKNOWN)
            operation = await operations.move(conn, operation, replace(operation, state=state), edge, at, {})
    return operation


LOST = (Outcome.UNKNOWN, Hint.LOST, False)
TRIES: dict[str, tuple[tuple[Outcome | None, Hint, bool], ...]] = {
    "lost": (LOST,),
    "lost twice": (LOST, LOST),
    "not sent, then lost": ((Outcome.NO_EFFECT, Hint.NOT_SENT, False), LOST),
    "lost, and repeated now": (LOST, (None, Hint.NONE, False)),
    "a stored error": ((Outcome.UNKNOWN, Hint.STORED_ERROR, False),),
    "about another effect": (LOST, (Outcome.UNKNOWN, Hint.MISMATCH, False)),
    "a stored refusal": ((Outcome.REFUSED, Hint.BUSINESS_RULE, False),),
    "left late": ((Outcome.UNKNOWN, Hint.LOST, True),),
}


@pytest.mark.parametrize("tries", TRIES.values(), ids=TRIES.keys())
async def test_the_window_in_sql_is_the_one_of_recovery(own_book: Book, tries: Any) -> None:
    """For every way in which an attempt changes it. Red: drop `kept` or the filter on `no_effect` in `gauges._SENT`."""
    operation = await sent(own_book, *tries)
    every = await own_book.attempts(operation)
    found = await read(own_book)
    async with own_book.ledger.transaction() as conn:
        oldest, closing = await gauges.oldest_unknown(conn), await gauges.next_closing(conn)
        at = await now(conn)
    began, closes = recovery.anchor(every), recovery.key_window_ends(KEYED, every)
    assert oldest is not None and began is not None and closes is not None
    assert (oldest.operation_id, oldest.since) == (operation.operation_id, began)
    assert found.oldest["unknown"] == pytest.approx((at - began).total_seconds(), abs=5)
    if recovery.stops_repeats(every):
        assert (closing, found.key_window_closes) == (None, None)
    else:
        assert closing is not None and closing.closes_at == closes
        assert found.key_window_closes == pytest.approx((closes - at).total_seconds(), abs=5)


async def test_what_waits_grows_old_and_what_is_first_sent_is_not_unknown(own_book: Book) -> None:
    """By the ledger's clock. A key that nobody can use any more is not about to close; nor is one that never was.

    Red: count `in_flight` as unknown in `gauges._SENT`, or compare `review_at` with `now()`.
    """
    await sent(own_book, (None, Hint.NONE, False))
    assert (await read(own_book)).oldest.get("unknown") is None
    await sent(own_book, LOST, contract=KEYED.model_copy(update={"key": None}))
    assert (await read(own_book)).key_window_closes is None
    await sent(own_book, LOST)
    found = await read(own_book)
    assert (found.unknown_past_target, found.overdue) == (0, 0)
    assert found.operations == {("in_flight", "refund", "bank"): 1, ("unknown", "refund", "bank"): 2}
    await own_book.set_clock(timedelta(hours=5))
    found = await read(own_book)
    assert found.unknown_past_target == 2 and found.oldest["unknown"] == pytest.approx(18_000, abs=30)
    await own_book.set_clock(timedelta(hours=25))
    assert (await read(own_book)).key_window_closes is None


async def test_the_other_gauges_count_what_they_say(own_book: Book) -> None:
    """Reviews by when they were entered, whatever was written since; overdue steps; holds; contradictions; the inbox.

    Red: `operations_since_moved` without its `when`, which makes every note look like a move.
    """
    review = await own_book.at(State.NEEDS_REVIEW)
    waiting = await own_book.asked()
    await own_book.set_clock(timedelta(hours=2))
    async with own_book.ledger.transaction() as conn:
        at = await now(conn)
        late = replace(review, next_step="review", next_step_at=at - timedelta(minutes=2))
        review = await operations.note(conn, await operations.lock(conn, review.operation_id), late)
        await operations.mark_contradicted(conn, review.operation_id)
        await events.append(conn, review, EventKind.CONTRADICTION, {"what": "a test"})
    async with own_book.connection() as conn:
        await conn.execute("update holds set held = true where scope = 'all'")
        await conn.commit()
    found = await read(own_book)
    assert found.oldest["needs_review"] == pytest.approx(7200, abs=30)
    assert found.oldest["awaiting_approval"] == pytest.approx(7200, abs=30)
    assert found.operations[("awaiting_approval", "refund", "bank")] == 1 and waiting.state == "awaiting_approval"
    assert (found.overdue, found.contradicted, found.contradictions_last_day, found.held) == (1, 1, 1, 1)
    await own_book.set_clock(timedelta(hours=27))
    found = await read(own_book)
    assert (found.contradicted, found.contradictions_last_day) == (1, 0)


async def test_nobody_has_to_ask_to_hear_that_nothing_is_sent_after_a_restore(own_book: Book) -> None:
    """Said or not: no person set this hold, so a number must tell. Red: ask for the row's `held` only, or for the home only."""
    assert (await read(own_book)).restored == 0
    async with own_book.connection("postgres", autocommit=True) as conn:
        await conn.execute("update ledger_identity set home = 'elsewhere'")
    assert (await read(own_book)).restored == 1
    async with own_book.connection() as conn:
        await incarnation.begin(conn, "mira", "a test")
        await conn.commit()
    assert (await read(own_book)).restored == 1


async def test_an_audit_that_left_something_out_does_not_make_the_last_one_younger(own_book: Book) -> None:
    """Nor does it matter that none ever ran, or that each one broke off. Red: drop `where complete`, or the configuration."""
    age = (await read(own_book)).audit_age
    assert age is not None and 0 <= age < 3600
    for hours, complete, wanted in ((2, False, 2 + age / 3600), (3, True, 0), (5, False, 2)):
        await own_book.set_clock(timedelta(hours=hours))
        async with own_book.ledger.transaction() as conn:
            await audits.record(conn, await audits.start(conn), 0, [] if complete else ["a listing"])
        assert (await read(own_book)).audit_age == pytest.approx(wanted * 3600, abs=30)


async def test_the_migration_fills_in_since_when_open_operations_stand_where_they_do(own_book: Book) -> None:
    """From the trail, and for what is open only: of what has ended nobody asks. Red: leave the update out of migration 0005."""
    was_open, ended = await own_book.at(State.AWAITING_APPROVAL), await own_book.at(State.SUCCEEDED)
    (migration,) = [m for m in migrations() if m.name == "gauges"]
    (fill,) = re.findall(r"^update operations .*?;$", migration.sql.decode(), re.MULTILINE | re.DOTALL)
    async with own_book.connection(autocommit=True) as conn:
        await conn.execute("update operations set state_since = null")
        await conn.execute(fill.encode())
    rows = await own_book.rows("select operation_id, state_since from operations")
    moved = [e.at for e in await own_book.trail(was_open) if e.kind is EventKind.MOVED]
    assert {r["operation_id"]: r["state_since"] for r in rows} == {
        was_open.operation_id: moved[-1],
        ended.operation_id: None,
    }


# Nearly everything has ended, as after a year of work. The owner switches the guards off meanwhile: this is about pages, not
# about what may be written.
_LARGE: tuple[LiteralString, ...] = (
    "set session_replication_role = replica",
    """insert into operations (operation_id, tenant, business_key, actor, requested_by, action, provider, account, livemode,
         target, arguments, evidence, distinct_from, depends_on, equivalence_key, policy_version, config_version, canonical,
         request_digest, fingerprint, approval_expires_at, idempotency_key, proposed_at, kid, state, ended_at, state_since,
         next_step, next_step_at, review_at, first_claimed_at, frozen_contract, receipt, standing, event_count)
       select gen_random_uuid(), 'acme', 'k-' || n, 'bot', 'mia', 'refund', 'bank', 'acct', false, 'pay_' || n,
         '{}', '[]', '[]', '[]', '', '', 1, '',
         sha256(''), sha256(convert_to(E'effect-ledger/operation/v1\\n', 'UTF8')), at, 'effect-' || n, at, 'kid', state,
         case when state <> 'unknown' then at end, at, case when state = 'unknown' then 'look' else '' end,
         case when state = 'unknown' then now() + interval '1 day' end, now() + interval '1 day', at,
         case when state = 'unknown' then %(contract)s::json end,
         case when state = 'succeeded' then 'r' || n end, case when state = 'succeeded' then 'good' end, 1
       from (select n, now() - n * interval '1 second' as at,
               case when n <= %(open)s then 'unknown' when n %% 10 = 0 then 'blocked' else 'succeeded' end as state
               from generate_series(1, %(open)s + %(ended)s) as n) as made""",
    """insert into attempts (operation_id, number, claimed_at, lease_until, worker, outcome, receipt, standing)
       select operation_id, 1, at, at, 'w', case state when 'unknown' then 'unknown' else 'applied' end, 'r', 'good'
         from (select *, proposed_at as at from operations where state <> 'blocked') as o""",
    """insert into events (stream, number, at, kind, body, body_digest, previous_hash, hash)
       select operation_id, 1, proposed_at, 'preflight', '{}', '', '', '' from operations""",
    """insert into inbox_events (provider, event_id, account, livemode, type, created_at, received_at, marker, body_digest,
         taken_at, woken)
       select 'bank', 'evt_' || receipt, 'acct', false, 't', proposed_at, proposed_at, operation_id, sha256(''), proposed_at, '{}'
         from operations where state = 'succeeded'""",
    """insert into notices (operation_id, kind, event_number, due_at, tries, ended_at, ended)
       select operation_id, 'review', 1, proposed_at, 1, proposed_at, 'posted' from operations where state = 'succeeded'""",
    """insert into audit_findings (kind, name, action, what, found_at, gone_at)
       select 'void', receipt, 'refund', '', proposed_at, proposed_at from operations where state = 'succeeded'""",
    "vacuum analyze",
)


@pytest.mark.timeout(600)
async def test_a_reading_costs_what_is_open_however_much_has_ended(own_book: Book) -> None:
    """No table is read as a whole, and the pages touched are bounded by what is open: with 600 open operations 2,173 of them
    when 30,000 have ended, and 2,774 when a million have (EFFECTS_ROWS, which .ci/run sets): an index of attempts is one deeper.

    Red: drop the index operations_followed, operations_contradicted or events_contradictions.
    """
    amounts = {"contract": KEYED.model_dump_json(), "open": OPEN, "ended": ENDED}
    async with own_book.connection("postgres", autocommit=True) as conn:
        for statement in _LARGE:
            await conn.execute(statement, amounts if "%(" in statement else None)
    async with own_book.ledger.transaction() as conn:
        rows = await (await conn.execute("explain (analyze, buffers) " + gauges._READ)).fetchall()
    plan = "\n".join(row["QUERY PLAN"] for row in rows)
    whole = set(re.findall(r"Seq Scan on (\w+)", plan))
    # one row a scope that was ever held, and one; of the last two no more than a row each is asked for, by its number
    assert whole <= {"holds", "clock", "audits", "config_versions"}, plan
    used = set(re.findall(r"using (\w+) on", plan))
    wanted = {
        "operations_open",
        "operations_followed",
        "operations_contradicted",
        "events_contradictions",
        "inbox_untaken",
        "notices_waiting",
        "one_open_finding",
    }
    assert used >= wanted, plan
    pages = sum(int(count) for count in re.findall(r"(?:hit|read)=(\d+)", plan.splitlines()[1]))
    assert pages < 10 * OPEN, plan
    assert (await read(own_book)).operations == {("unknown", "refund", "bank"): OPEN}
