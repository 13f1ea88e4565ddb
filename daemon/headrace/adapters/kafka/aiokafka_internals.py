"""Uses of aiokafka below its documented interface, which are only here. Each function says why the documented way is
not enough. aiokafka itself is unchanged for the rest of the process: our own clients differ from its clients, object by
object or as subclasses."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
import types
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, cast

import aiokafka
from aiokafka import codec, conn
from aiokafka.client import AIOKafkaClient, CoordinationType
from aiokafka.errors import IncompatibleBrokerVersion, KafkaError, TransactionalIdAuthorizationFailed, for_code
from aiokafka.producer import sender as senders
from aiokafka.producer.message_accumulator import BatchBuilder
from aiokafka.protocol.admin import CreateTopicsRequest, DescribeConfigsRequest
from aiokafka.protocol.api import Request, RequestStruct
from aiokafka.protocol.metadata import MetadataRequest, MetadataResponse_v5
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.protocol.transaction import EndTxnRequest
from aiokafka.protocol.types import Array, Boolean, Int16, Int32, Schema, String
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.util import calc_crc32c

from headrace.model import MessageBatch
from headrace.tasks import cancel

KNOWN_VERSIONS = {"aiokafka": ("0.14.0",)}
"""Versions that all of this was tested with, on real brokers. It relies on the producer's _sender,
_message_accumulator, _txn_manager and _closed; on BatchBuilder's _builder, _relative_offset and _build(); on the
accumulator's create_builder(), _pending_batches, _batch_size and _compression_type; on the client's _conns, and that
its bootstrap() and _get_conn() call create_conn(), which makes an AIOKafkaConnection; on a connection's _writer and
_versions, and that its send() adds what it writes before a request from the left; on the _client of admin clients and
consumers; on conn.OAuthAuthenticator with its _token_sent; and on the requests and types of aiokafka.protocol."""

CLOSE_LIMIT = 5.0
"""Maximum seconds to close in order, or to end the tasks of a producer."""
_TASKS = ("_send_produce_req", "_do_add_partitions_to_txn", "_do_txn_commit")
"""The names of tasks that aiokafka's sender starts; they end with it only when they have completed."""
_ENDING = 0.003
"""Seconds until a transaction is begun again, if the brokers have not finished the one before; aiokafka waits 20 ms."""
_TRANSACTIONAL = 0x10
"""The bit of a record batch's attributes."""
_HEADER = 61
"""Bytes of a record batch (version 2) before its records."""
_COMPRESS: dict[int, Callable[..., bytes]] = {
    1: codec.gzip_encode,
    2: codec.snappy_encode,
    3: codec.lz4_encode,
    4: codec.zstd_encode,
}
Header = tuple[str, bytes]


# -- topics: the admin client asks in the usual way, by which the brokers make a missing topic with their defaults ----


def client_of(user: Any) -> Any:
    """Returns the client of an AIOKafkaAdminClient or a consumer, for requests that those have no method for."""
    return user._client


async def describe_topic(client: Any, topic: str, *, make: bool = False) -> tuple[type[KafkaError], int, int]:
    """Asks a broker about a topic. Returns the error, how many partitions it has, and how many brokers there are.

    `make`: the brokers may create a missing topic with their defaults. Raises KafkaError."""
    answer = (await client.send(client.get_random_node(), MetadataRequest([topic], make))).to_object()
    (found,) = answer["topics"]
    return for_code(found["error_code"]), len(found["partitions"]), len(answer["brokers"])


class _MetadataResponse_v8(MetadataResponse_v5):  # type: ignore[misc]  # noqa: N801
    API_VERSION = 8
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("brokers", Array(("node_id", Int32), ("host", String()), ("port", Int32), ("rack", String()))),
        ("cluster_id", String()),
        ("controller_id", Int32),
        (
            "topics",
            Array(
                ("error_code", Int16),
                ("topic", String()),
                ("is_internal", Boolean),
                (
                    "partitions",
                    Array(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader", Int32),
                        ("leader_epoch", Int32),
                        ("replicas", Array(Int32)),
                        ("isr", Array(Int32)),
                        ("offline_replicas", Array(Int32)),
                    ),
                ),
                ("operations", Int32),
            ),
        ),
        ("cluster_operations", Int32),
    )


class _MetadataRequest_v8(RequestStruct):  # type: ignore[misc]  # noqa: N801
    API_KEY = 3
    API_VERSION = 8
    RESPONSE_TYPE = _MetadataResponse_v8
    SCHEMA = Schema(("topics", Array(String())), ("make", Boolean), ("of_cluster", Boolean), ("of_topics", Boolean))


class _OperationsRequest(Request[_MetadataRequest_v8]):  # type: ignore[misc]
    """Metadata with our permissions; aiokafka knows only versions before KIP-430."""

    API_KEY = 3

    def __init__(self, topic: str) -> None:
        self._topic = topic

    def build(self, struct: type[_MetadataRequest_v8]) -> _MetadataRequest_v8:
        return struct([self._topic], False, False, True)


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """What one broker reports of a topic."""

    error: type[KafkaError]
    partitions: int
    copies: int
    """Replicas of the partition that has the fewest."""
    operations: frozenset[int] | None
    """What we may do with it, by the numbers in AclOperation; None from brokers before Kafka 2.3, which do not report
    it."""


async def inspect_topic(client: Any, topic: str) -> TopicFacts:
    """Asks a broker about a topic and our rights; creates none. Raises KafkaError."""
    node, known = client.get_random_node(), True
    try:
        answer = (await client.send(node, _OperationsRequest(topic))).to_object()
    except (NotImplementedError, IncompatibleBrokerVersion):
        answer, known = (await client.send(node, MetadataRequest([topic], False))).to_object(), False
    (found,) = answer["topics"]
    copies = [len(one["replicas"]) for one in found["partitions"]]
    operations = frozenset(bit for bit in range(32) if found["operations"] >> bit & 1) if known else None
    return TopicFacts(for_code(found["error_code"]), len(copies), min(copies, default=0), operations)


async def may_write_transactions(client: Any, transactional_id: str) -> bool:
    """Returns whether we may use a transactional id. Asks a broker to end a transaction of a producer that can't exist:
    the broker checks our rights first, then finds no such producer, and ends nothing. Raises KafkaError."""
    request = EndTxnRequest(transactional_id, -1, -1, False)
    answer = await client.send(client.get_random_node(), request)
    return for_code(answer.error_code) is not TransactionalIdAuthorizationFailed


async def create_topic(client: Any, topic: str, partitions: int, copies: int, limit: float) -> tuple[int, str]:
    """Asks the controller to create a topic, over the producer's connection. Returns the error's code, 0 for none, and
    the broker's text. `limit` is in seconds. Raises KafkaError."""
    controller = client.cluster.controller
    node = controller.nodeId if controller else client.get_random_node()
    request = CreateTopicsRequest([(topic, partitions, copies, [], [])], int(limit * 1000), validate_only=False)
    code, *text = (await client.send(node, request)).topic_errors[0][1:]
    return code, " ".join(filter(None, text))


async def read_setting(client: Any, kind: Any, name: str, key: str, node: int | None = None) -> str | None:
    """Returns one setting of a topic or broker; None if we may not read it. Raises KafkaError."""
    request = DescribeConfigsRequest([(kind, name, [key])])
    answer = await client.send(client.get_random_node() if node is None else node, request)
    code, _, _, _, entries = answer.resources[0]
    return None if code else {entry[0]: entry[1] for entry in entries}.get(key)


# -- connections: what a producer meets with while it connects is known to its log only -------------------------------


class _Authenticator(conn.OAuthAuthenticator):  # type: ignore[misc]
    """Handles a broker's refusal: aiokafka's class takes it for consent, and then waits for answers that do not
    come."""

    _answered = False

    async def step(self, payload: bytes | None) -> tuple[bytes, bool] | None:
        """Answers a refusal. RFC 7628, 3.2.3: a refusal is a text, and the broker ends the exchange once we have
        answered with %x01."""
        if self._token_sent and payload and not self._answered:
            self._answered = True
            return b"\x01", True
        step: tuple[bytes, bool] | None = await super().step(payload)
        return step


class Connection(conn.AIOKafkaConnection):  # type: ignore[misc]
    """A connection to one broker."""

    _writer: Any

    def authenticator_oauth(self) -> _Authenticator:
        return _Authenticator(sasl_oauth_token_provider=self._sasl_oauth_token_provider)

    def send(self, request: Any, expect_response: bool = True) -> Any:
        """Writes a producer's request in pieces, and any other as aiokafka does."""
        writer = self._writer
        if writer is None or not expect_response or not isinstance(request, ProduceRequest):
            return super().send(request, expect_response)
        struct = request.prepare(self._versions)
        self._writer = _PiecesWriter(writer)
        try:
            return super().send(_PiecesRequest(struct), expect_response)
        finally:
            if isinstance(self._writer, _PiecesWriter):  # else the connection is closed
                self._writer = writer


def _with(function: Any, **names: Any) -> Any:
    """Returns a copy of a function of aiokafka that finds other objects under some of the global names that it uses."""
    assert names.keys() <= {*function.__code__.co_names}, f"{function} is not the one that is known"
    made = types.FunctionType(function.__code__, function.__globals__ | names, function.__name__)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


_create_conn = _with(conn.create_conn, AIOKafkaConnection=Connection)


class _Client(AIOKafkaClient):  # type: ignore[misc]
    """A client that opens our own connections: aiokafka's client takes no class for them."""

    _sync_task: Any
    _connected = _with(AIOKafkaClient._get_conn, create_conn=_create_conn)
    _ended = False

    async def bootstrap(self) -> None:
        """Also closes its connection if it is cancelled while the broker has not answered."""
        opened = list[Connection]()

        async def create(*of: Any, **which: Any) -> Connection:
            made: Connection = await _create_conn(*of, **which)
            opened.append(made)
            return made

        try:
            await _with(AIOKafkaClient.bootstrap, create_conn=create)(self)
        except BaseException:
            for connection in opened:
                connection.close()
            raise

    async def _get_conn(self, *of: Any, **which: Any) -> Any:
        """Also closes a connection that was opened while the client was closed: nobody else would."""
        found = await self._connected(*of, **which)
        if self._ended and found is not None:
            found.close()
            return None
        return found

    async def close(self) -> None:
        """Ends the task that asks for metadata before aiokafka does, which drops a cancellation of us meanwhile."""
        self._ended = True
        asking, self._sync_task = self._sync_task, None
        try:
            await cancel(asking)
        finally:
            await super().close()


class Producer(aiokafka.AIOKafkaProducer):  # type: ignore[misc]
    """A producer that abort() can end. `level`: the compression level of its record batches, 0 for the library's."""

    def __init__(self, level: int = 0, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.client.__class__ = _Client
        begin_soon(self)
        note_tasks(self)
        self.headrace_level, accumulator = level, self._message_accumulator
        if level:
            accumulator.create_builder = lambda **_: _LevelBuilder(self)


class Consumer(aiokafka.AIOKafkaConsumer):  # type: ignore[misc]
    """aiokafka's consumer, whose stop() always closes its connections."""

    async def stop(self) -> None:
        """Ends the requests that run before aiokafka does: it awaits each that it cancels, and one that has not begun
        raises its cancellation, as if we were cancelled. The connections, and a task that asks for metadata, would be
        left for ever."""
        fetcher = self._fetcher
        try:
            if fetcher is not None and not self._closed:
                await cancel(fetcher._fetch_task, *fetcher._pending_tasks)
        finally:
            if fetcher is not None:
                fetcher._pending_tasks.clear()
            await super().stop()


def connect_by_ours(user: Any) -> Any:
    """Makes an admin client or a consumer connect as our producers do, and returns it."""
    user._client.__class__ = _Client
    return user


async def try_connection(host: str, port: int, arguments: dict[str, Any]) -> None:
    """Connects to one broker, logs in, and closes the connection. Raises what fails: KafkaError, OSError, SSLError."""
    (await _create_conn(host, port, **arguments)).close()


# -- record batches ---------------------------------------------------------------------------------------------------


def fill(
    producer: Any,
    limit: int,
    when: int,
    keys: Sequence[bytes | None] | None,
    values: Sequence[bytes | None],
    headers: Sequence[Sequence[Header]],
) -> list[Any]:
    """Fills record batches with messages, in order; a message that is larger than a record batch gets its own.

    `when` is in milliseconds since 1970. `limit`: the maximum bytes of a record batch, if it is below the producer's; 0
    for none. BatchBuilder.append() would take a quarter more time."""
    create = _builder_of(producer, limit)
    part, count = create(), 0
    parts, append = [part], part._builder.append
    for key, value, own in zip(keys if keys is not None else repeat(None, len(values)), values, headers, strict=True):
        if append(count, when, key, value, own) is None:
            part._relative_offset = count
            part, count = create(), 0
            parts.append(part)
            append = part._builder.append
            append(0, when, key, value, own)
        count += 1
    part._relative_offset = count
    return parts


class _NativePart(BatchBuilder):  # type: ignore[misc]
    """A record batch of messages that native code keeps in columns. It is written when it is sent, as aiokafka's
    builder would write it."""

    def __init__(self, producer: Any, columns: Any, run: tuple[int, int, int], when: int) -> None:
        """`run` is the first message, the end, and the bytes of all."""
        accumulator, transactional = producer._message_accumulator, _is_transactional(producer)
        super().__init__(run[2], 0, is_transactional=transactional)
        self._columns, self._run, self._when = columns, run, when
        self._compression, self._transactional = accumulator._compression_type, _TRANSACTIONAL * transactional
        self._level = (producer.headrace_level,) if getattr(producer, "headrace_level", 0) else ()
        self._relative_offset = run[1] - run[0]
        self._state = (-1, -1, 0)
        self._buffer: bytes | None = None
        self._records: bytes | None = None
        """Its content, once it is compressed."""

    def _set_producer_state(self, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
        self._state = producer_id, producer_epoch, base_sequence

    def _build(self) -> bytes:
        self.close()
        if self._buffer is None:
            if self._compression and self._records is None:
                self.compress()
            attributes, run = self._transactional | self._compression, self._run[:2]
            self._buffer = self._columns.record_batch(run, attributes, self._when, self._state, self._records)
        return self._buffer

    def compress(self) -> None:
        """Compresses its content, which must be complete."""
        self._records = _COMPRESS[self._compression](self._columns.records(*self._run[:2]), *self._level)

    def size(self) -> int:
        return self._run[2] if self._buffer is None else len(self._buffer)


def fill_native(producer: Any, limit: int, when: int, columns: Any) -> list[Any]:
    """Does the same for a batch whose columns native code has filled."""
    own = producer._message_accumulator._batch_size
    return [_NativePart(producer, columns, run, when) for run in columns.runs(min(own, limit or own))]


def _builder_of(producer: Any, limit: int) -> Callable[[], Any]:
    """Returns a function that makes empty record batches; create_batch() knows only the producer's own limit."""
    accumulator = producer._message_accumulator
    if not limit or accumulator._batch_size <= limit:
        made: Callable[[], Any] = producer.create_batch
        return made

    def create() -> Any:
        size, accumulator._batch_size = accumulator._batch_size, limit
        try:
            return producer.create_batch()
        finally:
            accumulator._batch_size = size

    return create


class _LevelBuilder(BatchBuilder):  # type: ignore[misc]
    """Compresses at its own level: aiokafka calls its codecs without one."""

    def __init__(self, producer: Any) -> None:
        accumulator = producer._message_accumulator
        super().__init__(accumulator._batch_size, 0, is_transactional=_is_transactional(producer))
        self._codec, self._level = accumulator._compression_type, producer.headrace_level

    def _build(self) -> bytearray:
        if self._buffer is None:
            buffer: bytearray = super()._build()
            records = _COMPRESS[self._codec](bytes(memoryview(buffer)[_HEADER:]), self._level)
            if len(records) < len(buffer) - _HEADER:
                buffer[_HEADER:] = records
                struct.pack_into(">i", buffer, 8, len(buffer) - 12)
                buffer[22] |= self._codec
                _sign(buffer)
        return cast(bytearray, self._buffer)


def _is_transactional(producer: Any) -> bool:
    transactions = producer._txn_manager
    return transactions is not None and transactions.transactional_id is not None


def _sign(buffer: bytearray) -> None:
    """Writes the checksum of a record batch that was changed."""
    struct.pack_into(">I", buffer, 17, calc_crc32c(memoryview(buffer)[21:]))


def size_at_most(batch: MessageBatch, index: int) -> int:
    """Returns the bytes of an uncompressed record batch with this one message; a few more than it takes."""
    size: int = DefaultRecordBatchBuilder.estimate_size_in_bytes(*_parts(batch, index))
    return size


_LARGE = 1 << 20


def compresses(producer: Any) -> bool:
    """Returns whether its record batches are compressed."""
    return bool(producer._message_accumulator._compression_type)


def prepare(part: Any) -> None:
    """Compresses a record batch before its turn to be sent, in a thread: a large one takes long. Its producer's state
    comes later, and is then written into the header (of a record batch, version 2)."""
    if isinstance(part, _NativePart):
        part.compress()
        return
    buffer: bytearray = part._build()

    def stamp(producer_id: int, producer_epoch: int, base_sequence: int) -> None:
        struct.pack_into(">qhi", buffer, 43, producer_id, producer_epoch, base_sequence)
        _sign(buffer)

    part._set_producer_state = stamp


def packed_size(producer: Any, batch: MessageBatch, index: int) -> int:
    """Returns the bytes of a record batch with this one message, as the brokers count it: compressed, while
    BatchBuilder.size() is not. Costs as much as sending."""
    key, value, headers = _parts(batch, index)
    if not compresses(producer) and len(value or b"") > _LARGE:
        return size_at_most(batch, index)
    part = producer.create_batch()
    part.append(timestamp=0, key=key, value=value, headers=headers)
    return len(part._build())


def _parts(batch: MessageBatch, index: int) -> tuple[bytes | None, bytes | None, Sequence[Header]]:
    """Returns key, value and headers of one message."""
    return batch.keys[index] if batch.keys is not None else None, batch.values[index], batch.headers[index]


# -- requests: aiokafka copies a record batch eight times on its way to the socket -------------------------------------


class _Pieces:
    """An encoded request that is not joined. What aiokafka writes before it is added from the left."""

    def __init__(self, parts: Sequence[bytes]) -> None:
        self.parts = parts

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def __radd__(self, before: bytes) -> _Pieces:
        return _Pieces([before, *self.parts])


def pieces_of(request: Any) -> list[bytes]:
    """Returns a producer's request as its struct would encode it, with each record batch as a separate piece."""
    pieces, head = list[bytes](), bytearray()
    *schema, _ = request.SCHEMA.fields
    for name, kind in zip(request.SCHEMA.names, schema, strict=False):
        head += kind.encode(getattr(request, name))
    head += Int32.encode(len(request.topics))
    for topic, partitions in request.topics:
        head += String("utf-8").encode(topic) + Int32.encode(len(partitions))
        for partition, records in partitions:
            head += Int32.encode(partition) + Int32.encode(len(records))
            pieces += [bytes(head), records]
            head.clear()
    return [*pieces, bytes(head)] if head else pieces


class _PiecesRequest:
    """A producer's request, in the form that aiokafka's connections take."""

    def __init__(self, struct: Any) -> None:
        self._struct = struct

    def __getattr__(self, name: str) -> Any:
        return getattr(self._struct, name)

    def prepare(self, _: Any) -> _PiecesRequest:
        return self

    def encode(self) -> _Pieces:
        return _Pieces(pieces_of(self._struct))


class _PiecesWriter:
    """Replaces a connection's writer while one request is written."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def write(self, data: _Pieces) -> None:
        if self._writer.is_closing():
            # aiokafka learns a moment later that its connection is lost. write() drops what is written meanwhile.
            # writelines() of asyncio in Python 3.12, and in early 3.13, fails instead, or watches the number of a
            # socket that is then closed, so that the next connection with that number hangs.
            self._writer.write(b"".join(data.parts))
        else:
            self._writer.writelines(data.parts)

    def close(self) -> None:
        self._writer.close()


# -- transactions -----------------------------------------------------------------------------------------------------


def check_before_fencing(producer: Any, check: Callable[[], None]) -> None:
    """Calls `check` before each request for a producer id, which start() repeats for as long as it takes."""
    init_producer_id = producer._sender._do_init_pid

    async def run(node: int) -> Any:
        check()
        return await init_producer_id(node)

    producer._sender._do_init_pid = run


class _AddPartitions(senders.AddPartitionsToTxnHandler):  # type: ignore[misc]
    """Retries sooner than aiokafka while the brokers finish the transaction before, which takes a few milliseconds."""

    def handle_response(self, response: Any) -> float | None:
        wait: float | None = super().handle_response(response)
        return _ENDING if wait == senders.BACKOFF_OVERRIDE else wait


def begin_soon(producer: Any) -> None:
    """Makes a producer begin each transaction soon after the one before; see _ENDING."""
    its = producer._sender

    async def add(partitions: Any) -> Any:
        node = await its._find_coordinator(CoordinationType.TRANSACTION, its._txn_manager.transactional_id)
        return await _AddPartitions(its, partitions).do(node)

    its._do_add_partitions_to_txn = add


def add_to_transaction(producer: Any, topic_partition: aiokafka.TopicPartition) -> None:
    """Adds a partition to the open transaction before anything is sent to it. The first request for the partitions of
    messages includes it, which saves a round trip."""
    producer._txn_manager.maybe_add_partition_to_txn(topic_partition)


def failure_of_transaction(producer: Any) -> BaseException | None:
    """Returns the first error of the open transaction: the errors of later calls say only that something failed."""
    waiter = producer._txn_manager._transaction_waiter
    if waiter is None or not waiter.done() or waiter.cancelled():
        return None
    error: BaseException | None = waiter.exception()
    return error


# -- the end: stop() would still send what it has, and can hang when the broker is gone --------------------------------


class _NoTracebacks(logging.Filter):
    """Drops tracebacks: whatever ends the sender is raised to us, and reported in our own words."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.msg != "Unexpected error in sender routine"


logging.getLogger("aiokafka.producer.sender").addFilter(_NoTracebacks())


class _Pending(set[Any]):
    """Batches that are being sent. A batch that is put back to wait leaves this set, and aiokafka removes it again if
    it ends while it waits, as all failed ones do: a KeyError with a traceback, although nothing is wrong."""

    def remove(self, batch: Any) -> None:
        self.discard(batch)


_Tasks = dict[asyncio.Task[Any], None]


def note_tasks(producer: Any) -> None:
    """Keeps the tasks that the producer's sender starts from now on, for abort()."""
    producer._message_accumulator._pending_batches = _Pending()
    producer.headrace_tasks = tasks = _Tasks()
    for name in _TASKS:
        setattr(producer._sender, name, _noted(getattr(producer._sender, name), tasks))


def _noted(method: Callable[..., Awaitable[Any]], tasks: _Tasks) -> Callable[..., Awaitable[Any]]:
    async def run(*arguments: Any) -> Any:
        task = asyncio.current_task()
        assert task is not None
        tasks[task] = None
        try:
            return await method(*arguments)
        finally:
            tasks.pop(task, None)

    return run


async def abort(producer: Any) -> None:
    """Ends a producer whose tasks were noted. Its tasks are ended and its sockets reset before this returns, with what
    was in their buffers, because a socket that still delivers could put old rows after new ones. Never raises."""
    producer._closed = True
    client, sender = producer.client, producer._sender.sender_task
    client._get_conn = _no_connection  # a task that continues anyway finds no connection
    for connection in list(client._conns.values()):
        _reset(connection)
    tasks = [task for task in (sender, *producer.headrace_tasks) if task is not None and not task.done()]
    for task in tasks:
        task.cancel()
    with contextlib.suppress(Exception):
        async with asyncio.timeout(CLOSE_LIMIT):
            await client.close()
    if tasks:
        await asyncio.wait(tasks, timeout=CLOSE_LIMIT)
    producer._message_accumulator.fail_all(KafkaError("the producer was ended"))
    never_drained = [batch for batches in producer._message_accumulator._batches.values() for batch in batches]
    for future in (producer._txn_manager._transaction_waiter, *(batch._drain_waiter for batch in never_drained)):
        if future is not None and future.done() and not future.cancelled():
            future.exception()  # already reported; asyncio would log it again


async def _no_connection(*_: Any, **__: Any) -> Any:
    raise asyncio.CancelledError


def _reset(connection: Any) -> None:
    """Resets a connection. An ordinary close would still send what is buffered, here and in the kernel."""
    writer = connection._writer
    if writer is None:
        return
    with contextlib.suppress(Exception):
        kernel = writer.transport.get_extra_info("socket")
        kernel.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
