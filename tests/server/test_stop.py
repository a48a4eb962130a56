# SPDX-License-Identifier: Apache-2.0
"""SIGTERM: running requests are answered, and stored results are on disk."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Sequence

import pytest
from running import Answer, RunningServer, sample

Start = Callable[..., RunningServer]
CLIENTS = 16


class Client(threading.Thread):
    """Sends requests over one connection until a response closes it, and checks each response."""

    def __init__(self, server: RunningServer, number: int, expected: list[object]) -> None:
        super().__init__()
        self.server, self.number, self.expected = server, number, expected
        self.answered = 0
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            self.ask_until_closed()
        except BaseException as failure:
            self.failure = failure

    def ask_until_closed(self) -> None:
        connection = self.server.connection()
        connection.connect()
        while True:
            number = (self.number + self.answered) % len(self.expected)
            body = json.dumps({"input": sample(number), "id": number})
            connection.request("POST", "/predict", body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            answer = Answer(response)
            assert answer.status == 200, answer.text
            assert answer.json["output"] == self.expected[number]
            self.answered += 1
            if answer.headers["Connection"] == "close":
                break
        connection.close()


def answered_until_stopped(server: RunningServer, clients: Sequence[Client], after_s: float) -> int:
    """Stops the server under load, and returns the number of responses. None may be missing."""
    for client in clients:
        client.start()
    time.sleep(after_s)
    assert server.stop() == 0
    for client in clients:
        client.join(timeout=30)
    assert [client.failure for client in clients if client.failure] == []
    return sum(client.answered for client in clients)


def test_stop_under_load_loses_no_request(start: Start) -> None:
    server = start(run_ms=3)
    server.mode("off")
    expected: list[object] = [server.predict(number) for number in range(30)]
    server.mode("on")
    clients = [Client(server, 7 * number, expected) for number in range(CLIENTS)]
    assert answered_until_stopped(server, clients, after_s=1.5) > 10 * CLIENTS
    with pytest.raises(ConnectionRefusedError):
        server.ask("GET", "/healthz")
    server = start(run_ms=3)
    for number in range(30):
        assert server.predict(number, number) == expected[number]
    assert server.counted()[:2] == (30, 0)


def test_healthz_fails_during_drain(start: Start) -> None:
    server = start("--drain-ms", "60000")
    server.process.terminate()
    deadline = time.monotonic() + 30
    while server.ask("GET", "/healthz").status == 200:
        assert time.monotonic() < deadline
    assert "is stopping" in server.ask("GET", "/healthz").error
    assert len(server.predict(1, "a")[0]) == 4
    began = time.monotonic()
    server.process.terminate()  # a second signal ends the wait
    assert server.process.wait(30) == 0
    assert time.monotonic() - began < 30


def test_stop_waits_for_idle_connections_a_few_seconds_at_most(start: Start) -> None:
    server = start("--drain-ms", "100")
    connections = [server.connection() for _ in range(20)]
    for connection in connections:
        connection.request("GET", "/healthz")
        connection.getresponse().read()
    began = time.monotonic()
    assert server.stop(timeout_s=20) == 0
    assert time.monotonic() - began < 20  # the keep-alive timeout is 5 s


def test_running_request_is_answered(start: Start) -> None:
    server = start("--drain-ms", "0", run_ms=3000)
    answers: list[object] = []
    asking = threading.Thread(target=lambda: answers.append(server.predict(1, "a")))
    asking.start()
    time.sleep(1)  # the run takes 3 s
    assert server.stop(timeout_s=60) == 0
    asking.join()
    assert len(answers) == 1


def test_sigint_stops_the_server(start: Start) -> None:
    server = start("--drain-ms", "0")
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(10) == 0
