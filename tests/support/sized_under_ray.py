"""A fleet that sizes itself on a real Ray cluster: `python -m tests.support.sized_under_ray FOLDER`."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import psutil

from sophon_loader import OffloadingDataLoader
from sophon_loader.wire.wanted_cores import WantedCores, file_name
from tests.support.agents import EXPORT, ROOT, run_command
from tests.support.pictures import folder, make_tree
from tests.support.replicas import LOADER, SOON
from tests.support.rostered import FILES, SAMPLER, Epoch, Listening, left
from tests.support.under_ray import Cluster, listed, serving, timed

HELD_S = 5.0
"""In place of a minute."""
PORTS = range(21000, 21011)
_PROGRAM = """
import sys
from storage_agent.fleet import fleet_size
from storage_agent.__main__ import main
fleet_size.HELD_S = float(sys.argv[1])
sys.exit(main(sys.argv[2:]))
"""


class Training:
    """Writes a rank's file over and over, as a training does that could use so many agents."""

    def __init__(self, folder: Path) -> None:
        self.wanted = 1.0
        self._folder = folder
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def _write(self) -> None:
        path = self._folder / file_name("training", 0)
        while not self._ending.wait(0.5):
            made = path.with_name(".wanted-in-the-making")
            with contextlib.suppress(FileNotFoundError):  # the folder is away
                made.write_text(WantedCores(self.wanted, 1.0).text())
                os.replace(made, path)

    def close(self) -> None:
        self._ending.set()
        self._thread.join()


def command(cluster: Cluster, name: str, *arguments: str, status: int = 0) -> str:
    words = [sys.executable, "-c", _PROGRAM, str(HELD_S), "ray", name, "--address", cluster.address, *arguments]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=150.0)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def rows(cluster: Cluster) -> list[dict[str, Any]]:
    return [json.loads(one) for one in command(cluster, "list", "--json").splitlines() if one.startswith("{")]


def sizing(cluster: Cluster) -> dict[str, Any]:
    (found,) = [one for one in rows(cluster) if "wanted" in one]
    return found


def entries(announced: Path) -> int:
    return sum(one.name.startswith("sophon-agent-") for one in announced.iterdir())


def train(cluster: Cluster, root: Path, announced: Path, training: Training) -> None:
    arguments: dict[str, Any] = {**LOADER, "options": SOON, "policy": "all-off", "sampler": SAMPLER}
    loader = OffloadingDataLoader(folder(root), agent=f"file://{announced}/{EXPORT}", **arguments)
    try:
        epoch = Epoch(loader, root)

        def used(count: int) -> bool:
            those = listed()
            return len(those) == count and all(epoch.sent(Listening(one)) > 10 for one in those)

        epoch.until(lambda: used(1), "the first is used", 30.0)
        (first,) = listed()
        with timed("three agents are used, of which two more were wanted"):
            training.wanted = 2.5
            epoch.until(lambda: used(3), "three are used", 90.0)
        assert all(int(one.rpartition(":")[2]) in PORTS for one in listed())
        with timed("what sizes the fleet is back"):
            those = psutil.Process(cluster.process.pid).children(recursive=True)
            (sizer,) = [one for one in those if one.cmdline()[:1] and "FleetSizer" in one.cmdline()[0]]
            sizer.kill()
            epoch.until(lambda: not sizer.is_running() and sizing(cluster)["restarts"] == 1, "it is back", 60.0)
            epoch.until(lambda: sizing(cluster)["wanted"] == 3, "it answers", 30.0)
        away = announced.with_name("away")
        announced.rename(away)
        epoch.until(
            lambda: "cannot be read on this node: No such file" in sizing(cluster)["trouble"], "it says so", 60.0
        )
        away.rename(announced)
        epoch.until(lambda: not sizing(cluster)["trouble"] and entries(announced) == 3, "all is well again", 60.0)
        assert sizing(cluster)["wanted"] == sizing(cluster)["present"] == 3
        with timed("one agent is left"):
            agents = [serving(one) for one in listed() if one != first]
            training.wanted = 1.0
            epoch.until(lambda: listed() == [first] and entries(announced) == 1, "one is left", 90.0)
            _, living = psutil.wait_procs(agents, 20.0)
            assert not living
        epoch.until(lambda: left(loader).count("has left") == 2, "the loader knows", 40.0)
        before = epoch.sent(Listening(first))
        epoch.until(lambda: epoch.sent(Listening(first)) > before + 10, "the other goes on", 30.0)
        assert loader.report().as_dict()["fallbacks"] == 0, loader.report().as_dict()["notes"]
    finally:
        loader.close()
    assert [one["name"] for one in rows(cluster)] == ["sophon-0", "sophon-size"]


def main(place: Path) -> None:
    root = make_tree(place / "pictures", FILES)
    keys, announced = place / "keys", place / "announced"
    announced.mkdir(mode=0o755)
    assert run_command("key", "add", "all", "--keys", str(keys)).returncode == 0
    os.environ["SOPHON_KEY"] = (keys / "tokens" / "all").read_text()
    served = ["--export", f"{EXPORT}={root}", "--keys", str(keys), "--ports", f"{PORTS[0]}-{PORTS[-1]}"]
    more = ["--", "--workers", "1", "--announce", str(announced)]
    training = Training(announced)
    cluster = Cluster(3)
    try:
        with timed("one agent serves, and what sizes the fleet does"):
            said = command(cluster, "start", *served, "--min", "1", "--max", "3", "--wait", "60", *more)
        assert "sophon-size  ALIVE  agents wanted: 1 (of 1 to 3), present: 1\n" in said, said
        said = command(cluster, "start", *served, "--agents", "2", *more, status=1)
        assert "--min and --max must be given while sophon-size is there; run `sophon-agent ray stop` first" in said
        said = command(cluster, "start", *served, "--min", "2", "--max", "2", *more)
        assert "sophon-size is there already, and keeps its numbers" in said and "(of 1 to 3)" in said, said
        train(cluster, root, announced, training)
        with timed("all ends"):
            agents = [serving(one) for one in listed()]
            said = command(cluster, "stop")
            assert said.splitlines()[0] == "sophon-size stopped", said
            assert rows(cluster) == [] and not any(one.is_running() for one in agents)
    finally:
        training.close()
        cluster.close()
    print("all is well")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
