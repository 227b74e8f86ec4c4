"""Reading a sample's file on this host, when it does not come from the agent."""

from __future__ import annotations

import os

from sophon_loader.client.session import Terms
from sophon_loader.client.wanted import Wanted
from sophon_loader.datasets.locations import Locations
from sophon_loader.errors import AgentUnreachable


def read_here(wanted: Wanted, locations: Locations, terms: Terms | None) -> bytes:
    """The file of a sample.

    Args:
        wanted: the sample.
        locations: of the dataset's files.
        terms: agreed on with the agent that does not answer, or that need not be asked; None without an agent.

    Raises:
        AgentUnreachable: the agent does not answer, and the dataset's folder is not on this host.
        OSError: the folder is here, and the file cannot be read.
    """
    root = locations.root_here(wanted.source)
    path = locations.path_here(wanted.sample)
    if path is None or root is None or (terms is not None and not os.path.isdir(root)):
        silent_s = terms.options.dead_after_s if terms is not None else 0
        raise AgentUnreachable(
            f"agent {agent_name(terms)} must answer, got silence for {silent_s:g} s; sample {wanted.sample} "
            f"({wanted.key!r}) cannot be read on this host either (root {root}); restart the agent and continue from "
            "the last checkpoint"
        )
    with open(path, "rb") as file:
        return file.read()


def agent_name(terms: Terms | None) -> str:
    """What error texts call the agent."""
    return "None" if terms is None else str(terms.address)
