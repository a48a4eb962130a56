# SPDX-License-Identifier: Apache-2.0
"""The servers that the tests of the remote tier stand on do what those tests take them to do."""

from __future__ import annotations

import os
import signal
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from redis_servers import RedisServer, valkey_binary, wait_until, with_replica
from redis_tls import Certificates, TlsRedisServer
from redis_wire import RedisConnection, RedisError

# They are about the servers of tests, which each test of the remote tier uses.
pytestmark = pytest.mark.thorough


def is_gone(process_id: int) -> bool:
    """Ended; one whose parent was killed may still wait for the system to take note."""
    try:
        status = Path(f"/proc/{process_id}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return status.rpartition(")")[2].split()[0] == "Z"


# --- One server ---


def test_a_server_has_two_addresses(server: RedisServer, tmp_path: Path) -> None:
    assert server.address == f"redis://127.0.0.1:{server.port}/0"
    assert server.unix_address == f"redis+unix://{tmp_path}/server/socket?db=0"
    assert server.cli("SET", "key", "value") == "OK"
    with server.connect() as connection:
        assert connection.ask("GET", "key") == b"value"
        assert connection.ask_all([("MGET", "key", "none"), ("DBSIZE",)]) == [[b"value", None], 1]
    assert server.cli("MGET", "key", "none") == "value\n"
    assert server.calls()["mget"] == 2
    with pytest.raises(RedisError, match="unknown command"):
        server.cli("NOSUCH")


def test_a_killed_server_forgets_unless_it_is_persistent(binary: str, tmp_path: Path) -> None:
    for persistent in (False, True):
        folder = tmp_path / f"persistent-{persistent}"
        with RedisServer(folder, binary=binary, persistent=persistent) as server:
            port = server.port
            server.cli("SET", "key", "value")
            server.restart()
            assert server.port == port
            assert server.cli("GET", "key") == ("value" if persistent else "")


def test_a_stopped_server_accepts_and_says_nothing(server: RedisServer) -> None:
    server.stop_answering()
    with server.connect(timeout_s=0.2) as connection, pytest.raises(TimeoutError):
        connection.ask("PING")
    server.go_on()
    assert server.cli("PING") == "PONG"


def test_a_password_is_needed(binary: str, tmp_path: Path) -> None:
    with RedisServer(tmp_path / "s", binary=binary, password='a "b/c') as server:
        assert server.address == f"redis://:a%20%22b%2Fc@127.0.0.1:{server.port}/0"
        assert server.cli("PING") == "PONG"
        with (
            RedisConnection(("127.0.0.1", server.port)) as stranger,
            pytest.raises(RedisError, match="NOAUTH"),
        ):
            stranger.ask("PING")


def test_a_user_may_do_what_is_allowed(binary: str, tmp_path: Path) -> None:
    allowed = "~* +@read +@connection"
    with RedisServer(
        tmp_path / "s", binary=binary, user="reader", password="p", allowed=allowed
    ) as server:
        assert server.address == f"redis://reader:p@127.0.0.1:{server.port}/0"
        assert server.cli("SET", "key", "value") == "OK"
        with server.connect() as connection:
            assert connection.ask("GET", "key") == b"value"
            with pytest.raises(RedisError, match="NOPERM"):
                connection.ask("SET", "key", "other")


def test_a_full_server_refuses_or_evicts(server: RedisServer) -> None:
    server.limit_memory("4mb", "noeviction")
    value = b"x" * 100_000
    with pytest.raises(RedisError, match="OOM"):
        server.ask_all(*(("SET", f"key-{i}", value) for i in range(60)))
    server.limit_memory("4mb", "allkeys-lru")
    server.ask_all(*(("SET", f"key-{i}", value) for i in range(60)))
    assert 0 < int(server.cli("DBSIZE")) < 60


def test_lines_of_configuration_outlive_a_restart(binary: str, tmp_path: Path) -> None:
    with RedisServer(tmp_path / "s", binary=binary, config={"maxmemory": "5mb"}) as server:
        server.restart()
        assert server.cli("CONFIG", "GET", "maxmemory") == f"maxmemory\n{5 << 20}"


def test_a_server_that_cannot_start_says_why(binary: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="nosuch"), RedisServer(tmp_path, config={"nosuch": 1}):
        pass
    with pytest.raises(ValueError, match="too long"):
        RedisServer(tmp_path / ("x" * 100))


def test_a_replica_takes_over(binary: str, tmp_path: Path) -> None:
    with with_replica(tmp_path, binary=binary, password="p") as (primary, replica):
        primary.cli("SET", "key", "value")
        wait_until(lambda: replica.cli("GET", "key") == "value", "the value is there")
        with pytest.raises(RedisError, match="READONLY"):
            replica.cli("SET", "key", "other")
        primary.kill()
        replica.promote()
        assert replica.cli("SET", "key", "other") == "OK"
        assert replica.is_primary()


# --- The end of processes ---

STARTS_AND_WAITS = """
import sys, threading, time
from pathlib import Path
from delayed_port import DelayedPort
from redis_servers import RedisServer
with RedisServer(Path(sys.argv[1])) as server, DelayedPort("127.0.0.1", server.port) as proxy:
    print(server.process_id, proxy._process.pid, flush=True)
    if len(sys.argv) > 2:
        import os
        os._exit(0)
    time.sleep(60)
"""


@pytest.mark.parametrize("exits", [[], ["exits"]])
def test_processes_end_with_the_one_that_started_them(tmp_path: Path, exits: list[str]) -> None:
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTS_AND_WAITS, tmp_path / "s", *exits],
        cwd=Path(__file__).parent,
        stdout=subprocess.PIPE,
    )
    assert starter.stdout is not None
    with starter.stdout:
        started = [int(word) for word in starter.stdout.readline().split()]
    assert len(started) == 2
    if not exits:
        assert not any(is_gone(process_id) for process_id in started)
        starter.send_signal(signal.SIGKILL)
    starter.wait()
    wait_until(lambda: all(is_gone(process_id) for process_id in started), "both ended", 5)


def test_a_server_outlives_the_thread_that_started_it(tmp_path: Path) -> None:
    server = RedisServer(tmp_path / "s")
    thread = threading.Thread(target=server.start)
    thread.start()
    thread.join()
    time.sleep(0.1)
    assert server.running
    process_id = server.process_id
    server.kill()
    assert not Path(f"/proc/{process_id}").exists()


# --- TLS ---


def path_in(address: str, name: str) -> Path:
    return Path(parse_qs(urlsplit(address).query)[name][0])


def test_tls_is_shaken_hands_on(tmp_path: Path) -> None:
    with TlsRedisServer(tmp_path / "s") as server:
        assert server.address.startswith(f"rediss://127.0.0.1:{server.port}/0?ca=/")
        assert path_in(server.address, "ca").read_text().startswith("-----BEGIN CERTIFICATE")
        with server.connect() as connection:
            assert connection.ask("SET", "key", "value") == b"OK"
        with RedisConnection(("127.0.0.1", server.port)) as plain, pytest.raises(ConnectionError):
            plain.ask("PING")
        tls = ssl.create_default_context(cafile=path_in(server.address, "ca"))
        with RedisConnection(("localhost", server.port), tls=tls) as connection:
            assert connection.ask("GET", "key") == b"value"
        server.restart()
        assert server.cli("PING") == "PONG"


def test_tls_of_a_stranger_is_refused(tmp_path: Path) -> None:
    stranger = Certificates(tmp_path / "stranger", names="DNS:elsewhere")
    tls = ssl.create_default_context(cafile=str(stranger.ca))
    with (
        TlsRedisServer(tmp_path / "s") as server,
        pytest.raises(ssl.SSLCertVerificationError, match="self-signed certificate"),
    ):
        RedisConnection(("127.0.0.1", server.port), tls=tls)
    with (
        TlsRedisServer(tmp_path / "t", certificates=stranger) as server,
        pytest.raises(ssl.SSLCertVerificationError, match="IP address mismatch"),
    ):
        RedisConnection(("127.0.0.1", server.port), tls=tls)


def test_tls_with_a_clients_certificate(tmp_path: Path) -> None:
    with TlsRedisServer(tmp_path / "s", client_certificates=True, password="p") as server:
        certificate, key = (path_in(server.address, name) for name in ("cert", "key"))
        assert certificate.exists()
        assert key.exists()
        with server.connect() as connection:
            assert connection.ask("PING") == b"PONG"
        tls = ssl.create_default_context(cafile=path_in(server.address, "ca"))
        with pytest.raises((ssl.SSLError, ConnectionError)):
            RedisConnection(("127.0.0.1", server.port), tls=tls).ask("PING")


def test_no_server_is_missing_where_the_tests_are_run_as_a_stage() -> None:
    if "MODCACHE_SERVERS" not in os.environ:
        pytest.skip("./tests/run --only remote installs them")
    assert valkey_binary() is not None
