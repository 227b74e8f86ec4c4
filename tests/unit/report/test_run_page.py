"""The page of a log: what it makes of whole, running, damaged and long ones."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from sophon_loader.errors import ConfigError
from sophon_loader.report.agents import AgentShare
from sophon_loader.report.command import main
from sophon_loader.report.course import course_of
from sophon_loader.report.run_page import MOST_POINTS, run_page
from tests.unit.report.test_page import HOSTILE, Page, report


def second(epoch: int = 0, at_s: float = 1.0, **facts: Any) -> dict[str, Any]:
    said = {
        **{"v": 1, "kind": "second", "time": 1.7e9 + at_s, "epoch": epoch, "seconds": at_s, "for_s": 1.0},
        **{"samples": 80, "waited_s": 0.8, "wire_bytes": 2_500_000, "read_bytes": 6_000_000},
        **{"choices": {"roi-jpeg": 80}, "workers_waited_s": 0.5, "workers_busy_s": 0.5, "without_samples_s": 33.4},
    }
    return said | facts


def log_of(*epochs: list[dict[str, Any]], ended: bool = True, **values: Any) -> list[str]:
    lines: list[dict[str, Any]] = []
    for number, seconds in enumerate(epochs):
        told = report(epoch=number, **values).told()
        lines += [{"v": 1, "kind": "begin", "time": 0, "epoch": number}, *seconds]
        whole = {"title": told.title, "rows": told.rows, "values": dict(told.values)}
        lines.append({"v": 1, "kind": "report", "time": 0, "ended": ended, **whole})
    return [json.dumps(line) for line in lines]


def data_of(text: str) -> Any:
    found = re.search(r'<script type="application/json" id="course">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def two_epochs() -> list[str]:
    faulty = second(1, 2.0, faults={"fallbacks": 3, "retries": 1})
    return log_of([second(0, 1.0), second(0, 2.0)], [second(1, 1.0), faulty])


def test_a_loss_behind_the_verdict_is_told() -> None:
    lines = log_of([second()])
    lost = (AgentShare("tcp://a:1/photos", state="does not answer", lost_at=1e9),)
    lines += log_of([second()], bottleneck=None, limits={}, agents=lost)
    assert "The agent at tcp://a:1/photos was lost" in Page(run_page(course_of(lines))).text


def test_a_lost_agent_is_a_row_of_the_faults_of_its_epoch() -> None:
    """Reports of later epochs have the loss as well, and are not of the time when it came."""
    two = (AgentShare("tcp://a:1/p", state="does not answer", lost_at=1.7e9 + 1.5), AgentShare("tcp://b:1/p"))
    lines = log_of([second(0, 1.0), second(0, 2.0)], [second(1, 61.0)], agents=two)
    text = Page(run_page(course_of(lines))).text
    table = text.partition("what happened")[2].partition("Details")[0]
    assert table.count("agent lost: tcp://a:1/p") == 1 and table.split("\n")[1:4].count("0") == 1
    assert "1.5 s" in table and text.count("1 of 2 agents lost") == 2, "both epochs end without it"


def test_a_second_loss_is_counted_in_the_epoch_in_which_it_came() -> None:
    def told(at: float, losses: int) -> tuple[AgentShare, AgentShare]:
        return AgentShare("tcp://a:1/p", lost_at=1.7e9 + at, losses=losses), AgentShare("tcp://b:1/p")

    lines = log_of([second(0, 1.0), second(0, 2.0)], agents=told(1.5, 1))
    lines += log_of([second(1, 61.0), second(1, 65.0)], agents=told(64.0, 3))
    lines += log_of([second(2, 121.0)], agents=told(64.0, 3))
    text = Page(run_page(course_of(lines))).text
    table = text.partition("what happened")[2].partition("Details")[0]
    assert table.count("agent lost: tcp://a:1/p") == 2
    assert "agent lost: tcp://a:1/p (2 times; this was the last)" in table.partition("2023")[2].partition("2023")[2]


def test_it_tells_epochs_side_by_side_and_marks_faults() -> None:
    text = run_page(course_of(two_epochs()))
    shown, data = Page(text), data_of(text)
    assert data["x"] == [1.0, 2.0, 3.0, 4.0] and data["begins"] == [[0.0, "epoch 0"], [2.0, "epoch 1"]]
    assert data["marks"] == [[4.0, "3 files read on this host instead, 1 sample requested more than once"]]
    assert [one["name"] for one in data["plots"][0]["series"]] == ["now", "without offloading"]
    assert data["plots"][0]["series"][1]["values"] == [33.4] * 4
    assert shown.texts.count("160") == 2 and shown.texts.count("58 %") == 2
    assert "epoch 1, policy auto" in shown.texts and "3 files read on this host instead" in shown.texts


def test_agents_of_the_log_are_on_the_page() -> None:
    agents = (AgentShare("tcp://a:1/photos", 90, 3_000_000), AgentShare(HOSTILE, 1, 1, "not used", HOSTILE))
    shown = Page(run_page(course_of(log_of([second()], agents=agents))))
    assert "Agents side by side" in shown.texts and HOSTILE in shown.texts and "tcp://a:1/photos" in shown.texts


def test_it_needs_nothing_else_and_has_the_licence_of_what_draws() -> None:
    text = run_page(course_of(two_epochs()))
    for _, values in Page(text).tags:
        assert not {"src", "href", "srcset", "action"} & set(values)
    assert "Leon Sorokin" in text and "Permission is hereby granted" in text
    assert len(text.encode()) < 300_000


def test_strings_of_a_log_are_text() -> None:
    bad = second(choices={HOSTILE: 80, "</script><!--": 1})
    text = run_page(course_of(log_of([bad, second()], notes=(HOSTILE,), policy=HOSTILE)))
    assert data_of(text)["plots"][3]["series"][0]["name"] in (HOSTILE, "roi-jpeg")
    scripts = [tag for tag, _ in Page(text).tags].count("script")
    assert scripts == [tag for tag, _ in Page(run_page(course_of(two_epochs()))).tags].count("script")


def test_lines_that_are_none_are_counted_and_left_out() -> None:
    lines = two_epochs()
    damaged = ["", "{", "3", "[]", '{"v":1}', '{"v":1,"kind":"second"}', '{"v":1,"kind":"report","values":{}}', "é\x00"]
    damaged += [json.dumps(second(waited_s=float("nan"))), json.dumps(second(samples="many")), lines[1][:40]]
    damaged += ["[" * 100_000, '{"v":1,"kind":"second","samples":' + '{"a":' * 100_000]
    course = course_of([*lines[:2], *damaged, *lines[2:]])
    assert course.unreadable == len(damaged) - 1
    assert "12 lines of the log could not be read." in Page(run_page(course)).text
    assert course.epochs == course_of(lines).epochs


def changes(value: Any) -> Any:
    """Copies of plain data with one thing in it changed or gone."""
    yield from (None, "x", -1, 1e300, [], {}, {"a": None}, True)
    if isinstance(value, dict):
        for name, inner in value.items():
            yield {key: one for key, one in value.items() if key != name}
            yield from ({**value, name: changed} for changed in changes(inner))
    if isinstance(value, list):
        for place, inner in enumerate(value):
            yield from ([*value[:place], changed, *value[place + 1 :]] for changed in changes(inner))


def test_whatever_a_line_says_a_page_is_made_or_it_is_left_out() -> None:
    lines = log_of([second(), second(faults={"retries": 2})])
    for place in (2, 3):
        for changed in changes(json.loads(lines[place])):
            text = run_page(course_of([*lines[:place], json.dumps(changed), *lines[place + 1 :], *two_epochs()]))
            data = data_of(text)
            assert not re.search(r"NaN|Infinity", json.dumps(data))
    for changed in changes(json.loads(lines[3])):
        try:
            run_page(course_of([*lines[:3], json.dumps(changed)]))
        except ConfigError as error:
            assert "a second of training" in str(error) or "of version 1 at most" in str(error)


def test_kinds_that_a_later_release_adds_are_left_out_and_later_versions_refused() -> None:
    assert course_of([*two_epochs(), '{"v":1,"kind":"weather","time":0}']).unreadable == 0
    with pytest.raises(ConfigError, match="of version 1 at most, got 2; use the sophon-report of the release"):
        course_of(['{"v":2,"kind":"second"}'])


def test_an_epoch_that_runs_or_was_given_up_is_there() -> None:
    text = Page(run_page(course_of(log_of([second()], ended=False)))).text
    assert "0 (not ended)" in text
    nothing = ['{"v":1,"kind":"begin","time":0,"epoch":0}']
    with pytest.raises(ConfigError, match="the log must have a second of training at least"):
        run_page(course_of(nothing))


def test_the_newest_report_that_says_what_limits_is_the_verdict() -> None:
    lines = log_of([second(), second()]) + log_of([second()], ended=False, limits={}, judged=False)
    assert "The network limits" in run_page(course_of(lines))


def test_a_long_run_has_a_page_of_bounded_size() -> None:
    seconds = [second(at_s=float(n), samples=n % 97, faults={"retries": 1}) for n in range(1, 5 * MOST_POINTS)]
    epochs = [[second(number, 1.0)] * 20 for number in range(100)]
    text = run_page(course_of(log_of(seconds, *epochs)))
    assert len(text.encode()) < 300_000
    data = data_of(text)
    assert len(data["x"]) <= MOST_POINTS and data["x"][-1] == pytest.approx(5 * MOST_POINTS - 1 + 2000, rel=1e-3)


def test_a_last_bit_of_an_epoch_is_no_point_of_its_own() -> None:
    """Its rate would be a peak or a hole that nothing stands for."""
    data = data_of(run_page(course_of(log_of([second(), second(), second(for_s=0.01, samples=8)]))))
    assert data["x"] == [1.0, 2.01] and data["plots"][0]["series"][0]["values"] == [80.0, 87.13]


def test_the_command_makes_the_page_and_says_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "run-0.jsonl"
    log.write_text("\n".join(two_epochs()))
    assert main([str(log)]) == 0 and capsys.readouterr().out.strip() == str(tmp_path / "run-0.html")
    assert main([str(log), "-o", str(tmp_path / "run.html")]) == 0
    assert "The network limits" in (tmp_path / "run.html").read_text()


def test_the_command_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "run-0.jsonl"
    assert main([str(log)]) == 1 and "No such file" in capsys.readouterr().err
    log.write_text("something else\n")
    assert main([str(log)]) == 1 and "log must be written by OffloadOptions(log=)" in capsys.readouterr().err
    log.write_text("\n".join(two_epochs()))
    assert main([str(log), "-o", str(log)]) == 1 and "must be another file than the log" in capsys.readouterr().err
    assert log.read_text() == "\n".join(two_epochs())
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "sophon-report run-0.jsonl -o run.html" in capsys.readouterr().out
