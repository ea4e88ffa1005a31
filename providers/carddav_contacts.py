"""Contacts in a CardDAV address book: one new card under a name of its own, or one change of a card that stands.

1. The name of the card in the book is the target: a new card is put there only if nothing stands there, a changed one only
   on the very version that people approved.
2. The whole card is frozen at the first claim, our marker in it: effect and marker are one write.
3. A tag is a hash of the content and comes back with it, so that an unchanged card is no proof: nothing is repeated on it.
4. What answers and cards mean is in carddav_sightings.py, the book on the wire in carddav_book.py, a card as text in
   carddav_vcard.py, conditions in http_conditional.py.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from hashlib import sha256
from typing import Any

from ledger.contract import Contract, LookupTerms, Source
from ledger.errors import Broken, Refused
from ledger.fingerprint import canonical_bytes, check_text
from ledger.model import Operation, SeenEffect, Standing
from providers import http_conditional as http
from providers.carddav_book import Book, bears, path_of, read_book, read_owner
from providers.carddav_sightings import (
    CREATE,
    UPDATE,
    Wanted,
    classify,
    read_preflight,
    read_sighting,
    settle,
    version_moved,
    wanted_by,
)
from providers.carddav_vcard import MARKER, Card, NotACard, NotEditable, new_card
from providers.port import AfterWrite, Classified, Credential, Look, Preflight, Request, SendGuard

API_VERSION = "RFC 6352"
METHOD = "PUT"
VCARD = "text/vcard; charset=utf-8"

_RFC_CARDDAV, _RFC_HTTP = "https://www.rfc-editor.org/rfc/rfc6352", "https://www.rfc-editor.org/rfc/rfc9110"
_READ_ON, _RADICALE = "2026-11-30", "Radicale 3.9.0"


def _documented(term: str, text: str, url: str) -> Source:
    return Source(term=term, text=text, url=url, read_on=_READ_ON)


def _measured(term: str, text: str) -> Source:
    return Source(term=term, text=text, read_on=_READ_ON, measured_on=_RADICALE)


def _assumed(term: str, reason: str) -> Source:
    return Source(term=term, text=reason, read_on=_READ_ON, assumption=True)


def _contract(action: str) -> Contract:
    write = "If-None-Match: *" if action == CREATE else "If-Match with the card's tag"
    return Contract(
        name=action,
        api_version=API_VERSION,
        lookup=LookupTerms(marker=MARKER, settling=10, complete=True, marker_editable=True),
        processing=120,
        conditional_write=True,
        versions_return=True,
        sources=(
            _documented("api_version", "the protocol has no versions; new cards are vCard 3.0, others stay 3.0 or 4.0",
                        _RFC_CARDDAV),
            _documented("conditional_write", f"a PUT with {write} is not performed unless that holds",
                        f"{_RFC_HTTP}#section-13.1"),
            _measured("versions_return", "the tag is the SHA-256 of the stored card: the same content has the same tag again, "
                      "after an undo or a deletion too, so that a write repeated on it may be applied a second time"),
            _documented("lookup.marker", "a server keeps properties of one's own on a card",
                        f"{_RFC_CARDDAV}#section-6.3.2.2"),
            _assumed("lookup.settling", "Radicale shows a card the moment it has answered, and lets a read wait for a write; "
                     "ten seconds are for servers with more than one machine"),
            _measured("lookup.complete", "the card is read by its name; the server searches the whole book for the marker"),
            _measured("lookup.marker_editable", "whoever may write to the book can take the marker off a card"),
            _assumed("processing", "no bound is published; Radicale gives a connection 30 seconds, a gateway in front of it "
                     "usually gives up after 60, and 120 is twice that"),
        ),
    )  # fmt: skip


RESOLUTION = """\
happened: the receipt BOOK/CARD.vcf#OPERATION of this operation, as the operation shows it. The card is read again and must \
bear our marker, or say what was asked. Where it was changed since, or moved, the receipt stays the same: bring the server's \
own history of the card (backup, version control of its storage folder, its log of PUT requests) with the version that has \
the marker.
did_not_happen: the server's log of PUT requests for this card shows none of ours that was answered with 201 or 204, from \
the first attempt until nothing can be under way any more. That the card has no marker proves nothing: a clerk's program may \
have dropped it, and an undo brings back the old version and its old tag.
undetermined: there is no log and no history, and who was asked for them; what stands on the card now, and who says so."""

_ARGUMENTS = {
    CREATE: {"full_name": 200, "email": 254, "phone": 40, "note": 1000},
    UPDATE: {"email": 254, "phone": 40, "note": 1000},
}
_TARGET = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,79}")
_ACCOUNT = re.compile(r"(?=.{1,76}\Z)[A-Za-z0-9_@~-][A-Za-z0-9._@~-]*(/[A-Za-z0-9_@~-][A-Za-z0-9._@~-]*)*")
_EMAIL = re.compile(
    r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*@([A-Za-z0-9-]{1,63}\.)+[A-Za-z]{2,63}"
)
_PHONE = re.compile(r"\+?[0-9(][0-9 ()./-]*[0-9]")


def check_target(target: str) -> None:
    """Refuses everything but the name of a card in the book, without its folder and without .vcf."""
    if not _TARGET.fullmatch(target):
        message = (
            "name the card by 1 to 80 of A-Z, a-z, 0-9, . _ and -, without folder and .vcf, and not with a dot first"
        )
        raise Refused("target_malformed", message, field="target")


def pure_target(target: str) -> str | None:
    """The target itself: a card has one name in its book."""
    check_target(target)
    return target


def check_arguments(action: str, arguments: dict[str, Any]) -> None:
    """Refuses everything but the texts that the action takes, each well-formed and visible to its last character."""
    known = _ARGUMENTS[action]
    for name in arguments:
        if name not in known:
            raise Refused("argument_unknown", f"{action} takes {', '.join(known)}", field=str(name)[:40])
    if action == CREATE and "full_name" not in arguments:
        raise Refused("argument_missing", "a contact has a name", field="full_name")
    if not arguments:
        raise Refused("argument_missing", "name at least one of email, phone and note", field="arguments")
    for name, value in arguments.items():
        check_text(value, name, known[name])
        if value != value.strip():
            raise Refused("text_padded", "remove the space before or behind the text", field=name)
        if "\ufffe" in value or "\uffff" in value:
            # Not to be had in XML, in which the server must be able to show the card.
            raise Refused("text_hidden", "remove characters that are none", field=name)
    if "email" in arguments and not _EMAIL.fullmatch(arguments["email"]):
        raise Refused("email_malformed", "give one address, like name@example.com, in ASCII", field="email")
    if "phone" in arguments and not (_PHONE.fullmatch(arguments["phone"]) and 3 <= _digits(arguments["phone"]) <= 15):
        raise Refused("phone_malformed", "give one number of 3 to 15 digits, like +49 30 123456", field="phone")


def equivalence_key(action: str, target: str, arguments: Mapping[str, Any]) -> str:
    """Two creations under one name, or two changes of one card to the same, are the same thing."""
    asked = "" if action == CREATE else f":{sha256(canonical_bytes(dict(arguments))).hexdigest()}"
    return f"{action}:{target}{asked}"


def build_request(operation: Operation, basis: Mapping[str, Any]) -> Request:
    """The one request of this operation: the whole card, and the version that it may replace."""
    _check_account(operation.account)
    _check_version(operation)
    try:
        card = _card_of(operation, basis)
    except (NotACard, NotEditable) as error:
        raise Broken(f"the card that was read cannot be changed: {error}") from error
    path = path_of(operation.account, operation.target)
    parameters = {"path": path, "version": operation.expected_version, "card": card.text}
    return Request(METHOD, parameters, operation.idempotency_key, operation.account, API_VERSION)


class CardDavContacts:
    """The adapter, once for each action. Holds no connection and no secret between calls; safe under concurrency."""

    action: str
    contract: Contract
    provider = "carddav"
    resolution = RESOLUTION

    def __init__(self, *, read_deadline_seconds: float = 20.0) -> None:
        """Where the book is, is in the credential."""
        self._read_deadline = read_deadline_seconds

    # The pure part of the adapter stands above, as functions; here they get their place in the port.
    check_target = staticmethod(check_target)
    pure_target = staticmethod(pure_target)
    build_request = staticmethod(build_request)

    def check_arguments(self, arguments: dict[str, Any]) -> None:
        """See `check_arguments` above."""
        check_arguments(self.action, arguments)

    def equivalence_key(self, target: str, arguments: dict[str, Any]) -> str:
        """See `equivalence_key` above."""
        return equivalence_key(self.action, target, arguments)

    def marker_of(self, operation: Operation) -> str:
        """The operation id as text: what the card carries in a property of its own."""
        return str(operation.operation_id)

    def link(self, operation: Operation) -> str:
        """None: CardDAV has no pages for people."""
        return ""

    async def preflight(self, credential: Credential, target: str, arguments: dict[str, Any], marker: str) -> Preflight:
        """Read the card, and whether our marker stands anywhere; `unfit` is a word, its sentence is facts["unfit"]."""
        uid = marker if self.action == CREATE else ""
        wanted = Wanted(self.action, credential.account, target, arguments, marker, uid=uid)
        return read_preflight(await self._read(credential, wanted), wanted)

    async def send(
        self,
        credential: Credential,
        operation: Operation,
        request: Request,
        contract: Contract,
        guard: SendGuard,
        after_write: AfterWrite,
    ) -> Classified:
        """Send the frozen card once. Raises only `Broken`, before the first byte, and the caller's cancellation."""
        _check_frozen(credential, operation, request)
        wanted, parameters = wanted_by(operation), request.parameters
        deadline = http.deadline_in(contract.timing.call_deadline)
        async with http.Line(credential, deadline=deadline, guard=guard, after_write=after_write) as line:
            card = parameters["card"].encode()
            answer = await line.write(parameters["path"], parameters["version"], card, VCARD)
        seen = classify(answer, wanted)
        if not answer.whole or answer.status not in http.UNSETTLED:
            return seen
        async with http.Line(credential, deadline=deadline) as line:
            return settle(seen, wanted, await read_book(line, wanted.account, wanted.target, wanted.marker))

    async def look(self, credential: Credential, operation: Operation, since: datetime) -> Look:
        """Read the card and search the book for our marker. Cards bear no time that could be compared with `since`."""
        wanted = wanted_by(operation)
        book = await self._read(credential, wanted)
        return Look(book.complete, read_sighting(book, wanted), version_moved(book, wanted), detail=book.detail)

    async def read_receipt(self, credential: Credential, operation: Operation, receipt: str) -> SeenEffect | None:
        """Our effect as it stands now. Any receipt but the one it can have is another effect, whatever stands there.

        None where the card shows nothing of it (any more), too: that is no proof, and wants more people.
        """
        wanted = wanted_by(operation)
        if receipt != wanted.receipt:
            return SeenEffect(receipt, Standing.GOOD, marked=False, matching=False)
        book = await self._read(credential, wanted)
        return next((e for e in read_sighting(book, wanted) if e.receipt == receipt), None)

    async def whose(self, credential: Credential) -> Credential | None:
        """The address book as the server names it, if it knows the login and lets it in; the protocol has no modes."""
        _check_account(credential.account)
        async with http.Line(credential, deadline=http.deadline_in(self._read_deadline)) as line:
            account = await read_owner(line, credential.account)
        return None if account is None else replace(credential, account=account)

    async def _read(self, credential: Credential, wanted: Wanted) -> Book:
        _check_account(wanted.account)
        async with http.Line(credential, deadline=http.deadline_in(self._read_deadline)) as line:
            return await read_book(line, wanted.account, wanted.target, wanted.marker)


class CardDavCreate(CardDavContacts):
    """A new contact under a name that nothing stands under."""

    action, contract = CREATE, _contract(CREATE)


class CardDavUpdate(CardDavContacts):
    """A change of a contact that stands, on the version that was read."""

    action, contract = UPDATE, _contract(UPDATE)


def _card_of(operation: Operation, basis: Mapping[str, Any]) -> Card:
    """The whole card that this operation leaves, with everything else on it as it was read."""
    marker, text = str(operation.operation_id), basis.get("card")
    read = Card.parse(text) if isinstance(text, str) else None
    if read is not None and bears(read, marker):
        return read  # it is done: the core settles on that, and never sends this
    if operation.action == CREATE:
        return new_card(marker, operation.arguments)
    if read is None or basis.get("version") != operation.expected_version:
        raise Broken("there is no card that was read at the version of the operation: nothing to change")
    return read.edited(operation.arguments, marker)


def _check_frozen(credential: Credential, operation: Operation, request: Request) -> None:
    """Raise `Broken` unless the frozen request is the operation's and the credential is for its book."""
    _check_account(operation.account)
    _check_version(operation)
    parameters = request.parameters
    told = (
        request.operation,
        request.idempotency_key,
        (request.account, credential.account, credential.livemode),
        (parameters.get("path"), parameters.get("version")),
    )
    wanted = (
        METHOD,
        operation.idempotency_key,
        (operation.account, operation.account, operation.livemode),
        (path_of(operation.account, operation.target), operation.expected_version),
    )
    try:
        marked = str(operation.operation_id) in Card.parse(str(parameters.get("card"))).markers
    except NotACard:
        marked = False
    if told != wanted or not marked:
        raise Broken("the frozen request or the credential is not the one of this operation: nothing is sent")


def _check_version(operation: Operation) -> None:
    """Raise `Broken` unless the operation has the real version that its action needs."""
    http.condition(operation.expected_version)
    if (operation.expected_version == http.ABSENT) != (operation.action == CREATE):
        raise Broken("a contact is created where nothing stands, and updated where something does")


def _check_account(account: str) -> None:
    if not _ACCOUNT.fullmatch(account):
        raise Broken("the account is no path of an address book, like crm/contacts, of at most 76 characters")


def _digits(text: str) -> int:
    return sum(c.isdigit() for c in text)
