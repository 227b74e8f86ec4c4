"""`sophon-doctor` on set-ups that are broken in one way each: it names the cause, and what to do next."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sophon_loader.run.recording_trial import NO_PICTURES
from tests.e2e.test_other_agent import OTHER_TORCH, modules
from tests.support.agents import EXPORT, Agent, agent_for, until
from tests.support.pictures import make_tree
from tests.support.warm import run_forked

MINE = """
from pathlib import Path
import torch
from PIL import Image
from PIL.Image import open as imopen
from torch.utils.data import Dataset, IterableDataset, Subset
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

ROOT = {root!r}
PHOTOS = sorted(Path(ROOT).glob("class_1/*.*g"))

def good():
    return ImageFolder(ROOT, T.Compose([T.RandomResizedCrop(32), T.ToTensor()]))

def local():
    return ImageFolder(ROOT, T.Compose([lambda image: image.resize((64, 64)), T.ToTensor()]))

def fails():
    raise RuntimeError("no disk today")

def exits():
    import argparse
    argparse.ArgumentParser().parse_args()

class NoLength:
    def __getitem__(self, index):
        return index
    def __len__(self):
        raise RuntimeError("not counted yet")

class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(3))

def stream():
    return Stream()

class Own(Dataset):
    def __len__(self):
        return 3
    def __getitem__(self, index):
        return index

def own():
    return Own()

class Opens(Own):
    def __getitem__(self, index):
        return T.ToTensor()(Image.open(PHOTOS[index]))[:, :20, :20]

class Bound(Own):
    def __getitem__(self, index):
        return T.CenterCrop(20)(imopen(PHOTOS[index])).tobytes()

class Boxes(Own):
    def __len__(self):
        return 40 * len(PHOTOS)
    def __getitem__(self, index):
        image = Image.open(PHOTOS[index % len(PHOTOS)]).convert("RGB")
        return {{"image": T.ToTensor()(T.CenterCrop(20)(image)), "boxes": torch.zeros(index % 3, 4)}}

def empty():
    return Subset(good(), [])
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tree(tmp_path_factory.mktemp("doctor") / "photos", 48)


@pytest.fixture(scope="module")
def served(files: Path) -> Iterator[Agent]:
    with agent_for({EXPORT: files}) as running:
        yield running.ready()


@pytest.fixture
def work(tmp_path: Path, files: Path) -> Path:
    (tmp_path / "mine.py").write_text(MINE.format(root=str(files)))
    return tmp_path


def doctor(work: Path, *arguments: str, run: Callable[..., Any] = run_forked) -> tuple[int, str]:
    """Its exit status, and what it prints."""
    command = [sys.executable, "-m", "sophon_loader.doctor", *arguments, "--seconds", "1"]
    done = run(command, cwd=work, timeout=120)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout


def seen(work: Path, *arguments: str, says: str, todo: str) -> None:
    """The last look fails, for that reason, and with that to do."""
    status, told = doctor(work, *arguments)
    last = told[told.rindex("\nFAIL") if "\nFAIL" in told else 0 :]
    assert status == 1 and "FAIL" in last, told
    assert says in last.partition("next: ")[0], told
    assert todo in last.partition("next: ")[2], told


def test_all_is_well(work: Path, served: Agent) -> None:
    status, told = doctor(work, served.address(), "--dataset", "mine:good")
    assert status == 0 and "FAIL" not in told, told
    for line in ("the agent: answers", "libraries: ", "the folder: ", "transforms: all of them", "what it brings: "):
        assert f" {line}" in told, told
    assert " samples/s with the agent, " in told
    as_users_start_it = partial(subprocess.run, capture_output=True, text=True)
    status, told = doctor(work, served.address(), run=as_users_start_it)
    assert status == 0 and "next: name it: --dataset MODULE:FUNCTION" in told


def test_an_address_that_is_none(work: Path) -> None:
    seen(work, "fileserver:5555", says="it lacks tcp://", todo="write tcp://fileserver:5555")


def test_a_host_that_nobody_knows(work: Path) -> None:
    seen(work, "tcp://no-such-host.invalid:5555/x", says="no-such-host.invalid", todo="correct the name")


def test_nobody_listens(work: Path) -> None:
    seen(work, "tcp://127.0.0.1:9/x", says="got nothing within 5 s", todo="see that `sophon-agent serve` runs there")


def test_something_else_listens(work: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def hang_up() -> None:
            for _ in range(200):
                try:
                    server.accept()[0].close()
                except OSError:
                    return

        threading.Thread(target=hang_up, daemon=True).start()
        port = server.getsockname()[1]
        seen(work, f"tcp://127.0.0.1:{port}/x", says="something else listens", todo="OffloadOptions(key=...)")


def test_an_agent_that_stands_still(work: Path, files: Path) -> None:
    with agent_for({EXPORT: files}) as still:
        still.ready().pause()
        seen(work, still.address(), says="got nothing within 5 s", todo="bound to an address that this host can reach")
        still.go_on()


def test_a_key_is_needed_and_another_is_given(work: Path, files: Path) -> None:
    keys = work / "keys"
    with agent_for({EXPORT: files}, "--keys", str(keys)) as locked:
        seen(work, locked.address(), says="key must be given", todo="OffloadOptions(key=...)")
        with agent_for({EXPORT: files}, "--keys", str(work / "others")):
            token = (work / "others" / "tokens" / "first").read_text().strip()
            seen(work, locked.address(), "--key", token, says="key must belong to the agent", todo="leave the key out")
        right = (keys / "tokens" / "first").read_text().strip()
        status, told = doctor(work, locked.address(), "--key", right)
        assert status == 0 and "encrypted, with a key" in told, told


def test_a_wrong_export_and_a_wrong_folder(work: Path, served: Agent) -> None:
    seen(work, served.address("others"), says="export must be one of", todo="correct the address")
    seen(
        work, f"{served.address()}/nothing", says="has no folder 'nothing'; it has: class_0", todo="correct the folder"
    )


def test_other_libraries(work: Path, files: Path, tmp_path: Path) -> None:
    with agent_for({EXPORT: files}, modules=modules(tmp_path, OTHER_TORCH)) as other:
        status, told = doctor(work, other.ready().address())
        assert status == 0 and "see  libraries: " in told and "torch" in told, told
        assert "next: install the same torch" in told, told


@pytest.mark.parametrize(
    ("function", "says", "todo"),
    [
        ("nothing", "has no attribute 'nothing'", "runs here"),
        ("fails", "raises RuntimeError: no disk today", "runs here"),
        ("exits", "raises SystemExit: 2", 'under `if __name__ == "__main__":`'),
        ("NoLength", "raises RuntimeError: not counted yet", "runs here"),
        ("stream", "returns a Stream, of which no single sample", "docs/datasets.md"),
        ("own", "Own is not an ImageFolder", "sophon_loader.FileDataset"),
    ],
)
def test_a_dataset_that_cannot_be_used(work: Path, served: Agent, function: str, says: str, todo: str) -> None:
    seen(work, served.address(), "--dataset", f"mine:{function}", says=says, todo=todo)


@pytest.mark.parametrize(
    ("function", "says", "todo"),
    [
        ("own", NO_PICTURES, ""),
        (
            "Opens",
            "(`return T.ToTensor()(Image.open(PHOTOS[index]))[:, :20, :20]`, by ",
            "before that line",
        ),
        ("Opens", "pictures (67 %) were decoded by our C, the rest by Pillow: 1 PNG", ""),
        ("Bound", "bound before, as by `from PIL.Image import open`", "call PIL.Image.open inside the sample"),
    ],
)
def test_pictures_that_a_dataset_opens(work: Path, served: Agent, function: str, says: str, todo: str) -> None:
    status, told = doctor(work, served.address(), "--dataset", f"mine:{function}")
    found = [one for one in told.split("\n") if says in one]
    assert found and found[0][5:].startswith("pictures of the first samples: "), told
    assert status == (0 if function == "Opens" else 1), "the agent is asked for pictures that may be deferred"
    assert todo in told.partition(says)[2].splitlines()[1], told


def test_samples_that_the_agent_is_asked_for_picture_by_picture(work: Path, served: Agent) -> None:
    """Dictionaries, which no collation joins: each counts as one sample."""
    status, told = doctor(work, served.address(), "--dataset", "mine:Boxes")
    assert status == 0 and "Boxes of 440 samples" in told and "agent is asked for each picture" in told, told
    rates = re.search(r"what it brings: ([\d.,]+) samples/s with the agent, ([\d.,]+) by torch's", told)
    assert rates is not None and all(float(rate.replace(",", "")) > 20 for rate in rates.groups()), told


def test_a_folder_of_announced_agents(work: Path, files: Path, tmp_path: Path) -> None:
    folder = tmp_path / "roster"
    seen(work, f"file://{folder}/{EXPORT}", says="no agent of 'roster' is announced in", todo="--announce")
    folder.mkdir()
    seen(work, f"file://{folder}/{EXPORT}", says="no agent", todo="--announce")
    with agent_for({EXPORT: files}, "--announce", str(folder)) as announced:
        announced.ready()
        until(lambda: list(folder.glob("*.json")), "it is announced")
        status, told = doctor(work, f"file://{folder}/{EXPORT}", "--dataset", "mine:good")
        assert status == 0 and f"names 1 agent: {announced.endpoint}" in told and "what it brings" in told, told
        seen(work, f"file://{folder}/others", says="serves 'others'; they serve pictures", todo="correct the export")


def test_several_agents_and_a_name(work: Path, served: Agent, files: Path) -> None:
    with agent_for({EXPORT: files}) as other:
        status, told = doctor(work, served.address(), other.ready().address(), "--dataset", "mine:good")
        assert status == 0 and told.count("the agent: answers") == 2 and "what it brings" in told, told
    status, told = doctor(work, served.address().replace("127.0.0.1", "localhost"))
    assert status == 0 and told.count("the agent: answers") == 1, told


def test_a_local_agent_has_nothing_to_be_reached(work: Path) -> None:
    seen(work, "local", says="the loader starts that agent itself", todo="report()")


def test_a_dataset_without_samples(work: Path, served: Agent) -> None:
    seen(work, served.address(), "--dataset", "mine:empty", says="has no sample", todo="see that the files lie")


def test_an_op_that_stays_here(work: Path, served: Agent) -> None:
    status, told = doctor(work, served.address(), "--dataset", "mine:local")
    assert status == 0 and "lambda" in told and "next: leave it out if it only converts to RGB" in told, told


def test_other_files(work: Path, files: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(files, copy)
    victim = min(copy.rglob("*.jpg"))
    victim.write_bytes(victim.read_bytes() + b"more")
    with agent_for({EXPORT: copy}) as other:
        arguments = [other.address(), "--dataset", "mine:good"]
        seen(work, *arguments, says="the export must hold the same files", todo="make both copies of the same data")
