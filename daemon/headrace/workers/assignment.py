"""Which worker runs which destination."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping


def assign(names: Iterable[str], before: Mapping[str, int], processes: int) -> dict[str, int]:
    """The worker, 1 to `processes`, of each destination. Those that have one `before` keep it, so that no change of
    other files moves them; the rest go, in the order of their names, to the one that has the fewest."""
    wanted = set(names)
    homes = {name: worker for name, worker in before.items() if name in wanted}
    loads = Counter(homes.values())
    for name in sorted(wanted - homes.keys()):
        homes[name] = min(range(1, processes + 1), key=lambda worker: (loads[worker], worker))
        loads[homes[name]] += 1
    return homes
