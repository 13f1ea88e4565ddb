"""Checks whether several addresses of a source accept writes independently and no longer have the same history."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import combinations

from headrace.errors import SourceError
from headrace.mysql.events.gtid import GtidSet
from headrace.mysql.position.inventory import VARIABLES
from headrace.mysql.role import server_role
from headrace.mysql.wire.connection import SourceConnection, address_of
from headrace.settings.destination import SourceSettings
from headrace.tasks import all_of

_LASTS = 3.0
"""Seconds after which servers of a group that all accept writes have the others' changes."""


@dataclass(frozen=True, slots=True)
class _History:
    """What a writable server has executed."""

    address: str
    server_uuid: str
    executed: GtidSet


async def different_histories(addresses: Iterable[SourceSettings], own: Callable[[], str]) -> str:
    """Returns a sentence if two of the addresses are writable servers, and each has transactions that the other lacks;
    "" if not, or if it can't be determined: for a server that does not answer, or has no GTIDs of MySQL. `own` returns
    our heartbeats, which the other need not have."""
    known = list(addresses)
    pairs = list(combinations(await _writable(known), 2))
    if not any(one.executed.minus(two.executed) and two.executed.minus(one.executed) for one, two in pairs):
        return ""
    await asyncio.sleep(_LASTS)
    later, ours = {one.server_uuid: one for one in await _writable(known)}, GtidSet(own())
    for one, two in pairs:
        if one.server_uuid == two.server_uuid or not {one.server_uuid, two.server_uuid} <= later.keys():
            continue
        only_one = one.executed.minus(later[two.server_uuid].executed).minus(ours)
        only_two = two.executed.minus(later[one.server_uuid].executed).minus(ours)
        if only_one and only_two:
            return (
                f"{one.address} and {two.address} are both writable, with different histories: {one.address} has "
                f"{only_one.count:,} transactions that {two.address} lacks, and that has {only_two.count:,} that it "
                "lacks"
            )
    return ""


async def _writable(addresses: Iterable[SourceSettings]) -> list[_History]:
    found = await all_of(*map(_history, addresses))
    return [one for one in found if one is not None]


async def _history(address: SourceSettings) -> _History | None:
    try:
        async with await SourceConnection.open(address_of(address)) as connection:
            variables = await connection.load_variables(VARIABLES)
            role = await server_role(connection)
            if not connection.has_gtids or role.read_only or role.replicates is None or role.running:
                return None
            executed = (await connection.binlog_end())[2]
    except SourceError:
        return None
    return _History(f"{address.host}:{address.port}", variables.get("server_uuid", ""), GtidSet(executed))
