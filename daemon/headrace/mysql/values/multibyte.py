"""Asian character sets in which the server and Python differ: Python's codec, except for the codes that differ."""

from __future__ import annotations

import re
from collections.abc import Callable

_EUC = rb"\x8f[\xa1-\xfe]{2}|\x8e[\xa0-\xdf]|[\xa1-\xfe]{2}"
_SJIS = rb"[\x81-\x9f\xe0-\xfc][\x40-\x7e\x80-\xfc]|[\xa1-\xdf]"
_BIG5 = rb"[\x81-\xfe][\x40-\x7e\xa1-\xfe]"
_GB18030 = rb"[\x81-\xfe][0-9][\x81-\xfe][0-9]|[\x81-\xfe][\x40-\x7e\x80-\xfe]"
_UTF8 = (
    rb"[\xc2-\xdf][\x80-\xbf]|\xe0[\xa0-\xbf][\x80-\xbf]|[\xe1-\xef][\x80-\xbf]{2}"
    rb"|\xf0[\x90-\xbf][\x80-\xbf]{2}|[\xf1-\xf3][\x80-\xbf]{3}|\xf4[\x80-\x8f][\x80-\xbf]{2}"
)
CODES: dict[str, bytes] = {
    "big5": _BIG5,
    "cp932": _SJIS,
    "eucjpms": _EUC,
    "euckr": rb"[\x81-\xfe][\x41-\x5a\x61-\x7a\x81-\xfe]",
    "gb18030": _GB18030,
    "gb2312": rb"[\xa1-\xf7][\xa1-\xfe]",
    "gbk": rb"[\x81-\xfe][\x40-\x7e\x80-\xfe]",
    "sjis": _SJIS,
    "ucs2": rb"..",
    "ujis": _EUC,
    "utf16": rb"[\xd8-\xdb].[\xdc-\xdf].|..",
    "utf16le": rb".[\xd8-\xdb].[\xdc-\xdf]|..",
    "utf32": rb"....",
    "utf8mb3": _UTF8,
    "utf8mb4": _UTF8,
}
"""By MySQL's name, a pattern of the codes of more than one byte that the server treats as well formed. All other
character sets have one byte a character."""


def _decoder(
    python: str, character: bytes, suspect: bytes, own: Callable[[bytes], str | None]
) -> Callable[[bytes], str]:
    """Returns the decoder of a character set. Text in which `suspect` finds nothing is left to Python's codec.
    Otherwise it goes character by character, and `own` returns the character for a code, or None to leave it to
    Python's codec."""
    find = re.compile(suspect, re.DOTALL).search
    split = re.compile(rb"[\x00-\x7f]+|" + character + rb"|.", re.DOTALL).findall

    def decode(raw: bytes) -> str:
        if find(raw) is None:
            return raw.decode(python)
        return "".join([own(code) or code.decode(python) for code in split(raw)])

    return decode


def _bad(python: str, code: bytes) -> UnicodeDecodeError:
    return UnicodeDecodeError(python, code, 0, len(code), "the character set has no such code")


_BIG5_OWN = {bytes.fromhex(code): "\ufffd" for code in ("a15a", "a1c3", "a1c5", "a1fe", "a240", "a2cc", "a2ce")}
_BIG5_OWN |= {bytes((0xF9, 0xD6 + i)): c for i, c in enumerate("碁銹裏墻恒粧嫺")}
_GB18030_OWN = {b"\xa8\xbc": "\u1e3f", b"\x81\x35\xf4\x37": "\ue7c7"}
_IBM = (
    "ⅰⅱⅲⅳⅴⅵⅶⅷⅸⅹⅠⅡⅢⅣⅤⅥⅦⅧⅨⅩ＇＂㈱№℡炻仼僴凬匇匤\ufa0e咊坙\ufa0f\ufa10增寬峵嵓\ufa11德悅愠敎昻晥\ufa12\uf929栁\ufa13\ufa14橫櫢淸淲瀨"
    "\ufa15\ufa16甁皂皞\ufa17礰\ufa18\ufa19\ufa1a\ufa1b竧\ufa1c\ufa1d綠緖\ufa1e荢\ufa1f薰\ufa20\ufa21蠇\ufa22譿賴赶\ufa23\ufa24\ufa25郞\ufa26鄕\ufa27\ufa28閒\uf9dc\ufa29霻"
    "靍靑\ufa2a\ufa2b\ufa2c馞髙魲\ufa2d黑"
)
"""IBM's extensions in eucjpms, 8FF3F3 to 8FF4FE."""


def _private(code: bytes) -> str | None:
    """Returns a character of the user-defined areas of the EUC sets: 940 codes of two bytes, then 940 of three."""
    if len(code) == 2 and code[0] >= 0xF5:
        return chr(0xE000 + (code[0] - 0xF5) * 94 + code[1] - 0xA1)
    if len(code) == 3 and code[1] >= 0xF5:
        return chr(0xE3AC + (code[1] - 0xF5) * 94 + code[2] - 0xA1)
    return None


def _ujis(code: bytes) -> str | None:
    return "\\" if code == b"\xa1\xc0" else _private(code)


def _eucjpms(code: bytes) -> str | None:
    """Returns a character of eucjpms, which has those of cp932 at the positions of EUC-JP."""
    if len(code) == 3:
        if code in _EUCJPMS_OWN:
            return _EUCJPMS_OWN[code]
        ibm = (code[1] - 0xF3) * 94 + code[2] - 0xA1 - 82
        return _IBM[ibm] if 0 <= ibm < len(_IBM) else _private(code)
    if len(code) != 2 or code[0] < 0xA1:
        return None
    if code[0] >= 0xF5:
        return _private(code)
    row, cell = code[0] - 0xA1, code[1] - 0xA1
    lead = row // 2 + (0x81 if row < 62 else 0xC1)
    trail = cell + 0x9F if row % 2 else cell + 0x40 + (cell >= 63)
    return bytes((lead, trail)).decode("cp932")


_EUCJPMS_OWN = {b"\x8f\xa2\xb7": "\uff5e", b"\x8f\xa2\xc3": "\uffe4"}


def _cp932(code: bytes) -> None:
    """Refuses these five codes: Python gives them a meaning, the server does not."""
    if code in (b"\x80", b"\xa0", b"\xfd", b"\xfe", b"\xff"):
        raise _bad("cp932", code)


def _ucs2(raw: bytes) -> str:
    """Decodes two bytes a character; surrogates are no characters, so a pair is not one either."""
    text = raw.decode("utf-16-be")
    if text and max(text) > "\uffff":
        raise _bad("ucs2", raw)
    return text


DECODERS: dict[str, tuple[int, Callable[[bytes], str]]] = {
    "big5": (2, _decoder("big5", _BIG5, rb"\xf9[\xd6-\xdc]|\xa1[\x5a\xc3\xc5\xfe]|\xa2[\x40\xcc\xce]", _BIG5_OWN.get)),
    "gb18030": (4, _decoder("gb18030", _GB18030, rb"\xa8\xbc|\x815\xf47", _GB18030_OWN.get)),
    "sjis": (2, _decoder("shift_jis", _SJIS, rb"\x81\x5f", {b"\x81\x5f": "\\"}.get)),
    "cp932": (2, _decoder("cp932", _SJIS, rb"[\x80\xa0\xfd-\xff]", _cp932)),
    "ujis": (3, _decoder("euc_jp", _EUC, rb"\xa1\xc0|[\xf5-\xfe]", _ujis)),
    "eucjpms": (3, _decoder("euc_jp", _EUC, rb"[\x8f\xa1\xa2\xad\xf5-\xfe]", _eucjpms)),
    "ucs2": (2, _ucs2),
}
"""By MySQL's name: the maximum bytes of a character, and the decoder."""
