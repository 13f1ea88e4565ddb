"""TLS contexts of the daemon's connections to servers."""

from __future__ import annotations

import ssl
from pathlib import Path

from headrace.errors import HeadraceError


def client_context(
    owner: str,
    failure: type[HeadraceError],
    ca: Path | str | None,
    certificate: Path | None = None,
    key: Path | None = None,
) -> ssl.SSLContext:
    """Returns a context that checks certificates and names of servers: against `ca`, or what the system trusts.

    Raises `failure` when a file can't be used, a key with a password included. `owner` is the section of the files.
    """
    option, file = "tls_ca", ca
    try:
        context = ssl.create_default_context(cafile=ca)
        if certificate is not None:
            option, file = "tls_certificate", certificate
            context.load_cert_chain(certificate, key, password="")  # never a prompt on a terminal
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise failure(
            f"the file of {owner} {option}, {file}, can't be used ({why})",
            remedy="give PEM files that the daemon may read; a key without a password",
        ) from error
    return context
