"""What stands in the ERP before a test or the demo begins: two companies, their books, people, products and orders.

Written over the network by an administrator, as a consultant would set the system up. Whatever else a test needs, it
makes for itself with `devstack.tryton.world`.
"""

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from devstack.tryton import names
from devstack.tryton.records import address_row, party_row, place_order
from devstack.tryton.rpc import TrytonSession

Say = Callable[[str], None]

# Far beyond the life of any test: until then a confirmed order stays confirmed unless somebody presses "Process".
_GRACE = datetime.timedelta(days=3650)
# A copy of the seed may be kept for long, and its books must still be open.
_YEARS_BEHIND, _YEARS_AHEAD = 1, 12
_DELIVERED_IN = datetime.timedelta(days=30)


@dataclass(frozen=True)
class _Company:
    """A company with the accounts that the rest of the seed needs."""

    id: int
    revenue: int
    expense: int
    tax: int


def seed(admin: TrytonSession, say: Say) -> None:
    """Fill a database that `trytond-admin` has just made. Not to be run twice on one database."""
    say("companies and charts of accounts …")
    _all_rights(admin)
    currency = _currency(admin)
    acme, globex = (_company(admin, name, currency) for name in (names.ACME, names.GLOBEX))
    say("fiscal years …")
    for company in (acme, globex):
        _fiscal_years(admin, company)
    say("parties, products and people …")
    admin.create("account.invoice.payment_term", _payment_term())
    _parties(admin)
    _products(admin, (acme, globex))
    _people(admin, acme)
    say("purchase orders …")
    _purchase_settings(admin)
    due = _today() + _DELIVERED_IN
    for reference, (state, lines) in names.ORDERS.items():
        place_order(
            admin,
            company=acme.id,
            supplier=names.SUPPLIER_BRIGHTWATER,
            reference=reference,
            state=state,
            lines=lines,
            delivery=due,
        )
    place_order(
        admin,
        company=globex.id,
        supplier=names.SUPPLIER_INITECH,
        reference=names.GLOBEX_ORDER,
        state="confirmed",
        lines=1,
        delivery=due,
    )


def _all_rights(admin: TrytonSession) -> None:
    """An administrator of Tryton may grant rights over every record, and has few of them before that."""
    groups = [row["id"] for row in admin.find("res.group", [], ["id"])]
    user = admin.only("res.user", [["login", "=", names.ADMIN.name]])
    admin.write("res.user", [user], {"groups": [["add", groups]]})
    admin.forget()


def _currency(admin: TrytonSession) -> int:
    [euro] = admin.create(
        "currency.currency",
        {"name": "Euro", "symbol": "€", "code": "EUR", "numeric_code": "978", "rounding": Decimal("0.01"), "digits": 2},
    )
    admin.create("currency.currency.rate", {"currency": euro, "date": datetime.date(2000, 1, 1), "rate": Decimal(1)})
    return euro


def _company(admin: TrytonSession, name: str, currency: int) -> _Company:
    """A company with a chart of accounts, default accounts and a tax; the administrator sees all companies."""
    [party] = admin.create(
        "party.party", {"name": name, "code": name.upper(), "addresses": [["create", [address_row()]]]}
    )
    [company] = admin.create("company.company", {"party": party, "currency": currency})
    user = admin.only("res.user", [["login", "=", names.ADMIN.name]])
    admin.write("res.user", [user], {"companies": [["add", [company]]], "company": company, "company_filter": "all"})
    admin.forget()
    wizard, root = "wizard.account.create_chart", ["name", "=", "Universal Chart of Accounts"]
    template = admin.only("account.account.template", [["parent", "=", None], root])
    number = admin.call(f"{wizard}.create", company=company)[0]
    chart = {"company": company, "account_template": template}
    admin.call(f"{wizard}.execute", number, {"account": chart}, "create_account", company=company)
    accounts = {kind: _account(admin, company, kind) for kind in ("receivable", "payable", "expense", "revenue")}
    defaults = {
        "company": company,
        "account_receivable": accounts["receivable"],
        "account_payable": accounts["payable"],
        "category_account_expense": accounts["expense"],
        "category_account_revenue": accounts["revenue"],
    }
    admin.call(f"{wizard}.execute", number, {"properties": defaults}, "create_properties", company=company)
    admin.call(f"{wizard}.delete", number, company=company)
    due = admin.only("account.account", [["company", "=", company], ["code", "=", "6.3.6"]])
    [tax] = admin.create(
        "account.tax",
        {
            "name": names.VAT,
            "description": names.VAT,
            "type": "percentage",
            "rate": names.VAT_RATE,
            "company": company,
            "invoice_account": due,
            "credit_note_account": due,
        },
        company=company,
    )
    return _Company(company, accounts["revenue"], accounts["expense"], tax)


def _account(admin: TrytonSession, company: int, kind: str) -> int:
    domain = [["company", "=", company], [f"type.{kind}", "=", True], ["closed", "!=", True]]
    return int(admin.find("account.account", domain, ["id"], company=company)[0]["id"])


def _fiscal_years(admin: TrytonSession, company: _Company) -> None:
    """One for each calendar year, each with the sequences that posting a move or an invoice needs; a period is a month."""
    this_year = _today().year
    years = range(this_year - _YEARS_BEHIND, this_year + _YEARS_AHEAD + 1)
    moves, invoices = (
        admin.create(
            "ir.sequence.strict",
            *({"name": f"{kind} {year}", "sequence_type": number, "company": company.id} for year in years),
            company=company.id,
        )
        for kind in ("Account Move", "Invoice")
        for number in [admin.only("ir.sequence.type", [["name", "=", kind]])]
    )
    made = admin.create(
        "account.fiscalyear",
        *(
            {
                "name": str(year),
                "company": company.id,
                "start_date": datetime.date(year, 1, 1),
                "end_date": datetime.date(year, 12, 31),
                "move_sequence": move,
                "invoice_sequences": [["create", [_invoice_sequences(company.id, invoice)]]],
            }
            for year, move, invoice in zip(years, moves, invoices, strict=True)
        ),
        company=company.id,
    )
    admin.call("model.account.fiscalyear.create_period", made, company=company.id)


def _invoice_sequences(company: int, sequence: int) -> dict[str, int]:
    kinds = ("out_invoice", "in_invoice", "out_credit_note", "in_credit_note")
    return {"company": company, **{f"{kind}_sequence": sequence for kind in kinds}}


def _payment_term() -> dict[str, Any]:
    line = {"type": "remainder", "relativedeltas": [["create", [{"days": 30}]]]}
    return {"name": names.PAYMENT_TERM, "lines": [["create", [line]]]}


def _parties(admin: TrytonSession) -> None:
    admin.create(
        "party.party",
        party_row("Northwind Traders", names.CUSTOMER_NORTHWIND, "accounts@northwind.example"),
        party_row("Harbour Cafe", names.CUSTOMER_HARBOUR, "office@harbour.example"),
        party_row("Brightwater Supplies", names.SUPPLIER_BRIGHTWATER, "sales@brightwater.example"),
        party_row("Initech", names.SUPPLIER_INITECH, "sales@initech.example"),
    )


def _categories(admin: TrytonSession, companies: Sequence[_Company]) -> dict[bool, int]:
    """The account categories of products without and with VAT; their accounts differ from company to company."""
    made = {}
    for taxed in (False, True):
        [category] = admin.create("product.category", {"name": names.VAT if taxed else "No VAT", "accounting": True})
        for company in companies:
            accounts: dict[str, Any] = {"account_expense": company.expense, "account_revenue": company.revenue}
            if taxed:
                accounts |= {"customer_taxes": [["add", [company.tax]]]}
            admin.write("product.category", [category], accounts, company=company.id)
        made[taxed] = category
    return made


def _products(admin: TrytonSession, companies: Sequence[_Company]) -> None:
    categories = _categories(admin, companies)
    unit = admin.only("product.uom", [["name", "=", "Unit"]])
    for product in names.PRODUCTS:
        [template] = admin.create(
            "product.template",
            {
                "name": product.name,
                "code": product.code,
                "type": "goods" if product.taxed else "service",
                "default_uom": unit,
                "purchasable": True,
                "purchase_uom": unit,
                "account_category": categories[product.taxed],
                "cost_price_method": "fixed",
                "products": [["create", [{}]]],
            },
        )
        for company in companies:
            admin.write("product.template", [template], {"list_price": product.list_price}, company=company.id)


def _people(admin: TrytonSession, company: _Company) -> None:
    groups = {row["name"]: row["id"] for row in admin.find("res.group", [], ["name"])}
    everyday = ["Purchase", "Accounting", "Party Administration"]
    for name, login, rights in (
        ("Effect Ledger", names.SERVICE, everyday),
        # Only this group may press "Process".
        ("Bea Buyer", names.BUYER, [*everyday, "Purchase Administrator"]),
    ):
        admin.create(
            "res.user",
            {
                "name": name,
                "login": login.name,
                "password": login.password,
                "groups": [["add", [groups[group] for group in rights]]],
                "companies": [["add", [company.id]]],
                "company": company.id,
            },
        )


def _purchase_settings(admin: TrytonSession) -> None:
    sequence = admin.only("ir.sequence", [["name", "=", "Purchase"]])
    admin.write("ir.sequence", [sequence], {"prefix": "PO-", "padding": 5})
    # There is one configuration, and it may be written before it exists.
    admin.write("purchase.configuration", [1], {"purchase_process_after": _GRACE})


def _today() -> datetime.date:
    return datetime.datetime.now(datetime.UTC).date()
