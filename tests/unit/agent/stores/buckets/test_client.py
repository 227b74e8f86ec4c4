"""Servers of stores, on this host: certificates of one's own, redirects, and settings at which the library fails."""

from __future__ import annotations

import http.server
import itertools
import os
import shutil
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sophon_loader.errors import ConfigError
from storage_agent.stores.buckets.far import Far
from storage_agent.stores.buckets.fetcher import Fetcher

pytest.importorskip("obstore", reason="obstore is not installed")

import obstore
from obstore.exceptions import BaseError
from obstore.store import AzureStore, S3Store

from storage_agent.stores.buckets import objects
from storage_agent.stores.buckets.client import client_options

Serve = Callable[..., http.server.ThreadingHTTPServer]
ANSWER = {"ETag": '"1"', "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        server: Any = self.server
        server.asked.append(dict(self.headers))
        data = server.page.format(more=str(server.more).lower(), number=len(server.asked)).encode()
        self.send_response(307 if server.to else 200)
        for name, value in {**ANSWER, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        if server.to:
            self.send_header("Location", server.to + self.path)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *what: object) -> None:
        pass


@pytest.fixture
def serve() -> Iterator[Serve]:
    servers = []

    def start(host: str, to: str = "", context: ssl.SSLContext | None = None) -> http.server.ThreadingHTTPServer:
        made: Any = http.server.ThreadingHTTPServer((host, 0), _Handler)
        made.to, made.asked, made.page, made.more = to, [], "pixels", False
        if context is not None:
            made.socket = context.wrap_socket(made.socket, server_side=True)
        made.handle_error = lambda *what: None  # clients that do not trust it
        threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True).start()
        servers.append(made)
        server: http.server.ThreadingHTTPServer = made
        return server

    yield start
    for one in servers:
        one.shutdown()
        one.server_close()


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., bytes]]:
    """Reads an object of the server at an address, by an environment of this test's own, once."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "AZURE_", "SSL_")) or "proxy" in name.lower()]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(objects, "AGAIN_WITHIN_S", 0.0)

    def one(address: str, location: str = "s3://photos", **environment: str | None) -> bytes:
        usual = {"AWS_ENDPOINT_URL": address, "AWS_REGION": "x", "AWS_ACCESS_KEY_ID": "a"}
        secret = {"AWS_SECRET_ACCESS_KEY": "b", "AWS_SESSION_TOKEN": "token"}
        for name, value in {**usual, **secret, **environment}.items():
            if value is None:
                monkeypatch.delenv(name, raising=False)
            else:
                monkeypatch.setenv(name, value)
        objects._store.cache_clear()
        objects._profile.cache_clear()
        return bytes(objects.read(location, "a.jpg", 6, '"1"'))

    yield one
    objects._store.cache_clear()
    objects._profile.cache_clear()


def test_a_redirect_to_another_host_is_not_followed(serve: Serve, read: Callable[..., bytes]) -> None:
    other = serve("127.0.0.2")
    store = serve("127.0.0.1", f"http://127.0.0.2:{other.server_port}")
    with pytest.raises(objects.StoreFailed, match="it redirects to another host, which is not asked") as refused:
        read(f"http://127.0.0.1:{store.server_port}")
    assert refused.value.what == "redirect" and len(store.asked) == 1 and not other.asked  # type: ignore[attr-defined]


def test_a_shared_signature_goes_to_no_other_host(serve: Serve, read: Callable[..., bytes]) -> None:
    """It would in the header Referer."""
    other = serve("127.0.0.2")
    store = serve("127.0.0.1", f"http://127.0.0.2:{other.server_port}")
    azure = {"AZURE_STORAGE_ACCOUNT_NAME": "a", "AZURE_STORAGE_SAS_TOKEN": "sv=2021&sig=secret"}
    address = f"http://127.0.0.1:{store.server_port}"
    with pytest.raises(objects.StoreFailed, match="it redirects to another host, which is not asked"):
        read("", "az://photos", **azure, AZURE_STORAGE_ENDPOINT=f"{address}/a")
    assert len(store.asked) == 1 and not other.asked  # type: ignore[attr-defined]


@pytest.mark.parametrize(("scheme", "own"), [("s3", "amazonaws.com"), ("az", "core.windows.net")])
def test_only_the_provider_is_asked_without_an_endpoint(scheme: str, own: str, serve: Serve) -> None:
    """A host on the way there stands for one that the provider redirects to."""
    options = client_options(f"{scheme}://photos", {})
    assert own in options["proxy_excludes"].split(",")
    store: Any = serve("127.0.0.1")
    more: Any = {"allow_http": True, "endpoint": f"http://127.0.0.1:{store.server_port}"}
    keys: Any = {"s3": {"skip_signature": True, "region": "x"}, "az": {"skip_signature": True, "account_name": "a"}}
    made: Any = {"s3": S3Store, "az": AzureStore}[scheme]
    with pytest.raises(BaseError) as refused:
        obstore.get(
            made("photos", **keys[scheme], **more, client_options=options, retry_config={"max_retries": 0}), "a.jpg"
        )
    assert objects.failed(refused.value).what == "redirect" and not store.asked


def test_a_redirect_within_a_host_is_followed(serve: Serve, read: Callable[..., bytes]) -> None:
    other = serve("127.0.0.1")
    store = serve("127.0.0.1", f"http://127.0.0.1:{other.server_port}")
    assert read(f"http://127.0.0.1:{store.server_port}") == b"pixels"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a CA's certificate, and a server's that it has signed."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    root = tmp_path_factory.mktemp("certificates")
    new = "openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
    (root / "names").write_text("subjectAltName=IP:127.0.0.1")
    for command in (
        f"{new} -x509 -keyout ca.key -out ca -days 2 -subj /CN=ca",
        f"{new} -keyout key -out asked -subj /CN=store",
        "openssl x509 -req -in asked -CA ca -CAkey ca.key -CAcreateserial -days 2 -extfile names -out signed",
    ):
        subprocess.run(command.split(), cwd=root, check=True, capture_output=True, timeout=30)
    return root


def test_a_certificate_of_ones_own(
    certificates: Path, serve: Serve, read: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "signed", certificates / "key")
    address = f"https://127.0.0.1:{serve('127.0.0.1', context=context).server_port}"
    with pytest.raises(objects.StoreFailed, match=r"its certificate is not trusted \(UnknownIssuer\)") as refused:
        read(address)
    assert refused.value.what == "certificate"
    assert read(address, AWS_CA_BUNDLE=str(certificates / "ca")) == b"pixels"
    monkeypatch.delenv("AWS_CA_BUNDLE")
    assert read(address, SSL_CERT_FILE=str(certificates / "ca")) == b"pixels"


def test_a_certificate_that_a_profile_trusts(
    certificates: Path, serve: Serve, read: Callable[..., bytes], tmp_path: Path
) -> None:
    pytest.importorskip("boto3")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "signed", certificates / "key")
    address = f"https://127.0.0.1:{serve('127.0.0.1', context=context).server_port}"
    (tmp_path / "config").write_text(
        f"[default]\nca_bundle = {certificates}/none\n"
        f"[profile training]\nca_bundle = {certificates}/ca\naws_access_key_id = a\naws_secret_access_key = b\n"
        f"[profile wrong]\nca_bundle = {certificates}/none\naws_access_key_id = a\naws_secret_access_key = b\n"
    )
    without_keys = dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"))
    files = {"AWS_CONFIG_FILE": f"{tmp_path}/config", "AWS_SHARED_CREDENTIALS_FILE": f"{tmp_path}/none"}
    assert read(address, **without_keys, **files, AWS_PROFILE="training") == b"pixels"
    with pytest.raises(objects.StoreFailed, match="the file that ca_bundle of the AWS profile names cannot be read"):
        read(address, **without_keys, **files, AWS_PROFILE="wrong")
    trusted = str(certificates / "ca")
    assert read(address, **without_keys, **files, AWS_PROFILE="wrong", AWS_CA_BUNDLE=trusted) == b"pixels"


def test_what_to_set_where_a_certificate_is_not_trusted() -> None:
    said = Far("d", "s3://photos", 1000)._remedy("s3", "certificate")
    assert "AWS_CA_BUNDLE or SSL_CERT_FILE in the agent's environment, or ca_bundle of the profile" in said


def test_a_bundle_of_certificates_that_is_none(read: Callable[..., bytes], tmp_path: Path) -> None:
    for bundle, said in (
        (tmp_path / "none", "cannot be read: No such file"),
        (Path(__file__), "no certificate in PEM"),
    ):
        with pytest.raises(objects.StoreFailed, match=f"the file that AWS_CA_BUNDLE names .*{said}") as refused:
            read("https://127.0.0.1:9", AWS_CA_BUNDLE=str(bundle))
        assert refused.value.what == "bundle"


PAGE = """<ListBucketResult><Name>photos</Name><KeyCount>0</KeyCount><IsTruncated>{more}</IsTruncated>
<NextContinuationToken>{number}</NextContinuationToken></ListBucketResult>"""


def test_a_list_without_end(
    serve: Serve, read: Callable[..., bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each page is empty, and says that there are more."""
    monkeypatch.setattr(objects, "NEXT_WITHIN_S", 0.2)
    store: Any = serve("127.0.0.1")
    store.page, store.more = PAGE, True
    address = f"http://127.0.0.1:{store.server_port}"
    with pytest.raises(objects.StoreFailed):  # it is no object's answer, but the settings are those of this server now
        read(address)
    try:
        with pytest.raises(objects.StoreFailed, match="its list has given no object for 0 s") as refused:
            objects.write_listing("s3://photos", str(tmp_path / "x"))
    finally:
        store.more = False
    assert refused.value.what == "endless" and len(store.asked) > 3


def test_a_list_that_comes_back_to_its_first_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = {"path": "a.jpg", "size": 1, "e_tag": '"1"', "last_modified": None}
    monkeypatch.setattr(objects, "_store", lambda location: None)
    monkeypatch.setattr(objects.obstore, "list", lambda store: itertools.repeat([one, {**one, "path": "b.jpg"}]))
    with pytest.raises(objects.StoreFailed, match="its list comes back to its first object"):
        objects.write_listing("s3://photos", str(tmp_path / "x"))


def test_a_panic_of_the_library(
    read: Callable[..., bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"AWS_ENDPOINT_URL": "nohost", "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}.items():
        monkeypatch.setenv(name, value)
    fetcher = Fetcher()
    try:
        store = Far("d", "s3://photos", 1000, index_folder=tmp_path, fetcher=fetcher)
        for _ in range(2):
            with pytest.raises(ConfigError) as refused:
                store.check()
    finally:
        fetcher.close()
    assert "library that reads stores has failed (PanicException); see that settings" in str(refused.value)
    assert "AWS_ENDPOINT_URL" in str(refused.value) and not capfd.readouterr().err
