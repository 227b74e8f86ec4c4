"""The agent's socket, alone: what becomes of replies for loaders that have left."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import zmq

from storage_agent.clients.frontend import Frontend
from storage_agent.host.agent_settings import AgentSettings
from storage_agent.host.log import EventLog


@pytest.fixture
def frontend() -> Iterator[Frontend]:
    """One whose replies wait for one another, also on a busy machine: 10 bytes/s."""
    frontend = Frontend(AgentSettings({"d": "/"}, "tcp://127.0.0.1:0", workers=1, limit_mbit=0.00008), EventLog())
    yield frontend
    frontend.close()


def test_replies_that_come_after_their_loader_has_left_leave_nothing_behind(frontend: Frontend) -> None:
    clients = [b"gone %d" % n for n in range(50)]
    for client in clients:
        frontend.reply(client, [b"header", b"payload"])
        frontend.reply(client, [b"header", b"payload"])
    assert 0 < frontend.replies < 100, "some wait"
    later_s = time.monotonic()
    while frontend.replies:
        later_s += 3600
        frontend.send_due(later_s)
    assert frontend.dropped == 100 and frontend.sent_nbytes == 0
    assert not frontend._pacer._turns._clients and not frontend._pacer._nbytes


def test_a_reply_that_waited_goes_to_a_loader_that_is_there(frontend: Frontend) -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as loader:
        loader.linger = 0
        loader.connect(frontend.address)
        loader.send(b"question")
        assert frontend.socket.poll(5000)
        received = frontend.receive()
        assert received is not None
        client, *_ = received
        for number in (b"1", b"2"):
            frontend.reply(client, [number, b"payload"])
        assert frontend.replies == 1
        frontend.send_due(time.monotonic() + 3600)
        assert loader.poll(5000) and loader.recv_multipart() == [b"1", b"payload"]
        assert loader.poll(5000) and loader.recv_multipart() == [b"2", b"payload"]
