"""Splits SQL into tokens as MySQL and MariaDB do, without comments, and with the content of executable comments."""

from __future__ import annotations

import contextlib
import re
from typing import NamedTuple

from headrace.mysql.sql.dialect import Dialect

_ANSI_QUOTES, _NO_BACKSLASH_ESCAPES = 1 << 2, 1 << 20
_MOST = 2_000_000
"""Characters of a statement that is read; a larger one is not understood."""


class NotParsed(ValueError):
    """A statement, or a part of one, was not understood completely; the text says where."""


class Token(NamedTuple):
    """A token. `kind`: word (a name or keyword without quotes), name (a quoted name), string, number, bits (hex and bit
    literals), variable, op (one character). `value` is its meaning; words keep their case."""

    kind: str
    value: str
    upper: str
    """The value in upper case for a word, else ""."""
    at: int


_SPACE, _SPACE_OR_NBSP = re.compile(r"[\s\x00]+", re.ASCII), re.compile(r"[\s\x00\xa0]+", re.ASCII)
_LINE_COMMENT = re.compile(r"(?:#|--(?=[\s\x00-\x1f]|$))[^\n]*")
_WORD = re.compile(r"[0-9A-Za-z_$\u0080-\U0010ffff]+")
_WORD_WITHOUT_NBSP = re.compile(r"[0-9A-Za-z_$\u0080-\u009f\u00a1-\U0010ffff]+")
_NUMBER = re.compile(r"(?:\d++(?:\.\d*+)?|\.\d++)(?:[eE][+-]?\d++)?+(?![0-9A-Za-z_$\u0080-\U0010ffff])")
_BITS = re.compile(r"(?:0x[0-9A-Fa-f]++|0b[01]++)(?![0-9A-Za-z_$\u0080-\U0010ffff])|[xX]'[0-9A-Fa-f]*+'|[bB]'[01]*+'")
_EDGE = re.compile(r"/\*|\*/")
_VARIABLE = re.compile(r"@@?(?:[\w.$]+|`[^`]*`|'[^']*'|\"[^\"]*\")?")
_BACKQUOTED = re.compile(r"`(?:[^`]++|``)*+`")
_DOUBLED = {
    ("'", True): re.compile(r"'(?:[^'\\]++|\\.|'')*+'", re.DOTALL),
    ('"', True): re.compile(r'"(?:[^"\\]++|\\.|"")*+"', re.DOTALL),
    ("'", False): re.compile(r"'(?:[^']++|'')*+'"),
    ('"', False): re.compile(r'"(?:[^"]++|"")*+"'),
}
_ESCAPED = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": "\\%", "_": "\\_"}
_OPENER = re.compile(r"/\*(M?)!(\d{5,6})?")
_INTRODUCER = re.compile(r"_[0-9A-Za-z]+(?=[\s]*['\"xXbB0])|[nN](?=')")


def tokenize(sql: str, dialect: Dialect, most: int = 0) -> list[Token]:
    """Returns all tokens, or the first `most`, without comments and a last semicolon. Raises NotParsed for text without
    end."""
    if len(sql) > _MOST and not most:
        raise NotParsed(f"the statement has {len(sql)} characters")
    return _Tokenizer(sql, dialect).run(most)


def first_tokens(sql: str, dialect: Dialect, most: int) -> list[Token]:
    """Returns the first `most` tokens, or those before text without end: what follows a statement's first words may not
    be text of the character set that it is read in."""
    tokenizer = _Tokenizer(sql, dialect)
    with contextlib.suppress(NotParsed):
        tokenizer.run(most)
    return tokenizer.tokens


class _Tokenizer:
    def __init__(self, sql: str, dialect: Dialect) -> None:
        self._sql, self._dialect, self._at = sql, dialect, 0
        self._ansi = bool(dialect.sql_mode & _ANSI_QUOTES)
        self._escapes = not dialect.sql_mode & _NO_BACKSLASH_ESCAPES
        self._space = _SPACE_OR_NBSP if dialect.nbsp_is_space else _SPACE
        self._word = _WORD_WITHOUT_NBSP if dialect.nbsp_is_space else _WORD
        self._inside = 0
        self.tokens: list[Token] = []

    def run(self, most: int) -> list[Token]:
        sql, size = self._sql, len(self._sql)
        while self._at < size:
            if most and len(self.tokens) >= most:
                return self.tokens
            if match := self._space.match(sql, self._at) or _LINE_COMMENT.match(sql, self._at):
                self._at = match.end()
            elif sql.startswith("/*", self._at):
                self._comment()
            elif self._inside and sql.startswith("*/", self._at):
                self._inside -= 1
                self._at += 2
            else:
                self._token(sql[self._at])
        if self._inside:
            raise NotParsed("an executable comment has no end")
        while self.tokens and self.tokens[-1].kind == "op" and self.tokens[-1].value == ";":
            self.tokens.pop()
        return self.tokens

    def _comment(self) -> None:
        opener = _OPENER.match(self._sql, self._at)
        if opener is not None and self._executes(opener):
            self._inside += 1
            self._at = opener.end()
            return
        end = self._at + 2
        if opener is None:
            end = self._sql.find("*/", end) + 2
            if end < 2:
                raise NotParsed("a comment has no end")
        else:  # a comment within a comment that is not executed counts, as in the servers
            depth = 1
            for edge in _EDGE.finditer(self._sql, end):
                depth += 1 if edge[0] == "/*" else -1
                if not depth:
                    end = edge.end()
                    break
            else:
                raise NotParsed("a comment has no end")
        self._at = end

    def _executes(self, opener: re.Match[str]) -> bool:
        only_mariadb, digits = opener[1] == "M", opener[2]
        if only_mariadb and not self._dialect.mariadb:
            return False
        if digits is None:
            return True
        needed = int(digits)
        if self._dialect.mariadb and not only_mariadb and 50700 <= needed <= 99999:
            return False  # for MySQL only
        return needed <= self._dialect.version

    def _token(self, first: str) -> None:
        sql, at = self._sql, self._at
        if first == "`":
            self._add("name", self._match(_BACKQUOTED, "a quoted name")[1:-1].replace("``", "`"))
        elif first == '"' and self._ansi:
            self._add("name", self._match(_DOUBLED['"', False], "a quoted name")[1:-1].replace('""', '"'))
        elif first in "'\"":
            self._add("string", self._string(first))
        elif match := _VARIABLE.match(sql, at):
            self._step("variable", match)
        elif introducer := _INTRODUCER.match(sql, at):
            self._introduced(introducer)
        elif match := _BITS.match(sql, at):
            self._step("bits", match)
        elif not self._in_name() and (match := _NUMBER.match(sql, at)):
            self._step("number", match)
        elif match := self._word.match(sql, at):
            self._step("word", match)
        else:
            self._at += 1
            self._add("op", first, at)

    def _introduced(self, introducer: re.Match[str]) -> None:
        """Handles _latin1'x' and N'x': the text counts if any character set would read it alike."""
        start = self._at
        self._at = introducer.end()
        space = self._space.match(self._sql, self._at)
        self._at = space.end() if space else self._at
        quote = self._sql[self._at : self._at + 1]
        if quote not in ("'", '"') or (quote == '"' and self._ansi):
            bits = _BITS.match(self._sql, self._at)
            if bits is None:  # a name that begins with an underscore
                word = self._word.match(self._sql, start)
                assert word is not None
                self._step("word", word)
                return
            self._at = bits.end()
            self._add("bits", bits[0], start)
            return
        text = self._string(quote)
        plain = text.isascii() or introducer[0] in "nN" or introducer[0].lower() in ("_utf8", "_utf8mb3", "_utf8mb4")
        self._add("string" if plain else "bits", text, start)

    def _in_name(self) -> bool:
        """Returns whether a name or the point before it comes: `.1` and `1` of `shop.1` are no numbers."""
        if not self.tokens:
            return False
        last = self.tokens[-1]
        if self._sql[self._at] == ".":
            return last.kind in ("word", "name")
        return last.kind == "op" and last.value == "." and last.at == self._at - 1

    def _string(self, quote: str) -> str:
        body = self._match(_DOUBLED[quote, self._escapes], "a string")[1:-1]
        return _undouble(body, quote) if self._escapes and "\\" in body else body.replace(quote * 2, quote)

    def _match(self, pattern: re.Pattern[str], what: str) -> str:
        match = pattern.match(self._sql, self._at)
        if match is None:
            raise NotParsed(f"{what} has no end")
        self._at = match.end()
        return match[0]

    def _step(self, kind: str, match: re.Match[str]) -> None:
        """Steps over a token whose value is its text."""
        self._at = match.end()
        self._add(kind, match[0], match.start())

    def _add(self, kind: str, value: str, at: int | None = None) -> None:
        upper = value.upper() if kind == "word" else ""
        self.tokens.append(Token(kind, value, upper, self._at if at is None else at))


def _undouble(body: str, quote: str) -> str:
    """Returns a string's text with escapes and doubled quotes resolved; each pair is read once, from left to right."""
    pattern = re.compile(r"\\(.)|" + quote * 2, re.DOTALL)
    return pattern.sub(lambda m: quote if m[1] is None else _ESCAPED.get(m[1], m[1]), body)
