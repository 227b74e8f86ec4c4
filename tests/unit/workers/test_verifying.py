"""Files of another size, and values that differ by a bit."""

from __future__ import annotations

import os
import random
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import tv_tensors

import sophon_loader.workers.verifying as module
from sophon_loader.client.options import OffloadOptions
from sophon_loader.client.wanted import Reply
from sophon_loader.encodings.catalogue import encoding_names
from sophon_loader.errors import AgentUnreachable, ConfigError, SampleDiffers
from sophon_loader.pipeline.randomness import Draw
from sophon_loader.workers.alike import difference
from sophon_loader.workers.verifying import SizeCheck, Verifier
from tests.support.clocks import FakeClock
from tests.support.workers import Parts
from tests.unit.workers.test_finishing import (
    answer,
    draw_of,
    expected,
    file_of,
    finished,
    needs_crop,
    part_for,
    parts_at,
    root,
    terms,
    wanted,
)

__all__ = ["root"]


def verifying(root: Path, **options: Any) -> Parts:
    return parts_at(root, terms(options=OffloadOptions(**{"verify": 1.0, "dead_after_s": 1.0, **options})))


# --- values that differ -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("one", "other"), [
    (torch.zeros(2), torch.tensor([0.0, -0.0])), (torch.zeros(2), torch.zeros(2, dtype=torch.float64)),
    (torch.zeros(2), torch.zeros(1, 2)), (torch.tensor(0.0), torch.tensor(1.0)), (torch.zeros(2), np.zeros(2)),
    (tv_tensors.Image(torch.zeros(1, 2, 2)), torch.zeros(1, 2, 2)), (np.zeros(2), np.zeros(2, np.float32)),
    (np.zeros(2), np.array([0.0, -0.0])), (Image.new("RGB", (2, 2)), Image.new("RGB", (2, 2), (0, 0, 1))),
    (Image.new("RGB", (2, 2)), Image.new("RGB", (4, 1))), (Image.new("L", (2, 2)), Image.new("P", (2, 2))),
    (b"abc", b"abd"), (b"abc", b"abcd"), ([torch.zeros(1)], [torch.ones(1)]), ({"a": 1}, {"b": 1}),
    ((1, {"a": [Image.new("L", (1, 1), 1)]}), (1, {"a": [Image.new("L", (1, 1), 2)]})),
])  # fmt: skip
def test_a_bit_a_type_or_a_shape_makes_a_difference(one: Any, other: Any) -> None:
    assert difference(one, one) is None and difference(other, other) is None
    assert difference(one, other) is not None and difference(other, one) is not None


def test_nan_is_as_good_as_any_value() -> None:
    assert difference(torch.tensor([torch.nan]), torch.tensor([torch.nan])) is None
    assert difference(torch.tensor(0.0, dtype=torch.bfloat16), torch.tensor(0.0, dtype=torch.bfloat16)) is None


def says(nbytes: int) -> Any:
    """What asks the agent for a file once more: it then has so many bytes."""
    return SimpleNamespace(size_there=lambda wanted: nbytes)


def repeats(monkeypatch: pytest.MonkeyPatch, reply: Reply) -> Reply:
    """Have the agent answer the same when it is asked once more."""
    monkeypatch.setattr(module.FallbackFiles, "again", lambda self, wanted, epoch: (reply.sample, reply.payload))
    return reply


# --- sizes ------------------------------------------------------------------------------------------------------


def reply_of(nbytes: int, index: int = 1) -> Reply:
    return answer(b"", 0, "file", wanted(index=index), file_nbytes=nbytes)


def test_a_file_of_another_size(root: Path) -> None:
    path, locations = root / "c" / "1.jpg", parts_at(root, terms()).locations
    nbytes = path.stat().st_size
    SizeCheck(locations, says(7)).compare(reply_of(nbytes), "an agent")
    with pytest.raises(SampleDiffers) as caught:
        SizeCheck(locations, says(7)).compare(reply_of(7), "an agent")
    for part in (
        "file of sample 1 ('c/1.jpg') must be the same at both ends",
        f"got {nbytes} bytes in {path} here and 7 bytes at agent an agent; bring one of the two files up to date",
    ):
        assert part in str(caught.value)
    path.unlink()
    SizeCheck(locations, says(7)).compare(reply_of(7), "an agent")  # mounted in part


def test_a_file_that_is_replaced_meanwhile(root: Path) -> None:
    """Before this host looks at it, and again and again while it looks."""
    path, locations = root / "c" / "1.jpg", parts_at(root, terms()).locations
    SizeCheck(locations, says(path.stat().st_size)).compare(reply_of(7), "an agent")

    def there(wanted: Any) -> int:
        path.write_bytes(bytes(path.stat().st_size + 1))
        return 7

    SizeCheck(locations, SimpleNamespace(size_there=there)).compare(reply_of(7), "an agent")  # type: ignore[arg-type]


def test_an_agent_that_has_gone_cannot_be_asked_again(root: Path) -> None:
    def there(wanted: Any) -> int:
        raise AgentUnreachable("it has just gone")

    locations = parts_at(root, terms()).locations
    SizeCheck(locations, SimpleNamespace(size_there=there)).compare(reply_of(7), "an agent")  # type: ignore[arg-type]


def test_a_mount_that_says_0_bytes_of_all_files(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is looked into once, and then not asked for sizes any more. A file that is empty is one."""
    locations, asked = parts_at(root, terms()).locations, []
    nbytes = (root / "c" / "1.jpg").stat().st_size
    (root / "c" / "2.jpg").write_bytes(b"")
    with pytest.raises(SampleDiffers, match="got 0 bytes in"):
        SizeCheck(locations, says(7)).compare(reply_of(7, index=2), "an agent")

    def there(wanted: Any) -> int:
        asked.append(wanted)
        return nbytes

    monkeypatch.setattr(os, "stat", lambda path: SimpleNamespace(st_size=0))
    monkeypatch.setattr(os, "fstat", lambda descriptor, real=os.fstat: os.stat_result((real(descriptor)[0], *[0] * 9)))
    sizes = SizeCheck(locations, SimpleNamespace(size_there=there))  # type: ignore[arg-type]
    for _ in range(3):
        sizes.compare(reply_of(nbytes), "an agent")
    assert len(asked) == 1


def test_no_more_than_a_hundredth_of_the_time_goes_into_sizes(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a file system on which a look takes 2 ms, beside samples of 4 ms; one of a second counts as the others."""
    clock, looks = FakeClock(), 0
    real = os.stat

    def slow(path: str) -> os.stat_result:
        nonlocal looks
        looks += 1
        clock.now_s += 1.0 if looks == 3 else 0.002
        return real(path)

    sizes = SizeCheck(parts_at(root, terms()).locations, says(0))
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=clock))
    monkeypatch.setattr(module, "os", SimpleNamespace(stat=slow))
    nbytes = real(root / "c" / "1.jpg").st_size
    for _ in range(1000):
        sizes.compare(reply_of(nbytes), "an agent")
        clock.now_s += 0.004
    assert 20 <= looks <= 30, "4 s of samples, and the one of a second"


def test_a_look_that_takes_microseconds_is_made_for_every_sample(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, looks = FakeClock(), []
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=clock))
    sizes = SizeCheck(parts_at(root, terms()).locations, says(0))
    nbytes = (root / "c" / "1.jpg").stat().st_size

    def quick(path: str) -> Any:
        looks.append(path)
        clock.now_s += 0.000_004
        return SimpleNamespace(st_size=nbytes)

    monkeypatch.setattr(module, "os", SimpleNamespace(stat=quick))
    for _ in range(100):
        sizes.compare(reply_of(nbytes), "an agent")
        clock.now_s += 0.001
    assert len(looks) == 100


# --- which samples are verified -----------------------------------------------------------------------------------


def test_a_share_of_the_samples_is_verified(root: Path) -> None:
    def due(share: float) -> set[tuple[int, int, int]]:
        verifier = Verifier(share, SimpleNamespace(), None)  # type: ignore[arg-type]
        cases = [(epoch, index, again) for epoch in range(10) for index in range(1000) for again in range(2)]
        return {case for case in cases if verifier.due(Draw(5, *case))}

    assert due(0) == set() and len(due(1.0)) == 20_000
    tenth = due(0.1)
    assert 1800 < len(tenth) < 2200 and due(0.05) < tenth
    assert {epoch for epoch, _, _ in tenth} == set(range(10)) and len({index for _, index, _ in tenth}) > 500


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan"), "1", True, None])
def test_a_share_that_is_none(share: Any) -> None:
    with pytest.raises(ConfigError, match="verify must be a number from 0 to 1, got"):
        OffloadOptions(verify=share)
    assert OffloadOptions().verify == 0.001


# --- what is verified ---------------------------------------------------------------------------------------------


def head_of(parts: Parts, cut: int) -> Any:
    chain = parts.steps[0].chain
    with chain.isolated():
        return chain.run(file_of(parts, 1), 0, cut, draw_of(parts, 1))


CUTS = [
    (0, "file"),
    (0, "lepton"),
    (1, "pixels"),
    (2, "pixels"),
    (2, "webp"),
    (4, "pixels"),
    (5, "array"),
    (6, "array"),
]


@pytest.mark.parametrize(("cut", "encoding"), CUTS)
def test_what_is_the_same_is_counted(root: Path, cut: int, encoding: str) -> None:
    if encoding not in encoding_names():
        pytest.skip(f"{encoding} is not here")
    parts = verifying(root)
    torch.manual_seed(3)
    random.seed(3)
    states = torch.get_rng_state(), random.getstate()
    value, _ = finished(parts, answer(head_of(parts, cut), cut, encoding, wanted(cut, encoding)))
    assert torch.equal(value, expected(parts, 1))
    assert parts.statistics.totals(1).verified == 1
    assert torch.equal(torch.get_rng_state(), states[0]) and random.getstate() == states[1]


@needs_crop
@pytest.mark.parametrize("spoil", [False, True])
def test_a_part_of_a_file(root: Path, spoil: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is compared once the crop has been made of it."""
    parts = verifying(root)
    chain = parts.steps[0].chain
    other = file_of(parts, 2) if spoil else file_of(parts, 1)
    reply = answer(part_for(chain, other, draw_of(parts, 1)), 0, "roi-jpeg", wanted(0, "roi-jpeg"))
    if not spoil:
        assert torch.equal(finished(parts, reply)[0], expected(parts, 1))
        assert parts.statistics.totals(1).verified == 1
    else:
        with pytest.raises(
            SampleDiffers, match=r"value after ops 0 to 1 \(decode to v1.RandomResizedCrop\) of sample 1 "
        ):
            finished(parts, repeats(monkeypatch, reply))


def test_a_bit_of_another_value(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = verifying(root)
    image = head_of(parts, 3)
    image.putpixel((5, 5), tuple(band ^ 1 for band in image.getpixel((5, 5))))
    with pytest.raises(SampleDiffers) as caught:
        finished(parts, repeats(monkeypatch, answer(image, 3, "pixels", wanted(3, "pixels"))))
    for part in (
        "value after ops 0 to 2 (decode to v1.RandomHorizontalFlip) of sample 1 ('c/1.jpg') must be the same at both",
        "from agent tcp://127.0.0.1:1/photos, at cut 3 in encoding 'pixels'", "the same files and run the same ops",
    ):  # fmt: skip
        assert part in str(caught.value)
    assert parts.statistics.totals(1).verified == 0


def test_another_file_of_the_same_size(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = verifying(root)
    data = bytearray(file_of(parts, 1))
    data[-100] ^= 1
    with pytest.raises(SampleDiffers, match=rf"^file of sample 1 .*got {len(data)} bytes with other values here and "):
        finished(parts, repeats(monkeypatch, answer(bytes(data), 0, "file", wanted())))


@pytest.mark.parametrize("share", [0.001, 0.0])
def test_the_first_samples_of_a_run_are_verified_besides(
    root: Path, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So many over all workers, of so many bytes, in the first epoch, where files are here; none for a share of 0."""
    parts, row = verifying(root, verify=share), parts_at(root).statistics.row(0)
    few = answer(b"", 0, "file", wanted(), file_nbytes=100)
    much = answer(b"", 0, "file", wanted(), file_nbytes=module.FIRST_NBYTES // 2)

    def first(reply: Reply, times: int) -> int:
        verifier = Verifier(share, module.FallbackFiles(parts.locations, parts.terms), parts.terms)
        return sum(verifier.is_first(reply, row) for _ in range(times))

    row.begin(1)
    assert (first(few, 99), first(much, 99)) == ((module.FIRST_FILES, 2) if share else (0, 0))
    monkeypatch.setattr(module, "worker_count", lambda: 4)
    assert first(few, 99) == (module.FIRST_FILES // 4 if share else 0) and first(much, 99) == 0
    (root / "c" / "1.jpg").unlink()
    assert first(few, 9) == 0
    row.begin(2)
    assert first(answer(b"", 0, "file", wanted(index=2), file_nbytes=100), 9) == 0


def test_a_bit_of_a_file_is_noticed_with_the_first_samples(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = verifying(root, verify=1e-9)
    data = bytearray(file_of(parts, 1))
    data[-100] ^= 1
    with pytest.raises(SampleDiffers, match=r"^file of sample 1 "):
        finished(parts, repeats(monkeypatch, answer(bytes(data), 0, "file", wanted())))


@pytest.mark.parametrize("cut", [0, 2])
def test_a_file_of_the_same_size_that_is_replaced_meanwhile(
    root: Path, cut: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent has read the one that was there before, and gives the new one when it is asked again."""
    parts, path = verifying(root), root / "c" / "1.jpg"
    encoding = "pixels" if cut else "file"
    before = answer(head_of(parts, cut), cut, encoding, wanted(cut, encoding))
    path.write_bytes((root / "c" / "2.jpg").read_bytes()[: path.stat().st_size].ljust(path.stat().st_size, b"\0"))
    repeats(monkeypatch, answer(head_of(parts, cut), cut, encoding, wanted(cut, encoding)))
    assert before.sample is not None
    finished(parts, replace(before, sample=replace(before.sample, file_nbytes=path.stat().st_size)))


def test_a_file_that_is_replaced_all_the_time(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts, path = verifying(root), root / "c" / "1.jpg"
    before = answer(file_of(parts, 1), 0, "file", wanted())

    def again(self: Any, one: Any, epoch: int) -> Any:
        data = bytearray(path.read_bytes())
        data[-100] ^= 1
        path.write_bytes(data)
        return before.sample, before.payload

    again(None, None, 0)
    monkeypatch.setattr(module.FallbackFiles, "again", again)
    finished(parts, before)


def test_a_file_that_only_the_agent_can_decode(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = verifying(root)
    head = head_of(parts, 2)
    path = root / "c" / "1.jpg"
    path.write_bytes(b"x" * path.stat().st_size)
    note = "" if sys.version_info >= (3, 11) else r"\nin op 0 \(decode\) of the pipeline"
    with pytest.raises(
        SampleDiffers, match=rf"got UnidentifiedImageError: cannot identify .*{note} here and an Image of mode"
    ):
        finished(parts, repeats(monkeypatch, answer(head, 2, "pixels", wanted(2, "pixels"))))


def test_nothing_is_verified_without_being_asked_for(root: Path) -> None:
    parts = verifying(root, verify=0.0)
    value, _ = finished(parts, answer(Image.new("RGB", (48, 48)), 2, "pixels", wanted(2, "pixels")))
    assert value.shape == (3, 48, 48) and parts.statistics.totals(1).verified == 0


def test_a_file_that_cannot_be_had_hinders_nobody(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = verifying(root)
    reply = answer(head_of(parts, 2), 2, "pixels", wanted(2, "pixels"))
    value = expected(parts, 1)
    (root / "c" / "1.jpg").unlink()

    def nobody(self: Any, one: Any) -> bytes:
        raise AgentUnreachable("it has just gone")

    monkeypatch.setattr(module.FallbackFiles, "elsewhere", nobody)
    assert torch.equal(finished(parts, reply)[0], value)
    assert parts.statistics.totals(1).verified == 0
