"""Record batches are compressed at the level of their own producer, although aiokafka knows one for all."""

from __future__ import annotations

import gzip
import types
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatch

from headrace.adapters.kafka import producer as producers
from headrace.adapters.kafka.settings import KafkaSinkSettings
from headrace.model import MessageBatch
from headrace.native import find

VALUES: list[bytes | None] = [
    b'{"id":"%d","name":"n%d","price":"%d.%02d"}' % (i, i * 7919 % 1000, i, i % 100) for i in range(500)
]


def made(compression: str, level: int | None = None) -> Any:
    more = {} if level is None else {"compression_level": level}
    settings = {"type": "kafka", "bootstrap_servers": "127.0.0.1:1", "compression": compression, **more}
    return producers.make_producer(KafkaSinkSettings.model_validate(settings))


def batch() -> MessageBatch:
    return MessageBatch("t", 0, list(VALUES), [[] for _ in VALUES], commit_time_us=1_700_000_000_000_000)


def built(part: Any) -> bytes:
    return bytes(part._build())


@pytest.mark.parametrize(("compression", "low", "high"), [("lz4", 1, 9), ("zstd", 1, 19), ("gzip", 1, 9)])
async def test_two_producers_have_each_their_own_level(compression: str, low: int, high: int) -> None:
    quick, hard, plain = made(compression, low), made(compression, high), made("none")
    (one,), (two,), (three,) = (producers.build_batches(producer, batch()) for producer in (quick, hard, plain))
    large, small, whole = built(one), built(two), built(three)
    assert len(small) < len(large) < len(whole) / 2
    for data in (large, small, whole):
        records = DefaultRecordBatch(bytearray(data))
        assert [record.value for record in records] == VALUES
    for producer in (quick, hard, plain):
        await producer.stop()


@pytest.mark.parametrize(("compression", "level"), [("lz4", 1), ("zstd", 1), ("gzip", 6)])
async def test_without_a_level_it_is_a_fast_one(compression: str, level: int) -> None:
    default, named = made(compression), made(compression, level)
    (one,), (two,) = (producers.build_batches(producer, batch()) for producer in (default, named))
    assert built(one) == built(two)
    for producer in (default, named):
        await producer.stop()


@pytest.mark.parametrize(("compression", "level"), [("lz4", 9), ("zstd", 19), ("gzip", 9), ("zstd", None)])
async def test_record_batches_of_native_code_have_the_same_level(
    compression: str, level: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gzip, "time", types.SimpleNamespace(time=lambda: 1_700_000_000.0))  # is in gzip's header
    module = find().module
    if module is None:
        pytest.skip("headrace-native is not installed: scripts/build-native")
    columns, producer = module.Batch(), made(compression, level)
    values, headers = columns.values, columns.headers
    values += VALUES
    headers += [[] for _ in VALUES]
    native = MessageBatch("t", 0, values, headers, commit_time_us=1_700_000_000_000_000)
    (one,), (two,) = producers.build_batches(producer, batch()), producers.build_batches(producer, native)
    assert type(two) is not type(one)
    assert built(one) == built(two)
    await producer.stop()
