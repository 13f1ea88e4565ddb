"""The paths of the HTTP server, and their OpenAPI document."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Annotated, Any, TypeVar

import orjson
from fastapi import Body, Depends, FastAPI, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.responses import Response

from headrace import __version__
from headrace.destination.handle import DestinationHandle
from headrace.destination.requests import RequestRefused
from headrace.errors import HeadraceError, named
from headrace.http import page
from headrace.http.access import Access, Denied
from headrace.http.events import EVENTS, Events, nodes_of
from headrace.http.facts import Facts
from headrace.http.fields import describe_tables
from headrace.http.health import describe, health, ready
from headrace.http.history import History
from headrace.http.limits import HEAD
from headrace.http.metrics import Metrics
from headrace.snapshot.commands import SnapshotCommand
from headrace.tasks import first

OPENAPI = "/api/v1/openapi.json"
_TEXT = "text/plain; version=0.0.4; charset=utf-8"
_ABOUT = (
    "Everybody who reaches the address may read; a change needs the daemon's token. Answers are "
    "JSON, and an error is an object with one sentence, `error`, and often the section of the manual, `help`."
)


class Failure(BaseModel):
    """An error."""

    error: str
    help: str = Field(default="", description="the section of headrace's documentation about it, where there is one")


class By(BaseModel):
    """Who asks, for the log and for those who look later."""

    model_config = ConfigDict(extra="forbid")
    by: str = Field(default="the API", max_length=200)


class PositionBody(By):
    """Where the position is to go."""

    to: str = Field(
        max_length=20_000,
        description='as in `headrace position set`; "": it is taken away, and [source] start counts again',
    )
    read_schemas: bool = Field(default=False, description="what is known of tables counts no more there")
    commit: bool = Field(default=False, description="else nothing is done, and the answer says what it would cost")


class SnapshotCommandBody(BaseModel):
    """What is to be done about the reading of tables; see docs/snapshots.md."""

    model_config = ConfigDict(extra="forbid")
    command: str = Field(description="resync, pause, resume or cancel")
    tables: str = Field(default="", description='resync: schema.table, or regexes as in [filter] include; "": all')
    where: str = Field(default="", description="resync: only rows that meet this condition")
    columns: list[str] = Field(default=[], description="resync: only these columns, and those that are needed")
    id: str = Field(default="", description='the snapshot that is meant; "": the one under way')


_Endpoint = TypeVar("_Endpoint", bound=Callable[..., Any])
_Name = Annotated[str, Path(description="the destination", min_length=1, max_length=200)]


def _page(body: Any, code: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    text = orjson.dumps(body, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    return Response(text, code, headers, "application/json")


def _answers(*codes: int) -> dict[int | str, dict[str, Any]]:
    # By name: FastAPI would make a validator of the model for each code of each path, which took most of a start.
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Failure"}}}
    return {code: {"content": content} for code in codes}


_OBJECT: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/json": {"schema": {"type": "object"}}}, "description": "as it is now"}
}


def make_app(facts: Facts, access: Access, metrics: Metrics, history: History, events: Events) -> FastAPI:
    """Returns the whole ASGI application."""
    app = FastAPI(
        title="headrace", version=__version__, description=_ABOUT, openapi_url=None, docs_url=None, redoc_url=None,
        responses=_answers(400, 405, 408, 413, 421),
    )  # fmt: skip
    _add_errors(app)
    _add_reading(app, facts, metrics, history, events)
    _add_commands(app, facts, access)
    page.add_to(app)
    return app


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(Denied)
    async def denied(_: Request, error: Exception) -> Response:
        assert isinstance(error, Denied)
        return _page(error.page, error.status, error.headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        said = [f"{'.'.join(str(part) for part in one['loc'])}: {one['msg']}" for one in error.errors()]
        return _page({"error": "; ".join(said)}, 400)

    @app.exception_handler(HTTPException)
    async def other(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        why = {404: f"there is nothing at {request.url.path}; {OPENAPI} lists what there is", 405: "not by this method"}
        return _page({"error": why.get(error.status_code, str(error.detail))}, error.status_code, error.headers)


def _add_reading(app: FastAPI, facts: Facts, metrics: Metrics, history: History, events: Events) -> None:
    @app.get("/livez", summary="Whether the daemon answers", responses=_OBJECT)
    async def livez() -> Response:
        return _page({"live": True})

    @app.get(
        "/readyz",
        summary="Whether changes flow",
        responses=_OBJECT | _answers(404) | {503: _OBJECT[200]},
    )
    async def readyz(
        destination: Annotated[str, Query(description="only there where this one is run", max_length=200)] = "",
    ) -> Response:
        code, body = ready(facts.statuses, destination)
        return _page(body, code)

    @app.get("/health", summary="All destinations; 503 unless all are well",
        responses=_OBJECT | {503: _OBJECT[200]},
    )  # fmt: skip
    async def all_health() -> Response:
        code, body = health(facts)
        return _page(body, code)

    @app.get("/health/{name}", summary="One destination; 503 unless it is well",
        responses=_OBJECT | _answers(404) | {503: _OBJECT[200]},
    )  # fmt: skip
    async def one_health(name: _Name) -> Response:
        status = _known(facts, name).status
        return _page({"destination": name, **describe(status)}, 200 if status.state.healthy else 503)

    @app.get("/metrics", summary="For Prometheus",
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "all metrics"}},
    )  # fmt: skip
    async def all_metrics() -> Response:
        return Response(await metrics.text(), media_type=_TEXT)

    @app.get("/api/v1/destinations", summary="All destinations", responses=_OBJECT)
    async def destinations() -> Response:
        return _page(health(facts)[1])

    @app.get("/api/v1/destinations/{name}", summary="One destination", responses=_OBJECT | _answers(404))
    async def destination(name: _Name) -> Response:
        return _page({"destination": name, **describe(_known(facts, name).status)})

    @app.get(
        "/api/v1/destinations/{name}/history", summary="Lag and rows a second over the last hour",
        responses=_OBJECT | _answers(404),
    )  # fmt: skip
    async def past(name: _Name) -> Response:
        _known(facts, name)
        return _page({"destination": name, "fields": ["time", "lag_seconds", "rows_per_second"],
                      "samples": history.of(name)})  # fmt: skip

    @app.get(
        "/api/v1/destinations/{name}/tables", summary="Rows confirmed of each table, the busiest first",
        responses=_OBJECT | _answers(404),
    )  # fmt: skip
    async def tables(name: _Name) -> Response:
        status = _known(facts, name).status
        return _page({"destination": name, "limit": status.published.tables.limit, "tables": describe_tables(status)})

    @app.get("/api/v1/nodes", summary="All daemons, and what they run", responses=_OBJECT | _answers(503))
    async def nodes() -> Response:
        return _page(await nodes_of(facts))

    @app.get(
        "/api/v1/events",
        summary="What changes, as server-sent events: `status` each second, `nodes` or `unseen` each ten",
        responses=_answers(503)
        | {200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}, "description": "a stream"}},
    )  # fmt: skip
    async def stream(request: Request) -> Response:
        # A stream has no end, and would be kept forever after the client is gone: nothing is ever sent.
        return Response(media_type=EVENTS) if request.scope.get(HEAD) else events.response()


def _add_commands(app: FastAPI, facts: Facts, access: Access) -> None:
    async def allowed(request: Request) -> None:
        access.check(request.scope)
        if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            raise Denied(415, "the content type of a command is application/json")

    refusals = _answers(400, 401, 403, 404, 409, 413, 415, 429, 503)
    security: dict[str, Any] = {"security": [{"token": []}]}

    def post(action: str, text: str) -> Callable[[_Endpoint], _Endpoint]:
        return app.post(
            f"/api/v1/destinations/{{name}}/{action}", summary=text, responses=_OBJECT | refusals,
            dependencies=[Depends(allowed)], openapi_extra=security, operation_id=action,
        )  # fmt: skip

    def post_plain(action: str, text: str, do: Callable[[DestinationHandle, str], Coroutine[Any, Any, None]]) -> None:
        @post(action, text)
        async def command(request: Request, name: _Name, body: Annotated[By, Body()]) -> Response:
            handle = _known(facts, name)
            return await _done(request, handle, do(handle, body.by))

    post_plain(
        "pause", "Ends the stream in order until it is resumed, whichever daemon has the destination",
        DestinationHandle.pause,
    )  # fmt: skip
    post_plain("resume", "Continues after what was confirmed", DestinationHandle.resume)
    post_plain("restart", "Ends the stream in order and starts it again", DestinationHandle.restart)

    @post("position", "Moves the position, or says what that would cost")
    async def position(request: Request, name: _Name, body: Annotated[PositionBody, Body()]) -> Response:
        handle = _known(facts, name)
        move = handle.move(body.to, body.by, read_schemas=body.read_schemas, commit=body.commit)
        return await _done(request, handle, move)

    @post("snapshot", "Reading of tables: resync, pause, resume, cancel")
    async def snapshot(request: Request, name: _Name, body: Annotated[SnapshotCommandBody, Body()]) -> Response:
        handle = _known(facts, name)

        async def taken() -> dict[str, Any]:
            return await handle.snapshot(SnapshotCommand.of(body.model_dump(exclude_unset=True)), "the API")

        return await _done(request, handle, taken())

    @app.get(OPENAPI, include_in_schema=False)
    async def document() -> Response:
        return _page(described(app))


def described(app: FastAPI) -> dict[str, Any]:
    """Returns the OpenAPI document."""
    found = app.openapi()
    components = found.setdefault("components", {})
    components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    components.setdefault("schemas", {})["Failure"] = Failure.model_json_schema()
    for path in found["paths"].values():
        for operation in path.values():
            operation["responses"].pop("422", None)  # an invalid request is answered with 400 here
    return found


def _known(facts: Facts, name: str) -> DestinationHandle:
    handle = facts.handles.get(name)
    if handle is None:
        raise Denied(404, f"there is no destination {name}", destinations=sorted(facts.handles))
    return handle


async def _gone(request: Request) -> None:
    """Waits until the connection of a request has ended, whose body has arrived."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _done(
    request: Request, handle: DestinationHandle, command: Coroutine[Any, Any, Mapping[str, Any] | None]
) -> Response:
    """Returns the result of a command. The command is cancelled if the client disconnects: nobody would receive the
    answer, and a search for a position may take an hour of the source's time."""
    status = handle.status
    try:
        ended = await first({"command": command, "gone": _gone(request)})
        return (
            _page(ended["command"] or {"done": True})
            if "command" in ended
            else _page({"error": "the client has gone"}, 499)
        )
    except RequestRefused as error:
        said = {"state": status.state.value, "holder": status.holding.holder}
        return _page({"error": named(str(error), status.name), "help": error.help, **said}, 409)
    except HeadraceError as error:
        return _page({"error": named(str(error), status.name), "help": error.help}, 503 if error.retriable else 400)
