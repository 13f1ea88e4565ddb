"""The sections [[index]]: which tables an index has, and how their rows become its documents."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from headrace_common.section import Int, Section
from headrace_documents.documents import DELETED, MAX_INDEX_BYTES, index_name, rows_index
from headrace_documents.errors import MessageError
from headrace_documents.indexes.types import TypeRules

PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
MAPPING_TYPES = frozenset(
    {
        "alias", "annotated_text", "binary", "boolean", "byte", "completion", "constant_keyword", "counted_keyword",
        "date", "date_nanos", "date_range", "dense_vector", "double", "double_range", "flat_object", "flattened",
        "float", "float_range", "geo_point", "geo_shape", "half_float", "integer", "integer_range", "ip", "ip_range",
        "keyword", "knn_vector", "long", "long_range", "match_only_text", "nested", "object", "percolator", "point",
        "rank_feature", "rank_features", "scaled_float", "search_as_you_type", "semantic_text", "shape", "short",
        "sparse_vector", "text", "token_count", "unsigned_long", "version", "wildcard",
    }
)  # fmt: skip
"""The types of Elasticsearch and OpenSearch."""
_ZONE = re.compile(r"[+-]\d\d:\d\d")


def check_mapping_type(value: str) -> str:
    """Raises ValueError for a type that no mapping has."""
    if value and value not in MAPPING_TYPES:
        near = get_close_matches(value, MAPPING_TYPES, 1)
        raise ValueError(f"there is no mapping type {value!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
    return value


def check_properties(mapping: dict[str, Any], where: str = "") -> None:
    """Raises ValueError for a type that no mapping has, anywhere in the `properties` or `fields` of a mapping."""
    for part in ("properties", "fields"):
        properties = mapping.get(part)
        if properties is None:
            continue
        if not isinstance(properties, dict):
            raise ValueError(f"{where}{part} should be a table")
        for name, one in properties.items():
            if not isinstance(one, dict):
                raise ValueError(f"{where}{name} should be a table such as {{ type = 'keyword' }}")
            try:
                check_mapping_type(str(one.get("type", "")))
            except ValueError as error:
                raise ValueError(f"{where}{name}: {error}") from None
            check_properties(one, f"{where}{name}.")


def _check_name(value: str) -> str:
    if strange := sorted(set(PLACEHOLDER.findall(value)) - {"database", "table"}):
        raise ValueError(f"knows {{database}} and {{table}} only, not {{{strange[0]}}}")
    try:
        index_name(value, "d", "t")
    except MessageError:
        raise ValueError(f"{value!r} is a name that no index can have") from None
    return value


def _check_regex(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"{value!r} is no regular expression: {error}") from None
    return value


def _check_zone(value: str) -> str:
    if not _ZONE.fullmatch(value):
        try:
            ZoneInfo(value)
        except (KeyError, OSError, ValueError):
            raise ValueError(f'{value!r} is neither an offset such as "+08:00" nor the name of a time zone') from None
    return value


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Regexes = Annotated[list[Annotated[str, AfterValidator(_check_regex)]], BeforeValidator(_as_list), Field(min_length=1)]
Zone = Annotated[str, AfterValidator(_check_zone)]


def computed_column(index: str, join: str, field: str) -> str:
    """Returns the column of a row with the result of the field's expression; no table has one of this name."""
    return "\0".join(("", index, join, field))


class FieldSettings(Section):
    """One field of the documents of an index."""

    column: str = Field("", description="The column that it is made of; default: the one with the field's name")
    convert: Literal["auto", "text", "json", "split", "geo_point"] = Field(
        "auto",
        description="auto: by the column's type. text: as it comes. json: what a JSON text says. split: a list, cut at "
        "`separator`. geo_point: of a POINT",
    )
    separator: str = Field(",", min_length=1, description="Where `split` cuts")
    geo_point: tuple[str, str] | None = Field(None, description="Columns of latitude and longitude")
    constant: Any = Field(None, description="The value of each document")
    sql: str = Field("", description="Spark SQL expression of the row's columns, which are texts (Spark consumer)")
    type: Annotated[str, AfterValidator(check_mapping_type)] = Field(
        "", description="Type of the mapping; default: by the column's type"
    )
    mapping: dict[str, Any] = Field(default_factory=dict, description="Further parameters of the mapping")

    @model_validator(mode="after")
    def _one_source(self) -> FieldSettings:
        given = [name for name in ("column", "geo_point", "constant", "sql") if getattr(self, name) not in (None, "")]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} exclude each other")
        if self.convert != "auto" and given and given[0] != "column":
            raise ValueError(f"convert has no meaning with {given[0]}")
        check_properties(self.mapping)
        return self


class SoftDelete(Section):
    """When a row counts as deleted although it is there."""

    column: str = Field(min_length=1, description="The column that says so")
    values: list[str] = Field(["1"], min_length=1, description="Its values that do, as texts")


class RowFields(Section):
    """How rows become fields."""

    columns: Literal["all", "listed"] = Field("all", description="listed: only `fields` become fields")
    drop: list[str] = Field(default_factory=list, description="Columns that become no field")
    fields: dict[str, FieldSettings] = Field(default_factory=dict, description="Fields by name")
    soft_delete: SoftDelete | None = Field(None, description="Rows that count as deleted")

    @model_validator(mode="after")
    def _leaves_something(self) -> RowFields:
        if DELETED in self.fields:
            raise ValueError(f"the field {DELETED} is headrace's own")
        if self.columns == "listed" and not self.fields:
            raise ValueError('columns = "listed" without fields leaves nothing')
        if self.columns == "listed" and self.drop:
            raise ValueError('drop has no meaning with columns = "listed"')
        return self


class JoinSettings(RowFields):
    """Rows of other tables in the documents of an index."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]*$", description="Its name, and that of the field that has its rows")
    tables: Regexes = Field(description="Regular expressions for database.table, matched as a whole")
    parent: str = Field("", description="The join whose rows these rows belong to; default: the index's own rows")
    on: dict[str, str] = Field(
        min_length=1, description="Columns of these tables, each with the column of the parent that it equals"
    )
    shape: Literal["fields", "object", "list"] = Field(
        "fields",
        description="fields: of one row, in addition to those of the parent. object: one row as an object. list: all "
        "rows, a list of objects",
    )
    prefix: str | None = Field(None, description="Put before the names of `fields`; default: the name and `_`")
    required: bool = Field(False, description="A document is there only while such a row is")
    nested: bool = Field(True, description="A list is mapped as `nested`, so that a query can ask of one row at a time")
    most: Annotated[Int, Field(ge=1, le=100_000)] = Field(
        10_000, description="Most rows that may belong to one row of the parent; with more the document is refused"
    )

    @model_validator(mode="after")
    def _shaped(self) -> JoinSettings:
        given = self.model_fields_set
        if self.shape != "fields" and "prefix" in given:
            raise ValueError('prefix has a meaning with shape = "fields" only')
        if self.shape != "list" and "nested" in given:
            raise ValueError('nested has a meaning with shape = "list" only')
        return self

    @property
    def field_prefix(self) -> str:
        """Returns what is put before the name of each field."""
        if self.shape != "fields":
            return ""
        return f"{self.name}_" if self.prefix is None else self.prefix


class IndexSettings(RowFields):
    """One index. With any of them, tables that none names are passed over, unless [elasticsearch] index is given."""

    name: Annotated[str, Field(min_length=1), AfterValidator(_check_name)] = Field(
        description="Its name, lower-cased; {database} and {table} are filled in"
    )
    tables: Regexes = Field(description="Regular expressions for database.table, matched as a whole")
    id: str = Field(
        "", description="Template of the document id: columns in braces, {database}, {table}; default: the primary key"
    )
    routing: str = Field("", description="Template of the routing, like `id`")
    decimals: Literal["keyword", "double", "scaled_float"] = Field(
        "keyword", description="DECIMAL: with all digits; or as numbers, which may lose some"
    )
    booleans: bool = Field(False, description="TINYINT(1) and BIT(1) are true and false")
    zone: Zone = Field("+00:00", description="Time zone of DATETIME, such as '+08:00' or 'Asia/Shanghai'")
    timestamp_zone: Zone = Field("+00:00", description="That in which messages have TIMESTAMP")
    analyzer: str = Field("", description="Of texts; the cluster has to have it")
    settings: dict[str, Any] = Field(default_factory=dict, description="Further settings of an index that is made")
    mappings: dict[str, Any] = Field(
        default_factory=dict, description="Further mappings of an index that is made; they win over those by type"
    )
    table_field: str = Field(
        "", description="Field that has the row's table. It distinguishes documents where tables share the index"
    )
    on_truncate: Literal["delete", "refuse", "ignore"] | None = Field(
        None, description="As in [elasticsearch], which is the default"
    )
    on_mapping_conflict: Literal["dead_letter", "reindex"] | None = Field(
        None, description="As in [elasticsearch], which is the default"
    )
    template: bool = Field(
        False, description="An index template of the cluster has settings and mappings: none of ours"
    )
    join: list[JoinSettings] = Field(
        default_factory=list, description="Rows of other tables in the documents, [[index.join]] each"
    )

    @model_validator(mode="after")
    def _fits(self) -> IndexSettings:
        check_properties(self.mappings)
        for template, key in ((self.id, "id"), (self.routing, "routing")):
            if template and not PLACEHOLDER.search(template):
                raise ValueError(f"{key} {template!r} has no column in braces, so it is the same for all documents")
        if self.table_field in self.fields:
            raise ValueError(f"the field {self.table_field} is there twice: table_field and fields")
        if self.template and (self.settings or self.mappings):
            raise ValueError("template = true leaves settings and mappings to the cluster's template")
        self._check_joins()
        return self

    def _check_joins(self) -> None:
        if self.join and PLACEHOLDER.search(self.name):
            raise ValueError("an index with joins has one name, without {database} and {table}")
        if self.join and len(rows_index(self.name).encode()) > MAX_INDEX_BYTES:
            raise ValueError(f"the name is too long: {rows_index('')}NAME, which keeps the rows, has to fit too")
        before = set[str]()
        for join in self.join:
            if join.name in before:
                raise ValueError(f"join {join.name} is there twice")
            if join.parent and join.parent not in before:
                near = get_close_matches(join.parent, before, 1)
                raise ValueError(
                    f"join {join.name}: there is no join {join.parent!r} before it"
                    + (f"; did you mean {near[0]!r}?" if near else "")
                )
            before.add(join.name)

    def types(self) -> TypeRules:
        """Returns how columns become fields."""
        return TypeRules(self.decimals, self.booleans, self.zone, self.timestamp_zone, self.analyzer)
