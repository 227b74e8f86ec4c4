"""Cost of calling stateful code in the batch's order, and the share of samples that are waited for because of that.

    python -m bench.order --json order.json

Two loaders of one worker have the same pictures, the usual training transforms and a function behind them that is not
registered. One takes the agent's replies by position, as such pipelines do; the other takes them as they come, as
pipelines of registered ops do. They take turns, epoch by epoch, and which one goes first changes every round. A round's
figure is the ratio of their samples/s. `held` is the share of samples that were waited for while later ones of their
batch had arrived. Over a link of 100 Mbit/s and without a limit. Bar: median >= 0.97.
"""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from torchvision.datasets import ImageFolder
from torchvision.transforms import v2
from tqdm import tqdm

from bench import arguments, record
from bench.loading import our_loader, quiet, samples_per_s, training_pipeline
from sophon_loader import LocalAgent
from sophon_loader.client.session import Session
from sophon_loader.client.wanted import BatchId, Reply
from sophon_loader.workers import dataset as workers_dataset

BAR = 0.97
SIDES = ("position", "arrival")
LINKS = (100, 0)
"""Mbit/s; 0 for no limit."""
POLICIES = ("no-off", "resize-off", "auto")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a line per figure, write the results."""
    parser = arguments.Parser("bench.order", __doc__, pictures=True)
    parser.add_argument("--rounds", type=arguments.count(), default=12)
    options = arguments.parsed(parser, argv)
    quiet()
    rows = [
        row for mbit in LINKS for policy in POLICIES for row in measured(options.data, policy, mbit, options.rounds)
    ]
    summary = [summarised(rows, policy, mbit) for mbit in LINKS for policy in POLICIES]
    for one in summary:
        ratio, link = one["ratio"], f"{one['mbit']} Mbit/s" if one["mbit"] else "no limit"
        print(f"{one['policy']}, {link}: {ratio['median']:.3f} ({ratio['min']:.3f} to {ratio['max']:.3f}) of the rate "
              f"in order of arrival, {one['held']:.1%} of the samples waited for beside later ones (bar >= {BAR}: "
              f"{'ok' if ratio['median'] >= BAR else 'below'})")  # fmt: skip
    record.write(options.output, {"rounds": rows, "summary": summary, "bar": BAR})
    return 0


def measured(data: Path, policy: str, mbit: int, rounds: int) -> list[dict[str, Any]]:
    """Samples per second of both loaders, round by round.

    Args:
        data: an ImageFolder tree.
        policy: of both.
        mbit: of the link; 0 for no limit.
        rounds: epochs of each loader that count.
    """
    agent = LocalAgent(workers=1, limit_mbit=mbit or None)
    transform = v2.Compose([training_pipeline(), untouched])
    with counted_waits() as (held, taken):
        both = {side: our_loader(ImageFolder(str(data), transform), 1, agent=agent, policy=policy) for side in SIDES}
        for side, loader in both.items():
            with mock.patch.object(workers_dataset, "_runs_users_code", lambda *_, by=side: by == "position"):
                samples_per_s(loader)  # starts workers, fills the page cache
        rows = []
        for number in tqdm(range(rounds), desc=f"{policy} {mbit}", file=sys.stderr):
            row: dict[str, Any] = {"round": number, "policy": policy, "mbit": mbit}
            before = held.value, taken.value
            for side in record.in_turns(SIDES, number):
                row[side] = samples_per_s(both[side])
            row["held"] = (held.value - before[0]) / max(1, taken.value - before[1])
            rows.append(row)
        for loader in both.values():
            loader.close()
    return rows


def untouched(tensor: Any) -> Any:
    """A function of the user's."""
    return tensor


@contextmanager
def counted_waits() -> Iterator[tuple[Any, Any]]:
    """Counters of workers that start meanwhile: samples waited for while later ones were there, and all by position."""
    held, taken, usual = multiprocessing.Value("q"), multiprocessing.Value("q"), Session.next

    def counting(session: Session, batch: BatchId, position: int | None = None) -> Reply:
        ready = session._requests._ready[batch]
        waits = position is not None and position not in ready
        reply = usual(session, batch, position)
        taken.value += position is not None
        held.value += waits and bool(ready)
        return reply

    with mock.patch.object(Session, "next", counting):
        yield held, taken


def summarised(rows: Sequence[dict[str, Any]], policy: str, mbit: int) -> dict[str, Any]:
    """The ratio of the rates, and the mean share of held samples.

    Args:
        rows: of `measured`.
        policy, mbit: which of them count.
    """
    of_these = [row for row in rows if (row["policy"], row["mbit"]) == (policy, mbit)]
    ratio = record.spread([row["position"] / row["arrival"] for row in of_these])
    return {"policy": policy, "mbit": mbit, "ratio": ratio, "held": sum(r["held"] for r in of_these) / len(of_these)}


if __name__ == "__main__":
    sys.exit(main())
