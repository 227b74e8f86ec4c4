"""What torch's main branch has changed and no release has yet."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TWO_VARIABLES = """
from typing import Generic, TypeVar
import torch.utils.data

First, Second = TypeVar("First"), TypeVar("Second")

class DataLoader(torch.utils.data.DataLoader, Generic[First, Second]):
    pass

torch.utils.data.DataLoader = torch.utils.data.dataloader.DataLoader = DataLoader
try:
    DataLoader[int]
except TypeError:
    pass
else:
    raise AssertionError("it takes one variable")
from sophon_loader import OffloadingDataLoader
assert issubclass(OffloadingDataLoader[int].__origin__, DataLoader)
print(*(batch.tolist() for batch in OffloadingDataLoader(range(4), batch_size=2, agent=None)))
"""
"""A program in which torch's class is generic over two types, as in pytorch/pytorch's main branch in November 2026."""


@pytest.mark.slow_start
def test_a_data_loader_of_two_type_variables() -> None:
    done = subprocess.run(
        [sys.executable, "-c", TWO_VARIABLES],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert (done.stdout, done.returncode) == ("[0, 1] [2, 3]\n", 0), done.stderr
