"""The archive's dump gives destinations what they would read from the source, from any event on that it still has."""

from __future__ import annotations

import asyncio
import random

import pytest

from headrace.errors import ContinuesElsewhere
from headrace.model import OpenXa, Position
from headrace.mysql.archive import feed as feeds
from headrace.mysql.archive.feed import FedPackets, Feed
from headrace.mysql.archive.recorder import Recorder
from headrace.mysql.events.cursor import WRAP
from headrace.tasks import cancel
from tests.unit.test_archive_files import MAGIC, file_of, made, offsets, way, ways

__all__ = ["way"]


class Fed:
    """A feed of two files of a server, of which the packets are received piece by piece."""

    def __init__(self, *, checksums: bool = True, large: int = 0) -> None:
        self.feed = Feed(ways["present"])
        self.logs = [made(20, checksums=checksums, large=large, name=f"b.00000{number}") for number in (1, 2)]
        self.files = [file_of(bytes(log.packets)) for log in self.logs]
        self.recorder = Recorder(
            "b.000001", 4, checksums=checksums, source="the source", native=ways["present"], share=True
        )
        self.feed.begin("u", "b.000001", 4, silence=0.1)
        self._data = b""

    def receive(self, data: bytes) -> None:
        self._data += data
        at = self.recorder.feed(self._data)
        self.feed.take(self.recorder)
        while self.recorder.ended:
            self.recorder.begin(self.recorder.ended)
            at = self.recorder.feed(self._data, at)
            self.feed.take(self.recorder)
        self._data = self._data[at:]

    def receive_all(self, sizes: random.Random | None = None) -> None:
        data = b"".join(bytes(log.packets) for log in self.logs)
        while data:
            size = sizes.choice((1, 50, 1000, 1 << 20)) if sizes else len(data)
            self.receive(data[:size])
            data = data[size:]

    def join(self, number: int, offset: int) -> FedPackets:
        joined = self.feed.join(Position("u", f"b.00000{number}", offset))
        assert joined is not None
        return joined


async def read(reader: FedPackets, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data = await reader.read(data, len(data) + 1, 5.0)
    return data


@pytest.mark.parametrize("checksums", [True, False])
@pytest.mark.parametrize("large", [0, 0xFFFFFF + 100])
async def test_a_destination_reads_on_from_any_event(
    checksums: bool, large: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "_KEPT", 64 << 20)
    fed = Fed(checksums=checksums, large=large)
    fed.receive_all(None if large else random.Random(1))
    for number, file in enumerate(fed.files, 1):
        wanted = [*offsets(file), len(file)]
        for offset in random.Random(2).sample(wanted, 5) if large else wanted:
            rest = file[offset:] + (fed.files[1][4:] if number == 1 else b"")
            got = await read(fed.join(number, offset), len(rest))
            assert file_of(got) == MAGIC + rest, f"from {number}:{offset}"
    assert fed.feed.join(Position("another", "b.000001", 4)) is None
    assert fed.feed.join(Position("u", "b.000003", 4)) is None
    pending = Position("u", "b.000002", len(fed.files[1]), open_xa=(OpenXa("x", "b.000001", 4),))
    assert fed.feed.join(pending) is None, "rows of a prepared transaction are read again"


async def test_what_comes_later_is_read_at_once_by_each_reader() -> None:
    fed, packets = Fed(), bytes(made(20).packets)
    fed.receive(packets[:-40])  # the last event is not whole
    end = fed.recorder.end
    readers = [fed.join(1, end), fed.join(1, end)]
    opened = [len(await reader.read(b"", 1, 5.0)) for reader in readers]
    assert all(opened)
    reading = [asyncio.create_task(reader.read(b"", 1, 5.0)) for reader in readers]
    await asyncio.sleep(0)
    assert not any(one.done() for one in reading)
    fed.receive(packets[-40:])
    for one in reading:
        assert file_of(await one) == MAGIC + file_of(packets)[end:]


async def test_a_reader_that_is_woken_returns_with_nothing() -> None:
    fed = Fed()
    fed.receive_all()
    reader = fed.join(2, len(fed.files[1]))
    await reader.read(b"", 1, 5.0)
    reading = asyncio.create_task(reader.read(b"rest", 5, 5.0))
    await asyncio.sleep(0)
    assert reader.waiting_since > 0
    reader.wake()
    assert await reading == b"rest"
    assert reader.waiting_since == 0


async def test_who_is_slower_or_reads_a_dump_that_has_ended_continues_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(feeds, "_KEPT", 2000)
    fed = Fed()
    first, second = (bytes(log.packets) for log in fed.logs)
    fed.receive(first[:1000])
    slow = fed.join(1, fed.recorder.end)
    for at in range(1000, len(first), 1000):
        fed.receive(first[at : at + 1000])
    last, received = fed.join(1, fed.recorder.end), list[bytes]()
    for at in range(0, len(second), 1000):
        fed.receive(second[at : at + 1000])
        received.append(await last.read(b"", 1, 5.0))
    with pytest.raises(ContinuesElsewhere, match="this destination is slower"):
        await slow.read(b"", 1, 5.0)
    assert fed.feed.join(Position("u", "b.000001", offsets(fed.files[0])[2])) is None
    assert file_of(b"".join(received)) == fed.files[1]
    waiting = asyncio.create_task(last.read(b"", 1, 5.0))
    await asyncio.sleep(0)
    fed.feed.finish()
    with pytest.raises(ContinuesElsewhere, match="the archiver has stopped"):
        await waiting
    assert fed.feed.join(Position("u", "b.000002", fed.recorder.end)) is None
    fed.feed.begin("u", "b.000002", fed.recorder.end, silence=0.1)
    with pytest.raises(ContinuesElsewhere):
        await last.read(b"", 1, 5.0)


async def test_an_event_larger_than_what_is_kept_is_read_from_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    fed = Fed()
    fed.receive(bytes(made(1).packets))
    reader = fed.join(1, fed.recorder.end)
    await reader.read(b"", 1, 5.0)
    monkeypatch.setattr(feeds, "_KEPT", 50_000)
    whole = bytes(made(20, large=100_000).packets)
    fed.receive(whole[len(bytes(made(1).packets)) :])
    with pytest.raises(ContinuesElsewhere):
        await reader.read(b"", 1, 5.0)
    last = fed.join(1, fed.recorder.end)
    fed.receive(bytes(fed.logs[1].packets))
    assert file_of(await read(last, len(fed.files[1]))) == MAGIC + fed.files[1][4:]


async def test_what_does_not_follow_is_given_to_nobody() -> None:
    fed = Fed()
    fed.receive(bytes(fed.logs[0].packets))
    reader = fed.join(1, fed.recorder.end)
    second = Recorder("b.000001", 4, checksums=True, source="another archiver", native=ways["present"], share=True)
    second.feed(bytes(fed.logs[0].packets))
    fed.feed.take(second)
    with pytest.raises(ContinuesElsewhere):
        await reader.read(b"", 1, 5.0)


async def test_a_position_beyond_four_gigabytes_is_read_from_the_source() -> None:
    fed = Fed()
    fed.receive(bytes(fed.logs[0].packets))
    fed.feed._end = "b.000001", WRAP
    assert fed.feed.join(Position("u", "b.000001", WRAP)) is None


async def test_silence_ends_a_reader_only_if_the_server_sends_nothing_at_all() -> None:
    fed = Fed()
    fed.receive_all()
    reader = fed.join(2, len(fed.files[1]))
    await reader.read(b"", 1, 5.0)

    async def heartbeats() -> None:
        while True:
            fed.feed.take(fed.recorder)
            await asyncio.sleep(0.02)

    beating = asyncio.create_task(heartbeats())
    reading = asyncio.create_task(reader.read(b"", 1, 0.1))
    await asyncio.wait([reading], timeout=0.5)
    assert not reading.done()
    await cancel(beating)
    with pytest.raises(ContinuesElsewhere, match="nothing came from the archiver's dump"):
        await reading
