"""A configuration for the tables of a topic: an index each, tables in shards together, and questions as comments."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import SplitResult, unquote, urlsplit

from headrace_common.printable import printable
from headrace_documents.documents import index_name
from headrace_documents.errors import MessageError
from headrace_documents.indexes.types import Property, TypeRules, field_type
from headrace_spark.check.sample import Sample, Table

_SHARD = re.compile(r"(.*?[^\d_.-])([_.-]?)(\d+)")
_SECRET = re.compile(r"password|jaas|secret|token|\.key$|passphrase|credential", re.IGNORECASE)
_REFERENCE = re.compile(r"\$\{[^}]*\}")
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_DELETED = re.compile(r"(is_?)?(deleted|removed)(_flag)?|del_flag", re.IGNORECASE)
_RULES = TypeRules()


@dataclass(frozen=True)
class Target:
    """What the configuration must have besides the tables. `options` are those of Kafka's clients."""

    bootstrap_servers: str
    topics: Sequence[str]
    options: Mapping[str, str]
    elasticsearch: str
    ivy: str


@dataclass(frozen=True)
class Family:
    """Tables that get one index: one table, or those that are shards of one."""

    patterns: tuple[str, ...]
    """For database.table."""
    name: str
    """The index's name."""
    tables: tuple[Table, ...]


# -- tables -----------------------------------------------------------------------------------------------------------


def families(tables: Iterable[Table]) -> list[Family]:
    """Returns the tables by index. Shards are tables whose names differ in a number at the end of the table's or the
    database's, and which have the same columns and key."""
    groups: dict[tuple[object, ...], dict[object, list[Table]]] = {}
    for table in tables:
        stem = _stem(table.database), _stem(table.name)
        shape = tuple(table.types.items()), table.keys
        groups.setdefault(stem, {}).setdefault(shape, []).append(table)
    made: list[Family] = []
    taken: set[str] = set()
    for shapes in groups.values():
        for members in shapes.values():
            members.sort(key=lambda table: (table.database, table.name))
            pattern, wanted = _pattern(members)
            exact = tuple(re.escape(table.full) for table in members)
            # Tables of another structure would match the common pattern too.
            patterns = (pattern,) if len(shapes) == 1 else exact
            made.append(Family(patterns, _free_name(wanted, taken), tuple(members)))
    return sorted(made, key=lambda family: family.name)


def _stem(name: str) -> tuple[str, str] | str:
    found = _SHARD.fullmatch(name)
    return (found[1], found[2]) if found else name


def _pattern(members: Sequence[Table]) -> tuple[str, str]:
    """Returns the regular expression of the members, and a name for them."""
    parts, words = [], []
    for names in ({table.database for table in members}, {table.name for table in members}):
        stem = _stem(next(iter(names)))
        if len(names) == 1 or isinstance(stem, str):
            name = next(iter(names))
            parts.append(re.escape(name))
            words.append(name)
        else:
            parts.append(re.escape("".join(stem)) + r"\d+")
            words.append(stem[0])
    return r"\.".join(parts), ".".join(words)


def _free_name(wanted: str, taken: set[str]) -> str:
    """Returns a name that an index can have, and that no other one here has."""
    try:
        name = index_name(wanted, "", "")
    except MessageError:
        cleaned = re.sub(r"[^a-z0-9._-]+", "-", wanted.lower()).strip("-_+.")
        name = index_name(cleaned[:200] or "table", "", "")
    name = name.replace("{", "-").replace("}", "-").lstrip("-_+") or "table"
    number, free = 1, name
    while free in taken:
        number += 1
        free = f"{name}-{number}"
    taken.add(free)
    return free


# -- text -------------------------------------------------------------------------------------------------------------


def propose(target: Target, sample: Sample, waiting: int) -> tuple[str, list[str]]:
    """Returns the text of the configuration, and the names of the variables for its secrets. `waiting` is how many
    messages the topics have."""
    variables: list[str] = []
    lines = [
        "# The Spark consumer: headrace's messages from Kafka into Elasticsearch. Written by headrace-spark init.",
        f"# Of some {waiting:,} messages in {_comment(', '.join(target.topics))} it has read {sample.messages:,}.",
        *(f"#   {count:,} are {name}" for name, count in sample.formats.most_common()),
        *(
            f"#   {count:,} are not understood and become dead letters: {_comment(why)[:160]}"
            for why, (count, _) in list(sample.problems.items())[:10]
        ),
        "# All keys: docs/configuration.md. ${VAR} is filled in from the environment, ${file:/path} from a file.",
        "",
        "[kafka]",
        f"bootstrap_servers = {toml(target.bootstrap_servers)}",
        f"topics = [{', '.join(map(toml, target.topics))}]",
        '# The very first start begins here: "earliest" or "latest".',
        'starting_offsets = "earliest"',
        f"dead_letter_topic = {toml(f'{target.topics[0][:230]}.dead-letters')}",
        "",
        *_options(target.options, variables),
        "[elasticsearch]",
        *_elasticsearch(target.elasticsearch, variables),
        "",
        "[spark]",
        "# Two cores, four attempts a task.",
        'master = "local[2,4]"',
        'checkpoint = "var/spark/checkpoint"',
        'driver_memory = "1g"',
        f"ivy = {toml(target.ivy)}",
        'scratch = ".cache/spark"',
    ]
    found = families(sample.tables.values())
    if not found:
        lines += [
            "",
            "# No rows were seen. Without any [[index]] each table has an index of its own, {database}.{table}.",
        ]
    for family in found:
        lines += ["", *_index(family)]
    if sample.further:
        lines += [
            "",
            f"# {len(sample.further)} or more further tables were seen, such as {_comment(min(sample.further))}.",
        ]
    return "\n".join(lines) + "\n", variables


def _options(options: Mapping[str, str], variables: list[str]) -> list[str]:
    if not options:
        return []
    lines = ["[kafka.options]"]
    for name, value in options.items():
        if _SECRET.search(name) and not _REFERENCE.fullmatch(value):
            variables.append("KAFKA_" + re.sub(r"\W+", "_", name).upper())
            lines.append(f'{toml_key(name)} = "${{{variables[-1]}}}"')
        else:
            lines.append(f"{toml_key(name)} = {toml(value, references=True)}")
    return [*lines, ""]


def _elasticsearch(text: str, variables: list[str]) -> list[str]:
    url = urlsplit(text)
    lines = [f"hosts = [{toml(without_account(url))}]"]
    if url.username:
        variables.append("ELASTICSEARCH_PASSWORD")
        lines += [f"user = {toml(unquote(url.username))}", 'password = "${ELASTICSEARCH_PASSWORD}"']
    return lines


def without_account(url: SplitResult) -> str:
    """Returns the URL without user and password, and without a path."""
    host = f"[{url.hostname}]" if ":" in (url.hostname or "") else url.hostname or ""
    return f"{url.scheme}://{host}:{url.port or (443 if url.scheme == 'https' else 9200)}"


def _index(family: Family) -> list[str]:
    first = family.tables[0]
    names = ", ".join(table.full for table in family.tables[:8])
    more = f" and {len(family.tables) - 8} more" if len(family.tables) > 8 else ""
    lines = [f"# {_comment(names)}{more}: {_volume(family.tables)}."]
    if partial := sum(table.partial for table in family.tables):
        lines.append(
            f"# {partial:,} rows lack columns and become dead letters: the source needs binlog_row_image=FULL."
        )
    if not first.keys:
        lines += [
            "# There is no primary key. Name columns that are unique together in `id`, and take the signs away:",
            "# [[index]]",
            f"# name = {toml(family.name)}",
            f"# tables = [{', '.join(map(toml, family.patterns))}]",
            f"# id = {toml('{' + next(iter(first.types), 'column') + '}')}",
        ]
        return lines
    lines += ["[[index]]", f"name = {toml(family.name)}", f"tables = [{', '.join(map(toml, family.patterns))}]"]
    if len(family.tables) == 1 and isinstance(stem := _stem(first.name), tuple):
        likely = re.escape(first.database) + r"\." + re.escape("".join(stem)) + r"\d+"
        lines.append(f"# Are there more tables of this kind? tables = [{toml(likely)}]")
    lines += _identity(family)
    lines += _fields(first)
    return lines


def _identity(family: Family) -> list[str]:
    keys = family.tables[0].keys
    key = ":".join(f"{{{name}}}" for name in keys)
    if len(family.tables) == 1:
        return [f"# Document id: the primary key, {_comment(', '.join(keys))}."]
    shard = "{table}" if len({table.name for table in family.tables}) > 1 else "{database}"
    if len({table.full.partition(".")[0] for table in family.tables}) > 1 and shard == "{table}":
        shard = "{database}.{table}"
    if any(re.search(r"[{}]", name) or name in ("database", "table") for name in keys):
        return ["# Is a primary key unique in all of these tables? If not, they need indexes of their own."]
    return [
        "# Is a primary key unique in all of these tables? Then take this away: it is the primary key by default.",
        f"id = {toml(f'{shard}:{key}')}",
        "# Tells after a TRUNCATE whose documents go.",
        'table_field = "source_table"',
    ]


def _volume(tables: Sequence[Table]) -> str:
    words = {"INSERT": "inserted", "UPDATE": "updated", "DELETE": "deleted"}
    counts = {kind: sum(table.changes[kind] for table in tables) for kind in words}
    return "rows seen: " + ", ".join(f"{count:,} {words[kind]}" for kind, count in counts.items() if count)


def _fields(table: Table) -> list[str]:
    types = table.types
    width = min(40, max((len(_comment(name)) for name in types), default=1))
    lines = ["# Fields, MySQL's types, and the mappings that they get:"]
    for name, kind in types.items():
        shown = describe(field_type(kind, _RULES).mapping)
        lines.append(f"#   {_comment(name):<{width}}  {_comment(kind) or 'type unknown'} -> {shown}")
    bases = {name: re.split(r"[( ]", kind.lower(), maxsplit=1)[0] for name, kind in types.items()}

    def named(*wanted: str) -> list[str]:
        return [name for name, base in bases.items() if base in wanted]

    if columns := named("decimal", "numeric"):
        lines += [
            f"# DECIMAL ({_comments(columns)}): keyword keeps all digits and sorts as text;",
            "# scaled_float and double are numbers, which may lose digits.",
            'decimals = "keyword"',
        ]
    if columns := [name for name, kind in types.items() if re.match(r"(tinyint\(1\)|bit\(1\)|bool)", kind.lower())]:
        lines += [f"# Are these true and false: {_comments(columns)}?", "booleans = false"]
    if columns := named("datetime"):
        lines += [
            f"# In which zone is DATETIME written ({_comments(columns)})? An offset such as +08:00, or a name.",
            'zone = "+00:00"',
        ]
    if columns := [name for name in named(*_TEXTS) if name in table.ideographs]:
        lines += [
            f"# Chinese or Japanese texts ({_comments(columns)}): without an analyzer for them",
            "# each character is a word.",
            '# analyzer = "smartcn"',
        ]
    for column in named("json"):
        lines += [
            f"# Is {_comment(column)} to be searched by its parts?",
            f'# fields.{toml_key(column)} = {{ convert = "json", type = "object" }}',
        ]
    for column in named("point"):
        lines += [
            f"# Is {_comment(column)} a place on a map?",
            f'# fields.{toml_key(column)} = {{ convert = "geo_point" }}',
        ]
    for column in (name for name in types if _DELETED.fullmatch(name)):
        lines += [
            f"# Does {_comment(column)} say that a row counts as deleted?",
            f'# soft_delete = {{ column = {toml(column)}, values = ["1"] }}',
        ]
    return lines


_TEXTS = ("char", "varchar", "nchar", "nvarchar", "tinytext", "text", "mediumtext", "longtext")


def describe(mapping: Property | None) -> str:
    """Returns a mapping in words."""
    if mapping is None:
        return "what Elasticsearch guesses of the first value"
    more = ", and a field keyword for sorting" if "fields" in mapping else ""
    return f"{mapping['type']}{more}"


def _comments(names: Iterable[str]) -> str:
    return _comment(", ".join(names))


def _comment(text: str) -> str:
    return printable(text)


def toml_key(name: str) -> str:
    """Returns a name as a key."""
    return name if _BARE.fullmatch(name) else toml(name, references=True)


def toml(text: str, *, references: bool = False) -> str:
    """Returns a text as a TOML string. A dollar and a brace are literal, unless the text has `references`."""
    if not references:
        text = text.replace("${", "$${")
    if "'" not in text and "\\" in text and text.isprintable() and text.isascii():
        return f"'{text}'"
    return '"' + "".join(_toml_character(one) for one in text) + '"'


def _toml_character(one: str) -> str:
    if one in '"\\':
        return f"\\{one}"
    if unicodedata.category(one).startswith("C") or one in "\u2028\u2029":
        return f"\\u{ord(one):04x}" if ord(one) <= 0xFFFF else f"\\U{ord(one):08x}"
    return one
