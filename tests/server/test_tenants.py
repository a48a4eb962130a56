# SPDX-License-Identifier: Apache-2.0
"""Tenants under one server: the same id under another salt is another entry."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable

from running import ROOT, RunningServer, sample

PROGRAM = os.environ.get("MODCACHE_PROGRAM", str(ROOT / "build" / "release" / "bin" / "modcache"))
# With the default the cache itself would tell two inputs apart, whatever their keys.
BY_KEY_ALONE = ("--set", "match=none", "--set", "memory=0", "--set", "admission=all")


def keys_of(server: RunningServer) -> list[str]:
    listed = subprocess.run(
        [PROGRAM, "ls", server.directory, "--json"], check=True, capture_output=True
    )
    return sorted(str(entry["key"]) for entry in json.loads(listed.stdout)["entries"])


def test_one_id_under_two_salts(start: Callable[..., RunningServer]) -> None:
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


def test_one_content_under_two_salts(start: Callable[..., RunningServer]) -> None:
    server = start(*BY_KEY_ALONE)
    for _ in range(3):
        server.predict(1)
    hits, misses, _ = server.counted()
    server.predict(1, X_Cache_Salt="theirs")
    assert server.counted()[:2] == (hits, misses + 1)


def test_no_two_of_salt_and_id_make_one_key(start: Callable[..., RunningServer]) -> None:
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


def test_nobody_can_write_the_key_of_another(start: Callable[..., RunningServer]) -> None:
    server = start(*BY_KEY_ALONE)
    for _ in range(2):
        server.predict(1, "a", X_Cache_Salt="theirs")
        server.predict(2)
    server.ask("GET", "/healthz")
    assert server.stop() == 0
    stolen = keys_of(server)
    assert len(stolen) == 2
    assert not any("theirs" in key for key in stolen)  # a listing does not give a salt away
    server = start(*BY_KEY_ALONE)
    for key in stolen:
        body = {"input": sample(3), "id": key}
        assert server.ask("POST", "/predict", body).status == 400
        salted = server.ask("POST", "/predict", body, {"X-Cache-Salt": "mine"})
        assert salted.status == 200  # an id like any other, below a salt of its own
    assert server.counted()[0] == 0


def test_namespaces_share_nothing(start: Callable[..., RunningServer]) -> None:
    server = start(*BY_KEY_ALONE, "--set", "namespace=one")
    for _ in range(3):
        server.predict(1, "a")
    assert server.stop() == 0
    server = start(*BY_KEY_ALONE, "--set", "namespace=two")
    server.predict(2, "a")
    assert server.counted()[:2] == (0, 1)


def test_a_request_has_one_salt(server: RunningServer) -> None:
    server.predict(1, "a", X_Cache_Salt="theirs")
    connection = server.connection()
    body = json.dumps({"input": sample(2), "id": "a"})
    connection.putrequest("POST", "/predict")
    for salt in ("theirs", "mine"):  # a gateway that adds one, where the client has sent another
        connection.putheader("X-Cache-Salt", salt)
    connection.putheader("Content-Type", "application/json")
    connection.putheader("Content-Length", str(len(body)))
    connection.endheaders(body.encode())
    answer = connection.getresponse()
    assert answer.status == 400
    assert b"several headers X-Cache-Salt" in answer.read()


def test_a_salt_is_bounded(server: RunningServer) -> None:
    body = {"input": sample(1), "id": "a"}
    answer = server.ask("POST", "/predict", body, {"X-Cache-Salt": "s" * 300})
    assert answer.status == 400
    assert "valid are at most 256" in answer.error
