"""Reading the configuration while running: what changed and is complete is taken over, what is wrong is refused."""

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path

import pytest
import structlog

from headrace.cli.wiring import ADAPTERS
from headrace.settings.destination import DestinationSettings
from headrace.settings.load import Loader
from headrace.supervisor.reload import Reloader
from tests.configured import load

ENV = {"SECRET": "s"}


class Site:
    """A configuration on disk, its reloader, and what runs, which is what the reloader last wanted."""

    def __init__(self, folder: Path, *, watch: str = "1ms", **files: str) -> None:
        self.folder = folder / "destinations"
        self.folder.mkdir()
        self.main = folder / "headrace.toml"
        self.main.write_text(f'[daemon]\nnode = "n"\nwatch = "{watch}"\n')
        for name, text in files.items():
            self.write(name, text)
        self.settings = load(self.main, ENV)
        self.running: Mapping[str, DestinationSettings] = self.settings.destinations
        self.reloader = Reloader(self.settings, Loader(ADAPTERS, ENV))

    def write(self, name: str, text: str) -> None:
        (self.folder / f"{name}.toml").write_text(text)

    async def watched(self) -> list[str]:
        """Waits for a change and takes it over; the names that run then."""
        async with asyncio.timeout(30):
            await self.reloader.watch()
        return await self.read(everything=False)

    async def read(self, *, everything: bool = True) -> list[str]:
        self.running = await self.reloader.read(self.running, everything=everything)
        return sorted(self.running)

    @property
    def errors(self) -> list[str]:
        return self.reloader.errors


def toml(host: str = "h", *, server_id: int = 0, password: str = "${SECRET}") -> str:
    return (
        f'[source]\nhost = "{host}"\nuser = "u"\npassword = "{password}"\nserver_id = {server_id}\n'
        '[sink]\ntype = "null"\n'
    )


@pytest.mark.parametrize("how", ["watch", "SIGHUP"])
async def test_files_that_come_change_and_go_are_taken_over(tmp_path: Path, how: str) -> None:
    site = Site(tmp_path, watch="1ms" if how == "watch" else "0", same=toml(), other=toml(), gone=toml())
    take = site.watched if how == "watch" else site.read
    await take()  # the files as they were at the start
    same = site.running["same"]
    site.write("other", toml("elsewhere"))
    (site.folder / "gone.toml").unlink()
    (site.folder / ".hidden.toml").write_text("no")
    (site.folder / "notes.txt").write_text("no")
    site.write("new", toml())
    while await take() != ["new", "other", "same"]:
        pass
    assert site.running["same"] == same
    assert site.running["other"].source.host == "elsewhere"
    assert site.running["new"].source.server_id != site.running["same"].source.server_id
    assert site.errors == []


async def test_a_bad_file_is_refused_and_its_destination_keeps_what_it_has(tmp_path: Path) -> None:
    site = Site(tmp_path, shop=toml(), stock=toml())
    site.write("shop", toml("new").replace("[sink]", "colour = 1\n[sink]"))
    site.write("stock", toml("new"))
    site.write("fresh", "[source")
    site.write("Bad Name", toml())
    with structlog.testing.capture_logs() as logs:
        assert await site.read() == ["shop", "stock"]
        assert await site.read() == ["shop", "stock"]
    assert (site.running["shop"].source.host, site.running["stock"].source.host) == ("h", "new")
    assert [error.partition(".toml: ")[2].partition(":")[0] for error in site.errors] == [
        "the file's name",
        "not TOML",
        "source.colour",
    ]
    assert [entry["problem"] for entry in logs if entry["log_level"] == "error"] == site.errors  # once each
    site.write("shop", toml("new"))
    (site.folder / "fresh.toml").unlink()
    (site.folder / "Bad Name.toml").unlink()
    assert await site.read() == ["shop", "stock"]
    assert (site.running["shop"].source.host, site.errors) == ("new", [])


async def test_a_file_that_is_still_written_is_left_alone(tmp_path: Path) -> None:
    site = Site(tmp_path, watch="20ms", shop=toml())
    await site.watched()
    waiting = asyncio.create_task(site.watched())
    text = toml("new")
    for size in range(1, 40):  # longer than many checks, and each finds another size
        site.write("shop", text[:size])
        await asyncio.sleep(0.005)
    assert not waiting.done()
    site.write("shop", text)
    await waiting
    assert site.running["shop"].source.host == "new"
    assert site.errors == []


async def test_a_file_that_is_written_while_another_is_due_is_left_alone(tmp_path: Path) -> None:
    site = Site(tmp_path, shop=toml())
    await asyncio.wait_for(site.reloader.watch(), 30)
    site.write("late", "[source")
    assert await site.read(everything=False) == ["shop"]
    assert site.errors == []
    site.write("late", toml())
    assert await site.watched() == ["late", "shop"]


async def test_a_file_of_the_same_size_and_time_under_another_inode_is_another(tmp_path: Path) -> None:
    site = Site(tmp_path, shop=toml("a"))
    await site.watched()
    old = (site.folder / "shop.toml").stat()
    (tmp_path / "new").write_text(toml("b"))
    os.utime(tmp_path / "new", ns=(old.st_atime_ns, old.st_mtime_ns))
    (tmp_path / "new").rename(site.folder / "shop.toml")
    await site.watched()
    assert site.running["shop"].source.host == "b"


async def test_a_folder_that_is_away_ends_nothing(tmp_path: Path) -> None:
    site = Site(tmp_path, shop=toml())
    await site.watched()
    site.folder.rename(tmp_path / "away")
    assert await site.read() == ["shop"]
    assert site.errors == [
        f"{site.main}: daemon.destinations: the folder {site.folder} can't be read: No such file or directory"
    ]
    waiting = asyncio.create_task(site.watched())
    await asyncio.sleep(0.02)
    (tmp_path / "away").rename(site.folder)
    assert await waiting == ["shop"]
    assert site.errors == []


async def test_the_watch_says_that_the_folder_is_away(tmp_path: Path) -> None:
    site = Site(tmp_path, shop=toml())
    await site.watched()
    site.folder.rename(tmp_path / "away")
    waiting = asyncio.create_task(site.reloader.watch())
    async with asyncio.timeout(30):
        while not site.errors:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    waiting.cancel()
    assert await site.read() == ["shop"]


async def test_the_last_file_may_go(tmp_path: Path) -> None:
    site = Site(tmp_path, shop=toml())
    await site.watched()
    (site.folder / "shop.toml").unlink()
    assert await site.watched() == []
    assert site.errors == []


async def test_a_file_that_nobody_may_read_is_not_a_removed_one(tmp_path: Path) -> None:
    site = Site(tmp_path, shop=toml())
    (site.folder / "shop.toml").unlink()
    (site.folder / "shop.toml").symlink_to(tmp_path / "nowhere")
    assert await site.read() == ["shop"]
    assert "can't be read" in site.errors[0]


async def test_a_server_id_that_another_destination_has_is_refused(tmp_path: Path) -> None:
    site = Site(tmp_path, one=toml(server_id=1), two=toml(server_id=2))
    site.write("one", toml("new", server_id=2))
    site.write("a", toml(server_id=1))
    assert await site.read() == ["one", "two"]
    # one falls back to its old settings, whose id the new file wanted meanwhile
    assert [site.running[name].source.server_id for name in ("one", "two")] == [1, 2]
    assert site.running["one"].source.host == "h"
    assert len(site.errors) == 2
    assert "1 is also the server id of the destination one" in site.errors[0]
    assert "2 is also the server id of the destination two" in site.errors[1]
    (site.folder / "two.toml").unlink()  # now each of the two files is right, though neither has changed
    assert await site.read(everything=True) == ["a", "one"]
    assert [site.running[name].source.server_id for name in ("a", "one")] == [1, 2]
    assert site.errors == []


async def test_two_destinations_may_swap_their_server_ids(tmp_path: Path) -> None:
    site = Site(tmp_path, one=toml(server_id=1), two=toml(server_id=2))
    site.write("one", toml(server_id=2))
    site.write("two", toml(server_id=1))
    assert await site.read() == ["one", "two"]
    assert [site.running[name].source.server_id for name in ("one", "two")] == [2, 1]
    assert site.errors == []


async def test_a_sighup_reads_the_secrets_in_files_again(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("old")
    site = Site(tmp_path, shop=toml(password=f"${{file:{secret}}}"), stock=toml())
    stock = site.running["stock"]
    secret.write_text("new")
    await site.read()
    assert site.running["shop"].source.password.get_secret_value() == "new"
    assert site.running["stock"] == stock
    secret.unlink()
    await site.read()
    assert site.running["shop"].source.password.get_secret_value() == "new"
    assert "source.password" in site.errors[0]


async def test_headrace_toml_is_read_and_what_needs_a_restart_is_named(tmp_path: Path) -> None:
    site = Site(tmp_path, shop=toml())
    text = site.main.read_text()
    site.main.write_text(text.replace('"n"', '"m"') + '[http]\nlisten = "127.0.0.1:1"\n')
    with structlog.testing.capture_logs() as logs:
        assert await site.read() == ["shop"]
    assert [entry["keys"] for entry in logs if "needs a restart" in entry["event"]] == [["daemon.node", "http.listen"]]
    assert site.errors == []
    site.main.write_text(text + "colour = 1\n")
    await site.read()
    assert site.errors == [f"{site.main}: daemon.colour: unknown key"]
    site.main.write_text(text)
    with structlog.testing.capture_logs() as logs:
        await site.read()
    assert [entry["event"] for entry in logs] == ["the configuration is right again"]


async def test_a_fault_of_ours_in_one_file_keeps_no_other_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(tmp_path, first=toml())
    await site.watched()
    read = Loader.load_destination

    def load_destination(self: Loader, file: Path, *rest: Path | str) -> DestinationSettings:
        if file.stem == "strange":
            raise RuntimeError("never seen before")
        return read(self, file, *rest)

    monkeypatch.setattr(Loader, "load_destination", load_destination)
    site.write("strange", toml())
    site.write("good", toml())
    while await site.watched() != ["first", "good"]:
        pass
    assert site.errors == [f"{site.folder}/strange.toml: can't be read: RuntimeError"]
