"""The optional C extensions; everything else about the package stands in pyproject.toml."""

from __future__ import annotations

import os
from pathlib import Path

from setuptools import Extension, setup

NATIVE = "sophon_loader/native"
READING = ("frame", "metadata", "huffman", "scan")
"""What cutting and decoding a JPEG have in common."""
PIXELS = ("pixels", "pixels_avx2", "pixels_neon")
# Without a compiler the package installs all the same, sends whole files, and runs the ops at the end of a chain one by
# one. A wheel for others must have the extensions: SOPHON_NATIVE=required makes a failed build an error.
REQUIRED = os.environ.get("SOPHON_NATIVE") == "required"


def extension(name: str, module: str, *parts: str, libraries: tuple[str, ...] = ()) -> Extension:
    """One that is made of `module`.c and the .c file of each part."""
    return Extension(
        f"sophon_loader.native.{name}",
        sources=[f"{NATIVE}/{part}.c" for part in (module, *parts)],
        depends=sorted(map(str, Path(NATIVE).glob("*.h"))),
        libraries=list(libraries),
        extra_compile_args=["-std=c11", "-O3", "-fvisibility=hidden"],
        optional=not REQUIRED,
    )


setup(
    ext_modules=[
        extension("_jpegcrop", "module", "jpegcrop", "emit", *READING),
        extension("_table", "table_module", "table"),
        extension("_resample", "resample_module", "resample", "resample_rows", "finish", libraries=("m",)),
        extension("_decode", "decode_module", "decode", "progressive", "blocks", "values", *PIXELS, *READING),
    ]
)
