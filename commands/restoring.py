"""`restored`: the word of whoever runs the database that it was restored, and may have forgotten what was sent."""

from commands.page import Page
from commands.reading import probe, writing
from commands.surroundings import owner_dsn, settings
from commands.voice import Voice
from ledger.store import incarnation
from ledger.store.migrate import check


async def restored(voice: Voice, by: str, reason: str) -> Page:
    """Begin the next incarnation where the ledger lives now. It only stops: sending goes on after an audit and two releases."""
    owner = owner_dsn(settings())
    await probe(owner)
    async with writing(owner) as conn:
        await check(conn)
        number = await incarnation.begin(conn, by, reason)
    page = Page({"incarnation": number, "held": "restored"})
    page.title(f"Incarnation {number} began: nothing is sent until it is released.")
    page.say(
        "1. `effects config diff`: what the ledger forgot of the configuration; apply it. Hold again what was held."
    )
    page.say("2. `effects verify`, and `effects audit`: what it forgot of its operations.")
    page.say("3. `effects release restored --reason …`, by two operators.")
    return page
