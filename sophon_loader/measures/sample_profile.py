"""Stage 2: the size of each sample at every stage and the CPU time of every op, in at most 64 bytes per sample.

Loader workers write while they run a pipeline from the file on; the main process reads. Sizes are those of the values,
before any encoding.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from sophon_loader.host.shared import SharedArray

MAX_MEASURED_OPS = 9
"""Maximum number of ops measured one by one: 10 sizes of 4 bytes, 9 times and 2 sides of 2 bytes make 62 bytes a
sample."""
UNKNOWN_NBYTES = 0xFFFFFFFF
"""Size given for a value that cannot cross the wire."""
_MAX_MS = float(np.finfo(np.float16).max)
"""65504. Longer times are stored as this, because inf would not count as a time."""


class SampleProfile:
    """Measured sizes and times of each sample.

    Example:
        >>> profile = SampleProfile(samples=1000, ops=4)
        >>> measured = profile.measure(file_nbytes=len(data))
        >>> chain.run(data, 0, 4, draw, after=measured.after)
        >>> profile.store(index, measured)

    Args:
        samples: N.
        ops: length of the longest pipeline, >= 1; ops from the ninth on are measured together.

    Attributes:
        nbytes: uint32[N, S], size in bytes at stage 0 .. S-1. 0 at stage 0 means not profiled yet; 0 at another stage
            means that the sample's pipeline is shorter.
        op_ms: float16[N, S-1], CPU milliseconds of each op at the loader.
        sides: uint16[N, 2], width and height in px after op 0; 0 means unknown or above 65535.
    """

    def __init__(self, samples: int, ops: int) -> None:
        self.ops = min(ops, MAX_MEASURED_OPS)
        self._nbytes, self._op_ms, self._sides, self._recording = SharedArray.together(
            np.zeros((samples, self.ops + 1), np.uint32),
            np.zeros((samples, self.ops), np.float16),
            np.zeros((samples, 2), np.uint16),
            np.zeros(1, np.uint8),
        )

    @property
    def nbytes(self) -> NDArray[np.uint32]:
        array: NDArray[np.uint32] = self._nbytes.array
        return array

    @property
    def op_ms(self) -> NDArray[np.float16]:
        array: NDArray[np.float16] = self._op_ms.array
        return array

    @property
    def sides(self) -> NDArray[np.uint16]:
        array: NDArray[np.uint16] = self._sides.array
        return array

    @property
    def known(self) -> NDArray[np.bool_]:
        """bool[N]: True for each profiled sample."""
        known: NDArray[np.bool_] = self.nbytes[:, 0] > 0
        return known

    @property
    def coverage(self) -> float:
        """Share of profiled samples, in [0, 1]."""
        return float(self.known.mean()) if len(self.nbytes) else 1.0

    @property
    def mean_ops_s(self) -> float | None:
        """Mean loader CPU seconds of all ops of a profiled sample; None before the first."""
        known = self.known
        if not known.any():
            return None
        return float(self.op_ms[known].sum(axis=1, dtype=np.float64).mean()) / 1000

    @property
    def recording(self) -> bool:
        """True if workers are to measure."""
        return bool(self._recording.array[0])

    @recording.setter
    def recording(self, value: bool) -> None:
        self._recording.array[0] = value

    def measure(self, file_nbytes: int, reach: int = MAX_MEASURED_OPS) -> Measurement:
        """Start measuring a sample whose op 0 is about to run.

        Args:
            file_nbytes: size of its file.
            reach: last stage that the agent reaches; a value at a later one cannot cross the wire.
        """
        return Measurement(self.ops, file_nbytes, reach)

    def store(self, index: int, measured: Measurement) -> None:
        """Store a finished measurement.

        Args:
            index: of the sample.
            measured: the measurement that `measure` returned.
        """
        self.op_ms[index] = measured.op_ms
        self.sides[index] = measured.sides
        self.nbytes[index] = measured.nbytes

    def add(self, indices: NDArray[np.uint32], rows: dict[str, NDArray[Any]]) -> None:
        """Take over measurements from elsewhere, for samples that are not profiled here.

        Args:
            indices: uint32[n], of the samples.
            rows: their rows of `arrays`, by name.

        Raises:
            KeyError, ValueError, IndexError: an array is missing, or does not fit.
        """
        new = ~self.known[indices]
        for name, array in self.arrays().items():
            array[indices[new]] = rows[name][new]

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return all arrays by name, for saving."""
        return {"nbytes": self.nbytes, "op_ms": self.op_ms, "sides": self.sides}

    def load(self, arrays: dict[str, NDArray[Any]]) -> None:
        """Load the arrays that `arrays` returned.

        Raises:
            KeyError, ValueError: an array is missing, has another shape or dtype, or holds values that are not times.
                Nothing is loaded then.
        """
        for name, array in self.arrays().items():
            found = arrays[name]
            if (found.dtype, found.shape) != (array.dtype, array.shape):
                raise ValueError(f"{name} must be {array.dtype}{array.shape}, got {found.dtype}{found.shape}")
        times = arrays["op_ms"]
        if not (np.isfinite(times) & (times >= 0)).all():
            raise ValueError("op_ms must be times")
        for name, array in self.arrays().items():
            array[:] = arrays[name]


class Measurement:
    """One sample on its way through a pipeline; `after` is the chain's callback.

    Args:
        ops: number of ops that are measured one by one.
        file_nbytes, reach: as for `SampleProfile.measure`.
    """

    def __init__(self, ops: int, file_nbytes: int, reach: int = MAX_MEASURED_OPS) -> None:
        self._reach = reach
        self.nbytes = np.zeros(ops + 1, np.uint32)
        self.op_ms = np.zeros(ops, np.float16)
        self.sides = (0, 0)
        self.nbytes[0] = file_nbytes
        self._ms = [0.0] * ops
        self._last_s = time.thread_time()

    def after(self, stage: int, value: Any) -> None:
        """Record that op `stage - 1` has run.

        Args:
            stage: number of the stage after the op, >= 1.
            value: result of the op.
        """
        now_s = time.thread_time()
        ops = len(self._ms)
        last = min(stage, ops)
        self._ms[last - 1] += 1000 * (now_s - self._last_s)
        self.nbytes[last] = nbytes_of(value) if last <= self._reach else UNKNOWN_NBYTES
        self.op_ms[last - 1] = min(self._ms[last - 1], _MAX_MS)
        if stage == 1 and isinstance(value, Image.Image) and max(value.size) <= 0xFFFF:
            self.sides = value.size
        self._last_s = time.thread_time()  # what was done here is not the next op's


def nbytes_of(value: Any) -> int:
    """Return the size of a value in its plain encoding, bytes; 2**32 - 1 if it cannot be sent."""
    if isinstance(value, Image.Image):
        return min(value.width * value.height * len(value.getbands()), UNKNOWN_NBYTES)
    if isinstance(value, torch.Tensor):
        return min(value.numel() * value.element_size(), UNKNOWN_NBYTES)
    if isinstance(value, np.ndarray):
        return min(value.nbytes, UNKNOWN_NBYTES)
    return UNKNOWN_NBYTES
