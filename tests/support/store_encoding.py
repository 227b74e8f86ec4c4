"""Writes the stored bytes of an encoding, once, when it is added; they stay as they are from then on.

python -m tests.support.store_encoding webp-rgb

The name is one of `golden_values` in tests/contract/test_encodings.py, and begins with that of the encoding.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from sophon_loader.encodings.registry import encode
from tests.contract.test_encodings import GOLDEN, encoding_of, golden_values


def store(name: str, folder: Path = GOLDEN) -> None:
    """Write NAME.json, the header's part, and NAME.bin, the payload.

    Args:
        name: of a value in `golden_values`.
        folder: where to.

    Raises:
        FileExistsError: it is stored already; a format that changed is another encoding.
    """
    encoded = encode(golden_values()[name], encoding_of(name))
    with (folder / f"{name}.json").open("x") as file:
        json.dump(encoded.meta, file)
    (folder / f"{name}.bin").write_bytes(encoded.payload)


if __name__ == "__main__":
    for one in sys.argv[1:]:
        store(one)
