"""Draft customer invoices in Tryton: what its JSON-RPC promises about creating one, and the adapter that creates them.

Order: the contract, target and arguments, the request, what a resolution needs, then the few lines of I/O. What answers
mean stands in tryton_invoice_answers.py, what is read before in tryton_invoice_preflight.py, the line in tryton_rpc.py.
"""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from ledger.contract import Contract, LookupTerms, Source
from ledger.errors import Broken, Refused
from ledger.fingerprint import check_text
from ledger.model import Operation, Outcome, SeenEffect, Standing
from ledger.money import MAX_MINOR, check_amount
from providers import tryton_rpc
from providers.port import AfterWrite, Classified, Credential, EffectPage, Look, Preflight, Request, SendGuard
from providers.tryton_invoice_answers import (
    MODEL,
    classify,
    confirm,
    description_of,
    from_minor,
    invoices_about,
    read_invoices,
    read_sighting,
    receipt_id,
    wanted_by,
    wanted_of,
)
from providers.tryton_invoice_preflight import OPTIONAL, read_preflight
from providers.tryton_listing import list_invoices, read_invoice
from providers.tryton_rpc import Logins, TrytonSession, context_of, encode, parts_of, place_of
from providers.wire import check_header

ACTION = "create_draft_invoice"
API_VERSION = "8.2"
METHOD = f"model.{MODEL}.create"
MOST_ITEMS, MOST_QUANTITY = 100, 1_000_000

_READ_ON = "2026-11-30"
_SERVER = "Tryton 8.2.1"


def _measured(term: str, text: str) -> Source:
    return Source(term=term, text=text, read_on=_READ_ON, measured_on=_SERVER)


def _assumed(term: str, reason: str) -> Source:
    return Source(term=term, text=reason, read_on=_READ_ON, assumption=True)


CONTRACT = Contract(
    name=ACTION,
    api_version=API_VERSION,
    lookup=LookupTerms(marker="reference", settling=10, complete=True, marker_editable=True),
    processing=3600,
    effect_can_change=True,
    sources=(
        _measured("api_version", "the series that common.server.version tells; JSON-RPC has no version of its own"),
        _measured("key", "two creates with one reference make two invoices: there is no key of any kind"),
        _measured("lookup.marker", "reference is kept as given, and a search for it with = is exact"),
        _assumed("lookup.settling", "the answer comes after the commit, and a search right after it found the invoice "
                 "each time; ten seconds cost little should a server ever read from a replica"),
        _measured("lookup.complete", "every invoice of the company is searchable in every state, by ascending id"),
        _measured("lookup.marker_editable", "the reference of a draft can be changed, and the draft deleted"),
        _assumed("processing", "a lock in the ERP's database holds a create back, and neither Tryton nor its driver sets "
                 "a statement timeout; an hour is longer than an update or a batch run should hold the invoices"),
        _measured("effect_can_change", "a draft can be cancelled, and it can be deleted"),
    ),
)  # fmt: skip

RESOLUTION = """\
happened: the invoice's record, as account.invoice,ID (the ID stands in the client under "View Logs…"). It is read again \
in Tryton and must be a customer invoice of this customer in this company, with this order, currency and these lines, \
that belongs to no other operation.
did_not_happen: later than quiet_at: the log of the Tryton server, or of the proxy before it, shows no call of \
model.account.invoice.create by our login from that time on that ended with a value, and its database has no transaction \
of then still open. That no invoice is found alone proves nothing, because a reference can be edited and a draft \
deleted: say what the model log shows of deleted invoices, and whose every other invoice of this order is. A gap in the \
ids proves nothing either: refused creates use up ids.
undetermined: nobody can find out, and why; what the people who keep the books and the server's logs answered."""

_TARGET = re.compile(r"[A-Za-z0-9._/-]{1,40}")
_ORDER = re.compile(r"[A-Za-z0-9._/-]{1,80}")
# The ids of a basis; those of a head and a line are there, the optional ones where Tryton's form proposes them.
_HEAD = ("party", "invoice_address", "account", "currency")
_LINE = ("product", "unit", "account")
_ARGUMENTS = ("order", "amount_minor", "currency", "items")
_ITEM = ("product", "quantity", "unit_price_minor")


def check_target(target: str) -> None:
    """Refuses everything but what can be the code of a party."""
    if not _TARGET.fullmatch(target):
        raise Refused("target_malformed", "name the customer by the code of its party in Tryton", field="target")


def pure_target(target: str) -> str | None:
    """A party has one code, so the target is canonical as it is."""
    check_target(target)
    return target


def check_arguments(arguments: dict[str, Any]) -> None:
    """Refuses everything but order, currency, amount_minor and items that sum up to it, each well-formed."""
    _check_names(arguments, _ARGUMENTS, "")
    order = arguments["order"]
    if type(order) is not str or not _ORDER.fullmatch(order):
        words = "give the customer's order number: 1 to 80 of A-Z, a-z, 0-9, . _ / and -"
        raise Refused("order_malformed", words, field="order")
    check_amount(arguments["amount_minor"], arguments["currency"])
    items = arguments["items"]
    if type(items) is not list or not 1 <= len(items) <= MOST_ITEMS:
        raise Refused("items_malformed", f"give 1 to {MOST_ITEMS} items as a list", field="items")
    for number, item in enumerate(items):
        _check_item(item, f"items[{number}]")
    total = sum(item["quantity"] * item["unit_price_minor"] for item in items)
    if total != arguments["amount_minor"]:
        words = f"the items sum up to {total} minor units without tax: correct them, or the amount"
        raise Refused("total_wrong", words, field="amount_minor")


def _check_item(item: object, field: str) -> None:
    if not isinstance(item, dict):
        raise Refused("item_malformed", f"give each item as an object of {', '.join(_ITEM)}", field=field)
    _check_names(item, _ITEM, f"{field}.")
    check_text(item["product"], f"{field}.product", 80)
    if item["product"] != item["product"].strip():
        raise Refused("product_malformed", "give the code without blanks around it", field=f"{field}.product")
    quantity, price = item["quantity"], item["unit_price_minor"]
    if type(quantity) is not int or not 1 <= quantity <= MOST_QUANTITY:
        words = f"give the quantity as an integer from 1 to {MOST_QUANTITY}"
        raise Refused("quantity_malformed", words, field=f"{field}.quantity")
    if type(price) is not int or not 0 <= price <= MAX_MINOR:
        words = "give the unit price without tax as an integer in the currency's minor unit, zero or more"
        raise Refused("price_malformed", words, field=f"{field}.unit_price_minor")


def _check_names(given: Mapping[str, Any], names: tuple[str, ...], where: str) -> None:
    for name in given:
        if name not in names:
            raise Refused("argument_unknown", f"give {', '.join(names)} and nothing else", field=f"{where}{name}"[:60])
    for name in names:
        if name not in given:
            raise Refused("argument_missing", f"give {', '.join(names)}", field=f"{where}{name}")


def equivalence_key(target: str, arguments: Mapping[str, Any]) -> str:
    """The same order of the same customer billed twice is the same thing, whatever the sum, until a person says otherwise."""
    return f"{ACTION}:{target}:{arguments['order']}"


def build_request(operation: Operation, basis: Mapping[str, Any]) -> Request:
    """The one request of this operation, with the ids that preflight read."""
    arguments = operation.arguments
    check_header("idempotency key", operation.idempotency_key)
    if arguments["amount_minor"] != operation.amount_minor or arguments["currency"] != operation.currency:
        raise Broken("amount or currency of the operation differ from its arguments")
    company = parts_of(operation.account)[1]
    try:
        head = {name: basis[name] for name in _HEAD} | {name: basis[name] for name in OPTIONAL if name in basis}
        own = {"company": company, "currency": basis["currency"]}
        lines = [
            _asked_of_line(item, arguments["currency"])
            | own
            | {name: line[name] for name in _LINE}
            | {"taxes": [["add", list(line["taxes"])]] if line["taxes"] else []}
            for item, line in zip(arguments["items"], basis["lines"], strict=True)
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise Broken("the basis is not what preflight reads for these items") from error
    ids = [*head.values(), *(line[name] for line in lines for name in _LINE)]
    if not all(type(found) is int for found in ids):
        raise Broken("the basis names records by something else than their ids")
    row = head | _asked_of_head(operation, company) | {"lines": [["create", lines]]}
    parameters = {"params": encode([[row], context_of(company)])}
    return Request(METHOD, parameters, operation.idempotency_key, operation.account, API_VERSION)


def _asked_of_head(operation: Operation, company: int) -> dict[str, Any]:
    """What the operation itself says about the invoice."""
    return {
        "type": "out",
        "company": company,
        "reference": str(operation.operation_id),
        "description": description_of(operation.arguments),
    }


def _asked_of_line(item: Mapping[str, Any], currency: str) -> dict[str, Any]:
    """What the operation itself says about a line, beside the product."""
    price = from_minor(item["unit_price_minor"], currency)
    return {"type": "line", "quantity": item["quantity"], "unit_price": encode(price)}


class TrytonInvoices:
    """The adapter. Keeps logins between calls, in memory only; safe under concurrency."""

    action = ACTION
    provider = "tryton"
    contract = CONTRACT
    resolution = RESOLUTION

    def __init__(self, logins: Logins | None = None, *, read_deadline_seconds: float = 20.0) -> None:
        """`logins` may be shared with the other adapters of Tryton."""
        self._logins = logins or Logins()
        self._read_deadline = read_deadline_seconds

    # The pure part of the adapter stands above, as functions; here they get their place in the port.
    check_arguments = staticmethod(check_arguments)
    check_target = staticmethod(check_target)
    pure_target = staticmethod(pure_target)
    equivalence_key = staticmethod(equivalence_key)
    build_request = staticmethod(build_request)

    def marker_of(self, operation: Operation) -> str:
        """The operation id as text: the invoice's reference."""
        return str(operation.operation_id)

    def link(self, operation: Operation) -> str:
        """None: where people reach Tryton's client is not told by its JSON-RPC."""
        return ""

    async def preflight(self, credential: Credential, target: str, arguments: dict[str, Any], marker: str) -> Preflight:
        """Read the customer, what the invoice needs, and every invoice of this order."""
        session = self._reading(credential)
        return await read_preflight(session, wanted_of(target, session.place.company, arguments, marker), arguments)

    async def send(
        self,
        credential: Credential,
        operation: Operation,
        request: Request,
        contract: Contract,
        guard: SendGuard,
        after_write: AfterWrite,
    ) -> Classified:
        """Create the draft once, and read it back in what is left of the deadline.

        Raises only `Broken`, before the first byte, and the caller's cancellation.
        """
        _check_frozen(credential, operation, request)
        session = TrytonSession(credential, self._logins, deadline_seconds=contract.timing.call_deadline)
        seen = classify(await session.write(request.operation, request.parameters["params"], guard, after_write))
        if seen.outcome not in (Outcome.APPLIED, Outcome.REFUSED):
            return seen
        wanted = wanted_by(operation, session.place.company)
        return confirm(seen, await invoices_about(session, wanted), wanted)

    async def look(self, credential: Credential, operation: Operation, since: datetime) -> Look:
        """Search by marker, and by customer and order; compare each invoice here."""
        session = self._reading(credential)
        wanted = wanted_by(operation, session.place.company)
        read = await invoices_about(session, wanted)
        effects = tuple(read_sighting(invoice, wanted, since) for invoice in read.found)
        return Look(read.complete, effects, detail=read.detail)

    async def read_receipt(self, credential: Credential, operation: Operation, receipt: str) -> SeenEffect | None:
        """The invoice of this receipt as it is now; None when it cannot be read, for whatever reason.

        Void too, if it is the one that we proved, and the books do not have it any more: a draft can be deleted.
        """
        wanted_id = receipt_id(receipt)
        if wanted_id is None:
            return None
        session = self._reading(credential)
        read = await read_invoices(session, [["id", "=", wanted_id]])
        found = [invoice for invoice in read.found if invoice.id == wanted_id]
        if read.complete and not read.found and receipt == operation.receipt:
            return SeenEffect(receipt, Standing.VOID, marked=True, matching=False, summary={"state": "deleted"})
        if not read.complete or len(found) != 1:
            return None
        return read_sighting(found[0], wanted_by(operation, session.place.company))

    async def list_effects(self, credential: Credential, since: datetime | None, go_on: str) -> EffectPage:
        """One page of the company's invoices that bear a marker, oldest first."""
        return await list_invoices(self._reading(credential), since, go_on)

    async def read_effect(self, credential: Credential, receipt: str) -> EffectPage:
        """The invoice of this receipt, whosever."""
        return await read_invoice(self._reading(credential), receipt)

    async def whose(self, credential: Credential) -> Credential | None:
        """The company that the login works for, as Tryton tells it."""
        return await tryton_rpc.whose(credential, self._logins, self._read_deadline)

    def _reading(self, credential: Credential) -> TrytonSession:
        return TrytonSession(credential, self._logins, deadline_seconds=self._read_deadline)


def _check_frozen(credential: Credential, operation: Operation, request: Request) -> None:
    """Raise `Broken` unless the frozen request is the operation's and the credential is for its account."""
    company = place_of(credential).company
    items, currency = operation.arguments["items"], operation.arguments["currency"]
    wanted = (
        (METHOD, operation.idempotency_key),
        (operation.account, operation.account, operation.livemode),
        context_of(company),
        encode(_asked_of_head(operation, company)),
        [_asked_of_line(item, currency) for item in items],
    )
    try:
        [[row], context] = request.parameters["params"]
        [[command, lines]] = row["lines"]
        told = (
            (request.operation, request.idempotency_key),
            (request.account, credential.account, credential.livemode),
            context,
            {name: row.get(name) for name in ("type", "company", "reference", "description")},
            [{name: line.get(name) for name in ("type", "quantity", "unit_price")} for line in lines],
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        told, command = None, None
    if told != wanted or command != "create" or request.parameters.keys() != {"params"}:
        raise Broken("the frozen request or the credential is not the one of this operation: nothing is sent")
