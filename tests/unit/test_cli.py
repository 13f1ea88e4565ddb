"""The `headrace` command as users call it: a process with its exit status and what it prints."""

import io
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

import headrace
from headrace.cli import check
from headrace.cli import main as commands
from headrace.cli.check_report import JsonReport, Report, SqlReport
from headrace.errors import LostKind, PositionLost
from headrace.ports.finding import Finding, ok, warning, wrong
from headrace_common import logs
from tests.configured import load

CONFIG = Path(__file__).parents[2] / "config" / "headrace.toml"
DESTINATION = """
[source]
host = "127.0.0.1"
port = {port}
user = "canal"
password = "${{SHOP_PASSWORD}}"
connect_timeout = "2s"
[sink]
type = "jsonl"
path = "{folder}/out.jsonl"
"""
MAIN = """
[daemon]
node = "n1"
[state]
path = "{folder}/var/headrace.db"
[http]
listen = "{listen}"
[log]
format = "json"
"""
Command = tuple[int, str, str]


def headrace_command(*arguments: str | Path, **env: str) -> Command:
    done = subprocess.run(
        [sys.executable, "-m", "headrace.cli.main", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        env={key: value for key, value in os.environ.items() if key != "SHOP_PASSWORD"} | env,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port that refuses connections as long as the test runs: bound, and nobody listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


@pytest.fixture
def config(tmp_path: Path, closed_port: int) -> Callable[[str], Path]:
    def write(listen: str = "") -> Path:
        (tmp_path / "destinations").mkdir(exist_ok=True)
        (tmp_path / "destinations" / "shop.toml").write_text(DESTINATION.format(port=closed_port, folder=tmp_path))
        (tmp_path / "headrace.toml").write_text(MAIN.format(folder=tmp_path, listen=listen))
        return tmp_path / "headrace.toml"

    return write


def test_version_and_help() -> None:
    assert headrace_command("--version") == (0, f"headrace {headrace.__version__}\n", "")
    code, out, _ = headrace_command("check", "--help")
    assert code == 0
    assert "--sql" in out
    code, _, error = headrace_command("walk")
    assert code == 2
    assert "walk" in error
    assert headrace_command()[0] == 2


def test_the_remedy_of_a_command_names_the_destination_that_it_is_about(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def lost(_: object) -> int:
        raise PositionLost("gone", kind=LostKind.TRUNCATED)

    monkeypatch.setattr(commands, "_run_configured", lost)
    assert commands.main(["position", "set", "shop", "latest"]) == 1
    reported, see = capsys.readouterr().err.splitlines()
    assert reported.endswith("'headrace position set shop WHERE'")
    assert see == "see: docs/troubleshooting.md#truncated"


@pytest.mark.parametrize("command", ["run", "check"])
def test_a_wrong_configuration_exits_2_with_all_problems(tmp_path: Path, command: str) -> None:
    (tmp_path / "destinations").mkdir()
    (tmp_path / "destinations" / "a.toml").write_text(DESTINATION.format(port='"x"', folder=tmp_path) + "acks = 1\n")
    (tmp_path / "headrace.toml").write_text("[http]\nport = 1\n")
    code, out, error = headrace_command(command, "--config", tmp_path / "headrace.toml")
    assert (code, out) == (2, "")
    assert error.splitlines() == [
        f"{tmp_path}/headrace.toml: http.port: unknown key",
        f"{tmp_path}/destinations/a.toml: source.password: the environment variable SHOP_PASSWORD is not set",
        f"{tmp_path}/destinations/a.toml: source.port: should be a whole number",
        f"{tmp_path}/destinations/a.toml: sink.acks: unknown key",
        "see: docs/troubleshooting.md#config",
    ]


def test_the_shipped_configuration_needs_its_secret() -> None:
    code, _, error = headrace_command("check", "--config", CONFIG)
    assert code == 2
    *_, reported, see = error.splitlines()
    assert reported.endswith("shop.toml: source.password: the environment variable SHOP_PASSWORD is not set")
    assert see == "see: docs/troubleshooting.md#config"


def test_check_says_what_is_missing_and_changes_nothing(config: Callable[[], Path], tmp_path: Path) -> None:
    code, out, error = headrace_command("check", "--config", config(), SHOP_PASSWORD="geheim")
    assert (code, error) == (1, "")
    lines = out.splitlines()
    assert lines[0].startswith(f"daemon: ok      state folder: {tmp_path}/var has ")
    assert f"state: ok      store: {tmp_path}/var/headrace.db can be used" in lines
    assert len([line for line in lines if line.startswith("shop: wrong ")]) == 1, out
    assert any(line.startswith("shop: wrong   connection: ") for line in lines), out
    assert any(line.startswith("shop: warning rules: not checked, because the source ") for line in lines), out
    assert any(line.startswith("shop: ok      sink: ") for line in lines), out
    assert lines[-1].startswith("not all is well")
    assert "geheim" not in out
    assert not (tmp_path / "var").exists()


async def test_check_prints_findings_with_their_remedies(
    config: Callable[[], Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    findings = [
        warning("heartbeat", "there is no table", sql=("CREATE TABLE ...;", "GRANT ...;")),
        wrong("binlog_row_image", "is MINIMAL", "reconnect", ("SET PERSIST binlog_row_image = 'FULL';",)),
        warning("role", "can't be seen", sql=("GRANT ...;",)),
    ]

    async def check_source(source: object, server_id: int, **more: object) -> list[Finding]:
        return findings[:wanted]

    async def schemas_now(source: object, wanted: object) -> dict[Any, Any]:
        return {}

    class WithoutRow:
        def __init__(self, *_: object) -> None:
            pass

        async def stored_heartbeat(self, *, required: bool) -> None:
            return None

        async def close(self) -> None:
            pass

    monkeypatch.setattr("headrace.mysql.inspection.check_source", check_source)
    monkeypatch.setattr("headrace.mysql.inspection.schemas_now", schemas_now)

    async def tables(*_: object) -> list[Finding]:
        return [ok("snapshot", "the first start publishes about 7 rows")]

    monkeypatch.setattr("headrace.mysql.source.MysqlSecondConnection", WithoutRow)
    monkeypatch.setattr(check, "_tables", tables)
    settings = load(config(), {"SHOP_PASSWORD": "x"})
    wanted = 1
    assert await check.command(settings, Report()) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "all is well"
    wanted = 3
    assert await check.command(settings, Report()) == 1
    lines = capsys.readouterr().out.splitlines()
    at = lines.index("shop: warning heartbeat: there is no table")
    assert lines[at + 1 : at + 8] == [
        "              -> CREATE TABLE ...;",
        "              -> GRANT ...;",
        "shop: wrong   binlog_row_image: is MINIMAL",
        "              -> SET PERSIST binlog_row_image = 'FULL';",
        "              -> reconnect",
        "shop: warning role: can't be seen",
        "              -> GRANT ...;",
    ]
    assert await check.command(settings, SqlReport()) == 1
    assert capsys.readouterr().out.splitlines() == [
        f"-- shop: source 127.0.0.1:{settings.destinations['shop'].source.port}",
        "CREATE TABLE ...;",
        "GRANT ...;",
        "SET PERSIST binlog_row_image = 'FULL';",
    ], "each once"
    assert await check.command(settings, JsonReport()) == 1
    reported = json.loads(capsys.readouterr().out)
    assert {
        "destination": "shop",
        "subject": "source",
        "name": "binlog_row_image",
        "level": "wrong",
        "sentence": "is MINIMAL",
        "remedy": "reconnect",
        "sql": ["SET PERSIST binlog_row_image = 'FULL';"],
    } in reported["findings"]
    assert reported["findings"][0]["destination"] is None
    assert reported["summary"]["wrong"] == 1


def test_run_without_a_source_answers_503_and_stops_in_order(config: Callable[[str], Path]) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "headrace.cli.main", "run", "--config", str(config("127.0.0.1:0"))],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"SHOP_PASSWORD": "geheim"},
    )
    try:
        assert process.stderr is not None
        lines = []
        while not lines or json.loads(lines[-1])["event"] != "destination failed":
            lines.append(process.stderr.readline())
        port = next(entry["port"] for entry in map(json.loads, lines) if entry["event"] == "http listens")
        code, body = get(f"http://127.0.0.1:{port}/health")
        assert code == 503
        assert body["destinations"]["shop"]["last_error"]  # type: ignore[index]
        process.send_signal(signal.SIGTERM)
        _, rest = process.communicate(timeout=30)
        assert process.returncode == 0, rest
        log = [json.loads(line) for line in [*lines, *rest.splitlines()]]
        assert log[0]["event"] == "headrace starts"
        assert log[-1]["event"] == "stopped"
        assert "geheim" not in "".join(lines) + rest
    finally:
        process.kill()
        process.communicate()


def get(url: str) -> tuple[int, dict[str, object]]:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def test_run_says_in_a_sentence_why_it_can_not_start(config: Callable[[str], Path], tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        path = config(f"127.0.0.1:{taken.getsockname()[1]}")
        code, _, error = headrace_command("run", "--config", path, SHOP_PASSWORD="x")
    assert code == 1
    assert "headrace: HTTP can't listen on 127.0.0.1:" in error
    assert "Traceback" not in error
    for part in (tmp_path / "var").iterdir():
        part.unlink()
    (tmp_path / "var" / "headrace.db").write_bytes(b"something else entirely" * 100)
    code, _, error = headrace_command("run", "--config", path, SHOP_PASSWORD="x")
    assert code == 1
    assert f"headrace: the state store {tmp_path}/var/headrace.db is damaged" in error
    assert "Traceback" not in error


@pytest.fixture
def log_stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield io.StringIO()
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.getLogger("headrace").setLevel(logging.NOTSET)
    structlog.reset_defaults()


def test_json_logs_are_one_object_a_line_without_local_values(log_stream: io.StringIO) -> None:
    logs.configure("json", "info", log_stream)
    password = "geheim"
    try:
        raise ValueError(len(password))
    except ValueError:
        structlog.get_logger("headrace.x").exception("broken", table="订单")
    structlog.get_logger("headrace.x").debug("not shown")
    logging.getLogger("aiokafka").warning("from %s", "a library")
    first, second = map(json.loads, log_stream.getvalue().splitlines())
    assert (first["event"], first["level"], first["table"]) == ("broken", "error", "订单")
    assert first["exception"][0]["exc_type"] == "ValueError"
    assert "geheim" not in log_stream.getvalue()
    assert (second["event"], second["logger"]) == ("from a library", "aiokafka")


def test_console_logs_and_levels(log_stream: io.StringIO) -> None:
    logs.configure("console", "debug", log_stream)
    structlog.get_logger("headrace.x").debug("shown", a=1)
    logging.getLogger("asyncio").debug("a library's debug lines are not")
    logs.configure("console", "error", log_stream)
    structlog.get_logger("headrace.x").warning("too quiet")
    (line,) = log_stream.getvalue().splitlines()
    assert "shown" in line
    assert "a=1" in line


def test_names_and_words_of_others_can_not_command_the_terminal_that_shows_the_log(log_stream: io.StringIO) -> None:
    logs.configure("console", "info", log_stream)
    structlog.get_logger("headrace.x").warning("skipped", table="a\x1b[31mRED\x07", cause="said \x1b]0;owned\x07")
    logging.getLogger("aiokafka").error("the server said %s", "\x9b31m\u202eexe")
    try:
        raise ValueError("\x1b[2J")
    except ValueError:
        structlog.get_logger("headrace.x").exception("broken")
    text = log_stream.getvalue()
    assert all(one.isprintable() for one in text.splitlines()), text
    assert r"table=a\u001b[31mRED\u0007" in text
    assert r"\u009b31m\u202eexe" in text
    assert r"ValueError: \u001b[2J" in text


def test_the_version_command_works_without_the_daemons_libraries() -> None:
    code = "import sys; from headrace.cli.main import main\ntry: main(['--version'])\nfinally: print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    version, modules = done.stdout.splitlines()
    assert version.startswith("headrace ")
    heavy = {"asyncio", "pydantic", "structlog", "aiomysql", "headrace.settings.load", "headrace.cli.run"}
    assert not heavy & set(modules.split())


def test_a_destination_loads_only_the_adapters_that_it_names(tmp_path: Path) -> None:
    (tmp_path / "destinations").mkdir()
    (tmp_path / "headrace.toml").write_text('[http]\nlisten = ""\n')
    shop = '[source]\nhost = "h"\nuser = "u"\npassword = ""\n[sink]\ntype = "jsonl"\npath = "-"\n'
    (tmp_path / "destinations" / "shop.toml").write_text(shop)
    code = (
        "import pathlib, sys\n"
        "from headrace.cli import run\n"
        "from headrace.cli.wiring import ADAPTERS, Wiring\n"
        "from headrace.lease import Lease\n"
        "from headrace.settings.load import Loader\n"
        "settings = Loader(ADAPTERS, {}).load(pathlib.Path(sys.argv[1]))\n"
        "parts = Wiring(settings).dependencies(settings.destinations['shop'])\n"
        "parts.new_source(), parts.new_format(), parts.new_sink(Lease(), None)\n"
        "print(*sys.modules)\n"
    )
    words = [sys.executable, "-c", code, str(tmp_path / "headrace.toml")]
    modules = set(subprocess.run(words, capture_output=True, text=True, check=True).stdout.split())
    assert "headrace.adapters.jsonl.sink" in modules
    others = {"aiokafka", "kazoo", "aiormq", "aio_pika", "aiohttp", "rocketmq", "uvicorn", "pymysqlreplication"}
    assert not others & modules


@pytest.mark.parametrize("option", ["--where", "--columns"])
def test_an_empty_choice_for_a_resync_is_an_error_and_does_not_mean_all(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        commands.main(["resync", "shop", "shop.t", option, ""])
    assert caught.value.code == 2
    assert f"argument {option}: is empty: leave the option out where all are meant" in capsys.readouterr().err


def test_an_empty_index_for_verify_is_an_error_and_does_not_mean_the_topic(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        commands.main(["verify", "shop", "--index", ""])
    assert caught.value.code == 2
    assert "argument --index: is empty" in capsys.readouterr().err
