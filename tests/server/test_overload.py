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
# Who waits for a place is refused after 50 ms, which a busy machine may take for other work. A
# server that lets nobody wait refuses more: at times at the limit, and in each try above it.
TRIES = 3
MOST_REFUSED_AT_LIMIT = 0.001


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
    assert set(outcomes) <= {200, 503}
    return outcomes


def best_of_tries(
    server: RunningServer,
    clients: int,
    headers: dict[str, str],
    is_good: Callable[[Counter[object]], bool],
) -> Counter[object]:
    """The outcomes of the first try that is good; of the last one, where none is."""
    for _ in range(TRIES):
        outcomes = outcomes_of(server, clients, headers)
        if is_good(outcomes):
            break
    return outcomes


@pytest.mark.parametrize("headers", [{"Connection": "close"}, {}], ids=["told", "not told"])
def test_who_connects_anew_is_served_at_the_limit_and_above(
    start: Callable[..., RunningServer], headers: dict[str, str]
) -> None:
    server = start("--connections", str(LIMIT))
    for _ in range(3):
        server.predict(1, "a")

    def is_each_served(outcomes: Counter[object]) -> bool:
        return outcomes[503] <= MOST_REFUSED_AT_LIMIT * outcomes[200]

    at_limit = best_of_tries(server, LIMIT, headers, is_each_served)
    assert is_each_served(at_limit)

    def are_as_many_served(outcomes: Counter[object]) -> bool:
        return outcomes[200] > 0.4 * at_limit[200] and outcomes[503] < 0.1 * outcomes[200]

    for clients in (2 * LIMIT, 4 * LIMIT):  # so many wait for a place
        above = best_of_tries(server, clients, headers, are_as_many_served)
        assert are_as_many_served(above)

    def are_many_served(outcomes: Counter[object]) -> bool:
        return outcomes[200] > 0.2 * at_limit[200]

    flood = best_of_tries(server, 12 * LIMIT, headers, are_many_served)
    assert are_many_served(flood)


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
    assert time.monotonic() - began < 10
    time.sleep(0.5)  # those that waited for a place have been refused
    for connection in held:
        connection.close()
    began = time.monotonic()
    while server.ask("GET", "/healthz").status != 200:
        assert time.monotonic() - began < 5
    for connection in silent:
        connection.close()
