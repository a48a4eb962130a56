# SPDX-License-Identifier: Apache-2.0
"""fill(share=True): machines that fill one data set take different parts of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import modcache
import pytest
import torch
from machines import Machines, slow_module
from modcache._fill import fill_pass, parts, shared_batches
from modcache._fill.parts import DONE, NOBODYS, OTHERS, Parts
from redis_servers import RedisServer
from torch.utils.data import DataLoader, TensorDataset

ROWS = 10_000
BATCH = 100

# A machine that fills, once it is told to. It logs each row that it runs, and prints its summary.
FILLER = f"""
import json, sys
import modcache, torch
from modcache._fill import parts
from machines import slow_module
from torch.utils.data import DataLoader, TensorDataset

# Others take over sooner than they do by default.
parts._LEFT_AFTER_S = 5.0
torch.set_num_threads(1)
directory, address, run_s, log = sys.argv[1:]
modcache.configure(dir=directory, remote=address, remote_timeout_ms=2000)

module = slow_module(run_s=float(run_s))


def note(_, given):
    with open(log, "a") as file:
        file.write("".join(f"{{int(row)}}\\n" for row in given[0][:, 0]))


module.linear.register_forward_pre_hook(note)
x = torch.arange({ROWS}, dtype=torch.float32).reshape(-1, 1).expand(-1, 8).contiguous()
loader = DataLoader(TensorDataset(x, torch.arange({ROWS})), batch_size={BATCH})
print("ready", flush=True)
sys.stdin.readline()
done = modcache.fill(module, loader, key=1, scope="fill", share=True, progress=False)
print(json.dumps(done.as_dict()), flush=True)
"""


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(tmp_path / "r") as server:
        yield server


class Filler:
    def __init__(self, folder: Path, name: str, address: str, run_s: float) -> None:
        self.log = folder / f"{name}.log"
        self.log.touch()
        here = Path(__file__).parent
        environment = {**os.environ, "PYTHONPATH": f"{here}:{os.environ.get('PYTHONPATH', '')}"}
        words = [folder / name, address, str(run_s), self.log]
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", FILLER, *words],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def summary(self) -> dict[str, float]:
        output, _ = self.process.communicate(timeout=180)
        assert self.process.returncode == 0
        found: dict[str, float] = json.loads(output.splitlines()[-1])
        return found

    def ran(self) -> list[int]:
        return [int(line) for line in self.log.read_text().split()]


def started(fillers: list[Filler]) -> list[Filler]:
    """Those that begin at the same time, however long each took to get there."""
    for filler in fillers:
        assert filler.process.stdout is not None
        assert filler.process.stdout.readline() == "ready\n"
    for filler in fillers:
        assert filler.process.stdin is not None
        filler.process.stdin.write("go\n")
        filler.process.stdin.flush()
    return fillers


def filled_rows(machines: Machines, address: str) -> int:
    """How many rows a machine that comes later finds on the server."""
    machines.become("later", address)
    x = torch.arange(ROWS, dtype=torch.float32).reshape(-1, 1).expand(-1, 8).contiguous()
    loader = DataLoader(TensorDataset(x, torch.arange(ROWS)), batch_size=1000)
    return modcache.fill(slow_module(), loader, key=1, scope="fill", progress=False).hits


def test_two_machines_run_each_row_once(
    machines: Machines, server: RedisServer, tmp_path: Path
) -> None:
    fillers = started([Filler(tmp_path, name, server.address, 0.05) for name in ("a", "b")])
    summaries = [filler.summary() for filler in fillers]
    ran = fillers[0].ran() + fillers[1].ran()
    assert len(set(ran)) == ROWS
    assert len(ran) - ROWS <= ROWS // 100
    assert all(summary["rows"] > ROWS * 0.1 for summary in summaries), summaries
    assert filled_rows(machines, server.address) == ROWS


def test_what_a_machine_that_was_killed_leaves_is_taken_over(
    machines: Machines, redis: RedisServer, tmp_path: Path
) -> None:
    killed, other = started([Filler(tmp_path, name, redis.address, 0.1) for name in ("a", "b")])
    while len(killed.ran()) < ROWS // 10:
        assert killed.process.poll() is None
        time.sleep(0.05)
    killed.process.send_signal(signal.SIGKILL)
    killed.process.wait()
    other.summary()
    assert len(set(killed.ran() + other.ran())) == ROWS
    assert len(killed.ran() + other.ran()) - ROWS <= 2 * BATCH
    assert filled_rows(machines, redis.address) == ROWS


def test_a_list_of_batches_is_shared_by_its_keys(machines: Machines, redis: RedisServer) -> None:
    machines.become("here", redis.address)
    batches = [(torch.full((4, 8), float(i)), [f"{i}-{k}" for k in range(4)]) for i in range(10)]
    done = modcache.fill(slow_module(), batches, key=1, share=True, progress=False)
    assert (done.rows, done.runs) == (40, 40)
    machines.become("other", redis.address)
    done = modcache.fill(slow_module(), batches, key=1, share=True, progress=False)
    assert done.rows == 0, "all of it is done"


@pytest.mark.parametrize("keys", ["rows", "one"])
def test_what_a_dead_machine_left_in_the_directory_reaches_the_server(
    machines: Machines, redis: RedisServer, keys: str
) -> None:
    batches = [
        (torch.full((4, 8), float(i)), [f"{i}-{k}" for k in range(4)] if keys == "rows" else f"{i}")
        for i in range(10)
    ]

    def fill(**how: bool) -> modcache.FillSummary:
        return modcache.fill(slow_module(), batches, key=1, scope="s", progress=False, **how)

    machines.become("here", "")  # what it computes reaches no server
    expected = fill().runs
    machines.become("here", redis.address)
    assert fill(share=True).runs == 0
    machines.become("later", redis.address)
    later = fill()
    assert (later.runs, later.hits) == (0, expected)


def test_after_a_clear_all_is_to_be_done_again(machines: Machines, redis: RedisServer) -> None:
    machines.become("here", redis.address)
    batches = [(torch.ones(4, 8), [f"{i}-{k}" for k in range(4)]) for i in range(3)]
    modcache.fill(slow_module(), batches, key=1, scope="s", share=True, progress=False)
    modcache.clear(scope="s")
    done = modcache.fill(slow_module(), batches, key=1, scope="s", share=True, progress=False)
    assert (done.rows, done.runs) == (12, 12)


def test_what_cannot_be_shared_is_an_error_that_says_why(
    machines: Machines, redis: RedisServer
) -> None:
    batches = [(torch.ones(4, 8), ["a", "b", "c", "d"])]
    machines.become("here", "")
    with pytest.raises(ValueError, match=r"share=True needs a server.*MODCACHE_REMOTE"):
        modcache.fill(slow_module(), batches, key=1, share=True, progress=False)
    machines.become("here", "http://127.0.0.1:1/cache")
    with pytest.raises(ValueError, match="needs Redis or Valkey"):
        modcache.fill(slow_module(), batches, key=1, scope="s", share=True, progress=False)
    machines.become("here", redis.address)
    with pytest.raises(ValueError, match="pass no rank"):
        modcache.fill(slow_module(), batches, key=1, share=True, rank=0, world_size=2)
    with pytest.raises(ValueError, match="goes through the loader again"):
        modcache.fill(slow_module(), iter(batches), key=1, share=True, progress=False)


def test_a_server_that_dies_leaves_all_to_each(
    machines: Machines, redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    machines.become("here", redis.address)
    batches = [(torch.full((4, 8), float(i)), [f"{i}-{k}" for k in range(4)]) for i in range(10)]

    def dying() -> Iterator[object]:
        for number, batch in enumerate(batches):
            if number == 4:
                redis.kill()
            yield batch

    class Batches:
        def __iter__(self) -> Iterator[object]:
            return dying()

    monkeypatch.setattr(shared_batches, "_PAUSE_BEFORE_REPEAT_S", 0.1)
    with pytest.warns(UserWarning, match="did not take all results of 6 batches"):
        done = modcache.fill(slow_module(), Batches(), key=1, scope="s", share=True, progress=False)
    assert (done.rows, done.runs) == (40, 40)


def test_without_an_answer_of_the_server_a_process_fills_alone(
    machines: Machines, redis: RedisServer
) -> None:
    redis.kill()
    machines.become("here", redis.address)
    with pytest.warns(UserWarning, match="not shared, because the server does not answer"):
        done = fill_of(slow_module(), loader_with(0))
    assert (done.rows, done.runs) == (40, 40)


def loader_with(first_key: int, workers: int = 0) -> DataLoader[Any]:
    """Ten batches of four rows."""
    x = torch.arange(40, dtype=torch.float32).reshape(-1, 1).expand(-1, 8).contiguous()
    keys = torch.arange(first_key, first_key + 40)
    return DataLoader(TensorDataset(x, keys), batch_size=4, num_workers=workers)


def fill_of(module: Any, loader: Any, key: Any = 1) -> modcache.FillSummary:
    return modcache.fill(module, loader, key=key, scope="s", share=True, progress=False)


def later_hits(machines: Machines, address: str) -> int:
    machines.become("later", address)
    return modcache.fill(slow_module(), loader_with(0), key=1, scope="s", progress=False).hits


def at_run(module: torch.nn.Module, actions: dict[int, Callable[[], object]]) -> torch.nn.Module:
    """The module, which does these before runs with these numbers."""
    runs = iter(range(1000))
    module.register_forward_pre_hook(lambda *_: actions.get(next(runs), lambda: None)() and None)
    return module


def test_datasets_with_other_keys_are_other_works(machines: Machines, redis: RedisServer) -> None:
    machines.become("here", redis.address)
    assert fill_of(slow_module(), loader_with(0)).runs == 40
    assert fill_of(slow_module(), loader_with(1000)).runs == 40, "train, then val"
    named = fill_of(slow_module(), loader_with(0), lambda batch: [f"k{i}" for i in batch[1]])
    assert named.runs == 40, "another key="
    assert fill_of(slow_module(), loader_with(0)).rows == 0, "the first again"


def test_marks_live_as_long_as_anybody_fills(
    machines: Machines, redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "_RUN_LEFT_AFTER_S", 4.0)
    monkeypatch.setattr(parts, "_LEFT_AFTER_S", 3.0)
    machines.become("here", redis.address)
    work = ("s", parts.generation_of("s"), "")
    with Parts(*work) as first:
        first.take("a")
        assert first.end("a", is_complete=True)
        time.sleep(5.0)
        with Parts(*work) as second:
            assert second.look(["a", "b"]) == [DONE, NOBODYS]
    time.sleep(4.5)
    with Parts(*work) as third:
        assert third.look(["a"]) == [NOBODYS], "a run that everybody left has ended"


def test_the_renewing_thread_outlives_a_remote_that_is_switched_off(
    machines: Machines, redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "_LEFT_AFTER_S", 5.0)
    machines.become("here", redis.address)
    with Parts("s", parts.generation_of("s"), "") as held:
        held.take("a")
        machines.become("here", "")
        time.sleep(1.5)
        machines.become("here", redis.address)
        time.sleep(5.2)
        assert held._thread.is_alive()
        assert held.look(["a"]) == [OTHERS], "it is renewed"


@pytest.mark.parametrize("kind", ["map-style", "list"])
def test_what_a_full_server_refused_is_tried_again(
    machines: Machines, redis: RedisServer, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_batches, "_PAUSE_BEFORE_REPEAT_S", 2.0)
    machines.become("here", redis.address)
    module = at_run(
        slow_module(), {3: lambda: redis.limit_memory("1"), 7: lambda: redis.limit_memory("0")}
    )
    loader = loader_with(0) if kind == "map-style" else list(loader_with(0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        done = fill_of(module, loader)
    assert (done.rows, done.hits, done.runs) == (40, 0, 40), "a row counts once"
    assert later_hits(machines, redis.address) == 40


def test_a_server_that_stays_full_is_warned_of(
    machines: Machines, redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_batches, "_PAUSE_BEFORE_REPEAT_S", 0.1)
    machines.become("here", redis.address)

    def fill_the_server() -> None:
        modcache.flush()
        redis.limit_memory("1")

    module = at_run(slow_module(), {4: fill_the_server})  # the second is a check run
    with pytest.warns(UserWarning, match="did not take all results of 7 batches") as said:
        done = fill_of(module, loader_with(0))
    assert said[0].filename == __file__
    assert (done.rows, done.runs) == (40, 40)
    redis.limit_memory("0")
    machines.become("here", redis.address)
    assert fill_of(slow_module(), loader_with(0)).hits >= 28, "those alone are tried again"
    assert later_hits(machines, redis.address) == 40


def test_what_is_done_after_a_flush_of_the_server_is_there(
    machines: Machines, redis: RedisServer
) -> None:
    machines.become("here", redis.address)
    module = at_run(slow_module(run_s=0.3), {3: lambda: redis.ask("FLUSHALL")})
    with pytest.warns(UserWarning, match="was cleared on the server during the fill"):
        done = fill_of(module, loader_with(0))
    assert (done.rows, done.runs) == (40, 40)
    assert later_hits(machines, redis.address) >= 28
    machines.become("here", redis.address)
    fill_of(slow_module(), loader_with(0))
    machines.become("last", redis.address)
    done = modcache.fill(slow_module(), loader_with(0), key=1, scope="s", progress=False)
    assert done.hits == 40


def test_an_exception_gives_back_what_was_taken(
    machines: Machines, redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Parts] = []

    class Noted(Parts):
        def __enter__(self) -> Self:
            made.append(self)
            super().__enter__()
            return self

    def fail() -> None:
        assert len(made[0]._held) > 1, "workers load ahead"
        raise KeyboardInterrupt

    monkeypatch.setattr(fill_pass, "Parts", Noted)
    machines.become("here", redis.address)
    with pytest.raises(KeyboardInterrupt):
        fill_of(at_run(slow_module(), {4: fail}), loader_with(0, workers=2))
    assert sorted(made[0].look([f"batch {i}" for i in range(10)])) == [DONE] * 3 + [NOBODYS] * 7


def test_no_loader_is_made_while_others_hold_the_rest(
    machines: Machines, redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    loader_of = shared_batches.loader_of

    def counted(*arguments: Any) -> DataLoader[Any]:
        made.append(1)
        return loader_of(*arguments)

    class WithAnother(Parts):
        def __enter__(self) -> Self:
            super().__enter__()
            other = Parts(self._scope, self._generation, self._content)
            other._join()
            other.take("batch 3")
            threading.Timer(6.0, other.give_all_back).start()
            return self

    monkeypatch.setattr(shared_batches, "loader_of", counted)
    monkeypatch.setattr(fill_pass, "Parts", WithAnother)
    machines.become("here", redis.address)
    assert fill_of(slow_module(), loader_with(0, workers=2)).runs == 40
    assert len(made) == 3, "for keys, for what was free, and for what the other one left"
