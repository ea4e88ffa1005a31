"""The line to a mail server: where it is, and one SMTP dialogue that asks the send guard and records how far it got.

It judges no answer. The library speaks the protocol; what is ours is the last step.

1. Everything up to the server's 354 has no effect: a server drops a transaction whose connection ends before the final
   dot (RFC 5321, 4.1.1.10). It is said before the guard, and unguarded.
2. The guard runs after 354; its "no" ends the connection. After its "yes" the whole message with its final dot is one
   write, and nothing yields to the event loop in between.
3. A connection that ends without the server's last word is reset: what the kernel has not sent yet, it throws away.
4. No password crosses a network in the clear, unless the scheme of the place says so.
"""

import asyncio
import base64
import ipaddress
import os
import re
import socket
import struct
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from ssl import SSLContext
from typing import Any
from urllib.parse import unquote, urlsplit

import aiosmtplib
import httpx

from ledger.errors import Broken, Refused
from providers.port import AfterWrite, SendGuard
from providers.wire import words


class Tls(StrEnum):
    """How a connection is kept secret."""

    NONE = "none"
    STARTTLS = "starttls"
    IMPLICIT = "implicit"


@dataclass(frozen=True)
class Place:
    """A server of one protocol, and the folder there."""

    host: str
    port: int
    tls: Tls
    folder: str = ""


_SCHEMES = {"": Tls.NONE, "s": Tls.IMPLICIT, "+starttls": Tls.STARTTLS, "+cleartext": Tls.NONE}


def read_place(url: str, protocol: str, field: str) -> Place:
    """The place that an endpoint (smtp) or an archive (imap) names. Refused, for `field`: what cannot be used, and why."""
    forms = ", ".join(f"{protocol}{ending}://HOST:PORT" for ending in ("s", "+starttls"))
    if protocol == "imap":
        forms = forms.replace("PORT", "PORT/FOLDER")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or 0
    except ValueError:
        host, port = "", 0
    if not host or not port or not url.isprintable() or " " in url or not host.isascii():
        raise Refused("place_malformed", f"give it as {forms}", field=field)
    ending = parts.scheme.removeprefix(protocol)
    if not parts.scheme.startswith(protocol) or ending not in _SCHEMES:
        raise Refused("place_malformed", f"give it as {forms}", field=field)
    folder = unquote(parts.path[1:]) if protocol == "imap" else ""
    if (
        parts.username is not None
        or parts.query
        or parts.fragment
        or (protocol == "smtp" and parts.path not in ("", "/"))
    ):
        raise Refused("place_malformed", f"give it as {forms}, and the password with the secret", field=field)
    if protocol == "imap" and (
        not folder or not folder.isascii() or not folder.isprintable() or set(folder) & set('"\\')
    ):
        raise Refused("place_malformed", f"name the folder: {forms}", field=field)
    if ending == "" and not _is_loopback(host):
        raise Refused(
            "place_in_the_clear",
            f"{protocol}:// would carry the password unencrypted and is for loopback only: use {forms}; "
            f"{protocol}+cleartext:// says that the network in between is trusted",
            field=field,
        )
    return Place(host, port, _SCHEMES[ending], folder)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@dataclass(frozen=True)
class Login:
    """Who logs in; an empty user does not."""

    user: str
    password: str = field(repr=False)

    @property
    def cut(self) -> tuple[str, ...]:
        """Every spelling in which the secret is sent, so that no answer can repeat it."""
        plain = base64.b64encode(f"\0{self.user}\0{self.password}".encode()).decode()
        return tuple(text for text in (self.password, base64.b64encode(self.password.encode()).decode(), plain) if text)


def read_login(secret: str) -> Login:
    """The login in a secret of the form user:password. Refused, without repeating any of it: everything else."""
    user, colon, password = secret.partition(":")
    plain = secret.isascii() and secret.isprintable()
    if not colon or not plain or bool(user) != bool(password) or set(user) & set(' "\\(){%*]'):
        message = "the secret is user:password, of printable ASCII; a single colon for a server without login"
        raise Refused("secret_malformed", message, field="secret")
    return Login(user, password)


def tls_context() -> SSLContext:
    """Certificates are verified for the name of the host. SSL_CERT_FILE replaces the built-in list of authorities.

    Refused: a list that cannot be read.
    """
    try:
        return _tls(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))
    except OSError as error:
        message = "SSL_CERT_FILE or SSL_CERT_DIR names no certificates that can be read"
        raise Refused("certificates_unreadable", message, field="endpoint") from error


@cache
def _tls(file: str | None, folder: str | None) -> SSLContext:
    return httpx.create_ssl_context()  # reads both variables itself: the same rule as for every other provider


def cut_out(secrets: tuple[str, ...], text: str) -> str:
    """A server's words, printable and short, without what they must not repeat."""
    for secret in secrets:
        text = re.sub(re.escape(secret), "[cut]", text, flags=re.IGNORECASE)
    return words(text) or ""


class Phase(StrEnum):
    """What was being said."""

    CONNECT = "connect"  # with the greeting, EHLO and STARTTLS
    LOGIN = "login"
    SENDER = "sender"
    RECIPIENT = "recipient"
    DATA = "data"  # the command, up to the server's 354
    MESSAGE = "message"


@dataclass(frozen=True)
class Dialogue:
    """How far one dialogue got and what the server said last. The secrets were cut out of its text."""

    phase: Phase
    sent: bool = False  # the first byte of the message may have left
    code: int | None = None  # of the last reply, which belongs to `phase`; None without one
    text: str = ""
    ended: str = ""  # what ended it early, in one word or the name of an exception
    accepted: bool = False  # the last thing that was said was answered as it should be


class _Ended(Exception):
    """The dialogue cannot go on; why is in its fields."""


class Line:
    """One connection, for one dialogue. What was said is in plain fields: no exception can lose it."""

    def __init__(self, place: Place, login: Login, *, cut: tuple[str, ...] = ()) -> None:
        self._place, self._login = place, login
        self._cut = login.cut + cut
        self._phase = Phase.CONNECT
        self._sent = False
        self._code: int | None = None
        self._text = ""
        self._ended = ""
        self._accepted = False
        implicit = place.tls is Tls.IMPLICIT
        self._smtp = aiosmtplib.SMTP(
            hostname=place.host,
            port=place.port,
            use_tls=implicit,
            start_tls=False,
            tls_context=None if place.tls is Tls.NONE else tls_context(),
            timeout=None,  # the total deadline is the only one
            local_hostname="localhost",  # never said: EHLO names our end of the connection
        )

    async def knock(self, sender: str, deadline: float) -> Dialogue:
        """Log in, and ask whether this sender may send: no effect."""
        return await self._whole(self._knock(sender), deadline)

    async def submit(
        self,
        sender: str,
        recipient: str,
        message: bytes,
        deadline: float,
        guard: SendGuard,
        after_write: AfterWrite,
    ) -> Dialogue:
        """Send one message, with its final dot in it, to one recipient."""
        return await self._whole(self._submit(sender, recipient, message, guard, after_write), deadline)

    async def _whole(self, dialogue: Coroutine[Any, Any, None], deadline: float) -> Dialogue:
        try:
            async with asyncio.timeout_at(deadline):
                await dialogue
        except Broken:
            raise
        except _Ended:
            pass
        except aiosmtplib.SMTPResponseException as error:
            self._note(error.code, error.message)
        except TimeoutError:
            self._ended = "deadline"
        except Exception as error:
            # The library may choke on an answer in ways of its own. What that means, the phase says.
            self._ended = type(error.__cause__ or error).__name__
        finally:
            self._hang_up()
        return Dialogue(self._phase, self._sent, self._code, self._text, self._ended, self._accepted)

    async def _knock(self, sender: str) -> None:
        await self._open(sender)
        self._accepted = True
        with suppress(aiosmtplib.SMTPException):
            await self._smtp.execute_command(b"RSET")

    async def _submit(
        self, sender: str, recipient: str, message: bytes, guard: SendGuard, after_write: AfterWrite
    ) -> None:
        await self._open(sender)
        await self._say(Phase.RECIPIENT, {250, 251}, f"RCPT TO:<{recipient}>")
        await self._say(Phase.DATA, {354}, "DATA")
        self._phase, self._code, self._text = Phase.MESSAGE, None, ""
        await self._ask_guard(guard)
        protocol = self._smtp.protocol
        if protocol is None or not protocol.is_connected:
            raise self._stopped("the server hung up")
        if protocol._buffer:  # said before anything was asked: it would pass for the answer
            raise self._stopped("the server spoke out of turn")
        # From here to the first byte nothing yields to the event loop.
        self._sent = True
        try:
            protocol.write(message)
        finally:
            after_write()
        reply = await protocol.read_response()
        self._note(reply.code, reply.message)
        self._accepted = reply.code == 250

    async def _open(self, sender: str) -> None:
        await self._smtp.connect()
        await self._smtp.ehlo(hostname=self._own_name())
        if self._place.tls is Tls.STARTTLS:
            await self._smtp.starttls()
            await self._smtp.ehlo(hostname=self._own_name())
        if self._login.user:
            self._phase = Phase.LOGIN
            offered = self._smtp.server_auth_methods
            if "plain" in offered:
                await self._smtp.auth_plain(self._login.user, self._login.password)
            elif "login" in offered:
                await self._smtp.auth_login(self._login.user, self._login.password)
            else:
                raise self._stopped("the server offers no login that we know")
        await self._say(Phase.SENDER, {250}, f"MAIL FROM:<{sender}>")

    async def _say(self, phase: Phase, wanted: set[int], command: str) -> None:
        self._phase, self._code, self._text = phase, None, ""
        reply = await self._smtp.execute_command(command.encode("ascii"))
        self._note(reply.code, reply.message)
        if reply.code not in wanted:
            raise _Ended

    async def _ask_guard(self, guard: SendGuard) -> None:
        try:
            allowed = await guard()
        except Broken:
            raise
        except Exception as error:
            raise self._stopped(f"guard raised {type(error).__name__}") from error
        if not allowed:
            raise self._stopped("guard")

    def _stopped(self, why: str) -> _Ended:
        self._ended = why
        return _Ended()

    def _note(self, code: int, text: str) -> None:
        self._code, self._text = code, cut_out(self._cut, text)

    def _own_name(self) -> str:
        """Our address as EHLO wants it where no name is known (RFC 5321, 4.1.4)."""
        found = self._smtp.get_transport_info("sockname")
        address = str(found[0]).partition("%")[0] if found else "127.0.0.1"
        return f"[IPv6:{address}]" if ":" in address else f"[{address}]"

    def _hang_up(self) -> None:
        transport, protocol = self._smtp.transport, self._smtp.protocol
        in_the_middle = self._phase is Phase.MESSAGE and self._code is None
        if protocol is not None and protocol.is_connected and not in_the_middle and not self._ended:
            with suppress(aiosmtplib.SMTPException, OSError):
                protocol.write(b"QUIT\r\n")  # nothing waits for its answer
        elif isinstance(transport, asyncio.WriteTransport):
            opened = transport.get_extra_info("socket")
            with suppress(OSError, AttributeError):
                opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            transport.abort()
        self._smtp.close()
