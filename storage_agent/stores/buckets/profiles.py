"""Credentials of a profile of `~/.aws`, by boto3 where it is installed. Runs in the fetching process alone."""

from __future__ import annotations

import contextlib
import importlib.util
import math
import threading
import time
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

_FILES = {"AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials", "AWS_CONFIG_FILE": "~/.aws/config"}
_VALID_S = 300.0
"""How long credentials are used before boto3 is asked again, which has them renewed 10 minutes before they expire."""
_RENEWED_S = 10.0
"""Profiles are not read again more often: each object that may not be read is refused, whatever the keys are."""
_YES = ("1", "true", "on", "yes", "y", "t")


class NoProfile(Exception):
    """A profile gives no credentials; the text says why, and may be shown."""


class NoBoto3(Exception):
    """A profile is named, and boto3 is not installed."""


class Profile:
    """A profile as obstore asks it for credentials, and the settings besides them; its errors have no secret in them.

    Args:
        environment: names the profile, and may name the files.

    Attributes:
        settings: of obstore's store: the profile's region, where the environment has none.
        ca_bundle: the path of the file of certificates that the profile names; "" for none.

    Raises:
        NoProfile: it is not there, or cannot be read.

    Example:
        >>> profile = Profile(os.environ)
        >>> S3Store("photos", credential_provider=profile, **profile.settings)
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        import boto3  # an optional package
        import botocore.session

        try:
            core = botocore.session.get_session()
            session = boto3.Session(botocore_session=core)
            self._credentials = session.get_credentials()
            self.ca_bundle = str(core.get_scoped_config().get("ca_bundle", ""))
        except Exception as error:  # the boundary to a library whose texts may have what is secret
            raise NoProfile(type(error).__name__) from None
        self.has_credentials = self._credentials is not None
        has_region = any(name in environment for name in ("AWS_REGION", "AWS_DEFAULT_REGION"))
        region = None if has_region else session.region_name
        self.settings = {"region": region} if region else {}

        self._renewed_s = -math.inf
        self._lock = threading.Lock()

    def renew(self) -> None:
        """A store has refused the credentials: read the profile anew, since boto3 keeps them until they expire."""
        import boto3

        with self._lock:
            if time.monotonic() - self._renewed_s > _RENEWED_S:
                with contextlib.suppress(Exception):  # likewise; the old ones stay
                    self._credentials = boto3.Session().get_credentials() or self._credentials
                self._renewed_s = time.monotonic()

    def __call__(self) -> dict[str, Any]:
        """The credentials for the next requests."""
        try:
            found = self._credentials.get_frozen_credentials()
        except Exception as error:  # likewise
            raise RuntimeError(type(error).__name__) from None
        until = datetime.now(timezone.utc) + timedelta(seconds=_VALID_S)
        keys = {"access_key_id": found.access_key, "secret_access_key": found.secret_key, "token": found.token}
        return {**keys, "expires_at": until}


def profile(environment: Mapping[str, str]) -> Profile | None:
    """The profile to take credentials from; None where obstore finds them itself.

    Keys in the environment come before a profile, as with Amazon's own tools. A file of `~/.aws` without boto3 is left
    alone: it may be there for other tools.

    Raises:
        NoProfile: the profile gives no credentials.
        NoBoto3: AWS_PROFILE names one, and boto3 is not installed.
    """
    is_public = environment.get("AWS_SKIP_SIGNATURE", "").lower() in _YES
    if is_public or "AWS_ACCESS_KEY_ID" in environment:
        return None
    is_named = bool(environment.get("AWS_PROFILE"))
    has_boto3 = importlib.util.find_spec("boto3") is not None
    if is_named and not has_boto3:
        raise NoBoto3
    has_file = any(_there(environment.get(name) or usual) for name, usual in _FILES.items())
    if not has_boto3 or not (is_named or has_file):
        return None
    found = Profile(environment)
    if is_named and not found.has_credentials:
        raise NoProfile("it has none")
    return found if found.has_credentials else None


def _there(path: str) -> bool:
    try:
        return Path(path).expanduser().is_file()
    except (OSError, RuntimeError):  # RuntimeError: there is no home
        return False
