"""`scripts/test suites`: feeds MySQL's and MariaDB's own tests to a server that two daemons follow, one with native
code and one without, and compares what they publish with SELECT around each DDL statement. Exit status 1: something
differs, a destination stopped for a reason that the documentation does not name, or memory grew."""

from __future__ import annotations

import argparse
import random
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import pymysql

from devstack import Stack, suites
from tests.suites import reader
from tests.suites.feeder import Feeder
from tests.suites.follower import Follower, Stop

SERVERS = ("mysql", "mariadb")
EXPLAINED: tuple[tuple[str, str], ...] = (
    (
        r"^t/foreign_key_sql_self\.test: .*: test\.t1: UPDATE of a row that is not there",
        "MySQL 9.7 writes a row twice that a circle of cascading foreign keys comes back to",
    ),
    (r"^suite/innodb/t/insert_into_empty\.test: .*: \d+ rows of", "docs/guarantees-data.md: bulk inserts of MariaDB"),
    (
        r"^suite/gcol/t/gcol_supported_sql_funcs\w*\.test: .*: \d+ rows of",
        "a virtual column by the time zone of the session, which each session sees otherwise",
    ),
    (
        r"^suite/gcol/t/innodb_virtual_basic\.test: .*: \d+ rows of",
        "MINIMAL images lack generated columns that an update has changed",
    ),
    (r"^suite/versioning/.*was written as text, its rows are not in the binlog", "docs/guarantees-data.md: S3"),
    (r"that changed captured tables ends in a ROLLBACK", "docs/guarantees-data.md: S7"),
    (r"a period is added|WITHOUT OVERLAPS|versioning with columns of its own", "docs/schema-history.md"),
    (r"^suite/versioning/t/alter\.test: .*: statements kept changing it", "docs/schema-history.md: the same"),
)
"""Stops and differences that are none of headrace's: what their text has, and the fault of the server or the page that
names them."""
GROWTH = 1.1
"""What memory in the last fifth of the tests may be of that in the fifth after their middle."""


@dataclass(frozen=True)
class Mode:
    """How a server writes its binlog."""

    server: str
    metadata: str
    image: str
    compressed: bool

    def __str__(self) -> str:
        return f"{self.server} metadata={self.metadata} image={self.image}{' compressed' if self.compressed else ''}"

    def options(self) -> list[str]:
        """The server's options."""
        metadata, compression = self.metadata, "--binlog-transaction-compression=ON"
        if self.server == "mariadb":
            metadata = "NO_LOG" if metadata == "MINIMAL" else metadata
            compression = "--log-bin-compress=ON"
        return [
            f"--binlog-row-metadata={metadata}",
            f"--binlog-row-image={self.image}",
            "--event-scheduler=OFF",
            "--max-binlog-size=1G",
            "--sync-binlog=0",
            "--innodb-flush-log-at-trx-commit=2",
            "--innodb-flush-method=nosync",  # the machine is not to crash, and this takes half of the time away
            "--innodb-doublewrite=OFF",
            *([compression] if self.compressed else []),
        ]


@dataclass
class Outcome:
    """What one mode was fed, and what came of it."""

    mode: Mode
    tests: int = 0
    seconds: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)
    stops: int = 0
    differences: int = 0
    unexplained: int = 0
    """Of these and of what else went wrong."""
    followers: list[Follower] = field(default_factory=list)

    def found(self, text: str) -> None:
        """Counts and prints what was found, with the reason where it is known."""
        reason = next((reason for pattern, reason in EXPLAINED if re.search(pattern, text, re.DOTALL)), "")
        self.unexplained += not reason
        print(f"  {self.mode}: {text}{f' [{reason}]' if reason else ''}", flush=True)

    @property
    def growth(self) -> dict[str, float]:
        """Memory at the end, as a share of that after the middle; of runs that are long enough to tell."""
        found = {}
        for one in self.followers:
            fifth = len(one.memory) // 5
            if fifth >= 40:
                found[one.name] = max(one.memory[-fifth:]) / max(one.memory[2 * fifth : 3 * fifth])
        return found

    @property
    def sound(self) -> bool:
        compared = all(one.replay.rows_compared for one in self.followers)
        level = all(growth <= GROWTH for growth in self.growth.values())
        return compared and level and not self.unexplained

    def report(self) -> str:
        """The figures of a mode, and all that was found."""
        lines = [
            f"{self.mode}: {'sound' if self.sound else 'NOT SOUND'}, {self.tests} tests in {self.seconds:.0f} s, "
            + ", ".join(f"{count:,} {name}" for name, count in sorted(self.counts.items()))
        ]
        for one in self.followers:
            replay, memory = one.replay, [*one.memory, 0]
            places = (len(one.memory) // 10, len(one.memory) // 2, len(one.memory) - 1)
            lines.append(
                f"  {one.made_by}: {replay.rows:,} changed rows; compared: {replay.tables_compared:,} tables,"
                f" {replay.rows_compared:,} rows, {replay.cells_compared:,} cells; left out: {replay.left_out};"
                f" memory {', '.join(f'{memory[place] / 2**20:.0f}' for place in places)} MiB"
            )
        lines.append(
            f"  {self.stops} stops, {self.differences} differences; {self.unexplained} of all are not explained"
        )
        return "\n".join(lines)


def run_mode(stack: Stack, folder: Path, mode: Mode, tests: list[Path], root: Path, seconds: float) -> Outcome:
    """Feeds tests until the time is over."""
    outcome, began = Outcome(mode), time.monotonic()
    server: Any = stack.sql(mode.server, None, *mode.options(), name=re.sub(r"\W+", "-", str(mode)))
    feeder = Feeder(server, mariadb=mode.server == "mariadb")
    whole = mode.image == "FULL"
    folder.mkdir(parents=True)
    outcome.followers = [
        Follower(folder, server, name, native=native, whole=whole)
        for name, native in (("native", "auto"), ("python", "off"))
    ]
    try:
        for follower in outcome.followers:
            follower.start()
        for test in tests:
            if time.monotonic() - began > seconds:
                break
            name = str(test.relative_to(root))
            try:
                feeder.run(reader.statements(test, root))
            except pymysql.err.MySQLError as error:
                outcome.found(f"{name}: the server ended or hung: {error}; {feeder.at}")
                break
            outcome.tests += 1
            if outcome.tests % 100 == 0:
                print(f"  {mode}: {outcome.tests} tests, {time.monotonic() - began:.0f} s", flush=True)
            for follower in outcome.followers:
                _follow(follower, feeder, outcome, name)
            feeder.snapshots.clear()
    finally:
        for follower in outcome.followers:
            follower.daemon.kill()
        feeder.close()
        server.stop()
    outcome.seconds, outcome.counts = time.monotonic() - began, dict(feeder.counts)
    return outcome


def _follow(follower: Follower, feeder: Feeder, outcome: Outcome, test: str) -> None:
    known = len(follower.replay.differences)
    try:
        follower.follow(feeder.mark, feeder.snapshots)
    except Stop as stop:
        outcome.stops += 1
        outcome.found(f"{test}: {follower.name}: {stop}")
        follower.pass_over(*feeder.end(), feeder.mark)
    for text in follower.replay.differences[known:]:
        outcome.differences += 1
        outcome.found(f"{test}: {follower.name}: {text}")


def modes(arguments: argparse.Namespace) -> list[Mode]:
    """Those that the arguments choose; each metadata with each image, and of the four two compressed."""
    made = [
        Mode(server, metadata, image, arguments.compressed or metadata != image)
        for server, metadata, image in product(SERVERS, ("FULL", "MINIMAL"), ("FULL", "MINIMAL"))
    ]
    return [
        mode
        for mode in made
        if arguments.server in (None, mode.server)
        and arguments.metadata in (None, mode.metadata)
        and arguments.image in (None, mode.image)
    ]


def make_parser() -> argparse.ArgumentParser:
    """The arguments of `scripts/test suites`."""
    parser = argparse.ArgumentParser(prog="scripts/test suites", description=__doc__)
    parser.add_argument("server", nargs="?", choices=SERVERS, help="default: both")
    parser.add_argument("--metadata", choices=("FULL", "MINIMAL"), help="binlog_row_metadata (default: both in turn)")
    parser.add_argument("--image", choices=("FULL", "MINIMAL"), help="binlog_row_image (default: both in turn)")
    parser.add_argument(
        "--compressed", action="store_true", help="transactions compressed (default: in half of the modes)"
    )
    parser.add_argument("--seed", type=int, default=1, help="what decides the order of the tests (default 1)")
    parser.add_argument("--minutes", type=float, default=40.0, help="for all modes together (default 40)")
    parser.add_argument("--only", default="", metavar="PATTERN", help="tests whose path matches a regular expression")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    arguments = make_parser().parse_args(argv)
    chosen, sound = modes(arguments), True
    with tempfile.TemporaryDirectory(prefix="suites-") as folder, Stack() as stack:
        end = time.monotonic() + arguments.minutes * 60
        for number, mode in enumerate(chosen):
            mysql = mode.server == "mysql"
            root = (suites.mysql if mysql else suites.mariadb)(stack.cache)
            tests = reader.files(root, reader.MYSQL if mysql else reader.MARIADB)
            tests = [test for test in tests if re.search(arguments.only, str(test.relative_to(root)))]
            random.Random(f"{arguments.seed} {mode}").shuffle(tests)
            seconds = (end - time.monotonic()) / (len(chosen) - number)
            outcome = run_mode(stack, Path(folder) / str(number), mode, tests, root, seconds)
            print(outcome.report(), flush=True)
            sound = sound and outcome.sound
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(main())
