"""The errors of Spark and its query; those that all consumers have are in headrace_documents.errors."""

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
    """The query failed without finishing a batch, again and again. Nothing is lost: the checkpoint stays."""


class RefusedError(ConsumerError):
    """The query must not go on before somebody has decided: what was read and what Kafka has do not fit. `remedy` says
    what there is to choose from."""

    def __init__(self, reason: str, remedy: str) -> None:
        self.reason, self.remedy = reason, remedy
        super().__init__(f"{reason}. {remedy}")


def first_line(error: BaseException) -> str:
    """The first line of what an error says, without a full stop; the error's name when it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
