"""`migrate`, `verify`, `clock advance`: the schema, the proof that nothing was changed, and the dev stack's time."""

from collections.abc import Sequence
from pathlib import Path

import psycopg

from activities.settings import Settings
from commands import tell
from commands.amounts import duration, lasting
from commands.checkpoint import compare
from commands.exits import Exit, Silent
from commands.page import Page
from commands.reading import first_line, probe, reading, writing
from commands.surroundings import ledger_dsn, only_dev, owner_dsn, settings
from commands.temporal import connected
from commands.voice import Voice
from ledger.errors import Broken, LedgerError, Refused
from ledger.store import clock, views
from ledger.store.database import now
from ledger.store.migrate import check as check_schema
from ledger.store.migrate import migrate as run_migrations
from ledger.store.verify import verify as verify_ledger


async def migrate(voice: Voice, *, check: bool, test_clock: bool) -> Page:
    """Bring the database to this code's schema with the owner's role; `check` only tells whether it is there."""
    given = settings()
    if check:
        async with reading(given.owner_dsn or ledger_dsn(given)) as reader, reader.snapshot() as conn:
            await check_schema(conn)
            versions = await views.schema_versions(conn)
        page = Page({"version": versions[-1]["version"] if versions else 0, "applied": []})
        page.say(f"The schema is this code's: {len(versions)} migration(s), all applied.")
        return page
    if test_clock:
        only_dev(given, "--test-clock")
    owner = owner_dsn(given)
    await probe(owner)
    try:
        applied = await run_migrations(owner, test_clock=test_clock)
    except psycopg.Error as error:
        raise Broken(f"{error.sqlstate}: {first_line(error)}") from error
    page = Page({"applied": applied, "test_clock": test_clock})
    page.say(f"Applied migration {', '.join(map(str, applied))}." if applied else "Nothing to apply.")
    return page


async def verify(voice: Voice, kept: Sequence[Path]) -> Page:
    """Recompute everything that can be recomputed; exit code 5 with the name of every row that differs.

    With checkpoints that were `kept`, also what they show to be gone or made anew, which a whole chain made anew hides.
    """
    dsn = ledger_dsn(settings())
    async with reading(dsn) as reader, reader.snapshot() as conn:
        await check_schema(conn)
        verified = await verify_ledger(conn)
        for file in kept:
            await compare(conn, verified, file)
    page = Page(
        {
            "verified": verified.counts,
            "differences": [{"row": f.row, "what": f.what} for f in verified.differences],
            "warnings": [{"row": f.row, "what": f.what} for f in verified.warnings],
        },
        Exit.BROKEN if verified.differences else Exit.ASKED,
    )
    bad = len(verified.differences)
    page.title(f"{bad} difference(s): nothing may be believed about these rows" if bad else "Everything agrees.")
    page.table(("row", "what"), [(f.row, f.what) for f in verified.differences])
    page.fact("checked", ", ".join(f"{count} {name}" for name, count in verified.counts.items()))
    for warning in verified.warnings:
        page.warn(f"{warning.row}: {warning.what}")
    return page


async def advance(voice: Voice, by: str) -> Page:
    """Move the ledger's clock and the stand-in's, and wake every open operation. Dev stacks only."""
    given = settings()
    only_dev(given, "a movable clock")
    if not given.stripe_base_url:
        raise Refused("not_dev", "EFFECTS_STRIPE_BASE_URL names no stand-in whose clock could be moved")
    owner = owner_dsn(given)
    seconds = duration(by).total_seconds()
    await probe(owner)
    temporal = await connected(given)
    # The ledger first: between the two it may think a key dead that still lives, never the other way round.
    async with writing(owner) as conn:
        await clock.advance(conn, seconds)
        at = await now(conn)
        waiting = await views.with_a_workflow(conn)
    _advance_stand_in(given, seconds)
    woken = 0
    for operation in waiting:
        try:
            await temporal.signal(operation, "look_now")
            woken += 1
        except LedgerError as error:
            voice.note(f"{operation.operation_id} was not woken: {error}")
    page = Page({"seconds": seconds, "now": at.isoformat(), "woken": woken})
    page.say(f"{lasting(duration(by))} later: the ledger's clock says {tell.clock(at)}; {woken} woken.")
    return page


def _advance_stand_in(given: Settings, seconds: float) -> None:
    """Move the clock of the provider's stand-in."""
    from httpx import HTTPError

    from devstack.stripe_standin.control import StandInControl

    assert given.stripe_base_url
    try:
        with StandInControl(given.stripe_base_url) as control:
            control.advance(seconds)
    except HTTPError as error:
        raise Silent("the Stripe stand-in", given.stripe_base_url, first_line(error)) from error
