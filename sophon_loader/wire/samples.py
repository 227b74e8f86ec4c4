"""Questions and answers for a listing of samples of several files, `000017.jpg` and `000017.cls`, instead of classes.

The question is an AskListing whose prefix begins as no path can, and names a member and a folder. The answer is a
Listing of all folders with files. Each folder lists its samples as:

    picture: its file name in the folder; "" for a group of files without a picture
    members: the other files' extensions in small letters, joined by "/"
    contents: of the requested member if the sample has it, or of all for `EVERY`; none without a picture. Bytes as
        UTF-8 with surrogate escapes.

A group without a picture has its first file's name instead of extensions. If it has files with a picture's suffix, it
is listed once for each of them, with that file's name.
"""

from __future__ import annotations

from typing import NamedTuple

EVERY = "*"
"""Member that means all files but the picture."""
_MARK = "\0samples\0"
_NAMED_MARK = "\0samples with\0"
"""Beginning of a question that also names the picture. Agents of older releases refuse it instead of ignoring the
name."""


class SamplesAsked(NamedTuple):
    """The requested samples, and the members whose contents are requested.

    Args:
        folder: the folder that holds them; "" for the whole export.
        member: its extension in small letters, or `EVERY`.
        image: the picture's extension in small letters; "" for the first of the usual ones.
    """

    folder: str
    member: str
    image: str = ""

    @property
    def prefix(self) -> str:
        """Prefix of the AskListing."""
        begin = f"{_NAMED_MARK}{self.image}\0" if self.image else _MARK
        return f"{begin}{self.member}\0{self.folder}"

    def is_unknown(self, text: str) -> bool:
        """Return True if an agent took the question for a path, as agents do that only know classes.

        Args:
            text: message of the agent's refusal.
        """
        return repr(_NAMED_MARK if self.image else _MARK)[1:-1] in text


def samples_asked(prefix: str) -> SamplesAsked | None:
    """Return the samples that an AskListing's prefix requests; None for ImageFolder's tree."""
    image = ""
    if prefix.startswith(_NAMED_MARK):
        image, _, rest = prefix[len(_NAMED_MARK) :].partition("\0")
    elif prefix.startswith(_MARK):
        rest = prefix[len(_MARK) :]
    else:
        return None
    member, _, folder = rest.partition("\0")
    return SamplesAsked(folder, member, image)
