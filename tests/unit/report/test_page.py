"""The page of a report: it says what the table says, needs nothing else, and takes no string for HTML."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from sophon_loader.measures.counters import NO_TOTALS
from sophon_loader.report.advice import verdict_of
from sophon_loader.report.agents import AgentShare
from sophon_loader.report.page import faults_of, page_of
from sophon_loader.report.report import Report
from sophon_loader.report.rows import rows_of

HOSTILE = "<script>alert('1')</script>&amp;\"{{css}}\" {{body}}"
VOID = {"meta", "link", "br", "input", "img", "hr"}


class Page(HTMLParser):
    """A page's text and tags; an AssertionError if they are not nested well."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] not in ("style", "script"):
            self.texts.append(data)

    @property
    def text(self) -> str:
        return "\n".join(self.texts)


def report(**values: Any) -> Report:
    """One of a run that the network limits."""
    totals = replace(
        NO_TOTALS, samples=120, file_bytes=9_000_000, wire_bytes=3_200_000, read_bytes=9_000_000, fallbacks=2,
        encodings={"roi-jpeg": 119, "file": 1}, cuts={0: 120},
    )  # fmt: skip
    made = Report(
        "auto",
        plan_reason="without offloading the network limits",
        epoch=2,
        seconds=1.5,
        awaited_s=1.2,
        bottleneck="wire",
        rates={"wire_bytes_s": 2.5e6, "loader_cores": 1.0},
        throughput={"io": 33.4, "cpu": 350.0, "gpu": 4241.0},
        limits={"wire": 1.0, "loader-cpu": 0.33, "gpu": 0.0},
        would_bring={"gpu": 1.0, "wire": 2.0, "agent-cpu": 1.1},
        weighed={"file": {"wire_bytes": 75_000.0, "agent_s": 0.0, "loader_s": 0.008}},
        totals=totals,
        judged=True,
        notes=("Lambda stays at the loader",),
    )
    return replace(made, **values)


def page(of: Report) -> Page:
    return Page(page_of(of.told()))


def test_every_row_of_the_table_is_there() -> None:
    shown = page(report())
    for what, value in rows_of(report()):
        assert what in shown.texts and value in shown.texts


def test_the_first_screen_says_what_limits_by_how_much_and_what_to_do() -> None:
    text = page(report()).text
    assert text.index("The network limits") < text.index("Details")
    for part in ("The loader's CPU is busy 33 % of the time.", "+100 %", "2.4 times", "5.8 MB (64 %)", "pip install"):
        assert text.index(part) < text.index("Details"), part


def test_the_wait_that_the_training_sees_has_the_last_word() -> None:
    text = page(report(awaited_s=0.03)).text
    assert "The training step limits" in text and "2 % of the time. Next is the network." in text
    assert "it keeps up" in text and "pip install" not in text
    text = page(report(limits={"gpu": 1.0, "wire": 0.2})).text
    assert "Not enough data to say what limits" in text and "waited for batches 80 % of the time" in text
    assert "it keeps up" not in text


def test_an_agent_that_is_gone_is_the_verdict() -> None:
    """What the model says of the time before would send the user the wrong way."""
    of = report(totals=replace(NO_TOTALS, samples=50, fallbacks=48, file_bytes=9, cuts={0: 50}))
    text = page(replace(of, agent_address="tcp://fileserver:5555/photos")).text
    assert "The agent sends nothing usable" in text and "48 of 50 samples were read on this host instead" in text
    assert "sophon-agent status" in text and "times the most that not offloading" not in text


def test_codecs_are_advised_only_where_they_are_missing() -> None:
    assert "pip install" in page(report()).text
    with_them = {"jxl@2": {"wire_bytes": 1.0, "agent_s": 0.0, "loader_s": 0.0}}
    assert "pip install" not in page(report(weighed=with_them)).text


def test_it_does_not_guess() -> None:
    text = page(Report("auto", "no epoch has begun yet")).text
    assert text.count("Not enough data") >= 4 and "limits;" not in text
    assert "not known" in page(report(throughput={})).text


def test_what_nothing_was_offloaded_for_comes_first_in_what_to_do() -> None:
    totals = replace(NO_TOTALS, samples=5, file_bytes=100, encodings={"file": 5}, cuts={0: 5})
    text = page(report(totals=totals, why_not="no agent was given")).text
    assert "See why nothing is offloaded: no agent was given." in text and "No agent used" in text


def test_faults_are_counted_and_nothing_is_called_lost() -> None:
    assert faults_of(report().as_dict()) == ["2 files read on this host instead"]
    assert "2 files read on this host instead" in page(report()).text
    assert faults_of(Report("auto").as_dict()) == []


@pytest.mark.parametrize("name", ["notes", "why_not", "plan_reason", "policy", "weighed", "limits", "rates"])
def test_strings_of_users_are_text(name: str) -> None:
    hostile: dict[str, Any] = {
        "notes": (HOSTILE,),
        "weighed": {HOSTILE: {"wire_bytes": 1.0, "agent_s": 0.0, "loader_s": 0.0}},
        "limits": {HOSTILE: 1.0},
        "rates": {HOSTILE: 1.0},
    }
    of = report(**{name: hostile.get(name, HOSTILE)})
    shown = page(of)
    assert any(HOSTILE in one for one in shown.texts)
    assert [tag for tag, _ in shown.tags].count("script") == [tag for tag, _ in page(report()).tags].count("script")


def test_what_to_buy_and_what_was_lost_come_first_and_fit_a_phone_s_screen() -> None:
    texts = page(report()).texts
    places = [
        texts.index(one) for one in ("The network limits", "What to do", "Was anything lost?", "Samples per second")
    ]
    assert places == sorted(places)
    assert "a training step twice as fast" in page(report(would_bring={"gpu": 1.3})).texts


LOADER_BOUND = {"agent-cpu": 1.9, "loader-cpu": 1.4, "wire": 1.0}


def test_what_removes_the_named_limit_is_told_first() -> None:
    """More cores at the agent may bring more; but who reads that the loader's CPU limits looks for that one first."""
    of = report(limits={"loader-cpu": 1.0, "agent-cpu": 0.9, "wire": 0.1}, would_bring=LOADER_BOUND)
    verdict = verdict_of(of.as_dict())
    assert verdict.heading == "The loader's CPU limits"
    assert verdict.helps.startswith(
        "Twice the loader's CPU would bring 40 % more samples per second; twice the agent's"
    )
    texts = page(of).texts
    assert texts.index("twice the loader's CPU") < texts.index("twice the agent's CPU")
    assert "num_workers" in verdict.advice[0] and "tail=" in verdict.advice[1]


@pytest.mark.parametrize(
    ("limits", "brings", "last"),
    [
        ("loader-cpu", {"loader-cpu": 1.6, "agent-cpu": 1.1}, ["a host with more cores", "Give the agent more cores"]),
        ("loader-cpu", LOADER_BOUND, ["Give the agent more cores", "a host with more cores"]),
        ("wire", {"wire": 2.0, "agent-cpu": 1.1}, ["a faster network", "Give the agent more cores"]),
        ("wire", {"wire": 1.2, "agent-cpu": 1.3}, ["Give the agent more cores", "a faster network"]),
        ("wire", {"wire": 2.0, "agent-cpu": 1.0}, ["Install the compressing encodings", "a faster network"]),
    ],
)
def test_what_costs_nothing_is_advised_first_then_what_brings_most(
    limits: str, brings: dict[str, float], last: list[str]
) -> None:
    advice = verdict_of(report(limits={limits: 1.0}, would_bring=brings).as_dict()).advice
    assert [words in told for words, told in zip(last, advice[-2:], strict=True)] == [True, True], advice
    assert ("num_workers" in advice[0]) == (limits == "loader-cpu")


def test_every_resource_has_a_bar() -> None:
    """Also one that nothing has waited for, of which the model says nothing."""
    texts = page(report(limits={"loader-cpu": 1.0, "agent-cpu": 0.2, "gpu": 0.1, "agent-disk": 0.0})).texts
    busy = texts[texts.index("How busy each resource is") :]
    bars = ["the loader's CPU", "the agent's CPU", "the training step", "the agent's disk", "the network"]
    assert [one for one in busy if one in bars][:5] == bars
    assert busy[busy.index("the network") + 1] == "0 %"
    assert any("The network has no share: nothing has waited for it" in one for one in texts)
    assert "hardly waits" not in page(report()).text
    assert any("The training hardly waits for the network, so" in one for one in page(report(awaited_s=0.03)).texts)
    assert "has no share" not in page(report(limits=dict.fromkeys(bars_of_all(), 0.5))).text


def bars_of_all() -> tuple[str, ...]:
    return ("gpu", "wire", "loader-cpu", "agent-cpu", "agent-disk")


def test_words_are_explained_before_the_first_figure() -> None:
    text = page(report()).text
    for word in ("loader", "agent", "offloading"):
        assert re.search(rf"\b{word}\s*[:(]", text.partition("What to do")[0], re.IGNORECASE), word


def test_no_command_has_a_placeholder() -> None:
    silent = AgentShare("tcp://b:2/photos", 1, 1, "does not answer")
    several = (AgentShare("tcp://a:1/photos", 9, 9), silent)
    for more, command in (
        ({"agent_address": "tcp://fileserver:5555/photos"}, "sophon-agent status tcp://fileserver:5555."),
        ({"agent_address": "/shared/agents", "agents": several}, "sophon-agent status tcp://b:2."),
        ({"agent_address": "local"}, "See that the agent runs"),
        ({}, "See that the agent runs"),
    ):
        (told,) = verdict_of(report(totals=GONE, **more).as_dict()).advice
        assert command in told and not re.search(r"\b[A-Z]{3,}\b", told), told
    old = report(totals=GONE).as_dict()
    del old["agent_address"]
    assert verdict_of(old).advice, "a log of an earlier release"


def test_agents_of_use_are_told_in_words() -> None:
    two = (AgentShare("tcp://a:1/photos"), AgentShare("tcp://b:2/photos"), AgentShare("tcp://c:3/p", state="has left"))
    twelve = "12 cores of agents would be of use, that is 3 agents like these; there are"
    for cores, agents, of, says in (
        (12.0, 3.0, (), f"{twelve} 4 cores."),
        (12.0, 3.0, two, f"{twelve} 8 cores."),
        (1.0, 1.0, (), "1 core of agents would be of use, that is 1 agent like these; there is 1 core."),
        (0.1823, 0.0456, (), "0.2 cores of agents would be of use, that is 1 agent like these; there are 4 cores."),
        (4.0004, 1.0001, (), "4 cores of agents would be of use, that is 1 agent like these; there are 4 cores."),
        (0.0003, 0.0001, (), "0.1 cores of agents would be of use, that is 1 agent like these; there are 3 cores."),
        (0.0, 0.0, (), "No agent would be of use: an epoch takes hardly longer without any."),
    ):
        made = report(wanted_agent_cores=cores, wanted_agents=agents, agents=of, would_bring={"wire": 2.0})
        texts = page(made).texts
        assert says in texts[: texts.index("Details")] and dict(rows_of(made))["agents of use"] == says
    assert "of agents would be of use" not in page(report(agents=two)).text


def test_agents_stand_side_by_side() -> None:
    first = AgentShare("tcp://a:1/photos", 90, 3_000_000, group="rack-1")
    second = AgentShare("tcp://b:1/photos", 30, 1_000_000, "yet to come", "nothing within 5 s", lacks=4)
    shown = page(report(agents=(first, second)))
    for text in (
        "Agents side by side",
        "rack-1",
        "3.0 MB",
        "75 %",
        "in use",
        "yet to come: nothing within 5 s",
        "4 samples",
    ):
        assert text in shown.texts, text
    alike = page(report(agents=(replace(first, group=""),)))
    assert not {"group", "lacks at least"} & set(alike.texts)
    assert "Agents side by side" not in page(report()).texts


@pytest.mark.parametrize(
    ("states", "took_over", "now"),
    [
        (("does not answer", "in use", "has left"), "the one at tcp://1:1/p took over", "it does not answer yet"),
        (("in use", "in use", "in use"), "the other agents took over", "it is back"),
        (("has left", "in use", "not used"), "the one at tcp://1:1/p took over", "it has left"),
        (("does not answer", "has left", "not used"), "this host took over, as far as it has the files", "it does not"),
    ],
)
def test_an_agent_that_was_lost_is_told_first(states: tuple[str, ...], took_over: str, now: str) -> None:
    agents = tuple(AgentShare(f"tcp://{n}:1/p", state=state) for n, state in enumerate(states))
    assert "was lost" not in str(report(agents=agents)) and "was lost" not in page(report(agents=agents)).text
    made = report(agents=(replace(agents[0], lost_at=1e9), *agents[1:]))
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(1e9))
    said = f"The agent at tcp://0:1/p was lost at {when}, and {took_over}; {now}"
    shown = page(made).text
    assert said in shown.partition("Samples per second")[0] and "There was no fault" not in shown
    assert dict(rows_of(made))["problems"].startswith(said)
    again = report(agents=(replace(agents[0], lost_at=1e9, losses=2), *agents[1:]))
    assert said.replace("lost at", "lost 2 times, last at") in page(again).text


def test_it_needs_no_other_file_and_no_network() -> None:
    text = page_of(report().told())
    for _, values in Page(text).tags:
        assert not {"src", "href", "srcset", "action"} & set(values)
    assert not re.search(r"url\(|@import|fetch\(|XMLHttpRequest|WebSocket", text)
    assert "default-src 'none'" in text
    assert len(text.encode()) < 300_000


def test_it_is_saved_with_any_string(tmp_path: Path) -> None:
    path = tmp_path / "run.html"
    path.write_text("what was there before")
    report(notes=("a file \udcff of a name that is no text",)).save(path)
    assert Page(path.read_text(encoding="utf-8")).text.count("Lambda") == 0
    assert "The network limits" in path.read_text(encoding="utf-8")


GONE = replace(NO_TOTALS, samples=50, fallbacks=50, file_bytes=4_000_000, encodings={"file": 50}, cuts={0: 50})
LATE = replace(
    NO_TOTALS, samples=100, fallbacks=40, file_bytes=10_000_000, read_bytes=6_000_000, wire_bytes=3_000_000,
    encodings={"roi-jpeg": 60, "file": 40}, cuts={0: 100},
)  # fmt: skip


@pytest.mark.parametrize(
    ("of", "limits", "helps", "never"),
    [
        (report(), "The network limits. The training waited", "Twice the network would bring", "Not enough"),
        (report(totals=GONE), "The agent sends nothing usable. 50 of 50", "See that the agent runs", "etwork"),
        (report(awaited_s=0.03), "The training step limits. ", "it keeps up", "wice"),
        (report(limits={"gpu": 1.0, "wire": 0.2}), "Not enough data to say what limits. ", "later epoch", "wice"),
        (report(limits={}, would_bring={}), "The network limits. ", "", "Not enough data to say"),
    ],
)  # fmt: skip
def test_table_values_and_page_say_the_same(of: Report, limits: str, helps: str, never: str) -> None:
    """The model is of the time before the agent died, and knows nothing of what the training waits for."""
    rows = dict(rows_of(of))
    told = rows.get("what would help", "")
    assert rows["what limits"].startswith(limits) and helps in told
    assert of.verdict == of.as_dict()["verdict"] == f"{rows['what limits']} {told}".strip()
    assert never not in of.verdict.replace("Next is the network", "")
    first_screen = page(of).text.partition("Details")[0]
    assert limits.partition(". ")[0] in first_screen
    assert ("+100 %" in first_screen) == ("Twice" in told)


def test_what_was_read_on_this_host_is_not_saved() -> None:
    """Neither in the table nor on the page."""
    late = report(totals=LATE)
    assert dict(rows_of(late))["sent"] == "3.0 MB for files of 6.0 MB (50 %); files of 4.0 MB were read on this host"
    assert "3.0 MB (50 %)" in page(late).text
    assert dict(rows_of(report(totals=GONE)))["sent"] == "nothing: files of 4.0 MB were read on this host"
