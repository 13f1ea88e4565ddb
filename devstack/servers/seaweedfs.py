"""SeaweedFS, a server of S3's protocol, built from its Go module."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import urllib.request
from pathlib import Path

from devstack import ports
from devstack.cache import Cache
from devstack.errors import Unavailable
from devstack.progress import say
from devstack.server import Server
from devstack.servers.base import Kind

MODULE = "github.com/seaweedfs/seaweedfs"
VERSION = "v0.0.0-20261109003541-7506e5f91cd6"
PROGRAM = "weed"
KEY, SECRET = "devstack", "devstack-secret"
_WITHOUT = ("master.telemetry", "filer.exposeDirectoryData", "filer.ui.deleteDir")
_NO_PORT = ("s3.port.iceberg", "s3.port.lance")


class SeaweedfsServer(Server):
    """One process with everything. `bucket` is made by the first object that is put into it."""

    bucket = "headrace"

    def __init__(self, program: Path, name: str, directory: Path, port: int | None) -> None:
        super().__init__(name, directory, port)
        self._program = program
        self._ports = {
            option: ports.free_port()
            for part in ("master", "volume", "filer")
            for option in (f"{part}.port", f"{part}.port.grpc")
        } | {"s3.port.grpc": ports.free_port()}

    @property
    def options(self) -> dict[str, str]:
        """Returns what a client needs."""
        return {
            "endpoint": f"http://{self.address}",
            "region": "us-east-1",
            "access_key_id": KEY,
            "secret_access_key": SECRET,
        }

    def endpoint(self) -> dict[str, object]:
        return {**super().endpoint(), **self.options, "bucket": self.bucket}

    def prepare(self) -> None:
        self.datadir.mkdir(parents=True)
        identity = {
            "name": KEY,
            "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        (self.directory / "s3.json").write_text(json.dumps({"identities": [identity]}))

    def command(self) -> list[str]:
        numbers = {"s3.port": self.port, **self._ports, **dict.fromkeys(_NO_PORT, 0), "master.volumeSizeLimitMB": 64}
        return [
            str(self._program),
            "server",
            f"-dir={self.datadir}",
            f"-ip={self.host}",
            f"-ip.bind={self.host}",
            "-filer",
            "-s3",
            f"-s3.config={self.directory / 's3.json'}",
            "-volume.max=100",
            *(f"-{option}={number}" for option, number in numbers.items()),
            *(f"-{option}=false" for option in _WITHOUT),
        ]

    def environment(self) -> dict[str, str]:
        return {"HOME": str(self.directory)}

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self.address}/healthz", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


class Seaweedfs(Kind):
    """SeaweedFS."""

    name = "seaweedfs"
    version = VERSION

    def _program(self, cache: Cache) -> Path:
        return cache.install(self.name, f"{MODULE}@{VERSION}", _build) / PROGRAM

    def install(self, cache: Cache) -> None:
        self._program(cache)

    def create(self, cache: Cache, name: str, directory: Path, port: int | None) -> SeaweedfsServer:
        return SeaweedfsServer(self._program(cache), name, directory, port)


def _build(fresh: Path) -> None:
    go = shutil.which("go")
    if go is None:
        raise Unavailable("SeaweedFS is built by Go 1.21 or later, which this machine does not have.")
    say("downloading and building SeaweedFS, which takes some minutes ...")
    work = fresh / "work"
    work.mkdir()
    environment = {
        **os.environ,
        "GOPATH": str(work / "go"),
        "GOCACHE": str(work / "build"),
        "GOFLAGS": "-modcacherw -buildvcs=false",
    }

    def run(folder: Path, *words: str) -> str:
        done = subprocess.run(
            [go, *words], cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
        if done.returncode != 0:
            raise Unavailable(f"'go {' '.join(words)}' failed: {(done.stderr or done.stdout).strip()[-500:]}")
        return done.stdout

    # In its own folder: as a dependency of another module it could not replace some of its modules.
    source = json.loads(run(work, "mod", "download", "-json", f"{MODULE}@{VERSION}"))["Dir"]
    run(Path(source), "build", "-ldflags=-s -w", "-o", str(fresh / PROGRAM), "./weed")
    shutil.rmtree(work)
