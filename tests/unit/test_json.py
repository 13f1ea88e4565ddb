"""Binary JSON and its diffs, out of documents built here byte by byte; and bytes that are none."""

from __future__ import annotations

import contextlib
import json
import struct
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.mysql.values import json_members, jsonb
from headrace.mysql.values.json_diff import Document, apply, legs
from headrace.mysql.values.jsonb import json_text
from tests.examples import examples

BAD = (ValueError, IndexError, struct.error)


def lenenc(n: int) -> bytes:
    return bytes((n,)) if n < 251 else b"\xfc" + n.to_bytes(2, "little")


def varlen(n: int) -> bytes:
    out = b""
    while n >= 0x80:
        out, n = out + bytes((n & 0x7F | 0x80,)), n >> 7
    return out + bytes((n,))


def encoded(value: Any, large: bool) -> tuple[int, bytes, bool]:
    """Type byte, bytes, and whether they stand in the entry."""
    if value is None or value is True or value is False:
        return 4, bytes(({None: 0, True: 1, False: 2}[value],)), True
    if isinstance(value, int):
        if -(1 << 15) <= value < 1 << 15:
            return 5, struct.pack("<h", value), True
        if -(1 << 31) <= value < 1 << 31:
            return 7, struct.pack("<i", value), large
        return (9, struct.pack("<q", value), False) if value < 1 << 63 else (10, struct.pack("<Q", value), False)
    if isinstance(value, float):
        return 11, struct.pack("<d", value), False
    if isinstance(value, str):
        raw = value.encode()
        return 12, varlen(len(raw)) + raw, False
    return (0 if isinstance(value, dict) else 2) + large, container(value, large), False


def container(value: Any, large: bool) -> bytes:
    width, code = (4, "I") if large else (2, "H")
    keys = sorted(value, key=lambda k: (len(k.encode()), k.encode())) if isinstance(value, dict) else []
    values = [value[key] for key in keys] if isinstance(value, dict) else value
    at = 2 * width + (width + 2) * len(keys) + (width + 1) * len(values)
    names, entries, bodies = b"", b"", b""
    key_entries = b""
    for key in keys:
        key_entries += struct.pack(f"<{code}H", at + len(names), len(key.encode()))
        names += key.encode()
    at += len(names)
    for item in values:
        kind, raw, inline = encoded(item, large)
        entries += bytes((kind,)) + (raw.ljust(width, b"\0") if inline else struct.pack(f"<{code}", at + len(bodies)))
        bodies += b"" if inline else raw
    size = at + len(bodies)
    return struct.pack(f"<{code}{code}", len(values), size) + key_entries + entries + names + bodies


def binary(value: Any, large: bool = False) -> bytes:
    kind, raw, _ = encoded(value, large)
    return bytes((kind,)) + raw


DOCUMENTS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=200),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(max_size=12), inner, max_size=8),
    max_leaves=40,
)


@settings(deadline=None, max_examples=examples(300))
@given(DOCUMENTS, st.booleans())
def test_documents_come_back_from_the_small_and_the_large_format(value: Any, large: bool) -> None:
    raw = binary(value, large)
    text = json_text(raw)
    assert json.loads(text) == value
    assert Document(raw).text() == text


def outcome(raw: bytes) -> str:
    try:
        return json_text(raw)
    except BAD as error:
        return f"{type(error).__name__} {error}"


def both_outcomes(raw: bytes) -> tuple[str, str]:
    """By the printers of everything, and by those that are made for what comes often, here for all that comes."""
    found = []
    for often in (0, 1):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(jsonb, "_CONTAINERS", jsonb.containers(often))
            found.append(outcome(raw))
    return found[0], found[1]


@settings(deadline=None, max_examples=examples(300))
@given(DOCUMENTS, st.booleans(), st.data())
def test_what_prints_kinds_that_come_often_prints_the_same(value: Any, large: bool, data: st.DataObject) -> None:
    raw = bytearray(binary(value, large))
    general, made = both_outcomes(bytes(raw))
    assert made == general == json_text(bytes(raw))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    general, made = both_outcomes(bytes(raw[: data.draw(st.integers(1, len(raw)))]))
    assert made == general


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("others", range(7))
def test_the_bytes_that_a_document_uses_more_than_once_are_counted_alike(large: bool, others: int) -> None:
    """Nine strings that mean the same bytes, of any length, behind values of each kind."""
    values: list[Any] = [-7, 1 << 20, 1 << 40, 2.5, True, [1]][:others]
    width = 4 if large else 2
    first = 1 + 2 * width + others * (width + 1)
    fine = set()
    for length in range(125):
        raw = bytearray(binary([*values, *["x" * length] * 9], large))
        for number in range(1, 9):
            entry = first + number * (width + 1)
            raw[entry : entry + width + 1] = raw[first : first + width + 1]
        del raw[len(raw) - 8 * (length + 1) :]
        general, made = both_outcomes(bytes(raw))
        assert made == general
        fine.add(general.startswith("["))
    assert fine == {True, False}


@pytest.mark.parametrize("large", [False, True])
def test_the_longest_doubles_count_as_long_as_they_are(large: bool) -> None:
    """Fourteen that mean the same bytes, of 34 characters each, before two strings that do."""
    longest, width = -1.2345678901234567e-15, 4 if large else 2
    assert len(json_text(binary(longest))) == 34
    fine = set()
    for length in range(125):
        raw = bytearray(binary([longest, "\x01" * length, *[1.5] * 13, ""], large))
        entries = [1 + 2 * width + number * (width + 1) for number in range(16)]
        double, string = (bytes(raw[at : at + width + 1]) for at in entries[:2])
        for number, at in enumerate(entries):
            raw[at : at + width + 1] = double if number < 14 else string
        del raw[len(raw) - 13 * 8 - 1 :]
        general, made = both_outcomes(bytes(raw))
        assert made == general
        fine.add(general.startswith("["))
    assert fine == {True, False}


def printers_of(text: Any) -> json_members.MembersPrinters:
    """Those of a container's printer."""
    inner = [cell.cell_contents for cell in text.__closure__]
    (printers,) = [one for one in inner if isinstance(one, json_members.MembersPrinters)]
    return printers


def test_kinds_get_a_printer_of_their_own_once_they_came_often() -> None:
    small_object = jsonb.containers(3)[0]
    document, printers = binary({"city": "Beijing", "n": 100_000}), printers_of(small_object)
    for _ in range(2):
        small_object(document, 1, 1)
    assert printers.known == {}
    small_object(document, 1, 1)
    assert list(printers.known) == [bytes([7, 12])]


def test_hostile_kinds_are_not_remembered_without_end() -> None:
    printers = printers_of(jsonb.containers(json_members.OFTEN)[0])
    for number in range(5_000):
        printers.seldom(number.to_bytes(3, "little"))
        assert len(printers._counts) <= 2_000
    for number in range(1_000):
        for _ in range(json_members.OFTEN):
            printers.seldom(b"\x0f" + number.to_bytes(3, "little"))
    assert len(printers.known) <= 256
    assert printers.seldom(b"\x0f" * 17) is printers._general


def test_keys_of_two_schemas_with_the_same_lengths_are_distinguished() -> None:
    texts = [json_text(binary({a: 1, b: 2})) for a, b in ("ab", "cd", "ab", "xy")]
    assert texts == ['{"a": 1, "b": 2}', '{"c": 1, "d": 2}', '{"a": 1, "b": 2}', '{"x": 1, "y": 2}']


@pytest.mark.parametrize(
    ("number", "text"),
    [
        *(
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1e14, "100000000000000.0"),
            (1e15, "1e15"),
            (1e16, "1e16"),
            (1.5e300, "1.5e300"),
        ),
        *((1234567890123456.5, "1234567890123456.5"), (1e-5, "0.00001"), (1e-14, "0.00000000000001"), (1e-16, "1e-16")),
        *(
            (1e-15, "0.000000000000001"),
            (0.1, "0.1"),
            (-2.5e-9, "-0.0000000025"),
            (123456789012345680.0, "1.2345678901234568e17"),
        ),
    ],
)
def test_doubles_are_printed_as_the_server_prints_them(number: float, text: str) -> None:
    assert json_text(binary(number)) == text


def test_opaque_values_keep_their_type() -> None:
    decimal = b"\x0f\xf6\x05" + b"\x05\x02" + b"\x80\x01\x32"
    assert json_text(decimal) == "1.50"
    blob = b"\x0f\xfc" + varlen(58) + b"b" * 58
    text = json_text(blob)
    assert text.startswith('"base64:type252:YmJi')
    assert text.count("\\n") == 1
    assert json_text(b"\x0f\x0a\x08" + struct.pack("<q", (2026 * 13 + 11) << 46 | 21 << 41)) == '"2026-11-21"'


@settings(deadline=None, max_examples=examples(500))
@given(DOCUMENTS, st.booleans(), st.data())
def test_a_damaged_document_is_an_error_or_a_text_of_its_own_size(value: Any, large: bool, data: st.DataObject) -> None:
    raw = bytearray(binary(value, large))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    damaged = bytes(raw[: data.draw(st.integers(1, len(raw)))])
    for read in (json_text, lambda b: Document(b).text()):
        with contextlib.suppress(*BAD):
            assert len(read(damaged)) < 100 * len(damaged) + 10_000


def test_a_document_whose_entries_all_mean_the_same_bytes_does_not_blow_up() -> None:
    """100 arrays, each of 40 entries that mean the next array: 40 ** 100 values."""
    step = 4 + 3 * 40
    layers = b"".join(struct.pack("<HH", 40, 0xFFFF) + (b"\x02" + struct.pack("<H", step)) * 40 for _ in range(90))
    bomb = b"\x02" + layers + struct.pack("<HH", 0, 4)
    strings = (
        b"\x02"
        + struct.pack("<HH", 20000, 0xFFFF)
        + (b"\x0c" + struct.pack("<H", 60004)) * 20000
        + b"\x7f"
        + b"x" * 127
    )
    keys = b"\x00" + struct.pack("<HH", 9000, 0xFFFF) + struct.pack("<HH", 100, 60000) * 9000 + b"\x04\0\0" * 9000
    itself = b"\x02" + struct.pack("<HH", 2, 10) + (b"\x02" + struct.pack("<H", 0)) * 2
    begin = time.process_time()
    for document in (bomb, strings, keys, itself):
        for read in (json_text, lambda b: Document(b).text()):
            with pytest.raises(BAD):
                read(document)
    assert time.process_time() - begin < 5


def test_objects_whose_keys_are_far_apart_are_printed_in_linear_time() -> None:
    """40,000 that are the same one, whose two keys stand at both ends of 1.6 MB."""
    count, far = 40_000, 1_600_000
    at = 8 + 5 * count
    keys = struct.pack("<IHIH", 30, 1, 30 + far, 1)
    one = struct.pack("<II", 2, 31 + far) + keys + (b"\x04" + bytes(4)) * 2 + b"a" + b"x" * (far - 1) + b"b"
    document = b"\x03" + struct.pack("<II", count, at + len(one)) + (b"\x01" + struct.pack("<I", at)) * count + one
    begin = time.process_time()
    assert json_text(document) == "[" + ", ".join(['{"a": null, "b": null}'] * count) + "]"
    assert time.process_time() - begin < 5


def test_times_that_say_they_are_long_are_printed_in_linear_time() -> None:
    """200,000 that are the same one, of 2 MB."""
    count, size = 200_000, 2_000_000
    at = 8 + 5 * count
    body = b"\x0b" + varlen(size) + bytes(size)
    entry = b"\x0f" + struct.pack("<I", at)
    document = b"\x03" + struct.pack("<II", count, at + len(body)) + entry * count + body
    begin = time.process_time()
    assert json_text(document) == "[" + ", ".join(['"00:00:00.000000"'] * count) + "]"
    assert time.process_time() - begin < 5


def operation(kind: int, path: str, value: Any = None) -> bytes:
    raw = path.encode()
    head = bytes((kind,)) + lenenc(len(raw)) + raw
    if kind == 2:
        return head
    body = binary(value)
    return head + lenenc(len(body)) + body


BASE = {"a": [1, 2, {"b": "x"}], "key two": None, 'q"': 1.5}


@pytest.mark.parametrize(
    ("diff", "text"),
    [
        (operation(0, "$.a[2].b", "y"), '{"a": [1, 2, {"b": "y"}], "q\\"": 1.5, "key two": null}'),
        (operation(1, "$.a[1]", [None]), '{"a": [1, [null], 2, {"b": "x"}], "q\\"": 1.5, "key two": null}'),
        (operation(1, "$.a[9]", 0), '{"a": [1, 2, {"b": "x"}, 0], "q\\"": 1.5, "key two": null}'),
        (
            operation(1, '$.""', "字" * 100),
            f'{{"": "{"字" * 100}", "a": [1, 2, {{"b": "x"}}], "q\\"": 1.5, "key two": null}}',
        ),
        (operation(2, '$."key two"') + operation(2, "$.a[0]"), '{"a": [2, {"b": "x"}], "q\\"": 1.5}'),
        (operation(0, '$."q\\""', True) + operation(2, "$.a"), '{"q\\"": true, "key two": null}'),
        (operation(0, "$", [1]), "[1]"),
    ],
)
def test_diffs_replace_insert_and_remove(diff: bytes, text: str) -> None:
    assert apply(binary(BASE), diff) == text


@pytest.mark.parametrize(
    "diff",
    [
        *(operation(0, "$.c", 1), operation(0, "$.a[3]", 1), operation(2, "$.a[2].c"), operation(2, "$")),
        *(operation(1, "$.a", 1), operation(1, "$.a.x", 1), operation(1, "$[0]", 1), operation(0, "$.a.b", 1)),
        *(operation(0, "a", 1), operation(0, "$.*", 1), operation(0, "$[last]", 1), b"\x03\x01$", b"\x00\x05$.a"),
        *(b"\x00", b"\x02\xff", operation(0, "$.a", 1)[:-1]),
    ],
)
def test_a_diff_that_does_not_fit_its_document_is_an_error(diff: bytes) -> None:
    with pytest.raises(BAD):
        apply(binary(BASE), diff)


def test_paths_are_cut_into_their_steps() -> None:
    assert legs("$") == []
    assert legs("$[last].a[last-2]") == [-1, "a", -3]
    assert legs('$.a[10]."b.c"[0].中') == ["a", 10, "b.c", 0, "中"]
    assert legs(r'$."q\"\\x"') == ['q"\\x']
