"""Reads the documents of one index over HTTP: all of them as of one moment, or some by their ids."""

from __future__ import annotations

import base64
import ssl
from collections.abc import AsyncIterator, Sequence
from typing import Any
from urllib.parse import quote

import aiohttp
import orjson

from headrace.errors import SinkError, SinkRejected
from headrace.ports.documents import Document, DocumentIndex, IndexAccess
from headrace.tls import client_context

_PAGE = 2_000
_IDS = 1_000
_KEEP = "2m"
"""How long Elasticsearch keeps the point in time that is read, after each page."""
_LIMIT = 60.0
"""Maximum seconds for one answer."""
_SHOWN = 300


class ElasticsearchIndex(DocumentIndex):
    """Reads an index; needs the right `read` on it."""

    def __init__(self, access: IndexAccess) -> None:
        self._access = access
        self._path = f"{access.server.rstrip('/')}/{quote(access.index, safe='')}"
        self._session: aiohttp.ClientSession | None = None

    async def all(self) -> AsyncIterator[Sequence[Document]]:
        # Makes the newest writes visible; with the right `read` alone Elasticsearch decides when.
        await self._ask("POST", f"{self._path}/_refresh", None, may_fail=True)
        pit = (await self._ask("POST", f"{self._path}/_pit?keep_alive={_KEEP}", None))["id"]
        after: Any = None
        try:
            while True:
                body: dict[str, Any] = {
                    "size": _PAGE,
                    "sort": ["_shard_doc"],
                    "track_total_hits": False,
                    "pit": {"id": pit, "keep_alive": _KEEP},
                }
                if after is not None:
                    body["search_after"] = after
                page = await self._ask("POST", f"{self._access.server.rstrip('/')}/_search", body)
                if page.get("timed_out") or page["_shards"]["failed"]:
                    raise self._failed("not all of its shards answer")
                pit, hits = page.get("pit_id", pit), page["hits"]["hits"]
                if not hits:
                    return
                after = hits[-1]["sort"]
                yield [Document(hit["_id"], hit["_source"]) for hit in hits]
        finally:
            await self._ask("DELETE", f"{self._access.server.rstrip('/')}/_pit", {"id": pit}, may_fail=True)

    async def some(self, ids: Sequence[str]) -> AsyncIterator[Sequence[Document]]:
        for i in range(0, len(ids), _IDS):
            answer = await self._ask("POST", f"{self._path}/_mget", {"ids": ids[i : i + _IDS]})
            yield [Document(one["_id"], one["_source"] if one.get("found") else None) for one in answer["docs"]]

    async def _ask(self, method: str, url: str, body: Any, *, may_fail: bool = False) -> dict[str, Any]:
        data = orjson.dumps(body) if body is not None else None
        try:
            async with self._opened().request(method, url, data=data, allow_redirects=False) as answer:
                status, text = answer.status, await answer.read()
        except TimeoutError:
            raise self._failed(f"no answer within {_LIMIT:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise self._failed(f"{type(error).__name__}: {error}") from None
        if status in (401, 403) and not may_fail:
            raise SinkRejected(
                f"Elasticsearch does not let us read the index {self._access.index} ({status})",
                remedy="check --index-user and --index-password; the right that is needed is `read`",
            )
        if status >= 300 and not may_fail:
            raise self._failed(f"{status} {text[:_SHOWN].decode('utf-8', 'replace')}")
        try:
            parsed = orjson.loads(text or b"{}")
        except orjson.JSONDecodeError:
            raise self._failed("its answer is no JSON") from None
        return parsed if isinstance(parsed, dict) else {}

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            access = self._access
            headers = {"content-type": "application/json"}
            if access.api_key:
                headers["authorization"] = f"ApiKey {access.api_key}"
            elif access.user:
                account = f"{access.user}:{access.password}"
                headers["authorization"] = f"Basic {base64.b64encode(account.encode()).decode()}"
            tls: ssl.SSLContext | bool = True
            if access.ca is not None:
                tls = client_context("--index-ca", SinkRejected, access.ca)
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=_LIMIT), headers=headers, connector=aiohttp.TCPConnector(ssl=tls)
            )
        return self._session

    def _failed(self, why: str) -> SinkError:
        return SinkError(
            f"the index {self._access.index} can't be read: {why}",
            remedy="check whether the address and the name of the index are right (--index)",
        )

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()
