"""The errors of Spark and its query; headrace_documents.errors has those of all consumers."""

from __future__ import annotations

import re

from headrace_documents.errors import ConsumerError

_JAVA_CLASS = re.compile(r"^(?:\"main\" )?(?:[a-z]\w*\.)+\w+(?:Exception|Error): ")


class JavaError(ConsumerError):
    """No Java that Spark can run on."""

    exit_code = 2


class SessionError(ConsumerError):
    """Spark itself did not start (most often: its Kafka jars could not be resolved)."""


class ConfError(SessionError):
    """Spark refuses a value of [spark.conf]."""

    exit_code = 2

    def __init__(self, key: str, value: str, why: str) -> None:
        said = _JAVA_CLASS.sub("", why).rstrip(".")
        super().__init__(f"[spark.conf] {key}: Spark does not take {value!r}: {said}")


class QueryError(ConsumerError):
    """The query repeatedly failed without finishing a batch. Nothing is lost: the checkpoint stays."""


class RefusedError(ConsumerError):
    """The query must not continue before an operator decides: what was read and what Kafka has do not match. `remedy`
    has the options."""

    def __init__(self, reason: str, remedy: str) -> None:
        self.reason, self.remedy = reason, remedy
        super().__init__(f"{reason}. {remedy}")


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's text, without a full stop; the error's name if it has no text."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
