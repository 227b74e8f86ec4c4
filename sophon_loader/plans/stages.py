"""Stage 1 of SOPHON's profiler: decides if I/O limits at all. Stage 2 measures each sample."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from sophon_loader.decide.facts import Rates
from sophon_loader.decide.words import resource
from sophon_loader.figures import per_second


@dataclass(frozen=True)
class Throughput:
    """Rate of each part by itself, without offloading; inf if it is not known to limit.

    Args:
        gpu: samples/s that the training step takes when its data is ready.
        io: files/s that the wire brings.
        cpu: samples/s that the loader's cores preprocess when their files are there.

    Example:
        >>> Throughput.of(Rates(2000.0, 12e6, 2.0, 1.0), samples=50, file_bytes=5_000_000, loader_cpu_s=0.5).bottleneck
        'io'
    """

    gpu: float
    io: float
    cpu: float

    @staticmethod
    def of(rates: Rates, samples: int, file_bytes: float, loader_cpu_s: float) -> Throughput:
        """Return the throughput at given rates, for samples like these.

        Args:
            rates: of the resources.
            samples: number of samples; none of them was offloaded.
            file_bytes: size of their files, all together.
            loader_cpu_s: CPU seconds of the loader for them.
        """
        io = samples * rates.wire_bytes_s / file_bytes if file_bytes else math.inf
        cpu = samples * rates.loader_cores / loader_cpu_s if loader_cpu_s else math.inf
        return Throughput(rates.gpu_samples_s, io, cpu)

    @property
    def bottleneck(self) -> str:
        """The slowest part: gpu, io or cpu; of equal ones I/O comes last, so that it must be the limit."""
        found = {"gpu": self.gpu, "cpu": self.cpu, "io": self.io}
        return min(found, key=lambda name: found[name])

    def measured(self) -> dict[str, float]:
        """Return the known ones, by name, samples/s."""
        return {name: value for name, value in asdict(self).items() if math.isfinite(value)}

    def __str__(self) -> str:
        return ", ".join(f"{per_second(value)} by {resource(name)}" for name, value in self.measured().items())
