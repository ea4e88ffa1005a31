"""Amounts and durations as people write them, read exactly: no float ever."""

import re
from datetime import timedelta

from ledger.errors import Refused
from ledger.money import check_amount, check_currency

_AMOUNT = re.compile(r"(\d{1,16})(?:\.(\d{1,4}))?")
_DURATION = re.compile(r"\+?((\d{1,6}(\.\d{1,3})?)([smhd]))+")
_PIECE = re.compile(r"(\d{1,6}(?:\.\d{1,3})?)([smhd])")
_MILLISECONDS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def minor_units(text: str, currency: str) -> int:
    """Minor units of an amount like `15.00` or `1500`: whole units and, after a point, exactly the currency's decimals.

    Refused: `amount_malformed` (no number, a comma, an exponent, a sign), `amount_decimals` (too few or too many), and the
    rules of `ledger.money`.
    """
    known = check_currency(currency)
    match = _AMOUNT.fullmatch(text)
    if match is None or not text.isascii():
        raise Refused("amount_malformed", "write the amount as digits with a point, like 15.00", field="amount")
    whole, decimals = match[1], match[2] or ""
    if decimals and len(decimals) != known.exponent:
        wanted = f"{currency} has {known.exponent or 'no'} decimals: write all of them, or none for whole units"
        raise Refused("amount_decimals", wanted, field="amount")
    minor: int = int(whole) * 10**known.exponent + int(decimals or "0")
    check_amount(minor, currency, field="amount")
    return minor


def duration(text: str) -> timedelta:
    """The time in `+25h`, `90m`, `+1d2h30m`. Refused: `duration_malformed`."""
    if not _DURATION.fullmatch(text):
        raise Refused("duration_malformed", "write a duration like +25h, 90m or 1d12h", field="duration")
    milliseconds = 0
    for number, unit in _PIECE.findall(text):
        whole, _, fraction = number.partition(".")
        thousandths = int(whole) * 1000 + int(fraction.ljust(3, "0") or "0")
        milliseconds += thousandths * _MILLISECONDS[unit] // 1000
    return timedelta(milliseconds=milliseconds)


def lasting(span: timedelta) -> str:
    """A time span for people: its two largest units."""
    seconds = round(abs(span.total_seconds()))
    units = [(86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")]
    told: list[tuple[int, str]] = []
    for size, name in units:
        count, seconds = divmod(seconds, size)
        if count or told:
            told.append((count, name))
    text = " ".join(f"{count} {name}" for count, name in told[:2] if count) or "0 s"
    return f"-{text}" if span < timedelta() else text
