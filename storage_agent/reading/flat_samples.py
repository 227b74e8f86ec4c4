"""Finds samples of several files in any store's folders, as WebDataset lays them out (`000017.jpg`, `000017.cls`)."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from sophon_loader.errors import MessageTooLong, SampleUnreadable
from sophon_loader.wire.limits import MAX_LISTING_NBYTES
from sophon_loader.wire.samples import EVERY, SamplesAsked
from storage_agent.stores.store import IMAGE_SUFFIXES, Store

_AHEAD = 256
"""Number of samples whose labels are announced to the store before they are read."""
_PICTURES = tuple(suffix[1:] for suffix in IMAGE_SUFFIXES)


class Samples:
    """The samples below a folder, folder by folder in the order of names; see `wire/samples.py` for their form.

    Args:
        store: store of the export.
        asked: the requested samples.

    Example:
        >>> samples = Samples(store, SamplesAsked("", "cls"))
        >>> for _ in samples.find():
        ...     pass
        >>> samples.folders
        ['shard-000000']
        >>> [cell for cells in samples.of(0) for cell in cells]
        ['000017.jpg', 'cls', '4']
    """

    def __init__(self, store: Store, asked: SamplesAsked) -> None:
        self._store = store
        self._asked = asked
        self._names: list[list[str]] = []
        self._nbytes = 0
        self.folders: list[str] = []

    def find(self) -> Iterator[None]:
        """Find all folders with files, in small steps.

        Raises:
            SampleMissing, SampleOutsideExport, SampleUnreadable: the requested folder cannot be listed.
        """
        found = []
        for parent, _, names in self._store.walk(self._asked.folder):
            if names:
                found.append((parent, names))
            yield
        found.sort()
        self.folders = [parent for parent, _ in found]
        self._names = [names for _, names in found]

    def of(self, position: int) -> Iterator[list[str]]:
        """Yield a folder's samples as cells of the listing, in small steps.

        Args:
            position: index of the folder in `folders`.

        Raises:
            SampleUnreadable: a member cannot be read, or a sample has two members of one name.
            MessageTooLong: the samples exceed a listing's limit.
        """
        above = "/".join(filter(None, [self._asked.folder.rstrip("/"), self.folders[position]]))
        names, self._names[position] = self._names[position], []
        names.sort()
        names.sort(key=_base)
        yield []
        for base, members in self._expected(f"{above}/" if above else "", _grouped(names, above)):
            cells = list(self._sample(f"{above}/" if above else "", members))
            self._nbytes += sum(map(len, cells))
            if self._nbytes > MAX_LISTING_NBYTES:
                raise MessageTooLong(
                    f"the members of all samples must have at most {MAX_LISTING_NBYTES} bytes together, got more up "
                    f"to {base!r} in {above!r}; ask for a single member, or for a folder of the export"
                )
            yield cells

    def _expected(
        self, above: str, groups: Iterator[tuple[str, dict[str, str]]]
    ) -> Iterator[tuple[str, dict[str, str]]]:
        """Yield the groups; the store learns some time before which labels will be read."""
        while some := list(itertools.islice(groups, _AHEAD)):
            self._store.expect([above + members[one] for _, members in some for one in self._labels(members)])
            yield from some

    def _picture(self, members: dict[str, str]) -> str | None:
        """Return the extension of a sample's picture; None if it has none."""
        wanted = (self._asked.image,) if self._asked.image else _PICTURES
        return next((one for one in wanted if one in members), None)

    def _labels(self, members: dict[str, str]) -> list[str]:
        """Return the extensions of the members whose contents are requested; none for a sample without a picture."""
        picture = self._picture(members)
        if picture is None:
            return []
        wanted = list(members) if self._asked.member == EVERY else [self._asked.member]
        return [one for one in wanted if one != picture and one in members]

    def _sample(self, above: str, members: dict[str, str]) -> Iterable[str]:
        picture = self._picture(members)
        if picture is None:
            names = list(members.values())
            for name in [one for one in names if one.lower().endswith(IMAGE_SUFFIXES)] or names[:1]:
                yield from ("", name)
            return
        labels = self._labels(members)
        yield members.pop(picture)
        yield "/".join(members)
        for one in labels:
            yield self._store.read(above + members[one]).decode("utf-8", "surrogateescape")


def _base(name: str) -> str:
    return name.partition(".")[0]


def _grouped(names: list[str], above: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield (name up to its first dot, file names by extension in small letters). Files without a dot, and hidden ones,
    belong to no sample.

    The groups come one by one, because all at once would take the broker 700 bytes per sample.

    Args:
        names: names of a folder's files, in the order of their bases.
        above: the folder.
    """
    for base, group in itertools.groupby(names, _base):
        members: dict[str, str] = {}
        for name in group:
            extension = name.partition(".")[2].lower()
            before = members.setdefault(extension, name) if base and extension else name
            if before != name:
                raise SampleUnreadable(
                    f"a sample must have each member once, got both {before!r} and {name!r} in {above!r}; rename one"
                )
        if members:
            yield base, members
