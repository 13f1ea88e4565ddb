"""Makes a configuration from Canal's canal.properties and the instance.properties of each destination."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from headrace.moving.canal_table import MODES, PROPERTIES, TLS
from headrace.moving.counterparts import choice, flag, notes_of, whole
from headrace.moving.draft import Draft
from headrace.moving.properties import Properties, Property, read_properties
from headrace.settings.load import DESTINATION_NAME

_JAAS = re.compile(r'(username|password)\s*=\s*"([^"]*)"')
_EXCHANGES = frozenset({"topic", "direct", "fanout", "headers"})


class CanalImport:
    """Reads the folder `conf` of a Canal server. `sinks` are the available kinds of sinks; `env` has the values of
    placeholders; `time_zone` is that of Canal's host, "" for UTC. Problems are added to `problems`, each with file and
    line."""

    def __init__(
        self,
        folder: Path,
        sinks: Collection[str],
        env: Mapping[str, str],
        problems: list[str],
        time_zone: str = "",
    ) -> None:
        self._folder, self._sinks, self._env, self._problems = folder, sinks, env, problems
        self._time_zone = time_zone
        self._file = folder / "canal.properties"
        self._given = read_properties(self._file, problems)
        self._common = Properties({}, self._given, env, problems)
        self.names = dict[str, str]()
        """Canal's name of each destination."""

    def drafts(self) -> list[Draft]:
        """Returns headrace.toml and the destinations."""
        if not self._given:
            return []
        mode = self._mode()
        main = Draft("", str(self._file))
        if hosts := self._common.get("canal.zkServers"):
            main.set("zookeeper.hosts", _hosts(hosts.value, 2181), _origin(hosts))
        drafts = [self._destination(name, file, mode) for name, file in self._instances().items()]
        used = {name for one in drafts for name in one[1]} | self._common.taken
        main.notes += notes_of(PROPERTIES, self._given.values(), used)
        return [main, *(draft for draft, _ in drafts)]

    def _mode(self) -> str:
        given = self._common.get("canal.serverMode")
        word = given.value.lower() if given is not None else "tcp"
        if self._common.text("canal.instance.global.mode", "spring").lower() == "manager":
            self._bad(
                self._common.get("canal.instance.global.mode"),
                "the destinations are kept by Canal Admin: save its instances as NAME/instance.properties here, and "
                "write spring",
            )
        if "group-instance" in self._common.text("canal.instance.global.spring.xml"):
            self._bad(
                self._common.get("canal.instance.global.spring.xml"),
                "a destination of several sources has no counterpart: make a destination of each source",
            )
        if word not in MODES:
            self._bad(given, f"there is no sink for {word}; there are tcp, kafka, rocketMQ and rabbitMQ")
        elif MODES[word] not in self._sinks:
            self._bad(given, f'there is no sink of type "{MODES[word]}" in this version', "canal.serverMode")
        return word

    def _bad(self, given: Property | None, sentence: str, name: str = "") -> None:
        self._problems.append(given.problem(sentence) if given else f"{self._file}: {name}: {sentence}")

    def _instances(self) -> dict[str, Path]:
        """Returns the destinations' files by Canal's names: those that are listed, and with auto.scan those of the
        folder."""
        listed = self._common.get("canal.destinations")
        names = [name.strip() for name in listed.value.split(",") if name.strip()] if listed is not None else []
        scanned = self._common.get("canal.auto.scan")
        files = {name: self._folder / name / "instance.properties" for name in names}
        for name, file in files.items():
            if listed is not None and not file.is_file():
                self._problems.append(listed.problem(f"{name} has no file {file}"))
        if scanned is not None and scanned.value.lower() == "true":
            for file in sorted(self._folder.glob("*/instance.properties")):
                if file.parent.name != "spring":
                    files.setdefault(file.parent.name, file)
        if not files:
            self._problems.append(f"{self._file}: canal.destinations: names no destination, and the folder has none")
        return {name: file for name, file in files.items() if file.is_file()}

    def _destination(self, canals: str, file: Path, mode: str) -> tuple[Draft, set[str]]:
        own = read_properties(file, self._problems)
        name = canals.lower()
        if not DESTINATION_NAME.fullmatch(name) or name in self.names:
            self._problems.append(
                f"{file.parent}: the destination's name should be a letter or a digit and then those, dots, dashes and "
                "underscores, and differ from others by more than capitals: rename the folder"
            )
        self.names[name] = canals
        injected = {"canal.instance.destination": Property("canal.instance.destination", canals, file, 0)}
        given = Properties({**own, **injected}, self._given, self._env, self._problems)
        draft = Draft(name, str(file))
        made = _Destination(given, draft, mode, self._time_zone, self._problems)
        made.fill()
        draft.notes += notes_of(PROPERTIES, own.values(), given.taken | self._common.taken)
        return draft, given.taken


class _Destination:
    """One destination."""

    def __init__(self, given: Properties, draft: Draft, mode: str, time_zone: str, problems: list[str]) -> None:
        self._given, self._draft, self._mode, self._problems = given, draft, mode, problems
        self._time_zone = time_zone

    def fill(self) -> None:
        """Writes all sections."""
        self._source()
        self._draft.set(
            "heartbeat.enabled",
            False,
            comment="Canal's account usually may not write: with INSERT, UPDATE and CREATE on headrace.* turn it on.",
        )
        self._simple()
        self._filter()
        self._draft.set("message.format", "canal")
        self._draft.set(
            "message.compat",
            "canal",
            comment="As Canal's consumers know it. TIMESTAMP is printed in time_zone: set that of Canal's host.",
        )
        self._draft.set("message.time_zone", self._time_zone or "UTC", "--time-zone" if self._time_zone else "")
        self._proto()
        sink = MODES.get(self._mode)
        if sink != "canal":
            self._route()
        if sink is not None:
            {"kafka": self._kafka, "rabbitmq": self._rabbitmq, "rocketmq": self._rocketmq, "canal": self._tcp}[sink]()

    # -- values ---------------------------------------------------------------------------------------------------

    def _take(self, name: str, key: str, read: Any = str, comment: str = "") -> bool:
        """Turns a property into a key; returns whether it is given."""
        given = self._given.get(name)
        if given is None:
            return False
        try:
            self._draft.set(key, read(given.value), _origin(given), comment)
        except ValueError as error:
            self._problems.append(given.problem(str(error)))
        return True

    def _first(self, *names: str) -> str:
        """Returns the name of the first of these properties that is given."""
        return next((name for name in names if self._given.get(name) is not None), names[0])

    def _secret(self, name: str, key: str, secret: str, comment: str = "") -> None:
        given = self._given.get(name)
        value: Any = "" if given is None else self._draft.secret(f"{self._draft.name}-{secret}", given.value)
        self._draft.set(key, value, _origin(given) if given else "", comment)

    def _flag(self, name: str) -> bool:
        given = self._given.get(name)
        try:
            return given is not None and flag(given.value)
        except ValueError as error:
            assert given is not None
            self._problems.append(given.problem(str(error)))
            return False

    def _simple(self) -> None:
        """Converts all properties that correspond to one key."""
        for name in self._given.all:
            row = PROPERTIES.get(name)
            if row is not None and row.key and (self._mode != "tcp" or not row.key.startswith("route.")):
                self._take(name, row.key, row.read)

    # -- sections -------------------------------------------------------------------------------------------------

    def _source(self) -> None:
        given, draft = self._given, self._draft
        address = given.get("canal.instance.master.address")
        if address is None:
            self._problems.append(f"{draft.origin}: canal.instance.master.address: is missing")
        else:
            self._address(address, "source.host", "source.port")
        self._take("canal.instance.dbUsername", "source.user")
        comment = ""
        if self._flag("canal.instance.enableDruid"):
            comment = "Canal has it encrypted: write the password itself into the secret's file."
        self._secret("canal.instance.dbPassword", "source.password", "source-password", comment)
        ssl = "canal.instance.master.sslMode"
        if not self._take(ssl, "source.tls", choice(TLS)):
            draft.set("source.tls", "preferred", comment='Canal did not encrypt; "verified" is advised.')
        self._start()
        image = given.text("canal.instance.binlog.image")
        any_image = {one.strip().upper() for one in image.split(",") if one.strip()} != {"FULL"}
        draft.set("source.row_image", "any" if any_image else "full")
        standby = given.get("canal.instance.standby.address")
        if standby is not None and (parts := self._parts(standby)):
            host, port = parts
            inner = Draft("", "")
            inner.set("x.host", host, _origin(standby))
            inner.set("x.port", port, _origin(standby))
            draft.tables.append(("source.standby", inner.sections["x"]))

    def _parts(self, address: Property) -> tuple[str, int] | None:
        host, colon, port = address.value.rpartition(":")
        try:
            return (host, whole(port)) if colon else (port, 3306)
        except ValueError:
            self._problems.append(address.problem("should be host:port"))
            return None

    def _address(self, address: Property, host: str, port: str) -> None:
        if parts := self._parts(address):
            self._draft.set(host, parts[0], _origin(address))
            self._draft.set(port, parts[1], _origin(address))

    def _start(self) -> None:
        """Sets where Canal begins when it has no cursor."""
        given, draft = self._given, self._draft
        draft.set("source.snapshot", "never", comment="Canal sends changes alone.")
        file, position, time, gtid = (
            given.get(f"canal.instance.master.{one}") for one in ("journal.name", "position", "timestamp", "gtid")
        )
        given.taken.add("canal.instance.gtidon")
        try:
            if gtid is not None:
                draft.set("source.start", gtid.value, _origin(gtid))
            elif file is not None:
                offset = whole(position.value) if position is not None else 4
                draft.set("source.start", f"{file.value}:{offset}", _origin(file))
            elif time is not None:
                when = datetime.fromtimestamp(whole(time.value) / 1000, UTC)
                draft.set("source.start", when.isoformat(), _origin(time))
            else:
                draft.set("source.start", "latest")
        except (ValueError, OverflowError, OSError) as error:
            wrong = position if position is not None and file is not None else time
            self._problems.append((wrong or draft_property(draft)).problem(str(error)))

    def _filter(self) -> None:
        operations = [one for one in _OPERATIONS if not self._flag(f"canal.instance.filter.dml.{one}")]
        if not operations:
            self._problems.append(f"{self._draft.origin}: canal.instance.filter.dml leaves out every change of rows")
        elif len(operations) < len(_OPERATIONS):
            self._draft.set("filter.operations", operations)
        hidden = self._draft.get("filter.include_columns") or self._draft.get("filter.exclude_columns")
        if not self._flag("canal.instance.filter.query.dml") and not hidden:
            self._draft.set("filter.dml_queries", True)
        if self._given.get("canal.instance.filter.query.dcl") is None:
            self._draft.set("filter.dcl", True)

    def _proto(self) -> None:
        given = self._given.get("canal.mq.flatMessage")
        if given is not None and not self._flag("canal.mq.flatMessage"):
            self._draft.set("message.format", "canal-protobuf", _origin(given))

    def _route(self) -> None:
        given, draft = self._given, self._draft
        dynamic = self._take("canal.mq.dynamicTopic", "route.dynamic_topic", _topics)
        if not self._take("canal.mq.topic", "route.topic", _no_dots if dynamic else str):
            draft.set("route.topic", draft.name, comment="Canal's file names none.")
        hashed = given.get("canal.mq.partitionHash")
        if hashed is None or not (draft.get("route.partitions") or draft.get("route.dynamic_topic_partitions")):
            self._take("canal.mq.partition", "route.partition", whole)
            if hashed is not None:
                draft.notes.append("canal.mq.partitionHash: has no meaning without canal.mq.partitionsNum, as in Canal")
            return
        given.taken.add("canal.mq.partition")
        draft.set("route.partition_hash", hashed.value, _origin(hashed))
        draft.set("route.hash", "canal")

    def _kafka(self) -> None:
        draft = self._draft
        draft.set("sink.type", "kafka")
        servers = self._first("kafka.bootstrap.servers", "canal.mq.servers")
        if not self._take(servers, "sink.bootstrap_servers"):
            self._problems.append(f"{draft.origin}: kafka.bootstrap.servers: is missing")
        self._take(self._first("kafka.compression.type", "canal.mq.compressionType"), "sink.compression", str.lower)
        protocol = self._given.text("kafka.security.protocol", "PLAINTEXT").upper()
        if "SSL" in protocol:
            draft.set("sink.tls", "required", comment="Certificates: as tls_ca, in PEM.")
        if "SASL" in protocol and self._take("kafka.sasl.mechanism", "sink.sasl_mechanism"):
            jaas = self._given.get("kafka.sasl.jaas.config")
            found = dict(_JAAS.findall(jaas.value)) if jaas is not None else {}
            origin = _origin(jaas) if jaas is not None else ""
            draft.set("sink.user", found.get("username", ""), origin)
            secret = draft.secret(f"{draft.name}-sink-password", found.get("password", ""))
            draft.set("sink.password", secret, origin)

    def _rabbitmq(self) -> None:
        draft, given = self._draft, self._given
        draft.set("sink.type", "rabbitmq")
        if not self._take(
            self._first("rabbitmq.host", "canal.mq.servers"), "sink.hosts", lambda text: _hosts(text, 5672)
        ):
            self._problems.append(f"{draft.origin}: rabbitmq.host: is missing")
        self._take(self._first("rabbitmq.virtual.host", "canal.mq.vhost"), "sink.virtual_host")
        self._take(self._first("rabbitmq.exchange", "canal.mq.exchange"), "sink.exchange")
        self._take(self._first("rabbitmq.username", "canal.mq.username"), "sink.user")
        self._secret(self._first("rabbitmq.password", "canal.mq.password"), "sink.password", "sink-password")
        kind = given.text("rabbitmq.deliveryMode")
        if kind in _EXCHANGES and given.get("rabbitmq.queue") and given.get("rabbitmq.routingKey"):
            draft.set("sink.declare", True)
            draft.set("sink.exchange_type", kind)
            self._take("rabbitmq.queue", "sink.queue")
            draft.set("sink.queue_type", "classic")
            self._take("rabbitmq.routingKey", "sink.binding")

    def _rocketmq(self) -> None:
        draft = self._draft
        draft.set("sink.type", "rocketmq")
        comment = "Those of the name servers, with the proxies' usual port: name the proxies of RocketMQ 5 here."
        names = self._first("rocketmq.namesrv.addr", "canal.mq.servers")
        if not self._take(names, "sink.hosts", _proxies, comment):
            self._problems.append(f"{draft.origin}: rocketmq.namesrv.addr: is missing")
        self._take(self._first("rocketmq.namespace", "canal.mq.namespace"), "sink.namespace")
        if not self._take("rocketmq.tag", "sink.tag"):
            draft.set("sink.tag", "", comment="Canal sets none by default.")
        if self._take("canal.aliyun.accessKey", "sink.access_key"):
            self._secret("canal.aliyun.secretKey", "sink.secret_key", "sink-secret-key")

    def _tcp(self) -> None:
        draft, given = self._draft, self._given
        draft.set("sink.type", "canal")
        draft.set("message.format", "canal-protobuf")
        draft.set("filter.transactions", not self._flag("canal.instance.filter.transaction.entry"))
        port = given.text("canal.port", "11111")
        draft.set("sink.listen", f"{given.text('canal.ip', '127.0.0.1')}:{port}")
        if hosts := given.get("canal.zkServers"):
            chroot = hosts.value.partition("/")[2].strip("/ ")
            draft.set("sink.zookeeper_path", f"{f'/{chroot}' if chroot else ''}/otter/canal", _origin(hosts))
            self._take("canal.register.ip", "sink.advertise", lambda address: f"{address}:{port}")
        if self._take("canal.user", "sink.user"):
            comment = "Canal keeps a hash of it: write the password itself, which clients give, into the secret's file."
            self._secret("canal.passwd", "sink.password", "sink-password", comment)


_OPERATIONS = ("insert", "update", "delete")


def draft_property(draft: Draft) -> Property:
    """Returns a property that names a file as a whole, if no property of it is at fault."""
    return Property("source", "", Path(draft.origin), 1)


def _origin(given: Property) -> str:
    return f"{given.file}: line {given.line}: {given.name}"


def _hosts(text: str, port: int) -> str:
    parts = [part.strip().partition("/")[0] for part in re.split("[,;]", text) if part.strip()]
    return ",".join(part if ":" in part else f"{part}:{port}" for part in parts)


def _proxies(text: str) -> str:
    return ",".join(f"{part.partition(':')[0]}:8081" for part in _hosts(text, 9876).split(","))


def _no_dots(topic: str) -> str:
    return topic.replace(".", "_")


def _topics(text: str) -> str:
    """Returns topics; those without patterns lose their dots, as in Canal."""
    rules = []
    for rule in re.split("[,;]", text):
        topic, colon, pattern = rule.partition(":")
        rules.append(f"{_no_dots(topic)}:{pattern}" if colon else rule)
    return ",".join(rules)
