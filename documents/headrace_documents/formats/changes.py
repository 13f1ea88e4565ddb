"""The content of a message, in any format: rows of one table that were changed by one operation, or a statement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from headrace_documents.errors import MessageError

Row = dict[str, Any]
"""Values by column as in Canal's messages: texts and None. If a message does not have the types of columns, numbers,
booleans, lists and objects stay as in JSON."""

Headers = Mapping[str, Any]
"""Headers of a message of Kafka or RabbitMQ: bytes, or texts."""

MAX_VERSION = (1 << 63) - 1
_POS = "headrace-pos"


def position_of(value: object, name: str) -> int:
    """Returns a number of headrace, which is written in digits. Raises MessageError."""
    text = value.decode("ascii", "replace") if isinstance(value, bytes) else value
    if not isinstance(text, str) or not text.isascii() or not text.isdigit() or len(text) > 19:
        raise MessageError(f"{name} is not a string of at most 19 digits")
    number = int(text)
    if not 0 < number <= MAX_VERSION:
        raise MessageError(f"{name} is not between 1 and 2^63 - 1")
    return number


def header_position(headers: Headers) -> int:
    """Returns the value of the header `headrace-pos`; 0 if there is none. Raises MessageError."""
    value = headers.get(_POS)
    return 0 if value is None else position_of(value, f"the header {_POS}")


class Rows(NamedTuple):
    """Rows of a message. `keys` are the columns of the primary key in order, none if there is no key. `types` are the
    declared MySQL types by column, empty if the message does not have them. `rows` are the new rows, for a DELETE the
    deleted ones; `olds` are the former values, all of them or those that changed, of each row of an UPDATE, None if
    unknown. Row i has `version` + i * `step`."""

    database: str
    table: str
    operation: Literal["INSERT", "UPDATE", "DELETE"]
    keys: tuple[str, ...]
    types: Mapping[str, str]
    rows: list[Row]
    olds: Sequence[Row | None]
    version: int
    step: int
    committed_ms: int
    """0 if the message does not have it."""


class Statement(NamedTuple):
    """A statement about tables: `kind` as Canal names it (CREATE, ALTER, ERASE, TRUNCATE, RENAME, CINDEX, DINDEX,
    QUERY); `database` and `table` are what it is about."""

    kind: str
    database: str
    table: str
    sql: str
    version: int
    """From the position of the statement; 0 if the message does not have it."""


class Nothing(NamedTuple):
    """A message that is not about documents; `what` says what it is."""

    what: str


Message = Rows | Statement | Nothing
