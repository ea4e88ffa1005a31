"""`make up`: the stack of the demo, left running with its state kept, until Ctrl-C. People believe what they broke themselves."""

import asyncio
import os
import shlex
import signal
import sys
import time
from pathlib import Path

from devstack.child import Child, DevstackError
from devstack.stack import ROOT, Servers, Stack
from ledger.errors import LedgerError, Refused

FOLDER = ROOT / ".cache" / "stack"
_OTHER_SCHEMA = ("migration_edited", "schema_ahead")
_SHORT_LIFE = 20.0  # a worker that ends sooner after its start will not do better the next time
_MOST_SHORT_LIVES = 3


def run(folder: Path = FOLDER) -> int:
    """Start everything, say how to use it, and stay until SIGINT or SIGTERM. 0 after an orderly stop."""
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell's `&` leaves SIGINT ignored
        signal.signal(number, signal.default_int_handler)
    environment = folder / "environment"
    try:
        with Servers(folder, say=_say) as servers, Stack(servers, folder / "ledger", say=_say) as stack:
            try:
                return asyncio.run(_serve(stack, environment))
            finally:
                # Whoever reads it afterwards would talk to ports where nobody listens. Only ours: the folder is locked here.
                environment.unlink(missing_ok=True)
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
    worker = stack.worker()
    for line in _words(stack, worker, environment):
        _say(line)
    code = await _keep_a_worker(stack, stop)
    _say("stopping; the worker finishes what it began")
    for child in stack.workers:
        await asyncio.to_thread(child.stop)
    return code


async def _keep_a_worker(stack: Stack, stop: asyncio.Event) -> int:
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
        _say(f"the worker ended with {worker.returncode}; another one starts, pid {stack.worker().pid}")
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


def _words(stack: Stack, worker: Child, environment: Path) -> list[str]:
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
        f"Stripe stand-in     {stack.stripe.base_url}",
        f"worker              pid {worker.pid}, log {_shown(stack.root / 'worker-1.log')}",
        f"settings            {_shown(environment)} (effects finds it from {_shown(ROOT)})",
        "",
        "Try, in another terminal. The answer of Stripe is lost, and one refund is made:",
        f"  {effects} propose refund {small} --amount 15.00 --key order-{today} {always} --fault lost-answer --wait 60",
        f"  {effects} trail acme/order-{today}",
        "A larger one waits for a person (its requester cannot be the one):",
        f"  {effects} propose refund {large} --amount 150.00 --key large-{today} {always}",
        f"  {effects} inbox",
        f"  {effects} approve acme/large-{today} --as bob",
        f"Kill the worker whenever you like: kill -9 {worker.pid}. Another one starts.",
        "Ctrl-C stops everything; the state is kept for the next time.",
    ]


def _shown(path: Path) -> str:
    """As somebody in this folder would type it."""
    inside = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return shlex.quote(str(inside))


def _say(text: str) -> None:
    print(text, flush=True)
