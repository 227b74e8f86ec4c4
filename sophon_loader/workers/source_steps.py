"""What is done to the samples of one source at the loader."""

from __future__ import annotations

from dataclasses import dataclass

from sophon_loader.datasets.protocol import Transform
from sophon_loader.pipeline.chain import Chain


@dataclass(frozen=True)
class Steps:
    """The pipeline of one source, as loader workers run it.

    Args:
        chain: what becomes of a file.
        reach: the last stage of `chain` that the agent can reach; 0 without an agent.
        target_transform: what becomes of a label; None for nothing.
        target_position: position in the user's whole pipeline whose random numbers `target_transform` draws: right
            behind the last op, also where the last ops run elsewhere.
    """

    chain: Chain
    reach: int
    target_transform: Transform | None
    target_position: int
