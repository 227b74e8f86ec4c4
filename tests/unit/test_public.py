"""The public names of `sophon_loader`, and what importing a part of it loads."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import sophon_loader
from sophon_loader import errors

NO_TORCH = """
import json, sys
for name in ("torch", "torchvision"): sys.modules[name] = None
import sophon_loader
from sophon_loader.doctor import main
said = {}
for name in sophon_loader.__all__:
    try:
        getattr(sophon_loader, name)
    except ImportError as error:
        said[name] = str(error)
print(json.dumps([said, main(["tcp://127.0.0.1:1/x"])]))
"""
PROBE = """
import json, sys
import sophon_loader, sophon_loader.wire.frames, sophon_loader.wire.failures, sophon_loader.wire.version
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


@pytest.mark.parametrize("name", sophon_loader.__all__)
def test_every_public_name_resolves(name: str) -> None:
    assert getattr(sophon_loader, name).__name__ == name
    assert name in dir(sophon_loader)


def test_every_error_is_public() -> None:
    classes = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert classes <= set(sophon_loader.__all__)
    assert set(sophon_loader._HOMES) | classes == set(sophon_loader.__all__)


def test_other_names_are_told_as_python_does() -> None:
    with pytest.raises(AttributeError, match="module 'sophon_loader' has no attribute 'Loader'"):
        sophon_loader.Loader  # noqa: B018


def test_what_needs_torch_says_what_to_type_where_there_is_none() -> None:
    run = subprocess.run([sys.executable, "-c", NO_TORCH], capture_output=True, text=True, check=True, timeout=60)
    said, status = json.loads(run.stdout)
    rest = "needs torch and torchvision, not installed here; run pip install 'sophon_loader[torch]'"
    assert "OffloadingDataLoader" in said and not {"LocalAgent", "OffloadOptions"} & set(said)
    assert said == {name: f"sophon_loader.{name} {rest}" for name in said}
    assert (status, run.stderr) == (1, f"sophon-doctor {rest}\n")


def test_importing_the_protocol_loads_neither_torch_nor_numpy_nor_sockets() -> None:
    run = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True, timeout=60)
    loaded = set(json.loads(run.stdout))
    assert "msgpack" in loaded and not loaded & {"torch", "torchvision", "numpy", "zmq", "PIL"}
