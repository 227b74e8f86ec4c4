"""Waits for a missing agent, if nothing can be done without it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from sophon_loader.client.options import OffloadOptions
from sophon_loader.errors import SophonError, add_note, may_come, warn_user
from sophon_loader.host.system import now_s
from sophon_loader.routes.standing import Route, Standing

_LOOK_S = 0.1
_Found = TypeVar("_Found")


class Wait:
    """A wait for one agent, by the options, with a message to the user.

    Args:
        name: of the agent, for that message.
        options: whether to wait, and for how long.
    """

    def __init__(self, name: str, options: OffloadOptions) -> None:
        self._name = name
        self._options = options
        self._end_s = now_s() + options.missing_wait_s
        self._warned = False

    def goes_on(self, error: SophonError) -> None:
        """Return if another trial should follow one that has failed.

        Args:
            error: result of the trial.

        Raises:
            SophonError: that error, if the wait is switched off or over.
        """
        if self._options.agent_missing == "raise" or not may_come(error):
            raise error
        if now_s() >= self._end_s:
            add_note(error, f"it was waited for, for {self._options.missing_wait_s:g} s (missing_wait_s)")
            raise error
        if not self._warned:
            self._warned = True
            warn_user(
                f"The agent at {self._name} cannot be used yet: {error}. It is waited for, for up to "
                f"{self._options.missing_wait_s:g} s (missing_wait_s)."
            )


def awaited(ask: Callable[[], _Found], name: str, options: OffloadOptions) -> _Found:
    """Return the result of `ask`, called again and again while the agent is missing.

    Args:
        ask: raises the error that it gets instead of an answer.
        name: of the agent.
        options: of the loader.

    Raises:
        SophonError: raised last by `ask`.
    """
    route, wait = Route(Standing.STARTING, now_s()), Wait(name, options)
    while True:
        route.trial_begins()
        try:
            return ask()
        except SophonError as error:
            wait.goes_on(error)
            route.failed(now_s(), str(error))
        while not route.due(now_s()):
            time.sleep(_LOOK_S)
