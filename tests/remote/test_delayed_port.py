# SPDX-License-Identifier: Apache-2.0
"""A proxy before a server is as slow or broken as it is told to be."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from delayed_port import DelayedPort, UnansweredPort
from redis_servers import RedisServer
from redis_wire import RedisConnection

# They are about the servers of tests, which each test of the remote tier uses.
pytestmark = pytest.mark.thorough


@pytest.fixture
def proxy(server: RedisServer) -> Iterator[DelayedPort]:
    with DelayedPort("127.0.0.1", server.port) as proxy:
        yield proxy


def round_trip_ms(connection: RedisConnection) -> float:
    began = time.monotonic()
    assert connection.ask("PING") == b"PONG"
    return (time.monotonic() - began) * 1000


def test_a_proxy_delays_as_it_is_told(server: RedisServer, proxy: DelayedPort) -> None:
    with server.connect(proxy.port) as connection:
        for delay_ms in (0, 1, 20, 100, 1):
            proxy.delay_ms = delay_ms
            assert proxy.delay_ms == delay_ms
            times = sorted(round_trip_ms(connection) for _ in range(5))
            print(f"+{delay_ms} ms: {times[2]:.2f} ms")
            assert delay_ms <= times[0] < delay_ms + 10
    assert proxy.accepted == 1


def test_a_delay_does_not_slow_what_is_under_way(server: RedisServer, proxy: DelayedPort) -> None:
    server.cli("SET", "key", b"x" * 1_000_000)
    proxy.delay_ms = 100
    with server.connect(proxy.port) as connection:
        began = time.monotonic()
        answers = connection.ask_all([("GET", "key")] * 20)
        taken_s = time.monotonic() - began
    assert [len(answer) for answer in answers if isinstance(answer, bytes)] == [1_000_000] * 20
    assert taken_s < 20 * 0.1, "one delay after another"


def test_a_black_hole_takes_and_gives_back_later(server: RedisServer, proxy: DelayedPort) -> None:
    with server.connect(proxy.port, timeout_s=0.2) as connection:
        assert connection.ask("PING") == b"PONG"
        proxy.black_hole()
        with pytest.raises(TimeoutError):
            connection.ask("PING")
        with server.connect(proxy.port, timeout_s=0.2) as late, pytest.raises(TimeoutError):
            late.ask("SET", "key", "value")
        assert server.cli("EXISTS", "key") == "0"
        proxy.forward()
        with server.connect(proxy.port) as healthy:
            assert healthy.ask("PING") == b"PONG"


def test_answers_drip(server: RedisServer, proxy: DelayedPort) -> None:
    with server.connect(proxy.port) as connection:
        proxy.drip()
        assert round_trip_ms(connection) > 250  # +PONG and the end of its line are 7 bytes
        proxy.forward()
        assert round_trip_ms(connection) < 200


def test_answers_are_garbage_or_http(server: RedisServer, proxy: DelayedPort) -> None:
    for spoil in (proxy.answer_garbage, proxy.answer_http):
        proxy.forward()
        with server.connect(proxy.port) as connection:
            assert connection.ask("PING") == b"PONG"
            spoil()
            with pytest.raises(ConnectionError, match=r"no answer of Redis|in an answer"):
                connection.ask("SET", "key", "value")
    assert server.cli("EXISTS", "key") == "0"


def test_connections_are_closed(server: RedisServer, proxy: DelayedPort) -> None:
    for close in (proxy.close_at_once, proxy.reset_at_once):
        proxy.forward()
        with server.connect(proxy.port) as connection:
            assert connection.ask("PING") == b"PONG"
            close()
            with pytest.raises(ConnectionError):
                connection.ask("PING")
        with pytest.raises(ConnectionError):
            server.connect(proxy.port).ask("PING")


def test_answers_are_cut_short(server: RedisServer, proxy: DelayedPort) -> None:
    server.cli("SET", "key", "x" * 1000)
    with server.connect(proxy.port) as connection:
        proxy.cut_answers(500)
        with pytest.raises(ConnectionError, match="in an answer"):
            connection.ask("GET", "key")
    proxy.cut_answers(500, then_silent=True)
    with server.connect(proxy.port, timeout_s=0.2) as connection, pytest.raises(TimeoutError):
        connection.ask("GET", "key")


def test_connecting_hangs() -> None:
    with UnansweredPort() as hole:
        for _ in range(3):
            with pytest.raises(TimeoutError):
                RedisConnection(("127.0.0.1", hole.port), timeout_s=0.2)
