"""What Prometheus reads at both ends, over real sockets: the numbers, and that a client can do no harm."""

from __future__ import annotations

import contextlib
import http.client
import multiprocessing
import socket
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sophon_loader.errors import ConfigError, OffloadWarning
from sophon_loader.host import scraping
from sophon_loader.run import exporting
from tests.support.agents import EXPORT, Agent, agent_for, run_command
from tests.support.loaders import QUICK, MakeLoader

FILES = 24
LOADER = {"batch_size": 4, "seed": 3, "policy": "resize-off"}
Values = dict[tuple[str, ...], float]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


@pytest.fixture
def port() -> Iterator[int]:
    """A port that is free, and at the end closed again."""
    yield free_port()
    for one in exporting._PORTS:
        one.close()
    exporting._PORTS.clear()
    exporting._EXPORTERS.clear()


def labels(sample: Any) -> list[str]:
    return [sample.labels[name] for name in sorted(sample.labels, key=lambda name: (name != "loader", name))]


def scraped(port: int) -> Values:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        text = answer.read().decode()
    families = list(text_string_to_metric_families(text))
    assert all(family.documentation for family in families)
    return {(one.name, *labels(one)): one.value for family in families for one in family.samples}


def answered(port: int, request: bytes) -> bytes:
    """The status line that a request gets."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        client.sendall(request)
        with client.makefile("rb") as answer:
            return answer.readline().strip()


def with_port(port: int) -> Any:
    return replace(QUICK, metrics_port=port)


# --- the loader ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_loaders_share_a_port_and_are_labels(make: MakeLoader, port: int, workers: int) -> None:
    train, val = (make(options=with_port(port), num_workers=workers) for _ in range(2))
    for _ in range(2):
        list(train)
    list(val)
    told = scraped(port)
    assert (told["sophon_loader_samples_total", "0"], told["sophon_loader_samples_total", "1"]) == (2 * FILES, FILES)
    assert (told["sophon_loader_epochs_total", "0"], told["sophon_loader_epochs_total", "1"]) == (2, 1)
    assert told["sophon_loader_wire_bytes_total", "0"] > told["sophon_loader_wire_bytes_total", "1"] > 0
    assert 0 < told["sophon_loader_waiting_seconds_total", "0"] < told["sophon_loader_seconds_total", "0"]
    assert told["sophon_loader_workers", "0"] == workers


def test_it_is_told_within_an_epoch(make: MakeLoader, port: int) -> None:
    batches = iter(make(options=with_port(port), num_workers=1))
    seen = []
    for _ in batches:
        seen.append(scraped(port)["sophon_loader_samples_total", "0"])
    assert seen == sorted(seen) and 0 < seen[0] < seen[-1]


def test_batches_are_what_they_are_without_it(make: MakeLoader, port: int) -> None:
    with_it, without = make(options=with_port(port), num_workers=0), make(num_workers=0)
    assert all(bool((one[0] == other[0]).all()) for one, other in zip(with_it, without, strict=True))


def test_no_port_and_no_thread_unless_asked_for(make: MakeLoader) -> None:
    list(make())
    assert not exporting._PORTS and not exporting._EXPORTERS


def test_a_port_in_use_is_one_warning(make: MakeLoader, port: int) -> None:
    with socket.create_server(("127.0.0.1", port)):
        one, other = (make(options=with_port(port)) for _ in range(2))
        with pytest.warns(
            OffloadWarning, match=rf"127\.0\.0\.1:{port}: Address already in use.*Training goes on"
        ) as said:
            assert len(list(one)) == len(list(other)) == len(list(one)) == FILES // 4
        assert len(said) == 1 and said[0].filename == __file__


def test_each_rank_of_a_host_has_a_port(make: MakeLoader, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "3")
    list(make(options=with_port(port - 3)))
    assert scraped(port)["sophon_loader_samples_total", "0"] == FILES


def test_a_missing_package_is_told_with_the_extra(make: MakeLoader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ConfigError, match=r"metrics_port must go with .* `pip install 'sophon_loader\[metrics\]'`"):
        make(options=with_port(9400))


def test_workers_that_outlive_the_loader_do_not_hold_the_port(make: MakeLoader, port: int) -> None:
    loader = make(options=with_port(port))
    list(loader)
    context = multiprocessing.get_context("fork")
    child = context.Process(target=time.sleep, args=(60,))
    child.start()
    try:
        assert scraped(port)
        exporting._PORTS[-1].close()
        with socket.create_server(("127.0.0.1", port)):
            assert child.is_alive()
    finally:
        child.kill()
        child.join()


# --- the agent -----------------------------------------------------------------------------------------------------


@pytest.fixture
def told(root: Path, port: int) -> Iterator[Agent]:
    """An agent that Prometheus may ask."""
    with agent_for({EXPORT: root}, "--metrics", str(port)) as running:
        yield running


def test_the_agent_tells_its_status_in_base_units(make: MakeLoader, told: Agent, port: int) -> None:
    list(make(agent=told.address()))
    told.ready()
    status, values = told.status(), scraped(port)
    assert values["sophon_agent_answers_total", "pixels"] == status["answers"]["pixels"] == FILES
    assert values["sophon_agent_sent_bytes_total",] == pytest.approx(1e6 * status["sent_mb"], rel=0.2)
    assert values["sophon_agent_cpu_seconds_total",] == status["cpu_s"] > 0
    assert (values["sophon_agent_workers",], values["sophon_agent_worker_deaths_total",]) == (status["workers"], 0)
    assert values["sophon_agent_info", status["version"]] == 1


def test_the_agent_names_no_export_key_or_client(make: MakeLoader, told: Agent, port: int, root: Path) -> None:
    list(make(agent=told.address()))
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        text = answer.read().decode()
    assert 'sophon_agent_answers_total{encoding="pixels"}' in text
    assert not [name for name in (EXPORT, str(root), "127.0.0.1", told.status()["instance"]) if name in text]


def test_a_flood_of_questions_takes_nothing_of_the_broker(told: Agent, port: int) -> None:
    pages = {scraped(port)["sophon_agent_uptime_seconds",] for _ in range(50)}
    assert len(pages) < 10
    assert told.alive()


def test_an_agent_that_is_stopped_is_not_held_up(told: Agent, port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)):  # says nothing
        assert told.end() == 0
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", port)).close()


def test_a_broker_that_is_silent_is_told(told: Agent, port: int, root: Path) -> None:
    told.ready()
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        told.pause()
        client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        told.go_on()
        assert client.recv(100).startswith(b"HTTP/1.1 ")


def test_a_port_in_use_ends_the_agents_start(root: Path, port: int) -> None:
    with socket.create_server(("127.0.0.1", port)):
        done = run_command("serve", "--export", f"d={root}", "--bind", "tcp://127.0.0.1:0", "--metrics", str(port))
    assert done.returncode == 1 and done.stdout == ""
    assert f"--metrics must be an address of this host with a free port, got 127.0.0.1:{port}: Address" in done.stderr


# --- the port ------------------------------------------------------------------------------------------------------


@pytest.fixture
def page(port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A port with a page of its own."""
    monkeypatch.setattr(scraping, "ANSWER_S", 0.5)
    one = scraping.ScrapePort("127.0.0.1", port, lambda: b"x 1\n")
    yield port
    one.close()


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /metrics HTTP/1.1\r\n\r\n", b"HTTP/1.1 200 OK"),
        (b"GET /metrics?name[]=x HTTP/1.0\r\nHost: x\r\n\r\n", b"HTTP/1.1 200 OK"),
        (b"GET / HTTP/1.1\r\n\r\n", b"HTTP/1.1 404 Not Found"),
        (b"GET /metrics/../x HTTP/1.1\r\n\r\n", b"HTTP/1.1 404 Not Found"),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 0\r\n\r\n", b"HTTP/1.1 405 Method Not Allowed"),
        (b"HEAD /metrics HTTP/1.1\r\n\r\n", b"HTTP/1.1 405 Method Not Allowed"),
        (b"\x16\x03\x01\r\n\r\n", b"HTTP/1.1 400 Bad Request"),
        (b"GET /metrics\r\n\r\n", b"HTTP/1.1 400 Bad Request"),
    ],
)
def test_get_metrics_and_nothing_else(page: int, request_: bytes, status: bytes) -> None:
    assert answered(page, request_) == status


@pytest.mark.parametrize("sends", ["nothing", "a byte at a time", "a head without an end"])
def test_no_client_holds_the_port_for_long(page: int, sends: str) -> None:
    with socket.create_connection(("127.0.0.1", page), timeout=20) as client, contextlib.suppress(OSError):
        end_s = time.monotonic() + 10.0
        client.setblocking(True)
        while time.monotonic() < end_s and sends != "nothing":
            client.sendall(b"G" if sends == "a byte at a time" else b"G" * 4096)
            time.sleep(0.05)
        client.settimeout(10.0)
        assert client.recv(100) == b""
    assert answered(page, b"GET /metrics HTTP/1.1\r\n\r\n") == b"HTTP/1.1 200 OK"


def test_a_client_that_does_not_read_is_hung_up_on(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scraping, "ANSWER_S", 0.5)
    one = scraping.ScrapePort("127.0.0.1", port, lambda: b"x" * (64 << 20))
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert answered(port, b"GET / HTTP/1.1\r\n\r\n") == b"HTTP/1.1 404 Not Found"
    one.close()


def test_clients_that_say_nothing_keep_nobody_from_the_page(port: int) -> None:
    one = scraping.ScrapePort("127.0.0.1", port, lambda: b"x 1\n")
    with contextlib.ExitStack() as held:
        silent = [held.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20)) for _ in range(50)]
        began_s = time.monotonic()
        for _ in range(3):
            assert answered(port, b"GET /metrics HTTP/1.1\r\n\r\n") == b"HTTP/1.1 200 OK"
        assert time.monotonic() - began_s < scraping.ANSWER_S / 2
        assert len(one._exchanges) <= scraping.MAX_CONNECTIONS
        assert silent[0].recv(1) == b"", "the oldest one makes place"
        silent[-1].sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert silent[-1].recv(100).startswith(b"HTTP/1.1 404 "), "one that is left may still ask"
    one.close()


def test_a_request_in_pieces_gets_a_long_answer_in_pieces(port: int) -> None:
    one = scraping.ScrapePort("127.0.0.1", port, lambda: b"x" * (32 << 20))
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        client.sendall(b"GET /metrics HTTP/1.1\r\n\r")
        assert answered(port, b"GET / HTTP/1.1\r\n\r\n") == b"HTTP/1.1 404 Not Found"
        client.sendall(b"\n")
        with client.makefile("rb") as answer:
            assert len(answer.read().partition(b"\r\n\r\n")[2]) == 32 << 20
    one.close()


def test_a_page_that_fails_is_told_and_the_next_one_comes(port: int) -> None:
    pages = [b"x 1\n"]
    one = scraping.ScrapePort("127.0.0.1", port, pages.pop)
    assert answered(port, b"GET /metrics HTTP/1.1\r\n\r\n") == b"HTTP/1.1 200 OK"
    assert answered(port, b"GET /metrics HTTP/1.1\r\n\r\n") == b"HTTP/1.1 503 Service Unavailable"
    pages.append(b"x 2\n")
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("GET", "/metrics")
    assert connection.getresponse().read() == b"x 2\n"
    connection.close()
    one.close()


def test_other_hosts_do_not_reach_it(make: MakeLoader, port: int) -> None:
    list(make(options=with_port(port)))
    assert exporting._PORTS[-1]._socket.getsockname() == ("127.0.0.1", port)
