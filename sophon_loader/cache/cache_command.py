"""`sophon-cache`: lists what a cache on this host holds, verifies it, or removes it."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
from collections.abc import Iterator, Sequence
from glob import escape, glob

from sophon_loader import __version__
from sophon_loader.cache.segment import SEGMENTS, Segment, SegmentEntry, own_folder
from sophon_loader.cache.withdrawals import NAME as WITHDRAWALS
from sophon_loader.cache.withdrawals import Withdrawals
from sophon_loader.figures import counted, size
from sophon_loader.host.private import open_private_folder
from sophon_loader.host.unread import quiet_when_unread


@quiet_when_unread
def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of `sophon-cache`; returns the exit status."""
    parser = argparse.ArgumentParser("sophon-cache", description="A cache of files on this host.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, what in (
        ("ls", "say how many files it holds, and the space that they take"),
        ("verify", "read all files, and say how many are not as they were written; such are not served"),
        ("clear", "remove it; jobs that use it go on without"),
    ):
        commands.add_parser(name, help=what, description=what).add_argument("folder", help="as given to cache=")
    parsed = parser.parse_args(arguments)
    folder = own_folder(parsed.folder)
    try:
        if parsed.command == "clear":
            return _clear(parsed.folder)
        if not os.path.isdir(folder):
            print(f"sophon-cache: {parsed.folder} must hold a cache of this user's, got none", file=sys.stderr)
            return 1
        return _list(folder) if parsed.command == "ls" else _verify(folder)
    except BrokenPipeError:
        raise
    except OSError as error:
        print(f"sophon-cache: {error}", file=sys.stderr)
        return 1


def _segments(folder: str) -> Iterator[tuple[Segment, Iterator[SegmentEntry]]]:
    """Yield each segment with its entries that are still valid."""
    withdrawals = Withdrawals(folder, for_reading=True)
    withdrawn = withdrawals.count
    withdrawals.close()
    for number in range(SEGMENTS):
        with contextlib.suppress(FileNotFoundError):
            segment = Segment(folder, number, for_reading=True)
            try:
                yield segment, segment.entries(withdrawn)
            finally:
                segment.close()


def _list(folder: str) -> int:
    files = nbytes = space = 0
    for segment, entries in _segments(folder):
        sizes = [entry.version.nbytes for entry in entries]
        files, nbytes, space = files + len(sizes), nbytes + sum(sizes), space + segment.nbytes
    print(f"{counted(files, 'file')} of {size(nbytes)}, in {size(space)} of {folder}")
    return 0


def _verify(folder: str) -> int:
    files = damaged = 0
    for segment, entries in _segments(folder):
        for entry in entries:
            files += 1
            damaged += segment.data(entry) is None
    print(f"{counted(files, 'file')}, {damaged} of them damaged; those are read where they came from, and kept anew")
    return 1 if damaged else 0


def _clear(given: str) -> int:
    """Remove this user's caches of all formats, and leave any other file."""
    above, name = os.path.split(own_folder(given))
    found = glob(os.path.join(escape(above), f"sophon-cache-*-{name.rsplit('-', 1)[1]}"))
    freed = 0
    for folder in found:
        if os.path.islink(folder):
            continue
        # By descriptor: another user may exchange the folder meanwhile. One whose mode is too wide is removed, too.
        within = open_private_folder(folder, kept_from_others=0)
        try:
            for name in os.listdir(within):
                if name == WITHDRAWALS or re.fullmatch(r"[0-9].*\.(data|table)", name):
                    freed += os.stat(name, dir_fd=within, follow_symlinks=False).st_blocks * 512
                    os.remove(name, dir_fd=within)
        finally:
            os.close(within)
        os.rmdir(folder)
    print(f"{size(freed)} freed" if found else f"nothing to remove in {above}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
