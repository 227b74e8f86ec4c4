"""Checks of agents: the reasons why one cannot be used, or its gain, each with the next step."""

from __future__ import annotations

import importlib
import itertools
import os
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch.utils.data import DataLoader, IterableDataset
from tqdm import tqdm

from sophon_loader.client.address import Address
from sophon_loader.client.connection import Connection
from sophon_loader.client.options import OffloadOptions
from sophon_loader.datasets.folders import what_is_there
from sophon_loader.errors import OffloadWarning, SampleMissing, SophonError
from sophon_loader.figures import counted, number, percent, size
from sophon_loader.host.system import cores_available
from sophon_loader.loader import OffloadingDataLoader
from sophon_loader.pipeline.software import software, unlike
from sophon_loader.pipeline.switches import ON_TENSORS, USUAL, remedy_for
from sophon_loader.pipeline.told import OPENERS, SETTINGS
from sophon_loader.routes.named import SCHEMES, has_name, is_of_several, parse_roster, roster_of
from sophon_loader.routes.roster import able, of_other_exports

_RELEASES = ("torch", "torchvision", "pillow")
_TO_DO = {
    "libjpeg": "install Pillow from the same wheel at both ends, which brings its libjpeg",
    "machine": "run the agent on a host whose CPU is of the same kind",
    "default dtype": "torch.set_default_dtype(torch.float32)",
    "default device": "torch.set_default_device('cpu'), and give the batches to the device",
    SETTINGS: "leave Pillow's own settings as they are in the training, or give no agent",
    OPENERS: "leave Pillow's own openers of formats as they are in the training",
}
"""Remedies for differences other than releases and switches of torch's, which `remedy_for` knows."""
_OF_OPS = frozenset({"torch", "torchvision", "default dtype", "default device", *ON_TENSORS})
"""Names of software that decide what torch computes. Parts of files, crops and resized pictures do not depend on it."""
_NO_OP_WORKERS = {
    "none": "pip install 'sophon_loader[torch]' on the agent's host, with the versions from here",
    "unused": "start the agent without --op-workers 0; `sophon-agent status` there says if that is not the reason",
}
"""Version of torch that an agent without op workers tells -> remedy."""
_RAISED = (Exception, SystemExit)
"""Exceptions of the user's code. A module that reads a command line of its own ends the program by the second."""
_LEAST = 1.05
"""Minimum factor in samples/s that an agent is worth."""


@dataclass(frozen=True)
class Finding:
    """Result of one check.

    Args:
        what: what was checked.
        said: result of the check.
        next: the user's next step; "" if all is well.
        stops: True if nothing more can be checked before that step.
    """

    what: str
    said: str
    next: str = ""
    stops: bool = False

    def __str__(self) -> str:
        mark = "ok  " if not self.next else "FAIL" if self.stops else "see "
        return f"{mark} {self.what}: {self.said}" + (f"\n     next: {self.next}" if self.next else "")


def examine(
    addresses: Sequence[str], dataset: str | None, options: OffloadOptions, seconds: float
) -> Iterator[Finding]:
    """Check agents, and their gain for a dataset; the first check that fails is the last.

    Args:
        addresses: of the agents, or one that names them, as `agent=` takes them.
        dataset: `module:function`, which makes it; None to check the agent alone.
        options: time-outs, and the key.
        seconds: duration of a measurement.
    """
    agents = itertools.chain.from_iterable(_of_agents(one, options) for one in addresses)
    for found in itertools.chain(agents, _of_dataset(addresses, dataset, options, seconds)):
        yield found
        if found.stops:
            return


def _of_agents(address: str, options: OffloadOptions) -> Iterator[Finding]:
    """Check each agent that an address names: one, those of a folder, or those behind a name."""
    if address == "local":
        todo = "give that to OffloadingDataLoader(agent=...) and print report(), or give the address of another agent"
        yield Finding("the address", "there is nothing to be reached: the loader starts that agent itself", todo, True)
        return
    is_roster = address.startswith(SCHEMES)
    try:
        named = (parse_roster(address) if is_roster else Address.parse(address)).with_key(options.key)
        roster = roster_of(named, wait_s=options.connect_timeout_s) if is_roster or has_name(named) else None
        members = [] if roster is None else list(roster.look())
    except SophonError as error:
        yield _failed("the address", error)
        return
    serving = able(members)
    if is_roster and not serving:
        if members:
            yield Finding("the roster", of_other_exports(members), f"correct the export in {address}", stops=True)
        else:
            said = roster.trouble if roster is not None and roster.trouble else "no agent is announced there"
            todo = "start agents with --announce FOLDER, or by `sophon-agent ray start`, see docs/several-agents.md"
            yield Finding("the roster", said, todo, stops=True)
        return
    if is_roster or is_of_several(serving):
        where = ", ".join(one.address.endpoint for one in serving[:8])
        yield Finding("the roster", f"names {counted(len(serving), 'agent')}: {where}")
        for one in serving:
            yield from _of_agent(replace(one.address, token=named.token, keyed_as=named.endpoint), options)
    else:
        yield from _of_agent(address, options)


def _of_agent(address: str | Address, options: OffloadOptions) -> Iterator[Finding]:
    try:
        where = address if isinstance(address, Address) else Address.parse(address).with_key(options.key)
    except SophonError as error:
        yield _failed("the address", error)
        return
    connection = Connection(where, 1, options)
    try:
        try:
            welcome = connection.greet(options.connect_timeout_s)
        except SophonError as error:
            yield _failed("the agent", error)
            return
        how = "encrypted, with a key" if where.token is not None else "without a key"
        yield Finding(
            "the agent",
            f"answers, {how}; it has {counted(welcome.cores, 'core')} and exports {', '.join(welcome.exports)}",
        )
        yield _libraries(unlike(welcome.software), welcome.software)
        if "roi-jpeg" not in welcome.encodings:
            told = f"`sophon-agent status {where.endpoint}` there says why, and what to install"
            yield Finding("crops in the file", "the agent cannot cut a JPEG to its crop", told)
        try:
            folders = connection.listing(10 * options.dead_after_s).folders
        except SampleMissing as error:
            told = what_is_there(where, options) or f"{error}"
            yield Finding("the folder", told, f"correct the folder in {where}", stops=True)
            return
        except SophonError:  # a list that is too long, say; a dataset's own files are looked for below
            return
        some = ", ".join(folders[:3]) + (", ..." if len(folders) > 3 else "")
        yield Finding("the folder", f"{where} has {counted(len(folders), 'folder')}{f': {some}' if some else ''}")
    finally:
        connection.close()


def _libraries(differ: Sequence[str], theirs: dict[str, str]) -> Finding:
    if not differ:
        return Finding("libraries", "what decides the value of a pixel is alike at both ends")
    ours = software()
    usual = {**USUAL, "default device": "cpu"}
    both = ", ".join(
        f"{name} {ours.get(name) or 'none'} here and {theirs.get(name, usual.get(name)) or 'none'} there"
        for name in differ
    )
    if theirs.get("torch") in _NO_OP_WORKERS and _OF_OPS.issuperset(differ):
        said = "the agent runs no ops of torch; it sends parts of files, crops and resized pictures"
        remedy = _NO_OP_WORKERS[theirs["torch"]]
        return Finding("libraries", said, f"none, unless ops behind these shall run there, too: {remedy}")
    few = "not all ops run at the agent" if _OF_OPS.issuperset(differ) else "no op runs at the agent, or few do"
    releases = [name for name in differ if name in _RELEASES]
    todo = [f"install the same {' and '.join(releases)} at both ends"] if releases else []
    todo += [_TO_DO.get(name) or remedy_for(name) for name in differ if name not in releases]
    return Finding("libraries", f"{few}: {both}", "; ".join(filter(None, todo)))


def _of_dataset(
    addresses: Sequence[str], name: str | None, options: OffloadOptions, seconds: float
) -> Iterator[Finding]:
    if name is None:
        yield Finding("your dataset", "not looked at", "name it: --dataset MODULE:FUNCTION, see --help")
        return
    try:
        dataset = _made(name)
        is_empty = not isinstance(dataset, IterableDataset) and hasattr(dataset, "__len__") and not len(dataset)
    except _RAISED as error:
        text, todo = f"{name} raises {type(error).__name__}: {error}", "see that `python -c` with that import and call"
        if isinstance(error, SystemExit):
            todo = 'read command lines only under `if __name__ == "__main__":`, and ' + todo
        yield Finding("your dataset", text, f"{todo} runs here", stops=True)
        return
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
        text = f"{name} returns a {type(dataset).__name__}, of which no single sample can be asked for"
        yield Finding("your dataset", text, "return a map-style dataset, see docs/datasets.md", stops=True)
        return
    if is_empty:
        text = f"{type(dataset).__name__} has no sample"
        yield Finding("your dataset", text, "see that the files lie where it looks for them", stops=True)
        return
    agent = addresses[0] if len(addresses) == 1 else list(addresses)
    workers = max(1, int(cores_available()))
    how: dict[str, Any] = {"batch_size": 32, "shuffle": True, "num_workers": workers, "drop_last": False}
    asked = replace(options, agent_missing="raise", verify=0.01)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", OffloadWarning)
        try:
            loader: Any = _begun(dataset, agent=agent, options=asked, how=how)
        except _RAISED as error:
            yield _failed("your dataset", error)
            return
    asking = loader._parts.asking
    plainly = loader._engine is None and asking is None
    if loader._engine is None:
        yield from _of_pictures(loader._parts.about_pictures)
    for text in dict.fromkeys(str(one.message) for one in warned if issubclass(one.category, OffloadWarning)):
        yield Finding("your dataset", *_parted(text), stops=plainly)
    report = loader.report()
    if plainly:
        yield Finding("your dataset", report.summary, "see docs/datasets.md", stops=True)
        return
    told = (
        f"{type(dataset).__name__} of {counted(len(dataset), 'sample')}; the agent has the files that were looked for"
    )
    yield Finding("your dataset", told)
    if asking is not None:
        yield Finding("samples", "its own code makes them, and the agent is asked for each picture")
        yield from _measured(loader, dataset, asked, agent, how, seconds)
        return
    stays = [note for note in report.notes if " at the loader: " in note or "runs at the agent" in note]
    for note in stays:
        if not any(note in str(one.message) for one in warned):
            yield Finding("transforms", *_parted(note))
    if not stays:
        yield Finding("transforms", "all of them can run at the agent")
    yield from _measured(loader, dataset, asked, agent, how, seconds)


def _begun(dataset: Any, agent: Any, options: OffloadOptions, how: dict[str, Any]) -> Any:
    """Return a loader that has given its first batch. Samples that cannot be collated stay apart, also later: `how` is
    changed then."""
    loader: Any = OffloadingDataLoader(dataset, agent=agent, options=options, **how)
    try:
        next(iter(loader))
    except (RuntimeError, TypeError) as error:
        if isinstance(error, SophonError):
            raise
        loader.close()
        loader = OffloadingDataLoader(dataset, agent=agent, options=options, **how, collate_fn=list)
        next(iter(loader))
        how["collate_fn"] = list
    return loader


def _measured(
    loader: Any, dataset: Any, asked: OffloadOptions, agent: Any, how: dict[str, Any], seconds: float
) -> Iterator[Finding]:
    try:
        yield from _worth(loader, dataset, asked, agent, how, seconds)
    except _RAISED as error:
        yield _failed("the measurement", error)
    finally:
        loader.close()


def _of_pictures(told: Sequence[str]) -> Iterator[Finding]:
    """Yield an unknown dataset's gain without an agent: notes of its loader's first batches."""
    for note in told:
        yield Finding("pictures of the first samples", *(_parted(note) if "; " in note else (note,)))


def _made(name: str) -> Any:
    module, separator, function = name.partition(":")
    if not separator or not function:
        raise ValueError("--dataset must be MODULE:FUNCTION")
    sys.path.insert(0, os.getcwd())
    return getattr(importlib.import_module(module), function)()


def _worth(
    loader: Any, dataset: Any, options: OffloadOptions, agent: Any, how: dict[str, Any], seconds: float
) -> Iterator[Finding]:
    """Measure the rates with and without the agent, in turns."""
    plain: Any
    engine = loader._engine or loader._parts.asking
    if all(source.root is not None for source in engine.data.sources):
        plain, name = DataLoader(dataset, **how), "torch's DataLoader over the mounted files"
    else:
        plain, name = (
            OffloadingDataLoader(dataset, agent=agent, policy="no-off", options=options, **how),
            "whole files",
        )
    rounds = 3
    found: dict[str, list[float]] = {"with": [], "without": []}
    moved, files = 0, 0
    with tqdm(total=2 * rounds, desc="measuring", leave=False, disable=None) as bar:
        for _ in range(rounds):
            for which, one in (("without", plain), ("with", loader)):
                found[which].append(_rate(one, seconds / (2 * rounds)))
                bar.update()
            totals = loader.report().totals
            moved, files = moved + totals.wire_bytes, files + totals.read_bytes
    with_s, without_s = sorted(found["with"])[rounds // 2], sorted(found["without"])[rounds // 2]
    ratio = with_s / without_s if without_s else 0.0
    saved = f"; {size(moved)} crossed for files of {size(files)} ({percent(moved / files)})" if files else ""
    text = f"{number(with_s)} samples/s with the agent, {number(without_s)} by {name}: {ratio:.2f} times{saved}"
    limits = loader.report().verdict
    if ratio >= _LEAST:
        yield Finding("what it brings", f"{text}. {limits}".rstrip())
    else:
        words = "an agent pays where the wire limits, or the loader's CPU"
        if isinstance(plain, DataLoader) and not isinstance(plain, OffloadingDataLoader):
            words += "; a set that fits this host's memory is read from there, and a larger one is not"
        yield Finding("what it brings", f"{text}. {limits}".rstrip(), words)


def _rate(loader: Any, seconds: float) -> float:
    """Return samples/s, from the first batch on."""
    samples, began_s, left = 0, 0.0, len(loader.dataset) - loader.batch_size
    for _ in loader:
        now_s = time.monotonic()
        if not began_s:
            began_s = now_s
            continue
        number = min(left, loader.batch_size)
        samples, left = samples + number, left - number
        if now_s - began_s >= seconds:
            break
    spent_s = time.monotonic() - began_s
    return samples / spent_s if samples and spent_s > 0 else 0.0


def _failed(what: str, error: BaseException) -> Finding:
    text = f"{error}" if isinstance(error, SophonError) else f"{type(error).__name__}: {error}"
    said, todo = _parted(text)
    return Finding(what, said, todo, stops=True)


def _parted(text: str) -> tuple[str, str]:
    """Split an error's text into what is wrong and the remedy, which follows its last semicolon."""
    said, _, todo = text.strip().rpartition("; ")
    return (said, todo.rstrip(".")) if said else (todo, "see docs/failures.md")
