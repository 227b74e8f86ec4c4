"""Several agents under what a training makes of a loader: frameworks, ranks, checkpoints; batches as without agents."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, RandomSampler, WeightedRandomSampler

from sophon_loader import OffloadingDataLoader
from tests.support.agents import EXPORT, Agent, agent_for
from tests.support.loaders import samples_of
from tests.support.pictures import eval_transform, folder
from tests.support.replicas import LOADER, SOON, loader_of, sent

FILES = 32

pytestmark = pytest.mark.filterwarnings("ignore::sophon_loader.errors.OffloadWarning")


@pytest.fixture(scope="module")
def agents(root: Path, agent: Agent) -> Iterator[list[Agent]]:
    with agent_for({EXPORT: root}) as second, agent_for({EXPORT: root}) as third:
        yield [agent, second, third]


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(4)


SAMPLERS: dict[str, Callable[[], dict[str, Any]]] = {
    "shuffle": lambda: {"shuffle": True, "generator": seeded()},
    "replacement": lambda: {"sampler": RandomSampler(range(FILES), True, FILES, generator=seeded())},
    "weighted": lambda: {"sampler": WeightedRandomSampler([1.0, 3.0] * (FILES // 2), FILES, generator=seeded())},
    "own batches": lambda: {"batch_sampler": BatchSampler(RandomSampler(range(FILES), generator=seeded()), 3, True)},
    "of a rank": lambda: {"sampler": DistributedSampler(range(FILES), 2, 1, seed=5)},  # type: ignore[arg-type]
}


def built(root: Path, agents: list[Agent], name: str, **more: Any) -> Any:
    arguments = {**LOADER, "policy": "all-off", **SAMPLERS[name](), **more}
    if "batch_sampler" in arguments:
        del arguments["batch_size"]
    if not agents:
        return OffloadingDataLoader(folder(root), **{**arguments, "policy": "no-off"})
    return OffloadingDataLoader(folder(root), agent=[one.address() for one in agents], options=SOON, **arguments)


def kept(state: Any) -> Any:
    """Through a file, as checkpoints are written and read."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize(
    "form", [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}], ids=["none", "two", "persist"]
)
@pytest.mark.parametrize("name", SAMPLERS)
def test_a_checkpoint_goes_on_with_other_agents(
    root: Path, agents: list[Agent], name: str, form: dict[str, Any]
) -> None:
    """In the middle of the second epoch, and at its end; with none, one, or the same in another order."""
    plain = built(root, [], name, **form)  # with workers that persist, torch draws from a generator once less
    whole = [samples_of(plain) for _ in range(3)]
    loader = built(root, agents, name, **form)
    assert samples_of(loader) == whole[0] and min(sent(loader)) > 0
    batches, states = iter(loader), []
    found = samples_of(itertools.islice(batches, 4))
    states.append((len(found), kept(loader.state_dict())))
    found += samples_of(batches)
    assert found == whole[1]
    states.append((len(found), kept(loader.state_dict())))
    loader.close()
    for others in ([], agents[:1], agents[::-1]):
        for place, state in states:
            again = built(root, others, name, **form)
            again.load_state_dict(state)
            rest = samples_of(again) if place < len(whole[1]) else []
            assert rest == whole[1][place:]
            assert samples_of(again) == whole[2]
            again.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_out_of_order(root: Path, agents: list[Agent], workers: int) -> None:
    """With `in_order=False` an epoch has the same samples; a state taken in it goes on with the rest."""
    expected = samples_of(built(root, [], "shuffle"))
    loader = built(root, agents, "shuffle", num_workers=workers, in_order=False)
    batches = iter(loader)
    found = samples_of(itertools.islice(batches, 4))
    state = kept(loader.state_dict())
    assert sorted(found + samples_of(batches)) == sorted(expected)
    loader.close()
    again = built(root, agents[::-1], "shuffle", num_workers=workers, in_order=False)
    again.load_state_dict(state)
    assert sorted(found + samples_of(again)) == sorted(expected)
    again.close()


@pytest.mark.parametrize("ranks", [1, 3])
def test_ranks_that_a_sampler_deals_out_to(root: Path, agents: list[Agent], ranks: int) -> None:
    """Each a job's rank with the agents in another order; together they have the samples of one without an agent."""
    plain = OffloadingDataLoader(folder(root), policy="no-off", **LOADER)
    for epoch in range(2):
        plain.set_epoch(epoch)
        expected = samples_of(plain)
        found: dict[int, Any] = {}
        for rank in range(ranks):
            sampler: Any = DistributedSampler(range(FILES), ranks, rank, seed=5)  # type: ignore[arg-type]
            sampler.set_epoch(epoch)
            indices = list(sampler)
            turned = agents[rank:] + agents[:rank]
            loader = loader_of(folder(root), *turned, sampler=sampler, policy="all-off", num_workers=1)
            loader.set_epoch(epoch)
            mine = samples_of(loader)
            loader.close()
            # A copy that fills up the last rank is the same picture's second occurrence only where one rank has both.
            found |= dict(zip(indices, mine, strict=True))
        assert [found[index] for index in range(FILES)] == expected


def test_accelerate(root: Path, agents: list[Agent]) -> None:
    accelerate = pytest.importorskip("accelerate")
    from sophon_loader.integrations.accelerate import Accelerator, offloading, skip_first_batches

    names = [one.address() for one in agents]
    plain = DataLoader(folder(root, eval_transform()), 4)
    expected = samples_of(plain)
    loader = offloading(accelerate.Accelerator(cpu=True).prepare(plain), agent=names, policy="all-off")
    assert samples_of(loader) == expected and min(sent(loader)) > 0
    rest = skip_first_batches(loader, 2)
    assert samples_of(rest) == expected[8:] and sum(sent(rest)) == FILES - 8
    rest.close()
    loader.close()
    accelerator = Accelerator(cpu=True)
    prepared = accelerator.prepare(built(root, agents, "shuffle"))
    whole = [samples_of(one) for one in itertools.repeat(built(root, [], "shuffle"), 2)]
    assert samples_of(prepared) == whole[0]
    batches = iter(prepared)
    found = samples_of(itertools.islice(batches, 3))
    state = kept(prepared.state_dict())
    assert found + samples_of(batches) == whole[1]
    other = accelerator.prepare(built(root, agents[:2], "shuffle"))
    other.load_state_dict(state)
    assert samples_of(other) == whole[1][len(found) :]
    other.close()
    prepared.close()
