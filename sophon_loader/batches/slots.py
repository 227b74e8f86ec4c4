"""Memory for the tensors of a batch, inside the batch, so that they need no copy.

Only torch's own `default_collate` uses it, and only for a sample's last value: no code outside this package has seen
that value before it is part of the batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils.data import get_worker_info

from sophon_loader.batches.batches import BatchMemory, Piece


class Slots:
    """The memory of the batch that this process makes; shared by the dataset, which fills it, and `Collate`.

    Args:
        memory: memory of the workers' batches; the main process allocates new memory for each batch.

    Attributes:
        position: position in its batch of the sample that is being made.

    Example:
        >>> slots.begin(samples=64)
        >>> slots.position = 5
        >>> slots.lend((3, 224, 224), torch.float32)  # the sixth image of the batch, not set to anything
    """

    def __init__(self, memory: BatchMemory) -> None:
        self._memory = memory
        self.position = 0
        self._batch: Tensor | None = None
        self._piece: Piece | None = None
        self._samples, self._refused = 0, True

    def begin(self, samples: int) -> None:
        """Begin a batch. The memory of an abandoned one is returned."""
        if self._piece is not None:
            self._piece.use = None
        self._batch = self._piece = None
        self._samples, self._refused = samples, False

    def lend(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor | None:
        """Lend memory for the sample's tensor, contiguous; None if the tensor does not fit the batch.

        Args:
            shape: of the tensor.
            dtype: of the tensor.
        """
        if self._batch is None:
            self._make(shape, dtype)
        batch = self._batch
        if batch is None or batch.shape[1:] != tuple(shape) or batch.dtype != dtype:
            return None
        return batch[self.position]

    def _make(self, shape: Sequence[int], dtype: torch.dtype) -> None:
        if self._refused:
            return
        self._refused = True
        if torch.get_default_device().type != "cpu":  # where the ops' own tensors would be
            return
        whole = self._samples, *shape
        if get_worker_info() is None:
            self._batch = torch.empty(whole, dtype=dtype, device="cpu")
            return
        self._piece = self._memory.lend(math.prod(whole) * dtype.itemsize)
        if self._piece is not None:
            self._batch = over(self._piece, whole, dtype)

    def taken(self, tensors: Sequence[Tensor]) -> tuple[Tensor, Piece | None] | None:
        """Return the batch of these tensors, and the piece that it is in; None if they have to be stacked.

        Args:
            tensors: of one type, dense, in the order of the batch.
        """
        batch, piece = self._batch, self._piece
        if batch is None or len(tensors) != len(batch):
            return None
        if any(one.shape != batch.shape[1:] or one.dtype != batch.dtype for one in tensors):
            return None
        begin, nbytes = batch.data_ptr(), batch[0].nbytes
        elsewhere = [at for at, one in enumerate(tensors) if one.data_ptr() != begin + at * nbytes]
        if 2 * len(elsewhere) > len(tensors):
            return None
        for at in elsewhere:
            batch[at].copy_(tensors[at])
        self._batch = self._piece = None
        self._refused = True
        return batch, piece


def over(piece: Piece, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Make a tensor over a piece, with undefined values.

    Args:
        piece: the memory; must have the tensor's size.
        shape, dtype: of the tensor.
    """
    made: Tensor = torch.empty(0, dtype=dtype, device="cpu").set_(piece.storage, 0, tuple(shape))  # type: ignore[call-overload]
    return made
