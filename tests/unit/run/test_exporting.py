"""What Prometheus reads of the loaders of a process: sums over epochs that never fall, a label for each loader."""

from __future__ import annotations

import gc
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from sophon_loader.epoch.account import Account
from sophon_loader.host.scraping import exposition
from sophon_loader.measures.counters import NO_TOTALS
from sophon_loader.measures.findings import Findings
from sophon_loader.measures.moment import Moment
from sophon_loader.pipeline.randomness import threads_beside
from sophon_loader.run.exporting import AllEpochs, CountedEpochs, Exporter
from sophon_loader.wire.wanted_cores import WantedCores


def epoch(counted: CountedEpochs, samples: int, seconds: float = 2.0) -> Account:
    account = Account("auto", 0)
    verdict: Any = SimpleNamespace(would_bring={}, weighed=dict, wanted_cores=6.0)
    findings = Findings(limits={"wire": 0.75}, verdict=verdict, wanted=WantedCores(5.0, 4.0))
    account.workers, account.findings = 3, findings
    counted.begin(account)
    totals = replace(NO_TOTALS, samples=samples, encodings={"file": samples})
    account.now = Moment(seconds, totals, seconds / 2, samples)
    return account


def labels(sample: Any) -> list[str]:
    """Its values, that of the loader first."""
    return [sample.labels[name] for name in sorted(sample.labels, key=lambda name: (name != "loader", name))]


def values(exporter: Exporter) -> dict[tuple[str, ...], float]:
    families = text_string_to_metric_families(exporter.page().decode())
    return {(one.name, *labels(one)): one.value for family in families for one in family.samples}


def test_counters_go_on_over_epochs() -> None:
    exporter, counted = Exporter(), CountedEpochs()
    exporter.add(counted)
    epoch(counted, 10)
    assert values(exporter)["sophon_loader_samples_total", "0"] == 10
    account = epoch(counted, 4)
    told = values(exporter)
    assert told["sophon_loader_samples_total", "0"] == 14
    assert (told["sophon_loader_seconds_total", "0"], told["sophon_loader_waiting_seconds_total", "0"]) == (4.0, 2.0)
    assert told["sophon_loader_encoded_samples_total", "0", "file"] == 14
    assert (told["sophon_loader_epochs_total", "0"], told["sophon_loader_workers", "0"]) == (2, 3)
    assert told["sophon_loader_busy_ratio", "0", "wire"] == 0.75
    assert told["sophon_loader_wanted_agent_cores", "0"] == 6.0 and told["sophon_loader_wanted_agents", "0"] == 1.5
    account.now = Moment(3.0, replace(account.moment.totals, samples=7), 1.0, 7)
    assert values(exporter)["sophon_loader_samples_total", "0"] == 17


def test_an_epoch_without_a_batch_counts_nothing() -> None:
    counted = CountedEpochs()
    counted.begin(Account("auto", 0))
    assert counted.so_far.and_now(counted.so_far.report()) == AllEpochs()


def test_what_is_not_known_is_no_zero() -> None:
    exporter, counted = Exporter(), CountedEpochs()
    exporter.add(counted)
    epoch(counted, 10).findings = Findings()
    assert ("sophon_loader_wanted_agent_cores", "0") not in values(exporter)


def test_a_loader_that_is_gone_leaves_its_number_to_the_next() -> None:
    exporter, train, other = Exporter(), CountedEpochs(), CountedEpochs()
    for one, samples in ((train, 1), (other, 2)):
        exporter.add(one)
        epoch(one, samples)
    assert values(exporter)["sophon_loader_samples_total", "1"] == 2
    del other, one
    gc.collect()
    assert ("sophon_loader_samples_total", "1") not in values(exporter)
    later = CountedEpochs()
    exporter.add(later)
    exporter.add(train)
    epoch(later, 5)
    told = values(exporter)
    assert (told["sophon_loader_samples_total", "0"], told["sophon_loader_samples_total", "1"]) == (1, 5)


def test_a_page_without_loaders_is_a_page() -> None:
    assert values(Exporter()) == {}


def test_the_page_has_each_name() -> None:
    counted, exporter = CountedEpochs(), Exporter()
    exporter.add(counted)
    epoch(counted, 3)
    page = (Path(__file__).parents[3] / "docs/metrics.md").read_text()
    missing = {name for name, *_ in values(exporter) if f"`{name.removeprefix('sophon_loader_')}`" not in page}
    assert not missing


def test_whoever_makes_a_page_draws_no_random_numbers() -> None:
    """Else a loader with `num_workers=0` would begin an epoch with a worker, if it is asked just then."""
    asked, go_on = threading.Event(), threading.Event()

    def families() -> list[Any]:
        asked.set()
        go_on.wait(30.0)
        return []

    thread = threading.Thread(target=exposition, args=(families,))
    thread.start()
    try:
        assert asked.wait(30.0) and threads_beside() == []
    finally:
        go_on.set()
        thread.join()
