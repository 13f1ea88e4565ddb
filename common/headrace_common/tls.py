"""TLS contexts of connections to servers."""

from __future__ import annotations

import functools
import ipaddress
import os
import ssl
from pathlib import Path


class TlsFileError(Exception):
    """A file of the TLS settings can't be used; the text has its key, the file and the reason."""


def tls_by_host(tls: str | None, host: str) -> str:
    """Returns how a MySQL server is reached if `tls` is omitted: connections over a network are verified. A name of
    this machine other than localhost counts as another machine, because it may be resolved differently later."""
    if tls is not None:
        return tls
    try:
        here = ipaddress.ip_address(host).is_loopback
    except ValueError:
        here = host.lower() == "localhost"
    return "preferred" if here else "verified"


def trusting(*, ca: Path | str | None = None, text: str | None = None) -> ssl.SSLContext:
    """Returns a context that checks certificates and names of servers: against `ca`, a file, or `text`, PEM, or the
    system's CAs. Raises OSError."""
    context = ssl.create_default_context(cafile=ca or None, cadata=text)
    # The Python version must not decide who is trusted: 3.13 began to refuse certificates without an identifier of
    # their authority's key, which MySQL's own and those of many organizations do not have.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def client_context(
    ca: Path | str | None, certificate: Path | str | None = None, key: Path | str | None = None, *, verify: bool = True
) -> ssl.SSLContext:
    """Returns a context that checks certificates and names of servers, against `ca` or the system's CAs; without
    `verify`, one that only encrypts. It is shared until one of its files changes: do not change it. Raises TlsFileError
    if a file can't be used, also for a key with a password."""
    files = [certificate, key]
    if ca:
        files.append(ca)
    elif verify:
        system = ssl.get_default_verify_paths()
        files += [system.cafile, system.capath]
    return _client_context(ca, certificate, key, verify, tuple(_version(file) for file in files))


def _version(file: Path | str | None) -> tuple[str, int, int] | None:
    try:
        found = os.stat(file) if file else None
    except OSError:
        return None
    return found and (str(file), found.st_mtime_ns, found.st_size)


@functools.lru_cache(maxsize=32)  # reading the system's CAs takes tens of milliseconds, and there are many connections
def _client_context(
    ca: Path | str | None, certificate: Path | str | None, key: Path | str | None, verify: bool, _versions: object
) -> ssl.SSLContext:
    option, file = "tls_ca", ca
    try:
        if verify:
            context = trusting(ca=ca)
        else:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if certificate:
            option, file = ("tls_key", key) if key else ("tls_certificate", certificate)
            if b"ENCRYPTED" in Path(file).read_bytes():  # OpenSSL would report only "PEM lib"
                raise ValueError("its key has a password")
            option, file = "tls_certificate", f"{certificate}, or tls_key, {key}" if key else certificate
            context.load_cert_chain(certificate, key or None, password="")  # never a prompt on a terminal
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise TlsFileError(f"{option}, {file}, can't be used ({why})") from error
    return context
