"""Sentences on the pictures that samples have opened: how they were decoded, and where all of one was needed."""

from __future__ import annotations

import linecache
from collections import Counter, defaultdict
from collections.abc import Mapping

from sophon_loader.figures import counted, percent
from sophon_loader.recording.picture_counts import FAR, OURS, PILLOW, WHOLE, Counted

_MOST_KINDS = 4
_LINE_LENGTH = 60


def decoded_pictures(found: Mapping[Counted, int]) -> tuple[int, int]:
    """Return the number of pictures that our C has decoded, and of those left to Pillow.

    Args:
        found: see `PictureCounts.found`.
    """
    return found.get((OURS,), 0), sum(count for one, count in found.items() if one[0] == PILLOW)


def decoded_share(found: Mapping[Counted, int]) -> str:
    """Return a clause on the share of pictures that our C has decoded: "our C decoded 412 of 480 pictures"."""
    ours, pillow = decoded_pictures(found)
    return f"our C decoded {ours:,} of {counted(ours + pillow, 'picture')}"


def picture_notes(found: Mapping[Counted, int]) -> list[str]:
    """Return notes for the user: at most two sentences; none before the first picture.

    Args:
        found: see `PictureCounts.found`.
    """
    return [text for text in (_decoded_far(found), _share(found), _too_early(found)) if text]


def _decoded_far(found: Mapping[Counted, int]) -> str:
    far = found.get((FAR,), 0)
    return f"{counted(far, 'picture')} {'was' if far == 1 else 'were'} decoded at the agent" if far else ""


def _share(found: Mapping[Counted, int]) -> str:
    ours, pillow = decoded_pictures(found)
    if not ours + pillow:
        return ""
    if not pillow:
        return f"all {ours:,} pictures were decoded by our C" if ours > 1 else "1 picture was decoded by our C"
    kinds = sorted(((count, one[1]) for one, count in found.items() if one[0] == PILLOW), key=lambda kind: -kind[0])
    shown = [(count, kind) for count, kind in kinds if kind][:_MOST_KINDS]
    told = [f"{count:,} {kind}" for count, kind in shown]
    rest = pillow - sum(count for count, _ in shown)
    if rest:
        told.append(f"{rest:,} of other kinds")
    return (
        f"{ours:,} of {counted(ours + pillow, 'picture')} ({percent(ours / (ours + pillow))}) were decoded by our C, "
        f"the rest by Pillow: {', '.join(told)} (our C decodes baseline JPEG only)"
    )


def _too_early(found: Mapping[Counted, int]) -> str:
    lines: Counter[Counted] = Counter()
    libraries: dict[Counted, Counter[str]] = defaultdict(Counter)
    for one, count in found.items():
        if one[0] == WHOLE:
            at, library = one[1:4], "".join(one[4:])
            lines[at] += count
            libraries[at][library] += count
    if not lines:
        return ""
    total = lines.total()
    line, count = max(lines.items(), key=lambda one: (bool(one[0]), one[1]))
    if not line:
        return f"{_wanted(total)} in code of libraries, before any crop or resize"
    text = f"{_wanted(count)} at {line[0]}:{line[1]} in {line[2]}{_code(line[0], line[1], libraries[line])}"
    if total > count:
        text += f", and {total - count:,} elsewhere"
    return f"{text}; if a crop or resize follows, do it before that line: our C then decodes and resizes what it takes"


def _wanted(count: int) -> str:
    return f"{counted(count, 'picture')} {'was' if count == 1 else 'were'} wanted whole"


def _code(file: str, line: str, libraries: Counter[str]) -> str:
    """The line itself, where it can be read, and what it has called for the pixels."""
    code = linecache.getline(file, int(line)).strip()
    if len(code) > _LINE_LENGTH:
        code = f"{code[:_LINE_LENGTH].rstrip()}..."
    told = [f"`{code}`"] if code else []
    library = libraries.most_common(1)[0][0]
    if library:
        told.append(f"by {library}{' and others' if len(libraries) > 1 else ''}")
    return f" ({', '.join(told)})" if told else ""
