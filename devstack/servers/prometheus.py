"""Prometheus and its promtool, from Debian bookworm, unpacked into the cache."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from devstack import apt
from devstack.cache import Cache
from devstack.server import Server
from devstack.servers.base import Kind

SUITE = "bookworm"
PROGRAM = "usr/bin/prometheus"
PROMTOOL = "usr/bin/promtool"
# The old pages' scripts and what a system service needs.
WITHOUT = (
    "adduser", "debconf", "daemonize", "fonts-glyphicons-halflings", "libjs-bootstrap4",
    "libjs-eonasdan-bootstrap-datetimepicker",
    "libjs-jquery", "libjs-jquery-hotkeys", "libjs-moment", "libjs-moment-timezone", "libjs-mustache",
    "libjs-popper.js", "libjs-rickshaw", "node-moment", "init-system-helpers", "sysvinit-utils", "lsb-base", "tzdata",
)  # fmt: skip


class PrometheusServer(Server):
    """One Prometheus that scrapes `targets` (host:port) each second, as job headrace, and evaluates the rules."""

    def __init__(
        self,
        prefix: apt.Prefix,
        name: str,
        directory: Path,
        port: int | None,
        targets: Sequence[str],
        rules: Sequence[Path],
    ) -> None:
        super().__init__(name, directory, port)
        self._prefix, self._targets, self._rules = prefix, list(targets), [str(path) for path in rules]

    @property
    def url(self) -> str:
        """Returns its HTTP address."""
        return f"http://{self.address}"

    def endpoint(self) -> dict[str, object]:
        return {**super().endpoint(), "url": self.url}

    def prepare(self) -> None:
        self.datadir.mkdir(parents=True)
        job = {"job_name": "headrace", "static_configs": [{"targets": self._targets}]}
        settings = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "scrape_configs": [job],
            "rule_files": self._rules,
        }
        # JSON is also YAML
        (self.directory / "prometheus.yml").write_text(json.dumps(settings))

    def command(self) -> list[str]:
        return [
            *self._prefix.argv(PROGRAM),
            f"--config.file={self.directory / 'prometheus.yml'}",
            f"--storage.tsdb.path={self.datadir}",
            f"--web.listen-address={self.address}",
            "--log.level=warn",
        ]

    def is_ready(self) -> bool:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(f"{self.url}/-/ready", timeout=1) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


class Prometheus(Kind):
    """Prometheus."""

    name = "prometheus"
    version = "2.42"

    def _prefix(self, cache: Cache) -> apt.Prefix:
        return apt.install(cache, self.name, SUITE, ("prometheus",), (), PROGRAM, WITHOUT)

    def install(self, cache: Cache) -> None:
        self._prefix(cache)

    def promtool(self, cache: Cache) -> list[str]:
        """Returns the words that start promtool, which checks rules and tests them with series."""
        return self._prefix(cache).argv(PROMTOOL)

    def create(self, cache: Cache, name: str, directory: Path, port: int | None) -> PrometheusServer:
        return self.server(cache, name, directory, port, (), ())

    def server(
        self,
        cache: Cache,
        name: str,
        directory: Path,
        port: int | None,
        targets: Sequence[str],
        rules: Sequence[Path],
    ) -> PrometheusServer:
        """Returns a handle for a server."""
        return PrometheusServer(self._prefix(cache), name, directory, port, targets, rules)
