"""[archive] of a destination's file."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr

from headrace_common.section import Folder, Int, Seconds, Section
from headrace_common.values import parse_duration, parse_size

_KEY = re.compile(r"[0-9a-fA-F]{64}")
_PLAIN = re.compile(r"\s*[0-9.]*[1-9][0-9.]*\s*")


def _require_unit(value: Any) -> Any:
    """Returns the value. What deletes has a unit, so that nobody takes seconds for days."""
    if (isinstance(value, int | float) and value) or (isinstance(value, str) and _PLAIN.fullmatch(value)):
        raise ValueError('should have a unit, such as "30d" or "12h"')
    return value


Age = Annotated[
    float,
    BeforeValidator(parse_duration),
    BeforeValidator(_require_unit),
    Field(ge=0, le=86400 * 36525, allow_inf_nan=False),
]
"""Seconds; 0 means any."""
Bytes = Annotated[int, BeforeValidator(parse_size), Field(ge=0, le=1 << 60)]
"""0 means any number."""


def _check_key(value: SecretStr) -> SecretStr:
    if not _KEY.fullmatch(value.get_secret_value()):
        raise ValueError("should be 64 hexadecimal digits, as 'openssl rand -hex 32' prints them")
    return value


class ArchiveSettings(Section):
    """[archive]: headrace's own copy of the source's binlog. Destinations of one source that name the same archive
    share it."""

    path: Folder = Field(description="The folder; only headrace writes there.")
    key: Annotated[SecretStr, AfterValidator(_check_key)] | None = Field(
        default=None,
        description='Encrypts what is archived from now on (AES-256-GCM): 64 hexadecimal digits; best as "${NAME}" or '
        '"${file:/path}". Without it nothing is encrypted.',
    )
    flush_interval: Seconds = Field(
        default=1.0, description="What the source has written is on the archive's disk after this time at most."
    )
    level: Int = Field(default=1, ge=1, le=19, description="Level of zstd's compression.")
    keep: Age = Field(
        default=0.0,
        description="The daemon deletes archived files whose last transaction is older than this; 0: none. It deletes "
        "none that a destination of it still needs.",
    )
    keep_bytes: Bytes = Field(
        default=0,
        description="The daemon deletes the oldest files while the archive takes more bytes, even if they are younger "
        "than `keep`; 0: any number.",
    )

    @property
    def key_bytes(self) -> bytes | None:
        """Returns the key."""
        return None if self.key is None else bytes.fromhex(self.key.get_secret_value())
