"""What Canal's clients are given of a destination, without a network: nothing is passed over, whoever asks when."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headrace.adapters.canal.session import Refused, Subscription
from headrace.adapters.canal.store import EntryStore
from headrace.canal_wire import canal_pb2 as pb
from headrace.canal_wire.wire import packet_of
from headrace.lease import Lease
from headrace.model import MessageBatch


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
