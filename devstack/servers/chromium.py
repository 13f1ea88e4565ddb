"""A headless Chromium from Debian bookworm, unpacked into the cache, with a font that has Chinese characters."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from devstack import apt
from devstack.cache import Cache
from devstack.errors import Unavailable
from devstack.process import clean_environment
from devstack.progress import say
from devstack.server import Server
from devstack.servers.base import Kind

SUITE = "bookworm"
PACKAGES = ("chromium-headless-shell", "fonts-wqy-microhei")
PROGRAM = "usr/lib/chromium/chromium-headless-shell"
# The C library is the machine's own: Chromium starts its children as /proc/self/exe, which would be the prefix's
# loader. The others are for windows, sound servers and printers.
WITHOUT = (
    "libc6", "xdg-utils", "x11-utils", "x11-common", "fontconfig-config", "fonts-dejavu-core",
    "libgl1-mesa-dri", "libglapi-mesa", "libllvm15",
)  # fmt: skip
FONTS = """\
<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
<dir>{fonts}</dir>
<cachedir>{cache}</cachedir>
</fontconfig>
"""


class ChromiumServer(Server):
    """One browser without a window, controlled by its DevTools protocol at `url`; its profile is deleted with it."""

    def __init__(self, root: Path, machine: str, name: str, directory: Path, port: int | None) -> None:
        super().__init__(name, directory, port)
        self._root, self._machine = root, machine

    @property
    def url(self) -> str:
        """Returns where DevTools answers over HTTP: /json/version, /json/new and so on."""
        return f"http://{self.address}"

    def endpoint(self) -> dict[str, object]:
        return {**super().endpoint(), "url": self.url}

    def prepare(self) -> None:
        self.datadir.mkdir(parents=True)
        fonts = FONTS.format(fonts=self._root / "usr" / "share" / "fonts", cache=self.directory / "fonts")
        (self.directory / "fonts.conf").write_text(fonts)

    def environment(self) -> Mapping[str, str]:
        return {
            **libraries(self._root, self._machine),
            "FONTCONFIG_FILE": str(self.directory / "fonts.conf"),
            "HOME": str(self.datadir),
            "TMPDIR": str(self.datadir),
        }

    def command(self) -> list[str]:
        return [
            str(self._root / PROGRAM),
            f"--remote-debugging-address={self.host}",
            f"--remote-debugging-port={self.port}",
            f"--user-data-dir={self.datadir}",
            # It opens pages of this machine only; its own sandbox does not work for root nor in most containers.
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            # No requests except to the opened pages.
            "--disable-background-networking",
            "--disable-component-update",
            "--no-proxy-server",
            "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
            "--no-first-run",
            "--hide-scrollbars",
            "about:blank",
        ]

    def is_ready(self) -> bool:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(f"{self.url}/json/version", timeout=1) as answer:
                return "webSocketDebuggerUrl" in json.load(answer)
        except (OSError, ValueError):
            return False


def libraries(root: Path, machine: str) -> dict[str, str]:
    """Returns where the machine's own loader finds the libraries of the prefix."""
    folder = root / "usr" / "lib" / apt.TRIPLETS[machine]
    return {"LD_LIBRARY_PATH": f"{folder}:{folder / 'pulseaudio'}"}


def check(root: Path, machine: str) -> None:
    """Checks that no library is missing."""
    if not (root / PROGRAM).is_file():
        raise Unavailable(f"the packages of chromium hold no {PROGRAM}.")
    done = subprocess.run(
        ["ldd", root / PROGRAM], capture_output=True, text=True, env=clean_environment(libraries(root, machine))
    )
    missing = re.findall(r"^\s*(.*not found.*)$", done.stdout + done.stderr, re.MULTILINE)
    if missing:
        raise Unavailable(f"chromium does not run on this machine: {'; '.join(missing[:5])}")


class Chromium(Kind):
    """Chromium without a window."""

    name = "chromium"
    version = "of Debian 12"

    def _root(self, cache: Cache, machine: str) -> Path:
        def build(fresh: Path) -> None:
            say(f"downloading chromium with its libraries (Debian {SUITE}) ...")
            apt.unpack(apt.download(fresh / "apt", self.name, SUITE, machine, PACKAGES, WITHOUT), fresh / "root")
            check(fresh / "root", machine)
            shutil.rmtree(fresh / "apt")

        return cache.install(self.name, f"{SUITE} {machine} {' '.join(PACKAGES)} 1", build) / "root"

    def install(self, cache: Cache) -> None:
        self._root(cache, apt.architecture())

    def create(self, cache: Cache, name: str, directory: Path, port: int | None) -> ChromiumServer:
        return self.server(cache, name, directory, port)

    def server(self, cache: Cache, name: str, directory: Path, port: int | None) -> ChromiumServer:
        """Returns a handle for a browser."""
        machine = apt.architecture()
        return ChromiumServer(self._root(cache, machine), machine, name, directory, port)
