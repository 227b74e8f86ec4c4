"""Samples drawn before they are asked for: headers, and programs that give what pipelines give."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from sophon_loader.client.wanted import Wanted
from sophon_loader.kinds.image.execute import begin_program, execute, part_of_begun
from sophon_loader.kinds.image.header import header_of, pack
from sophon_loader.kinds.image.part import PartOfFile
from sophon_loader.kinds.image.segments import SEGMENTS
from sophon_loader.pipeline.described import at_stage, go_on, run_from_part
from sophon_loader.programs.program import Program
from sophon_loader.wire.messages import CHEAPEST, NO_FILE
from sophon_loader.workers.drawing import Drawer
from sophon_loader.workers.shared_headers import SharedHeaders
from tests.support.pictures import picture
from tests.support.workers import Parts, parts_of

ENDS = [v1.ToTensor(), v1.Normalize([0.5] * 3, [0.5] * 3)]
CROPPED = v1.Compose([v1.RandomResizedCrop(24), v1.RandomHorizontalFlip(), *ENDS])
PRICES = (1.0, 1.0, 1.0, 1.0)


def saved(image: Image.Image, kind: str) -> bytes:
    target = io.BytesIO()
    image.save(target, kind)
    return target.getvalue()


def files() -> dict[str, bytes]:
    rgb = saved(picture(90, 70, seed=1), "JPEG")
    decoded = Image.open(io.BytesIO(rgb)).convert("RGB")
    return {
        "rgb.jpg": rgb,
        "grey.jpg": saved(decoded.convert("L"), "JPEG"),
        "rgb.png": saved(decoded, "PNG"),
        "alpha.png": saved(decoded.convert("RGBA"), "PNG"),
        "wide.webp": saved(decoded.resize((120, 40)), "WEBP"),
    }


FILES = files()


def parts(tmp_path: Path, transform: Any) -> tuple[Parts, SharedHeaders]:
    (tmp_path / "a").mkdir()
    headers = SharedHeaders(len(FILES) + 1)
    for name, data in [*FILES.items(), ("text.jpg", b"no picture")]:
        (tmp_path / "a" / name).write_bytes(data)
    made = parts_of(ImageFolder(str(tmp_path), transform))
    for index, (path, _) in enumerate(made.data.whole.samples):
        headers.learn_from(index, Path(path).read_bytes())
    return made, headers


@pytest.mark.parametrize(
    "transform",
    [
        CROPPED,
        v1.Compose([v1.Resize(30), v1.CenterCrop(20), *ENDS]),
        v2.Compose(
            [v2.RandomResizedCrop(16), v2.RandomHorizontalFlip(), v2.ToImage(), v2.ToDtype(torch.float32, True)]
        ),
        v1.Compose([v1.RandomCrop(20), v1.RandAugment(), *ENDS]),
        v1.Compose([v1.RandomHorizontalFlip(), *ENDS]),
    ],
    ids=["crop", "resize", "v2", "looks", "no crop"],
)
def test_a_program_gives_what_the_pipeline_gives(tmp_path: Path, transform: Any) -> None:
    made, headers = parts(tmp_path, transform)
    (steps,) = made.steps
    drawer, chain = Drawer(made.steps, made.seed, headers), steps.chain
    for epoch in range(3):
        for index, (path, _) in enumerate(made.data.whole.samples):
            data = Path(path).read_bytes()
            wanted = Wanted(0, index, len(chain), CHEAPEST, path, prices=PRICES)
            draw = made.seed.draw(epoch, index)
            with chain.isolated():
                (one,) = drawer.draw([wanted], epoch)
                if data == b"no picture":
                    assert one.drawn is None
                    continue
                assert one.drawn is not None and one.drawn.file_nbytes == len(data)
                program = Program.unpack(one.drawn.program)
                expected = chain.run(data, 0, len(chain), draw)
                found = []
                for segment, name in enumerate(SEGMENTS[:-1]):
                    stage = one.drawn.stage_of(segment)
                    if stage:
                        value = at_stage(execute(program, data, stop=name), stage)
                        found.append(go_on(chain, value, stage, draw))
                part = part_of_begun(begin_program(program, data))
                if isinstance(part, PartOfFile):
                    stage, value = run_from_part(chain, part, draw)
                    found.append(go_on(chain, value, stage, draw))
            assert len(found) >= 2
            for value in found:
                assert torch.equal(value, expected)


def test_what_is_read_here_and_files_need_no_program(tmp_path: Path) -> None:
    made, headers = parts(tmp_path, CROPPED)
    drawer = Drawer(made.steps, made.seed, headers)
    wanted = [Wanted(0, 0, 0, "file", "a"), Wanted(0, 0, 2, "pixels", "a", here=True)]
    assert drawer.draw(wanted, 0) == wanted


@pytest.mark.parametrize(
    ("transform", "cut", "furthest"),
    [
        (CROPPED, 5, 3),
        (CROPPED, 2, 2),
        (CROPPED, 0, 2),
        (v1.Compose([v1.RandomHorizontalFlip(), *ENDS]), 4, 2),
        (v1.Compose([v1.RandomCrop(20), v1.GaussianBlur(3), *ENDS]), 5, 2),
        (v1.Compose([v1.RandomCrop(20), v1.ToTensor(), v1.GaussianBlur(3)]), 4, 2),
    ],
)
def test_how_far_a_program_goes(tmp_path: Path, transform: Any, cut: int, furthest: int) -> None:
    """As far as is wanted, up to the first op that looks at pixels; a part is of what the crop or resize reads."""
    made, headers = parts(tmp_path, transform)
    names = [Path(path).name for path, _ in made.data.whole.samples]
    encoding = "pixels" if cut else "roi-jpeg"
    with made.steps[0].chain.isolated():
        (one,) = Drawer(made.steps, made.seed, headers).draw(
            [Wanted(0, names.index("rgb.jpg"), cut, encoding, "a")], epoch=0
        )
    assert one.drawn is not None
    assert one.drawn.furthest == furthest


def test_headers_are_shared_and_kept_apart() -> None:
    headers = SharedHeaders(4)
    assert headers.unknown([0, 3]) == [0, 3] and headers.of(3) is None
    headers.learn_from(3, FILES["rgb.png"])
    header = header_of(FILES["rgb.png"])
    assert header is not None and headers.of(3) == (len(FILES["rgb.png"]), header._replace(header_nbytes=0))
    assert headers.unknown([0, 3]) == [0]
    headers.learn(1, 10, b"")
    headers.learn(2, -1, pack(header))
    assert headers.unknown([0, 1, 2, 3]) == [0] and headers.of(1) is headers.of(2) is None
    headers.leave_out(3)
    headers.learn_from(3, FILES["rgb.png"])
    assert headers.of(3) is None and headers.unknown([3]) == [], "a file that was replaced is not asked for again"


def test_the_header_of_a_file_that_one_agent_lacks_may_come_from_another() -> None:
    headers = SharedHeaders(2)
    headers.learn_all([0, 1], [NO_FILE, 10], [b"", b""])
    assert headers.unknown([0, 1]) == [0]


def test_a_header_that_is_half_written_is_none() -> None:
    headers = SharedHeaders(1)
    headers.learn_from(0, FILES["rgb.png"])
    headers._rows.array.view(np.uint8)[0, 8:12] = 0
    assert headers.of(0) is None
