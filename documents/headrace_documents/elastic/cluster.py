"""The consumers' only HTTP client: requests to Elasticsearch or OpenSearch, by the transport of Elastic's clients.

The transport handles nodes, TLS and time limits, and no product. Nothing is retried here: callers decide that."""

from __future__ import annotations

import base64
import json
from collections.abc import Generator, Iterable, Sequence
from contextlib import AbstractContextManager, closing
from functools import cached_property
from types import TracebackType
from typing import Any, cast
from urllib.parse import quote, urlencode

import elastic_transport
import orjson
from elastic_transport import ApiResponseMeta, JsonSerializer, NodeConfig, Transport, Urllib3HttpNode
from elastic_transport.client_utils import url_to_node_config

from headrace_common.tls import TlsFileError, client_context
from headrace_documents.elastic.products import Elasticsearch, Hits, OpenSearch, Product, product_of
from headrace_documents.errors import ApiError, TransportError, UnreachableError
from headrace_documents.settings import ElasticsearchSettings, absolute

_JSON = "application/json"
_LINES = "application/x-ndjson"
_PRODUCT = "x-elastic-product"

Path = str | Sequence[str]
"""A path as text, such as "_cluster/health?timeout=10s", or its parts, which are quoted."""
Source = bool | Sequence[str]
"""Whether documents have their bodies, or which fields they have."""


class Cluster:
    """The servers of [elasticsearch]. Its methods raise ApiError for an answer that is an error, and TransportError if
    there is none. Threads may share it."""

    def __init__(self, settings: ElasticsearchSettings) -> None:
        """Opens no connection yet. Raises UnreachableError for a certificate file that can't be used."""
        self._timeout = settings.request_timeout
        self._transport = Transport(
            list(dict.fromkeys(_node(url, settings) for url in settings.hosts)),
            node_class=_Node,
            # A node that failed is tried again at once: with a single host the pool would have no other anyway.
            dead_node_backoff_factor=0.1,
            max_dead_node_backoff=1.0,
            max_retries=0,
            serializers={_JSON: _Json(), _LINES: _Json()},
            meta_header=False,
        )

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes all connections."""
        self._transport.close()

    def call(
        self,
        method: str,
        path: Path,
        body: Any = None,
        *,
        timeout: float | None = None,
        missing: Any = ...,
        **params: Any,
    ) -> Any:
        """Returns the decoded answer. `body` is an object, or bytes of JSON; `timeout` is in seconds, `request_timeout`
        if it is None; `missing` is returned if the object does not exist (404); `params` become the query string."""
        try:
            return self._request(method, path, body, timeout, params)[1]
        except ApiError as error:
            if error.status != 404 or missing is ...:
                raise
            return missing

    @cached_property
    def product(self) -> Product:
        """Returns the product; requested once."""
        header = ""
        for path in ("", "_nodes/_local?filter_path=nodes.*.version,nodes.*.build_flavor"):
            try:
                meta, answer = self._request("GET", path, None, None, {})
            except ApiError as error:
                if error.status not in (400, 403, 404, 405):  # a right, or a part of the server, may be missing
                    raise
                header = header or error.product
                continue
            header = header or meta.headers.get(_PRODUCT) or ""
            if found := product_of(answer, header=header):
                return found
        # every Elasticsearch since 7.14 names itself in each answer
        return Elasticsearch(()) if header else OpenSearch(())

    # -- documents ----------------------------------------------------------------------------------------------------

    def bulk(self, lines: Iterable[bytes], filter_path: str) -> list[dict[str, Any]]:
        """Sends the lines of a bulk request; returns the result of each action, in order, limited by `filter_path`."""
        answer = self._request("POST", "_bulk", b"".join(lines), None, {"filter_path": filter_path}, _LINES)[1]
        items: list[dict[str, Any]] = answer.get("items", [])
        return items

    def get_many(
        self, index: str, ids: Sequence[str], source: Source = True, routings: Sequence[str] | None = None
    ) -> list[dict[str, Any]]:
        """Returns the documents of the ids, in order, as they are now, also those that no search finds yet: `_id`,
        `found`, and for existing ones `_version`, `_seq_no`, `_primary_term` and `_source`. `routings` are those of the
        ids, "" for none."""
        if not ids:
            return []
        wanted: list[dict[str, Any]] = [{"_id": one, "_source": source} for one in ids]
        for one, routing in zip(wanted, routings or (), strict=bool(routings)):
            if routing:
                one["routing"] = routing
        found: list[dict[str, Any]] = self.call("POST", (index, "_mget"), {"docs": wanted})["docs"]
        for document in found:
            if error := document.get("error"):
                raise ApiError(404 if error.get("type") == "index_not_found_exception" else 400, {"error": error})
        return found

    def search_pages(
        self,
        index: str,
        query: dict[str, Any] | None = None,
        *,
        size: int = 1000,
        source: Source = True,
        sort: Sequence[Any] | None = None,
        version: bool = False,
        seq_no: bool = False,
        part: tuple[int, int] = (0, 1),
        moment: str = "",
    ) -> Generator[Hits, None, None]:
        """Yields the hits of a query, at most `size` at a time, as of the moment of the first page; in no order if
        `sort` is None, which is the fastest. `part` is the number of a part, from 0 on, and the number of parts: each
        document is in one of the parts that have a `moment` in common. Close it (contextlib.closing) if it is left
        before its end."""
        search: dict[str, Any] = {"size": size, "_source": source, "version": version, "seq_no_primary_term": seq_no}
        search["query"] = query or {"match_all": {}}
        if sort is not None:
            search["sort"] = list(sort)
        with closing(self.product.pages(self.call, index, search, part, moment)) as pages:
            yield from pages

    def moment(self, index: str) -> AbstractContextManager[str]:
        """Yields what `search_pages` of several processes need to read the parts of an index at once. It expires if
        none of them uses it for five minutes."""
        return self.product.moment(self.call, index)

    # -- indexes ------------------------------------------------------------------------------------------------------

    def refresh(self, index: str) -> None:
        """Makes writes visible to searches."""
        self.call("POST", (index, "_refresh"))

    def exists(self, index: str) -> bool:
        """Returns whether an index, or an alias, exists."""
        return self.call("HEAD", (index,), missing=False) is not False

    def index_settings(self, index: str) -> dict[str, dict[str, Any]]:
        """Returns the flat settings of each index of a name."""
        found = self.call("GET", (index, "_settings"), flat_settings="true")
        return {name: one["settings"] for name, one in found.items()}

    def mappings(self, index: str) -> dict[str, dict[str, Any]]:
        """Returns the mappings of each index of a name. Raises ApiError with status 404 if it does not exist."""
        return {name: one["mappings"] for name, one in self.call("GET", (index, "_mapping")).items()}

    def create_index(self, index: str, body: dict[str, Any]) -> bool:
        """Creates an index with the settings, mappings and aliases in `body`; returns false if it already exists."""
        try:
            self.call("PUT", (index,), body)
        except ApiError as error:
            if error.status != 400 or "resource_already_exists_exception" not in str(error.body):
                raise
            return False
        return True

    def delete_index(self, index: str) -> None:
        """Deletes an index, if it exists."""
        self.call("DELETE", (index,), missing=None)

    def put_mapping(self, index: str, mapping: dict[str, Any]) -> None:
        """Adds to the mappings; `_meta` is replaced as a whole."""
        self.call("PUT", (index, "_mapping"), mapping)

    def put_settings(self, index: str, settings: dict[str, Any]) -> None:
        """Changes settings of an index that is in use."""
        self.call("PUT", (index, "_settings"), settings)

    # -- requests -----------------------------------------------------------------------------------------------------

    def _request(
        self, method: str, path: Path, body: Any, timeout: float | None, params: dict[str, Any], kind: str = _JSON
    ) -> tuple[ApiResponseMeta, Any]:
        target = f"/{path.lstrip('/')}" if isinstance(path, str) else "".join(f"/{quote(one, safe='')}" for one in path)
        if params:
            target += f"{'&' if '?' in target else '?'}{urlencode(params)}"
        headers = {"accept": _JSON} | ({"content-type": kind} if body is not None else {})
        limit = timeout or self._timeout
        try:
            answer = self._transport.perform_request(method, target, body=body, headers=headers, request_timeout=limit)
        except elastic_transport.SerializationError:
            raise TransportError(self._names(), "the answer is no JSON") from None
        except elastic_transport.TransportError as error:
            raise TransportError(str(error.message), _reason(error.__cause__, limit)) from None
        meta, found = answer.meta, answer.body
        if meta.status >= 300:
            raise ApiError(meta.status, found, meta.headers.get(_PRODUCT) or "")
        if method != "HEAD" and not isinstance(found, dict | list):
            raise TransportError(self._names(), "the answer is no JSON: another server, or a proxy, is there")
        return meta, found

    def _names(self) -> str:
        return ", ".join(node.base_url for node in self._transport.node_pool.all())


class _Node(Urllib3HttpNode):
    """One of the servers: its errors have its address."""

    def __init__(self, config: NodeConfig) -> None:
        super().__init__(config)
        if config.ssl_context is not None:
            # Else the CAs of the package certifi would be trusted in addition to `tls_ca`.
            cast(Any, self.pool).ca_certs = None

    def perform_request(self, *given: Any, **named: Any) -> Any:
        try:
            return super().perform_request(*given, **named)
        except elastic_transport.TransportError as error:
            raise elastic_transport.ConnectionError(self.base_url) from error


class _Json(JsonSerializer):
    """Reads valid JSON fast, and all else as Python's own reader does: documents of other writers may have half of a
    surrogate pair."""

    def json_loads(self, data: bytes) -> Any:
        try:
            return orjson.loads(data)
        except orjson.JSONDecodeError:
            return json.loads(data)


def _node(url: str, settings: ElasticsearchSettings) -> NodeConfig:
    password, api_key = settings.password.get_secret_value(), settings.api_key.get_secret_value()
    headers = {"user-agent": "headrace"}
    if settings.user:
        headers["authorization"] = f"Basic {base64.b64encode(f'{settings.user}:{password}'.encode()).decode()}"
    if api_key:
        headers["authorization"] = f"ApiKey {api_key}"
    node = url_to_node_config(url).replace(headers=headers)
    if node.scheme != "https" or not settings.tls_ca:
        return node
    try:
        context = client_context(absolute(settings.tls_ca))
    except TlsFileError as error:
        raise UnreachableError(f"the file of [elasticsearch] {error}") from error
    return node.replace(ssl_context=context)


def _reason(error: BaseException | None, limit: float) -> str:
    """Returns the cause of an error, in few words."""
    if isinstance(error, elastic_transport.ConnectionTimeout):
        return f"no answer within {limit:g} s"
    inner: BaseException | None = error
    while inner is not None:
        error = inner
        inner = inner.__cause__ or next((one for one in inner.args if isinstance(one, BaseException)), None)
    text = error.strerror if isinstance(error, OSError) else None
    return str(text or error or type(error).__name__)
