"""The status as people read it: what is told, in which order, in which units, and what is left out."""

from __future__ import annotations

from typing import Any

from sophon_loader.wire.messages import Failure
from storage_agent.command import status_table
from storage_agent.command.status_table import rows_of

IDLE: dict[str, Any] = {
    "version": "0.2.0", "pid": 4711, "uptime_s": 42.0, "cores": 16.0, "encodings": ["file", "pixels"],
    "encodings_missing": {}, "software": {"torch": "2.9.1", "pillow": "12.0"}, "answers": {}, "refusals": {},
    "cpu_s": 0.0, "instance": "c0ffee", "exports": {"imagenet": "/data/imagenet"}, "keys": True, "keys_refused": 0,
    "workers": 0, "worker_pids": [], "worker_deaths": 0, "pipelines": 0, "loaders": 0, "clients": 0, "queued": 0,
    "outstanding": 0, "dropped_replies": 0, "hung_up": 0, "unread_requests_mb": 0.0, "unread_replies_mb": 0.0,
    "op_workers": 0, "op_worker_pids": [], "op_workers_at_most": 2, "op_workers_lacking": "",
    "sent_mb": 0.0, "limit_mbit": None, "store_slow_downs": 0, "store_cpu_s": 0.0, "stores_away": 0,
}  # fmt: skip
BUSY: dict[str, Any] = {
    **IDLE, "uptime_s": 11_520.0, "workers": 2, "worker_pids": [4712, 4713], "loaders": 3, "clients": 2,
    "outstanding": 1280, "queued": 640, "pipelines": 1, "cpu_s": 2100.0, "sent_mb": 12_345.0, "limit_mbit": 100.0,
    "answers": {"file": 2345, "pixels": 10_000, "Failed": 9}, "refusals": {"busy": 2, "missing": 7, "novel": 1},
    "keys": False, "keys_refused": 1, "worker_deaths": 1, "hung_up": 4, "dropped_replies": 5,
    "unread_replies_mb": 3.5, "encodings_missing": {"jxl": "imagecodecs is not installed"},
    "store_slow_downs": 11, "store_cpu_s": 3.2, "stores_away": 2, "op_workers": 1, "op_worker_pids": [4714, 4715],
}  # fmt: skip


def test_an_agent_that_has_just_begun() -> None:
    assert rows_of(IDLE) == [
        ("serves", "imagenet: /data/imagenet"),
        ("lets in", "loaders with a key"),
        ("running for", "42.0 s (version 0.2.0, process 4711)"),
        ("loaders", "none is connected"),
        ("workers", "0 ready, on 16 cores"),
        ("op workers", "up to 2, started when first needed"),
        ("in hand", "nothing"),
        ("samples answered", "none yet"),
        ("encodings", "file, pixels"),
        ("software", "torch 2.9.1, pillow 12.0"),
    ]


def test_an_agent_with_much_to_tell() -> None:
    assert rows_of(BUSY) == [
        ("serves", "imagenet: /data/imagenet"),
        ("lets in", "everybody who reaches this address (no keys)"),
        ("running for", "3 h 12 min (version 0.2.0, process 4711)"),
        ("loaders", "3 connections"),
        ("workers", "2 of 2 ready, on 16 cores\nprocesses 4712, 4713"),
        ("op workers", "1 of 2 ready\nprocesses 4714, 4715"),
        ("in hand", "1,280 requests of 2 connections, 640 waiting for a worker"),
        ("pipelines known", "1"),
        ("samples answered", "12,345: 10,000 as pixels, 2,345 as file"),
        ("sent", "12.3 GB"),
        ("CPU time spent", "35 min 0 s"),
        ("CPU time for buckets", "3.2 s"),
        ("buckets away", "2"),
        ("buckets asked for less", "11"),
        ("sends at most", "100 Mbit/s"),
        ("replies not read yet", "3.5 MB"),
        ("refused", "7: files that do not exist\n2: more than may be asked at once\n1: novel"),
        ("refused at the door", "1 connection without a valid key"),
        ("workers that died", "1"),
        ("connections closed", "4"),
        ("replies dropped", "5"),
        ("encodings", "file, pixels"),
        ("encodings lacking", "jxl: imagecodecs is not installed"),
        ("software", "torch 2.9.1, pillow 12.0"),
    ]


def test_the_reason_for_having_no_op_workers() -> None:
    told = dict(rows_of({**IDLE, "op_workers_at_most": 0, "op_workers_lacking": "--op-workers is 0"}))
    assert told["op workers"] == "none: --op-workers is 0"


def test_every_refusal_has_words() -> None:
    words = {value for name, value in vars(Failure).items() if name.isupper()}
    assert set(status_table._REFUSED) == words


def test_an_agent_of_another_version() -> None:
    """What it has more comes last under its own name; what it lacks is left out; nothing it says is an error."""
    assert rows_of({"exports": {"d": "/d"}, "heat_k": 300}) == [("serves", "d: /d"), ("heat k", "300")]
    for name in IDLE:
        for value in (None, 7, "x", [1], {"a": 1}):
            assert all(isinstance(text, str) and text for _, text in rows_of({**BUSY, name: value}))
