"""A loader whose agents are those behind a name, which has more or other addresses after a while."""

from __future__ import annotations

import contextlib
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sophon_loader import OffloadingDataLoader, RemoteImageFolder
from sophon_loader.fleet.contact import Contact
from tests.support.agents import EXPORT, Agent, agent_for, until
from tests.support.loaders import samples_of
from tests.support.pictures import folder, train_transform
from tests.support.replicas import LOADER, SOON, sent
from tests.support.rostered import SAMPLER, Epoch, left, no_warning


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses of `localhost`, by a `socket.getaddrinfo` that is patched; ZeroMQ's own look-ups are not."""
    found = ["127.0.0.1"]
    real = socket.getaddrinfo

    def patched(host: Any, *arguments: Any, **named: Any) -> list[Any]:
        if host != "localhost":
            return real(host, *arguments, **named)
        if not found:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [one for each in found for one in real(each, *arguments, **named)]

    monkeypatch.setattr(socket, "getaddrinfo", patched)
    return found


@contextmanager
def at_one_port(root: Path, count: int) -> Iterator[list[Agent]]:
    """Agents at 127.0.0.1, 127.0.0.2 and so on, with one port; all but the first are yet to be started."""
    with contextlib.ExitStack() as running:
        agents = [running.enter_context(agent_for(root))]
        port = agents[0].endpoint.rpartition(":")[2]
        for number in range(2, count + 1):
            agents.append(running.enter_context(agent_for(root, "--bind", f"tcp://127.0.0.{number}:{port}")))
        yield [one.ready() for one in agents]


def named(root: Path, agents: list[Agent], **arguments: Any) -> OffloadingDataLoader[Any]:
    address = f"tcp://localhost:{agents[0].endpoint.rpartition(':')[2]}/{EXPORT}"
    given = {"options": SOON, "policy": "all-off", **LOADER, **arguments}
    return OffloadingDataLoader(folder(root), agent=address, **given)


def test_a_name_with_several_addresses_and_one_more(root: Path, hosts: list[str], caplog: Any) -> None:
    """Two of the addresses are of one agent, and one leads nowhere."""
    with at_one_port(root, 3) as agents:
        hosts[:] = ["127.0.0.1", "::1", "127.0.0.2", "127.0.0.9"]
        loader = named(root, agents, num_workers=2, sampler=SAMPLER)
        try:
            with no_warning(caplog):
                epoch = Epoch(loader, root)
                epoch.until(lambda: min(map(epoch.sent, agents[:2])) > 20, "both are used", 15.0)
                assert epoch.sent(agents[2]) == 0 and "127.0.0.9" not in str(loader.report().as_dict())
                hosts[:] = ["127.0.0.3", "127.0.0.2"]
                epoch.until(lambda: epoch.sent(agents[2]) > 20, "the third has its share", 15.0)
                assert agents[0].endpoint in left(loader)
                hosts.clear()
                epoch.until(lambda: "'localhost' cannot be looked up" in str(loader.report().as_dict()), "it is said")
                before = epoch.sent(agents[1])
                epoch.until(lambda: epoch.sent(agents[1]) > before + 5, "those that were known go on")
            assert loader.report().as_dict()["fallbacks"] == 0
        finally:
            loader.close()


def test_a_name_with_one_address_is_one_agent_until_it_has_several(root: Path, hosts: list[str]) -> None:
    with at_one_port(root, 2) as agents:
        hosts[:] = ["127.0.0.1", "::1"]
        one = named(root, agents, policy="sophon")
        assert one._engine is not None and type(one._engine._contact) is Contact
        loader = named(root, agents, num_workers=1)
        plain = OffloadingDataLoader(folder(root), policy="no-off", **LOADER)
        try:
            assert samples_of(loader) == samples_of(plain)
            assert sent(loader) == [], "as with one address"
            hosts.append("127.0.0.2")
            assert loader._engine is not None
            loader._engine._who._look_at_s = 0.0

            def both() -> bool:
                assert samples_of(loader) == samples_of(plain)
                return len(sent(loader)) == 2 and min(sent(loader)) > 0

            until(both, "both are used from the next epoch on")
            assert loader.report().as_dict()["fallbacks"] == 0
        finally:
            loader.close()
            one.close()


def test_files_that_those_behind_a_name_have(root: Path, tmp_path: Path, hosts: list[str]) -> None:
    """Shards: the dataset is the union, and the loader asks all of them. An address that leads nowhere is no shard."""
    parts = [tmp_path / name for name in ("even", "odd")]
    for number, path in enumerate(sorted(root.rglob("*.*"))):
        copy = parts[number % 2] / path.relative_to(root)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    with agent_for(parts[0]) as one:
        port = one.endpoint.rpartition(":")[2]
        with agent_for(parts[1], "--bind", f"tcp://127.0.0.2:{port}") as other:
            one.ready(), other.ready()
            hosts.append("127.0.0.2")
            dataset = RemoteImageFolder(f"tcp://localhost:{port}/{EXPORT}", train_transform(), options=SOON)
            plain = OffloadingDataLoader(folder(root), policy="no-off", **LOADER)
            loader = OffloadingDataLoader(dataset, policy="all-off", num_workers=1, options=SOON, **LOADER)
            try:
                assert samples_of(loader) == samples_of(plain)
                assert min(sent(loader)) > 0 and len(sent(loader)) == 2
            finally:
                loader.close()
