"""Two hosts on one Linux machine, joined by a link of a known rate, each with a share of the CPU.

    with open_testbed(link_mbit=100) as bed:
        agent = bed.agent_host.popen(["sophon-agent", "serve", ...], quota_cores=1.0)
        address = f"tcp://{bed.agent_host.address}:5555"
        epoch = bed.loader_host.popen([sys.executable, "-m", "some_epoch", address])

The link is a veth pair whose agent end is shaped by a token bucket (tbf); requests, the other way, are not shaped. CPU
quotas and CPU times come from one control group (v1 or v2) per host. Nothing reaches a network outside of the machine.

It does not lose or reorder packets (that is netem, which many kernels lack), nor limit memory. Delay comes from a relay
on a host (`relay.py`), and only for the connections that go through it. `spoilt.py` has one that loses, doubles,
reorders and damages messages, and `disks.py` a disk of the agent's that can be slowed.

    python -m bench.bed --link-mbit 100 [--json OUT]   measure the bed itself
    python -m bench.bed --clean                        remove what a killed owner left behind

Everything a bed makes carries its owner's process id and start time in its name. That makes clean-up a function of the
name alone, which is why it also works half-way through set-up and from another process.
"""

from __future__ import annotations

import shlex
import sys

from bench.bed.cgroups import MIN_QUOTA_CORES
from bench.bed.hosts import INTERFACE, Host
from bench.bed.links import LinkedHosts, LoopbackHosts, check_privileges
from bench.bed.names import clean_leftovers, why_no_quota
from bench.bed.unavailable import TestBedUnavailable

Bed = LinkedHosts | LoopbackHosts

__all__ = [
    "INTERFACE",
    "MIN_QUOTA_CORES",
    "Bed",
    "Host",
    "LinkedHosts",
    "LoopbackHosts",
    "TestBedUnavailable",
    "check_privileges",
    "clean_leftovers",
    "open_testbed",
    "why_no_quota",
]


def open_testbed(link_mbit: float | None = 100.0) -> Bed:
    """Open linked hosts or, where they cannot be made, loopback hosts; a line on stderr says why.

    Pass `bed.agent_arguments` to the agent in either case, and count payload instead of wire bytes when `bed.shaped` is
    false or `Host.interface_bytes` returns None.

    Args:
        link_mbit: rate of the link in Mbit/s; None for no limit.

    Returns:
        An open bed, to be used in a `with` statement.
    """
    try:
        return LinkedHosts(link_mbit).open()
    except TestBedUnavailable as error:
        bed = LoopbackHosts(link_mbit)
        advice = "no limit was asked for"
        if bed.agent_arguments:
            advice = f"pass {shlex.join(bed.agent_arguments)} to the agent"
        print(f"test bed: loopback, link not shaped ({advice}): {error}", file=sys.stderr)
        return bed.open()
