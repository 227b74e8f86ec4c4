"""A disk of the agent's host that holds a copy of the pictures, whose reads can be limited while the agent runs.

    with Disk(data) as disk, LinkedHosts(100).open() as bed:
        agent = start_agent(bed, disk.folder, within=disk.mounting)
        disk.follow(agent.pid, bed)
        disk.set_limit(10e6)

The disk is a file with an ext4 on a loop device, mounted in a namespace that ends with the agent. The blkio controller
(version 1) limits reads. It counts a read for the process that waits for it: one that reads files of 110 KB in turn got
8.8 to 9.9 MB/s of 10, in bursts of a tenth of a second. It sees only reads that miss the page cache, so a thread takes
the files out of that again and again.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType

from bench.bed.links import LinkedHosts
from bench.bed.names import DISK_GROUPS, disk_group, new_bed_name
from bench.bed.processes import command
from bench.bed.unavailable import TestBedUnavailable

_LIMIT = "blkio.throttle.read_bps_device"
_READ = "blkio.throttle.io_service_bytes"
EVERY_S = 0.02
"""Seconds between two rounds that take files out of the page cache: at 300 images/s of 100 pictures, one of 30 is read
again sooner. A round takes 0.3 ms for 300 files."""
ROOM = 1.2
"""Size of the file system by that of the files."""
ROOM_NBYTES = 32 << 20


def why_no_disk() -> str | None:
    """Return the reason why the agent's disk cannot be slowed here; None if it can."""
    if not (DISK_GROUPS / _LIMIT).exists() and not any(DISK_GROUPS.glob(f"*/{_LIMIT}")):
        return "there is no blkio control group of version 1, which limits reads"
    if not Path("/dev/loop-control").exists():
        return "there are no loop devices"
    missing = [tool for tool in ("mkfs.ext4", "unshare", "mount") if shutil.which(tool) is None]
    return f"`{missing[0]}` is not on the PATH" if missing else None


class Disk:
    """A disk with a copy of a folder; see above.

    Args:
        data: the folder to copy.

    Attributes:
        folder: where the agent finds the copy.
        mounting: what the agent's command line has to be preceded by.
    """

    def __init__(self, data: Path) -> None:
        self._data = data
        self._stack = ExitStack()
        self._stop = threading.Event()
        self._device = ""
        self._group = DISK_GROUPS
        self.folder = Path()
        self.mounting: tuple[str, ...] = ()

    def __enter__(self) -> Disk:
        reason = why_no_disk()
        if reason is not None:
            raise TestBedUnavailable(reason, "leave out what needs a slow disk")
        with self._stack:
            prefix = f"{new_bed_name()}-disk-"  # `clean_leftovers` finds by it what a killed owner leaves
            temporary = Path(self._stack.enter_context(TemporaryDirectory(prefix=prefix)))
            image, self.folder = temporary / "disk", temporary / "folder"
            self.folder.mkdir()
            nbytes = sum(file.stat().st_size for file in self._data.rglob("*") if file.is_file())
            kilobytes = round(nbytes * ROOM + ROOM_NBYTES) >> 10
            command("mkfs.ext4", "-q", "-d", str(self._data), str(image), f"{kilobytes}k")
            script = 'mount -o loop,ro,noatime "$1" "$2" && shift 2 && exec "$@"'
            self.mounting = ("unshare", "--mount", "sh", "-c", script, "mount", str(image), str(self.folder))
            self._stack = self._stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._stack.close()

    def follow(self, pid: int, bed: LinkedHosts) -> None:
        """The agent runs: from now on the reads of all processes of its host can be limited, until the bed is closed.

        Args:
            pid: of the agent, which has mounted the disk.
            bed: that it runs on.
        """
        seen = Path(f"/proc/{pid}/root{self.folder}")
        number = seen.stat().st_dev
        self._device = f"{os.major(number)}:{os.minor(number)}"
        self._group = disk_group(bed.name)
        self._group.mkdir()
        assert bed.agent_host.group is not None, "a linked host has a control group"
        moved: set[int] = set()
        while found := bed.agent_host.group.pids() - moved:  # some may have started others before they were moved
            for one in found:
                with contextlib.suppress(ProcessLookupError):  # it has ended
                    (self._group / "cgroup.procs").write_text(str(one))
            moved |= found
        files = [os.open(file, os.O_RDONLY) for file in seen.rglob("*") if file.is_file()]
        for file in files:
            self._stack.callback(os.close, file)
        thread = threading.Thread(target=self._forget, args=(files,), name="forget", daemon=True)
        self._stack.callback(thread.join)
        thread.start()

    def set_limit(self, bytes_s: float | None) -> None:
        """Limit reads from now on; None for no limit."""
        (self._group / _LIMIT).write_text(f"{self._device} {round(bytes_s or 0)}")

    def read_nbytes(self) -> int:
        """Bytes that were read from the disk so far."""
        lines = map(str.split, (self._group / _READ).read_text().splitlines())
        return next((int(line[2]) for line in lines if line[:2] == [self._device, "Read"]), 0)

    def _forget(self, files: list[int]) -> None:
        while not self._stop.wait(EVERY_S):
            for file in files:
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
