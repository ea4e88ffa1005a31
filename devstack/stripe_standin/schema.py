"""The SQLite file behind the stand-in: its tables and its one writing connection."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TABLES = (
    "events",
    "voids",
    "effects",
    "endings",
    "firings",
    "arrivals",
    "fault_rules",
    "idempotency_keys",
    "scheduled",
    "refunds",
    "payments",
    "secret_keys",
    "accounts",
    "settings",
)

SCHEMA = """
create table settings (
    name text primary key,
    value text not null
) strict;

create table accounts (
    account text primary key,
    -- The platform whose keys may act for this account by Stripe-Account.
    platform text,
    created real not null
) strict;

create table secret_keys (
    secret_key text primary key,
    account text not null references accounts,
    livemode integer not null
) strict;

create table payments (
    payment_intent text primary key,
    charge text unique,
    account text not null references accounts,
    livemode integer not null,
    amount integer not null,
    captured integer not null,
    currency text not null,
    status text not null,
    disputed integer not null,
    refundable integer not null,
    customer text,
    metadata text not null,
    created real not null
) strict;

create table refunds (
    number integer primary key autoincrement,
    refund text not null unique,
    payment_intent text not null references payments,
    amount integer not null,
    status text not null,
    reason text,
    failure_reason text,
    pending_reason text,
    metadata text not null,
    flags text not null,
    created real not null,
    -- An operation rolled back after a 500 leaves nothing that a caller could see.
    rolled_back integer not null default 0
) strict;
create index refunds_of_payment on refunds (payment_intent);

create table scheduled (
    number integer primary key autoincrement,
    due real not null,
    what text not null check (what in ('move', 'roll_forward', 'roll_back')),
    body text not null,
    done integer not null default 0
) strict;
create index scheduled_open on scheduled (due) where done = 0;

-- The primary key is the guarantee: one stored answer for a key of an account and mode.
create table idempotency_keys (
    account text not null,
    livemode integer not null,
    idempotency_key text not null,
    endpoint text not null,
    params_sha256 text not null,
    status integer not null,
    body text not null,
    request_id text not null,
    created real not null,
    primary key (account, livemode, idempotency_key)
) strict;

create table fault_rules (
    rule integer primary key autoincrement,
    body text not null,
    -- Null fires for ever.
    remaining integer check (remaining >= 0)
) strict;

create table arrivals (
    arrival integer primary key autoincrement,
    request_id text not null unique,
    at real not null,
    method text not null,
    path text not null,
    idempotency_key text,
    account text,
    livemode integer,
    params text not null,
    params_sha256 text not null,
    body_sha256 text not null,
    marker text,
    payment_intent text,
    refunded_before integer
) strict;

create table firings (
    arrival integer not null references arrivals,
    rule integer not null,
    kind text not null,
    at real not null
) strict;

create table endings (
    arrival integer not null references arrivals,
    ended text not null,
    answer integer,
    replayed integer not null,
    refunded_after integer,
    at real not null
) strict;

create table effects (
    effect integer primary key autoincrement,
    arrival integer references arrivals,
    refund text not null unique,
    payment_intent text not null,
    account text not null,
    livemode integer not null,
    amount integer not null,
    currency text not null,
    marker text,
    origin text not null check (origin in ('api', 'duplicate', 'foreign', 'roll_forward')),
    at real not null
) strict;

create table voids (
    effect integer primary key references effects,
    why text not null check (why in ('failed', 'canceled', 'rolled_back')),
    at real not null
) strict;

-- What would be told by webhook.
create table events (
    number integer primary key autoincrement,
    event_id text not null unique,
    payment_intent text not null,
    body text not null,
    -- Of the sender, on the real clock: when the next try is due (null once it was taken), and how many there were.
    due real,
    tries integer not null default 0
) strict;
create index events_due on events (due) where due is not null;

-- The journal is the judge in tests, so not even the stand-in itself can change what it says.
create trigger arrivals_no_update before update on arrivals begin select raise(abort, 'append-only'); end;
create trigger arrivals_no_delete before delete on arrivals begin select raise(abort, 'append-only'); end;
create trigger firings_no_update before update on firings begin select raise(abort, 'append-only'); end;
create trigger firings_no_delete before delete on firings begin select raise(abort, 'append-only'); end;
create trigger endings_no_update before update on endings begin select raise(abort, 'append-only'); end;
create trigger endings_no_delete before delete on endings begin select raise(abort, 'append-only'); end;
create trigger effects_no_update before update on effects begin select raise(abort, 'append-only'); end;
create trigger effects_no_delete before delete on effects begin select raise(abort, 'append-only'); end;
create trigger voids_no_update before update on voids begin select raise(abort, 'append-only'); end;
create trigger voids_no_delete before delete on voids begin select raise(abort, 'append-only'); end;
"""


class Database:
    """One connection, used from the event loop's thread only: what runs between two awaits is serialized."""

    def __init__(self, path: Path) -> None:
        self.connection = sqlite3.connect(path, isolation_level=None)
        self.connection.row_factory = sqlite3.Row
        # A commit survives the death of this process; only a power cut could lose it.
        self.connection.executescript("pragma journal_mode = wal; pragma synchronous = normal;")
        self.connection.execute("pragma busy_timeout = 5000")
        if not self.connection.execute("select 1 from sqlite_master where name = 'voids'").fetchall():
            self._create()
        self.connection.execute("pragma foreign_keys = on")

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Takes the write lock at once; inside another transaction it is part of that one."""
        if self.connection.in_transaction:
            yield self.connection
            return
        self.connection.execute("begin immediate")
        try:
            yield self.connection
        except BaseException:
            self.connection.execute("rollback")
            raise
        if self.connection.in_transaction:
            self.connection.execute("commit")

    def reset(self) -> None:
        """Forgets everything, the journal too: the only way to shorten it."""
        if self.connection.in_transaction:
            # The pragma has no effect inside a transaction.
            self.connection.execute("commit")
        self.connection.execute("pragma foreign_keys = off")
        drops = "".join(f"drop table if exists {table};" for table in TABLES)
        self.connection.executescript(f"begin immediate; {drops} {SCHEMA} commit;")
        self.connection.execute("pragma foreign_keys = on")

    def close(self) -> None:
        self.connection.close()

    def _create(self) -> None:
        self.connection.executescript(f"begin immediate; {SCHEMA} commit;")
