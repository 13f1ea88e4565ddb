"""Prints the bill of materials of a release as CycloneDX 1.5: Python's packages and Rust's crates with their hashes.

usage: packaging/sbom.py VERSION

It reads requirements.lock, what the Debian package and the container install, and native/Cargo.lock. Specification:
https://cyclonedx.org/docs/1.5/json/.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def component(kind: str, name: str, version: str, hashes: list[str]) -> dict[str, Any]:
    return {
        "type": "library",
        "name": name,
        "version": version,
        "purl": f"pkg:{kind}/{name}@{version}",
        "hashes": [{"alg": "SHA-256", "content": one} for one in hashes],
    }


def python_packages(lock: str) -> list[dict[str, Any]]:
    found = re.findall(r"^([\w.-]+)==(\S+)((?: \\\n +--hash=sha256:\w+)*)", lock, re.MULTILINE)
    return [component("pypi", name, version, re.findall(r"sha256:(\w+)", rest)) for name, version, rest in found]


def crates(lock: str) -> list[dict[str, Any]]:
    packages = tomllib.loads(lock)["package"]
    return [component("cargo", one["name"], one["version"], [one["checksum"]]) for one in packages if "checksum" in one]


def main(version: str) -> None:
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {"type": "application", "name": "headrace", "version": version}},
        "components": [
            *python_packages((ROOT / "requirements.lock").read_text()),
            *crates((ROOT / "native/Cargo.lock").read_text()),
        ],
    }
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main(sys.argv[1])
