"""Digest of what torch and its maths libraries compute in this process: equal digests mean equal numbers.

MKL and oneDNN choose their instructions by CPU type and environment variables, which their versions do not show. So a
few small numbers are computed, and hashed with those variables. This is no proof: with other shapes, another type of
CPU with equal results here may take other kernels.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import cache
from hashlib import blake2b

import torch
from torch.nn import functional

from sophon_loader.pipeline.chain import isolated
from sophon_loader.pipeline.switches import settings

MATHS = "maths libraries"
"""Name of the digest in a registration."""
_VARIABLES = (
    *("MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "MKL_DEBUG_CPU_TYPE"),
    *("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ONEDNN_CPU_ISA_HINTS", "DNNL_CPU_ISA_HINTS"),
)


def maths() -> str:
    """Return the digest. The first call takes some 20 ms to load libraries and build kernels; the result is cached.

    Call it before a process forks others, so that they need not compute it again.
    """
    return _digest(tuple(settings().items()))  # they change the results


@cache
def _digest(settings: tuple[tuple[str, str], ...]) -> str:
    hashed = blake2b("\0".join(os.environ.get(name, "") for name in _VARIABLES).encode(), digest_size=8)
    with isolated(()), torch.no_grad():
        for compute in _probes():
            try:
                hashed.update(compute().contiguous().numpy().tobytes())
            except (RuntimeError, NotImplementedError) as error:  # a build of torch without that library
                hashed.update(type(error).__name__.encode())
    return hashed.hexdigest()


def _probes() -> Iterator[Callable[[], torch.Tensor]]:
    """Yield each kind of op on float tensors once: convolution, products of matrices, sampling, resizing, functions,
    sums."""
    generator = torch.Generator("cpu").manual_seed(1)

    def numbers(*shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=generator, device="cpu", dtype=torch.float32)

    image, square, theta = numbers(1, 3, 48, 64), numbers(8, 8), numbers(1, 2, 3) - 0.5
    narrow, wide, blur = numbers(64, 97), numbers(97, 48), numbers(3, 1, 9, 9)
    row, mixing, filters = numbers(1, 1728), numbers(1728, 64), numbers(8, 3, 3, 3)
    grid = functional.affine_grid(theta, [1, 3, 48, 64], align_corners=False)
    yield lambda: grid
    yield lambda: functional.conv2d(image, blur, groups=3)  # as a blur
    yield lambda: functional.conv2d(image, filters, padding=1)
    yield lambda: narrow @ wide
    yield lambda: row @ mixing  # as a LinearTransformation
    yield lambda: narrow.double() @ wide.double()
    yield (
        lambda: torch.linalg.lstsq(square.double(), square[:, :1].double(), driver="gels").solution
    )  # as a perspective
    yield lambda: torch.linalg.svdvals(square)
    for mode in ("bilinear", "bicubic"):
        yield lambda mode=mode: functional.grid_sample(image, grid, mode=mode, align_corners=False)  # type: ignore[misc]
        for antialias in (False, True):
            yield lambda mode=mode, antialias=antialias: functional.interpolate(  # type: ignore[misc]
                image, size=(29, 37), mode=mode, antialias=antialias
            )
    for function in (torch.exp, torch.log, torch.sin, torch.tanh, torch.sqrt):
        yield lambda function=function: function(image + 0.1)  # type: ignore[misc]
    yield lambda: image**2.2
    yield lambda: image.softmax(-1)
    yield lambda: torch.stack([image.sum(), image.mean(), image.std()])
    yield lambda: torch.randn(100, generator=generator, device="cpu", dtype=torch.float32)
