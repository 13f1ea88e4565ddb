"""The versions of the servers by their names in devstack: one of each kind for every run, the others for a long one."""

from __future__ import annotations

from typing import Any

import pytest


def long(*names: str) -> list[Any]:
    """The same as parameters of tests that only a long run has."""
    return [pytest.param(name, marks=pytest.mark.long) for name in names]


SQL = ["mysql", "mariadb", *long("mysql56", "mariadb118")]
SINCE_57 = ["mysql", "mariadb", *long("mariadb118")]
"""Without MySQL 5.6, for what it lacks."""
MARIADB = ["mariadb", *long("mariadb118")]
LEAVES_GENERATED_OUT = 110809
"""From this version on MariaDB's images of changed and deleted rows lack generated columns."""
RABBITMQ = ["rabbitmq", *long("rabbitmq4")]
