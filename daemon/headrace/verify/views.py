"""A consumer's side of one table: the messages that it gets, or the documents that it has written."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Collection
from typing import NamedTuple

from headrace.ports.documents import Document, DocumentIndex
from headrace.ports.replay import MessageReader, Replay, RowState
from headrace.verify.documents import DocumentNames
from headrace.verify.hashes import GONE, INCOMPLETE, row_hash
from headrace.verify.image import Image

ProgressCallback = Callable[[int, int | None], None]
"""Receives how many more messages or documents were read, and the approximate total, if known."""


class News(NamedTuple):
    """The present state of a row at the consumer."""

    key: bytes
    hashed: int
    version: int | None


class View(ABC):
    """A consumer's side of the comparison."""

    @abstractmethod
    async def load(self, image: Image, on_progress: ProgressCallback) -> None:
        """Puts all rows of the consumer into the image. Raises SinkError, NotUnderstood and TooManyRows."""

    @abstractmethod
    async def news(self, watched: Collection[bytes], before_ms: int) -> tuple[list[News], bool]:
        """Returns the changes of the watched rows since the last call, in order; and whether the consumer is behind: it
        got something since then that was committed before `before_ms`. Raises as load() does."""

    @abstractmethod
    def notes(self) -> list[str]:
        """Returns what one must know to judge the result, a sentence each."""

    @abstractmethod
    async def close(self) -> None:
        """Releases all resources. Safe to call twice."""


class TopicView(View):
    """The newest change of each row in the messages of a sink. Statements are skipped, as by consumers."""

    def __init__(self, replay: Replay, messages: MessageReader) -> None:
        self._replay, self._messages = replay, messages
        self._without_key = 0

    async def row_states(self, on_progress: ProgressCallback = lambda *_: None) -> AsyncIterator[list[RowState]]:
        """Yields the content of messages since the last call, in order."""
        given = 0
        async for block in self._replay.read():
            yield [one for message in block for one in self._messages.read(message)]
            given, share = given + len(block), self._replay.share()
            on_progress(len(block), round(given / share) if share else None)

    async def load(self, image: Image, on_progress: ProgressCallback) -> None:
        async for block in self.row_states(on_progress):
            for one in block:
                if one.key:
                    image.put(one.key, hash_of(one), one.version)
                else:
                    self._without_key += 1

    async def news(self, watched: Collection[bytes], before_ms: int) -> tuple[list[News], bool]:
        found, behind = [], False
        async for block in self._replay.read():
            for message in block:
                behind = behind or 0 < self._messages.committed_ms(message) < before_ms
                for one in self._messages.read(message):
                    if one.key in watched:
                        found.append(News(one.key, hash_of(one), one.version))
        return found, behind

    def notes(self) -> list[str]:
        notes = self._replay.notes()
        if self._without_key:
            notes.append(
                f"{self._without_key:,} rows were published without a value for a column that is part of the key now: "
                "they are passed over"
            )
        return notes

    async def close(self) -> None:
        await self._replay.close()


class IndexView(View):
    """The documents of an index."""

    def __init__(self, index: DocumentIndex, names: DocumentNames) -> None:
        self._index, self._names = index, names

    async def load(self, image: Image, on_progress: ProgressCallback) -> None:
        async for block in self._index.all():
            for one in block:
                if (key := self._names.key_of(one.id)) is not None:
                    image.put(key, _hash_of_document(one), None)
            on_progress(len(block), None)

    async def news(self, watched: Collection[bytes], before_ms: int) -> tuple[list[News], bool]:
        ids = {self._names.id_of(key): key for key in watched}
        found = [
            News(ids[one.id], _hash_of_document(one), None) async for block in self._index.some([*ids]) for one in block
        ]
        return found, False

    def notes(self) -> list[str]:
        return []

    async def close(self) -> None:
        await self._index.close()


def hash_of(one: RowState) -> int:
    """Returns the hash of a message's row."""
    if one.row is None:
        return GONE
    return INCOMPLETE if one.partial else row_hash(one.row)


def _hash_of_document(one: Document) -> int:
    """Returns the hash; a document that marks its row as deleted counts as none."""
    if one.body is None or one.body == {"headrace_deleted": True}:
        return GONE
    return row_hash(one.body)
