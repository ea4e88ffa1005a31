"""`make soak`: many operations of every action, under faults that meet at random, on real processes that really die.

It prints its seed, what was played, and every difference between the ledger and the receivers; 1 if there is any.
"""

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from devstack.fault_proxy import FaultProxy
from devstack.receivers import Receivers
from devstack.stack import Servers
from devstack.stripe_standin.launch import StandInProcess
from tests.conftest import _fresh
from tests.recovery.test_receivers_faults import Aim
from tests.soak.played import PASSING, Played, Player, plan
from tests.soak.settling import judged, settle
from tests.soak.storms import Storms

AT_ONCE = 8  # operations that are played at a time


async def play(player: Player, storms: Storms, every: list[Played], seed: int, seconds: float) -> None:
    """Begin operations, and let storms rage over them, for so long."""
    until = asyncio.get_running_loop().time() + seconds

    async def player_of_many() -> None:
        while asyncio.get_running_loop().time() < until:
            one = Played(len(every), plan(seed, len(every)))
            every.append(one)
            try:
                await player.play(one)
            except PASSING as error:
                print(f"given up: {one.name}: {type(error).__name__}: {str(error)[:120]}")

    await asyncio.gather(storms.rage(until), *(player_of_many() for _ in range(AT_ONCE)))


async def soak(
    root: Path, servers: Servers, stand_in: StandInProcess, receivers: Receivers, seed: int, seconds: float
) -> int:
    """The whole of it on servers that run; the exit code."""
    async with _fresh(servers, stand_in, root, receivers) as desk:
        began = time.monotonic()
        every: list[Played] = []
        player = Player(desk, desk.world.proxies["tryton"].arm(Aim()))
        storms = Storms(desk, seed, player, every)
        keeper = asyncio.create_task(storms.keep_workers())
        await play(player, storms, every, seed, seconds)
        print(f"storms are over after {time.monotonic() - began:.0f} s; what is open settles")
        await storms.deliver_what_is_held()
        for proxy in receivers.proxies.values():
            proxy.disarm()
        await asyncio.to_thread(stand_in.control.clear_faults)
        await storms.release_everything()
        await settle(desk, player, every)
        facts, found = await judged(desk, every)
        keeper.cancel()
        ended = Counter(fact.state or "never recorded" for fact in facts)
        print(f"played {len(every)} operations: " + ", ".join(f"{n} {state}" for state, n in ended.most_common()))
        print("storms: " + ", ".join(f"{n} × {storm}" for storm, n in storms.counts.most_common()))
        print(f"effects by the receivers' own records: {sum(len(fact.effects) for fact in facts)}")
        for difference in found:
            print(f"DIFFERENCE: {difference}")
        print(f"seed {seed}: {len(found) or 'no'} differences")
        return int(bool(found))


def main(arguments: Sequence[str]) -> int:
    """Start everything in a folder of its own, soak, and stop everything."""
    parser = argparse.ArgumentParser(prog="soak")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    asked = parser.parse_args(arguments)
    print(f"seed {asked.seed}: {asked.seconds:.0f} s of storms", flush=True)
    with tempfile.TemporaryDirectory(prefix="effect-ledger-soak-") as folder:
        root = Path(folder)
        try:
            with (
                Servers(root / "servers", durable=False, ui=False, say=lambda text: None) as servers,
                StandInProcess(root / "stripe.sqlite") as stand_in,
                Receivers(root / "receivers", servers.postgres, say=lambda text: None) as receivers,
                FaultProxy(stand_in.port) as before_stripe,
            ):
                stand_in.control.wait_ready()
                receivers.proxies["stripe"] = before_stripe
                return asyncio.run(soak(root / "ledger", servers, stand_in, receivers, asked.seed, asked.seconds))
        finally:
            servers.postgres.remove()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
