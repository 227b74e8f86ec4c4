"""A roster that is a folder: a JSON file per agent, which that agent rewrites every few seconds.

Anyone who may write to the folder decides who the agents are, so its content may be anything. Without a key, which
names the agent's, only a folder and files are believed that no other user may write.
"""

from __future__ import annotations

import errno
import itertools
import logging
import os
import random
import stat
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sophon_loader.client.address import Address
from sophon_loader.errors import ConfigError, MalformedMessage
from sophon_loader.host.regular import read_below
from sophon_loader.logs import log_line
from sophon_loader.routes.roster import LOOK_S, MAX_MEMBERS, Member, Question
from sophon_loader.wire.entry import GONE_S, MAX_ENTRY_NBYTES, SUFFIX, AgentEntry
from sophon_loader.wire.wanted_cores import PREFIX

MAX_ENTRIES = 1000
"""Maximum number of entries read at a look. If the folder has more, those of agents that are met come first. The rest
is drawn again each time: entries that others write there may hide an agent for some looks, not for good."""
_MAX_MET = 128
"""Maximum number of remembered entries of agents that are or were met; twice as many as a loader has places."""
MAX_NAMES = 16 * MAX_ENTRIES
"""Maximum number of names in the folder that are looked at; some may not be entries."""
MAX_SAID = 100
"""Maximum number of lines about entries that were left out: a user who may write there could cause any number."""
_LIKE = "write file:///FOLDER/EXPORT, such as file:///shared/run/agents/imagenet"

log = logging.getLogger(__name__)


class _File(NamedTuple):
    """A file of the roster. `reason`: why it is left out; `doubt`: why it would be without a key."""

    seen: tuple[int, int, bytes] = (0, 0, b"")
    """(time of change, inode, content); differs if the file has been written since."""
    entry: AgentEntry | None = None
    reason: str = ""
    doubt: str = ""


class _Snapshot(NamedTuple):
    at_s: float
    folder: str
    export: str
    within: str
    files: dict[str, _File]
    doubt: str
    left_out: int


@dataclass
class _Known:
    """A file that has been an entry, and the seconds for which it has been seen unchanged."""

    seen: tuple[int, int, bytes]
    entry: AgentEntry
    unchanged_s: float = 0.0


class Announced:
    """The agents whose entry in a folder was rewritten within 30 s, by this process's clock.

    Args:
        text: `file:///FOLDER/EXPORT[/FOLDER]`: the last existing folder is the roster, the rest is export and folder
            within it.
        keyed: True if agents are known by a key, so that entries of other users do no harm.
        wait_s: time limit of a look, in seconds; 0 takes what was found since the last look, without waiting.
        clock: monotonic seconds.
        say: takes lines about entries that are left out, each once.

    Raises:
        ConfigError: the text has another form.

    Example:
        >>> roster = Announced("file:///shared/run/agents/imagenet/train", keyed=False)
        >>> [str(member.address) for member in roster.look()]
        ['tcp://fileserver:5555/imagenet/train']
    """

    def __init__(
        self,
        text: str,
        *,
        keyed: bool,
        wait_s: float = LOOK_S,
        clock: Callable[[], float] = time.monotonic,
        say: Callable[[str], None] = log.warning,
    ) -> None:
        self.trouble = ""
        self._text = text
        self._parts = _parts(text)
        self._keyed = keyed
        self._clock = clock
        self._say = say
        self._said: set[tuple[str, str]] = set()
        self._place: tuple[str, str, str] | None = None
        """(folder, export, folder within that), once agents have been found there."""
        self._known: dict[str, _Known] = {}
        self.met: Collection[Address] = ()
        self._met: tuple[str, ...] = ()
        """Names of the entries of agents that are met, then of those that were, the newest first; for the thread."""
        self._names: tuple[str, ...] = ()
        """Names of the known entries, for the thread."""
        self._draw = random.Random()
        self._looked_at_s: float | None = None
        """Time of the last read of the folder; None if it failed, since entries could not be rewritten then, either."""
        self._question = Question(self._read, "roster-folder", wait_s)

    def look(self, *, ask: bool = True) -> Sequence[Member]:
        """Return the agents of now; those of the last time while the folder cannot be read.

        Args:
            ask: see `Roster`.

        Raises:
            ConfigError: the text names no export, only a folder.
        """
        met = {one.endpoint for one in self.met}
        names = [name for name, known in self._known.items() if not met.isdisjoint(known.entry.addresses)]
        self._met = tuple(dict.fromkeys((*names, *self._met)))[:_MAX_MET]
        try:
            snapshots = self._question.answers(ask=ask)
        except ConfigError:
            raise
        except OSError as error:
            self._fails(f"the folder of {self._text} cannot be read: {error.strerror or error}")
        else:
            for snapshot in snapshots:
                self._take(snapshot)
            if self._question.overdue:
                self._fails(f"the folder of {self._text} cannot be read: its disk does not answer")
        return self._members()

    @property
    def folder(self) -> str:
        """The folder in which agents have been found; "" before."""
        return "" if self._place is None else self._place[0]

    @property
    def is_looking(self) -> bool:
        """See `Roster`."""
        return self._question.is_open

    def _fails(self, why: str) -> None:
        self.trouble, self._looked_at_s = why, None

    def _members(self) -> list[Member]:
        living = [known.entry for _, known in sorted(self._known.items()) if known.unchanged_s < GONE_S]
        if self._place is None:
            return []
        _, export, within = self._place
        # First addresses before second ones: an entry of many must not take the room of all behind it.
        ranks = itertools.zip_longest(*([(one, entry) for one in entry.addresses] for entry in living))
        members = (
            Member(Address(found[0], export, within), found[1].instance, tuple(found[1].exports))
            for rank in ranks
            for found in rank
            if found is not None
        )
        return list(itertools.islice(members, MAX_MEMBERS))

    def _take(self, found: _Snapshot) -> None:
        """Replace everything known by a snapshot."""
        if found.doubt and not self._keyed:
            self._fails(f"{found.folder} is not believed without a key: {found.doubt}")
            return
        if found.doubt:
            self._tell(found.folder, "folder of agents may name wrong ones", found.doubt)
        if found.left_out:
            self._tell(found.folder, "entries left out", f"there are more than {MAX_ENTRIES}")
        passed_s = 0.0 if self._looked_at_s is None else found.at_s - self._looked_at_s
        self._looked_at_s = found.at_s
        for name in self._known.keys() - found.files.keys():
            del self._known[name]
        for name, file in found.files.items():
            self._take_file(f"{found.folder}/{name}", name, file, passed_s)
        self._names = tuple(sorted(self._known))
        if self._known:
            self._place = found.folder, found.export, found.within
        self.trouble = "" if self._members() else f"no agent of {found.export!r} is announced in {found.folder}"

    def _take_file(self, path: str, name: str, file: _File, passed_s: float) -> None:
        reason = file.reason or ("" if self._keyed else file.doubt)
        known = self._known.get(name)
        if file.entry is not None and not reason and (known is None or known.seen != file.seen):
            self._known[name] = _Known(file.seen, file.entry)
        elif known is not None:
            known.unchanged_s += passed_s
        if reason:
            self._tell(path, "entry left out", reason)
        elif file.doubt:
            self._tell(path, "entry may name a wrong agent", file.doubt)

    def _tell(self, path: str, event: str, reason: str) -> None:
        if (path, event) not in self._said and len(self._said) < MAX_SAID:
            self._said.add((path, event))
            self._say(log_line(event, file=path, reason=reason))
            if len(self._said) == MAX_SAID:
                self._say(log_line("no more entries are told of", roster=self._text))

    # --- what the thread does that may hang: nothing below changes anything ---------------------------------------

    def _read(self) -> _Snapshot:
        folder, export, within = self._place or self._placed()
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            doubt = _doubt(os.fstat(descriptor))
            with os.scandir(descriptor) as listing:
                there = {one.name for one in itertools.islice(listing, MAX_NAMES)}
            entries = {name for name in there if name.endswith(SUFFIX) and not name.startswith((".", PREFIX))}
            found = {name: _file(descriptor, name) for name in self._met}
            # Also known ones, which a listing may lack while their file is being replaced.
            others = sorted(entries.union(self._names).difference(found))
            room = MAX_ENTRIES - sum(file is not None for file in found.values())
            left_out = max(0, len(others) - room)
            read = self._draw.sample(others, room) if left_out else others
            found.update((name, _file(descriptor, name)) for name in read)
        finally:
            os.close(descriptor)
        files = {name: file for name, file in found.items() if file is not None}
        return _Snapshot(self._clock(), folder, export, within, files, doubt, left_out)

    def _placed(self) -> tuple[str, str, str]:
        for count in range(len(self._parts), -1, -1):
            folder = "/" + "/".join(self._parts[:count])
            try:
                if not stat.S_ISDIR(os.stat(folder).st_mode):
                    continue
            except (FileNotFoundError, NotADirectoryError):
                continue
            if count == len(self._parts):
                raise ConfigError(f"agent must name an export behind the folder {folder}, got {self._text}; {_LIKE}")
            return folder, self._parts[count], "/".join(self._parts[count + 1 :])
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "/")


def _parts(text: str) -> list[str]:
    parts = [part for part in text.removeprefix("file:///").split("/") if part]
    if not text.startswith("file:///") or not parts or {".", ".."} & set(parts) or "\0" in text:
        raise ConfigError(f"agent must be the absolute path of a folder and an export, got {text!r}; {_LIKE}")
    return parts


def _file(folder: int, name: str) -> _File | None:
    """Return a file of a folder; None if it is missing."""
    try:
        data, status = read_below(folder, name, MAX_ENTRY_NBYTES)
        return _File((status.st_mtime_ns, status.st_ino, data), AgentEntry.parse(data), doubt=_doubt(status))
    except FileNotFoundError:
        return None
    except MalformedMessage as error:
        return _File(reason=str(error))
    except OSError as error:  # also ESTALE, of one that has just been replaced
        return _File(reason="it is a link" if error.errno == errno.ELOOP else error.strerror or str(error))


def _doubt(status: os.stat_result) -> str:
    """Return the reason why users other than this one and root may have written there; "" if they may not."""
    if status.st_uid not in (os.geteuid(), 0):
        return f"it belongs to another user (uid {status.st_uid}); run agents and loaders as one user, or use a key"
    if status.st_mode & 0o022:
        return f"others may write there (mode {stat.S_IMODE(status.st_mode):o}); chmod go-w, or use a key"
    return ""
