"""Most of these tests need the C extension, which an install without a compiler lacks."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from sophon_loader import native

SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


@pytest.fixture
def extension() -> None:
    """Skip where the extension was not built; the pure-Python side is tested regardless."""
    if not native.available:
        pytest.skip(native.reason)


@pytest.fixture(scope="session")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A compiler whose programs run under both sanitizers, or a skip."""
    path = shutil.which("gcc") or shutil.which("clang")
    if path is None:
        pytest.skip("neither gcc nor clang is installed")
    folder = tmp_path_factory.mktemp("probe")
    (folder / "probe.c").write_text("int main(void) { return 0; }\n")
    command = [path, *SANITIZE, "probe.c", "-o", "probe"]
    if subprocess.run(command, cwd=folder, capture_output=True).returncode:
        pytest.skip(f"{path} lacks the address or undefined-behaviour sanitizer")
    if subprocess.run([folder / "probe"], capture_output=True).returncode:
        pytest.skip("programs built with the sanitizers do not run here")
    return path
