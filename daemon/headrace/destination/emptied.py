"""Reports topics that were deleted or shortened under a running destination, until their tables are published again."""

from __future__ import annotations

from collections.abc import Callable

from headrace.destination.dependencies import Context
from headrace.ports.sink import TopicEnds
from headrace.ports.tables import in_short
from headrace.snapshot.plan import Captures
from headrace.snapshots import Snapshot, TableName

_TROUBLE = "emptied_topic"
_TOPICS = 3
"""Maximum number of topics that a sentence names."""


class EmptiedTopics:
    """The truncated topics of one run; findings outlive it. check() is called each second. `topic_of` returns the topic
    that the rows of a table go to."""

    def __init__(self, context: Context, ends: TopicEnds, topic_of: Callable[[str, str], str]) -> None:
        self._status, self._log = context.status, context.log
        self._ends, self._topic_of = ends, topic_of
        self._reported: dict[str, str] = {}

    def check(self) -> None:
        """Reports topics that were truncated since the last call."""
        found = {topic: emptied.text for topic, emptied in self._ends.emptied.items()}
        before, self._reported = self._reported, found
        if not found:
            self._status.clear(_TROUBLE)
        if not found or found == before:
            return
        tables = sorted({name for topic in found for name in self._tables(topic)})
        topics = "; ".join(f"the topic {topic} ({text})" for topic, text in list(found.items())[:_TOPICS])
        more = f", and {len(found) - _TOPICS} more," if len(found) > _TOPICS else ""
        self._status.trouble(
            _TROUBLE,
            f"deleted and made again, or cut off: {topics}{more} and consumers can't read any more what was in it"
            + (f", rows of {in_short(tables)}" if tables else ""),
            remedy=f"headrace resync DESTINATION {'.'.join(tables[0]) if len(tables) == 1 else '--all'}",
        )
        for topic in (topic for topic, text in found.items() if before.get(topic) != text):
            self._log.error("a topic was emptied", topic=topic, warning=self._status.troubles[_TROUBLE])

    def resynced(self, snapshot: Snapshot, wants: Captures) -> None:
        """Records that all rows of the tables that `wants` selects were published. A topic is repaired when this is
        true for every table whose rows went there, and the snapshot was requested after the last write before the
        truncation."""
        if snapshot.where or snapshot.columns:
            return
        for topic, emptied in list(self._ends.emptied.items()):
            tables = self._tables(topic)
            whole = not snapshot.tables or (tables and all(wants(*name) for name in tables))
            if whole and snapshot.asked_us >= emptied.since_us:
                del self._ends.emptied[topic]
                self._log.info("the rows of an emptied topic were published again", topic=topic)
        self.check()

    def _tables(self, topic: str) -> list[TableName]:
        """Returns the tables of which rows have come while the daemon runs. Those that are counted together have a name
        that no filter matches."""
        names = [(one.schema, one.table) for one in self._status.published.tables.all()]
        return [name for name in names if self._topic_of(*name) == topic]
