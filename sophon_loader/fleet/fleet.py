"""What a loader worker holds of several agents that have the files together: a session with each, one wait for all."""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from sophon_loader.client.link import arrived
from sophon_loader.client.session import MAX_TOLD, Session, Terms
from sophon_loader.client.wanted import BatchId, Reply, Wanted
from sophon_loader.encodings.encoding import Payload
from sophon_loader.errors import SophonError
from sophon_loader.fleet.groups import Preference, group_of
from sophon_loader.fleet.homes import Homes
from sophon_loader.fleet.lacking import NOTHING, Lacking
from sophon_loader.fleet.pace import UNKNOWN, Pace, too_much, weights
from sophon_loader.host.system import now_s
from sophon_loader.logs import log_line
from sophon_loader.wire.messages import Failure, Sample

log = logging.getLogger(__name__)
_LOOK_S = 0.1
"""Seconds of waiting after which the time-outs of all agents are looked at; no wait is longer."""


class Fleet:
    """Fetches batches of samples from several agents, in place of a `Session` with one; used by one thread.

    Each sample is asked for at one agent, by `Homes`. Another is asked as soon as that one is given up, or answers with
    something that is no sample (a shard of other files, or a replica that was copied in part). So a reply without a
    sample means that every agent that lives has been asked, and one that says "nothing" that none lives, or that one
    does not which may have it.

    Args:
        terms: agreed on, with one agent each.
        reaches: per agent and source, the last stage that the agent reaches; () where all reach whatever is wanted.
        folder: what the keys of what is wanted begin with; None for the folder of the first agent.
        lacking: what is known of samples that some agents lack; None for nothing.
        awaited_s: seconds for which the training has waited for batches so far; looked at where there are groups.

    Attributes:
        lanes: the sessions, in the order of `terms`: what is known of each agent alone (`gone`, `why`, `gave_up_s`,
            `lost_s`, `shortest_net_s`) is theirs, since agents may be at unlike distances.
        answered: the lane of the reply that `next` has given last.
        homes: of the keys; each agent's share is as what it has delivered lately.
        waited_s: seconds so far for which there was no reply to work on.
        starved_s: those of them in which more could have been on its way, had more been wanted.
        meanwhile: called now and then while nothing comes; None for nothing.

    Example:
        >>> fleet = Fleet([terms_of_one, terms_of_other])
        >>> fleet.keep([batch])
        >>> fleet.want(batch, wanted)
        >>> replies = [fleet.next(batch) for _ in range(fleet.missing(batch))]
    """

    def __init__(
        self,
        terms: Sequence[Terms],
        reaches: Sequence[Sequence[int]] = (),
        folder: str | None = None,
        lacking: Lacking | None = None,
        awaited_s: Callable[[], float] = lambda: math.inf,
    ) -> None:
        self._awaited_s = awaited_s
        self._reaches = reaches
        self._folder = terms[0].address.folder if folder is None else folder
        self.lanes: list[Session] = []
        for one in terms:
            # What has come and lies here is this process's, however many agents it is from.
            options = replace(one.options, window_nbytes=max(1, one.options.window_nbytes // len(terms)))
            first = self.lanes[0] if self.lanes else None
            self.lanes.append(Session(replace(one, options=options), first, self._folder))
        self.homes = Homes([str(one.address) for one in terms])
        self._lacking = Lacking([NOTHING for _ in terms]) if lacking is None else lacking
        options = terms[0].options
        self._preference = Preference(
            [bool(options.group) and group_of(one.address.endpoint, options.groups) == options.group for one in terms]
        )
        self._paces = [Pace() for _ in terms]
        self.answered = self.lanes[0]
        self.waited_s = self.starved_s = 0.0
        self.meanwhile: Callable[[], None] | None = None
        self._unlooked_s = 0.0
        """Waited since the time-outs were looked at."""
        self._left_s = [math.inf] * len(terms)
        """Per agent, for how long it may be waited for in vain where no other lives."""
        self._lived = [True] * len(terms)
        """Per agent, whether it did when the samples were dealt out last."""
        self._refusals: dict[tuple[BatchId, int], dict[int, Reply]] = {}
        """Per sample that some agents have answered without a sample, by position: what each has answered."""
        self._told = 0
        self._turn = 0
        self._limit_patience()

    def trust(self, *, gone: bool, left_s: float, agent: int = 0) -> None:
        """Say how much to expect of an agent from now on.

        Args:
            gone: whether to ask it for nothing.
            left_s: for how long it may be waited for in vain; inf where nothing can be had without an agent. While
                another lives, it is given up after `dead_after_s` at most.
            agent: its number.
        """
        lane, self._left_s[agent] = self.lanes[agent], left_s
        if lane.gone and not gone and lane.connection.lost:
            lane.connection.renew()  # whoever found it back has another connection; this one waits to try again
            self._lacking.forget()
        lane.trust(gone=gone, left_s=left_s)
        self._limit_patience()
        self._follow()

    @property
    def gone(self) -> bool:
        """Whether all agents have been given up."""
        return all(lane.gone for lane in self.lanes)

    @property
    def wants_more(self) -> bool:
        """Whether another batch should be wanted as look-ahead."""
        return any(lane.wants_more and (self.gone or not lane.gone) for lane in self.lanes)

    @property
    def received_nbytes(self) -> int:
        """Bytes received so far, headers included."""
        return sum(lane.received_nbytes for lane in self.lanes)

    @property
    def retries(self) -> int:
        """Samples asked for again so far, each at the same agent."""
        return sum(lane.retries for lane in self.lanes)

    @property
    def corrupt(self) -> int:
        """Messages so far that were damaged on their way."""
        return sum(lane.corrupt for lane in self.lanes)

    @property
    def malformed(self) -> int:
        """Messages so far that break the protocol."""
        return sum(lane.malformed for lane in self.lanes)

    @property
    def fresh(self) -> int:
        """Replies so far that came while they were waited for."""
        return sum(lane.fresh for lane in self.lanes)

    @property
    def net_s(self) -> float:
        """Seconds that those spent on their way, all together."""
        return sum(lane.net_s for lane in self.lanes)

    @property
    def queued_s(self) -> float:
        """Seconds that those waited at their agents, all together."""
        return sum(lane.queued_s for lane in self.lanes)

    @property
    def shortest_net_s(self) -> float:
        """The shortest time on its way of a reply of each agent's, in the mean over replies; inf before one came."""
        known = [(lane.fresh, lane.shortest_net_s) for lane in self.lanes if lane.fresh]
        return sum(fresh * net_s for fresh, net_s in known) / sum(fresh for fresh, _ in known) if known else math.inf

    def knows(self, batch: BatchId) -> bool:
        """Whether a batch has been asked for."""
        return self.lanes[0].knows(batch)

    def missing(self, batch: BatchId) -> int:
        """How many replies of a batch `next` has yet to give."""
        return sum(lane.missing(batch) for lane in self.lanes)

    def keep(self, batches: Iterable[BatchId]) -> None:
        """Forget all other batches."""
        kept = set(batches)
        for lane in self.lanes:
            lane.keep(kept)
        if self._refusals:
            self._refusals = {place: found for place, found in self._refusals.items() if place[0] in kept}

    def want(self, batch: BatchId, wanted: Sequence[Wanted]) -> None:
        """Ask for a batch; to be called again when its turn has come, if it was asked for as look-ahead.

        Args:
            batch: its id.
            wanted: its samples, in order; not looked at if the batch is known.
        """
        if not self.knows(batch):
            self._deal(batch, range(len(wanted)), wanted)

    def ask_headers(self, wanted: Sequence[Wanted]) -> None:
        """Ask for the headers of samples' files, each at the agent that would be asked for it; see `Session`."""
        able = [n for n, lane in enumerate(self.lanes) if lane.takes_programs]
        if not able:
            return
        keys = [self._below(one) for one in wanted]
        avoid = self._lacking.by([one.sample for one in wanted], keys, {*able}) if self._lacking.found else None
        homes = self.homes.deal(keys, [0] * len(self.lanes), able.__contains__, avoid)
        for number in able:
            if asked := [one for one, home in zip(wanted, homes, strict=True) if home == number]:
                self.lanes[number].ask_headers(asked)

    def note_lacking(self, agent: int, key: str) -> None:
        """Note that an agent lacks a file: it is the last to be asked for others of that folder.

        Args:
            agent: its number.
            key: of the file.
        """
        self._lacking.note(agent, 0, self._below_folder(key))

    @property
    def awaits_headers(self) -> bool:
        """Whether headers that were asked for may still come."""
        return any(lane.awaits_headers for lane in self.lanes)

    def await_headers(self, timeout_s: float) -> None:
        """See `Session.await_headers`."""
        end_s = now_s() + timeout_s
        for lane in self.lanes:
            lane.await_headers(max(0.0, end_s - now_s()))

    def next(self, batch: BatchId, position: int | None = None) -> Reply:
        """A reply of a batch; waits for it.

        Args:
            batch: its id.
            position: of the sample in the batch, from 0; None for the reply that comes first.

        Raises:
            AgentError: an agent cannot be used, the others are given up, and nothing can be had without one.
        """
        if self.gone:
            # What they say is heard all the same, so that they are not left waiting.
            self._take_in(arrived([lane.connection for lane in self.lanes], 0), fresh=False)
        while (reply := self._ready(batch, position)) is None:
            links = [lane.connection for lane in self.lanes]
            # What has already arrived comes before any decision about silence.
            found = arrived(links, 0)
            if found:
                self._take_in(found, fresh=False)
            else:
                self._see_paces(())
                self._relieve()
                found = self._wait()
                self._take_in(found, fresh=True)
                self._see_paces(found)
            if self._unlooked_s >= _LOOK_S:
                self._look()
        return reply

    def again(self, wanted: Wanted, epoch: int) -> tuple[Sample, Payload]:
        """What the agent that has `answered` makes of one sample; waits for it.

        Args:
            wanted: the sample.
            epoch: of its random numbers.

        Raises:
            SophonError: it does not come.
        """
        return self.answered.again(wanted, epoch)

    def instance(self) -> str:
        """The word that tells the agent that has `answered` from others at its address; see `Session`."""
        return self.answered.instance()

    def close(self) -> None:
        """Close the connections."""
        for lane in reversed(self.lanes):
            lane.close()

    def _ready(self, batch: BatchId, position: int | None) -> Reply | None:
        """A reply that has come. Lanes take turns, so that the replies of none lie here and narrow its window."""
        count = len(self.lanes)
        for number in [(self._turn + n) % count for n in range(count)]:
            while (reply := self.lanes[number].ready(batch, position)) is not None:
                found = self._judged(number, batch, reply)
                if found is not None:
                    self._turn = number + 1
                    return found
        return None

    def _judged(self, number: int, batch: BatchId, reply: Reply) -> Reply | None:
        """What to give of a reply; None where another agent is asked for its sample.

        Args:
            number: of the lane that it came by.
            batch: of the sample.
            reply: taken from the lane.
        """
        place = batch, reply.position
        self.answered = self.lanes[number]
        if reply.sample is not None:
            if self._refusals:
                self._refusals.pop(place, None)
            if self._lacking.found:
                self._lacking.note_had(number, self._below(reply.wanted))
            return reply
        if reply.is_nothing and not self.lanes[number].gone:
            return reply  # it is read on this host
        refusals = self._refusals.setdefault(place, {})
        if not reply.is_nothing:
            refusals[number] = reply
            self._note(number, reply)
        if not all(lane.gone or n in refusals for n, lane in enumerate(self.lanes)):
            self._deal(batch, [reply.position], [reply.wanted], without=refusals)
            return None
        del self._refusals[place]
        if refusals and not (self._lacking.found and self._others_may_have(reply.wanted, refusals)):
            # An agent that says why its file cannot be had tells more than one that is gone.
            number = next((n for n, one in refusals.items() if not _is_missing(one)), next(iter(refusals)))
            self.answered = self.lanes[number]
            return self._with_all_asked(refusals[number], refusals)
        return Reply(
            reply.wanted, reply.position, why="; ".join(self._why(n, refusals) for n in range(len(self.lanes)))
        )

    def _others_may_have(self, wanted: Wanted, refusals: dict[int, Reply]) -> bool:
        """Whether one that was not asked, since it is gone or is yet to come, may have a file that the others lack."""
        unasked = (n for n in range(len(self.lanes)) if n not in refusals)
        some = self.lanes[0].terms.may_leave or any(not self._lacking.lacks(n, wanted.sample) for n in unasked)
        return some and all(map(_is_missing, refusals.values()))

    def _why(self, number: int, refusals: dict[int, Reply]) -> str:
        lane = self.lanes[number]
        return f"{lane.terms.address}: {'has no such file' if number in refusals else lane.why or 'gone'}"

    def _with_all_asked(self, reply: Reply, refusals: dict[int, Reply]) -> Reply:
        """One of several refusals, with the addresses of the others in its text."""
        if len(refusals) == 1 or reply.failed is None:
            return reply
        others = [str(self.lanes[n].terms.address) for n, one in refusals.items() if one is not reply]
        text = f"{reply.failed.text}; nor could it be had from {', '.join(others)}"
        return replace(reply, failed=replace(reply.failed, text=text))

    def _note(self, number: int, reply: Reply) -> None:
        """An agent has answered without a sample."""
        if _is_missing(reply):
            self._lacking.note(number, reply.wanted.sample, self._below(reply.wanted))
        elif self._told < MAX_TOLD:
            self._told += 1
            reason = reply.unusable if reply.failed is None else f"{reply.failed.failure}: {reply.failed.text}"
            facts = {"agent": self.lanes[number].terms.address, "key": reply.wanted.key, "reason": reason}
            log.warning(log_line("sample not had from one agent", **facts))

    def _deal(
        self, batch: BatchId, positions: Sequence[int], wanted: Sequence[Wanted], without: Iterable[int] = ()
    ) -> None:
        """Ask for samples of a batch.

        Args:
            batch: its id.
            positions: of the samples in it.
            wanted: the samples.
            without: numbers of agents that are not asked.
        """
        able = {n for n, lane in enumerate(self.lanes) if not lane.gone and n not in without}
        waiting = [lane.unanswered for lane in self.lanes]
        self.homes.weights = weights([pace.rate for pace in self._paces])
        keys = [self._below(one) for one in wanted]
        avoid = self._lacking.by([one.sample for one in wanted], keys, able) if self._lacking.found else None
        homes = self._homes(keys, waiting, able or set(range(len(self.lanes))), avoid)
        shares: dict[int, tuple[list[Wanted], list[int]]] = defaultdict(lambda: ([], []))
        for number, position, one in zip(homes, positions, wanted, strict=True):
            shares[number][0].append(one if not self._reaches else _within(one, self._reaches[number][one.source]))
            shares[number][1].append(position)
        for number, lane in enumerate(self.lanes):
            if number in shares or not lane.knows(batch):
                lane.want(batch, *shares[number])

    def _homes(
        self, keys: Sequence[str], waiting: list[int], able: set[int], avoid: Sequence[set[int]] | None
    ) -> list[int]:
        """Whom to ask for each of some keys: of what is for this rank's group alone, one of that."""
        own = able & self._preference.own
        if not own:
            return self.homes.deal(keys, waiting, able.__contains__, avoid)
        self._preference.see(now_s(), self.waited_s, self._awaited_s())
        found = [0] * len(keys)
        kept = [self._preference.keeps(key) and (avoid is None or not own <= avoid[n]) for n, key in enumerate(keys)]
        for of_group, may in ((True, own), (False, able)):
            places = [place for place, one in enumerate(kept) if one is of_group]
            without = None if avoid is None else [avoid[place] for place in places]
            dealt = self.homes.deal([keys[place] for place in places], waiting, may.__contains__, without)
            for place, number in zip(places, dealt, strict=True):
                found[place] = number
                waiting[number] += 1
        return found

    def _below(self, wanted: Wanted) -> str:
        """A key without the folder, which has another name for a worker that met the agents in another order."""
        return self._below_folder(wanted.key)

    def _below_folder(self, key: str) -> str:
        return key[len(self._folder) + 1 :] if self._folder else key

    def _see_paces(self, found: Sequence[int]) -> None:
        """All that had come was taken, before something came by the lanes that are `found`."""
        looked_s = now_s()
        for number, (lane, pace) in enumerate(zip(self.lanes, self._paces, strict=True)):
            pace.see(looked_s, lane.unanswered, lane.answers, just_now=number in found)

    def _relieve(self) -> None:
        """Ask agents that have nothing to do for what one that is far slower would take long for."""
        idle = [n for n, lane in enumerate(self.lanes) if not (lane.gone or lane.unanswered)]
        if self._preference.share < 1:
            idle = [n for n in idle if n in self._preference.own]
        if not idle or len(idle) == len(self.lanes):
            return
        rate = sum(self._paces[n].rate or UNKNOWN for n in idle)

        def may(wanted: Wanted) -> bool:
            return not (self._lacking.found and all(self._lacking.lacks(n, wanted.sample) for n in idle))

        for number, lane in enumerate(self.lanes):
            if not lane.gone and (count := too_much(lane.owed, lane.unanswered, self._paces[number].rate, rate)):
                self._deal_again(
                    lane.give_back(count, may), without=[n for n in range(len(self.lanes)) if n not in idle]
                )

    def _wait(self) -> list[int]:
        """The lanes by which something comes."""
        started_s, starved = now_s(), any(lane.starved for lane in self.lanes if not lane.gone)
        found = arrived([lane.connection for lane in self.lanes], _LOOK_S)
        waited_s = now_s() - started_s
        self.waited_s += waited_s
        self.starved_s += waited_s if starved else 0.0
        self._unlooked_s += waited_s
        return found

    def _take_in(self, numbers: Iterable[int], *, fresh: bool) -> None:
        """Take a message of each of these lanes."""
        for number in numbers:
            try:
                self.lanes[number].take(fresh=fresh)
            except SophonError as error:
                raise self._of_all(error) from error
            lane = self.lanes[number]
            hurried = sum(self._lived) > 1 and not self._lacking.found
            if (lane.stopping or lane.connection.lost) and not lane.gone and hurried:
                # What it owes is had sooner from another than from it, if others have it.
                why = "is stopping" if lane.stopping else "got its connection closed"
                lane.leave(why, in_order=lane.stopping or lane.terms.may_leave)
            self._follow()

    def _look(self) -> None:
        """See what the time that has passed without a reply means."""
        waited_s, self._unlooked_s = self._unlooked_s, 0.0
        self._take_in(range(len(self.lanes)), fresh=False)
        for lane in self.lanes:
            lane.look(waited_s)
            self._follow()
        if self.meanwhile is not None:
            self.meanwhile()

    def _of_all(self, error: SophonError) -> SophonError:
        """The error of the last agent that lived, with the addresses of all."""
        others = [f"{lane.terms.address} ({lane.why or 'found gone before'})" for lane in self.lanes if lane.gone]
        return type(error)(f"{error}; given up before: {', '.join(others)}") if others else error

    def _limit_patience(self) -> None:
        """Do not wait for one agent as for the only one while another lives."""
        for number, lane in enumerate(self.lanes):
            left_s = self._left_s[number]
            if any(not other.gone for other in self.lanes if other is not lane):
                left_s = min(left_s, lane.terms.options.dead_after_s)
            lane.trust(gone=lane.gone, left_s=left_s)

    def _follow(self) -> None:
        """Where an agent has been given up, or is trusted again, ask those that live for what has no reply."""
        lives = [not lane.gone for lane in self.lanes]
        if lives == self._lived:
            return
        self._paces = [pace if lived else Pace() for pace, lived in zip(self._paces, self._lived, strict=True)]
        self._lived = lives
        self._limit_patience()
        if not any(lives):
            return
        self._deal_again([one for lane in self.lanes for one in lane.withdraw()])

    def _deal_again(self, moved: Iterable[tuple[BatchId, Reply]], without: Iterable[int] = ()) -> None:
        """Ask for samples that were taken back; `without` as of `_deal`."""
        batches: dict[BatchId, list[Reply]] = defaultdict(list)
        for batch, reply in moved:
            batches[batch].append(reply)
        for batch, replies in batches.items():
            self._deal(batch, [one.position for one in replies], [one.wanted for one in replies], without)


def _is_missing(reply: Reply) -> bool:
    """Whether an agent says that it lacks the file."""
    return reply.failed is not None and reply.failed.failure == Failure.MISSING


def _within(wanted: Wanted, reach: int) -> Wanted:
    """What to ask an agent for that reaches so far: less of what it chooses itself, else the file."""
    if wanted.cut <= reach:
        return wanted
    return replace(wanted, cut=reach) if wanted.prices else replace(wanted, cut=0, encoding="file")
