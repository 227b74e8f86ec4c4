"""The optional C extension; everything else about the package stands in pyproject.toml."""

from __future__ import annotations

import os

from setuptools import Extension, setup

NATIVE = "sophon_loader/native"
# Without a compiler the package installs all the same, and sends whole files. A wheel for others must have the
# extension: SOPHON_NATIVE=required makes a failed build an error.
REQUIRED = os.environ.get("SOPHON_NATIVE") == "required"

setup(
    ext_modules=[
        Extension(
            "sophon_loader.native._jpegcrop",
            sources=[f"{NATIVE}/{name}.c" for name in ("module", "jpegcrop", "frame", "huffman", "scan", "emit")],
            depends=[f"{NATIVE}/{name}.h" for name in ("jpegcrop", "frame", "huffman", "scan", "emit")],
            extra_compile_args=["-std=c11", "-O3", "-fvisibility=hidden"],
            optional=not REQUIRED,
        )
    ]
)
