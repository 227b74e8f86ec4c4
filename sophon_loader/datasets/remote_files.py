"""RemoteFiles: samples of several files each, as WebDataset lays them out, that only an agent sees."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torchvision.datasets.folder import IMG_EXTENSIONS

from sophon_loader.client.options import OffloadOptions
from sophon_loader.datasets.protocol import Transform
from sophon_loader.datasets.remote import RemoteImages
from sophon_loader.datasets.targets import targets_of
from sophon_loader.errors import (
    ConfigError,
    MalformedMessage,
    SampleDiffers,
    SampleMissing,
    SampleUnreadable,
    add_note,
    warn_user,
)
from sophon_loader.host.shared import SharedStrings
from sophon_loader.wire.fields import short
from sophon_loader.wire.samples import EVERY

Members = dict[str, bytes]
_PATIENCE = 6
"""Time limit, as a multiple of that for listing an ImageFolder: the agent reads a member of each sample, a million in
30 s from memory, and more slowly from a disk.
"""


class RemoteFiles(RemoteImages):
    """Samples of several files each, `000017.jpg` and `000017.cls`, which the agent lists and sends.

    Files with one name up to its first dot, in one folder, are a sample; what follows the dot names a member.

    Args:
        agent: `tcp://host:port/export[/folder]`, of archives, tables, sets or a folder.
        transform, target_transform: as for ImageFolder.
        target: the member that is the label: `cls` as int, `txt` as text, `json` parsed, and any whose extension ends
            in one of these, such as `meta.json`. Or a function of all members but the picture, {extension: bytes}. It
            is called once for each sample, here and now.
        image: the member that is the picture, such as `input.jpg`. By default it is the first of jpg, jpeg, png, ppm,
            bmp, pgm, tif, tiff and webp that a sample has. Where no sample has any of these, and all pictures are the
            same member, it is that one.
        options: time-outs, the key if the agent has keys, and how long to wait for one that is missing.

    Example:
        address = "tcp://fileserver:5555/shards"
        dataset = RemoteFiles(address, transform, target="cls")
        loader = OffloadingDataLoader(dataset, batch_size=256, shuffle=True, agent=address)

    Samples are ordered by folder name, then by their own name. `keys` are the paths of their pictures below the
    address, `targets` their labels. `dataset[i]` fetches one picture, and works without OffloadingDataLoader.

    Raises:
        ConfigError: the address, `target` or `image` is malformed.
        AgentUnreachable, UnknownExport, VersionMismatch: the agent does not list the files.
        SampleMissing: there is no such folder, or a sample lacks the member.
        SampleUnreadable: a member is not what its extension says, or cannot be read.
        MessageTooLong: the members of all samples are too large.
        FileNotFoundError: no samples.
    """

    def __init__(
        self,
        agent: str | Sequence[str],
        transform: Transform | None = None,
        target_transform: Transform | None = None,
        *,
        target: str | Callable[[Members], Any] = "cls",
        image: str | None = None,
        options: OffloadOptions | None = None,
    ) -> None:
        super().__init__(agent, transform, target_transform, options)
        member = EVERY if callable(target) else _checked(target)
        picture = "" if image is None else _checked_image(image)
        each, keys, labels = self._found(member, picture, target)
        if not keys and not picture and (picture := _only_picture(each)):
            each, keys, labels = self._found(member, picture, target)
        told = [text for samples in each for text in samples.left_out(picture)]
        if not keys:
            raise FileNotFoundError(" ".join([f"Found no samples with a picture in {self.address}.", *told]))
        for text in told:
            warn_user(text)
        self.shared_keys = SharedStrings(keys)
        self._label = targets_of(labels)

    def _found(
        self, member: str, picture: str, target: str | Callable[[Members], Any]
    ) -> tuple[list[_Samples], list[str], list[Any]]:
        """Return the listings of all agents, and the key and the label of each sample in them."""
        listed = self.listed(lambda connection, timeout_s: connection.samples(member, picture, _PATIENCE * timeout_s))
        each = [_Samples(one.tree(), member, one.address) for one in listed]
        keys, labels = [], []
        for key, members in each[0] if len(each) == 1 else _together(each):
            keys.append(key)
            labels.append(_label(key, members, target))
        return each, keys, labels

    @property
    def label(self) -> Callable[[int], Any]:
        """See `RemoteImages`."""
        return self._label

    @property
    def keys(self) -> list[str]:
        """Path of every sample's picture below the address; a new list at each access."""
        return [self.shared_keys[row] for row in range(len(self))]

    @property
    def targets(self) -> list[Any]:
        """The label of every sample."""
        return [self._label(row) for row in range(len(self))]


@dataclass
class _Samples:
    """(path of the picture, {member: its contents; None if the sample lacks it}), out of a listing.

    Raises:
        MalformedMessage: the listing is malformed.
    """

    tree: list[tuple[str, list[str]]]
    member: str
    address: Any
    pictures: int = 0
    """Number of pictures that are in no sample."""
    first_picture: str = ""
    are_alike: bool = True
    """True if all pictures that are in no sample are the same member."""
    groups: int = 0
    """Number of groups of files without a picture."""
    first_group: str = ""

    def __iter__(self) -> Iterator[tuple[str, dict[str, str | None]]]:
        for folder, cells in self.tree:
            above = f"{folder}/" if folder else ""
            rest = iter(cells)
            for picture in rest:
                extensions = self._next(rest)
                if not picture:
                    self._leave_out(above + extensions)
                    continue
                has = extensions.split("/") if extensions else []
                if self.member == EVERY:
                    yield above + picture, {one: self._next(rest) for one in has}
                elif self.member in has:
                    yield above + picture, {self.member: self._next(rest)}
                else:
                    yield above + picture, dict.fromkeys(has)

    def _leave_out(self, name: str) -> None:
        if name.lower().endswith(IMG_EXTENSIONS):
            self.pictures += 1
            self.first_picture = self.first_picture or name
            self.are_alike = self.are_alike and _member(name) == self.first_member
        else:
            self.groups += 1
            self.first_group = self.first_group or name

    @property
    def first_member(self) -> str:
        """Member name of the first picture that is in no sample; "" if there is none."""
        return _member(self.first_picture)

    def left_out(self, image: str) -> Iterator[str]:
        """Yield a text for each kind of file that is in no sample, with its remedy; complete once all samples are read.

        Args:
            image: member name of the picture; "" for the usual ones.
        """
        if self.pictures:
            begin = f"{self.pictures} pictures in {self.address} are in no sample, the first {self.first_picture!r}: "
            member = self.first_member
            if image:
                yield begin + f"beside them is no {image!r}, as image= says. Put one there, or correct image=."
            else:
                yield begin + (
                    f"a picture's name must be NAME.{member.rpartition('.')[2]}, with one dot, unless image= says "
                    f"otherwise. Write image={member!r} if each sample has a picture of that name, or rename them."
                )
        if self.groups:
            yield (
                f"{self.groups} groups of files in {self.address} have no picture and are no samples, the first with "
                f"{self.first_group!r}. Give each a picture, or remove them."
            )

    def _next(self, rest: Iterator[str]) -> str:
        found = next(rest, None)
        if found is None:
            raise MalformedMessage(f"a listing must have whole samples, got one that ends early from {self.address}")
        return found


def _member(path: str) -> str:
    return path.rpartition("/")[2].partition(".")[2].lower()


def _only_picture(each: Sequence[_Samples]) -> str:
    """Return the member that all pictures are, if none is in a sample; "" if they differ or `image` cannot name it.

    Args:
        each: the listings, read to their ends.
    """
    members = {samples.first_member if samples.are_alike else "" for samples in each if samples.pictures}
    found = members.pop() if len(members) == 1 else ""
    return "" if found.startswith(".") else found


def _parsed_text(content: bytes) -> str:
    return content.decode("utf-8")


def _together(each: Sequence[_Samples]) -> list[tuple[str, dict[str, str | None]]]:
    """Return the samples of several agents, in the order of an agent that has all of them.

    Raises:
        SampleDiffers: two agents have different versions of a sample.
    """
    found: dict[str, dict[str, str | None]] = {}
    for samples in each:
        for key, members in samples:
            if found.setdefault(key, members) != members:
                agents = ", ".join(str(one.address) for one in each)
                raise SampleDiffers(
                    f"a sample must be the same at all agents that have it, got unlike members beside {key!r} at "
                    f"{agents}; make the copies of the same data"
                )
    return sorted(found.items(), key=lambda item: _place(item[0]))


def _place(key: str) -> tuple[str, str, str]:
    folder, _, name = key.rpartition("/")
    return folder, name.partition(".")[0], name


_PARSERS: dict[str, tuple[Callable[[bytes], Any], str]] = {
    "cls": (int, "an integer"),
    "txt": (_parsed_text, "text in UTF-8"),
    "json": (json.loads, "JSON"),
}


def _checked(target: Any) -> str:
    if not isinstance(target, str) or target.lower().rpartition(".")[2] not in _PARSERS or "\0" in target:
        raise ConfigError(
            f"target must be a member that ends in {', '.join(_PARSERS)}, or a function of a sample's other members, "
            f"got {short(target)}; write target=lambda members: members['mine'] for another"
        )
    return target.lower()


def _checked_image(image: Any) -> str:
    if not isinstance(image, str) or not image.strip(".") or image.startswith(".") or {"\0", "/"} & {*image}:
        raise ConfigError(
            f"image must be what follows the first dot of a picture's name, got {short(image)}; write "
            "image='input.jpg' for 000017.input.jpg"
        )
    return image.lower()


def _label(key: str, members: dict[str, str | None], target: str | Callable[[Members], Any]) -> Any:
    found = {name: text.encode("utf-8", "surrogateescape") for name, text in members.items() if text is not None}
    if callable(target):
        try:
            return target(found)
        except Exception as error:
            add_note(error, f"in target() of the sample with {key!r}, which has the members {sorted(found)}")
            raise
    member = target.lower()
    if member not in found:
        raise SampleMissing(
            f"a sample must have the member {member!r}, got {sorted(members)} beside {key!r}; name another by target="
        )
    parse, what = _PARSERS[member.rpartition(".")[2]]
    try:
        return parse(found[member])
    except (ValueError, RecursionError) as error:
        raise SampleUnreadable(
            f"the member {member!r} must be {what}, got {short(found[member])} beside {key!r}: {error}"
        ) from error
