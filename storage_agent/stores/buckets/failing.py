"""What a failure of obstore's means, in words that may be shown: no text of its own is, since addresses may have
signatures in them."""

from __future__ import annotations

import re

from obstore.exceptions import PermissionDeniedError, PreconditionError, UnauthenticatedError

from storage_agent.stores.buckets.client import NOWHERE

NO_PROFILE = "the profile of ~/.aws gives no credentials"
AWAY = ("away", "busy", "certificate")
"""The failures that pass by themselves, or once somebody sees to the store: they are waited for."""
_CODE = re.compile(r"<Code>(\w{1,64})</Code>")
_STATUS = re.compile(r"status code: (\d{3})")
_CERTIFICATE = re.compile(r"InvalidCertificate\(\s*(?:Other\(\s*OtherError\(\s*)?(\w+)")
_REDIRECTED = f" {NOWHERE},"
"""In the error of a connection to there, which only requests to another host make."""


class StoreFailed(Exception):
    """The store has not given what was asked for.

    Args:
        what: "missing", "changed", "denied", "none" (no such bucket), "region", "unset" (no credentials), "away",
            "busy" (it fails for now), "certificate" (it is not trusted), "bundle" (of certificates: not readable),
            "redirect" (to another host), "cut" (its answer has ended early), "profile", "boto3", "names", "many",
            "endless" (its list), "library" (that of stores has failed) or "unreadable".
        why: in words that may be shown.
    """

    def __init__(self, what: str, why: str) -> None:
        super().__init__(what, why)
        self.what = what
        self.why = why


def failed(error: Exception) -> StoreFailed:
    """What an error means."""
    text, said = str(error), shown(error)
    if _REDIRECTED in text:
        return StoreFailed("redirect", said)
    if _CERTIFICATE.search(text):
        return StoreFailed("certificate", said)
    code = match.group(1) if (match := _CODE.search(text)) else ""
    if code in ("NoSuchBucket", "ContainerNotFound"):
        return StoreFailed("none", said)
    if isinstance(error, FileNotFoundError):
        return StoreFailed("missing", said)
    if "External AWS credential provider" in text:
        return StoreFailed("profile", NO_PROFILE)
    if isinstance(error, PreconditionError):
        return StoreFailed("changed", said)
    if "169.254.169.254" in text or "metadata.google" in text:
        return StoreFailed("unset", "no credentials are found")
    if "PermanentRedirect" in text or code == "AuthorizationHeaderMalformed" or "status code: 301" in text:
        return StoreFailed("region", said)
    if code in ("ExpiredToken", "InvalidToken", "TokenRefreshRequired"):  # with 400
        return StoreFailed("denied", said)
    if isinstance(error, (PermissionDeniedError, UnauthenticatedError)) or re.search(r"status code: 40[13]", text):
        return StoreFailed("denied", said)
    status = match.group(1) if (match := _STATUS.search(text)) else ""
    if status.startswith("5") or status in ("408", "429"):
        return StoreFailed("busy", said)
    return StoreFailed("unreadable" if status else "away", said)


def slows_down(error: Exception) -> bool:
    """Whether a store asks for fewer requests."""
    match = _STATUS.search(str(error))
    return match is not None and match.group(1) in ("429", "503")


def shown(error: Exception) -> str:
    """What may be shown of an error: the status and code of the store's answer, or what kind it is."""
    text = str(error)
    if _REDIRECTED in text:
        return "it redirects to another host, which is not asked"
    if match := _CERTIFICATE.search(text):
        return f"its certificate is not trusted ({match.group(1)})"
    found = [match.group(1) for match in (_STATUS.search(text), _CODE.search(text)) if match]
    if found:
        return f"it answers {' '.join(found)}"
    if "timed out" in text or "TimedOut" in text or "timeout" in text.lower().replace("retry_timeout", ""):
        return "it has not answered in time"
    return "it cannot be reached" if "error sending request" in text else f"reading ended in a {type(error).__name__}"
