"""The state machine of one worker's requests, event by event: no sockets, and a clock that is a number."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from sophon_loader.client.options import OffloadOptions
from sophon_loader.client.patience import LOST_S, MAX_RESENDS
from sophon_loader.client.requests import FILES_ONLY_S, MAX_DAMAGED, MAX_PAUSE_S, MAX_REGISTRATIONS, PAUSE_S, Requests
from sophon_loader.client.wanted import Ask, BatchId, Instruction, RegisterAgain, Reply, Say, Wanted
from sophon_loader.wire.messages import AT_WORK, AskStatus, Failed, Failure, Message, Ping, Pong, Status
from tests.support.loaders import sample_message as sample

OPTIONS = OffloadOptions(window=4, heartbeat_s=2.0, dead_after_s=10.0, resend_after_s=30.0)
FIRST, SECOND, THIRD = BatchId(1, 0, 0), BatchId(1, 0, 1), BatchId(1, 0, 2)


def wanted(count: int, source: int = 0, start: int = 0) -> list[Wanted]:
    return [Wanted(source, start + i, 1, "pixels", f"key-{start + i}") for i in range(count)]


def failed(failure: str, ids: Iterable[int]) -> Failed:
    return Failed(failure, "because", list(ids), "digest")


def asked_for(instructions: Sequence[Instruction]) -> list[int]:
    """The samples that are asked for, by their indices."""
    return [one.sample for ask in instructions if isinstance(ask, Ask) for _, one in ask.items]


def asked(instructions: Sequence[Instruction]) -> list[int]:
    return [number for one in instructions if isinstance(one, Ask) for number, _ in one.items]


def drained(requests: Requests, batch: BatchId) -> list[Reply]:
    replies = []
    while (reply := requests.ready(batch)) is not None:
        replies.append(reply)
    return replies


def machine(options: OffloadOptions = OPTIONS) -> Requests:
    return Requests(options, "agent-1", 0.0)


def test_a_batch_is_asked_for_in_one_message_and_answered_once_each() -> None:
    requests = machine()
    instructions = requests.want(FIRST, wanted(3), 0.0)
    assert len(instructions) == 1
    ids = asked(instructions)
    for number in reversed(ids):
        requests.receive(sample(number), b"x", 0.1)
    replies = drained(requests, FIRST)
    assert [reply.position for reply in replies] == [2, 1, 0]
    assert all(reply.sample is not None and reply.payload == b"x" for reply in replies)
    assert requests.retries == 0


def test_a_reply_can_be_taken_by_its_position() -> None:
    requests = machine()
    ids = asked(requests.want(FIRST, wanted(3), 0.0))
    requests.receive(sample(ids[2]), b"last", 0.1)
    requests.receive(sample(ids[1]), b"second", 0.2)
    assert requests.ready(FIRST, 0) is None
    requests.receive(sample(ids[0]), b"first", 0.3)
    taken = [requests.ready(FIRST, position) for position in range(3)]
    assert [reply.payload for reply in taken if reply is not None] == [b"first", b"second", b"last"]
    assert requests.missing(FIRST) == 0 and requests.ready(FIRST) is None


def test_an_instruction_carries_the_samples_to_ask_for() -> None:
    (ask,) = machine().want(FIRST, wanted(2), 0.0)
    assert isinstance(ask, Ask)
    assert [(number, one.key) for number, one in ask.items] == [(1, "key-0"), (2, "key-1")]


def test_a_message_carries_one_source_and_one_batch() -> None:
    requests = machine()
    mixed = [*wanted(1, source=0), *wanted(2, source=1), *wanted(1, source=0)]
    asks = [one for one in requests.want(FIRST, mixed, 0.0) if isinstance(one, Ask)]
    assert [(ask.source, len(ask.items)) for ask in asks] == [(0, 2), (1, 2)]


def test_the_window_bounds_what_is_unanswered_across_batches() -> None:
    requests = machine()
    ids = asked(requests.want(FIRST, wanted(6), 0.0))
    assert len(ids) == 4
    assert requests.want(SECOND, wanted(6, start=6), 0.0) == []
    assert asked_for(requests.receive(sample(ids[0]), b"", 0.1)) == [4]
    assert asked_for(requests.receive(sample(ids[1]), b"", 0.2)) == [5]
    assert asked_for(requests.receive(sample(ids[2]), b"", 0.3)) == [6], "of the next batch"


def test_a_full_window_is_filled_up_again_by_a_message_for_several_samples() -> None:
    requests = machine(OffloadOptions(window=8))
    ids = asked(requests.want(FIRST, wanted(13), 0.0))
    assert len(ids) == 8
    counts = [len(asked(requests.receive(sample(number), b"", 0.1))) for number in ids]
    assert counts == [0, 2, 0, 2, 1, 0, 0, 0]  # the last one waits for no others, since there are none


def test_files_of_this_host_are_not_asked_for() -> None:
    requests = machine()
    mixed = [Wanted(0, 0, 0, "file", "a", here=True), Wanted(0, 1, 1, "pixels", "b"), Wanted(0, 2, 0, "roi-jpeg", "c")]
    instructions = requests.want(FIRST, mixed, 0.0)
    ids = asked(instructions)
    assert asked_for(instructions) == [1, 2] and requests.missing(FIRST) == 3
    assert [(reply.position, reply.sample) for reply in drained(requests, FIRST)] == [(0, None)]
    for number in ids:
        requests.receive(sample(number), b"", 0.1)
    assert [reply.position for reply in drained(requests, FIRST)] == [1, 2]


def test_doubled_and_late_and_unknown_answers_are_ignored() -> None:
    requests = machine()
    (number,) = asked(requests.want(FIRST, wanted(1), 0.0))
    for answer in (sample(number), sample(number), sample(12345)):
        requests.receive(answer, b"", 0.1)
    requests.receive(failed(Failure.MISSING, [number, 777]), b"", 0.1)
    assert len(drained(requests, FIRST)) == 1


def test_the_same_sample_twice_in_a_batch_is_two_requests() -> None:
    requests = machine()
    ids = asked(requests.want(FIRST, [*wanted(1), *wanted(1)], 0.0))
    assert len(set(ids)) == 2
    for number in ids:
        requests.receive(sample(number), b"", 0.1)
    assert sorted(reply.position for reply in drained(requests, FIRST)) == [0, 1]


def test_a_failed_sample_is_a_reply_of_its_own() -> None:
    requests = machine()
    bad, good = asked(requests.want(FIRST, wanted(2), 0.0))
    requests.receive(failed(Failure.MISSING, [bad]), b"", 0.1)
    requests.receive(sample(good), b"", 0.1)
    first, second = drained(requests, FIRST)
    assert first.failed is not None and first.failed.failure == Failure.MISSING and first.position == 0
    assert second.sample is not None and second.position == 1


# --- look-ahead -----------------------------------------------------------------------------------------------


def test_a_look_ahead_that_comes_true_is_not_asked_for_again() -> None:
    requests = machine(OffloadOptions(window=8))
    requests.want(FIRST, wanted(2), 0.0)
    ahead = asked(requests.want(SECOND, wanted(3, start=2), 0.0))
    for number in ahead:
        requests.receive(sample(number), b"", 0.1)
    requests.drop(keep=[SECOND])
    requests.drop(keep=[SECOND, THIRD])
    assert asked(requests.want(SECOND, wanted(3, start=2), 0.2)) == []
    assert len(drained(requests, SECOND)) == 3


def test_a_dropped_batch_is_forgotten_and_its_answers_are_ignored() -> None:
    requests = machine()
    ids = asked(requests.want(FIRST, wanted(3), 0.0))
    requests.drop(keep=[])
    assert asked(requests.want(SECOND, wanted(4, start=3), 0.1)) != ids
    for number in ids:
        requests.receive(sample(number), b"", 0.2)
    for _ in range(4):
        for number in list(requests._asked):
            requests.receive(sample(number), b"", 0.3)
    assert [reply.wanted.sample for reply in drained(requests, SECOND)] == [3, 4, 5, 6]


@pytest.mark.parametrize("failure", [Failure.BUSY, Failure.STOPPING, Failure.UNKNOWN_PIPELINE, Failure.MISSING])
def test_refusals_of_a_dropped_batch_open_the_window_again(failure: str) -> None:
    """Else the next batch would wait for `resend_after_s`."""
    requests = machine()
    ids = asked(requests.want(FIRST, wanted(4), 0.0))
    requests.drop(keep=[])
    then = requests.want(SECOND, wanted(2, start=4), 0.1)
    again = requests.receive(failed(failure, ids), b"", 0.2)
    later = requests.tick(0.3 + PAUSE_S, PAUSE_S)
    assert len(requests._asked) == 2 and set(asked_for([*then, *again, *later])) == {4, 5}


# --- refusals -------------------------------------------------------------------------------------------------


def test_an_unknown_pipeline_is_registered_and_asked_for_again() -> None:
    requests = machine()
    ids = asked(requests.want(FIRST, [*wanted(1, source=0), *wanted(1, source=1, start=1)], 0.0))
    instructions = requests.receive(failed(Failure.UNKNOWN_PIPELINE, ids), b"", 0.1)
    assert instructions[:2] == [RegisterAgain(0), RegisterAgain(1)]
    assert asked(instructions[2:]) == ids
    for number in ids:
        requests.receive(sample(number), b"", 0.2)
    assert len(drained(requests, FIRST)) == 2
    assert requests.retries == 2


@pytest.mark.parametrize("failure", [Failure.BUSY, Failure.STOPPING])
def test_a_refusal_makes_a_pause_and_a_smaller_window_that_recovers(failure: str) -> None:
    requests = machine()
    ids = asked(requests.want(FIRST, wanted(12), 0.0))
    assert len(ids) == 4
    assert requests.receive(failed(failure, ids), b"", 1.0) == []
    assert requests.tick(1.0 + PAUSE_S / 2, 0.05) == []
    again = asked(requests.tick(1.01 + PAUSE_S, 0.05))
    assert again == ids[:2]
    now_s, widest = 1.2, 0
    for _ in range(12):
        requests.receive(sample(next(iter(requests._asked))), b"", now_s)
        widest = max(widest, len(requests._asked))
    assert widest == 4
    assert len(drained(requests, FIRST)) == 12


def test_a_refusal_of_everything_still_leaves_a_window_of_one_and_longer_and_longer_pauses() -> None:
    requests = machine()
    requests.want(FIRST, wanted(2), 0.0)
    now_s, pauses = 0.0, []
    for _ in range(8):
        refused_s = now_s
        assert requests.receive(failed(Failure.BUSY, list(requests._asked)), b"", now_s) == []
        while not (again := asked(requests.tick(now_s, 0.0))):
            now_s += 0.05
        assert len(again) >= 1
        pauses.append(round(now_s - refused_s, 1))
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, MAX_PAUSE_S, MAX_PAUSE_S, MAX_PAUSE_S]
    requests.receive(sample(next(iter(requests._asked))), b"", now_s)
    requests.receive(failed(Failure.BUSY, list(requests._asked)), b"", now_s)
    assert asked(requests.tick(now_s + PAUSE_S, 0.1)), "a sample came, so the next pause is a short one"


def test_refusals_of_the_same_samples_do_not_fill_the_queue() -> None:
    requests = machine()
    ids = asked(requests.want(FIRST, wanted(4), 0.0))
    for _ in range(100):
        requests.receive(failed(Failure.BUSY, ids * 3), b"", 0.1)
        requests.receive(failed(Failure.UNKNOWN_PIPELINE, ids * 3), b"", 0.1)
    assert len(requests._queue) == 4 and requests.retries == 4


def test_a_pipeline_that_the_agent_never_knows_has_files_asked_for() -> None:
    requests = machine()
    said, now_s = list(requests.want(FIRST, wanted(2), 0.0)), 0.0
    ids, registrations = asked(said), 0
    while requests.missing(FIRST) and not drained(requests, FIRST):
        now_s += 0.05
        assert now_s < 5
        asks = [one for one in said if isinstance(one, Ask)]
        registrations += sum(isinstance(one, RegisterAgain) for one in said)
        said = list(requests.tick(now_s, 0.05))
        for ask in asks:
            for number, one in ask.items:
                answer = sample(number) if one.encoding == "file" else failed(Failure.UNKNOWN_PIPELINE, [number])
                said += requests.receive(answer, b"", now_s)
    assert registrations == MAX_REGISTRATIONS and not requests.gone
    requests.drop(keep=[])
    for number in ids:
        requests.receive(sample(number), b"", now_s)
    (later,) = requests.want(SECOND, wanted(1), now_s + MAX_PAUSE_S)
    assert isinstance(later, Ask) and later.items[0][1].encoding == "file"
    (after,) = requests.want(THIRD, wanted(1), now_s + FILES_ONLY_S + 1)
    assert isinstance(after, Ask) and after.items[0][1].encoding != "file"


def test_a_reply_to_a_file_in_place_of_a_value_is_of_what_was_wanted() -> None:
    requests = machine()
    requests.refused(0, 0.0)
    ((number, one),) = next(ask.items for ask in requests.want(FIRST, wanted(1), 0.0) if isinstance(ask, Ask))
    assert (one.cut, one.encoding, one.key) == (0, "file", "key-0")
    requests.receive(sample(number), b"", 0.1)
    (reply,) = drained(requests, FIRST)
    assert reply.wanted == wanted(1)[0]


def test_several_refusals_of_one_restart_register_once() -> None:
    requests = machine(OffloadOptions(window=8))
    first = asked(requests.want(FIRST, wanted(2), 0.0))
    second = asked(requests.want(SECOND, wanted(2, start=2), 0.0))
    assert RegisterAgain(0) in requests.receive(failed(Failure.UNKNOWN_PIPELINE, first), b"", 0.1)
    again = requests.receive(failed(Failure.UNKNOWN_PIPELINE, second), b"", 0.1)
    assert RegisterAgain(0) not in again and asked(again) == second


# --- silence --------------------------------------------------------------------------------------------------

STEP_S = 0.1


def said(instructions: Sequence[Instruction]) -> list[Instruction]:
    return [one for one in instructions if isinstance(one, Say)]


class Waiter:
    """Somebody who waits for a sample, and what the state machine has him do: (s, instruction)."""

    def __init__(self, requests: Requests, *, answers_pings: bool = False) -> None:
        self.requests = requests
        self.answers_pings = answers_pings
        self.now_s = 0.0
        self.done: list[tuple[float, Instruction]] = []

    def until(self, end_s: float) -> list[int]:
        """The numbers of what is asked for meanwhile."""
        found = []
        while self.now_s < end_s and not self.requests.gone:
            self.now_s = round(self.now_s + STEP_S, 3)
            one = self.requests.tick(self.now_s, STEP_S)
            self.done += [(self.now_s, instruction) for instruction in one]
            found += asked(one)
            if self.answers_pings:
                self.requests.receive(Pong("agent-1"), b"", self.now_s)
        return found

    def times(self, kind: type) -> list[int]:
        return [round(at_s) for at_s, one in self.done if isinstance(one, kind)]


def test_a_silent_agent_is_pinged_and_then_given_up() -> None:
    requests = machine()
    waiter = Waiter(requests)
    requests.want(FIRST, wanted(6), 0.0)
    waiter.until(9.8)
    assert sorted(set(waiter.times(Say))) == [2, 4, 6, 8] and waiter.times(Ask) == []
    assert [one.message for _, one in waiter.done[:2] if isinstance(one, Say)] == [Ping(), AskStatus()]
    assert not requests.gone and drained(requests, FIRST) == []
    waiter.until(11.0)
    assert requests.gone and 9.8 < waiter.now_s < 10.3
    replies = drained(requests, FIRST)
    assert sorted(reply.position for reply in replies) == list(range(6))
    assert all(reply.sample is None and reply.failed is None for reply in replies)
    assert {reply.why for reply in replies} == {"got silence for 10 s"}


@pytest.mark.parametrize("dead_after_s", [0.5, 2.0, 2.1])
def test_an_agent_is_asked_for_a_sign_of_life_before_it_is_given_up(dead_after_s: float) -> None:
    requests = machine(OffloadOptions(heartbeat_s=2.0, dead_after_s=dead_after_s))
    requests.want(FIRST, wanted(1), 0.0)
    waiter = Waiter(requests)
    waiter.until(100)
    assert len(waiter.times(Say)) >= 1
    assert waiter.now_s <= dead_after_s + 0.2


def test_an_answer_to_the_ping_is_a_sign_of_life() -> None:
    requests = machine()
    (number,) = asked(requests.want(FIRST, wanted(1), 0.0))
    Waiter(requests, answers_pings=True).until(25.0)
    assert not requests.gone
    requests.receive(sample(number), b"", 25.0)
    assert len(drained(requests, FIRST)) == 1


def test_the_loader_s_own_absence_is_not_the_agent_s_silence() -> None:
    """An op that takes longer than `dead_after_s` at the loader, or a process that was stopped in the middle of a wait,
    must not make an agent look dead."""
    requests = machine()
    ids = asked(requests.want(FIRST, wanted(2), 0.0))
    requests.receive(sample(ids[0]), b"", 0.1)
    assert drained(requests, FIRST)
    for now_s in (50.0, 100.0):
        requests.tick(now_s, 50.0)
        assert not requests.gone
    requests.receive(Pong("agent-1"), b"", 100.1)
    requests.tick(100.2, 0.1)
    assert not requests.gone


def test_a_gone_agent_costs_the_next_batches_no_wait_until_it_is_trusted_again() -> None:
    requests = machine()
    requests.want(FIRST, wanted(1), 0.0)
    Waiter(requests).until(11.0)
    assert requests.gone
    requests.drop(keep=[])
    assert requests.want(SECOND, wanted(2), 11.0) == []
    assert len(drained(requests, SECOND)) == 2
    requests.receive(Pong("agent-1"), b"", 11.4)
    assert requests.gone, "what it says is no sample"
    requests.drop(keep=[])
    requests.trust(gone=False, left_s=30.0)
    assert asked(requests.want(THIRD, wanted(2), 11.5))
    assert not requests.gone


def test_a_restarted_agent_is_asked_again() -> None:
    requests = machine()
    ids = asked(requests.want(FIRST, wanted(3), 0.0))
    requests.receive(sample(ids[0]), b"", 0.1)
    assert asked(requests.receive(Pong("agent-1"), b"", 0.2)) == []
    assert asked(requests.receive(Pong("agent-2"), b"", 0.3)) == ids[1:]
    assert asked(requests.receive(Pong("agent-2"), b"", 0.4)) == []
    assert requests.retries == 2


def test_what_was_on_its_way_over_a_broken_connection_is_asked_for_again() -> None:
    requests = machine()
    ids = asked(requests.want(FIRST, wanted(3), 0.0))
    requests.receive(sample(ids[0]), b"", 0.1)
    requests.receive(failed(Failure.STOPPING, [ids[1]]), b"", 0.1)
    assert sorted(asked(requests.reconnected(0.12))) == ids[1:], "also what was to wait for a while"
    assert sorted(asked(requests.reconnected(0.2))) == ids[1:]
    for number in ids:
        requests.receive(sample(number), b"", 0.3)
    assert len(drained(requests, FIRST)) == 3


def test_lost_samples_are_asked_for_again_less_and_less_often() -> None:
    requests = machine()
    ids = asked(requests.want(FIRST, wanted(2), 0.0))
    waiter = Waiter(requests, answers_pings=True)
    waiter.until(440.0)
    assert waiter.times(Ask) == [30, 90, 210]
    assert requests.retries == 6
    for number in ids:
        requests.receive(sample(number), b"", 441.0)
    assert len(drained(requests, FIRST)) == 2


def test_a_sample_counts_as_progress_and_ends_the_back_off() -> None:
    requests = machine(OffloadOptions(window=2, resend_after_s=30.0))
    ids = asked(requests.want(FIRST, wanted(3), 0.0))
    waiter = Waiter(requests, answers_pings=True)
    assert waiter.until(31.0) == ids
    requests.receive(sample(ids[0]), b"", waiter.now_s)
    assert len(waiter.until(60.0)) == 0
    assert len(waiter.until(62.0)) == 2


def test_an_idle_loader_neither_pings_nor_gives_up() -> None:
    requests = machine()
    assert requests.tick(100.0, 100.0) == []
    (number,) = asked(requests.want(FIRST, wanted(1), 200.0))
    assert requests.tick(201.0, 1.0) == []
    requests.receive(sample(number), b"", 201.0)
    assert requests.tick(1000.0, 799.0) == []
    assert not requests.gone


def test_an_agent_that_lives_but_never_answers_is_given_up_in_the_end() -> None:
    """A worker of the agent that hangs in a file system, say: every wait has a limit."""
    requests = machine()
    requests.want(FIRST, wanted(2), 0.0)
    waiter = Waiter(requests, answers_pings=True)
    waiter.until(3600.0)
    assert len(drained(requests, FIRST)) == 2
    assert 449 < waiter.now_s < 452, "30 + 60 + 120 + 240 s"


@pytest.mark.parametrize("left_s", [0.0, 45.0, 90.0])
def test_where_files_are_here_it_is_given_up_sooner(left_s: float) -> None:
    requests = machine()
    requests.trust(gone=False, left_s=left_s)
    requests.want(FIRST, wanted(2), 0.0)
    waiter = Waiter(requests, answers_pings=True)
    waiter.until(3600.0)
    assert len(drained(requests, FIRST)) == 2
    assert waiter.now_s == pytest.approx(max(30.0, left_s), abs=0.3)
    assert requests.patience.lost_s == pytest.approx(waiter.now_s, abs=0.3)


NOISE = ["pongs", "unknown ids", "busy", "stopping", "unknown pipeline", "restarts"]


@pytest.mark.parametrize("noise", NOISE)
def test_only_samples_are_progress(noise: str) -> None:
    """An agent may say what it likes: without a sample, it is given up as early as one that answers pings only."""
    requests = machine()
    requests.trust(gone=False, left_s=90.0)
    requests.want(FIRST, wanted(5), 0.0)
    now_s = 0.0
    while not requests.gone:
        now_s += STEP_S
        assert now_s < 200, "it is given up"
        ids = list(requests._asked)
        answers: dict[str, Message] = {
            "pongs": Pong("agent-1"),
            "unknown ids": sample(10**9),
            "busy": failed(Failure.BUSY, ids),
            "stopping": failed(Failure.STOPPING, ids),
            "unknown pipeline": failed(Failure.UNKNOWN_PIPELINE, ids),
            "restarts": Pong(f"agent-{now_s}"),
        }
        requests.receive(answers[noise], b"", now_s)
        requests.tick(now_s, STEP_S)
        assert requests.gone or len(requests._queue) + len(requests._asked) == 5
    assert len(drained(requests, FIRST)) == 5
    assert now_s == pytest.approx(90.0, abs=1.0)


def test_where_replies_take_long_asking_again_waits_longer() -> None:
    requests = machine()
    (first, *_) = asked(requests.want(FIRST, wanted(2), 0.0))
    waiter = Waiter(requests, answers_pings=True)
    waiter.until(25.0)
    requests.receive(sample(first), b"", 25.0)
    assert waiter.until(74.0) == []
    assert waiter.until(76.0) != [], "after twice as long as the last reply took"


# --- what cannot be used --------------------------------------------------------------------------------------


def test_a_damaged_answer_is_asked_for_again_at_once_and_in_the_end_given_up() -> None:
    requests = machine()
    first, *others = asked(requests.want(FIRST, wanted(3), 0.0))
    for tries in range(1, MAX_DAMAGED + 1):
        assert asked(requests.unusable(first, "damaged", 0.1, damaged=True)) == [first]
        assert requests.retries == tries and not drained(requests, FIRST)
    assert asked(requests.unusable(first, "damaged again", 0.1, damaged=True)) == []
    (reply,) = drained(requests, FIRST)
    assert (reply.unusable, reply.sample, reply.position) == ("damaged again", None, 0)
    for number in others:
        requests.receive(sample(number), b"x", 0.2)
    assert len(drained(requests, FIRST)) == 2


def test_a_damaged_answer_that_nobody_waits_for_changes_nothing() -> None:
    requests = machine()
    first, second = asked(requests.want(FIRST, wanted(2), 0.0))
    requests.receive(sample(first), b"x", 0.1)
    assert requests.unusable(first, "a doubled answer", 0.1, damaged=True) == []
    assert requests.unusable(999, "of a dropped batch", 0.1, damaged=True) == []
    assert requests.retries == 0 and len(drained(requests, FIRST)) == 1
    requests.receive(sample(second), b"x", 0.1)
    assert len(drained(requests, FIRST)) == 1


def test_an_answer_that_breaks_the_rules_is_not_asked_for_again() -> None:
    requests = machine()
    first, second = asked(requests.want(FIRST, wanted(2), 0.0))
    assert asked(requests.unusable(first, "cut 65", 0.1, damaged=False)) == []
    (reply,) = drained(requests, FIRST)
    assert reply.unusable == "cut 65" and requests.retries == 0
    assert requests.missing(FIRST) == 1 and requests.asked_s(second) == 0.0


def test_when_nobody_knows_what_got_lost_the_rest_is_waited_for_half_a_second() -> None:
    """Not `resend_after_s`; and not at once, since most of what is unanswered is well and on its way."""
    requests = machine()
    first, second, third = asked(requests.want(FIRST, wanted(3), 0.0))
    assert requests.unusable(None, "a header", 0.1, damaged=True) == []
    requests.receive(sample(first), b"x", 0.3)
    waiter = Waiter(requests, answers_pings=True)
    assert waiter.until(LOST_S - 0.1) == []
    assert waiter.until(LOST_S + 0.1) == [second, third]
    assert waiter.until(20 * LOST_S) == [], "once it has been asked for, patience is as ever"
    requests.unusable(None, "again", 2.0, damaged=True)
    assert waiter.until(20 * LOST_S + 0.1) == [second, third]


def test_an_agent_whose_every_header_is_damaged_is_given_up() -> None:
    requests = machine()
    requests.want(FIRST, wanted(2), 0.0)
    now_s = 0.0
    while not requests.gone:
        now_s += 0.1
        requests.unusable(None, "a header", now_s, damaged=True)
        requests.tick(now_s, 0.1)
        assert now_s < 2.1 * LOST_S * 2**MAX_RESENDS
    assert [reply.sample for reply in drained(requests, FIRST)] == [None, None]
    requests.unusable(None, "a header", now_s, damaged=True)
    assert requests.gone, "that is no sign of life that could be believed"


def test_a_connection_that_is_made_anew_is_no_sign_of_life() -> None:
    """Else an agent that stands still, on a host that takes connections, is waited for nearly twice `dead_after_s`."""
    requests = machine(OffloadOptions(heartbeat_s=2.0, dead_after_s=10.0))
    requests.want(FIRST, wanted(1), 0.0)
    seconds = 0.0
    while not requests.gone:
        seconds += 0.5
        requests.tick(seconds, 0.5)
        if seconds == 8.0:
            requests.reconnected(seconds)
    assert seconds == 10.0


@pytest.mark.parametrize(("values", "gone"), [
    ({AT_WORK: 6}, False), ({AT_WORK: 0}, True), ({}, True), ({AT_WORK: True}, True), ({AT_WORK: "6"}, True),
])  # fmt: skip
def test_only_an_agent_that_counts_samples_at_work_is_waited_for(values: dict[str, Any], gone: bool) -> None:
    """One of an older release says nothing of that."""
    requests = machine()
    requests.trust(gone=False, left_s=75.0)
    requests.want(FIRST, wanted(6), 0.0)
    waiter = Waiter(requests)
    while waiter.now_s < 100.0 and not requests.gone:
        waiter.until(waiter.now_s + 1.0)
        requests.receive(Status(values), b"", waiter.now_s)
    assert requests.gone == gone
    assert bool(waiter.times(Ask)) == gone, "what is at work is not asked for again"
