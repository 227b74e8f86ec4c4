"""The words between broker and worker processes: the first frame of every message over a channel.

To a worker, each with the frames behind it:

    LEARN     digest, registration    keep this pipeline until told to forget it; not answered
    FORGET    digest                  drop it; not answered
    TRIED     digest, trial           another worker has tried a sample of it; not answered
    TRIED_PROGRAM  signature, trial   the same of a program, which needs no learning
    REGISTER  digest                  build it, and say how far it can be run
    JOB       FetchHeader, Item       run it; its pipeline has been learnt before

From a worker, which answers every REGISTER and JOB in the order they came:

    READY                             once, before anything else
    BROKEN    text                    instead of READY: the ops cannot be loaded
    TRIED     digest, trial           it has tried a sample, which the others shall know; between any two answers
    TRIED_PROGRAM  signature, trial   the same of a program
    REGISTERED, ANSWER                [kind, CPU seconds of the work, seconds that the worker was at it], header, and
                                      the payload if there is one

Jobs are handed out some at a time, and answered some at a time: what a turn of either process costs falls to several
samples, and they are looked at one after the other, while what that needs is in the caches.
"""

from __future__ import annotations

LEARN, FORGET, TRIED, REGISTER, JOB = b"learn", b"forget", b"tried", b"register", b"job"
TRIED_PROGRAM = b"tried-program"
READY, BROKEN, REGISTERED, ANSWER = b"ready", b"broken", b"registered", b"answer"
