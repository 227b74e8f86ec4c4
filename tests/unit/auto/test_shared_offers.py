"""What the agent has weighed of late: bounded, the newest kept, and the same in every process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch.multiprocessing

from sophon_loader.auto.corrections import AGENT_S_PER_BYTE, LOADER_S_PER_BYTE, CostCorrections
from sophon_loader.auto.shared_offers import KEPT, MAX_OFFERS, MIN_PER_WORKER, SharedOffers
from sophon_loader.decide.facts import FILE, Choice, ChoiceTable
from sophon_loader.host.shared import SharedArray
from sophon_loader.wire.messages import Offer

NAMES = ("file", "pixels", "array", "webp")
FILE_OFFER = Offer(0, "file", 9000, 0.0, 0.004)


def offers_of(number: int) -> list[Offer]:
    """A sample's, by which it is known again."""
    return [Offer(0, "file", number, 0.0, 0.002), Offer(2, "pixels", 3000, 0.001, 0.001)]


def kept(offers: SharedOffers) -> set[int]:
    """The numbers of the samples that are remembered."""
    _, costs = offers.costs()
    return set(costs[:, 0, 0].astype(int).tolist())


def table_of(offers: SharedOffers, *, files_here: bool = False) -> ChoiceTable | None:
    beside = CostCorrections(loader_per_rest=2.0, agent_per_work=3.0, loader_s=0.0005, file_s=0.0001, agent_s=0.0003)
    return offers.table(beside, files_here=files_here)


def test_nothing_is_there_at_first() -> None:
    offers = SharedOffers(2, NAMES)
    choices, costs = offers.costs()
    assert len(offers) == 0 and choices == (FILE,) and costs.shape == (0, 1, 3)
    assert table_of(offers) is None


def test_choices_and_what_they_take() -> None:
    offers = SharedOffers(1, NAMES)
    offers.write(0, [FILE_OFFER, Offer(2, "webp", 700, 0.003, 0.002), Offer(2, "pixels", 3000, 0.001, 0.001)])
    offers.write(0, [FILE_OFFER._replace(nbytes=500), Offer(64, "array", 1 << 30, 0.25, 0.0)])
    choices, costs = offers.costs()
    assert choices == (FILE, Choice(2, "pixels"), Choice(2, "webp"), Choice(64, "array"))
    assert costs.dtype == np.float32 and costs.shape == (2, 4, 3)
    inf = np.inf
    wanted = np.array([
        [[9000, 0, 0.004], [3000, 0.001, 0.001], [700, 0.003, 0.002], [inf, 0, 0]],
        [[500, 0, 0.004], [inf, 0, 0], [inf, 0, 0], [1 << 30, 0.25, 0]],
    ], np.float32)  # fmt: skip
    assert (costs == wanted).all()


@pytest.mark.parametrize("workers", [1, 2, 7, 64, 1000])
def test_the_newest_of_each_worker_are_kept(workers: int) -> None:
    offers = SharedOffers(workers, NAMES)
    each = max(KEPT // workers, MIN_PER_WORKER)
    nbytes = offers._costs.array.nbytes
    assert offers._serial.array.shape == (workers, each)
    for number in range(1, each + 11):
        offers.write(workers - 1, offers_of(number))
    assert kept(offers) == set(range(11, each + 11)) and len(offers) == each
    if workers > 1:
        pickle_of(offers).write(0, offers_of(1))
        assert kept(offers) == {1, *range(11, each + 11)} and len(offers) == each + 1
    assert offers._costs.array.nbytes == nbytes


def pickle_of(offers: SharedOffers) -> SharedOffers:
    """As a process that is handed it has it, over the same memory."""
    again = SharedOffers.__new__(SharedOffers)
    again.__dict__.update(offers.__getstate__())
    return again


def test_unknown_encodings_are_left_out() -> None:
    """An agent of a later release may have some; a plan could not ask for them anyhow."""
    offers = SharedOffers(1, NAMES)
    offers.write(0, [FILE_OFFER, Offer(0, "of-a-later-release", 10, 0.0, 0.0), Offer(2, "pixels", 3000, 0.001, 0.0)])
    assert offers.choices() == (FILE, Choice(2, "pixels"))


def test_a_sample_without_its_file_is_no_sample() -> None:
    offers = SharedOffers(1, NAMES)
    offers.write(0, [Offer(2, "pixels", 3000, 0.001, 0.0)])
    offers.write(0, [])
    assert offers.costs()[1].shape == (0, 2, 3)
    assert table_of(offers) is None
    offers.write(0, offers_of(5))
    assert kept(offers) == {5}


def test_more_choices_than_there_is_room_for() -> None:
    offers = SharedOffers(1, NAMES)
    offers.write(0, [FILE_OFFER, *(Offer(cut, "pixels", cut, 0.0, 0.0) for cut in range(1, MAX_OFFERS + 9))])
    assert offers.choices() == (FILE, *(Choice(cut, "pixels") for cut in range(1, MAX_OFFERS)))
    offers.write(0, [FILE_OFFER])
    assert np.isfinite(offers.costs()[1][1, :, 0]).sum() == 1, "nothing is left of whoever had the place before"


def test_an_older_sample_s_choices_do_not_show_through() -> None:
    offers = SharedOffers(1, NAMES)
    rows = offers._serial.array.shape[1]
    offers.write(0, [FILE_OFFER, Offer(3, "webp", 7, 0.0, 0.0)])
    for number in range(rows):
        offers.write(0, [FILE_OFFER._replace(nbytes=number)])
    assert offers.choices() == (FILE,) and len(offers) == rows


def test_a_sample_that_is_being_written_is_not_read() -> None:
    offers = SharedOffers(1, NAMES)
    offers.write(0, offers_of(1))
    offers.write(0, offers_of(2))
    offers._serial.array[0, 0] = 0
    assert kept(offers) == {2} and len(offers) == 1


def test_a_row_that_is_overwritten_while_it_is_read() -> None:
    """Its choices are those that were read, though no row has one of them any more."""
    offers = SharedOffers(1 + KEPT // MIN_PER_WORKER, NAMES)
    first = [FILE_OFFER, Offer(2, "pixels", 3000, 0.001, 0.002)]
    for _ in range(MIN_PER_WORKER):
        offers.write(0, first)

    def overwrite() -> None:
        for _ in range(MIN_PER_WORKER):
            offers.write(0, [FILE_OFFER])

    offers._costs = Meanwhile(offers._costs, overwrite)  # type: ignore[assignment]
    choices, _ = offers.costs()
    assert choices == (FILE, Choice(2, "pixels"))
    assert offers.costs()[0] == (FILE,)


class Meanwhile:
    """An array in the reading of which something else happens, once."""

    def __init__(self, held: SharedArray, happens: Callable[[], None]) -> None:
        self._held = held
        self._happens: list[Callable[[], None]] = [happens]

    @property
    def array(self) -> Any:
        if self._happens:
            self._happens.pop()()
        return self._held.array


def test_a_table_for_the_optimiser() -> None:
    offers = SharedOffers(1, NAMES)
    offers.write(0, [FILE_OFFER, Offer(2, "pixels", 3000, 0.001, 0.002)])
    offers.write(0, [FILE_OFFER])
    table = table_of(offers)
    assert table is not None and table.choices == (FILE, Choice(2, "pixels"))
    assert table.wire_bytes.tolist() == [[9000, 3000], [9000, np.inf]]
    agent, loader = (np.array([9000, 3000]) * per_byte for per_byte in (AGENT_S_PER_BYTE, LOADER_S_PER_BYTE))
    assert table.agent_s[0].tolist() == pytest.approx([agent[0] + 0.0001, agent[1] + 0.0033])
    assert table.loader_s[0].tolist() == pytest.approx([loader[0] + 0.0085, loader[1] + 0.0045])
    assert np.isfinite(table.agent_s).all() and np.isfinite(table.loader_s).all()
    here = table_of(offers, files_here=True)
    assert here is not None
    assert here.wire_bytes[0].tolist() == [0, 3000] and here.agent_s[0, 0] == 0
    assert here.loader_s[0].tolist() == pytest.approx([0.0085, loader[1] + 0.0045])
    assert offers.costs()[1][0, 0, 0] == 9000, "what is remembered stays as it was"


def _writes(offers: SharedOffers, worker: int, numbers: Sequence[int]) -> None:
    for number in numbers:
        offers.write(worker, offers_of(number))


@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_what_workers_write_the_main_process_reads(how: str) -> None:
    context: Any = torch.multiprocessing.get_context(how)
    offers = SharedOffers(2, NAMES)
    offers.write(0, offers_of(1))
    processes = [
        context.Process(target=_writes, args=(offers, worker, range(10 * worker + 10, 10 * worker + 14)))
        for worker in range(2)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert kept(offers) == {1, 10, 11, 12, 13, 20, 21, 22, 23}


def test_a_worker_goes_on_behind_the_one_before_it_in_its_place() -> None:
    """As in every epoch whose workers are started anew."""
    offers = SharedOffers(2, NAMES)
    rows = offers._serial.array.shape[1]
    for number in range(1, rows + 6):
        offers.write(1, offers_of(number))
    again = pickle_of(offers)
    again.write(1, offers_of(3000))
    again.write(1, offers_of(3001))
    assert kept(offers) == {3000, 3001, *range(8, rows + 6)}


@pytest.mark.parametrize(("there", "here"), [(1, 1), (1, 8), (8, 1), (3, 2)])
def test_what_was_saved_is_taken_over_by_any_number_of_workers(there: int, here: int) -> None:
    first, second = SharedOffers(there, NAMES), SharedOffers(here, NAMES)
    for number in range(1, 101):
        first.write(number % there, offers_of(number))
    second.load(first.arrays())
    assert kept(second) == kept(first) == set(range(1, 101)) and second.choices() == first.choices()
    second.write(0, offers_of(500))
    assert 500 in kept(second)
    second.load(SharedOffers(1, NAMES).arrays())  # of nothing


def test_more_than_there_is_room_for_is_taken_over_as_far_as_it_goes() -> None:
    first, second = SharedOffers(64, NAMES), SharedOffers(1, NAMES)
    for worker in range(64):
        _writes(pickle_of(first), worker, range(1, MIN_PER_WORKER + 1))
    second.load(first.arrays())
    assert len(second) == KEPT
