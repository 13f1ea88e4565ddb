"""[archive] of a destination's file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, model_validator

from headrace_common.section import Folder, Int, Seconds, Section
from headrace_common.values import parse_duration, parse_size

_KEY = re.compile(r"[0-9a-fA-F]{64}")
_PLAIN = re.compile(r"\s*[0-9.]*[1-9][0-9.]*\s*")


def require_unit(value: Any) -> Any:
    """Returns the value. What deletes has a unit, so that nobody takes seconds for days."""
    if (isinstance(value, int | float) and value) or (isinstance(value, str) and _PLAIN.fullmatch(value)):
        raise ValueError('should have a unit, such as "30d" or "12h"')
    return value


Age = Annotated[
    float,
    BeforeValidator(parse_duration),
    BeforeValidator(require_unit),
    Field(ge=0, le=86400 * 36525, allow_inf_nan=False),
]
"""Seconds; 0 means any."""
Bytes = Annotated[int, BeforeValidator(parse_size), Field(ge=0, le=1 << 60)]
"""0 means any number."""


def _check_key(value: SecretStr) -> SecretStr:
    if not _KEY.fullmatch(value.get_secret_value()):
        raise ValueError("should be 64 hexadecimal digits, as 'openssl rand -hex 32' prints them")
    return value


_URL = re.compile(r"(s3|gs|az)://[^/?#\s@]+(/[^?#\s]*)?")
_OPTIONS = {
    "s3": ("endpoint", "region", "access_key_id", "secret_access_key", "session_token", "virtual_hosted_style_request"),
    "gs": ("service_account_path",),
    "az": ("endpoint", "account_name", "account_key", "sas_token"),
}
"""Options of each kind of store; obstore has more, whose values it finds in the environment."""


def _check_url(value: str) -> str:
    if not _URL.fullmatch(value):
        raise ValueError("should be s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX")
    return value.rstrip("/")


Argument = Annotated[str, Field(min_length=1)]


def _listed(value: Any) -> Any:
    """Returns the value; a program alone as a list."""
    return [value] if isinstance(value, str) else value


class ArchiveSettings(Section):
    """[archive]: headrace's own copy of the source's binlog. Destinations of one source that name the same archive
    share it."""

    path: Folder | None = Field(
        default=None, description="The folder; only headrace writes there. One of `path` and `url` is required."
    )
    url: Annotated[str, AfterValidator(_check_url)] | None = Field(
        default=None,
        description="An object store instead of a folder: `s3://BUCKET/PREFIX` (also of another provider, with "
        "`options.endpoint`), `gs://BUCKET/PREFIX` or `az://CONTAINER/PREFIX`; needs "
        "`pip install 'headrace[object-store]'`.",
    )
    options: dict[str, SecretStr] = Field(
        default_factory=dict,
        description="Options of `url`. For s3: endpoint, region, access_key_id, secret_access_key, session_token, "
        "virtual_hosted_style_request; for gs: service_account_path; for az: endpoint, account_name, account_key, "
        "sas_token. What is missing comes from the environment (`AWS_REGION` ...), or from the machine's role.",
    )
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
    on_failure: Literal["continue", "stop"] = Field(
        default="continue",
        description="While the archive can't be written: `continue` streams on, with a warning; `stop` lets the "
        "destination fail, and go on once the archive can be written again.",
    )
    fetch_command: Annotated[tuple[Argument, ...], BeforeValidator(_listed)] = Field(
        default=(),
        description="A program with its arguments, called with two more if neither the source nor the archive has a "
        "binlog: the binlog's name, and a folder. It writes the file there under this name and ends with status 0.",
    )
    fetch_timeout: Seconds = Field(default=3600.0, description="How long it may take for one binlog.")

    @model_validator(mode="after")
    def _check_place(self) -> Self:
        if (self.path is None) == (self.url is None):
            raise ValueError("needs either path or url")
        known = _OPTIONS[self.url.partition(":")[0]] if self.url is not None else ()
        endpoint = self.options.get("endpoint")
        if endpoint is not None and not endpoint.get_secret_value().startswith(("http://", "https://")):
            raise ValueError("options.endpoint should begin with http:// or https://")
        for name in self.options:
            if name not in known:
                wanted = f"url has the options {', '.join(known)}" if known else "options are for url only"
                raise ValueError(f"options.{name} is unknown: {wanted}")
        return self

    @property
    def place(self) -> str:
        """Returns where the archive is: what shares it has the same place."""
        return self.url if self.url is not None else str(self.folder.absolute())

    @property
    def folder(self) -> Path:
        """Returns the folder. Only without `url`."""
        if self.path is None:
            raise ValueError("an archive in an object store has no folder")
        return self.path

    @property
    def key_bytes(self) -> bytes | None:
        """Returns the key."""
        return None if self.key is None else bytes.fromhex(self.key.get_secret_value())
