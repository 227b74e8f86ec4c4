"""Every tensor that is ours lies where we say, and not on torch's default device, which is the user's."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.utils._device import _device_constructors

from sophon_loader.host.shared import SharedArray, shared_tensor
from tests.support.agents import ROOT

MAKERS = {function.__name__ for function in _device_constructors()}
"""The functions of torch that look at its default device."""
AS_THE_OPS = {("sophon_loader/pipeline/ends.py", "empty_strided")}
"""Where that is meant: a table is not used under another default device."""
SOURCES = [path for package in ("sophon_loader", "storage_agent") for path in sorted((ROOT / package).rglob("*.py"))]


def made_anywhere(path: Path) -> Iterator[tuple[str, str]]:
    """(file, function) of each call that leaves the device to torch."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MAKERS):
            continue
        of_torch = isinstance(node.func.value, ast.Name) and node.func.value.id == "torch"
        if of_torch and not any(keyword.arg == "device" for keyword in node.keywords):
            yield str(path.relative_to(ROOT)), node.func.attr


def test_who_makes_a_tensor_names_its_device() -> None:
    assert {"empty", "as_tensor", "randperm"} <= MAKERS
    assert {found for path in SOURCES for found in made_anywhere(path)} == AS_THE_OPS


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64])
def test_shared_memory_under_another_default_device(dtype: torch.dtype) -> None:
    with torch.device("meta"):
        assert shared_tensor(3, dtype).is_cpu
        values = shared_tensor(3, dtype).numpy()
        (shared,) = SharedArray.together(values + 1)
    assert shared.array.tolist() == [1, 1, 1]
