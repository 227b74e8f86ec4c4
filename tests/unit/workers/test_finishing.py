"""From a reply to a sample, without the agent that could have sent it."""

from __future__ import annotations

import io
import os
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

from sophon_loader import native
from sophon_loader.client.address import Address
from sophon_loader.client.options import OffloadOptions
from sophon_loader.client.session import Terms
from sophon_loader.client.wanted import Reply, Wanted
from sophon_loader.encodings.catalogue import encoding_names, missing
from sophon_loader.encodings.registry import encode
from sophon_loader.errors import AgentUnreachable, MalformedMessage, SampleMissing, SampleUnreadable
from sophon_loader.kinds.image.part import PartOfFile
from sophon_loader.pipeline.chain import Chain
from sophon_loader.pipeline.described import begin_on_file
from sophon_loader.pipeline.randomness import Draw, Seed
from sophon_loader.wire.messages import CHEAPEST, Failed, Failure, Offer, Sample
from tests.support.loaders import said
from tests.support.pictures import picture, train_transform
from tests.support.workers import Parts, parts_of

EPOCH = 4
SIZE = (320, 240)
needs_crop = pytest.mark.skipif(not native.available, reason="the C extension is not built")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three photographs, all of one size."""
    (tmp_path / "c").mkdir()
    for number in range(3):
        (tmp_path / "c" / f"{number}.jpg").write_bytes(_photograph(number))
    return tmp_path


@cache
def _photograph(number: int) -> bytes:
    file = io.BytesIO()
    picture(*SIZE, number).save(file, "JPEG", quality=90)
    return file.getvalue()


def terms(**changes: Any) -> Terms:
    address = Address("tcp://127.0.0.1:1", "photos")
    made = Terms(address, OffloadOptions(dead_after_s=7), "i", (b"",), (False,), Seed(9), encoding_names())
    return replace(made, **changes)


def parts_at(root: Path, agreed: Terms | None = None, **arguments: Any) -> Parts:
    return parts_of(ImageFolder(str(root), train_transform(), **arguments), agreed)


def finished(parts: Parts, reply: Reply) -> tuple[Any, Any]:
    row = parts.statistics.row(0)
    row.begin(1)
    with parts.steps[0].chain.isolated():
        return parts.finisher.finish(reply, EPOCH, row)


def expected(parts: Parts, index: int, occurrence: int = 0) -> torch.Tensor:
    chain = parts.steps[0].chain
    with chain.isolated():
        value: torch.Tensor = chain.run(file_of(parts, index), 0, len(chain), draw_of(parts, index, occurrence))
    return value


def file_of(parts: Parts, index: int) -> bytes:
    return Path(str(parts.locations.path_here(index))).read_bytes()


def draw_of(parts: Parts, index: int, occurrence: int = 0) -> Draw:
    return parts.seed.draw(EPOCH, index, occurrence)


def wanted(cut: int = 0, encoding: str = "file", index: int = 1, **more: Any) -> Wanted:
    return Wanted(0, index, cut, encoding, f"c/{index}.jpg", **more)


def answer(value: Any, cut: int, encoding: str, one: Wanted, **changes: Any) -> Reply:
    """What an agent would have sent."""
    encoded = encode(value, encoding)
    op_s = [0.25] * (1 if cut == 0 else cut + 2)
    sample = Sample(1, cut, encoded.encoding, encoded.meta, len(_photograph(one.sample)), op_s, 0.0, 0.0, "")
    return Reply(one, 0, replace(sample, **changes), memoryview(encoded.payload))


# --- the same sample, whichever way it came ---------------------------------------------------------------------


@pytest.mark.parametrize("occurrence", [0, 2])
def test_a_file_that_is_read_here(root: Path, occurrence: int) -> None:
    parts = parts_at(root, target_transform=lambda label: label + 10)
    value, label = finished(parts, Reply(wanted(occurrence=occurrence), 0))
    assert torch.equal(value, expected(parts, 1, occurrence)) and label == 10
    totals = parts.statistics.totals(1)
    assert (totals.samples, totals.fallbacks, totals.encodings) == (1, 0, {"file": 1})
    assert totals.file_bytes == len(file_of(parts, 1))


@pytest.mark.parametrize("cut", [0, 1, 2, 3])
def test_a_value_that_the_agent_has_sent(root: Path, cut: int) -> None:
    parts = parts_at(root, terms())
    chain = parts.steps[0].chain
    with chain.isolated():
        head = chain.run(file_of(parts, 1), 0, cut, draw_of(parts, 1))
    reply = answer(head, cut, "pixels" if cut else "file", wanted(3, "pixels"))
    value, label = finished(parts, reply)
    assert torch.equal(value, expected(parts, 1)) and label == 0
    assert parts.statistics.totals(1).degraded == (cut < 3)


def test_a_choice_of_the_agent_s_is_set_beside_what_it_told(root: Path) -> None:
    """What it did, and what was left to the loader: by the agent's estimate, and as it was."""
    parts = parts_at(root, terms())
    with parts.steps[0].chain.isolated():
        head = parts.steps[0].chain.run(file_of(parts, 1), 0, 2, draw_of(parts, 1))
    offers = [Offer(0, "file", 9000, 0.0, 0.5), Offer(2, "pixels", 9000, 0.5, 0.125), Offer(2, "webp", 900, 0.5, 0.25)]
    one = wanted(5, CHEAPEST, prices=(1.0, 1.0, 1.0))
    value, _ = finished(parts, answer(head, 2, "pixels", one, offers=offers))
    assert torch.equal(value, expected(parts, 1))
    totals = parts.statistics.totals(1)
    assert (totals.weighed, totals.weighed_rest_s, totals.degraded) == (1, 0.125, 0)
    assert (totals.compared_rest_s, totals.compared_loader_s) == (0.0, 0.0), "too little was left to compare by"
    assert totals.estimated_work_s == 0.5 and totals.weighed_work_s == 0.75
    finished(parts, answer(head, 2, "pixels", one))
    assert parts.statistics.totals(1).weighed == 1, "most answers tell nothing"
    finished(parts, answer(head, 2, "pixels", one, offers=offers[:1]))
    assert parts.statistics.totals(1).weighed == 1, "nor do those that leave out what was taken"
    finished(parts, answer(file_of(parts, 1), 0, "file", one, offers=offers))
    totals = parts.statistics.totals(1)
    assert (totals.weighed, totals.weighed_rest_s, totals.compared_rest_s) == (1, 0.125, 0.5), "it is told of as a file"
    assert 0 < totals.compared_loader_s < 1.0


@pytest.mark.parametrize("cut", [0, 1, 3])
def test_whatever_the_agent_takes_is_no_less_than_was_asked_for(root: Path, cut: int) -> None:
    parts = parts_at(root, terms())
    with parts.steps[0].chain.isolated():
        head = parts.steps[0].chain.run(file_of(parts, 1), 0, cut, draw_of(parts, 1))
    one = wanted(3, CHEAPEST, prices=(1.0, 1.0, 1.0))
    value, _ = finished(parts, answer(head, cut, "pixels" if cut else "file", one))
    assert torch.equal(value, expected(parts, 1)) and parts.statistics.totals(1).degraded == 0
    finished(parts, answer(head, cut, "pixels" if cut else "file", one, note="an op has failed"))
    assert parts.statistics.totals(1).degraded == 1


def test_an_agent_that_goes_further_than_it_may(root: Path) -> None:
    parts = parts_at(root, terms())
    with parts.steps[0].chain.isolated():
        head = parts.steps[0].chain.run(file_of(parts, 1), 0, 3, draw_of(parts, 1))
    reply = answer(head, 3, "pixels", wanted(2, CHEAPEST, prices=(1.0, 1.0, 1.0)))
    read_in_its_place(parts, reply, "must run at most 2 ops, got 3")


def as_pair(image: Image.Image) -> list[Image.Image]:
    return [image, image]


@pytest.mark.parametrize("recording", [False, True])
def test_an_op_whose_value_cannot_cross_is_told_of(root: Path, recording: bool) -> None:
    """And what is profiled is profiled, for all that."""
    parts = parts_of(ImageFolder(str(root), as_pair), terms(), reach=[2])
    parts.profile.recording = recording
    finished(parts, Reply(wanted(), 0))
    (note,) = parts.statistics.said.notes(0)
    assert note.startswith("as_pair gives a list, which cannot be sent")
    assert parts.profile.known.any() == recording


def test_while_files_are_profiled(root: Path) -> None:
    parts = parts_at(root, terms())
    parts.profile.recording = True
    value, _ = finished(parts, Reply(wanted(), 0))
    assert torch.equal(value, expected(parts, 1))
    assert parts.profile.known.tolist() == [False, True, False]
    assert tuple(parts.profile.sides[1]) == SIZE


# --- a region is drawn once -------------------------------------------------------------------------------------


def part_for(chain: Chain, data: bytes, draw: Draw) -> PartOfFile:
    with chain.isolated():
        begun = begin_on_file(chain, data, draw)
    assert begun is not None
    part = begun.part()
    assert isinstance(part, PartOfFile)
    return part


@pytest.mark.parametrize("agreed", [None, terms()], ids=["no agent", "an agent that was given up"])
def test_a_file_that_has_become_a_pipe_is_not_waited_for(root: Path, agreed: Terms | None) -> None:
    (root / "c" / "1.jpg").unlink()
    os.mkfifo(root / "c" / "1.jpg")
    with pytest.raises(OSError, match="file must be a regular one, got a pipe, socket or device"):
        finished(parts_at(root, agreed), Reply(wanted(), 0, why="silence"))


@needs_crop
@pytest.mark.parametrize("way", ["read here", "file", "roi-jpeg", "lepton", "roi-lepton", "degraded"])
def test_a_region_is_drawn_once_per_sample(root: Path, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if way in missing():
        pytest.skip(missing()[way])
    parts = parts_at(root, terms(options=OffloadOptions(verify=0)))  # which would draw it once more
    chain, data, draw = parts.steps[0].chain, file_of(parts, 1), draw_of(parts, 1)
    value = expected(parts, 1)
    part = part_for(chain, data, draw)
    drawn = count_draws(v1.RandomResizedCrop, monkeypatch)
    one = wanted()
    replies = {
        "read here": lambda: Reply(one, 0),
        "file": lambda: answer(data, 0, "file", one),
        "roi-jpeg": lambda: answer(part, 0, "roi-jpeg", replace(one, encoding="roi-jpeg")),
        "lepton": lambda: answer(data, 0, "lepton", replace(one, encoding="lepton")),
        "roi-lepton": lambda: answer(part, 0, "roi-lepton", replace(one, encoding="roi-lepton")),
        "degraded": lambda: answer(data, 0, "file", replace(one, cut=3, encoding="pixels"), note="too busy"),
    }
    assert torch.equal(finished(parts, replies[way]())[0], value)
    assert drawn == [SIZE]
    if way in encoding_names():
        assert parts.statistics.totals(1).encodings == {way: 1}


def test_a_crop_that_pads_is_drawn_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    transform = v1.Compose([v1.RandomCrop(64, padding=4), v1.ToTensor()])
    parts = parts_of(ImageFolder(str(root), transform), terms())
    value = expected(parts, 1)
    drawn = count_draws(v1.RandomCrop, monkeypatch)
    assert torch.equal(finished(parts, Reply(wanted(), 0))[0], value)
    assert drawn == [(SIZE[0] + 8, SIZE[1] + 8)]


def count_draws(crop: Any, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Note the sizes of the images in which a class of crops draws a region from now on."""
    seen: list[tuple[int, int]] = []
    get_params = crop.get_params

    def noting(image: Image.Image, *limits: Any) -> Any:
        seen.append(image.size)
        return get_params(image, *limits)

    monkeypatch.setattr(crop, "get_params", staticmethod(noting))
    return seen


# --- what goes wrong --------------------------------------------------------------------------------------------


def test_a_file_that_was_meant_to_come_from_the_agent_is_a_fallback(root: Path) -> None:
    cases = [
        (terms(), wanted(), 1),
        (terms(), replace(wanted(), here=True), 0),
        (terms(), wanted(2, "pixels"), 1),
        (None, wanted(), 0),
    ]
    for agreed, one, fallbacks in cases:
        parts = parts_at(root, agreed)
        finished(parts, Reply(one, 0))
        assert parts.statistics.totals(1).fallbacks == fallbacks


def test_neither_an_agent_nor_a_folder(root: Path) -> None:
    parts = parts_at(root, terms())
    root.rename(root.with_name("elsewhere"))
    text = (
        r"agent tcp://127.0.0.1:1/photos must answer, got silence for 7 s; restart the agent .* sample 1 \('c/1.jpg'\) "
        rf"cannot be read on this host \(root {root}\)"
    )
    with pytest.raises(AgentUnreachable, match=text):
        finished(parts, Reply(wanted(), 0, why="got silence for 7 s"))


def test_a_file_that_is_gone_while_its_folder_is_here(root: Path) -> None:
    both = [parts_at(root, terms()), parts_at(root)]
    (root / "c" / "1.jpg").unlink()
    for parts in both:
        with pytest.raises(FileNotFoundError):
            finished(parts, Reply(wanted(), 0))


def test_a_refusal_of_the_agent(root: Path) -> None:
    reply = Reply(wanted(), 0, failed=Failed(Failure.MISSING, "no such file", [1]))
    rule = r"no such file \(sample 1, agent tcp://127.0.0.1:1/photos\); both hosts must hold the same"
    with pytest.raises(SampleMissing, match=rule):
        finished(parts_at(root, terms()), reply)


def test_an_agent_that_goes_too_far(root: Path) -> None:
    reply = answer(Image.new("RGB", (4, 4)), 2, "pixels", wanted(1, "pixels"))
    read_in_its_place(parts_at(root, terms()), reply, "must run at most 1 op, got 2 from tcp://127.0.0.1:1/photos")


def test_a_payload_that_is_none(root: Path) -> None:
    reply = replace(answer(Image.new("RGB", (4, 4)), 1, "pixels", wanted(1, "pixels")), payload=memoryview(b"x"))
    read_in_its_place(parts_at(root, terms()), reply, "must send 'pixels' as docs/wire.md describes it")


@needs_crop
def test_a_part_that_cannot_be_decoded(root: Path) -> None:
    """Its header fits, so it is not found out before op 0 runs on it."""
    parts = parts_at(root, terms())
    part = part_for(parts.steps[0].chain, file_of(parts, 1), draw_of(parts, 1))
    reply = answer(part, 0, "roi-jpeg", wanted(0, "roi-jpeg"))
    broken = replace(reply, payload=memoryview(bytes(reply.payload[: len(reply.payload) // 2])))
    read_in_its_place(parts, broken, "must send 'roi-jpeg' as docs/wire.md describes it, got: image file is truncated")


def test_an_answer_that_is_of_no_use_when_the_file_cannot_be_read_either(root: Path) -> None:
    """Both errors are told, and whose they are."""
    (root / "c" / "1.jpg").write_bytes(b"no picture")
    reply = answer(Image.new("RGB", (4, 4)), 2, "pixels", wanted(1, "pixels"))
    with pytest.raises(OSError, match="cannot identify image file") as caught:
        finished(parts_at(root, terms()), reply)
    told = said(caught.value)
    assert "the agent's answer was unusable: agent must run at most 1 op" in told
    assert "sample 1, key 'c/1.jpg', agent tcp" in told


def test_what_the_session_could_not_use(root: Path) -> None:
    parts = parts_at(root, terms())
    value, _ = finished(parts, Reply(wanted(2, "pixels"), 0, unusable="its checksum did not fit four times"))
    assert torch.equal(value, expected(parts, 1))
    totals = parts.statistics.totals(1)
    assert (totals.malformed, totals.fallbacks, totals.encodings) == (0, 1, {"file": 1}), "the session has counted it"


@pytest.mark.parametrize("spoil", ["not", "gone", "pipe"])
def test_a_file_that_the_agent_cannot_read(root: Path, spoil: str, caplog: pytest.LogCaptureFixture) -> None:
    """It is read here, if this host has it; what is no file is not opened, because a pipe might never answer."""
    parts, path = parts_at(root, terms()), root / "c" / "1.jpg"
    value = expected(parts, 1)
    if spoil != "not":
        path.unlink()
    if spoil == "pipe":
        os.mkfifo(path)
    reply = Reply(wanted(2, "pixels"), 0, failed=Failed(Failure.UNREADABLE, "permission denied", [1]))
    if spoil == "not":
        assert torch.equal(finished(parts, reply)[0], value)
        assert parts.statistics.totals(1).fallbacks == 1
        assert 'file read here sample=1 agent=tcp://127.0.0.1:1/photos reason="permission denied"' in caplog.text
    else:
        with pytest.raises(SampleUnreadable, match=r"permission denied \(sample 1, agent .*must hold the same files"):
            finished(parts, reply)


def read_in_its_place(parts: Parts, reply: Reply, why: str) -> None:
    """The sample is as it must be, from the file on this host; and counted."""
    value, _ = finished(parts, reply)
    assert torch.equal(value, expected(parts, 1))
    totals = parts.statistics.totals(1)
    assert (totals.samples, totals.malformed, totals.fallbacks, totals.encodings) == (1, 1, 1, {"file": 1})
    with pytest.raises(MalformedMessage, match=re.escape(why)), parts.steps[0].chain.isolated():
        parts.finisher._received(reply, parts.steps[0], draw_of(parts, 1), parts.statistics.row(0))


@pytest.mark.parametrize(
    ("agreed", "note"),
    [(terms(), "sample 1, key 'c/1.jpg', agent tcp://127.0.0.1:1/photos"), (None, "sample 1, key 'c/1.jpg', no agent")],
)
def test_an_error_names_the_sample(root: Path, agreed: Terms | None, note: str) -> None:
    (root / "c" / "1.jpg").write_bytes(b"no picture")
    path = re.escape(str(root / "c" / "1.jpg"))
    with pytest.raises(OSError, match=f"cannot identify image file '{path}'") as caught:
        finished(parts_at(root, agreed), Reply(wanted(), 0))
    assert note in getattr(caught.value, "__notes__", [str(caught.value)])[-1]


def test_an_error_says_what_the_agent_had_said(root: Path) -> None:
    file = io.BytesIO()
    Image.new("L", (9, 9)).save(file, "PNG")
    reply = answer(file.getvalue()[:30], 0, "file", wanted(2, "pixels"), note="op 1 failed at the agent")
    with pytest.raises(OSError, match="image file") as caught:
        finished(parts_at(root, terms()), reply)
    notes = getattr(caught.value, "__notes__", [str(caught.value)])
    assert "the agent had said: op 1 failed at the agent" in notes[-1]
