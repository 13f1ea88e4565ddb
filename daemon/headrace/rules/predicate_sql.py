"""Prints a condition on rows as SQL, for the source. It can refer only to columns of the table."""

from __future__ import annotations

from decimal import Decimal

from headrace.rules.predicate_parser import Comparison, Literal, Many, Node

_OPERATORS = {"==": "=", "!=": "<>"}


def to_sql(node: Node) -> str:
    """Returns the condition for MySQL and MariaDB. Columns compare by their own collations there."""
    if isinstance(node, Many):
        return f"({(' AND ' if node.every else ' OR ').join(map(to_sql, node.parts))})"
    if not isinstance(node, Comparison):
        return f"(NOT {to_sql(node.part)})"
    column = f"`{node.column.replace('`', '``')}`"
    if node.operator == "is null":
        return f"({column} IS NULL)"
    if node.operator == "in":
        return f"({column} IN ({', '.join(map(_literal, node.literals))}))"
    operator = "LIKE" if node.operator == "like" else _OPERATORS.get(node.operator, node.operator)
    return f"({column} {operator} {_literal(node.literals[0])})"


def columns_of(node: Node) -> set[str]:
    """Returns the columns that it names, in lower case."""
    if isinstance(node, Comparison):
        return {node.column.lower()}
    return set[str]().union(*map(columns_of, node.parts if isinstance(node, Many) else (node.part,)))


def _literal(literal: Literal) -> str:
    value = literal.value
    if isinstance(value, str):  # as hex digits, independent of the session's escapes
        return f"_utf8mb4 0x{value.encode().hex()}" if value else "''"
    if isinstance(value, Decimal):
        return f"({value:f})"
    return str(value).upper() if isinstance(value, bool) else f"({value})"
