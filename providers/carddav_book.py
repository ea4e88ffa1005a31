"""An address book as a CardDAV server shows it (RFC 6352): one card, every card that bears a marker, and whose book it is.

1. The server's filter only narrows what is sent: every card that came is compared here, letter by letter.
2. A card is read by GET, with the tag of exactly these bytes; the search tells where else our marker stands.
3. What cannot be read to its end is not complete. Nothing is concluded from it.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from providers.carddav_vcard import MARKER, Card, NotACard
from providers.http_conditional import Line, Reading, told
from providers.wire import Answer

_DAV, _CARD = "{DAV:}", "{urn:ietf:params:xml:ns:carddav}"
_XML = {"Content-Type": "application/xml; charset=utf-8"}
_SPACES = 'xmlns:D="DAV:" xmlns:C="urn:ietf:params:xml:ns:carddav"'
# Collation and match type are left at their defaults, which every server must have: they find more than the marker itself.
_SEARCH = f"""<?xml version="1.0" encoding="utf-8"?>
<C:addressbook-query {_SPACES}><D:prop><D:getetag/><C:address-data/></D:prop><C:filter test="anyof">
<C:prop-filter name="{MARKER}"><C:text-match>%s</C:text-match></C:prop-filter>
<C:prop-filter name="UID"><C:text-match>%s</C:text-match></C:prop-filter></C:filter></C:addressbook-query>"""
_WHOSE = f"""<?xml version="1.0" encoding="utf-8"?>
<D:propfind {_SPACES}><D:prop><D:resourcetype/><D:current-user-principal/></D:prop></D:propfind>"""


@dataclass(frozen=True)
class Book:
    """What was read for one card: the card itself, and the other cards that bear the marker that was asked for."""

    reading: Reading  # of the target
    card: Card | None = None  # None where nothing stands, and where what stands is no card that we can read
    problem: str = ""  # why what stands there cannot be read as a card
    elsewhere: dict[str, Card] = field(default_factory=dict)  # path -> card
    complete: bool = False  # both were read to their end
    detail: dict[str, Any] = field(default_factory=dict)


def path_of(account: str, target: str) -> str:
    """Where the card of this name stands, under the endpoint."""
    return f"{account}/{target}.vcf"


def bears(card: Card, marker: str) -> bool:
    """Whether this operation wrote to the card, or made it: the marker line, or the UID, which more clients leave alone."""
    return bool(marker) and (marker in card.markers or card.uid == marker)


async def read_book(line: Line, account: str, target: str, marker: str) -> Book:
    """The card, and with a marker every other card of the book that bears it."""
    reading = await line.read(path_of(account, target))
    if not reading.complete:
        return Book(reading, detail=told(reading.answer) | {"why": "the card could not be read"})
    card, problem = None, ""
    if not reading.absent:
        try:
            card = read_card(reading.body)
        except NotACard as error:
            problem = str(error)
            if not _ends(reading.body):
                return Book(reading, detail=told(reading.answer) | {"why": "what came is no card, or not all of it"})
    if not marker:
        return Book(reading, card, problem, complete=True, detail=told(reading.answer))
    content = (_SEARCH % (escape(marker), escape(marker))).encode()
    answer = await line.ask("REPORT", f"{account}/", _XML | {"Depth": "1"}, content)
    found = read_search(answer, line.endpoint, marker)
    if found is None:
        why = {"why": "the address book could not be searched"}
        return Book(reading, card, problem, detail=told(answer) | why)
    own = found.pop(path_of(account, target), None)
    if (own is not None) != (card is not None and bears(card, marker)):
        # The card changed between the two reads, or this server does not search for what others must search for.
        why = {"why": "the search and the card do not agree"}
        return Book(reading, card, problem, found, detail=told(answer) | why)
    return Book(reading, card, problem, found, True, told(reading.answer) | {"searched": answer.status})


async def read_owner(line: Line, account: str) -> str | None:
    """The path of the address book, as the server says it, if this login is known there and may read it; else None."""
    answer = await line.ask("PROPFIND", f"{account}/", _XML | {"Depth": "0"}, _WHOSE.encode())
    rows = list(rows_of(answer, line.endpoint) or ())
    if len(rows) != 1:
        return None
    path, properties = rows[0]
    kinds = properties.find(f"{_DAV}resourcetype")
    # Radicale takes a card put into a folder for a new address book: only a real one will do.
    if kinds is None or kinds.find(f"{_CARD}addressbook") is None:
        return None
    principal = properties.find(f"{_DAV}current-user-principal")
    if principal is None or principal.find(f"{_DAV}href") is None:
        return None
    return path.rstrip("/")


def read_card(body: bytes) -> Card:
    """The card in the body of an answer. `NotACard` where it is none that we can read."""
    try:
        return Card.parse(body.decode())
    except UnicodeDecodeError as error:
        raise NotACard("the card is not written in UTF-8") from error


def read_search(answer: Answer, endpoint: str, marker: str) -> dict[str, Card] | None:
    """Every card in the answer to a search that really bears the marker, by path; None if one of them cannot be told."""
    rows = rows_of(answer, endpoint)
    if rows is None:
        return None
    found = {}
    for path, properties in rows:
        text = properties.findtext(f"{_CARD}address-data")
        if text is None:
            return None
        try:
            card = Card.parse(text)
        except NotACard:
            if marker in text:
                return None
            continue
        if bears(card, marker):
            found[path] = card
    return found


def rows_of(answer: Answer, endpoint: str) -> list[tuple[str, ElementTree.Element]] | None:
    """Path under the endpoint and properties of every response in a whole multistatus; None unless all of them are told.

    A server that cuts a list short says so in a response of its own (507), which makes it None as well.
    """
    tree = _tree(answer)
    if answer.status != 207 or tree is None or tree.tag != f"{_DAV}multistatus":
        return None
    rows = list(_responses(tree, endpoint))
    return None if any(row is None for row in rows) else [row for row in rows if row is not None]


def precondition(answer: Answer) -> dict[str, str]:
    """The name that the server gives to what it missed, if it is one; for people."""
    tree = _tree(answer)
    if tree is None or tree.tag != f"{_DAV}error" or len(tree) == 0:
        return {}
    name = tree[0].tag.rpartition("}")[2]
    return {"precondition": name} if re.fullmatch(r"[a-z-]{1,60}", name) else {}


def _responses(tree: ElementTree.Element, endpoint: str) -> Iterator[tuple[str, ElementTree.Element] | None]:
    base = urlsplit(endpoint).path.rstrip("/") + "/"
    for response in tree.iter(f"{_DAV}response"):
        told_good = [
            propstat.find(f"{_DAV}prop")
            for propstat in response.iter(f"{_DAV}propstat")
            if " 200" in (propstat.findtext(f"{_DAV}status") or "")
        ]
        path = unquote(urlsplit(response.findtext(f"{_DAV}href") or "").path)
        properties = told_good[0] if len(told_good) == 1 else None
        if properties is None or not path.startswith(base):
            yield None
        else:
            yield path.removeprefix(base), properties


def _tree(answer: Answer) -> ElementTree.Element | None:
    """The XML of a whole body, or None. Without a document type there are no entities, so nothing can grow or reach out."""
    if not answer.whole:
        return None
    try:
        text = answer.body.decode()
        return None if "<!DOCTYPE" in text or "<!ENTITY" in text else ElementTree.fromstring(text)  # noqa: S314
    except (UnicodeDecodeError, ElementTree.ParseError, ValueError):
        return None


def _ends(body: bytes) -> bool:
    """Whether this set out to be a card and came to an end: a page of a gateway, or half a card, tells nothing."""
    text = body.strip().upper()
    return text.startswith(b"BEGIN:VCARD") and text.endswith(b"END:VCARD")
