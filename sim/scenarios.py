"""Named plans: the faults are given, and everything else comes from the seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from sim import plan as plans
from sim.plan import DAEMONS, LOST, Fault, Plan

_Sections = Mapping[str, Mapping[str, Mapping[str, Any]]]


@dataclass(frozen=True, slots=True)
class Scenario:
    """What a seed does not choose. `sections` are keys of destinations."""

    text: str
    faults: tuple[Fault, ...]
    parks: bool = False
    rows: int | None = None
    rate: float | None = None
    sections: _Sections = field(default_factory=dict)


SCENARIOS: Mapping[str, Scenario] = MappingProxyType(
    {
        "calm": Scenario("no faults and few changes, which shows how fast the simulation is", (), rate=0.2),
        "take-over": Scenario(
            "each daemon is killed in turn, so that another one takes over",
            tuple(Fault("kill", 8.0 + 12 * number, 6.0, name) for number, name in enumerate(DAEMONS)),
        ),
        "frozen-holder": Scenario(
            "each daemon is frozen for longer than its session, and wakes when another one has taken over",
            tuple(Fault("freeze", 3.0 + 14 * number, 13.0, name) for number, name in enumerate(DAEMONS)),
        ),
        "purge": Scenario("binlogs are purged that a paused destination needs", (Fault("purge", 10.0, 10.0, "d1"),)),
        "failover": Scenario(
            "the source fails over to a replica that lacks the last seconds, and later back",
            (Fault("fail over", 12.0, 15.0, "", "back", 5.0),),
        ),
        "snapshot": Scenario(
            "a full snapshot under load, with kills of the daemons that read it",
            tuple(Fault("kill", 4.0 + 9 * number, 3.0, name) for number, name in enumerate(DAEMONS)),
            rows=200,
            rate=5.0,
            sections={"d3": {"source": {"snapshot": "initial", "snapshot_max_rows_per_second": 30}}},
        ),
        "parked": Scenario(
            "all destinations park messages that are refused for a while, and daemons are killed meanwhile",
            (
                *(Fault("refuse messages", 5.0 + number, 25.0, f"d{number}") for number in range(1, 5)),
                Fault("kill", 14.0, 3.0, "a"),
                Fault("kill", 20.0, 3.0, "b"),
            ),
            parks=True,
            rate=5.0,
        ),
    }
)


def make(name: str, seed: int, seconds: float) -> Plan:
    """Returns the plan of a scenario."""
    one = SCENARIOS[name]
    lost = next((fault.kind for fault in one.faults if fault.kind in LOST), "")
    plan = plans.make(seed, seconds, lost=lost, parks=one.parks)
    plan.rows = plan.rows if one.rows is None else one.rows
    plan.rate = plan.rate if one.rate is None else one.rate
    for destination, sections in one.sections.items():
        for section, values in sections.items():
            plan.destinations[destination][section] |= values
    return plan.with_faults(list(one.faults))
