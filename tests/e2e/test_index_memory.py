"""An index of ImageNet's size costs a loader worker no private copy, whether it is forked or spawned."""

from __future__ import annotations

import io
from multiprocessing.reduction import ForkingPickler
from typing import Any

import psutil
import pytest
import torch.multiprocessing
from torchvision.datasets import DatasetFolder
from torchvision.datasets.folder import default_loader

from sophon_loader.client.wanted import BatchId
from sophon_loader.datasets.protocol import Offloadable
from sophon_loader.order.tickets import Ticket
from sophon_loader.workers.choosing import Chooser
from tests.support.drawn import FULL
from tests.support.workers import Parts, parts_of

SAMPLES = 1_280_000 if FULL else 320_000
"""ImageNet's in `make long`. A quarter of it, copied, would still be ten times what is allowed."""
CLASSES = 1000
BATCH = 256
MAX_NBYTES = 6 << 20


class LargeFolder(DatasetFolder):
    """A DatasetFolder that has been told its samples instead of looking for them."""

    def __init__(self, samples: int) -> None:
        self.root = "/nowhere/train"
        self.loader = default_loader
        self.transform = self.target_transform = None
        self.samples = [(f"{self.root}/n{i % CLASSES:08}/n{i:012}.JPEG", i % CLASSES) for i in range(samples)]


@pytest.fixture(scope="module")
def parts() -> Parts:
    return parts_of(LargeFolder(SAMPLES))


def private_nbytes() -> int:
    """Memory that this process alone has (pages written to, or mapped by nobody else)."""
    return int(psutil.Process().memory_full_info().uss)


def measure(chooser: Chooser, data: Offloadable, answers: Any) -> None:
    """What a worker does for each sample before it asks for it, and with its label afterwards."""
    for warm in range(0, SAMPLES, SAMPLES // 100):
        chooser.wanted(Ticket(BatchId(1, 0, 0), [warm]))
    before, characters, targets = private_nbytes(), 0, 0
    for start in range(0, SAMPLES, BATCH):
        for wanted in chooser.wanted(Ticket(BatchId(1, 0, start), list(range(start, start + BATCH)))):
            characters += len(wanted.key)
            source, row = data.locate(wanted.sample)
            targets += data.sources[source].target(row)
    answers.put((private_nbytes() - before, characters, targets))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_walk_over_the_whole_index_costs_no_private_memory(parts: Parts, method: str) -> None:
    context: Any = torch.multiprocessing.get_context(method)
    answers = context.SimpleQueue()
    process = context.Process(target=measure, args=(parts.chooser, parts.data, answers))
    process.start()
    process.join(150)
    assert process.exitcode == 0
    grown_nbytes, characters, targets = answers.get()
    assert characters == SAMPLES * len("n00000000/n000000000000.JPEG")
    assert targets == SAMPLES * (CLASSES - 1) // 2
    assert grown_nbytes < MAX_NBYTES


def test_what_travels_to_a_spawned_worker_is_small(parts: Parts) -> None:
    file = io.BytesIO()
    ForkingPickler(file).dump(parts.dataset)
    assert len(file.getvalue()) < 100_000


def test_the_measure_sees_a_private_copy() -> None:
    context = torch.multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    process = context.Process(target=_copy, args=(answers,))
    process.start()
    process.join(60)
    assert answers.get() > MAX_NBYTES


def _copy(answers: Any) -> None:
    before = private_nbytes()
    kept = [str(number) for number in range(300_000)]
    answers.put(private_nbytes() - before)
    del kept
