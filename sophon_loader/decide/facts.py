"""The inputs of a policy: rates, the cost of every choice of every sample, and the agent's abilities.

Plain data with its checks. Nothing here decides or measures anything.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sophon_loader.errors import PlanError

FloatTable = NDArray[np.float32]
Costs = tuple[FloatTable, FloatTable, FloatTable]
"""Bytes on the wire, CPU seconds at the agent, CPU seconds in the loader."""

MAX_CHOICES = 256
"""Maximum number of choices: a plan stores one byte per sample."""
BLOCK = 1 << 12
"""Samples per step of a pass over a table: the temporaries stay in the L2 cache, and are small compared with the
table."""


@dataclass(frozen=True, order=True)
class Choice:
    """A cut and an encoding: the stage at which a sample crosses the wire, and its form there.

    Args:
        cut: the stage that crosses, >= 0; ops[:cut] run at the agent.
        encoding: an encoding's name, for example `"file"`.

    Raises:
        PlanError: `cut` is negative or `encoding` is empty.

    Example:
        >>> str(Choice(2, "pixels"))
        'pixels@2'
    """

    cut: int
    encoding: str

    def __post_init__(self) -> None:
        if self.cut < 0:
            raise PlanError(f"cut must be >= 0, got {self.cut}; stage 0 is the file itself")
        if not self.encoding:
            raise PlanError("encoding must be a name, got ''; use 'file' for the unchanged file")

    def __str__(self) -> str:
        return f"{self.encoding}@{self.cut}"


FILE = Choice(0, "file")
"""No offloading: the file's own bytes cross the wire."""
PAPER_ENCODINGS = frozenset({"file", "pixels", "array"})
"""The paper sends a value as it is; compressed encodings are ours."""
OFFLOADS_FROM_CORES = 0.06
"""Minimum cores of each of an agent's workers, as the agent reports them, for anything to be offloaded. A quota gives
its cores in periods of 100 ms. With fewer, one sample uses up a whole period, and files wait for the next with the wire
idle."""


@dataclass(frozen=True)
class Rates:
    """The rate of each resource, each > 0; `inf` means that it never limits.

    Args:
        gpu_samples_s: samples/s that the training step consumes when data is ready.
        wire_bytes_s: bytes/s of payload with several requests outstanding.
        loader_cores: CPU seconds per second of the loader's workers.
        agent_cores: CPU seconds per second that the agent has for this client.
        disk_samples_s: samples/s whose files the agent's disk reads.

    Raises:
        PlanError: a rate is zero, negative or NaN.

    Example:
        >>> Rates(gpu_samples_s=2000, wire_bytes_s=60e6, loader_cores=8, agent_cores=2)
    """

    gpu_samples_s: float
    wire_bytes_s: float
    loader_cores: float
    agent_cores: float
    disk_samples_s: float = math.inf

    def __post_init__(self) -> None:
        for rate in fields(self):
            value = getattr(self, rate.name)
            if not value > 0:  # also catches NaN
                raise PlanError(
                    f"{rate.name} must be > 0, got {value}; measure it again, or pass math.inf when it never limits"
                )

    def measured(self) -> dict[str, float]:
        """Finite rates, by name."""
        return {name: value for name, value in asdict(self).items() if math.isfinite(value)}


class ChoiceTable:
    """The cost of every choice of every sample.

    A choice that a sample does not have is marked by `wire_bytes` = `inf`. The table also marks a choice with a NaN or
    negative entry in any of the three arrays, or with an infinite time. So a wrong measurement removes a choice, and
    never makes one look cheap. A sample whose choice 0 is unusable gets the mean of its column, and is counted in
    `repaired`.

    The arrays are stored column by column. An array that already is (`columns.T` of a C-ordered [C, N] array) and has
    nothing to repair is used without a copy, and must not be changed afterwards.

    Args:
        choices: C distinct choices, at most 256; `choices[0]` is `FILE`.
        wire_bytes: float32[N, C], bytes on the wire.
        agent_s: float32[N, C], CPU seconds at the agent. Column 0 may hold the cost of reading the file.
        loader_s: float32[N, C], CPU seconds in the loader.
        measured: bool[N], the samples whose costs were measured; None for all.

    Raises:
        PlanError: the shapes or the choices do not fit, or no sample at all has a usable choice 0.

    Example:
        >>> sizes = np.array([[110_000, 150_528]], dtype=np.float32)
        >>> times = np.array([[0.0, 0.003]], dtype=np.float32)
        >>> ChoiceTable((FILE, Choice(2, "pixels")), wire_bytes=sizes, agent_s=times, loader_s=1 - times)
    """

    def __init__(
        self,
        choices: tuple[Choice, ...],
        wire_bytes: NDArray[np.floating],
        agent_s: NDArray[np.floating],
        loader_s: NDArray[np.floating],
        *,
        measured: NDArray[np.bool_] | None = None,
    ) -> None:
        _check_choices(choices)
        self.measured = measured
        given = {"wire_bytes": wire_bytes, "agent_s": agent_s, "loader_s": loader_s}
        arrays = [_column_major(name, values, len(choices)) for name, values in given.items()]
        if len({array.shape for array in arrays}) > 1:
            shapes = ", ".join(f"{name} {array.shape}" for name, array in zip(given, arrays, strict=True))
            raise PlanError(
                f"wire_bytes, agent_s and loader_s must have one shape, got {shapes}; "
                "give all three the shape [samples, choices]"
            )
        self.choices = choices
        self.repaired = 0
        if not _is_clean(*arrays):
            arrays, self.repaired = _cleaned(*arrays)
        self._wire_bytes, self._agent_s, self._loader_s = map(_frozen, arrays)

    @property
    def wire_bytes(self) -> FloatTable:
        """float32[N, C], bytes on the wire."""
        return self._wire_bytes

    @property
    def agent_s(self) -> FloatTable:
        """float32[N, C], CPU seconds at the agent."""
        return self._agent_s

    @property
    def loader_s(self) -> FloatTable:
        """float32[N, C], CPU seconds in the loader."""
        return self._loader_s

    @property
    def samples(self) -> int:
        """N, the number of samples."""
        return int(self.wire_bytes.shape[0])

    def index(self, choice: Choice) -> int | None:
        """Return the column of `choice`, or None if the table does not have it."""
        return self.choices.index(choice) if choice in self.choices else None

    def has(self, column: int) -> NDArray[np.bool_]:
        """Return bool[N]: True for samples that have the choice in this column."""
        found = np.empty(self.samples, np.bool_)
        for part, (wire, _, _) in self.parts():
            np.isfinite(wire[:, column], out=found[part])
        return found

    def lacks(self, column: int) -> NDArray[np.bool_]:
        """Return bool[N]: True for samples that were measured and do not have the choice in this column."""
        lacking = ~self.has(column)
        return lacking if self.measured is None else lacking & self.measured

    def parts(self) -> Iterator[tuple[slice, Costs]]:
        """Yield the table in blocks: (slice of samples, (wire_bytes, agent_s, loader_s)), float32[n, C] each."""
        for part in blocks(self.samples):
            yield part, (self.wire_bytes[part], self.agent_s[part], self.loader_s[part])

    def picked(self, who: NDArray[Any], *columns: NDArray[Any] | int) -> list[Costs]:
        """Return (wire_bytes, agent_s, loader_s) of one choice of each of some samples, float32[n] each.

        Args:
            who: int[n], the samples.
            columns: the choice of each sample; several columns give several results.
        """
        return [(self.wire_bytes[who, one], self.agent_s[who, one], self.loader_s[who, one]) for one in columns]


class MadeTable(ChoiceTable):
    """A table whose blocks are computed on request, so that the costs of all samples need not be stored.

    Args:
        choices: C distinct choices; `choices[0]` is `FILE`.
        samples: N.
        make: returns (wire_bytes, agent_s, loader_s) of some samples, by their indices, as a `ChoiceTable` takes them;
            a sample's costs must not depend on the other samples of the call.
        measured: bool[N], the samples whose costs were measured; None for all.

    Example:
        >>> MadeTable((FILE,), 1_280_000, lambda rows: (sizes[rows], times[rows], times[rows])).samples
        1280000
    """

    def __init__(
        self,
        choices: tuple[Choice, ...],
        samples: int,
        make: Callable[[NDArray[Any]], Costs],
        *,
        measured: NDArray[np.bool_] | None = None,
    ) -> None:
        _check_choices(choices)
        self.measured = measured
        self.choices = choices
        self.repaired = 0
        self._samples = samples
        self._make = make

    @cached_property
    def _whole(self) -> ChoiceTable:
        return ChoiceTable(self.choices, *self._make(np.arange(self._samples)))

    @property
    def wire_bytes(self) -> FloatTable:
        """float32[N, C], bytes on the wire; the first use of any of the three arrays computes the whole table."""
        return self._whole.wire_bytes

    @property
    def agent_s(self) -> FloatTable:
        """float32[N, C], CPU seconds at the agent."""
        return self._whole.agent_s

    @property
    def loader_s(self) -> FloatTable:
        """float32[N, C], CPU seconds in the loader."""
        return self._whole.loader_s

    @property
    def samples(self) -> int:
        """N, the number of samples."""
        return self._samples

    def parts(self) -> Iterator[tuple[slice, Costs]]:
        """See `ChoiceTable`."""
        for part in blocks(self._samples):
            yield part, self._some(np.arange(part.start, part.stop))

    def picked(self, who: NDArray[Any], *columns: NDArray[Any] | int) -> list[Costs]:
        """See `ChoiceTable`."""
        wire, agent, loader = self._some(who)
        rows = np.arange(len(who))
        return [(wire[rows, one], agent[rows, one], loader[rows, one]) for one in columns]

    def _some(self, rows: NDArray[Any]) -> Costs:
        made = ChoiceTable(self.choices, *self._make(rows))
        return made.wire_bytes, made.agent_s, made.loader_s


@dataclass(frozen=True, eq=False)
class Facts:
    """The inputs of a policy.

    Args:
        samples: N >= 0.
        rates: of the resources.
        table: the cost of every choice, or None before profiling.
        max_cut: the last stage that the agent can reach, >= 0.
        resize_cut: the stage right after the first crop or resize op, or None if there is none.
        profiled_share: share of samples with their own profile, in [0, 1]; the others carry column means.
        offered_cores: cores that the agent reports, >= 0, independently of its measured rate (`rates`).
        cached: share of the samples whose files are in the cache on the loader's host, in [0, 1].
        admitted: share of the samples whose files the cache is to hold in the end, in [0, 1]; 0 without a cache.

    Raises:
        PlanError: a value is out of its range, or `table` is not of N samples or reaches past `max_cut`.

    Example:
        >>> Facts(samples=1000, rates=rates, table=None, max_cut=4, resize_cut=2, profiled_share=0.0)
    """

    samples: int
    rates: Rates
    table: ChoiceTable | None
    max_cut: int
    resize_cut: int | None
    profiled_share: float
    offered_cores: float = math.inf
    cached: float = 0.0
    admitted: float = 0.0

    def __post_init__(self) -> None:
        if self.samples < 0:
            raise PlanError(f"samples must be >= 0, got {self.samples}; pass len(dataset)")
        if self.max_cut < 0:
            raise PlanError(f"max_cut must be >= 0, got {self.max_cut}; 0 means no op can be offloaded")
        if self.resize_cut is not None and self.resize_cut < 1:
            raise PlanError(f"resize_cut must be >= 1 or None, got {self.resize_cut}; a stage after an op is >= 1")
        if not 0 <= self.profiled_share <= 1:
            raise PlanError(f"profiled_share must be in [0, 1], got {self.profiled_share}; pass profiled / samples")
        for name, what in (("cached", "samples found in the cache"), ("admitted", "samples that the cache is to hold")):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise PlanError(f"{name} must be in [0, 1], got {value}; pass {what} / samples")
        if not self.offered_cores >= 0:  # also catches NaN
            raise PlanError(f"offered_cores must be >= 0, got {self.offered_cores}; pass what the agent says")
        if self.table is not None:
            self._check_table(self.table)

    def _check_table(self, table: ChoiceTable) -> None:
        if table.samples != self.samples:
            raise PlanError(f"table must be of {self.samples} samples, got {table.samples}; profile this dataset anew")
        far = [str(choice) for choice in table.choices if choice.cut > self.max_cut]
        if far:
            raise PlanError(
                f"table's cuts must be <= max_cut = {self.max_cut}, got {', '.join(far)}; "
                "leave out what the agent cannot reach"
            )

    def caveats(self) -> str:
        """Return the weaknesses of a plan made from these facts, to be appended to its reason; "" without any."""
        if self.table is None or not self.samples:
            return ""
        notes = []
        if self.profiled_share < 1:
            percent = math.floor(1000 * self.profiled_share) / 10
            notes.append(f"only {percent:g} % of the samples are profiled, the others count as average ones")
        if self.table.repaired:
            notes.append(f"{self.table.repaired} samples without usable measurements count as average ones")
        return "".join(f"; {note}" for note in notes)


def blocks(samples: int) -> Iterator[slice]:
    """Yield consecutive slices that cover `range(samples)`, each of at most `BLOCK`."""
    for low in range(0, samples, BLOCK):
        yield slice(low, min(low + BLOCK, samples))


def _check_choices(choices: tuple[Choice, ...]) -> None:
    if not 1 <= len(choices) <= MAX_CHOICES:
        raise PlanError(f"choices must be 1 to {MAX_CHOICES}, got {len(choices)}; drop cuts or encodings")
    if choices[0] != FILE:
        raise PlanError(f"choices[0] must be {FILE}, got {choices[0]}; put the choice without offloading first")
    if len(set(choices)) < len(choices):
        raise PlanError(f"choices must be distinct, got {', '.join(map(str, choices))}; drop the doubles")


def _column_major(name: str, values: NDArray[np.floating], width: int) -> FloatTable:
    with np.errstate(over="ignore"):  # a float64 past float32's range becomes inf, which marks it unusable
        array = np.asarray(values, dtype=np.float32)
    if array.ndim != 2 or array.shape[1] != width:
        raise PlanError(f"{name} must have shape [samples, {width}], got {array.shape}; one column per choice")
    ordered: FloatTable = np.ascontiguousarray(array.T).T
    return ordered


def _frozen(array: FloatTable) -> FloatTable:
    view: FloatTable = array.view()
    view.flags.writeable = False
    return view


def _is_clean(wire: FloatTable, agent: FloatTable, loader: FloatTable) -> bool:
    """True if nothing needs repair. min and max carry a NaN through, so this needs no temporary array."""
    if not wire.size:
        return True
    least = (wire.min() >= 0, agent.min() >= 0, loader.min() >= 0)
    most = (wire[:, 0].max() < np.inf, agent.max() < np.inf, loader.max() < np.inf)
    return bool(all(least) and all(most))


def _cleaned(wire: FloatTable, agent: FloatTable, loader: FloatTable) -> tuple[list[FloatTable], int]:
    wire, agent, loader = (array.copy(order="F") for array in (wire, agent, loader))
    for column in range(wire.shape[1]):
        views = (wire[:, column], agent[:, column], loader[:, column])
        bad = np.zeros(len(wire), dtype=np.bool_)
        for view in views:
            bad |= ~((view >= 0) & (view < np.inf))
        if column == 0:
            repaired = _fill_with_means(views, bad)
        else:
            for view, filler in zip(views, (np.inf, 0, 0), strict=True):
                view[bad] = filler
    return [wire, agent, loader], repaired


def _fill_with_means(views: tuple[FloatTable, ...], bad: NDArray[np.bool_]) -> int:
    repaired = int(np.count_nonzero(bad))
    if repaired == len(bad):
        raise PlanError(
            f"choice 0 must be measured for at least one sample, got none of {len(bad)} usable; profile again"
        )
    for view in views:
        if repaired:
            view[bad] = view[~bad].mean(dtype=np.float64)
    return repaired
