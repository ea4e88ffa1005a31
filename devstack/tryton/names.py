"""What the seed calls things. Tests and demo find records by these; ids are whatever Tryton gave, and stand nowhere."""

from dataclasses import dataclass
from decimal import Decimal


@dataclass(frozen=True)
class Login:
    """Somebody's name and password in the ERP; on loopback, for tests, neither is a secret."""

    name: str
    password: str


# What our adapters use: orders, invoices and parties of one company.
SERVICE = Login("effects", "effects-on-loopback-9")
# The person who works on the same records, of the same company, in a window of her own.
BUYER = Login("bea.buyer", "buyer-on-loopback-9")
# Sees every company; nobody works as this one.
ADMIN = Login("admin", "admin-on-loopback-9")

# By the name of the company's party. The service and the buyer belong to ACME; Globex is another tenant.
ACME, GLOBEX = "ACME", "Globex"

# By party.code. Tryton shows every party to every company.
CUSTOMER_NORTHWIND, CUSTOMER_HARBOUR = "C-NORTHWIND", "C-HARBOUR"
SUPPLIER_BRIGHTWATER, SUPPLIER_INITECH = "S-BRIGHTWATER", "S-INITECH"


@dataclass(frozen=True)
class Product:
    """Something to buy and to invoice, by product.code."""

    code: str
    name: str
    list_price: Decimal
    taxed: bool


PRODUCTS = (
    Product("WIDGET", "Widget", Decimal("12.50"), taxed=True),
    Product("GASKET", "Gasket", Decimal("3.20"), taxed=True),
    Product("SURVEY", "Site survey", Decimal("180.00"), taxed=False),
)
VAT, VAT_RATE = "VAT 20%", Decimal("0.20")
PAYMENT_TERM = "30 days"

# By purchase.reference: the state an order of ACME's is left in, and how many lines it has.
ORDERS = {
    "SEED-DRAFT": ("draft", 1),
    "SEED-QUOTATION": ("quotation", 1),
    "SEED-CONFIRMED": ("confirmed", 2),
    "SEED-PROCESSING": ("processing", 1),
}
# Globex's own, which nobody of ACME's may see or change.
GLOBEX_ORDER = "GLOBEX-CONFIRMED"
