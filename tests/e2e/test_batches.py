"""Batches that come out of workers in memory that is used again: the same values, and nobody's memory twice."""

from __future__ import annotations

import gc
import os
import traceback
from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate, get_worker_info
from torch.utils.data._utils.collate import collate, default_collate_fn_map
from torchvision import tv_tensors

from sophon_loader.batches.batches import MAX_LARGE, MAX_SMALL, SMALL_NBYTES, BatchMemory
from sophon_loader.batches.collate import Collate

LARGE = (3, 64, 64)
"""Of float32: 48 KB, so that a batch of two is large."""
Pair = namedtuple("Pair", "one two")


class Numbers(Dataset[Any]):
    """Sample i is what `make` gives for it."""

    def __init__(self, make: Callable[[int], Any], length: int = 40) -> None:
        self.make = make
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


def image(index: int) -> Tensor:
    return torch.full(LARGE, float(index)) + torch.arange(64)


def labelled(index: int) -> tuple[Tensor, int]:
    return image(index), index


def expected(number: int, batch_size: int = 2) -> Tensor:
    return torch.stack([image(number * batch_size + i) for i in range(batch_size)])


def loader(
    make: Callable[[int], Any], memory: BatchMemory | None = None, collate_fn: Any = default_collate, **arguments: Any
) -> DataLoader[Any]:
    """A loader that uses `memory`."""
    arguments = {"batch_size": 2, "num_workers": 1, **arguments}
    memory = memory or BatchMemory(arguments["num_workers"])
    return DataLoader(Numbers(make), collate_fn=Collate(collate_fn, memory), **arguments)


def same(one: Any, other: Any) -> bool:
    """Whether two batches are alike in structure, types and bits."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        forms = [(x.dtype, x.shape, x.stride(), x.requires_grad) for x in (one, other)]
        return forms[0] == forms[1] and bytes_of(one) == bytes_of(other)
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def bytes_of(tensor: Tensor) -> bytes:
    plain = tensor.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    return bytes(plain.flatten().view(torch.uint8).numpy()) if plain.numel() else b""


def addresses(batches: Iterable[Any]) -> list[int]:
    """Where the images of the batches lie, each dropped before the next is taken."""
    found = []
    for images, _ in batches:
        found.append(images.data_ptr())
        del images
    return found


@pytest.fixture
def return_type() -> Iterator[None]:
    """What torchvision's functions return, as it is by default."""
    yield
    tv_tensors.set_return_type("Tensor")


# --- the same values ----------------------------------------------------------------------------------------------


def scalars(i: int) -> Any:
    return i, i / 3, f"name {i}", bytes([i]), np.float32(i), np.int16(i), True


def nested(i: int) -> Any:
    return {"image": image(i), "boxes": [torch.tensor([i, i + 1]), (torch.tensor(i), i)], "pair": Pair(image(i), i)}


def dtypes(i: int) -> Any:
    kinds = [torch.bool, torch.uint8, torch.int16, torch.int64, torch.float16, torch.bfloat16, torch.complex64]
    return [image(i).to(kind) for kind in kinds] + [torch.full((3,), i, dtype=kind) for kind in kinds]


def odd(i: int) -> Any:
    views = image(i).permute(1, 2, 0), image(i)[:, ::2], image(i)[0, 0].expand(64, 64)
    return *views, torch.empty(0), torch.empty(3, 0, 2), np.full((100, 100), i), torch.complex(image(i), image(i))


def of_torchvision(i: int) -> Any:
    return tv_tensors.Image(image(i)), tv_tensors.Mask(torch.full((2, 2), i)), i


def of_torchvision_by_request(i: int) -> Any:
    tv_tensors.set_return_type("TVTensor")
    return tv_tensors.Image(image(i)), i


@pytest.mark.parametrize(
    "make", [labelled, image, scalars, nested, dtypes, odd, of_torchvision, of_torchvision_by_request]
)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.usefixtures("return_type")
def test_batches_are_those_of_torch(make: Callable[[int], Any], workers: int) -> None:
    plain = DataLoader(Numbers(make), batch_size=3, num_workers=workers)
    ours = loader(make, batch_size=3, num_workers=workers)
    assert all(same(one, other) for one, other in zip(ours, plain, strict=True))


def test_under_spawn() -> None:
    plain = DataLoader(Numbers(nested), batch_size=3)
    ours = loader(nested, batch_size=3, num_workers=1, multiprocessing_context="spawn")
    assert all(same(one, other) for one, other in zip(ours, plain, strict=True))


def stacked(samples: list[Any]) -> Any:
    images = torch.stack([one for one, _ in samples])
    one = torch.tensor([1 + 2j])
    odd = (
        one.real,
        one.conj(),
        torch._neg_view(torch.ones(3)),
        torch.ones(2, requires_grad=True),
        images[:, :1, 0],
        images.permute(1, 0, 2, 3),
    )
    return images, [label for _, label in samples], *odd


@pytest.mark.parametrize("batch_size", [2, 20])
def test_of_a_user_s_own_collate_fn_too(batch_size: int) -> None:
    plain = DataLoader(Numbers(labelled), batch_size=batch_size, num_workers=1, collate_fn=stacked)
    ours = loader(labelled, batch_size=batch_size, collate_fn=stacked)
    assert all(same(one, other) for one, other in zip(ours, plain, strict=True))


def gradients(i: int) -> Any:
    return image(i).requires_grad_()


def sizes(i: int) -> Any:
    return torch.zeros(3, 100, 100 + i)


def types(i: int) -> Any:
    return image(i).to(torch.float64 if i % 2 else torch.float32)


def classes(i: int) -> Any:
    return tv_tensors.Image(image(i)) if i % 2 else image(i)


def sparse(i: int) -> Any:
    return image(i).to_sparse()


def nested_tensors(i: int) -> Any:
    return torch.nested.nested_tensor([image(i), image(i)[:2]])


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
@pytest.mark.parametrize("make", [gradients, sizes, types, classes, sparse, nested_tensors])
def test_errors_are_those_of_torch(make: Callable[[int], Any]) -> None:
    def outcome(loader: DataLoader[Any]) -> Any:
        try:
            return [batch.detach().clone() for batch in loader]
        except Exception as error:
            traceback.clear_frames(error.__traceback__)  # else torch waits 5 s for the worker of an iterator in them
            return str(error).splitlines()[-1]

    plain, ours = outcome(DataLoader(Numbers(make), batch_size=2, num_workers=1)), outcome(loader(make))
    assert same(ours, plain)


# --- nobody's memory twice ------------------------------------------------------------------------------------------


def test_memory_is_used_again() -> None:
    memory = BatchMemory(1)
    ours = loader(labelled, memory, persistent_workers=True)
    found = addresses(ours)
    assert len(found) == 20 and len(set(found)) <= 6
    (mapped,) = (dict(session.pieces) for session in memory._sessions.values())
    again = addresses(ours)
    # A worker that gets further ahead than before needs another piece.
    assert set(found) & set(again) and len({*found, *again}) <= 6
    (later,) = (session.pieces for session in memory._sessions.values())
    assert all(later[number] is piece for number, piece in mapped.items())  # told of once, not for every batch


def test_labels_that_are_kept_do_not_take_the_place_of_images() -> None:
    kept, found = [], []
    for images, labels in loader(labelled):
        found.append(images.data_ptr())
        kept.append(labels)
        del images
    assert len(set(found)) <= 6
    assert [label.tolist() for label in kept] == [[2 * n, 2 * n + 1] for n in range(20)]


def test_batches_of_ever_other_sizes_take_no_more_memory() -> None:
    memory = BatchMemory(1)
    for images in loader(lambda i: torch.zeros(3, 100, 100 + i), memory, batch_size=1):
        assert images.untyped_storage().nbytes() == images.nbytes
        del images
    (session,) = memory._sessions.values()
    assert len(session.pieces) <= 6


def test_batches_that_are_kept_stay_as_they_are() -> None:
    kept = [batch for batch, _ in loader(labelled, num_workers=2)]
    assert len(kept) > 2 * MAX_LARGE
    assert all(torch.equal(batch, expected(number)) for number, batch in enumerate(kept))
    assert len({batch.data_ptr() for batch in kept}) == len(kept)


@pytest.mark.parametrize(
    "part",
    [
        lambda batch: batch[1:, :, 3],
        lambda batch: batch.numpy()[1:, :, 3],
        lambda batch: torch.utils.dlpack.from_dlpack(batch)[1:, :, 3],
        lambda batch: batch.view(torch.uint8).view(torch.float32)[1:, :, 3],
        lambda batch: torch.nn.Parameter(batch, requires_grad=False)[1:, :, 3],
        lambda batch: memoryview(batch.numpy())[1:],
    ],
)
def test_what_is_made_of_a_batch_keeps_its_memory(part: Callable[[Tensor], Any]) -> None:
    batches = iter(loader(labelled))
    kept = part(next(batches)[0])
    before = np.array(kept.numpy() if isinstance(kept, Tensor) else kept)
    for _ in batches:
        gc.collect()
    assert np.array_equal(kept.numpy() if isinstance(kept, Tensor) else kept, before)


def test_the_graph_of_a_loss_keeps_it() -> None:
    weight = torch.ones(1, requires_grad=True)
    batches = iter(loader(labelled))
    loss = (next(batches)[0] * weight).sum()
    for _ in batches:
        pass
    loss.backward()
    assert weight.grad is not None and weight.grad.item() == expected(0).sum().item()


def test_a_batch_may_be_written_to() -> None:
    for number, (images, _) in enumerate(loader(labelled)):
        assert torch.equal(images, expected(number))
        images.fill_(-1)


def test_a_batch_is_kept_over_the_end_of_its_workers() -> None:
    memory = BatchMemory(1)
    ours = loader(labelled, memory)
    last = None
    for _ in range(3):
        for images, labels in ours:
            if last is not None:
                assert torch.equal(last, expected(19))
            last = images if labels[0] == 38 else None
    assert last is not None and torch.equal(last, expected(19))
    assert len(memory._sessions) == 1  # that of the last workers
    memory.forget_ended()
    assert not memory._sessions and torch.equal(last, expected(19))


def test_iterators_side_by_side() -> None:
    ours = loader(labelled, num_workers=2)
    both = zip(iter(ours), iter(ours), strict=True)
    for number, ((one, _), (other, _)) in enumerate(both):
        assert torch.equal(one, expected(number)) and torch.equal(other, expected(number))


def test_an_abandoned_iterator_gives_its_memory_back() -> None:
    ours = loader(labelled, persistent_workers=True)
    found = set()
    for _ in range(10):
        found.add(next(iter(ours))[0].data_ptr())
    assert len(found) <= 6


def test_a_forked_child_may_keep_what_its_parent_has_dropped() -> None:
    batches = iter(loader(labelled))
    images = next(batches)[0]
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.read(told, 1)  # until the parent has gone on
            os._exit(0 if torch.equal(images, expected(0)) else 1)
        finally:
            os._exit(2)
    try:
        del images
        for _ in batches:
            pass
    finally:
        os.write(tell, b"x")
        os.close(tell)
        os.close(told)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_what_a_forked_child_drops_its_parent_may_keep() -> None:
    memory = BatchMemory(1)
    batches = iter(loader(labelled, memory))
    images = next(batches)[0]
    before = memory._ended.array.copy()
    child = os.fork()
    if child == 0:
        del images
        gc.collect()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert np.array_equal(memory._ended.array, before)
    for _ in batches:
        pass
    assert torch.equal(images, expected(0))


def test_after_forks_memory_is_still_used_again() -> None:
    found = []
    for number, (images, _) in enumerate(loader(labelled)):
        if number % 4 == 0:
            child = os.fork()
            if child == 0:
                os._exit(0)
            os.waitpid(child, 0)
        found.append(images.data_ptr())
        del images
    assert len(set(found)) <= 12


def fails_later(i: int) -> Any:
    if i % 4 == 0 and get_worker_info() is not None:
        return image(i), torch.zeros(i + 1)  # which cannot be stacked with its neighbour's
    return image(i), torch.zeros(2)


def test_a_batch_that_fails_gives_its_memory_back() -> None:
    ours = loader(fails_later, persistent_workers=True)
    found, failures = set(), 0
    for _ in range(3):
        batches = iter(ours)
        while True:
            try:
                images, _ = next(batches)
            except StopIteration:
                break
            except RuntimeError as error:
                traceback.clear_frames(error.__traceback__)
                failures += 1
                continue
            found.add(images.data_ptr())
            del images
    assert failures == 30 and len(found) <= 6


@pytest.mark.parametrize("keep", ["batch", "view", "storage"])
def test_what_a_worker_keeps_of_a_batch_stays_as_it_is(keep: str) -> None:
    """torch's own rule for a type of the user's, whose author keeps what was collated, and sends it once more."""
    ours = loader(lambda i: Kept(image(i)), persistent_workers=True)
    plain = DataLoader(Numbers(lambda i: Kept(image(i))), batch_size=2, num_workers=1)
    Kept.keep = keep
    default_collate_fn_map[Kept] = collate_kept
    try:
        seen = [[(new.clone(), old.clone()) for new, old in batches] for batches in (ours, plain)]
    finally:
        del default_collate_fn_map[Kept]
    assert all(torch.equal(a, b) and torch.equal(c, d) for (a, c), (b, d) in zip(*seen, strict=True))


class Kept:
    """What has a rule of its own."""

    keep = "batch"
    last: ClassVar[list[Any]] = []

    def __init__(self, image: Tensor) -> None:
        self.image = image


def collate_kept(batch: list[Kept], *, collate_fn_map: Any = None) -> Any:
    new = collate([one.image for one in batch], collate_fn_map=collate_fn_map)
    made = {"batch": lambda: new, "view": lambda: new[1:], "storage": new.untyped_storage}[Kept.keep]()
    Kept.last = [*Kept.last, made][-5:]
    old: Any = Kept.last[0]
    empty: Any = torch.empty(0)
    return new, old if isinstance(old, Tensor) else empty.set_(old, 0, (2, *LARGE))


def broken(i: int) -> Any:
    return {"image": image(i), "label": i}


def test_pieces_are_shared_storages_of_their_exact_size() -> None:
    memory = BatchMemory(1)
    for batch in loader(broken, memory):
        for tensor in batch.values():
            assert tensor.is_shared() and tensor.untyped_storage().nbytes() == tensor.nbytes
            assert not tensor.untyped_storage().resizable()
    (session,) = memory._sessions.values()
    assert {number >= MAX_LARGE for number in session.pieces} == {False, True}
    assert all(number < MAX_LARGE + MAX_SMALL for number in session.pieces)
    assert all((piece.nbytes <= SMALL_NBYTES) == (n >= MAX_LARGE) for n, piece in session.pieces.items())


def test_a_rule_of_the_user_s_for_tensors_is_followed() -> None:
    def rule(batch: list[Tensor], *, collate_fn_map: Any = None) -> Tensor:
        return torch.cat([one.flatten() for one in batch])

    before = default_collate_fn_map[Tensor]
    default_collate_fn_map[Tensor] = rule
    try:
        ours, plain = list(loader(labelled)), list(DataLoader(Numbers(labelled), batch_size=2, num_workers=1))
    finally:
        default_collate_fn_map[Tensor] = before
    assert all(same(one, other) for one, other in zip(ours, plain, strict=True)) and ours[0][0].ndim == 1
