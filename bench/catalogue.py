"""Every bench: what it asks, what it must reach, its command, and about how long it takes on two cores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_LONG = ("--policies", "no-off", "sophon", "auto")
_FREE = ("--link-mbit", "0", "--encodings", "auto", "--policies", "torch", "no-off", "auto")
_FAR = ("--parts", "pictures", "--workers", "1", "4", "--round-trips-ms", "0", "30", "100", "--peers")


@dataclass(frozen=True)
class Bench:
    """A line of the catalogue.

    Args:
        name: of the bench; with the folder's name behind it where `data` is `each`, that of its result file.
        module: as in `python -m MODULE`.
        question: what it answers.
        bar: what it must reach, or what was aimed at; empty where it only tells.
        minutes: about, for each picture folder.
        arguments: of the command, without `--data`.
        quick: those of the short form; None where it is left out there.
        data: which of the picture folders it runs on: `each`, `first`, `last` or `none`.

    Example:
        >>> Bench("planner", "bench.planner", "How long does a plan take?", "< 2 s", 0.1).command()
        'python -m bench.planner'
    """

    name: str
    module: str
    question: str
    bar: str
    minutes: float
    arguments: tuple[str, ...] = ()
    quick: tuple[str, ...] | None = None
    data: str = "none"

    def command(self) -> str:
        """The command as a reader types it."""
        data = () if self.data == "none" else ("--data", "PATH")
        return " ".join(["python", "-m", self.module, *data, *self.arguments])


@dataclass(frozen=True)
class Run:
    """A bench on one picture folder.

    Args:
        name: of its result file, without the suffix.
        bench: what runs.
        folder: the pictures; None for a bench that needs none.
    """

    name: str
    bench: Bench
    folder: Path | None

    def arguments(self, quick: bool) -> list[str]:
        """Return the arguments of the command, in its usual or in its short form."""
        chosen = self.bench.quick if quick and self.bench.quick is not None else self.bench.arguments
        return [*([] if self.folder is None else ["--data", str(self.folder)]), *chosen]


BENCHES = (
    Bench(
        "policies",
        "bench.policies",
        "How long is an epoch under each policy, the agent with one core?",
        "photos: auto 4.5 times as fast as no-off, 5 times fewer bytes",
        4,
        ("--epochs", "5"),
        ("--policies", "no-off", "sophon", "auto", "--epochs", "1"),
        "each",
    ),
    Bench(
        "long-epochs",
        "bench.policies",
        "The same in epochs of four times as many samples, of which the start and the end take less",
        "photos: auto 4.7 times as fast as no-off, 5.3 times fewer bytes; imagenet: 2.55 times",
        5,
        (*_LONG, "--repeat", "4", "--epochs", "5"),
        (*_LONG, "--epochs", "1"),
        "each",
    ),
    Bench(
        "policies-0.05",
        "bench.policies",
        "The same with next to no CPU at the agent",
        "sophon and auto as fast as no-off",
        15,
        ("--agent-cores", "0.05", "--epochs", "2"),
        data="each",
    ),
    Bench(
        "policies-0.25",
        "bench.policies",
        "The same with a quarter of a core at the agent",
        "",
        6,
        ("--agent-cores", "0.25", "--epochs", "4"),
        data="each",
    ),
    Bench(
        "policies-0.5",
        "bench.policies",
        "The same with half a core at the agent",
        "",
        4,
        ("--agent-cores", "0.5", "--epochs", "4"),
        data="each",
    ),
    Bench(
        "utilisation",
        "bench.utilisation",
        "How long does the GPU wait, by policy, model and batch size?",
        "",
        12,
        (),
        ("--models", "alexnet", "--batch-sizes", "16", "--policies", "no-off", "auto", "--epochs", "1"),
        "first",
    ),
    Bench(
        "fastflow",
        "bench.fastflow",
        "What does each operator split and each share give, what does FastFlow decide, and what do its trials cost?",
        "a share within 5 points of the sweep's best; with a metric store a tenth of the steps",
        10,
        (),
        ("--repeat", "1", "--trial-steps", "4", "--shares", "2", "--job-epochs", "1", "--rounds", "1"),
        "first",
    ),
    Bench(
        "overlap",
        "bench.overlap",
        "Who waits for whom where an all-reduce crosses the same link, and checkpoints are written beside it?",
        "",
        8,
        (),
        ("--prefetch", "2", "--steps", "10", "--warm-steps", "4"),
        "first",
    ),
    Bench(
        "cpu-bound",
        "bench.policies",
        "How fast is it without a limit on the wire, one core at either end?",
        "2.8 times the images/s of torch's DataLoader under auto, 2.5 with nothing offloaded",
        1.5,
        (*_FREE, "--repeat", "4", "--epochs", "5"),
        (*_FREE, "--epochs", "1"),
        "first",
    ),
    Bench(
        "link",
        "bench.link",
        "How much of the link does the loader use?",
        "0.97 of a plain stream for pictures, 0.90 for uncompressed ones at 1 Gbit/s",
        9,
        ("--rounds", "2"),
        ("--parts", "pictures", "--workers", "1", "--rounds", "1", "--repeat", "1"),
        "first",
    ),
    Bench(
        "latency",
        "bench.latency",
        "What does a long way to the agent cost, up to 100 ms there and back?",
        "0.95 of the images/s without a delay, where the wire limits",
        16,
        (),
        ("--parts", "pictures", "--round-trips-ms", "0", "100", "--rounds", "1", "--repeat", "1", "--peers"),
        "first",
    ),
    Bench(
        "other-torch",
        "bench.other_torch",
        "What does an agent with another torch give, which is asked by programs, beside one with the loader's?",
        "0.97 of the images/s, 1.01 of the bytes, a first batch that comes at most a round trip and 0.1 s later",
        6,
        (),
        ("--round-trips-ms", "0", "--rounds", "1", "--repeat", "1"),
        "first",
    ),
    Bench(
        "single-pictures",
        "bench.any_class_agent",
        "What does an agent give datasets of user-defined classes, whose pictures are asked for one by one?",
        "1.5 times the images/s of no-off where a crop comes first, 1.1 times the least bytes",
        12,
        (),
        ("--samples", "64", "--rounds", "1"),
        "first",
    ),
    Bench(
        "light-agent",
        "bench.light_agent",
        "What does an agent without torch take to start, in memory and on disk, next to one with it?",
        "first answer within 1 s, 60 MB a worker, 130 MB on disk, 220 MB with the codecs",
        2,
        (),
        ("--rounds", "2"),
    ),
    Bench(
        "look-ahead",
        "bench.latency",
        "How far does the loader look ahead by itself, against two batches per worker, and in how much memory?",
        "0.95 of the images/s without a delay, where the wire limits; no more memory",
        16,
        (*_FAR, "--prefetch", "none", "2", "--repeat", "3"),
        None,
        "first",
    ),
    Bench(
        "look-ahead-large",
        "bench.latency",
        "The same with batches of 256",
        "0.95 of the images/s without a delay, where the wire limits",
        18,
        (*_FAR, "--batch-size", "256"),
        None,
        "first",
    ),
    Bench(
        "hotpath",
        "bench.hotpath",
        "How much CPU does a sample cost apart from decoding and transforms?",
        "150 us at the loader, 150 us at the agent",
        3,
        (),
        ("--policies", "torch", "auto", "--rounds", "1", "--repeat", "1"),
        "first",
    ),
    Bench(
        "overhead",
        "bench.overhead",
        "What does the loader cost where there is nothing to gain?",
        "0.98 of torch's images/s; first batch 0.3 s later; 4 MB more growth",
        6,
        ("--only", "throughput", "first-batch", "memory", "--rounds", "3"),
        ("--only", "first-batch", "--rounds", "1"),
        "first",
    ),
    Bench(
        "constructor",
        "bench.overhead",
        "How long does the constructor take with 1.28 million samples?",
        "1.2 times ImageFolder's time, that included",
        2,
        ("--only", "constructor", "--rounds", "5"),
        data="first",
    ),
    Bench(
        "fairness",
        "bench.fairness",
        "Does an agent treat its clients alike, also beside attackers?",
        "half of the fair share, half of the rate alone",
        4,
        (),
        ("--clients", "8", "--seconds", "5", "--attack-seconds", "3"),
        "first",
    ),
    Bench(
        "agent",
        "bench.agent",
        "How fast does an agent hand out files, and how large is a loader worker?",
        "600 MB/s; 1.15 times the memory of torch's worker",
        0.5,
        (),
        ("--rounds", "1", "--mb", "300"),
        "first",
    ),
    Bench(
        "keys",
        "bench.keys",
        "What do keys cost?",
        "0.95 of the images/s without",
        2,
        (),
        ("--rounds", "1", "--repeat", "1", "--mb", "100"),
        "first",
    ),
    Bench(
        "archives",
        "bench.archives",
        "What do tar and zip files cost an agent?",
        "0.95 of the images/s over the folder",
        8,
        (),
        ("--rounds", "1", "--link-mbit", "0"),
        "first",
    ),
    Bench(
        "archive-index",
        "bench.archive_index",
        "What does the index of a million members weigh, and take to make, to start with and to list?",
        "an agent starts within 2 s",
        5,
        (),
        ("--members", "10000", "--rounds", "1"),
    ),
    Bench(
        "buckets",
        "bench.buckets",
        "What does a bucket cost an agent, near and far from its store?",
        "0.95 of the images/s over the folder",
        4,
        (),
        ("--rounds", "1", "--round-trips-ms", "0", "--parts", "loaders"),
        "first",
    ),
    Bench(
        "cache",
        "bench.cache",
        "What does a cache on the loader's host bring, and cost?",
        "no-off: 0.97 of torch's images/s on the files, first epoch 1.03 times as long; auto: no longer than without",
        5,
        ("--rounds", "3"),
        ("--parts", "all", "--epochs", "2"),
        "first",
    ),
    Bench(
        "cache-30",
        "bench.cache",
        "The same over 30 epochs of auto",
        "0.7 of the bytes without",
        3,
        ("--parts", "auto", "--epochs", "30"),
        None,
        "first",
    ),
    Bench(
        "replicas",
        "bench.replicas",
        "What do two and four agents with the same files bring, alike and unlike, and what does a worker hold?",
        "0.95 of the sum of their links (1.9 times one's); 0.9 of that of their CPUs, 0.95 where they are unlike",
        5,
        (),
        ("--cases", "wire", "--policies", "no-off", "--rounds", "1", "--link-mbit", "50"),
        "first",
    ),
    Bench(
        "fleet",
        "bench.fleet",
        "What do our rule for the number of agents and three published ones cost while trainings come and go?",
        "",
        9,
        (),
        ("--parts", "predicted"),
        "last",
    ),
    Bench(
        "workers",
        "bench.workers",
        'Is `num_workers="auto"` as fast as the best fixed number?',
        "0.95 of it where the loader, the wire and the training step limit",
        14,
        data="first",
    ),
    Bench(
        "order",
        "bench.order",
        "What does it cost to call code with a state in the batch's order?",
        "0.97 of the images/s in order of arrival",
        7,
        (),
        ("--rounds", "1"),
        "first",
    ),
    Bench("training", "bench.training", "What does a real GPU gain? Needs one.", "", 8, data="first"),
    Bench("tail", "bench.tail", 'What is `tail="device"` worth?', "", 1, data="first"),
    Bench(
        "profiling",
        "bench.profiling",
        "How much longer is a first epoch that measures?",
        "1.02 times no-off's",
        2.5,
        data="first",
    ),
    Bench(
        "live",
        "bench.live",
        "Is `auto` right from the first second, and again soon after every change?",
        "first epoch 1.10 times a steady one; ranks 0.95 of a single one; 10 s after a change 0.95 of a loader that "
        "started after it, and never below 0.97 of no-off",
        45,
        ("--cases", "first-epoch", "rank", "changes"),
        ("--cases", "first-epoch"),
        data="each",
    ),
    Bench(
        "steadiness",
        "bench.live",
        "Is `auto` steady, its verdict right, its memory the index alone, and a local agent's start cheap?",
        "5 % deviation; crops of next to nothing: no window below half; 40 of 40 verdicts, 15 % for what more would "
        "bring; 0 bytes per sample; first batch 0.3 s and first epoch 0.5 s later than torch's",
        45,
        ("--cases", "steady", "idle-wire", "verdict", "memory", "local"),
        ("--cases", "local"),
        data="first",
    ),
    Bench(
        "faults",
        "bench.faults",
        "What does each fault cost, and is every sample still the same?",
        "equal digests",
        3,
        (),
        ("--rounds", "1", "--repeat", "1"),
        "last",
    ),
    Bench(
        "planner",
        "bench.planner",
        "How long does it take to plan for 1.28 million samples, or to set prices, and how much memory?",
        "sophon 1 s, 64 bytes per sample; auto 0.05 s",
        0.1,
        (),
        ("--samples", "100000"),
    ),
    Bench(
        "jpegcrop",
        "bench.jpegcrop",
        "How much cheaper than decoding is cutting a JPEG's bitstream?",
        "0.32 of the time, 0.48 of the bytes",
        0.1,
        (),
        ("--rounds", "1"),
        "first",
    ),
    Bench(
        "fused",
        "bench.fused",
        "How much faster than torchvision on Pillow does our own C bring a file into a batch?",
        "3.5 times; 0.95 of the baseline files go through",
        0.5,
        (),
        ("--rounds", "1"),
        "each",
    ),
    Bench(
        "any-class",
        "bench.any_class",
        "How much less CPU does a sample of a dataset of one's own take, by what it does first?",
        "1.8 times where a crop or resize comes first, 1.25 where an array is taken at once",
        2,
        (),
        ("--rounds", "1", "--samples", "32"),
        "each",
    ),
    Bench(
        "cost",
        "bench.cost",
        "What does a sample cost in CPU without an agent, on one core, here, with torch's DataLoader and with SPDL?",
        "2.5 times torch's images/s, with one worker and with two",
        7,
        (),
        ("--ways", "torch", "fused", "--workers", "1", "--rounds", "1"),
        "each",
    ),
    Bench(
        "encodings",
        "bench.encodings",
        "What does each encoding weigh and cost, and what does each set of them save?",
        "",
        0.2,
        data="each",
    ),
    Bench(
        "study",
        "bench.study",
        "How large is a sample at every stage, who shrinks, and what is offloading each worth?",
        "",
        0.2,
        data="each",
    ),
    Bench(
        "study-detection",
        "bench.study",
        "Who gains by offloading, in bytes and in CPU, where detectors are trained?",
        "",
        2.5,
        ("--workload", "detection"),
        data="each",
    ),
    Bench(
        "recorded",
        "bench.recorded",
        "What becomes of each op that is given a picture whose pixels are not made yet?",
        "",
        0.1,
        (),
        (),
    ),
    Bench(
        "programs",
        "bench.programs",
        "How far do programs of whole pipelines reach, and how many files are cut for them?",
        "",
        0.2,
        (),
        (),
        "each",
    ),
    Bench(
        "peers",
        "bench.peers",
        "How do other systems do on the same link?",
        "auto 4 times the images/s of the best peer on photos",
        12,
        data="each",
    ),
    Bench(
        "peers-bucket",
        "bench.peers",
        "The same where the files are in a bucket",
        "2.5 times the images/s of the best peer on imagenet, 4.5 on photos",
        3,
        ("--systems", "s3-torch", "s3-fsspec", "auto-bucket"),
        data="each",
    ),
)
"""In the order in which they are run."""


def runs(folders: Mapping[str, Path]) -> list[Run]:
    """Everything there is to run.

    Args:
        folders: picture folders by name, at least one.
    """
    found = []
    for bench in BENCHES:
        names = list(folders)
        chosen = {"each": names, "first": names[:1], "last": names[-1:], "none": []}[bench.data]
        if not chosen:
            found.append(Run(bench.name, bench, None))
        for name in chosen:
            result = f"{bench.name}-{name}" if bench.data == "each" else bench.name
            found.append(Run(result, bench, folders[name]))
    return found


def named(names: list[str], all_runs: list[Run]) -> list[Run]:
    """The runs of these names, in their usual order; a bench's name stands for all of its runs.

    Args:
        names: of benches or of runs.
        all_runs: to choose from.

    Raises:
        ValueError: a name is of none of them.
    """
    known = {run.name for run in all_runs} | {run.bench.name for run in all_runs}
    if unknown := sorted(set(names) - known):
        raise ValueError(f"NAME must be one of {', '.join(sorted(known))}, got {', '.join(unknown)}")
    return [run for run in all_runs if run.name in names or run.bench.name in names]
