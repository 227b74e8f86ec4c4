"""The policies side by side on one dataset, over a real link between two hosts on this machine.

    python -m bench.policies --data PATH --link-mbit 100 --agent-cores 1.0 --epochs 3 --json policies.json

The agent runs in one network namespace, the loaders in another; the link between them is shaped on the agent's side.
Agent and loaders are pinned to a core each, and the agent's CPU is capped at --agent-cores. Each policy has a loader
process of its own with one worker; `torch` is torch's DataLoader on the files themselves. After a profiling pass (and,
for fastflow, its trials) the policies take turns, epoch by epoch, in an order that rotates every round. Bytes are those
of the interface's own counters. The training step is a sleep of --step-ms per batch, which stands for a GPU that leaves
the CPU alone.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch.utils.data import DataLoader
from tqdm import tqdm

from bench import record
from bench.loading import folder, torch_loader
from bench.testbed import REPOSITORY, LinkedHosts, LoopbackHosts, open_testbed
from sophon_loader import OffloadingDataLoader
from sophon_loader.decide.policies.fastflow import FastFlow
from sophon_loader.wire.announcement import announced

POLICIES = ("no-off", "all-off", "resize-off", "fastflow", "sophon", "auto")
PORT = 5555
END_S = 30.0
"""How long a loader process may take to end."""
WARM = 1000
"""Epochs from this number on are not measured."""
FASTFLOW_STEPS = 20
"""Steps per trial of fastflow: its paper's 50 would take several epochs of these small datasets each."""


def main() -> int:
    options = parser().parse_args()
    if options.role:
        return serve_epochs(options)
    data = options.data = (options.data or record.default_data()).resolve()
    with open_testbed(link_mbit=options.link_mbit or None) as bed:
        rows = compare(bed, data, options)
    summary = summarise(rows, options.policies)
    show(summary, f"{data.name}, {options.link_mbit:g} Mbit/s, agent at {options.agent_cores:g} cores")
    settings = {"data": data.name, "link_mbit": options.link_mbit, "agent_cores": options.agent_cores}
    settings |= {"step_ms": options.step_ms, "batch_size": options.batch_size, "encodings": options.encodings}
    record.write(options.json, "bench.policies", {"settings": settings, "epochs": rows, "summary": summary})
    return 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="an ImageFolder tree; default: the shared imagenet pictures")
    parser.add_argument("--link-mbit", type=float, default=100.0, help="0: not limited")
    parser.add_argument("--agent-cores", type=float, default=1.0, help="CPU quota of the agent")
    parser.add_argument("--agent-workers", type=int, default=1)
    parser.add_argument("--step-ms", type=float, default=0.0, help="length of the training step of a batch")
    parser.add_argument("--epochs", type=int, default=3, help="measured rounds")
    parser.add_argument("--repeat", type=int, default=1, help="how often an epoch goes through the pictures")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--policies", nargs="+", default=list(POLICIES), metavar="NAME")
    parser.add_argument("--encodings", default="paper", help="for every policy but auto, which takes all")
    parser.add_argument("--json", type=Path, metavar="OUT")
    parser.add_argument("--role", choices=("loader",), help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    parser.add_argument("--profile", help=argparse.SUPPRESS)
    return parser


# --- the loader's process ---------------------------------------------------------------------------------------------


def serve_epochs(options: argparse.Namespace) -> int:
    """Run an epoch for each line of standard input, and print what it took."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    (name,) = options.policies
    dataset = folder(options.data, options.repeat)
    if name == "torch":
        return serve(torch_loader(dataset, 1, options.batch_size), options.step_ms / 1000)
    loader = OffloadingDataLoader(
        dataset,
        batch_size=options.batch_size,
        shuffle=True,
        num_workers=1,
        persistent_workers=True,
        agent=options.address,
        policy=FastFlow(trial_steps=FASTFLOW_STEPS) if name == "fastflow" else name,
        encodings="auto" if name == "auto" else options.encodings,
        profile=options.profile,
    )
    return serve(loader, options.step_ms / 1000)


def serve(loader: DataLoader[Any], step_s: float) -> int:
    """Answer each line of standard input: `profile` or `epoch`."""
    for line in sys.stdin:
        row: dict[str, Any] = {}
        what, _, number = line.strip().partition(" ")
        if what == "epoch":
            if isinstance(loader, OffloadingDataLoader):
                loader.set_epoch(int(number))
            torch.manual_seed(int(number))  # the same order of samples in every policy's epoch of this number
            row = one_epoch(loader, step_s)
        elif isinstance(loader, OffloadingDataLoader):
            loader.profile(lambda _: time.sleep(step_s))
        print(json.dumps(row), flush=True)
    if isinstance(loader, OffloadingDataLoader):
        loader.close()
    return 0


def one_epoch(loader: DataLoader[Any], step_s: float) -> dict[str, Any]:
    """One epoch of a loader: the figures of a row, without those that only the other side of the link sees."""
    digest, waited_s, samples = 0, 0.0, 0
    started_s = asked_s = time.perf_counter()
    for images, labels in loader:
        waited_s += time.perf_counter() - asked_s
        digest = zlib.crc32(labels.numpy(), zlib.crc32(images.numpy(), digest))
        samples += len(labels)
        time.sleep(step_s)
        asked_s = time.perf_counter()
    seconds = time.perf_counter() - started_s
    row = {
        "seconds": seconds,
        "images_per_s": samples / seconds,
        "samples": samples,
        "gpu_idle_share": waited_s / seconds,
        "digest": f"{digest:08x}",
    }
    return {**row, **(told_by(loader) if isinstance(loader, OffloadingDataLoader) else TORCH)}


def told_by(loader: OffloadingDataLoader) -> dict[str, Any]:
    """The part of a row that the loader itself knows."""
    told = loader.report().as_dict()
    return {
        "policy": told["policy"],
        "epoch": told["epoch"],
        "payload_bytes": told["wire_bytes"],
        "offloaded": sum(n for cut, n in told["cuts"].items() if cut) + told["choices"].get("roi-jpeg", 0),
        "choices": told["choices"],
        "agent_cpu_s": told["agent_cpu_s"],
        "agent_upkeep_s": told["agent_upkeep_s"],
        "loader_cpu_s": told["loader_cpu_s"],
        "bottleneck": told["bottleneck"],
        "predicted_seconds": told["predicted_seconds"],
        "plan_reason": told["plan_reason"],
    }


TORCH: dict[str, Any] = {
    "policy": "torch",
    "payload_bytes": None,
    "offloaded": 0,
    "choices": {},
    "agent_cpu_s": None,
    "agent_upkeep_s": None,
    "loader_cpu_s": None,
    "bottleneck": None,
    "predicted_seconds": None,
}
"""What torch's own DataLoader does not tell; it reads the files itself."""


# --- the bench's process ----------------------------------------------------------------------------------------------


def compare(bed: LinkedHosts | LoopbackHosts, data: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of all measured epochs."""
    with contextlib.ExitStack() as stack:
        start_agent(bed, data, options)
        loaders = {name: stack.enter_context(policy_loader(bed, data, name, options)) for name in options.policies}
        for name, process in tqdm(loaders.items(), desc="profiling", file=sys.stderr):
            order(process, "profile")
            for warm in range(warm_epochs(name, options)):
                order(process, f"epoch {WARM + warm}")
        rows = []
        rounds = tqdm(total=options.epochs * len(loaders), desc="epochs", file=sys.stderr)
        for number in range(options.epochs):
            names = list(loaders)
            for name in record.in_turns(names, number):
                rows.append({"round": number, **measured(bed, loaders[name], number)})
                rounds.update()
        return rows


def warm_epochs(name: str, options: argparse.Namespace) -> int:
    """Epochs to leave out: fastflow's three trials; one for the others, in which rates settle."""
    if name != "fastflow":
        return 1
    pictures = sum(1 for _ in options.data.glob("*/*")) * options.repeat
    return -(-3 * (FASTFLOW_STEPS + 5) * options.batch_size // pictures) + 1


def start_agent(bed: LinkedHosts | LoopbackHosts, data: Path, options: argparse.Namespace) -> subprocess.Popen[Any]:
    """The agent on its host, ready."""
    command = [sys.executable, "-m", "storage_agent", "serve", "--export", f"bench={data}"]
    command += ["--bind", f"tcp://{bed.agent_host.address}:{PORT}", "--workers", str(options.agent_workers)]
    agent = bed.agent_host.popen(
        [*command, *bed.agent_arguments],
        cores={1},
        quota_cores=options.agent_cores,
        stdout=subprocess.PIPE,
        text=True,
    )
    announced(agent)
    return agent


@contextlib.contextmanager
def loader_process(
    bed: LinkedHosts | LoopbackHosts, module: str, arguments: Sequence[str]
) -> Iterator[subprocess.Popen[Any]]:
    """A bench's loader on the loader's host, which takes orders."""
    command = [sys.executable, "-m", module, "--role", "loader", *arguments]
    command += ["--address", f"tcp://{bed.agent_host.address}:{PORT}/bench"]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": REPOSITORY}
    process = bed.loader_host.popen(command, cores={0}, **pipes)
    try:
        yield process
    finally:
        if process.stdin is not None:
            process.stdin.close()
        process.wait(END_S)


def policy_loader(
    bed: LinkedHosts | LoopbackHosts,
    data: Path,
    policy: str,
    options: argparse.Namespace,
    profile: Path | None = None,
) -> contextlib.AbstractContextManager[subprocess.Popen[Any]]:
    """This bench's loader of one policy."""
    arguments = ["--policies", policy, "--data", str(data), "--batch-size", str(options.batch_size)]
    arguments += ["--step-ms", str(options.step_ms), "--encodings", options.encodings, "--repeat", str(options.repeat)]
    return loader_process(bed, "bench.policies", arguments + (["--profile", str(profile)] if profile else []))


def order(process: subprocess.Popen[Any], what: str) -> dict[str, Any]:
    """Have a loader process do something, and read its answer."""
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(what + "\n")
    process.stdin.flush()
    line = process.stdout.readline()
    if not line:
        raise SystemExit(f"a loader process must answer {what!r}, but it ended with status {process.wait()}")
    row: dict[str, Any] = json.loads(line)
    return row


def measured(bed: LinkedHosts | LoopbackHosts, process: subprocess.Popen[Any], number: int) -> dict[str, Any]:
    """One epoch of a loader process, with the bytes that crossed the link and the agent's CPU time meanwhile."""
    bytes_before, cpu_before = bed.agent_host.interface_bytes(), bed.agent_host.cpu_seconds()
    row = order(process, f"epoch {number}")
    bytes_after, cpu_after = bed.agent_host.interface_bytes(), bed.agent_host.cpu_seconds()
    row["interface_bytes"] = (
        None if bytes_before is None or bytes_after is None else bytes_after.sent - bytes_before.sent
    )
    if cpu_before is not None and cpu_after is not None:
        row["agent_host_cpu_s"] = cpu_after - cpu_before
    return row


def summarise(rows: list[dict[str, Any]], policies: list[str]) -> list[dict[str, Any]]:
    """Median and spread per policy, and ratios to torch or no-off, round by round."""
    first = "torch" if "torch" in policies else "no-off"
    base = {row["round"]: row for row in rows if row["policy"] == first}
    digests = {row["round"]: row["digest"] for row in rows if row["policy"] != "torch"}
    summary = []
    for policy in policies:
        mine = [row for row in rows if row["policy"] == policy]
        entry: dict[str, Any] = {"policy": policy}
        for name in ("seconds", "images_per_s", "interface_bytes", "payload_bytes", "agent_cpu_s", "loader_cpu_s"):
            values = [row[name] for row in mine if row[name] is not None]
            entry[name] = record.spread(values) if values else None
        entry["offloaded_share"] = mine[-1]["offloaded"] / max(1, mine[-1]["samples"])
        entry["choices"] = mine[-1]["choices"]
        entry["bottleneck"] = mine[-1]["bottleneck"]
        entry["gpu_idle_share"] = record.spread([row["gpu_idle_share"] for row in mine])
        predicted = [row["predicted_seconds"] / row["seconds"] for row in mine if row["predicted_seconds"]]
        entry["predicted_to_measured"] = record.spread(predicted) if predicted else None
        if base:
            entry["times_faster"] = record.spread([base[row["round"]]["seconds"] / row["seconds"] for row in mine])
            size = "interface_bytes" if mine[0]["interface_bytes"] else "payload_bytes"
            if policy != "torch" and first != "torch":
                entry["times_less_bytes"] = record.spread([base[row["round"]][size] / row[size] for row in mine])
        if policy != "torch":
            entry["same_batches"] = all(digests[row["round"]] == row["digest"] for row in mine)
        summary.append(entry)
    return summary


def show(summary: list[dict[str, Any]], title: str) -> None:
    """Print the summary."""
    table = Table("policy", "epoch s", "MB", "faster", "fewer bytes", "offloaded", "predicted", "same", title=title)
    for entry in summary:
        size = entry["interface_bytes"] or entry["payload_bytes"]
        table.add_row(
            entry["policy"],
            _median(entry["seconds"], "{:.2f}"),
            f"{size['median'] / 1e6:.1f}" if size else "",
            _median(entry.get("times_faster"), "{:.2f}x"),
            _median(entry.get("times_less_bytes"), "{:.3f}x"),
            f"{entry['offloaded_share']:.0%}",
            _median(entry["predicted_to_measured"], "{:.2f}x"),
            str(entry.get("same_batches", "")),
        )
    Console(width=110).print(table)


def _median(values: dict[str, float] | None, form: str) -> str:
    return "" if values is None else form.format(values["median"])


if __name__ == "__main__":
    sys.exit(main())
