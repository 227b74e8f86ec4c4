"""Ops for `sophon-agent serve --ops tests.support.agent_ops`: slow at will, failing, deadly, greedy."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from PIL import ImageOps

from sophon_loader.pipeline.op_registry import register_op


class Gate:
    """Waits until the file `path` exists; `pid` files beside it say who waits."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __call__(self, value: Any) -> Any:
        gate = Path(self.path)
        gate.with_suffix(f".{os.getpid()}").touch()
        end = time.monotonic() + 60
        while not gate.exists() and time.monotonic() < end:
            time.sleep(0.01)
        return value


class Invert:
    """255 - x."""

    def __call__(self, value: Any) -> Any:
        return value.point(lambda px: 255 - px)


class Upright:
    """Turns a picture as its EXIF data says."""

    def __call__(self, value: Any) -> Any:
        return ImageOps.exif_transpose(value)


class Fail:
    """Raises."""

    def __call__(self, value: Any) -> Any:
        raise ValueError("this op always fails")


class Crash:
    """Ends its process at once."""

    def __call__(self, value: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)


class Hog:
    """Takes memory, so many MiB."""

    def __init__(self, megabytes: int) -> None:
        self.megabytes = megabytes

    def __call__(self, value: Any) -> Any:
        taken = bytearray(self.megabytes << 20)
        taken[:: 1 << 12] = b"x" * len(taken[:: 1 << 12])
        return value


for _op in (Gate, Invert, Fail, Crash, Hog):
    register_op(f"tests.{_op.__name__}", _op, draws=(), reads_info=False)
register_op("tests.Upright", Upright, draws=())


def waiting(gate: Path) -> set[int]:
    """Process ids of those that have come to a gate."""
    return {int(path.suffix[1:]) for path in gate.parent.glob(f"{gate.stem}.*") if path.suffix[1:].isdigit()}
