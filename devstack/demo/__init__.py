"""`make demo`: the main job on an embedded stack, judged by the stand-in's own journal of arrivals and effects.

With every scenario the two other jobs follow, on an ERP, an address book and a mail server, judged by their own records.
"""

import asyncio
import os
import shutil
import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from temporalio.runtime import LoggingConfig, Runtime, TelemetryConfig

from devstack.child import DevstackError
from devstack.demo.acts import ACTS
from devstack.demo.dates import a_delivery_date
from devstack.demo.desk import Desk
from devstack.demo.more import play_more
from devstack.demo.orders import an_order
from devstack.demo.promises import Row
from devstack.demo.show import Show
from devstack.demo.stage import BACKOFF, CALL_DEADLINE, SEND_WITHIN, Stage, open_stage
from devstack.ports import LOOPBACK
from devstack.receiver import erp_python
from devstack.receivers import Receivers
from devstack.stack import ROOT, Servers, Stack
from devstack.tryton.server import find_program
from devstack.tryton.snapshot import DATABASE
from ledger.errors import LedgerError

FOLDER = ROOT / ".cache" / "demo"
NAME, DESK_NAME = "demo", "demo_desk"

__all__ = ["conclude", "run"]


@dataclass(frozen=True)
class Stacks:
    """A ledger for the refunds; with every scenario, another one for the two other jobs."""

    refunds: Stack
    desk: Stack | None


def run(all_scenarios: bool = False, folder: Path = FOLDER) -> int:
    """Play the acts (and every other scenario). 0 only if every row of the table is as promised."""
    show = Show()
    _no_proxy()
    # The SDK's core warns about tries that were given up, which is what act 1 is about.
    quiet = TelemetryConfig(logging=LoggingConfig(filter="ERROR"))
    Runtime.set_default(Runtime(telemetry=quiet), error_if_already_set=False)
    try:
        if all_scenarios:
            _check_receivers()
        with _stacks(folder, show, all_scenarios) as stacks:
            return asyncio.run(_play(stacks, show))
    except KeyboardInterrupt:
        show.say("stopped")
        return 128 + signal.SIGINT
    except (DevstackError, LedgerError) as error:
        show.say(f"the demo cannot run: {error}")
        return 1
    except PermissionError as error:
        show.say(f"the demo cannot run: {error}. Does {folder} belong to somebody else? Delete it, or take it over")
        return 1


def _check_receivers() -> None:
    """DevstackError, with what to do, unless the programs of the outside systems are there."""
    try:
        erp_python()
        find_program("trytond")
    except DevstackError as error:
        words = "every scenario needs Tryton, Radicale and mail-devel: run `make demo ALL=1`, which builds them, once"
        raise DevstackError(f"{words} ({error})") from error


@contextmanager
def _stacks(folder: Path, show: Show, all_scenarios: bool) -> Iterator[Stacks]:
    """All servers, and nothing of an earlier run but what is slow to make: clusters, and the dump of the ERP."""
    with ExitStack() as started:
        servers = started.enter_context(Servers(folder, durable=False, remember=False, say=show.say))
        for database in (NAME, DESK_NAME, DATABASE):
            servers.postgres.drop_database(database)
        for name in ("run", "desk", "receivers"):
            shutil.rmtree(folder / name, ignore_errors=True)
        receivers = None
        if all_scenarios:
            receivers = started.enter_context(Receivers(folder / "receivers", servers.postgres, say=show.say))
        refunds = started.enter_context(Stack(servers, folder / "run", name=NAME, say=show.say))
        desk = None
        if receivers is not None:
            desk = started.enter_context(
                Stack(
                    servers,
                    folder / "desk",
                    name=DESK_NAME,
                    stripe=refunds.stripe,
                    receivers=receivers,
                    say=lambda text: None,
                )
            )
        yield Stacks(refunds, desk)


async def _play(stacks: Stacks, show: Show) -> int:
    stages: list[Stage] = []
    async with open_stage(Stage, stacks.refunds, show) as stage:
        stages.append(stage)
        show.say(
            f"all is up after {show.seconds:.1f} s; Temporal's Web UI, while this runs:"
            f" {stage.stack.servers.temporal.ui_url}"
        )
        show.say(
            f"For speed: a send has {SEND_WITHIN:.0f} s and a call {CALL_DEADLINE:.0f} s (10 and 30 by contract), a first"
            f" pause {BACKOFF} s. Time is moved, not waited for. The rest is as in production."
        )
        for act in ACTS:
            await act(stage)
        if stacks.desk is not None:
            await play_more(stage)
    if stacks.desk is not None:
        async with open_stage(Desk, stacks.desk, show) as desk:
            stages.append(desk)
            await an_order(desk)
            await a_delivery_date(desk)
    rows = [row for stage in stages for row in stage.rows]
    texts = [text for stage in stages for text in (*stage.trails, *_last_words(stage))]
    return conclude(show, rows, texts, sum(stage.begun for stage in stages) - len(rows))


def conclude(show: Show, rows: Sequence[tuple[Row, list[str]]], texts: Sequence[str] = (), unfinished: int = 0) -> int:
    """Show the table, and the evidence where it is not as promised. 0 only if every row is there and as promised."""
    show.table(rows)
    for text in texts:
        show.say(text)
    wrong = sum(bool(differences) for _, differences in rows) + unfinished
    show.say("")
    if wrong or not rows:
        show.say(f"{wrong} of {len(rows) + unfinished} rows are NOT as promised")
        return 1
    show.say(f"{len(rows)} rows, each as promised, in {show.seconds:.0f} s")
    return 0


def _last_words(stage: Stage) -> list[str]:
    """What workers said that ended otherwise than by the kill of an act."""
    ended = [w for w in stage.stack.workers if not w.alive and w.returncode not in (0, -signal.SIGKILL)]
    return [f"--- {w.name} ended with {w.returncode}:\n{w.log_tail(5)}" for w in ended]


def _no_proxy() -> None:
    """Nothing of the demo leaves this machine, so that no proxy of the environment may come between."""
    for name in ("no_proxy", "NO_PROXY"):
        os.environ[name] = ",".join(part for part in (os.environ.get(name, ""), LOOPBACK) if part)
