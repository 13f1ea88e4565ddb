"""What Canal's clients are given of a destination, without a network: nothing is passed over, whoever asks when."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.adapters.canal import store as stores
from headrace.adapters.canal.session import Refused, Subscription
from headrace.adapters.canal.store import Entries, EntryStore
from headrace.canal_wire import canal_pb2 as pb
from headrace.canal_wire.wire import entries_in, entry_in, packet_of
from headrace.errors import SinkRejected
from headrace.lease import Lease
from headrace.model import MessageBatch
from headrace.native import find

SIZES = (0, 1, 100, 127, 128, 16_383, 16_384, 70_000)
PACKETS = [packet_of(1 << size % 40, b"h" * (size % 200), 2, b"v" * size) for size in SIZES]


def batch(*numbers: int) -> MessageBatch:
    return MessageBatch("t", 0, [packet_of(0, b"", 2, b"%d" % number) for number in numbers])


async def got(subscription: Subscription, client: str, size: int) -> tuple[int, list[int]]:
    number, entries = await subscription.get(client, pb.Get(fetch_size=size))
    read = pb.Messages.FromString(b"".join(entries)).messages
    return number, [int(pb.Entry.FromString(one).store_value) for one in read]


async def test_a_client_that_is_replaced_while_it_is_given_entries_takes_none_from_the_next(tmp_path: Path) -> None:
    store = EntryStore(tmp_path, in_memory=1, on_disk=1 << 20)
    subscription = Subscription("shop", store, Lease())
    confirmations = [await store.append(batch(*range(first, first + 10))) for first in range(0, 30, 10)]
    assert store.disk, "the later ones are on disk, which takes a thread to read"
    subscription.serve("a")
    asking = asyncio.create_task(subscription.get("a", pb.Get(fetch_size=25)))
    await asyncio.sleep(0)
    subscription.serve("b")
    with pytest.raises(Refused):
        await asking
    found = list[int]()
    while len(found) < 30:
        number, entries = await got(subscription, "b", 7)
        assert number > 0, found
        found += entries
        subscription.acknowledge("b", number)
    assert found == list(range(30))
    assert all(one.done() for one in confirmations)


async def test_a_client_that_waits_hears_at_once_that_another_is_served(tmp_path: Path) -> None:
    subscription = Subscription("shop", EntryStore(tmp_path, 1 << 20, 1 << 20), Lease())
    subscription.serve("a")
    asking = asyncio.create_task(subscription.get("a", pb.Get(fetch_size=1, timeout=0)))
    await asyncio.sleep(0)
    subscription.serve("b")
    async with asyncio.timeout(5):
        with pytest.raises(Refused, match="which subscribed later"):
            await asking


def column(packets: list[bytes | None]) -> Any:
    """A batch's values as native code has them."""
    native = find().module
    if native is None:
        pytest.skip("headrace-native is not installed: scripts/build-native")
    values = native.Batch().values
    values += packets
    return values


@pytest.mark.parametrize("make", [list, column])
def test_entries_are_those_of_the_packets_and_become_packets_again(make: Callable[[list[bytes | None]], Any]) -> None:
    fields = [bytes(entry_in(packet)) for packet in PACKETS]
    entries = Entries.of(make([*PACKETS]))
    assert entries.data == b"".join(fields)
    assert list(entries_in(memoryview(entries.data))) == fields
    assert (len(entries), entries.total, entries.largest) == (len(fields), len(entries.data), max(map(len, fields)))
    again = Entries.of([*entries])
    assert (again.data, again.ends) == (entries.data, entries.ends)
    for given, made in zip(PACKETS, entries, strict=True):
        assert pb.Messages.FromString(pb.Packet.FromString(made).body).messages == (
            pb.Messages.FromString(pb.Packet.FromString(given).body).messages
        )


@pytest.mark.parametrize("make", [list, column])
def test_a_tombstone_is_no_entry(make: Callable[[list[bytes | None]], Any]) -> None:
    with pytest.raises(SinkRejected):
        Entries.of(make([PACKETS[0], None, PACKETS[1]]))


async def test_an_answer_has_as_many_entries_as_fit_and_one_at_least(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "_ANSWER", 5 * len(entry_in(batch(10).values[0] or b"")))
    store = EntryStore(tmp_path, 1 << 20, 1 << 20)
    large = packet_of(0, b"", 2, b"%01000d" % 99)
    for one in (batch(10, 11, 12), batch(13, 14, 15, 16), MessageBatch("t", 0, [large]), batch(17)):
        await store.append(one)
    subscription = Subscription("shop", store, Lease())
    subscription.serve("a")
    answers = [(await got(subscription, "a", 1000))[1] for _ in range(4)]
    assert answers == [[10, 11, 12, 13, 14], [15, 16], [99], [17]]
