"""Makes a Java runtime from the cache trust this machine's certificate authorities.

The runtime has its own list of authorities, which lacks those that a company or a test network has added to the
machine. Java reads key stores and no PEM bundles, so the machine's bundle is written as one."""

from __future__ import annotations

import hashlib
import os
import ssl
import struct
import tempfile

from devstack.cache import Cache

PASSWORD = "changeit"  # Java's own default; it protects nothing, certificates are public


def _text(value: str) -> bytes:
    return struct.pack(">H", len(value)) + value.encode("ascii")


def key_store(certificates: list[bytes]) -> bytes:
    """Returns a Java key store (format JKS, version 2) of trusted certificates in DER form."""
    body = struct.pack(">III", 0xFEEDFEED, 2, len(certificates))
    for number, certificate in enumerate(certificates):
        entry = struct.pack(">I", 2) + _text(f"ca{number}") + struct.pack(">Q", 0)
        body += entry + _text("X.509") + struct.pack(">I", len(certificate)) + certificate
    # the format's fixed salt
    digest = hashlib.sha1(PASSWORD.encode("utf-16-be") + b"Mighty Aphrodite" + body).digest()
    return body + digest


def java_options(cache: Cache) -> list[str]:
    """Returns options that make java use the machine's authorities; none if Python knows no bundle."""
    certificates = ssl.create_default_context().get_ca_certs(binary_form=True)
    if not certificates:
        return []
    store = key_store(certificates)
    path = cache.folder("trust") / f"{hashlib.sha256(store).hexdigest()[:16]}.jks"
    if not path.exists():
        descriptor, fresh = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(descriptor, "wb") as handle:
            handle.write(store)
        os.replace(fresh, path)
    return [f"-Djavax.net.ssl.trustStore={path}", f"-Djavax.net.ssl.trustStorePassword={PASSWORD}"]
