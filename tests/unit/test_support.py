"""The tests' own reader of messages: what a kill cut short is told from what is broken."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support import is_cut, read_messages

LINE = json.dumps(
    {"data": [{"id": "1", "v": '家庭\\ "x"', "n": None}], "isDdl": False, "ok": True, "es": -12, "list": []},
    ensure_ascii=False,
).encode()


def test_an_incomplete_line_is_recognized_at_any_length() -> None:
    assert [size for size in range(len(LINE)) if not is_cut(LINE[:size])] == []
    assert not is_cut(LINE)


def test_an_incomplete_line_is_ignored_and_all_others_are_read(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(LINE + b"\n" + LINE[:40] + b"\n" + LINE + b"\n" + LINE[:7])
    assert read_messages(path) == [json.loads(LINE)] * 2


@pytest.mark.parametrize("broken", [LINE[:30] + b"}" + LINE[30:], LINE + LINE, LINE[5:], b"\xff" + LINE])
def test_a_line_that_is_broken_in_another_way_is_an_error(broken: bytes, tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(broken + b"\n")
    with pytest.raises(ValueError, match=r"Ex|decode"):
        read_messages(path)
