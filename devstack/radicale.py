"""Radicale, a CardDAV server nobody here wrote, and the clerk who works by hand in the same address book.

The receiver of contact changes in tests and demo: strong ETags, one writer at a time, a file per card. Every content that a card
ever had is kept by Radicale's own storage hook, which runs inside its write lock: that journal is the judge of what was done.
"""

import re
import secrets
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self
from urllib.parse import quote, unquote
from xml.etree import ElementTree

import httpx

from devstack.ports import LOOPBACK
from devstack.receiver import Receiver, ReceiverError

BOOK = "contacts"
_TOP = "crm"
_SECONDS = 30.0
_VCARD = {"Content-Type": "text/vcard; charset=utf-8"}
_MKCOL = """<?xml version="1.0" encoding="utf-8"?>
<D:mkcol xmlns:D="DAV:" xmlns:CR="urn:ietf:params:xml:ns:carddav"><D:set><D:prop>
<D:resourcetype><D:collection/><CR:addressbook/></D:resourcetype></D:prop></D:set></D:mkcol>"""
_PROPFIND = """<?xml version="1.0"?><D:propfind xmlns:D="DAV:"><D:prop><D:getetag/></D:prop></D:propfind>"""
_CONFIG = """[server]
hosts = {host}:{port}
max_connections = 20
max_content_length = 1000000
max_resource_size = 100000
[auth]
type = htpasswd
htpasswd_filename = {root}/users
htpasswd_encryption = plain
delay = 0
[rights]
type = from_file
file = {root}/rights
[storage]
filesystem_folder = {root}/storage
strict_preconditions = {strict}
hook = {hook} %(actor)s %(request)s %(path)s
[web]
type = none
[logging]
level = info
"""
# W and w make folders and books and write into them; with d and o the service may neither delete nor replace a whole book.
_RIGHTS = """[clerk makes books]
user: clerk
collection: (crm)?
permissions: RW
[clerk]
user: clerk
collection: crm/[^/]+
permissions: rw
[service finds books]
user: service
collection: (crm)?
permissions: R
[service]
user: service
collection: crm/[^/]+
permissions: rwdo
"""
# Radicale runs this after every request that held its write lock, refused ones too, and answers only when it has ended. A
# card is replaced by a rename, so a new content is a new file; the link keeps it, and keeps its number from being reused.
_JOURNAL = """import os, sys
from pathlib import Path
who, verb, card = sys.argv[1], sys.argv[2], Path(sys.argv[3])
root = Path(__file__).parent
folder = root / "journal" / card.relative_to(root / "storage" / "collection-root")
entries = sorted(folder.iterdir()) if folder.is_dir() else []
last = entries[-1] if entries and entries[-1].stat().st_size else None
if card.is_file():
    changed = last is None or not card.samefile(last)
else:
    changed = last is not None
if changed:
    folder.mkdir(parents=True, exist_ok=True)
    entry = folder / f"{len(entries):06}-{verb}-{who}"
    os.link(card, entry) if card.is_file() else entry.touch()
"""


@dataclass(frozen=True)
class Login:
    """Somebody with a password; on loopback it is no secret."""

    user: str
    password: str


SERVICE = Login("service", "service-on-loopback-9")
CLERK = Login("clerk", "clerk-on-loopback-9")


@dataclass(frozen=True)
class Card:
    """A contact card as it stands: where, its exact bytes, and its version."""

    href: str
    content: bytes
    etag: str

    def values(self, name: str) -> list[str]:
        """All values of a property of one text, without parameters."""
        split = (re.fullmatch(r"(?:[\w-]+\.)?([\w-]+)(?:;[^:]*)?:(.*)", line) for line in _lines(self.content))
        return [_unescaped(found[2]) for found in split if found and found[1].upper() == name.upper()]


@dataclass(frozen=True)
class Written:
    """One change that Radicale made to a card. `content` is empty when it was deleted."""

    who: str
    verb: str
    content: bytes


@dataclass(frozen=True)
class Answered:
    """One request that Radicale answered, refused ones too. `who` is empty when the login was refused."""

    who: str
    verb: str
    code: int


class RadicaleServer(Receiver):
    """The server; its cards survive kill and restart. `service` is for our adapter, `clerk` is somebody else."""

    name: ClassVar[str] = "radicale"
    ready_words: ClassVar[str] = "Radicale server ready"

    def __init__(self, root: Path, *, strict: bool = False) -> None:
        """`strict` makes it refuse to replace a card without If-Match, which Radicale by itself does not."""
        super().__init__(root, ports=1)
        self._strict = strict

    @property
    def port(self) -> int:
        """Where it listens."""
        return self.ports[0]

    @property
    def base_url(self) -> str:
        """With neither login nor path."""
        return f"http://{LOOPBACK}:{self.port}"

    def book(self, name: str = BOOK) -> "AddressBook":
        """The clerk's view of an address book, which is made if it is not there."""
        return AddressBook(self, name)

    def command(self) -> list[str]:
        """Writes the configuration as well."""
        hook = shlex.join([sys.executable, "-I", "-S", str(self.root / "journal.py")]).replace("%", "%%")
        config = _CONFIG.format(host=LOOPBACK, port=self.port, root=self.root, strict=self._strict, hook=hook)
        users = "".join(f"{login.user}:{login.password}\n" for login in (SERVICE, CLERK))
        for name, text in (("config", config), ("users", users), ("rights", _RIGHTS), ("journal.py", _JOURNAL)):
            (self.root / name).write_text(text)
        return ["-m", "radicale", "--config", str(self.root / "config")]


class AddressBook:
    """One book through the clerk's own client, and Radicale's records of it. No condition is put on what the clerk writes."""

    def __init__(self, server: RadicaleServer, name: str) -> None:
        """Makes the book. ReceiverError, here as in all methods, for whatever Radicale refuses."""
        self.path = f"/{_TOP}/{name}/"
        self._server = server
        self._http = httpx.Client(auth=(CLERK.user, CLERK.password), timeout=_SECONDS, trust_env=False)
        for path, body in ((f"/{_TOP}/", ""), (self.path, _MKCOL)):
            # 405 is its word for "it is there".
            self._ask("MKCOL", path, body.encode(), allowed=(201, 405))

    def add(self, full_name: str = "Ada Lovelace", *lines: str, version: str = "4.0") -> Card:
        """A new contact with an href and UID of its own; `lines` are further properties as a card has them, escaped."""
        uid, name = secrets.token_hex(8), _escaped(full_name)
        wanted = ["BEGIN:VCARD", f"VERSION:{version}", f"UID:{uid}", f"FN:{name}", f"N:{name};;;;", *lines]
        content = "".join(f"{line}\r\n" for line in (*wanted, "END:VCARD")).encode()
        return self.write(f"{self.path}{uid}.vcf", content)

    def read(self, href: str) -> Card | None:
        """The card as it stands, or None."""
        answer = self._ask("GET", href, allowed=(200, 404))
        return None if answer.status_code == 404 else Card(href, answer.content, answer.headers["ETag"])

    def write(self, href: str, content: bytes) -> Card:
        """Put this there, whatever stands there; the card as Radicale keeps it, which is never quite as it was written."""
        self._ask("PUT", href, content, allowed=(201, 204))
        card = self.read(href)
        if card is None:
            raise ReceiverError(f"{href} is not there although it was written")
        return card

    def edit(self, href: str, name: str, value: str) -> Card:
        """Give a property another text, or add it; the rest stays."""
        card = self.read(href)
        if card is None:
            raise ReceiverError(f"{href} is not there to be edited")
        kept = [line for line in _lines(card.content) if not re.match(rf"{re.escape(name)}[;:]", line, re.IGNORECASE)]
        kept.insert(-1, f"{name}:{_escaped(value)}")
        return self.write(href, "".join(f"{line}\r\n" for line in kept).encode())

    def delete(self, href: str) -> None:
        """Remove it."""
        self._ask("DELETE", href, allowed=(200,))

    def hrefs(self) -> list[str]:
        """Of all cards that stand in the book."""
        answer = self._ask("PROPFIND", self.path, _PROPFIND.encode(), allowed=(207,))
        tree = ElementTree.fromstring(answer.content)  # noqa: S314 - from our own server on loopback
        found = (unquote(element.text or "") for element in tree.iter("{DAV:}href"))
        return sorted(href for href in found if href != self.path)

    def written(self, href: str) -> list[Written]:
        """Every change that was made to this card, oldest first, by whomever; from the storage hook's journal."""
        folder = self._server.root / "journal" / href.strip("/")
        entries = sorted(folder.iterdir()) if folder.is_dir() else []
        found = []
        for entry in entries:
            _, verb, who = entry.name.split("-", 2)
            found.append(Written(who, verb, entry.read_bytes()))
        return found

    def answered(self, href: str) -> list[Answered]:
        """Every request for this card that was answered, oldest first, by whomever; from Radicale's log."""
        return [found for path, found in _answers(self._server.log) if path == href]

    def close(self) -> None:
        """Let the clerk go."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _ask(self, verb: str, href: str, content: bytes = b"", *, allowed: tuple[int, ...]) -> httpx.Response:
        headers = {"PUT": _VCARD, "PROPFIND": {"Depth": "1"}}.get(verb, {})
        answer = self._http.request(verb, self._server.base_url + quote(href), content=content, headers=headers)
        if answer.status_code not in allowed:
            raise ReceiverError(f"radicale answered {answer.status_code} to {verb} {href}: {answer.text[:200]}")
        return answer


def _lines(content: bytes) -> list[str]:
    """Long ones, which a card spreads over several, joined."""
    return content.decode().replace("\r\n ", "").rstrip("\r\n").split("\r\n")


def _escaped(text: str) -> str:
    """As a card has it. Of a text with a bare comma Radicale keeps only what stands before it, without a word."""
    return re.sub(r"[\\,;]", r"\\\g<0>", text).replace("\n", "\\n")


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", lambda found: "\n" if found[1] in "nN" else found[1], text)


def _answers(log: Path) -> Iterator[tuple[str, Answered]]:
    """Each request has a thread of its own, which is named in every line."""
    logins: dict[str, str] = {}
    for line in log.read_text(errors="replace").splitlines():
        found = re.match(r"\[[^]]*\] \[([^]]*)\] \[\w+\] (.*)", line)
        if found is None:
            continue
        thread, words = found.groups()
        if login := re.match(r"Successful login: '([^']*)'", words):
            logins[thread] = login[1]
        elif answer := re.match(r"(\w+) response status for '([^']*)'.* in [\d.]+ seconds.*: (\d{3}) ", words):
            yield answer[2], Answered(logins.pop(thread, ""), answer[1], int(answer[3]))
