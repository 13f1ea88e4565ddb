"""A wrong value in [spark.conf] is named by its key, by whichever part of Spark it is refused."""

from __future__ import annotations

import pytest

from headrace_spark.errors import ConfError
from headrace_spark.session.session import guessed_key


@pytest.mark.parametrize(
    ("said", "key"),
    [
        ("org.apache.spark.SparkException: Executor memory must be a positive number", "spark.executor.memory"),
        ("java.lang.ClassNotFoundException: no.such.Class", "spark.serializer"),
        ("java.lang.IllegalArgumentException: spark.eventLog.compress should be boolean", "spark.eventLog.compress"),
        ("unresolved dependency: org.apache.spark#spark-sql-kafka-0-10_2.13;4.3.0: not found", ""),
    ],
)
def test_the_key_is_found_by_its_name_or_value_in_what_java_says(said: str, key: str) -> None:
    conf = {"spark.executor.memory": "1x", "spark.serializer": "no.such.Class", "spark.eventLog.compress": "maybe"}
    assert guessed_key(said, conf) == key


def test_the_sentence_has_key_value_and_reason_without_java_s_classes() -> None:
    error = ConfError("spark.a", "x", "java.lang.IllegalArgumentException: spark.a should be int, but was x")
    assert str(error) == "[spark.conf] spark.a: Spark does not take 'x': spark.a should be int, but was x"
    assert error.exit_code == 2
