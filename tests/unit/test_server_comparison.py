"""Whether a server has the history of a stored position: both directions, resets, restores, and what is let go."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.errors import LostKind, PositionLost, SourceChanged
from headrace.model import Gap, OpenXa, Position
from headrace.mysql.events.gtid import GtidSet
from headrace.mysql.position import server_comparison as comparison
from headrace.mysql.position.heads import FileHead
from headrace.mysql.position.inventory import Binlog, Inventory
from headrace.mysql.position.report import Asked, judge
from headrace.mysql.position.server_comparison import compare_server
from headrace.ports.source import Move
from headrace.settings.destination import SourceSettings

US, OTHER = "3e11fa47-71ca-11e1-9e33-c80aa9429562", "5e11fa47-71ca-11e1-9e33-c80aa9429562"
FILES = (Binlog("b.000003", 3000), Binlog("b.000004", 4000), Binlog("b.000005", 5000))
HERE = Inventory(US, "9.7.4", False, True, FILES, ("b.000005", 5000), f"{US}:1-100", f"{US}:1-10", 60)
PLAIN = replace(HERE, gtid_mode=False, executed="", purged="")
STORED = Position(US, "b.000004", 700, f"{US}:1-50", 2, commit_time_us=9_000_000, last_transaction="b.000004:600")


class Server:
    """What the source has; `begins` is the commit time of the transaction at any place."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.inventory, self.begins = HERE, 9_000_000
        self.before_next, self.first = "", 1_000_000
        """What was executed before any file; and the commit time of its first transaction."""
        self.asked, self.moves = list[tuple[str, int]](), list[Any]()
        monkeypatch.setattr(comparison, "take_inventory", self._inventory)
        monkeypatch.setattr(comparison, "transaction_at", self._transaction_at)
        monkeypatch.setattr(comparison, "relocate", self._relocate)
        monkeypatch.setattr(comparison, "first_commit_time", self._first_commit_time)
        monkeypatch.setattr(comparison, "FileHeads", lambda _: SimpleNamespace(get=self._head))

    async def _inventory(self, connection: object) -> Inventory:
        return self.inventory

    async def _transaction_at(self, source: object, file: str, offset: int) -> int | None:
        self.asked.append((file, offset))
        return self.begins

    async def _first_commit_time(self, source: object, file: str) -> int:
        return self.first

    async def _head(self, server_uuid: str, file: str, size: int) -> FileHead:
        return FileHead(0, GtidSet(self.before_next))

    async def _relocate(self, source: object, where: Any, stored: Position, *, reason: str) -> Move:
        self.moves.append(where)
        return Move(Position(US, "b.000001", 157), Gap(reason, "a", "b.000001:157"), ({"kind": "doubt"},))

    async def agrees(self, stored: Position = STORED, **source: Any) -> comparison.ServerMatch:
        raw = {"host": "h", "user": "u", "password": "p", **source}
        return await compare_server(None, SourceSettings.model_validate(raw), stored)  # type: ignore[arg-type]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    return Server(monkeypatch)


@pytest.mark.parametrize("inventory", [HERE, PLAIN])
async def test_the_same_server_goes_on_within_the_transaction(inventory: Inventory, server: Server) -> None:
    server.inventory = inventory
    stored = STORED if inventory.gtid_mode else replace(STORED, gtid_set="")
    assert await server.agrees(stored) == comparison.ServerMatch(stored)
    assert server.asked == [("b.000004", 600)]


# -- the same server with another history -------------------------------------------------------------------------


@pytest.mark.parametrize("found", [None, 9_000_001, 8_999_999])
@pytest.mark.parametrize("inventory", [HERE, PLAIN])
async def test_another_transaction_at_the_place_of_the_last_is_another_history(
    inventory: Inventory, found: int | None, server: Server
) -> None:
    server.inventory, server.begins = inventory, found  # type: ignore[assignment]
    with pytest.raises(SourceChanged, match=r"restored from an older copy \(at b\.000004:600 it had a transaction of"):
        await server.agrees(STORED if inventory.gtid_mode else replace(STORED, gtid_set=""))


async def test_numbers_of_files_that_began_again_are_another_history(server: Server) -> None:
    with pytest.raises(SourceChanged, match=r"its binlogs end with b\.000005"):
        await server.agrees(replace(STORED, file="b.000006"))
    assert server.asked == []


async def test_renamed_files_are_no_other_history(server: Server) -> None:
    stored = replace(STORED, file="old-name.000006", last_transaction="old-name.000006:600")
    assert (await server.agrees(stored)).gap is None


SHORT = replace(STORED, file="b.000005", last_transaction="b.000004:4000")
"""The file ends before the last transaction that was read from it."""


@pytest.mark.parametrize("last", ["b.000004:4000", "b.000004:4001", "b.000003:9000"])
async def test_numbers_that_were_lost_with_a_files_end_and_given_to_others_are_another_history(
    last: str, server: Server
) -> None:
    """The server lost its last transactions in a crash, or was restored, and wrote others since."""
    server.before_next = f"{US}:1-48"
    with pytest.raises(SourceChanged, match="and now that file has"):
        await server.agrees(replace(SHORT, last_transaction=last))


async def test_a_shorter_file_that_begins_after_what_was_read_is_another_history_whatever_numbers_it_has(
    server: Server,
) -> None:
    """After a reset all numbers were given again (seed 279)."""
    server.before_next, server.first = f"{US}:1-60", 9_000_001
    with pytest.raises(SourceChanged, match="and now that file has"):
        await server.agrees(SHORT)


async def test_a_newest_file_that_became_shorter_is_another_history(server: Server) -> None:
    with pytest.raises(SourceChanged, match="and now that file has 5000 bytes"):
        await server.agrees(replace(STORED, file="b.000005", last_transaction="b.000005:5000"))


@pytest.mark.parametrize(
    ("before_next", "purged", "more"),
    [
        (f"{US}:1-50", f"{US}:1-10", ""),
        (f"{US}:1-48", f"{US}:1-10:49-50", ""),
        (f"{US}:1-50", f"{US}:1-10", f",{OTHER}:1-5"),
    ],
    ids=["in the binlog", "only the binlog lost them", "another server's, which were fetched again"],
)
async def test_a_file_that_became_shorter_is_none_when_no_number_was_given_again(
    before_next: str, purged: str, more: str, server: Server
) -> None:
    server.before_next = before_next
    server.inventory = replace(HERE, executed=f"{US}:1-100{more}", purged=purged)
    stored = replace(SHORT, gtid_set=f"{US}:1-50{more}")
    assert (await server.agrees(stored)).position == stored


async def test_without_gtids_an_earlier_file_that_became_shorter_is_another_history(server: Server) -> None:
    server.inventory = PLAIN
    with pytest.raises(SourceChanged, match="and now that file has"):
        await server.agrees(replace(SHORT, gtid_set=""))


async def test_without_gtids_a_file_that_is_too_short_for_the_position_is_beyond_its_end(server: Server) -> None:
    server.inventory = PLAIN
    stored = replace(STORED, gtid_set="", offset=4001, last_transaction="b.000004:4000")
    with pytest.raises(PositionLost) as reported:
        await server.agrees(stored)
    assert reported.value.kind is LostKind.BEYOND_END
    assert (await server.agrees(replace(stored, offset=4000, last_transaction=""))).position.offset == 4000


@pytest.mark.parametrize("last", ["", "b.000001:600"])
async def test_a_last_transaction_that_is_purged_or_unknown_proves_nothing(last: str, server: Server) -> None:
    assert await server.agrees(replace(STORED, last_transaction=last))
    assert server.asked == []


async def test_a_file_that_is_gone_from_the_disk_is_left_to_the_dump(server: Server) -> None:
    server.inventory = replace(HERE, files=(FILES[0], Binlog("b.000004", 0), FILES[2]))
    assert (await server.agrees()).position == STORED


@pytest.mark.parametrize("tag", ["", ":tag"])
async def test_lost_transactions_of_its_own_are_another_history_also_when_they_are_tagged(
    tag: str, server: Server
) -> None:
    with pytest.raises(SourceChanged, match="it was reset, or restored") as reported:
        await server.agrees(replace(STORED, gtid_set=f"{US}:1-50{tag}:1-150"))
    assert reported.value.extra == f"{US}{tag}:{'101-150' if not tag else '1-150'}"


async def test_continue_after_a_reset_publishes_what_was_committed_later(server: Server) -> None:
    server.inventory = replace(HERE, executed=f"{US}:1-20", purged="")
    agreed = await server.agrees(on_diverged="continue")
    assert server.moves[0].time.timestamp() == 9.000001
    assert agreed.position.file == "b.000001"
    assert [entry["kind"] for entry in agreed.entries] == ["doubt"]
    assert agreed.gap is not None
    assert (agreed.gap.reason, agreed.gap.gtids, agreed.gap.transactions) == ("diverged", f"{US}:21-50", 30)
    assert agreed.gap.end == "b.000001:157"


async def test_continue_twice_in_a_row_finds_nothing_to_pass_over_the_second_time(server: Server) -> None:
    server.inventory = replace(HERE, server_uuid=OTHER, executed=f"{US}:1-48", purged="")
    first = await server.agrees(on_diverged="continue")
    assert first.gap is not None
    second = await server.agrees(first.position, on_diverged="continue")
    assert second == comparison.ServerMatch(first.position)


# -- another server -----------------------------------------------------------------------------------------------


async def test_another_server_with_all_of_it_goes_on_with_the_transaction_from_its_start(server: Server) -> None:
    server.inventory = replace(HERE, server_uuid=OTHER)
    xa = OpenXa("1:61:", "b.000003", 500, f"{US}:7")
    agreed = await server.agrees(replace(STORED, open_xa=(xa,), own_gtids=f"{US}:9", last_pos=77))
    assert agreed.position == Position(
        OTHER, "", 4, f"{US}:1-50", open_xa=(replace(xa, file="", offset=0),), last_pos=77, commit_time_us=9_000_000,
        own_gtids=f"{US}:9",
    )  # fmt: skip
    assert (agreed.gap, agreed.entries, server.asked) == (None, (), [])


async def test_what_was_never_replicated_is_listed_and_never_passed_over_unasked(server: Server) -> None:
    server.inventory = replace(HERE, server_uuid=OTHER, executed=f"{US}:1-48")
    with pytest.raises(SourceChanged, match="has not executed 2 transactions") as reported:
        await server.agrees()
    assert reported.value.extra == f"{US}:49-50"


@pytest.mark.parametrize("uuid", [US, OTHER])
async def test_the_state_and_position_show_count_the_same_and_no_heartbeats_of_ours(uuid: str, server: Server) -> None:
    server.inventory = replace(HERE, server_uuid=uuid, executed=f"{US}:1-30")
    stored = replace(STORED, own_gtids=f"{US}:31-38")
    with pytest.raises(SourceChanged, match="has not executed 12 transactions") as reported:
        await server.agrees(stored)
    assert reported.value.extra == f"{US}:39-50"
    _, verdict = judge(
        SourceSettings.model_validate({"host": "h", "user": "u", "password": "p"}),
        stored,
        Asked("h:1", server.inventory),
    )
    assert "12 transactions" in verdict


async def test_continue_passes_over_it_and_doubts_the_schemas(server: Server) -> None:
    server.inventory = replace(HERE, server_uuid=OTHER, executed=f"{US}:1-48")
    agreed = await server.agrees(replace(STORED, own_gtids=f"{US}:40:49"), on_diverged="continue")
    assert agreed.position.gtid_set == f"{US}:1-48"
    assert agreed.position.own_gtids == f"{US}:40"
    assert agreed.gap is not None
    assert (agreed.gap.gtids, agreed.gap.transactions, agreed.gap.end) == (f"{US}:50", 1, OTHER)
    assert [entry["kind"] for entry in agreed.entries] == ["doubt"]


async def test_heartbeats_that_were_never_replicated_are_left_out_without_a_word(server: Server) -> None:
    server.inventory = replace(HERE, server_uuid=OTHER, executed=f"{US}:1-48")
    agreed = await server.agrees(replace(STORED, own_gtids=f"{US}:30:49-50"))
    assert (agreed.position.gtid_set, agreed.position.own_gtids) == (f"{US}:1-48", f"{US}:30")
    assert (agreed.gap, agreed.entries) == (None, ())


@pytest.mark.parametrize("uuid", [US, OTHER])
async def test_purged_and_unread_is_a_lost_position(uuid: str, server: Server) -> None:
    server.inventory = replace(HERE, server_uuid=uuid, purged=f"{US}:1-52")
    with pytest.raises(PositionLost, match="purged 2 transactions") as reported:
        await server.agrees()
    assert reported.value.kind is LostKind.GTIDS_PURGED


async def test_a_server_that_both_lacks_and_has_purged_is_changed_first_and_lost_when_that_is_let_go(
    server: Server,
) -> None:
    server.inventory = replace(HERE, server_uuid=OTHER, executed=f"{US}:1-48,{OTHER}:1-9", purged=f"{OTHER}:1-9")
    with pytest.raises(SourceChanged):
        await server.agrees()
    with pytest.raises(PositionLost, match=f"{OTHER}:1-9"):
        await server.agrees(on_diverged="continue")


async def test_without_gtids_another_server_is_never_guessed(server: Server) -> None:
    server.inventory = replace(PLAIN, server_uuid=OTHER)
    for stored in (STORED, replace(STORED, gtid_set="")):
        with pytest.raises(SourceChanged, match="headrace does not guess"):
            await server.agrees(stored, on_diverged="continue")


async def test_a_position_that_is_only_a_gtid_set_is_nothing_to_a_server_without_gtids(server: Server) -> None:
    server.inventory = PLAIN
    with pytest.raises(SourceChanged, match="gtid_mode is OFF"):
        await server.agrees(replace(STORED, file="", offset=4, last_transaction=""))


@pytest.mark.parametrize(("file", "size"), [("b.000002", None), ("b.000004", 0)])
async def test_without_gtids_a_file_that_is_purged_or_gone_is_a_lost_position(
    file: str, size: int | None, server: Server
) -> None:
    server.inventory = PLAIN if size is None else replace(PLAIN, files=(FILES[0], Binlog(file, size), FILES[2]))
    with pytest.raises(PositionLost) as reported:
        await server.agrees(replace(STORED, gtid_set="", file=file, last_transaction=""))
    assert reported.value.kind is LostKind.POSITION_PURGED
