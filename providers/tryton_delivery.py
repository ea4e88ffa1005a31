"""The delivery date of a purchase order at Tryton 8.2: an order, a date and nothing else.

1. All product lines of the order get the date, in one write that is conditional on the version of the header and of every
   such line, and that adds our mark to the order's comment.
2. Only a draft, a quotation or a confirmed order can take it: later the goods are on their way, and Tryton refuses.
3. What versions and marks are is in tryton_versions.py, what the log proves in tryton_witness.py.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any

from ledger.errors import Broken, Refused
from ledger.model import Operation, SeenEffect, Standing
from providers.port import Credential, Preflight, Request
from providers.tryton_rpc import Rows, Told, TrytonSession, encode
from providers.tryton_versions import (
    MOST_RECORDS,
    ConditionalWrites,
    check_argument_names,
    contract_of,
    freeze,
    has_mark,
    ids_of,
    marks_in,
    only_id,
    read_version,
    receipt_of,
    version_text,
    with_mark,
)
from providers.tryton_witness import Records, Touched, micros_at
from providers.wire import words

ACTION = "change_delivery_date"
ORDER, LINE = "purchase.purchase", "purchase.line"
METHOD = f"model.{ORDER}.write"
CONTRACT = contract_of(ACTION, "a line [effect OPERATION_ID] in the comment of the purchase order")

_FIELDS = (
    *("number", "company", "state", "comment", "create_date", "_timestamp", "party.name", "party.code"),
    *(f"lines.{name}" for name in ("type", "delivery_date", "delivery_date_edit", "create_date", "_timestamp")),
    "lines.product.code",
)
_HEADER_FIELDS = frozenset({"comment,lines"})
_LINE_FIELDS = frozenset({"delivery_date", "delivery_date,delivery_date_edit"})
_OPEN = ("draft", "quotation", "confirmed")
_TARGET = re.compile(r"[A-Za-z0-9._/-]{1,40}")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_MOST_FACTS = 50
_WORDS = {
    "order_missing": "the account's company has no purchase order of this number",
    "order_ambiguous": "the account's company has several purchase orders of this number",
    "order_not_open": "the dates of an order can be changed in draft, quotation or confirmed only, and it is past that",
    "order_empty": "the order has no product lines",
    "order_too_long": f"the order has more than {MOST_RECORDS} product lines",
    "date_in_the_past": "the date is before the server's today: name today or a later day",
    "already_so": "every line of the order has this date already",
}


def check_target(target: str) -> None:
    """Refuses everything but what can be the number of a purchase order."""
    if not _TARGET.fullmatch(target):
        raise Refused("target_malformed", "name a purchase order by its number, as PO-00012", field="target")


def pure_target(target: str) -> str | None:
    """The number itself: it has one spelling."""
    check_target(target)
    return target


def check_arguments(arguments: dict[str, Any]) -> None:
    """Refuses everything but {delivery_date}, a day that exists, in ISO text."""
    check_argument_names(arguments, ("delivery_date",))
    if "delivery_date" not in arguments:
        raise Refused("argument_missing", "name the new delivery date", field="delivery_date")
    if _day(arguments["delivery_date"]) is None:
        raise Refused("date_malformed", "write the date as YYYY-MM-DD, a day that exists", field="delivery_date")


def equivalence_key(target: str, arguments: Mapping[str, Any]) -> str:
    """One open change of an order at a time, whatever the date: whose a logged write is rests on that."""
    return f"{ACTION}:{target}"


def build_request(operation: Operation, basis: Mapping[str, Any]) -> Request:
    """The one write of this operation, on the condition of every version that it expects."""
    stamps = read_version(operation.expected_version)
    order, lines = only_id(stamps, ORDER), ids_of(stamps, LINE)
    edit = basis.get("edit")
    if (basis.get("order"), basis.get("version")) != (order, operation.expected_version) or not isinstance(edit, list):
        raise Broken("the request rests on another reading than the one at the expected version")
    values = {
        "comment": with_mark(basis.get("comment"), str(operation.operation_id)),
        "lines": _commands(lines, [line for line in lines if line in edit], operation.arguments["delivery_date"]),
    }
    return freeze(operation, METHOD, [order], values, basis.get("login"))


@dataclass(frozen=True)
class Line:
    """One product line as it stands."""

    id: int
    product: str
    delivery: str | None
    edit: bool  # without this Tryton takes a date in silence, and drops it
    made_at: int | None
    stamp: str

    @property
    def name(self) -> str:
        """What Tryton calls the record."""
        return f"{LINE},{self.id}"


@dataclass(frozen=True)
class Order:
    """A purchase order with its product lines, read in one transaction of the server."""

    id: int
    number: str
    company: int
    state: str
    comment: str
    supplier: str
    supplier_code: str
    made_at: int | None
    stamp: str
    lines: tuple[Line, ...]

    @property
    def name(self) -> str:
        """What Tryton calls the record."""
        return f"{ORDER},{self.id}"

    @property
    def version(self) -> str | None:
        """The version of everything that a change of its date would touch."""
        return version_text({self.name: self.stamp} | {line.name: line.stamp for line in self.lines})

    def is_due(self, asked: str, ids: list[int] | None = None) -> bool:
        """Whether these lines, or all, have this date; of lines, those that are still there."""
        lines = [line for line in self.lines if ids is None or line.id in ids]
        return bool(lines) and all(line.delivery == asked for line in lines)


def read_order(row: Mapping[str, Any]) -> Order | None:
    """An order as `search_read` tells it, with its product lines; None where it has another shape."""
    try:
        lines = [_read_line(line) for line in row["lines."] if line["type"] == "line"]
        order = Order(
            id=row["id"],
            number=row["number"] or "",
            company=row["company"],
            state=row["state"],
            comment=row["comment"] or "",
            supplier=row["party."]["name"] or "",
            supplier_code=row["party."]["code"] or "",
            made_at=micros_at(row["create_date"]),
            stamp=row["_timestamp"],
            lines=tuple(sorted(lines, key=lambda line: line.id)),
        )
        texts = (order.number, order.state, order.comment, order.supplier, order.supplier_code)
        ids = (order.company, order.id, *(line.id for line in lines))
        whole = all(isinstance(text, str) for text in texts) and all(type(number) is int for number in ids)
        return order if whole and order.version is not None else None
    except (KeyError, TypeError, AttributeError, ValueError):
        return None


def judge_orders(
    listing: Rows, told: Told, company: int, target: str, arguments: Mapping[str, Any], marker: str, login: str
) -> Preflight:
    """What the orders of this number mean for the change. Pure."""
    found = [read_order(row) for row in listing.items]
    orders = [o for o in found if o is not None and (o.number, o.company) == (target, company)]
    today = told.value if type(told.value) is date else None
    if not listing.complete or None in found or today is None:
        return Preflight(complete=False, detail=listing.detail() | {"today": told.detail()})
    if len(orders) != 1:
        unfit = "order_ambiguous" if orders else "order_missing"
        facts = {"order": words(target), "unfit": _WORDS[unfit]}
        return Preflight(True, target, unfit, facts=facts, detail=listing.detail())
    (order,), asked = orders, arguments["delivery_date"]
    marked, receipt = has_mark(order.comment, marker), receipt_of(order.name, marker)
    # What is there already is done, not unfit.
    unfit, unfit_field = ("", "target") if marked else _unfit(order, asked, today)
    summary = {"marker": marker, "order": words(order.number), "state": words(order.state)}
    return Preflight(
        complete=True,
        target=target,
        unfit=unfit,
        unfit_field=unfit_field,
        version=order.version,
        basis={
            "order": order.id,
            "version": order.version,
            "comment": order.comment,
            "edit": [line.id for line in order.lines if not line.edit],
            "login": login,
        },
        effects=(SeenEffect(receipt, Standing.GOOD, True, order.is_due(asked), summary),) if marked else (),
        markers={receipt: marker} if marked else {},
        facts=_facts(order, today.isoformat()) | ({"unfit": _WORDS[unfit]} if unfit else {}),
        detail=listing.detail(),
    )


RESOLUTION = """\
happened: the receipt purchase.purchase,ID#OPERATION_ID, where ID is the order's database id. It is read again: the order's \
log must show our user's write as the first one after the expected version, or the lines must have the date that was asked.
did_not_happen: later than quiet_at: the log of the order and of each of its lines (in Tryton's client: View Logs) names \
somebody else's write first after the expected version, or no write at all. The comment proves nothing: it can be edited.
undetermined: the log was purged or edited, and nobody can say who moved the dates: who was asked, and the answer."""


class TrytonDelivery(ConditionalWrites):
    """The adapter of change_delivery_date."""

    action = ACTION
    contract = CONTRACT
    resolution = RESOLUTION
    header = ORDER
    method = METHOD

    check_arguments = staticmethod(check_arguments)
    check_target = staticmethod(check_target)
    pure_target = staticmethod(pure_target)
    equivalence_key = staticmethod(equivalence_key)
    build_request = staticmethod(build_request)

    async def preflight(self, credential: Credential, target: str, arguments: dict[str, Any], marker: str) -> Preflight:
        """Read the order of this number with all its lines, and the server's today."""
        session = self._reading(credential)
        listing = await session.rows(ORDER, [["number", "=", target]], _FIELDS)
        today = await session.call("model.ir.date.today")
        place = session.place
        return judge_orders(listing, today, place.company, target, arguments, marker, place.login)

    async def read_records(self, session: TrytonSession, operation: Operation) -> tuple[Rows, Records | None]:
        """The order that the operation was made for, by its id, and its lines."""
        stamps = read_version(operation.expected_version)
        number = only_id(stamps, ORDER)
        listing = await session.rows(ORDER, [["id", "=", number]], _FIELDS)
        orders = [order for row in listing.items if (order := read_order(row)) is not None and order.id == number]
        if not listing.complete or len(orders) != 1:
            return listing, None
        return listing, records_of(orders[0], stamps, operation, session.place.company)

    @staticmethod
    def check_values(operation: Operation, values: Mapping[str, Any]) -> None:
        """Raise `Broken` unless this writes our date on exactly the lines of the expected version, and our mark."""
        lines, commands = ids_of(read_version(operation.expected_version), LINE), values.get("lines")
        try:
            edit = [line for _, ids, written in commands or [] if "delivery_date_edit" in written for line in ids]
            wanted = _commands(lines, edit, operation.arguments["delivery_date"])
        except (TypeError, ValueError) as error:
            raise Broken("the frozen request has another shape: nothing is sent") from error
        marked = has_mark(values.get("comment"), str(operation.operation_id))
        if values.keys() != {"comment", "lines"} or not marked or commands != wanted:
            raise Broken("the frozen request does not write what this operation asks for: nothing is sent")


def records_of(order: Order, stamps: Mapping[str, str], operation: Operation, company: int) -> Records:
    """The order as the operation's write would have left it, and as it stands. Pure.

    A line that is gone has no version any more; one that came later is another change.
    """
    marker, asked = str(operation.operation_id), operation.arguments["delivery_date"]
    marked, there = has_mark(order.comment, marker), {line.name: line for line in order.lines}
    header = Touched(order.name, stamps[order.name], order.stamp, order.made_at, _HEADER_FIELDS, marked)
    lines = [
        Touched(name, stamps[name], line.stamp, line.made_at, _LINE_FIELDS)
        if (line := there.get(name)) is not None
        else Touched(name, stamps[name], None, None, _LINE_FIELDS)
        for name in stamps
        if name != order.name
    ]
    last = marks_in(order.comment)[-1:]
    return Records(
        touched=(header, *lines),
        version=order.version,
        fits=(order.number, order.company) == (operation.target, company),
        as_asked=order.is_due(asked, ids_of(stamps, LINE)),
        marked=marked,
        summary={
            "marker": marker if marked else words(last[0]) if last else None,
            "order": words(order.number),
            "state": words(order.state),
            "delivery_dates": sorted({line.delivery or "none" for line in order.lines}),
        },
    )


def _commands(lines: list[int], edit: list[int], asked: str) -> list[Any]:
    """What is written on the lines; `edit` are those that do not take a date of their own yet."""
    day = _day(asked)
    if not lines or day is None:
        raise Broken("nothing to write: no lines, or no date")
    dated = {"delivery_date": encode(day)}
    parts = (([line for line in lines if line not in edit], dated), (edit, {**dated, "delivery_date_edit": True}))
    return [["write", ids, written] for ids, written in parts if ids]


def _read_line(line: Mapping[str, Any]) -> Line:
    day, product = line["delivery_date"], line["product."]
    if (day is not None and type(day) is not date) or type(line["delivery_date_edit"]) is not bool:
        raise ValueError("a line of another shape")
    return Line(
        id=line["id"],
        product=str((product or {}).get("code") or ""),
        delivery=None if day is None else day.isoformat(),
        edit=line["delivery_date_edit"],
        made_at=micros_at(line["create_date"]),
        stamp=line["_timestamp"],
    )


def _unfit(order: Order, asked: str, today: date) -> tuple[str, str]:
    """Why the order cannot take this date, and the field to correct."""
    if order.state not in _OPEN:
        return "order_not_open", "target"
    if not order.lines or len(order.lines) > MOST_RECORDS:
        return ("order_too_long" if order.lines else "order_empty"), "target"
    if asked < today.isoformat():
        return "date_in_the_past", "delivery_date"
    if order.is_due(asked):
        return "already_so", "delivery_date"
    return "", "target"


def _facts(order: Order, today: str) -> dict[str, Any]:
    """What an approver should know, as the server tells it."""
    shown = order.lines[:_MOST_FACTS]
    return {
        "order": words(order.number),
        "supplier": words(order.supplier),
        "supplier_code": words(order.supplier_code),
        "state": words(order.state),
        "lines": [{"line": e.id, "product": words(e.product), "delivery_date": e.delivery} for e in shown],
        "more_lines": len(order.lines) - len(shown),
        "today": today,
    }


def _day(text: object) -> date | None:
    try:
        return date.fromisoformat(text) if isinstance(text, str) and _DATE.fullmatch(text) else None
    except ValueError:
        return None
