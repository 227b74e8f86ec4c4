"""Batches that are sent ahead: which, when, and what becomes of errors."""

from __future__ import annotations

import queue
import signal
from collections import namedtuple
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from sophon_loader.device.prefetch import Prefetch, device_for

CPU = torch.device("cpu")
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")


class FromWorkers(Iterator[int]):
    """What torch's iterator over workers shows of itself, with workers that the test moves on; waiting is an error."""

    def __init__(self, length: int) -> None:
        self._data_queue: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._task_info: dict[int, tuple[int, ...]] = {number: (0,) for number in range(length)}
        self._rcvd_idx = 0
        self._length = length

    def come(self, *numbers: int) -> None:
        for number in numbers:
            self._data_queue.put(number)

    def __next__(self) -> int:
        if self._rcvd_idx == self._length:
            raise StopIteration
        wanted = self._rcvd_idx
        while len(self._task_info.get(wanted, ())) < 2:
            number = self._data_queue.get_nowait()
            self._task_info[number] = (0, number)
        self._rcvd_idx += 1
        return self._task_info.pop(wanted)[1]


def test_batches_come_in_order_each_once_and_finished() -> None:
    for depth in (1, 2, 5):
        assert list(Prefetch(iter(range(7)), CPU, depth, lambda batch: batch * 10)) == list(range(0, 70, 10))
    assert list(Prefetch(iter(()), CPU, 2)) == []


def test_no_more_than_its_depth_is_taken_ahead() -> None:
    batches = FromWorkers(9)
    batches.come(*range(9))
    ahead = Prefetch(batches, CPU, 3)
    assert next(ahead) == 0 and batches._rcvd_idx == 4
    assert next(ahead) == 1 and batches._rcvd_idx == 5


def test_nothing_is_waited_for_but_the_batch_that_is_due() -> None:
    batches = FromWorkers(4)
    ahead = Prefetch(batches, CPU, 2)
    batches.come(0)
    assert next(ahead) == 0, "though no other has come"
    batches.come(1, 2)
    assert next(ahead) == 1 and batches._rcvd_idx == 3, "what has come is taken along"
    assert next(ahead) == 2
    batches.come(3)
    assert next(ahead) == 3
    with pytest.raises(StopIteration):
        next(ahead)


def test_one_that_torch_has_put_aside_has_come() -> None:
    batches = FromWorkers(3)
    ahead = Prefetch(batches, CPU, 2)
    batches.come(2, 1, 0)
    assert next(ahead) == 0 and batches._rcvd_idx == 3


def test_without_workers_one_is_made_for_each_that_is_delivered() -> None:
    made = []

    def making() -> Iterator[int]:
        for number in range(6):
            made.append(number)
            yield number

    ahead = Prefetch(making(), CPU, 2)
    for number, most in zip(range(6), (2, 3, 4, 5, 6, 6), strict=True):
        assert next(ahead) == number and len(made) <= most


def test_an_error_comes_in_the_place_of_its_batch() -> None:
    class Failing(Iterator[int]):
        number = -1

        def __next__(self) -> int:
            self.number += 1
            if self.number == 2:
                raise ValueError("the third")
            if self.number == 5:
                raise StopIteration
            return self.number

    ahead = Prefetch(Failing(), CPU, 3)
    assert [next(ahead), next(ahead)] == [0, 1]
    with pytest.raises(ValueError, match="the third"):
        next(ahead)
    assert list(ahead) == [3, 4]


class Numbers(Dataset[int]):
    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize("pinned", [False, True])
def test_torch_s_own_iterator_tells_what_has_come(pinned: bool) -> None:
    """This release still has what is looked at."""
    if pinned and not torch.accelerator.is_available():
        pytest.skip("nothing to pin memory for")
    batches = iter(DataLoader(Numbers(), batch_size=2, num_workers=2, pin_memory=pinned))
    ahead = Prefetch(batches, CPU, 2)
    assert [batch.tolist() for batch in ahead] == [[n, n + 1] for n in range(0, 20, 2)]
    assert {"_data_queue", "_task_info", "_rcvd_idx"} <= set(vars(batches))
    assert len(ahead) == 10


def test_the_device_is_that_of_the_tail() -> None:
    assert device_for(CPU) == CPU
    if not torch.accelerator.is_available():
        assert device_for(None) == CPU


# --- on CUDA ------------------------------------------------------------------------------------------------------

Pair = namedtuple("Pair", "image label")


@needs_cuda
def test_all_tensors_of_a_batch_are_on_the_device() -> None:
    device = device_for(None)
    batch = {"pair": Pair(torch.ones(3), 7), "rest": [torch.zeros(2), ("a", torch.arange(4))]}
    (there,) = Prefetch(iter([batch]), device, 2)
    assert there["pair"].image.device == there["rest"][0].device == there["rest"][1][1].device == device
    assert there["pair"].label == 7 and there["rest"][1][0] == "a" and type(there["pair"]) is Pair
    assert there["rest"][1][1].tolist() == [0, 1, 2, 3]


@needs_cuda
def test_batches_are_copied_while_the_step_runs_and_never_read_too_early() -> None:
    device = device_for(None)
    batches = [torch.full((64, 3, 224, 224), n, dtype=torch.uint8).pin_memory() for n in range(12)]
    slow = torch.randn(4096, 4096, device=device)
    sums: list[Any] = []
    for batch in Prefetch(iter(batches), device, 2, lambda b: b.to(device, non_blocking=True).float()):
        for _ in range(20):
            slow = torch.mm(slow, slow).clamp_(-1, 1)
        sums.append(batch.double().mean())
    assert [value.item() for value in sums] == list(range(12))


@needs_cuda
def test_the_host_does_not_wait_for_the_device() -> None:
    device = device_for(None)
    batches = [torch.zeros(1 << 20, dtype=torch.uint8).pin_memory() for _ in range(4)]
    ahead = Prefetch(iter(batches), device, 2)
    next(ahead)
    torch.cuda._sleep(1_000_000_000)  # cycles
    held = torch.cuda.Event()
    held.record()
    next(ahead)
    assert not held.query(), "the stream of the step is still held up"
    torch.cuda.synchronize()


def test_what_a_signal_s_handler_raises_leaves_at_once_and_waits_for_no_turn() -> None:
    class TooLate(Exception):
        pass

    def late(*_: object) -> None:
        raise TooLate

    class Interrupted(FromWorkers):
        def __next__(self) -> int:
            if self._rcvd_idx == 1 and signal.getsignal(signal.SIGUSR1) is late:
                try:
                    signal.raise_signal(signal.SIGUSR1)
                finally:
                    signal.signal(signal.SIGUSR1, before)
            return super().__next__()

    batches = Interrupted(4)
    batches.come(*range(4))
    before = signal.signal(signal.SIGUSR1, late)
    ahead = Prefetch(batches, CPU, 2)
    try:
        with pytest.raises(TooLate):
            next(ahead)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert list(ahead) == [0, 1, 2, 3]
