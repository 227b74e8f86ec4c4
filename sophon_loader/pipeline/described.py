"""A described pipeline as a program: its ops, run on a picture whose pixels are not made yet.

Both ends lower pipelines here, under the same op seeds, so both find the same numbers: the agent to know which part of
a file to cut out, either end to decode no more than that part.
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
    """A pipeline on one picture, as far as it comes without pixels: up to its last crop or resize at most.

    Args:
        source: the picture's file.
        steps: what has been recorded of it.
        stage: that has been reached, at least 1.
        image: its value there.
        counts: how many of the steps had been recorded at stage 1, at stage 2 and so on, up to `stage`.
    """

    stage: int
    image: Deferred
    counts: tuple[int, ...] = ()


def begin(
    chain: Chain, source: PictureFile, draw: Draw, stop: int | None = None, *, furthest: int | None = None
) -> Begun:
    """Run a pipeline's ops until one looks at pixels, behind the last crop or resize at the latest; none where programs
    do not give what the installed Pillow gives.

    Seeds the global generators: call it within `isolated()`.

    Args:
        chain: the pipeline.
        source: of the picture; no pixel of it is decoded.
        draw: decides the random numbers.
        stop: a stage to end at, if that comes first.
        furthest: a stage to go on to behind the last crop or resize; None for not.
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
    except Exception as error:  # PixelsWanted; and an op that fails will do so where it is run
        if must_leave(error):
            raise
    finally:
        source.sealed = False
    return Begun(source, image.steps, stage, image, tuple(counts))


def begin_on_size(chain: Chain, width: int, height: int, draw: Draw) -> Begun:
    """The same for a picture of which only the size is known, px."""
    return begin(chain, PictureFile(b"", Shape(width, height, "RGB")), draw)


def begin_on_file(chain: Chain, data: bytes, draw: Draw) -> Begun | None:
    """The same for a file; None for one that has no program, or that Pillow cannot open."""
    try:
        source = source_of(data)
    except Exception as error:  # whoever decodes it says so
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
    """Take a file to stage `stop`, decoding only the part that is needed where that is faster; the same value.

    Seeds the global generators: call it within `isolated()`.

    Args:
        chain: the pipeline.
        data: the whole file.
        stop: a stage, at most `len(chain)`.
        draw: decides the random numbers.
        after: see `Chain.run`. Then op 0 is the decoding of what op 1 reads, and ops run one by one; an image that
            `after` is given may be one whose pixels or `info` nobody has looked at.
        begun: what `begin` gave for this file and draw, if it was asked before.
        tally: notes whether C of our own decodes the file, which it may then do; None for Pillow.
        place: see `Chain.run`.

    Returns:
        The value at stage `stop`; an image is a plain one.
    """
    deferrable = min(stop, chain.deferrable)
    # A first op that looks at pixels gets those of our own C as well.
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
        except Exception as error:  # of a damaged file, say: the ops one by one say which of them failed, and why
            if must_leave(error):
                raise
            stage = 0
            if tally is not None:
                tally.ours = False  # Pillow begins anew
        if stage:
            value = _looked_at(chain.run(value, stage, deferrable, draw, after=after))
            return chain.run(value, deferrable, stop, draw, after=after, place=place)
    return chain.run(data, 0, stop, draw, after=after, place=place)


def at_stage(value: Any, stage: int) -> Any:
    """What a pipeline has at a stage, of what an agent has sent for it: a program's decoded picture is in its file's
    mode, and op 0 gives RGB."""
    return value.convert("RGB") if stage == 1 and isinstance(value, Image.Image) and value.mode != "RGB" else value


def go_on(chain: Chain, value: Any, stage: int, draw: Draw, place: Place | None = None) -> Any:
    """Take to its end what `run_from_part` has begun, or any other value at a stage; as `Chain.run`."""
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
    """The value behind op 1, and 2; or anything, and 0, where op 1 cannot be recorded."""
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
    """The stage and the value that a part of a file was cut out for.

    Seeds the global generators: call it within `isolated()`.

    Args:
        chain: the pipeline.
        part: of the file.
        draw: decides the random numbers.
        tally: see `run_from_file`; then the value may be an image for `go_on` alone.

    Raises:
        PipelineError, ValueError: the pipeline does not begin with a crop, or the part does not hold what that reads.
        Exception: whatever Pillow raises for a damaged file.
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
    """What op 0 makes of a picture: RGB."""
    image = deferred(source)
    made = image.convert("RGB") if source.shape.mode != "RGB" else image
    assert isinstance(made, Deferred)
    return made
