"""Which batches a worker asks for and when, with a session that only notes that."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import get_worker_info
from torchvision.datasets import ImageFolder

from sophon_loader.auto.shared_live import Live
from sophon_loader.auto.shared_offers import SharedOffers
from sophon_loader.auto.shared_tariff import SharedTariff
from sophon_loader.client.wanted import BatchId, Reply, Wanted
from sophon_loader.decide.facts import Choice
from sophon_loader.encodings.catalogue import encoding_names
from sophon_loader.errors import AgentUnreachable
from sophon_loader.order.tickets import QueuedTickets, Ticket
from sophon_loader.wire.messages import Offer
from sophon_loader.workers import dataset as module
from sophon_loader.workers.dataset import OffloadedDataset
from tests.support.loaders import sample_message
from tests.support.pictures import make_tree
from tests.support.profiles import crop_transform
from tests.support.workers import Parts, parts_of
from tests.unit.workers.test_choosing import terms

COUNT = 6
WORKERS = 2


@dataclass
class SessionStandIn:
    """Has every sample read here, last one first, as if the agent had been given up."""

    log: list[Any] = field(default_factory=list)
    wanted: dict[BatchId, list[Reply]] = field(default_factory=dict)
    received_nbytes: int = 0
    retries: int = 0
    waited_s: float = 0.0
    starved_s: float = 0.0
    fresh: int = 0
    net_s: float = 0.0
    queued_s: float = 0.0
    shortest_net_s: float = math.inf
    corrupt: int = 0
    malformed: int = 0
    gone: bool = True
    gave_up_s: float = 0.0
    lost_s: float = 0.0
    awaits_headers: bool = False
    room: int = 1000
    """Samples that may be wanted and not taken."""

    def keep(self, batches: Iterable[BatchId]) -> None:
        kept = list(batches)
        self.log.append(("keep", [batch.number for batch in kept]))
        self.wanted = {batch: replies for batch, replies in self.wanted.items() if batch in kept}

    @property
    def wants_more(self) -> bool:
        return sum(map(len, self.wanted.values())) < self.room

    @property
    def terms(self) -> Any:
        return terms()

    @property
    def lanes(self) -> list[Any]:
        return [self]

    @property
    def answered(self) -> Any:
        return self

    def trust(self, *, gone: bool, left_s: float, agent: int = 0) -> None:
        assert agent == 0
        self.trusted = (gone, left_s)

    def knows(self, batch: BatchId) -> bool:
        return batch in self.wanted

    def want(self, batch: BatchId, wanted: Sequence[Wanted]) -> None:
        self.log.append(("want", batch.number, [one.sample for one in wanted]))
        self.wanted.setdefault(batch, [Reply(one, n) for n, one in enumerate(wanted)])

    def missing(self, batch: BatchId) -> int:
        return len(self.wanted[batch])

    def next(self, batch: BatchId, position: int | None = None) -> Reply:
        self.log.append(("next", batch.number))
        replies = self.wanted[batch]
        return replies.pop(next((n for n, one in enumerate(replies) if one.position == position), -1))

    def close(self) -> None:
        self.log.append("close")


@pytest.fixture
def parts(tmp_path: Path) -> Parts:
    return parts_of(
        ImageFolder(str(make_tree(tmp_path / "tree", COUNT, classes=2, sides=(24, 32), plain=True)), crop_transform()),
        terms(),
    )


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Iterator[SessionStandIn]:
    made = SessionStandIn()
    monkeypatch.setattr("sophon_loader.fleet.worker_fleet.Session", lambda agreed: made)
    yield made


@pytest.fixture
def in_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if this were worker 0 of two."""
    assert get_worker_info() is None

    class Info:
        id, num_workers = 0, WORKERS

    monkeypatch.setattr(module, "get_worker_info", lambda: Info)


def ticket(number: int, *indices: int) -> Ticket:
    return Ticket(BatchId(1, 0, number), list(indices))


def fetched(dataset: OffloadedDataset, one: Ticket) -> list[int]:
    """The labels, which are each file's number modulo 2."""
    return [label for _, label in dataset.__getitems__(one)]


def test_a_batch_is_asked_for_once_and_delivered_in_order(parts: Parts, session: SessionStandIn) -> None:
    dataset = parts.dataset
    labels = [label for _, label in ImageFolder(str(parts.data.sources[0].root))]
    assert fetched(dataset, ticket(0, 3, 0, 5)) == [labels[index] for index in (3, 0, 5)]
    assert session.log == [("keep", [0]), ("want", 0, [3, 0, 5]), *[("next", 0)] * 3, ("keep", [])]


@pytest.mark.usefixtures("in_worker")
def test_the_batch_behind_is_asked_for_as_soon_as_it_is_queued(parts: Parts, session: SessionStandIn) -> None:
    dataset = parts.dataset
    dataset.queued = QueuedTickets(4)
    dataset.queued.put(ticket(1, 1))  # the other worker's
    dataset.queued.put(ticket(2, 4, 2))
    fetched(dataset, ticket(0, 0, 1))
    fetched(dataset, ticket(2, 4, 2))
    assert session.log == [
        ("keep", [0, 2]), ("want", 0, [0, 1]), ("want", 2, [4, 2]), ("next", 0), ("next", 0), ("keep", [2]),
        ("keep", [2, 4]), ("want", 2, []), ("next", 2), ("next", 2), ("keep", [4]),
    ]  # fmt: skip


@pytest.mark.usefixtures("in_worker")
def test_the_look_ahead_goes_as_far_as_torch_has_handed_out(parts: Parts, session: SessionStandIn) -> None:
    dataset = parts.dataset
    dataset.queued = QueuedTickets(4 * WORKERS)
    for number in (2, 4, 6):
        dataset.queued.put(ticket(number, number % COUNT))
    assert len(fetched(dataset, ticket(0, 0, 1))) == 2
    assert [entry[1] for entry in session.log if entry[0] == "want"] == [0, 2, 4, 6]
    session.log.clear()
    dataset.queued.put(ticket(8, 0))  # handed out in the place of the batch that is done
    assert len(fetched(dataset, ticket(2, 2))) == 1
    assert session.log == [
        ("keep", [2, 4, 6, 8]), ("want", 2, []), ("want", 8, [0]), ("next", 2), ("keep", [4, 6, 8])
    ]  # fmt: skip


@pytest.mark.usefixtures("in_worker")
def test_the_look_ahead_goes_no_further_than_the_window_but_by_one_batch(parts: Parts, session: SessionStandIn) -> None:
    dataset, session.room = parts.dataset, 4
    dataset.queued = QueuedTickets(8 * WORKERS)
    for number in (2, 4, 6, 8):
        dataset.queued.put(ticket(number, 0, 1))
    fetched(dataset, ticket(0, 0, 1, 2, 3))
    assert session.log == [
        ("keep", [0, 2, 4, 6, 8, 10, 12, 14]), ("want", 0, [0, 1, 2, 3]), ("want", 2, [0, 1]), ("next", 0), ("next", 0),
        ("next", 0), ("want", 4, [0, 1]), ("next", 0), ("keep", [2, 4, 6, 8, 10, 12, 14]),
    ]  # fmt: skip


@pytest.mark.usefixtures("in_worker")
@pytest.mark.parametrize("other", [Ticket(BatchId(1, 0, 2), [5]), Ticket(BatchId(1, 0, 2), [4], [1])])
def test_a_batch_that_was_foreseen_wrongly_is_asked_for_anew(
    parts: Parts, session: SessionStandIn, other: Ticket
) -> None:
    dataset = parts.dataset
    dataset.queued = QueuedTickets(4)
    dataset.queued.put(ticket(2, 4))
    fetched(dataset, ticket(0, 0))
    session.log.clear()
    assert len(dataset.__getitems__(other)) == 1
    assert session.log == [
        ("keep", [4]), ("keep", [2, 4]), ("want", 2, other.indices), ("next", 2), ("keep", [4])
    ]  # fmt: skip


@pytest.mark.usefixtures("in_worker")
def test_batches_of_another_iteration_are_dropped(parts: Parts, session: SessionStandIn) -> None:
    dataset = parts.dataset
    dataset.queued = QueuedTickets(4 * WORKERS)
    dataset.queued.put(ticket(2, 1))
    fetched(dataset, ticket(0, 0))
    assert [batch.iteration for batch in session.wanted] == [1]
    dataset.__getitems__(Ticket(BatchId(2, 0, 0), [3]))
    assert not session.wanted or {batch.iteration for batch in session.wanted} == {2}


@pytest.mark.usefixtures("in_worker")
def test_a_batch_behind_that_cannot_be_asked_for_fails_when_it_is_due(parts: Parts, session: SessionStandIn) -> None:
    dataset = parts.dataset
    dataset.queued = QueuedTickets(4)
    dataset.queued.put(ticket(2, COUNT))
    assert len(fetched(dataset, ticket(0, 0, 1))) == 2
    assert [entry for entry in session.log if entry[0] == "want"] == [("want", 0, [0, 1])]
    with pytest.raises(IndexError):
        fetched(dataset, ticket(2, COUNT))


def test_without_a_queue_or_a_worker_nothing_is_asked_for_ahead(parts: Parts, session: SessionStandIn) -> None:
    dataset = parts.dataset
    fetched(dataset, ticket(0, 0))
    dataset.queued = QueuedTickets(4)
    dataset.queued.put(ticket(2, 4))
    fetched(dataset, ticket(1, 0))
    assert {entry[1] for entry in session.log if entry[0] == "want"} == {0, 1}


def test_a_sample_that_fails_drops_its_batch(parts: Parts, session: SessionStandIn) -> None:
    (Path(str(parts.locations.path_here(1)))).write_bytes(b"no picture")
    with pytest.raises(OSError, match="identify"):
        fetched(parts.dataset, ticket(0, 0, 1, 2))
    assert session.log[-1] == ("keep", []) and session.log.count(("next", 0)) == 2


def test_a_new_connection_after_a_sample_that_nobody_has(parts: Parts, session: SessionStandIn) -> None:
    root = Path(str(parts.data.sources[0].root))
    dataset = parts.dataset
    root.rename(root.with_name("elsewhere"))
    with pytest.raises(AgentUnreachable):
        fetched(dataset, ticket(0, 0))
    assert session.log[-1] == "close"
    root.with_name("elsewhere").rename(root)
    assert len(fetched(dataset, ticket(0, 0))) == 1


def test_what_the_agent_says_of_itself_is_noted(parts: Parts, session: SessionStandIn) -> None:
    offers = [Offer(0, "file", 9000, 0.0, 0.5), Offer(2, "pixels", 900, 0.5, 0.125)]
    live = Live(SharedTariff(), SharedOffers(1, encoding_names()))
    dataset = OffloadedDataset(
        parts.data, parts.steps, parts.plan, parts.statistics, parts.profile, parts.routes, parts.seed,
        live,
    )  # fmt: skip
    told = iter([[], offers, []])

    def answers(batch: BatchId, position: int | None = None) -> Reply:
        reply = session.wanted[batch].pop()
        data = Path(str(parts.locations.path_here(reply.wanted.sample))).read_bytes()
        sample = replace(sample_message(1), cut=0, encoding="file", op_s=[0.0], cores=0.75, offers=next(told))
        sample = replace(sample, file_nbytes=len(data))
        return replace(reply, sample=sample, payload=data)

    session.next = answers  # type: ignore[method-assign]
    session.fresh, session.net_s, session.shortest_net_s = 0, 0.0, 0.003
    assert len(fetched(dataset, ticket(0, 0, 1, 2))) == 3
    assert parts.statistics.agent_cores.array.tolist() == [0.75]
    assert parts.statistics.shortest_net_s.array.tolist() == [0.003]
    assert len(live.offers) == 1
    assert live.offers.choices() == (Choice(0, "file"), Choice(2, "pixels"))


def test_without_an_agent_there_is_no_session(parts: Parts, session: SessionStandIn) -> None:
    alone = parts_of(ImageFolder(str(parts.data.sources[0].root), crop_transform())).dataset
    assert len(fetched(alone, ticket(0, 0, 1))) == 2
    assert session.log == []
