"""Check the test bed, or clean up what a killed owner left behind.

python -m bench.bed --link-mbit 100 --json bed.json
python -m bench.bed --clean
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from bench import arguments, record
from bench.bed import clean_leftovers, open_testbed
from bench.bed.self_check import MESSAGE_NBYTES, Finding, judge, measure_quota, measure_stream

QUOTA_CORES = 0.5


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status: 0, or 1 when the bed is not as expected."""
    options = arguments.parsed(parser(), argv)
    if options.clean:
        removed = clean_leftovers()
        print("\n".join(f"removed {name}" for name in removed) or "nothing to remove")
        return 0
    with open_testbed(options.link_mbit or None) as bed:
        shaped = bed.shaped
        stream = measure_stream(bed, options.seconds)
        quota = measure_quota(bed.agent_host, QUOTA_CORES, options.seconds)
    found = judge(options.link_mbit if shaped else None, stream, quota)
    for one in found:
        print(line_of(one))
    settings = {"link_mbit": options.link_mbit, "shaped": shaped, "message_nbytes": MESSAGE_NBYTES}
    rows: dict[str, Any] = {"settings": settings, "stream": asdict(stream), "quota": asdict(quota)}
    record.write(options.output, rows)
    return int(any(one.holds is False for one in found))


def parser() -> arguments.Parser:
    """The command line."""
    parser = arguments.Parser("bench.bed", __doc__)
    parser.add_argument(
        "--link-mbit",
        type=arguments.rate,
        default=0.0,
        metavar="MBIT",
        help="Rate of the wire in Mbit/s; 0 for no limit (default: 0).",
    )
    parser.add_argument(
        "--seconds", type=arguments.above_zero, default=4.0, help="Seconds of each measurement (default: %(default)g)."
    )
    parser.add_argument("--clean", action="store_true", help="Remove beds whose owner is dead, and do nothing else.")
    return parser


def line_of(finding: Finding) -> str:
    """A line of the table."""
    verdict = {True: "ok", False: "NOT AS EXPECTED", None: ""}[finding.holds]
    return f"{finding.what:36} {finding.value:>12}   {finding.expected:14} {verdict}".rstrip()


if __name__ == "__main__":
    sys.exit(main())
