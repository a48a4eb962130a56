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
from running import TICKS_PER_S, RunningServer, sample

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
    "empty lists, a million": (413, body_of("[" + "[]," * MIB + "[]]")),
    "numbers, a million": (413, body_of("[" + "1," * MIB + "1]")),
    "numbers of one row, a million": (400, body_of("[[" + "1," * MIB + "1]]")),
    "63,000 rows, of no id": (
        413,
        b'{"input": [' + b",".join([b"[" + b"1," * 31 + b"1]"] * 63_000) + b"]}",
    ),
    "4097 rows, of one id": (413, body_of("[" + ",".join(["[" + "0," * 31 + "0]"] * 4097) + "]")),
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
    "100,000 ids": (413, f'{{"input": {ROW}, "ids": [{"1," * 100_000}1]}}'.encode()),
    "100,000 members": (400, ("{" + '"x":1,' * 100_000 + '"x":1}').encode()),
    "a name of a million bytes": (400, ('{"' + "x" * MIB + '":1}').encode()),
}


@pytest.fixture(scope="module")
def reading_s() -> float:
    """What reading one of the larger bodies costs here: Python's own parser, which makes a tree."""
    body = BODIES["numbers, a million"][1]
    costs_s = []
    for _ in range(3):
        before_s = time.process_time()
        json.loads(body)
        costs_s.append(time.process_time() - before_s)
    return min(costs_s)


@pytest.mark.parametrize("name", BODIES)
def test_a_hostile_body_gets_a_4xx_and_costs_little(
    shared: RunningServer, reading_s: float, name: str
) -> None:
    status, body = BODIES[name]
    costs_s: list[float] = []
    most_s = 4 * reading_s + 2 / TICKS_PER_S
    while not costs_s or (min(costs_s) > most_s and len(costs_s) < 5):
        before_s = shared.cpu_s()
        answer = shared.ask("POST", "/predict", body)
        costs_s.append(shared.cpu_s() - before_s)
        assert answer.status == status
        assert len(answer.error) <= 1000
    assert min(costs_s) <= most_s
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


INNER = b"GET /healthz HTTP/1.1\r\n\r\n"
INNER_SIZE = f"Content-Length: {len(INNER)}\r\n".encode()
GET = b"GET /metrics HTTP/1.1\r\n"
# A gateway may take INNER for the body of what comes before; to this server it must be no request.
SMUGGLED = {
    "two sizes, of GET": (GET + b"Content-Length: 0\r\n" + INNER_SIZE, 400),
    "two sizes, of GET, the other way": (GET + INNER_SIZE + b"Content-Length: 0\r\n", 400),
    "one size twice, of GET": (GET + INNER_SIZE + INNER_SIZE, 400),
    "a size, of GET": (GET + INNER_SIZE, 200),
    "a list of sizes": (GET + b"Content-Length: 0, 35\r\n", 400),
    "a size in other digits": (GET + b"Content-Length: %30\r\n", 400),
    "no size": (GET + b"Content-Length:\r\n", 400),
    "chunks, of GET": (GET + b"Transfer-Encoding: chunked\r\n", 400),
    "a blank before the colon of a size": (GET + INNER_SIZE.replace(b":", b" :"), 400),
    "a tab before the colon of a size": (GET + INNER_SIZE.replace(b":", b"\t:"), 400),
    "a blank before the colon of chunks": (GET + b"Transfer-Encoding : chunked\r\n", 400),
    "a blank before a name": (GET + b"X: a\r\n " + INNER_SIZE, 400),
    "a value on the next line": (GET + b"Transfer-Encoding:\r\n chunked\r\n", 400),
    "a value on the next line, with another name": (GET + b"X: a\r\n" + b"\tchunked\r\n", 400),
    "a line that ends with LF": (GET + INNER_SIZE.replace(b"\r\n", b"\n"), 400),
    "a line that ends with LF inside of a value": (GET + b"X: a\n" + INNER_SIZE, 400),
    "a CR inside of a value": (GET + b"X: a\r" + INNER_SIZE, 400),
    "a NUL inside of a value": (GET + b"X: a\0b\r\n" + INNER_SIZE, 400),
    "a line without a colon": (GET + b"Content-Length\r\n", 400),
    "a line without a name": (GET + b": a\r\n", 400),
    "two sizes": (HEAD.encode() + b"Content-Length: 0\r\n" + INNER_SIZE, 411),
    "chunks": (HEAD.encode() + b"Transfer-Encoding: chunked\r\n", 411),
    "no type": (b"POST /predict HTTP/1.1\r\n" + INNER_SIZE, 415),
    "a page that is not there": (b"GET /nothing HTTP/1.1\r\n", 404),
    "a page that is not there, with a body": (b"POST /nothing HTTP/1.1\r\n" + INNER_SIZE, 404),
    "another method": (b"DELETE /predict HTTP/1.1\r\n" + INNER_SIZE, 405),
    "no request": (b"hello\r\n", 400),
}


@pytest.mark.parametrize("name", SMUGGLED)
def test_no_body_is_taken_for_a_request(shared: RunningServer, name: str) -> None:
    head, status = SMUGGLED[name]
    began = time.monotonic()
    answers = shared.raw(head + b"\r\n" + INNER)  # until the server closes
    assert time.monotonic() - began < 5
    assert answers.count(b"HTTP/1.1 ") == 1, answers[-300:]
    assert status_of(answers) == status
    said = answers.partition(b"\r\n\r\n")[0].lower()
    assert b"connection: close" in said
    assert b"keep-alive" not in said


def test_requests_that_follow_each_other_are_all_answered(shared: RunningServer) -> None:
    body = json.dumps({"input": sample(1), "id": "a"}).encode()
    asked = HEAD.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body
    last = b"GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n"
    answers = shared.raw(3 * INNER + 2 * asked + GET + b"Content-Length: 0\r\n\r\n" + last)
    assert answers.count(b"HTTP/1.1 200 OK") == 7


def test_a_body_that_would_unpack_to_much_is_refused(shared: RunningServer) -> None:
    bomb = gzip.compress(b" " * (512 * MIB // 8))
    before = shared.memory_bytes()
    answer = shared.ask("POST", "/predict", bomb, {"Content-Encoding": "gzip"})
    assert answer.status == 415
    assert shared.memory_bytes() - before < 8 * MIB


RANGES = (
    "bytes=" + ",".join(["0-"] * 2000),
    "bytes=0-9",
    "bytes=9-0",
    "lines=1-2",
    "bytes=" + "0-," * 2700,
)


@pytest.mark.parametrize("name", ["Range", "range"])
@pytest.mark.parametrize("ranges", RANGES, ids=range(len(RANGES)))
def test_ranges_are_ignored(shared: RunningServer, name: str, ranges: str) -> None:
    whole = shared.ask("GET", "/cache/mode").text
    answer = shared.ask("GET", "/cache/mode", headers={name: ranges, "If-Range": "x"})
    assert answer.status == 200
    assert answer.text == whole
    page = shared.ask("GET", "/", headers={name: ranges})
    assert page.status == 200
    assert page.text.rstrip().endswith("</html>")
    assert "Content-Range" not in page.headers


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


def test_connections_above_the_limit_do_not_wait_for_others(
    start: Callable[..., RunningServer],
) -> None:
    server = start("--connections", "8")  # an idle one is closed after 30 s
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
    assert sorted(took_s)[10] < 10
    held[0].close()
    deadline = time.monotonic() + 20
    while server.ask("GET", "/healthz").status != 200:
        assert time.monotonic() < deadline
    handles = server.handles()
    flood = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(300)]
    assert (
        server.handles() - handles < 200
    )  # 32 wait for a place, and 128 are told that there is none
    for connection in (*flood, *held):
        connection.close()


def test_two_servers_do_not_share_a_port(start: Callable[..., RunningServer]) -> None:
    server = start()
    with pytest.raises(AssertionError, match=r"cannot listen on 127\.0\.0\.1:.*in use"):
        start("--port", str(server.port))
