# SPDX-License-Identifier: Apache-2.0
"""Several processes on one directory, forked and spawned workers, and the end of a process."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import modcache
import pytest
import torch
from models import Encoder, frozen
from processes import ProcessRunner, hear, python_environment, tell
from torch import nn

X = torch.linspace(-1, 1, 8).reshape(2, 4)


def encoder() -> nn.Module:
    torch.manual_seed(0)
    return frozen(Encoder())


def fill(first: int, last: int) -> tuple[int, dict[str, int]]:
    module = torch.jit.script(encoder())
    wrong = 0
    for index in range(first, last):
        x = X * index
        wrong += not torch.equal(modcache.lookup_or_run(module, x, str(index)), module(x))
    modcache.flush()
    return wrong, modcache.stats()


def test_two_filling_and_two_reading_processes(processes: ProcessRunner) -> None:
    ranges = [(0, 400), (200, 600), (0, 600), (0, 600)]
    modes = ["on", "on", "read", "read"]
    children = [
        processes.start(fill, *span, env={"MODCACHE_MODE": mode})
        for span, mode in zip(ranges, modes, strict=True)
    ]
    for outcome in [child.wait() for child in children]:
        wrong, stats = outcome.value
        assert (wrong, stats["errors"], stats["corrupt"]) == (0, 0, 0)
        assert outcome.log_lines == []
    wrong, stats = processes.run(fill, 0, 600).value
    assert (wrong, stats["hits_disk"], stats["misses"]) == (0, 600, 0)
    assert stats["entries_disk"] == 600


def talk() -> None:
    """Does what it is told, and says how it went."""
    module = torch.jit.script(encoder())
    while (order := hear()) != "stop":
        modcache.reset_stats()
        if order == "flush":
            modcache.flush()
        elif order == "clear":
            modcache.clear()
        elif order == "clear s":
            modcache.clear("s")
        else:
            modcache.lookup_or_run(module, X, order, scope="s")
        tell(modcache.stats())


def test_what_one_flushed_the_other_sees_at_its_next_call(processes: ProcessRunner) -> None:
    one, two = processes.start(talk), processes.start(talk)

    def ask(child: Any, order: str) -> dict[str, int]:
        child.send(order)
        stats: dict[str, int] = child.receive()
        assert stats["errors"] == 0
        return stats

    for round_ in range(3):
        key = f"key-{round_}"
        assert ask(two, f"other-{round_}")["misses"] == 1
        assert ask(one, key)["misses"] == 1
        ask(one, "flush")
        assert ask(two, key)["hits_disk"] == 1
        assert ask(two, key)["hits_memory"] == 1
        ask(one, ["clear", "clear s"][round_ % 2])
        assert ask(two, key)["misses"] == 1  # it was in its memory
        ask(two, "flush")
        assert ask(one, key)["hits_disk"] == 1
    for child in (one, two):
        child.send("stop")
        child.wait()


def test_what_one_stored_the_other_sees_within_a_second(processes: ProcessRunner) -> None:
    other = processes.start(talk, env={"MODCACHE_MODE": "read"})
    other.send("warm up")
    assert other.receive()["misses"] == 1
    modcache.lookup_or_run(torch.jit.script(encoder()), X, "k", scope="s")
    stored_at = time.monotonic()
    is_seen = False
    while not is_seen:
        is_last = time.monotonic() >= stored_at + 1
        other.send("k")
        is_seen = other.receive()["hits_disk"] == 1
        assert is_seen or not is_last
    other.send("stop")
    other.wait()


# --- Forks and workers ------------------------------------------------------------------


def in_fork(work: Any) -> int:
    """Runs ``work`` in a forked child that leaves by os._exit, as DataLoader workers do."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if work() else 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_forked_child_uses_the_cache_on_its_own() -> None:
    module, eager = torch.jit.script(encoder()), encoder()
    expected = modcache.lookup_or_run(module, X, "before")
    modcache.lookup_or_run(eager, X, "before eager")
    modcache.flush()  # else a child may ask the directory before the entries are committed

    def work() -> bool:
        modcache.reset_stats()
        ok = torch.equal(modcache.lookup_or_run(module, X, "before"), expected)
        modcache.lookup_or_run(eager, X, "before eager")
        modcache.lookup_or_run(module, X, "in child")
        modcache.lookup_or_run(eager, X, "in child eager")
        modcache.flush()
        stats = modcache.stats()
        return ok and stats["misses"] == 2 and stats["errors"] == 0

    for _ in range(3):
        modcache.clear(modcache.fingerprint(module), prefix="in")
        modcache.clear(modcache.fingerprint(eager), prefix="in")
        assert in_fork(work) == 0
    modcache.reset_stats()
    modcache.lookup_or_run(module, X, "in child")
    modcache.lookup_or_run(module, X, "before")
    assert modcache.stats()["misses"] == 0


def test_a_fork_in_the_middle_of_everything() -> None:
    import threading

    module, eager = torch.jit.script(encoder()), encoder()
    stop = threading.Event()

    def busy(offset: int) -> None:
        index = 0
        while not stop.is_set():
            modcache.lookup_or_run(module, X, f"{offset}-{index % 300}")
            modcache.lookup_or_run(eager, X, f"{offset}-{index % 300}")
            index += 1

    threads = [threading.Thread(target=busy, args=(offset,)) for offset in range(2)]
    for thread in threads:
        thread.start()

    def work() -> bool:
        for index in range(5):
            modcache.lookup_or_run(module, X, f"child-{index}")
            modcache.lookup_or_run(eager, X, f"child-{index}")
        modcache.flush()
        return modcache.stats()["errors"] == 0

    try:
        assert [in_fork(work) for _ in range(10)] == [0] * 10
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def worker_stores(directory: str, key: str) -> None:
    modcache.configure(dir=directory)
    modcache.lookup_or_run(nn.ReLU(), X, key, scope="worker")


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_worker_flushes_at_its_end(method: str, cache_dir: Path, counted: Any) -> None:
    context = multiprocessing.get_context(method)
    worker = context.Process(target=worker_stores, args=(str(cache_dir), "k"))
    worker.start()
    worker.join()
    assert worker.exitcode == 0
    modcache.lookup_or_run(nn.ReLU(), X, "k", scope="worker")
    assert counted() == {"hits_disk": 1}


class EncodingDataset(torch.utils.data.Dataset[torch.Tensor]):
    def __init__(self) -> None:
        self.encoder = encoder()

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> torch.Tensor:
        return modcache.lookup_or_run(self.encoder, X * index, str(index))


def test_dataloader_workers_fill_one_cache() -> None:
    dataset = EncodingDataset()
    expected = torch.stack([dataset.encoder(X * index) for index in range(24)])
    for _ in range(2):
        loader = torch.utils.data.DataLoader(
            dataset, batch_size=4, num_workers=2, multiprocessing_context="fork"
        )
        assert torch.equal(torch.cat(list(loader)), expected)
    modcache.reset_stats()
    for index in range(24):
        dataset[index]
    assert modcache.stats()["misses"] == 0


EXITING_PROGRAM = """
import torch, modcache, sys
modcache.lookup_or_run(torch.nn.ReLU(), torch.ones(2), "k", scope="exit")
{ending}
"""


@pytest.mark.parametrize(
    ("ending", "code"),
    [("", 0), ("sys.exit(3)", 3), ("raise ValueError", 1)],
    ids=["end", "sys.exit", "exception"],
)
def test_a_process_flushes_when_it_exits(ending: str, code: int, cache_dir: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", EXITING_PROGRAM.format(ending=ending)],
        env=python_environment(MODCACHE_DIR=str(cache_dir)),
        stderr=subprocess.DEVNULL,
    )
    assert ended.returncode == code
    assert modcache.contains("exit", "k")


KEPT_TO_THE_END = """
import torch, modcache
from modcache._identity import records
# As Hugging Face's configurations name bool: its __new__ dies after all that is Python.
record = records.Records().of_class(bool)
import ctypes
ctypes.pythonapi.Py_IncRef(ctypes.py_object(record))
"""


def test_what_is_remembered_of_a_builtin_class_runs_nothing_once_python_is_gone() -> None:
    ended = subprocess.run([sys.executable, "-c", KEPT_TO_THE_END], env=python_environment())
    assert ended.returncode == 0
