"""The base of all configuration sections, and the types of their values."""

from __future__ import annotations

import stat
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from headrace_common.values import check_host, parse_duration, parse_int, parse_number, parse_size, split_hosts

KIB = 1 << 10
MIB = 1 << 20

Seconds = Annotated[float, BeforeValidator(parse_duration), Field(gt=0, le=86400 * 7, allow_inf_nan=False)]
SecondsOrOff = Annotated[float, BeforeValidator(parse_duration), Field(ge=0, le=86400 * 7, allow_inf_nan=False)]
"""0 means off."""
Size = Annotated[int, BeforeValidator(parse_size), Field(ge=1 * KIB, le=1 << 40)]
SizeOrOff = Annotated[int, BeforeValidator(parse_size), Field(ge=0, le=1 << 40)]
"""0 means off."""
Int = Annotated[int, BeforeValidator(parse_int)]
Number = Annotated[float, BeforeValidator(parse_number)]
Hosts = Annotated[tuple[str, ...], BeforeValidator(split_hosts)]
"""Addresses of servers, "host:port" each."""


HostName = Annotated[str, Field(min_length=1), AfterValidator(check_host)]


def _check_topic(value: str) -> str:
    if value in (".", ".."):
        raise ValueError('should not be "." or "..": Kafka has no such topics')
    return value


Topic = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{0,249}$"), AfterValidator(_check_topic)]
"""A topic of Kafka; "" for none."""


def _check_file(value: Any) -> Any:
    if value is None:
        return None
    if not isinstance(value, str | Path) or not str(value):
        raise ValueError("should be the path of a file")
    path = Path(value)
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise ValueError(f"{path} is no file")
        path.open("rb").close()
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(f"there is no file {path}") from None
    except OSError as error:
        raise ValueError(f"the file {value} can't be read: {error.strerror}") from None
    return path


def _check_text(value: Any) -> Any:
    if value == "":
        raise ValueError('is empty; the working directory is "."')
    return value


def _check_path(value: Path, *, folder: bool) -> Path:
    try:
        if value.exists() and value.is_dir() is not folder:
            raise ValueError(f"{value} is {'no' if folder else 'a'} folder")
    except OSError as error:
        raise ValueError(f"{value} can't be used: {error.strerror}") from None
    return value


File = Annotated[Path | None, BeforeValidator(_check_file)]
"""An existing file that can be read."""
Folder = Annotated[Path, BeforeValidator(_check_text), AfterValidator(partial(_check_path, folder=True))]
"""A folder, which need not exist yet."""
NewFile = Annotated[Path, BeforeValidator(_check_text), AfterValidator(partial(_check_path, folder=False))]
"""A file, which need not exist yet."""
TlsFiles = tuple[Path | None, Path | None, Path | None]


class Section(BaseModel):
    """The base of all sections: an unknown key is an error, values can't change, and errors never show a value."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class TlsSection(Section):
    """The base of sections about a server, with or without TLS."""

    tls: Literal["disabled", "preferred", "required", "verified"] | None = Field(
        default="disabled",
        description="required: the connection is encrypted, and the server's certificate and name are checked.",
    )
    tls_ca: File = Field(default=None, description="File of CA certificates of the servers; default: the system's.")
    tls_certificate: File = Field(default=None, description="Our certificate, where the server asks for one.")
    tls_key: File = Field(default=None, description="Its key; default: in the file of the certificate.")

    @property
    def tls_files(self) -> TlsFiles:
        """Returns CA, certificate and key, for `client_context`."""
        return self.tls_ca, self.tls_certificate, self.tls_key

    @model_validator(mode="after")
    def _check_tls(self) -> Self:
        strange = sorted(self.model_fields_set & {"tls_ca", "tls_certificate", "tls_key"})
        if self.tls == "disabled" and strange:
            raise ValueError(f'{", ".join(strange)} has no meaning with tls = "disabled"')
        if self.tls_key and not self.tls_certificate:
            raise ValueError("tls_key needs tls_certificate")
        return self


class OptionalTls(TlsSection):
    """The base of sections about a MySQL server, which announces whether it can encrypt."""

    tls: Literal["disabled", "preferred", "required", "verified"] | None = Field(
        default=None,
        description="verified: encrypted, and the server's certificate and name are checked, against tls_ca or the "
        "system's CAs; required: encrypted, and checked only when tls_ca is given; preferred: the same when the server "
        "can encrypt, else in clear; disabled: in clear. Default: preferred when the host is localhost, 127.0.0.0/8 or "
        "::1; else verified.",
        json_schema_extra={"default_is": "by the host"},
    )
    tls_ca: File = Field(
        default=None,
        description="File of CA certificates; when given, the server's certificate and name are checked. Default: with "
        "verified the system's.",
    )
