"""What `headrace check` says of the folders that a daemon writes to."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from headrace.cli.check_folders import check_folders
from headrace.ports.finding import Level
from tests.configured import load

DESTINATION = """
[source]
host = "127.0.0.1"
user = "canal"
password = "x"
max_spool = "{max_spool}"
[sink]
type = "null"
"""


def checked(
    folder: Path, spool: str = "spool", max_spool: str = "1MiB", count: int = 2, archive: str = ""
) -> dict[str, tuple[Level, str]]:
    (folder / "destinations").mkdir()
    for name in (f"shop{number}" for number in range(count)):
        more = f'[archive]\npath = "{folder / archive}"\n' if archive else ""
        (folder / "destinations" / f"{name}.toml").write_text(DESTINATION.format(max_spool=max_spool) + more)
    main = f'[daemon]\nspool = "{folder / spool}"\n[state]\npath = "{folder}/state/headrace.db"\n'
    (folder / "headrace.toml").write_text(main)
    before = sorted(folder.rglob("*"))
    found = check_folders(load(folder / "headrace.toml", {}))
    assert sorted(folder.rglob("*")) == before, "nothing is made"
    return {one.name: (one.level, one.sentence) for one in found}


def test_folders_with_free_space_are_ok_and_each_is_listed_once(tmp_path: Path) -> None:
    found = checked(tmp_path)
    assert {name: level for name, (level, _) in found.items()} == {"state folder": Level.OK, "spool": Level.OK}
    assert f"{tmp_path}/state has " in found["state folder"][1]


def test_less_space_than_max_spool_of_all_destinations_is_a_warning(tmp_path: Path) -> None:
    count = shutil.disk_usage(tmp_path).total // (1 << 40) + 2
    level, sentence = checked(tmp_path, max_spool="1024GiB", count=count)["spool"]
    assert level is Level.WARNING
    assert f"max_spool lets destinations take {1024 * count:,}.00 GiB" in sentence


@pytest.mark.parametrize("spool", ["headrace.toml/spool", "/proc/spool"])
def test_a_spool_that_can_t_be_written_to_is_wrong(tmp_path: Path, spool: str) -> None:
    level, sentence = checked(tmp_path, spool=spool)["spool"]
    assert level is Level.WRONG
    assert "can't be written to" in sentence


def test_an_archive_that_can_be_written_to_is_ok_and_another_is_wrong(tmp_path: Path) -> None:
    assert checked(tmp_path, archive="archive")["archive"][0] is Level.OK
    (tmp_path / "other").mkdir()
    level, sentence = checked(tmp_path / "other", archive="/proc/archive")["archive"]
    assert level is Level.WRONG
    assert "/proc/archive can't be written to" in sentence
