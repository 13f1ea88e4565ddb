"""Fixtures of several files here."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.streams import open_store


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Any]:
    """A SQLite store of the test's own, open."""
    made = await open_store(tmp_path)
    yield made
    await made.close()
