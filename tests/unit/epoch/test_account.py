"""What is known of an epoch while it goes on: its reports are values that nothing changes."""

from __future__ import annotations

from dataclasses import replace

from sophon_loader.epoch.account import Account
from sophon_loader.measures.counters import NO_TOTALS
from sophon_loader.measures.findings import Findings
from sophon_loader.measures.moment import Moment


def test_before_the_first_batch_there_is_no_epoch_to_tell_of() -> None:
    report = Account("auto", 3, "the epoch was left").report()
    assert (report.epoch, report.seconds, report.why_not) == (None, 0.0, "the epoch was left")


def test_a_report_stays_as_it_is_while_the_epoch_goes_on() -> None:
    account = Account("auto", 3, notes=("a note",))
    account.findings = Findings("because", rates={"loader_cores": 1.0}, limits={"wire": 1.0}, bottleneck="wire")
    account.now = Moment(2.0, replace(NO_TOTALS, samples=8), 1.5, 8)
    kept = account.report(notes=("another",), judged=True)
    before = kept.as_dict()
    account.now = Moment(4.0, replace(NO_TOTALS, samples=16), 3.0, 16)
    account.findings.rates["loader_cores"] = 2.0
    account.findings = replace(account.findings, plan_reason="now", limits={})
    account.passes, account.workers, account.notes = 1, 2, ()
    assert kept.as_dict() == before and kept.notes == ("a note", "another")
    later = account.report()
    assert (later.epoch, later.seconds, later.totals.samples, later.plan_reason) == (3, 4.0, 16, "now")


def test_whoever_has_a_report_changes_nothing_of_the_next() -> None:
    account = Account("auto", 0)
    account.findings = Findings(rates={"loader_cores": 1.0}, limits={"wire": 1.0}, throughput={"io": 3.0})
    first = account.report()
    for values in (first.rates, first.limits, first.throughput):
        values.clear()
    assert account.report().rates and account.report().limits and account.report().throughput
