"""What a worker asks for: keys and choices, as planned, or files where nothing is planned."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from torch.utils.data import ConcatDataset
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

from sophon_loader.auto.shared_tariff import SharedTariff
from sophon_loader.cache.cache import Cache, version_of
from sophon_loader.cache.worker_cache import MAX_VAIN, WorkerCache
from sophon_loader.client.address import Address
from sophon_loader.client.options import OffloadOptions
from sophon_loader.client.session import Terms
from sophon_loader.client.wanted import BatchId, Wanted
from sophon_loader.decide.facts import Choice
from sophon_loader.decide.plan import uniform_plan
from sophon_loader.decide.tariff import Part, Prices, Tariff
from sophon_loader.encodings.catalogue import encoding_names
from sophon_loader.order.tickets import Ticket
from sophon_loader.pipeline.randomness import Seed
from sophon_loader.wire.messages import CHEAPEST
from sophon_loader.workers.choosing import Chooser
from tests.support.pictures import make_tree
from tests.support.profiles import crop_transform
from tests.support.workers import Parts, parts_of

BATCH = BatchId(3, 5, 0)
COUNT = 6


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_tree(tmp_path / "tree", COUNT, classes=2, sides=(24, 32), plain=True)


def terms(folder: str = "", seed: int = 9) -> Terms:
    address = Address("tcp://127.0.0.1:1", "photos", folder)
    return Terms(address, OffloadOptions(), "i", (b"",), (False,), Seed(seed), encoding_names())


def wanted(parts: Parts, *indices: int, occurrences: list[int] | None = None) -> list[Wanted]:
    return parts.chooser.wanted(Ticket(BATCH, list(indices), occurrences))


def test_samples_are_wanted_as_planned_in_the_ticket_s_order(root: Path) -> None:
    parts = parts_of(ImageFolder(str(root), crop_transform()), terms("train"))
    parts.plan.set(uniform_plan("x", COUNT, Choice(2, "pixels"), ""))
    found = wanted(parts, 4, -6, 4, occurrences=[0, 0, 1])
    assert [(one.sample, one.occurrence) for one in found] == [(4, 0), (0, 0), (4, 1)]
    assert [one.key for one in found] == [parts.locations.key_in_export(index) for index in (4, 0, 4)]
    assert found[1].key == "train/class_0/000.jpg"
    assert {(one.source, one.cut, one.encoding) for one in found} == {(0, 2, "pixels")}


def test_where_nothing_is_planned_files_are_wanted(root: Path) -> None:
    parts = parts_of(ImageFolder(str(root), crop_transform()), terms())
    found = Chooser(parts.data, parts.steps, parts.locations, None).wanted(Ticket(BATCH, [4, -6]))
    assert [(one.sample, one.cut, one.encoding, one.prices) for one in found] == [
        (4, 0, "file", None),
        (0, 0, "file", None),
    ]


def test_what_is_wanted_as_a_file_is_read_here_where_that_was_agreed_on(root: Path) -> None:
    parts = parts_of(ImageFolder(str(root), crop_transform()), terms())
    tariff = SharedTariff()
    tariff.set(Tariff((Part(0.5, None), Part(0.5, Prices(1.0, 1.0, 1.0))), ""))
    parts.plan.set(uniform_plan("x", COUNT, Choice(2, "pixels"), ""))
    for plan, prices in ((None, None), (parts.plan, None), (None, tariff)):
        for here in (False, True):
            chooser = Chooser(parts.data, parts.steps, parts.locations, plan, prices, files_here=here)
            found = chooser.wanted(Ticket(BATCH, list(range(COUNT))))
            assert [one.here for one in found] == [here and one.encoding == "file" for one in found]


def test_each_source_is_asked_for_what_the_agent_can_reach_there(root: Path) -> None:
    halves = [ImageFolder(str(root), crop_transform()), ImageFolder(str(root), v1.ToTensor())]
    parts = parts_of(ConcatDataset(halves), terms(), reach=[3, 0])
    parts.plan.set(uniform_plan("x", 2 * COUNT, Choice(4, "webp"), ""))
    found = wanted(parts, 0, COUNT)
    assert [(one.source, one.cut, one.encoding) for one in found] == [(0, 3, "pixels"), (1, 0, "file")]


@pytest.mark.parametrize("index", [COUNT, -COUNT - 1, 10**30])
def test_an_index_that_the_dataset_does_not_have(root: Path, index: int) -> None:
    parts = parts_of(ImageFolder(str(root), crop_transform()), terms())
    with pytest.raises(IndexError, match=f"index of the sampler must be below {COUNT}, got {index}"):
        wanted(parts, 0, index)


def test_no_sample_at_all(root: Path) -> None:
    assert wanted(parts_of(ImageFolder(str(root), crop_transform()), terms())) == []


# --- where the agent chooses ----------------------------------------------------------------------------------


def at_tariff(parts: Parts, *shares: tuple[float, Prices | None]) -> Chooser:
    tariff = SharedTariff()
    tariff.set(Tariff(tuple(Part(share, prices) for share, prices in shares), ""))
    return Chooser(parts.data, parts.steps, parts.locations, None, tariff)


def test_at_a_tariff_the_choice_is_left_to_the_agent(root: Path) -> None:
    """Up to where it can get, and without looking at a picture."""
    parts = parts_of(ImageFolder(str(root), crop_transform()), terms("train"))
    chooser = at_tariff(parts, (1.0, Prices(wire=1.0, loader=0.25, agent=0.5, per_worker=0.125)))
    found = chooser.wanted(Ticket(BATCH, [4, -6, 4], [0, 0, 1]))
    reach = parts.steps[0].reach
    assert found == [
        Wanted(
            0, index, reach, CHEAPEST, parts.locations.key_in_export(index), occurrence, prices=(1.0, 0.5, 0.25, 0.125)
        )
        for index, occurrence in ((4, 0), (0, 0), (4, 1))
    ]
    assert not any(one.encoding == "file" for one in found)


def test_at_a_tariff_for_files_files_are_asked_for(root: Path) -> None:
    parts = parts_of(ImageFolder(str(root), crop_transform()), terms())
    found = at_tariff(parts, (1.0, None)).wanted(Ticket(BATCH, [1, 2]))
    assert [(one.cut, one.encoding, one.prices) for one in found] == [(0, "file", None)] * 2
    mixed = at_tariff(parts, (0.5, None), (0.5, Prices(1.0, 1.0, 1.0)))
    found = [one for _ in range(20) for one in mixed.wanted(Ticket(BATCH, [1, 2, 3, 4]))]
    assert abs(sum(one.encoding == "file" for one in found) - 40) <= 4


def test_what_is_in_the_cache_is_read_here_unless_the_prices_say_otherwise(root: Path, tmp_path: Path) -> None:
    parts = parts_of(ImageFolder(str(root), crop_transform()), terms())
    cache = Cache(str(tmp_path / "cache"), 10**8)
    path = parts.locations.path_here(4)
    assert path is not None and cache.put(path, version_of(os.stat(path)), Path(path).read_bytes())
    kept, tariff = WorkerCache(cache, parts.locations), SharedTariff()
    chooser = Chooser(parts.data, parts.steps, parts.locations, None, tariff, kept=kept)
    for kept_here in (True, False):
        tariff.set(Tariff((Part(1.0, Prices(1.0, 1.0, 1.0, kept_here=kept_here)),), ""))
        found = chooser.wanted(Ticket(BATCH, [3, 4]))
        assert [one.in_cache for one in found] == [False, True]
        assert [one.here for one in found] == [False, kept_here]
        assert [one.encoding for one in found] == [CHEAPEST, "file" if kept_here else CHEAPEST]
    tariff.set(Tariff((Part(1.0, None),), ""))
    found = chooser.wanted(Ticket(BATCH, [3, 4]))
    assert [(one.here, one.in_cache, one.encoding) for one in found] == [(False, False, "file"), (True, True, "file")]


def test_some_are_asked_for_as_files_so_that_they_are_kept(root: Path, tmp_path: Path) -> None:
    """Others in each epoch, and the same in all processes, whatever share they were told."""
    parts = parts_of(ImageFolder(str(root), crop_transform()), terms())

    def asked_as_files(fill: float, epoch: int, gb: float = 0.1) -> set[int]:
        kept, tariff = (
            WorkerCache(Cache(str(tmp_path / "cache"), int(gb * 1e9), 10**6), parts.locations),
            SharedTariff(),
        )
        tariff.set(Tariff((Part(1.0, Prices(1.0, 1.0, 1.0, fill=fill)),), ""))
        chooser = Chooser(parts.data, parts.steps, parts.locations, None, tariff, kept=kept)
        found = chooser.wanted(Ticket(BatchId(1, epoch, 0), list(range(COUNT))))
        assert all((one.encoding == "file") == (one.before is not None) for one in found)
        return {one.sample for one in found if one.before is not None}

    epochs = range(120)  # in none of 60, one of six is drawn in one run of a hundred: by the name of its folder
    drawn = [asked_as_files(0.1, epoch) for epoch in epochs]
    assert drawn == [asked_as_files(0.1, epoch) for epoch in epochs]
    assert all(few <= asked_as_files(0.5, epoch) for few, epoch in zip(drawn, epochs, strict=True))
    assert 0.05 < sum(map(len, drawn)) / (COUNT * len(epochs)) < 0.17 and len(set().union(*drawn)) == COUNT
    assert asked_as_files(1.0, 0) == set(range(COUNT)) and not asked_as_files(0.0, 0)
    assert not asked_as_files(1.0, 0, gb=1e-9), "that the cache has no room for"


def test_a_cache_that_keeps_nothing_is_not_filled_for_ever(root: Path, tmp_path: Path) -> None:
    parts = parts_of(ImageFolder(str(root), crop_transform()), terms())
    kept = WorkerCache(Cache(str(tmp_path / "cache"), 10**8), parts.locations)
    found, before = kept.look(0, 0.999, 1)
    assert before is not None and not found
    wanted = Wanted(0, 0, 0, "file", "x", before=before)
    for _ in range(MAX_VAIN):
        kept.keep(wanted, b"cut off")
    assert kept.look(0, 0.999, 1) == (False, None)
    assert kept.look(0)[1] == before, "what crosses as a file in any case is kept if it can be"


def test_at_a_tariff_each_source_goes_as_far_as_the_agent_can_there(root: Path) -> None:
    halves = [ImageFolder(str(root), crop_transform()), ImageFolder(str(root), v1.ToTensor())]
    parts = parts_of(ConcatDataset(halves), terms(), reach=[3, 0])
    found = at_tariff(parts, (1.0, Prices(1.0, 1.0, 1.0))).wanted(Ticket(BATCH, [0, COUNT]))
    assert [(one.source, one.cut, one.encoding) for one in found] == [(0, 3, CHEAPEST), (1, 0, CHEAPEST)]


def test_at_a_tariff_an_index_that_the_dataset_does_not_have(root: Path) -> None:
    parts = parts_of(ImageFolder(str(root), crop_transform()), terms())
    with pytest.raises(IndexError):
        at_tariff(parts, (1.0, None)).wanted(Ticket(BATCH, [COUNT]))
