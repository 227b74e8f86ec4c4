"""``decide`` is pure: numpy and computation, whatever the process had loaded before."""

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

import sophon_loader.decide as package

SOURCES = sorted(Path(package.__file__).parent.rglob("*.py"))
PROBE = """
import json, sys
import sophon_loader.decide
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


def test_importing_decide_loads_no_framework_and_no_sockets():
    run = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True, timeout=60)
    loaded = set(json.loads(run.stdout))
    assert "numpy" in loaded
    assert not loaded & {"torch", "torchvision", "zmq", "msgpack", "PIL", "scipy", "tqdm", "rich"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_no_file_reaches_for_the_clock_the_network_or_a_log(path):
    words = path.read_text().replace("from ", "import ").split()
    imported = {module.partition(".")[0] for verb, module in pairwise(words) if verb == "import"}
    assert not imported & {"time", "socket", "logging", "random", "os", "threading", "warnings"}
