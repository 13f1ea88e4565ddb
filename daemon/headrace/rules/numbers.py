"""Numbers as MySQL prints them, for messages and for keys."""

from __future__ import annotations

from decimal import Decimal


def float_text(value: float) -> str:
    """A FLOAT or DOUBLE as MySQL prints it: the shortest digits that are the same value, without an exponent from
    1e-15 to below 1e15 and where there are digits behind the point, `1e20` and not `1e+20` beyond. (For a FLOAT the
    server itself prints six digits only.)"""
    text = repr(value)
    if "e" in text or abs(value) >= 1e15:
        return _rewritten(text)
    return text[:-2] if text.endswith(".0") else text


def _rewritten(text: str) -> str:
    sign, digits, exponent = Decimal(text).normalize().as_tuple()
    if not isinstance(exponent, int):
        raise ValueError(f"{text} is no number that a column can hold")
    point = len(digits) + exponent
    if -15 < point < 16 or 0 < point < len(digits):
        return f"{Decimal(text).normalize():f}"
    head, rest = digits[0], "".join(map(str, digits[1:]))
    return f"{'-' if sign else ''}{head}{'.' if rest else ''}{rest}e{point - 1}"
