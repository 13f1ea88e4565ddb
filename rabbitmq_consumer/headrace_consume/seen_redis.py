"""Message ids in Redis, which several consumers of one queue can share."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from headrace_consume.seen import DuplicatesError, SeenStore
from headrace_consume.settings import DuplicatesSettings

T = TypeVar("T")


class RedisSeen(SeenStore):
    """One key for each id, which Redis drops after its time."""

    def __init__(self, settings: DuplicatesSettings, scope: str) -> None:
        self._settings = settings
        self._prefix = f"headrace-consume|{scope}|"
        self._client: Redis | None = None

    async def open(self) -> None:
        url = self._settings.url.get_secret_value()
        # As in headrace_common.tls; a parameter of the URL has precedence.
        strict = {"ssl_exclude_verify_flags": [ssl.VERIFY_X509_STRICT]}
        tls: dict[str, Any] = strict if url.startswith("rediss:") else {}
        client = self._client = self._client or Redis.from_url(
            url,
            socket_timeout=self._settings.timeout,
            socket_connect_timeout=self._settings.timeout,
            retry=Retry(NoBackoff(), 0),
            client_name="headrace-consume",
            **tls,
        )
        await self._call(client.mget([self._prefix]))

    async def seen(self, names: Sequence[str]) -> set[str]:
        found = await self._call(self._opened().mget([self._prefix + name for name in names]))
        return {name for name, value in zip(names, found, strict=True) if value is not None}

    async def note(self, names: Sequence[str]) -> None:
        # Without MULTI: each id is independent.
        pipeline = self._opened().pipeline(transaction=False)
        for name in names:
            pipeline.set(self._prefix + name, b"", px=max(1, int(self._settings.ttl * 1000)))
        await self._call(pipeline.execute())

    async def close(self) -> None:
        if self._client is not None:
            with suppress(DuplicatesError):
                await self._call(self._client.aclose())

    def _opened(self) -> Redis:
        if self._client is None:
            raise DuplicatesError("Redis is not connected")
        return self._client

    async def _call(self, answer: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(self._settings.timeout):
                return await answer
        except TimeoutError:
            raise DuplicatesError(f"Redis did not answer in {self._settings.timeout:g} s") from None
        except (RedisError, OSError) as error:
            # The text may quote the command; our keys contain no secret, and the address is not part of it.
            raise DuplicatesError(f"Redis can't be used: {error}") from None
