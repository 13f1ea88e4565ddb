"""The client of Elasticsearch and OpenSearch: what it sends, and what it makes of answers and of none."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from headrace_documents.elastic import bulk as elastic
from headrace_documents.elastic.cluster import Cluster
from headrace_documents.elastic.products import Elasticsearch, OpenSearch, product_of
from headrace_documents.errors import ApiError, TransportError, UnreachableError
from headrace_documents.settings import ElasticsearchSettings
from tests.certificates import Authority


class Server:
    """Answers each request with what the next of `answers` is: status, content type, body and further headers."""

    def __init__(self, *answers: tuple[int, str, bytes], tls: ssl.SSLContext | None = None) -> None:
        self.answers = list(answers)
        self.headers: dict[str, str] = {}
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []
        made = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                names = {name.lower(): value for name, value in self.headers.items()}
                made.requests.append((self.command, self.path, names, body))
                status, kind, answer = made.answers.pop(0)
                self.send_response(status)
                for name, value in {"content-type": kind, "content-length": str(len(answer)), **made.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(answer)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _answer  # noqa: N815 - as the base class wants it

            def log_message(self, format: str, *_: object) -> None:
                """The test says what it finds."""

        class Quiet(ThreadingHTTPServer):
            def handle_error(self, request: Any, client_address: Any) -> None:
                """A handshake that the client gives up."""

        self._server = Quiet(("127.0.0.1", 0), Handler)
        self.host = f"127.0.0.1:{self._server.server_port}"
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)

    @contextmanager
    def running(self) -> Iterator[Server]:
        thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join(10)


def cluster(*hosts: str, **keys: Any) -> Cluster:
    return Cluster(ElasticsearchSettings.model_validate({"hosts": list(hosts), **keys}))


def good(body: object = None) -> tuple[int, str, bytes]:
    return 200, "application/json", json.dumps(body or {}).encode()


def test_paths_are_quoted_and_bodies_are_plain_json_that_every_version_takes() -> None:
    with Server(good(), good({"items": [1]})).running() as server, cluster(f"http://{server.host}/behind") as made:
        made.call("PUT", ("a/b?c#d 保", "_mapping"), {"x": "保"}, flat_settings="true", what="a&b")
        assert made.bulk([b"one\n", b"two\n"], "items.*.status,took") == [1]
    (method, path, headers, body), bulk = server.requests
    assert (method, path) == ("PUT", "/behind/a%2Fb%3Fc%23d%20%E4%BF%9D/_mapping?flat_settings=true&what=a%26b")
    assert (headers["content-type"], headers["accept"]) == ("application/json", "application/json")
    assert json.loads(body) == {"x": "保"}
    assert "authorization" not in headers
    assert bulk[1] == "/behind/_bulk?filter_path=items.%2A.status%2Ctook"
    assert (bulk[2]["content-type"], bulk[3]) == ("application/x-ndjson", b"one\ntwo\n")


@pytest.mark.parametrize(
    ("keys", "header"),
    [
        ({"user": "müller", "password": "密:码"}, "Basic bcO8bGxlcjrlr4Y656CB"),
        ({"api_key": "abc=="}, "ApiKey abc=="),
    ],
)
def test_accounts(keys: dict[str, str], header: str) -> None:
    with Server(good()).running() as server, cluster(f"http://{server.host}", **keys) as made:
        made.call("GET", "_cluster/health?timeout=1s", level="indices")
    assert server.requests[0][2]["authorization"] == header
    assert server.requests[0][1] == "/_cluster/health?timeout=1s&level=indices"


@pytest.mark.parametrize("key", ["geheim\n", "ge heim", "geheim密"])
def test_an_api_key_that_no_header_can_carry_is_reported_and_not_shown(key: str) -> None:
    with pytest.raises(ValueError, match="api_key should have no blanks") as caught:
        ElasticsearchSettings.model_validate({"hosts": ["http://h:1"], "api_key": key})
    assert "geheim" not in str(caught.value)


def test_errors_say_the_status_and_the_reason() -> None:
    deep = {"error": {"type": "a_exception", "reason": "b", "caused_by": {"reason": "c"}}, "status": 400}
    server = Server(
        (400, "application/json", json.dumps(deep).encode()),
        (405, "application/json", b'{"error": "Incorrect HTTP method", "status": 405}'),
        (502, "text/html", b"<h1>Bad Gateway</h1>"),
        (301, "text/html", b""),
        (404, "application/json", b""),
    )
    with server.running(), cluster(f"http://{server.host}") as made:
        for text in ("400 a_exception: b: c", "405 Incorrect HTTP method", "502 <h1>Bad Gateway</h1>", "301"):
            with pytest.raises(ApiError) as caught:
                made.call("GET", "x")
            assert str(caught.value) == text
        assert not made.exists("i")
        assert server.answers == [], "nothing is asked twice"


@pytest.mark.parametrize(
    "answer", [(200, "text/html", b"<p>Log in"), (200, "application/json", b"{"), (200, "image/png", b"\x89PNG")]
)
def test_an_answer_that_is_no_json_is_none(answer: tuple[int, str, bytes]) -> None:
    with Server(answer).running() as server, cluster(f"http://{server.host}") as made:
        with pytest.raises(TransportError, match="the answer is no JSON") as caught:
            made.call("GET", "x")
        assert server.host in str(caught.value)


def test_half_of_a_surrogate_pair_in_a_document_of_others_is_read() -> None:
    server = Server((200, "application/json", rb'{"a": "\ud83d"}'))
    with server.running(), cluster(f"http://{server.host}") as made:
        assert made.call("GET", "x") == {"a": "\ud83d"}


def silent() -> tuple[socket.socket, str]:
    listening = socket.create_server(("127.0.0.1", 0))
    return listening, f"http://127.0.0.1:{listening.getsockname()[1]}"


def test_a_missing_answer_is_reported_with_the_host_and_a_short_reason() -> None:
    listening, address = silent()
    with listening, cluster(address, request_timeout=0.2, user="u", password="geheim") as made:
        with pytest.raises(TransportError) as caught:
            made.call("GET", "x")
        assert str(caught.value) == f"no answer within 0.2 s ({address})"
        with pytest.raises(TransportError, match=r"no answer within 0\.1 s"):
            made.call("GET", "x", timeout=0.1)
    with cluster(address) as made, pytest.raises(TransportError) as caught:
        made.call("GET", "x")
    assert str(caught.value) == f"Connection refused ({address})"


def test_a_host_that_is_away_is_passed_by() -> None:
    listening, address = silent()
    listening.close()
    with Server(*[good()] * 8).running() as server, cluster(address, f"http://{server.host}", address + "/") as made:
        for _ in range(8):
            with suppress(TransportError):
                made.call("GET", "x")
    # The one that is away is asked again now and then, and each time that is told.
    assert 4 <= len(server.requests) < 8


def test_only_the_authorities_of_tls_ca_are_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authorities = []
    for name in ("ours", "theirs"):
        (tmp_path / name).mkdir()
        authorities.append(Authority(tmp_path / name, name))
    ours, theirs = authorities
    # As if theirs were one of the package certifi.
    monkeypatch.setattr("elastic_transport._node._http_urllib3.DEFAULT_CA_CERTS", str(theirs.path))
    for authority, trusted in ((ours, True), (theirs, False)):
        certificate, key, _ = authority.make("127.0.0.1")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        server = Server(good({"a": 1}), tls=context)
        with server.running(), cluster(f"https://{server.host}", tls_ca=str(ours.path)) as made:
            if trusted:
                assert made.call("GET", "x") == {"a": 1}
                continue
            with pytest.raises(TransportError, match="certificate verify failed"):
                made.call("GET", "x")


class Answers:
    """Real answers to GET / and to GET /_nodes/_local, as far as they matter."""

    ELASTIC: ClassVar[Any] = {"version": {"number": "9.0.0-rc1", "build_flavor": "default"}, "tagline": "You Know"}
    OPEN: ClassVar[Any] = {"version": {"distribution": "opensearch", "number": "2.19.1"}}
    DISGUISED: ClassVar[Any] = {"version": {"number": "7.10.2"}, "tagline": "The OpenSearch Project: https://..."}
    OPEN_NODES: ClassVar[Any] = {"nodes": {"x": {"version": "1.3.2"}}}
    ELASTIC_NODES: ClassVar[Any] = {"nodes": {"x": {"version": "8.19.21", "build_flavor": "default"}}}


REFUSED = (405, "application/json", b'{"error": "no", "status": 405}')
FORBIDDEN = (403, "application/json", b'{"error": {"type": "security_exception"}}')


@pytest.mark.parametrize(
    ("answers", "header", "reported"),
    [
        ([good(Answers.ELASTIC)], "", "Elasticsearch 9.0.0"),
        ([good(Answers.OPEN)], "", "OpenSearch 2.19.1"),
        ([good(Answers.DISGUISED), good(Answers.OPEN_NODES)], "", "OpenSearch 1.3.2"),
        ([REFUSED, good(Answers.ELASTIC_NODES)], "", "Elasticsearch 8.19.21"),
        ([FORBIDDEN, FORBIDDEN], "Elasticsearch", "Elasticsearch"),
        ([FORBIDDEN, FORBIDDEN], "", "OpenSearch"),
    ],
)
def test_the_product_is_asked_for_once(answers: list[Any], header: str, reported: str) -> None:
    server = Server(*answers)
    server.headers = {"x-elastic-product": header} if header else {}
    with server.running(), cluster(f"http://{server.host}") as made:
        assert str(made.product) == reported
        assert str(made.product) == reported
    assert server.answers == []


def test_a_wrong_password_is_no_product() -> None:
    server = Server((401, "application/json", b"{}"))
    with server.running(), cluster(f"http://{server.host}") as made, pytest.raises(ApiError, match="401"):
        _ = made.product


def test_mapping_types_that_a_product_lacks() -> None:
    assert OpenSearch((2, 19)).lacks("flattened") == "OpenSearch 2.19 has no mapping type flattened; it has flat_object"
    assert OpenSearch((2, 7)).lacks("unsigned_long").endswith("unsigned_long; it is there from 2.8")
    assert OpenSearch((2, 8)).lacks("unsigned_long") == OpenSearch(()).lacks("unsigned_long") == ""
    assert "it has dense_vector" in Elasticsearch((9, 0)).lacks("knn_vector")
    assert Elasticsearch((8, 19)).lacks("flattened") == OpenSearch((2, 19)).lacks("keyword") == ""
    assert product_of([], header="") is None


def page(ids: str, **more: Any) -> tuple[int, str, bytes]:
    hits = [{"_id": one, "sort": [ord(one)]} for one in ids]
    return good({"_shards": {"failed": 0}, "hits": {"hits": hits}, **more})


PIT = [good(Answers.ELASTIC), good({"id": "p1"}), page("ab", pit_id="p2")]
SCROLL = [good(Answers.OPEN), page("ab", _scroll_id="s1")]
ILL = good({"_shards": {"failed": 1, "failures": [{"reason": {"reason": "the shard is ill"}}]}, "_scroll_id": "s1"})


@pytest.mark.parametrize("first", [PIT, SCROLL])
@pytest.mark.parametrize("end", ["done", "ill", "left"])
def test_what_a_server_keeps_for_pages_is_freed(first: list[Any], end: str) -> None:
    last = {"done": [page("", _scroll_id="s1"), good()], "ill": [ILL, good()], "left": [good()]}[end]
    with Server(*first, *last).running() as server, cluster(f"http://{server.host}") as made:
        pages = made.search_pages("i", {"term": {"a": 1}}, size=2, source=False, seq_no=True)
        assert [hit["_id"] for hit in next(pages)] == ["a", "b"]
        ends: dict[str, Callable[[], Any]] = {"done": lambda: list(pages), "left": pages.close}
        if end == "ill":
            with pytest.raises(ApiError, match=r"503 .*not all shards answer: the shard is ill"):
                next(pages)
        else:
            ends[end]()
    method, path, _, body = server.requests[-1]
    freed = ("/_pit", {"id": "p2"}) if first is PIT else ("/_search/scroll", {"scroll_id": ["s1"]})
    assert (method, path, json.loads(body)) == ("DELETE", *freed)
    asked = [json.loads(body) for _, path, _, body in server.requests if "_search" in path and "scroll?" not in path]
    assert asked[0]["query"] == {"term": {"a": 1}}
    assert (asked[0]["size"], asked[0]["_source"], asked[0]["seq_no_primary_term"]) == (2, False, True)
    if first is PIT and end == "done":
        assert asked[1]["search_after"] == [ord("b")]
        assert asked[1]["pit"]["id"] == "p2"


def test_an_id_in_an_index_that_is_not_there_is_an_error_and_not_an_absent_document() -> None:
    error = {"type": "index_not_found_exception", "reason": "no such index [i]"}
    server = Server(good({"docs": [{"_id": "1", "error": error}]}))
    with server.running(), cluster(f"http://{server.host}") as made:
        assert made.get_many("i", []) == []
        with pytest.raises(ApiError, match="404 index_not_found") as caught:
            made.get_many("i", ["1", "2"], ["a"], ["", "r"])
    assert caught.value.type == "index_not_found_exception"
    wanted = [{"_id": "1", "_source": ["a"]}, {"_id": "2", "_source": ["a"], "routing": "r"}]
    assert json.loads(server.requests[0][3]) == {"docs": wanted}


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            (401, "application/json", b'{"error": {"type": "security_exception"}}'),
            "refuses our credentials: check user",
        ),
        ((401, "text/plain", b"Unauthorized"), "refuses our credentials: check user"),
        ((200, "text/html", b"<p>Log in"), "does not answer: the answer is no JSON"),
    ],
)
def test_a_wrong_password_and_a_wrong_server_are_reported_at_the_start(
    answer: tuple[int, str, bytes], said: str
) -> None:
    """The body of the second is that of OpenSearch's security plugin."""
    with Server(answer).running() as server:
        account = {"user": "u", "password": "geheim", "hosts": [f"http://{server.host}"]}
        with pytest.raises(UnreachableError) as caught:
            elastic.check(ElasticsearchSettings.model_validate(account))
    assert f"Elasticsearch at http://{server.host} {said}" in str(caught.value)
    assert "geheim" not in str(caught.value)
