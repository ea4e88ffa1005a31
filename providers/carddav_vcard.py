"""A contact card (vCard 3.0 and 4.0) as text that is changed in place. Pure.

1. A line that is not ours to change stays as it was served, byte for byte, folded or not.
2. Everything written is escaped: no value can become a property. Everything read is unescaped.
3. A card that we do not understand to its last line is `NotACard`; a property that we could not change without guessing is
   `NotEditable`, and says which.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

MARKER = "X-EFFECT-OPERATION"
MOST_MARKERS = 20
MOST_TEXT = 2 * 1024 * 1024  # characters; a card is kept with the operation that changes it
PROPERTIES = {"email": "EMAIL", "phone": "TEL", "note": "NOTE"}

_HEAD = re.compile(r'(?:([A-Za-z0-9-]+)\.)?([A-Za-z0-9_-]+)((?:;(?:[^";:]|"[^"]*")*)*):')
_FOLD = 75  # octets, the line's end not counted


class NotACard(Exception):
    """These characters are not one whole card of a version that we can read."""


class NotEditable(Exception):
    """A property cannot be changed without guessing; `name` is the argument's."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(why)
        self.name = name


@dataclass(frozen=True)
class Line:
    """One property: as it stands in the text, and what it says."""

    raw: str  # with its folds and its end
    name: str  # upper case, without the group; empty for an empty line
    head: str = ""  # group, name and parameters, as they stand
    value: str = ""  # unfolded, still escaped

    @property
    def parameters(self) -> str:
        """Everything from the first semicolon on, in upper case."""
        return self.head.upper().partition(";")[2]

    @property
    def preferred(self) -> bool:
        """Whether the card says that this one comes first among its kind."""
        return re.search(r"\bPREF\b(?!=)|\bPREF=1\b", self.parameters) is not None


@dataclass(frozen=True)
class Card:
    """One card. Equal texts are equal cards."""

    lines: tuple[Line, ...]

    @classmethod
    def parse(cls, text: str) -> "Card":
        """The card that this text is, to its last line. `NotACard` otherwise."""
        if "\0" in text or len(text) > MOST_TEXT:
            raise NotACard("the card is too long or holds characters that cannot be kept")
        lines = tuple(_line(raw) for raw in re.findall(r"[^\n]+\n?(?:[ \t][^\n]*(?:\n|$))*|\n", text))
        named = [line for line in lines if line.name]
        marks = [line.value.strip().upper() for line in named if line.name in ("BEGIN", "END")]
        if marks != ["VCARD", "VCARD"] or (named[0].name, named[-1].name) != ("BEGIN", "END"):
            raise NotACard("this is not one whole card")
        versions = [line.value.strip() for line in named if line.name == "VERSION"]
        if versions not in (["3.0"], ["4.0"]):
            raise NotACard("the card is of another version than 3.0 and 4.0")
        return cls(lines)

    @property
    def text(self) -> str:
        """As it is served and sent."""
        return "".join(line.raw for line in self.lines)

    @cached_property
    def markers(self) -> tuple[str, ...]:
        """The operations that wrote to this card, oldest first, as far as they are still named on it."""
        return tuple(self.values(MARKER))

    @property
    def uid(self) -> str:
        """Its name within its book, which stays when it is moved; empty if it has none."""
        return next(iter(self.values("UID")), "")

    def values(self, name: str) -> list[str]:
        """The texts of a property, without parameters."""
        return [unescaped(line.value) for line in self.lines if line.name == name]

    def current(self, argument: str) -> str | None:
        """What stands where this argument would be written, or None. `NotEditable` where that place is not clear."""
        line = self._place(argument)
        return None if line is None else unescaped(line.value)

    def says(self, argument: str, value: str) -> bool:
        """Whether the card says just this in the place of the argument, or anywhere, if no place is clear."""
        if argument == "full_name":
            return value in self.values("FN")
        try:
            there = self.current(argument)
        except NotEditable:
            return any(_same(argument, value, one) for one in self.values(PROPERTIES[argument]))
        return there is not None and _same(argument, value, there)

    def edited(self, values: Mapping[str, str], operation_id: str) -> "Card":
        """This card with these properties and our marker as its newest. `NotEditable` where it is not clear what to change."""
        lines = list(self.lines)
        added = []
        for argument, value in sorted(values.items()):
            place = self._place(argument)
            head = PROPERTIES[argument] if place is None else place.head
            line = _written(head, _value(argument, value, uri="VALUE=URI" in head.upper()))
            if place is None:
                added.append(line)
            else:
                lines[next(n for n, one in enumerate(lines) if one is place)] = line
        older = [line for line in lines if line.name == MARKER]
        dropped = {id(line) for line in older[: max(len(older) - MOST_MARKERS + 1, 0)]}
        end = max(n for n, line in enumerate(lines) if line.name == "END")
        lines[end:end] = [*added, _written(MARKER, escaped(operation_id))]
        return Card(tuple(line for line in lines if id(line) not in dropped))

    def _place(self, argument: str) -> Line | None:
        """The one line that this argument is about: the only one of its kind, or the preferred one."""
        found = [line for line in self.lines if line.name == PROPERTIES[argument]]
        if len(found) > 1:
            preferred = [line for line in found if line.preferred]
            if len(preferred) != 1:
                raise NotEditable(
                    argument, f"the card has {len(found)} of this kind, and none of them is the preferred one"
                )
            found = preferred
        if not found:
            return None
        if re.search(r"\bENCODING=|\bCHARSET=|\bQUOTED-PRINTABLE\b", found[0].parameters):
            raise NotEditable(argument, "the card has this in an encoding that we do not write")
        if "VALUE=URI" in found[0].parameters and argument != "phone":
            raise NotEditable(argument, "the card has an address there, and no text")
        return found[0]


def new_card(operation_id: str, arguments: Mapping[str, str]) -> Card:
    """The card of a new contact. Its UID is the operation's id: a book takes a UID once, and clients leave it alone."""
    name = escaped(arguments["full_name"])
    heads = [("VERSION", "3.0"), ("UID", escaped(operation_id)), ("FN", name), ("N", f"{name};;;;")]
    heads += [(PROPERTIES[one], _value(one, arguments[one])) for one in sorted(PROPERTIES) if one in arguments]
    lines = [("BEGIN", "VCARD"), *heads, (MARKER, escaped(operation_id)), ("END", "VCARD")]
    return Card(tuple(_written(head, value) for head, value in lines))


def escaped(text: str) -> str:
    """As a value has it."""
    return re.sub(r"[\\,;]", r"\\\g<0>", text).replace("\r\n", "\\n").replace("\n", "\\n").replace("\r", "\\n")


def unescaped(value: str) -> str:
    """What a value says."""
    return re.sub(r"\\(.)", lambda found: "\n" if found[1] in "nN" else found[1], value)


def _line(raw: str) -> Line:
    whole = re.sub(r"\r?\n[ \t]", "", raw).rstrip("\r\n")
    if not whole.strip():
        return Line(raw, "")
    found = _HEAD.match(whole)
    if found is None:
        raise NotACard("a line of the card is no property")
    return Line(raw, found[2].upper(), found[0][:-1], whole[found.end() :])


def _written(head: str, value: str) -> Line:
    """A property folded so that no line is longer than 75 octets and no character is split."""
    rows, row, length = [], "", 0
    for character in f"{head}:{value}":
        width = len(character.encode())
        if length + width > _FOLD:
            rows.append(row)
            row, length = " ", 1
        row, length = row + character, length + width
    raw = "\r\n".join([*rows, row]) + "\r\n"
    name = head.partition(";")[0].rpartition(".")[2].upper()
    return Line(raw, name, head, value)


def _value(argument: str, value: str, *, uri: bool = False) -> str:
    if argument == "phone" and uri:
        return "tel:" + re.sub(r"[ /]+", "-", value)
    return escaped(value)


def _same(argument: str, asked: str, there: str) -> bool:
    """Telephone numbers are the same in any spelling, everything else letter by letter."""
    if argument != "phone":
        return asked == there
    return _dialled(asked) == _dialled(there)


def _dialled(text: str) -> str:
    return re.sub(r"[^0-9+]", "", text.removeprefix("tel:").partition(";")[0])
