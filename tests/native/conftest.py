"""Most of these tests need the C extension, which an install without a compiler lacks."""

from __future__ import annotations

import pytest

from sophon_loader import native


@pytest.fixture
def extension() -> None:
    """Skip where the extension was not built; the pure-Python side is tested regardless."""
    if not native.available:
        pytest.skip(native.reason)
