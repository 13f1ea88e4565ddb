"""One connection to one server of etcd: calls with a time limit, an account's token, watches."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from headrace.adapters.etcd.aetcd_internals import grpc, rpc
from headrace.adapters.etcd.settings import EtcdSettings
from headrace.ports.lock_service import OutcomeUnknown, Refused, ServiceError, SessionOver
from headrace.tls import client_context

_OPTIONS = (("grpc.enable_http_proxy", 0), ("grpc.enable_retries", 0), ("grpc.use_local_subchannel_pool", 1))
"""With gRPC's pool a new channel would wait until the one before may retry."""
_TOKEN = ("invalid auth token", "revision of auth store is old")
"""Server texts for a token that is no longer known, or older than a change of the accounts."""
_REFUSALS = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.UNIMPLEMENTED,
)
"""Errors after which nothing was done. The outcome of all others is unknown."""


def credentials(settings: EtcdSettings) -> grpc.ChannelCredentials | None:
    """Returns the credentials of encrypted connections; None without TLS. Raises LockServiceError if a file can't be
    used."""
    if settings.tls != "required":
        return None
    ca, certificate, key = settings.tls_files
    client_context("[etcd]", ServiceError, ca, certificate, key)
    files = (ca or ssl.get_default_verify_paths().cafile, key or certificate, certificate)
    return grpc.ssl_channel_credentials(*(Path(file).read_bytes() if file else None for file in files))


def _error(error: grpc.RpcError, what: str) -> ServiceError:
    code, text = error.code(), error.details()
    if code is grpc.StatusCode.PERMISSION_DENIED:
        remedy = "give [etcd] a user whose role may read and write all keys below root"
        return Refused(f"etcd does not let us use {what}", "no_auth", remedy=remedy)
    if code is grpc.StatusCode.NOT_FOUND:
        return SessionOver("the etcd lease is over")
    if code in _REFUSALS:
        return Refused(f"etcd refused {what}: {text}", "other")
    return OutcomeUnknown(f"etcd did not answer ({what}): {text}", remedy="check whether etcd has a leader")


class EtcdConnection:
    """A connection to one server. Raises ServiceErrors. `tls` is the result of `credentials`."""

    def __init__(self, endpoint: str, settings: EtcdSettings, tls: grpc.ChannelCredentials | None) -> None:
        self.endpoint = endpoint
        self._user, self._password = settings.user, settings.password.get_secret_value()
        self._tls, self._token = tls, ""
        self._channel = self._open(grpc.aio)
        self.kv, self.lease = rpc.KVStub(self._channel), rpc.LeaseStub(self._channel)
        self._watches: dict[int, Callable[[], None]] = {}
        self._numbers, self._broken = itertools.count(1), False
        self._wanted: asyncio.Queue[rpc.WatchRequest] = asyncio.Queue()

    def _open(self, module: Any) -> Any:
        if self._tls is not None:
            return module.secure_channel(self.endpoint, self._tls, options=_OPTIONS)
        return module.insecure_channel(self.endpoint, options=_OPTIONS)

    @property
    def _metadata(self) -> tuple[tuple[str, str], ...]:
        return (("token", self._token),) if self._token else ()

    async def close(self) -> None:
        """Closes the connection. Safe to call twice."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await self._channel.close()

    async def login(self, limit: float) -> None:
        """Gets a token, if there is an account."""
        if self._user:
            request = rpc.AuthenticateRequest(name=self._user, password=self._password)
            ask = rpc.AuthStub(self._channel).Authenticate
            try:
                self._token = (await self._ask(ask, request, f"the user {self._user}", limit)).token
            except Refused as refused:
                refused.remedy = "check user and password in [etcd]"
                raise

    async def call(self, method: Callable[..., Any], request: Any, what: str, limit: float) -> Any:
        """Calls a method of `kv` or `lease`; `what` is named in errors."""
        try:
            return await self._ask(method, request, what, limit)
        except Refused as refused:
            if not self._token or not any(text in str(refused) for text in _TOKEN):
                raise
        await self.login(limit)
        return await self._ask(method, request, what, limit)

    async def _ask(self, method: Callable[..., Any], request: Any, what: str, limit: float) -> Any:
        task = asyncio.current_task()
        cancelled = task.cancelling() if task else 0
        try:
            return await method(request, timeout=limit, metadata=self._metadata)
        except (asyncio.CancelledError, grpc.aio.UsageError, grpc.RpcError) as error:
            if task and task.cancelling() > cancelled:  # gRPC may report the end of the call instead
                raise asyncio.CancelledError from None
            if isinstance(error, grpc.RpcError):
                raise _error(error, what) from error
            raise OutcomeUnknown(f"the connection to etcd was closed ({what})") from None

    async def keep_alive(self, lease: int, limit: float) -> rpc.LeaseKeepAliveResponse:
        """Renews a lease; an expired one has TTL 0."""

        async def one() -> AsyncIterator[rpc.LeaseKeepAliveRequest]:
            yield rpc.LeaseKeepAliveRequest(ID=lease)

        async def ask(request: Any, *, timeout: float, metadata: Any) -> Any:
            call = self.lease.LeaseKeepAlive(one(), timeout=timeout, metadata=metadata)
            try:
                if (answer := await call.read()) is not grpc.aio.EOF:
                    return answer
                raise OutcomeUnknown("etcd did not answer (lease)")
            finally:
                call.cancel()

        return await self.call(ask, None, "the lease", limit)

    def write_soon(self, key: bytes, value: bytes, limit: float) -> Any:
        """Begins a write in gRPC's own threads, whatever the loop does. Returns an object that must be kept until it is
        done."""
        channel = self._open(grpc)
        request = rpc.PutRequest(key=key, value=value)
        return channel, rpc.KVStub(channel).Put.future(request, timeout=limit, metadata=self._metadata)

    # -- watches --------------------------------------------------------------------------------------------------

    def watch(self, key: bytes, revision: int, callback: Callable[[], None]) -> None:
        """Calls `callback` once: at a change of the key from this revision on, or when the connection breaks."""
        if self._broken:
            asyncio.get_running_loop().call_soon(callback)
            return
        number = next(self._numbers)
        self._watches[number] = callback
        wanted = rpc.WatchCreateRequest(key=key, start_revision=revision, watch_id=number)
        self._wanted.put_nowait(rpc.WatchRequest(create_request=wanted))

    async def watching(self) -> None:
        """Receives the watches; must run for watch() to work. Ends with an error when the server no longer answers."""

        async def requests() -> AsyncIterator[rpc.WatchRequest]:
            while True:
                yield await self._wanted.get()

        metadata = (*self._metadata, ("hasleader", "true"))
        call = rpc.WatchStub(self._channel).Watch(requests(), metadata=metadata)
        try:
            async for answer in call:
                if answer.canceled and answer.watch_id < 0:
                    raise OutcomeUnknown(f"etcd refused a watch: {answer.cancel_reason}")
                if (answer.events or answer.canceled) and (callback := self._watches.pop(answer.watch_id, None)):
                    cancelled = rpc.WatchCancelRequest(watch_id=answer.watch_id)
                    self._wanted.put_nowait(rpc.WatchRequest(cancel_request=cancelled))
                    callback()
        except grpc.RpcError as error:
            raise _error(error, "watches") from error
        finally:
            call.cancel()
            self._broken = True
            for callback in self._watches.values():
                callback()
