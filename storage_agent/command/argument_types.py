"""Parts of the command lines of `sophon-agent`: commands, checked values, and options of several commands."""

from __future__ import annotations

import argparse
import re

from sophon_loader.wire.entry import host_and_port


def new_command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, short: str, text: str, more: str
) -> argparse.ArgumentParser:
    """Add a command and return its parser.

    Args:
        commands: the list to add it to.
        name: its name.
        short: its line in the list.
        text: its description.
        more: end of its help.
    """
    formatter = argparse.RawDescriptionHelpFormatter
    return commands.add_parser(name, help=short, description=text, epilog=more, formatter_class=formatter)


def add_export(group: argparse._ActionsContainer) -> None:
    group.add_argument(
        "--export",
        action="append",
        required=True,
        type=export,
        metavar="NAME=FOLDER",
        help="A folder to serve, and the name by which loaders ask for it; or archives: tar:///data/x.tar, "
        "zip:///data/x.zip, parquet:///data/x.parquet, also with {000..099} and *; or an MDS or Lance set: "
        "mds:///data/set, lance:///data/x.lance; or a bucket: s3://bucket/prefix, gs://, az://. "
        "Repeat it to serve several.",
    )


def export(text: str) -> tuple[str, str]:
    """Parse `NAME=FOLDER`."""
    name, separator, location = text.partition("=")
    if not separator:
        raise argparse.ArgumentTypeError(f"must be NAME=FOLDER, such as imagenet=/data/imagenet, got {text!r}")
    return name, location


def resource(text: str) -> str:
    """Check the name of a resource of Ray."""
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,100}", text):
        raise argparse.ArgumentTypeError(f"must be letters, digits, `_`, `.` and `-`, got {text!r}")
    return text


def count(text: str) -> int:
    """Parse a number of agents, from 1 to 1000."""
    if not text.isdecimal() or not 0 < int(text) <= 1000:
        raise argparse.ArgumentTypeError(f"must be a number from 1 to 1000, got {text!r}")
    return int(text)


def ports(text: str) -> tuple[int, int]:
    """Parse `FIRST-LAST`, or one port."""
    first, separator, last = text.partition("-")
    found = [int(one) for one in (first, last if separator else first) if re.fullmatch(r"[0-9]{1,5}", one)]
    if len(found) != 2 or not 0 < found[0] <= found[1] < 1 << 16:
        raise argparse.ArgumentTypeError(f"must be FIRST-LAST, such as 5555-5655, from 1 to 65535, got {text!r}")
    return found[0], found[1]


def place(text: str) -> tuple[str, int]:
    """Parse `[HOST:]PORT`."""
    found = host_and_port(f"127.0.0.1:{text}" if text.isdecimal() else text)
    if found is None or found[1] is None:
        raise argparse.ArgumentTypeError(f"must be PORT or HOST:PORT, such as 9401 or 0.0.0.0:9401, got {text!r}")
    return found[0], found[1]


def seconds(text: str) -> float:
    """Parse a number of seconds."""
    value = _number(text)
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"must be a number of seconds above 0 and below a million, got {text!r}")
    return value


def share(text: str) -> float:
    """Parse a share, above 0 and up to 1."""
    value = _number(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"must be a share above 0 and up to 1, such as 0.5, got {text!r}")
    return value


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number, got {text!r}") from None
