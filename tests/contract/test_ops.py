"""What every registered op must keep: it can be described, rebuilt, and draws only from what it declares."""

from __future__ import annotations

import copy
import enum
import itertools
import math
import pickle
import random
import warnings
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import msgpack
import numpy as np
import pytest
import torch
from PIL import Image
from timm.data import transforms as timm_transforms
from torchvision import transforms as v1
from torchvision.transforms import v2

from sophon_loader.pipeline.chain import chain_of
from sophon_loader.pipeline.op import GENERATORS, OpSpec
from sophon_loader.pipeline.op_catalogue import registered
from sophon_loader.pipeline.op_registry import build_op, op_of
from sophon_loader.pipeline.randomness import seed_generators
from sophon_loader.pipeline.state import same_state
from sophon_loader.pipeline.timm_ops import NOT_REGISTERED as NOT_OF_TIMM
from sophon_loader.pipeline.timm_ops import op_name
from sophon_loader.pipeline.torchvision_ops import NOT_REGISTERED
from tests.support.drawn import FULL
from tests.support.op_examples import EXAMPLES, Example, by_name, same_value, value_of
from tests.support.timm_examples import TIMM_EXAMPLES

SEEDS = (0, 1, 2)
OURS = ("v1.", "v2.", "nn.", "timm.")
ALL = [*EXAMPLES, *TIMM_EXAMPLES]
OPS = by_name(ALL)


def every_example(test: Callable[[Example], None]) -> Callable[[str], None]:
    """Has a test run for all examples of an op together: pytest takes longer for a test than most of these."""

    def of_op(name: str) -> None:
        for label, example in OPS[name]:
            print(label)  # the last one is shown when it fails
            test(example)

    of_op.__name__, of_op.__doc__ = test.__name__, test.__doc__
    marked: Callable[[str], None] = pytest.mark.parametrize("name", OPS)(of_op)
    return marked


@pytest.fixture(autouse=True)
def _as_in_a_chain() -> Iterator[None]:
    with chain_of(_unknown_op).isolated():
        yield


def _unknown_op(image: Any) -> Any:
    """Not registered, so it may draw from anything."""
    return image


def _input(example: Example, kind: str) -> Any:
    return value_of(kind, *(example.size or (21, 17)))


def _states() -> dict[str, Any]:
    state: Any = np.random.get_state()
    keys, position, *rest = state[1:]
    return {
        "torch": torch.default_generator.get_state().numpy().tobytes(),
        "numpy": (keys.tobytes(), position, *rest),
        "python": random.getstate(),
    }


def _seeded(call: Callable[[Any], Any], value: Any, draws: tuple[str, ...], seed: int, others: int) -> Any:
    seed_generators(GENERATORS, others)
    seed_generators(draws, seed)
    return call(value)


# --- the table is complete ------------------------------------------------------------------------------------


def test_every_registered_op_has_an_example() -> None:
    assert {name for name in registered() if name.startswith(OURS)} == {example.name for example in ALL}


@pytest.mark.parametrize(("prefix", "module"), [("v1", v1), ("v2", v2)])
def test_every_public_transform_is_registered_or_excluded_with_a_reason(prefix: str, module: ModuleType) -> None:
    public = {
        f"{prefix}.{name}"
        for name, value in vars(module).items()
        if isinstance(value, type) and not name.startswith("_") and not issubclass(value, enum.Enum)
    }
    listed = set(registered()) | set(NOT_REGISTERED)
    assert public - listed == set(), "new in this torchvision: register it, or say in NOT_REGISTERED why not"


def test_every_public_transform_of_timm_is_registered_or_excluded_with_a_reason() -> None:
    public = {name for name in timm_transforms.__all__ if isinstance(getattr(timm_transforms, name), type)}
    assert {name for name in public if op_name(name) not in registered()} == set(NOT_OF_TIMM)


def test_no_transform_is_both_registered_and_excluded() -> None:
    excluded = NOT_REGISTERED | {op_name(name): reason for name, reason in NOT_OF_TIMM.items()}
    assert set(registered()) & set(excluded) == set()
    assert all(len(reason) > 10 for reason in excluded.values())


# --- how large an image it makes --------------------------------------------------------------------------------


@every_example
def test_an_image_is_never_larger_than_was_said_before(example: Example) -> None:
    op = op_of(example.make())
    sizes = [example.size] if example.size else [(21, 17), (10, 60), (33, 12)]
    for height, width in sizes:
        wider, higher = op.growth(width, height) if op.growth else (width, height)
        for kind, seed in itertools.product(example.takes, range(8 if FULL else 2)):
            value = _seeded(op.call, value_of(kind, height, width), op.draws, seed, 7)
            found = value.size if isinstance(value, Image.Image) else (value.shape[-1], value.shape[-2])
            assert found[0] <= math.ceil(wider) and found[1] <= math.ceil(higher)


# --- description ----------------------------------------------------------------------------------------------


@every_example
def test_a_typical_construction_is_describable(example: Example) -> None:
    op = op_of(example.make())
    assert op.spec is not None
    assert (op.spec.name, op.label) == (example.name, example.name)


@every_example
def test_an_op_rebuilt_from_the_wire_is_equal_and_described_alike(example: Example) -> None:
    original = example.make()
    spec = op_of(original).spec
    assert spec is not None
    name, params = msgpack.unpackb(msgpack.packb([spec.name, dict(spec.params)]))
    rebuilt = build_op(OpSpec(name, params))
    assert same_state(rebuilt.call, original)
    assert op_of(rebuilt.call).spec == spec
    assert rebuilt.draws == op_of(original).draws


@every_example
def test_a_rebuilt_op_gives_the_same_values(example: Example) -> None:
    original = op_of(example.make())
    assert original.spec is not None
    rebuilt = build_op(original.spec)
    for kind in example.takes:
        for seed in SEEDS:
            expected = _seeded(original.call, _input(example, kind), original.draws, seed, 0)
            assert same_value(_seeded(rebuilt.call, _input(example, kind), rebuilt.draws, seed, 0), expected)


@every_example
def test_an_op_can_be_sent_to_a_spawned_worker(example: Example) -> None:
    op = op_of(example.make())
    sent = pickle.loads(pickle.dumps(op))
    assert same_state(sent.call, op.call)
    assert sent.spec == op.spec


@every_example
def test_a_subclass_is_not_taken_for_its_base(example: Example) -> None:
    transform = copy.deepcopy(example.make())
    transform.__class__ = type("Sub", (type(transform),), {})
    assert op_of(transform).spec is None


@every_example
def test_a_patched_object_is_not_taken_for_its_class(example: Example) -> None:
    transform = example.make()
    transform.patched = lambda image: image
    assert op_of(transform).spec is None


# --- randomness -----------------------------------------------------------------------------------------------


@every_example
def test_generators_not_declared_are_left_alone(example: Example) -> None:
    op = op_of(example.make())
    for kind in example.takes:
        for seed in SEEDS:
            seed_generators(GENERATORS, seed)
            before = _states()
            op.call(_input(example, kind))
            after = _states()
            assert {name for name in GENERATORS if before[name] != after[name]} <= set(op.draws)


@every_example
def test_the_declared_generators_alone_decide_the_value(example: Example) -> None:
    op = op_of(example.make())
    for kind in example.takes:
        for seed in SEEDS:
            expected = _seeded(op.call, _input(example, kind), op.draws, seed, others=100 + seed)
            assert same_value(_seeded(op.call, _input(example, kind), op.draws, seed, others=200 + seed), expected)


@pytest.mark.parametrize("name", sorted({example.name for example in ALL}))
def test_no_generator_is_declared_in_vain(name: str) -> None:
    """A generator too many is no error, but costs its seeding for every sample."""
    drawn, declared = set(), set()
    for example in (e for e in ALL if e.name == name):
        op = op_of(example.make())
        declared |= set(op.draws)
        for seed in range(12):
            seed_generators(GENERATORS, seed)
            before = _states()
            op.call(_input(example, example.takes[0]))
            drawn |= {key for key, state in _states().items() if state != before[key]}
    assert drawn == declared


# --- construction ---------------------------------------------------------------------------------------------


def test_rebuilding_a_deprecated_transform_is_silent() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        transform = v2.ToTensor()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert op_of(transform).spec is not None


@pytest.mark.parametrize("name", ["Resize", "CenterCrop", "RandomCrop", "RandomResizedCrop"])
@pytest.mark.parametrize("module", [v1, v2])
def test_crops_and_resizes_are_marked(name: str, module: ModuleType) -> None:
    op = op_of(getattr(module, name)(8))
    assert op.shrinks and op.takes_deferred


@pytest.mark.parametrize(
    "transform",
    [v2.RandomResize(8, 9), v2.RandomShortestSize(8), v2.ScaleJitter((9, 9))],
    ids=lambda t: type(t).__name__,
)
def test_random_resizes_are_marked(transform: Any) -> None:
    assert op_of(transform).shrinks


@every_example
def test_what_an_op_makes_is_what_it_says(example: Example) -> None:
    op = op_of(example.make())
    for kind in example.takes:
        value = _input(example, kind)
        result = op.call(value)
        if op.makes is None:
            assert isinstance(result, Image.Image) == isinstance(value, Image.Image)
        elif not (op.makes == "tensor" and isinstance(value, torch.Tensor)):
            assert isinstance(result, torch.Tensor if op.makes == "tensor" else Image.Image)


@every_example
def test_an_op_for_batches_does_to_each_what_it_does_to_one(example: Example) -> None:
    op = op_of(example.make())
    if not op.on_batches:
        return
    assert op.draws == ()
    for kind in example.takes:
        values = [_input(example, kind), _input(example, kind)]
        if not isinstance(values[0], torch.Tensor):
            continue
        whole = op.call(torch.stack(values))
        assert all(torch.equal(one, op.call(value)) for one, value in zip(whole, values, strict=True))
