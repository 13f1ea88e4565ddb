"""The section [parking] with store = "mysql"."""

from __future__ import annotations

from pydantic import Field, SecretStr

from headrace.settings.adapters import ParkingSettings
from headrace_common.section import HostName, Int, OptionalTls


class MySqlParkingSettings(ParkingSettings, OptionalTls):
    """[parking] store = "mysql": the table headrace_parked_message of any MySQL server."""

    host: HostName = Field(description="Host name or address of the server.")
    port: Int = Field(default=3306, ge=1, le=65535, description="Its port.")
    user: str = Field(min_length=1, description="The account; needs SELECT, INSERT, UPDATE, DELETE and CREATE.")
    password: SecretStr = Field(default=SecretStr(""), description='its password; best as "${NAME}".')
    database: str = Field(default="headrace", min_length=1, max_length=64, description="The table's database.")
