# SPDX-License-Identifier: Apache-2.0
"""modcache push and pull: directories over real servers, and back."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import modcache
import pytest
import torch
from delayed_port import DelayedPort
from http_servers import nginx
from machines import Machines, counted, slow_module, with_parameter
from program import (
    FINDINGS,
    MISUSE,
    ROOT,
    SUCCESS,
    Outcome,
    binary,
    bytes_below,
    filling,
    run_program,
)
from redis_servers import RedisServer, free_port, wait_until
from test_http_backends import needs_nginx

# Engines with packs and an index, which find what another process wrote a second later.
OBJECTS = ("http:", "s3:")
HITS = ("hits_memory", "hits_disk", "hits_remote", "misses")
ENTRIES = 10


def environment(**settings: str) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MODCACHE_", "AWS_")) and not name.lower().endswith("_proxy")
    }
    return {**kept, **settings}


def run(*words: str | Path, **settings: str) -> Outcome:
    return run_program(*words, env=environment(**settings))


def moved(command: str, directory: Path, address: str, *words: str, **settings: str) -> Any:
    """What a command says that finds nothing wrong."""
    outcome = run(command, directory, *words, "--json", MODCACHE_REMOTE=address, **settings)
    assert outcome.status == SUCCESS, outcome.messages
    return outcome.json()


def entries_of(directory: Path) -> list[dict[str, Any]]:
    entries = run("ls", directory, "--long", "--json").json()["entries"]
    where = ("segment", "offset", "sequence")
    kept = [{k: v for k, v in entry.items() if k not in where} for entry in entries]
    return sorted(kept, key=lambda entry: (entry["namespace"], entry["scope"], entry["key"]))


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """Entries of three scopes in two namespaces, one with an odd key, and a large one."""
    with filling(tmp_path / "filled") as writer:
        writer.put(scope="encoder@1", key="key-", count=5, shape=[3, 256])
        writer.put(scope="encoder@2", key="row-", count=3, form="row", arguments="2:ab,")
        writer.put(scope="encoder@2", key="line\n\x1b[31mé", namespace="mine", run_us=90_000_000)
        writer.put(scope="large", key="large", shape=[700, 1024])
        writer.flush()
        writer.leave()
    return tmp_path / "filled"


def many(directory: Path, count: int) -> Path:
    with filling(directory) as writer:
        writer.put(key="k", count=count, shape=[256])
        writer.flush()
        writer.leave()
    return directory


def names_on(server: RedisServer, kind: str) -> list[str]:
    return sorted(server.cli("KEYS", f"modcache/{kind}/*").split())


# --- To each kind of server, and back ---


def test_a_cache_goes_over_a_server_and_back(address: str, filled: Path, tmp_path: Path) -> None:
    said = moved("push", filled, address)
    assert (said["entries"], said["there"], said["failed"]) == (ENTRIES, 0, 0)
    assert said["value_bytes"] > 700 * 1024 * 4
    said = moved("push", filled, address)
    assert (said["entries"], said["there"]) == (0, ENTRIES)
    said = moved("pull", tmp_path / "new", address)
    assert (said["entries"], said["there"], said["cleared"]) == (ENTRIES, 0, 0)
    assert run("verify", tmp_path / "new").status == SUCCESS
    assert entries_of(tmp_path / "new") == entries_of(filled)
    said = moved("pull", tmp_path / "new", address)
    assert (said["entries"], said["there"]) == (0, ENTRIES)


def test_a_machine_finds_what_was_pushed(machines: Machines, address: str, tmp_path: Path) -> None:
    x = torch.arange(128.0).reshape(16, 8)
    keys = [f"k{i}" for i in range(16)]
    machines.become("first", "")
    expected = modcache.lookup_or_run(slow_module(), x, keys)
    modcache.flush()
    assert moved("push", tmp_path / "first", address)["entries"] == 16

    machines.become("second", address)

    def is_found() -> bool:
        modcache.reset_stats()
        found = modcache.lookup_or_run(slow_module(), x, keys)
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
        return counted(*HITS) == (0, 0, 16, 0)

    with modcache.mode("read"):
        if address.startswith(OBJECTS):
            wait_until(is_found, "this process looks for what others wrote", timeout_s=10)
        else:
            assert is_found()


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_machine_finds_what_was_pulled(
    machines: Machines, server: RedisServer, tmp_path: Path, codec: str
) -> None:
    x = torch.arange(128.0).reshape(16, 8)
    keys = [f"k{i}" for i in range(16)]
    machines.become("first", server.address, remote_codec=codec)
    expected = modcache.lookup_or_run(slow_module(), x, keys)
    machines.become("elsewhere", "")
    assert moved("pull", tmp_path / "second", server.address)["entries"] == 16

    machines.become("second", "")
    found = modcache.lookup_or_run(slow_module(), x, keys)
    assert counted(*HITS) == (0, 16, 0, 0)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_what_was_cleared_on_the_server_is_not_pulled(
    machines: Machines, server: RedisServer, filled: Path, tmp_path: Path
) -> None:
    moved("push", filled, server.address)
    machines.become("another", server.address)
    modcache.clear("encoder@1", tier="remote")
    said = moved("pull", tmp_path / "new", server.address)
    assert (said["entries"], said["cleared"]) == (ENTRIES - 5, 5)
    assert moved("push", filled, server.address)["entries"] == 5


# --- A part ---


def test_namespaces_and_scopes(server: RedisServer, filled: Path, tmp_path: Path) -> None:
    def pushed(*words: str, **settings: str) -> int:
        return moved("push", filled, server.address, *words, "--dry-run", **settings)["entries"]

    assert pushed() == ENTRIES
    assert pushed("--scope", "encoder@2") == 4
    assert pushed("--scope", "encoder@2", "--namespace", "mine") == 1
    assert pushed("--namespace", "") == ENTRIES - 1
    assert pushed(MODCACHE_NAMESPACE="mine") == 1
    assert pushed("--namespace", "", MODCACHE_NAMESPACE="mine") == ENTRIES - 1
    assert server.cli("DBSIZE") == "0"
    moved("push", filled, server.address)
    new = tmp_path / "new"
    assert moved("pull", new, server.address, "--namespace", "mine")["entries"] == 1
    said = moved("pull", new, server.address, "--scope", "encoder@2")
    assert (said["entries"], said["there"]) == (3, 1)
    for command in ("push", "pull"):
        outcome = run(command, new, "--remote", server.address, "--scope", "encoder@3")
        assert outcome.status == FINDINGS
        assert "no entry is what the options name" in outcome.messages
        assert run(command, new, "--remote", server.address, "--scope", "").status == MISUSE


def test_a_pack_is_pushed(server: RedisServer, filled: Path, tmp_path: Path) -> None:
    assert run("pack", filled, tmp_path / "pack").status == SUCCESS
    assert moved("push", tmp_path / "pack", server.address)["entries"] == ENTRIES
    assert moved("push", filled, server.address)["there"] == ENTRIES
    assert run("pull", tmp_path / "pack", "--remote", server.address).status == MISUSE


def test_a_secret_and_a_prefix_are_another_cache(
    server: RedisServer, filled: Path, tmp_path: Path
) -> None:
    moved("push", filled, server.address, MODCACHE_REMOTE_KEY="ours")
    assert moved("pull", tmp_path / "new", server.address)["entries"] == 0
    other = with_parameter(server.address, "prefix=other")
    assert moved("pull", tmp_path / "new", other, MODCACHE_REMOTE_KEY="ours")["entries"] == 0
    said = moved("pull", tmp_path / "new", server.address, MODCACHE_REMOTE_KEY="ours")
    assert said["entries"] == ENTRIES


# --- Trouble ---


def test_damaged_records_are_left_out_and_counted(
    server: RedisServer, filled: Path, tmp_path: Path
) -> None:
    moved("push", filled, server.address)
    names = names_on(server, "e")
    small = [name for name in names if "#" not in name and int(server.cli("STRLEN", name)) > 64]
    server.cli("SETRANGE", small[0], 90, "damage")
    server.cli("SET", small[1], "no record")
    server.cli("SET", small[2], server.ask("GET", small[3]))
    server.cli("DEL", next(name for name in names if name.endswith("#1")))
    outcome = run("pull", tmp_path / "new", "--remote", server.address, "--json")
    assert outcome.status == FINDINGS
    assert '"damaged": 3' in outcome.data
    assert f'"entries": {ENTRIES - 4}' in outcome.data, "a value without a piece is not there"
    assert "3 damaged entries were left out" in outcome.messages
    assert run("verify", tmp_path / "new").status == SUCCESS
    # A push sees what cannot be a record, or the one of this entry, and the piece that is missing.
    assert moved("push", filled, server.address)["entries"] in (2, 3)


def test_an_entry_without_its_context_is_left_out(
    server: RedisServer, filled: Path, tmp_path: Path
) -> None:
    moved("push", filled, server.address, "--scope", "large")
    (context,) = names_on(server, "c")
    server.cli("DEL", context)
    outcome = run("pull", tmp_path / "new", "--remote", server.address)
    assert outcome.status == FINDINGS
    assert "1 entries were left out of which the server lost" in outcome.messages
    assert moved("push", filled, server.address, "--scope", "large")["there"] == 1
    assert moved("pull", tmp_path / "new", server.address)["entries"] == 1


def begun(command: str, directory: Path, address: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [binary("modcache"), command, directory, "--json"],
        env=environment(MODCACHE_REMOTE=address),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextmanager
def slowly(server: RedisServer) -> Iterator[str]:
    """An address at which a push takes seconds, so that what shall happen midway does."""
    with DelayedPort("127.0.0.1", server.port, delay_ms=20) as port:
        yield server.address_at(port.port)


def test_a_killed_push_goes_on(server: RedisServer, tmp_path: Path) -> None:
    directory = many(tmp_path / "many", 50_000)
    with slowly(server) as address, begun("push", directory, address) as push:
        wait_until(lambda: int(server.cli("DBSIZE")) > 2000, "something was pushed")
        push.kill()
    assert int(server.cli("DBSIZE")) < 50_000
    said = moved("push", directory, server.address)
    assert said["there"] > 1900
    assert said["entries"] + said["there"] == 50_000
    with begun("pull", tmp_path / "new", server.address) as pull:
        wait_until(lambda: any(tmp_path.glob("new/segments/*.seg")), "something was pulled")
        pull.kill()
    said = moved("pull", tmp_path / "new", server.address)
    assert said["entries"] + said["there"] == 50_000
    assert run("verify", tmp_path / "new").status == SUCCESS


def test_a_server_that_is_lost_says_how_far_it_came(binary: str, tmp_path: Path) -> None:
    directory = many(tmp_path / "many", 50_000)
    with RedisServer(tmp_path / "s", binary=binary, persistent=True) as server:
        with slowly(server) as address, begun("push", directory, address) as push:
            wait_until(lambda: int(server.cli("DBSIZE")) > 2000, "something was pushed")
            server.kill()
            data, messages = push.communicate()
        assert push.returncode == FINDINGS
        assert '"entries": ' in data
        assert "entries were pushed, and are there" in messages
        assert address in messages
        server.start()
        said = moved("push", directory, server.address)
        assert said["there"] > 1900
        assert said["entries"] + said["there"] == 50_000


def test_a_full_server_takes_no_more(server: RedisServer, tmp_path: Path) -> None:
    directory = many(tmp_path / "many", 20_000)
    server.limit_memory("8mb")
    outcome = run("push", directory, "--remote", server.address)
    assert outcome.status == FINDINGS
    assert "OOM" in outcome.messages
    assert "Pushing again goes on from there" in outcome.messages
    server.limit_memory("0")
    assert moved("push", directory, server.address)["there"] > 0


def test_the_budget_holds(server: RedisServer, tmp_path: Path) -> None:
    directory = many(tmp_path / "many", 5000)
    moved("push", directory, server.address)
    settings = {"MODCACHE_REMOTE": server.address, "MODCACHE_DISK": "2MB"}
    outcome = run("pull", tmp_path / "new", **settings)
    assert outcome.status == FINDINGS
    assert "found no room in 2.00 MB" in outcome.messages
    assert sum(len(data) for data in bytes_below(tmp_path / "new").values()) < 3_000_000
    assert moved("pull", tmp_path / "new", server.address)["there"] > 0


@needs_nginx
def test_a_server_that_lets_nobody_write_says_so(tmp_path: Path, filled: Path) -> None:
    with nginx(tmp_path / "h", read_only=True) as server:
        outcome = run("push", filled, "--remote", server.url)
        assert outcome.status == FINDINGS
        assert "0 entries were pushed" in outcome.messages
        assert moved("pull", tmp_path / "new", server.url)["entries"] == 0


@pytest.mark.parametrize("command", ["push", "pull"])
@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("", "no server was given: --remote ADDRESS or MODCACHE_REMOTE says which"),
        ("somewhere", "'somewhere' is no address of a server; it begins with one of: redis://"),
        ("redis://:hidden@h?prefix=a%20b", "prefix"),
        ("redis://:hidden@h?ports=1", "has the parameter 'ports'"),
        ("redis://user:hidden@127.0.0.1:PORT/0", "user:***@127.0.0.1:PORT"),
        ("http://user:hidden@127.0.0.1:PORT/", "user:***@127.0.0.1:PORT"),
        ("redis://h?key_file=/none/there", "key_file"),
    ],
)
def test_an_address_that_leads_nowhere_is_misuse(
    filled: Path, tmp_path: Path, command: str, address: str, says: str
) -> None:
    port = str(free_port())
    place = filled if command == "push" else tmp_path / "new"
    given = address.replace("PORT", port)
    for words, settings in (
        (["--remote", given], {}),
        ([], {"MODCACHE_REMOTE": given}),
    ):
        outcome = run(command, place, *words, **settings)
        assert (outcome.status, outcome.data) == (MISUSE, "")
        assert says.replace("PORT", port) in outcome.messages
        assert "hidden" not in outcome.messages
    assert not (tmp_path / "new").exists()


def test_a_password_is_not_shown(tmp_path: Path, filled: Path) -> None:
    with RedisServer(tmp_path / "s", password="p@ss:word/1") as server:
        for words in (["push", filled], ["pull", tmp_path / "new"], ["push", filled, "--json"]):
            outcome = run(*words, MODCACHE_REMOTE=server.address)
            assert outcome.status == SUCCESS
            assert ":***@127.0.0.1" in outcome.data
            assert "ss:word" not in outcome.data + outcome.messages
            assert "ss%3Aword" not in outcome.data + outcome.messages
        outcome = run("push", filled, MODCACHE_REMOTE=server.address.replace("word", "wrong"))
        assert outcome.status == MISUSE
        assert "WRONGPASS" in outcome.messages
        assert "ss%3Awrong" not in outcome.messages


@pytest.mark.parametrize("command", ["push", "pull"])
def test_the_page_names_every_member(server: RedisServer, filled: Path, command: str) -> None:
    page = (ROOT / "docs/command-line.md").read_text(encoding="utf-8")
    section = page.split(f"\n### {command}\n", 1)[1].split("\n#", 1)[0]
    named = set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE))
    assert named == moved(command, filled, server.address).keys()


# --- Where the program finds the engines ---


def test_the_engines_are_found_where_the_package_has_them(
    server: RedisServer, filled: Path, tmp_path: Path
) -> None:
    program = binary("modcache")
    engines = program.parent.parent / "libmodcache_remote.so"
    venv = tmp_path / "venv"
    for place in ("lib/python3.11/site-packages/modcache/lib", "lib", "modcache/lib", "."):
        shutil.rmtree(venv, ignore_errors=True)
        (venv / "bin").mkdir(parents=True)
        shutil.copy2(program, venv / "bin/modcache")
        words = [venv / "bin/modcache", "push", filled, "--remote", server.address]
        done = subprocess.run(words, capture_output=True, text=True, env=environment())
        assert done.returncode == MISUSE
        assert "libmodcache_remote.so, cannot be loaded" in done.stderr
        (venv / place).mkdir(parents=True, exist_ok=True)
        shutil.copy2(engines, venv / place)
        # As a shell calls it.
        path = f"{venv / 'bin'}:{os.environ['PATH']}"
        words[0] = "modcache"
        shell = ["sh", "-c", '"$@"', "sh", *words]
        at_path = environment(PATH=path)
        done = subprocess.run(shell, capture_output=True, text=True, env=at_path)
        assert done.returncode == SUCCESS, done.stderr
