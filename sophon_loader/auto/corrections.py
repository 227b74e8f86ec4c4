"""How far off the agent's estimates are, and what samples take beside them, at either end. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

from sophon_loader.measures.counters import Totals

AGENT_S_PER_BYTE = 2.0e-9
"""CPU seconds to hand a byte of a reply from a worker through the broker to the wire."""
LOADER_S_PER_BYTE = 0.5e-9
"""CPU seconds to take a byte of a reply from the wire."""
MAX_RATIO = 4.0
"""Times as long that work may take as it is estimated, or as short."""
MAX_BESIDE_S = 10.0
"""CPU seconds of a sample beside ops and encoding, above which a kept profile is nonsense."""
_WEIGHT = 0.5
"""Of the newest window, in what a sample takes at the agent."""
KNOWN_FROM_S = 1.0
"""CPU seconds of the loader that weigh as much as all that was known before them. A window of its own weight would not
do: the first ones are short, and a loader at its start loads libraries and touches its memory for the first time, which
took 3 ms a sample where later ones took 0.3."""
COMPARED_FROM_S = 0.1
"""CPU seconds, as an agent has estimated them, that do so in how far off it is. One sample in eight tells."""


@dataclass(frozen=True)
class CostCorrections:
    """What estimates are corrected by; `SharedOffers.table` takes it.

    Args:
        loader_per_rest: loader CPU seconds per second that the agent estimates for what is left.
        agent_per_work: agent CPU seconds per second that it estimates for ops and encoding.
        loader_s: loader CPU seconds of every sample beside that and its bytes.
        file_s: agent CPU seconds of a sample that crosses as its file, beside its bytes.
        agent_s: agent CPU seconds of any other beside its bytes, ops and encoding.

    Example:
        >>> CostCorrections().after(window, file_rest_s=0.002).loader_s
        0.0004
    """

    loader_per_rest: float = 1.0
    agent_per_work: float = 1.0
    loader_s: float = 0.0
    file_s: float = 0.0
    agent_s: float = 0.0

    @staticmethod
    def kept(figures: Mapping[str, float]) -> CostCorrections:
        """What an earlier run has kept.

        Args:
            figures: by name; others may be among them.

        Raises:
            KeyError, ValueError: one is missing, or nonsense.
        """
        found = CostCorrections(**{one.name: float(figures[one.name]) for one in fields(CostCorrections)})
        seconds = (found.loader_s, found.file_s, found.agent_s)
        ratios = (found.loader_per_rest, found.agent_per_work)
        if not all(1 / MAX_RATIO <= one <= MAX_RATIO for one in ratios):
            raise ValueError(f"ratios must be up to {MAX_RATIO}, got {ratios}")
        if not all(0 <= one <= MAX_BESIDE_S for one in seconds):
            raise ValueError(f"seconds must be in [0, {MAX_BESIDE_S}], got {seconds}")
        return found

    def figures(self) -> dict[str, float]:
        """The inverse of `kept`."""
        return asdict(self)

    def after(self, now: Totals, file_rest_s: float | None) -> CostCorrections:
        """After a window; one without samples changes nothing.

        Args:
            now: counted in it.
            file_rest_s: CPU seconds that a file leaves to the loader, as the agent estimates it in the mean; None
                before it has.
        """
        if not now.samples:
            return self
        per_rest = _ratio(self.loader_per_rest, now.compared_loader_s, now.compared_rest_s)
        per_work = _ratio(self.agent_per_work, now.weighed_work_s, now.estimated_work_s)
        files, nbytes = now.samples - now.offloaded, now.wire_bytes / now.samples
        loader_s, file_s, agent_s = self.loader_s, self.file_s, self.agent_s
        sent = max(1, now.samples - now.cached)
        read_s = max(0.0, now.agent_cpu_s - now.upkeep_s - now.work_cpu_s) / sent
        # What the agent says of its upkeep is a mean over all of its replies, large or small.
        read_s -= AGENT_S_PER_BYTE * now.wire_bytes / sent
        if files > now.cached:
            file_s = _nearer(file_s, read_s + (now.upkeep_s - now.offloaded_upkeep_s) / (files - now.cached))
        if now.offloaded:
            agent_s = _nearer(agent_s, read_s + now.offloaded_upkeep_s / now.offloaded)
        if file_rest_s is not None:
            taken_s = now.weighed_rest_s / now.weighed if now.weighed else file_rest_s
            rest_s = (files * file_rest_s + now.offloaded * taken_s) / now.samples
            found_s = now.loader_cpu_s / now.samples - per_rest * rest_s - LOADER_S_PER_BYTE * nbytes
            loader_s += _weight(now.loader_cpu_s, KNOWN_FROM_S) * (max(0.0, found_s) - loader_s)
        return CostCorrections(per_rest, per_work, loader_s, file_s, agent_s)


def _ratio(known: float, measured_s: float, estimated_s: float) -> float:
    if not estimated_s > 0:
        return known
    found = min(max(measured_s / estimated_s, 1 / MAX_RATIO), MAX_RATIO)
    return known + _weight(estimated_s, COMPARED_FROM_S) * (found - known)


def _weight(seconds: float, as_much_s: float) -> float:
    """Of what so many seconds have shown, beside what was known."""
    return seconds / (seconds + as_much_s)


def _nearer(known_s: float, now_s: float) -> float:
    now_s = max(0.0, now_s)
    return known_s + _WEIGHT * (now_s - known_s) if known_s else now_s
