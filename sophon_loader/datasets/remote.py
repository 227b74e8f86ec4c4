"""RemoteImageFolder: the ImageFolder of a host that does not mount the data."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from operator import index as as_int
from typing import Any

import numpy as np
from torchvision.datasets import VisionDataset

from sophon_loader.client.address import Address
from sophon_loader.client.connection import Connection
from sophon_loader.client.listed import Listed
from sophon_loader.client.options import OffloadOptions
from sophon_loader.datasets.folders import what_is_there
from sophon_loader.datasets.protocol import Source, Transform
from sophon_loader.datasets.targets import IntTargets
from sophon_loader.datasets.union import union_of_trees
from sophon_loader.errors import AgentUnreachable, ConfigError, SampleMissing, SophonError, may_come, warn_user
from sophon_loader.host.shared import SharedArray, SharedStrings
from sophon_loader.kinds.image.opening import naming
from sophon_loader.pipeline.chain import chain_of
from sophon_loader.pipeline.randomness import Draw
from sophon_loader.routes.named import SCHEMES, has_name, is_of_several, names_roster, parse_roster, roster_of
from sophon_loader.routes.roster import LOOK_S, Roster, able
from sophon_loader.routes.waiting import awaited

_AT_ONCE = 64
"""Maximum number of agents whose files are listed at the same time."""


class RemoteImages(VisionDataset):  # type: ignore[misc]
    """Base of the datasets whose files an agent lists and sends.

    Args:
        agent: its address, with a folder. For several agents, which have the files together: a list, a name, a folder
            in which agents announce themselves, or a Ray cluster.
        transform, target_transform: as for ImageFolder.
        options: time-outs, the key if the agent has keys, and how long to wait for an agent that is missing.

    Attributes:
        shared_keys: row -> path relative to the address's folder.
    """

    shared_keys: SharedStrings

    def __init__(
        self,
        agent: str | Sequence[str],
        transform: Transform | None,
        target_transform: Transform | None,
        options: OffloadOptions | None,
    ) -> None:
        texts = [agent] if isinstance(agent, str) else list(agent)
        super().__init__(texts[0] if texts else "", transform=transform, target_transform=target_transform)
        self.options = options or OffloadOptions()
        if not texts:
            raise ConfigError("agent must be an address or a list of them, got an empty list; give an address")
        parse = parse_roster if len(texts) == 1 and str(texts[0]).startswith(SCHEMES) else Address.parse
        self.addresses = tuple(parse(one).with_key(self.options.key) for one in texts)
        self.address = self.addresses[0]
        may_be_several = len(texts) == 1 and (names_roster(self.address) or has_name(self.address))
        self._named = self.address if may_be_several else None
        """The user's `agent`, if it may name several agents."""
        self._connections: tuple[int, dict[Address, Connection]] = 0, {}

    def listed(self, ask: Callable[[Connection, float], Listed]) -> list[Listed]:
        """Return the agents' lists, once the agents are there: each list that differs from those before it.

        If all other agents list the same, a missing one is their replica and is not waited for.

        Args:
            ask: (connection, time limit in seconds) -> list. A silent agent is given up earlier.

        Raises:
            SampleMissing: there is no such folder; the text names the folders of the export.
        """

        def attempt(addresses: Sequence[Address]) -> Listed | SophonError:
            for address in addresses:
                try:
                    return self._listed(ask, address)
                except SophonError as error:
                    if not may_come(error):
                        raise
                    last = error
            return last

        roster = None if self._named is None else roster_of(self._named, wait_s=LOOK_S)

        def listings() -> list[Listed]:
            agents = [(one,) for one in self.addresses] if roster is None else self._members(roster)
            with ThreadPoolExecutor(min(len(agents), _AT_ONCE)) as pool:
                answers = list(pool.map(attempt, agents))
            found: list[Listed] = []
            missing: dict[str, SophonError] = {}
            for (address, *_), answer in zip(agents, answers, strict=True):
                if isinstance(answer, SophonError):
                    missing[str(address)] = answer
                elif not any(map(answer.same, found)):
                    found.append(answer)
            if missing and len(found) != 1:
                raise next(reversed(missing.values()))
            if missing and (roster is None or names_roster(self.address)):  # a name has addresses that lead nowhere
                texts = "; ".join(f"{address}: {error}" for address, error in missing.items())
                warn_user(f"These agents list no files, and are taken for replicas of those that do: {texts}.")
            if roster is None:
                self.address = found[0].address
            else:
                self.addresses = tuple(one.address for one in answers if isinstance(one, Listed))
            return found

        return awaited(listings, ", ".join(map(str, self.addresses)), self.options)

    def _members(self, roster: Roster) -> list[tuple[Address, ...]]:
        """Return the addresses of each agent that a roster names now.

        Raises:
            AgentUnreachable: the roster names no agent that serves the export.
        """
        named = self._named
        assert named is not None, "there is a roster"
        members = able(roster.look())
        if not names_roster(named) and not is_of_several(members):
            return [(named,)]
        if not members:
            raise AgentUnreachable(roster.trouble or f"{named} must name an agent that serves its export, got others")
        found: dict[object, tuple[Address, ...]] = {}
        for one in members:
            address = replace(one.address, token=named.token, keyed_as=named.endpoint)
            found[one.instance or address] = (*found.get(one.instance or address, ()), address)
        return list(found.values())

    def _listed(self, ask: Callable[[Connection, float], Listed], address: Address) -> Listed:
        connection = Connection(address, 1, self.options)
        try:
            connection.greet(self.options.connect_timeout_s)
            return ask(connection, 10 * self.options.dead_after_s)
        except SampleMissing as error:
            told = what_is_there(address, self.options)
            raise SampleMissing(
                f"agent must name a folder that the export has, got {address}: {told or error}"
            ) from None
        finally:
            connection.close()

    def __len__(self) -> int:
        return len(self.shared_keys)

    @property
    def label(self) -> Callable[[int], Any]:
        """Row -> label, before `target_transform`."""
        raise NotImplementedError

    @property
    def source(self) -> Source:
        """The folder, keys and labels that can be offloaded."""
        if names_roster(self.address):
            return Source(None, self.shared_keys, self.label, self.addresses[0], roster=self.address)
        several = self.addresses if len(self.addresses) > 1 and self._named is None else ()
        return Source(None, self.shared_keys, self.label, self.address, replicas=several)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        """Fetch the sample's file from the agent and run the transforms here."""
        index = as_int(index)
        if not -len(self) <= index < len(self):
            raise IndexError(f"index must be below {len(self)}, got {index}")
        index %= len(self)
        key = self.shared_keys[index]
        data = self._file(key)
        # The transform draws from the caller's generators, as in any torchvision dataset.
        with naming(key):
            image = chain_of(None).run(data, 0, 1, Draw(0, 0, index))
        target = self.label(index)
        return (
            image if self.transform is None else self.transform(image),
            target if self.target_transform is None else self.target_transform(target),
        )

    def _file(self, key: str) -> bytes:
        """Return a file from the first agent that has it; agents that joined the roster since are asked last."""
        failed: SophonError | None = None
        for address in itertools.chain(self.addresses, self._come_since()):
            try:
                return self._own_connection(address).file(address.key(key), self.options.dead_after_s)
            except SophonError as error:
                if not (may_come(error) or isinstance(error, SampleMissing)):
                    raise
                failed = error
        assert failed is not None, "there is an agent"
        raise failed

    def _come_since(self) -> Iterator[Address]:
        """Yield agents that a roster names now, but did not when the files were listed."""
        if self._named is not None:
            known, roster = set(self.addresses), roster_of(self._named, wait_s=LOOK_S)
            with contextlib.suppress(AgentUnreachable):
                come = [one for addresses in self._members(roster) for one in addresses if one not in known]
                self.addresses = (*come, *self.addresses)
                yield from come

    def _own_connection(self, address: Address) -> Connection:
        if self._connections[0] != os.getpid():
            self._connections = os.getpid(), {}
        connections = self._connections[1]
        if address not in connections:
            connections[address] = Connection(address, 1, self.options)
        return connections[address]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_connections": (0, {})}


class RemoteImageFolder(RemoteImages):
    """torchvision's ImageFolder for a host that does not mount the data: the agent lists and sends the files.

    Args:
        agent: `tcp://host:port/export[/folder]`, a folder with one subfolder per class. For several agents: a list of
            such addresses, a name that resolves to several, or `file:///FOLDER/export[/folder]` of agents that announce
            themselves. The dataset is then the union of the files that they have now, and a loader uses all of the
            agents.
        transform, target_transform: as for ImageFolder.
        options: time-outs, the key if the agent has keys, and how long to wait for an agent that is missing.

    Example:
        address = "tcp://fileserver:5555/imagenet/train"
        dataset = RemoteImageFolder(address, transform)
        loader = OffloadingDataLoader(dataset, batch_size=256, shuffle=True, agent=address)

    It has ImageFolder's `classes`, `class_to_idx`, `samples`, `targets` and `imgs`, in the same order; the paths in
    `samples` start with the agent's address. `dataset[i]` fetches one file, and works without OffloadingDataLoader.

    Raises:
        ConfigError: the address is malformed.
        AgentUnreachable, UnknownExport, SampleMissing: the agent does not list the files.
        FileNotFoundError: no classes, or a class without images (as ImageFolder).
    """

    def __init__(
        self,
        agent: str | Sequence[str],
        transform: Transform | None = None,
        target_transform: Transform | None = None,
        *,
        options: OffloadOptions | None = None,
    ) -> None:
        super().__init__(agent, transform, target_transform, options)
        tree = union_of_trees([one.tree() for one in self.listed(Connection.listing)])
        if not tree:
            raise FileNotFoundError(f"Couldn't find any class folder in {self.address}.")
        if empty := [name for name, files in tree if not files]:
            raise FileNotFoundError(f"Found no valid file for the classes {', '.join(empty)} in {self.address}.")
        self.classes = [name for name, _ in tree]
        self.class_to_idx = {name: position for position, name in enumerate(self.classes)}
        counts = [len(names) for _, names in tree]
        self.shared_keys = SharedStrings([f"{name}/{file}" for name, files in tree for file in files])
        self.shared_targets = SharedArray(np.repeat(np.arange(len(counts), dtype=np.int64), counts))

    @property
    def label(self) -> Callable[[int], int]:
        """Row -> class index."""
        return IntTargets(self.shared_targets)

    @property
    def targets(self) -> list[int]:
        """The class index of every sample."""
        targets: list[int] = self.shared_targets.array.tolist()
        return targets

    @property
    def samples(self) -> list[tuple[str, int]]:
        """(address of the file, class index) of every sample; a new list at each access."""
        return [(f"{self.address}/{self.shared_keys[i]}", t) for i, t in enumerate(self.targets)]

    @property
    def imgs(self) -> list[tuple[str, int]]:
        """ImageFolder's other name for `samples`."""
        return self.samples
