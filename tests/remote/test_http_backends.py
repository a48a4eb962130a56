# SPDX-License-Identifier: Apache-2.0
"""The backend of plain HTTP and S3, against real servers.

The GoogleTest binary with backend_contract_test.cpp does the work.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import http_servers
import pytest

BINARY = (
    Path(__file__).resolve().parents[2] / "build/release/tests/unit/backends/modcache_backend_tests"
)
CONTRACT = "BackendContractTest.*"
PING = "BackendContractTest.a_server_answers_a_ping"
PUT = "BackendContractTest.an_empty_value_is_there"
# As many tests write.
TAKES_AT_MOST_S = 300

needs_nginx = pytest.mark.skipif(shutil.which("nginx") is None, reason="there is no nginx")


def environment_of(address: str, **more: str) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MODCACHE_", "AWS_")) and not name.lower().endswith("_proxy")
    }
    return {**kept, "MODCACHE_TEST_REMOTE": address, **more}


def run(address: str, tests: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [BINARY, f"--gtest_filter={tests}"],
        env=environment_of(address, **more),
        capture_output=True,
        text=True,
        timeout=TAKES_AT_MOST_S,
    )


def check_contract(address: str, tests: str = CONTRACT, **more: str) -> str:
    outcome = run(address, tests, **more)
    assert outcome.returncode == 0, outcome.stdout[-8000:] + outcome.stderr[-2000:]
    assert int(re.search(r"PASSED  \] (\d+) test", outcome.stdout).group(1)) > 0  # type: ignore[union-attr]
    return outcome.stdout


def check_failure(address: str, tests: str, *words: str, **more: str) -> str:
    outcome = run(address, tests, **more)
    assert outcome.returncode == 1, outcome.stdout[-8000:]
    for word in words:
        assert word in outcome.stdout, outcome.stdout[-8000:]
    return outcome.stdout + outcome.stderr


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "server"


@needs_nginx
def test_nginx_keeps_the_contract(folder: Path) -> None:
    with http_servers.nginx(folder) as server:
        check_contract(server.url)


@needs_nginx
def test_nginx_keeps_the_contract_where_it_deletes_nothing(folder: Path) -> None:
    with http_servers.nginx(folder, may_delete=False) as server:
        check_contract(server.url)


@needs_nginx
def test_nginx_keeps_the_contract_where_it_knows_no_ranges(folder: Path) -> None:
    with http_servers.nginx(folder, more="max_ranges 0;") as server:
        check_contract(server.url)


@needs_nginx
def test_a_server_may_ask_for_a_password(folder: Path) -> None:
    with http_servers.nginx(folder, user="somebody", password="s3cret") as server:
        check_contract(server.url)
        wrong = server.url.replace("s3cret", "m1staken")
        said = check_failure(wrong, PING, "answers HEAD with 401")
        assert "m1staken" not in said
        said = check_failure(wrong, PUT, "answers PUT with 401")
        assert "m1staken" not in said


@needs_nginx
def test_a_server_may_use_tls(folder: Path) -> None:
    with http_servers.nginx(folder, tls=True) as server:
        check_contract(f"{server.url}?ca={server.ca}")
        check_contract(f"{server.url}?verify=0", PUT)
        check_failure(server.url, PING, "certificate")


@needs_nginx
def test_a_server_that_is_read_only_says_so_and_is_read(folder: Path) -> None:
    with http_servers.nginx(folder, read_only=True) as server:
        check_contract(server.url, PING)
        check_failure(server.url, PUT, "answers PUT with 405")


@needs_nginx
def test_a_server_that_takes_no_large_bodies_is_full(folder: Path) -> None:
    limit = "client_max_body_size 100k;"
    with http_servers.nginx(folder, more=limit) as server:
        check_contract(server.url, PUT)
        large = "BackendContractTest.large_values_go_and_come"
        check_failure(server.url, large, "answers PUT with 413")


@needs_nginx
def test_a_full_disk_is_a_failure_of_writing(folder: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("nothing can be mounted here")
    try:
        with http_servers.nginx(folder, root=disk) as server:
            check_contract(server.url, PUT)
            large = "BackendContractTest.large_values_go_and_come"
            check_failure(server.url, large, "answers PUT with 500")
            check_contract(server.url, PING)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def disturb(
    address: str, disturbance: Callable[[], None], *, lasts_s: int = 8, timeout_ms: int = 500
) -> str:
    """Runs the test of faults, and the disturbance two seconds after its begin."""
    environment = environment_of(
        address,
        MODCACHE_TEST_REMOTE_TIMEOUT_MS=str(timeout_ms),
        MODCACHE_TEST_REMOTE_FAULT_S=str(lasts_s),
    )
    command = [BINARY, "--gtest_filter=BackendFaultTest.*"]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        time.sleep(2)
        disturbance()
        said, _ = process.communicate(timeout=TAKES_AT_MOST_S)
    assert process.returncode == 0, said
    print(said)
    return said


@pytest.fixture
def nginx(folder: Path) -> Iterator[http_servers.Nginx]:
    with http_servers.nginx(folder) as server:
        yield server


@needs_nginx
def test_a_server_may_be_killed_and_come_back(nginx: http_servers.Nginx) -> None:
    def kill_twice() -> None:
        for _ in range(2):
            nginx.kill()
            time.sleep(1)
            nginx.start()
            time.sleep(1)

    disturb(nginx.url, kill_twice)


@needs_nginx
def test_calls_end_in_time_while_a_server_stands_still(nginx: http_servers.Nginx) -> None:
    def stop() -> None:
        nginx.send(signal.SIGSTOP)
        time.sleep(3)
        nginx.send(signal.SIGCONT)

    said = disturb(nginx.url, stop)
    assert "did not answer in time" in said


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[http_servers.S3]:
    pytest.importorskip("moto")
    with http_servers.s3(tmp_path_factory.mktemp("s3")) as server:
        yield server


def test_s3_keeps_the_contract(s3: http_servers.S3) -> None:
    check_contract(s3.address, **s3.environment)


def test_a_bucket_that_is_not_there_is_named(s3: http_servers.S3) -> None:
    other = s3.address.replace("//values/", "//others/")
    check_failure(other, PUT, "404 NoSuchBucket", **s3.environment)


def test_s3_checks_the_signatures(tmp_path: Path) -> None:
    pytest.importorskip("moto")
    with http_servers.s3(tmp_path / "s3", checks_signatures=True) as server:
        check_contract(server.address, **server.environment)
        secret = server.environment["AWS_SECRET_ACCESS_KEY"]
        wrong = {**server.environment, "AWS_SECRET_ACCESS_KEY": secret[::-1]}
        said = check_failure(server.address, PUT, "403 SignatureDoesNotMatch", **wrong)
        assert secret[::-1] not in said
        assert server.environment["AWS_ACCESS_KEY_ID"] not in said
