"""The archive: a folder over IMAP that gets one copy of every mail that the mail server accepted from us.

It judges no mail: it tells what stands there. `read_mail` is pure and total, the rest touches the network.

1. Every reading is a session of its own, opened for reading only: an open one need not know of newer mail.
2. IMAP finds parts of words in either case of letters, so each hit is fetched, and compared by whoever asked.
3. It is complete if every search was answered and every hit could be fetched.
"""

import asyncio
import email
import imaplib
import re
import socket
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from email.header import decode_header, make_header
from email.message import Message
from email.policy import compat32, default
from email.utils import getaddresses
from typing import Any

from providers.mail_templates import digest_of
from providers.mail_wire import Login, Place, Tls, cut_out, tls_context

MARKER = "X-Effect-Operation"
MOST_HITS = 5000
BATCH = 500
LARGEST_MAIL = 256 * 1024  # no mail of ours comes near it
_HEADERS = f"MESSAGE-ID {MARKER.upper()} FROM TO CC SUBJECT"
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_RECEIVED = re.compile(
    rb'INTERNALDATE "\s?(\d{1,2})-([A-Za-z]{3})-(\d{4}) (\d\d):(\d\d):(\d\d) ([+-])(\d\d)(\d\d)"', re.IGNORECASE
)


@dataclass(frozen=True)
class Wanted:
    """The mail that is looked for."""

    sender: str
    recipient: str
    subject: str
    body_sha256: str
    message_id: str
    marker: str


@dataclass(frozen=True)
class ArchivedMail:
    """One mail as it stands in the folder. None is what could not be read."""

    uid: int
    uidvalidity: int
    received: datetime | None = None
    message_ids: tuple[str, ...] = ()
    markers: tuple[str, ...] = ()
    senders: tuple[str, ...] = ()
    recipients: tuple[str, ...] = ()  # To and Cc
    subject: str | None = None
    body_sha256: str | None = None  # None also where the text was of no interest

    def marked_for(self, wanted: Wanted) -> bool:
        """Whether it bears our Message-ID or our marker, letter by letter."""
        return wanted.message_id in self.message_ids or wanted.marker in self.markers

    def addressed_as(self, wanted: Wanted) -> bool:
        """Whether sender, the one recipient and subject are the wanted ones."""
        return (
            self.senders == (wanted.sender.lower(),)
            and self.recipients == (wanted.recipient.lower(),)
            and self.subject == spaced(wanted.subject)
        )


@dataclass(frozen=True)
class Reading:
    """What one reading saw; `why` tells why it is not complete."""

    complete: bool
    mails: tuple[ArchivedMail, ...] = ()
    why: str = ""
    text: str = ""  # what the server said about it
    hits: int = 0


def spaced(text: str) -> str:
    """With single spaces: folding a header may change how many there are."""
    return " ".join(text.split())


def read_mail(uid: int, uidvalidity: int, told: bytes, header: bytes, raw: bytes | None) -> ArchivedMail:
    """What the server told about one mail, its header, and the whole of it where that is wanted. Pure and total."""
    head = email.message_from_bytes(header, policy=compat32)
    return ArchivedMail(
        uid,
        uidvalidity,
        _received(told),
        tuple(spaced(text) for text in _texts(head, "Message-ID")),
        tuple(spaced(text) for text in _texts(head, MARKER)),
        _addresses(_texts(head, "From")),
        _addresses([*_texts(head, "To"), *_texts(head, "Cc")]),
        _subject(_texts(head, "Subject")),
        None if raw is None else _body_sha256(raw),
    )


def _texts(head: "Message[str, str]", name: str) -> list[str]:
    return [str(text) for text in head.get_all(name, [])]


def _addresses(texts: list[str]) -> tuple[str, ...]:
    try:
        return tuple(address.lower() for _, address in getaddresses(texts))
    except Exception:  # a header of somebody else's making
        return ("",)


def _subject(texts: list[str]) -> str | None:
    try:
        return spaced(str(make_header(decode_header(texts[0])))) if len(texts) == 1 else None
    except Exception:
        return None


def _body_sha256(raw: bytes) -> str | None:
    """Of the text of a mail that is nothing but text; None for any other."""
    try:
        whole = email.message_from_bytes(raw, policy=default)
        if whole.get_content_type() != "text/plain" or whole.is_multipart():
            return None
        return digest_of(str(whole.get_content()))
    except Exception:
        return None


def _received(told: bytes) -> datetime | None:
    found = _RECEIVED.search(told)
    if found is None:
        return None
    day, month, year, hour, minute, second, sign, hours, minutes = (part.decode() for part in found.groups())
    try:
        away = timedelta(hours=int(hours), minutes=int(minutes)) * (-1 if sign == "-" else 1)
        local = datetime(
            int(year), _MONTHS.index(month.lower()) + 1, int(day), int(hour), int(minute), int(second),
            tzinfo=timezone(away),
        )  # fmt: skip
        return local.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


class Archive:
    """One folder. Each reading has its own connection, in a thread: the library waits where it reads."""

    def __init__(self, place: Place, login: Login) -> None:
        self._place, self._login = place, login

    async def find(self, wanted: Wanted, seconds: float) -> Reading:
        """Everything that could be the wanted mail: by its id, by its marker, or by sender, recipient and subject."""
        return await self._read(wanted, seconds)

    async def opens(self, seconds: float) -> bool:
        """Whether the login is accepted and the folder is there."""
        return (await self._read(None, seconds)).complete

    async def _read(self, wanted: Wanted | None, seconds: float) -> Reading:
        opened: list[imaplib.IMAP4] = []
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.to_thread(self._in_thread, wanted, seconds, opened)
        except TimeoutError:
            return Reading(False, why="deadline")
        finally:
            for imap in opened:  # a thread that still reads reads its end
                with suppress(OSError):
                    imap.sock.shutdown(socket.SHUT_RDWR)

    def _in_thread(self, wanted: Wanted | None, seconds: float, opened: list[imaplib.IMAP4]) -> Reading:
        try:
            imap = _connect(self._place, seconds, opened)
            try:
                uidvalidity = self._open_folder(imap)
                return Reading(True) if wanted is None else _find(imap, uidvalidity, wanted)
            finally:
                _say_goodbye(imap)
        except _Incomplete as error:
            return Reading(False, why=str(error))
        except Exception as error:  # whatever a server may say: it could not be read
            # A server may quote the search that it could not read, and the recipient stands in that.
            cut = self._login.cut if wanted is None else (*self._login.cut, wanted.recipient)
            return Reading(False, why=type(error).__name__, text=cut_out(cut, str(error)))

    def _open_folder(self, imap: imaplib.IMAP4) -> int:
        if self._place.tls is Tls.STARTTLS:
            imap.starttls(tls_context())
        if "AUTH=PLAIN" in imap.capabilities:
            imap.authenticate("PLAIN", lambda _: f"\0{self._login.user}\0{self._login.password}".encode())
        else:
            imap.login(self._login.user, self._login.password)
        kind, said = imap.select(f'"{self._place.folder}"', readonly=True)
        if kind != "OK":
            raise _Incomplete(f"the folder cannot be opened: {cut_out(self._login.cut, str(said))}")
        _, told = imap.response("UIDVALIDITY")
        return int((told or [b"0"])[-1] or 0)


class _Incomplete(Exception):
    """Something was not read; the message says what."""


class _Told:
    """Says what was opened as soon as it is, so that it can be shut from outside."""

    def __init__(self, opened: list[imaplib.IMAP4], *args: Any, **more: Any) -> None:
        self._opened = opened
        super().__init__(*args, **more)

    def open(self, *args: Any, **more: Any) -> None:
        """Connect."""
        super().open(*args, **more)  # type: ignore[misc]
        self._opened.append(self)  # type: ignore[arg-type]


class _Clear(_Told, imaplib.IMAP4):
    """Without TLS, or with STARTTLS later."""


class _Secret(_Told, imaplib.IMAP4_SSL):
    """In TLS from the first byte."""


def _connect(place: Place, seconds: float, opened: list[imaplib.IMAP4]) -> imaplib.IMAP4:
    if place.tls is Tls.IMPLICIT:
        return _Secret(opened, place.host, place.port, ssl_context=tls_context(), timeout=seconds)
    return _Clear(opened, place.host, place.port, timeout=seconds)


def _say_goodbye(imap: imaplib.IMAP4) -> None:
    for step in (imap.logout, imap.shutdown):
        with suppress(Exception):  # what was read stands, and so does the error that ended it
            step()


def _find(imap: imaplib.IMAP4, uidvalidity: int, wanted: Wanted) -> Reading:
    # Ids and addresses as we allow them need no more than quotes.
    found = _search(imap, f'HEADER Message-ID "{wanted.message_id}"')
    found |= _search(imap, f'HEADER {MARKER} "{wanted.marker}"')
    found |= _search(imap, f'FROM "{wanted.sender}" TO "{wanted.recipient}"')
    if len(found) > MOST_HITS:
        raise _Incomplete(f"{len(found)} mails could be it, more than the {MOST_HITS} that are read")
    mails = []
    for batch in _batches(sorted(found)):
        told = _fetch(imap, batch, f"(UID INTERNALDATE RFC822.SIZE BODY.PEEK[HEADER.FIELDS ({_HEADERS})])")
        for uid in batch:
            if uid not in told:
                raise _Incomplete(f"mail {uid} was found and could not be read")
            mail = read_mail(uid, uidvalidity, *told[uid], None)
            if mail.marked_for(wanted) or mail.addressed_as(wanted):
                mails.append(read_mail(uid, uidvalidity, *told[uid], _whole(imap, uid, told[uid][0])))
    return Reading(True, tuple(mails), hits=len(found))


def _search(imap: imaplib.IMAP4, terms: str) -> set[int]:
    kind, parts = imap.uid("SEARCH", terms)
    if kind != "OK" or any(not isinstance(part, bytes) for part in parts):
        raise _Incomplete("a search was not answered")
    return {int(uid) for part in parts for uid in part.split()}


def _whole(imap: imaplib.IMAP4, uid: int, told: bytes) -> bytes | None:
    size = re.search(rb"RFC822\.SIZE (\d+)", told, re.IGNORECASE)
    if size is None or int(size[1]) > LARGEST_MAIL:
        return None  # too large to be ours
    found = _fetch(imap, [uid], "(UID BODY.PEEK[])")
    if uid not in found:
        raise _Incomplete(f"mail {uid} was found and could not be read")
    return found[uid][1]


def _fetch(imap: imaplib.IMAP4, uids: list[int], items: str) -> dict[int, tuple[bytes, bytes]]:
    """Per UID what was told around the one literal, and the literal. What the server tells unasked has none."""
    kind, parts = imap.uid("FETCH", ",".join(map(str, uids)), items)
    if kind != "OK":
        raise _Incomplete("mails that were found could not be read")
    return dict(_read_fetched(parts))


def _read_fetched(parts: Iterable[Any]) -> Iterator[tuple[int, tuple[bytes, bytes]]]:
    listed = list(parts)
    for index, part in enumerate(listed):
        if isinstance(part, tuple) and len(part) == 2:
            behind = listed[index + 1] if index + 1 < len(listed) else b""
            told = part[0] + b" " + (behind if isinstance(behind, bytes) else b"")
            uid = re.search(rb"\bUID (\d+)", told, re.IGNORECASE)
            if uid is not None:
                yield int(uid[1]), (told, part[1])


def _batches(uids: list[int]) -> Iterator[list[int]]:
    for start in range(0, len(uids), BATCH):
        yield uids[start : start + BATCH]
