"""`scripts/demo`: brings everything up, changes the table, kills the daemon, searches, and compares in the end."""

from __future__ import annotations

import argparse
import os
import random
import sys
import threading
import time
import unicodedata
from pathlib import Path

from demo import catalog
from demo.compare import INDEX, Comparison, search
from demo.pipeline import DEAD_LETTERS, TOPIC, DemoFailed, Pipeline
from devstack import DevstackError, Stack, Unavailable
from devstack.servers.sql import SqlServer
from headrace_documents.cluster import Cluster

PHRASE = "家庭保洁"
CHANGES = 120
SHOWN = 5
_BEGAN = time.monotonic() - float(os.environ.get("DEMO_ELAPSED", "0"))


def step(text: str) -> None:
    """One progress line, in the form that the script's own have."""
    print(f"demo: [{time.monotonic() - _BEGAN:3.0f} s] {text}", flush=True)


def keep_temporary_files_in(folder: Path) -> None:
    """For this process and all that it starts: nothing is written to the system's folders or to the user's home."""
    folder.mkdir()
    os.environ["TMPDIR"] = str(folder)
    options = ["-XX:-UsePerfData", f"-Djava.io.tmpdir={folder}", f"-Djna.tmpdir={folder}"]
    os.environ["JAVA_TOOL_OPTIONS"] = " ".join([os.environ.get("JAVA_TOOL_OPTIONS", ""), *options]).strip()


def start_source(stack: Stack, mariadb: bool) -> tuple[SqlServer, str]:
    """MySQL, or MariaDB when that is wanted or MySQL can't be had; with its name for people."""
    if not mariadb:
        try:
            return stack.mysql(), "MySQL"
        except Unavailable as error:
            step(f"{error}")
            step("going on with MariaDB instead")
    return stack.mariadb(), "MariaDB"


def _padded(text: str, width: int) -> str:
    """The text with blanks up to a width on the screen, where a Chinese character takes two."""
    taken = sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)
    return text + " " * max(width - taken, 0)


def show_hits(cluster: Cluster) -> None:
    """The search that all this is for."""
    total, hits = search(cluster, PHRASE, SHOWN)
    step(f"search in Elasticsearch for {PHRASE}: {total} hits")
    for hit in hits:
        sale = "on sale" if hit["is_on_sale"] else "not on sale"
        print(
            f"        {_padded(hit['name'], 34)}{_padded(hit['city_name'], 8)}{hit['price']:>9} 元/{hit['unit']}  "
            f"{sale}{', hot' if hit['is_hot'] else ''}"
        )
    if total > len(hits):
        print(f"        ... and {total - len(hits)} more", flush=True)


def kill_in_the_middle(pipeline: Pipeline, chance: random.Random) -> None:
    """Changes the table all the time, while the daemon is killed and started again."""
    killed, began = threading.Event(), threading.Event()
    done: dict[str, int] = {}
    failures: list[BaseException] = []

    def each(number: int) -> None:
        if number == CHANGES // 3:
            began.set()
        if number == 2 * CHANGES // 3:
            killed.wait(30)  # a third of the changes comes while the daemon is dead for sure
        time.sleep(0.01)

    def write() -> None:
        try:
            done.update(catalog.change(pipeline.source, chance, CHANGES, each))
        except BaseException as error:
            failures.append(error)
        finally:
            began.set()

    writer = threading.Thread(target=write, name="writer", daemon=True)
    writer.start()
    began.wait(60)
    pid = pipeline.daemon.pid
    pipeline.daemon.kill()
    step(f"headrace killed with SIGKILL in the middle of the changes (process {pid})")
    killed.set()
    writer.join(60)
    if failures or writer.is_alive():
        raise DemoFailed(f"the changes to the table failed: {failures or 'not done in 60 s'}")
    told = ", ".join(f"{count} {kind}" for kind, count in done.items())
    step(f"the changes went on without it: {told}")
    seconds = pipeline.start_daemon()
    step(f"headrace started again: it streams after {seconds:.1f} s from where it was")


def require_identical(found: Comparison) -> None:
    """Raises DemoFailed with the first differences."""
    if not found.identical:
        lines = [f"    {line}" for line in found.differences[:10]]
        more = f"\n    ... and {len(found.differences) - 10} more" if len(found.differences) > 10 else ""
        raise DemoFailed(
            f"{found.rows} rows, {found.documents} documents, {len(found.differences)} differences\n"
            + "\n".join(lines)
            + more
        )


def run_steps(pipeline: Pipeline, name: str) -> Comparison:
    """Everything between the start of the servers and the verdict."""
    chance = random.Random(1)
    pipeline.consumer.start()
    seconds = pipeline.start_daemon()
    step(f"headrace streams the binlog of {name} into Kafka ({seconds:.1f} s)")
    catalog.create(pipeline.source)
    rows = catalog.services(chance)
    catalog.fill(pipeline.source, rows)
    step(f"table {INDEX}: {len(rows)} services inserted; waiting for the Spark consumer, which starts meanwhile")
    require_identical(pipeline.wait_identical(180))
    step(f"all {len(rows)} are in Elasticsearch")
    show_hits(pipeline.cluster)
    step("now the table changes: updates, deletes, changed keys, inserts")
    kill_in_the_middle(pipeline, chance)
    added = catalog.alter(pipeline.source, chance)
    step(f"table altered: a new column, {added} more services, and a value of it for every other row")
    found = pipeline.wait_identical(90)
    require_identical(found)
    step("the changes are in Elasticsearch")
    show_hits(pipeline.cluster)
    return found


def keep(pipeline: Pipeline, name: str) -> None:
    """Leaves everything running until Ctrl-C, and says where it is."""
    source = pipeline.source
    client = f"mysql -h {source.host} -P {source.port} -u root -p{source.root_password} {catalog.DATABASE}"
    print(
        f"""
demo: all of it keeps running; Ctrl-C ends it. Change the table and search for it a second later.

    health          {pipeline.health_url}   (and /metrics)
    {name:<16}{source.address}, root / {source.root_password}; headrace is {source.user} / {source.password}
                    {client}
    Kafka           {pipeline.kafka.bootstrap_servers}, topic {TOPIC}, dead letters in {DEAD_LETTERS}
    Elasticsearch   {pipeline.elastic_server.url}/{INDEX}/_search?pretty&q=city_name:上海
    logs, config    {pipeline.folder}
""",
        flush=True,
    )
    while True:
        time.sleep(1)
        pipeline.daemon.require_running()
        pipeline.consumer.require_running()


def demo(options: argparse.Namespace) -> None:
    """Raises DemoFailed when the documents are not the rows."""
    with Stack() as stack:
        keep_temporary_files_in(stack.directory / "tmp")
        step("starting the servers")
        source, name = start_source(stack, options.mariadb)
        kafka = stack.kafka()
        elastic = stack.elasticsearch()
        step(f"{name}, Kafka and Elasticsearch are up")
        with Pipeline(stack, source, kafka, elastic, stack.directory / "demo") as pipeline:
            found = run_steps(pipeline, name)
            print(f"demo: {found.rows} rows, {found.documents} documents, identical", flush=True)
            if options.keep:
                keep(pipeline, name)


def main() -> int:
    """Exit codes: 0 identical, 1 not, 2 the machine lacks something, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(
        prog="scripts/demo",
        description="Rows changed in MySQL are found in Elasticsearch: all of it on real servers on this machine.",
    )
    parser.add_argument("--keep", action="store_true", help="leave all running until Ctrl-C, and print where it is")
    parser.add_argument("--mariadb", action="store_true", help="use MariaDB in place of MySQL")
    options = parser.parse_args()
    try:
        demo(options)
    except DemoFailed as error:
        print(f"demo: FAILED: {error}", file=sys.stderr)
        return 1
    except DevstackError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\ndemo: interrupted; everything that was started has ended", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
