"""Take events: wake the operations that a provider's events concern, so that they look now. No event moves a state.

At least once: first everybody is woken, then the event is marked. A look too many costs a read; a lost one would cost days.
"""

from uuid import UUID

from temporalio import activity
from temporalio.service import RPCError

from activities.errors import heartbeating, translated
from activities.messages import Taken, Taking
from activities.ports import Ports
from ledger.model import Operation
from ledger.store import inbox
from ledger.store.inbox import Untaken


class TakeEvents:
    """The activity that empties the inbox."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports

    @activity.defn(name="take_events")
    async def take_events(self, taking: Taking) -> Taken:
        """Take the oldest events. One whose operation could not be woken stays, and stops no other."""
        async with translated(), heartbeating():
            async with self._ports.ledger.transaction() as conn:
                waiting = await inbox.untaken(conn, taking.at_most)
            woken: set[UUID] = set()
            unreachable: RPCError | None = None
            for one in waiting:
                try:
                    await self._take(one, woken)
                except RPCError as error:
                    unreachable = error
            if unreachable is not None:
                raise unreachable
            return Taken(taken=len(waiting), woken=len(woken), left=len(waiting) == taking.at_most)

    async def _take(self, one: Untaken, woken: set[UUID]) -> None:
        """All events of this batch were stored before anybody was woken: one look answers several of them."""
        async with self._ports.ledger.transaction() as conn:
            concerned: list[Operation] = await inbox.concerned(conn, one.event)
        for operation in concerned:
            if operation.operation_id not in woken:
                await self._ports.look_now(operation)
                woken.add(operation.operation_id)
        async with self._ports.ledger.transaction() as conn:
            await inbox.take(conn, one.number, [operation.operation_id for operation in concerned])
