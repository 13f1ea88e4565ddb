"""Unpacks Debian packages with all their libraries into a separate prefix; the system's apt state is not changed.

Mirror, proxy settings and keyring are those of this machine's apt, so no host name is in this file. The programs run
through the prefix's own loader, which is why a package of Debian's unstable suite works on an older system."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from devstack import process
from devstack.cache import Cache
from devstack.errors import Unavailable
from devstack.progress import say

ETC_APT = Path("/etc/apt")
KEYRINGS = (
    Path("/usr/share/keyrings/debian-archive-keyring.gpg"),
    Path("/usr/share/keyrings/debian-archive-keyring.pgp"),
)
TRIPLETS = {"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}
LOADERS = {"amd64": "ld-linux-x86-64.so.2", "arm64": "ld-linux-aarch64.so.1"}
# perl is for helper scripts that are not run here: declared as installed, so that it is not downloaded
PRETENDED = ("perl", "perl-base", "debconf", "psmisc", "adduser", "mysql-common", "mariadb-common")
SKIPPED = re.compile(
    r"((?<!erlang)-base|^libc-gconv-modules-extra|^libtirpc-common|^libsasl2-modules-db|^openssl-provider-legacy)$"
)
UNWANTED = (
    *(f"./usr/share/{name}*" for name in ("doc", "man", "locale", "lintian", "bug", "icu")),
    "./etc/*",
    "./usr/lib/systemd*",
    "./usr/lib/udev*",
)


def mirrors_in(text: str) -> list[str]:
    """Returns the Debian mirrors in apt sources, in both formats (one-line and deb822), without security archives."""
    found: list[str] = []
    for line in text.splitlines():
        if line.lstrip().startswith("#"):
            continue
        for word in line.split():
            address = word.removeprefix("URIs:")
            if re.fullmatch(r"[a-z+]+:\S*/debian(/|\.list)?", address) and address not in found:
                found.append(address)
    return found


def machine_mirrors() -> list[str]:
    """Returns the Debian mirrors that this machine's apt uses."""
    directory = ETC_APT / "sources.list.d"
    files = [*sorted(directory.glob("*.sources")), *sorted(directory.glob("*.list")), ETC_APT / "sources.list"]
    return mirrors_in("\n".join(path.read_text(errors="replace") for path in files if path.is_file()))


def _run(command: Sequence[str], what: str, folder: Path | None = None) -> str:
    try:
        done = process.run(command, _environment(), folder)
    except FileNotFoundError as error:
        raise Unavailable(f"{what} needs the program {error.filename}, which this machine does not have.") from error
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise Unavailable(f"{what} failed: {' / '.join(lines[-3:]) or f'exit status {done.returncode}'}")
    return done.stdout


def _environment() -> dict[str, str]:
    return {**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}


class PrivateApt:
    """An apt state in one work folder that knows a single suite and declares nothing as installed."""

    def __init__(
        self, work: Path, mirror: str, suite: str, architecture: str, pretended: Sequence[str] = PRETENDED
    ) -> None:
        keyring = next((path for path in KEYRINGS if path.exists()), None)
        if keyring is None:
            raise Unavailable("Debian's archive keyring is not on this machine (package debian-archive-keyring).")
        for name in ("etc/empty.d", "state/lists/partial", "cache/archives/partial"):
            (work / name).mkdir(parents=True, exist_ok=True)
        self.archives = work / "cache" / "archives"
        sources = work / "etc" / "sources.list"
        sources.write_text(f"deb [target=Packages arch={architecture} signed-by={keyring}] {mirror} {suite} main\n")
        status = work / "status"
        status.write_text(
            "".join(
                f"Package: {name}\nStatus: install ok installed\nArchitecture: {architecture}\nMulti-Arch: allowed\n"
                "Version: 9999\nMaintainer: x\nDescription: x\n\n"
                for name in pretended
            )
        )
        settings = {
            "Dir::Etc::sourcelist": sources,
            "Dir::Etc::sourceparts": work / "etc" / "empty.d",
            "Dir::Etc::preferences": "/dev/null",
            "Dir::Etc::preferencesparts": work / "etc" / "empty.d",
            "Dir::State": work / "state",
            "Dir::State::status": status,
            "Dir::Cache": work / "cache",
            "Acquire::Languages": "none",
            "APT::Architecture": architecture,
            # else apt, run by root, switches to the user _apt, who can't write below a home directory
            "APT::Sandbox::User": "root",
            "APT::Get::AllowUnauthenticated": "false",
            "Debug::NoLocking": "1",
        }
        self._command = ["apt-get", "-q=2", *(word for k, v in settings.items() for word in ("-o", f"{k}={v}"))]

    def download(self, packages: Sequence[str], *, alone: bool = False) -> list[Path]:
        """Downloads the packages with all their dependencies, or `alone`; returns the files of all of them."""
        what = f"getting the Debian packages {', '.join(packages)}"
        _run([*self._command, "update"], what)
        if alone:
            _run([*self._command, "download", *packages], what, self.archives)
            return sorted(self.archives.glob("*.deb"))
        install = ["install", "-y", "--no-install-recommends"]
        _run([*self._command, *install, "--download-only", *packages], what)
        plan = _run([*self._command, *install, "-s", *packages], what)
        files = []
        for name, version, architecture in re.findall(r"^Inst (\S+) \((\S+) .*\[([a-z0-9]+)\]\)", plan, re.MULTILINE):
            if not SKIPPED.search(name):
                files.append(self.archives / f"{name}_{version.replace(':', '%3a')}_{architecture}.deb")
        return files


def unpack(files: Iterable[Path], root: Path) -> None:
    """Unpacks .deb files into a root with merged /usr, so that /lib and /usr/lib are one folder."""
    for name in ("lib", "lib64", "bin", "sbin"):
        (root / "usr" / name).mkdir(parents=True, exist_ok=True)
        (root / name).symlink_to(f"usr/{name}")
    excludes = [f"--exclude={pattern}" for pattern in UNWANTED]
    for file in files:
        with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(file)], stdout=subprocess.PIPE) as reader:
            done = subprocess.run(
                ["tar", "-x", "-C", str(root), "--no-same-owner", "--keep-directory-symlink", *excludes],
                stdin=reader.stdout,
                capture_output=True,
                text=True,
            )
        if done.returncode != 0 or reader.returncode != 0:
            raise Unavailable(f"unpacking {file.name} failed: {done.stderr.strip()[-300:]}")


class Prefix:
    """Programs in an unpacked root, run with the root's own loader and libraries."""

    def __init__(self, root: Path, architecture: str, private: Sequence[str] = ()) -> None:
        self.root = root
        libraries = root / "usr" / "lib" / TRIPLETS[architecture]
        self._loader = libraries / LOADERS[architecture]
        self._path = ":".join([str(libraries), *(str(root / name) for name in private)])

    def argv(self, program: str) -> list[str]:
        """Returns the beginning of a command line that runs `program` (a path below the root)."""
        return [str(self._loader), "--library-path", self._path, str(self.root / program)]

    def check(self, program: str) -> None:
        """Checks that every library comes from the prefix: a mixture with the system's crashes."""
        command = self.argv(program)
        listing = _run([*command[:3], "--list", command[3]], f"loading {program}")
        outside = [line.strip() for line in listing.splitlines() if re.search(r"not found|=> /(usr/)?lib", line)]
        if outside:
            raise Unavailable(f"libraries of {program} are missing from its packages: {'; '.join(outside[:5])}")


def architecture() -> str:
    """Returns this machine's Debian architecture."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise Unavailable(
            "MySQL, MariaDB, RabbitMQ, Redis, etcd and Prometheus come from Debian packages; this machine has no"
            " apt-get and dpkg-deb."
        )
    name = _run(["dpkg", "--print-architecture"], "asking for the architecture").strip()
    if name not in TRIPLETS:
        raise Unavailable(f"no server packages are known for the architecture {name}.")
    return name


def download(
    work: Path,
    name: str,
    suite: str,
    machine: str,
    packages: Sequence[str],
    without: Sequence[str] = (),
    *,
    alone: bool = False,
) -> list[Path]:
    """Returns the files of packages of a Debian suite and of all their dependencies except `without`, or of the
    packages `alone`, from the first mirror that has them; creates the folder `work`."""
    mirrors = machine_mirrors()
    if not mirrors:
        raise Unavailable(f"{name} can't be installed: this machine's apt sources name no Debian mirror.")
    for mirror in mirrors[:-1]:
        try:
            return PrivateApt(work, mirror, suite, machine, (*PRETENDED, *without)).download(packages, alone=alone)
        except Unavailable:
            shutil.rmtree(work, ignore_errors=True)
    return PrivateApt(work, mirrors[-1], suite, machine, (*PRETENDED, *without)).download(packages, alone=alone)


def install(
    cache: Cache,
    name: str,
    suite: str,
    packages: Sequence[str],
    private: Sequence[str],
    probe: str,
    without: Sequence[str] = (),
    finish: Callable[[Path], None] | None = None,
) -> Prefix:
    """Returns the prefix `name` with these packages of a Debian suite; `probe` is the program (or a pattern of it)
    whose libraries are checked.

    Packages in `without` are left out, although others depend on them. `finish` may change the unpacked root before
    that."""
    machine = architecture()

    def build(fresh: Path) -> None:
        say(f"downloading {name} with its libraries (Debian {suite}) ...")
        unpack(download(fresh / "apt", name, suite, machine, packages, without), fresh / "root")
        if finish is not None:
            finish(fresh / "root")
        prefix = Prefix(fresh / "root", machine, private)
        programs = [str(path.relative_to(prefix.root)) for path in prefix.root.glob(probe)]
        if not programs:
            raise Unavailable(f"the packages of {name} hold no {probe}.")
        for program in programs:
            prefix.check(program)
        shutil.rmtree(fresh / "apt")

    recipe = f"{suite} {machine} {' '.join(packages)} 1"
    return Prefix(cache.install(name, recipe, build) / "root", machine, private)
