"""The headers of a dataset's files, learnt from agents and files, in memory that all processes share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sophon_loader.host.shared import SharedArray
from sophon_loader.kinds.image.header import PACKED_NBYTES, Header, header_of, pack, unpack
from sophon_loader.wire.messages import NO_FILE

_UNKNOWN, _NONE = 0, -1
"""Stand in place of a file's size: its header is not known yet; it has no header that programs can use."""
_ROW = np.dtype([("nbytes", np.int64), ("packed", np.uint8, PACKED_NBYTES), ("", np.uint8, -PACKED_NBYTES % 8)])


class SharedHeaders:
    """The header of each sample's file, as `PIL.Image.open` reads it, and the file's size.

    A sample takes 24 bytes, and no memory before its header is known.

    Several processes may learn of a file at once. A header that is read while it changes leads to a program that the
    agent refuses.

    Args:
        samples: of the dataset.

    Example:
        >>> headers = SharedHeaders(len(dataset))
        >>> headers.learn(7, file_nbytes=109648, packed=pack(header))
        >>> headers.of(7)
        (109648, Header(format='JPEG', mode='RGB', width=500, height=375, ...))
    """

    def __init__(self, samples: int) -> None:
        self._rows = SharedArray.zeros((samples, _ROW.itemsize // 8), np.int64)

    @property
    def _known(self) -> NDArray[np.void]:
        return self._rows.array.view(_ROW)[:, 0]

    def unknown(self, samples: Sequence[int]) -> list[int]:
        """Samples among these whose headers are not known yet."""
        return [
            sample for sample, nbytes in zip(samples, self._known["nbytes"][samples], strict=True) if nbytes == _UNKNOWN
        ]

    def of(self, sample: int) -> tuple[int, Header] | None:
        """The size of a sample's file in bytes, and its header; None while that is not known, or if there is none."""
        row = self._known[sample]
        nbytes = int(row["nbytes"])
        if nbytes in (_UNKNOWN, _NONE):
            return None
        try:
            return nbytes, unpack(row["packed"].tobytes())
        except ValueError:  # half written
            return None

    def learn(self, sample: int, file_nbytes: int, packed: bytes) -> None:
        """Keep a header.

        Args:
            sample: its number.
            file_nbytes: size of its file.
            packed: the header; b"" for a file without one.
        """
        if len(packed) != PACKED_NBYTES or file_nbytes <= 0:
            self.leave_out(sample)
            return
        known = self._known
        known["packed"][sample] = np.frombuffer(packed, np.uint8)
        known["nbytes"][sample] = file_nbytes

    def learn_all(self, samples: Sequence[int], nbytes: Sequence[int], packed: Sequence[bytes]) -> None:
        """Keep several, as an agent sends them; see `learn`. Nothing is kept of a file that this agent lacks, since
        another one may have it."""
        for sample, size, header in zip(samples, nbytes, packed, strict=True):
            if size != NO_FILE:
                self.learn(sample, size, header)

    def learn_from(self, sample: int, data: bytes) -> None:
        """Keep the header of a file that is here, if nothing is known of it."""
        if self._known["nbytes"][sample] == _UNKNOWN:
            header = header_of(data)
            self.learn(sample, len(data), b"" if header is None else pack(header))

    def leave_out(self, sample: int) -> None:
        """Ask for no program of this sample's file again: it has none, or is another one than it was."""
        self._known["nbytes"][sample] = _NONE
