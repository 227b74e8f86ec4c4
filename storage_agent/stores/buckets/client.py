"""How stores are asked: time limits, certificates, and the hosts that may be. Runs in the fetching process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from storage_agent.stores.buckets.listings import endpoint_of

NOWHERE = "127.0.0.1:0"
"""Nobody can listen there. It is the proxy of all hosts that may not be asked: obstore has no option by which redirects
are not followed. Of what is secret it leaves out the header Authorization alone, all that Google's stores are sent."""
_LIMITS = {"connect_timeout": "2s", "read_timeout": "3s", "timeout": "10s", "randomize_addresses": True}
_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "aws_proxy_url", "azure_proxy_url")
_OF_CREDENTIALS = {
    "s3": ("AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_METADATA_ENDPOINT", "AWS_ENDPOINT_URL_STS"),
    "az": (
        "AZURE_AUTHORITY_HOST",
        "AZURE_STORAGE_AUTHORITY_HOST",
        "AZURE_MSI_ENDPOINT",
        "AZURE_IDENTITY_ENDPOINT",
        "IDENTITY_ENDPOINT",
        "AZURE_FABRIC_TOKEN_SERVICE_URL",
    ),
}
"""Addresses of other servers, which give credentials."""
_PROVIDERS = {
    "s3": ("amazonaws.com", "amazonaws.com.cn", "169.254.0.0/16", "fd00:ec2::/32"),
    "az": ("core.windows.net", "fabric.microsoft.com", "login.microsoftonline.com", "169.254.0.0/16"),
}
"""Those by default, stores and others, with all hosts below them."""
_EMULATOR = "127.0.0.1"
"""Azurite's, where AZURE_STORAGE_USE_EMULATOR is set without an address."""


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
    if location.startswith("s3:"):
        if bundle := environment.get("AWS_CA_BUNDLE"):
            options["root_certificate"] = _certificates(bundle, "AWS_CA_BUNDLE")
        elif ca_bundle:
            options["root_certificate"] = _certificates(ca_bundle, "ca_bundle of the AWS profile")
    return options | _one_host(location.partition("://")[0], _host(endpoint), environment)


def _one_host(scheme: str, host: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Options by which no other host is asked: S3's session token, its customer's key of encryption and Azure's, and
    Azure's SAS (in `Referer`) would go there with a redirect.

    Args:
        scheme: of the location.
        host: that the environment names; "" for the provider's own.
        environment: of this process.
    """
    # a proxy of the user's own has to be left in place
    if scheme not in _PROVIDERS or any(environment.get(one) for one in environment if one.lower() in _PROXIES):
        return {}
    emulator = _EMULATOR if scheme == "az" and environment.get("AZURE_STORAGE_USE_EMULATOR") else ""
    others = [_host(environment.get(name, "")) for name in _OF_CREDENTIALS[scheme]]
    excludes = ",".join(filter(None, [host, emulator, *others, *_PROVIDERS[scheme]]))
    return {"proxy_url": f"http://{NOWHERE}", "proxy_excludes": excludes}


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
