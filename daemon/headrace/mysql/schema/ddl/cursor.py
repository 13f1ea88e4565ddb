"""Steps over tokens: the basic operations of every part of the parser."""

from __future__ import annotations

from headrace.mysql.schema.ddl.actions import TableName
from headrace.mysql.sql.dialect import Dialect
from headrace.mysql.sql.tokens import NotParsed, Token
from headrace.mysql.values.charsets import NO_CHARACTER

_END = Token("end", "", "", -1)


class Cursor:
    """A position in a statement's tokens. Unexpected tokens raise NotParsed."""

    def __init__(self, tokens: list[Token], dialect: Dialect, schema: str) -> None:
        self.tokens, self.dialect, self.schema = tokens, dialect, schema
        self.i = 0

    def peek(self, ahead: int = 0) -> Token:
        """Returns the token there; one of kind "end" after the last."""
        i = self.i + ahead
        return self.tokens[i] if i < len(self.tokens) else _END

    @property
    def done(self) -> bool:
        """Returns whether no token is left."""
        return self.i >= len(self.tokens)

    def sees(self, *words: str) -> bool:
        """Returns whether these keywords or operators come next, each in upper case."""
        return all(self._is(self.peek(n), word) for n, word in enumerate(words))

    def sees_any(self, *words: str) -> bool:
        """Returns whether one of these comes next."""
        return any(self._is(self.peek(), word) for word in words)

    def takes(self, *words: str) -> bool:
        """Steps over these keywords or operators if all come next; returns whether they did."""
        if not self.sees(*words):
            return False
        self.i += len(words)
        return True

    def takes_any(self, *words: str) -> str:
        """Steps over one of these if it comes next, and returns it; "" if none does."""
        for word in words:
            if self.takes(word):
                return word
        return ""

    def expect(self, *words: str) -> None:
        """Steps over these; they must come."""
        if not self.takes(*words):
            raise self.problem(f"{' '.join(words)} was expected")

    @staticmethod
    def _is(token: Token, word: str) -> bool:
        return token.upper == word if token.kind == "word" else token.kind == "op" and token.value == word

    def name(self) -> str:
        """Returns a name, quoted or not."""
        token = self.peek()
        if token.kind not in ("word", "name") or not token.value:
            raise self.problem("a name was expected")
        if NO_CHARACTER in token.value:
            raise self.problem("a name holds bytes that are no text")
        self.i += 1
        return token.value

    def table(self) -> TableName:
        """Returns a table's name, with the session's schema if it has none."""
        if self.takes("."):
            return self.schema, self.name()
        first = self.name()
        return (first, self.name()) if self.takes(".") else (self.schema, first)

    def column(self) -> str:
        """Returns a column's name, with or without its table before it."""
        name = self.name()
        while self.takes("."):
            name = self.name()
        return name

    def number(self) -> int:
        token = self.peek()
        if token.kind != "number" or not token.value.isdecimal() or len(token.value) > 20:
            raise self.problem("a number was expected")
        self.i += 1
        return int(token.value)

    def member(self) -> str | bytes:
        """Returns a string, or the bytes of a hexadecimal or bit literal."""
        token = self.peek()
        if token.kind != "bits":
            return self.string()
        self.i += 1
        digits = token.value[2:].rstrip("'")
        if token.value[0] in "xX" or token.value[1] == "x":
            return bytes.fromhex(digits.zfill(len(digits) + len(digits) % 2))
        return int(digits or "0", 2).to_bytes((len(digits) + 7) // 8, "big")

    def string(self) -> str:
        token = self.peek()
        if token.kind != "string":
            raise self.problem("a string was expected")
        self.i += 1
        return token.value

    def word_or_string(self) -> str:
        """Returns a name, a keyword or a string, as options allow them."""
        return self.string() if self.peek().kind == "string" else self.name()

    def parens(self) -> None:
        """Steps over a parenthesis and its content."""
        self.expect("(")
        depth = 1
        while depth:
            token = self.peek()
            if token.kind == "end":
                raise self.problem("a parenthesis has no end")
            self.i += 1
            if token.kind == "op":
                depth += (token.value == "(") - (token.value == ")")

    def skip_value(self) -> None:
        """Steps over the literal, name or list of an option."""
        if self.sees("("):
            self.parens()
            return
        self.takes_any("-", "+")
        if self.peek().kind in ("op", "end"):
            raise self.problem("a value was expected")
        self.i += 1

    def skips(self, *words: str) -> bool:
        """Steps over one of these and the value after it, with or without "="; returns whether one of them came
        next."""
        if not self.takes_any(*words):
            return False
        self.takes("=")
        self.skip_value()
        return True

    def end(self) -> None:
        """Checks that the statement ends here."""
        if not self.done:
            raise self.problem("the end was expected")

    def problem(self, what: str) -> NotParsed:
        """Returns the error for the present token."""
        token = self.peek()
        near = "at the end" if token.kind == "end" else f"near '{token.value[:40]}'"
        return NotParsed(f"{what} {near}")
