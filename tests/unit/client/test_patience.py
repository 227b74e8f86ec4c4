"""What is silence, and what is not. `test_requests.py` shows what follows from it."""

from __future__ import annotations

from sophon_loader.client.options import OffloadOptions
from sophon_loader.client.patience import FLOWS_NBYTES_PER_S, MOST_AT_WORK_S, MOST_FLOWING_S, Advice, Patience, Silence

STEP_S = 0.5
FLOW = int(2 * FLOWS_NBYTES_PER_S * STEP_S)
OPTIONS = OffloadOptions(heartbeat_s=2.0, dead_after_s=10.0, resend_after_s=4.0)


def waited(patience: Patience, seconds: float, nbytes: int) -> list[Advice]:
    """What is advised, step by step."""
    return [patience.waited(STEP_S, nbytes) for _ in range(int(seconds / STEP_S))]


def test_bytes_that_come_are_no_silence() -> None:
    patience = Patience(OPTIONS)
    assert set(waited(patience, 100.0, FLOW)) == {Advice.WAIT}
    patience.progressed(turnaround_s=100.0)
    assert patience.lost_s == 0


def test_a_trickle_is_silence() -> None:
    assert Advice.GIVE_UP in waited(Patience(OPTIONS), 10.0, int(FLOWS_NBYTES_PER_S * STEP_S / 2))


def test_silence_behind_bytes() -> None:
    patience = Patience(OPTIONS)
    waited(patience, 60.0, FLOW)
    assert Advice.GIVE_UP not in waited(patience, 9.5, 0)
    assert patience.waited(STEP_S) is Advice.GIVE_UP


def test_a_message_without_an_end_is_not_waited_for_for_ever() -> None:
    patience = Patience(OPTIONS)
    assert set(waited(patience, MOST_FLOWING_S, FLOW)) == {Advice.WAIT}
    assert Advice.GIVE_UP in waited(patience, 20.0, FLOW)


def test_a_sample_begins_anew() -> None:
    patience = Patience(OPTIONS)
    for _ in range(3):
        assert set(waited(patience, 0.8 * MOST_FLOWING_S, FLOW)) == {Advice.WAIT}
        patience.progressed(turnaround_s=1.0)


def test_a_long_silence_is_met_with_pings_then_once_with_another_connection_then_with_nothing() -> None:
    silence = Silence(OPTIONS)
    steps = [(n * STEP_S, silence.waited(STEP_S)) for n in range(1, 21)]
    said = {at_s: advice for at_s, advice in steps if advice is not Advice.WAIT}
    assert said == {
        2.0: Advice.PING, 4.0: Advice.PING, 6.0: Advice.RENEW, 8.0: Advice.PING, 10.0: Advice.GIVE_UP
    }  # fmt: skip
    silence.heard()
    assert silence.waited(STEP_S) is Advice.WAIT


def test_a_process_that_stood_still_has_not_waited() -> None:
    assert Silence(OPTIONS).waited(100.0) is Advice.WAIT


def at_work(patience: Patience, seconds: float) -> list[Advice]:
    """What is advised, step by step, while an agent answers each ping with its word that it is at work."""
    said = []
    for _ in range(int(seconds / STEP_S)):
        said.append(patience.waited(STEP_S))
        if said[-1] is Advice.PING:
            patience.heard()
            patience.told(at_work=True)
    return said


def test_an_agent_at_work_is_waited_for_and_not_asked_again() -> None:
    patience = Patience(OPTIONS)
    patience.left_s = 5.0
    assert set(at_work(patience, 100.0)) == {Advice.WAIT, Advice.PING}
    patience.progressed(turnaround_s=100.0)
    assert patience.lost_s == 0


def test_the_word_of_an_agent_is_not_enough_for_ever() -> None:
    patience = Patience(OPTIONS)
    patience.left_s = 5.0
    assert Advice.GIVE_UP not in at_work(patience, MOST_AT_WORK_S)
    assert Advice.GIVE_UP in at_work(patience, 10.0)


def test_an_agent_that_was_at_work_and_falls_silent_is_given_up_as_ever() -> None:
    patience = Patience(OPTIONS)
    at_work(patience, 50.0)
    said = waited(patience, 12.0, 0)
    assert Advice.GIVE_UP in said and patience.why == "got silence for 10 s"


def test_an_agent_that_is_at_nothing_any_more_is_asked_again_and_given_up() -> None:
    patience = Patience(OPTIONS)
    patience.left_s = 5.0
    at_work(patience, 50.0)
    patience.told(at_work=False)
    assert Advice.GIVE_UP in waited(patience, 6.0, 0)


def test_what_is_known_to_be_lost_is_asked_for_again_though_the_agent_is_at_work() -> None:
    patience = Patience(OPTIONS)
    at_work(patience, 3.0)
    patience.lost()
    assert Advice.ASK_AGAIN in waited(patience, 1.0, 0)
