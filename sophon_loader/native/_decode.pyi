fast: int

def decode(
    data: bytes, x: int, y: int, width: int, height: int, plain: bool, /
) -> tuple[bytearray, int, int, int] | None: ...
