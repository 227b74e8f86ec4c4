"""Gains and costs of a cache on the loader's host, over a real link between two hosts on this machine.

    python -m bench.cache --data PATH --json cache.json
    python -m bench.cache --parts auto --epochs 30 --link-mbit 100

A loader with an empty cache and one without take turns, epoch by epoch; which one goes first changes every time. Each
has a process of its own with one worker; agent and loaders are pinned to a core each.

all: no-off with room for all files. Bars: from the second epoch on no bytes of files, and 0.97 of the images/s of
    torch's DataLoader on the files themselves, which takes turns too. A first epoch takes at most 1.03 times that
    without.
half: no-off with room for half of the bytes. Bar: from the second epoch on at most 0.6 of the bytes.
auto: with room for all. Bars: all epochs together take no longer than without; over 30 epochs at most 0.7 of the bytes.
"""

from __future__ import annotations

import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from bench import arguments, record
from bench.bed import Bed, open_testbed
from bench.children import LOADER_CORE, Orders, agent_address, child, start_agent
from bench.epochs import digested_epoch, measured_epoch, orders_of
from bench.loading import folder, our_loader, quiet, torch_loader
from sophon_loader import OffloadOptions

PARTS = {"all": ("no-off", 4, 1.0), "half": ("no-off", 4, 0.5), "auto": ("auto", 10, 1.0)}
"""Policy, epochs, and the room as a share of the files' bytes."""
SPARE = 1.5
"""Room for all files, as a multiple of their bytes: tables take a tenth of a small set, and segments fill unevenly."""
BAR_RATE, BAR_FIRST, BAR_HALF, BAR_AUTO = 0.97, 1.03, 0.6, 0.7


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a line per figure, write the results."""
    bench = parser()
    options = arguments.parsed(bench, argv)
    arguments.require_bed(bench)
    cores = arguments.agent_quota(bench, options.agent_cores)
    quiet()
    rows: list[dict[str, Any]] = []
    with open_testbed(options.link_mbit) as bed:
        start_agent(bed, options.data, cores)
        for part in options.parts:
            for number in range(options.rounds):
                rows += part_of(bed, options, part, number)
    record.write(options.output, {"epochs": rows, "summary": [summed_up(part, rows) for part in options.parts]})
    return 0


def parser() -> arguments.Parser:
    """The command line."""
    parser = arguments.Parser("bench.cache", __doc__, pictures=True)
    add = parser.add_argument
    add("--parts", nargs="+", default=list(PARTS), choices=list(PARTS), action=arguments.Distinct)
    add("--rounds", type=arguments.count(), default=1)
    add("--epochs", type=arguments.count(2), help="Epochs of each loader (default: 4, and 10 of auto).")
    add("--link-mbit", type=arguments.above_zero, default=100.0)
    add("--agent-cores", type=arguments.quota)
    add("--batch-size", type=arguments.count(), default=16)
    return parser


@contextmanager
def caching_loader(
    address: str, policy: str, data: str, batch_size: int, cache: str | None, cache_gb: float
) -> Iterator[Orders]:
    """A loader with one worker. Orders: `epoch` with its number.

    Args:
        address: of the agent.
        policy: a policy's name, or `torch` for torch's DataLoader on the files themselves.
        data: an ImageFolder tree.
        batch_size: samples per batch.
        cache: where files are kept; None for nowhere.
        cache_gb: room for them.
    """
    quiet()
    torch.manual_seed(0)
    dataset = folder(data)
    if policy == "torch":
        plain = torch_loader(dataset, 1, batch_size)
        yield orders_of(plain, lambda: digested_epoch(plain, 0.0))
        return
    room = None if cache is None else cache_gb
    options = OffloadOptions(cache=cache, cache_gb=room)
    loader = our_loader(dataset, 1, batch_size, agent=address, policy=policy, options=options)

    def measure() -> dict[str, Any]:
        row = digested_epoch(loader, 0.0)
        return {**row, "cached": loader.report().as_dict()["cached"]}

    yield orders_of(loader, measure)
    loader.close()


def part_of(bed: Bed, options: Namespace, part: str, number: int) -> list[dict[str, Any]]:
    """The epochs of a part's loaders, in turns.

    Args:
        bed: with an agent.
        options: of the command line.
        part: which.
        number: of the round.
    """
    policy, usual, share = PARTS[part]
    gb = share * (SPARE if share == 1 else 1.0) * sum(one.stat().st_size for one in options.data.glob("*/*")) / 1e9
    rows = []
    with ExitStack() as stack:
        place = stack.enter_context(tempfile.TemporaryDirectory(dir=Path.home()))
        told = {"address": agent_address(bed), "data": str(options.data), "batch_size": options.batch_size}
        told |= {"cache_gb": gb}
        wanted = {"without": (policy, None), "with": (policy, place)}
        if part == "all":
            wanted["torch"] = "torch", None
        loaders = {}
        for name, (its_policy, cache) in wanted.items():
            settings = {**told, "policy": its_policy, "cache": cache}
            loaders[name] = stack.enter_context(child(bed.loader_host, LOADER_CORE, caching_loader, settings))
        for epoch in tqdm(range(options.epochs or usual), desc=part, file=sys.stderr):
            for name in record.in_turns(list(loaders), number + epoch):
                row = measured_epoch(bed, loaders[name], epoch)
                rows.append({"part": part, "round": number, "epoch_number": epoch, "loader": name, **row})
    return rows


def summed_up(part: str, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Medians and ranges of a part's ratios, which are printed too.

    Args:
        part: which.
        rows: of all epochs.
    """
    mine = [row for row in rows if row["part"] == part]
    rounds = sorted({row["round"] for row in mine})

    def ratios(figure: str, which: Callable[[int], bool], other: str = "without") -> dict[str, float]:
        """Return the spread of a figure's sums over some epochs, as ratios of the cache to another loader by round."""
        sums = [[_sum(mine, one, name, figure, which) for name in ("with", other)] for one in rounds]
        return record.spread([ours / (theirs or 1.0) for ours, theirs in sums])

    later, all_of_them = (lambda epoch: epoch > 0), (lambda epoch: True)
    found: dict[str, Any] = {"part": part, "epochs": 1 + max(row["epoch_number"] for row in mine)}
    found["first_epoch_s"] = ratios("seconds", lambda epoch: epoch == 0)
    found["later_payload"] = ratios("payload_bytes", later)
    found["payload"], found["seconds"] = ratios("payload_bytes", all_of_them), ratios("seconds", all_of_them)
    if part == "all":
        found["local_rate"] = ratios("images_per_s", later, "torch")
    last = [row for row in mine if row["loader"] == "with" and row["epoch_number"] == found["epochs"] - 1]
    found["cached_share_at_last"] = record.spread([row["cached"] / row["samples"] for row in last])
    digests = {(row["round"], row["epoch_number"], row["digest"]) for row in mine if row["loader"] != "torch"}
    found["equal"] = len(digests) == found["epochs"] * len(rounds)
    bars = {"first_epoch_s": BAR_FIRST} | {
        "all": {"later_payload": 0.0},
        "half": {"later_payload": BAR_HALF},
        "auto": {"seconds": 1.0} | ({"payload": BAR_AUTO} if found["epochs"] >= 30 else {}),
    }[part]
    for name, bar in bars.items():
        ratio = found[name]
        verdict = "ok" if ratio["median"] <= bar else "above"
        figures = f"{ratio['median']:.3f} ({ratio['min']:.3f} to {ratio['max']:.3f})"
        print(f"{part}, {name} with / without a cache: {figures} (bar <= {bar:g}: {verdict})", flush=True)
    if part == "all":
        print(record.judged("all, images/s / torch's on the files", found["local_rate"], BAR_RATE), flush=True)
    share = found["cached_share_at_last"]["median"]
    print(f"{part}: {share:.2f} of the samples from the cache in the last epoch; equal: {found['equal']}", flush=True)
    return found


def _sum(rows: Sequence[dict[str, Any]], number: int, loader: str, figure: str, which: Callable[[int], bool]) -> float:
    """Return the sum of a figure over some epochs of a loader in a round."""
    return float(
        sum(
            row[figure]
            for row in rows
            if (row["round"], row["loader"]) == (number, loader) and which(row["epoch_number"])
        )
    )


if __name__ == "__main__":
    sys.exit(main())
