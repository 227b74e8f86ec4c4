"""A Compose that is called on a deferred image gives what it gives on Pillow's, its end by a table where it has one."""

from __future__ import annotations

import io
import random
import threading
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.transforms import _functional_pil, v2

from sophon_loader.kinds.image.deferred import Deferred
from sophon_loader.pipeline.ends import PointwiseEnd
from sophon_loader.recording.containers import Containers
from sophon_loader.recording.opener import Opener, can_defer
from tests.support.picture_files import file_of

pytestmark = pytest.mark.skipif(not can_defer(), reason="our C is not here")
FILE = file_of("jpeg 4:2:0", 120, 90)
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CALLS, FORWARD = v1.Compose.__call__, v2.Compose.forward


def jitters(image: Image.Image) -> Image.Image:
    """Draws from each global generator."""
    image = image.rotate(90) if random.random() < 0.5 else image
    return image.crop((int(np.random.randint(9)), int(torch.randint(9, ())), 80, 70))


def opened() -> Image.Image:
    return Image.open(io.BytesIO(FILE)).convert("RGB")


def seed() -> None:
    torch.manual_seed(3)
    np.random.seed(3)
    random.seed(3)


def drawn() -> tuple[float, ...]:
    return float(torch.rand(())), float(np.random.rand()), random.random()


def facts(made: Any) -> list[Any]:
    tensor = made.as_subclass(torch.Tensor)
    layout = [type(made), made.dtype, made.shape, made.stride(), made.requires_grad, made.is_contiguous()]
    return [*layout, tensor.contiguous().numpy().tobytes()]


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """For each end that was tried by a table, how many transforms that took the place of; 0 if it gave no tensor."""
    found: list[int] = []
    run = PointwiseEnd.run

    def spied(self: PointwiseEnd, *args: Any, **kwargs: Any) -> Any:
        made = run(self, *args, **kwargs)
        found.append(0 if made is None else self.stop - self.first)
        return made

    monkeypatch.setattr(PointwiseEnd, "run", spied)
    return found


COMPOSES = {
    "v1": v1.Compose([v1.RandomResizedCrop(24), v1.RandomHorizontalFlip(), v1.ToTensor(), v1.Normalize(MEAN, STD)]),
    "v1, own code before": v1.Compose([jitters, v1.Resize((20, 30)), v1.ToTensor()]),
    "v1, drawing behind": v1.Compose([v1.Resize(24), v1.ToTensor(), v1.Normalize(MEAN, STD), v1.RandomErasing(1)]),
    "v1, nothing before": v1.Compose([v1.ToTensor(), v1.Normalize(MEAN, STD)]),
    "v1, looked at before": v1.Compose([v1.ColorJitter(0.5), v1.ToTensor()]),
    "v1, nested": v1.Compose([v1.RandomCrop(24), v1.Compose([v1.PILToTensor(), v1.ConvertImageDtype(torch.float32)])]),
    "v2": v2.Compose([v2.RandomResizedCrop(24), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]),
    "v2, normalized": v2.Compose(
        [v2.RandomCrop(24), v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    ),
}


@pytest.mark.parametrize("compose", COMPOSES.values(), ids=COMPOSES)
def test_tensors_and_draws_are_those_of_the_plain_call(compose: Any, tables: list[int]) -> None:
    seed()
    expected = [facts(compose(opened())) for _ in range(4)], drawn()
    seed()
    found, opener = [], Opener()
    for _ in range(4):
        with opener.opening():
            found.append(facts(compose(opened())))
    assert (found, drawn()) == expected
    assert len(tables) == 3 and all(tables), "not at its first call"


def test_classes_are_those_of_the_plain_call() -> None:
    assert [facts(COMPOSES[name](opened()))[0] for name in ("v1", "v2")] == [torch.Tensor, tv_tensors.Image]


def replace_one(compose: Any) -> None:
    compose.transforms[1] = v1.PILToTensor()


def insert_one(compose: Any) -> None:
    compose.transforms.insert(2, v1.RandomErasing(1))


def write_mean(compose: Any) -> None:
    compose.transforms[2].mean = [0.1, 0.2, 0.3]


def write_mean_in_place(compose: Any) -> None:
    compose.transforms[2].mean[0] = 0.1


def add_hook(compose: Any) -> None:
    compose.transforms[2].register_forward_hook(lambda module, inputs, output: output + 1)


def change_class(compose: Any) -> None:
    class Doubled(v1.ToTensor):
        def __call__(self, pic: Any) -> Any:
            return super().__call__(pic) * 2

    compose.transforms[1].__class__ = Doubled


def drop_the_list(compose: Any) -> None:
    compose.transforms = iter(compose.transforms)


CHANGES = (replace_one, insert_one, write_mean, write_mean_in_place, add_hook, change_class, drop_the_list)


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_end_is_called_as_it_is(change: Any, tables: list[int]) -> None:
    one, other = (
        v1.Compose([v1.Resize(24), v1.ToTensor(), v1.Normalize([0.4, 0.4, 0.4], [0.2, 0.2, 0.2])]) for _ in range(2)
    )
    change(other)
    seed()
    expected = None if change is replace_one else facts(other(opened()))
    opener = Opener()
    with opener.opening():
        for _ in range(2):
            one(opened())
        change(one)
        seed()
        if expected is None:
            with pytest.raises(TypeError, match="float"):
                one(opened())
        else:
            assert facts(one(opened())) == expected
    assert tables in ([2], [2, 1]), "before the change; then its ToTensor alone"


def test_what_comes_before_the_end_may_change(tables: list[int]) -> None:
    compose = v1.Compose([v1.Resize(24), v1.ToTensor()])
    opener = Opener()
    with opener.opening():
        shapes = []
        for size in (24, 32, 40):
            compose.transforms[0].size = size
            shapes.append(compose(opened()).shape[1])
    assert shapes == [24, 32, 40] and tables == [1] * 2


class Own(v1.Compose):
    """Runs its transforms in the other order."""

    def __call__(self, img: Any) -> Any:
        return v1.Compose(self.transforms[::-1])(img)


@pytest.mark.parametrize("way", ["subclass", "another thread", "two inputs", "Pillow's image", "autocast", "own op"])
def test_what_is_left_to_the_plain_call(way: str, tables: list[int]) -> None:
    ends: list[Any] = [v1.PILToTensor(), v1.Resize(24)] if way == "subclass" else [v1.ToTensor()]
    compose: Any = Own(ends) if way == "subclass" else v1.Compose(ends)
    compose = v2.Compose([v2.ToImage()]) if way == "two inputs" else compose
    compose = v1.Compose([lambda image: v1.functional.pil_to_tensor(image)]) if way == "own op" else compose

    def call(image: Any) -> Any:
        if way == "two inputs":
            return compose(image, tv_tensors.Mask(torch.zeros(90, 120)))[0]
        if way == "autocast":
            with torch.autocast("cpu"):
                return compose(image)
        return compose(image)

    plain = opened()
    expected = facts(call(plain))
    found: list[Any] = []
    with Opener().opening():
        for _ in range(3):
            image = plain if way == "Pillow's image" else opened()
            if way == "another thread":
                thread = threading.Thread(target=lambda image=image: found.append(facts(call(image))))
                thread.start()
                thread.join()
            else:
                found.append(facts(call(image)))
    assert found == [expected] * 3 and not tables


class Ends(torch.nn.Module):
    """In a `Sequential`."""

    def forward(self, image: Any) -> Any:
        return v1.functional.to_tensor(image)


@pytest.mark.parametrize(
    "call",
    [
        *(v1.ToTensor(), v2.functional.to_tensor, torch.nn.Sequential(v1.Resize(24), Ends())),
        v1.Lambda(lambda image: v1.functional.to_tensor(image.crop((9, 9, 60, 50)))),
    ],
    ids=["ToTensor", "v2", "Sequential", "own code"],
)
@pytest.mark.filterwarnings("ignore:The function `to_tensor.*is deprecated")
def test_to_tensor_is_by_a_table_whoever_calls_it(call: Any, tables: list[int]) -> None:
    expected = facts(call(opened()))
    with Opener().opening():
        assert [facts(call(opened())) for _ in range(3)] == [expected] * 3
    assert tables == [1] * 2, "not at its first call"


@pytest.mark.parametrize("kind", ["jpeg 4:2:0", "jpeg L", "png RGB"])
def test_it_is_of_a_file_that_has_just_been_opened_as_well(kind: str, tables: list[int]) -> None:
    def made() -> list[Any]:
        image = Image.open(io.BytesIO(file_of(kind)))
        tensor = facts(v1.functional.to_tensor(image))
        return [*tensor, image.tile, image.fp, image.readonly, image.info, image.tobytes()]

    expected = made()
    with Opener().opening():
        assert [made() for _ in range(3)] == [expected] * 3
    assert tables == [1] * 2


@pytest.mark.parametrize(("holder", "name"), [(v1.functional, "to_tensor"), (_functional_pil, "_is_pil_image")])
def test_no_table_takes_the_place_of_what_somebody_else_has_changed(
    holder: Any, name: str, monkeypatch: pytest.MonkeyPatch, tables: list[int]
) -> None:
    before, met = getattr(holder, name), []
    with Opener().opening():
        pass

    def traced(image: Any) -> Any:
        met.append(image)
        return before(image)

    monkeypatch.setattr(holder, name, traced)
    stood = v1.functional.to_tensor
    with Opener().opening():
        for _ in range(3):
            v1.functional.to_tensor(opened())
    assert len(met) >= 3 and not tables and v1.functional.to_tensor is stood


def test_a_function_that_somebody_else_has_put_there_is_called_and_stays(
    monkeypatch: pytest.MonkeyPatch, tables: list[int]
) -> None:
    compose = v1.Compose([v1.ToTensor()])
    met = []

    def traced(self: Any, img: Any) -> Any:
        met.append(img)
        return CALLS(self, img)

    monkeypatch.setattr(v1.Compose, "__call__", traced)
    with Opener().opening():
        for _ in range(3):
            compose(opened())
    assert len(met) == 3 and v1.Compose.__call__ is traced and not tables
    with Containers().standing_in():
        monkeypatch.setattr(v1.Compose, "__call__", CALLS)
    assert v1.Compose.__call__ is CALLS and v2.Compose.forward is FORWARD


def test_threads_that_overlap_leave_nothing_behind() -> None:
    begun, end = threading.Event(), threading.Event()

    def work() -> None:
        with Containers().standing_in():
            begun.set()
            end.wait(10)

    thread = threading.Thread(target=work)
    with Containers().standing_in():
        thread.start()
        assert begun.wait(10)
    assert v1.Compose.__call__ is not CALLS, "the other thread's"
    end.set()
    thread.join()
    assert v1.Compose.__call__ is CALLS and v2.Compose.forward is FORWARD


def test_an_image_that_was_taken_to_a_tensor_is_not_decoded_again() -> None:
    compose, opener = v1.Compose([v1.ToTensor()]), Opener()
    with opener.opening():
        compose(opened())
        image = opened()
        compose(image)
        assert isinstance(image, Deferred) and image._node.ours is not None
        assert np.array_equal(np.asarray(image), (compose(image) * 255).round().permute(1, 2, 0).numpy())


def test_a_damaged_file_fails_as_in_the_plain_call() -> None:
    compose, opener = v1.Compose([v1.Resize(24), v1.ToTensor()]), Opener()
    with opener.opening() as pictures:
        for _ in range(2):
            compose(opened())
        image = Image.open(io.BytesIO(FILE[: len(FILE) // 2])).convert("RGB")
        with pytest.raises(OSError, match="truncated"):
            compose(image)
    assert pictures.failed
