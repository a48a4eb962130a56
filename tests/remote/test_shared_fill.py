# SPDX-License-Identifier: Apache-2.0
"""fill(share=True): machines that fill one data set take different parts of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import modcache
import pytest
import torch
from machines import Machines, slow_module
from redis_servers import RedisServer
from torch.utils.data import DataLoader, TensorDataset

ROWS = 10_000
BATCH = 100

# A machine that fills. It logs each row that it runs, and prints its summary at the end.
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
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-W",
                "ignore",
                "-c",
                FILLER,
                folder / name,
                address,
                str(run_s),
                self.log,
            ],
            env=environment,
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


def filled_rows(machines: Machines, address: str) -> int:
    """How many rows a machine that comes later finds on the server."""
    machines.become("later", address)
    x = torch.arange(ROWS, dtype=torch.float32).reshape(-1, 1).expand(-1, 8).contiguous()
    loader = DataLoader(TensorDataset(x, torch.arange(ROWS)), batch_size=1000)
    return modcache.fill(slow_module(), loader, key=1, scope="fill", progress=False).hits


def test_two_machines_run_each_row_once(
    machines: Machines, redis: RedisServer, tmp_path: Path
) -> None:
    fillers = [Filler(tmp_path, name, redis.address, 0.05) for name in ("a", "b")]
    summaries = [filler.summary() for filler in fillers]
    ran = fillers[0].ran() + fillers[1].ran()
    assert len(set(ran)) == ROWS
    assert len(ran) - ROWS <= ROWS // 100
    assert all(summary["rows"] > ROWS * 0.2 for summary in summaries), summaries
    assert filled_rows(machines, redis.address) == ROWS


def test_what_a_machine_that_was_killed_leaves_is_taken_over(
    machines: Machines, redis: RedisServer, tmp_path: Path
) -> None:
    killed, other = (Filler(tmp_path, name, redis.address, 0.1) for name in ("a", "b"))
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


def test_a_server_that_dies_leaves_all_to_each(machines: Machines, redis: RedisServer) -> None:
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

    done = modcache.fill(slow_module(), Batches(), key=1, scope="s", share=True, progress=False)
    assert (done.rows, done.runs) == (40, 40)
