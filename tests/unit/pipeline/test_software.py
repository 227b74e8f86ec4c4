"""What is compared between two ends, also with one of an earlier release, and what is imported against what is told."""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from pathlib import Path

import msgpack
import pytest
import torch
from torchvision import transforms as v1

from sophon_loader.pipeline import software as of_software
from sophon_loader.pipeline.chain import chain_of
from sophon_loader.pipeline.maths import MATHS, _digest, maths
from sophon_loader.pipeline.registration import Registration, registration_of
from sophon_loader.pipeline.software import release_of, software, unlike
from sophon_loader.pipeline.switches import KERNELS, ON_TENSORS

EARLIER = ("machine", "libjpeg", "pillow", "torch", "torchvision", "default dtype")
"""What the first release states and compares."""


def earlier() -> dict[str, str]:
    return {name: value for name, value in software().items() if name in EARLIER}


def test_an_end_of_an_earlier_release_has_the_usual_settings() -> None:
    assert unlike(software()) == unlike(earlier()) == []
    torch.set_flush_denormal(True)
    try:
        assert unlike(earlier()) == ["flush denormal"]
    finally:
        torch.set_flush_denormal(False)


@pytest.mark.parametrize("name", [*EARLIER, "default device", *sorted(ON_TENSORS)])
def test_what_differs_is_named(name: str) -> None:
    assert unlike({**software(), name: "another"}) == [name]


@pytest.mark.parametrize(
    ("steps", "reach"),
    [
        ([v1.RandomResizedCrop(8), v1.ToTensor(), v1.Normalize([0.5], [0.5])], 2),
        ([v1.ToTensor(), v1.Resize(8)], 1),
        ([v1.Resize(8), v1.GaussianBlur(3), v1.Pad(1)], 2),
        ([v1.RandomApply([v1.GaussianBlur(3)]), v1.Pad(1)], 1),
        ([v1.Resize(8), v1.ColorJitter(0.1)], 3),
    ],
    ids=["tensors", "tensors first", "blur", "held blur", "images"],
)
@pytest.mark.parametrize("name", sorted(ON_TENSORS))
def test_ops_of_pillow_s_run_whatever_torch_is_set_to(steps: list[object], reach: int, name: str) -> None:
    chain = chain_of(v1.Compose(steps))
    assert Registration.from_bytes(registration_of(chain, software())).reach == len(chain)
    other = Registration.from_bytes(registration_of(chain, {**software(), name: "another"}))
    assert other.reach == reach and len(other.chain) == len(chain)
    assert other.why == f"torch has other settings here than at the loader: {name}"


# --- releases ---------------------------------------------------------------------------------------------------------


def put_library(folder: Path, code: str = "", version: str = "0.29.1") -> Path:
    library = folder / "torchvision"
    library.mkdir(parents=True)
    (library / "__init__.py").write_text(code)
    (library / "version.py").write_text(f"__version__ = {version!r}\n")
    return folder


def release_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """As in a process that finds libraries there."""
    monkeypatch.setattr(of_software, "find_spec", lambda name: PathFinder.find_spec(name, [str(folder)]))
    return release_of("torchvision", "torchvision")


def test_a_copy_that_is_imported_in_place_of_what_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = software()["torchvision"]
    assert "copy" not in installed and "torchvision" in sys.modules
    one, same, other, later = (
        release_in(put_library(tmp_path / name, code, version), monkeypatch)
        for name, code, version in (
            ("one", "", installed), ("same", "", installed), ("other", "x = 1", installed), ("later", "", "99.0+cpu"),
        )
    )  # fmt: skip
    assert one == same != other and one.startswith(f"{installed}, a copy (") and other.startswith(one[:15])
    assert later.startswith(f"99.0, installed as {installed}, a copy (")


def test_what_is_nowhere_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert release_of("no such package", "no_such_module") == "none"


def test_what_cannot_be_imported_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)
    assert release_of("torchvision", "torchvision") == "none"


def test_what_maths_libraries_compute_is_compared_where_the_loader_states_it() -> None:
    chain = chain_of(v1.Compose([v1.RandomResizedCrop(24), v1.ToTensor()]))
    stated = msgpack.unpackb(registration_of(chain, software()))[0]
    assert stated.keys() - software().keys() == {MATHS} and stated[MATHS] == maths()
    for value, reach in (("another", chain.pillow_stages), (maths(), len(chain)), (None, len(chain))):
        told = software() if value is None else {**software(), MATHS: value}
        served = Registration.from_bytes(msgpack.packb([told, chain.description]))
        assert served.reach == reach and (MATHS in served.why) == (value == "another")
    pillow = chain_of(v1.RandomResizedCrop(24))
    assert MATHS not in msgpack.unpackb(registration_of(pillow, software()))[0], "nothing to be computed"


def test_a_digest_leaves_generators_threads_and_devices_alone() -> None:
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    expected = maths()
    _digest.cache_clear()
    with torch.device("meta"), torch.autocast("cpu", torch.bfloat16):
        assert maths() == expected
    assert torch.equal(torch.get_rng_state(), before) and torch.get_num_threads() == threads


def test_kernels_are_compared_where_both_ends_state_them() -> None:
    assert unlike({name: value for name, value in software().items() if name != KERNELS}) == []
    assert unlike({**software(), KERNELS: "AVX1024"}) == [KERNELS]
