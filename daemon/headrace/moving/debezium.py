"""Makes a configuration from a connector of Debezium for MySQL or MariaDB, in the form of Kafka Connect."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from headrace.moving.counterparts import choice, flag, notes_of, whole
from headrace.moving.cursors import stored_offset
from headrace.moving.debezium_table import CONNECTORS, PROPERTIES, SNAPSHOTS, TLS
from headrace.moving.draft import Draft, Entry, Reference
from headrace.moving.foreign import ForeignCursor
from headrace.moving.properties import Property
from headrace.ports.replay import Published
from headrace.settings.load import DESTINATION_NAME

_JSON_CONVERTER = "org.apache.kafka.connect.json.JsonConverter"
_COLUMN = re.compile(r"(.+?)\\?\.([A-Za-z0-9_$]+)")
_FROM_ENVIRONMENT = re.compile(r"\$\{env:([A-Za-z_][A-Za-z0-9_]*)\}")
_TRUNCATE = re.compile(r"column\.truncate\.to\.(\d+)\.chars")
_FIXED = re.compile(r"column\.mask\.with\.(\d+)\.chars")
_HASH = re.compile(r"column\.mask\.hash\.(?:v2\.)?[^.]+\.with\.salt\.(.+)")
_BUILTIN = r"(mysql|sys|information_schema|performance_schema)\..*"
_PRECISIONS = ("adaptive_time_microseconds", "adaptive", "connect")


class DebeziumImport:
    """Reads the JSON of one connector. `bootstrap` names the brokers, which the JSON does not; problems are added to
    `problems`, each with file and line."""

    def __init__(self, file: Path, bootstrap: str, problems: list[str]) -> None:
        self._file, self._problems = file, problems
        self._lines = list[str]()
        self._given = self._read()
        self._taken = set[str]()
        self._connector = self._text("name")
        self._prefix = self._text("topic.prefix")
        self.name = self._connector.lower()
        """The destination's name."""
        self.bootstrap = bootstrap or self._text("schema.history.internal.kafka.bootstrap.servers")
        self._draft = Draft(self.name, str(file))

    def drafts(self, *, carried: bool) -> list[Draft]:
        """Returns headrace.toml and the destination. `carried`: an offset is carried over, so existing rows are not
        read again."""
        if not self._given:
            return []
        self._names()
        draft = self._draft
        self._source(carried)
        draft.set(
            "heartbeat.enabled",
            False,
            comment="With the rights INSERT, UPDATE and CREATE on headrace.* turn it on.",
        )
        for name in self._given:
            row = PROPERTIES.get(name)
            if row is not None and row.key:
                self._take(name, row.key, row.read)
        self._filter()
        self._message()
        self._route()
        draft.set("sink.type", "kafka")
        draft.set("sink.bootstrap_servers", self.bootstrap)
        draft.notes += notes_of(PROPERTIES, self._given.values(), self._taken)
        return [Draft("", str(self._file)), draft]

    def cursors(self, records: Iterable[Published], topic: str) -> dict[str, ForeignCursor]:
        """Returns the connector's offset from the records of Kafka Connect's topic, by the destination's name; without
        one nothing, and adds a problem."""
        try:
            return {self.name: stored_offset(records, self._connector, self._prefix)}
        except ValueError as error:
            self._problems.append(f"{topic}: {error}")
            return {}

    # -- the file -------------------------------------------------------------------------------------------------

    def _read(self) -> dict[str, Property]:
        try:
            text = self._file.read_text("utf-8")
        except OSError as error:
            self._problems.append(f"{self._file}: the file can't be read: {error.strerror}")
            return {}
        except UnicodeDecodeError:
            self._problems.append(f"{self._file}: line 1: is no UTF-8 text")
            return {}
        self._lines = text.splitlines()
        try:
            raw = json.loads(text)
        except json.JSONDecodeError as error:
            self._problems.append(f"{self._file}: line {error.lineno}: is no JSON: {error.msg}")
            return {}
        config = raw.get("config", raw) if isinstance(raw, dict) else None
        if not isinstance(config, dict):
            self._problems.append(f"{self._file}: line 1: should be an object with a connector's name and config")
            return {}
        found = {"name": raw["name"], **config} if "name" in raw else config
        given = dict[str, Property]()
        for name, value in found.items():
            if isinstance(value, dict | list):
                self._problems.append(f"{self._file}: line {self._line(name)}: {name}: should be a text or a number")
            elif value is not None:
                shown = str(value).lower() if isinstance(value, bool) else str(value)
                given[name] = Property(name, shown.strip(), self._file, self._line(name))
        return given

    def _line(self, name: str) -> int:
        quoted = json.dumps(name)
        return next((number for number, line in enumerate(self._lines, 1) if quoted in line), 1)

    def _get(self, name: str) -> Property | None:
        self._taken.add(name)
        given = self._given.get(name)
        if given is None or not given.value:
            return None
        if "${" in given.value and name not in ("database.password", "database.user"):
            self._problems.append(given.problem("refers to a provider of Kafka Connect: write the value out"))
            return None
        return given

    def _text(self, name: str, default: str = "") -> str:
        given = self._get(name)
        return given.value if given is not None else default

    def _take(self, name: str, key: str, read: Any = str, comment: str = "") -> bool:
        given = self._get(name)
        if given is None:
            return False
        try:
            self._draft.set(key, self._referred(given, read), _origin(given), comment)
        except ValueError as error:
            self._problems.append(given.problem(str(error)))
        return True

    def _referred(self, given: Property, read: Any = str) -> Any:
        """Returns the value, with ${env:NAME} as our own reference."""
        if found := _FROM_ENVIRONMENT.fullmatch(given.value):
            self._draft.variables.add(found[1])
            return Reference(f"${{{found[1]}}}")
        return read(given.value)

    # -- sections -------------------------------------------------------------------------------------------------

    def _names(self) -> None:
        kind = self._get("connector.class")
        if kind is None:
            self._missing("connector.class")
        elif kind.value not in CONNECTORS:
            self._problems.append(kind.problem(f"should be one of {', '.join(CONNECTORS)}"))
        for name in ("name", "topic.prefix", "database.hostname", "database.user"):
            if name not in self._given:
                self._missing(name)
        if self._connector and not DESTINATION_NAME.fullmatch(self.name):
            self._problems.append(
                self._given["name"].problem(
                    "a destination's name should be a letter or a digit and then those, dots, dashes and underscores"
                )
            )
        if not self.bootstrap:
            self._problems.append(f"{self._file}: names no brokers of Kafka: give them with --bootstrap")

    def _missing(self, name: str) -> None:
        self._problems.append(f"{self._file}: {name}: is missing")

    def _source(self, carried: bool) -> None:
        draft = self._draft
        for name in ("database.hostname", "database.port", "database.user"):
            self._take(name, PROPERTIES[name].key, PROPERTIES[name].read)
        password = self._get("database.password")
        value: Any = "" if password is None else self._referred(password)
        comment = ""
        if isinstance(value, str) and "${" in value:
            value, comment = draft.secret(f"{self.name}-source-password", ""), "Write it into the secret's file."
        elif isinstance(value, str) and value:
            value = draft.secret(f"{self.name}-source-password", value)
        draft.set("source.password", value, comment=comment)
        if not self._take("database.ssl.mode", "source.tls", choice(TLS)):
            draft.set("source.tls", "preferred")
        mode = self._text("snapshot.mode", "initial").lower()
        if carried and mode != "when_needed":
            draft.set("source.snapshot", "never", comment="The connector has read the rows that tables had.")
        elif mode in SNAPSHOTS:
            self._draft.set("source.snapshot", SNAPSHOTS[mode])
        else:
            self._problems.append(
                self._given["snapshot.mode"].problem(f"has no counterpart; there are {', '.join(SNAPSHOTS)}")
            )
        draft.set("source.start", "latest")

    def _filter(self) -> None:
        draft = self._draft
        included, excluded = list[str](), list[str]()
        tables, databases = self._get("table.include.list"), self._get("database.include.list")
        if tables is not None:
            included = _split(tables.value)
        if databases is not None and tables is None:
            included = [rf"(?:{one})\..*" for one in _split(databases.value)]
        elif databases is not None:
            excluded.append(rf"(?!(?:{'|'.join(_split(databases.value))})\.).*")
        without, others = self._get("table.exclude.list"), self._get("database.exclude.list")
        if without is not None:
            excluded += _split(without.value)
        if others is not None:
            excluded += [rf"(?:{one})\..*" for one in _split(others.value)]
        if self._flag("table.ignore.builtin", True):
            excluded.append(_BUILTIN)
        origin = next((_origin(one) for one in (tables, databases) if one is not None), "")
        if included:
            draft.set("filter.include", ",".join(included), origin)
        if excluded:
            origin = next((_origin(one) for one in (without, others, databases) if one is not None), "")
            draft.set("filter.exclude", ",".join(excluded), origin)
        skipped = {one.strip() for one in self._text("skipped.operations", "t").split(",")}
        operations = [name for letter, name in _OPERATIONS.items() if letter not in skipped]
        if not operations:
            self._problems.append(self._given["skipped.operations"].problem("leaves out every change of rows"))
        elif len(operations) < len(_OPERATIONS):
            draft.set("filter.operations", operations)
        self._columns("column.include.list", "filter.include_columns", "Tables without a rule are published whole.")
        self._columns("column.exclude.list", "filter.exclude_columns")
        for number, given in enumerate(list(self._given.values())):
            self._mask(given, number)

    def _columns(self, name: str, key: str, comment: str = "") -> None:
        given = self._get(name)
        if given is not None and (tables := self._by_table(given)):
            rules = [f"{table}:{'/'.join(columns)}" for table, columns in tables.items()]
            self._draft.set(key, ",".join(rules), _origin(given), comment)

    def _by_table(self, given: Property, name: str = "") -> dict[str, list[str]]:
        """Returns columns by the pattern of their table. Columns that can't be written so must not be published
        unhidden: adds a problem."""
        found = dict[str, list[str]]()
        for entry in _split(given.value):
            if match := _COLUMN.fullmatch(entry):
                found.setdefault(match[1], []).append(match[2])
            else:
                self._problems.append(
                    f"{given.file}: line {given.line}: {name or given.name}: {entry} should be a table and a column "
                    "whose name is no pattern, as in shop\\.users\\.phone: name the columns one by one"
                )
        return found

    def _mask(self, given: Property, number: int) -> None:
        """Converts a property whose name says how columns are hidden. The name may contain a salt, and is not shown
        then."""
        shown, values = given.name, dict[str, Any]()
        if found := _TRUNCATE.fullmatch(given.name):
            values = {"mask": "truncate", "length": int(found[1])}
        elif found := _FIXED.fullmatch(given.name):
            values = {"mask": "fixed", "value": "*" * min(int(found[1]), 1000)}
        elif found := _HASH.fullmatch(given.name):
            shown = "column.mask.hash.*"
            values = {"mask": "hash", "salt": self._draft.secret(f"{self.name}-salt-{number}", found[1])}
        elif given.name.startswith(("column.mask.", "column.truncate.")):
            self._taken.add(given.name)
            shown = ".".join(given.name.split(".")[:2])
            self._problems.append(
                f"{given.file}: line {given.line}: {shown}.*: is no way to hide a column that is known"
            )
            return
        else:
            return
        self._taken.add(given.name)
        for table, columns in self._by_table(given, shown).items():
            origin = f"{given.file}: line {given.line}: {shown}"
            whole_entry = {"tables": table, "columns": ", ".join(columns), **values}
            self._draft.tables.append(("filter.mask", {key: Entry(one, origin) for key, one in whole_entry.items()}))

    def _message(self) -> None:
        draft, delimiter = self._draft, self._text("topic.delimiter", ".")
        draft.set("message.format", "debezium")
        draft.set("message.debezium.name", self._prefix)
        precision = self._text("time.precision.mode", _PRECISIONS[0]).lower()
        if precision not in _PRECISIONS:
            self._problems.append(
                self._given["time.precision.mode"].problem(f"has no counterpart; there are {', '.join(_PRECISIONS)}")
            )
        draft.set("message.debezium.time_precision", precision)
        draft.set("message.debezium.bigint_unsigned", self._text("bigint.unsigned.handling.mode", "long").lower())
        if self._flag("include.schema.changes", True):
            draft.set("message.debezium.schema_topic", self._prefix)
        transactions = self._text("topic.transaction", "transaction")
        if self._flag("provide.transaction.metadata", False):
            draft.set("message.debezium.transaction_topic", f"{self._prefix}{delimiter}{transactions}")
        for name in ("key.converter", "value.converter"):
            converter = self._get(name)
            if converter is not None and converter.value != _JSON_CONVERTER:
                self._problems.append(converter.problem("messages are JSON alone, and consumers could not read them"))

    def _flag(self, name: str, default: bool) -> bool:
        given = self._get(name)
        try:
            return default if given is None else flag(given.value)
        except ValueError as error:
            assert given is not None
            self._problems.append(given.problem(str(error)))
            return default

    def _route(self) -> None:
        draft, delimiter = self._draft, self._text("topic.delimiter", ".")
        draft.set("route.topic", self._prefix)
        topic = delimiter.join((self._prefix, "{schema}", "{table}"))
        given = self._given.get("topic.prefix")
        draft.set("route.dynamic_topic", rf"{topic}:.*\..*", _origin(given) if given else "")
        partitions = self._get("topic.creation.default.partitions")
        try:
            count = whole(partitions.value) if partitions is not None else 1
        except ValueError as error:
            assert partitions is not None
            self._problems.append(partitions.problem(str(error)))
            return
        if count > 1:
            draft.set("route.partitions", count)
            draft.set("route.partition_hash", r".*\..*:$pk$")
        elif partitions is None:
            draft.notes.append(
                "the number of partitions is Kafka's: where topics have several, set [route] partitions to it, and "
                r"partition_hash = '.*\..*:$pk$' for the partitions that Kafka Connect has chosen"
            )


_OPERATIONS = {"c": "insert", "u": "update", "d": "delete"}


def _origin(given: Property) -> str:
    return f"{given.file}: line {given.line}: {given.name}"


def _split(text: str) -> list[str]:
    return [part.strip().replace("\\,", ",") for part in re.split(r"(?<!\\),", text) if part.strip()]
