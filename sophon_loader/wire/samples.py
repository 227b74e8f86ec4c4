"""How a listing is asked for samples of several files, `000017.jpg` and `000017.cls`, instead of classes.

The question is an AskListing whose prefix begins as no path can: it names a member and a folder. The answer is a
Listing of all folders with files, each with its samples one behind the other:

    picture: the file's name in the folder; "" for a group of files without one
    members: the other files' extensions in small letters, joined by "/"
    contents: of the member that was asked for if the sample has it, or of all for `EVERY`; none without a picture;
        bytes as UTF-8 with surrogate escapes

where a group without a picture has the name of its first file in place of the extensions, or stands there once for
each file whose suffix is that of a picture, with that file's name.
"""

from __future__ import annotations

from typing import NamedTuple

EVERY = "*"
"""In place of a member: all but the picture."""
_MARK = "\0samples\0"
_NAMED_MARK = "\0samples with\0"
"""Begins a question that also names the picture, which agents of older releases refuse instead of overlooking it."""


class SamplesAsked(NamedTuple):
    """Which samples are asked for, and which of their members' contents.

    Args:
        folder: below which they lie; "" for the whole export.
        member: its extension in small letters, or `EVERY`.
        image: the picture's extension in small letters; "" for the first of the usual ones.
    """

    folder: str
    member: str
    image: str = ""

    @property
    def prefix(self) -> str:
        """Of the AskListing."""
        begin = f"{_NAMED_MARK}{self.image}\0" if self.image else _MARK
        return f"{begin}{self.member}\0{self.folder}"

    def is_unknown(self, text: str) -> bool:
        """Whether an agent has taken the question for a path, as those do that know classes alone.

        Args:
            text: of its refusal.
        """
        return repr(_NAMED_MARK if self.image else _MARK)[1:-1] in text


def samples_asked(prefix: str) -> SamplesAsked | None:
    """What the prefix of an AskListing asks for; None for ImageFolder's tree."""
    image = ""
    if prefix.startswith(_NAMED_MARK):
        image, _, rest = prefix[len(_NAMED_MARK) :].partition("\0")
    elif prefix.startswith(_MARK):
        rest = prefix[len(_MARK) :]
    else:
        return None
    member, _, folder = rest.partition("\0")
    return SamplesAsked(folder, member, image)
