"""Partitions out of keys: Canal's hash and Kafka's, beside values that Java gave and beside the definition."""

from __future__ import annotations

import random

import pytest
from aiokafka.partitioner import murmur2 as aiokafka_murmur2
from hypothesis import given
from hypothesis import strategies as st

from headrace.rules.hashes import canal_partition, canal_table_partition, java_string_hash, kafka_partition, murmur2

MIN_HASH = "polygenelubricants"
"""A text whose hash is Integer.MIN_VALUE, which has no positive counterpart."""


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", 0),
        ("a", 97),
        ("id", 105 * 31 + 100),
        ("order", 106006350),
        ("10001", 46730162),
        ("北京", 0x5317 * 31 + 0x4EAC),
        ("😀", 0xD83D * 31 + 0xDE00),  # two units in UTF-16
        (MIN_HASH, -(1 << 31)),
        ("2026-01-31 12:00:00", 335211778),
        ("The quick brown fox jumps over the lazy dog", -609428141),
    ],
)
def test_a_text_hashes_as_in_java(text: str, value: int) -> None:
    assert java_string_hash(text) == value


@given(st.text(alphabet=st.characters(), max_size=200))
def test_the_hash_is_what_javas_documentation_defines(text: str) -> None:
    raw = text.encode("utf-16-be", "surrogatepass")
    units = [raw[i] << 8 | raw[i + 1] for i in range(0, len(raw), 2)]
    total = sum(unit * 31 ** (len(units) - 1 - i) for i, unit in enumerate(units))
    assert java_string_hash(text) == (total + (1 << 31)) % (1 << 32) - (1 << 31)


@pytest.mark.parametrize(
    ("database", "partitions", "values", "partition"),
    [  # each worked out by Java with the statements of Canal's messagePartition
        ("test", 3, ["1"], 0),
        ("test", 3, ["2"], 0),
        ("test", 3, ["3"], 1),
        ("test", 8, ["10001", "shop"], 6),
        ("test", 8, ["shop", "10001"], 6),
        (None, 8, ["10001", "shop"], 4),
        ("shop", 32, ["北京", "7"], 20),
        ("test", 4, [None], 2),
        ("test", 4, [""], 2),
        (None, 7, [MIN_HASH], 2),
        (None, 10, [MIN_HASH], 8),
        (None, 3, [MIN_HASH], 2),
        (None, 8, ["a", "a"], 0),
        ("t", 5, [], 1),
        (None, 5, [None], 0),
    ],
)
def test_a_row_goes_where_canal_sends_it(
    database: str | None, partitions: int, values: list[str | None], partition: int
) -> None:
    assert canal_partition(values, partitions, database=database) == partition


@pytest.mark.parametrize(
    ("table", "partitions", "partition"),
    [("order", 3, 0), ("orders", 8, 3), (MIN_HASH, 6, 2), ("T_Product", 8, 4), ("t_product", 8, 4)],
)
def test_a_table_goes_where_canal_sends_it(table: str, partitions: int, partition: int) -> None:
    assert canal_table_partition(table, partitions) == partition


@pytest.mark.parametrize(
    ("key", "value", "partition"),
    [  # org.apache.kafka.common.utils.Utils of kafka-clients 3.9.2
        ("", 275646681, 1),
        ("a", -1563381124, 4),
        ("21", -973932308, 4),
        ("foobar", -790332482, 6),
        ("a-little-bit-long-string", -985981536, 0),
        ("order:10001", -1130360566, 2),
        ("北京", -1221168378, 6),
        ("shop.orders", 304818207, 7),
    ],
)
def test_a_key_goes_where_kafkas_own_client_sends_it(key: str, value: int, partition: int) -> None:
    assert murmur2([key.encode()]) == [value % (1 << 32)]
    assert kafka_partition(key.encode(), 8) == partition


def test_a_hash_above_the_middle_counts_without_its_sign() -> None:
    assert murmur2([b"a"]) == [(1 << 32) - 1563381124]  # Java's value is negative
    assert kafka_partition(b"a", 3) == ((1 << 31) - 1563381124) % 3 != murmur2([b"a"])[0] % 3


def test_murmur2_is_aiokafkas_over_random_keys() -> None:
    chance = random.Random(11)
    for length in [*range(40), *(chance.randrange(40, 600) for _ in range(60))]:
        for _ in range(30):
            key = chance.randbytes(length)
            assert murmur2([key]) == [aiokafka_murmur2(key) % (1 << 32)], key.hex()
