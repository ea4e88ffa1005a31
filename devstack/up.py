"""`make up`: the stack of the demo, left running with its state kept, until Ctrl-C. People believe what they broke themselves."""

import asyncio
import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

from devstack.child import Child, DevstackError
from devstack.ports import LOOPBACK, free_port
from devstack.receivers import Receivers
from devstack.stack import ROOT, WEBHOOK_SECRET, Servers, Stack
from ledger.errors import LedgerError, Refused

FOLDER = ROOT / ".cache" / "stack"
_OTHER_SCHEMA = ("migration_edited", "schema_ahead")
_SHORT_LIFE = 20.0  # a worker that ends sooner after its start will not do better the next time
_MOST_SHORT_LIVES = 3


def run(folder: Path = FOLDER, *, erp: bool = False) -> int:
    """Start everything, say how to use it, and stay until SIGINT or SIGTERM. 0 after an orderly stop.

    With `erp` the outside systems of the order and the delivery date run as well: an ERP, an address book, a mail server.
    """
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell's `&` leaves SIGINT ignored
        signal.signal(number, signal.default_int_handler)
    environment = folder / "environment"
    try:
        with Servers(folder, say=_say) as servers, ExitStack() as started:
            receivers = (
                started.enter_context(Receivers(folder / "receivers", servers.postgres, say=_say)) if erp else None
            )
            stack = started.enter_context(Stack(servers, folder / "ledger", receivers=receivers, say=_say))
            # Whoever reads it afterwards would talk to ports where nobody listens. Only ours: the folder is locked here.
            started.callback(environment.unlink, missing_ok=True)
            return asyncio.run(_serve(stack, environment))
    except KeyboardInterrupt:
        return 0
    except (DevstackError, LedgerError, PermissionError) as error:
        _say(f"the stack cannot run: {error}")
        if isinstance(error, Refused) and error.rule in _OTHER_SCHEMA:
            _say(f"its kept state is of other code: delete {folder} to begin anew")
        return 1


async def _serve(stack: Stack, environment: Path) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    await stack.prepare(keep_configuration=True)
    write_environment(stack, environment)
    port, metrics = free_port(), free_port()

    def start() -> Child:
        return stack.worker(
            EFFECTS_INBOX_PORT=str(port),
            EFFECTS_METRICS_PORT=str(metrics),
            EFFECTS_TAKE_EVENTS_EVERY="60",
            EFFECTS_AUDIT_EVERY="600",
        )

    worker = start()
    stack.stripe.control.send_webhooks(f"http://{LOOPBACK}:{port}/stripe", WEBHOOK_SECRET)
    for line in _words(stack, worker, environment, metrics):
        _say(line)
    code = await _keep_a_worker(stack, stop, start)
    _say("stopping; the worker finishes what it began")
    for child in stack.workers:
        await asyncio.to_thread(child.stop)
    return code


async def _keep_a_worker(stack: Stack, stop: asyncio.Event, start: Callable[[], Child]) -> int:
    """Start another worker when somebody kills it; 1 when it does not stay up."""
    began, short_lives = time.monotonic(), 0
    while not stop.is_set():
        worker = stack.workers[-1]
        if worker.alive:
            try:
                await asyncio.wait_for(stop.wait(), 0.5)
            except TimeoutError:
                continue
            return 0
        short_lives = short_lives + 1 if time.monotonic() - began < _SHORT_LIFE else 0
        if short_lives >= _MOST_SHORT_LIVES:
            _say(f"the worker does not stay up; its last words:\n{worker.log_tail(5)}")
            return 1
        began = time.monotonic()
        _say(f"the worker ended with {worker.returncode}; another one starts, pid {start().pid}")
    return 0


def write_environment(stack: Stack, path: Path) -> None:
    """What the command line needs, one NAME=value a line, for this user's eyes only."""
    keys = stack.household.folder / "keys"
    told = {
        **stack.environment(),
        "EFFECTS_OWNER_DSN": stack.owner_dsn,
        "EFFECTS_KEYS_DIR": str(keys),
        "EFFECTS_PASSPHRASE_FILE": str(keys / "passphrase"),
    }
    unfinished = path.with_name(f"{path.name}.new")
    unfinished.unlink(missing_ok=True)
    with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.writelines(f"{name}={value}\n" for name, value in told.items())
    unfinished.rename(path)


def _words(stack: Stack, worker: Child, environment: Path, metrics: int) -> list[str]:
    ui = f"{stack.servers.temporal.ui_url}/namespaces/default/workflows"
    small, large = (stack.stripe.control.create_payment(paid, "eur").payment_intent for paid in (100_00, 500_00))
    effects = _shown(Path(sys.executable).with_name("effects"))
    today = time.strftime("%d-%H%M%S")
    always = "--currency eur --requested-by mia --evidence ticket=T-1 --as support-bot"
    return [
        "",
        f"Temporal's Web UI   {ui}",
        f"  needs a person    {ui}?query=EffectState%3D'needs_review'",
        f"  awaits approval   {ui}?query=EffectState%3D'awaiting_approval'",
        f"Stripe stand-in     {stack.stripe.base_url} (delivers webhooks to the worker's inbox)",
        f"worker              pid {worker.pid}, log {_shown(stack.root / 'worker-1.log')}",
        f"metrics             http://{LOOPBACK}:{metrics}/metrics",
        f"settings            {_shown(environment)} (effects finds it from {_shown(ROOT)})",
        "",
        "Try, in another terminal. The answer of Stripe is lost, and one refund is made:",
        f"  {effects} propose refund {small} --amount 15.00 --key order-{today} {always} --fault lost-answer --wait 60",
        f"  {effects} trail acme/order-{today}",
        "A larger one waits for a person (its requester cannot be the one):",
        f"  {effects} propose refund {large} --amount 150.00 --key large-{today} {always}",
        f"  {effects} inbox",
        f"  {effects} approve acme/large-{today} --as bob",
        *_order_words(stack, effects, today),
        f"Kill the worker whenever you like: kill -9 {worker.pid}. Another one starts.",
        "Ctrl-C stops everything; the state is kept for the next time.",
    ]


def _order_words(stack: Stack, effects: str, today: str) -> list[str]:
    """How to try the other two jobs, with files that are ready to be sent."""
    if stack.receivers is None:
        return [
            "`make up ERP=1` runs an ERP, an address book and a mail server as well, for orders and delivery dates."
        ]
    world, folder = stack.receivers, stack.root
    customer, placed = world.erp.add_customer("Customer of today"), world.erp.place_order()
    later = max(line.delivery_date for line in placed.lines if line.delivery_date is not None) + timedelta(days=30)
    order = {
        "tenant": "acme", "order": f"O-{today}", "actor": "order-bot", "requested_by": "mia", "customer": customer.code,
        "currency": "eur", "items": [{"product": "WIDGET", "quantity": 3, "unit_price_minor": 12_50}],
        "total_minor": 37_50, "mail": {"reference": "<1@customer.test>", "digest": "sha256:" + "0" * 64},
        "confirm_to": "buyer@customer.test",
    }  # fmt: skip
    date = {
        "tenant": "acme", "business_key": f"date-{today}", "action": "change_delivery_date", "target": placed.number,
        "arguments": {"delivery_date": later.isoformat()}, "actor": "order-bot",
        "requested_by": "mia", "evidence": [{"kind": "ticket", "reference": "T-2"}],
    }  # fmt: skip
    (folder / "order.json").write_text(json.dumps(order, indent=2))
    (folder / "date.json").write_text(json.dumps(date, indent=2))
    return [
        f"Tryton {world.tryton.base_url}, address book {world.radicale.base_url}, mail on port {world.mail.imap_port} (IMAP)",
        "An order becomes a draft invoice; the customer's record and the mail follow once it is approved and exists:",
        f"  {effects} propose order {_shown(folder / 'order.json')} --as order-bot",
        f"  {effects} approve acme/O-{today}/invoice --as alice",
        f"  {effects} propose order {_shown(folder / 'order.json')} --as order-bot --wait 30",
        "A delivery date moves on the version that was read and approved, or not at all:",
        f"  {effects} propose file {_shown(folder / 'date.json')} --as order-bot",
        f"  {effects} approve acme/date-{today} --as bob",
    ]


def _shown(path: Path) -> str:
    """As somebody in this folder would type it."""
    inside = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return shlex.quote(str(inside))


def _say(text: str) -> None:
    print(text, flush=True)
