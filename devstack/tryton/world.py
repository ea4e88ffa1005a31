"""The ERP's own records, and the buyer who works on them, through sessions that our adapters never use.

Who judges an effect reads here: what the receiver has, not what our ledger believes. Who makes trouble acts here: a
colleague edits the same order, a lock holds a commit back. Everything made is fresh, so that tests may share a server.
"""

import contextlib
import datetime
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from types import TracebackType
from typing import Any, Self

import psycopg
from psycopg import sql

from devstack.tryton import names
from devstack.tryton.records import party_row, place_order
from devstack.tryton.rpc import TrytonSession
from devstack.tryton.server import TrytonServer, TrytonServerError

DUE = datetime.date(2027, 3, 1)
_WAITER_SECONDS = 30.0


@dataclass(frozen=True)
class OrderLine:
    """A line of a purchase order; `version` is Tryton's own `_timestamp`."""

    id: int
    product: str
    quantity: float
    unit_price: Decimal
    delivery_date: datetime.date | None
    delivery_date_edit: bool
    version: str


@dataclass(frozen=True)
class Order:
    """A purchase order as it stands; `number` is given when it becomes a quotation."""

    id: int
    number: str | None
    reference: str
    company: str
    supplier: str
    state: str
    comment: str | None
    lines: tuple[OrderLine, ...]
    version: str
    written_at: datetime.datetime


@dataclass(frozen=True)
class Customer:
    """A party with its addresses and ways to reach it."""

    id: int
    code: str
    name: str | None
    email: str
    phone: str
    address: int
    street: str
    postal_code: str
    city: str
    contacts: dict[str, int]
    version: str


@dataclass(frozen=True)
class InvoiceLine:
    """A line of an invoice."""

    product: str
    description: str | None
    quantity: float
    unit_price: Decimal
    amount: Decimal
    account: int
    taxes: tuple[str, ...]


@dataclass(frozen=True)
class Invoice:
    """A customer invoice; `number` is given when it is posted."""

    id: int
    number: str | None
    reference: str
    company: str
    party: str
    state: str
    untaxed: Decimal
    tax: Decimal
    total: Decimal
    lines: tuple[InvoiceLine, ...]
    created_by: str
    created_at: datetime.datetime


@dataclass(frozen=True)
class LogRow:
    """One line of the log that Tryton itself writes about a record; there is none about its creation."""

    id: int
    user: str
    event: str
    target: str
    at: datetime.datetime


class HeldTable:
    """A table of the ERP that nobody can write until it is released; reading goes on."""

    def __init__(self, connection: psycopg.Connection, watcher: psycopg.Connection, table: str) -> None:
        """Use `TrytonWorld.hold`."""
        self._connection = connection
        self._watcher = watcher
        self._table = table

    def await_waiter(self, count: int = 1) -> None:
        """Returns once `count` transactions of the ERP wait for this table: what they do is certain not to be committed."""
        deadline = time.monotonic() + _WAITER_SECONDS
        while self._waiters() < count:
            if time.monotonic() >= deadline:
                raise TrytonServerError(f"nobody has wanted to write {self._table} in {_WAITER_SECONDS:.0f} s")
            time.sleep(0.01)

    def release(self) -> None:
        """Let them go on; nothing happens the second time."""
        self._connection.rollback()

    def _waiters(self) -> int:
        row = self._watcher.execute(
            "select count(*) from pg_locks where not granted and relation = %s::regclass", [self._table]
        ).fetchone()
        return int(row[0]) if row else 0


class TrytonWorld:
    """Reads as an administrator of all companies, acts as the buyer of ACME; as a context manager it is closed on the way out."""

    def __init__(self, server: TrytonServer) -> None:
        """The server has to run when the first call is made, and may be restarted later."""
        self.server = server
        self.buyer: TrytonSession = server.session(names.BUYER)
        self.admin: TrytonSession = server.session(names.ADMIN)

    def close(self) -> None:
        """Let the connections go."""
        self.buyer.close()
        self.admin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    @cached_property
    def companies(self) -> dict[str, int]:
        """The id of each company, by name."""
        return {row["rec_name"]: row["id"] for row in self.admin.find("company.company", [], ["rec_name"])}

    # What the buyer and her colleagues do.

    def place_order(self, *, state: str = "confirmed", lines: int = 2, due: datetime.date = DUE) -> Order:
        """A fresh order of ACME's with `lines` lines, each due on `due`, brought to `state` by the buyer."""
        return self.order(
            place_order(
                self.buyer,
                company=self.companies[names.ACME],
                supplier=names.SUPPLIER_BRIGHTWATER,
                reference=f"ORDER-{secrets.token_hex(6)}",
                state=state,
                lines=lines,
                delivery=due,
            )
        )

    def place_others_order(self, *, due: datetime.date = DUE) -> Order:
        """A fresh confirmed order of Globex's: another tenant's, with one line."""
        return self.order(
            place_order(
                self.admin,
                company=self.companies[names.GLOBEX],
                supplier=names.SUPPLIER_INITECH,
                reference=f"OTHERS-{secrets.token_hex(6)}",
                state="confirmed",
                lines=1,
                delivery=due,
            )
        )

    def add_customer(self, name: str = "Fresh Customer") -> Customer:
        """A fresh party with an address and an e-mail."""
        code = f"C-{secrets.token_hex(6).upper()}"
        [made] = self.buyer.create("party.party", party_row(name, code, f"{code.lower()}@customer.example"))
        return self.customer(made)

    def press(self, order: int, button: str) -> None:
        """The buyer presses a button of the order: quote, confirm, process, draft or cancel."""
        self.buyer.press("purchase.purchase", button, [order])

    def move_delivery(self, line: int, due: datetime.date) -> None:
        """The buyer changes the line's delivery date; the order's own version stays."""
        self.buyer.write("purchase.line", [line], {"delivery_date": due})

    def lock_delivery(self, line: int) -> None:
        """The buyer unticks "Edit Delivery Date": Tryton then takes a date without complaint, and drops it."""
        self.buyer.write("purchase.line", [line], {"delivery_date_edit": False})

    def edit_order(self, order: int, **values: Any) -> None:
        """The buyer changes the header, as `comment` or `description`; its lines keep their versions."""
        self.buyer.write("purchase.purchase", [order], values)

    def edit_customer(self, customer: int, **values: Any) -> None:
        """The buyer changes a party, as `name`."""
        self.buyer.write("party.party", [customer], values)

    def edit_record(self, model: str, record: int, **values: Any) -> None:
        """The buyer changes any record, as an address or an e-mail."""
        self.buyer.write(model, [record], values)

    # What stands in the books.

    def order(self, order: int) -> Order:
        """The order as it stands."""
        fields = ["number", "reference", "company.rec_name", "party.code", "state", "comment", "lines"]
        [row] = self.admin.read("purchase.purchase", [order], [*fields, "_timestamp", "write_date", "create_date"])
        return Order(
            id=row["id"],
            number=row["number"],
            reference=row["reference"],
            company=row["company."]["rec_name"],
            supplier=row["party."]["code"],
            state=row["state"],
            comment=row["comment"],
            lines=tuple(self._order_line(line) for line in self._order_lines(row["lines"])),
            version=row["_timestamp"],
            written_at=row["write_date"] or row["create_date"],
        )

    def order_named(self, reference: str) -> Order:
        """The one order with this reference."""
        return self.order(self.admin.only("purchase.purchase", [["reference", "=", reference]]))

    def customer(self, customer: int) -> Customer:
        """The party as it stands, with its first address."""
        fields = ["code", "name", "email", "phone", "addresses", "contact_mechanisms", "_timestamp"]
        [row] = self.admin.read("party.party", [customer], fields)
        [address] = self.admin.read("party.address", row["addresses"][:1], ["street", "postal_code", "city"])
        contacts = self.admin.read("party.contact_mechanism", row["contact_mechanisms"], ["value"])
        return Customer(
            id=row["id"],
            code=row["code"],
            name=row["name"],
            email=row["email"],
            phone=row["phone"],
            address=address["id"],
            street=address["street"],
            postal_code=address["postal_code"],
            city=address["city"],
            contacts={contact["value"]: contact["id"] for contact in contacts},
            version=row["_timestamp"],
        )

    def customer_named(self, code: str) -> Customer:
        """The one party with this code."""
        return self.customer(self.admin.only("party.party", [["code", "=", code]]))

    def invoices(self, reference: str) -> list[Invoice]:
        """Every customer invoice of any company with exactly this reference, oldest first."""
        fields = ["number", "reference", "company.rec_name", "party.code", "state", "lines", "create_date"]
        fields += ["untaxed_amount", "tax_amount", "total_amount", "create_uid.login"]
        return [
            Invoice(
                id=row["id"],
                number=row["number"],
                reference=row["reference"],
                company=row["company."]["rec_name"],
                party=row["party."]["code"],
                state=row["state"],
                untaxed=row["untaxed_amount"],
                tax=row["tax_amount"],
                total=row["total_amount"],
                lines=tuple(self._invoice_lines(row["lines"])),
                created_by=row["create_uid."]["login"],
                created_at=row["create_date"],
            )
            for row in self.admin.find("account.invoice", [["reference", "=", reference], ["type", "=", "out"]], fields)
        ]

    def log(self, model: str, record: int) -> list[LogRow]:
        """What Tryton has written down about a record, oldest first."""
        domain = [["resource", "=", f"{model},{record}"]]
        return [
            LogRow(
                row["id"],
                row["user."]["login"] if row["user."] else "",
                row["event"],
                row["target"],
                row["create_date"],
            )
            for row in self.admin.find("ir.model.log", domain, ["user.login", "event", "target", "create_date"])
        ]

    @contextlib.contextmanager
    def hold(self, table: str = "account_invoice_line") -> Iterator[HeldTable]:
        """Nobody can write this table of the ERP's until the block ends or `release()` is called; reading goes on.

        A call that writes it hangs before its commit, and commits when it is released, whether its client waits or not.
        """
        with (
            psycopg.connect(self.server.dsn) as connection,
            psycopg.connect(self.server.dsn, autocommit=True) as watcher,
        ):
            connection.execute(sql.SQL("lock table {} in exclusive mode").format(sql.Identifier(table)))
            held = HeldTable(connection, watcher, table)
            try:
                yield held
            finally:
                held.release()

    def _order_lines(self, lines: list[int]) -> list[dict[str, Any]]:
        fields = ["product.code", "quantity", "unit_price", "delivery_date", "delivery_date_edit", "_timestamp"]
        return self.admin.read("purchase.line", lines, fields)

    @staticmethod
    def _order_line(row: dict[str, Any]) -> OrderLine:
        return OrderLine(
            id=row["id"],
            product=row["product."]["code"],
            quantity=row["quantity"],
            unit_price=row["unit_price"],
            delivery_date=row["delivery_date"],
            delivery_date_edit=row["delivery_date_edit"],
            version=row["_timestamp"],
        )

    def _invoice_lines(self, lines: list[int]) -> Iterator[InvoiceLine]:
        fields = ["product.code", "description", "quantity", "unit_price", "amount", "account", "taxes"]
        rows = self.admin.read("account.invoice.line", lines, fields)
        taxes = {row["id"]: row["name"] for row in self.admin.find("account.tax", [], ["name"])} if rows else {}
        for row in rows:
            yield InvoiceLine(
                product=row["product."]["code"] if row["product."] else "",
                description=row["description"],
                quantity=row["quantity"],
                unit_price=row["unit_price"],
                amount=row["amount"],
                account=row["account"],
                taxes=tuple(taxes[tax] for tax in row["taxes"]),
            )
