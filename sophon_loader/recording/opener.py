"""A replacement for `PIL.Image.open` while a sample is made, and counts of the pictures that it opened."""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, Protocol

from PIL import Image

from sophon_loader.errors import must_leave
from sophon_loader.host.regular import read_to_end
from sophon_loader.kinds.image.deferred import Deferred
from sophon_loader.kinds.image.far_picture import Supplier
from sophon_loader.kinds.image.fused_picture import DecodeTally, check
from sophon_loader.kinds.image.header import Header
from sophon_loader.kinds.image.opened import opened_far, opened_image
from sophon_loader.kinds.image.opening import pillow_open
from sophon_loader.kinds.image.source import PictureFile, Rereads
from sophon_loader.native import fused
from sophon_loader.recording.containers import Containers
from sophon_loader.recording.look_place import look_place
from sophon_loader.recording.picture_counts import (
    DAMAGED,
    FAR,
    OURS,
    PILLOW,
    WHOLE,
    Counted,
    PictureCounts,
    WorkerCounts,
    kind_of,
)
from sophon_loader.recording.stand_in import PerThread, StandIn

MAX_FILE_NBYTES = 64 << 20
"""Maximum size of a file, in bytes. Larger ones are left to Pillow, which need not keep all of them in memory."""


class Elsewhere(Protocol):
    """Files that lie at an agent, of which only what samples read is to come here."""

    def header_of(self, path: str) -> tuple[Header, int, Supplier] | None:
        """Return a file's header, its size in bytes, and the supplier of its picture.

        Args:
            path: as the user's code gives it.

        Returns:
            None for a file that has to be opened here.
        """

    def opened_here(self, nbytes: int) -> None:
        """Note that a picture's whole file, of `nbytes`, was read here."""


class Opener:
    """Defers the pictures that one thread opens by `PIL.Image.open`; Pillow opens all other files.

    Of Pillow, only that one name is replaced, and only within `opening`. If other code has put a function there, it is
    called for pictures that are not deferred. `containers.py` has the replacements in torchvision.

    Args:
        counts: each picture is added to them when it is decoded, maybe after its sample; None to count none.
        elsewhere: where files are looked for first; None to read all of them here.

    Example:
        >>> opener = Opener()
        >>> with opener.opening() as pictures:
        ...     sample = dataset[17]
        >>> pictures.failed
        False
    """

    def __init__(self, counts: WorkerCounts | None = None, elsewhere: Elsewhere | None = None) -> None:
        self._rereads = Rereads()
        self._elsewhere = elsewhere
        self._counts = PictureCounts(workers=1).of(0) if counts is None else counts
        self._containers = Containers()

    @contextmanager
    def opening(self) -> Iterator[Pictures]:
        """Within the block, in this thread, `PIL.Image.open` defers, and containers take deferred images to tensors."""
        pictures = Pictures(self._rereads, self._counts, self._elsewhere)
        with _PICTURES.within(pictures), self._containers.standing_in():
            try:
                yield pictures
            finally:
                pictures.end()


class Pictures:
    """The pictures that were opened while one sample was made.

    Args:
        rereads: of the process; a picture that is read twice informs the next ones.
        counts, elsewhere: see `Opener`.
    """

    def __init__(self, rereads: Rereads, counts: WorkerCounts, elsewhere: Elsewhere | None = None) -> None:
        self._rereads = rereads
        self._elsewhere = elsewhere
        self._counts = counts
        self._deferred: list[_CountedTally] = []

    def opened(self, path: Any) -> Image.Image | None:
        """Return the image of a path or a file object, without its pixels; None if Pillow is to open it."""
        image = self._far(path) or self._here(path)
        if not isinstance(image, Deferred):
            return None
        source = image._node.source
        tally = source.tally = _CountedTally(self._counts)
        source.rereads = self._rereads
        self._deferred.append(tally)
        return image

    def _far(self, path: Any) -> Image.Image | None:
        """Return the image of a file that lies elsewhere, without its pixels; None if it is to be read here."""
        if self._elsewhere is None:
            return None
        is_file = type(path) is io.BufferedReader
        name = path.name if is_file else os.fspath(path) if isinstance(path, (str, os.PathLike)) else None
        found = self._elsewhere.header_of(name) if isinstance(name, str) else None
        if found is None:
            return None
        header, nbytes, supplier = found
        if is_file:
            if os.fstat(path.fileno()).st_size != nbytes:  # another file took its place
                return None
            path.seek(0)
        return opened_far(header, nbytes, supplier, name, path if is_file else None)

    def _here(self, path: Any) -> Image.Image | None:
        """Return the image of a file that is read here, without its pixels; None if Pillow is to open it."""
        found = _bytes_of(path)
        if found is None:
            return None
        data, name, file = found
        if self._elsewhere is not None and name:
            self._elsewhere.opened_here(len(data))
        return opened_image(data, name, file)

    def left_to_pillow(self, opened: Image.Image) -> None:
        """Note a picture that is not deferred."""
        self._counts.add(PILLOW, kind_of(opened))

    def left_to_pillow_again(self) -> None:
        """Note that the sample is thrown away, and made again of pictures that are not deferred."""
        for tally in self._deferred:
            tally.take_back()

    def end(self) -> None:
        """The sample is made, or has failed. Files that it has loaded without a look at their pixels are checked now;
        a damaged one that is loaded later raises there."""
        for tally in self._deferred:
            tally.end()

    @property
    def deferred(self) -> int:
        """Number of pictures that were deferred."""
        return len(self._deferred)

    @property
    def failed(self) -> bool:
        """True if the pixels of a picture could not be made, even if the user's code caught the error; behind `end`,
        of each picture that Pillow would have decoded."""
        return any(one.failed for one in self._deferred)


class _CountedTally(DecodeTally):
    """Tally of one picture; counts who has decoded it first, and the place that needed all of it first.

    Args:
        counts: see `Opener`.
    """

    def __init__(self, counts: WorkerCounts) -> None:
        super().__init__()
        self._counts = counts
        self._counted_as: Counted = ()
        self._is_wanted = self._is_seen = self._is_over = False
        self._unseen: PictureFile | None = None
        """The file, from where Pillow would have decoded it to the first look or the end of the sample."""

    def load(self, source: PictureFile) -> None:
        """See `DecodeTally.load`."""
        if self._is_over:
            check(source)
        elif not self._is_seen:
            self._unseen = source

    def end(self) -> None:
        """See `Pictures.end`."""
        source, self._unseen, self._is_over = self._unseen, None, True
        if source is None:
            return
        try:
            check(source)
        except Exception as error:
            if must_leave(error):
                raise
            self.failed = True

    def note(self, *, ours: bool, opened: Image.Image | None = None) -> None:
        """See `DecodeTally.note`."""
        super().note(ours=ours)
        if not self._counted_as:
            self._counted_as = (OURS,) if ours else (PILLOW, "" if opened is None else kind_of(opened))
            self._counts.add(*self._counted_as)

    def made_far(self) -> None:
        """See `DecodeTally.made_far`."""
        if not self._counted_as:
            self._counted_as = (FAR,)
            self._counts.add(FAR)

    def take_back(self) -> None:
        """Note that Pillow decodes the picture once more."""
        if self._counted_as:
            self._counts.add(*self._counted_as, by=-1)
            self._counts.add(PILLOW, DAMAGED)

    def look(self, *, whole: bool) -> None:
        """See `DecodeTally.look`."""
        self._is_seen, self._unseen = True, None
        if whole and not self._is_wanted:
            self._is_wanted = True
            self._counts.add(WHOLE, *(look_place() or ()))


def _opening(before: Any) -> Any:
    """Return a replacement for `PIL.Image.open`, given the function there."""

    @wraps(before)
    def open(fp: Any, *rest: Any, **more: Any) -> Any:
        pictures = _PICTURES.now
        usual = (*rest, *more.values()) in ((), ("r",), ("r", None), (None,))
        if pictures is None or not usual:
            return before(fp, *rest, **more)
        try:
            image = pictures.opened(fp)
        except Exception as error:
            if must_leave(error):
                raise
            image = None  # Pillow will say what is wrong with it
        if image is None:
            image = before(fp, *rest, **more)
            pictures.left_to_pillow(image)
        return image

    open.real = pillow_open()  # type: ignore[attr-defined]  # for this package's own code
    return open


_PICTURES: PerThread[Pictures] = PerThread(StandIn(Image, "open", _opening))


def can_defer() -> bool:
    """Return True if deferring gains time in this process: our C decodes and finishes pictures as Pillow does.

    Called before `PIL.Image.open` is replaced, since it compares our C with Pillow.
    """
    from sophon_loader.kinds.image.selftest import trusted  # which tries deferred images

    return fused.FINISH in fused.checked() and trusted()


def _bytes_of(path: Any) -> tuple[bytes, str, Any] | None:
    """Return a file's bytes, its name and the file object that was given, as `Image.open` takes it.

    Returns:
        None if it is not a path, a file of the file system that is open for reading, or bytes in memory.
    """
    if type(path) is io.BytesIO:
        if path.getbuffer().nbytes > MAX_FILE_NBYTES:
            return None
        return path.getvalue(), "", path
    if type(path) is io.BufferedReader:
        if not _is_regular(path.fileno()):
            return None
        path.seek(0)
        data = path.read()
        path.seek(0)
        return data, path.name if isinstance(path.name, str) else "", path
    if not isinstance(path, (str, os.PathLike)):
        return None
    name = os.fspath(path)
    if not isinstance(name, str):
        return None
    descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe must not hang here
    try:
        if not _is_regular(descriptor):
            return None
        return read_to_end(descriptor, os.fstat(descriptor).st_size), name, None
    finally:
        os.close(descriptor)


def _is_regular(descriptor: int) -> bool:
    status = os.fstat(descriptor)
    return stat.S_ISREG(status.st_mode) and status.st_size <= MAX_FILE_NBYTES
