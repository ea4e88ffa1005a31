"""What an address book and its answers mean for one operation: to the write, in a look, and before anything is sent. Pure.

1. Our marker on the card proves our write, whatever was changed since: they came together, in one PUT.
2. A card that was moved is the same card by its UID. Any other card with our marker is a copy, and a person must see it.
3. Without the marker, a card that says what was asked could be ours with its marker taken off: a look-alike.
4. What cannot be read is not complete, never unfit: unfit is a statement about the card and ends a proposal.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from ledger.model import Operation, Outcome, SeenEffect, Standing
from providers import http_conditional as http
from providers.carddav_book import Book, bears, path_of, precondition
from providers.carddav_vcard import PROPERTIES, Card, NotACard, NotEditable
from providers.port import Classified, Preflight
from providers.wire import Answer, words

CREATE, UPDATE = "create_contact", "update_contact"
_UNFIT = {
    "contact_exists": "a card stands under this name: a contact is made once, choose another name or update that one",
    "contact_missing": "no card stands under this name in the address book",
    "already_so": "the card says this already",
    "version_missing": "the server shows no strong version of this card: nothing can be conditional on it",
}


@dataclass(frozen=True)
class Wanted:
    """What one operation asks of one card."""

    action: str
    account: str
    target: str
    arguments: Mapping[str, Any]
    marker: str
    version: str | None = None
    uid: str = ""  # of the card it is about; empty where it is not known

    @property
    def path(self) -> str:
        """Where the card stands, under the endpoint."""
        return path_of(self.account, self.target)

    @property
    def receipt(self) -> str:
        """The one receipt that this effect can have, wherever the card is moved to."""
        return f"{self.path}#{self.marker}"


def wanted_by(operation: Operation) -> Wanted:
    """What this operation asks. The UID of a card that it changes is on the card that it was frozen with."""
    marker, uid = str(operation.operation_id), ""
    if operation.action == CREATE:
        uid = marker
    elif operation.frozen_request is not None:
        with suppress(NotACard):
            uid = Card.parse(str(operation.frozen_request["parameters"].get("card"))).uid
    wanted = (operation.action, operation.account, operation.target, operation.arguments)
    return Wanted(*wanted, marker, operation.expected_version, uid)


def classify(answer: Answer, wanted: Wanted) -> Classified:
    """What the answer to the write, or its absence, means; what waits for a reading is unknown until `settle` has it."""
    seen = http.classify(answer, wanted.version or "")
    return _with_receipt(replace(seen, detail=seen.detail | precondition(answer)), wanted)


def settle(seen: Classified, wanted: Wanted, book: Book) -> Classified:
    """What a no for what stands there means, now that the book was read after it."""
    marked = [e for e in read_sighting(book, wanted) if e.marked]
    reading = book.reading if book.complete else replace(book.reading, complete=False)
    matching = len(marked) == 1 and marked[0].ours
    judged = http.settled(seen, wanted.version or "", reading, marked=bool(marked), matching=matching)
    return _with_receipt(judged, wanted)


def read_sighting(book: Book, wanted: Wanted) -> tuple[SeenEffect, ...]:
    """What the book shows of this operation, and of others on the card itself."""
    elsewhere = dict(book.elsewhere)
    effects = []
    if book.card is not None and bears(book.card, wanted.marker):
        effects.append(_seen(wanted.receipt, book.card, wanted, matching=True))
    else:
        moved = [path for path, card in elsewhere.items() if not wanted.uid or card.uid == wanted.uid]
        if len(moved) == 1:
            effects.append(_seen(wanted.receipt, elsewhere.pop(moved[0]), wanted, matching=True, found_at=moved[0]))
        elif book.card is not None and _says_it(book.card, wanted):
            effects.append(_seen(wanted.receipt, book.card, wanted, matching=True))
    for path, card in sorted(elsewhere.items()):
        effects.append(_seen(f"{path}#{wanted.marker}", card, wanted, matching=False, found_at=path))
    others = book.card.markers if book.card is not None else ()
    for other in dict.fromkeys(others):
        if other != wanted.marker and _is_id(other):
            effects.append(SeenEffect(f"{wanted.path}#{other}", Standing.GOOD, False, False, {"marker": other}))
    return tuple(effects)


def version_moved(book: Book, wanted: Wanted) -> bool | None:
    """Whether the card stands at another version than the write was made for; None where that could not be told."""
    if not book.reading.complete or book.reading.version is None or wanted.version is None:
        return None
    return book.reading.version != wanted.version


def read_preflight(book: Book, wanted: Wanted) -> Preflight:
    """Whether the card can take this, at which version, and what it says now."""
    if not book.complete:
        return Preflight(complete=False, detail=book.detail)
    effects = read_sighting(book, wanted)
    # Our own write is no obstacle to itself: the core settles on it, and sends nothing.
    word, field, sentence = ("", "target", "") if any(e.marked for e in effects) else _unfit(book, wanted)
    version = book.reading.version
    facts: dict[str, Any] = {"card": wanted.path, "stands_there": not book.reading.absent}
    if book.card is not None:
        facts["name"] = words(next(iter(book.card.values("FN")), ""))
        facts["now"] = {one: words(_now(book.card, one)) for one in sorted(PROPERTIES) if one in wanted.arguments}
    if word:
        facts["unfit"] = sentence
    ours = [card for card in (book.card, *book.elsewhere.values()) if card is not None and bears(card, wanted.marker)]
    card = next(iter(ours), book.card)
    return Preflight(
        complete=True,
        target=wanted.target,
        unfit=word,
        unfit_field=field,
        version=version,
        basis={"version": version} | ({} if card is None else {"card": card.text}),
        # A look-alike is `contact_exists` or `already_so` here, and says so better.
        effects=tuple(e for e in effects if not e.look_alike),
        markers={e.receipt: e.summary["marker"] for e in effects if e.summary["marker"]},
        facts=facts,
        detail=book.detail,
    )


def _unfit(book: Book, wanted: Wanted) -> tuple[str, str, str]:
    """The word, the field to correct and the sentence; the first reason wins."""
    word, field, sentence = "", "target", ""
    if wanted.action == CREATE:
        word = "" if book.reading.absent else "contact_exists"
    elif book.reading.absent:
        word = "contact_missing"
    elif book.card is None:
        word, sentence = "card_unreadable", book.problem
    elif book.reading.version is None:
        word = "version_missing"
    else:
        try:
            book.card.edited(_texts(wanted), wanted.marker)
        except NotEditable as error:
            word, field, sentence = "property_unclear", error.name, str(error)
        else:
            word = "already_so" if _says_it(book.card, wanted) else ""
    return word, field, sentence or _UNFIT.get(word, "")


def _texts(wanted: Wanted) -> dict[str, str]:
    return {name: value for name, value in wanted.arguments.items() if name in PROPERTIES}


def _says_it(card: Card, wanted: Wanted) -> bool:
    return all(card.says(name, value) for name, value in wanted.arguments.items())


def _now(card: Card, argument: str) -> str | None:
    try:
        return card.current(argument)
    except NotEditable:
        return None


def _seen(receipt: str, card: Card, wanted: Wanted, *, matching: bool, found_at: str = "") -> SeenEffect:
    marked = bears(card, wanted.marker)
    summary = {
        "marker": wanted.marker if marked else "",
        "name": words(next(iter(card.values("FN")), "")),
        "says_what_was_asked": _says_it(card, wanted),
        "found_at": words(found_at),
    }
    return SeenEffect(receipt, Standing.GOOD, marked, matching, summary)


def _with_receipt(seen: Classified, wanted: Wanted) -> Classified:
    if seen.outcome is not Outcome.APPLIED:
        return seen
    return replace(seen, receipt=wanted.receipt, standing=Standing.GOOD)


def _is_id(text: str) -> bool:
    try:
        return str(UUID(text)) == text
    except ValueError:
        return False
