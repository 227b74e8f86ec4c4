"""Whatever torch allows with a batch gives here what it gives there: drawn sequences of uses, beside torch's.

`HELD_BATCHES=10000` draws that many sequences; as many as the profile says otherwise.
"""

from __future__ import annotations

import copy
import gc
import hashlib
import io
import os
import pickle
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import pytest
import torch
import torch.multiprocessing as mp
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate
from torch.utils.data._utils.collate import collate, default_collate_fn_map

from sophon_loader.batches.batches import BatchMemory
from sophon_loader.batches.collate import Collate

pytestmark = [
    pytest.mark.filterwarnings("ignore:TypedStorage is deprecated:UserWarning"),
    pytest.mark.filterwarnings("ignore:The given NumPy array is not writable:UserWarning"),
]
EXAMPLES = int(os.environ.get("HELD_BATCHES", settings.default.max_examples))
AT_ONCE = 500
LENGTH = 1 << 16
BATCH = 3


@dataclass
class Pair:
    """What a rule of the user collates to a tensor and a view of it."""

    image: Tensor


def collate_pair(batch: list[Any], *, collate_fn_map: Any = None) -> Any:
    whole = collate([pair.image for pair in batch], collate_fn_map=collate_fn_map)
    return whole, whole[1:]


class Numbers(Dataset[Any]):
    """Large and small tensors, numbers, an array, and something with a rule of its own."""

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> Any:
        image = torch.full((3, 96, 32), float(index)) + torch.arange(32)
        small = torch.full((5,), index, dtype=torch.int32)
        return image, index, small, float(index), np.full((40, 50), index), np.int16(index % 99), Pair(image[0].clone())


def digest(value: Any) -> str:
    """What a tensor, array or storage holds."""
    if isinstance(value, torch.TypedStorage):
        value = value.untyped()
    if isinstance(value, torch.UntypedStorage):
        value = torch.empty(0, dtype=torch.uint8).set_(value)
    if isinstance(value, Tensor):
        value = value.detach().contiguous().numpy()
    return hashlib.blake2b(np.ascontiguousarray(value).tobytes(), digest_size=8).hexdigest()


def serve(asked: Any, told: Any) -> None:
    """A process that keeps the tensors it is sent, and says what they hold when asked."""
    kept: list[Tensor] = []
    while (message := asked.get()) is not None:
        if isinstance(message, Tensor):
            kept = [*kept, message][-6:]
        elif message == "forget":
            kept = []
        else:
            told.put([digest(one) for one in kept])


@dataclass
class Peer:
    asked: Any
    told: Any
    queue: Any
    process: Any


@dataclass
class Held:
    """The user's side: the batch at hand, and what has been kept of it and of others."""

    peer: Peer
    batch: list[Any] = field(default_factory=list)
    looks: list[Callable[[], Any]] = field(default_factory=list)
    seen: list[Any] = field(default_factory=list)
    queued: int = 0


Use = Callable[[Held, Tensor], Any]


def keep(make: Callable[[Tensor], Any]) -> Use:
    def use(held: Held, tensor: Tensor) -> None:
        kept = make(tensor)
        held.looks.append(lambda: digest(kept))

    return use


def array_then_shared(held: Held, tensor: Tensor) -> Any:
    array = tensor.numpy()
    same = tensor.share_memory_() is tensor
    held.looks.append(lambda: digest(array))
    return same


def sent_with_a_view(held: Held, tensor: Tensor) -> None:
    array = tensor.numpy()[1:]
    held.peer.asked.put(tensor)
    held.looks.append(lambda: digest(np.ascontiguousarray(array)))


def sent(held: Held, tensor: Tensor) -> None:
    held.peer.asked.put(tensor)


def queued(held: Held, tensor: Tensor) -> None:
    held.peer.queue.put(tensor[:2])
    held.queued += 1


def unqueued(held: Held, tensor: Tensor) -> Any:
    if held.queued:
        held.queued -= 1
        kept = held.peer.queue.get(timeout=60)
        held.looks.append(lambda: digest(kept))
    return held.queued


def asked(held: Held, tensor: Tensor) -> Any:
    held.peer.asked.put("?")
    return held.peer.told.get(timeout=60)


def forked(held: Held, tensor: Tensor) -> None:
    """A child that looks at the tensor when it is told to, which may be long after it was dropped here."""
    go_in, go = os.pipe()
    out, tell = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(go)
            if os.read(go_in, 1):  # else the parent has lost interest
                os.write(tell, digest(tensor).encode())
        finally:
            os._exit(0)
    os.close(go_in)
    os.close(tell)
    found: list[str] = []

    def look() -> str:
        if not found:
            os.write(go, b"x")
            found.append(os.read(out, 100).decode())
        return found[0]

    def end() -> None:
        for one in (go, out):
            os.close(one)
        os.kill(child, signal.SIGKILL)  # another child may have the pipe's other end, too
        os.waitpid(child, 0)

    weakref.finalize(look, end)
    held.looks.append(look)


def threaded(held: Held, tensor: Tensor) -> None:
    go, found = threading.Event(), []

    def body(mine: Tensor) -> None:
        go.wait(60)
        found.append(digest(mine))

    thread = threading.Thread(target=body, args=(tensor,))
    thread.start()

    def look() -> Any:
        go.set()
        thread.join()
        return found

    weakref.finalize(look, go.set)
    held.looks.append(look)


def graph(held: Held, tensor: Tensor) -> None:
    weight = torch.ones((), requires_grad=True)
    loss = (tensor.float() * weight).sum()

    def look() -> Any:
        weight.grad = None
        try:
            loss.backward(retain_graph=True)
        except RuntimeError as error:  # it has been written to
            return str(error)
        return None if weight.grad is None else weight.grad.item()

    held.looks.append(look)


def saved(held: Held, tensor: Tensor) -> Any:
    file = io.BytesIO()
    torch.save(tensor[:1], file)
    return len(file.getvalue())


def written(held: Held, tensor: Tensor) -> None:
    tensor.zero_()


def told_of(held: Held, tensor: Tensor) -> Any:
    storage = tensor.untyped_storage()
    return (
        tensor.is_shared(), storage.is_shared(), storage.nbytes(), storage.resizable(), tensor.storage_offset(),
        tensor.stride(), tensor.shape, tensor.dtype, tensor._version, tensor.requires_grad, tensor.is_contiguous(),
    )  # fmt: skip


def aliases(held: Held, tensor: Tensor) -> Any:
    whole, view = held.batch[-1]
    held.looks.append(lambda: digest(view))
    return whole.untyped_storage().data_ptr() == view.untyped_storage().data_ptr(), view.storage_offset()


def replaced(held: Held, tensor: Tensor) -> None:
    # Not of the batch's own tensor: what torch does with memory that is not shared yet is not safe in itself.
    mine, kept = tensor[:], tensor[:]
    mine.data = torch.zeros(1, dtype=tensor.dtype)
    held.looks.append(lambda: digest(kept))


def moved(held: Held, tensor: Tensor) -> Any:
    """Shared under the other strategy, which moves the storage."""
    before = mp.get_sharing_strategy()
    mp.set_sharing_strategy("file_system")
    try:
        kept = pickle.loads(bytes(ForkingPickler.dumps(tensor)))
    finally:
        mp.set_sharing_strategy(before)
    held.looks.append(lambda: digest(kept))
    return tensor.is_shared()


def looked(held: Held, tensor: Tensor) -> Any:
    return [look() for look in held.looks]


def dropped(held: Held, tensor: Tensor) -> None:
    held.looks = held.looks[1::2]
    gc.collect(0)


USES: dict[str, Use] = {
    "tensor": keep(lambda t: t),
    "slice": keep(lambda t: t[1:]),
    "array": keep(lambda t: t.numpy()),
    "part of an array": keep(lambda t: t.numpy()[:2]),
    "memoryview": keep(lambda t: t.numpy().data),
    "dlpack": keep(torch.utils.dlpack.from_dlpack),
    "storage": keep(lambda t: t.untyped_storage()),
    "typed storage": keep(lambda t: t.storage()),
    "detached": keep(lambda t: t.detach().flatten()[1:]),
    "as bytes": keep(lambda t: t.view(torch.uint8)),
    "parameter": keep(lambda t: torch.nn.Parameter(t, requires_grad=False)),
    "shared": keep(lambda t: t.share_memory_()),
    "deep copy": keep(copy.deepcopy),
    "pickled": keep(lambda t: pickle.loads(pickle.dumps(t))),
    "array, then shared": array_then_shared,
    "sent": sent,
    "sent with a view": sent_with_a_view,
    "queued": queued,
    "unqueued": unqueued,
    "asked": asked,
    "forked": forked,
    "threaded": threaded,
    "graph": graph,
    "saved": saved,
    "written": written,
    "told of": told_of,
    "aliases": aliases,
    "replaced": replaced,
    "looked": looked,
    "dropped": dropped,
}
STEP = st.tuples(st.sampled_from(sorted(USES)), st.integers(0, 6))
SEQUENCE = st.lists(st.lists(STEP, max_size=4), min_size=6, max_size=14)
"""For each batch, what is done with it: a use, and the part of the batch that it is done with."""


def run(steps: list[list[tuple[str, int]]], batches: Iterator[Any], peer: Peer) -> list[Any]:
    """What a user who does this sees."""
    held = Held(peer)
    for some in steps:
        held.batch = next(batches)
        for name, part in some:
            tensor = held.batch[part] if part < 6 else held.batch[part][1]
            held.seen.append((name, USES[name](held, tensor)))
        tensor = None
    held.batch = []
    gc.collect(0)
    for _ in range(3):  # time for memory to be used again
        next(batches)
    held.seen += [looked(held, torch.empty(0)), asked(held, torch.empty(0))]
    while held.queued:
        unqueued(held, torch.empty(0))
    return held.seen


def endless(**arguments: Any) -> Iterator[Any]:
    loader = DataLoader(Numbers(), BATCH, num_workers=1, persistent_workers=True, **arguments)
    while True:
        yield from loader


def started_peer() -> Peer:
    asked, told = mp.Queue(), mp.Queue()
    process = mp.Process(target=serve, args=(asked, told), daemon=True)
    process.start()
    return Peer(asked, told, mp.Queue(), process)


@pytest.fixture(scope="module", autouse=True)
def rule() -> Iterator[None]:
    default_collate_fn_map[Pair] = collate_pair
    yield
    del default_collate_fn_map[Pair]


@pytest.fixture(scope="module")
def peers() -> Iterator[tuple[Peer, Peer]]:
    both = started_peer(), started_peer()
    yield both
    for peer in both:
        peer.asked.put(None)
        peer.process.join(60)


@pytest.mark.timeout(7200)
def test_held_batches_are_as_torch_s(peers: tuple[Peer, Peer]) -> None:
    memory = BatchMemory(1)
    theirs, ours = endless(), endless(collate_fn=Collate(default_collate, memory))
    found: list[int] = []

    @settings(
        max_examples=min(EXAMPLES, AT_ONCE),
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
        phases=[Phase.generate],  # processes and queues are in the game: a sequence is not the same when run again
    )
    @given(SEQUENCE)
    def check(steps: list[list[tuple[str, int]]]) -> None:
        for peer in peers:
            peer.asked.put("forget")
        mine, torchs = run(steps, ours, peers[1]), run(steps, theirs, peers[0])
        assert mine == torchs, [pair for pair in zip(mine, torchs, strict=False) if pair[0] != pair[1]]

    for _ in range(0, EXAMPLES, AT_ONCE):  # it keeps in mind all that it has drawn
        check()
    for _ in range(50):
        found.append(next(ours)[0].data_ptr())
    assert len(set(found)) < 10  # memory was used again


@pytest.mark.parametrize(
    ("method", "strategy", "workers"),
    [
        ("fork", "file_descriptor", 2),
        ("fork", "file_system", 1),
        ("spawn", "file_descriptor", 1),
        ("forkserver", "file_system", 1),
    ],
)
def test_in_every_start_method_and_sharing_strategy(
    method: str, strategy: str, workers: int, peers: tuple[Peer, Peer]
) -> None:
    before = mp.get_sharing_strategy()
    mp.set_sharing_strategy(strategy)
    try:
        arguments: dict[str, Any] = {"multiprocessing_context": method, "num_workers": workers}
        memory = BatchMemory(workers)
        steps = [[(name, part)] for part, name in enumerate([*sorted(USES), "looked"] * 2)]
        steps = [[(name, part % 6)] for [(name, part)] in steps]
        found = []
        for collate_fn in (None, Collate(default_collate, memory)):
            peer = started_peer()
            # Where the strategies of worker and user differ, torch moves what an array still looks at: it crashes.
            init = partial(with_rule, strategy)
            loader = DataLoader(Subset(Numbers()), BATCH, collate_fn=collate_fn, worker_init_fn=init, **arguments)
            found.append(run(steps, iter(loader), peer))
            peer.asked.put(None)
            peer.process.join(60)
        assert found[0] == found[1]
    finally:
        mp.set_sharing_strategy(before)


class Subset(Dataset[Any]):
    """So few that a loader over it ends."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return BATCH * 80

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index]


def with_rule(strategy: str, worker: int) -> None:
    """Spawned workers have not run the fixture."""
    mp.set_sharing_strategy(strategy)
    default_collate_fn_map[Pair] = collate_pair


@pytest.mark.parametrize("copies", [1, 3])
def test_moved_by_the_other_strategy(peers: tuple[Peer, Peer], copies: int) -> None:
    theirs, ours = endless(), endless(collate_fn=Collate(default_collate, BatchMemory(1)))
    found = []
    for batches, peer in zip((theirs, ours), peers, strict=True):
        held = Held(peer)
        for _ in range(8):
            batch = next(batches)
            held.seen += [moved(held, batch[part]) for part in range(copies)]
        del batch
        for _ in range(20):
            next(batches)
        found.append([*held.seen, looked(held, torch.empty(0))])
    assert found[0] == found[1]
