"""What Canal 1.1.8 gave its client of two binlogs, beside what headrace makes of them, field by field.

Recorded from a Canal built from its tag, in UTC and without table history, while the statements of `both.sql` and more
ran on MySQL 9.7 (`mysql.sql`, `mysql97.sql`), MySQL 5.6 (`mysql.sql`) and MariaDB 10.11.
"""

from __future__ import annotations

import pytest

from tests.canal_entries import Difference, differences, made, recorded, rules, unexplained

VERSIONS = {"mysql97": "9.7.0", "mysql56": "5.6.24", "mariadb": "10.11.0"}


def found(name: str) -> list[Difference]:
    return list(differences(recorded(name), made(name, VERSIONS[name])))


@pytest.mark.parametrize("name", VERSIONS)
def test_every_difference_is_in_the_documentation(name: str) -> None:
    assert len(recorded(name)) > 80
    assert unexplained(found(name), mariadb=name == "mariadb") == []


def test_every_difference_of_the_documentation_is_there() -> None:
    seen = {name: {(one.field, one.type) for one in found(name)} for name in VERSIONS}
    assert rules() == seen["mysql97"] | seen["mysql56"]
    assert rules(mariadb=True) == seen["mysql97"] | seen["mariadb"]


def test_values_differ_where_the_documentation_says_so() -> None:
    values = {(one.canal, one.headrace) for name in VERSIONS for one in found(name) if one.field == "Column.value"}
    assert values == {
        ("1.5", "1.50"),
        ("1.6777216E7", "16777216"),
        ("-2.5E-30", "-2.5e-30"),
        ("0.0", "0.00"),
        (f"12345678901234567890123456789012345.{'0' * 27}", f"12345678901234567890123456789012345.{'0' * 30}"),
        ("\ufffd", "é"),
        ("\ufffd" * 4, "广州"),
        ("\x01\x02", "\x01\x02\0\0"),
        ("", "\0\0\0\0"),
    }
