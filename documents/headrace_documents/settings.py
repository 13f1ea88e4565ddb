"""The section [elasticsearch], which the consumers share."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr, field_validator, model_validator

from headrace_common.files import ModelT, read_section
from headrace_common.section import File, Int, Seconds, Section, SizeOrOff
from headrace_common.values import check_host, parse_host_port
from headrace_documents.documents import DELETED, Rules
from headrace_documents.errors import SettingsError


def absolute(path: Path | str | None) -> str:
    """Returns the path made absolute, since Spark's workers have another working directory; "" for none."""
    return str(Path(path).absolute()) if path else ""


def load_file(path: Path, model: type[ModelT]) -> ModelT:
    """Returns a configuration file as a model. Raises SettingsError with all errors."""
    problems: list[str] = []
    settings = read_section(path, model, os.environ, problems)
    if settings is None:
        raise SettingsError(problems)
    return settings


OnTruncate = Literal["delete", "refuse", "ignore"]
ON_TRUNCATE = (
    "What TRUNCATE TABLE and DROP TABLE do. delete: documents of older rows go. refuse: the consumer stops there. "
    "ignore: documents stay"
)
OnMappingConflict = Literal["dead_letter", "reindex"]
_PLACEHOLDERS = re.compile(r"\{([^{}]*)\}")


def _check_url(value: str) -> str:
    url = urlsplit(value)
    if url.username is not None:
        raise ValueError("should have no account: there are the keys user and password")
    try:
        good = url.scheme in ("http", "https") and url.hostname and url.port
    except ValueError:
        good = False
    if not good:
        raise ValueError('should be a URL with scheme, host and port, as in "http://127.0.0.1:9200"')
    check_host(url.hostname or "")
    return value


def _check_template(value: str) -> str:
    if strange := sorted(set(_PLACEHOLDERS.findall(value)) - {"database", "table"}):
        raise ValueError(f"knows {{database}} and {{table}} only, not {{{strange[0]}}}")
    return value


class ElasticsearchSettings(Section):
    """Where the documents go."""

    hosts: list[Annotated[str, AfterValidator(_check_url)]] = Field(
        min_length=1, description="URLs of Elasticsearch or OpenSearch, with scheme and port."
    )
    user: str = Field("", description="User name, with `password`")
    password: SecretStr = Field(SecretStr(""), description="Best given as ${VAR} or ${file:/path}")
    api_key: SecretStr = Field(SecretStr(""), description="Instead of user and password")
    tls_ca: File = Field(
        None, description="File of CA certificates, the only ones that are trusted then; default: the system's."
    )
    index: Annotated[str, AfterValidator(_check_template)] = Field(
        "{database}.{table}", min_length=1, description="Name or template of the index; lower-cased"
    )
    id_prefix: Annotated[str, AfterValidator(_check_template)] = Field(
        "", description="Put before each document id, e.g. '{table}:' when tables share an index"
    )
    types: Literal["mysql", "strings"] = Field("mysql", description="Numbers as JSON numbers, or all as strings")
    decimals: Literal["string", "number"] = Field("string", description="'number' may lose digits of a DECIMAL")
    deletes: Literal["remove", "tombstone"] = Field(
        "remove",
        description="remove: the document goes, and Elasticsearch remembers its version for `gc_deletes`. tombstone: a "
        'document {"headrace_deleted": true} stays, with its version, for ever',
    )
    on_truncate: OnTruncate = Field("delete", description=ON_TRUNCATE)
    on_mapping_conflict: OnMappingConflict = Field(
        "dead_letter",
        description="When a column changes its type, so that the index has another one. dead_letter: documents that do "
        "not fit become dead letters. reindex: the index is refilled (`headrace-spark run` with `[source]`; for "
        "indexes of `[[index]]` that have one name)",
    )
    create_index: bool = Field(True, description="Create a missing index with `gc_deletes`, `settings` and mappings")
    gc_deletes: str = Field(
        "1h",
        pattern=r"^\d+(ms|s|m|h|d)$",
        description="How long Elasticsearch remembers a delete, at least. An existing index that has less is given "
        "this with `create_index`, and refused without",
    )
    settings: dict[str, Any] = Field(default_factory=dict, description="Further settings of a created index")
    mappings_file: str = Field("", description="JSON file with the mappings of a created index")
    bulk_actions: Int = Field(2000, ge=1, le=100_000, description="Most actions of one bulk request")
    bulk_bytes: Annotated[SizeOrOff, Field(ge=1000, le=100_000_000)] = Field(
        5_000_000, description="Most bytes of one bulk request."
    )
    request_timeout: Seconds = Field(30.0, description="Limit for an answer.")
    retries: Int = Field(
        6, ge=0, description="How often a refused or failed request is tried again before the batch fails"
    )
    retry_wait: Seconds = Field(0.5, description="Before the first retry; doubles each time, at most 10 s.")

    @model_validator(mode="after")
    def _credentials(self) -> ElasticsearchSettings:
        if self.api_key.get_secret_value() and self.user:
            raise ValueError("give either api_key or user and password, not both")
        if not (key := self.api_key.get_secret_value()).isascii() or any(
            ord(one) < 33 or ord(one) > 126 for one in key
        ):
            raise ValueError("api_key should have no blanks, line ends or characters outside of ASCII")
        if bool(self.user) != bool(self.password.get_secret_value()):
            raise ValueError("user and password belong together: one of them is empty")
        if self.tls_ca and not any(host.startswith("https://") for host in self.hosts):
            raise ValueError("tls_ca has no meaning without a host of https://")
        return self

    @field_validator("mappings_file")
    @classmethod
    def _mappings(cls, value: str) -> str:
        if value:
            try:
                good = isinstance(json.loads(Path(value).read_bytes()), dict)
            except (OSError, ValueError) as error:
                raise ValueError(f"can't read {value}: {error}") from None
            if not good:
                raise ValueError(f"{value} does not hold a JSON object")
        return absolute(value)

    def rules(self) -> Rules:
        """Returns how rows become documents."""
        return Rules(self.index, self.id_prefix, self.types, self.decimals, self.deletes == "tombstone")

    def index_body(self) -> dict[str, Any]:
        """Returns settings and mappings for an index that we create.

        Without a mappings file dates are not guessed: a VARCHAR whose first value looks like a date would refuse every
        other text from then on."""
        mappings: dict[str, Any] = {"date_detection": False}
        if self.mappings_file:
            mappings = json.loads(Path(self.mappings_file).read_bytes())
            mappings = mappings.get("mappings", mappings)
        if self.deletes == "tombstone":
            mappings["properties"] = {**mappings.get("properties", {}), DELETED: {"type": "boolean"}}
        return {"settings": {"index.gc_deletes": self.gc_deletes, **self.settings}, "mappings": mappings}


def _check_listen(value: str) -> str:
    if value:
        parse_host_port(value)
    return value


Listen = Annotated[str, AfterValidator(_check_listen)]
LISTEN = 'Address and port of /health and /metrics; "" turns them off.'


class HttpSettings(Section):
    """[http]: health and metrics."""

    listen: Listen = Field(default="127.0.0.1:9713", description=LISTEN)

    @property
    def address(self) -> tuple[str, int] | None:
        """Returns host and port, or None if HTTP is off."""
        return parse_host_port(self.listen) if self.listen else None


class LogSettings(Section):
    """[log]: what goes to standard error."""

    format: Literal["auto", "console", "json"] = Field(
        default="auto", description="Lines for people, or JSON objects; auto: console at a terminal, else json."
    )
    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="The least severe lines that are written."
    )
