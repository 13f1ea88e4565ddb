"""An archive in an object store: S3 and what speaks its protocol, Google Cloud Storage, Azure."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from headrace import runtime
from headrace.errors import ArchiveError
from headrace.mysql.archive.store import ObjectExists, ObjectMissing, ObjectStore, Stored

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Client

_T = TypeVar("_T")
_LIMIT = 60.0
"""Seconds for one call with all its attempts."""
_RETRIES = 3
_EACH = 1000
"""Objects of one answer to a listing."""
_ATTEMPT, _CONNECT = "20s", "5s"
_PROBE = "probe"
"""The folder of an object that is created twice."""
_NOISE = re.compile(r" in [0-9.]+[mµn]?s\b|, after [0-9]+ retries, max_retries: [0-9]+, retry_timeout: [0-9.]+s")
"""What the library says of its attempts: the same error has the same text."""
_ROOM = "check bucket, address and rights of [archive] url; it must allow to list, read, create and delete objects"
_UNSAFE = "use a store that supports conditional writes (If-None-Match), or [archive] path"


class UrlStore(ObjectStore):
    """Objects of a bucket below a prefix, by the library obstore. An object gets its name by a conditional write.
    Options that are not given come from the environment, as the provider's own tools read it. Raises ArchiveError."""

    def __init__(self, url: str, options: dict[str, str]) -> None:
        try:
            import obstore
            from obstore.store import from_url
        except ImportError as error:
            raise ArchiveError(
                f"[archive] url needs the client obstore, which is not installed ({error.name})",
                remedy="pip install 'headrace[object-store]'",
            ) from error
        self._obstore, self.place = obstore, url
        plain = options.get("endpoint", "").startswith("http://")
        config: Any = options or None
        try:
            self._client: Client = from_url(
                url,
                config=config,
                client_options={"timeout": _ATTEMPT, "connect_timeout": _CONNECT, "allow_http": plain},
                retry_config={"max_retries": _RETRIES, "retry_timeout": timedelta(seconds=_LIMIT)},
            )
        except Exception as error:
            raise ArchiveError(f"[archive] url can't be used: {_first_line(error)}", remedy=_ROOM) from error

    async def create(self, name: str, data: bytes) -> None:
        put = self._obstore.put_async(self._client, name, data, mode="create", use_multipart=False)
        try:
            await self._call("write", name, put)
        except self._obstore.exceptions.AlreadyExistsError:
            raise ObjectExists(f"{name} exists already in {self.place}") from None

    async def read(self, name: str, start: int = 0, size: int | None = None) -> bytes:
        if size == 0:
            return b""
        try:
            if size is not None:
                part = self._obstore.get_range_async(self._client, name, start=start, length=size)
                return bytes(await self._call("read", name, part))
            return bytes(await self._call("read", name, self._whole(name)))[start:]
        except FileNotFoundError:
            raise ObjectMissing(f"{name} is missing in the archive at {self.place}") from None

    async def _whole(self, name: str) -> Any:
        return await (await self._obstore.get_async(self._client, name)).bytes_async()

    async def names(self, folder: str) -> list[str]:
        listing = self._obstore.list_with_delimiter_async(self._client, f"{folder}/")
        found = await self._call("list", folder, listing)
        return sorted(str(one["path"]) for one in found["objects"])

    async def delete(self, name: str) -> None:
        try:
            await self._call("delete", name, self._obstore.delete_async(self._client, name))
        except FileNotFoundError:
            return

    async def sweep(self) -> None:
        """Does nothing: an object is there when all of it is."""

    async def everything(self) -> list[Stored]:
        return [
            Stored(str(one["path"]), int(one["size"]), one["last_modified"].timestamp())
            for one in await self._call("list", "all objects", self._list())
        ]

    async def _list(self) -> Any:
        return await self._obstore.list(self._client, chunk_size=_EACH).collect_async()

    async def check(self) -> None:
        name = f"{_PROBE}/{runtime.new_id()}"
        with contextlib.suppress(ObjectExists):  # by our own request, whose answer was lost
            await self.create(name, b"1")
        try:
            await self.create(name, b"2")
        except ObjectExists:
            await self.names(_PROBE)
            await self.read(name)
            return
        finally:
            await self.delete(name)
        raise ArchiveError(f"{self.place} does not refuse to replace an object, so two daemons could", remedy=_UNSAFE)

    async def _call(self, what: str, name: str, call: Awaitable[_T]) -> _T:
        errors = self._obstore.exceptions
        try:
            async with asyncio.timeout(_LIMIT):
                return await call
        except errors.AlreadyExistsError:
            raise
        except Exception as error:  # also what the library does not expect
            if isinstance(error, FileNotFoundError) and what != "write":
                raise
            why = f"no answer within {_LIMIT:g} s" if isinstance(error, TimeoutError) else _first_line(error)
            raise ArchiveError(f"the archive can't {what} {name} in {self.place}: {why}", remedy=_ROOM) from error


def _first_line(error: Exception) -> str:
    """Returns an error's sentence, without what the library adds for its developers."""
    text = _NOISE.sub("", str(error).partition("\n\nDebug source")[0])
    return re.sub(r"\s+", " ", text).strip()[:300]
