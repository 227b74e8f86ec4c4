"""A real agent that is asked for headers of files: those of the whole files, from folders and archives."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sophon_loader.kinds.image.header import header_of, pack
from sophon_loader.wire.limits import MAX_HEADERS
from sophon_loader.wire.messages import NO_FILE, OUTSIDE, AskHeaders, Headers
from tests.support.agents import Agent, agent_for
from tests.support.archives import location_of
from tests.support.picture_files import SOUND, file_of

FILES = {f"{kind}.bin": file_of(kind) for kind in SOUND} | {
    "large.jpg": file_of("jpeg progressive", 900, 700),
    "large.gif": file_of("gif", 900, 700),
    "notes.txt": b"no picture",
    "empty": b"",
}
NONE = {"none.jpg": NO_FILE, "pipe": NO_FILE, "../notes.txt": OUTSIDE, "": OUTSIDE}
"""What no header is of, and what stands for its size."""


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    above = tmp_path_factory.mktemp("headers")
    root = above / "data"
    root.mkdir()
    for name, data in FILES.items():
        (root / name).write_bytes(data)
    os.mkfifo(root / "pipe")
    tar = location_of(root, above / "t", "tarfile-gnu")
    (root / "pipe").unlink()  # zip files have none
    zipped = location_of(root, above / "z", "zipfile")
    os.mkfifo(root / "pipe")
    exports: dict[str, Path | str] = {"folder": root, "tar": tar, "zip": zipped}
    with agent_for(exports, "--index-folder", str(above / "indexes")) as running:
        yield running


def _header(data: bytes) -> bytes:
    header = header_of(data)
    return b"" if header is None else pack(header)


@pytest.mark.parametrize("export", ["folder", "tar", "zip"])
def test_headers_are_those_of_the_whole_files(agent: Agent, export: str) -> None:
    answer = agent.client().ask(AskHeaders(7, export, [*FILES, *NONE]))
    nbytes = [*map(len, FILES.values()), *NONE.values()]
    wanted = [*map(_header, FILES.values()), *[b""] * len(NONE)]
    assert answer == Headers(7, nbytes, wanted)
    assert {_header(FILES[f"{kind}.bin"]) for kind in ("jpeg 4:2:0", "png RGB", "webp", "gif")}.isdisjoint({b""})


def test_a_question_that_is_refused_is_named(agent: Agent) -> None:
    client = agent.client()
    for question, failure in (
        (AskHeaders(1, "none", ["x"]), "unknown-export"),
        (AskHeaders(2, "folder", ["x"] * (MAX_HEADERS + 1)), "too-long"),
    ):
        failed = client.failed(question)
        assert (failed.failure, failed.ids) == (failure, [question.id])
    assert client.ask(AskHeaders(3, "folder", ["x"] * MAX_HEADERS)) == Headers(
        3, [NO_FILE] * MAX_HEADERS, [b""] * MAX_HEADERS
    )
