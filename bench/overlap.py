"""Interference with the training side: an all-reduce over the same link, and asynchronous checkpoints.

    python -m bench.overlap --data PATH --link-mbit 100 --json overlap.json

A job of two ranks under torchrun (gloo). Rank 0 trains on the loader's host with samples from the agent. Rank 1 is the
rest of the job, on the agent's host, so that its bytes in each all-reduce of --gradient-mb go through the shaped end of
the link, as the samples do. Its own batches are always there. The step is DistributedDataParallel on
pictures that are pooled to 8 x 8, so that its compute is next to nothing, after a sleep of --step-ms. With checkpoints,
rank 0 copies the model every --checkpoint-steps steps, and a thread writes the copy to a file and syncs it, while the
training goes on.

The figures are for each policy and prefetch_factor, with and without checkpoints. They are seconds per step, the
seconds waited for batches, and those in backward and all-reduce at either rank, which include waiting for the other
rank.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from itertools import islice, product
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from bench import arguments, record
from bench.bed import INTERFACE, open_testbed
from bench.children import AGENT_CORE, LOADER_CORE, agent_address, start_agent
from bench.loading import folder, our_loader, quiet
from bench.record import REPOSITORY

PORT = 29_511
"""Port of the process group's store, on the loader's host."""
POOLED = 8 * 8 * 3
"""Features of a picture."""


class Pooled(nn.Module):
    """A linear layer on small pictures.

    Args:
        nbytes: of its parameters, which are those of its gradient.
    """

    def __init__(self, nbytes: float) -> None:
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(8)
        self.linear = nn.Linear(POOLED, max(1, round(nbytes / 4 / (POOLED + 1))))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """float[N, K] of float[N, 3, H, W]."""
        found: torch.Tensor = self.linear(self.pool(images).flatten(1))
        return found


# --- a rank -----------------------------------------------------------------------------------------------------------


def rank_main(told: dict[str, Any]) -> None:
    """Run all cases at one rank; rank 0 writes its measurements to the file `out`.

    Args:
        told: cases and settings, the same at both ranks.
    """
    quiet()
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    rows = []
    for case in told["cases"]:
        torch.manual_seed(0)
        model = DistributedDataParallel(Pooled(1e6 * told["gradient_mb"]))
        steps, warm = told["steps"], told["warm_steps"]
        if rank:
            found = _steps(model, _always(told["batch_size"], warm + steps), told, case)
        else:
            dataset = folder(told["data"], 1 + (warm + steps + 8) * told["batch_size"] // told["pictures"])
            loader = our_loader(
                dataset,
                1,
                told["batch_size"],
                agent=told["address"],
                policy=case["policy"],
                prefetch_factor=case["prefetch"],
                seed=0,
            )
            found = _steps(model, islice(iter(loader), warm + steps), told, case)
            found["offloaded"] = 1 - loader.report().totals.encodings.get("file", 0) / loader.report().totals.samples
            loader.close()
        both: list[Any] = [None, None]
        distributed.all_gather_object(both, found)
        rows.append({**case, **both[0], "rank1_backward_s": both[1]["backward_s"]})
    if rank == 0:
        Path(told["out"]).write_text(json.dumps(rows))
    distributed.destroy_process_group()


def _always(batch_size: int, count: int) -> Any:
    batch = torch.zeros(batch_size, 3, 224, 224), torch.zeros(batch_size)
    return (batch for _ in range(count))


def _steps(model: nn.Module, batches: Any, told: dict[str, Any], case: dict[str, Any]) -> dict[str, float]:
    """Means per step, of those after the warm ones."""
    waited_s = backward_s = written_s = 0.0
    writer: threading.Thread | None = None
    started_s = asked_s = time.perf_counter()
    for number, (images, _) in enumerate(batches):
        if number == told["warm_steps"]:
            waited_s = backward_s = written_s = 0.0
            started_s = asked_s
        waited_s += time.perf_counter() - asked_s
        time.sleep(told["step_ms"] / 1000)
        loss = model(images).square().mean()
        since_s = time.perf_counter()
        loss.backward()
        now_s = time.perf_counter()
        backward_s += now_s - since_s
        if case["checkpoints"] and distributed.get_rank() == 0 and number % told["checkpoint_steps"] == 0:
            if writer is not None:
                writer.join()
            state = {name: one.clone() for name, one in model.state_dict().items()}
            writer = threading.Thread(target=_write, args=(state,))
            writer.start()
            written_s += time.perf_counter() - now_s
        asked_s = time.perf_counter()
    seconds = asked_s - started_s
    if writer is not None:
        writer.join()
    means = {"step_s": seconds, "waited_s": waited_s, "backward_s": backward_s, "checkpoint_s": written_s}
    return {name: value / told["steps"] for name, value in means.items()}


def _write(state: dict[str, torch.Tensor]) -> None:
    with tempfile.TemporaryFile() as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())


# --- the bench's process ----------------------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a table, write the results."""
    bench = parser()
    options = arguments.parsed(bench, argv)
    arguments.require_bed(bench, linked=True)
    cases = [
        {"policy": policy, "prefetch": prefetch, "checkpoints": checkpoints}
        for policy, checkpoints, prefetch in product(options.policies, (False, True), options.prefetch)
    ]
    names = ("gradient_mb", "batch_size", "step_ms", "steps", "warm_steps", "checkpoint_steps")
    settings = {name: getattr(options, name) for name in names}
    pictures = sum(1 for _ in options.data.glob("*/*"))
    with open_testbed(link_mbit=options.link_mbit) as bed, tempfile.TemporaryDirectory() as place:
        start_agent(bed, options.data, None)
        out = Path(place) / "rows.json"
        told = {**settings, "cases": cases, "data": str(options.data), "pictures": pictures, "out": str(out)}
        told["address"] = agent_address(bed)
        ranks = []
        for rank, (host, core) in enumerate(((bed.loader_host, LOADER_CORE), (bed.agent_host, AGENT_CORE))):
            torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
            torchrun += ["--node-rank", str(rank), "--master-addr", bed.loader_host.address]
            torchrun += ["--master-port", str(PORT), "-m", "bench.overlap", "--rank", json.dumps(told)]
            environment = {**os.environ, "GLOO_SOCKET_IFNAME": INTERFACE, "OMP_NUM_THREADS": "1"}
            ranks.append(host.popen(torchrun, cores={core}, cwd=REPOSITORY, env=environment))
        failed = [rank for rank, process in enumerate(ranks) if _status(process, options.limit_s)]
        if failed:
            print(f"rank {failed} failed, or has not ended within {options.limit_s:g} s", file=sys.stderr)
            return 1
        rows = json.loads(out.read_text())
    show(rows, f"{options.data.name}, {options.link_mbit:g} Mbit/s, all-reduce of {options.gradient_mb:g} MB")
    settings |= {"data": options.data.name, "link_mbit": options.link_mbit}
    record.write(options.output, {"settings": settings, "cases": rows})
    return 0


def _status(process: subprocess.Popen[Any], limit_s: float) -> int:
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return -1


def parser() -> arguments.Parser:
    """The command line."""
    parser = arguments.Parser("bench.overlap", __doc__, pictures=True)
    add = parser.add_argument
    several: dict[str, Any] = {"nargs": "+", "action": arguments.Distinct}
    add("--link-mbit", type=arguments.above_zero, default=100.0)
    add("--gradient-mb", type=arguments.above_zero, default=1.0, help="Megabytes of gradients that a step exchanges.")
    add("--policies", type=arguments.policy(), default=["no-off", "auto"], metavar="NAME", **several)
    add("--prefetch", type=arguments.count(), default=[1, 2, 4, 8], metavar="N", **several)
    add("--batch-size", type=arguments.count(), default=16)
    add("--step-ms", type=arguments.not_negative, default=20.0)
    add("--steps", type=arguments.count(), default=60, help="Steps of each case that are measured.")
    add("--warm-steps", type=arguments.count(), default=20, help="Steps before them that are not.")
    add("--checkpoint-steps", type=arguments.count(), default=5, help="Steps from one checkpoint to the next.")
    add("--limit-s", type=arguments.above_zero, default=1800.0, help="Seconds after which the ranks are given up.")
    return parser


def show(rows: list[dict[str, Any]], title: str) -> None:
    """Print the means.

    Args:
        rows: one per case.
        title: of the table.
    """
    columns = ("policy", "prefetch", "checkpoints", "step s", "waits for a batch", "backward", "rank 1's backward")
    table = Table(*columns, "offloaded", title=title)
    for row in rows:
        case = (row["policy"], str(row["prefetch"]), "yes" if row["checkpoints"] else "no")
        figures = (row[name] for name in ("step_s", "waited_s", "backward_s", "rank1_backward_s"))
        table.add_row(*case, *(f"{value:.3f}" for value in figures), f"{row['offloaded']:.0%}")
    Console(width=120).print(table)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        rank_main(json.loads(sys.argv[2]))
    else:
        sys.exit(main())
