"""The mails that may be sent: named templates with a few slots, and nothing else in a mail comes from a caller.

1. A template is immutable: to change one letter is to add a template of a new name. What was approved under a name, and
   what a lost mail is recognised by, is this text.
2. A slot takes one line of visible text, so nothing that is filled in can add a header, a paragraph or a hidden part.
"""

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from string import Template as Text
from typing import Any

from ledger.errors import Refused
from ledger.fingerprint import check_text, visible


@dataclass(frozen=True)
class Slot:
    """What may be filled in at one place."""

    longest: int
    fits: Callable[[str], bool]
    says: str  # what it wants, for whoever has to correct it


@dataclass(frozen=True)
class Template:
    """One mail: its subject, its text, and its slots by name."""

    subject: str
    body: str
    slots: Mapping[str, Slot]


@dataclass(frozen=True)
class Rendered:
    """What a person will read."""

    subject: str
    body: str  # with single line ends, and one at its end

    @property
    def body_sha256(self) -> str:
        """The digest by which the text is frozen and recognised."""
        return digest_of(self.body)


def digest_of(text: str) -> str:
    """SHA-256, 64 hex digits, of a mail's text, however its line ends came through."""
    return hashlib.sha256(_one_line_end(text).encode("utf-8", "surrogatepass")).hexdigest()


def _one_line_end(text: str) -> str:
    return text.replace("\r\n", "\n").rstrip("\n") + "\n"


def _is_date(text: str) -> bool:
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def _is_reference(text: str) -> bool:
    return text.isascii() and all(c.isalnum() or c in "._/#-" for c in text)


def _is_amount(text: str) -> bool:
    return re.fullmatch(r"[0-9]{1,16}(\.[0-9]{1,3})? [A-Z]{3}", text) is not None


def _is_record(text: str) -> bool:
    return re.fullmatch(r"[a-z][a-z._]{0,59},[0-9]{1,18}", text) is not None


def _is_name(text: str) -> bool:
    return not any(c in ':/@<>\\"' for c in text)  # no address and no link of somebody else's choosing


_NAME = Slot(80, _is_name, 'a name, without any of : / @ < > \\ "')
_REFERENCE = Slot(40, _is_reference, "a reference of letters, digits and . _ / # -")
_ORDER = Slot(80, _is_reference, "an order's number of letters, digits and . _ / # -")
_AMOUNT = Slot(40, _is_amount, "an amount with its currency, like 15.00 EUR")
_RECORD = Slot(80, _is_record, "a record, like account.invoice,12")
_DATE = Slot(10, _is_date, "a date as YYYY-MM-DD")

TEMPLATES: Mapping[str, Template] = {
    "order-confirmation-1": Template(
        subject="Your order $order is confirmed",
        body="""\
Dear $customer,

thank you for your order. We confirm it under the number $order.

Planned delivery: $delivery_date

Kind regards
$company

This mail was written by a machine. Please answer it if something is wrong.
""",
        slots={"customer": _NAME, "order": _REFERENCE, "delivery_date": _DATE, "company": _NAME},
    ),
    "order-invoiced-1": Template(
        subject="Your order $order",
        body="""\
Dear customer $customer,

thank you for your order $order. We have taken it with a sum of $total, without tax, and prepared its invoice; our
reference for it is $invoice.

This mail was written by a machine. Please answer it if something is wrong.
""",
        slots={"customer": _REFERENCE, "order": _ORDER, "total": _AMOUNT, "invoice": _RECORD},
    ),
    "delivery-date-1": Template(
        subject="Your order $order: delivery on $delivery_date",
        body="""\
Dear $customer,

the delivery of your order $order was planned for $planned_before. It is now planned for $delivery_date.

Kind regards
$company

This mail was written by a machine. Please answer it if the new date does not suit you.
""",
        slots={
            "customer": _NAME,
            "order": _REFERENCE,
            "planned_before": _DATE,
            "delivery_date": _DATE,
            "company": _NAME,
        },
    ),
}


def check_fields(template: object, fields: object) -> None:
    """Refuses an unknown template, and anything but exactly its slots, each filled with fitting visible text."""
    if not isinstance(template, str) or template not in TEMPLATES:
        raise Refused("template_unknown", f"name one of {', '.join(sorted(TEMPLATES))}", field="template")
    slots = TEMPLATES[template].slots
    if not isinstance(fields, dict):
        raise Refused("fields_malformed", f"give an object with {', '.join(slots)}", field="fields")
    for name in fields:
        if name not in slots:
            where = f"fields.{visible(str(name)[:40])}"
            raise Refused("field_unknown", f"{template} takes {', '.join(slots)}", field=where)
    for name, slot in slots.items():
        where = f"fields.{name}"
        if name not in fields:
            raise Refused("field_missing", f"give {slot.says}", field=where)
        check_text(fields[name], where, slot.longest)
        text: str = fields[name]
        if text != text.strip() or "  " in text:
            raise Refused("field_spaces", "remove spaces at either end and double ones", field=where)
        if "=?" in text:  # mail programs would show something else than what was approved
            raise Refused("field_encoded", "remove =? (it begins an encoded word)", field=where)
        if not slot.fits(text):
            raise Refused("field_malformed", f"give {slot.says}", field=where)


def render(template: str, fields: Mapping[str, Any]) -> Rendered:
    """Subject and text with the slots filled in. KeyError where the template, or a field of it, is not there."""
    found = TEMPLATES[template]
    filled = {name: fields[name] for name in found.slots}
    return Rendered(Text(found.subject).substitute(filled), _one_line_end(Text(found.body).substitute(filled)))
