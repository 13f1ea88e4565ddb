"""One script of raw requests; what it notes is the same of a real broker and of the model."""

from __future__ import annotations

from typing import Any

from aiokafka.protocol.admin import (
    CreateTopicsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
    DescribeConfigsRequest,
)

from headrace.adapters.kafka.aiokafka_internals import _OperationsRequest
from tests.sim.kafka_raw import NOBODY, RETRIED, Producer, Raw, batch, until

Notes = list[tuple[str, Any]]
_SETTINGS = (
    "cleanup.policy",
    "max.message.bytes",
    "min.cleanable.dirty.ratio",
    "min.insync.replicas",
    "retention.bytes",
    "retention.ms",
    "segment.bytes",
    "segment.ms",
    "unclean.leader.election.enable",
)

_OF_BROKERS = (
    "auto.create.topics.enable",
    "default.replication.factor",
    "message.max.bytes",
    "num.partitions",
    "transaction.max.timeout.ms",
)


async def script(kafka: Raw, prefix: str) -> Notes:
    """Plays everything; `prefix` is of topics and transactional ids that nobody else has."""
    notes: Notes = []
    for part in (_topics, _settings, _batches, _sequences, _transactions, _fencing, _reading, _deleting):
        found: Notes = []
        await part(kafka, f"{prefix}-{part.__name__}", found)
        notes += [(f"{part.__name__}: {what}", answer) for what, answer in found]
    return [(what.replace(prefix, "P"), _plain(answer, prefix)) for what, answer in notes]


def _plain(answer: Any, prefix: str) -> Any:
    if isinstance(answer, str):
        return answer.replace(prefix, "P")
    if isinstance(answer, tuple | list):
        return [_plain(one, prefix) for one in answer]
    return answer


async def _topics(kafka: Raw, name: str, notes: Notes) -> None:
    notes.append(("a missing topic", await kafka.metadata(name)))
    notes.append(("a bad name", await kafka.metadata("not/a/topic")))
    notes.append(("a bad name that may be created", await kafka.metadata("not/a/topic", create=True)))
    notes.append(("a missing topic is created", await kafka.metadata(f"{name}-auto", create=True)))
    await kafka.leads(f"{name}-auto")
    notes.append(("and is there", await kafka.metadata(f"{name}-auto")))
    notes.append(("created", await kafka.create(name, 3)))
    await kafka.leads(name)
    notes.append(("its partitions", await kafka.metadata(name)))
    notes.append(("created again", await kafka.create(name, 3)))
    notes.append(("created with a bad name", await kafka.create("not/a/topic")))
    notes.append(("created without a name", await kafka.create("")))
    notes.append(("created with a long name", (await kafka.create("x" * 250))[0]))
    notes.append(("created with a name that is too much alike", await kafka.create(name.replace("_", "."))))
    notes.append(("created with two dots", await kafka.create("..")))
    notes.append(("no partitions", await kafka.create(f"{name}-none", 0)))
    notes.append(("no copies", await kafka.create(f"{name}-none", 1, 0)))
    notes.append(("more copies than brokers", await kafka.create(f"{name}-none", 1, 9)))
    notes.append(("an unknown setting", await kafka.create(f"{name}-none", no_such_thing="1")))
    notes.append(("only checked", await kafka.create(f"{name}-none", check=True)))
    twice = [(f"{name}-twice", 1, 1, [], [])] * 2
    notes.append(("twice", (await kafka.send(CreateTopicsRequest(twice, 5000, False))).topic_errors))
    notes.append(("none of these is there", await kafka.metadata(f"{name}-none")))
    ((_, _, _, _, operations),) = (await kafka.send(_OperationsRequest(name))).topics
    notes.append(("rights", operations))


async def _settings(kafka: Raw, name: str, notes: Notes) -> None:
    await kafka.create(name, cleanup_policy="compact", max_message_bytes="5000")
    await kafka.leads(name)

    async def ask(kind: int, resource: str, keys: list[str]) -> Any:
        ((code, text, *_, entries),) = (await kafka.send(DescribeConfigsRequest([(kind, resource, keys)]))).resources
        return code, text, sorted([entry[0], entry[1], entry[3]] for entry in entries)

    notes.append(("of a topic", await ask(2, name, list(_SETTINGS))))
    notes.append(("one that is not there", await ask(2, name, ["no.such.thing"])))
    notes.append(("of a missing topic", await ask(2, f"{name}-none", ["cleanup.policy"])))
    notes.append(("of a broker", await ask(4, "1", list(_OF_BROKERS))))
    notes.append(("of another broker", await ask(4, "7", ["auto.create.topics.enable"])))


async def _batches(kafka: Raw, name: str, notes: Notes) -> None:
    await kafka.create(name, max_message_bytes="5000")
    await kafka.leads(name)
    notes.append(("first", await kafka.produce(name, batch(b"1", b"2"))))
    notes.append(("second", await kafka.produce(name, batch(b"3"))))
    notes.append(("by the leader alone", await kafka.produce(name, batch(b"4"), acks=1)))
    notes.append(("acks that do not exist", await kafka.produce(name, batch(b"5"), acks=2)))
    notes.append(("too large", await kafka.produce(name, batch(b"x" * 6000))))
    data = bytearray(batch(b"6"))
    data[-2] ^= 1
    notes.append(("damaged", await kafka.produce(name, bytes(data))))
    notes.append(("two batches", await kafka.produce(name, batch(b"7") + batch(b"8"))))
    notes.append(("a missing partition", await kafka.produce(name, batch(b"9"), 5)))
    notes.append(("a missing topic", await kafka.produce(f"{name}-none", batch(b"9"))))
    notes.append(("what is there", await kafka.values(name)))


async def _sequences(kafka: Raw, name: str, notes: Notes) -> None:
    await kafka.create(name)
    await kafka.leads(name)
    code, producer = await until(lambda: kafka.init(None), lambda found: found[0] not in RETRIED)
    notes.append(("an id", (code, producer[1])))

    async def send(sequence: int, *values: bytes, of: Producer = producer) -> tuple[int, int]:
        return await kafka.produce(name, batch(*(values or (b"v",)), producer=of, sequence=sequence))

    for sequence in range(7):
        notes.append((f"sequence {sequence}", await send(sequence)))
    for sequence in range(6, -1, -1):
        notes.append((f"sequence {sequence} again", await send(sequence)))
    notes.append(("a gap", await send(9)))
    notes.append(("the gap is closed by several", await send(7, b"a", b"b", b"c")))
    notes.append(("a part of them again", await send(8, b"b", b"c")))
    notes.append(("all of them again", await send(7, b"a", b"b", b"c")))
    newer = producer[0], 1
    notes.append(("a new epoch in the middle", await send(10, of=newer)))
    notes.append(("a new epoch from its begin", await send(0, of=newer)))
    notes.append(("the old epoch", await send(10)))
    notes.append(("the new epoch goes on", await send(1, of=newer)))
    _, other = await kafka.init(None)
    notes.append(("an unknown producer begins late", await send(5, of=other)))
    notes.append(("and goes on", await send(6, of=other)))
    notes.append(("without a producer", await kafka.produce(name, batch(b"plain"))))
    notes.append(("what is there", await kafka.values(name)))


async def _transactions(kafka: Raw, name: str, notes: Notes) -> None:
    await kafka.create(name, 2)
    await kafka.leads(name)
    here = (name, 0)
    producer = await kafka.started(name)
    notes.append(("first epoch", producer[1]))

    async def send(sequence: int, value: bytes = b"v", partition: int = 0) -> tuple[int, int]:
        data = batch(value, producer=producer, sequence=sequence, transactional=True)
        return await kafka.produce(name, data, partition, name=name)

    notes.append(("no open transaction", await kafka.end(name, producer, True)))
    notes.append(("a partition that was not added", await send(0)))
    notes.append(("another epoch", await kafka.add(name, (producer[0], 5), here)))
    notes.append(("another id", await kafka.add(name, (producer[0] + 100_000, 0), here)))
    notes.append(("an unknown name", await kafka.add(f"{name}-none", producer, here)))
    notes.append(("an unknown topic", await kafka.add(name, producer, here, (f"{name}-none", 0), (name, 7))))
    notes.append(("added", await kafka.add(name, producer, here)))
    notes.append(("added again", await kafka.add(name, producer, here)))
    notes.append(("sent", await send(0, b"committed")))
    notes.append(("sent to another partition", await send(0, b"nowhere", 1)))
    plain = batch(b"plain", producer=producer, sequence=1)
    notes.append(("sent outside of the transaction", await kafka.produce(name, plain)))
    notes.append(("ends", [await kafka.offset(name, -1), await kafka.offset(name, -1, committed=True)]))
    notes.append(("read while open", await kafka.values(name, committed=True)))
    notes.append(("another epoch ends it", await kafka.end(name, (producer[0], 5), True)))
    notes.append(("committed", await kafka.end(name, producer, True)))
    notes.append(("committed again", await kafka.ended(name, producer, True)))
    notes.append(("aborted after it", await kafka.ended(name, producer, False)))
    notes.append(("read once committed", await kafka.values(name, committed=True)))
    notes.append(("sent after it", await send(1)))
    await kafka.added(name, producer, here)
    notes.append(("sent in the next", await send(1, b"aborted")))
    notes.append(("aborted", await kafka.end(name, producer, False)))
    notes.append(("aborted again", await kafka.ended(name, producer, False)))
    await kafka.settled(name)
    code, high, stable, aborted, batches = await kafka.fetch(name, 0, committed=True)
    notes.append(("fetched", (code, high, stable)))
    notes.append(("aborted transactions", [first for _, first in aborted or ()]))
    notes.append(("control batches", [(one.base_offset, one.is_control_batch) for one in batches]))
    _, _, _, aborted, batches = await kafka.fetch(name, batches[-1].base_offset + 1, committed=True)
    notes.append(("aborted transactions of the next segment", [first for _, first in aborted or ()]))
    notes.append(("its batches", [(one.base_offset, one.is_control_batch) for one in batches]))
    notes.append(("aborted ones later", (await kafka.fetch(name, 4, committed=True))[3]))
    notes.append(("uncommitted has no list", (await kafka.fetch(name, 0))[3]))
    await kafka.added(name, producer, here)
    notes.append(("no record in it", await kafka.end(name, producer, True)))
    await kafka.ended(name, producer, True)
    await kafka.settled(name)
    notes.append(("and yet a marker", await kafka.offset(name, -1)))
    notes.append(("a timeout of nothing", (await kafka.init(name, 0))[0]))
    notes.append(("a timeout of an hour", (await kafka.init(name, 3_600_000))[0]))
    notes.append(("a name of nothing", await kafka.init("")))


async def _fencing(kafka: Raw, name: str, notes: Notes) -> None:
    await kafka.create(name)
    await kafka.leads(name)
    here, old = (name, 0), await kafka.started(name)

    async def send(producer: Producer, sequence: int, value: bytes) -> tuple[int, int]:
        data = batch(value, producer=producer, sequence=sequence, transactional=True)
        return await kafka.produce(name, data, name=name)

    await kafka.added(name, old, here)
    notes.append(("an open transaction", await send(old, 0, b"left")))
    notes.append(("a second producer has to wait", (await kafka.init(name))[0]))
    new = await kafka.started(name)
    notes.append(("its epoch", (new[0] == old[0], new[1])))
    notes.append(("the old one sends", await send(old, 1, b"late")))
    notes.append(("the old one adds", await kafka.add(name, old, here)))
    notes.append(("the old one commits", await kafka.end(name, old, True)))
    await kafka.added(name, new, here)
    notes.append(("the new one sends", await send(new, 0, b"new")))
    notes.append(("the old one sends now", await send(old, 1, b"late")))
    notes.append(("the new one commits", await kafka.ended(name, new, True)))
    await kafka.settled(name)
    third = await kafka.started(name)
    notes.append(("a third epoch", third[1]))
    _, _, _, aborted, batches = await kafka.fetch(name, 0, committed=True)
    notes.append(("aborted transactions", [first for _, first in aborted or ()]))
    notes.append(("batches", [(one.base_offset, one.is_control_batch, one.producer_epoch) for one in batches]))


async def _reading(kafka: Raw, name: str, notes: Notes) -> None:
    await kafka.create(name)
    await kafka.leads(name)
    for number in range(4):
        await kafka.produce(name, batch(b"a%d" % number, b"b%d" % number, timestamp=1000 * (number + 1)))
    for what, offset in (("begin", 0), ("middle of a batch", 3), ("end", 8), ("beyond", 9), ("before", -5)):
        code, high, stable, aborted, batches = await kafka.fetch(name, offset)
        notes.append((f"from the {what}", (code, high, stable, aborted, [one.base_offset for one in batches])))
    notes.append(("a first batch that is too large", len((await kafka.fetch(name, 0, most=10))[4])))
    notes.append(("a missing partition", (await kafka.fetch(name, 0, 5))[:4]))
    notes.append(("a missing topic", (await kafka.fetch(f"{name}-none", 0))[:4]))
    for epoch in (-1, 0, 5):
        notes.append((f"leader epoch {epoch}", await kafka.fetch_at(name, 0, epoch)))
    for timestamp in (-1, -2, 0, 1001, 2500, 4001, 9000):
        notes.append((f"offset at {timestamp}", await kafka.offset(name, timestamp)))
    notes.append(("offset in a missing partition", await kafka.offset(name, -1, 5)))
    notes.append(("offset in a missing topic", await kafka.offset(f"{name}-none", -1)))


async def _deleting(kafka: Raw, name: str, notes: Notes) -> None:
    await kafka.create(name)
    await kafka.leads(name)
    for number in range(6):
        await kafka.produce(name, batch(b"a%d" % number, b"b%d" % number))

    async def delete(offset: int, partition: int = 0) -> Any:
        answer = await kafka.send(DeleteRecordsRequest([(name, [(partition, offset)])], 5000))
        ((_, ((_, low, code, *_),), *_),) = answer.topics
        return code, low

    for offset in (3, 2, 13, -5):
        notes.append((f"before {offset}", await delete(offset)))
    notes.append(("of a missing partition", await delete(1, 5)))
    notes.append(("begin", await kafka.offset(name, -2)))
    notes.append(("read before", (await kafka.fetch(name, 2))[0]))
    notes.append(("read the rest", await kafka.values(name, 3)))
    notes.append(("by time", await kafka.offset(name, 0)))
    notes.append(("all", await delete(-1)))
    notes.append(("begin now", await kafka.offset(name, -2)))
    notes.append(("goes on", await kafka.produce(name, batch(b"next"))))
    answer = await kafka.send(DeleteTopicsRequest([name, f"{name}-none"], 5000))
    notes.append(("topics", sorted(answer.topic_error_codes)))
    await until(lambda: kafka.metadata(name), lambda found: found[0] != 0)
    notes.append(("then", await kafka.metadata(name)))
    notes.append(("sent to it", await kafka.produce(name, batch(b"x"))))
    await until(lambda: kafka.offset(name, -1), lambda found: found[0] != 0)  # the log goes a moment after the metadata
    notes.append(("offset of it", await kafka.offset(name, -1)))
    await kafka.create(name)
    await kafka.leads(name)
    notes.append(("created again", await kafka.produce(name, batch(b"x", producer=NOBODY))))
