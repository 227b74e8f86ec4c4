"""How stores are asked: time limits, certificates, and the hosts that may be. Runs in the fetching process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from storage_agent.stores.buckets.listings import endpoint_of

NOWHERE = "127.0.0.1:0"
"""Nobody can listen there. It is the proxy of all hosts that may not be asked: obstore has no option by which redirects
are not followed, and sends the session token along."""
_LIMITS = {"connect_timeout": "2s", "read_timeout": "3s", "timeout": "10s", "randomize_addresses": True}
_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "aws_proxy_url")
_OF_CREDENTIALS = ("AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_METADATA_ENDPOINT", "AWS_ENDPOINT_URL_STS")
"""Addresses of other servers, which give credentials."""
_AMAZONS = ("amazonaws.com", "amazonaws.com.cn", "169.254.0.0/16", "fd00:ec2::/32")
"""Those by default, with all hosts below them."""


class NoBundle(Exception):
    """AWS_CA_BUNDLE, or the profile, names no file of certificates; the text says why, and may be shown."""


def client_options(location: str, environment: Mapping[str, str], ca_bundle: str = "") -> dict[str, Any]:
    """Options of obstore's client for a location.

    Args:
        location: `s3://bucket/prefix`, `gs://` or `az://container/prefix`.
        environment: of this process.
        ca_bundle: the file of certificates that an AWS profile names; AWS_CA_BUNDLE comes before it.

    Raises:
        NoBundle.
    """
    endpoint = endpoint_of(location, environment)
    options: dict[str, Any] = {**_LIMITS, "allow_http": endpoint.startswith("http://")}
    if not location.startswith("s3:"):
        return options
    if bundle := environment.get("AWS_CA_BUNDLE"):
        options["root_certificate"] = _certificates(bundle, "AWS_CA_BUNDLE")
    elif ca_bundle:
        options["root_certificate"] = _certificates(ca_bundle, "ca_bundle of the AWS profile")
    # at Amazon's own address TLS says who answers; a proxy of the user's own has to be left in place
    has_proxy = any(environment.get(one) for one in environment if one.lower() in _PROXIES)
    if (host := _host(endpoint)) and not has_proxy:
        others = [_host(environment.get(name, "")) for name in _OF_CREDENTIALS]
        options["proxy_url"] = f"http://{NOWHERE}"
        options["proxy_excludes"] = ",".join(filter(None, [host, *others, *_AMAZONS]))
    return options


def _certificates(bundle: str, named_by: str) -> bytes:
    try:
        found = Path(bundle).read_bytes()
    except OSError as error:
        raise NoBundle(f"the file that {named_by} names cannot be read: {error.strerror}") from None
    if b"-----BEGIN CERTIFICATE-----" not in found:
        raise NoBundle(f"the file that {named_by} names has no certificate in PEM")
    return found


def _host(address: str) -> str:
    try:
        return urlsplit(address).hostname or ""
    except ValueError:
        return ""
