"""The status page: files of this package only, nothing from other hosts."""

from __future__ import annotations

from importlib import resources

from fastapi import FastAPI
from starlette.responses import Response

_FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/texts.js": ("texts.js", "text/javascript; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}


def add_to(app: FastAPI) -> None:
    """Adds its paths."""
    for path, (name, kind) in _FILES.items():
        _add(app, path, (resources.files("headrace.http") / "static" / name).read_bytes(), kind)


def _add(app: FastAPI, path: str, content: bytes, kind: str) -> None:
    @app.get(path, include_in_schema=False)
    async def file() -> Response:
        return Response(content, media_type=kind)
