"""What the tests of whole loaders share: agents of the loader's own that need not import torch again."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from sophon_loader.client import local_agent
from tests.support.warm import Forked


@pytest.fixture(scope="session", autouse=True)
def warm_local_agents() -> Iterator[None]:
    """Unless a test asks for `new_interpreters`."""
    with pytest.MonkeyPatch.context() as patch:
        how = SimpleNamespace(Popen=Forked, PIPE=subprocess.PIPE, TimeoutExpired=subprocess.TimeoutExpired)
        patch.setattr(local_agent, "subprocess", how)
        yield
