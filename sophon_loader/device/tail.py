"""The tail: the last ops of a pipeline, run on whole uint8 batches on one device instead of in the loader's workers.

Only ops that do to a batch what they do to each sample are moved (`OpType.on_batches`), so a batch has the bits that
its samples would have. The ops before them run elsewhere (`pipeline/chain.py`), and no data is read here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import default_collate
from torchvision.transforms import functional as v1_functional
from torchvision.transforms.v2 import functional as v2_functional

from sophon_loader.errors import ConfigError, PipelineError, note_foreign
from sophon_loader.pipeline.chain import Chain, description_of
from sophon_loader.pipeline.op import Op, OpSpec
from sophon_loader.pipeline.op_registry import build_op
from sophon_loader.torch_internals.profiler_ranges import FINISHING, profiler_range


def _scaled(images: Tensor) -> Tensor:
    return images.to(torch.get_default_dtype()).div_(255)


def _as_they_are(images: Tensor) -> Tensor:
    return images


_FROM_PIXELS: dict[str, Callable[[Tensor], Tensor]] = {
    "v1.ToTensor": _scaled,
    "v2.ToTensor": _scaled,
    "v1.PILToTensor": _as_they_are,
    "v2.PILToTensor": _as_they_are,
    "timm.MaybeToTensor": _scaled,
    "timm.MaybePILToTensor": _as_they_are,
}
"""Functions that replace ops for images only: uint8 pixels [N, C, H, W] -> the op's result for the images. By name,
without the release that is part of timm's names."""
_NORMALIZE = ("v1.Normalize", "v2.Normalize")
"""Ops that take batches, but would copy mean and std to the device for each; `_Normalize` keeps them there."""


def device_of(tail: str | torch.device) -> torch.device | None:
    """Return the device that the loader's argument `tail` names; None for `"loader"`.

    Raises:
        ConfigError: this host has no such device.
    """
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if tail == "loader":
        return None
    if tail == "device":
        return accelerator or torch.device("cpu")  # without an index: the current one, batch by batch
    here = [] if accelerator is None else [f"{accelerator.type}:{i}" for i in range(torch.accelerator.device_count())]
    try:
        device = torch.device(tail)
    except (RuntimeError, TypeError):
        device = None
    if device is None or (device.type != "cpu" and f"{device.type}:{device.index or 0}" not in here):
        names = ", ".join(["cpu", *here])
        raise ConfigError(f"tail must be 'loader', 'device' or a device of this host ({names}), got {tail!r}")
    return device


@dataclass(frozen=True)
class Split:
    """The pipelines of a dataset, split into ops per sample and ops per batch.

    Args:
        chains: ops that run per sample, for each source of the dataset.
        collate_fn: makes a batch of the samples.
        arrange: called on the samples before that; None for nothing.
        tail: ops that remain for the batch; None for none.
        notes: reasons why none remain although requested.
    """

    chains: tuple[Chain, ...]
    collate_fn: Any
    arrange: Callable[[list[Any]], Any] | None = None
    tail: Tail | None = None
    notes: tuple[str, ...] = ()


def split(chains: Sequence[Chain], collate_fn: Any, device: torch.device | None) -> Split:
    """Move the last ops to a device, if there is one and they can be moved.

    Args:
        chains: the pipelines, one per source of the dataset.
        collate_fn: the user's.
        device: device for the tail; None to leave all ops with the samples.
    """
    if device is None:
        return Split(tuple(chains), collate_fn)
    try:
        heads, ops = _parted(chains, collate_fn)
    except _NotMoved as reason:
        return Split(tuple(chains), collate_fn, notes=(f"no op runs on {device}, because {reason}",))
    return Split(heads, collate_fn, channels_last, Tail(ops, device))


class _NotMoved(Exception):
    """Reason why all ops stay with the samples."""


def _parted(chains: Sequence[Chain], collate_fn: Any) -> tuple[tuple[Chain, ...], tuple[Op, ...]]:
    if collate_fn is not default_collate:
        raise _NotMoved("batches are not made by torch's default_collate")
    starts = [_start(chain) for chain in chains]
    tails = [chain.ops[start:] for chain, start in zip(chains, starts, strict=True)]
    if len({description_of(tail) for tail in tails}) != 1:
        raise _NotMoved("the pipelines of the dataset's parts end in different ops")
    for op in (op for tail in tails for op in tail):
        values: list[Any] = list(getattr(op.call, "__dict__", {}).values())
        if any(value.is_shared() for value in values if isinstance(value, Tensor)):  # type: ignore[no-untyped-call]
            raise _NotMoved(  # the tail has a copy
                f"a parameter of {op.label} lies in memory that processes share, so that it may change while workers "
                "run; give the op a tensor of its own (clone())"
            )
    heads = [
        # At the place of the op that makes the tensor, so that no op's position changes, nor what it draws.
        Chain((*chain.ops[:start], replace(_PIXELS, label=chain.ops[start].label)))
        for chain, start in zip(chains, starts, strict=True)
    ]
    return tuple(heads), tails[0]


def _start(chain: Chain) -> int:
    """Return the position at which the tail of a chain begins: that of the op that makes the tensor.

    The backward searches end at op 0, Decode, at the latest: it neither takes batches nor makes a tensor.

    Raises:
        _NotMoved: the chain does not end in ops that can be moved.
    """
    ops = chain.ops
    start = len(ops)
    while ops[start - 1].on_batches:
        start -= 1
    if _takes_pixels(ops[start - 1]):
        start -= 1
    elif start == len(ops) or not _takes_pixels(ops[start]):
        raise _NotMoved(
            f"{ops[start - 1].label} stands in the way: the pipeline must end in torchvision's ToTensor, PILToTensor "
            "or ToImage, and behind that may come only Normalize, ConvertImageDtype, ToDtype, ToPureTensor and ops "
            "registered with on_batches=True"
        )
    turns = [op for op in ops[:start] if op.makes is not None]
    if turns and turns[-1].makes == "tensor":
        raise _NotMoved(f"{ops[start].label} gets the tensor that {turns[-1].label} has made, and must get an image")
    return start


def _takes_pixels(op: Op) -> bool:
    """True if the op makes a tensor of an image, and can do so from a batch of pixels."""
    return op.makes == "tensor" and (op.on_batches or _name(op) in _FROM_PIXELS)


def _name(op: Op) -> str:
    return "" if op.spec is None else op.spec.name.partition("@")[0]


def _pixels(image: Any) -> Tensor:
    if not isinstance(image, Image.Image):
        raise PipelineError(f"the tail must begin with an image of PIL, got {type(image)}; use tail='loader'")
    tensor: Tensor = v1_functional.pil_to_tensor(image)
    return tensor


_PIXELS = Op("", _pixels, (), OpSpec("v1.PILToTensor", {}), makes="tensor", takes_deferred=True, pointwise=True)


def channels_last(samples: list[tuple[Tensor, Any]]) -> list[tuple[Tensor, Any]]:
    """Return the images in Pillow's layout, [H, W, C]: stacking them is then a plain copy, three times as fast.

    Raises:
        PipelineError: an image is not of 8 bits.
    """
    for image, _ in samples:
        if image.dtype != torch.uint8:
            raise PipelineError(f"the tail must begin with images of 8 bits, got {image.dtype}; use tail='loader'")
    return [(image.permute(1, 2, 0), target) for image, target in samples]


class Tail:
    """Runs the remaining ops on a batch of `channels_last` samples.

    Args:
        ops: the first makes the tensor.
        device: device that runs them and receives the images.
    """

    def __init__(self, ops: Sequence[Op], device: torch.device) -> None:
        self._device = device
        self._steps = [(op.label, _step(op)) for op in ops]

    def __call__(self, batch: list[Any]) -> list[Any]:
        """Return [images, targets] as `default_collate` would make it of samples after the ops. Does not wait for the
        GPU.

        Args:
            batch: [uint8 images [N, H, W, C], targets], as `default_collate` makes it of `channels_last` samples.
        """
        with profiler_range(FINISHING):
            return self._finished(batch)

    def _finished(self, batch: list[Any]) -> list[Any]:
        images, *others = batch
        images = images.to(self._device, non_blocking=True).permute(0, 3, 1, 2).contiguous()
        for label, step in self._steps:
            try:
                images = step(images)
            except Exception as error:
                note_foreign(error, f"in the op {label} of the pipeline's tail, on {self._device}")
                raise
        # As torch.stack does: a tv_tensors.Image becomes a tensor, unless set_return_type says otherwise.
        return [images.view_as(images), *others]


def _step(op: Op) -> Callable[[Tensor], Tensor]:
    assert op.spec is not None, "a local op is not moved"
    if _name(op) in _FROM_PIXELS:
        return _FROM_PIXELS[_name(op)]
    call = build_op(op.spec).call  # our own object: the user may change theirs while batches are on their way
    return _Normalize(call) if op.spec.name in _NORMALIZE else call


class _Normalize:
    """Normalize with mean and std kept on the device; torchvision copies them there, and waits, for each batch.

    Args:
        transform: v1 or v2 Normalize, which must not change.
    """

    def __init__(self, transform: Any) -> None:
        self._transform = transform
        self._kept: tuple[Any, ...] = ()

    def __call__(self, images: Tensor) -> Tensor:
        kept = (images.dtype, images.device, images.shape[1])
        if kept != self._kept:
            # One sample the usual way: it raises what it must, and shows whether a grey image comes out in colours.
            sample = self._transform(torch.zeros(images.shape[1:], dtype=images.dtype, device="cpu"))
            self._in_place = sample.shape == images.shape[1:]
            parameters = self._transform.mean, self._transform.std
            self._mean, self._std = (torch.as_tensor(p, dtype=images.dtype, device=images.device) for p in parameters)
            self._kept = kept
        normalized: Tensor = v2_functional.normalize(images, self._mean, self._std, inplace=self._in_place)
        return normalized
