"""Whatever an agent and the network do: every wanted sample gets exactly one reply, in bounded time and space."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import example, given
from hypothesis import strategies as st

from sophon_loader.client.options import OffloadOptions
from sophon_loader.client.requests import Requests
from sophon_loader.client.wanted import Ask, BatchId, Instruction, Reply, Wanted
from sophon_loader.wire.messages import Sample
from tests.support.drawn import examples
from tests.support.lossy import FATES, LossyAgent, Spoilt, batches_of

OPTIONS = OffloadOptions(window=5, window_nbytes=2000, heartbeat_s=0.5, dead_after_s=2.0, resend_after_s=3.0)
PAYLOAD = bytes(600)
STEP_S = 0.1


class Worker:
    """Drives `Requests` as client/session.py does, by a clock of its own."""

    def __init__(self, agent: LossyAgent) -> None:
        self.agent = agent
        self.now_s = 0.0
        self.requests = Requests(OPTIONS, "1", 0.0)

    def fetch(self, batch: BatchId, want: list[Wanted], ahead: Sequence[tuple[BatchId, list[Wanted]]]) -> list[Reply]:
        kept = [batch, *(one for one, _ in ahead)]
        self.requests.drop(keep=kept)
        self.do(self.requests.want(batch, want, self.now_s))
        for following, samples in ahead:
            self.do(self.requests.want(following, samples, self.now_s))
        assert self.requests.missing(batch) == len(want)
        replies = [self.next(batch) for _ in range(len(want))]
        assert self.requests.missing(batch) == 0
        assert self.requests.ready(batch) is None
        self.requests.drop(keep=kept[1:])
        return replies

    def next(self, batch: BatchId) -> Reply:
        while (reply := self.requests.ready(batch)) is None:
            message = self.agent.says()
            if isinstance(message, Spoilt):
                spoilt = self.requests.unusable(message.request, "because", self.now_s, damaged=message.damaged)
                self.do(spoilt)
                continue
            if message is not None:
                payload = PAYLOAD if isinstance(message, Sample) else b""
                self.do(self.requests.receive(message, payload, self.now_s))
                continue
            self.do(self.requests.tick(self.now_s, STEP_S))
            self.now_s += STEP_S
            if round(self.now_s / STEP_S) % 37 == 0:
                self.agent.release()
        return reply

    def do(self, instructions: Sequence[Instruction]) -> None:
        for one in instructions:
            if isinstance(one, Ask):
                assert {wanted.source for _, wanted in one.items} == {one.source}
        assert len(self.requests._asked) <= OPTIONS.window
        held_nbytes = sum(len(reply.payload) for replies in self.requests._ready.values() for reply in replies.values())
        assert self.requests._held_nbytes == held_nbytes
        self.agent.handle(instructions)


@examples(300)
@given(
    sizes=st.lists(st.integers(0, 12), min_size=1, max_size=6),
    script=st.lists(st.sampled_from(FATES), max_size=80),
    looks_ahead=st.lists(st.sampled_from(["yes", "no", "far", "wrong"]), min_size=6, max_size=6),
)
@example([4, 4], ["die"] * 3, ["yes"] * 6)
@example([9, 9, 9, 9], ["drop", "answer", "drop"], ["far"] * 6)
@example([5, 9], ["drop", "busy", "restart", "drop", "double"], ["wrong"] * 6)
def test_every_sample_gets_one_reply_whatever_happens(
    sizes: list[int], script: list[str], looks_ahead: list[str]
) -> None:
    worker = Worker(LossyAgent(script))
    batches = batches_of(sizes)
    for number, (batch, want) in enumerate(batches):
        ahead = batches[number + 1 :][: {"no": 0, "yes": 1}.get(looks_ahead[number], 3)]
        if looks_ahead[number] == "wrong":  # it never comes true
            ahead = [(BatchId(9, 0, number), [Wanted(0, 999, 1, "pixels", "nobody wants this")] * 3)]
        replies = worker.fetch(batch, want, ahead)
        assert sorted(reply.position for reply in replies) == list(range(len(want)))
        assert all(reply.wanted is want[reply.position] for reply in replies)
    worker.requests.drop(keep=[])
    assert not worker.requests._requests and not worker.requests._ready and not worker.requests._queue
    # Each entry of the script costs at most a few time-outs, however they are combined.
    assert worker.now_s <= 10 + 30 * OPTIONS.resend_after_s * (1 + len(script))


def test_a_good_agent_costs_no_retries_and_no_time() -> None:
    worker = Worker(LossyAgent([]))
    batches = batches_of([12, 12])
    worker.fetch(*batches[0], batches[1:])
    worker.fetch(*batches[1], [])
    assert worker.requests.retries == 0
    assert worker.now_s == 0.0
