"""What torch.compile leaves alone, as it leaves alone the files of torch's own DataLoader."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def untraced(function: F) -> F:
    """Have torch.compile break its graph at a function, and run it with all that it calls as it is.

    That is what `torch.compiler.disable` does, which imports the compiler: seconds, for those who never compile. Here
    the function gets the mark that is looked for in calls, and its code that for frames.
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
