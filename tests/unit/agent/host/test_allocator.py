"""What is asked of the C library, and that some have no such thing."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from storage_agent.host import allocator


def test_glibc_is_told_both_thresholds(monkeypatch: pytest.MonkeyPatch) -> None:
    told = []
    libc = SimpleNamespace(mallopt=lambda name, value: told.append((name, value)))
    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda name: libc)
    allocator.keep_freed_memory(1 << 20)
    assert told == [(-3, 32 << 20), (-1, 1 << 20)]


def test_a_c_library_without_mallopt_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda name: SimpleNamespace())
    allocator.keep_freed_memory()

    def static(name: object) -> None:
        raise OSError("dynamic loading not supported")

    monkeypatch.setattr(allocator.ctypes, "CDLL", static)
    allocator.keep_freed_memory()
