# SPDX-License-Identifier: Apache-2.0
"""GET /status: the bytes of each scope are read from the directory only on request, and rarely."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import modcache
import torch
from running import RunningServer

Start = Callable[..., RunningServer]
ENTRIES = 40_000
SCAN_INTERVAL_S = 5  # kMinScanInterval


def reads(server: RunningServer) -> int:
    """Number of calls of read(2) and the like, with which it reads the directory's index."""
    found = re.search(r"syscr: (\d+)", Path(f"/proc/{server.process.pid}/io").read_text())
    assert found is not None
    return int(found.group(1))


def status_with_scopes(server: RunningServer) -> Any:
    """The first responses have no scopes yet if the scan takes longer than they wait."""
    deadline = time.monotonic() + 15
    while (status := server.ask("GET", "/status").json)["scopes_in_all"] is None:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return status


def test_directory_is_scanned_only_on_request(start: Start, tmp_path: Path) -> None:
    directory = tmp_path / "cache"
    modcache.configure(dir=directory)
    row = torch.ones(1)
    for number in range(ENTRIES):
        torch.ops.cache.store(f"scope {number % 2}", str(number), row)
    modcache.flush()
    server = start(dir=directory)
    time.sleep(1)
    before = reads(server)
    time.sleep(6)
    when_idle = reads(server) - before

    began = time.monotonic()
    status = status_with_scopes(server)
    one_scan = reads(server) - before - when_idle
    assert {scope["scope"] for scope in status["scopes"]} == {"scope 0", "scope 1"}
    before = reads(server)
    for _ in range(20):
        server.ask("GET", "/status")
        time.sleep(0.1)
    when_asked = reads(server) - before
    more_scans = (time.monotonic() - began) // SCAN_INTERVAL_S  # on a machine that is held up
    print(f"\n{when_idle} reads when idle, {one_scan} of a scan, {when_asked} of 20 more", end=" ")
    assert one_scan > 100
    assert when_idle < one_scan / 10
    assert when_asked < (1 + more_scans) * one_scan


def test_scopes_are_unknown_in_mode_off(start: Start) -> None:
    server = start()
    for _ in range(3):
        server.predict(1, "a")
    assert server.stop() == 0
    server = start()
    server.ask("PUT", "/cache/mode", {"mode": "off"})
    time.sleep(SCAN_INTERVAL_S + 1)
    status = server.ask("GET", "/status").json
    assert (status["mode"], status["scopes_in_all"]) == ("off", None)
    server.ask("PUT", "/cache/mode", {"mode": "on"})
    assert status_with_scopes(server)["scopes_in_all"] == 1
    server.ask("PUT", "/cache/mode", {"mode": "off"})
    time.sleep(SCAN_INTERVAL_S + 1)
    assert server.ask("GET", "/status").json["scopes_in_all"] == 1
