"""What is written stays: identity, frozen columns, receipts, outcomes, statements. Each is changed here by its owner, in vain."""

import hashlib
from dataclasses import fields, replace
from datetime import timedelta
from typing import Any, LiteralString

import psycopg
import pytest
from psycopg import sql

from ledger.errors import Broken, Refused
from ledger.fingerprint import IDENTITY_FIELDS, canonical_bytes, fingerprint
from ledger.model import Attempt, Hint, Operation, Outcome, SeenEffect, Sighting, Standing
from ledger.states import State
from ledger.store import attempts, operations, statements
from ledger.store.database import now
from ledger.trail import EVIDENCE, EventKind
from tests.store.conftest import Book, statement

# Column and a value that is well-formed and another one. Every identity column stands here; a test below counts them.
IDENTITY: dict[str, LiteralString] = {
    "operation_id": "gen_random_uuid()",
    "tenant": "'globex'",
    "business_key": "'order-another'",
    "actor": "'desk-bot'",
    "requested_by": "'mallory'",
    "action": "'payout'",
    "provider": "'stripe'",
    "account": "'acct_2'",
    "livemode": "true",
    "target": "'pay_another'",
    "arguments": "arguments || '{\"amount_minor\": 1}'",
    "amount_minor": "amount_minor + 1",
    "currency": "'usd'",
    "expected_version": "'7'",
    "evidence": "'[{}]'",
    "distinct_from": "'[\"re_1\"]'",
    "depends_on": "'[{}]'",
    "supersedes": "operation_id",
    "equivalence_key": "'another'",
    "policy_version": "'another'",
    "config_version": "2",
    "canonical": "'\\x7b7d'::bytea",
    "request_digest": "sha256('')",
    "fingerprint": "sha256('')",
    "approval_expires_at": "approval_expires_at + interval '1 day'",
    "idempotency_key": "'effect-another'",
    "proposed_at": "proposed_at - interval '1 day'",
    "kid": "'another'",
}


def setting(table: LiteralString, column: str, value: LiteralString, where: LiteralString) -> sql.Composed:
    """An update of one column."""
    text = "update {} set {} = " + value.replace("{", "{{").replace("}", "}}") + " where " + where
    return sql.SQL(text).format(sql.Identifier(table), sql.Identifier(column))


def test_every_identity_field_is_tried() -> None:
    """The list above holds all that is fingerprinted, and what says when it was proposed and with which key."""
    assert set(IDENTITY) == IDENTITY_FIELDS | {"canonical", "fingerprint", "proposed_at", "kid"}


async def test_no_identity_column_ever_changes(book: Book) -> None:
    """By the owner, in a fresh operation and in one that ended.

    Red when a column is dropped from the comparison in `operations_guard` (tried with `requested_by`).
    """
    for operation in (await book.record(), await book.at(State.SUCCEEDED)):
        async with book.connection() as conn:
            for column, value in IDENTITY.items():
                with pytest.raises(psycopg.Error) as refused:
                    async with conn.transaction():
                        await conn.execute(
                            setting("operations", column, value, "operation_id = %s"), [operation.operation_id]
                        )
                assert refused.value.sqlstate == "EL002", column
                assert "identity" in str(refused.value)
        assert await book.find(operation) == operation


async def test_frozen_columns_go_once_from_nothing(book: Book) -> None:
    """Request, contract, first claim and receipt are set with the claim or the end, and then by nobody any more.

    Red when a line of the second comparison in `operations_guard` is dropped (tried with `frozen_request`).
    """
    approved = await book.at(State.APPROVED)
    async with book.ledger.transaction() as conn:
        at = await now(conn)
        prepared = replace(
            approved,
            state=State.IN_FLIGHT,
            fence=1,
            lease_until=at + timedelta(seconds=45),
            frozen_request={"b": 1, "a": 2},
            frozen_contract={"name": "bank refund"},
            first_claimed_at=at,
        )
        flying = await operations.move(conn, approved, prepared, 7, at, {})
        done = replace(flying, state=State.SUCCEEDED, receipt="re_frozen", standing=Standing.GOOD)
        done = await operations.move(conn, flying, done, 10, at, {})
    changed: dict[str, tuple[LiteralString, ...]] = {
        "frozen_request": ("null", '\'{"a": 2, "b": 1}\'', '\'{"b":1,"a":2} \''),  # the same, in other bytes
        "frozen_contract": ("null", "'{}'"),
        "first_claimed_at": ("null", "first_claimed_at + interval '1 second'"),
        "receipt": ("null", "'re_another'"),
    }
    async with book.connection() as conn:
        for column, values in changed.items():
            for value in values:
                with pytest.raises(psycopg.Error) as refused:
                    async with conn.transaction():
                        await conn.execute(
                            setting("operations", column, value, "operation_id = %s"), [done.operation_id]
                        )
                if (column, value) == ("receipt", "null"):  # an end without a receipt is refused even before that
                    assert refused.value.sqlstate in ("EL002", "23514")
                else:
                    assert refused.value.sqlstate == "EL002", (column, value)
    assert list((await book.find(done)).frozen_request or {}) == ["b", "a"]  # a repeat sends this order again


async def test_the_fingerprint_is_the_one_of_the_bytes_or_there_is_no_row(book: Book) -> None:
    """Postgres computes what Python computes, for bytes of every kind; another fingerprint is not inserted.

    Red when the constraint `fingerprint_of_canonical` is dropped, or its prefix is not FINGERPRINT_PREFIX.
    """
    operation = await book.record()
    computed = "select sha256(convert_to(E'effect-ledger/operation/v1\\n', 'UTF8') || %s::bytea) as f"
    for canonical in (b"", b"{}", operation.canonical, canonical_bytes({"é€😀": "\u0001\n\\"}), bytes(range(256))):
        (row,) = await book.rows(computed.encode(), canonical)  # type: ignore[arg-type]
        assert row["f"] == fingerprint(canonical)
    async with book.ledger.transaction() as conn:
        lying = replace(await book.draft(conn), fingerprint=hashlib.sha256(b"another").digest())
        with pytest.raises(psycopg.errors.CheckViolation, match="fingerprint_of_canonical"):
            async with conn.transaction():
                await operations.insert(conn, lying, {})
    with pytest.raises(Broken, match="fingerprint is not the one of its bytes"):
        operations.check_fingerprint(lying)


async def test_one_key_is_one_operation(book: Book) -> None:
    """A second row for (tenant, business key) is not inserted, whatever its id and content; another tenant's is.

    Red when the constraint `one_operation_per_intent` is dropped.
    """
    first = await book.record(key="order-once")
    async with book.ledger.transaction() as conn:
        assert await operations.insert(conn, await book.draft(conn, 2_000, key="order-once"), {}) is None
        forged = replace(await book.draft(conn, key="order-twice"), business_key="order-once")
        assert await operations.insert(conn, forged, {}) is None
    assert await book.value("select count(*) from operations where business_key = 'order-once'") == 1
    assert (await book.record(key="order-once", tenant="globex")).operation_id != first.operation_id


async def test_names_and_amounts_outside_their_bounds_are_no_rows(book: Book) -> None:
    """Whatever Python let through. Each row is otherwise right."""
    forged: list[dict[str, Any]] = [
        {"tenant": "Acme"},
        {"tenant": ""},
        {"tenant": "a" * 41},
        {"business_key": "order 1"},
        {"business_key": "k" * 121},
        {"business_key": "order-1\n"},
        {"amount_minor": 0},
        {"amount_minor": -1},
        {"amount_minor": 2**53},
        {"currency": "EUR"},
        {"currency": None},
        {"idempotency_key": "short"},
        {"request_digest": b"short"},
    ]
    async with book.ledger.transaction() as conn:
        for wrong in forged:
            draft = replace(await book.draft(conn), **wrong)
            with pytest.raises(psycopg.errors.CheckViolation):
                async with conn.transaction():
                    await operations.insert(conn, draft, {})


async def test_a_receipt_belongs_to_one_operation(book: Book) -> None:
    """Two operations end with the same receipt: the second cannot.

    Red when the index `one_operation_per_receipt` is dropped.
    """
    first, second = await book.at(State.IN_FLIGHT), await book.at(State.IN_FLIGHT)
    async with book.ledger.transaction() as conn:
        at = await now(conn)
        done = replace(first, state=State.SUCCEEDED, receipt="re_one", standing=Standing.GOOD)
        await operations.move(conn, first, done, 10, at, {})
        assert await operations.receipt_taken(conn, second, "re_one")
        assert not await operations.receipt_taken(conn, first, "re_one")
    with pytest.raises(Broken, match="one_operation_per_receipt"):
        async with book.ledger.transaction() as conn:
            done = replace(second, state=State.SUCCEEDED, receipt="re_one", standing=Standing.GOOD)
            await operations.move(conn, second, done, 10, await now(conn), {})
    assert await book.find(second) == second


async def flying(book: Book) -> tuple[Operation, Attempt]:
    """An operation in flight with its attempt open."""
    operation = await book.at(State.IN_FLIGHT)
    assert operation.lease_until is not None
    async with book.ledger.transaction() as conn:
        attempt = Attempt(number=operation.fence, claimed_at=await now(conn), lease_until=operation.lease_until)
        return await attempts.open_attempt(conn, operation, attempt, "test"), attempt


async def test_one_attempt_is_open_at_a_time(book: Book) -> None:
    """Two claims of one operation, both open. Red when the index `one_open_attempt` is dropped.

    The second claim is made along the edges (13, 14), so that nothing but the index can refuse it.
    """
    operation, attempt = await flying(book)
    operation = await book.step(operation, 13, State.UNKNOWN)
    operation = await book.step(operation, 14, State.IN_FLIGHT)
    assert operation.lease_until is not None
    second = replace(attempt, number=2, lease_until=operation.lease_until)
    with pytest.raises(Broken, match="one_open_attempt"):
        async with book.ledger.transaction() as conn:
            await attempts.open_attempt(conn, operation, second, "test")


async def test_an_attempt_is_the_claim_that_was_just_made(book: Book) -> None:
    """Of the operation in flight, by its fence and lease, and open. Red when `attempts_guard` ignores inserts."""
    approved, (flight, attempt) = await book.at(State.APPROVED), await flying(book)
    late = flight.approval_expires_at
    wrong: list[tuple[Operation, Attempt]] = [
        (approved, replace(attempt, number=1)),
        (flight, replace(attempt, number=2)),
        (flight, replace(attempt, number=1, lease_until=late)),
    ]
    async with book.ledger.transaction() as conn:
        for operation, forged in wrong:
            with pytest.raises(psycopg.Error) as refused:
                async with conn.transaction():
                    await attempts.open_attempt(conn, operation, forged, "test")
            assert refused.value.sqlstate == "EL001"
        other = await book.at(State.IN_FLIGHT)
        with pytest.raises(psycopg.Error) as refused:
            async with conn.transaction():
                await conn.execute(
                    "insert into attempts (operation_id, number, claimed_at, lease_until, worker, outcome, receipt,"
                    " standing) values (%s, 1, now(), %s, 'test', 'applied', 're_forged', 'good')",
                    [other.operation_id, other.lease_until],
                )
        assert refused.value.sqlstate == "EL001"


DEFINITE: list[tuple[Outcome, dict[str, Any]]] = [
    (Outcome.APPLIED, {"receipt": "re_a", "standing": Standing.GOOD}),
    (Outcome.REFUSED, {"stored": True}),
    (Outcome.NO_EFFECT, {"hint": Hint.NOT_SENT}),
]


@pytest.mark.parametrize("through_unknown", [False, True])
@pytest.mark.parametrize(("outcome", "told"), DEFINITE)
async def test_an_outcome_goes_once_to_a_definite_one(
    book: Book, outcome: Outcome, told: dict[str, Any], through_unknown: bool
) -> None:
    """From open or from unknown; afterwards the row is closed even to its owner, and no claim changes at any time.

    Red when `attempts_guard` drops its third `if` (definite), or its second (the claim).
    """
    operation, attempt = await flying(book)
    async with book.ledger.transaction() as conn:
        at = await now(conn)
        if through_unknown:
            lost = replace(attempt, outcome=Outcome.UNKNOWN, hint=Hint.LOST, answered_at=at)
            operation = await attempts.answer(conn, operation, lost)
        answered = replace(attempt, outcome=outcome, answered_at=at, **told)
        await attempts.answer(conn, operation, answered)
    assert await book.attempts(operation) == [answered]
    kinds = [event.kind for event in await book.trail(operation)]
    assert kinds[-1] is (EventKind.LATE_ANSWER if through_unknown else EventKind.ATTEMPT_ANSWERED)
    changed: list[tuple[str, LiteralString, str]] = [
        ("outcome", "null", "EL003"),
        ("outcome", "'unknown'", "EL003"),
        ("detail", "'{\"x\": 1}'", "EL003"),
        ("answered_at", "null", "EL003"),
        ("late_send_at", "now()", "EL003"),
        ("number", "9", "EL002"),
        ("claimed_at", "claimed_at - interval '1 hour'", "EL002"),
        ("lease_until", "lease_until + interval '1 hour'", "EL002"),
        ("worker", "'another'", "EL002"),
    ]
    async with book.connection() as conn:
        for column, value, sqlstate in changed:
            with pytest.raises(psycopg.Error) as refused:
                async with conn.transaction():
                    await conn.execute(
                        setting("attempts", column, value, "operation_id = %s"), [operation.operation_id]
                    )
            assert refused.value.sqlstate == sqlstate, column
        with pytest.raises(psycopg.Error, match="append-only"):
            await conn.execute("delete from attempts where operation_id = %s", [operation.operation_id])


async def test_an_unknown_attempt_never_opens_again_and_a_late_send_stays_noted(book: Book) -> None:
    """Open again, it would let the operation be taken for unsent; without its late send, it would be repeated.

    Red when `attempts_guard` drops the `if` on null, or the one on `late_send_at`.
    """
    operation, attempt = await flying(book)
    async with book.ledger.transaction() as conn:
        at = await now(conn)
        lost = replace(attempt, outcome=Outcome.UNKNOWN, hint=Hint.LOST, answered_at=at, late_send_at=at)
        operation = await attempts.answer(conn, operation, lost)
        # a second answer that knows nothing of it does not take it back
        operation = await attempts.answer(conn, operation, replace(lost, late_send_at=None))
    assert (await book.attempts(operation))[0].late_send_at == at
    assert [e.kind for e in await book.trail(operation)].count(EventKind.LATE_SEND) == 1
    async with book.connection() as conn:
        for column in ("outcome", "late_send_at"):
            with pytest.raises(psycopg.Error) as refused:
                async with conn.transaction():
                    await conn.execute(
                        setting("attempts", column, "null", "operation_id = %s"), [operation.operation_id]
                    )
            assert refused.value.sqlstate == "EL003", column


@pytest.mark.parametrize(("outcome", "told"), DEFINITE)
async def test_an_equal_definite_answer_is_silent_and_a_different_one_a_contradiction(
    book: Book, outcome: Outcome, told: dict[str, Any]
) -> None:
    """The first answer is kept, the operation is listed for review, nothing moves.

    Red when `attempts.answer` returns for every definite `before` (no contradiction), or compares nothing (noise).
    """
    operation, attempt = await flying(book)
    async with book.ledger.transaction() as conn:
        first = replace(attempt, outcome=outcome, answered_at=await now(conn), **told)
        operation = await attempts.answer(conn, operation, first)
        again = replace(first, answered_at=await now(conn), detail={"request_id": "another"})
        assert await attempts.answer(conn, operation, again) == operation
        vague = replace(attempt, outcome=Outcome.UNKNOWN, hint=Hint.LOST)
        assert await attempts.answer(conn, operation, vague) == operation
    contradicted = "select contradicted from operations where operation_id = %s"
    assert await book.value(contradicted, operation.operation_id) is False
    others = [(o, t) for o, t in DEFINITE if o is not outcome]
    if outcome is Outcome.APPLIED:
        others.append((outcome, {"receipt": "re_b", "standing": Standing.GOOD}))
    for another, said in others:
        async with book.ledger.transaction() as conn:
            locked = await operations.lock(conn, operation.operation_id)
            different = replace(attempt, outcome=another, answered_at=await now(conn), **said)
            await attempts.answer(conn, locked, different)
        assert (await book.trail(operation))[-1].kind is EventKind.CONTRADICTION
    assert await book.attempts(operation) == [first]
    assert await book.value(contradicted, operation.operation_id) is True
    assert (await book.find(operation)).state is State.IN_FLIGHT


UNSTORABLE = "before\x00after \ud800 \u202e"


async def test_an_answer_is_kept_whatever_text_the_provider_put_into_it(book: Book) -> None:
    """NUL and lone surrogates: neither jsonb nor UTF-8 can hold them, and an answer not kept is an effect not proved.

    Red when `attempts` passes `detail` and `summary` to Postgres as they came.
    """
    operation, attempt = await flying(book)
    detail = {"message": UNSTORABLE, UNSTORABLE: [{"deep": UNSTORABLE}], "http_status": 200}
    seen = SeenEffect("re_1", Standing.GOOD, True, True, {"reason": UNSTORABLE})
    async with book.ledger.transaction() as conn:
        at = await now(conn)
        answered = replace(
            attempt, outcome=Outcome.APPLIED, receipt="re_1", standing=Standing.GOOD, answered_at=at, detail=detail
        )
        operation = await attempts.answer(conn, operation, answered)
        await attempts.record_sighting(conn, operation, Sighting(at, at, True, (seen,), detail=detail))
        (look,) = await attempts.read_sightings(conn, operation.operation_id)
    (kept,) = await book.attempts(operation)
    shown = "before⟦U+0000⟧after ⟦U+D800⟧ \u202e"
    assert kept.detail == look.detail == {"message": shown, shown: [{"deep": shown}], "http_status": 200}
    assert look.effects[0].summary == {"reason": shown}
    assert (await book.trail(operation))[-1].body["effects"][0]["summary"] == {"reason": shown}


async def test_looks_agree_or_tell_something_new(book: Book) -> None:
    """An agreeing look is no new evidence, so a resolution signed before it keeps its worth; any difference is."""
    operation, _ = await flying(book)
    seen = SeenEffect("re_1", Standing.PENDING, True, True)
    looks: list[tuple[dict[str, Any], EventKind]] = [
        ({}, EventKind.SIGHTING),
        ({}, EventKind.SIGHTING_SAME),
        ({"effects": (seen,)}, EventKind.SIGHTING),
        ({"effects": (seen,)}, EventKind.SIGHTING_SAME),
        ({"effects": (replace(seen, standing=Standing.GOOD),)}, EventKind.SIGHTING),
        ({"effects": (replace(seen, standing=Standing.GOOD),), "complete": False}, EventKind.SIGHTING),
        ({"complete": False, "version_moved": True}, EventKind.SIGHTING),
    ]
    for told, kind in looks:
        async with book.ledger.transaction() as conn:
            at = await now(conn)
            locked = await operations.lock(conn, operation.operation_id)
            look = replace(Sighting(at, at, True), **told)
            await attempts.record_sighting(conn, locked, look)
        assert (await book.trail(operation))[-1].kind is kind
    assert EventKind.SIGHTING in EVIDENCE
    assert EventKind.SIGHTING_SAME not in EVIDENCE


async def test_statements_sheets_sightings_and_versions_are_append_only(book: Book) -> None:
    """By their owner. Red when the trigger of that table is dropped (tried with `statements_append_only`)."""
    operation = await book.record()
    async with book.ledger.transaction() as conn:
        at = await now(conn)
        await statements.add_sheet(conn, operation.operation_id, hashlib.sha256(b"{}").digest(), b"{}", at)
        await statements.accept(conn, statement(operation, b"said", at, jti="append-only"))
        await attempts.record_sighting(conn, operation, Sighting(at, at, True))
    changes: list[LiteralString] = [
        "update statements set person = 'bob'",
        "delete from statements",
        "update sheets set made_at = now()",
        "delete from sheets",
        "update sightings set complete = false",
        "delete from sightings",
        "update config_versions set applied_by = 'nobody'",
        "delete from config_versions",
        "update edges set target = 'approved'",
        "delete from edges",
        "delete from operations",
    ]
    async with book.connection() as conn:
        for change in changes:
            with pytest.raises(psycopg.Error, match="append-only") as refused:
                async with conn.transaction():
                    await conn.execute(change)
            assert refused.value.sqlstate == "EL002", change


async def test_a_sheet_is_signed_only_if_the_ledger_made_it(book: Book) -> None:
    """The foreign key is the second lock behind the activity's own question."""
    operation = await book.record()
    async with book.ledger.transaction() as conn:
        unknown = hashlib.sha256(b"a sheet of somebody's own").digest()
        assert not await statements.made_sheet(conn, operation.operation_id, unknown)
        said = replace(statement(operation, b"said", await now(conn), jti="no-such-sheet"), sheet=unknown)
        with pytest.raises(psycopg.errors.ForeignKeyViolation):
            async with conn.transaction():
                await statements.accept(conn, said)


async def test_the_same_sentence_again_is_a_success_and_the_first_proof_is_kept(book: Book) -> None:
    """Signatures are not unique, acknowledgements get lost. Other bytes under the same jti are refused.

    Red when `statements.accept` compares proofs, or nothing at all.
    """
    operation = await book.record()
    async with book.ledger.transaction() as conn:
        said = statement(operation, b"yes", await now(conn), jti="said-twice")
        assert await statements.accept(conn, said)
        assert not await statements.accept(conn, replace(said, proof="another"))
        with pytest.raises(Refused) as refused:
            await statements.accept(conn, replace(said, statement=b"no"))
        assert refused.value.rule == "jti_used"
        assert await statements.of_operation(conn, operation.operation_id) == [said]


async def test_an_operation_comes_back_as_it_was_written(book: Book) -> None:
    """Every field of the value has its column, and is read back equal."""
    operation = await book.record()
    names = await book.rows(
        "select column_name as name from information_schema.columns where table_name = 'operations'"
    )
    assert {row["name"] for row in names} == {f.name for f in fields(Operation)} | {
        "contradicted",
        "waived_at",
        "state_since",
    }
    assert await book.find(operation) == operation
