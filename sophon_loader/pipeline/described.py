"""Runs described pipelines as programs, on pictures without pixels yet.

Both ends turn pipelines into programs here, with the same op seeds and therefore the same numbers. The agent learns
which part of a file to cut out, and either end decodes no more than that part.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from PIL import Image

from sophon_loader import native
from sophon_loader.errors import PipelineError, must_leave
from sophon_loader.kinds.image.deferred import Deferred, deferred, finished, plain
from sophon_loader.kinds.image.fused_picture import DecodeTally, decoded
from sophon_loader.kinds.image.part import PartOfFile
from sophon_loader.kinds.image.primitives import Shape
from sophon_loader.kinds.image.selftest import trusted
from sophon_loader.kinds.image.source import DecodedPixels, PictureFile, StepsOnPicture, source_of
from sophon_loader.pipeline.chain import Chain
from sophon_loader.pipeline.ends import Place
from sophon_loader.pipeline.randomness import Draw


@dataclass(frozen=True)
class Begun(StepsOnPicture):
    """A pipeline run on one picture without pixels, up to its last crop or resize at most.

    Args:
        source: the picture's file.
        steps: the recorded steps.
        stage: stage reached, at least 1.
        image: value at that stage.
        counts: number of steps recorded up to stage 1, 2, ..., `stage`.
    """

    stage: int
    image: Deferred
    counts: tuple[int, ...] = ()


def begin(
    chain: Chain, source: PictureFile, draw: Draw, stop: int | None = None, *, furthest: int | None = None
) -> Begun:
    """Run a pipeline's ops until one reads pixels, but not beyond the last crop or resize. Runs none if programs do not
    give what the installed Pillow gives.

    Seeds the global generators: call it within `isolated()`.

    Args:
        chain: the pipeline.
        source: the picture; none of its pixels is decoded.
        draw: decides the random numbers.
        stop: stage to end at, if it comes first.
        furthest: stage to go on to behind the last crop or resize; None to end there.
    """
    image = _rgb(source)
    stage, last = 1, chain.shrinks_until if stop is None else min(stop, chain.shrinks_until)
    counts = [len(image.steps)]
    if furthest is not None:
        last = min(furthest, chain.deferrable, chain.image_stages)
    if not trusted():
        last = 1
    source.sealed = True
    try:
        while stage < last:
            made = chain.run(image, stage, stage + 1, draw)
            if not isinstance(made, Deferred):
                break
            stage, image = stage + 1, made
            counts.append(len(image.steps))
    except Exception as error:  # PixelsWanted, or an op's own error, which it raises again when it is run
        if must_leave(error):
            raise
    finally:
        source.sealed = False
    return Begun(source, image.steps, stage, image, tuple(counts))


def begin_on_size(chain: Chain, width: int, height: int, draw: Draw) -> Begun:
    """Run `begin` for a picture of a known size, without its file.

    Args:
        chain: the pipeline.
        width, height: size of the picture, px.
        draw: decides the random numbers.
    """
    return begin(chain, PictureFile(b"", Shape(width, height, "RGB")), draw)


def begin_on_file(chain: Chain, data: bytes, draw: Draw) -> Begun | None:
    """Run `begin` for a file; returns None if it has no program, or Pillow cannot open it.

    Args:
        chain: the pipeline.
        data: the whole file.
        draw: decides the random numbers.
    """
    try:
        source = source_of(data)
    except Exception as error:  # the decoding reports it
        if must_leave(error):
            raise
        return None
    if source is None or source.shape.px > chain.max_px:
        return None
    return begin(chain, source, draw)


def run_from_file(
    chain: Chain,
    data: bytes,
    stop: int,
    draw: Draw,
    *,
    after: Callable[[int, Any], None] | None = None,
    begun: Begun | None = None,
    tally: DecodeTally | None = None,
    place: Place | None = None,
) -> Any:
    """Take a file to stage `stop` and return the same value as `Chain.run`. Decodes only the needed part if that is
    faster.

    Seeds the global generators: call it within `isolated()`.

    Args:
        chain: the pipeline.
        data: the whole file.
        stop: stage, at most `len(chain)`.
        draw: decides the random numbers.
        after: see `Chain.run`. With it, op 0 decodes only what op 1 reads, and ops run one by one. An image passed to
            it may have pixels or `info` that no op has read.
        begun: result of an earlier `begin` for this file and draw.
        tally: allows our C to decode the file, and notes whether it did; None for Pillow.
        place: see `Chain.run`.

    Returns:
        The value at stage `stop`; an image is a plain one.
    """
    deferrable = min(stop, chain.deferrable)
    # A first op that reads pixels gets those of our C, too.
    if deferrable > (1 if tally is None else 0) and trusted():
        try:
            if after is not None:
                value, stage = _run_measured(chain, data, draw, after, begun, tally)
            elif begun is not None and begun.stage <= stop:
                value, stage = _looked_at(chain.run(begun.image, begun.stage, deferrable, draw)), deferrable
            elif (source := source_of(data)) is not None and source.shape.px <= chain.max_px:
                source.tally = tally
                value, stage = _looked_at(chain.run(_rgb(source), 1, deferrable, draw, place=place)), deferrable
            else:
                stage = 0
        except Exception as error:  # e.g. a damaged file: the ops, run one by one, report which failed and why
            if must_leave(error):
                raise
            stage = 0
            if tally is not None:
                tally.ours = False  # Pillow starts over
        if stage:
            value = _looked_at(chain.run(value, stage, deferrable, draw, after=after))
            return chain.run(value, deferrable, stop, draw, after=after, place=place)
    return chain.run(data, 0, stop, draw, after=after, place=place)


def at_stage(value: Any, stage: int) -> Any:
    """Return a pipeline's value at a stage from an agent's answer. A program's decoded picture has its file's mode, but
    op 0 gives RGB.

    Args:
        value: value in the answer.
        stage: its stage.
    """
    return value.convert("RGB") if stage == 1 and isinstance(value, Image.Image) and value.mode != "RGB" else value


def go_on(chain: Chain, value: Any, stage: int, draw: Draw, place: Place | None = None) -> Any:
    """Run the rest of a pipeline, after `run_from_part` or from any other value at a stage.

    Args:
        chain: the pipeline.
        value: value at that stage.
        stage: stage to start from.
        draw: decides the random numbers.
        place: see `Chain.run`.
    """
    if isinstance(value, Deferred):
        deferrable = max(stage, chain.deferrable)
        value, stage = _looked_at(chain.run(value, stage, deferrable, draw, place=place)), deferrable
    return chain.run(value, stage, len(chain), draw, place=place)


def _looked_at(value: Any) -> Any:
    return plain(value) if isinstance(value, Image.Image) else value


def _run_measured(
    chain: Chain,
    data: bytes,
    draw: Draw,
    after: Callable[[int, Any], None],
    begun: Begun | None,
    tally: DecodeTally | None,
) -> tuple[Any, int]:
    """Return (value behind op 1, 2); or (any value, 0) if op 1 cannot be recorded."""
    source = source_of(data) if begun is None else begun.source
    if source is None or source.shape.px > chain.max_px or not source.can_be_decoded:
        return None, 0
    if begun is None or begun.stage != 2:
        begun = begin(chain, source, draw, stop=2)
    if begun.stage < 2:
        return None, 0
    source.tally = tally
    if (found := decoded(source, begun.steps)) is not None:
        picture, done = found
        after(1, _rgb(source))
        done += picture.runs(begun.steps[done:])
        held, rest = DecodedPixels(picture.image(), None, picture.shape), begun.steps[done:]
    else:
        held, rest = source.held(begun.steps), begun.steps
        after(1, _rgb(source))
    image = finished(begun.image, held.run(rest))
    after(2, image)
    return image, 2


def run_from_part(
    chain: Chain, part: PartOfFile, draw: Draw, tally: DecodeTally | None = None
) -> tuple[int, Image.Image]:
    """Return the stage for which a part of a file was cut out, and the value there.

    Seeds the global generators: call it within `isolated()`.

    Args:
        chain: the pipeline.
        part: the part of the file.
        draw: decides the random numbers.
        tally: see `run_from_file`; with it, the value may be an image for `go_on` alone.

    Raises:
        PipelineError, ValueError: the pipeline does not begin with a crop, or the part lacks what the crop reads.
        Exception: any error of Pillow for a damaged file.
    """
    window, header = part.window, native.read_header(part.data)
    mode = "L" if header is not None and header.components == 1 else "RGB"
    source = PictureFile(part.data, Shape(window.full_width, window.full_height, mode), part=part)
    begun = begin(chain, source, draw)
    if begun.stage < 2:
        raise PipelineError("a part of a picture suits a pipeline that begins with a crop only")
    source.tally = tally
    return begun.stage, begun.image if begun.image.decode() else plain(begun.image)


def _rgb(source: PictureFile) -> Deferred:
    """Return op 0's result for a picture: RGB."""
    image = deferred(source)
    made = image.convert("RGB") if source.shape.mode != "RGB" else image
    assert isinstance(made, Deferred)
    return made
