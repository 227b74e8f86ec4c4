"""A roster that is a Ray cluster: its head lists the actors that keep agents, over HTTP. Ray is not imported.

The token for that may run code on the cluster, so it is sent only to the host that the user wrote: neither redirects
nor proxies are followed.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import ssl
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlencode

from sophon_loader.client.address import Address
from sophon_loader.errors import ConfigError
from sophon_loader.host.endpoints import host_of
from sophon_loader.routes.roster import LOOK_S, MAX_MEMBERS, Member, Question
from sophon_loader.wire.actor import ACTOR_CLASS, parse_actor

SCHEMES = ("ray://", "rays://")
"""Schemes for HTTP and for HTTPS."""
MAX_ANSWER_NBYTES = 16 << 20
"""Maximum size of the head's answer, in bytes; an actor takes some kilobytes."""
MAX_TOKEN_NBYTES = 4096
ANSWER_S = 10.0
"""Time limit for the head, in seconds, from the connection to the end of its answer."""
_STEP_NBYTES = 1 << 16


class RayActors:
    """The agents that `sophon-agent ray start` has started on a cluster, at their current addresses.

    Args:
        text: `ray://HEAD:8265/EXPORT[/FOLDER]` with the port of Ray's dashboard; `rays://` for HTTPS.
        wait_s: time limit of a look, in seconds; 0 takes what was found since the last look, without waiting.
        answer_s: time limit for the head, in seconds, after which a look has failed.

    Raises:
        ConfigError: the text has another form.

    Example:
        >>> [str(member.address) for member in RayActors("ray://head:8265/imagenet/train").look()]
        ['tcp://10.0.0.7:40123/imagenet/train']
    """

    def __init__(self, text: str, *, wait_s: float = LOOK_S, answer_s: float = ANSWER_S) -> None:
        self.trouble = ""
        self.met: Collection[Address] = ()
        self._secure = text.startswith("rays://")
        self._address = _parsed(text)
        self._place = self._address.endpoint.removeprefix("tcp://")
        self._answer_s = answer_s
        self._members: Sequence[Member] = ()
        self._question = Question(self._ask, "roster-ray", wait_s)

    def look(self, *, ask: bool = True) -> Sequence[Member]:
        """Return the agents of now; those of the last time while the head does not list them.

        Args:
            ask: see `Roster`.
        """
        try:
            found = self._question.answers(ask=ask)
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.trouble = f"Ray's head at {self._place} does not list its agents: {_told(error)}"
        else:
            if found:
                self._members = found[-1]
                self.trouble = "" if found[-1] else f"no agent of {self._address.export!r} is alive on {self._place}"
            if self._question.overdue:
                self.trouble = f"Ray's head at {self._place} does not answer"
        return self._members

    @property
    def is_looking(self) -> bool:
        """See `Roster`."""
        return self._question.is_open

    # --- what the thread does that may hang: nothing below changes anything ---------------------------------------

    def _ask(self) -> list[Member]:
        return list(self._agents(_actors(self._answer())))

    def _answer(self) -> bytes:
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        host, port = host_of(self._address.endpoint), int(self._place.rpartition(":")[2])
        with closing(kind(host, port, timeout=self._answer_s)) as connection:
            connection.connect()
            with _ended_after(self._answer_s, connection.sock):
                connection.request("GET", _QUESTION, headers=_headers())
                with closing(connection.getresponse()) as answer:
                    return _read(answer)

    def _agents(self, actors: Sequence[object]) -> Iterator[Member]:
        for actor in actors:
            if not isinstance(actor, dict) or not isinstance(actor.get("repr_name"), str):
                continue
            if (actor.get("class_name"), actor.get("state")) != (ACTOR_CLASS, "ALIVE"):
                continue  # the head has filtered too, if it is of a release that does
            if found := parse_actor(actor["repr_name"]):
                endpoint, exports = found
                yield Member(replace(self._address, endpoint=endpoint), exports=exports or None)


_QUESTION = "/api/v0/actors?" + urlencode(
    [("detail", 1), ("limit", MAX_MEMBERS)]
    + [
        pair
        for key, value in (("class_name", ACTOR_CLASS), ("state", "ALIVE"))
        for pair in (("filter_keys", key), ("filter_predicates", "="), ("filter_values", value))
    ]
)


def _parsed(text: str) -> Address:
    scheme, _, rest = text.partition("://")
    try:
        return Address.parse(f"tcp://{rest}")
    except ConfigError:
        raise ConfigError(
            f"agent must name Ray's head, the port of its dashboard and an export, got {text!r}; write "
            f"{scheme}://HEAD:8265/EXPORT"
        ) from None


def _headers() -> dict[str, str]:
    token = _token()
    return {"Accept": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}


def _token() -> str:
    """Return the token that Ray would send; "" if there is none. Read at each look, since the file may be replaced."""
    if token := os.environ.get("RAY_AUTH_TOKEN", "").strip():
        return _checked(token, "RAY_AUTH_TOKEN")
    given = os.environ.get("RAY_AUTH_TOKEN_PATH", "")
    path = Path(given or os.path.expanduser("~/.ray/auth_token"))
    try:
        with open(path, encoding="ascii") as file:
            return _checked(file.read(MAX_TOKEN_NBYTES).strip(), str(path))
    except FileNotFoundError:
        if given:
            raise
        return ""


def _checked(token: str, origin: str) -> str:
    """Return the token if its form is valid; errors never contain the token."""
    if not (token.isascii() and token.isprintable() and " " not in token):
        raise ValueError(f"{origin} holds what cannot be a token: other characters than a header may have")
    return token


def _refusal(status: int) -> str:
    if status in (401, 403):
        remedy = "put its token into RAY_AUTH_TOKEN, or into the file that RAY_AUTH_TOKEN_PATH names"
        return f"it answers {status}, and wants another token than {'the one shown' if _token() else 'none'}; {remedy}"
    if status == 404:
        return "it answers 404; is this the port of Ray's dashboard (8265), and does that run (ray[default])?"
    return f"it answers {status}"


def _actors(body: bytes) -> list[object]:
    try:
        answer = json.loads(body)
        actors = answer["data"]["result"]["result"]
    except (ValueError, RecursionError, KeyError, TypeError):
        actors = None
    if not isinstance(actors, list):
        raise ValueError("its answer is none of Ray's state API")
    return actors[:MAX_MEMBERS]


def _read(answer: http.client.HTTPResponse) -> bytes:
    if answer.status != 200:
        raise ValueError(_refusal(answer.status))
    body = bytearray()
    while chunk := answer.read1(_STEP_NBYTES):
        body += chunk
        if len(body) > MAX_ANSWER_NBYTES:
            raise ValueError(f"its answer has more than {MAX_ANSWER_NBYTES >> 20} MiB")
    if answer.length:
        raise http.client.HTTPException("its answer was cut off")
    return bytes(body)


@contextmanager
def _ended_after(wait_s: float, connected: socket.socket) -> Iterator[None]:
    """Limit the time of a whole answer: a socket's time-out is per read, so byte by byte it could take for ever."""
    end_s = time.monotonic() + wait_s
    timer = threading.Timer(wait_s, _hang_up, [connected])
    timer.daemon = True
    timer.start()
    try:
        yield
    except (OSError, http.client.HTTPException):
        if time.monotonic() < end_s:
            raise
    finally:
        timer.cancel()
    if time.monotonic() >= end_s:  # headers that end in mid-word look like whole ones
        raise TimeoutError(f"its answer was not whole within {wait_s:g} s")


def _hang_up(connected: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it has been closed
        connected.shutdown(socket.SHUT_RDWR)


def _told(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not believed: {error.verify_message}"
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error)
    return str(error) or type(error).__name__
