"""`effects erase`: personal fields go, the promise stays, and `effects verify` still finds whoever changes what remains."""

from collections.abc import Iterator
from datetime import timedelta
from typing import LiteralString

import psycopg
import pytest
from psycopg.rows import DictRow, dict_row

from ledger.store import operations
from ledger.store.verify import verify
from tests.conftest import Rig
from tests.e2e.spoken import Effects, speaking

BY = ("--by", "mira", "--reason", "request 12", "--yes")


@pytest.fixture
def effects(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Iterator[Effects]:
    """Commands on a rig."""
    yield from speaking(rig, monkeypatch)


async def everything(rig: Rig) -> str:
    """What the ledger holds about operations, as one text."""
    tables: list[LiteralString] = ["operations", "events", "attempts", "sightings", "sheets", "statements"]
    async with rig.ledger.transaction() as conn:
        rows = [row for t in tables for row in await (await conn.execute("select * from " + t)).fetchall()]
    cells = [cell for row in rows for cell in row.values()]
    return "\n".join(cell.decode(errors="replace") if isinstance(cell, bytes) else str(cell) for cell in cells)


async def test_an_erased_operation_keeps_its_promise_and_its_proof(rig: Rig, effects: Effects) -> None:
    """Approved by a person, sent twice after a lost answer, looked at; then erased.

    Red: leave `evidence` in `_KEPT` of ledger/erasure.py; look at an erased operation in `Reconcile.reconcile`; leave the
    identity or the bodies out of `remains`; believe `erased_at` without the event in `verify._check_bodies`.
    """
    proposal = rig.proposal(
        rig.payment(),
        5_000,
        requested_by="canary.asker@acme.test",
        evidence=[{"kind": "mail", "reference": "canary.mail"}],
    )
    async with rig.worker():
        rig.stack.stripe.control.fault("lost-answer", payment_intent=proposal.target)
        asked = await rig.propose(proposal)
        early = await effects("erase", asked.operation_id, *BY)
        assert (early.code, early.document["error"]["rule"]) == (3, "not_ended")
        assert (
            await effects("approve", asked.operation_id, "--as", "alice", "--reason", "canary.why", "--yes")
        ).code == 0
        before = await rig.until(asked.operation_id, "succeeded")
        await rig.handle(proposal).result()
        held = await everything(rig)
        assert all(word in held for word in ("canary.asker", "canary.mail", "canary.why"))

        assert (await effects("erase", asked.operation_id, *BY)).document["erased"] == [asked.operation_id]
        assert "canary" not in await everything(rig)
        again = await effects("erase", asked.operation_id, *BY)
        assert (again.code, again.document["erased"]) == (0, []), "nothing is left to erase"
        assert (await rig.operation(asked.operation_id)).event_count == before.event_count + 1
        sound = await effects("verify")
        assert (sound.code, sound.document["differences"]) == (0, [])

        refused = await effects("evidence", asked.operation_id)
        assert (refused.code, refused.document["error"]["rule"]) == (3, "erased")
        again = await rig.propose(proposal)
        assert (again.operation_id, again.receipt, again.ended) == (asked.operation_id, before.receipt, True)
        other = await rig.propose(rig.proposal(proposal.target, 4_000, key=proposal.business_key))
        assert (other.state, other.reason) == ("refused", "key_used")
        rig.stack.stripe.control.set_refund(str(before.receipt), status="failed", failure_reason="unknown")
        await effects("look", asked.operation_id, "--wait", "0")
        await rig.handle(proposal).result()
        approval = await effects("approve", asked.operation_id, "--as", "bob", "--yes")
        assert (approval.code, approval.document["error"]["rule"]) == (3, "erased")
        told = await effects("trail", asked.operation_id, as_json=False)
        assert "personal fields erased, said by mira" in told.out and "approval of alice accepted: approve" in told.out
        shown = (await effects("show", asked.operation_id)).document
        assert (shown["receipt"], shown["contradicted"]) == (before.receipt, False)
    assert len(rig.journal(proposal.target).effects) == 1
    await _tampered(rig, effects, asked.operation_id)


async def _tampered(rig: Rig, effects: Effects, operation_id: str) -> None:
    """A superuser with the triggers off changes what remained: each change is named."""
    changes: list[tuple[LiteralString, str]] = [
        ("update operations set amount_minor = 1 where operation_id = %s", "what remained"),
        ("update operations set actor = 'mallory' where operation_id = %s", "what remained"),
        ("update operations set receipt = 're_other' where operation_id = %s", "receipt"),
        ("update events set body = '{}' where stream = %s and number = 1", "what remained"),
        (
            "update events set body = replace(body, 'mira', 'olga') where stream = %s and kind = 'erased'",
            "its body is not",
        ),
        ("delete from events where stream = %s and kind = 'erased'", "0 erasure(s)"),
        ("update attempts set receipt = 're_other' where operation_id = %s", "attempt 1"),
        ("update statements set person = 'bob' where operation_id = %s", "the trail tells something else"),
        ("update statements set statement = 'x' where operation_id = %s", "detached JWS"),
        ("delete from sheets where operation_id = %s", "was made and is missing"),
    ]
    for change, words in changes:
        async with await psycopg.AsyncConnection[DictRow].connect(
            rig.stack.servers.postgres.dsn(rig.stack.name), row_factory=dict_row
        ) as conn:
            await conn.execute("set session_replication_role = replica")
            assert (await conn.execute(change, [operation_id])).rowcount > 0, change
            found = [d.what for d in (await verify(conn)).differences]
            assert any(words in what for what in found), (change, found)
            await conn.rollback()


async def test_what_ended_before_a_day_is_erased_with_the_inbox_of_then(rig: Rig, effects: Effects) -> None:
    """What is open, contradicted, or ended later stays, and so does an event that came within the last month.

    Red: drop a condition of `_ENDED_BEFORE`; drop the month from `inbox.forget` (then the trigger refuses).
    """
    waiting, paid, void = (rig.proposal(rig.payment(), amount) for amount in (5_000, 1_500, 1_500))
    async with rig.worker():
        open_one = await rig.propose(waiting)
        ended = [await rig.until((await rig.propose(p)).operation_id, "succeeded") for p in (paid, void)]
        async with rig.inbox() as door:
            await door.deliver(rig.events(paid.target)[0])
            (woken,) = await door.taken()
        assert woken == [ended[0].operation_id]
    async with rig.ledger.transaction() as conn:
        await operations.mark_contradicted(conn, ended[1].operation_id)
    today, tomorrow = (f"{ended[0].ended_at + timedelta(days=n):%Y-%m-%d}" for n in (0, 1) if ended[0].ended_at)
    assert (await effects("erase", "--ended-before", today, *BY)).document == {"erased": [], "inbox_events": 0}
    told = await effects("erase", "--ended-before", tomorrow, *BY)
    assert told.document == {"erased": [str(ended[0].operation_id)], "inbox_events": 0}
    await rig.stack.advance(31 * 86_400, rig.client)
    told = await effects("erase", "--ended-before", tomorrow, *BY)
    assert told.document == {"erased": [], "inbox_events": 1}
    assert (await rig.operation(open_one.operation_id)).requested_by == "mia"
    assert (await effects("erase", "--ended-before", "soon", *BY)).code == 2
    assert (await effects("erase", *BY)).code == 2
