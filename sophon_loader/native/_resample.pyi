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
