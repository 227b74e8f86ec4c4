"""Several ranks: all have rank 0's seed, what some have begun others go on with, and a killed one ends all."""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch import distributed

from sophon_loader import OffloadingDataLoader
from sophon_loader.errors import ConfigError
from sophon_loader.ranks import seeding
from tests.support.agents import ROOT, Agent, agent_for, until
from tests.support.pictures import train_transform
from tests.support.ranks import BATCH, Indexed, seen, sharded
from tests.support.warm import Forked

FILES = 26
PICTURES = FILES - 1
"""One of the files is a PNG, which `Indexed` leaves out."""
ENDS_WITHIN_S = 30.0
NOT_WAITED_S = 60.0


def launched(ranks: int, what: str, root: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """torchrun, to its end."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command = [sys.executable, *launcher, "-m", "tests.support.ranks", what, str(root), str(folder)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)


def run(ranks: int, what: str, root: Path, folder: Path) -> list[dict[str, Any]]:
    """What each rank has seen; each is forked, with the store and the variables that torchrun gives it."""
    command = [sys.executable, "-m", "tests.support.ranks", what, str(root), str(folder)]
    store = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # of the launcher
    here = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "WORLD_SIZE": str(ranks)}
    here["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    started = [
        Forked(command, cwd=ROOT, env={**os.environ, **here, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(ranks)
    ]
    said = [process.communicate(timeout=300)[0] for process in started]
    assert [process.returncode for process in started] == [0] * ranks
    return [json.loads(line) for output in said for line in output.splitlines() if line.startswith("{")]


@pytest.mark.timeout(700)
def test_two_ranks_and_what_four_make_of_it(root: Path, agent: Agent, tmp_path: Path) -> None:
    two = run(2, "begin", root, tmp_path)
    assert two[0]["seed"] == two[1]["seed"]
    dataset = Indexed(root, train_transform())
    alone = dict(seen(OffloadingDataLoader(dataset, 4, seed=two[0]["seed"])))
    assert len(alone) == PICTURES
    dealt = [one for told in two for one in told["dealt"]]
    assert {index for index, _ in dealt} == set(alone) and all(alone[index] == digest for index, digest in dealt)

    state = json.loads((tmp_path / "state.json").read_text())
    whole = sharded(root, seed=state["seed"])
    expected = seen(whole)
    begun = [one for told in two for one in told["sharded"]]
    assert len(begun) == 2 * 2 * BATCH == state["samples"]
    assert sorted(begun) == sorted(expected[: len(begun)])
    (tmp_path / "address").write_text(agent.address())
    four = run(4, "go_on", root, tmp_path)
    assert {told["steps"] for told in four} == {2}
    assert sorted(begun + [one for told in four for one in told["sharded"]]) == sorted(expected)
    here = sharded(root)
    here.load_state_dict(state)
    assert seen(here) == expected[len(begun) :]

    one = sharded(root, seed=1, agent=agent.address(), policy="resize-off")
    assert sorted(sample for told in four for sample in told["offloaded"]) == sorted(seen(one))
    predicted = one.report().as_dict()
    for told in four:
        summed = told["all"]
        assert (summed["ranks"], summed["samples"], summed["offloading"]) == (4, PICTURES, True)
        assert (summed["choices"], summed["file_bytes"]) == (predicted["choices"], predicted["file_bytes"])
        assert summed["wire_bytes"] == sum(one["own"]["wire_bytes"] for one in four)
        assert summed["wire_bytes"] == pytest.approx(predicted["wire_bytes"], rel=0.01)
        assert not any("left out" in note for note in summed["notes"])
        assert told["known"] == 1.0 and "only" not in told["planned"]["plan_reason"], told["planned"]["plan_reason"]
        assert told["planned"]["samples"] < PICTURES


def test_two_ranks_with_two_agents_of_which_one_dies(root: Path, agent: Agent, tmp_path: Path) -> None:
    with agent_for(root) as other:
        told = {"addresses": [agent.ready().address(), other.ready().address()], "killed": other.pid}
        (tmp_path / "agents").write_text(json.dumps(told))
        two = run(2, "replicas", root, tmp_path)
    expected = seen(sharded(root, seed=1))
    assert sorted(one for told in two for one in told["seen"]) == sorted(expected)
    assert [told["own"]["fallbacks"] for told in two] == [0, 0]
    assert all((told["all"]["ranks"], told["all"]["samples"]) == (2, PICTURES) for told in two)


def test_two_ranks_with_a_dataset_of_a_class_of_its_own(root: Path, tmp_path: Path) -> None:
    with agent_for(root) as mortal:
        told = {"addresses": [mortal.ready().address()], "killed": mortal.pid}
        (tmp_path / "agents").write_text(json.dumps(told))
        two = run(2, "recorded", root, tmp_path)
    assert all(told["found"] == told["expected"] and told["own"]["wire_bytes"] > 0 for told in two)
    dealt = [label >> 20 for told in two for label, _ in told["found"]]
    assert sorted(dealt) == sorted([*range(FILES), *range(FILES)])


@pytest.mark.timeout(300)
def test_two_ranks_share_a_cache(root: Path, agent: Agent, tmp_path: Path) -> None:
    (tmp_path / "address").write_text(agent.address())
    two = run(2, "cached", root, tmp_path)
    without, expected = sharded(root, seed=1), []
    for epoch in range(3):
        without.set_epoch(epoch)
        expected.append(sorted(seen(without)))
    found = [sorted(one + other) for one, other in zip(*(told["seen"] for told in two), strict=True)]
    assert found == expected * 3
    cached = [sum(both) for both in zip(*(told["cached"] for told in two), strict=True)]
    assert cached[0] == 0 and cached[6] > 0


def test_copies_of_a_picture_at_several_ranks(root: Path, tmp_path: Path) -> None:
    found = run(2, "copies", root, tmp_path)
    for kind in ("drawn", "given", "expected", "foreign"):
        views = [digest for told in found for _, digest in told[kind]]
        assert len(set(views)) == len(views), kind
    for kind in ("marked", "marked and given"):
        by_rank = [dict(reversed(told[kind])) for told in found]  # the first copy at each
        assert by_rank[0] == by_rank[1], kind
    for told in found:
        assert told["resumed"]
        assert (told["all"]["ranks"], told["all"]["samples"]) == (2, 3 * PICTURES)
    dataset = Indexed(root, train_transform())
    order = [index for index, _ in found[0]["given"]]
    assert seen(OffloadingDataLoader(dataset, BATCH, sampler=order, seed=7)) == found[0]["given"]


def test_ranks_with_data_of_their_own_and_one_that_iterates_alone(root: Path, tmp_path: Path) -> None:
    first, second = sorted(run(2, "own", root, tmp_path), key=lambda told: told["rank"])
    assert (len(first["mine"]), len(second["mine"])) == (13, 12)
    assert (len(first["alone"]), len(second["alone"])) == (0, 2 * PICTURES)
    assert max(first["took_s"], second["took_s"]) < NOT_WAITED_S


@pytest.mark.timeout(400)
def test_a_rank_that_is_killed_ends_the_job_with_the_reason(root: Path, tmp_path: Path) -> None:
    done = launched(2, "killed", root, tmp_path)
    took_s = time.time() - float((tmp_path / "killed").read_text())
    assert done.returncode != 0 and took_s < ENDS_WITHIN_S, (took_s, done.stderr)
    assert "Signal 9 (SIGKILL)" in done.stderr, done.stderr
    pids = [pid for rank in range(2) for pid in json.loads((tmp_path / f"pids of {rank}").read_text())]
    forkservers = 2 * (multiprocessing.get_all_start_methods()[0] == "forkserver")  # the default of Python 3.14
    assert len(pids) == 4 + forkservers
    until(lambda: not any(map(psutil.pid_exists, pids)), "ranks and their workers end")


def test_rank_0_that_never_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seeding, "rank_of_all", lambda: (1, 2))
    monkeypatch.setattr(seeding, "RANK_0_WAIT_S", 0.5)
    monkeypatch.setattr(distributed.distributed_c10d, "_get_default_store", distributed.HashStore)
    with pytest.raises(ConfigError, match=r"rank 0 must draw a seed for .* within 0.5 s, got none; give every rank"):
        seeding.drawn_seed(torch.Generator(), "Numbers of 3")


def test_rank_0_held_the_store_and_has_ended(root: Path, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    here = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    command = [sys.executable, "-m", "tests.support.ranks", "left", str(root), str(tmp_path)]
    started = [
        Forked(command, cwd=ROOT, env={**os.environ, **here, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    said = [process.communicate(timeout=120)[0] for process in started]
    told = next(json.loads(line) for line in said[1].splitlines() if line.startswith("{"))
    assert told["ranks"] == 1 and told["took_s"] < 15
    assert any("without ranks 0, because the process that holds the ranks' store" in note for note in told["notes"])
