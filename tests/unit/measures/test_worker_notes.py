"""measures/worker_notes.py"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from PIL import Image

from sophon_loader.measures.worker_notes import WorkerNotes, looking
from sophon_loader.pipeline.chain import Chain
from sophon_loader.pipeline.op import Op, OpSpec

TRACEBACK = """ValueError at the agent:
Traceback (most recent call last):
  File "/x/ops.py", line 3, in __call__
    raise ValueError("too dark")
ValueError: too dark
in op 1 (lab.Dark) of the pipeline
"""


@pytest.mark.parametrize(("note", "reason"), [
    (TRACEBACK, "ValueError: too dark; in op 1 (lab.Dark) of the pipeline"),
    ("EncodingError at the agent:\nsophon_loader.errors.EncodingError: value: must\n", "value: must"),
    ("the queue of this agent is full", "the queue of this agent is full"),
], ids=["an op", "an encoding", "no error"])  # fmt: skip
def test_the_agents_reason_without_its_traceback(note: str, reason: str) -> None:
    said = WorkerNotes(2)
    said.degraded(1, note)
    expected = f"3 samples came less prepared than requested; the agent said: {reason}"
    assert said.notes(3) == [expected]
    assert said.notes(0) == [], "of an epoch before"


def test_a_long_text_is_cut() -> None:
    said = WorkerNotes(1)
    said.degraded(0, "ä" * 5000)
    (note,) = said.notes(1)
    assert len(note) < 400 and "ää" in note


def test_an_op_whose_value_cannot_cross() -> None:
    said = WorkerNotes(3)
    for worker in (0, 2):
        said.uncarried(worker, "lab.Views gives a list")
    (note,) = said.notes(0)
    assert note.startswith("lab.Views gives a list, which cannot be sent") and "torch.stack" in note


def chain_giving(*values: Any) -> Chain:
    """A pipeline whose ops give these, whatever they are given; the first one stands for decoding."""
    ops = [Op(f"op{n}", lambda _, value=value: value, (), OpSpec(f"op{n}", {})) for n, value in enumerate(values)]
    return Chain(tuple(ops))


PICTURE, TENSOR = Image.new("RGB", (2, 2)), torch.ones(2)


@pytest.mark.parametrize(("values", "reach", "text"), [
    ([PICTURE, PICTURE, [TENSOR]], 3, "op2 gives a list"),
    ([PICTURE, (PICTURE,), {"a": TENSOR}], 3, "op1 gives a tuple"),
    ([PICTURE, None, TENSOR], 3, ""),
    ([PICTURE, TENSOR, [TENSOR]], 2, ""),
    ([PICTURE, "text"], 2, "op1 gives a str"),
], ids=["at the end", "the first one", "on the way only", "behind what is offloaded", "text"])  # fmt: skip
def test_values_that_cannot_cross_are_found(values: list[Any], reach: int, text: str) -> None:
    found: list[str] = []
    chain = chain_giving(*values)
    after = looking(chain, reach, found.append)
    for stage, value in enumerate(values, start=1):
        after(stage, value)
    assert found == [text]
