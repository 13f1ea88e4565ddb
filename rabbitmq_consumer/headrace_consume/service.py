"""The process: consecutive sessions with the broker, the scan of dead letters, HTTP, the end."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from contextlib import suppress
from typing import Any

import structlog

from headrace_consume.applying import Applier
from headrace_consume.broker import Broker, BrokerError
from headrace_consume.dead_letter_queues import DeadLetterQueues, prepare
from headrace_consume.duplicates import Duplicates, make_duplicates
from headrace_consume.session import Backoff, Session
from headrace_consume.settings import Settings
from headrace_consume.status import ConsumeMetrics, State, Status
from headrace_documents.elastic.bulk import BulkWriter
from headrace_documents.elastic.cluster import Cluster
from headrace_documents.errors import BulkError
from headrace_documents.http import HttpServer

log = structlog.get_logger("headrace_consume")


class Service:
    """Runs until SIGTERM or SIGINT; it never ends by itself, whatever is unavailable."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._status = Status()
        self._stop = asyncio.Event()
        # The same request for the writing thread: asyncio's event is not for threads.
        self._stop_writing = threading.Event()
        self._dead_letters = DeadLetterQueues(settings)

    async def run(self) -> None:
        """Works until it is stopped. Raises HttpError, and DuplicatesError if a package is missing."""
        quiet_clients()
        duplicates = make_duplicates(self._settings)
        address, metrics = self._settings.http.address, ConsumeMetrics(self._status)
        server = HttpServer(address, self._status, metrics) if address is not None else None
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, signal.Signals(number).name)
        cluster = Cluster(self._settings.elasticsearch)
        applier = Applier(self._settings, BulkWriter(self._settings.elasticsearch, cluster, self._pause))
        side = [asyncio.ensure_future(work) for work in (self._scan_for_ever(), self._sign_for_ever())]
        try:
            await self._sessions(applier, duplicates)
        finally:
            for task in side:
                task.cancel()
            await asyncio.gather(*side, return_exceptions=True)
            await self._dead_letters.close()
            await duplicates.close()
            if server is not None:
                server.close()
            log.info("stopped", **self._status.gauges, **self._status.counts)

    def _on_signal(self, name: str) -> None:
        log.info("signal", name=name)
        self._stop.set()
        self._stop_writing.set()
        self._status.enter(State.STOPPING)

    def _pause(self, seconds: float) -> None:
        """Waits between two attempts of the writer, in its thread. Raises BulkError at the request to stop."""
        if self._stop_writing.wait(seconds):
            raise BulkError("stopping")

    async def _sessions(self, applier: Applier, duplicates: Duplicates) -> None:
        backoff = Backoff(self._settings.run.reconnect_max)
        while not self._stop.is_set():
            reason = ""
            worked = False
            try:
                reason, worked = await self._session(applier, duplicates)
            except BrokerError as error:
                reason = str(error)
            if self._stop.is_set():
                return
            if worked:
                backoff.reset()
            wait = backoff.next()
            self._status.enter(State.WAITING, "rabbitmq", reason)
            log.error("no connection to RabbitMQ; it is tried again", seconds=round(wait, 2), reason=reason)
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._stop.wait()

    async def _session(self, applier: Applier, duplicates: Duplicates) -> tuple[str, bool]:
        """Runs one session; returns why it ended, and whether it did anything."""
        connecting = asyncio.ensure_future(Broker.connect(self._settings.rabbitmq, "headrace-consume"))
        stopped = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait([connecting, stopped], return_when=asyncio.FIRST_COMPLETED)
            if not connecting.done():
                return "", False
            broker = connecting.result()
        finally:
            for task in (connecting, stopped):
                task.cancel()
            await asyncio.gather(connecting, stopped, return_exceptions=True)
        try:
            await prepare(broker, self._settings)
            self._status.counts["connections"] += 1
            log.info("consuming", broker=broker.address, queue=self._settings.rabbitmq.queue)
            session = Session(self._settings, broker, self._dead_letters, applier, duplicates, self._status, self._stop)
            return await session.run(), session.worked
        finally:
            await broker.close()

    async def _scan_for_ever(self) -> None:
        """Sends dead letters again, at an interval. Not while Elasticsearch is unavailable: nothing would have
        changed."""
        last: tuple[int, int] | None = None
        while True:
            await asyncio.sleep(self._settings.dead_letters.scan_interval)
            if self._status.state is not State.RUNNING:
                continue
            try:
                sent = await self._dead_letters.scan()
                found = await self._dead_letters.counts()
            except BrokerError as error:
                self._status.troubles["scan"] = str(error)
                log.error("the scan of dead letters failed", reason=str(error))
                continue
            self._status.troubles["scan"] = ""
            self._status.counts["resent"] += sent
            self._status.gauges["waiting_dead_letters"], self._status.gauges["needs_operator"] = found
            if sent:
                log.info("dead letters are sent again", messages=sent)
            if found[1] and found != last:
                log.warning(
                    "dead letters need an operator: headrace-consume dead-letters list",
                    messages=found[1],
                    queue=self._settings.operator_queue,
                )
            last = found

    async def _sign_for_ever(self) -> None:
        while True:
            self._status.sign()
            await asyncio.sleep(1.0)


def quiet_clients() -> None:
    """Silences the clients' own logs: we get their errors, with the position and the remedy."""
    for name in ("aiormq", "aio_pika", "elastic_transport", "redis"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    asyncio.get_running_loop().set_exception_handler(_on_loop_error)


def _on_loop_error(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    # Mostly futures of a connection that ended, whose error the session has already reported.
    log.debug("left behind", what=context.get("message"), reason=repr(context.get("exception")))
