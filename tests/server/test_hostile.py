# SPDX-License-Identifier: Apache-2.0
"""Requests that were made to harm: each gets a 4xx or is closed, and costs little."""

from __future__ import annotations

import gzip
import json
import socket
import threading
import time
from collections.abc import Callable

import pytest
from running import RunningServer, sample

MIB = 1 << 20
HEAD = "POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
ROW = json.dumps(sample(1))


def body_of(input: str, id: str = '"a"') -> bytes:
    return f'{{"input": {input}, "id": {id}}}'.encode()


BODIES = {
    "a body of 5 MiB": (413, b" " * (5 * MIB)),
    "a nesting of a million": (400, body_of("[" * MIB)),
    "a nesting of a million, closed": (400, body_of("[" * MIB + "]" * MIB)),
    "a million objects": (400, b'{"input":' * (MIB // 4)),
    "empty lists, a million": (400, body_of("[" + "[]," * MIB + "[]]")),
    "numbers, a million": (400, body_of("[" + "1," * MIB + "1]")),
    "a number of a million digits": (400, body_of("1" * MIB)),
    "a number beyond a float": (400, body_of("[[1e39" + ",0" * 31 + "]]")),
    "a number beyond a double": (400, body_of("[[1e999" + ",0" * 31 + "]]")),
    "NaN": (400, body_of("[[NaN" + ",0" * 31 + "]]")),
    "Infinity": (400, body_of("[[-Infinity" + ",0" * 31 + "]]")),
    "an id of a million bytes": (400, body_of(ROW, '"' + "a" * MIB + '"')),
    "an id with a NUL": (400, body_of(ROW, '"a\\u0000b"')),
    "an id with a line break": (400, body_of(ROW, '"a\\nb"')),
    "an id with a lone surrogate": (400, body_of(ROW, '"\\ud800"')),
    "an id that is no UTF-8": (400, body_of(ROW, "PLACE").replace(b"PLACE", b'"\xff\xfe"')),
    "a body that is no UTF-8": (400, b"\xff\xfe\x00\x01" * 100),
    "a body of NULs": (400, b"\0" * MIB),
    "no body": (400, b""),
    "100,000 ids": (400, f'{{"input": {ROW}, "ids": [{"1," * 100_000}1]}}'.encode()),
    "100,000 members": (400, ("{" + '"x":1,' * 100_000 + '"x":1}').encode()),
    "a name of a million bytes": (400, ('{"' + "x" * MIB + '":1}').encode()),
}


@pytest.mark.parametrize("name", BODIES)
def test_a_hostile_body_gets_a_4xx_and_costs_little(shared: RunningServer, name: str) -> None:
    status, body = BODIES[name]
    before_s = shared.cpu_s()
    answer = shared.ask("POST", "/predict", body)
    assert answer.status == status
    assert len(answer.error) <= 1000
    assert shared.cpu_s() - before_s < 0.3
    assert len(shared.predict(1, "a")[0]) == 4


def test_no_body_is_kept_in_memory(shared: RunningServer) -> None:
    for _ in range(3):
        shared.ask("POST", "/predict", BODIES["numbers, a million"][1])
    before = shared.memory_bytes()
    for _ in range(30):
        shared.ask("POST", "/predict", BODIES["numbers, a million"][1])
    assert shared.memory_bytes() - before < 20 * MIB


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else 0


RAW = {
    "no HTTP": (b"hello\r\n\r\n", {400}),
    "no HTTP, binary": (bytes(range(256)) * 4 + b"\r\n\r\n", {400}),
    "a path of 100,000 bytes": (b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n", {414, 431}),
    "a path that climbs": (b"GET /../../etc/passwd HTTP/1.1\r\nConnection: close\r\n\r\n", {404}),
    "a header of a MiB": (b"GET /healthz HTTP/1.1\r\nX: " + b"a" * MIB + b"\r\n\r\n", {400, 431}),
    "100,000 headers": (b"GET /healthz HTTP/1.1\r\n" + b"X: a\r\n" * 100_000 + b"\r\n", {400, 431}),
    "no size": (HEAD.encode() + b"\r\n{}", {411}),
    "chunks": (HEAD.encode() + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", {411}),
    "two sizes": (HEAD.encode() + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}", {411}),
    "a size and chunks": (
        HEAD.encode() + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}",
        {411},
    ),
    "a size that is no number": (HEAD.encode() + b"Content-Length: two\r\n\r\n{}", {400}),
    "a negative size": (HEAD.encode() + b"Content-Length: -1\r\n\r\n{}", {400}),
    "a size of 10^30": (HEAD.encode() + b"Content-Length: 1" + b"0" * 30 + b"\r\n\r\n", {413}),
    "a size that never comes": (HEAD.encode() + b"Content-Length: 4194304\r\n\r\n{", {400, 408}),
}


@pytest.mark.parametrize("name", RAW)
def test_hostile_bytes_get_a_4xx_or_are_closed(
    start: Callable[..., RunningServer], name: str
) -> None:
    server = start("--request-timeout-ms", "1000")
    data, statuses = RAW[name]
    try:
        answer = server.raw(data)
    except (ConnectionResetError, BrokenPipeError):
        answer = b""
    assert status_of(answer) in statuses, answer[:300]
    assert server.process.poll() is None
    assert len(server.predict(1, "a")[0]) == 4


def test_a_body_that_would_unpack_to_much_is_refused(shared: RunningServer) -> None:
    bomb = gzip.compress(b" " * (512 * MIB // 8))
    before = shared.memory_bytes()
    answer = shared.ask("POST", "/predict", bomb, {"Content-Encoding": "gzip"})
    assert answer.status == 415
    assert shared.memory_bytes() - before < 8 * MIB


def test_ranges_are_ignored(shared: RunningServer) -> None:
    many = "bytes=" + ",".join(["0-"] * 2000)
    answer = shared.ask("GET", "/", headers={"Range": many})
    assert answer.status in (200, 416)
    assert len(answer.text) < MIB


def test_form_data_is_not_even_read(shared: RunningServer) -> None:
    kinds = ("multipart/form-data; boundary=x", "application/x-www-form-urlencoded")
    for kind in kinds:
        answer = shared.ask("POST", "/predict", b"--x\r\n" * 1000, {"Content-Type": kind})
        assert answer.status == 415


def test_an_id_never_becomes_a_path(server: RunningServer) -> None:
    server.predict(1, "a")
    before = {path.name for path in server.directory.parent.iterdir()}
    ids = ("../../escape", "/tmp/x", "..", "a/../../b", "con", "%2e%2e%2f", "$(touch x)", "'\"`")
    for each in ids:
        server.predict(1, each)
        server.predict(1, each, X_Cache_Salt=each)
    assert server.stop() == 0
    assert {path.name for path in server.directory.parent.iterdir()} == before
    assert not [p for p in server.directory.rglob("*") if "escape" in p.name or "touch" in p.name]


def test_slow_senders_lose_their_place(start: Callable[..., RunningServer]) -> None:
    server = start("--connections", "4", "--request-timeout-ms", "1500")
    slow = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(4)]
    for connection in slow:
        connection.sendall(HEAD.encode()[:-10])

    def drip() -> None:  # a byte now and then keeps a naive time limit from ever passing
        for byte in b"X-Slow: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa":
            for connection in slow:
                try:
                    connection.sendall(bytes([byte]))
                except OSError:
                    return
            time.sleep(0.1)

    dripping = threading.Thread(target=drip)
    dripping.start()
    began = time.monotonic()
    assert server.ask("GET", "/healthz").status == 503  # all places are taken, and that is told
    while server.ask("GET", "/healthz").status != 200:
        assert time.monotonic() - began < 10
        time.sleep(0.1)
    assert time.monotonic() - began < 6
    dripping.join()
    for connection in slow:
        connection.close()


def test_who_never_reads_loses_his_place(start: Callable[..., RunningServer]) -> None:
    server = start("--connections", "1", "--idle-timeout-ms", "1000")
    with socket.create_connection(("127.0.0.1", server.port)) as idle:
        idle.sendall(b"GET /status HTTP/1.1\r\nHost: x\r\n\r\n")
        began = time.monotonic()
        while server.ask("GET", "/healthz").status != 200:
            assert time.monotonic() - began < 10
            time.sleep(0.1)


def test_connections_above_the_limit_are_told_at_once(
    start: Callable[..., RunningServer],
) -> None:
    server = start("--connections", "8")
    held = [server.connection() for _ in range(8)]
    for connection in held:
        connection.request("GET", "/healthz")
        assert connection.getresponse().read()
    took_s = []
    for _ in range(20):
        began = time.monotonic()
        answer = server.ask("GET", "/healthz")
        took_s.append(time.monotonic() - began)
        assert answer.status == 503
        assert answer.headers["Retry-After"] == "1"
        assert "all connections are in use" in answer.error
    assert sorted(took_s)[10] < 0.1
    held[0].close()
    deadline = time.monotonic() + 5
    while server.ask("GET", "/healthz").status != 200:
        assert time.monotonic() < deadline
    handles = server.handles()
    flood = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(300)]
    assert server.handles() - handles < 100
    for connection in (*flood, *held):
        connection.close()


def test_two_servers_do_not_share_a_port(start: Callable[..., RunningServer]) -> None:
    server = start()
    with pytest.raises(AssertionError, match=r"cannot listen on 127\.0\.0\.1:.*in use"):
        start("--port", str(server.port))
