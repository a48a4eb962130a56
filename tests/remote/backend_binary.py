# SPDX-License-Identifier: Apache-2.0
"""The GoogleTest binary of backends (tests/unit/backends), run against a real server."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

BINARY = (
    Path(__file__).resolve().parents[2] / "build/release/tests/unit/backends/modcache_backend_tests"
)
CONTRACT = "BackendContractTest.*"
PING = "BackendContractTest.a_server_answers_a_ping"
PUT = "BackendContractTest.an_empty_value_is_there"
FAULT = "BackendFaultTest.*"
# A busy machine takes this long for tests that write much.
TIMEOUT_S = 300


def environment_of(address: str, **more: str) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("MODCACHE_") and not name.lower().endswith("_proxy")
    }
    return {**kept, "MODCACHE_TEST_REMOTE": address, **more}


def run(address: str, tests: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [BINARY, f"--gtest_filter={tests}"],
        env=environment_of(address, **more),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
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


def check_fault(
    address: str, disturb: Callable[[], None], *, duration_s: int = 8, timeout_ms: int = 500
) -> str:
    """Runs the test of faults, and ``disturb`` two seconds after its start. Returns its output."""
    environment = environment_of(
        address,
        MODCACHE_TEST_REMOTE_TIMEOUT_MS=str(timeout_ms),
        MODCACHE_TEST_REMOTE_FAULT_S=str(duration_s),
    )
    with subprocess.Popen(
        [BINARY, f"--gtest_filter={FAULT}"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        time.sleep(2)
        disturb()
        output, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, output
    assert "SKIPPED" not in output, output
    return output
