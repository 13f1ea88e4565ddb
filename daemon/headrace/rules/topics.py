"""Topics by table, in the grammar of Canal's `canal.mq.dynamicTopic` and `canal.mq.dynamicTopicPartitionNum`.

The grammar comes from `MQMessageUtils` (messageTopics, matchTopics, matchDynamicTopic, parseDynamicTopicPartition).
Entries are separated by commas or semicolons; each is a pattern, or a topic, a colon and a pattern:

- a plain name (none of `*?+|(){}[]\\$^`) must be equal to `schema.table` or to the schema;
- a regex with `\\.` in it is for `schema.table`, one without it for the schema alone.

First the entries are tried in order on `schema.table`, then all again on the schema; without a match the table goes to
the default topic. Without a topic in the entry the topic is the matched name in lower case with `_` for each `.`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from headrace.errors import HeadraceError
from headrace.rules.patterns import Pattern, Rules, compile_part, is_plain, only_colon, split_patterns
from headrace.rules.templates import Template

PLACEHOLDERS = ("schema", "table")


@dataclass(frozen=True, slots=True)
class TopicNames:
    """The names that a sink accepts for a topic; `system` is its name for people."""

    system: str
    pattern: re.Pattern[str]
    said: str

    def fault(self, topic: str) -> str:
        """Returns why the name can't be a topic's, "" if it can."""
        if self.pattern.fullmatch(topic) and topic not in (".", ".."):
            return ""
        return f"{self.system} takes no topic {topic!r}: it should have {self.said}"


KAFKA = TopicNames(
    "Kafka",
    re.compile(r"[A-Za-z0-9._-]{1,249}"),
    'letters a-z, digits, ".", "_" and "-", at most 249, and not be "." or ".."',
)
"""org.apache.kafka.common.internals.Topic."""
ROCKETMQ = TopicNames(
    "RocketMQ", re.compile(r"[%|A-Za-z0-9_-]{1,127}"), 'letters a-z, digits, "_", "-", "%" and "|", at most 127'
)
"""org.apache.rocketmq.common.topic.TopicValidator."""
ANY_NAME = TopicNames("the sink", re.compile(r"[^\0]{1,1000}", re.DOTALL), "1 to 1000 characters")


class TopicNotAllowed(HeadraceError):
    """A rule makes a topic name from a table's name that the sink does not accept."""

    reason = "config"
    retriable = False


@dataclass(frozen=True, slots=True)
class _Entry:
    rule: str
    template: Template | None
    pattern: Pattern
    for_table: bool
    for_schema: bool


@dataclass(frozen=True, slots=True)
class TopicRules:
    """The entries of a dynamic topic."""

    _entries: tuple[_Entry, ...]
    _names: TopicNames = KAFKA
    _prefix: str = ""

    @classmethod
    def parse(
        cls, text: str, key: str = "route.dynamic_topic", names: TopicNames = KAFKA, *, prefix: str = ""
    ) -> TopicRules:
        """Reads the entries. `names` are those that the sink accepts; each topic begins with `prefix`. Raises
        ValueError with the rule's number and position."""
        parts = split_patterns(text, ",;")
        entries = tuple(_entry(part, at, f"rule {n}", key, names) for n, (at, part) in enumerate(parts, 1))
        return cls(entries, names, prefix)

    @property
    def rules(self) -> tuple[str, ...]:
        """Returns the text of each entry, in order."""
        return tuple(entry.rule for entry in self._entries)

    @property
    def topics(self) -> tuple[str, ...]:
        """Returns those that are named completely, in order."""
        templates = [entry.template for entry in self._entries if entry.template is not None]
        return tuple(self._prefix + template.render() for template in templates if not template.names)

    def choose(self, schema: str, table: str) -> tuple[str, str] | None:
        """Returns the topic of a table, and the text of the rule that names it; None: the default topic, as also
        without a schema or table. Not cached. Raises TopicNotAllowed and PatternTooSlow."""
        if not schema or not table:
            return None
        name = f"{schema}.{table}"
        for entry in self._entries:
            if entry.for_table and entry.pattern.fullmatch(name):
                return self._topic(entry, schema, table, name), entry.rule
        for entry in self._entries:
            if entry.for_schema and entry.pattern.fullmatch(schema):
                return self._topic(entry, schema, table, schema), entry.rule
        return None

    def _topic(self, entry: _Entry, schema: str, table: str, matched: str) -> str:
        if entry.template is None:
            topic = matched.lower().replace(".", "_")
        else:
            topic = entry.template.render(schema=schema, table=table)
        topic = self._prefix + topic
        if fault := self._names.fault(topic):
            raise TopicNotAllowed(
                f"the rule {entry.rule!r} for {schema}.{table}: {fault}",
                remedy=f"give the table a topic of its own in route.dynamic_topic, as in topic:{re.escape(matched)}, "
                "or leave the table out with filter.exclude",
            )
        return topic


def _entry(text: str, at: int, what: str, key: str, names: TopicNames) -> _Entry:
    where = f"{what}, from character {at + 1},"
    topic, pattern, pattern_at = _split(text, at, where)
    template = None
    if topic is not None:
        try:
            template = Template.parse(topic, PLACEHOLDERS)
        except ValueError as error:
            raise ValueError(f"the topic of {where} is invalid: {error}") from None
        probe = template.render(schema="s", table="t")
        if fault := names.fault(probe):
            raise ValueError(f"the topic of {where} is invalid: {fault}")
    plain = is_plain(pattern)
    for_table = plain or "\\." in pattern
    compiled = compile_part(pattern, pattern_at, what, key, plain=plain)
    return _Entry(text, template, compiled, for_table, plain or not for_table)


def _split(text: str, at: int, where: str) -> tuple[str | None, str, int]:
    """Returns the topic (None without one), the pattern, and the index of the pattern's first character."""
    colon = only_colon(text, at, where)
    if colon is None:
        return None, text, at
    topic, rest = text[:colon].strip(), text[colon + 1 :]
    if not topic:
        raise ValueError(f"{where} should have a topic before its colon, or no colon")
    if not rest.strip():
        raise ValueError(f"{where} should have a schema or table after its colon")
    return topic, rest.strip(), at + colon + 1 + len(rest) - len(rest.lstrip())


@dataclass(frozen=True, slots=True)
class TopicPartitions:
    """How many partitions a topic has, and the text of the rule that says so."""

    partitions: int
    rule: str


def parse_partitions(text: str, key: str = "route.dynamic_topic_partitions") -> Rules[TopicPartitions]:
    """Returns entries `topic:number`; the topic is a name or a regex. Raises ValueError with the rule's number and
    position."""
    entries = []
    for number, (at, part) in enumerate(split_patterns(text, ",;"), 1):
        topic, colon, count = part.rpartition(":")
        topic, count = topic.strip(), count.strip()
        if not colon or not topic or not re.fullmatch(r"[0-9]{1,6}", count) or int(count) == 0:
            raise ValueError(
                f"rule {number}, from character {at + 1}, should be a topic and its number of partitions, as in "
                "orders:8"
            )
        pattern = compile_part(topic, at, f"rule {number}", key, plain=is_plain(topic))
        entries.append((pattern, TopicPartitions(int(count), part)))
    return Rules(tuple(entries))
