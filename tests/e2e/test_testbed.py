"""The test bed on the real kernel: its link, its quotas, and that nothing of it stays behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bench.bed import Host, LinkedHosts, LoopbackHosts, TestBedUnavailable, clean_leftovers, links, open_testbed
from bench.bed import processes as stopping
from bench.bed.cgroups import ControlGroup
from bench.bed.disks import Disk, why_no_disk
from bench.bed.names import DISK_GROUPS, namespaces, remove_bed, start_ticks, why_no_quota
from bench.bed.processes import STOP_SIGNALS
from bench.bed.self_check import measure_quota, measure_stream
from bench.children import LOADER_CORE, ChildFailed, Orders, alone, child, started
from bench.record import REPOSITORY

pytestmark = pytest.mark.bed

DEADLINE_S = 20.0
STAY = [sys.executable, "-c", "print('up', flush=True); import signal; signal.pause()"]
IGNORE_SIGTERM = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "

# Opens a bed, starts a program with a child of its own, tells their pids, and waits for a signal.
OWNER = f"""
import json, signal, subprocess, sys
from bench.bed import LinkedHosts
with LinkedHosts(100) as bed:
    stay = {STAY!r}
    twice = "import subprocess, sys; subprocess.Popen(sys.argv[1:]); " + stay[-1]
    child = bed.agent_host.popen([sys.executable, "-c", twice, *stay], stdout=subprocess.PIPE)
    child.stdout.readline(), child.stdout.readline()
    print(json.dumps([bed.name, sorted(bed.agent_host.group.pids())]), flush=True)
    signal.pause()
"""


def _traces(name: str) -> list[str]:
    """Namespaces and control group directories that carry the name of a bed."""
    groups = [path for root in Path("/sys/fs/cgroup").glob("*") for path in root.glob(f"{name}*")]
    found = [line for line in namespaces() if line.startswith(name)]
    return [*found, *map(str, groups), *map(str, Path("/sys/fs/cgroup").glob(f"{name}*"))]


def _disk_traces() -> list[str]:
    """Loop devices, control groups and folders of disks."""
    devices = subprocess.run(["losetup", "--list", "--output", "BACK-FILE"], capture_output=True, text=True, check=True)
    groups = [str(path) for path in DISK_GROUPS.glob("sophonbed-*")]
    folders = [str(path) for path in Path(tempfile.gettempdir()).glob("sophonbed-*")]
    return [*(line for line in devices.stdout.splitlines() if "sophonbed-" in line), *groups, *folders]


def _is_running(pid: int) -> bool:
    return start_ticks(pid) is not None


def _wait_until_ended(pid: int) -> None:
    """Wait for a process that is not a child of this one."""
    deadline = time.monotonic() + DEADLINE_S
    while _is_running(pid):
        assert time.monotonic() < deadline, f"process {pid} did not end"
        os.sched_yield()


@pytest.fixture(scope="module")
def linked() -> None:
    """Skips the test where linked hosts cannot be made."""
    try:
        with LinkedHosts(100):
            pass
    except TestBedUnavailable as error:
        pytest.skip(f"no linked hosts: {error}")


@pytest.fixture(scope="module")
def bed(linked: None) -> Iterator[LinkedHosts]:
    """Linked hosts that the tests of this file share."""
    with LinkedHosts(100) as bed:
        yield bed


def _output(host: Host, argv: list[str], **kwargs: Any) -> str:
    with host.popen(argv, stdout=subprocess.PIPE, text=True, **kwargs) as child:
        output: str = child.communicate(timeout=DEADLINE_S)[0]
    assert child.returncode == 0
    return output


# --- link ---


def test_a_stream_gets_the_links_rate_and_the_counters_see_all_of_it(bed: LinkedHosts) -> None:
    received_before = bed.loader_host.interface_bytes()
    stream = measure_stream(bed, seconds=1.0)
    received_after = bed.loader_host.interface_bytes()

    assert stream.payload_mbit == pytest.approx(95.6, rel=0.03)
    assert stream.interface_nbytes is not None and stream.link_nbytes is not None
    assert stream.payload_nbytes <= stream.interface_nbytes <= stream.link_nbytes
    assert stream.link_nbytes < 1.06 * stream.payload_nbytes
    assert received_before is not None and received_after is not None
    assert received_after.received - received_before.received >= stream.payload_nbytes


def test_the_rate_can_be_changed_and_lifted_while_the_bed_is_open(bed: LinkedHosts) -> None:
    try:
        bed.set_rate(200)
        assert measure_stream(bed, seconds=0.5).payload_mbit == pytest.approx(191, rel=0.05)
        bed.set_rate(None)
        bed.set_rate(None)
        assert not bed.shaped and bed.link_bytes() is None
        assert measure_stream(bed, seconds=0.1).payload_mbit > 400
    finally:
        bed.set_rate(100)


@pytest.mark.usefixtures("linked")
@pytest.mark.parametrize("rate", [0, -1, float("nan")])
def test_a_rate_must_be_above_zero(rate: float) -> None:
    with pytest.raises(ValueError, match="mbit must be above 0"):
        LinkedHosts(rate)


def test_beds_side_by_side_do_not_meet(bed: LinkedHosts) -> None:
    with LinkedHosts(None) as other:
        assert other.name != bed.name
        before = bed.agent_host.interface_bytes()
        measure_stream(other, seconds=0.01)
        assert bed.agent_host.interface_bytes() == before


# --- CPU ---


def test_a_quota_holds_and_can_be_changed(bed: LinkedHosts) -> None:
    quota = measure_quota(bed.agent_host, 0.5, seconds=2.0)
    assert quota.used_cores == pytest.approx(0.5, abs=0.05)


def test_programs_and_their_children_are_in_the_group_from_the_start(bed: LinkedHosts) -> None:
    hierarchy = "import os; print(open('/proc/self/cgroup').read())"
    fork_first = f"import os; pid = os.fork(); pid and os.waitpid(pid, 0); {hierarchy}"
    output = _output(bed.agent_host, [sys.executable, "-c", fork_first])
    assert bed.agent_host.group is not None
    assert output.count(f"/{bed.agent_host.group.name}\n") == 2 * len(bed.agent_host.group.roots)


def test_cpu_seconds_of_ended_programs_are_kept(bed: LinkedHosts) -> None:
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    before = bed.loader_host.cpu_seconds()
    _output(bed.loader_host, [sys.executable, "-c", burn])
    after = bed.loader_host.cpu_seconds()
    assert before is not None and after is not None and 0.3 <= after - before < 1


def test_a_program_runs_on_the_cores_named_and_keeps_its_pid(bed: LinkedHosts) -> None:
    core = min(os.sched_getaffinity(0))
    argv = [sys.executable, "-c", "import os; print(os.getpid(), os.sched_getaffinity(0))"]
    with bed.agent_host.popen(argv, cores={core}, stdout=subprocess.PIPE, text=True) as child:
        assert child.communicate(timeout=DEADLINE_S)[0].strip() == f"{child.pid} {{{core}}}"


def test_an_empty_set_of_cores_is_refused(bed: LinkedHosts) -> None:
    with pytest.raises(ValueError, match="cores must be None or name at least one CPU"):
        bed.agent_host.popen(["true"], cores=set())


@pytest.mark.parametrize("cores", [0, 0.001, float("nan")])
def test_a_quota_below_what_the_kernel_takes_is_refused(bed: LinkedHosts, cores: float) -> None:
    with pytest.raises(ValueError, match=r"cores must be at least 0\.01"):
        bed.agent_host.set_quota(cores)


def test_trying_whether_there_can_be_quotas_leaves_nothing(bed: LinkedHosts) -> None:
    before = _traces("sophonbed-")
    assert why_no_quota() is None
    assert _traces("sophonbed-") == before


# --- clean-up ---


@pytest.mark.usefixtures("linked")
def test_nothing_stays_after_the_block() -> None:
    with LinkedHosts(100) as bed:
        assert _traces(bed.name)
        child = bed.agent_host.popen(STAY, stdout=subprocess.DEVNULL)
    assert child.returncode is not None
    assert _traces(bed.name) == []
    bed.close()


@pytest.mark.usefixtures("linked")
def test_nothing_stays_after_an_exception() -> None:
    with pytest.raises(ZeroDivisionError), LinkedHosts(100) as bed:
        child = bed.loader_host.popen(STAY, stdout=subprocess.DEVNULL)
        raise ZeroDivisionError
    assert child.returncode is not None
    assert _traces(bed.name) == []


@pytest.mark.usefixtures("linked")
def test_nothing_stays_when_set_up_fails_half_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(namespace: str, address: str) -> None:
        raise TestBedUnavailable("refused", "none")

    monkeypatch.setattr(links, "bring_up", refuse)
    bed = LinkedHosts(100)
    with pytest.raises(TestBedUnavailable, match="refused; none"):
        bed.open()
    assert _traces(bed.name) == []


@pytest.mark.usefixtures("linked")
def test_nothing_stays_after_ctrl_c_half_way_through_set_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bring_up = links.bring_up

    def interrupted(namespace: str, address: str) -> None:
        signal.raise_signal(signal.SIGINT)
        bring_up(namespace, address)

    monkeypatch.setattr(links, "bring_up", interrupted)
    bed = LinkedHosts(100)
    handlers = [signal.getsignal(number) for number in STOP_SIGNALS]
    with pytest.raises(KeyboardInterrupt):
        bed.open()
    assert _traces(bed.name) == []
    assert [signal.getsignal(number) for number in STOP_SIGNALS] == handlers


@pytest.mark.usefixtures("linked")
def test_ctrl_c_during_clean_up_waits_for_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    remove = remove_bed

    def interrupted(*arguments: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        remove(*arguments)

    monkeypatch.setattr(links, "remove_bed", interrupted)
    with pytest.raises(KeyboardInterrupt), LinkedHosts(100) as bed:
        pass
    assert _traces(bed.name) == []


@pytest.mark.usefixtures("linked")
def test_programs_that_will_not_stop_are_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "STOP_S", 0.1)
    monkeypatch.setattr(stopping, "ORPHAN_S", 0.1)
    stubborn = [sys.executable, "-c", IGNORE_SIGTERM + STAY[-1]]
    parent = f"import subprocess, sys; subprocess.Popen(sys.argv[1:]); {stubborn[-1]}"
    with LinkedHosts(None) as bed:
        argv = [sys.executable, "-c", parent, *stubborn]
        child = bed.agent_host.popen(argv, stdout=subprocess.PIPE)
        assert child.stdout is not None
        with child.stdout as lines:
            assert [lines.readline(), lines.readline()] == [b"up\n", b"up\n"]
        assert bed.agent_host.group is not None
        pids = bed.agent_host.group.pids()
    assert len(pids) == 2 and not any(map(_is_running, pids))
    assert child.returncode == -signal.SIGKILL
    assert _traces(bed.name) == []


@pytest.fixture
def owner() -> Iterator[subprocess.Popen[str]]:
    """Another process that has a bed open; it and its bed are gone after the test in any case."""
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=REPOSITORY,
    )
    with owner:
        yield owner
        owner.kill()
    clean_leftovers()


def _opened(owner: subprocess.Popen[str]) -> tuple[str, list[int]]:
    """Name of the owner's bed, once it is open, and the processes in it."""
    assert owner.stdout is not None
    name, pids = json.loads(owner.stdout.readline())
    assert len(pids) == 2 and all(map(_is_running, pids))
    return name, pids


# Reads all files of a folder for a second whenever a line comes, and says how many MB that were.
READER = """
import pathlib, sys, time
files = [path for path in pathlib.Path(sys.argv[1]).rglob("*") if path.is_file()]
print("up", flush=True)
for line in sys.stdin:
    end_s, nbytes, number = time.monotonic() + 1.0, 0, 0
    while time.monotonic() < end_s:
        nbytes += len(files[number % len(files)].read_bytes())
        number += 1
    print(nbytes / 1e6, flush=True)
"""


@pytest.mark.skipif(why_no_disk() is not None, reason=str(why_no_disk()))
def test_a_disk_keeps_to_its_limit_while_it_has_one(linked: None, tmp_path: Path) -> None:
    (tmp_path / "class").mkdir()
    for number in range(200):
        (tmp_path / "class" / str(number)).write_bytes(os.urandom(100_000))
    with Disk(tmp_path) as disk, LinkedHosts(100) as bed:
        argv = [*disk.mounting, sys.executable, "-c", READER, str(disk.folder)]
        reader = bed.agent_host.popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        reader.stdout.readline()
        disk.follow(reader.pid, bed)

        def read_mb() -> float:
            reader.stdin.write("\n")
            reader.stdin.flush()
            return float(reader.stdout.readline())

        free_mb, before = read_mb(), disk.read_nbytes()
        assert free_mb > 20
        disk.set_limit(5e6)
        limited_mb = read_mb()
        assert 3 < limited_mb < 7
        assert disk.read_nbytes() - before == pytest.approx(limited_mb * 1e6, rel=0.3)
        disk.set_limit(None)
        assert read_mb() > 20
        reader.stdin.close()
        reader.stdout.close()
    assert _disk_traces() == []


@pytest.mark.skipif(why_no_disk() is not None, reason=str(why_no_disk()))
def test_clean_removes_the_disk_of_a_killed_owner(linked: None, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"0")
    code = (
        "import os, pathlib, signal, sys; from bench.bed.disks import Disk; disk = Disk(pathlib.Path(sys.argv[1])); "
        "disk.__enter__(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=REPOSITORY, check=False)
    assert len(_disk_traces()) == 1
    assert clean_leftovers()
    assert _disk_traces() == []


@pytest.mark.usefixtures("linked")
@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, -signal.SIGINT), (signal.SIGTERM, 128 + signal.SIGTERM)]
)
def test_nothing_stays_after_a_signal_to_the_owner(owner: subprocess.Popen[str], number: int, status: int) -> None:
    name, pids = _opened(owner)
    owner.send_signal(number)
    assert owner.wait(DEADLINE_S) == status
    assert not any(map(_is_running, pids))
    assert _traces(name) == []


def test_clean_removes_what_a_killed_owner_left_and_nothing_else(
    bed: LinkedHosts, owner: subprocess.Popen[str]
) -> None:
    name, pids = _opened(owner)
    assert name not in clean_leftovers()
    owner.kill()
    owner.wait(DEADLINE_S)
    assert name in clean_leftovers()
    for pid in pids:
        _wait_until_ended(pid)
    assert _traces(name) == []
    assert _traces(bed.name)


# --- fallback ---


def test_the_fallback_is_a_loopback_bed_that_says_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with open_testbed(100) as bed:
        assert isinstance(bed, LoopbackHosts)
        assert not bed.shaped
        assert bed.agent_arguments == ["--limit-mbit", "100"]
        assert bed.agent_host.interface_bytes() is None
        stream = measure_stream(bed, seconds=0.01)
    assert stream.payload_mbit > 100 and stream.interface_nbytes is None
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "pass --limit-mbit 100 to the agent" in said and "need root" in said


def test_a_loopback_bed_works_without_control_groups(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def none(bed: str, role: str) -> ControlGroup:
        raise TestBedUnavailable("none", "none")

    monkeypatch.setattr(links, "host_group", none)
    with LoopbackHosts(None) as bed:
        assert bed.agent_arguments == []
        assert bed.agent_host.cpu_seconds() is None
        child = bed.agent_host.popen(STAY, quota_cores=0.5, stdout=subprocess.DEVNULL)
    assert child.returncode is not None
    assert "no CPU quota on the agent host" in capsys.readouterr().err


# --- children ---


@contextmanager
def counting(start: int) -> Iterator[Orders]:
    """A child that adds, prints between its answers, and can be made to end or to wait."""
    print("not an answer")
    yield {
        "add": lambda rest: print("nor this") or start + int(rest),
        "end": lambda rest: os._exit(int(rest)),
        "wait": lambda rest: time.sleep(float(rest)),
    }
    print("the end", flush=True)


def squared(number: int) -> int:
    print("not an answer")
    return number * number


@pytest.fixture
def plain_host() -> Host:
    """A host without a bed: no namespace, no control group."""
    return Host("loader", "127.0.0.1", None, None)


def test_a_child_answers_orders_and_ends_with_the_block(plain_host: Host) -> None:
    with child(plain_host, LOADER_CORE, counting, {"start": 3}) as counter:
        assert [counter.order("add 4"), counter.order("add -4")] == [7, -1]
        counter.tell("add 0")
        assert counter.answer("add 0") == 3
    assert plain_host.children[0].returncode == 0


def test_a_child_that_ends_instead_of_answering_gives_the_reason(plain_host: Host) -> None:
    name, settings = f"{__name__}:counting", {"start": 0}
    failed = pytest.raises(ChildFailed, match="`add x` failed: ValueError: invalid literal")
    with started(plain_host, None, sys.executable, name, settings, keep_errors=True) as counter, failed:
        counter.order("add x")
    failed = pytest.raises(ChildFailed, match="`end 3` failed: it ended with status 3")
    with child(plain_host, None, counting, settings) as counter, failed:
        counter.order("end 3")


def test_a_child_that_takes_too_long_is_killed(plain_host: Host) -> None:
    name, settings = f"{__name__}:counting", {"start": 0}
    failed = pytest.raises(ChildFailed, match="no answer within 2 s")
    with started(plain_host, None, sys.executable, name, settings, answer_s=2.0) as counter, failed:
        counter.order("wait 100")


def test_a_function_can_run_alone() -> None:
    assert alone(squared, {"number": 7}) == 49
    with pytest.raises(ChildFailed, match="squared ended with status 1"):
        alone(squared, {"number": "7"})


# --- command line ---


@pytest.mark.usefixtures("linked")
def test_the_self_check_passes_and_writes_its_circumstances(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    argv = [sys.executable, "-m", "bench.bed", "--link-mbit", "50", "--seconds", "1"]
    done = subprocess.run(
        [*argv, "--json", str(out)],
        cwd=REPOSITORY,
        timeout=DEADLINE_S,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.count(" ok\n") == 4
    written = json.loads(out.read_text())
    assert {"commit", "machine", "versions", "command"} <= set(written) and {"stream", "quota"} <= set(written["rows"])
