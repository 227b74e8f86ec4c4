MAX_SIDE: int
instructions: str

def resize(
    pixels: bytes | bytearray | memoryview,
    shape: tuple[int, int, int],
    out: bytearray | memoryview,
    size: tuple[int, int],
    box: tuple[float, float, float, float],
    filter: int,
    down_first: bool,
    plain: bool,
    /,
) -> bool: ...
