# SPDX-License-Identifier: Apache-2.0
"""Clients that connect anew for each request, as a gateway does by default: at the limit of
connections each is served, and above it the server goes on to serve as many."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable

import pytest
from running import RunningServer, sample

LIMIT = 8
SECONDS = 2.0


class NewConnections(threading.Thread):
    """Asks over a new connection each time, and counts the answers by status."""

    def __init__(self, server: RunningServer, headers: dict[str, str]) -> None:
        super().__init__()
        self.server, self.headers = server, headers
        self.outcomes: Counter[object] = Counter()

    def run(self) -> None:
        body = json.dumps({"input": sample(1), "id": "a"})
        ending = time.monotonic() + SECONDS
        while time.monotonic() < ending:
            try:
                answer = self.server.ask("POST", "/predict", body, self.headers)
                self.outcomes[answer.status] += 1
            except OSError as error:
                self.outcomes[repr(error)] += 1


def outcomes_of(server: RunningServer, clients: int, headers: dict[str, str]) -> Counter[object]:
    asking = [NewConnections(server, headers) for _ in range(clients)]
    for client in asking:
        client.start()
    outcomes: Counter[object] = Counter()
    for client in asking:
        client.join()
        outcomes.update(client.outcomes)
    print(f"\n{clients} clients: {dict(outcomes)}", end=" ")
    return outcomes


@pytest.mark.parametrize("headers", [{"Connection": "close"}, {}], ids=["told", "not told"])
def test_who_connects_anew_is_served_at_the_limit_and_above(
    start: Callable[..., RunningServer], headers: dict[str, str]
) -> None:
    server = start("--connections", str(LIMIT))
    for _ in range(3):
        server.predict(1, "a")
    at_limit = outcomes_of(server, LIMIT, headers)
    assert set(at_limit) == {200}
    for clients in (2 * LIMIT, 4 * LIMIT):  # so many wait for a place
        above = outcomes_of(server, clients, headers)
        assert set(above) <= {200, 503}
        assert above[200] > 0.4 * at_limit[200]
        assert above[503] < 0.1 * above[200]
    flood = outcomes_of(server, 12 * LIMIT, headers)
    assert set(flood) <= {200, 503}
    assert flood[200] > 0.2 * at_limit[200]


def test_silent_connections_above_the_limit_keep_nobody_out(
    start: Callable[..., RunningServer],
) -> None:
    server = start("--connections", str(LIMIT))
    held = [server.connection() for _ in range(LIMIT)]
    for connection in held:
        connection.connect()
    silent = [server.connection() for _ in range(300)]
    for connection in silent:
        connection.connect()
    began = time.monotonic()
    assert server.ask("GET", "/healthz").status == 503
    assert time.monotonic() - began < 1
    time.sleep(0.5)  # those that waited for a place have been refused
    for connection in held:
        connection.close()
    began = time.monotonic()
    while server.ask("GET", "/healthz").status != 200:
        assert time.monotonic() - began < 5
    for connection in silent:
        connection.close()
