"""Runs the inbox: in a worker that was told a port, or alone (`effects webhooks`). Its role adds events, and reads nothing."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import structlog
import uvicorn
from starlette.types import ASGIApp
from temporalio.client import Client
from temporalio.envconfig import ClientConfig
from temporalio.service import RPCError

from activities.ports import Secrets
from activities.settings import Settings
from inbox.app import Bucket, Inside, application
from ledger.errors import Refused
from ledger.model import InboxEvent
from ledger.store import inbox
from ledger.store.database import Ledger, one
from providers.stripe_answers import is_id
from workflows.converter import converter_with
from workflows.waking import events_came

AT_ONCE = 100  # deliveries under way; more are answered with 503
CONNECTIONS = 4

log = structlog.get_logger()


@asynccontextmanager
async def receiving(settings: Settings, client: Client) -> AsyncIterator[str]:
    """Receive webhooks while the context is open; its address. Refused: `inbox_…`, naming the setting to mend."""
    check(settings)
    listener = listening("inbox", settings.inbox_host, settings.inbox_port)
    ledger = Ledger(settings.inbox_dsn, max_size=CONNECTIONS)
    try:
        await ledger.open()
        host, port = listener.getsockname()[:2]
        log.info("inbox listens", host=host, port=port)
        async with serving(application(inside(settings, ledger, client)), listener):
            yield f"http://{host}:{port}"
    finally:
        listener.close()
        await ledger.close()


async def lazy_client(settings: Settings) -> Client:
    """A Temporal client that connects when it is used: without Temporal events are kept all the same."""
    converter = converter_with(settings.payload_keys, Secrets(settings.secrets_dir).read)
    config = ClientConfig.load_client_connect_config()
    config.setdefault("target_host", "localhost:7233")
    return await Client.connect(**config, data_converter=converter, lazy=True)


def check(settings: Settings) -> None:
    """Refuse settings with which no event could be verified or kept."""
    if not settings.inbox_dsn:
        raise Refused("inbox_dsn_missing", "set EFFECTS_INBOX_DSN to a login that was granted effects_inbox")
    if not is_id(settings.inbox_account):
        raise Refused("inbox_account_missing", "set EFFECTS_INBOX_ACCOUNT to the account whose endpoint it is (acct_…)")
    signing_secrets(Secrets(settings.secrets_dir), settings)


def signing_secrets(secrets: Secrets, settings: Settings) -> list[str]:
    """The endpoint's secret, and the one before it while it is there. Refused as `Secrets.read`, for the first."""
    found = [secrets.read(settings.inbox_secret)]
    try:
        found.append(secrets.read(settings.inbox_secret_previous))
    except Refused:
        return found  # no rotation is under way
    return found


def inside(settings: Settings, ledger: Ledger, client: Client) -> Inside:
    """What the application gets, of this process."""
    secrets = Secrets(settings.secrets_dir)

    async def keep(event: InboxEvent) -> bool:
        async with ledger.transaction() as conn:
            return await inbox.insert(conn, event)

    async def answers() -> None:
        async with ledger.transaction() as conn:
            await one(conn, "select 1 as one")

    async def hint() -> None:
        try:
            await events_came(client, task_queue=settings.task_queue)
        except (RPCError, RuntimeError, OSError) as error:
            # The event is kept: the schedule finds it.
            log.warning("nobody was told of an event", error=type(error).__name__)

    return Inside(
        keep=keep,
        hint=hint,
        answers=answers,
        secrets=lambda: signing_secrets(secrets, settings),
        account=settings.inbox_account,
        clock=time.time,
        bucket=Bucket(settings.inbox_rate, time.monotonic),
    )


def listening(what: str, host: str, port: int) -> socket.socket:
    """A socket that listens there. Refused: `inbox_address_taken`, or of whatever else it is for."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise Refused(
            f"{what}_address_taken", f"the {what} cannot listen on {host} port {port}: {error.strerror}"
        ) from error
    return listener


class _Server(uvicorn.Server):
    """Leaves the signals of the process to whoever runs it."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def serving(app: ASGIApp, listener: socket.socket) -> AsyncIterator[None]:
    """Serve the application while the context is open."""
    server = _Server(
        uvicorn.Config(
            app,
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            limit_concurrency=AT_ONCE,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=10,
        )
    )
    running = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield
    finally:
        server.should_exit = True
        await running
