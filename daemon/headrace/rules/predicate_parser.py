"""Reads a condition on a row, such as `city = "北京" and price > 100`, into a tree.

    condition  = and-part { "or" and-part }
    and-part   = not-part { "and" not-part }
    not-part   = { "not" } ( "(" condition ")" | comparison )
    comparison = column operator literal | literal operator column
               | column ["not"] "in" "(" literal { "," literal } ")"
               | column ["not"] "between" literal "and" literal
               | column ["not"] "like" text
               | column "is" ["not"] "null"
    operator   = "=" | "==" | "!=" | "<>" | "<" | "<=" | ">" | ">="
    literal    = number | text | "true" | "false"

Words may be written in any case. A column is a name, or any text in backquotes. Texts stand in '…' or "…", with MySQL's
escapes. NULL is no literal: a comparison with it is never true in SQL, so only `is null` is taken.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal

MAX_LENGTH = 10_000
"""Characters of a condition."""
MAX_DEPTH = 20
"""Brackets within brackets."""
_MAX_DIGITS = 100
_TOKEN = re.compile(
    r"""[ \t\r\n]*(?:
    (?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
  | (?P<text>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
  | (?P<quoted>`(?:[^`]|``)+`)
  | (?P<name>[^\W0-9][\w$]*)
  | (?P<mark><=|>=|<>|!=|==|[=<>(),+-])
  | (?P<end>\Z)
    )""",
    re.VERBOSE | re.DOTALL,
)
_WORDS = frozenset({"and", "or", "not", "in", "between", "like", "is", "null", "true", "false"})
_OPERATORS = {"=": "==", "==": "==", "!=": "!=", "<>": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_MIRRORED = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_ESCAPES = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": "\\%", "_": "\\_"}
_AMISS = {
    "!": "write not",
    "&": "write and",
    "|": "write or",
    "`": "a column's name in backquotes has no end",
    "'": "the text has no end",
    '"': "the text has no end",
}


@dataclass(frozen=True, slots=True)
class Literal:
    """A literal; `at` is the index of its first character."""

    value: str | int | Decimal | bool
    text: str
    at: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """A column and what it is compared with: one literal by an operator of Python's or by "like", several by "in", none
    by "is null"."""

    column: str
    operator: str
    literals: tuple[Literal, ...] = ()


@dataclass(frozen=True, slots=True)
class Not:
    """The negation."""

    part: Node


@dataclass(frozen=True, slots=True)
class Many:
    """All of the parts (`every`), or one of them."""

    every: bool
    parts: tuple[Node, ...]


Node = Comparison | Not | Many


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    at: int

    @property
    def word(self) -> str:
        """Returns the keyword or mark that it is, "" for anything else."""
        if self.kind == "mark":
            return self.text
        lowered = self.text.lower() if self.kind == "name" else ""
        return lowered if lowered in _WORDS else ""


def parse_condition(text: str) -> Node:
    """Returns the tree of a condition. Raises ValueError with the character's position and what was expected there."""
    if len(text) > MAX_LENGTH:
        raise ValueError(f"should have at most {MAX_LENGTH:,} characters")
    return _Parser(_tokens(text)).whole()


def _tokens(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    at = 0
    while not tokens or tokens[-1].kind != "end":
        found = _TOKEN.match(text, at)
        if found is None or found.lastgroup is None:
            start = at + len(text[at:]) - len(text[at:].lstrip(" \t\r\n"))
            hint = _AMISS.get(text[start], "it has no meaning here")
            raise ValueError(f"{text[start]!r} at character {start + 1}: {hint}")
        kind, start = found.lastgroup, found.start(found.lastgroup)
        if kind == "name" and tokens and tokens[-1].kind == "number" and tokens[-1].at + len(tokens[-1].text) == start:
            raise ValueError(f"{found[kind][:40]!r} at character {start + 1} should not touch the number before it")
        tokens.append(_Token(kind, found[kind], start))
        at = found.end()
    return tokens


class _Parser:
    """Recursive descent, as deep as parentheses."""

    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._next = 0
        self._depth = 0

    def whole(self) -> Node:
        node = self._either()
        if self._token.kind != "end":
            raise self._expected('"and", "or" or the end')
        return node

    @property
    def _token(self) -> _Token:
        return self._tokens[self._next]

    def _take(self) -> _Token:
        token = self._token
        self._next += token.kind != "end"
        return token

    def _took(self, *words: str) -> bool:
        if self._token.word and self._token.word in words:
            self._next += 1
            return True
        return False

    def _expected(self, what: str) -> ValueError:
        token = self._token
        found = "the end" if token.kind == "end" else repr(token.text[:40])
        return ValueError(f"{found} at character {token.at + 1} should be {what}")

    def _want(self, word: str, what: str = "") -> None:
        if not self._took(word):
            raise self._expected(what or f'"{word}"')

    def _either(self) -> Node:
        return self._many("or", self._all)

    def _all(self) -> Node:
        return self._many("and", self._negated)

    def _many(self, word: str, part: Callable[[], Node]) -> Node:
        parts = [part()]
        while self._took(word):
            parts.append(part())
        return parts[0] if len(parts) == 1 else Many(word == "and", tuple(parts))

    def _negated(self) -> Node:
        negated = False
        while self._took("not"):
            negated = not negated
        if self._took("("):
            self._depth += 1
            if self._depth > MAX_DEPTH:
                self._next -= 1
                raise ValueError(f"'(' at character {self._token.at + 1} is nested more than {MAX_DEPTH} deep")
            node = self._either()
            self._want(")", '"and", "or" or ")"')
            self._depth -= 1
        else:
            node = self._comparison()
        return _not(node, negated)

    def _comparison(self) -> Node:
        token = self._token
        if token.kind in ("number", "text") or token.word in ("true", "false", "+", "-", "null"):
            literal = self._literal()
            operator = self._operator()
            return Comparison(self._column(), _MIRRORED[operator], (literal,))
        column = self._column()
        if self._took("is"):
            negated = self._took("not")
            self._want("null", '"null"' if negated else '"null" or "not null"')
            return _not(Comparison(column, "is null"), negated)
        negated = self._took("not")
        if self._took("in"):
            return _not(Comparison(column, "in", self._list()), negated)
        if self._took("between"):
            low = Comparison(column, ">=", (self._literal(),))
            self._want("and")
            high = Comparison(column, "<=", (self._literal(),))
            return _not(Many(True, (low, high)), negated)
        if self._took("like"):
            if self._token.kind != "text":
                raise self._expected("a text in quotes")
            return _not(Comparison(column, "like", (self._literal(),)), negated)
        if negated:
            raise self._expected('"in", "between" or "like"')
        return Comparison(column, self._operator(), (self._literal(),))

    def _list(self) -> tuple[Literal, ...]:
        self._want("(")
        literals = [self._literal()]
        while self._took(","):
            literals.append(self._literal())
        self._want(")", '"," or ")"')
        return tuple(literals)

    def _operator(self) -> str:
        operator = _OPERATORS.get(self._token.word)
        if operator is None:
            raise self._expected("an operator such as =, <>, <, >=, in, between, like or is")
        self._next += 1
        return operator

    def _column(self) -> str:
        token = self._token
        if token.kind == "quoted":
            return self._take().text[1:-1].replace("``", "`")
        if token.kind == "name" and not token.word:
            return self._take().text
        raise self._expected("a column (in backquotes when it is a word of the language)" if token.word else "a column")

    def _literal(self) -> Literal:
        token = self._token
        if token.kind == "text":
            return Literal(_unquoted(self._take().text), token.text, token.at)
        if token.word in ("true", "false"):
            return Literal(self._take().word == "true", token.text, token.at)
        if token.word == "null":
            raise ValueError(
                f"{token.text!r} at character {token.at + 1}: a comparison with NULL is never true; "
                "write is null or is not null"
            )
        sign = self._take().text if token.word in ("+", "-") else ""
        if self._token.kind != "number":
            raise self._expected("a number" if sign else "a number, a text in quotes, true or false")
        number = self._take()
        return Literal(_number(sign + number.text, number.at), sign + number.text, token.at)


def _not(node: Node, negated: bool) -> Node:
    return Not(node) if negated else node


def _number(text: str, at: int) -> int | Decimal:
    value = Decimal(text)
    if len(value.as_tuple().digits) > _MAX_DIGITS or abs(value.adjusted()) > 400:
        raise ValueError(f"the number at character {at + 1} has too many digits")
    return int(value) if value == value.to_integral_value() else value


def _unquoted(text: str) -> str:
    """Returns a text's characters. As in MySQL `\\%` and `\\_` keep their backslash, which LIKE reads."""
    quote = text[0]
    return re.sub(
        rf"\\(.)|{quote}{quote}",
        lambda found: quote if found[1] is None else _ESCAPES.get(found[1], found[1]),
        text[1:-1],
        flags=re.DOTALL,
    )
