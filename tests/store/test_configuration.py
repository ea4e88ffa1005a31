"""Configuration versions in SQL: one after another, immutable, and one in force."""

import asyncio
import hashlib

import psycopg
import pytest

from devstack.postgres import Postgres
from ledger.errors import Refused
from ledger.store import configuration, events, operations
from ledger.store.database import one
from ledger.store.migrate import migrate
from ledger.trail import sentence, verify_chain
from tests.store.conftest import OWNER, SIGNERS, Book, document


async def test_two_applied_at_once_are_two_versions(own_book: Book) -> None:
    """Both wait for the table that this test holds; neither number is given twice, and the later one is in force.

    Red when `apply` drops its table lock: both would read the same latest version.
    """
    documents = [document(waived_per_actor=30_000), document(waived_per_actor=40_000)]
    async with own_book.holding("lock table config_versions in share row exclusive mode"):
        both = [asyncio.create_task(own_book.apply(new)) for new in documents]
        await own_book.waiting(2)
    versions = await asyncio.gather(*both)
    assert sorted(versions) == [2, 3]
    async with own_book.ledger.transaction() as conn:
        version, in_force = await configuration.in_force(conn)
        assert (version, in_force) == (3, documents[versions.index(3)])
        assert await configuration.document(conn, 2) == documents[versions.index(2)]
        assert await configuration.document(conn, 1) == document()


async def test_the_same_document_again_changes_nothing(own_book: Book) -> None:
    """No version, no event; an older one applied again is a new version, since it is in force from now on."""
    told = "select count(*) from events where kind = 'config_applied'"
    assert await own_book.apply(document()) == 1
    assert await own_book.value(told) == 1
    assert await own_book.apply(document(waived_per_actor=30_000)) == 2
    assert await own_book.apply(document()) == 3
    assert await own_book.value(told) == 3


async def test_a_version_is_what_its_digest_says(own_book: Book) -> None:
    """Even for its owner. Red when the check of `config_versions` is dropped."""
    async with own_book.connection() as conn:
        with pytest.raises(psycopg.errors.CheckViolation):
            await conn.execute(
                "insert into config_versions (version, digest, document, applied_by, applied_at)"
                " values (2, %s, 'another', 'x', now())",
                [hashlib.sha256(b"one").digest()],
            )


async def test_without_a_configuration_nothing_is_in_force(postgres: Postgres, empty: str) -> None:
    """A ledger that was migrated and no more refuses everything, and says what to run."""
    book = Book(postgres, empty, ledger=None)  # type: ignore[arg-type]
    await migrate(book.dsn(OWNER))
    async with book.connection() as conn:
        with pytest.raises(Refused, match="effects config apply") as refused:
            await configuration.in_force(conn)
    assert refused.value.rule == "config_missing"


async def test_the_trail_says_who_applied_it_and_what_changed(own_book: Book) -> None:
    """Whom the caller names, whom Postgres let in, and every change: all of it in the chain, so that nobody rewrites it.

    Red: leave `login` or `changes` out of the event.
    """
    await own_book.apply(document(grant_revoked=True, waived_per_actor=30_000))
    async with own_book.ledger.transaction() as conn:
        own = await operations.namespace(conn)
        told = [event for event in await events.read(conn, own) if event.kind == "config_applied"]
        head = await one(conn, "select event_count, head_hash from ledger_identity")
        verify_chain(await events.read(conn, own), head["event_count"], bytes(head["head_hash"]))
    first, second = (event.body for event in told)
    assert (first["applied_by"], first["login"], first["changes"]) == (
        "the test's template",
        OWNER,
        ["the first configuration"],
    )
    assert (second["version"], second["applied_by"], second["login"]) == (2, "a test", OWNER)
    assert [change.split(":")[0] for change in second["changes"]] == [
        "rule acme refund eur",
        "rule globex refund eur",
        f"grant {SIGNERS['support-bot'].kid}",
    ]
    assert sentence(told[1]) == "configuration 2 applied by a test (login effects_owner)"
