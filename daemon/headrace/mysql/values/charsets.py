"""MySQL's character sets: the one of each collation, and how their bytes become text."""

from __future__ import annotations

import contextlib
import re
from codecs import charmap_decode
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from headrace.mysql.values import multibyte

BINARY = 63
"""The collation id of binary strings."""
UNKNOWN = "unknown"
"""The character set of a text of which a binlog says neither that nor whether it is binary: read as UTF-8, with every
other byte as an escape."""


class UnknownType(ValueError):
    """A column type or character set that headrace does not decode; the text says which."""


@dataclass(frozen=True, slots=True)
class Codec:
    """The decoder of one character set: Python's codec of that name, or, if `python` is "", `decode` alone, which works
    in both cases. It raises UnicodeDecodeError for invalid bytes."""

    python: str
    decode: Callable[[bytes], str]


_COLLATIONS = {
    "big5": "1 84 1025 1108",
    "latin2": "2 9 21 27 77 1033 1101",
    "dec8": "3 69 1027 1093",
    "cp850": "4 80 1028 1104",
    "latin1": "5 8 15 31 47-49 94 1032 1071",
    "hp8": "6 72 1030 1096",
    "koi8r": "7 74 1031 1098",
    "swe7": "10 82 1034 1106",
    "ascii": "11 65 1035 1089",
    "ujis": "12 91 1036 1115",
    "sjis": "13 88 1037 1112",
    "cp1251": "14 23 50-52 1074-1075",
    "hebrew": "16 71 1040 1095",
    "tis620": "18 89 1042 1113",
    "euckr": "19 85 1043 1109",
    "latin7": "20 41-42 79 1065 1103",
    "koi8u": "22 75 1046 1099",
    "gb2312": "24 86 1048 1110",
    "greek": "25 70 1049 1094",
    "cp1250": "26 34 44 66 99 1050 1090",
    "gbk": "28 87 1052 1111",
    "cp1257": "29 58-59 1082-1083",
    "latin5": "30 78 1054 1102",
    "armscii8": "32 64 1056 1088",
    "utf8mb3": "33 76 83 192-215 223 576-579 1057 1107 1216 1238 2048-2303",
    "ucs2": "35 90 128-151 159 640-642 1059 1114 1152 1174 2560-2815",
    "cp866": "36 68 1060 1092",
    "keybcs2": "37 73 1061 1097",
    "macce": "38 43 1062 1067",
    "macroman": "39 53 1063 1077",
    "cp852": "40 81 1064 1105",
    "utf8mb4": "45-46 224-247 255-323 608-611 1069-1070 1248 1270 2304-2559",
    "utf16": "54-55 101-124 672-674 1078-1079 1125 1147 2816-3071",
    "utf16le": "56 62 1080 1086",
    "cp1256": "57 67 1081 1091",
    "utf32": "60-61 160-183 736-738 1084-1085 1184 1206 3072-3327",
    "binary": "63",
    "geostd8": "92-93 1116-1117",
    "cp932": "95-96 1119-1120",
    "eucjpms": "97-98 1121-1122",
    "gb18030": "248-250",
}
"""The ids of both servers' collations. MariaDB adds 1024 for NO PAD, and makes the ids of its UCA 14 collations as 2048
+ 256 x character set + 8 x language + flags."""


def _spread() -> dict[int, str]:
    names: dict[int, str] = {}
    for name, text in _COLLATIONS.items():
        for part in text.split():
            first, _, last = part.partition("-")
            names |= dict.fromkeys(range(int(first), int(last or first) + 1), name)
    return names


_BY_COLLATION = _spread()
_PYTHON = {
    "utf8mb4": ("utf-8", 4),
    "utf8mb3": ("utf-8", 3),
    "utf16": ("utf-16-be", 4),
    "utf16le": ("utf-16-le", 4),
    "utf32": ("utf-32-be", 4),
    "gbk": ("gbk", 2),
    "gb2312": ("gb2312", 2),
    "euckr": ("cp949", 2),
    "binary": ("utf-8", 1),  # for labels only: binary strings stay bytes
    "ascii": ("ascii", 1),
}
"""Character sets for which Python's codec agrees with the server on every code, with the bytes of the longest
character. The test `tests/integration/test_types_charsets.py` compares every code of every character set on the
servers."""

_NONE = "\ufffe"
"""Marks a code without a character in a table of 256 characters."""
_SINGLE: dict[str, tuple[str, dict[int, str]]] = {
    "latin2": ("iso8859-2", {}),
    "latin5": ("iso8859-9", {}),
    "latin7": ("iso8859-13", {}),
    "koi8r": ("koi8-r", {}),
    "cp850": ("cp850", {}),
    "cp852": ("cp852", {}),
    "cp1250": ("cp1250", {}),
    "cp1251": ("cp1251", {}),
    "cp1257": ("cp1257", {}),
    "macroman": ("mac-roman", {}),
    "macce": ("mac-latin2", {}),
    "hp8": ("hp-roman8", {}),
    "latin1": ("cp1252", {code: chr(code) for code in (0x81, 0x8D, 0x8F, 0x90, 0x9D)}),
    "hebrew": ("iso8859-8", {0xAF: "\u203e"}),
    "greek": ("iso8859-7", {0xA1: "\u02bd", 0xA2: "\u02bc", 0xA4: _NONE, 0xA5: _NONE, 0xAA: _NONE}),
    "koi8u": ("koi8-u", {0x95: "\u2022"}),
    "cp866": ("cp866", {0xFC: "\u207f", 0xFD: "\u00b2"}),
    "cp1256": ("cp1256", dict.fromkeys((0x8A, 0x8F, 0x98, 0x9A, 0x9F, 0xAA, 0xC0, 0xFF), _NONE)),
    "tis620": ("tis-620", dict.fromkeys((0xA0, *range(0xDB, 0xDF), *range(0xFC, 0x100)), "\ufffd")),
    "swe7": ("ascii", dict(zip(b"@[\\]^`{|}~\x7f", f"ÉÄÖÅÜéäöåü{_NONE}", strict=True))),
    "dec8": (
        "latin1",
        dict.fromkeys(bytes.fromhex("a4a6acadaeafb4b8bed0def0feff"), _NONE)
        | {0xA8: "\u00a4", 0xD7: "\u0152", 0xDD: "\u0178", 0xF7: "\u0153", 0xFD: "\u00ff"},
    ),
    "armscii8": ("latin1", dict(enumerate("\u2741§\u0589)(»«—.\u055d,-\u055f…\u055c\u055b\u055e", 0xA1))),
    "geostd8": (
        "latin1",
        dict.fromkeys((*range(0x80, 0xA0), *range(0xE6, 0x100)), _NONE)
        | {0x80: "€", 0x82: "\u201a", 0x84: "\u201e", 0x85: "…", 0x86: "†", 0x87: "‡", 0x89: "‰", 0x8B: "\u2039"}
        | dict(enumerate("\u2018\u2019\u201c\u201d•\u2013\u2014", 0x91))
        | {0x9B: "\u203a", 0xFD: "№"}
        | dict(enumerate("აბგდევზ\u10f1თიკლმნ\u10f2ოპჟრსტ\u10f3უფქღყშჩცძწჭხ\u10f4ჯჰ\u10f5", 0xC0)),
    ),
    "keybcs2": (
        "cp437",
        dict(enumerate("ČüéďäĎŤčěĚĹÍľĺÄÁÉžŽôöÓůÚýÖÜŠĽÝŘťáíóúňŇŮÔšřŕŔ¼¡«»", 0x80)),
    ),
}
"""Python's codec and where the server differs, for one byte a character: a table of our own is three times as fast as
looking up Python's codec by name. `\ufffd` is what the server itself gives for some codes."""
_SINGLE["armscii8"][1].update(
    {0xB2 + i: chr((0x531, 0x561)[i % 2] + i // 2) for i in range(76)} | {0xFE: "\u2019", 0xFF: "'"}
)
_ALIASES = {"utf8": "utf8mb3"}
WIDTHS = {
    **{name: width for name, (_, width) in _PYTHON.items()},
    **dict.fromkeys(_SINGLE, 1),
    **{name: width for name, (width, _) in multibyte.DECODERS.items()},
}
"""Maximum bytes of a character, for every character set of either server."""


NO_CHARACTER = "\ufffd"
"""Replaces in a statement a code that has no Unicode character, or is invalid in the session's character set."""


def charset_of(collation: int) -> str:
    """Returns MySQL's name of the character set that a collation id belongs to. Raises UnknownType."""
    name = _BY_COLLATION.get(collation)
    if name is None:
        raise UnknownType(f"collation {collation} is not known")
    return name


_EUC_JP = frozenset({"ujis", "eucjpms"})
"""MySQL stores 8EA0 in these, and SELECT prints it as two question marks."""


def replaced(raw: bytes, charset: str, mark: str = "?") -> tuple[str, bool]:
    """Returns the text as SELECT prints it, with `mark` for each code that has no Unicode character; and whether all
    codes are well formed. Raises UnknownType."""
    decode, text, well_formed = codec_of(charset).decode, list[str](), True
    with contextlib.suppress(UnicodeDecodeError):
        return decode(raw), True
    stray = _ALIASES.get(charset, charset) in multibyte.CODES
    for code in split_of(charset)(raw):
        try:
            text.append(decode(code))
        except UnicodeDecodeError:
            text.append(mark * (2 if code == b"\x8e\xa0" and charset in _EUC_JP else 1))
            well_formed &= len(code) > 1 or not stray
    return "".join(text), well_formed


@lru_cache(maxsize=256)
def split_of(charset: str) -> Callable[[bytes], list[bytes]]:
    """Returns a function that splits a text into its codes. A byte that belongs to none is a code of its own."""
    codes = multibyte.CODES.get(_ALIASES.get(charset, charset), b".")
    return re.compile(codes + b"|.", re.DOTALL).findall


@lru_cache(maxsize=256)
def codec_of(charset: str) -> Codec:
    """Returns the codec of a character set by MySQL's name (`utf8` is `utf8mb3`). Raises UnknownType."""
    name = _ALIASES.get(charset, charset)
    if name in _PYTHON:
        python, _ = _PYTHON[name]
        return Codec(python, lambda raw: raw.decode(python))
    if name in _SINGLE:
        return Codec("", _single(name))
    if name in multibyte.DECODERS:
        return Codec("", multibyte.DECODERS[name][1])
    if name == UNKNOWN:
        return Codec("", lambda raw: raw.decode("utf-8", "backslashreplace"))
    raise UnknownType(f"character set {charset} is not decoded")


def single_byte_characters(charset: str) -> str | None:
    """Returns the 256 characters of a character set of one byte a character, U+FFFE for a code that has none; None for
    all other character sets."""
    name = _ALIASES.get(charset, charset)
    if name == "ascii":
        return "".join(map(chr, range(128))) + _NONE * 128
    if name not in _SINGLE:
        return None
    python, own = _SINGLE[name]
    return "".join(own.get(code) or _plain(code, python) for code in range(256))


@lru_cache(maxsize=64)
def native_charset(charset: str) -> tuple[Any, ...]:
    """Returns a character set as native code reads it: its name, "utf-8", "utf-16" (whether little endian, whether with
    surrogate pairs), "utf-32", or "codes" with the characters of all codes (`Codes::new` in
    `native/core/src/charsets.rs`), U+FFFE for a code that has none. Raises UnknownType."""
    name = _ALIASES.get(charset, charset)
    if name in ("utf8mb4", "utf8mb3"):
        return "utf8", "utf-8"
    if name in ("utf16", "utf16le", "ucs2"):
        return name, "utf-16", name == "utf16le", name != "ucs2"
    if name == "utf32":
        return name, "utf-32"
    decode = codec_of(name).decode

    def character(code: bytes) -> str:
        try:
            text = decode(code)
        except UnicodeDecodeError:
            return _NONE
        return text if len(text) == 1 else _NONE

    single = single_byte_characters(name) or "".join(character(bytes((code,))) for code in range(256))
    pairs = triples = four = ""
    if WIDTHS[name] > 1:
        leads = [code for code in range(0x81, 0xFF) if single[code] == _NONE]
        pairs = _table([(lead, second) for lead in leads for second in range(0x40, 0xFF)], b"", character)
    if WIDTHS[name] == 3:
        triples = _table([(one, two) for one in range(0xA1, 0xFF) for two in range(0xA1, 0xFF)], b"\x8f", character)
    if WIDTHS[name] == 4:
        four = "".join(character(_four_bytes(index)) for index in range(_BASIC_FOUR))
    return name, "codes", single, pairs, triples, four


def _table(codes: Iterable[tuple[int, int]], before: bytes, character: Callable[[bytes], str]) -> str:
    """Returns the characters of all codes of two bytes after `before`, of which only `codes` may have one."""
    made = [_NONE] * (1 << 16)
    for first, second in codes:
        made[first << 8 | second] = character(before + bytes((first, second)))
    return "".join(made)


_BASIC_FOUR = 39_420
"""GB 18030's codes of four bytes for characters up to U+FFFF. Those above are computed."""


def _four_bytes(index: int) -> bytes:
    rest, fourth = divmod(index, 10)
    rest, third = divmod(rest, 126)
    first, second = divmod(rest, 10)
    return bytes((0x81 + first, 0x30 + second, 0x81 + third, 0x30 + fourth))


def _single(name: str) -> Callable[[bytes], str]:
    """Returns the decoder of a character set of one byte a character, by a table of 256 characters."""
    table = single_byte_characters(name)

    def decode(raw: bytes) -> str:
        return charmap_decode(raw, "strict", table)[0]  # type: ignore[arg-type]  # a str serves as the map

    return decode


def _plain(code: int, python: str) -> str:
    try:
        return bytes((code,)).decode(python)
    except UnicodeDecodeError:
        return _NONE
