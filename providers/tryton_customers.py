"""How to reach a customer, at Tryton 8.2: e-mail, phone, and a note, which are contact mechanisms of a party.

1. What exists is changed and what does not is made, in one write of the party that is conditional on its version and on that
   of every mechanism changed. Any write of a party moves its version, and so does one that concerns its mechanisms only.
2. E-mail and phone are the first active mechanism of that type, which Tryton itself calls the party's. Tryton has no field
   for a note on a party: ours is a mechanism of type "other" that is named Note.
3. Our mark stands in the comment of every mechanism written: a party has no text of its own to carry it.
4. Parties belong to no company of a database: every account in it sees, and may change, the same ones.
5. What versions and marks are is in tryton_versions.py, what the log proves in tryton_witness.py.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ledger.errors import Broken, Refused
from ledger.fingerprint import check_text
from ledger.model import Operation, SeenEffect, Standing
from providers.port import Credential, Preflight, Request
from providers.tryton_rpc import Rows, TrytonSession
from providers.tryton_versions import (
    ConditionalWrites,
    check_argument_names,
    contract_of,
    freeze,
    has_mark,
    ids_of,
    mark_of,
    marks_in,
    only_id,
    read_version,
    receipt_of,
    version_text,
    with_mark,
)
from providers.tryton_witness import Records, Touched, micros_at
from providers.wire import words

ACTION = "update_customer"
PARTY, CONTACT = "party.party", "party.contact_mechanism"
METHOD = f"model.{PARTY}.write"
CONTRACT = contract_of(ACTION, "a line [effect OPERATION_ID] in the comment of every contact mechanism written")
KINDS = ("email", "phone", "note")
NOTE = "Note"  # the name of the mechanism that holds a note

_FIELDS = (
    *("code", "name", "active", "create_date", "_timestamp"),
    *(f"contact_mechanisms.{name}" for name in ("type", "name", "value", "comment", "active")),
    *("contact_mechanisms.create_date", "contact_mechanisms._timestamp"),
)
_PARTY_FIELDS = frozenset({"contact_mechanisms"})
_CONTACT_FIELDS = frozenset({"comment,value"})
_TARGET = re.compile(r"[A-Za-z0-9._/-]{1,40}")
_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_EMAIL = re.compile(rf"{_ATOM}(?:\.{_ATOM})*@(?:{_LABEL}\.)+[A-Za-z][A-Za-z0-9-]{{0,61}}[A-Za-z0-9]")
_PHONE = re.compile(r"\+[1-9][0-9 ()./-]{4,30}[0-9]")
_LONGEST = {"email": 254, "phone": 40, "note": 200}
_WORDS = {
    "customer_missing": "there is no party of this code",
    "customer_ambiguous": "there are several parties of this code",
    "customer_inactive": "the party is deactivated: activate it again before it is changed",
    "already_so": "the party says all of this already",
}


def check_target(target: str) -> None:
    """Refuses everything but what can be the code of a party."""
    if not _TARGET.fullmatch(target):
        raise Refused("target_malformed", "name the customer by its party code", field="target")


def pure_target(target: str) -> str | None:
    """The code itself: it has one spelling."""
    check_target(target)
    return target


def check_arguments(arguments: dict[str, Any]) -> None:
    """Refuses everything but one or more of email, phone and note, each well-formed."""
    check_argument_names(arguments, KINDS)
    if not arguments:
        raise Refused("argument_missing", "name at least one of email, phone and note", field="email")
    for kind in asked_kinds(arguments):
        value = arguments[kind]
        check_text(value, kind, _LONGEST[kind])
        if value != value.strip():
            # Tryton would cut it off in silence.
            raise Refused("text_blank_ends", "leave out the blanks at the beginning and the end", field=kind)
    if "email" in arguments and (not _EMAIL.fullmatch(arguments["email"]) or arguments["email"].index("@") > 64):
        raise Refused("email_malformed", "give one plain address, as name@example.com", field="email")
    if "phone" in arguments and not _PHONE.fullmatch(arguments["phone"]):
        raise Refused(
            "phone_malformed", "give the number with + and its country code, as +32 2 555 12 12", field="phone"
        )


def equivalence_key(target: str, arguments: Mapping[str, Any]) -> str:
    """One open change of a customer at a time, whatever it says: whose a logged write is rests on that."""
    return f"{ACTION}:{target}"


def build_request(operation: Operation, basis: Mapping[str, Any]) -> Request:
    """The one write of this operation, on the condition of every version that it expects."""
    stamps = read_version(operation.expected_version)
    party, contacts = only_id(stamps, PARTY), basis.get("contacts")
    if (basis.get("party"), basis.get("version")) != (party, operation.expected_version) or not isinstance(
        contacts, dict
    ):
        raise Broken("the request rests on another reading than the one at the expected version")
    marker, commands = str(operation.operation_id), []
    for kind in asked_kinds(operation.arguments):
        known, value = contacts.get(kind), operation.arguments[kind]
        if known is None:
            commands.append(_creation(kind, value, marker))
        else:
            commands.append(["write", [known["id"]], {"value": value, "comment": with_mark(known["comment"], marker)}])
    values = {"contact_mechanisms": commands}
    TrytonCustomers.check_values(operation, values)
    return freeze(operation, METHOD, [party], values, basis.get("login"))


@dataclass(frozen=True)
class Contact:
    """One contact mechanism as it stands."""

    id: int
    kind: str  # of KINDS, or empty where it is none of ours
    value: str
    comment: str
    active: bool
    made_at: int | None
    stamp: str

    @property
    def name(self) -> str:
        """What Tryton calls the record."""
        return f"{CONTACT},{self.id}"


@dataclass(frozen=True)
class Party:
    """A party with its contact mechanisms in Tryton's order, read in one transaction of the server."""

    id: int
    code: str
    title: str
    active: bool
    made_at: int | None
    stamp: str
    contacts: tuple[Contact, ...]

    @property
    def name(self) -> str:
        """What Tryton calls the record."""
        return f"{PARTY},{self.id}"

    def first(self, kind: str) -> Contact | None:
        """The mechanism that Tryton itself calls the party's e-mail or phone; of notes, the first."""
        return next((contact for contact in self.contacts if contact.active and contact.kind == kind), None)

    def version(self, arguments: Mapping[str, Any]) -> str | None:
        """The version of everything that this change would touch."""
        touched = [contact for kind in asked_kinds(arguments) if (contact := self.first(kind)) is not None]
        return version_text({self.name: self.stamp} | {contact.name: contact.stamp for contact in touched})

    def says(self, arguments: Mapping[str, Any], stamps: Mapping[str, str] | None = None) -> bool:
        """Whether the party says all of this; of what was there at an expected version, in these very mechanisms."""
        return all(self._says(kind, arguments[kind], stamps or {}) for kind in asked_kinds(arguments))

    def _says(self, kind: str, value: str, stamps: Mapping[str, str]) -> bool:
        of_kind = [contact for contact in self.contacts if contact.active and contact.kind == kind]
        then = [contact for contact in self.contacts if contact.name in stamps and contact.kind == kind]
        return any(_same(kind, contact.value, value) for contact in (then or of_kind if stamps else of_kind[:1]))

    def carries(self, marker: str) -> bool:
        """Whether our mark stands on any of its mechanisms."""
        return any(has_mark(contact.comment, marker) for contact in self.contacts)


def asked_kinds(arguments: Mapping[str, Any]) -> list[str]:
    """What is to be changed, in one order."""
    return [kind for kind in KINDS if kind in arguments]


def read_party(row: Mapping[str, Any]) -> Party | None:
    """A party as `search_read` tells it; None where it has another shape."""
    try:
        contacts = tuple(_read_contact(contact) for contact in row["contact_mechanisms."])
        stamp, code, title, active = row["_timestamp"], row["code"], row["name"] or "", row["active"]
        party = Party(row["id"], code, title, active, micros_at(row["create_date"]), stamp, contacts)
        stamps = {party.name: party.stamp} | {contact.name: contact.stamp for contact in contacts}
        ids = (party.id, *(contact.id for contact in contacts))
        whole = isinstance(code, str) and isinstance(title, str) and type(active) is bool
        whole = whole and all(type(number) is int for number in ids)
        return party if whole and version_text(stamps) is not None else None
    except (KeyError, TypeError, AttributeError, ValueError):
        return None


def judge_parties(listing: Rows, target: str, arguments: Mapping[str, Any], marker: str, login: str) -> Preflight:
    """What the parties of this code mean for the change. Pure."""
    found = [read_party(row) for row in listing.items]
    parties = [party for party in found if party is not None and party.code == target]
    if not listing.complete or None in found:
        return Preflight(complete=False, detail=listing.detail())
    if len(parties) != 1:
        unfit = "customer_ambiguous" if parties else "customer_missing"
        facts = {"customer": words(target), "unfit": _WORDS[unfit]}
        return Preflight(True, target, unfit, facts=facts, detail=listing.detail())
    (party,) = parties
    kinds, version = asked_kinds(arguments), party.version(arguments)
    marked, receipt = party.carries(marker), receipt_of(party.name, marker)
    unfit, unfit_field = "", "target"
    if not party.active:
        unfit = "customer_inactive"
    elif not marked and party.says(arguments):  # what is there already by our own hand is done, not unfit
        unfit, unfit_field = "already_so", kinds[0]
    first = {kind: party.first(kind) for kind in kinds}
    seen = SeenEffect(
        receipt, Standing.GOOD, True, party.says(arguments), {"marker": marker, "customer": words(party.code)}
    )
    return Preflight(
        complete=True,
        target=target,
        unfit=unfit,
        unfit_field=unfit_field,
        version=version,
        basis={
            "party": party.id,
            "version": version,
            "contacts": {kind: {"id": c.id, "comment": c.comment} for kind, c in first.items() if c is not None},
            "login": login,
        },
        effects=(seen,) if marked else (),
        markers={receipt: marker} if marked else {},
        facts=_facts(party, arguments) | ({"unfit": _WORDS[unfit]} if unfit else {}),
        detail=listing.detail(),
    )


RESOLUTION = """\
happened: the receipt party.party,ID#OPERATION_ID, where ID is the party's database id. It is read again: the log of the \
party and of its contact mechanisms must show our user's write as the first one after the expected version, or they must say \
what was asked.
did_not_happen: later than quiet_at: the log of the party and of each mechanism that the expected version names (in Tryton's \
client: View Logs) names somebody else's write first after that version, or no write at all. The comments prove nothing: \
they can be edited.
undetermined: the log was purged or edited, and nobody can say who changed the customer: who was asked, and the answer."""


class TrytonCustomers(ConditionalWrites):
    """The adapter of update_customer."""

    action = ACTION
    contract = CONTRACT
    resolution = RESOLUTION
    header = PARTY
    method = METHOD

    check_arguments = staticmethod(check_arguments)
    check_target = staticmethod(check_target)
    pure_target = staticmethod(pure_target)
    equivalence_key = staticmethod(equivalence_key)
    build_request = staticmethod(build_request)

    async def preflight(self, credential: Credential, target: str, arguments: dict[str, Any], marker: str) -> Preflight:
        """Read the party of this code, deactivated or not, with all its contact mechanisms."""
        session = self._reading(credential)
        listing = await session.rows(PARTY, [["code", "=", target]], _FIELDS, active_test=False)
        return judge_parties(listing, target, arguments, marker, session.place.login)

    async def read_records(self, session: TrytonSession, operation: Operation) -> tuple[Rows, Records | None]:
        """The party that the operation was made for, by its id, and its contact mechanisms."""
        stamps = read_version(operation.expected_version)
        number = only_id(stamps, PARTY)
        listing = await session.rows(PARTY, [["id", "=", number]], _FIELDS, active_test=False)
        parties = [party for row in listing.items if (party := read_party(row)) is not None and party.id == number]
        if not listing.complete or len(parties) != 1:
            return listing, None
        return listing, records_of(parties[0], stamps, operation)

    @staticmethod
    def check_values(operation: Operation, values: Mapping[str, Any]) -> None:
        """Raise `Broken` unless this writes what was asked on exactly the mechanisms of the expected version, marked."""
        marker, kinds = str(operation.operation_id), asked_kinds(operation.arguments)
        commands, written = values.get("contact_mechanisms"), []
        if values.keys() != {"contact_mechanisms"} or not isinstance(commands, list) or len(commands) != len(kinds):
            raise Broken("the frozen request does not write what this operation asks for: nothing is sent")
        for kind, command in zip(kinds, commands, strict=True):
            value = operation.arguments[kind]
            match command:
                case ["write", [int(number)], {"value": told, "comment": comment, **rest}] if (
                    told == value and has_mark(comment, marker) and not rest
                ):
                    written.append(number)
                case _ if command == _creation(kind, value, marker):
                    pass
                case _:
                    raise Broken("the frozen request does not write what this operation asks for: nothing is sent")
        if sorted(written) != ids_of(read_version(operation.expected_version), CONTACT):
            raise Broken("the frozen request writes records without a version: nothing is sent")


def records_of(party: Party, stamps: Mapping[str, str], operation: Operation) -> Records:
    """The party as the operation's write would have left it, and as it stands. Pure.

    A mechanism that is gone has no version any more; one that the write would have made had none before.
    """
    marker, there = str(operation.operation_id), {contact.name: contact for contact in party.contacts}
    touched = [Touched(party.name, stamps[party.name], party.stamp, party.made_at, _PARTY_FIELDS)]
    for name in stamps:
        contact = there.get(name)
        if contact is not None:
            marked = has_mark(contact.comment, marker)
            touched.append(Touched(name, stamps[name], contact.stamp, contact.made_at, _CONTACT_FIELDS, marked))
        elif name != party.name:
            touched.append(Touched(name, stamps[name], None, None, _CONTACT_FIELDS))
    marks = [mark for contact in party.contacts for mark in marks_in(contact.comment)]
    return Records(
        touched=tuple(touched),
        version=party.version(operation.arguments),
        fits=party.code == operation.target,
        as_asked=party.says(operation.arguments, stamps),
        marked=party.carries(marker),
        summary={
            "marker": marker if party.carries(marker) else words(marks[-1]) if marks else None,
            "customer": words(party.code),
        },
    )


def _creation(kind: str, value: str, marker: str) -> list[Any]:
    """What makes a mechanism that is not there."""
    of = {"type": "other", "name": NOTE} if kind == "note" else {"type": kind}
    return ["create", [{**of, "value": value, "comment": mark_of(marker)}]]


def _read_contact(contact: Mapping[str, Any]) -> Contact:
    kind = contact["type"]
    if kind == "other":
        kind = "note" if contact["name"] == NOTE else ""
    texts = (contact["value"] or "", contact["comment"] or "")
    if type(contact["active"]) is not bool or not all(isinstance(text, str) for text in texts):
        raise ValueError("a contact mechanism of another shape")
    made_at, stamp = micros_at(contact["create_date"]), contact["_timestamp"]
    return Contact(contact["id"], kind if kind in KINDS else "", *texts, contact["active"], made_at, stamp)


def _same(kind: str, one: str, other: str) -> bool:
    """Whether Tryton, which may rewrite what it is given, would take the one for the other."""
    if kind == "email":
        (name, _, domain), (other_name, _, other_domain) = one.rpartition("@"), other.rpartition("@")
        return (name, domain.lower()) == (other_name, other_domain.lower())
    if kind == "phone":
        return re.sub(r"[^0-9+]", "", one) == re.sub(r"[^0-9+]", "", other)
    return one == other


def _facts(party: Party, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What an approver should know, as the server tells it: of each thing asked for, what stands there now."""
    facts: dict[str, Any] = {"customer": words(party.code), "name": words(party.title)}
    for kind in asked_kinds(arguments):
        now = party.first(kind)
        others = sum(contact.active and contact.kind == kind for contact in party.contacts) - (now is not None)
        facts[kind] = {"now": None if now is None else words(now.value), "asked": arguments[kind], "others": others}
    return facts
