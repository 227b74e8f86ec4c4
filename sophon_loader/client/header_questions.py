"""The questions for headers of files that one connection waits for: values in, values out; no socket, no clock."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from sophon_loader.wire.messages import AskHeaders, Failed, Headers

OnHeaders = Callable[[Sequence[int], Sequence[int], Sequence[bytes]], None]
"""Takes the numbers of samples, the sizes of their files in bytes, and the headers of these, packed; b"" for none."""
FIRST_NUMBER = 1 << 62
"""The first question's number: no request of a sample has one that large."""
MAX_WAITING = 16
"""Questions that are waited for at a time; a further one takes the place of the oldest."""


class HeaderQuestions:
    """Asks for headers, a hint that may be lost: a sample whose header is not known comes in another way.

    Attributes:
        told: takes the headers that come; None drops them.

    Example:
        >>> questions = HeaderQuestions()
        >>> questions.told = headers.learn_all
        >>> connection.send(questions.ask("photos", samples=[7], keys=["cat/7.jpg"]))
        >>> questions.answered(message)
        >>> questions.waiting
        False
    """

    def __init__(self) -> None:
        self._numbers = itertools.count(FIRST_NUMBER)
        self._waiting: dict[int, Sequence[int]] = {}
        self.told: OnHeaders | None = None

    @property
    def waiting(self) -> bool:
        """True while an answer may still come."""
        return bool(self._waiting)

    def ask(self, export: str, samples: Sequence[int], keys: Sequence[str]) -> AskHeaders:
        """The question for some samples' files.

        Args:
            export: name of the agent's export.
            samples: their numbers, at most `MAX_HEADERS`.
            keys: what the agent calls their files.
        """
        if len(self._waiting) == MAX_WAITING:
            del self._waiting[next(iter(self._waiting))]
        number = next(self._numbers)
        self._waiting[number] = samples
        return AskHeaders(number, export, list(keys))

    def answered(self, answer: Headers) -> None:
        """Pass on the headers that an agent has sent; drop those of a question that was given up."""
        samples = self._waiting.pop(answer.id, None)
        if samples is not None and len(samples) == len(answer.headers) and self.told is not None:
            self.told(samples, answer.nbytes, answer.headers)

    def refused(self, failed: Failed) -> bool:
        """Give up the questions that a failure answers; True if there are any."""
        return any(self._waiting.pop(number, None) is not None for number in failed.ids)

    def give_up(self) -> None:
        """Wait for no answer any more."""
        self._waiting.clear()
