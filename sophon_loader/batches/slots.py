"""Where the tensors of a batch are made: right in the batch, so that nothing is left to be copied.

Only torch's own `default_collate` makes a batch of these, and only a sample's last value lies there: nobody but this
package has seen it before it is part of the batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils.data import get_worker_info

from sophon_loader.batches.batches import BatchMemory, Piece


class Slots:
    """The memory of the batch that this process makes; one for the dataset, which fills it, and for `Collate`.

    Args:
        memory: that workers' batches lie in; the main process takes new memory for each.

    Attributes:
        position: of the sample that is being made, in its batch.

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
        """A batch begins; the memory of one that was given up comes back."""
        if self._piece is not None:
            self._piece.use = None
        self._batch = self._piece = None
        self._samples, self._refused = samples, False

    def lend(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor | None:
        """Memory for the sample's tensor, contiguous; None if it has to lie elsewhere."""
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
        """The batch of the samples' tensors, and the piece that it lies in; None if they are to be stacked.

        Args:
            tensors: of one kind, dense, in the order of the batch.
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
    """A tensor over a piece, not set to anything."""
    made: Tensor = torch.empty(0, dtype=dtype, device="cpu").set_(piece.storage, 0, tuple(shape))  # type: ignore[call-overload]
    return made
