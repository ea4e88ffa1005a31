"""Migrations: two at once, one killed half-way, edited files, a newer database, and what the schema is at the end."""

import asyncio
import os
import signal
import sys
from importlib import resources
from pathlib import Path

import psycopg
import pytest

from devstack.postgres import Postgres
from ledger.errors import Refused, Unavailable
from ledger.store import migrate as migrating
from ledger.store.migrate import ADVISORY_LOCK, Migration, check, migrate, migrations
from tests.store.conftest import OWNER, PASSWORD, WORKER, Book

ROOT = Path(__file__).parents[2]
MIGRATE = "import asyncio, sys; from ledger.store.migrate import migrate; print(asyncio.run(migrate(sys.argv[1])))"


def book_of(postgres: Postgres, name: str) -> Book:
    """A book's words for a database without a pool."""
    return Book(postgres, name, ledger=None)  # type: ignore[arg-type]


async def applied(book: Book) -> list[int]:
    """The versions that the database has."""
    return [row["version"] for row in await book.rows("select version from schema_migrations order by version")]


async def test_two_at_once_both_end_well(postgres: Postgres, empty: str) -> None:
    """Both wait for the advisory lock, which this test holds; then one applies everything and the other nothing.

    Red when `migrate` drops its `pg_advisory_lock`: nobody would wait.
    """
    book = book_of(postgres, empty)
    async with book.holding("select pg_advisory_lock(%s)", ADVISORY_LOCK):
        both = [asyncio.create_task(migrate(book.dsn(OWNER))) for _ in range(2)]
        await book.waiting(2)
    assert sorted(await asyncio.gather(*both)) == [[], [m.version for m in migrations()]]
    assert await applied(book) == [m.version for m in migrations()]


async def test_one_killed_half_way_leaves_nothing_and_the_next_ends_well(postgres: Postgres, empty: str) -> None:
    """A process is stopped inside the first file by a table of the same name that this test has not committed.

    It is killed there, for good, and nothing of its file may be left. Red when `migrate` runs a file without a
    transaction (`async with conn.transaction()` gone) or takes a lock that outlives its session.
    """
    book = book_of(postgres, empty)
    async with book.holding("create table attempts (half_way int)") as holder:
        victim = await asyncio.create_subprocess_exec(
            sys.executable, "-c", MIGRATE, book.dsn(OWNER), cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}
        )
        await book.waiting(1)
        victim.send_signal(signal.SIGKILL)
        assert await victim.wait() == -signal.SIGKILL
        await holder.rollback()
    assert await migrate(book.dsn(OWNER)) == [m.version for m in migrations()]
    async with book.connection() as conn:
        await check(conn)


async def test_a_file_with_an_error_is_rolled_back_whole(
    postgres: Postgres, empty: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files before it stay, it leaves nothing, and mended it is applied by the next call."""
    book = book_of(postgres, empty)
    good = migrations()
    number = len(good) + 1
    wrong = Migration(number, "wrong", b"create table half (x int); create table half (x int);")
    monkeypatch.setattr(migrating, "migrations", lambda: [*good, wrong])
    with pytest.raises(psycopg.errors.DuplicateTable):
        await migrate(book.dsn(OWNER))
    assert await applied(book) == [m.version for m in good]
    async with book.connection() as conn:
        with pytest.raises(Refused, match=f"lacks migration {number:04d}_wrong") as refused:
            await check(conn)
        assert refused.value.rule == "schema_behind"
    monkeypatch.setattr(migrating, "migrations", lambda: [*good, Migration(number, "wrong", b"create table half ()")])
    assert await migrate(book.dsn(OWNER)) == [number]


async def test_an_edited_file_is_refused(own_book: Book) -> None:
    """By `migrate` and by `check`. Red when `_missing` does not compare digests."""
    async with own_book.connection(autocommit=True) as conn:
        await conn.execute("update schema_migrations set sha256 = 'edited' where version = 1")
        for attempt in (migrate(own_book.dsn(OWNER)), check(conn)):
            with pytest.raises(Refused, match="0001_ledger.sql was changed after it was applied") as refused:
                await attempt
            assert refused.value.rule == "migration_edited"


async def test_a_newer_database_is_refused(own_book: Book) -> None:
    """Old code must not write into a schema that it does not know. Red when `_missing` skips what it does not know."""
    async with own_book.connection(autocommit=True) as conn:
        await conn.execute("insert into schema_migrations (version, name, sha256) values (9999, 'later', 'x')")
        for attempt in (migrate(own_book.dsn(OWNER)), check(conn)):
            with pytest.raises(Refused, match="9999_later, which this code does not know: upgrade") as refused:
                await attempt
            assert refused.value.rule == "schema_ahead"


async def test_check_says_what_is_missing(postgres: Postgres, empty: str, book: Book) -> None:
    """No ledger, a ledger that is behind, a ledger that fits; read by the worker's role."""
    async with book_of(postgres, empty).connection() as conn:
        with pytest.raises(Refused, match="run `effects migrate` with the owner's DSN") as refused:
            await check(conn)
        assert refused.value.rule == "schema_missing"
        await conn.rollback()
        await conn.execute("create table schema_migrations (version int, name text, sha256 text)")
        with pytest.raises(Refused, match="lacks migration 0001_ledger") as refused:
            await check(conn)
        assert refused.value.rule == "schema_behind"
    async with book.connection(WORKER) as conn:
        await check(conn)


async def test_files_are_numbered_without_gaps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what is no migration is not one."""
    folder = tmp_path / "migrations"
    folder.mkdir()
    for name in ("0001_one.sql", "0002_two.sql", "README.md", "3_no.sql"):
        (folder / name).write_text("select 1")
    monkeypatch.setattr(resources, "files", lambda package: tmp_path)
    assert [(m.version, m.name) for m in migrations()] == [(1, "one"), (2, "two")]
    (folder / "0004_four.sql").write_text("select 1")
    with pytest.raises(Refused, match="without gaps"):
        migrations()


async def test_a_test_clock_is_made_only_when_asked_for(postgres: Postgres, empty: str) -> None:
    """And asked for again it stays as it was moved."""
    book = book_of(postgres, empty)
    await migrate(book.dsn(OWNER))
    assert await book.value("select count(*) from clock") == 0
    await migrate(book.dsn(OWNER), test_clock=True)
    async with book.connection(autocommit=True) as conn:
        await conn.execute("update clock set shift = '1 hour'")
    await migrate(book.dsn(OWNER), test_clock=True)
    assert await book.value("select shift = interval '1 hour' from clock") is True


async def test_an_owner_without_createrole_needs_only_that_the_role_stands(postgres: Postgres, empty: str) -> None:
    """As where a database administrator makes roles. Red when the migration tries to make the role before it asks."""
    with psycopg.connect(postgres.dsn(), autocommit=True) as conn:
        conn.execute(f"create role plain_owner login password '{PASSWORD}'")
        conn.execute(f"alter database {empty} owner to plain_owner")
    dsn = postgres.dsn(empty, user="plain_owner", password=PASSWORD)
    assert await migrate(dsn) == [m.version for m in migrations()]


async def test_a_session_that_dies_is_unavailable(postgres: Postgres, empty: str) -> None:
    """While it waits for the lock, the server ends it: our Postgres did not answer, nothing else is known."""
    book = book_of(postgres, empty)
    async with book.holding("select pg_advisory_lock(%s)", ADVISORY_LOCK):
        waiting = asyncio.create_task(migrate(book.dsn(OWNER)))
        await book.waiting(1)
        async with book.connection("postgres", autocommit=True) as conn:
            await conn.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where datname = current_database() and wait_event_type = 'Lock'"
            )
        with pytest.raises(Unavailable):
            await waiting
    with pytest.raises(Unavailable):
        await migrate("postgresql://nobody:x@127.0.0.1:1/none")


TRIGGERS = {
    "attempts": {"attempts_begin", "attempts_emptied", "attempts_guard", "attempts_kept"},
    "audit_findings": {"findings_kept", "findings_no_truncate"},
    "audits": {"audits_append_only", "audits_guard", "audits_no_truncate"},
    "config_versions": {"config_append_only"},
    "edges": {"edges_append_only"},
    "events": {
        "events_append_only",
        "events_chain",
        "events_emptied",
        "events_no_truncate",
        "events_notice",
        "events_of_the_owner",
    },
    "inbox_events": {"inbox_guard", "inbox_kept", "inbox_no_truncate"},
    "notices": {"notices_kept", "notices_no_truncate"},
    "operations": {
        "claims_guard",
        "erasure_guard",
        "operations_begin",
        "operations_guard",
        "operations_kept",
        "operations_since_born",
        "operations_since_moved",
        "operations_told",
    },
    "sheets": {"sheets_append_only", "sheets_begin", "sheets_emptied"},
    "sightings": {"sightings_append_only", "sightings_emptied"},
    "statements": {"statements_append_only", "statements_emptied"},
}
UNIQUE = {
    "attempts_pkey",
    "audit_findings_pkey",
    "audit_places_pkey",
    "audits_pkey",
    "clock_pkey",
    "config_current_pkey",
    "config_versions_pkey",
    "edges_number_source_target_key",
    "events_pkey",
    "holds_pkey",
    "inbox_events_pkey",
    "ledger_identity_pkey",
    "notices_pkey",
    "one_event",
    "one_open_attempt",
    "one_open_finding",
    "one_operation_per_intent",
    "one_operation_per_receipt",
    "one_revision",
    "operations_idempotency_key_key",
    "operations_pkey",
    "schema_migrations_pkey",
    "sheets_pkey",
    "sightings_pkey",
    "statements_pkey",
    "targets_pkey",
}
WORKER_WRITES = {
    "audit_findings": {"INSERT", "UPDATE (gone_at what)"},
    "audit_places": {"INSERT", "UPDATE (began_at go_on listed_until)"},
    "attempts": {"INSERT", "UPDATE (answered_at detail hint late_send_at outcome receipt standing stored)"},
    "events": {"INSERT"},
    "holds": {"INSERT", "UPDATE (held reason since statement)"},
    "inbox_events": {"UPDATE (taken_at woken)"},
    "notices": {"UPDATE (due_at ended ended_at problem tries)"},
    "operations": {
        "INSERT",
        "UPDATE (contradicted ended_at fence first_claimed_at frozen_contract frozen_request lease_until look_again_at"
        " next_step next_step_at people_needed reason receipt review_at standing state)",
    },
    "sheets": {"INSERT"},
    "sightings": {"INSERT"},
    "statements": {"INSERT"},
}


async def test_the_schema_is_what_the_design_names(book: Book) -> None:
    """Guards, unique keys and privileges, by name: none comes or goes unnoticed, whatever later migrations do."""
    rows = await book.rows("select tgrelid::regclass::text as t, tgname as n from pg_trigger where not tgisinternal")
    assert {t: {r["n"] for r in rows if r["t"] == t} for t in {r["t"] for r in rows}} == TRIGGERS
    rows = await book.rows("select tgname as n from pg_trigger where not tgisinternal and tgenabled <> 'O'")
    assert rows == []
    rows = await book.rows(
        "select indexrelid::regclass::text as n from pg_index where indisunique and indrelid in"
        " (select oid from pg_class where relnamespace = 'public'::regnamespace)"
    )
    assert {row["n"] for row in rows} == UNIQUE
    writes: dict[str, set[str]] = {}
    for row in await book.rows(
        "select table_name as t, privilege_type as p from information_schema.role_table_grants"
        " where grantee in ('effects_worker', 'PUBLIC') and table_schema = 'public' and privilege_type <> 'SELECT'"
    ):
        writes.setdefault(row["t"], set()).add(row["p"])
    for row in await book.rows(
        "select table_name as t, string_agg(column_name::text, ' ' order by column_name::text) as c"
        " from information_schema.role_column_grants where grantee in ('effects_worker', 'PUBLIC')"
        " and table_schema = 'public' and privilege_type = 'UPDATE' group by table_name"
    ):
        writes.setdefault(row["t"], set()).add(f"UPDATE ({row['c']})")
    assert writes == WORKER_WRITES


async def test_every_function_pins_its_search_path(book: Book) -> None:
    """With pg_temp last, unless it reads no table. Red when one is added without (test_roles.py shows what follows)."""
    rows = await book.rows(
        "select proname as n, coalesce(array_to_string(proconfig, ';'), '') as c from pg_proc"
        " where pronamespace = 'public'::regnamespace"
    )
    loose = {row["n"] for row in rows if row["c"] != "search_path=public, pg_temp"}
    assert loose == {"refuse_change"}
    assert len(rows) >= 9
