"""Frameworks that make loaders of their own: samples still come from the agent, and are those of a plain loop."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

from sophon_loader.errors import ConfigError
from tests.support.agents import ROOT, Agent
from tests.support.loaders import samples_of
from tests.support.pictures import eval_transform, folder, train_transform

FILES = 24
LOADER = {"batch_size": 4, "policy": "resize-off", "seed": 7}
RANKS = 2


def run(agent: Agent, root: Path, framework: str, ranks: int) -> list[dict[str, Any]]:
    """What each rank of `examples/frameworks.py` says at its end."""
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    command = [sys.executable, *launcher, "-m", "examples.frameworks", framework, agent.address(), str(root)]
    done = subprocess.run(
        [*command, "--policy", "resize-off", "--epochs", "2"], cwd=ROOT, capture_output=True, text=True, timeout=150
    )
    assert done.returncode == 0 and "never iterated over" not in done.stderr, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"')]
    assert len(told) == ranks, done.stdout + done.stderr
    return told


@pytest.fixture(scope="module")
def digest(agent: Agent, root: Path) -> int:
    """Of all samples of a plain loop."""
    (told,) = run(agent, root, "plain", 1)
    assert told["offloading"] and told["choices"] == {"pixels": FILES}
    return int(told["digest"], 16)


@pytest.mark.parametrize(
    ("framework", "ranks"),
    [
        ("lightning", RANKS),
        ("fabric", RANKS),
        ("accelerate", RANKS),
        ("transformers", RANKS),
        ("ignite", 1),
        ("fastai", 1),
    ],
)
def test_a_framework_offloads_and_trains_on_the_same_samples(
    agent: Agent, root: Path, digest: int, framework: str, ranks: int
) -> None:
    pytest.importorskip(framework if framework != "fabric" else "lightning")
    told = run(agent, root, framework, ranks)
    assert [one["offloading"] for one in told] == [True] * ranks
    assert [one["choices"] for one in told] == [{"pixels": FILES // ranks}] * ranks
    assert [one["epoch"] for one in told] == [1] * ranks and {one["policy"] for one in told} == {"resize-off"}
    assert sum(int(one["digest"], 16) for one in told) % (1 << 64) == digest


def test_lightning_predicts_what_comes_from_the_agent(agent: Agent, root: Path) -> None:
    pytest.importorskip("lightning")
    command = [sys.executable, "-m", "tests.support.predicting", agent.address(), str(root)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
    expected = [image for image, _ in samples_of(DataLoader(folder(root, eval_transform()), 4))]
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"')]
    assert [one["choices"] for one in told] == [{"pixels": FILES}] * 2
    assert [one["seen"] for one in told] == [expected] * 2


@pytest.mark.parametrize("kind", ["prepared", "unprepared"])
def test_a_trainer_of_transformers_goes_on_in_the_middle_of_an_epoch(agent: Agent, kind: str) -> None:
    """With accelerate's `skip_first_batches` the rest comes from a DataLoader of torch's, augmented otherwise."""
    pytest.importorskip("transformers")
    command = [sys.executable, "-m", "tests.support.resuming", agent.address(), kind]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
    whole, rest = (json.loads(line)["seen"] for line in done.stdout.splitlines() if line.startswith('{"seen"'))
    assert len(set(whole)) == 2 * FILES // 4 and rest == whole[8:]


@pytest.mark.parametrize("workers", [0, 2])
def test_seed_everything(make: Any, monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    """A loader without `seed=` follows Lightning's, also with the `worker_init_fn` that its Trainer gives loaders."""
    lightning = pytest.importorskip("lightning")
    from lightning.fabric.utilities.seed import pl_worker_init_function

    for name in ("PL_GLOBAL_SEED", "PL_SEED_WORKERS"):
        monkeypatch.setenv(name, "0")  # to be put back

    def epochs(seed: int, init: Any, **more: Any) -> list[Any]:
        lightning.seed_everything(seed, workers=True, verbose=False)
        loader = make(seed=None, shuffle=True, worker_init_fn=init, **more)
        return [samples_of(loader), samples_of(loader)]

    first = epochs(7, pl_worker_init_function, num_workers=workers)
    assert first == epochs(7, None, num_workers=2, agent=None) and first[0] != first[1]
    assert first != epochs(8, pl_worker_init_function, num_workers=workers)


def test_a_loader_made_anew_from_its_attributes_is_the_same(make: Any) -> None:
    """As Lightning and ignite do: every public attribute is an argument of the constructor."""
    loader = make(num_workers=1)
    left = {"batch_size", "sampler", "drop_last", "batch_sampler"}
    taken = {name: value for name, value in vars(loader).items() if not name.startswith("_") and name not in left}
    again = type(loader)(**{**taken, "batch_sampler": loader.batch_sampler})
    assert samples_of(again) == samples_of(loader)
    assert again.report().as_dict()["choices"] == loader.report().as_dict()["choices"] == {"pixels": FILES}
    again.close()


@pytest.mark.parametrize("name", ["agent", "policy", "encodings", "seed", "profile", "tail", "options"])
def test_an_argument_is_not_set_later(make: Any, name: str) -> None:
    """It would be ignored."""
    loader = make()
    with pytest.raises(ConfigError, match=f"{name} must be given to the constructor"):
        setattr(loader, name, None)
    assert hasattr(loader, name)


def test_accelerates_own_preparation_is_refused(make: Any) -> None:
    accelerate = pytest.importorskip("accelerate")
    loader = make()
    with pytest.raises(ConfigError, match=r"sophon_loader\.integrations\.accelerate"):
        accelerate.data_loader.prepare_data_loader(loader) if loader._is_accelerate_prepared else None


def test_what_accelerate_has_prepared_offloads_then(root: Path, agent: Agent) -> None:
    accelerate = pytest.importorskip("accelerate")
    from sophon_loader.integrations.accelerate import offloading, skip_first_batches

    plain = DataLoader(folder(root, eval_transform()), 4, drop_last=True)
    expected = samples_of(plain)
    prepared = accelerate.Accelerator(cpu=True).prepare(plain)
    loader = offloading(prepared, agent=agent.address(), policy="resize-off")
    assert loader is prepared and samples_of(loader) == expected
    assert loader.report().as_dict()["choices"] == {"pixels": FILES}
    assert offloading(loader, policy="no-off").policy == "no-off", "what is given goes before what it had"
    loader = offloading(loader, policy="resize-off")
    rest = skip_first_batches(loader, 2)
    assert samples_of(rest) == expected[8:] and set(rest.report().as_dict()["choices"]) == {"pixels"}
    other = skip_first_batches(plain, 2)
    assert type(other) is DataLoader and samples_of(other) == expected[8:]
    rest.close()
    loader.close()


def test_the_rest_of_an_epoch_of_a_loader_that_was_not_prepared(root: Path, make: Any) -> None:
    pytest.importorskip("accelerate")
    from sophon_loader.integrations.accelerate import skip_first_batches

    dataset = folder(root, train_transform())
    loader, other = make(dataset), make(dataset)
    whole = [samples_of(loader) for _ in range(2)]
    samples_of(other)
    rest = skip_first_batches(other, 2)
    assert samples_of(rest) == whole[1][8:] and set(rest.report().as_dict()["choices"]) == {"pixels"}
    rest.close()


def test_a_prepared_loader_goes_on_where_its_state_was_taken(root: Path, make: Any) -> None:
    """accelerate counts epochs itself, and tells the loader that of its own count."""
    pytest.importorskip("accelerate")
    from sophon_loader.integrations.accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    dataset = folder(root, train_transform())
    prepared = accelerator.prepare(make(dataset))
    whole = [samples_of(prepared)]
    batches = iter(prepared)
    whole.append(samples_of(itertools.islice(batches, 2)))
    state = prepared.state_dict()
    whole[1] += samples_of(batches)
    other = accelerator.prepare(make(dataset))
    other.load_state_dict(state)
    assert samples_of(other) == whole[1][8:] and other.report().as_dict()["epoch"] == 1
    other.close()
    prepared.close()


def test_what_a_prepared_loader_is_not_told(root: Path, make: Any) -> None:
    accelerate = pytest.importorskip("accelerate")
    from sophon_loader.integrations.accelerate import offloading, skip_first_batches

    plain = DataLoader(folder(root, eval_transform()), 4)
    with pytest.raises(ConfigError, match=r"must be one that accelerate has prepared, got a DataLoader"):
        offloading(plain)
    prepared = accelerate.Accelerator(cpu=True).prepare(plain)
    with pytest.raises(ConfigError, match="batch_size, shard must be left to accelerate"):
        offloading(prepared, shard=True, batch_size=2)
    with pytest.raises(ConfigError, match="shard must be False where accelerate deals the samples out"):
        skip_first_batches(make(shard=True), 2)


def test_fastais_own_distribution_is_refused(make: Any) -> None:
    """Its `DistributedDL` takes these from a loader, this one first."""
    loader = make()
    assert not hasattr(loader, "bs")
    with pytest.raises(AttributeError, match=r"to_distributed must be given loaders of fastai's class.* shard=True"):
        attrgetter("bs", "drop_last", "dataset")(loader)


def test_a_loader_without_an_agent_is_left_to_accelerate(make: Any) -> None:
    assert make(agent=None)._is_accelerate_prepared is False


def test_the_rest_of_an_epoch_under_accelerate(root: Path, make: Any) -> None:
    """Its `skip_first_batches`, in the epoch in which it is called; batches are prepared once only."""
    pytest.importorskip("accelerate")
    from sophon_loader.integrations.accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    dataset = folder(root, eval_transform())
    expected = samples_of(DataLoader(dataset, 4))
    prepared = accelerator.prepare(make(dataset))
    assert accelerator.prepare(prepared) is prepared
    assert samples_of(prepared) == expected
    rest = accelerator.skip_first_batches(prepared, 2)
    assert samples_of(rest) == expected[8:]
    report = rest.report().as_dict()
    assert report["offloading"] and report["epoch"] == 1 and set(report["choices"]) == {"pixels"}
    rest.close()
    prepared.close()
