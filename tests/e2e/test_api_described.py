"""The API is what its OpenAPI document says."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

import aiohttp
import pytest

from headrace.destination.status import DestinationStatus
from headrace.http.access import Bucket
from headrace.http.facts import Facts, Options
from headrace.http.server import HttpServer
from headrace.model import State
from tests.handles import FakeOperator, served

pytestmark = pytest.mark.server

TOKEN = "a-token-of-the-tests"


@pytest.fixture
async def url() -> AsyncIterator[str]:
    status = DestinationStatus("shop")
    status.enter(State.STREAMING)

    handles = {"shop": served(status, FakeOperator())}
    server = HttpServer(("127.0.0.1", 0), Facts(handles, "relay-1"), Options(TOKEN))
    await server.start()
    yield f"http://127.0.0.1:{server.port}"
    await server.close()


async def test_every_path_that_changes_something_says_that_it_wants_the_token(url: str) -> None:
    async with aiohttp.ClientSession() as session, session.get(f"{url}/api/v1/openapi.json") as answer:
        document = await answer.json()
    assert document["components"]["securitySchemes"] == {"token": {"type": "http", "scheme": "bearer"}}
    operations = {
        (method, path): operation for path, found in document["paths"].items() for method, operation in found.items()
    }
    assert {path for method, path in operations if method == "post"} == {
        f"/api/v1/destinations/{{name}}/{action}" for action in ("pause", "resume", "restart", "snapshot", "position")
    }
    for (method, path), operation in operations.items():
        assert (operation.get("security") == [{"token": []}]) == (method == "post"), path
        assert method != "post" or {"401", "403", "429"} <= operation["responses"].keys()


@pytest.mark.long
@pytest.mark.parametrize("token", [TOKEN, "no"])
async def test_no_request_that_the_document_allows_or_forbids_gets_an_answer_that_it_does_not_know(
    url: str, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests made at random from the document, and ones that break it; more in a second than operators make."""
    monkeypatch.setattr(Bucket, "take", lambda _: 0.0)
    checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
    words = [
        "run", f"{url}/api/v1/openapi.json", "--exclude-path", "/api/v1/events", "--checks", checks,
        "--header", f"authorization: Bearer {token}", "--max-examples", "40", "--seed", "1", "--mode", "all",
        "--phases", "examples,coverage,fuzzing", "--workers", "1", "--no-color",
    ]  # fmt: skip
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "schemathesis.cli", *words,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    said, _ = await process.communicate()
    assert process.returncode == 0, said.decode()[-6000:]
