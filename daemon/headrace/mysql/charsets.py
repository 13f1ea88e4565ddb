"""MySQL's character sets: which of them a collation means, and how their bytes become text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

BINARY = 63
"""The collation id of binary strings."""


class UnknownType(ValueError):
    """A column type or character set that headrace does not decode; the text says which."""


@dataclass(frozen=True, slots=True)
class Codec:
    """How the text of one character set is decoded: by Python's codec of that name, or, when `python` is "", by
    `decode` alone, which works in both cases. It raises UnicodeDecodeError for bytes that are no text."""

    charset: str
    python: str
    width: int
    """The most bytes of a character."""
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
    "utf8mb3": "33 76 83 192-215 223 576-578 1057 1107 1216 1238 2048-2303",
    "ucs2": "35 90 128-151 159 640-642 1059 1114 1152 1174 2560-2815",
    "cp866": "36 68 1060 1092",
    "keybcs2": "37 73 1061 1097",
    "macce": "38 43 1062 1067",
    "macroman": "39 53 1063 1077",
    "cp852": "40 81 1064 1105",
    "utf8mb4": "45-46 224-247 255-323 608-610 1069-1070 1248 1270 2304-2559",
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
"""The ids of both servers' collations. MariaDB adds 1024 for NO PAD, and makes the ids of its UCA 14 collations as
2048 + 256 x character set + 8 x language + flags."""


def _spread() -> dict[int, str]:
    names = {}
    for name, text in _COLLATIONS.items():
        for part in text.split():
            first, _, last = part.partition("-")
            names |= dict.fromkeys(range(int(first), int(last or first) + 1), name)
    return names


_BY_COLLATION = _spread()
_PYTHON = {
    "utf8mb4": ("utf-8", 4),
    "utf8mb3": ("utf-8", 3),
    "ascii": ("ascii", 1),
    "latin1": ("cp1252", 1),
    "gbk": ("gbk", 2),
    "gb18030": ("gb18030", 4),
    "big5": ("big5", 2),
}
_ALIASES = {"utf8": "utf8mb3"}


def charset_of(collation: int) -> str:
    """MySQL's name of the character set that a collation id belongs to. Raises UnknownType."""
    name = _BY_COLLATION.get(collation)
    if name is None:
        raise UnknownType(f"collation {collation} is not known")
    return name


def codec_of(charset: str) -> Codec:
    """The codec of a character set by MySQL's name (`utf8` is `utf8mb3`). Raises UnknownType."""
    name = _ALIASES.get(charset, charset)
    if name not in _PYTHON:
        raise UnknownType(f"character set {charset} is not decoded")
    python, width = _PYTHON[name]
    return Codec(name, python, width, lambda raw: raw.decode(python))
