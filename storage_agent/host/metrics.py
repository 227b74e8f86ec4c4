"""The numbers of `sophon-agent status` for Prometheus (`--metrics`). None names an export, a key or a client."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sophon_loader.errors import AgentError
from sophon_loader.host.scraping import ScrapePort, exposition

FRESH_S = 1.0
"""Seconds for which an answer is reused, so that frequent requests take no time of the broker."""
_PREFIX = "sophon_agent"
_LABELLED = {
    "answers": ("answers", "encoding", "Samples that were answered, by their encoding; Failed: those that were not."),
    "refusals": ("refusals", "reason", "What was refused, by the reason."),
}
_COUNTERS = {
    "cpu_seconds": ("cpu_s", 1, "CPU time of reading, ops and encoding."),
    "sent_bytes": ("sent_mb", 1e6, "Bytes that were sent to loaders."),
    "worker_deaths": ("worker_deaths", 1, "Workers that died."),
    "connections_closed": ("hung_up", 1, "Connections that were closed here, for what they did or for their number."),
    "replies_dropped": ("dropped_replies", 1, "Replies that could not be delivered."),
    "store_slow_downs": ("store_slow_downs", 1, "Answers by which buckets asked for fewer requests."),
    "store_cpu_seconds": ("store_cpu_s", 1, "CPU time of reading buckets."),
    "keys_refused": ("keys_refused", 1, "Connections without a valid key."),
}
_GAUGES = {
    "uptime_seconds": ("uptime_s", 1, "Time since the start."),
    "cores": ("cores", 1, "Cores that it may use."),
    "workers": ("workers", 1, "Workers that are ready to run programs."),
    "op_workers": ("op_workers", 1, "Workers that are ready to run named ops."),
    "pipelines": ("pipelines", 1, "Pipelines that are known."),
    "connections": ("loaders", 1, "Connections of loaders."),
    "asking_connections": ("clients", 1, "Connections with requests that are not answered."),
    "outstanding_requests": ("outstanding", 1, "Requests that are not answered."),
    "stores_away": ("stores_away", 1, "Locations in buckets that cannot be read at the moment."),
    "queued_samples": ("queued", 1, "Samples that wait for a worker."),
    "unread_request_bytes": ("unread_requests_mb", 1e6, "Bytes that came and were not read here."),
    "unread_reply_bytes": ("unread_replies_mb", 1e6, "Bytes that were sent and not read by loaders, as far as known."),
}
"""Name without prefix (and `_total`) -> the name in the status, its unit, and the help."""


class Metrics:
    """Makes the page of metrics from the status.

    Args:
        ask: returns the status; may be called by any thread.
    """

    def __init__(self, ask: Callable[[], Mapping[str, Any]]) -> None:
        self._ask = ask
        self._page, self._trouble, self._made_s = b"", "", -FRESH_S
        self._lock = threading.Lock()

    def page(self) -> bytes:
        """Return the page that Prometheus reads.

        Raises:
            AgentError: the broker does not answer.
        """
        with self._lock:
            if time.monotonic() - self._made_s >= FRESH_S:
                self._trouble = ""
                try:
                    status = self._ask()
                    self._page = exposition(lambda: families_of(status))
                except AgentError as error:  # each question to a silent broker waits for seconds
                    self._trouble = str(error)
                self._made_s = time.monotonic()
            if self._trouble:
                raise AgentError(self._trouble)
            return self._page


def families_of(status: Mapping[str, Any]) -> Iterator[Any]:
    """Yield a status as metric families of prometheus_client."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily

    yield InfoMetricFamily(_PREFIX, "Its release.", value={"version": status["version"]})
    for name, (place, label, text) in _LABELLED.items():
        family = CounterMetricFamily(f"{_PREFIX}_{name}", text, labels=[label])
        for value, count in status[place].items():
            family.add_metric([str(value)], count)
        yield family
    for name, (place, unit, text) in _COUNTERS.items():
        yield CounterMetricFamily(f"{_PREFIX}_{name}", text, value=_number(status[place], unit))
    for name, (place, unit, text) in _GAUGES.items():
        yield GaugeMetricFamily(f"{_PREFIX}_{name}", text, value=_number(status[place], unit))


def _number(value: float, unit: float) -> float:
    return value if unit == 1 else round(value * unit)


def open_port(place: tuple[str, int], ask: Callable[[], Mapping[str, Any]]) -> ScrapePort:
    """Open an agent's port for Prometheus.

    Args:
        place: host and port.
        ask: see `Metrics`.

    Raises:
        AgentError: it cannot listen there.
    """
    host, port = place
    try:
        return ScrapePort(host.strip("[]"), port, Metrics(ask).page)
    except OSError as error:
        raise AgentError(
            f"--metrics must be an address of this host with a free port, got {host}:{port}: "
            f"{error.strerror or error}; choose another port, or leave the option out"
        ) from error
