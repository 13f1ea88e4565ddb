"""A partition on its brokers: leader, in-sync replicas, and elections as KRaft's controller makes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from sim.kafka import codes
from sim.kafka.log import Log
from sim.kafka.records import Batch

if TYPE_CHECKING:
    from sim.kafka.cluster import Cluster, Topic

NOBODY = -1
NEVER = 2**62
"""An offset that no partition reaches."""


class Reader(Protocol):
    """A Fetch request that waits for data."""

    def try_answer(self) -> None:
        """Answers it if that is possible now."""


class Partition:
    """One partition. Followers have what the leader has, except those that are behind."""

    def __init__(self, cluster: Cluster, topic: Topic, number: int, replicas: list[int]) -> None:
        self.topic, self.number, self.replicas = topic, number, replicas
        self.log = Log()
        self.isr = list(replicas)
        self.leader, self.epoch = NOBODY, -1
        self.settled_at = 0.0
        """On the loop's clock: from when on a new leader knows the end of what all have."""
        self.behind: dict[int, int] = {}
        """The end of the log of each replica that does not fetch now; all others have the whole log."""
        self.readers: dict[Reader, None] = {}
        self._cluster = cluster
        self._waiting: list[tuple[int, Callable[[int], None], bool]] = []
        """What waits until all in-sync replicas have the records before an offset; called with an error code. And
        whether it is a client at the leader."""

    def append(self, batch: Batch) -> None:
        """Stores a batch on the leader, and on the replicas that follow."""
        self.log.append(batch, self.epoch, self.topic.segment_bytes, self.topic.segment_ms)
        self.replicate()

    def replicate(self) -> None:
        """Moves the high watermark to what all in-sync replicas have."""
        end = self.log.end
        if self.behind and (self.leader == NOBODY or not self._cluster.brokers[self.leader].reachable):
            return
        for broker, own in self.behind.items():
            if own < end and broker in self.isr:
                end = own
        if not self.log.advance(end):
            return
        if self._waiting:
            ready = [one[1] for one in self._waiting if one[0] <= end]
            self._waiting = [one for one in self._waiting if one[0] > end]
            for done in ready:
                done(self._after_append())
        self.wake()

    def _after_append(self) -> int:
        return codes.NOT_ENOUGH_REPLICAS_AFTER_APPEND if len(self.isr) < self.topic.min_isr else codes.NONE

    def wake(self) -> None:
        """Answers waiting readers that can be answered now."""
        if self.readers:
            for reader in list(self.readers):
                reader.try_answer()

    def when_replicated(self, offset: int, done: Callable[[int], None], *, client: bool = False) -> None:
        """Calls back once all in-sync replicas have the records before an offset, or with an error code. `client`: for
        a client, which hears nothing of an election while its broker is cut off."""
        if self.log.high_watermark >= offset:
            done(self._after_append())
        else:
            self._waiting.append((offset, done, client))

    def give_up(self, done: Callable[[int], None]) -> bool:
        """Removes a callback; returns whether it still waited."""
        count = len(self._waiting)
        self._waiting = [one for one in self._waiting if one[1] is not done]
        return len(self._waiting) < count

    def fail_waiting(self, code: int, beyond: int = -1, most: int = NEVER - 1) -> None:
        """Calls back with an error code everyone who waits for offsets after `beyond`, up to `most`."""
        failed = [one[1] for one in self._waiting if beyond < one[0] <= most]
        self._waiting = [one for one in self._waiting if not beyond < one[0] <= most]
        for done in failed:
            done(code)

    # -- replicas and elections ---------------------------------------------------------------------------------------

    def fall_behind(self, broker: int) -> None:
        """Notes that a replica fetches no more."""
        if broker in self.replicas and broker != self.leader:
            self.behind.setdefault(broker, self.log.end)

    def catch_up(self, broker: int) -> None:
        """Notes that a replica fetches again: it has all, and is in sync."""
        if broker not in self.replicas:
            return
        if self.leader == NOBODY:
            self.elect()
        if self.leader == NOBODY or not self._cluster.brokers[self.leader].reachable:
            return
        self.behind.pop(broker, None)
        if broker not in self.isr:
            self.isr.append(broker)
        self.replicate()

    def fence(self, broker: int) -> None:
        """Handles the end of a broker's session: it leaves the in-sync replicas, unless it is the last of them."""
        if broker not in self.replicas:
            return
        self.behind.setdefault(broker, self.log.end)
        self.drop_from_isr(broker)
        if self.leader == broker:
            self.elect()

    def drop_from_isr(self, broker: int) -> None:
        """Takes a broker out of the in-sync replicas, unless it is the last of them."""
        if broker in self.isr and len(self.isr) > 1:
            self.isr.remove(broker)
            if self.leader not in (NOBODY, broker):
                self.replicate()

    def elect(self) -> None:
        """Elects the first usable replica; one that is not in sync only if the topic allows unclean elections."""
        alive = [one for one in self.replicas if self._cluster.brokers[one].registered]
        usable = [one for one in alive if one in self.isr]
        if not usable and alive and self.topic.setting("unclean.leader.election.enable") == "true":
            usable = alive
            self.isr = [alive[0]]
        leader = usable[0] if usable else NOBODY
        if leader != self.leader:
            self.lead(leader)

    def lead(self, broker: int) -> None:
        """Makes a broker the leader, under the next epoch. What it does not have is lost."""
        former, self.leader = self.leader, broker
        self.epoch += 1
        if broker != NOBODY:
            if broker not in self.isr:
                self.isr.append(broker)
            self.lose(self.log.end - self.behind.pop(broker, self.log.end), records=False)
            self.settled_at = self._cluster.time() + (self._cluster.settings.settle_time if former != NOBODY else 0.0)
        if former != NOBODY and self._cluster.brokers[former].views is not None:
            self._waiting = [(NEVER if one[2] else one[0], *one[1:]) for one in self._waiting]
        self.fail_waiting(codes.NOT_LEADER_OR_FOLLOWER)
        if broker != NOBODY:
            for other in self.replicas:
                if other != broker and self._cluster.brokers[other].replicates:
                    self.catch_up(other)
            self.replicate()
        self.wake()
        self._cluster.leader_changed(self)

    def lose(self, count: int, *, records: bool = True) -> None:
        """Removes offsets from the end, in whole batches. `records`: counts records, without control records."""
        log, end = self.log, self.log.end
        if count <= 0:
            return
        if records:
            index = len(log.batches)
            while index and count > 0:
                index -= 1
                count -= 0 if log.batches[index].control else log.batches[index].count
            offset = log.batches[index].base if index < len(log.batches) else end
        else:
            offset = end - count
        confirmed = log.high_watermark
        log.truncate(offset)
        for broker, own in list(self.behind.items()):
            self.behind[broker] = min(own, log.end)
        self._cluster.note_loss(self, log.end, end, confirmed)
