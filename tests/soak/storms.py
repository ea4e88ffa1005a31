"""What dies, stops, is held or jumps while a soak's operations are played; drawn from the seed, one after the other."""

import asyncio
import random
import signal
import uuid
from collections import Counter
from contextlib import suppress

from devstack.child import Child, ChildError
from devstack.signing import Signer
from ledger.statement import StatementType
from ledger.store.database import now
from tests.conftest import Rig
from tests.recovery.test_receivers_faults import aside
from tests.soak.played import PASSING, PROPOSALS_AT_ONCE, Played, Player, held_requests, persist

# S and D short, so that a lease is over within 15 s; every call of ours that hangs is over in 4.
QUICK = {"EFFECTS_SEND_WITHIN": "3", "EFFECTS_CALL_DEADLINE": "4", "EFFECTS_BACKOFF": "0.3"}
WORKERS = 2
JUMPS_SECONDS = (20.0, 120.0, 900.0, 4_300.0)
MOST_HOURS = 18.0  # that all jumps come to: a key must not expire while its request may still be delivered late


class Storms:
    """On one desk, with its workers."""

    def __init__(self, desk: Rig, seed: int, player: Player, played: list[Played]) -> None:
        """`played` is what the player has begun so far; it grows."""
        self._desk, self._player, self._played = desk, player, played
        self._drawn = random.Random(f"{seed}:storms")
        self.counts: Counter[str] = Counter()
        self._workers: list[Child] = []
        self._jumped_seconds = 0.0

    def start_workers(self) -> None:
        """As many as there should be."""
        self._workers = [worker for worker in self._workers if worker.alive]
        while len(self._workers) < WORKERS:
            extra = {**QUICK, "EFFECTS_STRIPE_BASE_URL": self._desk.stripe_url}
            self._workers.append(self._desk.stack.worker(**extra))

    async def rage(self, until: float) -> None:
        """Until this moment of the loop's clock."""
        kinds = {
            self.kill_a_worker: 6,
            self.stop_a_worker: 4,
            self.kill_postgres: 3,
            self.kill_temporal: 3,
            self.kill_the_address_book: 2,
            self.kill_the_payment_provider: 2,
            self.jump: 5,
            self.hold_everything: 2,
            self.drop_all_lines: 3,
        }
        while asyncio.get_running_loop().time() < until:
            await asyncio.sleep(self._drawn.uniform(0.2, 1.5))
            storm = self._drawn.choices(list(kinds), list(kinds.values()))[0]
            self.counts[storm.__name__.replace("_", " ")] += 1
            await storm()

    async def keep_workers(self) -> None:
        """Start another wherever one is gone: killed, or because something that it needs was dead when it started."""
        while True:
            await aside(self.start_workers)
            await asyncio.sleep(0.3)

    async def kill_a_worker(self) -> None:
        """SIGKILL; another is started."""
        await aside(self._drawn.choice(self._workers).kill)

    async def stop_a_worker(self) -> None:
        """SIGSTOP, for longer than S, and sometimes past the lease, by the clock that nobody can move."""
        worker, seconds = self._drawn.choice(self._workers), self._drawn.choice((1.0, 4.0, 14.0))
        with suppress(ChildError):
            worker.signal(signal.SIGSTOP)
            await asyncio.sleep(seconds)
            worker.signal(signal.SIGCONT)

    async def kill_postgres(self) -> None:
        """The ERP loses its database with it, and is started again."""
        servers = self._desk.stack.servers
        await aside(servers.postgres.kill)
        await asyncio.sleep(self._drawn.uniform(0.0, 1.5))
        await aside(servers.postgres.restart)
        await aside(self._desk.world.tryton.restart)

    async def kill_temporal(self) -> None:
        """With all its timers; they are in its file."""
        servers = self._desk.stack.servers
        await aside(servers.temporal.kill)
        await asyncio.sleep(self._drawn.uniform(0.0, 1.5))
        await aside(servers.temporal.restart)

    async def kill_the_address_book(self) -> None:
        """With whatever it was writing."""
        await aside(self._desk.world.radicale.kill)
        await aside(self._desk.world.radicale.restart)

    async def kill_the_payment_provider(self) -> None:
        """The stand-in keeps keys and refunds in a file."""
        stand_in = self._desk.stack.stripe
        await aside(stand_in.kill)
        await aside(stand_in.restart)

    async def drop_all_lines(self) -> None:
        """As a gateway does that is restarted."""
        for proxy in self._desk.world.proxies.values():
            await aside(proxy.drop_connections)

    async def jump(self) -> None:
        """Both clocks go on by minutes or an hour. First whatever the network holds comes through: no contract of ours lets
        it keep a request for longer than its bound."""
        seconds = self._drawn.choice(JUMPS_SECONDS)
        if self._jumped_seconds + seconds > MOST_HOURS * 3600:
            return
        self._jumped_seconds += seconds
        await self.deliver_what_is_held()
        for _ in range(PROPOSALS_AT_ONCE):
            await self._player.no_jump.acquire()
        try:
            await persist(lambda: self._desk.advance(seconds))
        finally:
            for _ in range(PROPOSALS_AT_ONCE):
                self._player.no_jump.release()

    async def deliver_what_is_held(self) -> None:
        """Requests that the network still has arrive now, or never, if their receiver was killed meanwhile."""
        for fault in held_requests(self._played):
            with suppress(*PASSING):
                await aside(fault.release, 5.0)

    async def hold_everything(self) -> None:
        """An operator stops all sending; two let it go on."""
        await self._say("olga", StatementType.HOLD)
        await asyncio.sleep(self._drawn.uniform(0.5, 2.0))
        await self.release_everything()

    async def release_everything(self) -> None:
        """Both operators."""
        for who in ("olga", "oscar"):
            await self._say(who, StatementType.RELEASE)

    async def _say(self, who: str, typ: StatementType) -> None:
        async def said() -> None:
            desk = self._desk
            async with desk.ledger.transaction() as conn:
                envelope = Signer(desk.stack.household, await now(conn)).on_scope("all", who, typ, "soak")
            named = f"hold-{uuid.uuid4().hex}"
            await desk.client.execute_workflow("HoldWorkflow", envelope, id=named, task_queue=desk.stack.task_queue)

        await persist(said, 180)
