"""How a listing is asked for samples of several files, `000017.jpg` and `000017.cls`, instead of classes.

The question is an AskListing whose prefix begins as no path can: it names a member and a folder. The answer is a
Listing of all folders with files, each with its samples one behind the other:

    picture: the file's name in the folder; "" for a group of files without one
    members: the other files' extensions in small letters, joined by "/"
    contents: of the member that was asked for if the sample has it, or of all for `EVERY`; none without a picture;
        bytes as UTF-8 with surrogate escapes

where a group without a picture has the name of its first file in place of the extensions.
"""

from __future__ import annotations

from typing import NamedTuple

EVERY = "*"
"""In place of a member: all but the picture."""
_MARK = "\0samples\0"


class SamplesAsked(NamedTuple):
    """Which samples are asked for, and which of their members' contents.

    Args:
        folder: below which they lie; "" for the whole export.
        member: its extension in small letters, or `EVERY`.
    """

    folder: str
    member: str

    @property
    def prefix(self) -> str:
        """Of the AskListing."""
        return f"{_MARK}{self.member}\0{self.folder}"

    def is_unknown(self, text: str) -> bool:
        """Whether an agent has taken the question for a path, as those do that know classes alone.

        Args:
            text: of its refusal.
        """
        return repr(_MARK)[1:-1] in text


def samples_asked(prefix: str) -> SamplesAsked | None:
    """What the prefix of an AskListing asks for; None for ImageFolder's tree."""
    if not prefix.startswith(_MARK):
        return None
    member, _, folder = prefix[len(_MARK) :].partition("\0")
    return SamplesAsked(folder, member)
