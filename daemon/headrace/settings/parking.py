"""The section [failed] as a model: where refused messages wait, and when they are sent again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, SecretStr, model_validator

from headrace.settings.message import MIB, Int, Seconds, Section, Size, Topic


class FailedSettings(Section):
    """[failed]: messages that the sink refuses, where it says `park`."""

    store: Literal["state", "mysql"] = Field(
        default="state",
        description="state: the destination's state store; mysql: the table headrace_failed_message of a MySQL server, "
        "which daemons of several machines share. With ZooKeeper it has to be mysql.",
    )
    host: str = Field(default="", description="mysql: host name or address of the server.")
    port: Int = Field(default=3306, ge=1, le=65535, description="mysql: its port.")
    user: str = Field(default="", description="mysql: the account; needs SELECT, INSERT, UPDATE, DELETE and CREATE.")
    password: SecretStr = Field(default=SecretStr(""), description='mysql: its password; best as "${NAME}".')
    database: str = Field(default="headrace", min_length=1, max_length=64, description="mysql: the table's database.")
    tls: Literal["preferred", "required", "disabled"] = Field(
        default="preferred", description="mysql: preferred: encrypted when the server can; required: or not at all."
    )
    tls_ca: Path | None = Field(
        default=None, description="mysql: CA certificates; when given, the server's certificate and name are checked."
    )
    max_messages: Int = Field(
        default=100_000, ge=1, le=100_000_000, description="When so many wait, the destination stops instead."
    )
    max_bytes: Size = Field(default=1024 * MIB, description="The same in bytes of their bodies.")
    delay: Seconds = Field(default=10.0, description="Before a message is sent again for the first time, in seconds.")
    delay_factor: Annotated[float, Field(ge=1, le=10)] = Field(
        default=2.0, description="Each further wait is longer by this factor."
    )
    max_delay: Seconds = Field(default=600.0, description="And never longer than this, in seconds.")
    attempts: Int = Field(
        default=20, ge=1, le=1_000_000, description="After so many attempts a message is left to people (MANUAL)."
    )
    topic: Topic = Field(
        default="__headrace_parked",
        min_length=1,
        description='With delivery = "exactly_once": the compacted topic that they wait in; made when it is missing.',
    )

    @model_validator(mode="after")
    def _check_store(self) -> Self:
        own = {"host", "port", "user", "password", "database", "tls", "tls_ca"}
        if self.store != "mysql" and (strange := sorted(self.model_fields_set & own)):
            raise ValueError(f'{", ".join(strange)} has no meaning with store = "{self.store}"')
        if self.store == "mysql" and not (self.host and self.user):
            raise ValueError('store = "mysql" needs host and user')
        return self
