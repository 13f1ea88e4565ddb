"""The sections [filter] and [route]: what is published, with which columns, and where in the sink it goes."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property, partial
from typing import Annotated, Any, Literal, Self
from unicodedata import combining, normalize

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, model_validator

from headrace.rules.columns import ColumnRule, parse_columns
from headrace.rules.keys import parse_keys
from headrace.rules.masks import Mask, MaskKind
from headrace.rules.patterns import Pattern, Rules, compile_filter
from headrace.rules.predicate_parser import parse_condition
from headrace.rules.topics import ANY_NAME, TopicRules, parse_partitions
from headrace.settings.values import readable
from headrace_common.section import Int, Section, Topic

MAX_PARTITIONS = 10_000


def _tables(value: str) -> str:
    if not compile_filter(value):
        raise ValueError("should name at least one table")
    return value


Tables = Annotated[str, AfterValidator(_tables)]


class WhereSettings(Section):
    """[[filter.where]]: which rows of some tables are published."""

    tables: Tables = Field(description="The tables, as in include.")
    rows: Annotated[str, readable(parse_condition)] = Field(
        description='A condition on a row\'s columns, such as `city = "北京" and price > 100`. An update that brings a '
        "row into it is an INSERT, one that takes a row out of it a DELETE."
    )


def _split_columns(value: Any) -> Any:
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
        raise ValueError("should be the names of columns, with commas between, or a list of them")
    names = tuple(part.strip() for part in parts if part.strip())
    if not names:
        raise ValueError("should name at least one column")
    return names


class MaskSettings(Section):
    """[[filter.mask]]: columns whose values are not published as they are."""

    tables: Tables = Field(description="The tables, as in include.")
    columns: Annotated[tuple[str, ...], BeforeValidator(_split_columns)] = Field(
        description="The columns that are masked in those of these tables that have them."
    )
    mask: MaskKind = Field(
        description="fixed: `value` in their place; hash: HMAC-SHA-256 under `salt`, in hexadecimal digits; truncate: "
        "the first `length` characters, of binary strings bytes; null: NULL."
    )
    value: str = Field(default="", description="fixed: what is published instead.")
    salt: SecretStr = Field(default=SecretStr(""), description='hash: the key; best as "${NAME}" or "${file:/path}".')
    length: Int = Field(default=0, ge=0, le=1 << 24, description="truncate: how much is left.")

    @model_validator(mode="after")
    def _check_mask(self) -> Self:
        needs = {"fixed": "value", "hash": "salt", "truncate": "length"}
        needed = needs.get(self.mask, "")
        strange = sorted(self.model_fields_set & set(needs.values()) - {needed})
        if strange:
            raise ValueError(f'{", ".join(strange)} has no meaning with mask = "{self.mask}"')
        if needed and needed not in self.model_fields_set:
            raise ValueError(f'mask = "{self.mask}" needs {needed}')
        if self.mask == "hash" and not self.salt.get_secret_value():
            raise ValueError("salt should not be empty: without it a hash of few possible values hides nothing")
        return self

    @property
    def rule(self) -> Mask:
        """Returns the rule."""
        return Mask(self.mask, value=self.value, salt=self.salt.get_secret_value(), length=self.length)


class FilterSettings(Section):
    """[filter]: what is published. Tables: comma-separated regexes that match the whole of schema.table."""

    include: Annotated[str, readable(compile_filter)] = Field(
        default=r".*\..*", description="Tables that are published."
    )
    exclude: Annotated[str, readable(compile_filter)] = Field(
        default="", description="Tables that are not, even when include matches."
    )
    ddl: bool = Field(
        default=True,
        description="Schema changes of these tables, and of databases that hold some, as messages (Canal: "
        "canal.instance.filter.query.ddl, the other way round).",
    )
    dcl: bool = Field(
        default=False,
        description="Statements about accounts and their rights, but for those that carry a password, which are never "
        "published (Canal: canal.instance.filter.query.dcl, the other way round).",
    )
    dml_queries: bool = Field(
        default=False,
        description="The texts of the statements that changed the rows, where the source writes them: "
        "binlog_rows_query_log_events, in MariaDB binlog_annotate_row_events (Canal: canal.instance.filter.query.dml, "
        "the other way round).",
    )
    rows: bool = Field(
        default=True, description="Changes of rows (Canal: canal.instance.filter.rows, the other way round)."
    )
    operations: Annotated[tuple[Literal["insert", "update", "delete"], ...], Field(min_length=1)] = Field(
        default=("insert", "update", "delete"),
        description="Which changes of rows are published (Canal: canal.instance.filter.dml.insert, .update, .delete, "
        "the other way round; Debezium: skipped.operations). An update that [[filter.where]] makes an insert or "
        "a delete counts as that. Rows of a snapshot always are.",
    )
    unchanged_updates: Literal["publish", "skip"] = Field(
        default="publish",
        description="skip: updates that change none of the published columns are left out (Debezium: "
        "skip.messages.without.change). A column that a row image lacks counts as changed.",
    )
    transactions: bool = Field(
        default=False,
        description="A message at the begin and one at the end of each transaction that changes these tables (Canal: "
        "canal.instance.filter.transaction.entry, the other way round).",
    )
    table_errors: Literal["halt", "skip"] = Field(
        default="halt",
        description="When rows do not fit their table, or its schema is not known: halt stops the destination, skip "
        "leaves these rows out with a log line (Canal: canal.instance.filter.table.error).",
    )
    include_columns: Annotated[str, readable(parse_columns)] = Field(
        default="",
        description="The only columns that are published of some tables: `shop\\\\.items:id/name,shop\\\\.users:id`. "
        "Columns of the primary key always are (Canal: canal.instance.filter.field).",
    )
    exclude_columns: Annotated[str, readable(parse_columns)] = Field(
        default="",
        description="Columns of some tables that are not published, in the same way; never those of the primary key "
        "(Canal: canal.instance.filter.black.field).",
    )
    where: tuple[WhereSettings, ...] = Field(
        default=(), description="Which rows are published, [[filter.where]]; the first that names the table counts."
    )
    mask: tuple[MaskSettings, ...] = Field(
        default=(), description="What is hidden, [[filter.mask]]; of two for one column the first counts."
    )

    @property
    def salts(self) -> bytes:
        """Returns the salts of all masks: a secret of the destination, if it has any."""
        return "".join(one.salt.get_secret_value() for one in self.mask).encode()

    @property
    def left_out(self) -> frozenset[str]:
        """Returns the operations that are not published."""
        return frozenset(("insert", "update", "delete")) - set(self.operations)

    @cached_property
    def _columns(self) -> tuple[Rules[ColumnRule], Rules[ColumnRule]]:
        return parse_columns(self.include_columns), parse_columns(self.exclude_columns)

    def publishes(self, schema: str, table: str, column: str) -> bool:
        """Returns whether the column rules publish a column that is not part of the primary key."""
        include, exclude = (rules.first(f"{schema}.{table}") for rules in self._columns)
        name = column.lower()
        return (include is None or name in include.columns) and (exclude is None or name not in exclude.columns)

    def hides(self, column: str, table: str = "") -> bool:
        """Returns whether a rule may hide a column of this name: in the table `schema.table`, or without one in any.
        Names are compared as loosely as on any server. Raises PatternTooSlow."""
        masks = [one.columns for one in self.mask if not table or _names(compile_filter(one.tables), table)]
        excluded, included = _rules(self.exclude_columns, table), _rules(self.include_columns, table)
        hidden = {_loose(name) for names in (*masks, *excluded) for name in names}
        return _loose(column) in hidden or any(column.lower() not in names for names in included)


def _rules(text: str, table: str) -> list[frozenset[str]]:
    """Returns the columns of each rule, or of the one for the table."""
    rules = parse_columns(text)
    if not table:
        return [rule.columns for _, rule in rules.entries]
    rule = rules.first(table)
    return [rule.columns] if rule is not None else []


def _names(tables: Iterable[Pattern], table: str) -> bool:
    return any(pattern.fullmatch(table) for pattern in tables)


def _loose(name: str) -> str:
    """Returns one text for names that a server may treat as equal: it compares letter by letter, by its own tables."""
    return "".join(one for one in normalize("NFKD", name.casefold()) if not combining(one))


class RouteSettings(Section):
    """[route]: where messages go within the sink."""

    topic: Topic = Field(
        default="", description="The topic; required for Kafka, else by default the destination's name."
    )
    topic_prefix: Topic = Field(
        default="",
        description="Comes before the name of every topic, also of those in [message.debezium]: for topics of one's "
        "own while another system still publishes (`headrace shadow`). Rules and patterns are for names without it.",
    )
    # The names that the sink accepts are checked with the sink.
    dynamic_topic: Annotated[str, readable(partial(TopicRules.parse, names=ANY_NAME))] = Field(
        default="",
        description="Topics by table, in Canal's grammar (canal.mq.dynamicTopic): `topic:schema\\\\.table`, a bare "
        "`schema` or `schema\\\\.table` regex (the topic is then the matched name, with `_` for the dot), "
        "comma-separated. A rule for the table counts before one for the schema, and that before `topic`. "
        "`{schema}` and `{table}` may stand in a topic's name.",
    )
    partition: Int = Field(
        default=0, ge=0, le=1_000_000, description="The partition of all messages that partition_hash says nothing of."
    )
    partitions: Int = Field(
        default=1,
        ge=1,
        le=MAX_PARTITIONS,
        description="Over how many partitions partition_hash spreads (canal.mq.partitionsNum).",
    )
    dynamic_topic_partitions: Annotated[str, readable(parse_partitions)] = Field(
        default="",
        description="The same for single topics: `orders:8,users:4` (canal.mq.dynamicTopicPartitionNum).",
    )
    partition_hash: Annotated[str, readable(parse_keys)] = Field(
        default="",
        description="What decides on the partition, in Canal's grammar (canal.mq.partitionHash): "
        "`schema\\\\.table:column^column`, `schema\\\\.table:$pk$` for the primary key, or a bare `schema\\\\.table` "
        'for the table as a whole, comma-separated; "": `partition` takes all.',
    )
    hash: Literal["murmur2", "canal"] = Field(
        default="murmur2",
        description="murmur2: the partition that Kafka's own partitioner gives to the key's text; canal: Canal's hash, "
        "for those who have to keep their partitions.",
    )
    canal_hash_database: bool = Field(
        default=True,
        description='With hash = "canal": whether the database\'s name counts too (canal.mq.database.hash).',
    )
    ddl_partition: Literal["first", "all"] = Field(
        default="first",
        description="Where the schema changes of a topic with partition_hash go: into `partition`, or a copy into each "
        "partition. Either waits until all rows before it are confirmed, and the rows after it wait for it.",
    )
