"""Runs torchdata's own tests of states with OffloadingDataLoader in place of its StatefulDataLoader.

    git clone https://github.com/meta-pytorch/data
    pip install parameterized expecttest
    python -m tests.support.torchdata_states data

They come with its sources alone, so `make test` has cases after them (tests/e2e/test_resume.py), and not these.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from sophon_loader import OffloadingDataLoader

FILES = ("test_state_dict.py", "test_sampler.py")
LEFT_OUT = {
    r"Iterable|Generator|SingleIterCalled|StateInitialization|MultiEpochState|FastStateDictRequest|iterable|generator":
        "iterable datasets, whose workers' states this loader does not ask for",
    r"DatasetIteratorStateDuplication|json_serde_(single|multi)_process$": "an iterable dataset, too",
    r"TestInitialState.*test_init_error": "workers are started by iter(), and not waited for, as in torch's class",
    r"test_num_workers_mismatch": "load_state_dict() refuses what theirs refuses at iter(), with a ConfigError",
}  # fmt: skip
"""By a pattern of their names."""


class Stateful(OffloadingDataLoader[Any]):
    """What the tests ask of torchdata's class beside states."""

    def state_dict(self) -> dict[str, Any]:
        """With what the tests count of their layout."""
        state = super().state_dict()
        return {**state, "_snapshot": {"_worker_snapshots": [None] * self.num_workers}}


class LeaveOut:
    """Tells pytest what is left out."""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            for pattern, why in LEFT_OUT.items():
                if re.search(pattern, item.nodeid.partition("::")[2]):
                    item.add_marker(pytest.mark.skip(reason=why))
                    break


def main() -> int:
    checkout = Path(sys.argv[1] if len(sys.argv) == 2 else sys.exit(str(__doc__))).resolve()
    sys.path.insert(0, str(checkout))
    import torchdata.stateful_dataloader

    torchdata.stateful_dataloader.StatefulDataLoader = Stateful
    folder = checkout / "test" / "stateful_dataloader"
    options = ["-q", "-rs", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", str(folder)]
    return int(pytest.main([*options, *(str(folder / name) for name in FILES)], plugins=[LeaveOut()]))


if __name__ == "__main__":
    sys.exit(main())
