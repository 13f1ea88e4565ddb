"""Runs RocketMQ's own client in its threads: messages go in, answers come back to the event loop, many at a time."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from headrace import runtime

from headrace.adapters.rocketmq.rocketmq_internals import abort_channels, route_fault  # isort: skip - before the client

import rocketmq
from rocketmq.v5 import exception as errors

from headrace.adapters.rocketmq.settings import RocketMqSinkSettings
from headrace.errors import SinkError
from headrace.tasks import set_within

CLOSE_LIMIT = 5.0
"""Maximum seconds for the end of the client."""

_REFUSALS = (
    errors.BadRequestException,
    errors.ForbiddenException,
    errors.IllegalArgumentException,
    errors.NotFoundException,
    errors.PayloadEmptyException,
    errors.PayloadTooLargeException,
    errors.RequestHeaderFieldsTooLargeException,
    errors.TooManyRequestsException,
    errors.UnsupportedException,
)
"""Answers that concern one message, or one topic; all other errors concern the connection."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One message in the client's terms."""

    tag_number: int
    """The sink's tag, not RocketMQ's."""
    topic: str
    group: str
    body: bytes
    id: str
    tag: str
    properties: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """The outcome of one message: `refusal` if the cluster refuses it, `failure` if the outcome is unknown."""

    outgoing: Outgoing
    refusal: str = ""
    failure: str = ""


class RocketMqClient:
    """A producer of one destination. Everything is called on the loop, including `answered`."""

    def __init__(self, settings: RocketMqSinkSettings, answered: Callable[[list[Answer]], None]) -> None:
        self._settings, self._answered = settings, answered
        self._loop = asyncio.get_running_loop()
        self._producer: Any = None
        self._todo: queue.SimpleQueue[Outgoing | None] = queue.SimpleQueue()
        self._answers: list[Answer] = []
        self._reported = False
        """Whether the loop has been asked to fetch the answers."""
        self._lock = threading.Lock()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="rocketmq", daemon=True)  # noqa: TID251 - the client has threads of its own

    async def start(self) -> None:
        """Creates the producer. Raises SinkError."""
        try:
            async with asyncio.timeout(self._settings.request_timeout):
                await runtime.in_thread(self._start)
        except Exception as error:
            raise SinkError(
                f"RocketMQ at {', '.join(self._settings.hosts)} can't be used ({describe(error)})"
            ) from error
        self._thread.start()

    def _start(self) -> None:
        settings = self._settings
        login = rocketmq.Credentials(settings.access_key, settings.secret_key.get_secret_value())
        limit = max(1, int(settings.request_timeout))
        configuration = rocketmq.ClientConfiguration(";".join(settings.hosts), login, settings.namespace, limit)
        producer = rocketmq.Producer(configuration)
        producer.startup()
        self._producer = producer

    def send(self, outgoing: Outgoing) -> None:
        """Hands one message over; its answer comes later."""
        self._todo.put(outgoing)

    async def end(self) -> None:
        """Closes the channels and ends the thread, within a limit; nothing is answered any more. Never raises."""
        self._ended = True
        self._todo.put(None)
        finished = asyncio.Event()
        # Not one of the loop's own threads: the end of the loop would wait for it.
        threading.Thread(target=self._end, args=(finished,), name="rocketmq end", daemon=True).start()  # noqa: TID251 - the client has threads of its own
        await set_within(finished, CLOSE_LIMIT)

    def _end(self, finished: asyncio.Event) -> None:
        producer, self._producer = self._producer, None
        with contextlib.suppress(Exception):  # it is abandoned either way
            if producer is not None:
                abort_channels(producer)
                producer.shutdown()
        self._call(finished.set)

    # -- in the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while (outgoing := self._todo.get()) is not None:
            if self._ended:
                return
            self._send(outgoing)

    def _send(self, outgoing: Outgoing) -> None:
        try:
            sent: Future[Any] = self._producer.send_async(_message(outgoing))
        except Exception as error:
            self._end_of(outgoing, error)
        else:
            sent.add_done_callback(lambda sent: self._end_of(outgoing, sent.exception()))

    def _end_of(self, outgoing: Outgoing, error: BaseException | None) -> None:
        if error is None:
            answer = Answer(outgoing)
        elif isinstance(error, _REFUSALS):
            answer = Answer(outgoing, refusal=describe(error))
        elif type(error) is Exception and (fault := route_fault(self._producer, outgoing.topic)):
            answer = Answer(outgoing, refusal=fault)
        else:
            answer = Answer(outgoing, failure=describe(error))
        with self._lock:
            self._answers.append(answer)
            if self._reported:
                return
            self._reported = True
        self._call(self._report)

    def _call(self, call: Callable[[], Any]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(call)

    def _report(self) -> None:
        with self._lock:
            answers, self._answers, self._reported = self._answers, [], False
        if not self._ended:
            self._answered(answers)


def _message(outgoing: Outgoing) -> Any:
    message = rocketmq.Message()
    message.topic, message.body = outgoing.topic, outgoing.body
    message.message_group, message.keys = outgoing.group, outgoing.id
    if outgoing.tag:
        message.tag = outgoing.tag
    for name, value in outgoing.properties:
        message.add_property(name, value)
    return message


def describe(error: BaseException) -> str:
    """Returns a client library's error as text for people."""
    return f"{type(error).__name__}: {error}".rstrip(": ").replace("\n", " ")[:300]
