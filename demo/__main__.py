"""`scripts/demo`: brings everything up, changes the tables, kills the daemon, searches, and compares in the end."""

from __future__ import annotations

import argparse
import os
import random
import sys
import threading
import time
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

from demo import catalog
from demo.compare import INDEX, Comparison
from demo.pipeline import DemoFailed, Pipeline
from demo.search import prices, search
from demo.search_page import SearchPage
from devstack import DevstackError, Stack, Unavailable
from devstack.servers.sql import SqlServer
from headrace_documents.elastic.cluster import Cluster

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
    """The search that all this is for: what was found is between brackets."""
    found = search(cluster, PHRASE, SHOWN)
    step(f"search in Elasticsearch for {PHRASE}: {found.total} hits")
    for hit in found.hits:
        item, kind = (
            "".join(f"[{text}]" if marked else text for text, marked in hit.marked.get(name, []))
            for name in ("item_name", "type.name")
        )
        priced = ", ".join(f"{one['price']:.2f} 元/{one['unit']}" for one in prices(hit.source))
        sale = "on sale" if hit.source["is_on_sale"] else "not on sale"
        print(
            f"        {_padded(item, 26)}{_padded(kind, 20)}{_padded(hit.source['city_name'], 6)}"
            f"{sale}{', hot' if hit.source['is_hot'] else ''}; {priced}"
        )
    if found.total > len(found.hits):
        print(f"        ... and {found.total - len(found.hits)} more", flush=True)


def kill_in_the_middle(pipeline: Pipeline, chance: random.Random) -> None:
    """Changes the tables all the time, while the daemon is killed and started again."""
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
        raise DemoFailed(f"the changes to the tables failed: {failures or 'not done in 60 s'}")
    reported = ", ".join(f"{count} {kind}" for kind, count in done.items())
    step(f"the changes went on without it: {reported}")
    seconds = pipeline.start_daemon()
    step(f"headrace started again: it streams after {seconds:.1f} s from where it was")


def require_identical(pipeline: Pipeline, found: Comparison) -> None:
    """Raises DemoFailed with the first differences, and with the end of the log of the consumer."""
    if not found.identical:
        lines = [f"    {line[:300]}" for line in found.differences[:10]]
        if len(found.differences) > len(lines):
            lines.append(f"    ... and {len(found.differences) - len(lines)} more")
        reported = f"{found.rows} rows, {found.documents} documents, {len(found.differences)} differences"
        raise DemoFailed("\n".join([reported, *lines, pipeline.consumer.tail()]))


def run_steps(pipeline: Pipeline, name: str) -> Comparison:
    """Everything between the start of the servers and the verdict."""
    chance = random.Random(1)
    pipeline.consumer.start()
    seconds = pipeline.start_daemon()
    step(f"headrace streams the binlog of {name} into Kafka ({seconds:.1f} s)")
    catalog.create(pipeline.source)
    count = catalog.fill(pipeline.source, chance)
    step(f"four tables: {count} services inserted; waiting for the Spark consumer, which starts meanwhile")
    pipeline.wait_consumer()
    require_identical(pipeline, pipeline.wait_identical())
    step(f"all {count} are in Elasticsearch, each with its item, type and prices")
    show_hits(pipeline.cluster)
    step("now the tables change: updates, deletes, changed keys, inserts; a renamed type reaches all of its services")
    kill_in_the_middle(pipeline, chance)
    added = catalog.alter(pipeline.source, chance)
    step(f"table serve_item altered: a new column with a value for every item, and {added} more services")
    found = pipeline.wait_identical(90)
    require_identical(pipeline, found)
    step("the changes are in Elasticsearch: the documents are the join that the database computes")
    show_hits(pipeline.cluster)
    return found


def keep(pipeline: Pipeline, name: str) -> None:
    """Leaves everything running until Ctrl-C, with a page to search and edit, and says where it is."""
    source = pipeline.source
    client = f"mysql -h {source.host} -P {source.port} -u root -p{source.root_password} {catalog.DATABASE}"
    with SearchPage(pipeline.cluster, source) as page:
        print(
            f"""
demo: all of it keeps running; Ctrl-C ends it. Edit a row on the page, or by SQL: the hits follow a moment later.

    search page     {page.url}?q={quote(PHRASE)}   (searches for {PHRASE})
    health          {pipeline.health_url}   (and /metrics)
    {name:<16}{source.address}, root / {source.root_password}; headrace is {source.user} / {source.password}
                    {client}
    Kafka           {pipeline.kafka.bootstrap_servers}, topic {pipeline.topic}, dead letters in {pipeline.dead_letters}
    Elasticsearch   {pipeline.elastic_server.url}/{INDEX}/_search?pretty
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
        with ThreadPoolExecutor(2) as pool:
            starting = pool.submit(stack.kafka), pool.submit(stack.elasticsearch)
            source, name = start_source(stack, options.mariadb)
        kafka, elastic = starting[0].result(), starting[1].result()
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
    parser.add_argument(
        "--keep", action="store_true", help="leave all running until Ctrl-C, with a search page, and print where it is"
    )
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
