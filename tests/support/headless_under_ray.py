"""A Ray cluster that loses its head, and gets a new one: `python -m tests.support.headless_under_ray FOLDER`."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from sophon_loader import OffloadingDataLoader
from tests.support.agents import EXPORT, run_command
from tests.support.pictures import folder, make_tree
from tests.support.replicas import LOADER, SOON
from tests.support.rostered import FILES, SAMPLER, Epoch, Listening, left
from tests.support.under_ray import HEAD, Cluster, command, listed, serving, timed

GOES_ON_S = 20.0


def train(cluster: Cluster, root: Path, start: list[str]) -> None:
    """All in one epoch, of which each batch is what it is without an agent."""
    arguments: dict[str, Any] = {**LOADER, "options": SOON, "policy": "all-off", "sampler": SAMPLER}
    loader = OffloadingDataLoader(folder(root), agent=f"{HEAD}/{EXPORT}", **arguments)
    try:
        epoch = Epoch(loader, root)

        def all_used(those: list[str], more: int = 10) -> bool:
            return bool(those) and all(epoch.sent(Listening(one)) > more for one in those)

        first = listed()
        epoch.until(lambda: all_used(first), "both are used", 30.0)
        agents = [serving(one) for one in first]
        cluster.tell("remove head")
        died_s = time.monotonic()
        before = max(epoch.sent(Listening(one)) for one in first)
        epoch.until(lambda: time.monotonic() - died_s > GOES_ON_S, "it goes on", 60.0)
        assert all_used(first, before) and all(one.is_running() for one in agents)
        with timed("a new head"):
            cluster.tell("add head")
            assert listed() == []
        for _ in range(2):
            cluster.tell("add")
        with timed("two agents of the new head are used"):
            assert command(cluster, "start", *start).count("ALIVE") == 2
            epoch.until(lambda: len(listed()) == 2 and all_used(listed()), "they are used", 60.0)
        assert not set(listed()) & set(first)
        epoch.until(lambda: left(loader).count("has left") == 2, "the first ones have left", 60.0)
        assert loader.report().as_dict()["fallbacks"] == 0, loader.report().as_dict()["notes"]
    finally:
        loader.close()


def main(place: Path) -> None:
    root = make_tree(place / "pictures", FILES)
    keys = place / "keys"
    assert run_command("key", "add", "all", "--keys", str(keys)).returncode == 0
    os.environ["SOPHON_KEY"] = (keys / "tokens" / "all").read_text()
    start = ["--export", f"{EXPORT}={root}", "--keys", str(keys), "--wait", "60", "--", "--workers", "1"]
    cluster = Cluster(2)
    try:
        assert command(cluster, "start", *start).count("ALIVE") == 2
        train(cluster, root, start)
        agents = [serving(one) for one in listed()]
        command(cluster, "stop")
        _, living = psutil.wait_procs(agents, 20.0)
        assert not living
    finally:
        cluster.close()
    print("all is well")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
