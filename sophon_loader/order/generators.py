"""The random generators that a sampler may draw from: those it holds, the loader's, and the global ones."""

from __future__ import annotations

import json
import random
import zlib
from base64 import b64decode, b64encode
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Sampler

from sophon_loader.pipeline.op import GENERATORS

States = dict[str, bytes]
"""States of generators, by name."""
Packed = dict[str, str]
"""States as text for a checkpoint of any format; a Mersenne twister takes 3 to 4 KB."""
_GLOBAL: dict[str, Any] = {
    "torch": torch.default_generator,
    "numpy": np.random.get_state.__self__,  # type: ignore[attr-defined]  # the objects behind the modules' functions
    "python": random.getstate.__self__,  # type: ignore[attr-defined]
}


class Generators:
    """The generators that a loader's samplers may draw from.

    Args:
        samplers: of the loader. Generators are found among their attributes, and among those of the samplers they hold.
        of_loader: the `generator` that the loader was given, if any.
    """

    def __init__(self, samplers: Iterable[Any], of_loader: torch.Generator | None) -> None:
        self._samplers = tuple(samplers)
        self.of_loader = of_loader

    def own(self) -> dict[str, Any]:
        """Return the samplers' and the loader's generators, by name.

        They are searched for at each call, because samplers may replace them.
        """
        found = {} if self.of_loader is None else {"loader": self.of_loader}
        for name, one in _held(self._samplers):
            if all(one is not other for other in found.values()):
                found[name] = one
        return found

    def take(self, names: Collection[str] = GENERATORS) -> States:
        """Return the states of the samplers' and the loader's generators, and of some global ones.

        Args:
            names: of global generators, out of `GENERATORS`.
        """
        kept = {name: _taken(_GLOBAL[name]) for name in GENERATORS if name in names}
        return kept | {name: _taken(one) for name, one in self.own().items()}

    def put(self, states: States) -> None:
        """Set generators to the states that `take` returned; names that no longer exist are ignored."""
        present = self.own() | _GLOBAL
        for name in states.keys() & present.keys():
            _put(present[name], states[name])


def packed(states: States) -> Packed:
    """Encode states as text."""
    return {name: b64encode(zlib.compress(state, level=1)).decode() for name, state in states.items()}


def unpacked(states: Packed) -> States:
    """Decode the result of `packed`."""
    return {name: zlib.decompress(b64decode(state)) for name, state in states.items()}


def _held(samplers: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    """Yield (path, generator) for each generator among the attributes of samplers."""
    waiting = [(f"sampler {n}", one) for n, one in enumerate(samplers)]
    seen: set[int] = set()
    while waiting:
        path, holder = waiting.pop(0)
        if id(holder) in seen:
            continue
        seen.add(id(holder))
        for name, value in getattr(holder, "__dict__", {}).items():
            if isinstance(value, (torch.Generator, random.Random, np.random.Generator, np.random.RandomState)):
                yield f"{path}.{name}", value
            elif isinstance(value, Sampler) or name.strip("_").endswith("sampler"):
                waiting.append((f"{path}.{name}", value))


def _taken(generator: Any) -> bytes:
    if isinstance(generator, torch.Generator):
        # Every second four bytes are zero; side by side they compress well.
        columns: NDArray[np.uint8] = generator.get_state().numpy().reshape(-1, 8).T
        return columns.tobytes()
    if isinstance(generator, random.Random):
        return json.dumps(generator.getstate()).encode()
    if isinstance(generator, np.random.RandomState):
        return _text(generator.get_state(legacy=False))
    return _text(generator.bit_generator.state)


def _put(generator: Any, state: bytes) -> None:
    if isinstance(generator, torch.Generator):
        columns = np.frombuffer(state, np.uint8).reshape(8, -1)
        generator.set_state(torch.from_numpy(columns.T.reshape(-1).copy()))
    elif isinstance(generator, random.Random):
        version, words, gauss = json.loads(state)
        generator.setstate((version, tuple(words), gauss))
    elif isinstance(generator, np.random.RandomState):
        generator.set_state(_values(state))
    else:
        generator.bit_generator.state = _values(state)


def _text(state: Any) -> bytes:
    return json.dumps(state, default=lambda array: {"words": array.tolist(), "dtype": array.dtype.str}).encode()


def _values(text: bytes) -> Any:
    def arrays(part: dict[str, Any]) -> Any:
        return np.array(part["words"], part["dtype"]) if part.keys() == {"words", "dtype"} else part

    return json.loads(text, object_hook=arrays)
