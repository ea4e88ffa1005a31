"""Checkpoints: what was signed and kept elsewhere names what the owner of the database made anew, or made never have been."""

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from commands import checkpoint
from commands.exits import Misuse
from commands.writing import new_file
from ledger.checkpoint import Checkpoint, Head, lines_digest, read_line, seal
from ledger.config import Key, Person
from ledger.config_check import check
from ledger.errors import Refused
from ledger.evidence import bundle, written
from ledger.fingerprint import canonical_bytes
from ledger.model import Operation
from ledger.statement import new_private_key, public_x
from ledger.states import State
from ledger.store import checkpoints, erasure, events, evidence, operations
from ledger.store.database import Connection, now
from ledger.store.verify import Verified, verify
from ledger.trail import Event, EventKind, body_text, chain_hash
from tests.store.conftest import AUDIENCE, READER, SIGNERS, Book, document

# Whoever owns the database may do this: no trigger sees it.
UNSEEN = "set session_replication_role = replica"


@asynccontextmanager
async def snapshot(book: Book) -> AsyncIterator[Connection]:
    """One moment of the ledger, as the worker's login reads it."""
    async with book.ledger.transaction() as conn:
        await conn.execute("set transaction isolation level repeatable read, read only")
        yield conn


async def kept(book: Book, file: Path, by: str = "olga") -> Path:
    """A checkpoint in this file, signed by somebody."""
    async with snapshot(book) as conn:
        at, digest, trails = await now(conn), lines_digest(), 0
        with new_file(file) as to:
            async for head in checkpoints.heads(conn):
                digest.update(head.line())
                to.write(head.line())
                trails += 1
            said = Checkpoint(
                iss=by,
                aud=AUDIENCE,
                namespace=str(await operations.namespace(conn)),
                at=int(at.timestamp()),
                config_version=1,
                config_digest=document().digest().hex(),
                trails=trails,
                digest=digest.hexdigest(),
            )
            to.write(seal(said, SIGNERS[by].key, SIGNERS[by].kid))
    return file


async def compared(book: Book, file: Path) -> list[tuple[str, str]]:
    """What a checkpoint shows to be gone or changed."""
    found = Verified()
    async with snapshot(book) as conn:
        await checkpoint.compare(conn, found, file)
    return [(one.row, one.what) for one in found.differences]


async def recomputed(book: Book) -> list[tuple[str, str]]:
    """What the ledger shows about itself, but for what these tests leave out of it: proposals that nobody signed."""
    async with snapshot(book) as conn:
        found = await verify(conn)
    return [(one.row, one.what) for one in found.differences if "signed proposal" not in one.what]


async def made_anew(conn: Connection, operation: Operation, told: list[Event]) -> None:
    """Write this trail in place of the one that is there, every hash and the head computed as the trigger would."""
    await conn.execute("delete from events where stream = %s", [operation.operation_id])
    head = b""
    for number, event in enumerate(told, start=1):
        digest = hashlib.sha256(body_text(event.body).encode()).digest()
        made = Event(**{**vars(event), "number": number, "previous_hash": head, "body_digest": digest})
        row = {**vars(made), "body": body_text(event.body), "hash": (head := chain_hash(made))}
        await conn.execute(
            "insert into events (stream, number, at, kind, edge, source, target, fence, body, body_digest, previous_hash, hash)"
            " values (%(stream)s, %(number)s, %(at)s, %(kind)s, %(edge)s, %(source)s, %(target)s, %(fence)s, %(body)s,"
            " %(body_digest)s, %(previous_hash)s, %(hash)s)",
            row,
        )
    await conn.execute(
        "update operations set event_count = %s, head_hash = %s where operation_id = %s",
        [len(told), head, operation.operation_id],
    )


async def test_what_only_grew_still_begins_with_every_head(own_book: Book, tmp_path: Path) -> None:
    """New operations, moves and a configuration after a checkpoint are no difference, and an old checkpoint stays good."""
    operation = await own_book.approved()
    file = await kept(own_book, tmp_path / "kept")
    await own_book.step(operation, 8, State.BLOCKED)
    await own_book.record()
    await own_book.apply(document(revoked="olga"))
    assert await compared(own_book, file) == []
    assert await compared(own_book, await kept(own_book, tmp_path / "again", by="oscar")) == []


async def test_a_chain_made_anew_is_found_by_the_checkpoint_alone(own_book: Book, tmp_path: Path) -> None:
    """The owner changes what an event says and computes the whole chain again: it agrees with itself.

    Red: leave `e.hash is distinct from w.hash` out of `gone`, and compare only that there is such an event.
    """
    operation, other = await own_book.approved(), await own_book.at(State.BLOCKED)
    file = await kept(own_book, tmp_path / "kept")
    told = await own_book.trail(operation)
    told[1].body["why"] = "somebody said so"
    async with own_book.connection("postgres") as conn:
        await conn.execute(UNSEEN)
        await made_anew(conn, operation, told)
        await conn.commit()
    assert await recomputed(own_book) == []
    ((row, what),) = await compared(own_book, file)
    assert row == f"operation {operation.operation_id}" and f"event {len(told)} is not the one" in what
    assert str(other.operation_id) not in row


async def test_a_trail_rolled_back_is_found_by_the_checkpoint_alone(own_book: Book, tmp_path: Path) -> None:
    """As a ledger restored from an older backup is: the last events never were, and the operation stands where it stood.

    Red: compare with the present head only where the number of events is the same.
    """
    operation = await own_book.approved()
    before = await own_book.trail(operation)
    await own_book.step(operation, 8, State.BLOCKED)
    file = await kept(own_book, tmp_path / "kept")
    async with own_book.connection("postgres") as conn:
        await conn.execute(UNSEEN)
        await conn.execute(
            "update operations set state = 'approved', ended_at = null where operation_id = %s",
            [operation.operation_id],
        )
        await made_anew(conn, operation, before)
        await conn.commit()
    assert await recomputed(own_book) == []
    assert [row for row, _ in await compared(own_book, file)] == [f"operation {operation.operation_id}"]


async def test_what_is_gone_without_a_trace_is_found_by_the_checkpoint_alone(own_book: Book, tmp_path: Path) -> None:
    """An operation with all that belongs to it, and the end of the ledger's own trail."""
    operation = await own_book.approved()
    async with own_book.ledger.transaction() as conn:
        await events.append_to_ledger(conn, EventKind.HELD, {"scope": "all"})
    file = await kept(own_book, tmp_path / "kept")
    async with own_book.connection("postgres") as conn:
        await conn.execute(UNSEEN)
        for table, column in (("events", "stream"), ("operations", "operation_id")):
            await conn.execute(f"delete from {table} where {column} = %s", [operation.operation_id])  # type: ignore[arg-type]
        await conn.execute("delete from events where stream = (select namespace from ledger_identity) and number = 2")
        await conn.execute(
            "update ledger_identity set event_count = 1, head_hash = (select hash from events where stream = namespace)"
        )
        await conn.commit()
    assert await recomputed(own_book) == []
    rows = [row for row, _ in await compared(own_book, file)]
    assert rows == ["the ledger's own trail", f"operation {operation.operation_id}"]


async def test_an_erasure_is_no_difference(own_book: Book, tmp_path: Path) -> None:
    """The chain runs over digests, and what the trail tells of the content is still compared with what is left of it.

    Red: compare the digest of the request of an erased operation, or leave `fingerprint` out of what remains.
    """
    operation = await own_book.approved()
    assert (await own_book.dispatch(operation)).state == "succeeded"
    file = await kept(own_book, tmp_path / "kept")
    async with own_book.connection() as conn:
        await erasure.erase(conn, operation, "mira", "a request")
        await conn.commit()
    assert await recomputed(own_book) == [] == await compared(own_book, file)
    first, *_, opened = [e.body for e in await own_book.trail(operation) if e.number == 1 or e.kind == "attempt_opened"]
    assert first["fingerprint"] == operation.fingerprint.hex() and len(opened["request"]) == 64


async def test_a_reader_can_carry_out_both_and_a_signer_needs_no_role(own_book: Book) -> None:
    """The role that changes nothing suffices, and nobody who signs checkpoints must be able to sign anything else.

    Red: revoke select on `sightings` from `effects_reader`.
    """
    operation = await own_book.approved()
    await own_book.dispatch(operation)
    async with own_book.connection(READER) as conn:
        assert [head.stream async for head in checkpoints.heads(conn)][1:] == [operation.operation_id]
        carried = bundle(await evidence.rows_of(conn, operation.operation_id))
    assert carried["operation"]["state"] == "succeeded" and written(carried) == written(carried)
    signer = Person(name="checkpoints", keys=(Key(kid="checkpoints-1", x=public_x(new_private_key())),))
    base = document()
    check(base.model_copy(update={"people": (*base.people, signer)}).in_order())


async def test_more_gone_than_anybody_reads_are_counted(
    own_book: Book, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every row is compared, also beyond one batch; so many are named, the others counted.

    Red: compare only full batches.
    """
    monkeypatch.setattr(checkpoint, "MOST_NAMED", 2)
    monkeypatch.setattr(checkpoints, "ROWS_AT_ONCE", 3)
    for _ in range(5):
        await own_book.record()
    file = await kept(own_book, tmp_path / "kept")
    async with own_book.connection("postgres") as conn:
        await conn.execute(UNSEEN)
        await conn.execute("update events set hash = 'x' where stream in (select operation_id from operations)")
        await conn.commit()
    told = await compared(own_book, file)
    assert len(told) == 3 and told[-1][1].startswith("3 more trails")


def otherwise_signed(last: bytes) -> bytes:
    """The last line with another signature of the same form."""
    begins = last.index(b"..") + 2
    return last[:begins] + (b"B" if last[begins : begins + 1] == b"A" else b"A") + last[begins + 1 :]


async def test_a_checkpoint_that_was_tampered_with_is_named_and_not_compared(book: Book, tmp_path: Path) -> None:
    """A line changed, taken out, added or doubled, the end missing, a line after it, and another signature.

    Red: leave out the digest, the number of lines, or the signature.
    """
    for _ in range(3):
        await book.record()
    file = await kept(book, tmp_path / "kept")
    lines = file.read_bytes().splitlines(keepends=True)
    stranger = await kept(book, tmp_path / "stranger", by="support-bot")
    foreign = read_line(lines[0])
    assert isinstance(foreign, Head)
    assert foreign.line() == canonical_bytes([str(foreign.stream), foreign.events, foreign.head.hex()]) + b"\n"
    added = Head(foreign.stream, foreign.events + 1, foreign.head).line()
    for name, changed, words in (
        ("changed", [lines[0], lines[1].replace(b",1,", b",2,"), *lines[2:]], "not those that were signed"),
        ("taken out", [lines[0], *lines[2:]], "not those that were signed"),
        ("added", [*lines[:-1], added, lines[-1]], "not those that were signed"),
        ("cut", lines[:-1], "not written to its end"),
        ("empty", [], "not written to its end"),
        ("followed", [*lines, lines[0]], "something follows"),
        ("junk", [b"nonsense\n"], "none of a checkpoint"),
        ("spaces", [lines[0].replace(b",", b", "), *lines[1:]], "none of a checkpoint"),
        ("fraction", [lines[0], lines[1].replace(b",1,", b",1.0,"), *lines[2:]], "none of a checkpoint"),
        ("signature", [*lines[:-1], otherwise_signed(lines[-1])], "not one over these bytes"),
        ("another's", [stranger.read_bytes()], "key that the configuration names"),
    ):  # fmt: skip
        tampered = tmp_path / name
        tampered.write_bytes(b"".join(changed))
        ((row, what),) = await compared(book, tampered)
        assert row == f"checkpoint {tampered}" and words in what, (name, what)


async def test_a_checkpoint_counts_for_its_ledger_and_by_the_keys_of_its_day(own_book: Book, tmp_path: Path) -> None:
    """Another ledger's, one by a configuration that is not there or is another now, and one by a revoked key."""
    file = await kept(own_book, tmp_path / "kept")
    lines = file.read_bytes().splitlines(keepends=True)
    said = read_line(lines[-1])
    assert not isinstance(said, Head)
    for change, words in (
        ({"namespace": "00000000-0000-4000-8000-000000000000"}, "another ledger"),
        ({"config_version": 2}, "is missing"),
        ({"config_digest": "00" * 32}, "not the one by whose keys"),
        ({"aud": "elsewhere"}, "is a checkpoint of elsewhere"),
        ({"iss": "oscar"}, "does not name the owner"),
    ):
        forged = seal(said.said.model_copy(update=change), SIGNERS["olga"].key, SIGNERS["olga"].kid)
        (tmp_path / "forged").write_bytes(b"".join([*lines[:-1], forged]))
        ((_, what),) = await compared(own_book, tmp_path / "forged")
        assert words in what, (change, what)
    version = await own_book.apply(document(revoked="olga"))
    changed = {"config_version": version, "config_digest": document(revoked="olga").digest().hex()}
    revoked = seal(said.said.model_copy(update=changed), SIGNERS["olga"].key, SIGNERS["olga"].kid)
    (tmp_path / "revoked").write_bytes(b"".join([*lines[:-1], revoked]))
    ((_, what),) = await compared(own_book, tmp_path / "revoked")
    assert "not revoked" in what
    assert await compared(own_book, file) == []


async def test_a_file_is_never_overwritten_and_never_left_half(tmp_path: Path) -> None:
    """What did not end well is gone again; what is there already stays."""
    file = tmp_path / "out"
    with pytest.raises(ValueError, match="on the way"), new_file(file) as to:
        to.write(b"half")
        raise ValueError("on the way")
    assert not file.exists()
    with new_file(file) as to:
        to.write(b"whole")
    assert (file.read_bytes(), file.stat().st_mode & 0o777) == (b"whole", 0o600)
    for out, rule in ((file, "file_exists"), (tmp_path / "no" / "folder", "file_unwritable")):
        with pytest.raises(Refused) as refused, new_file(out):
            pass
        assert refused.value.rule == rule
    with pytest.raises(Misuse):
        checkpoint.proved_by_itself(tmp_path / "nowhere")


async def test_identity_and_frozen_request_are_in_the_chain(own_book: Book) -> None:
    """The owner changes what was asked for, canonical bytes and fingerprint included, or what was to be sent: event 1 and the
    attempt's event tell it.

    Red: leave the fingerprint out of the event in `operations.insert`, or the digests out of `open_attempt`.
    """
    operation = await own_book.approved()
    assert (await own_book.dispatch(operation)).state == "succeeded"
    assert await recomputed(own_book) == []
    changed = operation.canonical.replace(b"mia", b"eve")
    for change, parameters, words in (
        (
            "update operations set canonical = %s, requested_by = 'eve',"
            " fingerprint = sha256(convert_to(E'effect-ledger/operation/v1\\n', 'UTF8') || %s)",
            [changed, changed],
            "its fingerprint is not the one that event 1 tells",
        ),
        ("update operations set frozen_request = '{}'", [], "its request is not the one that event"),
        ("update operations set frozen_contract = frozen_contract::jsonb::json", [], "its contract is not the one"),
    ):
        async with own_book.connection("postgres") as conn:
            await conn.execute(UNSEEN)
            await conn.execute(change, parameters)  # type: ignore[arg-type]
            found = await verify(conn)
        assert any(words in one.what for one in found.differences), (change, found.differences)
