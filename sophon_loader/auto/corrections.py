"""Errors of the agent's estimates, and costs of samples in addition to them, at either end. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

from sophon_loader.measures.counters import Totals

AGENT_S_PER_BYTE = 2.0e-9
"""CPU seconds to hand a byte of a reply from a worker through the broker to the wire."""
LOADER_S_PER_BYTE = 0.5e-9
"""CPU seconds to take a byte of a reply from the wire."""
MAX_RATIO = 4.0
"""Largest factor by which a CPU estimate is corrected, up or down."""
MAX_BESIDE_S = 10.0
"""Maximum CPU seconds of a sample in addition to ops and encoding; a kept profile with more is invalid."""
_WEIGHT = 0.5
"""Weight of the newest window in the cost of a sample at the agent."""
KNOWN_FROM_S = 1.0
"""CPU seconds of the loader that weigh as much as all earlier ones. Weights by window would be wrong, since the first
ones are short. A loader at its start also loads libraries and touches its memory for the first time: that took 3 ms a
sample, later ones 0.3."""
COMPARED_FROM_S = 0.1
"""CPU seconds, by an agent's estimates, that weigh as much as all earlier ones in its error. One in eight samples
counts."""


@dataclass(frozen=True)
class CostCorrections:
    """Corrections of estimates, for `SharedOffers.table`.

    Args:
        loader_per_rest: loader CPU seconds per second that the agent estimates for the remaining ops.
        agent_per_work: agent CPU seconds per second that it estimates for ops and encoding.
        loader_s: loader CPU seconds of every sample in addition to that and its bytes.
        file_s: agent CPU seconds of a sample that crosses as its file, in addition to its bytes.
        agent_s: agent CPU seconds of any other in addition to its bytes, ops and encoding.

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
        """Return the corrections of an earlier run.

        Args:
            figures: by name; there may be others.

        Raises:
            KeyError, ValueError: one is missing or invalid.
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
        """Return the figures that `kept` reads."""
        return asdict(self)

    def after(self, now: Totals, file_rest_s: float | None) -> CostCorrections:
        """Return the corrections after a window; one without samples changes nothing.

        Args:
            now: counts of the window.
            file_rest_s: mean CPU seconds that a file leaves to the loader, by the agent's estimate; None before it has
                one.
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
    """Return the weight of this many seconds, relative to what was known."""
    return seconds / (seconds + as_much_s)


def _nearer(known_s: float, now_s: float) -> float:
    now_s = max(0.0, now_s)
    return known_s + _WEIGHT * (now_s - known_s) if known_s else now_s
