"""Makes certificates for the servers and clients of a test."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


class Authority:
    """Makes certificates that last as long as a test."""

    def __init__(self, folder: Path, name: str = "test authority") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        self.path = folder / "ca.pem"
        self.path.write_bytes(self._sign(self._key, self._name, ca=True).public_bytes(serialization.Encoding.PEM))

    def _sign(self, key: Any, name: x509.Name, *, ca: bool, address: str = "127.0.0.1") -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))]), critical=False)
            .sign(self._key, hashes.SHA256())
        )

    def make(self, who: str, address: str = "127.0.0.1") -> tuple[Path, Path, Path]:
        """Files with a certificate, its key, and both."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, who)])
        certificate = self._sign(key, name, ca=False, address=address).public_bytes(serialization.Encoding.PEM)
        secret = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        paths = tuple(self._folder / f"{who}{end}" for end in (".pem", ".key", "-both.pem"))
        for path, content in zip(paths, (certificate, secret, secret + certificate), strict=True):
            path.write_bytes(content)
        return paths[0], paths[1], paths[2]
