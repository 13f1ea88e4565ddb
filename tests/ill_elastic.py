"""An Elasticsearch whose bulk requests fail as told, in front of a real one."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

KEPT = ("content-type", "x-elastic-product")


class IllElastic:
    """Passes requests on. While `mode` is "whole", each bulk request is answered with 500; while it is "items", each
    item of one, as a node does whose shard is ill."""

    def __init__(self, url: str) -> None:
        self._target = urlsplit(url)
        self.mode = ""
        self.refused = 0
        made = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _pass(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                made._answer(self, body)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _pass  # noqa: N815 - as the base class wants it

            def log_message(self, format: str, *_: object) -> None:
                """The test says what it finds."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    @contextmanager
    def running(self) -> Iterator[IllElastic]:
        thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join(10)

    def _answer(self, request: BaseHTTPRequestHandler, body: bytes) -> None:
        if self.mode and "/_bulk" in request.path:
            self.refused += 1
            kinds = [next(iter(json.loads(line))) for line in body.splitlines() if self._is_action(line)]
            error = {"type": "engine_exception", "reason": "the shard is ill"}
            items = [{kind: {"status": 500, "error": error}} for kind in kinds]
            whole = self.mode == "whole"
            answer = json.dumps({"error": error, "status": 500} if whole else {"errors": True, "items": items}).encode()
            head = [("content-type", "application/json"), ("x-elastic-product", "Elasticsearch")]
            self._send(request, 500 if whole else 200, head, answer)
            return
        connection = http.client.HTTPConnection(self._target.hostname or "", self._target.port, timeout=30)
        headers = {name: value for name, value in request.headers.items() if name.lower() != "host"}
        connection.request(request.command, request.path, body, headers)
        reply = connection.getresponse()
        self._send(request, reply.status, reply.getheaders(), reply.read())
        connection.close()

    @staticmethod
    def _is_action(line: bytes) -> bool:
        return line.startswith((b'{"index":{"_index"', b'{"delete":{"_index"'))

    @staticmethod
    def _send(request: BaseHTTPRequestHandler, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        request.send_response(status)
        for name, value in headers:
            if name.lower() in KEPT:
                request.send_header(name, value)
        request.send_header("content-length", str(len(body)))
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(body)
