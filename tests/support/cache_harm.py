"""What may become of a cache's folder, and of the times of the files that it has copies of, while loaders run."""

from __future__ import annotations

import os
import random
import shutil
import time
from contextlib import suppress
from pathlib import Path

from sophon_loader.cache.cache import own_folder

CACHE_HARM = ("flip", "truncate", "remove", "remove files", "read-only", "block", "swap")
"""Of a cache."""
CLOCK_JUMP = "clock jump"
"""Of the host that has the files: their times lie a year ahead or back."""
_YEAR_S = 365 * 86_400


def harm_cache(cache: Path, what: str, amount: int, draw: random.Random) -> None:
    """Do something to a cache that loaders use.

    Args:
        cache: the folder that was given to them.
        what: one of CACHE_HARM.
        amount: how many of its files are concerned, from 1.
        draw: decides which, and where in them.
    """
    place = Path(own_folder(str(cache)))
    if what == "remove":
        shutil.rmtree(place, ignore_errors=True)  # a worker may open a segment meanwhile
        return
    for path in draw.sample(paths := sorted(place.glob("[0-9].*")), min(amount, len(paths))):
        # blocked by a folder before, or a worker has made it again meanwhile
        with suppress(FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError):
            _harm(path, what, draw)


def _harm(path: Path, what: str, draw: random.Random) -> None:
    if what == "flip":
        with path.open("r+b") as file:
            data = bytearray(file.read(1 << 20))
            for at in draw.sample(range(len(data)), len(data) // 500):
                data[at] ^= 1 << draw.randrange(8)
            file.seek(0)
            file.write(data)
    elif what == "truncate":
        os.truncate(path, draw.choice((0, 100, 4096, 5000, 30_000)))
    elif what == "read-only":
        path.chmod(0o400)
    elif what == "swap":
        other = path.with_name(f"{draw.randrange(8)}{path.suffix}")
        if other.is_file():
            os.replace(path, other)
    else:
        path.unlink()
        if what == "block":
            path.mkdir()


def jump(root: Path, amount: int, draw: random.Random) -> None:
    """Give some files times of modification that lie a year ahead or back.

    Args:
        root: the folder that they lie in.
        amount: how many, in tens.
        draw: decides which, and where to.
    """
    files = sorted(path for path in root.rglob("*.*") if path.is_file())
    for path in draw.sample(files, min(10 * amount, len(files))):
        at_s = time.time() + draw.choice((-_YEAR_S, _YEAR_S))
        with suppress(FileNotFoundError):  # it is being replaced
            os.utime(path, (at_s, at_s))
