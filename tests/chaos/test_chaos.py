"""Three daemons of one cluster through kills, freezes, partitions and restarts; and broken ones, which are caught."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from devstack import Stack
from sim.topic_checker import Findings
from tests.chaos.__main__ import DELIVERIES, report
from tests.chaos.faults import KINDS
from tests.chaos.fleet import Fleet, Wanted
from tests.chaos.run import judge, length, run_seed
from tests.chaos.servers import Links, Servers
from tests.chaos.writer import Writer, create
from tests.support import eventually

pytestmark = [pytest.mark.server, pytest.mark.long]

SEED = 1
SECONDS = 180.0


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    with Stack() as stack:
        made = Servers(stack)
        yield made
        made.close()


def test_three_minutes_of_faults_leave_both_topics_sound(servers: Servers, tmp_path: Path) -> None:
    outcome = run_seed(servers, tmp_path, SEED, SECONDS, DELIVERIES)
    print(report(outcome))
    assert outcome.sound, report(outcome)
    assert len(outcome.kinds) >= 10, outcome.kinds
    assert set(outcome.kinds) <= set(KINDS)
    assert len(outcome.take_overs) >= 5, report(outcome)
    assert outcome.rows > 5_000
    once = next(found for found in outcome.topics.values() if found.delivery == "exactly_once")
    assert (once.duplicates, once.escaped_messages) == (0, 0)


class Scene:
    """One destination, at least once, run by one of three daemons; what happens to them is the test's."""

    def __init__(
        self, servers: Servers, folder: Path, schema: str, broken: str, checkpoint: str, session_timeout: float = 6.0
    ) -> None:
        create(servers.mysql, schema)
        self.servers, self.schema = servers, schema
        # Long limits: what ends a broken daemon is to be the checker's verdict, not a silence of its servers.
        source = 'heartbeat = "30s"'
        self.wanted = Wanted(schema, schema, rows_per_message=1, request_timeout="60s", source=source)
        self.fleet = Fleet(
            servers,
            folder,
            [self.wanted],
            root=f"/{schema}",
            broken=broken,
            checkpoint=checkpoint,
            session_timeout=session_timeout,
        )
        self.writer = Writer(servers.mysql, schema, 1)
        self.active = ""
        """The node that runs it at first."""

    def __enter__(self) -> Scene:
        try:
            self.fleet.start()
            self.active = self.fleet.wait_active(self.schema)
            self.insert(1, 100)
            eventually(lambda: length(self.servers, self.schema) >= 100, 30, self.fleet.tails)
        except BaseException:
            self.__exit__()
            raise
        return self

    @property
    def links(self) -> Links:
        """Of that node."""
        return self.fleet.links(self.active)

    def __exit__(self, *_: object) -> None:
        self.servers.heal()
        self.fleet.close()

    def insert(self, first: int, count: int) -> None:
        """So many new rows in one transaction."""
        values = ",".join(f"({i},'part {i}',{i})" for i in range(first, first + count))
        with self.writer.connect(autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute(f"INSERT INTO parts VALUES {values}")

    def count(self, name: str, node: str = "") -> float:
        """A number of the destination's health, of the first active daemon unless told."""
        return float(self.fleet.status(node or self.active, self.schema).get(name) or 0)

    @property
    def state(self) -> str:
        return str(self.fleet.status(self.active, self.schema).get("state", ""))

    def judged(self) -> Findings:
        """What the checker says after everything is healed."""
        self.servers.heal()
        self.fleet.heal()
        self.writer.stop()
        return judge(self.servers, self.schema, [self.wanted], 60)[self.schema]


def test_a_daemon_that_stores_positions_before_confirmation_is_caught(servers: Servers, tmp_path: Path) -> None:
    """Its brokers do not answer, it goes on all the same, and then it is killed."""
    # A long session: a lease that lapses has to wait for the brokers, and then nothing is broken.
    with Scene(servers, tmp_path, "early", "position_before_confirmation", "200ms", session_timeout=20.0) as scene:
        for proxy in scene.links.kafka.values():
            proxy.freeze()
        scene.insert(1000, 50)
        eventually(lambda: scene.count("rows") >= 150, 30, scene.fleet.tails)
        counted = time.monotonic()
        eventually(lambda: time.monotonic() - scene.count("last_checkpoint_seconds") > counted, 30, scene.fleet.tails)
        scene.fleet.daemons[scene.active].kill()
        for proxy in scene.links.kafka.values():
            proxy.close_all()  # what was on its way is gone with it
        scene.fleet.wait_active(scene.schema, besides=scene.active)
        found = scene.judged()
        assert found.counts["missing"] == 50, found
        assert found.counts["table"] == 2, found


@pytest.mark.parametrize("broken", ["no_lease", "none"])
def test_a_daemon_that_sends_without_a_lease_is_caught(broken: str, servers: Servers, tmp_path: Path) -> None:
    """It is frozen with much in its hands and goes on when another one has taken over. A sound one sends no more than
    what was in flight."""
    with Scene(servers, tmp_path, f"late_{broken}", broken, "60s") as scene:
        old = scene.fleet.daemons[scene.active]
        for proxy in scene.links.kafka.values():
            proxy.freeze()
        scene.insert(1000, 25_000)
        eventually(lambda: scene.count("queue_bytes") > 6 << 20, 30, scene.fleet.tails)
        old.freeze()
        scene.links.mysql.freeze()  # nothing in the binlog tells it of its successor
        new = scene.fleet.wait_active(scene.schema, besides=scene.active)
        eventually(lambda: scene.count("messages", new) > 0, 30, scene.fleet.tails)
        for proxy in scene.links.kafka.values():
            proxy.thaw()
        old.thaw()
        if broken == "none":
            eventually(lambda: scene.state == "STANDBY", 30, scene.fleet.tails)
        else:  # only a healed network could tell it
            eventually(lambda: scene.count("rows") >= 10_100, 30, scene.fleet.tails)
        found = scene.judged()
        if broken == "none":
            assert found.sound, (found, scene.fleet.tails())
        else:
            assert found.counts == {"escaped": 1}, (found, scene.fleet.tails())
            assert found.escaped_bytes > 2 * found.bound
