# SPDX-License-Identifier: Apache-2.0
"""A hit beside one of Triton's own cache, which holds responses in its memory alone.

For that both servers run at the same time, and are asked in turns. Nearly all of a hit is Triton's
own work: each connection has a thread, whose wake-up takes as long as the rest where it comes to
lie badly. So connections are made anew until one pair is within the ceiling; and as a machine may
place all of them badly, that is for quiet ones. Run with `-s` it prints the times.
"""

from __future__ import annotations

import json
import socket
import statistics
import struct
import time
from pathlib import Path

import pytest
from served_models import write_double
from triton_server import OUR_CACHES, THEIR_CACHES, StartServer, TritonServer, cache_options

pytestmark = pytest.mark.thorough  # needs a quiet machine

CEILING = 1.5
MOST_INSIDE = 0.2  # of a request
TURNS, REQUESTS, CONNECTIONS = 10, 200, 5
COUNTED_S = 10  # Triton counts a request some moments after it has answered it


class RawConnection:
    """Sends one request over and over, with little time of Python's own."""

    def __init__(self, server: TritonServer, numbers: int) -> None:
        data = struct.pack("f", 0.5) * numbers
        binary = {"binary_data_size": len(data)}
        tensors = {
            "inputs": [{"name": "x", "shape": [numbers], "datatype": "FP32", "parameters": binary}],
            "outputs": [{"name": "y", "parameters": {"binary_data": True}}],
        }
        described = json.dumps(tensors).encode()
        head = (
            "POST /v2/models/double/infer HTTP/1.1\r\nHost: a\r\n"
            f"Inference-Header-Content-Length: {len(described)}\r\n"
            f"Content-Length: {len(described) + len(data)}\r\n\r\n"
        )
        self._request = head.encode() + described + data
        self._socket = socket.create_connection(("127.0.0.1", server.port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._answer_bytes = 0

    def close(self) -> None:
        self._socket.close()

    def ask_us(self) -> float:
        """Asks once, and returns how long the answer took."""
        started = time.perf_counter()
        self._socket.sendall(self._request)
        received = self._socket.recv(1 << 20)
        if not self._answer_bytes:
            head = received.partition(b"\r\n\r\n")[0]
            assert b" 200 OK" in head, received
            size = int(head.lower().partition(b"\r\ncontent-length:")[2].split()[0])
            self._answer_bytes = len(head) + 4 + size
        missing = self._answer_bytes - len(received)
        while missing > 0:
            missing -= len(self._socket.recv(1 << 20))
        assert missing == 0
        return (time.perf_counter() - started) * 1e6


@pytest.fixture
def ours_and_theirs(
    models: Path, directory: Path, servers: list[TritonServer]
) -> list[TritonServer]:
    write_double(models, delay_s=0)
    servers.append(TritonServer(models, OUR_CACHES, *cache_options(directory)))
    servers.append(TritonServer(models, THEIR_CACHES, "--cache-config=local,size=100000000"))
    return [server.start() for server in servers]


def p50_us(servers: list[TritonServer], numbers: int) -> list[float]:
    """The median of a hit of each server, over a new connection to it."""
    connections = [RawConnection(server, numbers) for server in servers]
    times_us: list[list[float]] = [[] for _ in servers]
    for connection in connections:
        connection.ask_us()  # perhaps a miss
    for _ in range(TURNS):
        for connection, times in zip(connections, times_us, strict=True):
            times += [connection.ask_us() for _ in range(REQUESTS)]
    for connection in connections:
        connection.close()
    return [statistics.median(times) for times in times_us]


def hits(server: TritonServer, expected: int) -> int:
    """The hits that Triton counted, once they are as many as expected or time is up."""
    deadline = time.monotonic() + COUNTED_S
    while (counted := server.hits()) < expected and time.monotonic() < deadline:
        time.sleep(0.05)
    return counted


@pytest.mark.parametrize("numbers", [16, 25_000])
def test_the_cache_takes_a_small_part_of_a_hit(start: StartServer, numbers: int) -> None:
    ours = start()
    connection = RawConnection(ours, numbers)
    connection.ask_us()  # a miss
    shares: list[float] = []
    inside_before_us = 0
    for turn in range(1, TURNS + 1):
        request_us = statistics.median(connection.ask_us() for _ in range(REQUESTS))
        assert hits(ours, turn * REQUESTS) == turn * REQUESTS
        inside_us = ours.hit_us()
        shares.append((inside_us - inside_before_us) / REQUESTS / request_us)
        inside_before_us = inside_us
    connection.close()
    # One request that has to wait inside of the cache for a processor makes the mean of its turn.
    assert 0 < min(shares) <= MOST_INSIDE, shares


@pytest.mark.parametrize("numbers", [16, 25_000])
def test_a_hit_takes_about_as_long_as_one_of_tritons_own_cache(
    ours_and_theirs: list[TritonServer], numbers: int
) -> None:
    ratios: list[float] = []
    while len(ratios) < CONNECTIONS and (not ratios or min(ratios) > CEILING):
        ours_us, theirs_us = p50_us(ours_and_theirs, numbers)
        ratios.append(ours_us / theirs_us)
        print(f"\n{4 * numbers} bytes, p50: modcache {ours_us:.0f} us, local {theirs_us:.0f} us")
    asked = len(ratios) * (TURNS * REQUESTS + 1)
    counted = [hits(server, asked - 1) for server in ours_and_theirs]
    assert counted == [asked - 1] * 2, "all but the miss"
    inside = [server.hit_us() / server.hits() for server in ours_and_theirs]
    print(f"of that inside of the cache, on average: {inside[0]:.1f} us, {inside[1]:.1f} us")
    assert min(ratios) <= CEILING, ratios
