"""The base of all configuration sections, and the types of their values."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from headrace.settings.values import parse_duration, parse_int, parse_size

KIB = 1 << 10
MIB = 1 << 20

Seconds = Annotated[float, BeforeValidator(parse_duration), Field(gt=0, le=86400 * 7, allow_inf_nan=False)]
SecondsOrOff = Annotated[float, BeforeValidator(parse_duration), Field(ge=0, le=86400 * 7, allow_inf_nan=False)]
"""0 means off."""
Size = Annotated[int, BeforeValidator(parse_size), Field(ge=1 * KIB, le=1 << 40)]
SizeOrOff = Annotated[int, BeforeValidator(parse_size), Field(ge=0, le=1 << 40)]
"""0 means off."""
Int = Annotated[int, BeforeValidator(parse_int)]


def _check_topic(value: str) -> str:
    if value in (".", ".."):
        raise ValueError('should not be "." or "..": Kafka has no such topics')
    return value


Topic = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{0,249}$"), AfterValidator(_check_topic)]


class Section(BaseModel):
    """The base of all sections: an unknown key is an error, a value can't change, an error never shows a value."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)
