"""`webhooks`: the inbox as a process of its own, apart from workers and their secrets."""

import asyncio
import os
import signal

from activities.observe import configure_logging
from commands.page import Page
from commands.surroundings import settings
from commands.voice import Voice
from inbox.serve import lazy_client, receiving
from ledger.errors import Refused


async def webhooks(voice: Voice) -> Page:
    """Receive until SIGTERM or SIGINT, then finish what was begun."""
    given = settings()
    if not given.inbox_port:
        raise Refused("inbox_port_missing", "set EFFECTS_INBOX_PORT to the port that webhooks come in on")
    configure_logging(given.log_level)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with receiving(given, await lazy_client(given)) as address:
        voice.note(f"receiving webhooks at {address}/stripe, pid {os.getpid()}")
        await stop.wait()
    page = Page({"address": address})
    page.say("Stopped; what was answered with 200 is kept.")
    return page
