"""CPU time of each stage of a sample: torch's loader and ours, in one process each, without workers.

A clock of the thread's CPU time is put around each stage's function. What is in no stage is the rest: random numbers'
seeds, samplers, the loaders' own work, and the clocks, which take about 1 us a stage. Without workers a batch lies in
memory that is new each time, so writing to it costs more here than in one of our workers.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image
from torch.utils.data import ConcatDataset, DataLoader, default_collate
from torchvision import transforms
from torchvision.datasets import ImageFolder
from tqdm import tqdm

from bench import record
from bench.bed import Bed
from bench.children import Orders, child
from bench.cost_ways import FUSED, TORCH
from bench.loading import folder, our_loader, quiet, training_pipeline
from sophon_loader.native import fused
from sophon_loader.pipeline import chain
from sophon_loader.pipeline.op import Op
from sophon_loader.workers import finishing

REST, TOGETHER = "the rest", "together"
OF_TORCH = ("read", "decode", "crop and resize", "flip", "ToTensor", "Normalize", "collate")
OF_FUSED = ("read", "draw", "decode", "resize", "finish")
WARM_EPOCHS = 1


class Stages:
    """CPU time of this thread by stage; a stage within another one is not part of that.

    Args:
        names: of the stages.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self.spent_ns = dict.fromkeys(names, 0)
        self._within_ns = 0

    def around(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, measured as part of a stage."""

        def measured(*arguments: Any, **named: Any) -> Any:
            outer_ns, self._within_ns = self._within_ns, 0
            began_ns = time.thread_time_ns()
            try:
                return function(*arguments, **named)
            finally:
                took_ns = time.thread_time_ns() - began_ns
                self.spent_ns[name] += took_ns - self._within_ns
                self._within_ns = outer_ns + took_ns

        return measured


@contextmanager
def staged(way: str, data: str, repeat: int, batch_size: int) -> Iterator[Orders]:
    """A loader that tells what each stage costs. Order: `epoch`.

    Args:
        way: TORCH or FUSED.
        data: an ImageFolder tree.
        repeat: how often an epoch goes through it.
        batch_size: samples per batch.
    """
    quiet()
    stages = Stages(OF_TORCH if way == TORCH else OF_FUSED)
    loader = (_torch if way == TORCH else _ours)(stages, data, repeat, batch_size)
    yield {"epoch": lambda _: epoch_us(loader, stages)}


def _torch(stages: Stages, data: str, repeat: int, batch_size: int) -> DataLoader[Any]:
    read, decode = stages.around("read", lambda path: Path(path).read_bytes()), stages.around("decode", _decoded)
    ops = zip(OF_TORCH[2:6], training_pipeline().transforms, strict=True)  # type: ignore[attr-defined]
    pipeline = transforms.Compose([stages.around(name, op) for name, op in ops])
    one = ImageFolder(data, pipeline, loader=lambda path: decode(read(path)))
    collate = stages.around("collate", default_collate)
    return DataLoader(ConcatDataset([one] * repeat), batch_size=batch_size, shuffle=True, collate_fn=collate)


def _decoded(data: bytes) -> Image.Image:
    with Image.open(BytesIO(data)) as image:
        converted: Image.Image = image.convert("RGB")
        return converted


def _ours(stages: Stages, data: str, repeat: int, batch_size: int) -> DataLoader[Any]:
    def wrap(owner: Any, name: str, stage: str) -> None:
        setattr(owner, name, stages.around(stage, getattr(owner, name)))

    def op_of(transform: Any) -> Op:
        op = plain_op_of(transform)
        return dataclasses.replace(op, call=stages.around("draw", op.call)) if op.draws else op

    plain_op_of = chain.op_of
    chain.op_of = op_of
    wrap(finishing, "read_here", "read")
    for name in ("decode", "resize", "finish"):
        wrap(fused, name, name)
    return our_loader(folder(data, repeat), 0, batch_size, agent=None)


def epoch_us(loader: DataLoader[Any], stages: Stages) -> dict[str, float]:
    """Microseconds of CPU per sample in an epoch, by stage, the rest and all of them together."""
    before_ns = dict(stages.spent_ns)
    began_ns, samples = time.thread_time_ns(), 0
    for _, labels in loader:
        samples += len(labels)
    together_us = (time.thread_time_ns() - began_ns) / 1e3 / samples
    found = {name: (spent - before_ns[name]) / 1e3 / samples for name, spent in stages.spent_ns.items()}
    return {**found, REST: together_us - sum(found.values()), TOGETHER: together_us}


def measured(bed: Bed, core: int, settings: dict[str, Any], rounds: int) -> dict[str, Any]:
    """Medians and spreads of both ways' stages, in microseconds of CPU per sample.

    Args:
        bed: an open bed.
        core: that both run on.
        settings: the arguments of `staged`, without `way`.
        rounds: epochs of each, in turns.
    """
    with (
        child(bed.loader_host, core, staged, {**settings, "way": TORCH}) as of_torch,
        child(bed.loader_host, core, staged, {**settings, "way": FUSED}) as of_fused,
    ):
        children = {TORCH: of_torch, FUSED: of_fused}
        for one in children.values():
            for _ in range(WARM_EPOCHS):
                one.order("epoch")
        found: dict[str, list[dict[str, float]]] = {way: [] for way in children}
        for number in tqdm(range(rounds), desc="stages", file=sys.stderr):
            for way in record.in_turns(list(children), number):
                found[way].append(children[way].order("epoch"))
    return {
        way: {"us": {name: record.spread([epoch[name] for epoch in epochs]) for name in epochs[0]}, "rounds": epochs}
        for way, epochs in found.items()
    }
