"""What a bucket is read with: a profile of `~/.aws`, nothing for a public one, the word that the reader pays."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sophon_loader.errors import SampleUnreadable
from storage_agent.stores.buckets.far import Far
from tests.support import seaweed
from tests.support.agents import ROOT, until
from tests.support.far import far_store
from tests.support.seaweed import PUBLIC, READER, READER_SECRET, Proxy, Seaweed

KEY, DATA = "cats/1.jpg", b"a picture"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seaweed]:
    with seaweed.for_tests(tmp_path_factory.mktemp("server")) as running:
        for bucket in (PUBLIC, "private"):
            running.bucket(bucket)
            running.put(bucket, KEY, DATA)
        yield running


@pytest.fixture
def home(server: Seaweed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without files, and an environment without keys."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def indexes(tmp_path: Path) -> Path:
    return tmp_path / "indexes"


def write_profile(home: Path, name: str, secret: str = READER_SECRET) -> None:
    folder = home / ".aws"
    folder.mkdir(exist_ok=True)
    text = f"[{name}]\naws_access_key_id = {READER}\naws_secret_access_key = {secret}\n"
    (folder / "credentials").write_text(text)


def refusal(indexes: Path, *command: str, bucket: str = "private") -> str:
    """What a start that is refused says."""
    command = command or (sys.executable, "-m", "storage_agent")
    serve = ("serve", "--export", f"d=s3://{bucket}", "--index-folder", str(indexes))
    done = subprocess.run([*command, *serve], cwd=ROOT, capture_output=True, text=True, timeout=90)
    assert done.returncode == 1 and READER_SECRET not in done.stderr and done.stderr.count("\n") == 1, done.stderr
    return done.stderr


@pytest.mark.parametrize("name", ["default", "training"])
def test_a_profile(home: Path, indexes: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    pytest.importorskip("boto3")
    pytest.importorskip("boto3")
    write_profile(home, name)
    if name != "default":
        monkeypatch.setenv("AWS_PROFILE", name)
    with far_store("s3://private", indexes) as store:
        assert store.read(KEY) == DATA


def test_keys_of_the_environment_come_before_a_profile(
    home: Path, indexes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_profile(home, "default", secret="wrong")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", READER)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", READER_SECRET)
    with far_store("s3://private", indexes) as store:
        assert store.read(KEY) == DATA


def test_a_profile_that_is_not_there(home: Path, indexes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("boto3")
    pytest.importorskip("boto3")
    write_profile(home, "training")
    monkeypatch.setenv("AWS_PROFILE", "traning")
    said = refusal(indexes)
    assert "the profile of ~/.aws gives no credentials (ProfileNotFound); correct AWS_PROFILE" in said


def test_a_profile_whose_credentials_cannot_be_had(home: Path, indexes: Path) -> None:
    pytest.importorskip("boto3")
    pytest.importorskip("boto3")
    (home / ".aws").mkdir()
    (home / ".aws" / "credentials").write_text("[default]\ncredential_process = /bin/false --secret " + READER_SECRET)
    assert "the profile of ~/.aws gives no credentials" in refusal(indexes)


def test_a_profile_without_boto3(home: Path, indexes: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A folder of its name that is no package stands in front of it, in the fetching process too."""
    (tmp_path / "modules").mkdir()
    hiding = "import sys; sys.modules['boto3'] = None"
    (tmp_path / "modules" / "sitecustomize.py").write_text(hiding)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "modules"))
    write_profile(home, "training")
    monkeypatch.setenv("AWS_PROFILE", "training")
    assert "profiles of ~/.aws need the package boto3; install it: pip install boto3" in refusal(indexes)


def test_a_public_bucket(home: Path, indexes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A profile that is there is not asked."""
    write_profile(home, "default", secret="wrong")
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    with far_store(f"s3://{PUBLIC}", indexes) as store:
        assert store.read(KEY) == DATA


def test_the_reader_pays(server: Seaweed, home: Path, indexes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_REQUEST_PAYER", "true")
    with Proxy(server.endpoint) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        with far_store("s3://private", indexes) as store:
            assert store.read(KEY) == DATA
        assert len(proxy.headers) >= 3, "a list, a look, a read"
        assert all(one.get("x-amz-request-payer") == "requester" for one in proxy.headers), proxy.headers


CHANGED = "a-changed-secret-that-nobody-may-see"


def test_keys_that_no_longer_go(server: Seaweed, home: Path, indexes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    with far_store("s3://private", indexes) as store:
        assert store.read(KEY) == DATA
        server.change_reader_secret(CHANGED)
        try:
            said = until(lambda: refused(store), "the server has taken the keys in")
            assert "s3://private: it answers 403" in said and "set AWS_ACCESS_KEY_ID and" in said, said
            assert said.endswith("and restart the agent") and READER_SECRET not in said
        finally:
            server.change_reader_secret(READER_SECRET)
        until(lambda: refused(store) is None, "they go again: nothing is remembered")


@pytest.mark.parametrize("valid_s", [5, 3600])
def test_a_profile_that_gives_new_keys_goes_on(server: Seaweed, home: Path, indexes: Path, valid_s: int) -> None:
    """Those that have expired, and those that the server no longer takes before they have."""
    pytest.importorskip("boto3")
    (home / ".aws").mkdir()
    (home / ".aws" / "credentials").write_text(f"[default]\ncredential_process = /bin/cat {home / 'keys'}\n")
    write_keys(home, READER_SECRET, valid_s)
    with far_store("s3://private", indexes) as store:
        assert store.read(KEY) == DATA
        write_keys(home, CHANGED, 3600)
        server.change_reader_secret(CHANGED)
        try:
            time.sleep(1.0)
            for _ in range(20):
                assert store.read(KEY) == DATA
                time.sleep(0.05)
        finally:
            server.change_reader_secret(READER_SECRET)


def write_keys(home: Path, secret: str, valid_s: int) -> None:
    """What a profile's command prints."""
    until_utc = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + valid_s))
    keys = {"Version": 1, "AccessKeyId": READER, "SecretAccessKey": secret, "SessionToken": "", "Expiration": until_utc}
    (home / "keys").write_text(json.dumps(keys))


def refused(store: Far) -> str | None:
    """What a read ends in."""
    try:
        store.read(KEY)
    except SampleUnreadable as error:
        return str(error)
    return None
