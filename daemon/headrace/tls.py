"""TLS contexts of the daemon's connections to servers."""

from __future__ import annotations

import ssl
from pathlib import Path

from headrace.errors import HeadraceError
from headrace_common import tls


def client_context(
    owner: str, failure: type[HeadraceError], *files: Path | str | None, verify: bool = True
) -> ssl.SSLContext:
    """Returns the shared context of CA, certificate and key. Raises `failure` if one can't be used; `owner` names who
    uses them."""
    try:
        return tls.client_context(*files, verify=verify)
    except tls.TlsFileError as error:
        raise failure(
            f"the file of {owner} {error}", remedy="give PEM files that the daemon may read; a key without a password"
        ) from error
