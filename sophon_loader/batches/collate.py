"""Makes a batch of samples in a worker, by torch's rules, directly in the memory that `batches.py` lends."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from io import BytesIO
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch import Tensor
from torch._utils import ExceptionWrapper
from torch.utils.data import default_collate, get_worker_info
from torch.utils.data._utils.collate import (
    collate,
    collate_float_fn,
    collate_int_fn,
    collate_numpy_scalar_fn,
    collate_tensor_fn,
    default_collate_fn_map,
)
from torchvision.tv_tensors import TVTensor

from sophon_loader.batches.batches import BatchMemory, Piece
from sophon_loader.batches.room import Room
from sophon_loader.batches.slots import Slots, over

CollateFn = Callable[[list[Any]], Any]


class _Pickler(ForkingPickler):
    """Pickles for another process as torch's queues do, except for storages in pieces."""

    def __init__(self, file: BytesIO, memory: BatchMemory) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._memory = memory

    def reducer_override(self, value: Any) -> Any:
        return self._memory.reduced(value) if type(value) is torch.UntypedStorage else NotImplemented


class _Batch:
    """A batch that `_Pickler` pickles. It unpickles as its content."""

    def __init__(self, held: Any, memory: BatchMemory) -> None:
        self._held = held
        self._memory = memory

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        file = BytesIO()
        try:
            _Pickler(file, self._memory).dump(self._held)
        except Exception as error:
            self._memory.unsent()
            # Raised here, in the thread of torch's queue, it would be printed, and the batch waited for without end.
            found = self._memory.room.no_memory(error)
            return _failed, (type(error if found is None else found), str(found or error), traceback.format_exc())
        return pickle.loads, (file.getvalue(),)


def _failed(kind: type[Exception], text: str, trace: str) -> ExceptionWrapper:
    """In the main process: return the error that torch raises in place of a batch."""
    wrapper = ExceptionWrapper((kind, kind(text), None), "in a DataLoader worker, pickling a batch")  # type: ignore[no-untyped-call]
    wrapper.exc_msg = f"{text}\n\n{trace}"
    return wrapper


class Collate:
    """A `collate_fn` whose batches leave a worker in a loader's `BatchMemory`.

    Args:
        collate_fn: makes the batch. torch's `default_collate` makes it directly in that memory. The results of other
            functions take torch's way, since only their authors know which objects refer to them.
        memory: of the loader; None to let all batches take torch's way.
        arrange: called on the samples first; None for nothing.
        slots: memory that samples for `default_collate` may already be in; None without.

    Example:
        >>> loader = DataLoader(dataset, num_workers=2, collate_fn=Collate(default_collate, BatchMemory(workers=2)))
    """

    def __init__(
        self,
        collate_fn: CollateFn,
        memory: BatchMemory | None,
        arrange: CollateFn | None = None,
        slots: Slots | None = None,
    ) -> None:
        self._collate_fn = collate_fn
        self._memory = memory
        self._arrange = arrange
        self._slots = slots

    def __call__(self, samples: list[Any]) -> Any:
        if self._arrange is not None:
            samples = self._arrange(samples)
        if get_worker_info() is None:
            if self._slots is None or self._collate_fn is not default_collate:
                return self._collate_fn(samples)
            return collate(samples, collate_fn_map=_Lent(None, self._slots).rules())
        memory = self._memory
        room = Room() if memory is None else memory.room
        try:
            if memory is None or self._collate_fn is not default_collate:
                batch = held = self._collate_fn(samples)
            else:
                held = self._in_pieces(samples, memory)
                batch = _Batch(held, memory)
        except (OSError, RuntimeError) as error:
            if (found := room.no_memory(error)) is None:
                raise
            raise found from error
        room.check_files(held)
        return batch

    def _in_pieces(self, samples: list[Any], memory: BatchMemory) -> Any:
        lent = _Lent(memory, self._slots)
        try:
            return collate(samples, collate_fn_map=lent.rules())
        except Exception:
            lent.give_back()
            raise


class _Lent:
    """The memory of one batch while it is made: the slots of its samples, and pieces.

    Args:
        memory: lends pieces; None to lend none.
        slots: of this process; None without.
    """

    def __init__(self, memory: BatchMemory | None, slots: Slots | None) -> None:
        self._memory = memory
        self._slots = slots
        self._pieces: list[Piece] = []

    def give_back(self) -> None:
        """Return all pieces, because the batch failed and is not sent."""
        for piece in self._pieces:
            piece.use = None

    def rules(self) -> dict[Any, Any]:
        """Return torch's collate rules by type. Rules whose tensors are new and unshared make them in pieces."""

        ours = {collate_tensor_fn: self._stack}
        for rule in (collate_int_fn, collate_float_fn, collate_numpy_scalar_fn):
            ours[rule] = partial(self._numbers, rule)
        return {kind: ours.get(rule, rule) for kind, rule in default_collate_fn_map.items()}

    def _stack(self, tensors: Sequence[Tensor], *, collate_fn_map: Any) -> Any:
        first = tensors[0]
        if _stack_to_plain(tensors):
            if self._slots is not None and (found := self._slots.taken(tensors)) is not None:
                if found[1] is not None:
                    self._pieces.append(found[1])
                return found[0]
            nbytes = len(tensors) * first.numel() * first.element_size()
            batch = self._tensor(first.dtype, (len(tensors), *first.shape), nbytes)
            if batch is not None:
                return torch.stack([one.as_subclass(Tensor) for one in tensors], out=batch)
        return collate_tensor_fn(tensors, collate_fn_map=collate_fn_map)

    def _numbers(self, rule: Any, values: Sequence[Any], *, collate_fn_map: Any) -> Any:
        made = rule(values, collate_fn_map=collate_fn_map)
        batch = self._tensor(made.dtype, made.shape, made.nbytes) if _is_dense(made) else None
        return made if batch is None else batch.copy_(made)

    def _tensor(self, dtype: torch.dtype, shape: Sequence[int], nbytes: int) -> Tensor | None:
        """Make a tensor over a piece, with undefined values; None for torch's way."""
        piece = None if self._memory is None else self._memory.lend(nbytes)
        if piece is None:
            return None
        self._pieces.append(piece)
        return over(piece, shape, dtype)


def _stack_to_plain(tensors: Sequence[Tensor]) -> bool:
    """True if all are dense tensors of one type, and torch stacks them to a plain tensor."""
    first = tensors[0]
    return all(type(one) is type(first) for one in tensors) and _is_dense(first) and _stacks_to_plain(first)


def _is_dense(tensor: Tensor) -> bool:
    """True if a tensor is a strided array in this host's memory."""
    special = tensor.is_nested or tensor.is_quantized
    return tensor.device.type == "cpu" and tensor.layout == torch.strided and not special


def _stacks_to_plain(tensor: Tensor) -> bool:
    """True if `torch.stack` makes a plain tensor of such tensors. It does so for torchvision's images, by default."""
    if type(tensor) is Tensor:
        return True
    return isinstance(tensor, TVTensor) and type(torch.stack([tensor])) is Tensor
