"""[sink] of types kafka and jsonl: what goes together, what does not, and what two destinations can't share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from headrace.adapters.jsonl.settings import JsonlSinkSettings
from headrace.adapters.kafka.settings import KafkaSinkSettings
from headrace.cli.wiring import ADAPTERS, sink_routing
from headrace.errors import ConfigError
from headrace.pipeline.projection import Projections
from headrace.settings.destination import DestinationSettings
from headrace.settings.load import Loader
from headrace.supervisor.reload import Reloader
from tests.configured import destination_of, load

Write = Callable[..., Path]
EXAMPLES = Path(__file__).parents[2] / "config" / "examples"
SOURCE = '[source]\nhost = "h"\nuser = "u"\npassword = ""\nserver_id = {}\n'


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes headrace.toml and destinations that go into the given file each."""

    def write(**files: str) -> Path:
        (tmp_path / "destinations").mkdir(exist_ok=True)
        (tmp_path / "headrace.toml").write_text("")
        for number, (name, path) in enumerate(files.items(), 1):
            text = SOURCE.format(number) + f'[sink]\ntype = "jsonl"\npath = "{path}"\n'
            (tmp_path / "destinations" / f"{name}.toml").write_text(text)
        return tmp_path / "headrace.toml"

    return write


# -- jsonl ------------------------------------------------------------------------------------------------------------


def test_two_destinations_can_t_write_one_file_under_whatever_name(write: Write, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "out.jsonl")
    with pytest.raises(ConfigError) as caught:
        load(write(a=f"{tmp_path}/out.jsonl", b=f"{tmp_path}/x/../out.jsonl", c=f"{tmp_path}/link"), {})
    assert len(caught.value.problems) == 2
    assert "b.toml: sink.path: " in caught.value.problems[0]
    assert "is also the file of the destination a; each needs its own" in caught.value.problems[0]


def test_standard_output_may_be_shared_and_files_of_one_folder_are_accepted(write: Write, tmp_path: Path) -> None:
    settings = load(write(a="-", b="-", c=f"{tmp_path}/c", d=f"{tmp_path}/d"), {})
    assert len(settings.destinations) == 4


async def test_a_file_that_another_destination_writes_is_refused_while_the_daemon_runs(
    write: Write, tmp_path: Path
) -> None:
    settings = load(write(a=f"{tmp_path}/out"), {})
    reloader = Reloader(settings, Loader(ADAPTERS, {}))
    write(a=f"{tmp_path}/out", b=f"{tmp_path}/out")
    wanted = await reloader.read(settings.destinations, everything=True)
    assert list(wanted) == ["a"]
    assert "is also the file of the destination a" in reloader.errors[0]


def jsonl(**more: Any) -> JsonlSinkSettings:
    return JsonlSinkSettings.model_validate({"type": "jsonl", "path": "out", **more})


def test_rotation_is_read_with_units() -> None:
    made = jsonl(rotate_bytes="64MiB", keep_files="7")
    assert (made.rotate_bytes, made.keep_files) == (64 << 20, 7)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"path": "-", "rotate_bytes": 1000}, "no meaning with path"),
        ({"keep_files": 3}, "needs rotate_bytes"),
        ({"rotate_bytes": -1}, "greater than or equal to 0"),
    ],
)
def test_rotation_that_makes_no_sense_is_refused(more: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        jsonl(**more)


def test_the_example_is_right(tmp_path: Path) -> None:
    (tmp_path / "destinations").mkdir()
    (tmp_path / "headrace.toml").write_text("")
    (tmp_path / "destinations" / "shop.toml").write_text((EXAMPLES / "jsonl.toml").read_text())
    sink = load(tmp_path / "headrace.toml", {"SHOP_PASSWORD": "x"}).destinations["shop"].sink
    assert isinstance(sink, JsonlSinkSettings)
    assert set(sink.model_fields_set) == set(JsonlSinkSettings.model_fields), "every key is shown"


# -- [filter] ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hiding", "key"),
    [
        ("exclude_columns = 'shop\\.users:phone'", "exclude_columns"),
        ("include_columns = 'shop\\.users:id'", "include_columns"),
        ("[[filter.where]]\ntables = 'shop\\.users'\nrows = 'id > 7'", "where"),
        ("[[filter.mask]]\ntables = 'shop\\.users'\ncolumns = 'phone'\nmask = 'null'", "mask"),
    ],
)
@pytest.mark.parametrize(
    ("asking", "texts"),
    [
        ("[filter]\ndml_queries = true", "filter.dml_queries"),
        ("[message]\nformat = 'debezium'\ndebezium.query = true\n[filter]", "message.debezium.query"),
    ],
)
def test_texts_of_statements_are_refused_together_with_hidden_columns(
    write: Write, hiding: str, key: str, asking: str, texts: str
) -> None:
    path = write(a="-")
    load(path, {})
    file = path.parent / "destinations" / "a.toml"
    file.write_text(f"{file.read_text()}{asking}\n{hiding}\n")
    with pytest.raises(ConfigError) as caught:
        load(path, {})
    [problem] = caught.value.problems
    assert problem == f"{file}: {texts}: the texts of statements hold the values that {key} hides"


# -- kafka ------------------------------------------------------------------------------------------------------------


def kafka(**more: Any) -> KafkaSinkSettings:
    return KafkaSinkSettings.model_validate({"type": "kafka", "bootstrap_servers": "h:9092", **more})


ACCOUNT = {"sasl_mechanism": "SCRAM-SHA-512", "user": "relay", "password": "x"}
TOKEN = ACCOUNT | {"sasl_mechanism": "OAUTHBEARER", "oauth_token_url": "https://id.example.com/token"}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"user": "relay"}, 'user has no meaning with sasl_mechanism = "none"'),
        (ACCOUNT | {"tls_ca": __file__}, 'tls_ca has no meaning with tls = "disabled"'),
        ({"tls": "required", "tls_ca": "/x"}, "there is no file /x"),
        ({"sasl_mechanism": "PLAIN"}, "needs user and password"),
        (ACCOUNT | {"oauth_scope": "kafka"}, "oauth_scope has no meaning with sasl_mechanism"),
        (ACCOUNT | {"sasl_mechanism": "OAUTHBEARER"}, "needs oauth_token_url"),
        (TOKEN | {"oauth_token_url": "id.example.com"}, "should begin with"),
        (TOKEN | {"oauth_token_url": "https://relay:geheim@id.example.com/token"}, "should have no account"),
        ({"tls": "required", "tls_key": __file__}, "tls_key needs tls_certificate"),
        ({"on_oversize": "skip"}, "halt"),
    ],
)
def test_security_that_makes_no_sense_is_refused(more: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said) as caught:
        kafka(**more)
    assert "'x'" not in str(caught.value)


def test_security_that_does_is_taken() -> None:
    for more in ({}, {"tls": "required"}, ACCOUNT, ACCOUNT | {"tls": "required", "tls_ca": __file__}, TOKEN):
        assert kafka(**more).max_request_size is None


def destination(**more: Any) -> DestinationSettings:
    raw = {
        "name": "shop",
        "source": {"host": "h", "user": "u", "password": ""},
        "sink": {"type": "kafka", "bootstrap_servers": "h:9092"},
        **more,
    }
    return destination_of(raw)


def test_a_sink_gets_its_topics_and_their_partitions() -> None:
    route = {
        "topic": "shop",
        "partition": 2,
        "partitions": 8,
        "dynamic_topic": r"orders:shop\.orders,{table}-topic:shop\.x.*,shop",
        "dynamic_topic_partitions": "orders:4,few:1",
    }
    plan = sink_routing(destination(route=route))
    assert plan.topics == ("shop", "orders")
    assert [plan.partitions(topic) for topic in ("shop", "orders", "few", "else")] == [8, 4, 3, 8]
    debezium = {"format": "debezium", "debezium": {"transaction_topic": "tx", "schema_topic": "ddl"}}
    plan = sink_routing(destination(route=route, message=debezium))
    assert plan.topics == ("shop", "ddl", "tx", "orders")
    assert [plan.partitions(topic) for topic in ("shop", "ddl", "tx")] == [8, 1, 1]
    assert plan.split(b'{"data":[1,2]}', 5) == []


def test_a_prefix_is_before_every_topic_and_rules_are_for_names_without_it(tmp_path: Path) -> None:
    (tmp_path / "destinations").mkdir()
    (tmp_path / "headrace.toml").write_text('[daemon]\nnode = "n"\n')
    (tmp_path / "destinations" / "shop.toml").write_text(
        """
        [source]
        host = "h"
        user = "u"
        password = ""
        [message]
        format = "debezium"
        debezium = { transaction_topic = "tx", schema_topic = "ddl" }
        [route]
        topic = "shop"
        topic_prefix = "beside."
        dynamic_topic = 'orders:shop\\.orders,{table}-topic:shop\\.x.*,shop\\.y'
        dynamic_topic_partitions = "orders:4"
        partitions = 2
        partition_hash = '.*\\..*:$pk$'
        [sink]
        type = "kafka"
        bootstrap_servers = "h:9092"
        """
    )
    made = load(tmp_path / "headrace.toml", {}).destinations["shop"]
    plan, projections = sink_routing(made), Projections(made)
    assert plan.topics == ("beside.shop", "beside.ddl", "beside.tx", "beside.orders")
    assert [plan.partitions(topic) for topic in plan.topics] == [2, 1, 1, 4]
    routes = {table: projections.route("shop", table) for table in ("orders", "xy", "y", "else")}
    assert [one.topic for one in routes.values()] == [
        "beside.orders",
        "beside.xy-topic",
        "beside.shop_y",
        "beside.shop",
    ]
    assert [one.partitions for one in routes.values()] == [4, 2, 2, 2]


@pytest.mark.parametrize(
    ("compression", "level", "used"),
    [("none", None, 0), ("snappy", None, 0), ("lz4", None, 1), ("zstd", None, 1), ("gzip", None, 6), ("zstd", 19, 19)],
)
def test_each_compression_has_a_level_of_its_own(compression: str, level: int | None, used: int) -> None:
    given = {} if level is None else {"compression_level": level}
    made = KafkaSinkSettings.model_validate(
        {"type": "kafka", "bootstrap_servers": "k:1", "compression": compression, **given}
    )
    assert made.level == used


@pytest.mark.parametrize(
    ("compression", "level", "says"),
    [
        ("none", 1, "no meaning"),
        ("snappy", 1, "no meaning"),
        ("lz4", 13, "from 1 to 12, not 13"),
        ("zstd", 0, "from 1 to 19, not 0"),
        ("gzip", 10, "from 1 to 9, not 10"),
    ],
)
def test_a_level_that_the_compression_has_not_is_refused(compression: str, level: int, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        KafkaSinkSettings.model_validate(
            {"type": "kafka", "bootstrap_servers": "k:1", "compression": compression, "compression_level": level}
        )


@pytest.mark.parametrize(
    ("sink", "queue", "budget"),
    [
        ({}, {}, 8 << 20),
        ({"transaction_bytes": "64MiB"}, {}, 8 << 20),
        ({"delivery": "exactly_once"}, {}, 24 << 20),
        ({"delivery": "exactly_once", "transaction_bytes": "1MiB"}, {}, 8 << 20),
        ({"delivery": "exactly_once"}, {"bytes": "1MiB"}, 1 << 20),
        ({}, {"bytes": "0"}, 8 << 20),
        ({}, {"bytes": "32MiB"}, 32 << 20),
    ],
)
def test_a_queue_is_large_enough_for_the_batches_of_the_sink_unless_its_size_is_set(
    sink: dict[str, Any], queue: dict[str, Any], budget: int
) -> None:
    source = {"host": "h", "user": "u", "password": "p"}
    kafka = {"type": "kafka", "bootstrap_servers": "k:9092", **sink}
    made = destination_of({"name": "shop", "source": source, "sink": kafka, "queue": queue, "route": {"topic": "shop"}})
    assert made.queue_bytes == budget
