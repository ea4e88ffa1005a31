"""Amounts of money as integers in the provider's own unit, and which currencies we dare to handle.

1. An amount is (minor, currency); `minor` counts the unit in which Stripe's API expects amounts, not ISO 4217's.
2. Only listed currencies pass. A currency we are not sure about is refused: a wrong exponent is a hundredfold payment.
3. No float, no Decimal, no bool: an amount that is not exactly an int is refused.
4. Codes are lower-case, as Stripe takes and returns them; they are refused otherwise, never changed.
"""

import re
from dataclasses import dataclass

from ledger.errors import Refused

# The largest integer that JSON numbers carry exactly, and what the ledger's column accepts. Stripe documents "up to
# eight digits" for charges, and more for some currencies: its ceiling is left to Stripe, a rule's maximum comes first.
MAX_MINOR = 2**53 - 1


@dataclass(frozen=True)
class Currency:
    """How one currency is counted: `exponent` decimals are shown, and `minor` must be a multiple of `step`."""

    exponent: int
    step: int = 1


# Stripe, "Supported currencies" (docs.stripe.com/currencies): two decimals unless listed otherwise there.
_TWO = """
aed all amd ars aud awg azn bam bbd bdt bmd bnd bob brl bsd bwp bzd cad chf cny cop crc cve czk dkk dop dzd egp etb
eur fjd fkp gbp gel gip gmd gtq gyd hkd hnl htg huf idr ils inr jmd kes kgs khr kyd kzt lkr lrd mad mdl mkd mop mur
mvr mwk mxn myr mzn nad ngn nio nok npr nzd pab pen pgk php pkr pln qar ron rsd sar sbd scr sek sgd szl thb top try
ttd tzs uah usd uyu uzs wst xcd zar zmw
"""
# The same page, "Zero-decimal currencies". MGA has two decimals in ISO 4217; Stripe counts whole ariary.
_ZERO = "bif clp djf gnf jpy kmf krw mga pyg rwf vnd vuv xaf xof xpf"
# The same page, "Three-decimal currencies": the last digit must be 0.
_THREE = "bhd jod kwd omr tnd"

CURRENCIES: dict[str, Currency] = {
    **{code: Currency(2) for code in _TWO.split()},
    **{code: Currency(0) for code in _ZERO.split()},
    **{code: Currency(3, step=10) for code in _THREE.split()},
    # No decimals in ISO 4217, but two in Stripe's API for backwards compatibility, always a multiple of 100.
    "isk": Currency(2, step=100),
}

# Left out on purpose. UGX: listed as zero-decimal, and as one that must be sent like ISK; the two differ a hundredfold.
# TWD: two decimals for charges, whole dollars for payouts; what a refund expects was not found. Both until checked.
UNCHECKED: frozenset[str] = frozenset({"ugx", "twd"})

_CODE = re.compile(r"[a-z]{3}")


def check_currency(currency: object, *, field: str = "currency") -> Currency:
    """How this currency is counted. Refused: `currency_malformed`, `currency_unchecked`, `currency_unknown`."""
    if type(currency) is not str or not _CODE.fullmatch(currency):
        raise Refused("currency_malformed", "give the currency as three lower-case letters, like eur", field=field)
    if currency in UNCHECKED:
        raise Refused(
            "currency_unchecked",
            f"{currency} is not handled until its unit has been checked; do this one by hand",
            field=field,
        )
    known = CURRENCIES.get(currency)
    if known is None:
        raise Refused("currency_unknown", f"{currency} is not handled by this ledger; check the code", field=field)
    return known


def check_amount(minor: object, currency: object, *, field: str = "amount_minor") -> None:
    """Return only for an exact, positive amount that the provider can take in this currency.

    Refused: `amount_not_integer`, `amount_not_positive`, `amount_too_large`, `amount_step`, and the rules of
    `check_currency`.
    """
    known = check_currency(currency)
    if type(minor) is not int:  # bool is an int to isinstance, and True would be one cent
        raise Refused("amount_not_integer", "give the amount as an integer in the currency's minor unit", field=field)
    if minor <= 0:
        raise Refused("amount_not_positive", "give an amount greater than zero", field=field)
    if minor > MAX_MINOR:
        raise Refused("amount_too_large", f"give an amount of at most {MAX_MINOR}", field=field)
    if minor % known.step:
        raise Refused(
            "amount_step",
            f"amounts in {currency} are multiples of {known.step} minor units; round it yourself and propose again",
            field=field,
        )


def shown(minor: int, currency: str) -> str:
    """The amount for people, like `15.00 EUR`. Exact. An unknown currency is shown in minor units."""
    known = CURRENCIES.get(currency)
    if known is None:
        return f"{minor} minor units of {currency.upper()}"
    sign, digits = "-" if minor < 0 else "", str(abs(minor)).rjust(known.exponent + 1, "0")
    if known.exponent == 0:
        return f"{sign}{digits} {currency.upper()}"
    return f"{sign}{digits[: -known.exponent]}.{digits[-known.exponent :]} {currency.upper()}"
