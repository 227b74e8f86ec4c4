"""`sophon-doctor`: why an agent cannot be used, or what it would bring. Arguments are read before torch is imported."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from sophon_loader import __version__
from sophon_loader.host.installed import torch_wanted
from sophon_loader.host.unread import quiet_when_unread

_EXAMPLE = """examples:
  sophon-doctor tcp://fileserver:5555/imagenet/train
  sophon-doctor tcp://fileserver:5555/imagenet/train --dataset train:make_dataset --seconds 60

`--dataset MODULE:FUNCTION` names a function without arguments that returns the dataset of your training, with its
transforms; the module is looked for in the working directory, too."""


@quiet_when_unread
def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of `sophon-doctor`; returns the exit status: 1 if something keeps the agent from being used."""
    parser = _parser()
    parsed = parser.parse_args(arguments)
    if not parsed.seconds > 0:
        parser.error(f"--seconds must be above 0, got {parsed.seconds:g}")
    if wanted := torch_wanted(parser.prog):
        print(wanted, file=sys.stderr)
        return 1

    from sophon_loader.client.options import OffloadOptions
    from sophon_loader.doctor.examination import examine

    bad = False
    for found in examine(parsed.address, parsed.dataset, OffloadOptions(key=parsed.key), parsed.seconds):
        print(found, flush=True)
        bad |= found.stops
    return int(bad)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "sophon-doctor",
        description="See whether an agent can be reached and used, and what it would bring; each with what to do next.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "address", nargs="+", help="of the agent, with the export, as given to agent=; of several agents each"
    )
    parser.add_argument("--dataset", metavar="MODULE:FUNCTION", help="what makes the dataset of your training")
    parser.add_argument("--key", help="as OffloadOptions(key=...)")
    parser.add_argument("--seconds", type=float, default=60.0, help="to measure for (default: %(default)g)")
    parser.add_argument("--version", action="version", version=__version__)
    return parser
