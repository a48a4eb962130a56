# SPDX-License-Identifier: Apache-2.0
"""The status page costs little: the directory is asked only for who looks, and not often; and a
server that was held up does not make up for the seconds that it missed."""

from __future__ import annotations

import itertools
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import modcache
import torch
from running import RunningServer

Start = Callable[..., RunningServer]
ENTRIES = 40_000
BETWEEN_LOOKS_S = 5  # at least (kIntervalOfScopes)


def reads(server: RunningServer) -> int:
    """Its calls of read(2) and its like, by which it reads the directory's index."""
    found = re.search(r"syscr: (\d+)", Path(f"/proc/{server.process.pid}/io").read_text())
    assert found is not None
    return int(found.group(1))


def status_with_scopes(server: RunningServer) -> Any:
    """The first answers have none where the look at the directory takes longer than they wait."""
    deadline = time.monotonic() + 15
    while (status := server.ask("GET", "/status").json)["scopes_in_all"] is None:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return status


def test_the_directory_is_asked_only_while_somebody_looks(start: Start, tmp_path: Path) -> None:
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
    one_look = reads(server) - before - when_idle
    assert {scope["scope"] for scope in status["scopes"]} == {"scope 0", "scope 1"}
    before = reads(server)
    for _ in range(20):
        server.ask("GET", "/status")
        time.sleep(0.1)
    when_asked = reads(server) - before
    more_looks = (time.monotonic() - began) // BETWEEN_LOOKS_S  # on a machine that is held up
    print(f"\n{when_idle} reads when idle, {one_look} of a look, {when_asked} of 20 more", end=" ")
    assert one_look > 100
    assert when_idle < one_look / 10
    assert when_asked < (1 + more_looks) * one_look


def test_what_changed_is_seen_by_who_goes_on_to_look(server: RunningServer) -> None:
    assert status_with_scopes(server)["scopes_in_all"] == 0
    for _ in range(3):
        server.predict(1, "a")
    deadline = time.monotonic() + 60  # a look that took long is followed by a long pause
    while server.ask("GET", "/status").json["scopes_in_all"] != 1:
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_sizes_are_not_said_to_be_zero_in_mode_off(start: Start) -> None:
    server = start()
    for _ in range(3):
        server.predict(1, "a")
    assert server.stop() == 0
    server = start()
    server.ask("PUT", "/cache/mode", {"mode": "off"})
    time.sleep(BETWEEN_LOOKS_S + 1)
    status = server.ask("GET", "/status").json
    assert (status["mode"], status["scopes_in_all"]) == ("off", None)
    server.ask("PUT", "/cache/mode", {"mode": "on"})
    assert status_with_scopes(server)["scopes_in_all"] == 1
    server.ask("PUT", "/cache/mode", {"mode": "off"})
    time.sleep(BETWEEN_LOOKS_S + 1)
    assert server.ask("GET", "/status").json["scopes_in_all"] == 1


def test_seconds_that_were_missed_stay_without_a_sample(server: RunningServer) -> None:
    time.sleep(2)
    server.process.send_signal(signal.SIGSTOP)
    time.sleep(5)
    server.process.send_signal(signal.SIGCONT)
    time.sleep(2.5)
    samples = server.ask("GET", "/status").json["samples"]
    times_s = [sample["at_s"] for sample in samples]
    apart_s = [after - before for before, after in itertools.pairwise(times_s)]
    assert max(apart_s) > 4
    assert min(apart_s) > 0.3, apart_s
