"""How long an agent is waited for: when to ask it for a sign of life, when to ask again, when to give it up. No clock.

Only samples that arrive are progress, and for some minutes bytes that do, or the agent's word that it is at work on
one. Any other message shows that the agent lives, and an agent may live and be of no use. Only time counts in which the
loader waits for a sample: its own slow ops and training steps are nobody's silence.
"""

from __future__ import annotations

import enum
import math

from sophon_loader.client.options import OffloadOptions

MAX_RESENDS = 3
"""How often to ask again, each time after twice as long, an agent that lives and sends no sample."""
LOST_S = 0.5
"""Takes the place of `resend_after_s` once a message has come of which nobody can say what it was the answer to."""
_PATIENT = 3.0
"""Where replies take long, asking again waits for twice as long as they took, up to so many `resend_after_s`."""
FLOWS_NBYTES_PER_S = 16_000
"""What comes at least while a large message does. Less may be answers that bring no sample."""
MOST_FLOWING_S = 300.0
"""For how long, without a sample, bytes are enough: of a message that never ends, too."""
_RENEWED_AFTER = 0.6
"""Share of `dead_after_s`: after so long a silence the connection may be what has died, and not the agent."""
_AT_ONCE_S = 1.0
"""Of one look, no more counts: a process that was stopped for a minute has not waited for one."""
MOST_AT_WORK_S = 300.0
"""For how long, without a sample, the agent's word is enough that it is at work on one. It has a limit of its own for
each (`--job-seconds`), so this is for agents whose word is wrong."""


def flows(nbytes: int, seconds: float) -> bool:
    """Whether so many bytes in so long are those of a message that comes."""
    return nbytes > FLOWS_NBYTES_PER_S * seconds


class Advice(enum.Enum):
    """What is to be done about an agent that is waited for."""

    WAIT = enum.auto()
    PING = enum.auto()
    RENEW = enum.auto()
    """Make the connection anew, and ask again."""
    ASK_AGAIN = enum.auto()
    GIVE_UP = enum.auto()


class Silence:
    """Of an agent that is waited for. ZeroMQ's own heartbeats are not used: see `Link`.

    Args:
        options: the time-outs.

    Example:
        >>> silence = Silence(OffloadOptions(heartbeat_s=2.0, dead_after_s=10.0))
        >>> silence.waited(1.0), silence.waited(1.0)
        (<Advice.WAIT: 1>, <Advice.PING: 2>)
    """

    def __init__(self, options: OffloadOptions) -> None:
        self._heartbeat_s = min(options.heartbeat_s, options.dead_after_s / 2)
        self._renew_s, self._dead_s = _RENEWED_AFTER * options.dead_after_s, options.dead_after_s
        self._silent_s = 0.0
        """Waited for since anything was heard."""
        self._pinged_s = 0.0
        """The same at the last ping."""
        self._renewed = False
        """Whether the connection has been made anew since."""

    def heard(self) -> None:
        """The agent has said something, whatever it was."""
        self._silent_s = self._pinged_s = 0.0
        self._renewed = False

    def waited(self, seconds: float) -> Advice:
        """The agent has been waited for, and has said nothing.

        Args:
            seconds: since this was called last, or since the wait began.
        """
        self._silent_s += min(seconds, _AT_ONCE_S)
        if self._silent_s >= self._dead_s:
            return Advice.GIVE_UP
        if self._silent_s >= self._renew_s and not self._renewed:
            self._renewed, self._pinged_s = True, self._silent_s
            return Advice.RENEW
        if self._silent_s - self._pinged_s >= self._heartbeat_s:
            self._pinged_s = self._silent_s
            return Advice.PING
        return Advice.WAIT


class Patience:
    """Of one loader worker with its agent.

    Args:
        options: the time-outs.

    Attributes:
        left_s: for how long the agent may still be waited for in vain, s; inf where nothing can be had without it.
        lost_s: for how long it has been waited for in vain, s: waits that brought no sample for `resend_after_s`, and
            all that ended in giving it up.
        why: why it was given up; "" before.

    Example:
        >>> patience = Patience(OffloadOptions(dead_after_s=10.0))
        >>> patience.waited(2.0)
        <Advice.WAIT: 1>
    """

    def __init__(self, options: OffloadOptions) -> None:
        self._options = options
        self._silence = Silence(options)
        self._idle_s = 0.0
        """Waited for since a sample came."""
        self._after_s = options.resend_after_s
        """As `_idle_s`: when to ask again for the first time."""
        self._resends = 0
        self._asked_s = 0.0
        """As `_idle_s`: when it was asked again last."""
        self._flowing_s = 0.0
        """Waited for since a sample came, while bytes did."""
        self._word_s = math.inf
        """Waited for since the agent said that it is at work; inf if its last word is another."""
        self._word_holds_s = 2 * min(options.heartbeat_s, options.dead_after_s / 2)
        """For how long that goes: it is asked for its word with every ping."""
        self._at_work_s = 0.0
        """Waited for since a sample came, while its word was enough."""
        self._lost = False
        """Whether an answer has come since that is known to be lost, and not which."""
        self.left_s = math.inf
        self.lost_s = 0.0
        self.why = ""

    def heard(self) -> None:
        """The agent has said something, whatever it was."""
        self._silence.heard()

    def lost(self) -> None:
        """A message has come that was damaged so much that nobody knows what it was."""
        self._lost = True

    def told(self, *, at_work: bool) -> None:
        """The agent has said, or can no longer be believed to say, that it is at work on what is waited for."""
        self._word_s = 0.0 if at_work else math.inf

    def progressed(self, turnaround_s: float) -> None:
        """A sample has been answered.

        Args:
            turnaround_s: from asking for it.
        """
        if self._idle_s >= self._after_s:
            self._lose()
        self._begin_anew()
        resend_after_s = self._options.resend_after_s
        self._after_s = min(max(resend_after_s, 2 * turnaround_s), _PATIENT * resend_after_s)

    def waited(self, seconds: float, nbytes: int = 0) -> Advice:
        """A sample has been waited for.

        Args:
            seconds: since this was called last, or since the wait began.
            nbytes: that have come meanwhile, parts of messages too.
        """
        if flows(nbytes, seconds) and self._flowing_s < MOST_FLOWING_S:
            self._flowing_s += seconds
            self.heard()
            return Advice.WAIT
        silence = self._silence.waited(seconds)
        counted_s = min(seconds, _AT_ONCE_S)
        self._word_s += counted_s
        at_work = self._word_s < self._word_holds_s and self._at_work_s < MOST_AT_WORK_S and not self._lost
        if at_work and silence is not Advice.GIVE_UP:
            self._at_work_s += counted_s
            return silence
        self._idle_s += counted_s
        if silence is Advice.GIVE_UP:
            return self.give_up(f"got silence for {self._options.dead_after_s:g} s")
        first_s = min(LOST_S, self._after_s) if self._lost else self._after_s
        again = self._idle_s - self._asked_s >= first_s * 2**self._resends
        if self._idle_s >= max(self.left_s, self._after_s) or (again and self._resends == MAX_RESENDS):
            return self.give_up(f"got no sample for {self._idle_s:.3g} s, although it still talks")
        if again:
            self._resends += 1
            self._asked_s, self._lost = self._idle_s, False
            return Advice.RENEW if silence is Advice.RENEW else Advice.ASK_AGAIN
        return silence

    def give_up(self, why: str) -> Advice:
        """No longer wait for it.

        Args:
            why: what was got instead of samples.
        """
        self.why = why
        self._lose()
        self.heard()
        self._begin_anew()
        return Advice.GIVE_UP

    def _begin_anew(self) -> None:
        self._idle_s = self._asked_s = self._flowing_s = self._at_work_s = 0.0
        self._resends = 0

    def _lose(self) -> None:
        self.lost_s += self._idle_s
        self.left_s -= self._idle_s
