"""Listings of a bucket that `sophon-agent index` keeps: starts take them, and later objects end in words about them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sophon_loader import RemoteImageFolder
from sophon_loader.errors import SampleMissing
from sophon_loader.wire.samples import SamplesAsked
from storage_agent.reading.flat_samples import Samples
from storage_agent.stores.buckets.far import Far
from storage_agent.stores.buckets.listings import Listings
from tests.support import seaweed
from tests.support.agents import Agent, run_command
from tests.support.far import far_store
from tests.support.loaders import QUICK
from tests.support.pictures import make_tree
from tests.support.seaweed import READER_SECRET, Proxy, Seaweed

FILES = 6
BUCKET = "listed"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seaweed]:
    root = make_tree(tmp_path_factory.mktemp("far") / "train", FILES)
    with seaweed.for_tests(tmp_path_factory.mktemp("server")) as running:
        running.bucket(BUCKET)
        running.put_tree(BUCKET, root)
        yield running


@pytest.fixture
def environment(server: Seaweed, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def indexes(tmp_path: Path) -> Path:
    return tmp_path / "indexes"


@pytest.fixture
def later(server: Seaweed) -> Iterator[str]:
    """The name of an object that a test writes."""
    yield "later/x.jpg"
    server.remove(BUCKET, "later/x.jpg")


def kept(indexes: Path) -> Path:
    done = run_command("index", f"s3://{BUCKET}", "--index-folder", str(indexes))
    assert done.returncode == 0 and READER_SECRET not in done.stderr, done.stderr
    return Path(done.stdout.strip())


def names(store: Far) -> list[str]:
    return [os.path.join(folder, name) for folder, _, found in store.walk("") for name in found]


def test_a_start_takes_the_kept_listing_and_says_its_age(
    server: Seaweed, environment: None, indexes: Path, tmp_path: Path, later: str
) -> None:
    listing, log = kept(indexes), tmp_path / "log"
    assert listing.parent == indexes
    two_days_ago_s = listing.stat().st_mtime - 48 * 3600
    os.utime(listing, (two_days_ago_s, two_days_ago_s))
    server.put(BUCKET, later, b"new")
    agent = Agent({"d": f"s3://{BUCKET}"}, "--end-with-stdin", "--index-folder", str(indexes), log=log)
    try:
        assert len(RemoteImageFolder(agent.address("d"), options=QUICK)) == FILES
        assert "listing taken" in log.read_text() and "48" in log.read_text(), log.read_text()
    finally:
        agent.end()


def test_nothing_is_listed_where_a_listing_is_kept(
    server: Seaweed, environment: None, indexes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Proxy(server.endpoint) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        kept(indexes)
        before = proxy.listings
        with far_store(f"s3://{BUCKET}", indexes) as store:
            assert len(names(store)) == FILES
        assert proxy.listings == before


def test_a_listing_is_of_one_server(
    server: Seaweed, environment: None, indexes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two servers may each have a bucket of a name; however the same one is written, it is the same."""
    listing = kept(indexes)
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT"):
        monkeypatch.setenv(name, f"{server.endpoint}/")
        monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
        taken = Listings(f"s3://{BUCKET}", indexes, os.environ).take()
        assert taken is not None and taken[0] == listing
        monkeypatch.delenv(name)
    with Proxy(server.endpoint) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        with far_store(f"s3://{BUCKET}", indexes) as store:
            assert len(names(store)) == FILES
        assert proxy.listings == 1
        assert kept(indexes) != listing and listing.exists()


def test_labels_are_read_many_at_once_and_each_once(
    server: Seaweed, environment: None, indexes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.bucket("labels")
    for number in range(40):
        server.put("labels", f"shard/{number:03}.jpg", b"")
        server.put("labels", f"shard/{number:03}.cls", str(number).encode())
    with Proxy(server.endpoint) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        with far_store("s3://labels", indexes) as store:
            proxy.delay_s = 0.2
            samples = Samples(store, SamplesAsked("", "cls"))
            assert not any(samples.find())
            cells = [cell for cells in samples.of(0) for cell in cells]
        assert cells[2::3] == [str(number) for number in range(40)]
        assert proxy.requests == 40 and proxy.most >= 8


def test_a_damaged_listing_is_not_taken(environment: None, indexes: Path) -> None:
    listing = kept(indexes)
    data = bytearray(listing.read_bytes())
    data[-1] ^= 1
    listing.write_bytes(data)
    with far_store(f"s3://{BUCKET}", indexes) as store:
        assert len(names(store)) == FILES


def test_rights_are_looked_at_though_nothing_is_listed(
    environment: None, indexes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept(indexes)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    done = run_command("serve", "--export", f"d=s3://{BUCKET}", "--index-folder", str(indexes))
    assert done.returncode == 1 and "403; set AWS_ACCESS_KEY_ID and" in done.stderr, done.stderr


@pytest.mark.parametrize("is_kept", [False, True])
def test_an_object_later_than_the_listing(
    server: Seaweed, environment: None, indexes: Path, later: str, is_kept: bool
) -> None:
    remedy = rf"list it anew \(sophon-agent index s3://{BUCKET}\) and restart" if is_kept else "; restart"
    if is_kept:
        kept(indexes)
    with far_store(f"s3://{BUCKET}", indexes) as store:
        server.put(BUCKET, later, b"new")
        with pytest.raises(SampleMissing, match=rf"got '{later}', which is in s3://{BUCKET} now.*{remedy} the agent"):
            store.read(later)
        for never in ("later/y.jpg", "later//x.jpg", "./later/x.jpg", "later/\x07.jpg", "\udcff"):
            with pytest.raises(SampleMissing, match="file must exist in export 'd'"):
                store.read(never)


def test_a_running_agent_keeps_its_listing_while_a_new_one_is_made(
    server: Seaweed, environment: None, indexes: Path, later: str
) -> None:
    first = kept(indexes)
    with far_store(f"s3://{BUCKET}", indexes):
        server.put(BUCKET, later, b"new")
        second = kept(indexes)
        assert first.exists() and second.exists(), "its workers may be started again"
    with far_store(f"s3://{BUCKET}", indexes) as store:
        assert later in names(store)
    del store  # which has the second one locked
    third = kept(indexes)
    assert [path for path in indexes.iterdir() if path.suffix == ".listing"] == [third]
