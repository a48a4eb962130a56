# SPDX-License-Identifier: Apache-2.0
"""Tenants of one server: the same id under another salt is another entry."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable

from running import ROOT, RunningServer, sample

PROGRAM = os.environ.get("MODCACHE_PROGRAM", str(ROOT / "build" / "release" / "bin" / "modcache"))
# By default the cache notices that inputs differ, whatever their keys.
BY_KEY_ALONE = ("--set", "match=none", "--set", "memory=0", "--set", "admission=all")


def keys_of(server: RunningServer) -> list[str]:
    listed = subprocess.run(
        [PROGRAM, "ls", server.directory, "--json"], check=True, capture_output=True
    )
    return sorted(str(entry["key"]) for entry in json.loads(listed.stdout)["entries"])


def test_same_id_under_two_salts(start: Callable[..., RunningServer]) -> None:
    server = start(*BY_KEY_ALONE)
    for _ in range(3):
        ours = server.predict(1, "a")
    for _ in range(3):
        theirs = server.predict(2, "a", X_Cache_Salt="theirs")
        others = server.predict(3, "a", X_Cache_Salt="others")
    assert server.mode("off") == "off"
    assert [ours, theirs, others] == [server.predict(number, "a") for number in (1, 2, 3)]
    assert server.mode("on") == "on"
    assert server.predict(9, "a", X_Cache_Salt="theirs") == theirs  # a hit, by the key alone


def test_same_content_under_two_salts(start: Callable[..., RunningServer]) -> None:
    server = start(*BY_KEY_ALONE)
    for _ in range(3):
        server.predict(1)
    hits, misses, _ = server.counted()
    server.predict(1, X_Cache_Salt="theirs")
    assert server.counted()[:2] == (hits, misses + 1)


def test_different_salts_and_ids_have_different_keys(start: Callable[..., RunningServer]) -> None:
    server = start(*BY_KEY_ALONE)
    pairs = [("a", "bc"), ("ab", "c"), ("abc", "x"), ("a", ":id:bc"), ("a:id", "bc"), ("", "a:bc")]
    pairs += [("ä", "c"), ("a ", "c"), ("A", "c"), ("a\tb", "c")]
    for number, (salt, name) in enumerate(pairs):
        for _ in range(2):
            server.predict(number, name, **({"X_Cache_Salt": salt} if salt else {}))
    for number, (salt, name) in enumerate(pairs):
        headers = {"X_Cache_Salt": salt} if salt else {}
        want = server.predict(number, name, Cache_Control="no-cache", **headers)
        assert server.predict(number, name, **headers) == want, (salt, name)
    assert server.stop() == 0
    assert len(keys_of(server)) == len(pairs)


def test_keys_of_the_server_are_refused_as_ids(start: Callable[..., RunningServer]) -> None:
    server = start(*BY_KEY_ALONE)
    for _ in range(2):
        server.predict(1, "a", X_Cache_Salt="theirs")
        server.predict(2)
    assert server.stop() == 0
    stolen = keys_of(server)
    assert len(stolen) == 2
    assert not any("theirs" in key for key in stolen)  # salts are hashed
    server = start(*BY_KEY_ALONE)
    for key in stolen:
        body = {"input": sample(3), "id": key}
        assert server.ask("POST", "/predict", body).status == 400
        assert server.ask("POST", "/predict", body, {"X-Cache-Salt": "mine"}).status == 400
    assert server.counted()[0] == 0


def test_namespaces_share_no_entries(start: Callable[..., RunningServer]) -> None:
    server = start(*BY_KEY_ALONE, "--set", "namespace=one")
    for _ in range(3):
        server.predict(1, "a")
    assert server.stop() == 0
    server = start(*BY_KEY_ALONE, "--set", "namespace=two")
    server.predict(2, "a")
    assert server.counted()[:2] == (0, 1)
