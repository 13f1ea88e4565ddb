"""What tests share: a daemon as a process, its configuration, and readers of what it published."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition

from devstack.ports import free_port
from tests import prefork


def destination_toml(
    server: Any,
    schema: str,
    sink: str,
    *,
    start: str = "latest",
    source: str = "",
    more: str = "",
    snapshot: str = "never",
) -> str:
    """A destination file: everything of `schema` on `server` into `sink`, which is the text of [sink]; rows that are
    there already only when `snapshot` says so."""
    return f"""
[source]
host = "{server.host}"
port = {server.port}
user = "canal"
password = "${{TEST_PASSWORD}}"
start = "{start}"
on_state_lost = "start"
snapshot = "{snapshot}"
{source}
[filter]
include = "{schema}\\\\..*"
[route]
topic = "{schema}"
[sink]
{sink}
{more}
"""


class DaemonProcess:
    """`headrace run` in a folder of its own, in a process group of its own."""

    def __init__(self, folder: Path, destinations: dict[str, str], *, settings: str = "", node: str = "test") -> None:
        self.folder, self.node = folder, node
        (folder / "destinations").mkdir(parents=True)
        for name, text in destinations.items():
            (folder / "destinations" / f"{name}.toml").write_text(text)
        self.port = free_port()
        (folder / "headrace.toml").write_text(
            f'[daemon]\nnode = "{node}"\ncheckpoint_interval = "200ms"\n{settings}\n'
            f'[http]\nlisten = "127.0.0.1:{self.port}"\n[log]\nformat = "json"\n'
        )
        self.log = folder / "log"
        self._process: prefork.Forked | None = None

    def start(self) -> DaemonProcess:
        with self.log.open("ab") as log:
            arguments = ["run", "--config", str(self.folder / "headrace.toml")]
            env = {**os.environ, "TEST_PASSWORD": "canal"}
            self._process = prefork.start(arguments, self.folder, env, log, log)
        return self

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """SIGKILL to its group; harmless when it is gone."""
        if self._process is not None:
            self._process.kill_group()

    def terminate(self, limit: float = 20) -> int:
        """SIGTERM; its exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(limit)

    def hang(self) -> None:
        """Its event loop does nothing more; its other threads go on."""
        os.kill(self.pid, signal.SIGUSR1)

    def wait_end(self, limit: float) -> int:
        """Its exit code, once it has ended by itself."""
        assert self._process is not None
        return self._process.wait(limit)

    def health(self) -> tuple[int, dict[str, Any]]:
        """Status code and body of /health; (0, {}) while nobody answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)
        except OSError:
            return 0, {}

    def ready(self, destination: str) -> int:
        """The status code of /readyz; 0 while nobody answers."""
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.port}/readyz?destination={destination}", timeout=5
            ) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code
        except OSError:
            return 0

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Another `headrace` command with this daemon's configuration, once it has ended."""
        words = (*words, "--config", str(self.folder / "headrace.toml"))
        return prefork.run(words, cwd=self.folder, env={**os.environ, "TEST_PASSWORD": "canal"})

    def command(self, *words: str) -> tuple[int, str]:
        """The same: its exit status, and what it printed."""
        done = self.run(*words)
        return done.returncode, done.stdout + done.stderr

    def wait(self, destination: str, wanted: Callable[[dict[str, Any]], bool], limit: float = 30) -> dict[str, Any]:
        """The destination's part of /health once `wanted` holds of it."""
        seen: dict[str, Any] = {}

        def holds() -> bool:
            nonlocal seen
            seen = self.health()[1].get("destinations", {}).get(destination, {})
            return bool(seen) and wanted(seen)

        eventually(holds, limit, lambda: f"last health: {seen}\nlog:\n{self.log.read_text()[-4000:]}")
        return seen

    def wait_state(self, destination: str, state: str, limit: float = 30) -> dict[str, Any]:
        return self.wait(destination, lambda status: status["state"] == state, limit)


def eventually(condition: Callable[[], bool], limit: float = 30, explain: Callable[[], str] = str) -> None:
    """Returns once the condition holds; fails with what `explain` says after `limit` seconds."""
    deadline = time.monotonic() + limit
    while True:
        looked = time.monotonic()
        if condition():
            return
        if (now := time.monotonic()) > deadline:
            raise AssertionError(f"not in {limit} s: {explain()}")
        # One that reads many messages each time leaves half of the time to who writes them.
        time.sleep(max(0.05, now - looked))


def read_messages(path: Path) -> list[dict[str, Any]]:
    """The messages of a jsonl sink so far. A line that is being written is left out, and so is one that a kill cut
    short: the next start ends it, and its rows are sent again. A line that is broken in another way is an error."""
    if not path.exists():
        return []
    text = path.read_bytes()
    lines = text[: text.rfind(b"\n") + 1].split(b"\n")[:-1]
    messages = []
    for line in lines:
        try:
            messages.append(json.loads(line))
        except ValueError:
            if not is_cut(line):
                raise
    return messages


def is_cut(line: bytes) -> bool:
    """Whether a line is the beginning of a JSON text, and not a whole one."""
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        return error.end == len(line) and error.reason == "unexpected end of data"
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        rest = text[error.pos :]
        return error.msg.startswith("Unterminated string") or any(
            word.startswith(rest) for word in ("null", "true", "false", "-")
        )
    return False


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Those of them that carry rows, in Canal's format."""
    return [message for message in read_messages(path) if message.get("data") is not None]


async def read_topic(bootstrap: str, topic: str, partition: int = 0) -> list[Any]:
    """Every record of a partition, from its beginning to the end that it has when the reading begins."""
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest", enable_auto_commit=False)
    await consumer.start()
    try:
        where = TopicPartition(topic, partition)
        consumer.assign([where])
        end = (await consumer.end_offsets([where]))[where]
        records: list[Any] = []
        while await consumer.position(where) < end:
            for batch in (await consumer.getmany(where, timeout_ms=5000)).values():
                records += batch
        return records
    finally:
        await consumer.stop()


Image = dict[str, dict[str, Any]]


def apply(image: Image, message: dict[str, Any], row: dict[str, Any], old: dict[str, Any] | None) -> None:
    """One row of one message onto a table that is kept by key `id`."""
    if message["type"] == "DELETE":
        image.pop(row["id"], None)
        return
    if old and "id" in old:
        image.pop(old["id"], None)
    image[row["id"]] = row


def replay(messages: list[dict[str, Any]]) -> Image:
    """The table that the messages make in the order they stand."""
    image: Image = {}
    for message in messages:
        if message["isDdl"]:
            continue
        for row, old in zip(message["data"], message["old"] or [None] * len(message["data"]), strict=True):
            apply(image, message, row, old)
    return image


def replay_by_pos(messages: list[dict[str, Any]]) -> Image:
    """The table that each key's change with the highest `_pos` makes, whatever the order of the messages."""
    newest: dict[str, tuple[int, dict[str, Any] | None]] = {}

    def keep(key: str, version: int, row: dict[str, Any] | None) -> None:
        if key not in newest or version >= newest[key][0]:
            newest[key] = (version, row)

    for message in messages:
        for i, row in enumerate(message["data"] or ()):
            version = int(message["_pos"]) + i
            old = message["old"][i] if message["old"] else {}
            if "id" in old:
                keep(old["id"], version, None)
            keep(row["id"], version, None if message["type"] == "DELETE" else row)
    return {key: row for key, (_, row) in newest.items() if row is not None}
