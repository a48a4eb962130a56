# SPDX-License-Identifier: Apache-2.0
"""A server that is told to stop answers what it has taken, and leaves what it knew on disk."""

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
    """Asks over one connection until the server says that it ends, and checks each answer."""

    def __init__(self, server: RunningServer, number: int, expected: list[object]) -> None:
        super().__init__()
        self.server, self.number, self.expected = server, number, expected
        self.answered = 0
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            self.ask_until_told()
        except BaseException as failure:
            self.failure = failure

    def ask_until_told(self) -> None:
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
    """Stops the server while the clients ask it. None of them may miss an answer."""
    for client in clients:
        client.start()
    time.sleep(after_s)
    assert server.stop() == 0
    for client in clients:
        client.join(timeout=30)
    assert [client.failure for client in clients if client.failure] == []
    return sum(client.answered for client in clients)


def test_no_request_is_lost_when_a_server_stops_under_load(start: Start) -> None:
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


class NewConnections(Client):
    """Connects anew for each request, until nobody takes its connection any more."""

    def ask_until_told(self) -> None:
        while True:
            connection = self.server.connection()
            try:
                connection.connect()
            except ConnectionRefusedError:
                return
            number = (self.number + self.answered) % len(self.expected)
            body = json.dumps({"input": sample(number), "id": number})
            headers = {"Content-Type": "application/json", "Connection": "close"}
            connection.request("POST", "/predict", body, headers)
            answer = Answer(connection.getresponse())
            assert answer.status == 200, answer.text
            assert answer.json["output"] == self.expected[number]
            self.answered += 1
            connection.close()


@pytest.mark.parametrize("drain_ms", ["0", "300"])
def test_no_connection_that_was_made_is_lost_when_a_server_stops(
    start: Start, drain_ms: str
) -> None:
    for _ in range(5):  # the moment of the stop is another each time
        server = start("--drain-ms", drain_ms, run_ms=1)
        expected: list[object] = [server.predict(number, number) for number in range(30)]
        clients = [NewConnections(server, 7 * number, expected) for number in range(CLIENTS)]
        assert answered_until_stopped(server, clients, after_s=0.4) > CLIENTS


def test_while_it_stops_a_server_says_so(start: Start) -> None:
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


def test_idle_connections_do_not_hold_up_a_stop(start: Start) -> None:
    server = start("--drain-ms", "100")
    connections = [server.connection() for _ in range(20)]
    for connection in connections:
        connection.request("GET", "/healthz")
        connection.getresponse().read()
    began = time.monotonic()
    assert server.stop(timeout_s=20) == 0
    assert time.monotonic() - began < 20, "an idle connection is closed after 30 s"


def test_a_request_that_runs_is_finished(start: Start) -> None:
    server = start("--drain-ms", "0", run_ms=3000)
    answers: list[object] = []
    asking = threading.Thread(target=lambda: answers.append(server.predict(1, "a")))
    asking.start()
    deadline = time.monotonic() + 30
    while server.ask("GET", "/status").json["open_connections"] < 2:  # its, and the asking one
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert server.stop(timeout_s=60) == 0
    asking.join()
    assert len(answers) == 1


def test_an_interrupt_ends_it_too(start: Start) -> None:
    server = start("--drain-ms", "0")
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(10) == 0
