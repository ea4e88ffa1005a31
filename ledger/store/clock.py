"""The owner-only test clock: it exists only in dev stacks, and moving it is told in the trail."""

from ledger.errors import Refused
from ledger.store import events
from ledger.store.database import Connection, one
from ledger.trail import EventKind


async def is_test_clock(conn: Connection) -> bool:
    """Whether this ledger's time can be moved. Outside a dev stack a worker refuses to start then."""
    return bool((await one(conn, "select exists (select from clock) as movable"))["movable"])


async def advance(conn: Connection, seconds: float) -> None:
    """Move the ledger's time forward (owner's role). `Refused` where there is no test clock."""
    if seconds <= 0:
        raise Refused("clock_backwards", "the test clock only moves forward: give a positive number of seconds")
    moved = await conn.execute("update clock set shift = shift + make_interval(secs => %s)", [seconds])
    if moved.rowcount != 1:
        raise Refused("clock_fixed", "this ledger has no test clock: only `migrate --test-clock` makes one")
    await events.append_to_ledger(conn, EventKind.CLOCK_MOVED, {"seconds": seconds})


async def ahead_seconds(conn: Connection) -> float:
    """How far ledger time is ahead of the wall clock: above zero after the wall clock was set back."""
    row = await one(
        conn,
        "select extract(epoch from ledger_now() - clock_timestamp()"
        " - coalesce((select shift from clock), interval '0'))::float8 as ahead",
    )
    return float(row["ahead"])
