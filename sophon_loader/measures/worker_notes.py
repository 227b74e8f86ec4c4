"""Reasons that workers find why samples crossed as files although more could have been sent, for the report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sophon_loader.encodings.catalogue import PLAIN
from sophon_loader.encodings.registry import encodings
from sophon_loader.figures import counted
from sophon_loader.host.shared import SharedNotes
from sophon_loader.kinds.image.deferred import Deferred, Looked
from sophon_loader.pipeline.chain import Chain
from sophon_loader.pipeline.software import not_of_switches
from sophon_loader.pipeline.switches import ON_TENSORS, remedy_for

_NOTE_NBYTES = 600
_MAX_LENGTH = 300
"""Maximum number of characters of an agent's text; the reason is at its end."""
_MAX_KEPT_NBYTES = _NOTE_NBYTES - 8
"""Bytes of text that a note has room for."""
_CHANGED = (
    "a transform, or a parameter of an op, was changed while samples were loaded: from there on no op runs at the "
    "agent, until an epoch begins that starts workers (any epoch where num_workers=0)"
)


class WorkerNotes:
    """The newest finding of each worker, in memory that the worker writes and the main process reads.

    Args:
        workers: number of workers.

    Example:
        >>> said = WorkerNotes(workers=1)
        >>> said.degraded(0, "EncodingError at the agent:\\nEncodingError: value at the cut must be an image")
        >>> said.notes(degraded=2)
        ["2 samples came less prepared than requested; the agent said: value at the cut must be an image"]
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._notes = SharedNotes(4 * workers, _NOTE_NBYTES)
        """A place of each worker for degraded samples, then for values that do not cross, for ops that stay here, and
        for changes."""

    def begin(self) -> None:
        """Begin an epoch: forget changes of transforms, which workers report again."""
        for worker in range(self._workers):
            self._notes.write(3 * self._workers + worker, b"")

    def changed(self, worker: int) -> None:
        """Note that transforms have changed within an epoch.

        Args:
            worker: number of the worker whose transforms differ from those that the agent knows.
        """
        self._notes.write(3 * self._workers + worker, _CHANGED.encode())

    def degraded(self, worker: int, note: str) -> None:
        """Note that the agent has prepared a sample less than requested.

        Args:
            worker: number of the worker that received the sample.
            note: the reply's note.
        """
        self._notes.write(worker, _reason(note).encode(errors="replace")[:_MAX_LENGTH])

    def uncarried(self, worker: int, text: str) -> None:
        """Note that an op returns a value that no encoding carries.

        Args:
            worker: number of the worker that has run the op.
            text: names the op and the type of its value.
        """
        self._notes.write(self._workers + worker, text.encode(errors="replace")[:_MAX_LENGTH])

    def kept(self, worker: int, text: str) -> None:
        """Note that a worker keeps ops that it would otherwise leave to the agent.

        Args:
            worker: number of the worker.
            text: the reason, from `kept_here`; "" if it keeps none any more.
        """
        self._notes.write(2 * self._workers + worker, text.encode(errors="replace")[:_MAX_KEPT_NBYTES])

    def notes(self, degraded: int) -> list[str]:
        """Return the notes for the user.

        Args:
            degraded: samples of the epoch that the agent prepared less than requested.
        """
        found = [
            f"{text}, which cannot be sent, so the op and those behind it stay at the loader; have it return one "
            "tensor (torch.stack)"
            for text in self._texts(self._workers)
        ]
        found += [*self._texts(2 * self._workers), *self._texts(3 * self._workers)]
        said = self._texts(0)
        if degraded and said:
            found.append(f"{counted(degraded, 'sample')} came less prepared than requested; the agent said: {said[0]}")
        return found

    def _texts(self, first: int) -> list[str]:
        """Return the distinct texts in the places of all workers, from the place `first` on."""
        read = [self._notes.read(first + worker) for worker in range(self._workers)]
        return sorted({text.decode(errors="replace") for text in read if text})


def kept_here(differ: Sequence[str], main: Mapping[str, str], here: Mapping[str, str]) -> str:
    """Return the note on ops that stay at the loader because a worker's settings of torch differ from the main
    process's.

    Args:
        differ: names of the settings.
        main: all settings of the main process.
        here: all settings of the worker.
    """
    each = ", ".join(
        f"{name} is {here.get(name)} in a worker and {main.get(name)} in the main process"
        + (f" (remedy: {remedy_for(name)})" if name in ON_TENSORS else "")
        for name in differ
    )
    if not_of_switches(list(differ)):
        return f"no op runs at the agent, because its values could differ: {each}; give these to the ops instead"
    return f"no op of torch runs at the agent, because its numbers could differ: {each}"


def _reason(note: str) -> str:
    """Extract the exception's text from an agent's note, without the traceback."""
    lines = note.strip().splitlines()
    heads = [n for n, line in enumerate(lines) if line.startswith((" ", "Traceback")) or line.endswith("at the agent:")]
    said = "; ".join(lines[heads[-1] + 1 if heads else 0 :])
    kind, _, text = said.partition(": ")
    return text if kind.startswith("sophon_loader.") else said


def looking(chain: Chain, reach: int, found: Callable[[str], None]) -> Callable[[int, Any], None]:
    """Make a callback of `Chain.run` that checks if the ops' values can cross the wire.

    Args:
        chain: the pipeline.
        reach: the last stage at which its values may cross.
        found: called at that stage: with a text that names the op and its value if the value cannot cross, else with
            "".
    """
    first = ""

    def after(stage: int, value: Any) -> None:
        nonlocal first
        if stage > reach:
            return
        is_deferred = isinstance(value, Deferred | Looked)  # an agent makes it an image
        carried = is_deferred or any(encodings()[name].accepts(value) for name in PLAIN)
        if not carried:
            first = first or f"{chain.ops[stage - 1].label} gives a {type(value).__name__}"
        if stage == reach:
            found("" if carried else first)

    return after
