"""Excludes functions from torch.compile, as it excludes the files of torch's own DataLoader."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def untraced(function: F) -> F:
    """Have torch.compile break its graph at a function, and run the function and its callees as they are.

    `torch.compiler.disable` does that, too, but imports the compiler, which takes seconds even if nothing is compiled.
    Here the function gets the mark that is looked for in calls, and its code that for frames.
    """
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    function._torchdynamo_disable_msg = "it loads batches"  # type: ignore[attr-defined]
    try:
        from torch._C._dynamo import eval_frame
    except ImportError:  # a torch without a compiler
        return function
    if hasattr(eval_frame, "set_code_exec_strategy"):
        skip = eval_frame._FrameAction.SKIP
        eval_frame.set_code_exec_strategy(function.__code__, eval_frame._FrameExecStrategy(skip, skip))
    return function
