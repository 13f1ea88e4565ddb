"""Where archives are stored: an object is created once, whatever the store is."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.errors import ArchiveError
from headrace.mysql.archive.journal import ArchiveTaken, Journal
from headrace.mysql.archive.object_store import UrlStore
from headrace.mysql.archive.sealing import Seal
from headrace.mysql.archive.store import FolderStore, ObjectExists, ObjectMissing, ObjectStore

Open = Callable[[], ObjectStore]
_numbers = itertools.count(1)


@pytest.fixture(params=["folder", "url", pytest.param("s3", marks=[pytest.mark.long, pytest.mark.server])])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Opens the same store again and again."""
    if request.param == "s3":
        server = request.getfixturevalue("seaweedfs")
        url = f"s3://{server.bucket}/contract/{next(_numbers)}"
        return lambda: UrlStore(url, server.options)
    folder = tmp_path / "archive"
    folder.mkdir()
    return (lambda: FolderStore(folder)) if request.param == "folder" else (lambda: UrlStore(f"file://{folder}", {}))


async def test_an_object_is_created_once_and_read_whole_and_in_parts(opened: Open) -> None:
    store = opened()
    await store.create("a/b/1.zst", b"0123456789")
    with pytest.raises(ObjectExists, match="exists already"):
        await store.create("a/b/1.zst", b"other")
    read = opened().read
    assert await read("a/b/1.zst") == b"0123456789"
    assert await read("a/b/1.zst", 4) == b"456789"
    assert await read("a/b/1.zst", 4, 3) == b"456"
    assert await read("a/b/1.zst", 8, 30) == b"89"
    assert await read("a/b/1.zst", 0, 0) == b""
    for call in (read("a/b/2.zst"), read("a/b/2.zst", 0, 1)):
        with pytest.raises(ObjectMissing, match=r"a/b/2\.zst is missing"):
            await call


async def test_the_objects_of_a_folder_are_listed_without_those_below_it(opened: Open) -> None:
    store = opened()
    assert await store.names("a") == []
    for name in ("a/2", "a/10", "a/b/3", "ab/4"):
        await store.create(name, name.encode())
    assert await store.names("a") == ["a/10", "a/2"]
    await store.delete("a/2")
    await store.delete("a/2")
    assert await store.names("a") == ["a/10"]
    await store.sweep()
    await store.check()
    assert await store.names("a") == ["a/10"]


async def test_all_objects_are_listed_with_their_size_and_age(opened: Open) -> None:
    store = opened()
    assert await store.everything() == []
    for name in ("a/2", "a/b/33", "c"):
        await store.create(name, name.encode())
    found = {one.name: one for one in await store.everything()}
    assert {name: one.size for name, one in found.items()} == {"a/2": 3, "a/b/33": 6, "c": 1}
    assert all(abs(one.created - time.time()) < 60 for one in found.values())


async def test_of_two_writers_the_one_that_was_overtaken_fails(opened: Open) -> None:
    one, two = Journal(opened(), Seal()), Journal(opened(), Seal())
    await one.claim("one")
    await one.append()
    await two.claim("two")
    with pytest.raises(ArchiveTaken):
        await one.append()
    await two.append()
    await one.refresh()
    assert (one.number, one.index.writer) == (two.number, "two")


async def test_a_store_that_replaces_objects_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = UrlStore(f"file://{tmp_path}", {})

    async def replace(name: str, data: bytes) -> None:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)

    monkeypatch.setattr(store, "create", replace)
    with pytest.raises(ArchiveError, match="does not refuse to replace an object, so two daemons could -> use a store"):
        await store.check()
    assert await store.names("probe") == []


async def test_a_store_that_does_not_answer_is_named_with_its_remedy() -> None:
    options = {"endpoint": "http://127.0.0.1:1", "region": "x", "access_key_id": "a", "secret_access_key": "hidden"}
    with pytest.raises(ArchiveError, match=r"the archive can't write a/1 in s3://b/c: .* -> check bucket") as caught:
        await UrlStore("s3://b/c", options).create("a/1", b"")
    assert "hidden" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("options", [{"nonsense": "x"}, {"virtual_hosted_style_request": "perhaps"}])
def test_options_that_the_client_refuses_are_one_sentence(options: dict[str, str]) -> None:
    with pytest.raises(ArchiveError, match=r"\[archive\] url can't be used: .* -> check bucket"):
        UrlStore("s3://b/c", options)
