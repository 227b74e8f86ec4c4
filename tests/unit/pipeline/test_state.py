"""Objects are alike only if their classes, values and layouts are."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch
from torchvision import transforms as v1
from torchvision.transforms import v2

from sophon_loader.pipeline.state import same_state


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (1, 1.0),
        (1, True),
        ([1], (1,)),
        ("1", b"1"),
        (np.float32(0.5), 0.5),
        (np.float32(0.5), np.float64(0.5)),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (torch.zeros(3), torch.zeros(3, dtype=torch.float64)),
        (torch.zeros(3), torch.zeros(1, 3)),
        (torch.rand(3, 3).t(), torch.rand(3, 3)),
        (torch.zeros(3), torch.zeros(3, requires_grad=True)),
        (np.zeros(3), np.zeros(3, np.float32)),
        (v1.Resize(8), v2.Resize(8)),
        (v2.Resize(8), v2.Resize(9)),
        (v1.RandomApply([v1.Pad(1)]), v1.RandomApply([v1.Pad(2)])),
        (functools.partial(len), functools.partial(max)),
        (len, max),
        (v1.InterpolationMode.BILINEAR, v1.InterpolationMode.BICUBIC),
    ],
)
def test_state_differs_in_type_value_or_layout(a: Any, b: Any) -> None:
    assert not same_state(a, b)
    assert same_state(a, a)
