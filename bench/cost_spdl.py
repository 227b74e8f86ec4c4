"""SPDL, for bench.cost: threads of one process, FFmpeg's decoder and scaler.

Built as SPDL's documentation recommends: a thread decodes, crops and scales a file in FFmpeg. Batches are made of its
frames without an intermediate tensor, and values are normalised a batch at a time. There are as many threads as the
other ways have worker processes; FFmpeg itself uses one. Batches are channels-last, other ways' are not.

The package brings no FFmpeg. It gets that of PyAV's package, whose libraries have names of their own: links under the
usual names are made next to them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torchvision.datasets import ImageFolder
from torchvision.transforms import RandomResizedCrop

from bench.peers.environments import Installed, Unavailable, install
from bench.peers.systems import DEVIATION, MEAN, System

SYSTEM = System("spdl", "cost_spdl", "threads, FFmpeg", packages=("spdl", "av"), serves=False)
SIZE_PX = 224
READY_BATCHES = 3
"""Number of batches that wait for the consumer, as in SPDL's own loader."""


def installed(root: Path) -> Installed:
    """SPDL in an environment of its own, and an interpreter that finds FFmpeg.

    Raises:
        Unavailable: it cannot be installed.
    """
    found = install(SYSTEM, root)
    return replace(found, python=_with_ffmpeg(found.python))


def _with_ffmpeg(python: Path) -> Path:
    environment = python.parents[1]
    folders = list(environment.glob("lib/python*/site-packages/av.libs"))
    if not folders:
        raise Unavailable("the package `av` must bring FFmpeg's libraries, and has none for this machine")
    links, script = environment / "ffmpeg", environment / "bin" / "python-with-ffmpeg"
    links.mkdir(exist_ok=True)
    for library in folders[0].glob("libav*-*.so.*"):
        link = links / _usual_name(library.name)
        if not link.is_symlink():
            link.symlink_to(library)
    script.write_text(f'#!/bin/sh\nLD_LIBRARY_PATH="{links}:{folders[0]}" exec "{python}" "$@"\n')
    script.chmod(0o755)
    return script


def _usual_name(library: str) -> str:
    """`libavutil.so.60` of `libavutil-5809ad29.so.60.26.102`."""
    name, _, version = library.partition(".so.")
    return f"{name.partition('-')[0]}.so.{version.partition('.')[0]}"


class Threads:
    """An iterable of batches, an epoch each time.

    Args:
        data: an ImageFolder tree.
        repeat: how often an epoch goes through it.
        batch_size: samples per batch.
        threads: that decode.
    """

    def __init__(self, data: str, repeat: int, batch_size: int, threads: int) -> None:
        self._files = ImageFolder(data).samples * repeat
        self._batch_size, self._threads = batch_size, threads
        self._crop = RandomResizedCrop(SIZE_PX)
        self._mean, self._deviation = (torch.tensor(values).view(1, 3, 1, 1) for values in (MEAN, DEVIATION))

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        from spdl.pipeline import PipelineBuilder

        order = torch.randperm(len(self._files)).tolist()
        pipeline = (
            PipelineBuilder()
            .add_source([self._files[position] for position in order])
            .pipe(self._frames, concurrency=self._threads, max_failures=0)
            .aggregate(self._batch_size)
            .pipe(self._batch)
            .add_sink(READY_BATCHES)
            .build(num_threads=self._threads)
        )
        with pipeline.auto_stop():
            yield from pipeline

    def _frames(self, file: tuple[str, int]) -> tuple[Any, int]:
        import spdl.io

        path, label = file
        packets = spdl.io.demux_image(path)
        shape = torch.empty(1).expand(1, packets.height, packets.width)  # no picture is needed to draw, only one's size
        top, left, height, width = self._crop.get_params(shape, list(self._crop.scale), list(self._crop.ratio))
        flip = ",hflip" if torch.rand(1) < 0.5 else ""
        scale = f"scale={SIZE_PX}:{SIZE_PX}:flags=bilinear"
        steps = f"crop={width}:{height}:{left}:{top},{scale}{flip},format=pix_fmts=rgb24"
        return spdl.io.decode_packets(packets, filter_desc=steps), label

    def _batch(self, samples: Sequence[tuple[Any, int]]) -> tuple[torch.Tensor, torch.Tensor]:
        import spdl.io

        frames, labels = zip(*samples, strict=True)
        pixels = spdl.io.to_torch(spdl.io.convert_frames(list(frames))).permute(0, 3, 1, 2)
        return pixels.float().div_(255).sub_(self._mean).div_(self._deviation), torch.tensor(labels)
