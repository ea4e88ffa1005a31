"""`codec`: decrypts for the Web UI what Temporal keeps, as a process of its own. It needs the keys, a token, and no ledger."""

import asyncio
import os
import re
import signal

from activities.observe import configure_logging
from activities.ports import Secrets
from activities.settings import Settings
from commands.decoding import Decoder, application
from commands.page import Page
from commands.surroundings import settings
from commands.voice import Voice
from inbox.serve import listening, serving
from ledger.errors import Refused
from workflows.codec import EncryptionCodec
from workflows.converter import converter_with

SHORTEST_TOKEN = 20  # characters
_ORIGIN = re.compile(r"https?://(?:[a-z0-9.-]+|\[[0-9a-f:]+\])(?::[0-9]{1,5})?")


async def codec(voice: Voice) -> Page:
    """Decrypt until SIGTERM or SIGINT."""
    given = settings()
    decoder = decoder_of(given)
    configure_logging(given.log_level)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    listener = listening("codec", given.codec_host, given.codec_port)
    with listener:
        async with serving(application(decoder), listener):
            host, port = listener.getsockname()[:2]
            voice.note(f"decrypting for {decoder.origin} at http://{host}:{port}, pid {os.getpid()}")
            await stop.wait()
    return Page({"origin": decoder.origin})


def decoder_of(given: Settings) -> Decoder:
    """What the application needs. Refused: `codec_…` and the refusals of keys, each naming what to set."""
    if not given.codec_port:
        raise Refused("codec_port_missing", "set EFFECTS_CODEC_PORT to the port that the Web UI shall ask")
    if not _ORIGIN.fullmatch(given.codec_origin):
        words = "set EFFECTS_CODEC_ORIGIN to the Web UI's origin as browsers send it: https://temporal.example.com"
        raise Refused("codec_origin_malformed", f"{words}, without a path or a slash at its end")
    secrets = Secrets(given.secrets_dir)
    found = converter_with(given.payload_keys, secrets.read).payload_codec
    if not isinstance(found, EncryptionCodec):
        raise Refused(
            "payload_keys_missing", "set EFFECTS_PAYLOAD_KEYS as the workers have it: there is nothing to decrypt"
        )

    def token() -> str:
        text = secrets.read(given.codec_token)
        if len(text) < SHORTEST_TOKEN:
            words = f"needs {SHORTEST_TOKEN} characters: make one with `openssl rand -hex 32`"
            raise Refused("secret_malformed", f"the secret {given.codec_token} {words}")
        return text

    token()
    return Decoder(found, token, given.codec_origin)
