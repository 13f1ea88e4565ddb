"""Regexes for `schema.table` in Canal's grammar, with a limit on the time of one match.

The grammar is that of Canal's `AviaterRegexFilter`: regexes separated by commas, one of which must match the whole
name, in any case. Canal's regexes are Perl 5's (jakarta-oro, with `.` for every character); the `regex` package uses
the same notation. A brace that is no repeat, which that package reads otherwise than Perl, is refused. A plain name in
a rule is defined by `MQMessageUtils.isWildCard`: it has none of `*?+|(){}[]\\$^`."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Generic, Protocol, TypeVar

import regex

from headrace import runtime
from headrace.errors import HeadraceError

MATCH_LIMIT = 0.05
"""Maximum seconds of CPU time of one match, which blocks the event loop. The `regex` package uses the process's CPU
time, so that a process that was stopped, or waited for a processor, is not mistaken for a bad pattern."""
ALL_LIMIT = 4 * MATCH_LIMIT
"""The same for a match on each of several hundred names. A garbage collection during it does not indicate a bad
pattern."""
_MS = round(MATCH_LIMIT * 1000)
MAX_PATTERN = 20_000
"""Characters of one regex."""
_WILD = frozenset("*?+|(){}[]\\$^")
_REPEAT = re.compile(r"\{(?:[0-9]+(?:,[0-9]*)?|,[0-9]+)\}")
_SCHEMA = re.compile(r"([\w$-]+)(?:\\\.|\[\.\])")
_NAME_LENGTH = 64
"""Maximum characters of a schema's or table's name in MySQL."""


class PatternTooSlow(HeadraceError):
    """A regex of the configuration took longer on a name than the loop may be blocked."""

    reason = "config"
    retriable = False


class Pattern:
    """A compiled regex; `pattern` is its text, `key` the setting that has it."""

    __slots__ = ("_fullmatch", "key", "pattern")

    def __init__(self, pattern: str, key: str = "", *, plain: bool = False) -> None:
        """`plain`: the text is a name and no regex. Raises ValueError that says what is wrong, with the character's
        index as its second argument (from 0; -1 if there is none)."""
        self.pattern = pattern
        self.key = key
        self._fullmatch = _compile(re.escape(pattern) if plain else pattern).fullmatch

    def fullmatch(self, name: str) -> bool:
        """Returns whether the regex matches the whole name, in any case. Raises PatternTooSlow."""
        found = _timed(self._fullmatch, name)
        if found is None:
            where = f" of {self.key}" if self.key else ""
            raise PatternTooSlow(
                f"the regex {self.pattern[:200]!r}{where} took more than {_MS} ms on the name {name[:200]!r}",
                remedy=f"write the regex {self.pattern[:200]!r}{where} without repeats within repeats and without "
                "repeats of alternatives that begin alike, such as (a|aa)+",
            )
        return found


def _timed(fullmatch: Any, name: str) -> bool | None:
    """Returns whether it matches; None if it took too long."""
    try:
        return fullmatch(name, timeout=MATCH_LIMIT) is not None
    except TimeoutError:
        return None


class _Invalid(ValueError):
    """The error of a regex, and where: (sentence, index of the character or -1)."""


@lru_cache(maxsize=4096)
def _compile(text: str) -> Any:
    """Returns the compiled regex, after a test with names on which bad ones take very long. Raises _Invalid."""
    if len(text) > MAX_PATTERN:
        raise _Invalid(f"it has more than {MAX_PATTERN:,} characters", -1)
    _refuse_fuzzy(text)
    try:
        with warnings.catch_warnings():  # "possible nested set": it is valid today, and a filter is not our code
            warnings.simplefilter("ignore", FutureWarning)
            compiled = regex.compile(text, regex.IGNORECASE | regex.DOTALL)
    except regex.error as error:
        raise _Invalid(error.msg, -1 if error.pos is None else error.pos) from None
    except (OverflowError, RecursionError, MemoryError) as error:
        raise _Invalid(str(error) or type(error).__name__, -1) from None
    began = runtime.cpu()
    for name in () if is_plain(text) else _nasty_names(text):
        slow = _timed(compiled.fullmatch, name) is None
        if slow or runtime.cpu() - began > ALL_LIMIT:
            took = f"{_MS} ms" if slow else f"{ALL_LIMIT * 1000:.0f} ms with some more"
            raise _Invalid(
                f"on the name {name[:20]!r}... it takes more than {took}; write it without repeats within repeats "
                "and without repeats of alternatives that begin alike, such as (a|aa)+",
                -1,
            )
    return compiled


def _refuse_fuzzy(text: str) -> None:
    r"""Refuses `x{e<=1}` and `x{s}`, which are approximate matches to the `regex` package, and plain characters to
    Perl: the user must write `\{`."""
    for index, char in _outside_classes(text):
        named = re.search(r"\\[pPN]$", text[max(0, index - 2) : index])
        if char == "{" and not _REPEAT.match(text, index) and not named:
            raise _Invalid(r"a brace that is no repeat such as {2,4} should be written as \{", index)


def _outside_classes(text: str) -> Iterator[tuple[int, str]]:
    """Yields the characters of a regex that are neither after a backslash nor within [], with their indexes."""
    in_class = escaped = False
    for index, char in enumerate(text):
        if escaped:
            escaped = False
        elif char == "\\":
            escaped = True
        elif in_class:
            in_class = char != "]"
        elif char == "[":
            in_class = True
        else:
            yield index, char


def _nasty_names(text: str) -> Iterator[str]:
    """Yields names as long as MySQL allows, of characters in the regex, with one at the end that may not match."""
    chars = dict.fromkeys([*"a0_-中", *(char.lower() for char in text if char.isalnum())])
    words = [word for word in dict.fromkeys(re.findall(r"[\w-]+", text)) if 1 < len(word) <= _NAME_LENGTH]
    for part in [
        *list(chars)[:24],
        *words[:12],
        *("".join(pair) for pair in zip(chars, list(chars)[1:6], strict=False)),
    ]:
        name = (part * _NAME_LENGTH)[:_NAME_LENGTH]
        yield f"{name}.{name}"
        yield f"{name}.{name[:-1]}!"
        yield f"{name[:-1]}!.{name}"
        for word in words[:3]:  # a regex that is slow only after its schema
            yield f"{word}.{name[:-1]}!"


def is_plain(text: str) -> bool:
    """Returns whether a rule's text is a literal name; Canal does not read such a text as a regex."""
    return _WILD.isdisjoint(text)


def top_level(text: str, marks: str) -> Iterator[int]:
    """Yields the indexes of those characters of `marks` that are outside of (), [] and {} and not after a backslash."""
    depth = 0
    for index, char in _outside_classes(text):
        if char in "({":
            depth += 1
        elif char in ")}":
            depth = max(0, depth - 1)
        elif depth == 0 and char in marks:
            yield index


def split_patterns(text: str, marks: str = ",") -> list[tuple[int, str]]:
    """Splits a filter in Canal's grammar at its commas: (index of the first character, regex) for each part.

    A comma inside (), [] or {} and one after a backslash belong to the regex. Empty parts are dropped. `marks` are the
    separators."""
    parts: list[tuple[int, str]] = []
    start = 0
    for end in [*top_level(text, marks), len(text)]:
        part = text[start:end]
        if part.strip():
            parts.append((start + len(part) - len(part.lstrip()), part.strip()))
        start = end + 1
    return parts


def compile_filter(text: str, key: str = "", limit: float = math.inf) -> tuple[Pattern, ...]:
    """Returns the regexes of a filter in Canal's grammar, for use with `fullmatch` on `schema.table`; `key` is the
    setting.

    As in Canal the case of letters does not count. Raises ValueError that names the pattern and the character, also if
    reading them takes longer than `limit`, in seconds of CPU time."""
    began, patterns = runtime.cpu(), list[Pattern]()
    for number, (at, part) in enumerate(split_patterns(text), 1):
        if runtime.cpu() - began > limit:
            raise ValueError(f"regex {number}, from character {at + 1}, is one too many: to read them takes too long")
        patterns.append(compile_part(part, at, f"regex {number}", key))
    return tuple(patterns)


def compile_part(part: str, at: int, what: str, key: str = "", *, plain: bool = False) -> Pattern:
    """Returns one regex that begins at index `at` of a setting. Raises ValueError that begins with `what` and has the
    position."""
    try:
        return Pattern(part, key, plain=plain)
    except _Invalid as error:
        sentence, character = error.args
        if character >= 0:
            raise ValueError(f"{what} is invalid at character {at + character + 1}: {sentence}") from None
        raise ValueError(f"{what}, from character {at + 1}, is invalid: {sentence}") from None


def compile_table(part: str, at: int, what: str, key: str) -> Pattern:
    """Does what compile_part() does; a plain name must be a table's, with its schema."""
    plain = is_plain(part)
    if plain and "." not in part:
        raise ValueError(f"{what}, from character {at + 1}, should name a table, as in schema.{part} or {part}\\..*")
    return compile_part(part, at, what, key, plain=plain)


def named_schemas(text: str) -> tuple[str, ...]:
    r"""Returns the schemas that a filter is about, if each of its regexes begins with a literal schema name, as in
    `shop\..*`; else none."""
    names = []
    for _, part in split_patterns(text):
        found = _SCHEMA.match(part)
        if is_plain(part) and "." in part:
            names.append(part.partition(".")[0])
        elif found is not None and not any(top_level(part, "|")):
            names.append(found[1])
        else:
            return ()
    return tuple(dict.fromkeys(names))


def named_tables(text: str) -> tuple[list[tuple[str, str]], bool]:
    """Returns the tables that a filter names literally, and whether it selects no others."""
    parts = [part for _, part in split_patterns(text)]
    names = [(schema, table) for schema, dot, table in (p.partition(".") for p in parts if is_plain(p)) if dot]
    return names, len(names) == len(parts)


def only_colon(text: str, at: int, where: str) -> int | None:
    """Returns the index of a rule's colon; None without one. Raises ValueError for a second one."""
    colons = list(top_level(text, ":"))
    if len(colons) > 1:
        raise ValueError(f"{where} has a second colon at character {at + colons[1] + 1} (write `\\:` within a regex)")
    return colons[0] if colons else None


class _Rule(Protocol):
    @property
    def rule(self) -> str:
        """Returns its text."""


_RuleT = TypeVar("_RuleT", bound=_Rule)


@dataclass(frozen=True, slots=True)
class Rules(Generic[_RuleT]):
    """Rules in order, each with the pattern that selects it."""

    entries: tuple[tuple[Pattern, _RuleT], ...]

    @property
    def rules(self) -> tuple[str, ...]:
        """Returns the text of each rule, in order."""
        return tuple(rule.rule for _, rule in self.entries)

    def first(self, name: str) -> _RuleT | None:
        """Returns the first rule whose pattern matches the whole name; None if none does. Not cached. Raises
        PatternTooSlow."""
        return next((rule for pattern, rule in self.entries if pattern.fullmatch(name)), None)
