"""Hosts of endpoints, as a name server would tell."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from sophon_loader.client.address import Address
from sophon_loader.client.connection import Connection
from sophon_loader.errors import AgentUnreachable
from sophon_loader.host import endpoints as module
from sophon_loader.host.endpoints import Family, by_ipv6_alone, host_of, unknown_host

KNOWN = {"six": [socket.AF_INET6], "four": [socket.AF_INET], "both": [socket.AF_INET6, socket.AF_INET]}


@pytest.fixture(autouse=True)
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What has been asked for."""
    asked: list[str] = []

    def getaddrinfo(host: str, *_: Any, **__: Any) -> list[Any]:
        asked.append(host)
        if host not in KNOWN:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(family, 1, 6, "", ()) for family in KNOWN[host]]

    module._families.cache_clear()
    monkeypatch.setattr(module.socket, "getaddrinfo", getaddrinfo)
    yield asked
    module._families.cache_clear()


def test_who_is_reached_by_ipv6_alone(names: list[str]) -> None:
    for _ in range(2):
        assert by_ipv6_alone("tcp://six:5555")
        assert not by_ipv6_alone("tcp://four:5555") and not by_ipv6_alone("tcp://both:5555")
        assert not by_ipv6_alone("ipc:///run/agent") and not by_ipv6_alone("")
    assert names == ["six", "four", "both"], "each is asked for once"
    assert host_of("tcp://[::1]:5555") == "::1"


def test_a_name_that_is_not_known_is_asked_for_once(names: list[str]) -> None:
    """A name server that does not answer takes seconds each time."""
    family = Family("tcp://flieserver:5555")
    assert names == ["flieserver"] and not family.has_both and not family.by_ipv6


def test_where_a_name_means_both_the_other_family_is_tried_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_reached", {})
    family = Family("tcp://both:5555")
    assert family.has_both and not family.by_ipv6
    assert not family.turned(0.0), "nobody has refused"
    now_s = 0.0
    for pause_s in (0.0, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0):
        family.refused(now_s)
        assert not pause_s or not family.turned(now_s + pause_s - 0.01)
        now_s += pause_s
        before = family.by_ipv6
        assert family.turned(now_s) and family.by_ipv6 != before
    assert family.by_ipv6
    family.refused(now_s)
    family.connected()
    assert not family.turned(now_s + 9.0)
    family.reached()
    assert Family("tcp://both:5555").by_ipv6, "others begin where this one was answered"
    for one in ("four", "six", "flieserver"):
        family = Family(f"tcp://{one}:5555")
        family.refused(0.0)
        assert not family.turned(9.0) and family.by_ipv6 == (one == "six")


def test_a_name_that_nobody_knows_is_said() -> None:
    assert not by_ipv6_alone("tcp://flieserver:5555")
    assert unknown_host("tcp://flieserver:5555") == "'flieserver': Name or service not known"
    assert unknown_host("tcp://four:5555") == unknown_host("ipc:///run/agent") == ""
    connection = Connection(Address("tcp://flieserver:5555", "d"), window=1)
    try:
        with pytest.raises(AgentUnreachable, match="must have a name that is known here, got 'flieserver': Name"):
            connection.greet(0.01)
    finally:
        connection.close()
