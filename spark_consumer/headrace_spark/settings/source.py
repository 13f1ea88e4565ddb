"""The section [source]: the server whose tables are read."""

from __future__ import annotations

from pydantic import Field, SecretStr, model_validator

from headrace_common.section import HostName, Int, OptionalTls, Seconds


class SourceSettings(OptionalTls):
    """[source]: the MySQL or MariaDB server that has the tables. Only commands that read tables need it."""

    host: HostName = Field(description="Host name or address of the server.")
    port: Int = Field(default=3306, ge=1, le=65535, description="Its port.")
    user: str = Field(min_length=1, description="The account; needs SELECT on the tables.")
    password: SecretStr = Field(description='The account\'s password; best as "${NAME}" or "${file:/path}".')
    connect_timeout: Seconds = Field(default=10.0, description="Limit for connecting.")
    read_timeout: Seconds = Field(
        default=600.0, description="Limit for the server to begin an answer, and for the next bytes of one."
    )
    fetch_size: Int = Field(default=1000, ge=1, description="Rows that a task has in hand of an answer.")
    partition_rows: Int = Field(default=50_000, ge=100, description="Rows of a table that one task reads.")
    readers: Int = Field(default=2, ge=1, le=64, description="Tasks that read at the same time, a connection each.")

    @model_validator(mode="after")
    def _no_client_certificate(self) -> SourceSettings:
        if self.tls_certificate or self.tls_key:
            raise ValueError("tls_certificate and tls_key can't be used here: the driver reads no PEM files of ours")
        return self
