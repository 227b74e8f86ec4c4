"""The questions for headers of files that one connection has asked: values in, values out; no socket, no clock."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from sophon_loader.wire.messages import AskHeaders, Failed, Headers

OnHeaders = Callable[[Sequence[int], Sequence[int], Sequence[bytes]], None]
"""Takes the numbers of samples, the sizes of their files in bytes, and the headers of these, packed; b"" for none."""
FIRST_NUMBER = 1 << 62
"""The first question's number: no request of a sample has one that large."""
MAX_UNANSWERED = 16
"""Questions whose answers are known when they come; a further one takes the place of the oldest."""


class HeaderQuestions:
    """Asks for headers, a hint that may be lost: a sample whose header is not known comes in another way.

    Attributes:
        told: takes the headers of each answer, also of a late one; None drops them.
        late: an answer took too long, and since then none arrived in time. Without this, a slow disk would delay
            every batch of an epoch.

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
        self._unanswered: dict[int, Sequence[int]] = {}
        self._waited_for: set[int] = set()
        self.told: OnHeaders | None = None
        self.late = False

    @property
    def waiting(self) -> bool:
        """True while an answer is worth waiting for."""
        return bool(self._waited_for) and not self.late

    def ask(self, export: str, samples: Sequence[int], keys: Sequence[str]) -> AskHeaders:
        """The question for some samples' files.

        Args:
            export: name of the agent's export.
            samples: their numbers, at most `MAX_HEADERS`.
            keys: what the agent calls their files.
        """
        if len(self._unanswered) == MAX_UNANSWERED:
            self._pop(next(iter(self._unanswered)))
        number = next(self._numbers)
        self._unanswered[number] = samples
        self._waited_for.add(number)
        return AskHeaders(number, export, list(keys))

    def answered(self, answer: Headers) -> None:
        """Pass on the headers that an agent has sent; drop unknown ones."""
        self.late = self.late and answer.id not in self._waited_for
        samples = self._pop(answer.id)
        if samples is not None and len(samples) == len(answer.headers) and self.told is not None:
            self.told(samples, answer.nbytes, answer.headers)

    def refused(self, failed: Failed) -> bool:
        """Give up the questions that a failure answers; True if there are any."""
        return any([self._pop(number) is not None for number in failed.ids])

    def give_up(self) -> None:
        """Wait for no answer any more, nor for those of further questions while `late` holds."""
        self.late = self.late or self.waiting
        self._waited_for.clear()

    def _pop(self, number: int) -> Sequence[int] | None:
        self._waited_for.discard(number)
        return self._unanswered.pop(number, None)
