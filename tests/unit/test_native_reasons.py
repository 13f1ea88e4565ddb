"""Whether native code makes the rows of a table, and why not: the check, the status, and what a stream does agree."""

from __future__ import annotations

import contextlib
import random
import sys
import tomllib
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace import __version__, native
from headrace.cli.check_native import native_use
from headrace.cli.wiring import new_format
from headrace.errors import NotUnderstood
from headrace.model import DdlKind, SchemaChange
from headrace.mysql.values import column_types as ct
from headrace.pipeline.message_builder import make_builder
from headrace.pipeline.native_output import reason_of_destination
from headrace.settings.daemon import DaemonSettings
from tests import native_differential
from tests.made_binlog import Binlog
from tests.native_ways import (
    MODULE,
    RABBITMQ,
    captured_schemas,
    needs_native,
    settings_of,
    table,
    used,
)
from tests.random_tables import Column as Column_
from tests.random_tables import stream


@pytest.fixture
def unknown() -> Iterator[None]:
    """find() searches again, before and afterwards."""
    native.find.cache_clear()
    before = sys.modules.pop("headrace_native", None)
    yield
    native.find.cache_clear()
    sys.modules.pop("headrace_native", None)
    if before is not None:
        sys.modules["headrace_native"] = before


@pytest.mark.usefixtures("unknown")
def test_what_is_found_says_why_it_is_python() -> None:
    assert str(native.find("off")) == 'Python (off: [daemon] native = "off")'
    sys.modules["headrace_native"] = types.ModuleType("headrace_native")
    assert str(native.find()) == f"Python (headrace-native unknown has interface None, not {native.INTERFACE})"
    native.find.cache_clear()
    old = sys.modules["headrace_native"] = types.ModuleType("headrace_native")
    old.INTERFACE, old.__version__ = native.INTERFACE, "0.0.9"  # type: ignore[attr-defined]
    assert str(native.find()) == f"Python (headrace-native 0.0.9 is not of version {__version__}, which headrace has)"
    native.find.cache_clear()
    sys.modules["headrace_native"] = None  # type: ignore[assignment]
    assert native.find().module is None
    native.find.cache_clear()
    del sys.modules["headrace_native"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [])
        found = str(native.find())
    assert found.startswith(
        "Python (installed without native code, which takes about five times the CPU: docs/install.md"
    )


@needs_native
def test_it_is_said_of_each_table_whether_native_code_makes_its_rows_and_why_not() -> None:
    text = lambda charset: Column_(ct.BLOB, b"\x04", ct.BLOB, 4, charset)  # noqa: E731
    tables = [
        table("plain", 1, text("utf8mb4"), text("latin1"), text("binary")),
        table("chinese", 2, text("gbk")),
        table("times", 3, Column_(ct.TIMESTAMP2, b"\0", ct.TIMESTAMP2, 0)),
        table("masked", 4, text("utf8mb4")),
        table("some", 5, text("utf8mb4")),
        table("deflated", 6, Column_(ct.VARCHAR_COMPRESSED, b"\xff\x00", ct.VARCHAR_COMPRESSED, 255, "utf8mb4")),
    ]
    binlog = Binlog().begin_file()
    binlog.gtid(1, 1_700_000_000_000_000)
    binlog.query("BEGIN")
    for one in tables:
        binlog.event(19, one.body())
    data = bytes(binlog.packets)
    filters = {
        "mask": [{"tables": "shop\\.masked", "columns": ["c1"], "mask": "null"}],
        "where": [{"tables": "shop\\.some", "rows": "c1 is not null"}],
    }
    config = settings_of({"time_zone": "Asia/Shanghai"}, filter=filters)
    assert used(data, config) == {
        ("shop", "plain"): "",
        ("shop", "chinese"): "",
        ("shop", "times"): "",
        ("shop", "deflated"): "",
        ("shop", "masked"): "",
        ("shop", "some"): "",
    }
    unwrapped = {"unwrap": True, "deletes": "rewrite", "add_fields": ["op", "source.row"]}
    for message in (
        {},
        {"format": "debezium"},
        {"format": "debezium", "debezium": unwrapped},
        {"format": "canal-protobuf"},
        {"format": "maxwell", "fields": ["position", "primary_key"]},
    ):
        assert not any(used(data, settings_of(message)).values()), message


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({}, ""),
        ({"filter": {"transactions": True}}, ""),
        (
            {"message": {"format": "debezium", "debezium": {"transaction_topic": "x"}}},
            "the begin and end of transactions are published",
        ),
        ({"message": {"format": "debezium", "debezium": {"query": True}}}, "rows have the text of their statement"),
        ({"sink": RABBITMQ}, ""),
    ],
)
def test_it_is_said_of_a_destination_why_native_code_makes_none_of_its_rows(more: dict[str, Any], reason: str) -> None:
    config = settings_of(**({"message": {}} | more))
    assert reason_of_destination(config, new_format(config), "") == reason
    without = reason_of_destination(config, new_format(config), "headrace-native is not installed")
    assert without.startswith("headrace-")


@needs_native
def test_it_is_said_of_a_table_once_the_text_of_a_statement_has_come() -> None:
    config = settings_of({}, filter={"dml_queries": True})
    builder = make_builder(config, new_format(config), "server", 5, MODULE)
    builder.emit_schema(SchemaChange(DdlKind.QUERY, "dml", "shop", "t", "INSERT INTO t VALUES (1)", (), 1, 0, ""))
    assert builder.native is not None
    assert "dml_queries" in builder.native.use.of_python["shop.t"]


@needs_native
@pytest.mark.parametrize(("sink", "reason"), [("jsonl", ""), ("rabbitmq", "a key that is not published unchanged")])
def test_the_check_knows_that_messages_may_have_to_wait_for_others_about_their_row(sink: str, reason: str) -> None:
    binlog = Binlog().begin_file()
    binlog.transaction(1, 1_700_000_000_000_000, [(1, "x")])
    masked = {"mask": [{"tables": ".*", "columns": ["id"], "mask": "hash", "salt": "s"}]}
    more = {"sink": RABBITMQ} if sink == "rabbitmq" else {}
    spread = {"route": {"topic": "shop", "partitions": 4, "partition_hash": r".*\..*:$pk$", "hash": "canal"}}
    more |= spread if sink == "rabbitmq" else {}
    config, data = settings_of({"format": "debezium"}, filter=masked, **more), bytes(binlog.packets)
    found = used(data, config)["shop", "t"]
    assert reason in found
    assert bool(found) == bool(reason)
    schemas = captured_schemas(data, config)
    said = " ".join(one.sentence for one in native_use(DaemonSettings(), config, new_format(config), schemas))
    assert (f"shop.t ({found})" in said) == bool(reason), said


@needs_native
@pytest.mark.parametrize("seed", range(20))
def test_the_check_says_before_what_a_stream_finds(seed: int) -> None:
    rng = random.Random(seed)
    config = native_differential.settings(rng)
    if reason_of_destination(config, new_format(config), ""):
        return
    data = stream(rng, broken=0)
    schemas = captured_schemas(data, config)
    with contextlib.suppress(NotUnderstood):
        found = used(data, config)
        expected = " ".join(one.sentence for one in native_use(DaemonSettings(), config, new_format(config), schemas))
        for name in schemas:
            if name in found:
                assert (f"{'.'.join(name)} (" in expected) == bool(found[name]), (found, expected)


def test_headrace_and_its_native_code_have_one_version() -> None:
    root = Path(__file__).parents[2]
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    crates = tomllib.loads((root / "native/Cargo.toml").read_text())["workspace"]["package"]
    assert project["version"] == crates["version"] == __version__
