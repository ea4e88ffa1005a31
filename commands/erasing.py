"""`erase`: personal fields of ended operations go, by the owner's role; what was decided, sent and paid stays."""

from collections.abc import Sequence
from datetime import UTC, datetime

from commands import tell
from commands.exits import Exit, Misuse
from commands.page import Page
from commands.reading import named, probe, reading, writing
from commands.surroundings import owner_dsn, settings
from commands.voice import Voice
from ledger.model import Operation
from ledger.store import erasure, inbox
from ledger.store.database import Connection

MOST = 1000  # operations in one call: each is a transaction of its own


async def erase(voice: Voice, names: Sequence[str], ended_before: str, by: str, reason: str, *, yes: bool) -> Page:
    """Erase the named operations, or all that ended before a day (UTC) and need nobody, with the inbox's events of then."""
    if bool(names) == bool(ended_before):
        raise Misuse("name operations, or give --ended-before DAY: one of both")
    moment = _midnight(ended_before) if ended_before else None
    owner = owner_dsn(settings())
    await probe(owner)
    async with reading(owner) as reader, reader.snapshot() as conn:
        found = await _chosen(conn, names, moment)
    chosen = [o for o in found if o.erased_at is None]
    page = Page({"chosen": [str(o.operation_id) for o in chosen]})
    page.title(f"{len(chosen)} operation(s) to erase")
    page.table(("operation", "what it is", "state"), [(o.operation_id, tell.headline(o), o.state) for o in chosen])
    if gone := ", ".join(tell.headline(o) for o in found if o.erased_at is not None):
        page.fact("erased before", gone)
    voice.show(page)
    if not voice.agreed("erase their personal fields? That cannot be undone.", yes=yes):
        return Page({"erased": []}, Exit.REFUSED)
    for operation in chosen:
        async with writing(owner) as conn:
            await erasure.erase(conn, operation, by, reason)
    forgotten = 0
    if moment is not None:
        async with writing(owner) as conn:
            forgotten = await inbox.forget(conn, moment)
    page = Page({"erased": [str(o.operation_id) for o in chosen], "inbox_events": forgotten})
    page.say(f"{len(chosen)} operation(s) erased, {forgotten} event(s) of the inbox forgotten.")
    if len(chosen) == MOST:
        page.say("There may be more: the same command again.")
    return page


async def _chosen(conn: Connection, names: Sequence[str], moment: datetime | None) -> list[Operation]:
    if moment is not None:
        return await erasure.ended_before(conn, moment, MOST)
    return [await named(conn, name) for name in names]


def _midnight(day: str) -> datetime:
    try:
        return datetime.strptime(day, "%Y-%m-%d").replace(tzinfo=UTC)
    except ValueError:
        raise Misuse("--ended-before takes a day like 2026-05-01") from None
