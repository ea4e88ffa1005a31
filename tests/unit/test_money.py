"""Amounts: what passes, what is refused by which rule, and how our currency table differs from ISO 4217."""

from enum import IntEnum

import pytest
from iso4217 import Currency as Iso

from ledger.errors import Refused
from ledger.money import CURRENCIES, MAX_MINOR, UNCHECKED, check_amount, check_currency, shown

ISO_EXPONENT = {entry.code.lower(): entry.exponent for entry in Iso}

# code: (ISO 4217, Stripe's unit). Every other difference is a mistake in our table.
DELIBERATE = {
    "mga": (2, 0),  # Stripe counts whole ariary
    "isk": (0, 2),  # Stripe keeps two decimals for backwards compatibility, and wants multiples of 100
}


def test_table_differs_from_iso_4217_only_where_stripe_does() -> None:
    different = {
        code: (ISO_EXPONENT[code], ours.exponent)
        for code, ours in CURRENCIES.items()
        if ISO_EXPONENT[code] != ours.exponent
    }
    assert different == DELIBERATE


def test_every_listed_currency_is_an_active_iso_code() -> None:
    assert CURRENCIES.keys() <= ISO_EXPONENT.keys()


def test_zero_decimal_currencies_are_exactly_stripes() -> None:
    zero = sorted(code for code, known in CURRENCIES.items() if known.exponent == 0)
    assert " ".join(zero) == "bif clp djf gnf jpy kmf krw mga pyg rwf vnd vuv xaf xof xpf"


def test_steps_are_ten_for_three_decimals_and_a_hundred_for_isk() -> None:
    steps = {code: known.step for code, known in CURRENCIES.items() if known.step != 1}
    assert steps == {"bhd": 10, "jod": 10, "kwd": 10, "omr": 10, "tnd": 10, "isk": 100}
    assert {code for code, known in CURRENCIES.items() if known.exponent == 3} == steps.keys() - {"isk"}


def test_unchecked_currencies_are_not_in_the_table() -> None:
    assert not UNCHECKED & CURRENCIES.keys()


@pytest.mark.parametrize(
    ("minor", "currency"),
    [(1, "eur"), (MAX_MINOR, "usd"), (1, "jpy"), (10, "kwd"), (100, "isk"), (12_340, "bhd"), (50, "huf")],
)
def test_an_exact_positive_amount_passes(minor: int, currency: str) -> None:
    check_amount(minor, currency)


class _One(IntEnum):
    ONE = 1


@pytest.mark.parametrize(
    ("minor", "currency", "rule", "field"),
    [
        (True, "eur", "amount_not_integer", "amount_minor"),
        (1.0, "eur", "amount_not_integer", "amount_minor"),
        ("1", "eur", "amount_not_integer", "amount_minor"),
        (None, "eur", "amount_not_integer", "amount_minor"),
        (_One.ONE, "eur", "amount_not_integer", "amount_minor"),
        (0, "eur", "amount_not_positive", "amount_minor"),
        (-1, "eur", "amount_not_positive", "amount_minor"),
        (MAX_MINOR + 1, "eur", "amount_too_large", "amount_minor"),
        (1_005, "kwd", "amount_step", "amount_minor"),
        (150, "isk", "amount_step", "amount_minor"),
        (1, "EUR", "currency_malformed", "currency"),
        (1, "eur ", "currency_malformed", "currency"),
        (1, "eur\n", "currency_malformed", "currency"),
        (1, "", "currency_malformed", "currency"),
        (1, None, "currency_malformed", "currency"),
        (1, b"eur", "currency_malformed", "currency"),
        (100, "ugx", "currency_unchecked", "currency"),
        (100, "twd", "currency_unchecked", "currency"),
        (1, "xxx", "currency_unknown", "currency"),
        (1, "btc", "currency_unknown", "currency"),
    ],
)
def test_anything_else_is_refused(minor: object, currency: object, rule: str, field: str) -> None:
    with pytest.raises(Refused) as refused:
        check_amount(minor, currency)
    assert (refused.value.rule, refused.value.field) == (rule, field)


def test_the_caller_names_the_field() -> None:
    with pytest.raises(Refused) as refused:
        check_amount(0, "eur", field="arguments.amount")
    assert refused.value.field == "arguments.amount"
    with pytest.raises(Refused) as refused:
        check_currency("xxx", field="arguments.currency")
    assert refused.value.field == "arguments.currency"


@pytest.mark.parametrize(
    ("minor", "currency", "text"),
    [
        (1500, "eur", "15.00 EUR"),
        (5, "eur", "0.05 EUR"),
        (0, "eur", "0.00 EUR"),
        (-150, "eur", "-1.50 EUR"),
        (500, "jpy", "500 JPY"),
        (5_120, "kwd", "5.120 KWD"),
        (500, "isk", "5.00 ISK"),
        (MAX_MINOR, "usd", "90071992547409.91 USD"),
        (7, "xxx", "7 minor units of XXX"),
    ],
)
def test_amounts_are_shown_exactly(minor: int, currency: str, text: str) -> None:
    assert shown(minor, currency) == text
