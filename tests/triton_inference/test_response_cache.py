# SPDX-License-Identifier: Apache-2.0
"""Responses of models of any backend, kept by libtritoncache_modcache.so in a real Triton."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from redis_servers import RedisServer
from served_models import write_double, write_two_outputs
from triton_server import (
    OUR_CACHES,
    ROOT,
    THEIR_CACHES,
    RequestError,
    StartServer,
    TritonServer,
    cache_options,
    tensor,
)


def test_a_request_that_was_answered_before_runs_no_model(start: StartServer) -> None:
    server = start()
    with server.connection() as connection:
        assert connection.double(1, 2) == connection.double(1, 2) == [2, 4]
        assert connection.double(3) == [6]
    assert (server.runs(), server.hits()) == (2, 1)


def test_after_a_restart_all_are_hits(start: StartServer) -> None:
    server = start()
    for i in range(50):
        assert server.double(i, 1) == [2 * i, 2]
    server.stop()
    server = start()
    for i in range(50):
        assert server.double(i, 1) == [2 * i, 2]
    assert (server.runs(), server.hits()) == (0, 50)


def test_servers_on_one_machine_share_a_directory(start: StartServer) -> None:
    one, other = start(), start()
    answers = [one.double(i) for i in range(20)]
    one.stop()  # what it stored is committed
    assert [other.double(i) for i in range(20)] == answers
    assert (other.runs(), other.hits()) == (0, 20)


def test_servers_on_several_machines_share_a_remote(
    models: Path, tmp_path: Path, servers: list[TritonServer]
) -> None:
    with RedisServer(tmp_path / "redis") as redis:

        def machine(name: str) -> TritonServer:
            options = cache_options(tmp_path / name, remote=redis.address)
            servers.append(TritonServer(models, OUR_CACHES, *options))
            return servers[-1].start()

        one = machine("one")
        answers = [one.double(i) for i in range(20)]
        one.stop()  # what it stored is on the server
        other = machine("other")
        assert [other.double(i) for i in range(20)] == answers
        assert (other.runs(), other.hits()) == (0, 20)


def test_the_program_sees_the_entries(start: StartServer, modcache: Callable[..., str]) -> None:
    server = start()
    server.double(1, 2, 3)
    server.stop()
    stats = json.loads(modcache("stats", "--json"))
    assert stats["entries"] == 1
    (entry,) = json.loads(modcache("ls", "--json"))["entries"]
    assert (entry["scope"], entry["method"]) == ("triton", "infer")
    assert entry["key"].isdigit()
    assert entry["run_us"] >= 10_000  # the model sleeps so long
    modcache("verify")
    modcache("clear", "--scope", "triton")
    server = start()
    server.double(1, 2, 3)
    assert server.hits() == 0


def test_a_running_server_is_switched_off_and_on_from_outside(
    start: StartServer, modcache: Callable[..., str]
) -> None:
    server = start()
    server.double(1)
    modcache("mode", "off")
    server.double(1)
    server.double(2)
    assert (server.runs(), server.hits()) == (3, 0)
    modcache("mode", "on")
    server.double(1)
    assert (server.runs(), server.hits()) == (3, 1)
    server.double(2)  # nothing was stored meanwhile
    assert (server.runs(), server.hits()) == (4, 1)
    modcache("mode", "read")
    server.double(3)
    server.double(3)
    assert (server.runs(), server.hits()) == (6, 1)


def test_clearing_reaches_what_a_server_has_in_memory(
    start: StartServer, modcache: Callable[..., str]
) -> None:
    server = start()
    server.double(1)
    server.double(1)
    modcache("clear")
    server.double(1)
    assert (server.runs(), server.hits()) == (2, 1)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"size": "1000"}, ["unknown setting 'size'", "valid settings are: dir, mode, memory"]),
        ({"disk": "plenty"}, ["option 'disk' is 'plenty'", "a number of bytes such as"]),
        ({"policy": "fifo"}, ["option 'policy' is 'fifo'", "one of: auto, lru, keep"]),
    ],
)
def test_a_bad_setting_ends_the_server_with_a_message_that_lists_the_valid_ones(
    models: Path,
    directory: Path,
    servers: list[TritonServer],
    settings: dict[str, str],
    expected: list[str],
) -> None:
    server = TritonServer(models, OUR_CACHES, *cache_options(directory, **settings))
    servers.append(server)
    server.launch()
    assert server.wait() != 0
    for part in expected:
        assert part in server.text_of_log()


def test_the_page_of_the_documentation_lists_the_valid_settings(
    models: Path, directory: Path, servers: list[TritonServer]
) -> None:
    server = TritonServer(models, OUR_CACHES, *cache_options(directory, size="1"))
    servers.append(server)
    server.launch()
    server.wait()
    listed = re.search(r"valid settings are: ([\w, ]+)", server.text_of_log())
    assert listed is not None
    page = (ROOT / "docs" / "triton.md").read_text(encoding="utf-8")
    in_page = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    assert in_page == listed[1].split(", ")


def test_messages_go_to_the_log_of_the_server(start: StartServer, directory: Path) -> None:
    server = start(log="info")
    assert f"modcache: responses are cached in '{directory}', mode on" in server.text_of_log()


def test_a_directory_that_cannot_be_used_is_a_message_and_no_failure(
    start: StartServer, directory: Path
) -> None:
    directory.write_text("a file", encoding="utf-8")
    server = start()
    assert server.double(1) == server.double(1) == [2]
    assert 1 <= server.text_of_log().count("models run without it") <= 2, server.text_of_log()
    assert server.hits() == 1  # memory goes on


# From the second time on Triton's local cache answers it with success, without outputs.
def test_a_model_that_fails_is_not_cached(start: StartServer) -> None:
    server = start()
    for _ in range(3):
        with pytest.raises(RequestError, match="a negative number"):
            server.double(-1)
    assert server.hits() == 0


# --- What Triton's key does not tell apart, whatever the cache (docs/triton.md) -----------------

X = [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("cache", ["modcache", "local"])
def test_shapes_parameters_and_wanted_outputs_are_not_in_the_key(
    models: Path, directory: Path, servers: list[TritonServer], cache: str
) -> None:
    write_two_outputs(models)
    ours = cache == "modcache"
    options = cache_options(directory) if ours else ["--cache-config=local,size=10000000"]
    server = TritonServer(models, OUR_CACHES if ours else THEIR_CACHES, *options)
    servers.append(server)
    server.start()
    with server.connection() as connection:
        x = tensor("x", X, [2, 3])
        first = connection.post("two_outputs", [x], outputs=[{"name": "y"}])
        assert list(first) == ["y"]
        assert connection.post("two_outputs", [x], outputs=[{"name": "z"}]) == first
        assert connection.post("two_outputs", [x], parameters={"temperature": 2}) == first
        assert connection.post("two_outputs", [tensor("x", X, [3, 2])]) == first
    assert server.hits("two_outputs") == 3


def test_a_model_that_was_changed_under_its_version_gives_old_responses(
    start: StartServer, models: Path
) -> None:
    server = start()
    assert server.double(1) == [2]
    server.stop()
    write_double(models, factor=10)
    server = start()
    assert server.double(1) == [2]
    server.stop()
    # The cure without a new version: another namespace.
    server = start(namespace="weights of May")
    assert server.double(1) == [10]


def test_a_new_version_of_a_model_is_asked_anew(start: StartServer, models: Path) -> None:
    server = start()
    assert server.double(1) == [2]
    server.stop()
    write_double(models, factor=10)
    (models / "double" / "1").rename(models / "double" / "2")
    server = start()
    assert server.double(1) == [10]
