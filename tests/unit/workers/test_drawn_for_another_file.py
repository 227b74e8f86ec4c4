"""A file that is replaced between drawing and reading: the agent sends what is in the picture of now, or refuses."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

from sophon_loader.client.wanted import Wanted
from sophon_loader.encodings.catalogue import ANY_PART, encoding_names
from sophon_loader.encodings.registry import decode
from sophon_loader.kinds.image.part import PartOfFile
from sophon_loader.kinds.image.source import source_of
from sophon_loader.pipeline.described import at_stage, go_on, run_from_part
from sophon_loader.pipeline.software import pixels_by
from sophon_loader.programs.program import Limits
from sophon_loader.wire.messages import Failed, ProgramItem, Sample
from sophon_loader.workers.drawing import Drawer
from sophon_loader.workers.shared_headers import SharedHeaders
from storage_agent.jobs.jobs import FetchHeader, Job
from storage_agent.workers.program_answers import answer_program, check_program
from storage_agent.workers.program_choice import ProgramAppraisers
from tests.support.picture_files import file_of
from tests.support.workers import parts_of
from tests.unit.agent.samples import exports_of

KINDS = ("jpeg 4:2:0", "jpeg 4:4:4", "jpeg L", "jpeg CMYK", "jpeg turned", "png RGB", "png P", "png LA", "webp", "tiff")
FILES = [file_of(kind, *size).ljust(20_000, b"\0") for kind in KINDS for size in ((75, 58), (58, 75))]
LOOSE = v1.Compose([v1.RandomResizedCrop(24), v1.RandomHorizontalFlip(1.0), v1.ToTensor()])


@pytest.mark.parametrize("cut", [0, 2, 3])
def test_a_program_that_was_drawn_for_another_file_of_the_same_size(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "a" / "x.jpg"
    path.parent.mkdir()
    path.write_bytes(FILES[0])
    made, exports = parts_of(ImageFolder(str(tmp_path), LOOSE)), exports_of(tmp_path)
    chain, refused = made.steps[0].chain, 0
    encoding = "pixels" if cut else "roi-jpeg"
    header = FetchHeader(
        client=b"c", export="d", digest="", seed=0, epoch=0, keep_info=False, dry=False, received_s=0.0, upkeep_s=0.0,
        allowed=[*encoding_names(), ANY_PART], has_programs=True, pixels_by=pixels_by(),
    )  # fmt: skip
    for epoch, (before, now) in enumerate(itertools.product(FILES, FILES)):
        headers = SharedHeaders(1)
        headers.learn_from(0, before)
        path.write_bytes(now)
        draw = made.seed.draw(epoch, 0)
        with chain.isolated():
            (one,) = Drawer(made.steps, made.seed, headers).draw([Wanted(0, 0, cut, encoding, "a/x.jpg")], epoch)
            if one.drawn is None:
                assert headers.of(0) is None or source_of(before) is None
                continue
            segment = one.drawn.segment_of(cut)
            assert segment is not None
            item = ProgramItem(1, segment, encoding, "a/x.jpg", one.drawn.file_nbytes, one.drawn.program)
            checked = check_program(exports, Job(header, item), Limits(), ProgramAppraisers())
            answer = answer_program(checked).answer
            expected = chain.run(now, 0, len(chain), draw)
            if isinstance(answer.message, Failed):
                refused += 1
                there, then = source_of(now), source_of(before)
                assert there is None or then is None or there.shape != then.shape
                continue
            assert isinstance(answer.message, Sample) and answer.payload is not None
            value: Any = decode(answer.message.encoding, answer.message.meta, answer.payload)
            stage = one.drawn.stage_of(answer.message.cut)
            assert stage is not None
            if isinstance(value, PartOfFile):
                stage, value = run_from_part(chain, value, draw)
            found = go_on(chain, at_stage(value, stage), stage, draw)
        assert torch.equal(found, expected), (before[:4], now[:4])
    assert refused > len(FILES)
