def apply(
    pixels: bytes | bytearray | memoryview,
    table: bytes | bytearray | memoryview,
    out: bytearray | memoryview,
    item_nbytes: int,
    planes: bool,
    /,
) -> None: ...
