"""The command lines of benches: what they share, and the refusal of what cannot be measured.

A wrong argument ends a bench with status 2 before a test bed is built, a file made or a process started. The message
has the form "--name must be RULE, got VALUE; REMEDY".
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from bench.bed import MIN_QUOTA_CORES, TestBedUnavailable, check_privileges, why_no_quota
from bench.children import AGENT_CORE, LOADER_CORE
from bench.record import REPOSITORY, SHARED_DATA, Output, short_command
from sophon_loader.decide.policies import policy_named
from sophon_loader.errors import PlanError

DEFAULT_QUOTA_CORES = 1.0
USUAL_HELP = {
    "--rounds": "How often everything is measured; what is compared takes turns.",
    "--repeat": "How often an epoch goes through the pictures.",
    "--epochs": "How many epochs of each are measured, taking turns.",
    "--batch-size": "Samples per batch.",
    "--link-mbit": "Rate of the wire in Mbit/s; 0 for no limit.",
    "--agent-cores": "CPU quota of the agent's host, in cores (default: 1 where there are quotas).",
    "--workers": "Worker processes of the loader.",
    "--policies": "The policies that are compared.",
    "--parts": "The parts of this bench that are run.",
    "--only": "The parts of this bench that are run.",
    "--step-ms": "Length of the training step of a batch, in milliseconds.",
    "--prefetch": "Batches that a worker of the loader prepares ahead; torch's own default is 2.",
    "--mb": "Megabytes that a round sends.",
    "--models": "The networks whose training steps are imitated.",
    "--batch-sizes": "Samples per batch; each is measured.",
    "--round-trips-ms": "Round trips of the wire in milliseconds; each is measured.",
    "--trial-steps": "Steps of a window in which FastFlow tries something.",
    "--clients": "Loaders that share the agent.",
    "--seconds": "How long is measured, in seconds.",
    "--settle": "Seconds that a loader has to settle before it is measured.",
    "--jobs": "The training jobs that are measured.",
    "--seed": "Seed of what is drawn.",
    "--systems": "The loaders that are compared.",
    "--peers": "The other loaders that are measured too; none may be named.",
    "--peers-venv": "The environment in which the other loaders are installed.",
}
"""Help of options that mean the same in every bench that has them."""


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Keeps the lines of the description, and says the default of every option that has one, in one way."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        default, text = action.default, action.help or ""
        if not action.option_strings or default is None or default is False or "default:" in text:
            return text
        return text if default == argparse.SUPPRESS else f"{text.removesuffix('.')} (default: {_shown(default)})."


def _shown(default: object) -> str:
    """A default as it would be typed; a path of this checkout relative to it."""
    if isinstance(default, (list, tuple)):
        return " ".join(map(_shown, default)) or "none"
    if isinstance(default, Path) and default.is_relative_to(REPOSITORY):
        return str(default.relative_to(REPOSITORY))
    return (f"{default:g}" if isinstance(default, float) else str(default)).replace("%", "%%")


class Parser(argparse.ArgumentParser):
    """A command line with `--json` and `--summary`.

    Args:
        module: as in `python -m MODULE`.
        text: the module's docstring.
        pictures: whether it has `--data`, an ImageFolder tree, by default the shared imagenet pictures.

    Example:
        >>> Parser("bench.tail", "What it is worth.", pictures=True).parse_args([]).data is None
        True
    """

    def __init__(self, module: str, text: str | None, pictures: bool = False) -> None:
        super().__init__(prog=f"python -m {module}", description=text, formatter_class=HelpFormatter)
        self.module = module
        if pictures:
            what = "An ImageFolder tree (default: the shared imagenet pictures)."
            self.add_argument("--data", type=image_folder, metavar="PATH", help=what)
        self.add_argument("--json", type=Path, metavar="OUT", help="Write all that is measured to this file.")
        self.add_argument("--summary", type=Path, metavar="OUT", help="Write medians and spreads to this file.")

    def add_argument(self, *names: Any, **options: Any) -> argparse.Action:
        """Add an argument as argparse does, with the usual help of an option that has none."""
        return super().add_argument(*names, **{"help": USUAL_HELP.get(names[0] if names else ""), **options})

    def refuse(self, name: str, rule: str, value: object, remedy: str) -> NoReturn:
        """End with a message about an argument.

        Args:
            name: of the argument, with its dashes.
            rule: what it must be.
            value: what it is.
            remedy: what to do.
        """
        self.error(f"{name} must be {rule}, got {value}; {remedy}")


class Distinct(argparse.Action):
    """For arguments of several values: none of them twice."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option: str | None = None) -> None:
        if len(set(values)) < len(values):
            raise argparse.ArgumentError(self, f"must name each once, got {' '.join(map(str, values))}; leave one out")
        setattr(namespace, self.dest, values)


def parsed(parser: Parser, argv: Sequence[str] | None) -> argparse.Namespace:
    """The arguments, with the default of `--data` and with `output`, where the results go.

    Args:
        parser: of the bench.
        argv: the command line without the program; None for that of this process.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    options = parser.parse_args(given)
    if "data" in options and options.data is None:
        options.data = SHARED_DATA / "imagenet"
        if not options.data.is_dir():
            remedy = "no shared pictures are beside this checkout, give --data PATH"
            parser.refuse("--data", "an ImageFolder tree", "none", remedy)
    options.output = Output(options.json, options.summary, short_command(parser.module, given))
    return options


# --- what an argument may be ------------------------------------------------------------------------------------------


def image_folder(text: str) -> Path:
    """A folder with a folder of files per class."""
    folder = Path(text).resolve()
    if not folder.is_dir() or not any(path.is_file() for path in folder.glob("*/*")):
        raise argparse.ArgumentTypeError(
            f"must be an ImageFolder tree, got {text}; give the folder that holds a folder of pictures per class"
        )
    return folder


def count(least: int = 1) -> Callable[[str], int]:
    """A whole number of at least `least`."""

    def parse(text: str) -> int:
        if not text.lstrip("-").isdigit() or int(text) < least:
            raise argparse.ArgumentTypeError(
                f"must be a whole number of at least {least}, got {text}; leave it out for the default"
            )
        return int(text)

    return parse


def number(least: float, rule: str) -> Callable[[str], float]:
    """A finite number of at least `least`, which `rule` says in words."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value >= least):
            raise argparse.ArgumentTypeError(f"must be {rule}, got {text}; leave it out for the default")
        return value

    return parse


rate = number(0.0, "a rate in Mbit/s, or 0 for no limit")
above_zero = number(sys.float_info.min, "a number above 0")
not_negative = number(0.0, "a number of at least 0")
quota = number(MIN_QUOTA_CORES, f"a number of cores of at least {MIN_QUOTA_CORES}")


def policy(*others: str) -> Callable[[str], str]:
    """A policy's name, or one of `others`, loaders that are compared with them."""

    def parse(text: str) -> str:
        if text in others:
            return text
        try:
            return policy_named(text).name
        except PlanError as error:
            more = f"; or name {' or '.join(others)}" if others else "; name one of these"
            raise argparse.ArgumentTypeError(str(error).partition(";")[0].removeprefix("policy ") + more) from None

    return parse


# --- what a machine must have -----------------------------------------------------------------------------------------


def agent_quota(parser: Parser, asked: float | None) -> float | None:
    """The quota of the agent's host in cores: what was asked for, else one core, or none where there are no quotas.

    Args:
        parser: of the bench; it refuses a quota that cannot be set.
        asked: `--agent-cores`; None when it was left out.
    """
    reason = why_no_quota()
    if reason is None:
        return DEFAULT_QUOTA_CORES if asked is None else asked
    if asked is not None:
        parser.refuse("--agent-cores", "left out where there are no CPU quotas", f"{asked:g}", reason)
    print(f"the agent has no CPU quota: {reason}", file=sys.stderr)
    return None


def require_bed(parser: Parser, linked: bool = False) -> None:
    """Refuse a machine on which a bed could not do what the bench needs.

    Args:
        parser: of the bench.
        linked: whether hosts on the loopback interface will not do.
    """
    cores = os.sched_getaffinity(0)
    if not cores >= {LOADER_CORE, AGENT_CORE}:
        remedy = "run on a machine with at least two cores, and not under taskset"
        parser.refuse("this process", "allowed on CPUs 0 and 1", f"only {sorted(cores)}", remedy)
    if linked:
        try:
            check_privileges()
        except TestBedUnavailable as error:
            parser.refuse("this bench", "run where hosts can be linked", f"none here ({error.reason})", error.remedy)
        if reason := why_no_quota():
            parser.refuse("this bench", "run where hosts can have CPU quotas", "none here", reason)
