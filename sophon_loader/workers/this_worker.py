"""The number of this worker, the number of workers, and its notes on what agents say of themselves."""

from __future__ import annotations

from torch.utils.data import get_worker_info

from sophon_loader.auto.shared_live import Live
from sophon_loader.client.session import Session
from sophon_loader.fleet.fleet import Fleet
from sophon_loader.fleet.worker_fleet import WorkerFleet
from sophon_loader.measures.counters import Statistics
from sophon_loader.wire.messages import Sample


def worker_number() -> int:
    """Return the number of this worker; 0 in the main process, too."""
    worker = get_worker_info()
    return int(worker.id) if worker else 0


def worker_count() -> int:
    """Return the number of processes that load as this one does."""
    worker = get_worker_info()
    return int(worker.num_workers) if worker else 1


def note_agent(
    ways: WorkerFleet,
    session: Session | Fleet,
    statistics: Statistics,
    live: Live | None,
    sample: Sample,
    nbytes: int,
) -> None:
    """Keep what an agent said of itself with a sample.

    Args:
        ways: of this process.
        session: by which the sample came.
        statistics: of all processes.
        live: shared with the main process if the agent chooses; else None.
        sample: the answer.
        nbytes: of its payload.
    """
    worker = worker_number()
    cores, per_worker = ways.hear(session, worker, sample, nbytes)
    statistics.agent_cores.array[worker] = cores
    statistics.per_worker.array[worker] = per_worker
    if sample.offers and live is not None:
        live.offers.write(worker, sample.offers)
