from typing import Any

MAX_SIDE: int
DOWN_FIRST_NEVER: int
DOWN_FIRST_TALL: int
DOWN_FIRST_CHEAPER: int
instructions: str

def resize(
    pixels: bytes | bytearray | memoryview,
    shape: tuple[int, int, int],
    out: bytearray | memoryview,
    size: tuple[int, int],
    box: tuple[float, float, float, float],
    filter: int,
    order: int,
    plain: bool,
    /,
) -> bool: ...
def finish(
    pixels: bytes | bytearray | memoryview,
    shape: tuple[int, int, int],
    table: bytes | bytearray | memoryview | None,
    out: Any,
    offset: tuple[int, int],
    fill: bytes,
    flip_horizontal: bool,
    flip_vertical: bool,
    transpose: bool,
    /,
) -> None: ...
