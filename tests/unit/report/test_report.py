"""The report: the keys that machines rely on, and a table for people."""

from __future__ import annotations

import json
import re
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest

from sophon_loader.measures.counters import NO_TOTALS, Statistics
from sophon_loader.report.page import page_of
from sophon_loader.report.report import Report
from sophon_loader.report.rows import rows_of

KEYS = {
    *("epoch", "policy", "seconds", "samples", "bottleneck", "rates", "file_bytes", "wire_bytes", "choices", "cuts"),
    *("loader_cpu_s", "agent_cpu_s", "retries", "fallbacks", "predicted_seconds"),
}
"""What DESIGN.md promises."""


def report() -> Report:
    nothing = Statistics(1, ["file"]).totals(0)
    totals = replace(nothing, samples=5, wire_bytes=400, cuts={0: 2, 3: 3}, encodings={"file": 2, "webp": 3})
    return Report(
        policy="sophon",
        plan_reason="the wire is the bottleneck",
        notes=("Lambda stays at the loader",),
        epoch=3,
        seconds=12.5,
        rates={"wire": 1e7},
        totals=totals,
    )


def test_the_promised_keys_are_there() -> None:
    assert set(report().as_dict()) >= KEYS
    assert set(Report(policy="no-off").as_dict()) >= KEYS


def test_it_is_plain_data() -> None:
    values = report().as_dict()
    assert json.loads(json.dumps(values))["choices"] == {"file": 2, "webp": 3}
    assert values["cuts"] == {0: 2, 3: 3}
    assert (values["epoch"], values["seconds"], values["samples"]) == (3, 12.5, 5)


def test_it_is_a_value() -> None:
    with pytest.raises(FrozenInstanceError):
        report().seconds = 3.0
    assert report() == report()


def test_plain_data_is_a_copy() -> None:
    one = report()
    one.as_dict()["rates"].clear()
    one.as_dict()["choices"].clear()
    assert one.as_dict()["rates"] and one.as_dict()["choices"]


def test_the_table_shows_what_there_is_and_no_empty_rows() -> None:
    text = str(report())
    for part in ("epoch 3", "sophon", "3 webp", "12.5 s", "Lambda stays at the loader", "the wire is the bottleneck"):
        assert part in text
    assert "what limits" not in str(Report(policy="no-off"))
    assert repr(report()) == text


OFFLOADED = {
    **{"encodings": {"roi-jpeg": 90, "pixels": 2, "file": 4}, "cuts": {0: 94, 2: 2}},
    **{"wire_bytes": 4_500_000, "read_bytes": 10_300_000},
}
SENT = "92 of 96 samples prepared at the agent (2 preprocessed, 90 cut out of the file); 4.5 MB sent instead of 10.3 MB"


@pytest.mark.parametrize(
    ("counted", "why_not", "offloading", "summary"),
    [
        (OFFLOADED, "", True, SENT),
        ({**OFFLOADED, "fallbacks": 3}, "", True, f"{SENT}; 3 files read on this host instead"),
        (OFFLOADED, "nothing on 1 of 2 ranks: no agent was given", True,
         f"{SENT}; nothing on 1 of 2 ranks: no agent was given"),
        ({"encodings": {"file": 96}}, "no agent was given", False, "nothing offloaded: no agent was given"),
    ],
)  # fmt: skip
def test_one_sentence_says_what_was_offloaded(
    counted: dict[str, Any], why_not: str, offloading: bool, summary: str
) -> None:
    one = Report("auto", why_not, totals=replace(NO_TOTALS, samples=96, **counted))
    values = one.as_dict()
    assert (values["offloading"], values["summary"]) == (one.offloading, one.summary) == (offloading, summary)
    first = " ".join(re.split(r"[\s│]+", re.split("┩|│ samples", str(one))[1])).strip()
    assert first == f"result {summary}"


@pytest.mark.parametrize(
    ("encodings", "cuts", "says"),
    [
        ({"pixels": 90, "htj2k": 6}, {2: 96}, "96 of 96 samples preprocessed at the agent; "),
        ({"roi-jpeg": 90, "roi-lepton": 6}, {0: 96}, "96 of 96 samples cut out of the file at the agent; "),
        ({"lepton": 95, "file": 1}, {0: 96}, "95 of 96 samples compressed at the agent; "),
        ({"lepton": 3, "roi-lepton": 2, "webp": 1, "file": 90}, {0: 95, 3: 1},
         "6 of 96 samples prepared at the agent (1 preprocessed, 2 cut out of the file, 3 compressed); "),
    ],
)  # fmt: skip
def test_what_the_agent_did_with_how_many(encodings: dict[str, int], cuts: dict[int, int], says: str) -> None:
    one = Report("auto", totals=replace(NO_TOTALS, samples=96, encodings=encodings, cuts=cuts))
    assert one.summary.startswith(says)


@pytest.mark.parametrize(("nbytes", "says"), [(0, "0 bytes"), (999, "999 bytes"), (1500, "1.5 KB"), (2e9, "2.0 GB")])
def test_sizes_have_units(nbytes: int, says: str) -> None:
    counted = replace(NO_TOTALS, samples=1, wire_bytes=nbytes, encodings={"pixels": 1})
    assert f"; {says} sent" in Report("auto", totals=counted).summary


def test_before_an_epoch_the_title_names_none() -> None:
    assert str(Report("auto", "no epoch has begun")).split("\n")[0].strip() == "policy auto"


FULL = Report(
    "auto",
    plan_reason="because",
    notes=("Lambda stays at the loader", "another note"),
    epoch=2,
    seconds=1.545,
    awaited_s=1.2,
    bottleneck="wire",
    rates={
        **{"gpu_samples_s": 907.894, "wire_bytes_s": 2_402_094.2, "loader_cores": 0.570, "agent_cores": 0.476},
        **{"disk_samples_s": 12_345.6, "gpu_busy_share": 0.914},
    },
    throughput={"gpu": 907.894, "cpu": 110.168, "io": 32.339},
    limits={"wire": 1.0, "loader-cpu": 0.78},
    would_bring={"gpu": 1.0, "wire": 1.6, "loader-cpu": 1.04, "agent-cpu": 1.004},
    predicted_seconds=1.456,
    totals=replace(
        NO_TOTALS, samples=120, file_bytes=8_958_854, wire_bytes=3_542_445, read_bytes=8_958_854, loader_cpu_s=0.675,
        agent_cpu_s=0.288, upkeep_s=0.159, retries=1, fallbacks=2, degraded=3, corrupt=1, malformed=2, verified=17,
        cuts={0: 112, 2: 8}, encodings={"file": 1, "roi-jpeg": 108, "jpegls": 8, "roi-lepton": 3},
    ),
    passes=1,
    ranks=2,
    workers=1,
)  # fmt: skip
ROWS = {
    "result": "119 of 120 samples prepared at the agent (8 preprocessed, 111 cut out of the file); "
    "3.5 MB sent instead of 9.0 MB; 2 files read on this host instead",
    "samples": "120 in 1.5 s, 77.7 per second; 1 loader worker; 1 pass over the dataset complete",
    "predicted time": "1.5 s per pass",
    "what limits": "The network limits. The training waited for batches 78 % of the time. The loader's CPU is busy "
    "78 % of the time.",
    "what would help": "Twice the network would bring 60 % more samples per second; twice the loader's CPU 4 %.",
    "why this plan": "because",
    "speeds": "network 2.4 MB/s, loader 0.57 cores, agent 0.476 cores, training step 908 samples/s, "
    "agent's disk 12,346 samples/s, GPU busy 91 % of the time",
    "without offloading": "at most 32.3 samples/s by the network, 110 by the loader's CPU, 908 by the training step",
    "sent": "3.5 MB for files of 9.0 MB (40 %)",
    "sent as": "108 roi-jpeg, 8 jpegls, 3 roi-lepton, 1 file",
    "ops at the agent": "none for 112 samples, 2 for 8 samples (decoding is the first)",
    "CPU time": "loader 0.68 s, agent 0.29 s (0.16 s of it besides reading, ops and encoding)",
    "problems": "2 files read on this host, because the agent sent nothing usable\n1 sample requested more than once\n"
    "3 samples came less prepared than requested\n1 message damaged on the way\n"
    "2 messages from the agent unreadable, or against the protocol",
    "checked": "17 samples computed on this host too: equal",
    "ranks": "2; counts and speeds are sums, times those of the slowest rank, shares of time are means",
    "notes": "Lambda stays at the loader\nanother note",
}


def test_every_row_in_words_and_in_the_order_of_questions() -> None:
    assert list(rows_of(FULL)) == list(ROWS.items())
    assert str(FULL).split("\n")[0].strip() == "epoch 2, policy auto, sum of 2 ranks"


def test_pictures_are_called_so_where_the_agent_is_asked_for_each() -> None:
    """Of a dataset of any class; notes tell why Pillow has decoded some."""
    told = replace(FULL, unit="picture", totals=replace(FULL.totals, fused=3, unfused=1))
    rows = dict(rows_of(told))
    assert told.as_dict()["unit"] == "picture" and "samples" not in rows and rows["pictures"] == ROWS["samples"]
    for row in ("result", "ops at the agent", "problems"):
        assert rows[row] == ROWS[row].replace("sample", "picture")
    assert rows["decoded here"] == "3 pictures by C of our own, 1 picture by Pillow"
    assert "Pictures per second" in page_of(told.told())


def test_the_table_has_no_name_of_a_field() -> None:
    assert "_" not in str(FULL)


def test_the_verdict_is_what_limits_and_what_would_help() -> None:
    assert FULL.as_dict()["verdict"] == FULL.verdict == f"{ROWS['what limits']} {ROWS['what would help']}"


def test_who_decoded_pictures_is_said_with_a_reason_where_samples_are_counted() -> None:
    """Else the pictures are those of a dataset of any class, and notes tell why."""
    counts = replace(NO_TOTALS, fused=3, unfused=1)
    alone = dict(rows_of(Report("auto", totals=counts)))["decoded here"]
    assert alone == "3 pictures by C of our own, 1 picture by Pillow"
    told = dict(rows_of(Report("auto", totals=replace(counts, samples=4))))["decoded here"]
    assert told.endswith("1 picture by Pillow, whose files are not baseline JPEG, or damaged")


def test_a_row_of_which_nothing_is_known_is_left_out() -> None:
    alone = Report(
        "auto",
        "no agent was given",
        epoch=0,
        seconds=2.0,
        awaited_s=1.0,
        bottleneck="loader-cpu",
        totals=replace(NO_TOTALS, samples=8, file_bytes=1000, encodings={"file": 8}, cuts={0: 8}),
    )
    assert dict(rows_of(alone)) == {
        "result": "nothing offloaded: no agent was given",
        "samples": "8 in 2 s, 4 per second",
        "what limits": "The loader's CPU limits. The training waited for batches 50 % of the time.",
        "sent": "nothing: files of 1.0 KB were read on this host",
    }
