"""The worker: wiring only. It refuses to start, saying what to do, unless everything it depends on is in order."""

import asyncio
import os
import signal as os_signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import timedelta
from functools import partial
from importlib.metadata import version

import structlog
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.client import Client
from temporalio.envconfig import ClientConfig
from temporalio.runtime import Runtime
from temporalio.service import RPCError
from temporalio.worker import Worker

from activities.approve import Approve
from activities.audit import Audit
from activities.dispatch import Dispatch
from activities.hold import Hold
from activities.measuring import measuring
from activities.metrics import Meters, runtime
from activities.notices import posting
from activities.observe import Observing, configure_logging
from activities.ports import Ports, Secrets
from activities.propose import Propose
from activities.reconcile import Reconcile
from activities.resolve import Resolve
from activities.seams import seam
from activities.settings import Settings
from activities.take_events import TakeEvents
from activities.take_order import TakeOrder
from inbox.serve import receiving
from ledger.config import Document
from ledger.errors import LedgerError, Refused
from ledger.model import Operation
from ledger.store import clock, configuration, holds
from ledger.store.database import Ledger
from ledger.store.migrate import check, migrate
from providers.port import Credential
from providers.registry import Registry, default_registry
from workflows.audit import AuditWorkflow
from workflows.converter import converter_with
from workflows.events import TakeEventsWorkflow
from workflows.hold import HoldWorkflow
from workflows.operation import SEARCH_ATTRIBUTES, OperationWorkflow
from workflows.order_to_invoice import OrderToInvoiceWorkflow
from workflows.polling import pollers, stuck
from workflows.waking import TemporalRuns, schedule_audit, schedule_events, signal

log = structlog.get_logger()


async def connect(settings: Settings, on: Runtime | None = None) -> Client:
    """A Temporal client by TEMPORAL_… variables or its own config file; raises with the address that did not answer."""
    converter = converter_with(settings.payload_keys, Secrets(settings.secrets_dir).read)
    config = ClientConfig.load_client_connect_config()
    config.setdefault("target_host", "localhost:7233")
    try:
        return await Client.connect(**config, data_converter=converter, runtime=on)
    except (RPCError, RuntimeError, OSError) as error:
        address = config["target_host"]
        raise Refused(
            "temporal_silent", f"Temporal at {address} did not answer: is it up? Set TEMPORAL_ADDRESS"
        ) from error


@asynccontextmanager
async def running(settings: Settings) -> AsyncIterator[Worker]:
    """A worker that polls while the context is open, after every check has passed; drains when it closes."""
    if not settings.ledger_dsn:
        raise Refused("dsn_missing", "set EFFECTS_LEDGER_DSN to the ledger's Postgres")
    if settings.owner_dsn:
        await migrate(settings.owner_dsn, test_clock=settings.dev)
    told_on = runtime(settings.metrics_host, settings.metrics_port) if settings.metrics_port else None
    meters = Meters(told_on.metric_meter) if told_on else Meters()
    ledger = Ledger(settings.ledger_dsn, max_size=settings.pool_size, count=meters.count)
    await ledger.open()
    try:
        client = await connect(settings, told_on)
        registry = default_registry(settings.stripe_base_url)
        secrets = Secrets(settings.secrets_dir)
        await check_ledger(ledger, settings)
        await check_credentials(ledger, registry, secrets)
        await check_search_attributes(client)
        ports = Ports(
            ledger=ledger,
            registry=registry,
            secrets=secrets,
            worker=f"{socket.gethostname()}/{os.getpid()}",
            timing=settings.timing(),
            seam=seam(settings.seam if settings.dev else ""),
            wake=waker(client),
            look_now=partial(look_now, client, settings.task_queue),
            runs=TemporalRuns(client, settings.task_queue),
            meters=meters,
        )
        async with AsyncExitStack() as opened:
            if settings.take_events_every:
                await schedule_events(
                    client, timedelta(seconds=settings.take_events_every), task_queue=settings.task_queue
                )
            if settings.audit_every:
                await schedule_audit(client, timedelta(seconds=settings.audit_every), task_queue=settings.task_queue)
            if settings.notices_url:
                await opened.enter_async_context(posting(settings, ledger))
            if settings.metrics_port:
                await opened.enter_async_context(telling(ledger, meters, client, settings))
            if settings.inbox_port:
                await opened.enter_async_context(receiving(settings, client))
            # Last, so that one that refuses to start never polls, and the others go on while it drains.
            yield await opened.enter_async_context(create_worker(client, ports, settings))
    finally:
        await ledger.close()


@asynccontextmanager
async def telling(ledger: Ledger, meters: Meters, client: Client, settings: Settings) -> AsyncIterator[None]:
    """The gauges are read every so often while this is open."""

    async def how_many_poll() -> int:
        return len(await pollers(client, settings.task_queue))

    async def how_many_are_stuck() -> int:
        return await stuck(client, settings.task_queue)

    work = measuring(ledger, meters, how_many_poll, how_many_are_stuck, settings.metrics_every)
    reading = asyncio.create_task(work)
    try:
        yield
    finally:
        reading.cancel()
        with suppress(asyncio.CancelledError):
            await reading


def waker(client: Client) -> Callable[[str], Awaitable[None]]:
    """Tells an operation's workflow to look now; one that is gone needs no waking, and its next start reads the ledger."""

    async def wake(workflow_id: str) -> None:
        with suppress(RPCError):
            await client.get_workflow_handle(workflow_id).signal("look_now")

    return wake


async def look_now(client: Client, task_queue: str, operation: Operation) -> None:
    """Has an operation look at its provider now, by a new workflow where none runs: also one that ended."""
    await signal(client, operation, "look_now", task_queue=task_queue)


def create_worker(client: Client, ports: Ports, settings: Settings) -> Worker:
    """The configured worker: all workflows, all activities, one task queue."""
    propose, reconcile, take_order = Propose(ports), Reconcile(ports), TakeOrder(ports)
    return Worker(
        client,
        task_queue=settings.task_queue,
        workflows=[OperationWorkflow, OrderToInvoiceWorkflow, HoldWorkflow, TakeEventsWorkflow, AuditWorkflow],
        activities=[
            propose.propose,
            propose.judge,
            Approve(ports).record,
            Dispatch(ports).dispatch,
            reconcile.reconcile,
            reconcile.read,
            Resolve(ports).resolve,
            Hold(ports).hold,
            take_order.plan_order,
            take_order.order_steps,
            TakeEvents(ports).take_events,
            Audit(ports).audit,
        ],
        interceptors=[Observing()],
        build_id=version("effect-ledger"),  # left out, the SDK reads every loaded module to make one up
        max_concurrent_activities=settings.activities_at_once,
        # A dead worker's sticky queue is the hidden wait after a kill: ten seconds by default.
        sticky_queue_schedule_to_start_timeout=timedelta(seconds=2),
        graceful_shutdown_timeout=timedelta(seconds=drain_seconds(ports)),
    )


def drain_seconds(ports: Ports) -> float:
    """How long the worker finishes what it began before it stops: longer than any lease that it can hold."""
    return max((ports.timing or provider.contract.timing).lease for provider in ports.registry) + 5.0


async def check_ledger(ledger: Ledger, settings: Settings) -> None:
    """Schema of this code, a configuration in force, and no movable clock outside of a dev stack."""
    async with ledger.transaction() as conn:
        await check(conn)
        if await clock.is_test_clock(conn) and not settings.dev:
            raise Refused(
                "clock_movable", "this ledger has a test clock: it is a dev ledger; nobody's money belongs here"
            )
        await configuration.in_force(conn)
        for hold in await holds.current(conn):  # no reason to stay down: what was sent is still looked for
            if hold.scope == holds.RESTORED:
                log.error("nothing is sent", what_to_do=hold.reason)


async def check_credentials(ledger: Ledger, registry: Registry, secrets: Secrets) -> None:
    """Every secret that the configuration names is there and belongs to the account and mode that it says."""
    async with ledger.transaction() as conn:
        _, document = await configuration.in_force(conn)
    for tenant, provider, credential in _credentials(document, registry, secrets):
        adapter = next(p for p in registry if p.provider == provider)
        owner = await adapter.whose(credential)
        if owner is None:
            # Not a reason to stay down: nothing is sent before the claim has read the account again.
            log.warning("the provider did not say whose credential this is", tenant=tenant, provider=provider)
        elif (owner.account, owner.livemode) != (credential.account, credential.livemode):
            raise Refused(
                "credential_wrong",
                f"the secret of {tenant} for {provider} belongs to {owner.account} (livemode {owner.livemode}),"
                f" not to {credential.account} (livemode {credential.livemode}): mend tenants.toml or the secret",
            )


def _credentials(document: Document, registry: Registry, secrets: Secrets) -> list[tuple[str, str, Credential]]:
    known = {p.provider for p in registry}
    return [
        (b.tenant, b.provider, secrets.credential_of(document, b.tenant, b.provider))
        for b in document.bindings
        if b.provider in known
    ]


async def check_search_attributes(client: Client) -> None:
    """An unregistered search attribute would wedge every workflow at its first step."""
    answer = await client.operator_service.list_search_attributes(
        ListSearchAttributesRequest(namespace=client.namespace)
    )
    for key in SEARCH_ATTRIBUTES:
        wanted = IndexedValueType.Value(f"INDEXED_VALUE_TYPE_{key.indexed_value_type.name}")
        if answer.custom_attributes.get(key.name) != wanted:
            why = f"the namespace has no search attribute {key.name} of our type: run `effects register`"
            raise Refused("search_attribute_missing", why)


async def serve(settings: Settings) -> None:
    """Run until SIGTERM or SIGINT, then finish what was begun."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (os_signal.SIGTERM, os_signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with running(settings):
        log.info("worker polls", task_queue=settings.task_queue)
        await stop.wait()
        log.info("worker drains")


def main() -> int:
    """Exit code 0 after a drain, 1 when it refused to start."""
    configure_logging("info")
    try:
        settings = Settings.load()
        configure_logging(settings.log_level)
        asyncio.run(serve(settings))
    except LedgerError as error:
        log.error("the worker does not start", error=type(error).__name__, what_to_do=str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
