"""The whole stack on one machine: Postgres, Temporal, the Stripe stand-in and workers, as children that die with us."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import psycopg
import psycopg.sql
from temporalio.client import Client
from temporalio.service import RPCError

from devstack.child import Child
from devstack.people import Access, Household, furnish
from devstack.postgres import Postgres
from devstack.receivers import Receivers
from devstack.stripe_standin.launch import StandInProcess
from devstack.temporal_server import TemporalServer
from ledger.config import Document
from ledger.errors import Refused
from ledger.store import clock, configuration, views
from ledger.store.database import Connection, Ledger
from ledger.store.migrate import migrate
from workflows.converter import data_converter
from workflows.operation import SEARCH_ATTRIBUTES

ROOT = Path(__file__).parent.parent
SECRET_KEY = "sk_test_standin0000000000"  # noqa: S105 - the stand-in's own default, nobody's secret
WEBHOOK_SECRET = "whsec_standin0000000000"  # noqa: S105 - signs what the stand-in delivers, nobody's secret
OWNER, WORKER, INBOX = "effects_owner", "effects_worker_login", "effects_inbox_login"


class Servers:
    """Postgres and Temporal under one folder. State survives; a second start is quick."""

    def __init__(
        self,
        root: Path,
        *,
        durable: bool = True,
        ui: bool = True,
        remember: bool = True,
        say: Callable[[str], None] = print,
    ) -> None:
        """`remember=False` lets Temporal forget its workflows at every stop; Postgres keeps its cluster either way."""
        root.mkdir(parents=True, exist_ok=True)
        self.root = root
        self._say = say
        self._exits = ExitStack()
        self.postgres = Postgres(root / "postgres", durable=durable)
        self.temporal = TemporalServer(
            root / "temporal",
            search_attributes={k.name: k.indexed_value_type.name.capitalize() for k in SEARCH_ATTRIBUTES},
            db_file=root / "temporal" / "temporal.db" if remember else None,
            ui=ui,
        )

    def __enter__(self) -> Self:
        with ExitStack() as started:
            self._say("Postgres …")
            started.enter_context(self.postgres)
            self._say("Temporal …")
            started.enter_context(self.temporal)
            self._exits = started.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._exits.close()


class Stack:
    """One ledger, its stand-in, keys and workers, on running servers. Several can share the servers, each by its name."""

    def __init__(
        self,
        servers: Servers,
        root: Path,
        *,
        name: str = "ledger",
        stripe: StandInProcess | None = None,
        receivers: Receivers | None = None,
        say: Callable[[str], None] = print,
    ) -> None:
        """With `stripe`, a running stand-in of the caller's is used, and left running. So are `receivers`, if given."""
        root.mkdir(parents=True, exist_ok=True)
        self.servers = servers
        self.root = root
        self.name = name
        self.task_queue = name
        self._say = say
        self._exits = ExitStack()
        self.workers: list[Child] = []
        self._given = stripe
        self.receivers = receivers
        self.stripe: StandInProcess
        self.household: Household

    def __enter__(self) -> Self:
        with ExitStack() as started:
            self._say("Stripe stand-in …")
            self.stripe = self._given or started.enter_context(StandInProcess(self.root / "stripe.sqlite"))
            account = self.stripe.control.wait_ready()
            accesses = {"stripe": Access(account, "", SECRET_KEY)} | (self.receivers.access() if self.receivers else {})
            self.household = furnish(self.root / "household", accesses)
            self._account = account
            (self.household.folder / "secrets" / "stripe_webhook").write_text(WEBHOOK_SECRET)
            started.callback(self._stop_workers)
            self._say("ledger: schema and configuration …")
            self._make_database()
            self._exits = started.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._exits.close()

    def _make_database(self) -> None:
        """Roles and the database, if they are not there; roles are of the whole server."""
        sql = psycopg.sql
        with psycopg.connect(self.servers.postgres.dsn(), autocommit=True) as conn:
            for role, options in ((OWNER, "createrole"), (WORKER, ""), (INBOX, "")):
                if conn.execute("select 1 from pg_roles where rolname = %s", [role]).fetchone() is None:
                    conn.execute(
                        sql.SQL("create role {} login {} password {}").format(
                            sql.Identifier(role), sql.SQL(options), sql.Literal(self._password(role))
                        )
                    )
            for role, login in (("effects_worker", WORKER), ("effects_inbox", INBOX)):
                if conn.execute("select 1 from pg_roles where rolname = %s", [role]).fetchone() is None:
                    conn.execute(sql.SQL("create role {} nologin").format(sql.Identifier(role)))
                    conn.execute(sql.SQL("grant {} to {}").format(sql.Identifier(role), sql.Identifier(login)))
            if conn.execute("select 1 from pg_database where datname = %s", [self.name]).fetchone() is None:
                conn.execute(
                    sql.SQL("create database {} owner {}").format(sql.Identifier(self.name), sql.Identifier(OWNER))
                )

    async def prepare(self, *, keep_configuration: bool = False) -> None:
        """Bring the ledger to this code's schema, with a test clock, and apply the configuration.

        With `keep_configuration` one that somebody has applied since stays in force, but for where the outside systems
        listen now.
        """
        await migrate(self.owner_dsn, test_clock=True)
        async with self.owner() as ledger, ledger.transaction() as conn:
            kept = await _configured(conn) if keep_configuration else None
            document = self.household.document if kept is None else _rebound(kept, self.household.document)
            await configuration.apply(conn, document, "devstack")

    @asynccontextmanager
    async def owner(self) -> AsyncIterator[Ledger]:
        """The ledger under its owner's role."""
        ledger = Ledger(self.owner_dsn, max_size=2)
        await ledger.open()
        try:
            yield ledger
        finally:
            await ledger.close()

    def _password(self, role: str) -> str:
        path = self.servers.root / f"{role}.password"
        if not path.exists():
            path.touch(mode=0o600)
            path.write_text(os.urandom(16).hex())
        return path.read_text()

    @property
    def owner_dsn(self) -> str:
        """The owner's DSN of the ledger."""
        return self.servers.postgres.dsn(self.name, user=OWNER, password=self._password(OWNER))

    @property
    def worker_dsn(self) -> str:
        """The worker's DSN of the ledger: moves and facts only."""
        return self.servers.postgres.dsn(self.name, user=WORKER, password=self._password(WORKER))

    @property
    def inbox_dsn(self) -> str:
        """The inbox's DSN of the ledger: it adds events and reads nothing."""
        return self.servers.postgres.dsn(self.name, user=INBOX, password=self._password(INBOX))

    def environment(self) -> dict[str, str]:
        """What a worker and the command line need to find everything."""
        return {
            "EFFECTS_LEDGER_DSN": self.worker_dsn,
            "EFFECTS_SECRETS_DIR": str(self.household.folder / "secrets"),
            "EFFECTS_STRIPE_BASE_URL": self.stripe.base_url,
            "EFFECTS_DEV": "true",
            "EFFECTS_INBOX_DSN": self.inbox_dsn,
            "EFFECTS_INBOX_ACCOUNT": self._account,
            "EFFECTS_TASK_QUEUE": self.task_queue,
            "TEMPORAL_ADDRESS": self.servers.temporal.address,
        }

    def worker(self, *, grace_seconds: float = 180.0, **extra: str) -> Child:
        """Start one more worker process; `grace_seconds` is how long it may finish what it began before it is killed."""
        number = len(self.workers) + 1
        child = Child.spawn(
            [sys.executable, str(ROOT / "worker.py")],
            name=f"worker {number}",
            log=self.root / f"worker-{number}.log",
            # Ledgers of tests share one Temporal, and their schedules would outlive them.
            env={
                **clean(os.environ),
                **self.environment(),
                "EFFECTS_TAKE_EVENTS_EVERY": "0",
                "EFFECTS_AUDIT_EVERY": "0",
                **extra,
            },
            cwd=ROOT,
            grace_seconds=grace_seconds,
        )
        self.workers.append(child)
        return child

    def _stop_workers(self) -> None:
        for child in self.workers:
            if child.alive:
                child.kill()
        self.workers.clear()

    async def client(self) -> Client:
        """A Temporal client with the converter of this application."""
        return await Client.connect(self.servers.temporal.address, data_converter=data_converter)

    async def advance(self, seconds: float, client: Client) -> None:
        """Move both clocks, the ledger's and the stand-in's, and wake every open operation.

        The ledger's first: otherwise a worker could use a key that the stand-in has just forgotten, early by our clock.
        """
        async with self.owner() as ledger, ledger.transaction() as conn:
            await clock.advance(conn, seconds)
        await asyncio.to_thread(self.stripe.control.advance, seconds)
        await self.wake(client)

    async def wake(self, client: Client) -> None:
        """Tell every running operation of this stack to look at the clock."""
        async with self.owner() as ledger, ledger.transaction() as conn:
            running = await views.open_workflows(conn, "all")
        for workflow_id in running:
            with suppress(RPCError):  # its workflow is gone: there is nobody to wake
                await client.get_workflow_handle(workflow_id).signal("look_now")


async def _configured(conn: Connection) -> Document | None:
    try:
        _, document = await configuration.in_force(conn)
    except Refused:
        return None
    return document


def _rebound(kept: Document, now: Document) -> Document:
    """The kept document with the bindings of now in place of its own; of those that nobody listens for, nothing changes."""
    there = {(binding.tenant, binding.provider): binding for binding in (*kept.bindings, *now.bindings)}
    return kept.model_copy(update={"bindings": tuple(there.values())}).in_order()


def clean(environ: Mapping[str, str]) -> dict[str, str]:
    """The caller's environment without settings that belong to another stack."""
    return {k: v for k, v in environ.items() if not k.startswith(("EFFECTS_", "TEMPORAL_"))}
