"""Evaluates expressions: each is compiled once a statement into a function of a row (MySQL manual, "Expressions" and
"Comparison Functions and Operators"). NULL is None, and what compares with it is NULL."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from typing import Any, Protocol

from sim.mysql.collations import codec_of, order_of
from sim.mysql.errors import SqlError, no_column, unknown_statement
from sim.mysql.gtids import Gtids
from sim.mysql.images import seconds_of
from sim.mysql.schema import Row
from sim.mysql.sql.tree import Expression
from sim.mysql.types import Type, double_text

Function = Callable[[Row], Any]
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq, "<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge, "<>": operator.ne,
    "!=": operator.ne,
}  # fmt: skip
_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "%": operator.mod
}  # fmt: skip
_LITERALS = "utf8mb4_0900_ai_ci"
"""The collation of texts that are in no column."""
_DIVISION_DIGITS = 4
"""How many digits a division adds (div_precision_increment)."""
_EXACT = frozenset({"int", "uint", "long", "decimal", "null"})
_TURNED = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}


class Facts(Protocol):
    """What functions and variables say of the session."""

    def now_us(self) -> int: ...
    def system(self, scope: str, name: str) -> Any: ...
    def user(self, name: str) -> Any: ...
    def call(self, function: str) -> Any: ...


@dataclass(frozen=True, slots=True)
class Compiled:
    """An expression as a function of a row. `kind` is int, uint, long (an INT of the server's own tables), decimal,
    double, text, blob (a TEXT of them), label (an ENUM of them), bytes or null, or any if only the value shows it;
    `type` is that of the column, if it is one; `constant`: the row does not matter."""

    function: Function
    kind: str
    type: Type | None = None
    constant: bool = False
    decimals: int = 0
    varies: bool = False
    """Whether it is a literal of a template."""

    @property
    def value(self) -> Any:
        """Returns the value of a constant."""
        return self.function(())


@dataclass(frozen=True, slots=True)
class Scope:
    """Where names are looked up: columns by name in lower case, and their types (None: as the values are). `inserted`
    is the row of VALUES(column)."""

    facts: Facts
    columns: dict[str, int]
    types: Sequence[Type | None] = ()
    inserted: Callable[[int], Any] | None = None
    params: Sequence[Any] = ()
    """The literals of a template, which change from one run to the next."""
    kinds: Sequence[str] = ()
    """Of columns without a type: what kind of values they have."""
    clause: str = "field list"
    """Where the expression is, for errors."""


def kind_of(value: Any) -> str:
    """Returns the kind of a Python value."""
    kinds: dict[type, str] = {int: "int", bool: "int", Decimal: "decimal", float: "double", str: "text", bytes: "bytes"}
    return kinds.get(type(value), "null")


def _type_kind(kind: Type) -> str:
    if kind.name == "decimal":
        return "decimal"
    if kind.name == "double":
        return "double"
    if kind.numeric:
        return "uint" if kind.unsigned else "int"
    return "bytes" if kind.character and kind.collation == "binary" else "text"


def literal(value: Any, kind: str = "") -> Compiled:
    """Returns a constant."""
    scale = max(0, -int(value.as_tuple().exponent)) if isinstance(value, Decimal) else 0
    return Compiled(lambda row: value, kind or kind_of(value), constant=True, decimals=scale)


def as_number(value: Any) -> Any:
    """Returns a value as a number, as MySQL takes one from a text."""
    if isinstance(value, str):
        match = re.match(r"\s*-?\d+(\.\d+)?([eE][+-]?\d+)?", value)
        text = match.group() if match else "0"
        return float(text) if "e" in text.lower() else Decimal(text)
    return int.from_bytes(value, "big") if isinstance(value, bytes) else value


def as_text(value: Any) -> str:
    """Returns a value as a text."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return double_text(value) if isinstance(value, float) else str(value)


def compile_expression(expression: Expression, scope: Scope) -> Compiled:
    """Returns the function of an expression. Raises SqlError."""
    kind = expression[0]
    if kind == "literal":
        return literal(expression[1])
    if kind == "param":
        params, at = scope.params, expression[1]
        return Compiled(lambda row: params[at], "any", varies=True)
    if kind == "column":
        number = scope.columns.get(expression[1].lower())
        if number is None:
            raise no_column(expression[1], scope.clause)
        return _column(scope, number)
    if kind == "system":
        return literal(scope.facts.system(expression[1], expression[2]))
    if kind == "user":
        return literal(scope.facts.user(expression[1]))
    handler = _KINDS.get(kind)
    if handler is None:
        raise unknown_statement(kind)
    return handler(expression, scope)


def _column(scope: Scope, number: int) -> Compiled:
    one = scope.types[number]
    get: Function = operator.itemgetter(number)
    if one is None:
        return Compiled(get, scope.kinds[number] if scope.kinds else "any")
    return Compiled(get, _type_kind(one), one, decimals=one.decimals)


def _op(expression: Expression, scope: Scope) -> Compiled:
    sign = expression[1]
    left, right = compile_expression(expression[2], scope), compile_expression(expression[3], scope)
    constant = left.constant and right.constant
    if sign in ("AND", "OR"):
        return Compiled(_logical(sign, left.function, right.function), "int", constant=constant)
    if sign in _COMPARE:
        return Compiled(_comparison(sign, left, right), "int", constant=constant)
    if sign == "<=>":
        a, b = left.function, right.function
        same = _comparison("=", left, right)
        return Compiled(lambda row: a(row) is b(row) is None or bool(same(row)), "int", constant=constant)
    return _arithmetic(sign, left, right, constant)


def _logical(sign: str, a: Function, b: Function) -> Function:
    def both(row: Row) -> Any:
        one = a(row)
        if one is not None and not one:
            return 0
        two = b(row)
        return 0 if two is not None and not two else None if one is None or two is None else 1

    def either(row: Row) -> Any:
        one = a(row)
        if one:
            return 1
        two = b(row)
        return 1 if two else None if one is None or two is None else 0

    return both if sign == "AND" else either


def _comparison(sign: str, left: Compiled, right: Compiled) -> Function:
    if left.type is None and right.type is not None:
        return _comparison(_TURNED.get(sign, sign), right, left)
    compare, a, b = _COMPARE[sign], left.function, right.function
    if left.type is not None and right.constant:
        return _with_constant(compare, left.type, a, right.value)
    if left.type is not None and right.varies:
        kind, param = left.type, right.function

        def against(row: Row) -> Any:
            one = a(row)
            wanted = param(row)
            return None if one is None else int(compare(kind.order(one), kind.order(kind.take(wanted))))

        return against
    if left.type is not None and right.type is not None and left.kind == right.kind:
        order, other = left.type.order, right.type.order

        def columns(row: Row) -> Any:
            one, two = a(row), b(row)
            return None if one is None or two is None else int(compare(order(one), other(two)))

        return columns

    order = order_of(_LITERALS) if left.constant and right.constant else str

    def values(row: Row) -> Any:
        one, two = a(row), b(row)
        if one is None or two is None:
            return None
        if type(one) is not type(two):
            one, two = as_number(one), as_number(two)
        elif isinstance(one, str):
            one, two = order(one), order(two)
        return int(compare(one, two))

    return values


def _with_constant(compare: Callable[[Any, Any], bool], kind: Type, get: Function, value: Any) -> Function:
    if value is None:
        return lambda row: None
    order = kind.order
    if kind.numeric and kind.name != "decimal":
        wanted = as_number(value)
    else:
        wanted = Decimal(as_number(value)) if kind.name == "decimal" else order(kind.take(value))

    def against(row: Row) -> Any:
        one = get(row)
        return None if one is None else int(compare(order(one), wanted))

    return against


def _arithmetic(sign: str, left: Compiled, right: Compiled, constant: bool) -> Compiled:
    kinds = {left.kind: 0, right.kind: 0}
    exact = all(kind in _EXACT for kind in kinds)
    a, b, apply = left.function, right.function, _ARITHMETIC.get(sign)
    decimals = max(left.decimals, right.decimals)
    if sign in "*/":
        decimals = left.decimals + (right.decimals if sign == "*" else _DIVISION_DIGITS)
    quantum = Decimal(1).scaleb(-decimals)

    def run(row: Row) -> Any:
        one, two = a(row), b(row)
        if one is None or two is None:
            return None
        one, two = as_number(one), as_number(two)
        if not exact or isinstance(one, float) or isinstance(two, float):
            one, two = float(one), float(two)
        if apply is None:
            if not two:
                return None
            return (
                one / two if isinstance(one, float) else (Decimal(one) / Decimal(two)).quantize(quantum, ROUND_HALF_UP)
            )
        return apply(one, two)

    kind = "double" if not exact else "decimal" if "decimal" in kinds or sign == "/" else "int"
    return Compiled(run, kind, constant=constant, decimals=decimals)


def _not(expression: Expression, scope: Scope) -> Compiled:
    inner = compile_expression(expression[1], scope)
    get = inner.function

    def run(row: Row) -> Any:
        value = get(row)
        return None if value is None else int(not value)

    return Compiled(run, "int", constant=inner.constant)


def _negative(expression: Expression, scope: Scope) -> Compiled:
    inner = compile_expression(expression[1], scope)
    get = inner.function
    if inner.constant:
        value = get(())
        return literal(None if value is None else -as_number(value))

    def run(row: Row) -> Any:
        value = get(row)
        return None if value is None else -as_number(value)

    return Compiled(run, inner.kind, decimals=inner.decimals)


def _in(expression: Expression, scope: Scope) -> Compiled:
    left = compile_expression(expression[1], scope)
    members = [compile_expression(one, scope) for one in expression[2]]
    tests = [_comparison("=", left, member) for member in members]

    def run(row: Row) -> Any:
        found = [test(row) for test in tests]
        return 1 if 1 in found else None if None in found else 0

    if left.type is not None and all(member.constant for member in members) and len(members) > 8:
        return Compiled(_among(left.type, left.function, [member.value for member in members]), "int")
    return Compiled(run, "int", constant=left.constant and all(member.constant for member in members))


def _among(kind: Type, get: Function, values: Sequence[Any]) -> Function:
    wanted = {kind.order(kind.take(value)): None for value in values if value is not None}
    otherwise = None if None in values else 0

    def run(row: Row) -> Any:
        value = get(row)
        return None if value is None else 1 if kind.order(value) in wanted else otherwise

    return run


def _between(expression: Expression, scope: Scope) -> Compiled:
    low = ("op", ">=", expression[1], expression[2])
    return _op(("op", "AND", low, ("op", "<=", expression[1], expression[3])), scope)


def _null(expression: Expression, scope: Scope) -> Compiled:
    inner = compile_expression(expression[1], scope)
    get = inner.function
    return Compiled(lambda row: int(get(row) is None), "int", constant=inner.constant)


def like(pattern: str) -> Callable[[str], bool]:
    """Returns whether texts match a pattern with % and _, without case."""
    parts = re.findall(r"\\.|.", pattern, re.DOTALL)
    text = "".join({"%": ".*", "_": "."}.get(part) or re.escape(part[-1]) for part in parts)
    match = re.compile(text, re.IGNORECASE | re.DOTALL).fullmatch
    return lambda value: match(value) is not None


def _like(expression: Expression, scope: Scope) -> Compiled:
    left, right = compile_expression(expression[1], scope), compile_expression(expression[2], scope)
    get, match = left.function, like(as_text(right.value))

    def run(row: Row) -> Any:
        value = get(row)
        return None if value is None else int(match(as_text(value)))

    return Compiled(run, "int", constant=left.constant)


def _cast(expression: Expression, scope: Scope) -> Compiled:
    inner, target = compile_expression(expression[1], scope), expression[2]
    get, kind = inner.function, inner.type
    if target not in ("UNSIGNED", "SIGNED", "CHAR"):
        raise unknown_statement(target)

    def run(row: Row) -> Any:
        value = get(row)
        if value is None or target == "CHAR":
            return value if value is None else as_text(value)
        number = kind.order(value) if kind is not None and kind.labels else as_number(value)
        whole = int(Decimal(number).to_integral_value(ROUND_HALF_UP))
        return whole % (1 << 64) if target == "UNSIGNED" else whole

    made = {"UNSIGNED": "uint", "SIGNED": "int", "CHAR": "text"}[target]
    return Compiled(run, made, constant=inner.constant)


def _convert(expression: Expression, scope: Scope) -> Compiled:
    inner = compile_expression(expression[1], scope)
    get, codec = inner.function, codec_of(expression[2])

    def run(row: Row) -> Any:
        value = get(row)
        return value.decode(codec) if isinstance(value, bytes) else value

    return Compiled(run, "text", constant=inner.constant)


def _call(expression: Expression, scope: Scope) -> Compiled:
    function, arguments = expression[1], expression[2]
    facts = scope.facts
    if function == "VALUES":
        number = scope.columns[arguments[0][1].lower()]
        inserted = scope.inserted
        if inserted is None:
            raise unknown_statement(function)
        return Compiled(lambda row: inserted(number), "any")
    if function in ("NOW", "CURRENT_TIMESTAMP"):
        digits = int(compile_expression(arguments[0], scope).value) if arguments else 0
        return literal(time_text(facts.now_us(), digits), "text")
    if function == "UNIX_TIMESTAMP":
        return _unix_time([compile_expression(one, scope) for one in arguments], facts)
    compiled = [compile_expression(one, scope) for one in arguments]
    if function in _FUNCTIONS:
        kind, apply = _FUNCTIONS[function]
        gets = [one.function for one in compiled]
        constant = all(one.constant for one in compiled)
        kind = kind or _common([one.kind for one in compiled])
        return Compiled(lambda row: apply([get(row) for get in gets]), kind, constant=constant)
    if compiled:
        raise SqlError(1305, f"FUNCTION {function} does not exist")
    value = facts.call(function)
    return literal(value, "text" if value is None else "")


def _common(kinds: Sequence[str]) -> str:
    """Returns the kind of what may have each of these kinds."""
    for kind in ("any", "text", "blob", "label", "bytes", "double", "decimal", "int", "long", "uint"):
        if kind in kinds:
            return kind
    return "null"


def _unix_time(arguments: list[Compiled], facts: Facts) -> Compiled:
    if not arguments:
        return literal(facts.now_us() // 1_000_000)
    text = str(arguments[0].value)
    seconds = seconds_of(text[:19])
    return literal(Decimal(f"{seconds}.{text[20:]}") if len(text) > 20 else seconds)


def time_text(micros: int, digits: int) -> str:
    """Prints a time in microseconds since 1970, in UTC, with digits of its second's fraction."""
    seconds, rest = divmod(micros, 1_000_000)
    days, second = divmod(seconds, 86_400)
    text = f"{_date_text(days)} {second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}"
    return f"{text}.{rest:06d}"[: 20 + digits] if digits else text


def _date_text(days: int) -> str:
    """Returns the date of a number of days since 1970 in the Gregorian calendar."""
    from datetime import date

    return date.fromordinal(719_163 + days).isoformat()


def _greatest(values: Sequence[Any]) -> Any:
    return None if None in values else max(map(as_number, values))


def _least(values: Sequence[Any]) -> Any:
    return None if None in values else min(map(as_number, values))


def _coalesce(values: Sequence[Any]) -> Any:
    return next((value for value in values if value is not None), None)


def _concat(values: Sequence[Any]) -> Any:
    return None if None in values else "".join(map(as_text, values))


_FUNCTIONS: dict[str, tuple[str, Callable[[Sequence[Any]], Any]]] = {
    "GREATEST": ("", _greatest),
    "LEAST": ("", _least),
    "COALESCE": ("", _coalesce),
    "IFNULL": ("", _coalesce),
    "CONCAT": ("text", _concat),
    "REPEAT": ("text", lambda values: as_text(values[0]) * int(values[1])),
    "GTID_SUBSET": ("int", lambda values: int(Gtids(str(values[0])).within(Gtids(str(values[1]))))),
    "GTID_SUBTRACT": ("text", lambda values: str(Gtids(str(values[0])).minus(Gtids(str(values[1]))))),
}
_KINDS: dict[str, Callable[[Expression, Scope], Compiled]] = {
    "op": _op,
    "not": _not,
    "negative": _negative,
    "in": _in,
    "between": _between,
    "null": _null,
    "like": _like,
    "cast": _cast,
    "convert": _convert,
    "call": _call,
}
