"""The choice of a protocol version."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sophon_loader.errors import VersionMismatch
from sophon_loader.wire import version
from sophon_loader.wire.version import VERSIONS, common_version


@given(st.lists(st.integers(-3, 9)), st.sets(st.integers(1, 6), min_size=1))
def test_the_newest_common_version_or_both_sides_in_the_text(theirs: list[int], ours: set[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(version, "VERSIONS", tuple(sorted(ours)))
        shared = ours & set(theirs)
        if shared:
            assert common_version(theirs) == max(shared)
        else:
            with pytest.raises(VersionMismatch) as caught:
                common_version(theirs)
            assert str(sorted(ours)) in str(caught.value) and "same release" in str(caught.value)


def test_no_offer_at_all() -> None:
    with pytest.raises(VersionMismatch):
        common_version([])


def test_a_long_offer_gives_a_short_text() -> None:
    with pytest.raises(VersionMismatch) as caught:
        common_version(range(10, 100_000))
    assert len(str(caught.value)) < 1000


def test_versions_are_ordered_and_none_is_the_handshakes() -> None:
    assert list(VERSIONS) == sorted(set(VERSIONS)) and version.HANDSHAKE not in VERSIONS
