"""The section [elasticsearch], which the consumers have in common."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, SecretStr, field_validator, model_validator

from headrace_documents.config import Model, absolute
from headrace_documents.documents import Rules


class ElasticsearchSettings(Model):
    """Where the documents go."""

    hosts: list[Annotated[str, Field(pattern=r"^https?://[^/]+:\d+(/.*)?$")]] = Field(
        min_length=1, description="URLs with scheme and port"
    )
    user: str = Field("", description="user name, with `password`")
    password: SecretStr = Field(SecretStr(""), description="best given as ${VAR} or ${file:/path}")
    api_key: SecretStr = Field(SecretStr(""), description="instead of user and password")
    ca_certs: str = Field("", description="file with the certificates to trust; the system's when empty")
    index: str = Field("{database}.{table}", min_length=1, description="name or template of the index; lower-cased")
    id_prefix: str = Field("", description="put before each document id, e.g. '{table}:' when tables share an index")
    types: Literal["mysql", "strings"] = Field("mysql", description="numbers as JSON numbers, or all as strings")
    decimals: Literal["string", "number"] = Field("string", description="'number' may lose digits of a DECIMAL")
    create_index: bool = Field(True, description="create a missing index with `gc_deletes`, `settings` and mappings")
    gc_deletes: str = Field(
        "1h",
        pattern=r"^\d+(ms|s|m|h|d)$",
        description="how long Elasticsearch remembers a delete; an older change that comes later would bring it back",
    )
    settings: dict[str, Any] = Field(default_factory=dict, description="further settings of a created index")
    mappings_file: str = Field("", description="JSON file with the mappings of a created index")
    bulk_actions: int = Field(2000, ge=1, le=100_000, description="most actions of one bulk request")
    bulk_bytes: int = Field(5_000_000, ge=1000, le=100_000_000, description="most bytes of one bulk request")
    request_timeout: float = Field(30.0, gt=0, description="seconds")
    retries: int = Field(
        6, ge=0, description="how often a refused or failed request is tried again before the batch fails"
    )
    retry_wait: float = Field(0.5, gt=0, description="seconds before the first retry; doubles each time, at most 10")

    @model_validator(mode="after")
    def _credentials(self) -> ElasticsearchSettings:
        if self.api_key.get_secret_value() and self.user:
            raise ValueError("give either api_key or user and password, not both")
        if bool(self.user) != bool(self.password.get_secret_value()):
            raise ValueError("user and password belong together: one of them is empty")
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

    @field_validator("ca_certs")
    @classmethod
    def _certificates(cls, value: str) -> str:
        if value and not Path(value).is_file():
            raise ValueError(f"there is no file {value}")
        return absolute(value)

    def rules(self) -> Rules:
        """How rows become documents."""
        return Rules(self.index, self.id_prefix, self.types, self.decimals)

    def index_body(self) -> dict[str, Any]:
        """Settings and mappings of an index that we create.

        Without a mappings file dates are not guessed: a VARCHAR whose first value looks like a date would refuse
        every other text from then on.
        """
        mappings: dict[str, Any] = {"date_detection": False}
        if self.mappings_file:
            mappings = json.loads(Path(self.mappings_file).read_bytes())
            mappings = mappings.get("mappings", mappings)
        return {"settings": {"index.gc_deletes": self.gc_deletes, **self.settings}, "mappings": mappings}
