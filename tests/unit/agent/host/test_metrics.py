"""The agent's numbers for Prometheus: all that the status has, in base units, asked for once a second at most."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sophon_loader.errors import AgentError
from storage_agent.host import metrics
from storage_agent.host.metrics import Metrics

STATUS: dict[str, Any] = {
    **{"version": "1.2", "answers": {"pixels": 5, "Failed": 1}, "refusals": {"busy": 2}, "cpu_s": 1.25, "cores": 4.0},
    **{"sent_mb": 3.007, "worker_deaths": 1, "hung_up": 2, "dropped_replies": 3, "keys_refused": 4, "uptime_s": 9.5},
    **{"workers": 2, "op_workers": 1, "pipelines": 1, "loaders": 6, "clients": 5, "outstanding": 7, "queued": 8},
    **{"store_slow_downs": 9, "store_cpu_s": 1.5, "stores_away": 1},
    **{"unread_requests_mb": 0.5, "unread_replies_mb": 0.25},
}


def values(page: bytes) -> dict[tuple[str, ...], float]:
    families = text_string_to_metric_families(page.decode())
    return {(one.name, *one.labels.values()): one.value for family in families for one in family.samples}


def test_numbers_are_in_base_units() -> None:
    told = values(Metrics(lambda: STATUS).page())
    assert told["sophon_agent_answers_total", "pixels"] == 5
    assert told["sophon_agent_refusals_total", "busy"] == 2
    assert told["sophon_agent_sent_bytes_total",] == 3_007_000
    assert told["sophon_agent_cpu_seconds_total",] == 1.25
    assert (told["sophon_agent_unread_request_bytes",], told["sophon_agent_unread_reply_bytes",]) == (500_000, 250_000)
    assert (told["sophon_agent_cores",], told["sophon_agent_info", "1.2"]) == (4.0, 1)


def test_the_page_has_each_name() -> None:
    page = (Path(__file__).parents[4] / "docs/metrics.md").read_text()
    names = {name.removeprefix("sophon_agent_") for name, *_ in values(Metrics(lambda: STATUS).page())}
    assert not {name for name in names if f"`{name}`" not in page}


def test_the_broker_is_asked_once_while_an_answer_is_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, asked = [100.0], []
    monkeypatch.setattr(metrics.time, "monotonic", lambda: now_s[0])
    told = Metrics(lambda: asked.append(now_s[0]) or STATUS)  # type: ignore[func-returns-value]
    for now_s[0] in (100.0, 100.4, 100.9, 101.1, 101.2):
        told.page()
    assert asked == [100.0, 101.1]


def test_a_silent_broker_is_waited_for_once_by_all_who_ask() -> None:
    asked = []

    def ask() -> dict[str, Any]:
        asked.append(1)
        raise AgentError("nothing came")

    told = Metrics(ask)
    for _ in range(3):
        with pytest.raises(AgentError, match="nothing came"):
            told.page()
    assert len(asked) == 1
