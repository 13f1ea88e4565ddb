"""Canal's protobuf without the library, where an object for each entry would cost too much."""

from __future__ import annotations

from collections.abc import Iterator

_SHORT = [bytes((n,)) if n < 128 else bytes((n & 127 | 128, n >> 7)) for n in range(1 << 14)]
_MESSAGES, _BODY = b"\x10\x01\x18\x07", b"\x2a"
"""Version and type of a Packet, and the tag of its body."""


def varint(number: int) -> bytes:
    """Returns a number in protobuf form; a negative one as that of 64 bits."""
    if 0 <= number < 1 << 14:
        return _SHORT[number]
    number &= (1 << 64) - 1
    made = bytearray()
    while number > 127:
        made.append(number & 127 | 128)
        number >>= 7
    made.append(number)
    return bytes(made)


def field(tag: bytes, value: bytes) -> bytes:
    """Returns a field of bytes; `tag` is its number and type in protobuf form."""
    return b"%b%b%b" % (tag, varint(len(value)), value)


def packet_of(number: int, header: bytes, kind: int, store: bytes) -> bytes:
    """Returns a Packet of the type MESSAGES with one entry: its batch's number, CanalEntry.Header, type and store
    value."""
    entry = b"%b\x10%b%b" % (field(b"\x0a", header), varint(kind), field(b"\x1a", store))
    return _MESSAGES + field(_BODY, b"\x08%b%b" % (varint(number), field(b"\x12", entry)))


def packet_head(number: int, size: int) -> bytes:
    """Returns what comes before `size` bytes of entries in a Packet of the type MESSAGES."""
    batch = b"\x08" + varint(number)
    return b"%b%b%b%b" % (_MESSAGES, _BODY, varint(len(batch) + size), batch)


def entry_in(packet: bytes) -> memoryview:
    """Returns the entry of a packet that packet_of() made, as a field of Messages: such fields one after the other are
    a list."""
    at = _skip_varint(packet, len(_MESSAGES) + len(_BODY))
    return memoryview(packet)[_skip_varint(packet, at + 1) :]


def entries_in(fields: memoryview) -> Iterator[memoryview]:
    """Yields such fields separately."""
    begin = 0
    while begin < len(fields):
        size, at, shift = 0, begin + 1, 0
        while True:
            byte = fields[at]
            size, at, shift = size | (byte & 127) << shift, at + 1, shift + 7
            if byte < 128:
                break
        yield fields[begin : at + size]
        begin = at + size


def _skip_varint(data: bytes, at: int) -> int:
    while data[at] > 127:
        at += 1
    return at + 1
