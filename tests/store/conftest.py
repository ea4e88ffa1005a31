"""Postgres alone, once a session; a ledger is migrated once, and every test gets a copy of it of its own."""

import asyncio
import hashlib
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, LiteralString, TypeVar

import psycopg
import pytest
import pytest_asyncio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from psycopg import sql
from psycopg.rows import dict_row
from temporalio.testing import ActivityEnvironment

from activities.dispatch import Dispatch
from activities.messages import HoldRequest, Message, MessageKind, OperationRef, Progress, Proposal
from activities.ports import Ports, Secrets
from activities.propose import Propose
from devstack.postgres import Postgres
from ledger import fingerprint
from ledger.config import Binding, Document, Grant, Key, Person, Role, Rule, rule_version
from ledger.config import Ledger as LedgerName
from ledger.config_check import check
from ledger.model import Attempt, Operation, Standing
from ledger.statement import Claims, StatementType, key_id, new_private_key, public_x, sheet_digest, sign
from ledger.states import TRANSITIONS, State
from ledger.store import attempts, configuration, events, operations, statements
from ledger.store.database import Connection, Ledger, now
from ledger.store.migrate import migrate
from ledger.trail import Event
from providers.registry import Registry
from tests.store.bank import ACCOUNT, Bank
from workflows.client import sign as sign_proposal

OWNER, WORKER, INBOX = "effects_owner", "effects_worker_login", "effects_inbox_login"
READER = "effects_reader_login"
PASSWORD = "only-of-this-test-server"
TEMPLATE = "ledger_template"
AUDIENCE = "ledger-under-test"
WAIVED_PER_ACTOR = 10_000_000
PATIENCE = 15.0
T = TypeVar("T")


@dataclass(frozen=True)
class Signer:
    """Somebody's key."""

    name: str
    key: Ed25519PrivateKey = field(default_factory=new_private_key)

    @property
    def x(self) -> str:
        """The public half."""
        return public_x(self.key)

    @property
    def kid(self) -> str:
        """Its name."""
        return key_id(self.name, self.x)


class Purse(Secrets):
    """One secret for all."""

    def __init__(self) -> None:
        super().__init__(None)

    def read(self, name: str) -> str:
        """Nobody's."""
        return f"the {name}"


SIGNERS = {name: Signer(name) for name in ("support-bot", "desk-bot", "alice", "bob", "olga", "oscar")}


def person(name: str, *, revoked: bool = False) -> Person:
    """alice and bob approve for both tenants; olga and oscar operate everything."""
    signer = SIGNERS[name]
    approves = name in ("alice", "bob")
    roles = [Role(tenant=t, role="refunds", limit_minor=50_000, currency="eur") for t in ("acme", "globex")]
    return Person(
        name=name,
        keys=(Key(kid=signer.kid, x=signer.x),),
        roles=tuple(roles) if approves else (),
        operator_of=() if approves else ("*",),
        revoked=revoked,
    )


def rule(tenant: str, waived_per_actor: int) -> Rule:
    """Up to 20.00 a person is waived, as long as it is at most 40.00 a target, and so much an actor and day."""
    return Rule(
        tenant=tenant,
        action="refund",
        currency="eur",
        max_amount_minor=50_000,
        approvers=1,
        role="refunds",
        waive_up_to_minor=2_000,
        waive_total_per_target_minor=4_000,
        waive_total_per_actor_day_minor=waived_per_actor,
        evidence_required=False,
        approval_lifetime_seconds=172_800,
        review_after_seconds=14_400,
        statement_lifetime_seconds=3_600,
    )


def grant(name: str, tenant: str, *, revoked: bool = False) -> Grant:
    """One service's key."""
    signer = SIGNERS[name]
    return Grant(
        name=name, kid=signer.kid, x=signer.x, tenant=tenant, actors=(name,), actions=("refund",), revoked=revoked
    )


def document(*, grant_revoked: bool = False, revoked: str = "", waived_per_actor: int = WAIVED_PER_ACTOR) -> Document:
    """Two tenants with one account at one bank, so that they share targets."""
    made = Document(
        ledger=LedgerName(name=AUDIENCE),
        bindings=tuple(
            Binding(tenant=t, provider=p, account=ACCOUNT, livemode=False, secret="bank_secret")
            for t in ("acme", "globex")
            for p in ("bank", "stripe")  # the second only to be held by name
        ),
        rules=(rule("acme", waived_per_actor), rule("globex", waived_per_actor)),
        grants=(grant("support-bot", "acme", revoked=grant_revoked), grant("desk-bot", "globex")),
        people=tuple(person(name, revoked=name == revoked) for name in ("alice", "bob", "olga", "oscar")),
    ).in_order()
    if not revoked:
        check(made)
    return made


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    """One server with its logins and no ledger yet."""
    server = Postgres(tmp_path_factory.mktemp("postgres"), durable=False)
    try:
        server.start()
        with psycopg.connect(server.dsn(), autocommit=True) as conn:
            for name, options in ((OWNER, "createrole"), (WORKER, ""), (INBOX, ""), (READER, "")):
                make = "create role {} login " + options + " password {}"
                conn.execute(sql.SQL(make).format(sql.Identifier(name), sql.Literal(PASSWORD)))
                # Tests that provoke a deadlock, or show that there is none, need not wait a second for it.
                conn.execute(sql.SQL("alter role {} set deadlock_timeout = '200ms'").format(sql.Identifier(name)))
        yield server
    finally:
        server.remove()


@pytest_asyncio.fixture(scope="session")
async def template(postgres: Postgres) -> str:
    """A migrated ledger with a configuration and a test clock; nobody stays connected, so that it can be copied."""
    make_database(postgres, TEMPLATE)
    owner_dsn = postgres.dsn(TEMPLATE, user=OWNER, password=PASSWORD)
    await migrate(owner_dsn, test_clock=True)
    with psycopg.connect(postgres.dsn(), autocommit=True) as conn:
        for role, login in (("effects_worker", WORKER), ("effects_inbox", INBOX), ("effects_reader", READER)):
            conn.execute(sql.SQL("grant {} to {}").format(sql.Identifier(role), sql.Identifier(login)))
    ledger = Ledger(owner_dsn, max_size=1)
    await ledger.open()
    async with ledger.transaction() as conn:
        await configuration.apply(conn, document(), "the test's template")
    await ledger.close()
    return TEMPLATE


def make_database(postgres: Postgres, name: str) -> None:
    """An empty database of the owner."""
    with psycopg.connect(postgres.dsn(), autocommit=True) as conn:
        make = sql.SQL("create database {} owner {}")
        conn.execute(make.format(sql.Identifier(name), sql.Identifier(OWNER)))


@pytest.fixture
def empty(postgres: Postgres) -> Iterator[str]:
    """The name of a database without a ledger."""
    name = f"e{uuid.uuid4().hex[:12]}"
    make_database(postgres, name)
    yield name
    postgres.drop_database(name)


@dataclass
class Book:
    """One ledger of a test's own, and the words that tests use on it."""

    postgres: Postgres
    name: str
    ledger: Ledger  # as the worker
    bank: Bank = field(default_factory=Bank)

    @property
    def ports(self) -> Ports:
        """What activities are given."""
        return Ports(ledger=self.ledger, registry=Registry([self.bank]), secrets=Purse(), worker="test")

    def dsn(self, user: str = WORKER) -> str:
        """Of a login, or of the superuser."""
        if user == "postgres":
            return self.postgres.dsn(self.name)
        return self.postgres.dsn(self.name, user=user, password=PASSWORD)

    @asynccontextmanager
    async def connection(self, user: str = OWNER, *, autocommit: bool = False) -> AsyncIterator[Connection]:
        """A connection outside the pool; what it began is rolled back unless the test commits."""
        async with await psycopg.AsyncConnection.connect(
            self.dsn(user), autocommit=autocommit, row_factory=dict_row
        ) as conn:
            yield conn
            if not conn.closed:
                await conn.rollback()

    @asynccontextmanager
    async def holding(self, query: LiteralString, *parameters: Any) -> AsyncIterator[Connection]:
        """A lock that this statement takes, held by a connection of its own until the block ends or it commits."""
        async with self.connection() as conn:
            await conn.execute(query, parameters)
            yield conn

    async def waiting(self, count: int) -> None:
        """Return once exactly `count` sessions of this ledger wait for a lock: the race is set up, nobody slipped by."""
        deadline = time.monotonic() + PATIENCE
        async with self.connection("postgres", autocommit=True) as conn:
            while True:
                waiting = await self.rows(
                    "select pid, query from pg_stat_activity where datname = current_database()"
                    " and wait_event_type = 'Lock' and backend_type = 'client backend'",
                    conn=conn,
                )
                if len(waiting) == count:
                    return
                assert time.monotonic() < deadline, f"{count} should wait for a lock: {waiting}"
                await asyncio.sleep(0.01)

    async def rows(
        self, query: LiteralString, *parameters: Any, conn: Connection | None = None
    ) -> list[dict[str, Any]]:
        """What a query returns, read by the owner."""
        if conn is not None:
            return await (await conn.execute(query, parameters)).fetchall()
        async with self.connection() as own:
            return await (await own.execute(query, parameters)).fetchall()

    async def value(self, query: LiteralString, *parameters: Any) -> Any:
        """The one value of a query."""
        (row,) = await self.rows(query, *parameters)
        (value,) = row.values()
        return value

    async def set_clock(self, shift: timedelta) -> None:
        """The owner's test clock, which can also be set back here: that is how a wall clock that steps back is made."""
        async with self.connection(autocommit=True) as conn:
            await conn.execute("update clock set shift = %s", [shift])

    async def record(
        self, amount: int = 1_500, *, target: str = "", tenant: str = "acme", key: str = "", actor: str = ""
    ) -> Operation:
        """A new operation, proposed; on a target of its own unless one is named."""
        async with self.ledger.transaction() as conn:
            operation = await self.draft(conn, amount, target=target, tenant=tenant, key=key, actor=actor)
            recorded = await operations.insert(conn, operation, {})
        assert recorded is not None
        return recorded

    async def draft(
        self,
        conn: Connection,
        amount: int = 1_500,
        *,
        target: str = "",
        tenant: str = "acme",
        key: str = "",
        actor: str = "",
    ) -> Operation:
        """An operation as `propose` would record it."""
        target = target or f"pay_{uuid.uuid4().hex[:12]}"
        actor = actor or ("support-bot" if tenant == "acme" else "desk-bot")
        key = key or f"order-{uuid.uuid4().hex[:12]}"
        at = await now(conn)
        version, config = await configuration.in_force(conn)
        expires = (at + timedelta(days=2)).replace(microsecond=0)
        arguments = {"amount_minor": amount, "currency": "eur"}
        operation_id = fingerprint.operation_id(await operations.namespace(conn), tenant, key)
        identity: dict[str, Any] = {
            "operation_id": operation_id,
            "tenant": tenant,
            "business_key": key,
            "actor": actor,
            "requested_by": "mia",
            "action": "refund",
            "provider": "bank",
            "account": ACCOUNT,
            "livemode": False,
            "target": target,
            "arguments": arguments,
            "amount_minor": amount,
            "currency": "eur",
            "expected_version": None,
            "evidence": [],
            "distinct_from": [],
            "depends_on": [],
            "supersedes": None,
            "equivalence_key": self.bank.equivalence_key(target, arguments),
            "policy_version": rule_version(config, tenant, "refund", "eur"),
            "config_version": version,
            "request_digest": fingerprint.request_digest("refund", target, arguments, [], [], None, [], None),
            "idempotency_key": fingerprint.idempotency_key(operation_id),
        }
        canonical = fingerprint.canonical_bytes(
            fingerprint.identity(**identity, approval_expires_at=int(expires.timestamp()))
        )
        return Operation(
            **identity,
            canonical=canonical,
            fingerprint=fingerprint.fingerprint(canonical),
            approval_expires_at=expires,
            kid=SIGNERS[actor].kid,
            state=State.PROPOSED,
            proposed_at=at,
        )

    async def step(self, operation: Operation, edge: int, target: State) -> Operation:
        """One move, as the worker, with what the target state needs."""
        async with self.ledger.transaction() as conn:
            return await step(conn, operation, edge, target)

    async def at(self, state: State, **recorded: Any) -> Operation:
        """A new operation, moved to this state along the shortest way."""
        operation = await self.record(**recorded)
        for edge, target in path_to(state)[1:]:
            operation = await self.step(operation, edge, target)
        return operation

    async def find(self, operation: Operation) -> Operation:
        """The operation as it stands now."""
        async with self.ledger.transaction() as conn:
            found = await operations.find(conn, operation.operation_id)
        assert found is not None
        return found

    async def trail(self, operation: Operation) -> list[Event]:
        """Its events."""
        async with self.ledger.transaction() as conn:
            return await events.read(conn, operation.operation_id)

    async def attempts(self, operation: Operation) -> list[Attempt]:
        """Its attempts."""
        async with self.ledger.transaction() as conn:
            return await attempts.read_attempts(conn, operation.operation_id)

    async def apply(self, new: Document) -> int:
        """A configuration, as the owner."""
        async with self.connection() as conn:
            version = await configuration.apply(conn, new, "a test")
            await conn.commit()
            return version

    async def run(self, activity: Callable[..., Awaitable[T]], message: object) -> T:
        """An activity as a worker would run it, without a server."""
        return await ActivityEnvironment().run(activity, message)

    async def judge(self, operation: Operation) -> Progress:
        """The activity `judge`."""
        return await self.run(Propose(self.ports).judge, ref(operation))

    async def dispatch(self, operation: Operation) -> Progress:
        """The activity `dispatch`."""
        return await self.run(Dispatch(self.ports).dispatch, ref(operation))

    async def approved(self, amount: int = 1_500, **recorded: Any) -> Operation:
        """An operation that the rule waived the person for."""
        operation = await self.record(amount, **recorded)
        progress = await self.judge(operation)
        assert progress.state == "approved", progress
        return await self.find(operation)

    def proposal(self, amount: int = 1_500, *, key: str, target: str = "pay_1", **claimed: Any) -> Proposal:
        """A signed proposal of support-bot."""
        bot = SIGNERS["support-bot"]
        proposal = Proposal(
            tenant="acme",
            business_key=key,
            action="refund",
            target=target,
            arguments={"amount_minor": amount, "currency": "eur"},
            actor="support-bot",
            requested_by="mia",
            **claimed,
        )
        return sign_proposal(proposal, bot.key, kid=bot.kid, iss=bot.name, aud=AUDIENCE)

    async def approval(self, operation: Operation, *, by: str = "alice", jti: str = "") -> Message:
        """An approval on the newest sheet of the operation."""
        async with self.ledger.transaction() as conn:
            sheet = await statements.latest_sheet(conn, operation.operation_id)
        assert sheet is not None
        issued = int(time.time())
        claims = Claims.make(
            typ=StatementType.APPROVAL,
            iss=by,
            aud=AUDIENCE,
            sub=str(operation.operation_id),
            fingerprint=operation.fingerprint.hex(),
            iat=issued,
            exp=issued + 600,
            jti=jti or f"approval-{uuid.uuid4().hex}",
            sheet=sheet_digest(sheet).hex(),
        )
        signed = sign(claims, SIGNERS[by].key, SIGNERS[by].kid, sheet)
        return Message(
            kind=MessageKind.DECIDE, operation_id=str(operation.operation_id), **signed.model_dump(mode="json")
        )

    async def asked(self, amount: int = 3_000, **recorded: Any) -> Operation:
        """An operation that waits for a person, with its sheet made."""
        operation = await self.record(amount, **recorded)
        progress = await self.judge(operation)
        assert progress.state == "awaiting_approval", progress
        return await self.find(operation)

    def hold(self, scope: str, *, by: str = "olga", typ: StatementType = StatementType.HOLD) -> HoldRequest:
        """A signed hold or release."""
        issued = int(time.time())
        claims = Claims.make(
            typ=typ,
            iss=by,
            aud=AUDIENCE,
            sub=scope,
            iat=issued,
            exp=issued + 600,
            jti=f"hold-{uuid.uuid4().hex}",
            reason="a test",
        )
        signed = sign(claims, SIGNERS[by].key, SIGNERS[by].kid)
        return HoldRequest(statement=signed.statement, scheme=signed.scheme, proof=signed.proof)


def ref(operation: Operation) -> OperationRef:
    """The operation as activities are told it."""
    return OperationRef(operation_id=str(operation.operation_id))


def path_to(state: State) -> list[tuple[int, State]]:
    """The shortest way from nothing: (edge number, target)."""
    ways: dict[State | None, list[tuple[int, State]]] = {None: []}
    while state not in ways:
        for edge in TRANSITIONS:
            if edge.source in ways and edge.target not in ways:
                ways[edge.target] = [*ways[edge.source], (edge.number, edge.target)]
    return ways[state]


def arrived(operation: Operation, target: State) -> Operation:
    """The operation as it must look in this state: lease, fence and receipt included."""
    lease = operation.approval_expires_at - timedelta(days=1)
    if target is State.IN_FLIGHT:
        return replace(operation, state=target, fence=operation.fence + 1, lease_until=lease)
    if target is State.SUCCEEDED:
        return replace(operation, state=target, receipt=f"re_{operation.operation_id.hex}", standing=Standing.GOOD)
    return replace(operation, state=target)


async def step(conn: Connection, operation: Operation, edge: int, target: State) -> Operation:
    """One move in this transaction."""
    return await operations.move(conn, operation, arrived(operation, target), edge, await now(conn), {})


def statement(operation: Operation, text: bytes, at: Any, *, jti: str, config_version: int = 1) -> statements.Statement:
    """A statement as the store keeps it; nothing in it is verified at this level."""
    return statements.Statement(
        jti=jti,
        operation_id=operation.operation_id,
        scope="",
        typ="approval",
        decision="approve",
        person="alice",
        kid="k",
        statement=text,
        scheme="jws",
        proof=hashlib.sha256(text).hexdigest(),
        sheet=None,
        trail_head=None,
        config_version=config_version,
        accepted_at=at,
    )


@asynccontextmanager
async def a_book(postgres: Postgres) -> AsyncIterator[Book]:
    """A copy of the template with a pool on it."""
    name = f"b{uuid.uuid4().hex[:12]}"
    postgres.create_database(name, template=TEMPLATE)
    with psycopg.connect(postgres.dsn(), autocommit=True) as conn:
        conn.execute(sql.SQL("alter database {} owner to {}").format(sql.Identifier(name), sql.Identifier(OWNER)))
    with psycopg.connect(postgres.dsn(name), autocommit=True) as conn:
        conn.execute("update ledger_identity set home = ledger_home()")  # else a copy takes itself for restored
    # At least as many connections as any test holds at one time, so that the races are about locks and not about these.
    ledger = Ledger(postgres.dsn(name, user=WORKER, password=PASSWORD), max_size=24, timeout=PATIENCE)
    await ledger.open()
    try:
        yield Book(postgres, name, ledger)
    finally:
        await ledger.close()
        postgres.drop_database(name)


@pytest_asyncio.fixture(scope="module")
async def shared(postgres: Postgres, template: str) -> AsyncIterator[Book]:
    """A ledger of this file's own."""
    async with a_book(postgres) as made:
        yield made


@pytest.fixture
def book(shared: Book) -> Book:
    """The file's ledger with a bank of this test's own: for tests that leave configuration, holds and clock alone."""
    return replace(shared, bank=Bank())


@pytest_asyncio.fixture
async def own_book(postgres: Postgres, template: str) -> AsyncIterator[Book]:
    """A ledger of this test's own: for the others."""
    async with a_book(postgres) as made:
        yield made
