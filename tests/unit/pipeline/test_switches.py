"""torch's settings: each is noticed, in every form in which it can be set."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from sophon_loader.pipeline.switches import KERNELS, USUAL, remedy_for, switches

mkldnn: Any = torch.backends.mkldnn
of_kind = pytest.mark.skipif(not hasattr(mkldnn, "matmul"), reason="this torch has one precision for all")


@pytest.fixture(autouse=True)
def _as_usual() -> Iterator[None]:
    kinds = [getattr(mkldnn, kind) for kind in ("matmul", "conv") if hasattr(mkldnn, kind)]
    yield
    torch.set_float32_matmul_precision("highest")
    for kind in kinds:
        kind.fp32_precision = "none"
    mkldnn.enabled, mkldnn.deterministic = True, False
    torch.set_flush_denormal(False)
    torch.use_deterministic_algorithms(False)
    assert dict(switches(), **{KERNELS: ""}) == {**USUAL, KERNELS: ""}


def test_what_torch_begins_with() -> None:
    found = switches()
    assert found.pop(KERNELS) == torch.backends.cpu.get_cpu_capability()
    assert found == USUAL


def _of_matmul(value: str) -> None:
    mkldnn.matmul.fp32_precision = value


def _of_convolution(value: str) -> None:
    mkldnn.conv.fp32_precision = value


def _enabled(value: bool) -> None:
    mkldnn.enabled = value


def _deterministic(value: bool) -> None:
    mkldnn.deterministic = value


@pytest.mark.parametrize(
    ("name", "turn", "value", "told"),
    [
        ("float32 matmul precision", torch.set_float32_matmul_precision, "medium", "medium"),
        ("float32 matmul precision", torch.set_float32_matmul_precision, "high", "high"),
        pytest.param("float32 matmul precision", _of_matmul, "bf16", "medium", marks=of_kind),
        pytest.param("float32 convolution precision", _of_convolution, "bf16", "medium", marks=of_kind),
        ("mkldnn", _enabled, False, "off"),
        ("mkldnn", _deterministic, True, "on, deterministic"),
        ("flush denormal", torch.set_flush_denormal, True, "on"),
        ("deterministic algorithms", torch.use_deterministic_algorithms, True, "on"),
    ],
)
def test_each_is_noticed(name: str, turn: Callable[[Any], object], value: Any, told: str) -> None:
    turn(value)
    found = switches()
    assert found.pop(name) == told and found.pop(KERNELS)
    assert found == {other: usual for other, usual in USUAL.items() if other != name}


def test_each_has_a_remedy() -> None:
    assert all(remedy_for(name) for name in (*USUAL, KERNELS))
