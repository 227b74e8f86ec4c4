"""A worker as the staff sees it: what it has been sent, what it knows, since when it is at it."""

from __future__ import annotations

import itertools
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Any

from storage_agent.broker.instructions import Build, Log
from storage_agent.jobs.jobs import Job


@dataclass
class JobAtWorker:
    """A job at a worker; at two when it was `doubled`, and then the first answer counts.

    `expected_s` is how long it will probably take there.
    """

    job: Job
    expected_s: float = 0.0
    doubled: bool = False
    answered: bool = False


@dataclass
class Building:
    """A pipeline to be built, for how long nothing else is sent after it, and the workers that have died of it."""

    build: Build
    expected_s: float = 0.0
    deaths: int = 0


@dataclass
class Worker:
    """What has been sent to a worker and not been answered, oldest first, and when it began on the first of it.

    `sent_s` is when each of it was sent, `ahead_s` how long all of it will probably take. `known` are the pipelines it
    has learnt, digest -> bytes, the one used last at the end. `ended` says why it is being ended, if it is.
    """

    work: deque[JobAtWorker | Building] = field(default_factory=deque)
    known: OrderedDict[str, int] = field(default_factory=OrderedDict)
    ready: bool = False
    usable: bool = False
    since_s: float = 0.0
    sent_s: deque[float] = field(default_factory=deque)
    ahead_s: float = 0.0
    ended: str = ""

    @property
    def tasks(self) -> list[JobAtWorker]:
        return [one for one in self.work if isinstance(one, JobAtWorker)]

    @property
    def builds(self) -> list[Building]:
        return [one for one in self.work if isinstance(one, Building)]

    @property
    def waiting(self) -> list[JobAtWorker]:
        """The tasks that wait behind something else and that no other worker has."""
        behind = itertools.islice(self.work, 1, None)
        return [one for one in behind if isinstance(one, JobAtWorker) and not one.doubled and not one.answered]

    @property
    def client(self) -> bytes:
        """Whose work it is at."""
        head = self.work[0]
        return head.build.client if isinstance(head, Building) else head.job.fetch.client

    def took_s(self, now_s: float) -> float:
        """How long it has been at what it does now, and at what it has done and not handed in."""
        return now_s - self.since_s if self.work else 0.0

    def take(self, what: JobAtWorker | Building, now_s: float) -> None:
        """It has been sent more to do."""
        if not self.work:
            self.since_s = now_s
        self.work.append(what)
        self.sent_s.append(now_s)
        self.ahead_s += what.expected_s

    def hand_in(self, now_s: float) -> JobAtWorker | Building:
        """It has answered the oldest of what it was sent."""
        done = self.work.popleft()
        self.sent_s.popleft()
        self.since_s = now_s
        self.ahead_s = self.ahead_s - done.expected_s if self.work else 0.0
        return done


def epitaph(number: int, worker: Worker, exit_code: str) -> Log:
    """What is known of a worker's end."""
    details: dict[str, Any] = {"worker": number, "exit_code": exit_code}
    if worker.ended:
        details["reason"] = worker.ended
    if worker.tasks:
        jobs = [task.job for task in worker.tasks]
        details["samples"] = [f"{job.fetch.export}/{job.item.key}" for job in jobs]
    if worker.builds:
        details["pipelines"] = [building.build.digest for building in worker.builds]
    return Log("worker died", warning=True, details=details)
