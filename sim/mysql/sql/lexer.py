"""Splits a statement into tokens (MySQL manual, "Lexical Structure")."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from sim.mysql.collations import codec_of
from sim.mysql.errors import unknown_statement

_TOKEN = re.compile(
    r"""(?P<space>\s+|--[ \t][^\n]*|\#[^\n]*|/\*.*?\*/)
    |(?P<param>\x00)
    |(?P<hex>[xX]'[0-9a-fA-F]*'|0x[0-9a-fA-F]+)
    |(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)
    |(?P<variable>@@(?:(?:global|session|local)\.)?\w+|@[\w.$]+)
    |(?P<name>`(?:[^`]|``)+`)
    |(?P<word>[A-Za-z_\u0080-\uffff][\w$]*)
    |(?P<string>'(?:[^'\\]|''|\\.)*'|"(?:[^"\\]|""|\\.)*")
    |(?P<op><=>|<=|>=|<>|!=|:=|\|\||&&|[-+*/%(),.;=<>!])""",
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "b": "\b", "Z": "\x1a", "%": "\\%", "_": "\\_"}
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Token:
    """A token: its kind, its value (of a word in capitals, of the mark of a literal its number), and its text."""

    kind: str
    value: Any
    text: str
    begin: int = 0
    end: int = 0
    """Where it is in the statement."""


def tokenize(sql: str) -> list[Token]:
    """Returns the tokens of a statement, and one of kind "end". Raises SqlError 1064."""
    found, at, params = list[Token](), 0, 0
    while at < len(sql):
        match = _TOKEN.match(sql, at)
        if match is None:
            raise unknown_statement(sql[at:])
        kind, text, begin, at = match.lastgroup or "", match.group(), at, match.end()
        if kind == "space":
            continue
        token = _token(kind, text) if kind != "param" else Token(kind, params, "?")
        params += kind == "param"
        # a character set before a string says in what its bytes are
        if token.kind in ("bytes", "string") and found and found[-1].kind == "word" and found[-1].text[0] == "_":
            before = found.pop()
            begin, token = before.begin, _introduced(before.text[1:].lower(), token)
        found.append(replace(token, begin=begin, end=at))
    while found and found[-1].text == ";":
        found.pop()
    found.append(Token("end", None, ""))
    return found


def _token(kind: str, text: str) -> Token:
    if kind == "word":
        return Token(kind, text.upper(), text)
    if kind == "name":
        name = text[1:-1].replace("``", "`")
        return Token(kind, name, name)
    if kind == "string":
        quote = text[0]
        plain = text[1:-1].replace(quote * 2, quote)
        if "\\" in plain:
            plain = _ESCAPE.sub(lambda one: _ESCAPES.get(one[1], one[1]), plain)
        return Token(kind, plain, text)
    if kind == "hex":
        digits = text[2:-1] if text[1] == "'" else text[2:]
        return Token("bytes", bytes.fromhex(digits if len(digits) % 2 == 0 else "0" + digits), text)
    return Token(kind, text, text)


def _introduced(charset: str, token: Token) -> Token:
    if charset == "binary":
        value = token.value if isinstance(token.value, bytes) else token.value.encode()
        return Token("bytes", value, token.text)
    value = token.value.decode(codec_of(charset)) if isinstance(token.value, bytes) else token.value
    return Token("string", value, token.text)
