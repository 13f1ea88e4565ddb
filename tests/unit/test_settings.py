"""The configuration: what is right loads, what is wrong is named with file, key and a sentence, all at once."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import ValidationError

from headrace.adapters.etcd.settings import EtcdSettings
from headrace.adapters.jsonl.settings import JsonlSinkSettings
from headrace.adapters.kafka.settings import KafkaSinkSettings
from headrace.adapters.zookeeper.settings import ZooKeeperSettings
from headrace.errors import ConfigError
from headrace.formats.canal.settings import CanalMessageSettings
from headrace.formats.debezium.settings import DebeziumSettings
from headrace.formats.maxwell.settings import MaxwellMessageSettings
from headrace.rules.patterns import compile_filter
from headrace.settings.archive import ArchiveSettings
from headrace.settings.destination import Settings
from headrace.settings.load import derive_server_id
from headrace.settings.values import StartLatest
from headrace_common.tls import tls_by_host
from tests.configured import load

CONFIG = Path(__file__).parents[2] / "config" / "headrace.toml"
SHOP = """
[source]
host = "127.0.0.1"
user = "canal"
password = "${SHOP_PASSWORD}"
[route]
topic = "shop"
[sink]
type = "kafka"
bootstrap_servers = "127.0.0.1:9092"
"""
ENV = {"SHOP_PASSWORD": "geheim-4711"}
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(main: str = "", **destinations: str) -> Path:
        (tmp_path / "destinations").mkdir(exist_ok=True)
        for name, text in destinations.items():
            (tmp_path / "destinations" / f"{name}.toml").write_text(text)
        (tmp_path / "headrace.toml").write_text(main)
        return tmp_path / "headrace.toml"

    return write


def problems(path: Path, env: dict[str, str] = ENV) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(path, env)
    for value in env.values():
        assert value not in str(caught.value)
    return [problem.replace(f"{path.parent}/", "") for problem in caught.value.problems]


def test_the_shipped_files_load_and_hide_the_password() -> None:
    settings = load(CONFIG, ENV)
    assert settings.daemon.node == "relay-1"
    assert settings.http.address == ("127.0.0.1", 9180)
    shop = settings.destinations["shop"]
    assert shop.source.password.get_secret_value() == "geheim-4711"
    assert isinstance(shop.sink, KafkaSinkSettings)
    assert shop.sink.bootstrap_servers == ("127.0.0.1:9092",)
    assert compile_filter(shop.filter.include)[0].fullmatch("SHOP.serve_sync")
    assert "geheim" not in repr(settings) + str(settings) + settings.model_dump_json()


def test_every_key_is_in_the_shipped_files_and_described() -> None:
    settings = load(CONFIG, ENV)
    texts = {"": CONFIG.read_text(), "shop": (CONFIG.parent / "destinations" / "shop.toml").read_text()}
    shop = settings.destinations["shop"]
    sections = [(texts[""], settings.daemon), (texts[""], settings.state), (texts[""], settings.http)]
    sections += [(texts[""], settings.log)]  # type: ignore[list-item]
    messages = shop.message, DebeziumSettings(), MaxwellMessageSettings()
    archive = ArchiveSettings(path=Path("archive"))
    for section in (shop.source, archive, shop.filter, *messages, shop.route, shop.queue, shop.parking):
        sections.append((texts["shop"].replace("## ", ""), section))  # type: ignore[arg-type]
    sections.append((texts["shop"], shop.sink))  # type: ignore[arg-type]
    texts[""], etcd = texts[""].split("## [etcd]")
    sections.append((texts[""].replace("## ", ""), ZooKeeperSettings(hosts="zk:2181")))  # type: ignore[arg-type]
    sections.append((etcd.replace("## ", ""), EtcdSettings(endpoints="e:2379")))  # type: ignore[arg-type]
    for text, section in sections:
        for name, field in type(section).model_fields.items():
            assert field.description, f"{type(section).__name__}.{name}"
            shown = re.search(rf"^(# )?({name} = .+|\[\w+\.{name}\])$", text, re.MULTILINE)
            assert shown, f"{type(section).__name__}.{name} is not shown"


def test_the_defaults_shown_as_comments_are_the_defaults(write: Write) -> None:
    texts = [CONFIG.read_text(), (CONFIG.parent / "destinations" / "shop.toml").read_text()]
    main, shop = (
        re.sub(
            r"^# (?=(?!tls_|oauth_|sasl_|snapshot_source |user |password |max_request_size|compression_level)"
            r"[a-z_]+ = )",
            "",
            text,
            flags=re.MULTILINE,
        )
        for text in texts
    )
    path = write(main, shop=shop)
    shown, real = load(path, ENV), load(CONFIG, ENV)
    source = shown.destinations["shop"].source
    assert source.tls == tls_by_host(None, source.host)  # which no value says
    given = shown.destinations["shop"].model_copy(update={"source": source.model_copy(update={"tls": None})})
    assert {"shop": given} == real.destinations
    assert shown.daemon.model_copy(update={"destinations": real.daemon.destinations}) == real.daemon
    assert (shown.state, shown.http, shown.log) == (real.state, real.http, real.log)


def test_little_is_needed(write: Write) -> None:
    text = '[source]\nhost="h"\nuser="u"\npassword=""\n[sink]\ntype="jsonl"\npath="-"\n'
    settings = load(write("", **{"a.b-c_1": text}), {})
    destination = settings.destinations["a.b-c_1"]
    assert destination.route.topic == "a.b-c_1"
    assert isinstance(destination.sink, JsonlSinkSettings)
    assert destination.source.start == StartLatest()
    assert destination.source.server_id == derive_server_id(settings.daemon.node, "a.b-c_1")
    with pytest.raises(ValidationError):
        settings.daemon.node = "other"  # type: ignore[misc]


def test_derived_server_ids_are_stable_and_differ() -> None:
    ids = {derive_server_id(node, name) for node in ("a", "b") for name in ("x", "y")}
    assert len(ids) == 4
    assert all(1 << 31 <= number < 1 << 32 for number in ids)
    assert derive_server_id("relay-1", "shop") == 3957956193


def test_all_problems_of_all_files_at_once(write: Write) -> None:
    main = '[daemon]\nnodes = "x"\ndrain_timeout = "soon"\n[http]\nlisten = "9180"\n[logs]\n'
    bad = SHOP.replace('user = "canal"', "port = true\nusr = 1\nstall_after = -1") + "acks = 1\n"
    other = '[source]\nhost = "h"\nuser = "u"\npassword = "${NO_SUCH}"\n[filter]\ninclude = "a,b(c,d\\\\.(e"\n'
    assert problems(write(main, bad=bad, other=other)) == [
        'headrace.toml: daemon.drain_timeout: should be a duration such as "10s", "500ms" or "2m", or a number of '
        "seconds",
        "headrace.toml: daemon.nodes: unknown key; did you mean node?",
        'headrace.toml: http.listen: should be a host and a port, as in "127.0.0.1:9180"',
        "headrace.toml: logs: unknown key; did you mean log?",
        "destinations/bad.toml: source.port: should be a whole number",
        "destinations/bad.toml: source.user: is missing",
        "destinations/bad.toml: source.stall_after: should be greater than 0",
        "destinations/bad.toml: source.usr: unknown key; did you mean user?",
        "destinations/bad.toml: sink.acks: unknown key",
        "destinations/other.toml: source.password: the environment variable NO_SUCH is not set",
        "destinations/other.toml: filter.include: regex 2 is invalid at character 12: missing )",
        "destinations/other.toml: sink: the section is missing",
    ]


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (
            'type = "kafka"',
            'type = "kafak"',
            "sink.type: should be one of kafka, rabbitmq, rocketmq, canal, jsonl, null",
        ),
        ('type = "kafka"', "", "sink.type: is missing; one of kafka, rabbitmq, rocketmq, canal, jsonl, null"),
        ('topic = "shop"', "", "route.topic: is missing; a kafka sink needs it"),
        ('topic = "shop"', 'topic = ".."', 'route.topic: should not be "." or "..": Kafka has no such topics'),
        ('"127.0.0.1:9092"', "9092", 'sink.bootstrap_servers: should be "host:port", several of them with commas'),
        ('"127.0.0.1:9092"', '["a:1", "b"]', "sink.bootstrap_servers: should be a host and a port"),
        ('"127.0.0.1:9092"', '" , "', "sink.bootstrap_servers: should name at least one server"),
        ('host = "127.0.0.1"', "host = 5", "source.host: should be a valid string"),
        ('host = "127.0.0.1"', 'host = ""', "source.host: should not be empty"),
        ('host = "127.0.0.1"', 'host = "h"\ntls_ca = "/nowhere.pem"', "source.tls_ca: there is no file /nowhere.pem"),
        (
            'host = "127.0.0.1"',
            'host = "h"\ntls = "disabled"\ntls_ca = "/etc/hosts"',
            'source: tls_ca has no meaning with tls = "disabled"',
        ),
        ('host = "127.0.0.1"', 'host = "h"\nstart = "soon"', 'source.start: should be "earliest", "latest", a file'),
        ('host = "127.0.0.1"', 'host = "h"\nserver_id = 4294967296', "source.server_id: should be less than or equal"),
        ("${SHOP_PASSWORD}", "${SHOP PASSWORD}", "source.password: `${...}` should hold the name of an environment"),
        ("${SHOP_PASSWORD}", "${SHOP_PASSWORD", "source.password: `${` has no closing `}`"),
        ("${SHOP_PASSWORD}", "${file:/no/where}", "source.password: the file /no/where can't be read: No such file"),
        ("${SHOP_PASSWORD}", "${file:where}", "source.password: the path in ${file:where} should be absolute"),
        (
            "[sink]",
            '[message]\nformat = "avro"\n[sink]',
            "message.format: should be one of canal, canal-protobuf, debezium",
        ),
        ("[sink]", '[message]\ntime_zone = "Mars"\n[sink]', 'message.time_zone: should be a time zone such as "UTC"'),
        (
            "[sink]",
            '[message]\nformat = "debezium"\n[message.debezium]\ndecimals = "x"\n[sink]',
            "message.debezium.decimals: unknown key; did you mean de",
        ),
        (
            "[sink]",
            '[message.debezium]\ndecimal = "string"\n[sink]',
            "message.debezium: has no meaning with format",
        ),
        ('type = "kafka"', 'type = "kafka"\nexchange = "x"', 'sink.exchange: has no meaning with type = "kafka"'),
        (
            "[sink]",
            '[message]\nformat = "debezium"\nenum = "index"\n[sink]',
            'message.enum: has no meaning with format = "debezium"',
        ),
        ("[sink]", '[message]\nformat = "debezium"\nrows_per_message = 5\n[sink]', "message.rows_per_message: has no"),
        ("[route]", 'skip_event = ["bin.000001"]\n[route]', "source.skip_event: should be a file and the offset of an"),
        ("[route]", "skip_event = 5\n[route]", "source.skip_event: should be a list of positions"),
        ("[source]", 'name = "x"\n[source]', "name: unknown key"),
        ("[source]", "source = 1\n[x]", "source: should be a section, [source]"),
        ("[sink]", "[sink", "not TOML: "),
        ('"canal"', '"canal"\nuser = "again"', "not TOML: Cannot overwrite a value (at line 5"),
    ],
)
def test_one_problem(write: Write, old: str, new: str, problem: str) -> None:
    found = problems(write("", shop=SHOP.replace(old, new)))
    assert any(one.startswith(f"destinations/shop.toml: {problem}") for one in found), found


def test_events_to_skip_are_files_and_offsets(write: Write) -> None:
    for given in ('["mysql-bin.000003:1234", " mysql-bin.000004:4"]', '"mysql-bin.000003:1234, mysql-bin.000004:4"'):
        path = write(shop=SHOP.replace("[route]", f"skip_event = {given}\n[route]"))
        source = load(path, ENV).destinations["shop"].source
        assert source.skip_event == ("mysql-bin.000003:1234", "mysql-bin.000004:4")
    assert load(write(shop=SHOP), ENV).destinations["shop"].source.skip_event == ()


def test_compat_chooses_what_is_not_chosen() -> None:
    assert (CanalMessageSettings().enum_index, CanalMessageSettings().binary_text) == (False, "base64")
    canal = CanalMessageSettings(compat="canal")
    assert (canal.enum_index, canal.binary_text) == (True, "latin1")
    mixed = CanalMessageSettings(compat="canal", enum="label", binary="hex")
    assert (mixed.enum_index, mixed.binary_text) == (False, "hex")


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        ("", False),
        ("[filter]\ntransactions = true\n", True),
        ('[message]\nformat = "debezium"\n[filter]\ntransactions = true\n', False),
        ('[message]\nformat = "debezium"\n[message.debezium]\ntransaction_topic = "t"\n', True),
    ],
)
def test_marks_are_wanted_where_something_is_published_at_them(write: Write, more: str, wanted: bool) -> None:
    assert load(write(shop=more + SHOP), ENV).destinations["shop"].wants_marks is wanted


def test_two_destinations_with_one_server_id(write: Write) -> None:
    text = SHOP.replace("[route]", "server_id = 7\n[route]")
    (problem,) = problems(write("", one=text, two=text))
    assert problem == (
        "destinations/two.toml: source.server_id: 7 is also the server id of the destination one; each needs its own "
        "(0 derives one)"
    )


def test_an_archive_is_that_of_one_source(write: Write) -> None:
    one = f'[archive]\npath = "a"\n{SHOP}'
    other = one.replace('host = "', 'host = "other-')
    assert other != one
    assert len(load(write("", one=one, two=one), ENV).destinations) == 2
    (problem,) = problems(write("", one=one, two=other))
    assert problem == (
        "destinations/two.toml: archive.path: a is the archive of another source, that of the "
        "destination one; each source needs its own"
    )


def test_destinations_that_share_an_archive_agree_whether_it_acknowledges(write: Write) -> None:
    one = f'[archive]\npath = "a"\n{SHOP}'
    two = one.replace("[source]\n", '[source]\nsemi_sync = "archive"\n')
    assert len(load(write("", one=two, two=two), ENV).destinations) == 2
    for first, second, has in ((one, two, "off"), (two, one, "archive")):
        (problem,) = problems(write("", one=first, two=second))
        assert problem == (
            'destinations/two.toml: source.semi_sync: must be "archive" for all destinations that share an archive, or '
            f'for none; that of the destination one is "{has}"'
        )


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ("keep = 0", "archive: needs either path or url"),
        ('path = "a"\nurl = "s3://b/c"', "archive: needs either path or url"),
        (
            'url = "b/c"',
            "archive.url: should be s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX",
        ),
        ('url = "s3://id:hidden@b/c"', "archive.url: should be s3://"),
        ('url = "s3://b"\noptions = {endpoint = "minio:9000"}', "options.endpoint should begin with http:// or"),
        ('url = "gs://b"\noptions = {region = "x"}', "options.region is unknown: url has the options service_account"),
        ('path = "a"\noptions = {region = "x"}', "options.region is unknown: options are for url only"),
    ],
)
def test_an_archive_is_in_a_folder_or_in_an_object_store(write: Write, keys: str, problem: str) -> None:
    (found,) = problems(write("", one=f"[archive]\n{keys}\n{SHOP}"))
    assert problem in found
    assert "hidden" not in found


def test_destinations_share_an_archive_in_an_object_store_by_its_url(write: Write) -> None:
    one = f'[archive]\nurl = "s3://b/c/"\noptions = {{secret_access_key = "hidden"}}\n{SHOP}'
    loaded = load(write("", one=one, two=one.replace("c/", "c")), ENV).destinations.values()
    assert {made.archive.place for made in loaded if made.archive is not None} == {"s3://b/c"}
    assert "hidden" not in repr(loaded)
    (problem,) = problems(write("", one=one, two=one.replace('host = "', 'host = "other-')))
    assert "destinations/two.toml: archive.url: s3://b/c is the archive of another source" in problem


@pytest.mark.parametrize(("text", "seconds"), [('"30d"', 30 * 86400), ('"12 h"', 43200), ("0", 0), ('"0"', 0)])
def test_the_age_of_archived_files_has_a_unit(write: Write, text: str, seconds: float) -> None:
    archive = f'[archive]\npath = "a"\nkeep = KEEP\n{SHOP}'
    made = load(write("", one=archive.replace("KEEP", text)), ENV).destinations["one"].archive
    assert made is not None
    assert made.keep == seconds
    for wrong in ("30", '"30"', "1.5"):
        (problem,) = problems(write("", one=archive.replace("KEEP", wrong)))
        assert problem.endswith('archive.keep: should have a unit, such as "30d" or "12h"')


def test_files_that_are_not_there_or_not_named_right(write: Write, tmp_path: Path) -> None:
    assert problems(tmp_path / "no.toml") == ["no.toml: the file can't be read: No such file or directory"]
    assert problems(tmp_path) == [f"{tmp_path.name}: the file can't be read: Is a directory"]
    (problem,) = problems(write('[daemon]\ndestinations = "nowhere"'))
    assert problem.startswith("headrace.toml: daemon.destinations: the folder nowhere can't be read: No such file")
    assert "no destination" in problems(write())[0]
    (tmp_path / "destinations" / ".#shop.toml").write_text("an editor's")
    (tmp_path / "destinations" / "README").write_text("for people")
    assert "no destination" in problems(write())[0]
    assert "the file's name" in problems(write("", Shop=SHOP))[0]
    (tmp_path / "destinations" / "Shop.toml").write_bytes(b"a = 1\nb = '\xff'")
    assert any("Shop.toml: line 2: not UTF-8" in problem for problem in problems(write()))


def test_a_broken_main_file_does_not_hide_the_destinations_problems(write: Write) -> None:
    found = problems(write("[daemon", shop=SHOP.replace("user", "usr")))
    assert found[0].startswith("headrace.toml: not TOML: ")
    assert "destinations/shop.toml: source.user: is missing" in found


def test_references(write: Write, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("päss wört\r\n")
    text = SHOP.replace("${SHOP_PASSWORD}", f"a${{file:{secret}}}-${{B}}$${{C}}$").replace(
        'host = "127.0.0.1"', 'host = "h"\nport = "${PORT}"'
    )
    source = load(write("", shop=text), {"B": "${PORT}", "PORT": "3307"}).destinations["shop"].source
    assert source.password.get_secret_value() == "apäss wört-${PORT}${C}$"  # what was put in is not expanded again
    assert source.port == 3307


def test_http_may_be_off(write: Write) -> None:
    settings: Settings = load(write('[http]\nlisten = ""', shop=SHOP), ENV)
    assert settings.http.address is None


# -- where positions are kept -------------------------------------------------------------------------------------

KAFKA = '[sink]\ntype = "kafka"\nbootstrap_servers = "b:1"\ndelivery = "exactly_once"\n[route]\ntopic = "t"\n'
JSONL = '[sink]\ntype = "jsonl"\npath = "-"\n'
LEAST = '[source]\nhost="h"\nuser="u"\npassword=""\n'
ZK = '[zookeeper]\nhosts = "zk1:2181, zk2:2181"\n'
ETCD = '[etcd]\nendpoints = "e1:2379"\n'
CANAL = '[sink]\ntype = "canal"\nlisten = "127.0.0.1:11111"\nzookeeper_path = "/otter/canal"\n'


def test_the_store_follows_zookeeper_and_exactly_once(write: Write) -> None:
    alone = load(write("", plain=LEAST + JSONL, once=LEAST + KAFKA), {})
    assert {name: alone.state_of(one).store for name, one in alone.destinations.items()} == {
        "plain": "sqlite",
        "once": "kafka",
    }
    shared = load(write(ZK, plain=LEAST + JSONL, once=LEAST + KAFKA), {})
    assert isinstance(shared.cluster, ZooKeeperSettings)
    assert shared.cluster.hosts == ("zk1:2181", "zk2:2181")
    assert {name: shared.state_of(one).store for name, one in shared.destinations.items()} == {
        "plain": "zookeeper",
        "once": "kafka",
    }
    other = load(write(ETCD, plain=LEAST + JSONL), {})
    assert other.state_of(other.destinations["plain"]).store == "etcd"


def test_a_destination_may_have_a_state_store_of_its_own(write: Write) -> None:
    settings = load(write("", own=LEAST + JSONL + '[state]\npath = "own.db"\n', other=LEAST + JSONL), {})
    assert settings.state_of(settings.destinations["own"]).path == Path("own.db")
    assert settings.state_of(settings.destinations["other"]).path == Path("var/headrace.db")


@pytest.mark.parametrize(
    ("main", "shop", "problem"),
    [
        (ZK + '[state]\nstore = "sqlite"', JSONL, "headrace.toml: state.store: sqlite can't be shared"),
        (ZK, JSONL + '[state]\nstore = "sqlite"', "shop.toml: state.store: sqlite can't be shared"),
        ('[state]\nstore = "zookeeper"', JSONL, "headrace.toml: state.store: zookeeper needs the section [zookeeper]"),
        ("", JSONL + '[state]\nstore = "zookeeper"', "shop.toml: state.store: zookeeper needs the section [zookeeper]"),
        ('[state]\nstore = "kafka"', JSONL, "headrace.toml: state.store: kafka is the store of destinations with"),
        (
            "",
            JSONL + '[state]\nstore = "kafka"',
            "shop.toml: state.store: kafka is the store of destinations",
        ),
        (
            "",
            KAFKA + '[state]\nstore = "sqlite"',
            'shop.toml: state.store: delivery = "exactly_once" keeps the position',
        ),
        ("[zookeeper]", JSONL, "headrace.toml: zookeeper.hosts: is missing"),
        ('[zookeeper]\nhosts = ","', JSONL, "zookeeper.hosts: should name at least one server"),
        (ZK + 'session_timeout = "1s"', JSONL, "zookeeper.session_timeout: should be greater than or equal to 2"),
        (ZK + 'root = "headrace"', JSONL, "zookeeper.root: "),
        (ZK + 'user = "nobody"', JSONL, "zookeeper: user and password go together"),
        (ZK + 'user = "no:body"\npassword = "x"', JSONL, "zookeeper: user should have no colon"),
        (ZK + 'tls_ca = "/etc/passwd"', JSONL, 'zookeeper: tls_ca has no meaning with tls = "disabled"'),
        (ZK + 'tls = "required"\ntls_ca = "/x"', JSONL, "zookeeper.tls_ca: there is no file /x"),
        (ZK + 'tls = "required"\ntls_key = "/etc/passwd"', JSONL, "zookeeper: tls_key needs tls_certificate"),
        ("", CANAL, "shop.toml: sink.zookeeper_path: needs a section [zookeeper] in headrace.toml"),
        (ETCD, CANAL, "shop.toml: sink.zookeeper_path: needs a section [zookeeper] in headrace.toml, and not [etcd]"),
        ("[etcd]", JSONL, "headrace.toml: etcd.endpoints: is missing"),
        (ETCD + 'password = "x"', JSONL, "etcd: user and password go together"),
        (ETCD + ZK, JSONL, "there is a section [zookeeper] already"),
    ],
)
def test_a_store_that_does_not_fit_is_refused(main: str, shop: str, problem: str, write: Write) -> None:
    with pytest.raises(ConfigError) as caught:
        load(write(main, shop=LEAST + shop), {})
    assert any(problem in one.replace("/destinations/", "/") for one in caught.value.problems), caught.value.problems
