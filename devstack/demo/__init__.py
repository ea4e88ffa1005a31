"""`make demo`: the main job on an embedded stack, judged by the stand-in's own journal of arrivals and effects."""

import asyncio
import os
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path

from temporalio.runtime import LoggingConfig, Runtime, TelemetryConfig

from devstack.child import DevstackError
from devstack.demo.acts import ACTS
from devstack.demo.more import play_more
from devstack.demo.promises import Row
from devstack.demo.show import Show
from devstack.demo.stage import BACKOFF, CALL_DEADLINE, SEND_WITHIN, Stage, open_stage
from devstack.ports import LOOPBACK
from devstack.stack import ROOT, Servers, Stack
from ledger.errors import LedgerError

FOLDER = ROOT / ".cache" / "demo"
NAME = "demo"

__all__ = ["conclude", "run"]


def run(all_scenarios: bool = False, folder: Path = FOLDER) -> int:
    """Play the acts (and every other scenario). 0 only if every row of the table is as promised."""
    show = Show()
    _no_proxy()
    # The SDK's core warns about tries that were given up, which is what act 1 is about.
    quiet = TelemetryConfig(logging=LoggingConfig(filter="ERROR"))
    Runtime.set_default(Runtime(telemetry=quiet), error_if_already_set=False)
    try:
        with Servers(folder, durable=False, remember=False, say=show.say) as servers:
            servers.postgres.drop_database(NAME)
            shutil.rmtree(folder / "run", ignore_errors=True)
            with Stack(servers, folder / "run", name=NAME, say=show.say) as stack:
                return asyncio.run(_play(stack, show, all_scenarios))
    except KeyboardInterrupt:
        show.say("stopped")
        return 128 + signal.SIGINT
    except (DevstackError, LedgerError) as error:
        show.say(f"the demo cannot run: {error}")
        return 1
    except PermissionError as error:
        show.say(f"the demo cannot run: {error}. Does {folder} belong to somebody else? Delete it, or take it over")
        return 1


async def _play(stack: Stack, show: Show, all_scenarios: bool) -> int:
    async with open_stage(stack, show) as stage:
        show.say(
            f"all is up after {show.seconds:.1f} s; Temporal's Web UI, while this runs: {stack.servers.temporal.ui_url}"
        )
        show.say(
            f"For speed: a send has {SEND_WITHIN:.0f} s and a call {CALL_DEADLINE:.0f} s (10 and 30 by contract), a first"
            f" pause {BACKOFF} s. Time is moved, not waited for. The rest is as in production."
        )
        for act in ACTS:
            await act(stage)
        if all_scenarios:
            await play_more(stage)
        unfinished = stage.begun - len(stage.rows)
        texts = [*stage.trails, *_last_words(stage)]
        return conclude(show, stage.rows, texts, unfinished)


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
