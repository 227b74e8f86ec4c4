"""The agreement with an agent before the first epoch: handshake, pipelines, and a look at a few files."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from sophon_loader.client.address import Address
from sophon_loader.client.connection import Connection
from sophon_loader.client.options import OffloadOptions
from sophon_loader.client.session import Terms
from sophon_loader.datasets.locations import Locations
from sophon_loader.datasets.protocol import Offloadable
from sophon_loader.encodings.catalogue import encoding_names, usable
from sophon_loader.encodings.estimate import UsedAt
from sophon_loader.encodings.registry import used_at
from sophon_loader.fleet.looked_for import PROBED_OF_SEVERAL, check_files, look_for
from sophon_loader.fleet.shared_route import Agreed
from sophon_loader.host.system import now_s
from sophon_loader.pipeline.chain import Chain
from sophon_loader.pipeline.randomness import Seed
from sophon_loader.pipeline.registration import registration_of
from sophon_loader.pipeline.software import DECODERS, PIXELS, not_of_switches, software, unlike
from sophon_loader.pipeline.switches import USUAL, remedy_for
from sophon_loader.pipeline.told import notes_on_openers
from sophon_loader.wire.messages import FetchPrograms, Welcome

_OR_OTHER_TORCH = (
    ", or its workers have another type of CPU, or their maths libraries choose other instructions (MKL_CBWR, "
    "ONEDNN_MAX_CPU_ISA), or they set torch otherwise"
)
_SAY_WHERE = ", or say by OffloadOptions(roots=...) which folder on this host is which of the export's"
NOT_ASKED = -1
"""Stands in `Terms.known` for a pipeline that the agent is not told of."""
BUILD_S = 60.0
"""Building ops for the first time takes the agent's workers as long as importing torchvision does."""


@dataclass(frozen=True)
class Agreement:
    """What came of the handshake.

    Args:
        terms: for the workers.
        locations: where the files lie, in the export and here.
        reach: per source, the last stage that the agent reaches.
        agent_cores: cores that its workers may use.
        encodings: that may be used, see `encodings.catalogue.usable`.
        notes: what a user should know.
        agent: which agent this is, in a profile's file: its address, or "local" for the loader's own, which listens on
            another port every time.
    """

    terms: Terms
    locations: Locations
    reach: tuple[int, ...]
    agent_cores: float
    encodings: tuple[str, ...]
    notes: tuple[str, ...]
    agent: str

    @property
    def agreed(self) -> Agreed:
        """What the workers need of it."""
        return Agreed(self.terms, self.reach, self.locations.place)


def proposed(
    chains: Sequence[Chain], address: Address, options: OffloadOptions, seed: Seed, *, by_programs: bool = False
) -> Terms:
    """What the loader brings into an agreement: terms without an instance and encodings.

    Args:
        chains: one per source of the dataset.
        address: of the agent.
        options: time-outs and limits.
        seed: of the run.
        by_programs: True for a dataset of any class, see `datasets.opened_files`: no pipeline is registered. Its first
            source is asked for without the metadata of pictures, the second with it.
    """
    if by_programs:
        keep_info = tuple(number > 0 for number, _ in enumerate(chains))
        return Terms(address, options, "", tuple(b"" for _ in chains), keep_info, seed, ())
    registrations = tuple(registration_of(chain, software()) for chain in chains)
    keep_info = tuple(chain.keeps_info for chain in chains)
    return Terms(address, options, "", registrations, keep_info, seed, ())


class Handshake:
    """Greets an agent, sees that it serves this dataset, and has it build the pipelines.

    An agent answers at once but for the last, which waits until its workers have started. Nothing waits here but for
    the few files to look at, and at most `dead_after_s` for these.

    Args:
        data: the dataset.
        chains: one per source of the dataset, at least one.
        address: of the agent.
        options: time-outs.
        seed: of the run.
        allowed: names of the encodings that the user allows.
        is_one_of_several: whether others may have files that it lacks.

    Example:
        >>> handshake = Handshake(data, chains, address, options, seed, allowed)
        >>> while (agreement := handshake.agreement(wait_s=0.1)) is None:
        ...     print("its workers still start")
        >>> handshake.close()
    """

    def __init__(
        self,
        data: Offloadable,
        chains: Sequence[Chain],
        address: Address,
        options: OffloadOptions,
        seed: Seed,
        allowed: Collection[str],
        *,
        is_one_of_several: bool = False,
    ) -> None:
        self._data = data
        self._is_one_of_several = is_one_of_several
        self._chains = chains
        self._allowed = allowed
        self._terms = proposed(chains, address, options, seed, by_programs=data.by_programs)
        self._welcome: Welcome | None = None
        self._known: list[int] = []
        """Per source, how many ops of its pipeline the agent knows, as far as it has built them."""
        self._connection = Connection(address, 1, options)
        self._give(options.connect_timeout_s)
        self._connection.begin_to_greet()

    def _give(self, seconds: float) -> None:
        """Wait for so long from now on."""
        self._timeout_s, self._end_s = seconds, now_s() + seconds

    def _look(self, welcome: Welcome) -> None:
        """See what an agent that has greeted offers, and whether it has the dataset's files."""
        address, options = self._terms.address, self._terms.options
        self._differ = unlike(welcome.software)
        others = not_of_switches(self._differ)
        draws_alike = DECODERS.issuperset(others)
        self._takes_programs = welcome.version >= FetchPrograms.VERSION
        # What the agent cuts out of a file depends on random numbers that it draws itself, unless a program has them.
        self._cuts = draws_alike or self._takes_programs
        possible = [name for name in self._allowed if self._cuts or used_at(name) is not UsedAt.FIRST_REGION]
        offered = usable(possible, welcome.encodings)
        agreed = replace(options, window=min(options.window, welcome.max_outstanding))
        self._terms = terms = replace(self._terms, options=agreed, instance=welcome.instance, allowed=offered)
        self._locations, looked_for = look_for(self._connection, self._data, address, options)
        several = self._is_one_of_several
        if given := self._data.given_roots:
            looked_for = looked_for.below_given_roots(given, terms, is_one_of_several=several)
        elif several:
            if not looked_for.any_there:
                many = look_for(self._connection, self._data, address, options, PROBED_OF_SEVERAL)
                self._locations, looked_for = many
            looked_for = looked_for.of_those_there(terms, _SAY_WHERE if self._data.by_programs else "")
        elif self._data.by_programs and looked_for.some_the_same:
            looked_for = looked_for.of_those_there(terms)  # others may be of another folder
        check_files(looked_for, terms, self._connection)
        self._give(options.connect_timeout_s + BUILD_S)
        if draws_alike and not self._data.by_programs:
            self._connection.begin_to_register(terms.registrations[0])
        else:
            self._known = [NOT_ASKED for _ in self._chains]

    def agreement(self, wait_s: float) -> Agreement | None:
        """What came of it; None if the agent has not greeted and built the pipelines within `wait_s`.

        Raises:
            AgentUnreachable: it has not done so in all the time that it may take.
            SophonError: it cannot serve this dataset.
        """
        if self._welcome is None:
            welcome = self._connection.greeted(wait_s)
            if welcome is None:
                self._see_the_time()
                return None
            self._look(welcome)
            self._welcome = welcome
        while len(self._known) < len(self._chains):
            ops = self._connection.registered(wait_s)
            if ops is None:
                self._see_the_time()
                return None
            # Of equal software no op is known only where an agent has just found that it runs none.
            self._known.append(ops if ops or not_of_switches(self._differ) else NOT_ASKED)
            if others := self._terms.registrations[len(self._known) :]:
                self._connection.begin_to_register(others[0])
        return self._agreement(self._welcome)

    def _see_the_time(self) -> None:
        if now_s() >= self._end_s:
            raise self._connection.silent(self._timeout_s)

    def _agreement(self, welcome: Welcome) -> Agreement:
        terms, known = self._terms, tuple(self._known)
        if self._data.by_programs:
            return self._agreement_on_files(welcome)
        by_program = [0 for _ in self._chains]
        if self._takes_programs and PIXELS.isdisjoint(self._differ):
            by_program = [chain.shrinks_until for chain in self._chains]
        if others := not_of_switches(self._differ):
            notes = _notes_on_software(welcome, others, by_program)
        elif self._differ:  # an agent of an earlier release compares no switches
            known = tuple(min(ops, chain.pillow_stages) for ops, chain in zip(known, self._chains, strict=True))
            notes = _notes_on_switches(welcome, self._differ, self._chains, known)
        else:
            notes = _notes_on_ops(self._chains, known, terms.address)
        notes += notes_on_openers()
        if "roi-jpeg" in self._allowed:
            notes += _notes_on_encodings(welcome, terms.address, self._cuts)
        reach = tuple(map(max, known, by_program))
        further = any(ops < program for ops, program in zip(known, by_program, strict=True))
        terms = replace(terms, known=known, by_programs=self._takes_programs and further)
        return Agreement(terms, self._locations, reach, welcome.cores, terms.allowed, tuple(notes), str(terms.address))

    def _agreement_on_files(self, welcome: Welcome) -> Agreement:
        """As `_agreement`, for a dataset of any class."""
        takes, alike = self._takes_programs, PIXELS.isdisjoint(self._differ)
        notes = notes_on_openers()
        if not takes:
            notes.append("the agent is of an earlier release and sends files alone; install this one there")
        elif not alike:
            notes.append(
                "the agent sends files and parts of files, because its Pillow makes other pixels than this one"
            )
        terms = replace(
            self._terms,
            known=tuple(NOT_ASKED for _ in self._chains),
            by_programs=takes,
        )
        reach = tuple(int(takes) for _ in self._chains)
        address = str(terms.address)
        return Agreement(terms, self._locations, reach, welcome.cores, terms.allowed, tuple(notes), address)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def _notes_on_software(welcome: Welcome, differ: Sequence[str], by_program: Sequence[int]) -> list[str]:
    here, there = software(), welcome.software
    both = ", ".join(f"{name} {here[name] or 'none'} here and {there.get(name) or 'none'} there" for name in differ)
    if any(by_program):
        return [
            "the agent runs no op behind the last crop or resize, because its random numbers could differ "
            f"({both}); those before it get theirs from here"
        ]
    return [f"no op runs at the agent, because its pixels could differ ({both}); make the two hosts alike in that"]


def _notes_on_switches(
    welcome: Welcome, differ: Sequence[str], chains: Sequence[Chain], known: Sequence[int]
) -> list[str]:
    if all(ops == chain.describable for ops, chain in zip(known, chains, strict=True)):
        return []
    here = software()
    each = [
        f"{name} is {here[name]} here and {welcome.software.get(name, USUAL.get(name))} there (remedy: "
        f"{remedy_for(name)})"
        for name in differ
    ]
    return [f"no op of torch runs at the agent, because its numbers could differ: {', '.join(each)}"]


def _notes_on_ops(chains: Sequence[Chain], known: Sequence[int], address: Address) -> list[str]:
    if NOT_ASKED in known:
        return [f"the agent runs no named ops; `sophon-agent status {address.endpoint}` says why"]
    return [
        f"the agent knows only the first {ops} ops of the pipeline; {chain.ops[ops].label} is not registered there"
        + (_OR_OTHER_TORCH if ops == chain.pillow_stages else "")
        + "; start the agent with --ops and the module that registers it"
        for ops, chain in zip(known, chains, strict=True)
        if ops < chain.describable
    ]


def _notes_on_encodings(welcome: Welcome, address: Address, cuts: bool) -> list[str]:
    if "roi-jpeg" not in encoding_names():
        return []  # the loader's own note says so
    if "roi-jpeg" not in welcome.encodings:
        return [f"the agent does not offer roi-jpeg; `sophon-agent status {address.endpoint}` says why"]
    return [] if cuts else ["roi-jpeg is not used, because the agent's random numbers could differ too"]


def own_addresses(data: Offloadable) -> list[Address]:
    """The exports that a RemoteImageFolder or RemoteFiles names itself: one per agent.

    With the folder where there is but one such dataset, since agents may have it at unlike places. Where a folder names
    the agents, that.
    """
    remote = [source for source in data.sources if source.address is not None]
    if remote and (roster := remote[0].roster) is not None and remote[0].address is not None:
        inner = remote[0].address.folder if len(remote) > 1 else ""
        return [replace(roster, endpoint=roster.endpoint.removesuffix(f"/{inner}"))]
    named = [source.replicas or (source.address,) for source in remote if source.address is not None]
    if len(named) == 1 and len(named[0]) > 1:
        return list(named[0])
    return [replace(one, folder="") for one in named[0]] if named else []
