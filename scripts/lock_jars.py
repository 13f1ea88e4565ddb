"""Writes devstack/jars.lock: the SHA-256 of each file that Maven or Ivy gives for devstack's servers and benchmarks.

The two choose other versions of a library where its dependants ask for several, so both are asked.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from benchmarks import others
from devstack import canal, maven
from devstack.cache import Cache
from devstack.progress import say
from devstack.servers import canal as canal_server
from devstack.servers import elasticsearch, jvm, kafka, opensearch, rocketmq, zookeeper

WANTED = [
    *(
        module.COORDINATES
        for module in (kafka, zookeeper, elasticsearch, opensearch, rocketmq, others, canal, canal_server)
    ),
    (jvm.COMPILER,),
]


def main() -> int:
    cache, mvn = Cache(), shutil.which("mvn")
    if mvn is None:
        print("lock: Maven is needed: apt-get install maven", file=sys.stderr)
        return 2
    found: dict[str, str] = {}
    for coordinates in WANTED:
        parts = [tuple(one.split(":")) for one in coordinates]
        for way in ("Maven", "Ivy"):
            say(f"{way}: {', '.join(coordinates)} ...")
            with tempfile.TemporaryDirectory(dir=cache.folder("tmp")) as name:
                target = Path(name)
                why = (
                    maven.with_maven(cache, mvn, parts, target)
                    if way == "Maven"
                    else maven.with_ivy(cache, parts, target)
                )
                if why is not None:
                    print(f"lock: {way} does not get {', '.join(coordinates)}: {why}", file=sys.stderr)
                    return 1
                for file in target.iterdir():
                    digest = maven.sha256(file)
                    if found.setdefault(file.name, digest) != digest:
                        print(f"lock: there are two files {file.name}", file=sys.stderr)
                        return 1
    maven.LOCK.write_text("".join(f"{digest}  {name}\n" for name, digest in sorted(found.items())))
    say(f"devstack/jars.lock: {len(found)} files")
    return 0


if __name__ == "__main__":
    sys.exit(main())
