"""What `report()` says was offloaded, and why nothing was."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset
from torchvision import transforms as v1

from sophon_loader import LocalAgent, OffloadingDataLoader
from sophon_loader.errors import AgentUnreachable, OffloadWarning
from sophon_loader.host.system import cores_available
from tests.support.agents import agent_for, until
from tests.support.loaders import QUICK
from tests.support.pictures import eval_transform, folder, train_transform

FILES = 24
LOADER = {"batch_size": 4, "seed": 3}


def summary_of(loader: Any) -> str:
    """After an epoch; `offloading` agrees with it."""
    list(loader)
    return said_by(loader)


def said_by(loader: Any) -> str:
    report = loader.report()
    assert report.offloading == (not report.summary.startswith("nothing offloaded: "))
    return str(report.as_dict()["summary"]).removeprefix("nothing offloaded: ")


@pytest.mark.parametrize("policy", ["all-off", "resize-off"])
def test_all_of_it(make: Any, policy: str) -> None:
    loader = make(policy=policy)
    assert said_by(loader) == "no epoch has begun"
    assert summary_of(loader).startswith(f"{FILES} of {FILES} samples preprocessed at the agent; ")


def test_a_part_of_a_file_was_made_at_the_agent(root: Path, make: Any) -> None:
    loader = make(folder(root, train_transform()), policy="auto", encodings=["roi-jpeg"])
    said = summary_of(loader)
    choices = loader.report().as_dict()["choices"]
    assert said.startswith(f"{choices['roi-jpeg']} of {FILES} samples cut out of the file at the agent; ")
    assert set(loader.report().totals.cuts) == {0}


def test_a_policy_that_offloads_nothing(make: Any) -> None:
    assert summary_of(make(policy="no-off")) == "policy no-off: this policy offloads nothing"


def test_no_agent(make: Any) -> None:
    assert summary_of(make(agent=None)) == "no agent was given"


def test_a_dataset_that_cannot_be_offloaded(make: Any) -> None:
    loader = make(TensorDataset(torch.arange(8)))
    with pytest.warns(OffloadWarning, match="Nothing is offloaded"):
        list(loader)
    assert said_by(loader).startswith("TensorDataset runs as in DataLoader: its samples are in memory, so")


@pytest.mark.filterwarnings("ignore:No op but decoding can run")
@pytest.mark.parametrize("policy", ["auto", "resize-off"])
def test_a_first_op_that_is_unknown(root: Path, make: Any, policy: str) -> None:
    chain = v1.Compose([v1.Lambda(as_it_is), v1.Resize((16, 16)), v1.ToTensor()])
    said = summary_of(make(folder(root, chain), policy=policy, encodings=["file", "pixels"]))
    assert said == "the agent could only decode: Lambda is not registered"


def as_it_is(image: Any) -> Any:
    return image


@pytest.mark.parametrize("policy", ["auto", "resize-off", "no-off"])
def test_an_agent_that_is_gone(root: Path, policy: str) -> None:
    with agent_for(root) as agent:
        loader = OffloadingDataLoader(
            folder(root, eval_transform()), 4, agent=agent.address(), policy=policy, options=QUICK, seed=3
        )
        list(loader)
        agent.kill()
        with pytest.warns(OffloadWarning, match="does not answer"):
            said = summary_of(loader)
    loader.close()
    if policy == "no-off":
        assert said == "policy no-off: this policy offloads nothing"
    else:
        assert said == f"the agent at {agent.address()} did not answer for {FILES} of {FILES} samples"


def test_an_agent_that_never_was(root: Path) -> None:
    options = QUICK.__class__(connect_timeout_s=0.2, agent_missing="raise")
    loader = OffloadingDataLoader(folder(root), 4, agent="tcp://127.0.0.1:1/pictures", options=options)
    with pytest.raises(AgentUnreachable):
        iter(loader)
    assert said_by(loader).startswith("no epoch has begun: ") and "127.0.0.1:1" in said_by(loader)
    loader.close()


def test_an_agent_on_this_host_that_is_of_no_use(root: Path) -> None:
    processes = math.ceil(cores_available())
    loader = OffloadingDataLoader(folder(root), 4, agent="local", num_workers=processes)
    assert summary_of(loader).startswith(
        f"no agent was started, because it could gain nothing: the loader's {processes} processes may"
    )
    loader.close()


@pytest.mark.usefixtures("new_interpreters")
def test_an_agent_that_is_still_starting_and_one_that_was_ready_late(root: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("sophon_loader.fleet.agent.cores_available", lambda: 4.0)
    loader = OffloadingDataLoader(folder(root), 1, agent=LocalAgent(workers=1), seed=3)
    try:
        batches = iter(loader)
        next(batches)
        assert said_by(loader) == "the local agent is still starting"
        for _ in range(FILES - 1):
            next(batches)

        def has_answered() -> bool:
            loader._engine.wanted()
            return loader._engine.run.agreement is not None

        until(has_answered, "the agent answers")
        list(batches)
        said = said_by(loader)
    finally:
        loader.close()
    late = f"the local agent was ready after {FILES} of {FILES} samples; policy auto: nothing has been measured yet"
    assert said.startswith(late) and said_by(loader) == said, "as it was at the end"
