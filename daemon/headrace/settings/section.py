"""The type of a key that names a topic."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field


def _check_topic(value: str) -> str:
    if value in (".", ".."):
        raise ValueError('should not be "." or "..": Kafka has no such topics')
    return value


Topic = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{0,249}$"), AfterValidator(_check_topic)]
