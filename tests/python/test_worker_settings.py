# SPDX-License-Identifier: Apache-2.0
"""Worker processes and unpickled objects have the settings of the process that made them."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import modcache
import pytest
import torch
from processes import PROGRAM, ProcessRunner, python_environment
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

NEW_INTERPRETERS = ["spawn", "forkserver"]


def seen(*_: object) -> tuple[str, str, str]:
    """The settings that a worker uses."""
    settings = modcache.settings()
    return settings["dir"], settings["memory"], modcache.mode()


def seen_in_worker(method: str) -> tuple[str, str, str]:
    with multiprocessing.get_context(method).Pool(1) as pool:
        return pool.apply(seen)


class AddOne(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 1


class Numbers(Dataset[int]):
    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        return index


class Stream(IterableDataset[dict[str, Any]]):
    def __iter__(self) -> Iterator[dict[str, Any]]:
        yield {"__key__": "0"}


class WithSettings(Numbers):
    def __getitem__(self, index: int) -> Any:
        return seen()


@pytest.mark.parametrize("method", NEW_INTERPRETERS)
def test_worker_inherits_settings(method: str, tmp_path: Path) -> None:
    modcache.configure(dir=tmp_path / "of parent", memory="3MB")
    modcache.set_mode("read")
    assert seen_in_worker(method) == (str(tmp_path / "of parent"), "3000000", "read")


@pytest.mark.parametrize("method", NEW_INTERPRETERS)
def test_worker_inherits_mode_of_thread(method: str) -> None:
    with modcache.mode("off"):
        assert seen_in_worker(method)[2] == "off"
    assert seen_in_worker(method)[2] == "on"


def test_worker_follows_mode_of_directory(cache_dir: Path) -> None:
    modcache.lookup_or_run(AddOne(), torch.ones(1), "key")
    modcache.flush()
    subprocess.run([PROGRAM, "mode", "off", cache_dir], check=True, stdout=subprocess.DEVNULL)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(seen)[2] == "off"
        subprocess.run([PROGRAM, "mode", "on", cache_dir], check=True, stdout=subprocess.DEVNULL)
        assert pool.apply(seen)[2] == "on"


@pytest.mark.parametrize("method", NEW_INTERPRETERS)
def test_data_loader_worker_inherits_settings(method: str, cache_dir: Path) -> None:
    loader = DataLoader(
        WithSettings(), batch_size=None, num_workers=1, multiprocessing_context=method
    )
    assert next(iter(loader))[0] == str(cache_dir)


def test_process_pool_executor_inherits_settings(cache_dir: Path) -> None:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        assert pool.submit(seen).result()[0] == str(cache_dir)


def test_loky_worker_inherits_settings(cache_dir: Path) -> None:
    joblib = pytest.importorskip("joblib")
    seen_there = joblib.Parallel(n_jobs=2)(joblib.delayed(seen)() for _ in range(2))
    assert [of_worker[0] for of_worker in seen_there] == [str(cache_dir)] * 2


@pytest.mark.parametrize(
    ("outer", "inner"), [("fork", "spawn"), ("forkserver", "spawn"), ("spawn", "forkserver")]
)
def test_worker_of_worker_inherits_settings(outer: str, inner: str, cache_dir: Path) -> None:
    context = multiprocessing.get_context(outer)
    with ProcessPoolExecutor(1, mp_context=context) as pool:  # its workers may have children
        assert pool.submit(seen_in_worker, inner).result()[0] == str(cache_dir)


def configured(directory: str) -> str:
    modcache.configure(dir=directory)
    return seen()[0]


@pytest.mark.parametrize("method", NEW_INTERPRETERS)
def test_configure_in_worker_wins(method: str, tmp_path: Path) -> None:
    directory = str(tmp_path / "of worker")
    with multiprocessing.get_context(method).Pool(1) as pool:
        assert pool.apply(configured, (directory,)) == directory
        assert pool.apply(seen)[0] == directory
        modcache.configure(dir=tmp_path / "later")
        # An object does not change settings that the worker chose.
        assert pool.apply(seen, (modcache.cached(AddOne()),))[0] == directory


def spawned_under(environment: dict[str, str]) -> tuple[str, str, str]:
    modcache.configure(memory="3MB")
    os.environ.update(environment)
    return seen_in_worker("spawn")


def test_environment_holds_for_options_that_nobody_configured(
    processes: ProcessRunner, tmp_path: Path
) -> None:
    changed = {"MODCACHE_DIR": "/other", "MODCACHE_MODE": "off", "MODCACHE_MEMORY": "5MB"}
    assert processes.run(spawned_under, changed).value == ("/other", "3000000", "off")


UNGUARDED = """
import multiprocessing, sys
import modcache

modcache.configure(dir="/of/script", memory="5MB")

def where(queue):
    import modcache
    queue.put(modcache.settings())

if __name__ == "__main__":
    modcache.configure(dir="/of/main")
    context = multiprocessing.get_context(sys.argv[1])
    queue = context.Queue()
    worker = context.Process(target=where, args=(queue,))
    worker.start()
    settings = queue.get()
    print(settings["dir"], settings["memory"])
    worker.join()
"""


@pytest.mark.parametrize("method", NEW_INTERPRETERS)
@pytest.mark.parametrize("imports", ["at the top", "in the target"])
def test_worker_of_script_inherits_settings(method: str, imports: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    text = UNGUARDED
    if imports == "in the target":  # the worker imports the module of its target alone
        beginning = 'import modcache\n\nmodcache.configure(dir="/of/script", memory="5MB")'
        assert beginning in text
        text = text.replace(beginning, "")
        text = text.replace('dir="/of/main")', 'dir="/of/main", memory="5MB")')
        text = text.replace('__main__":\n', '__main__":\n    import modcache\n')
    script.write_text(text)
    done = subprocess.run(
        [sys.executable, script, method], env=python_environment(), capture_output=True, text=True
    )
    assert done.stdout.split() == ["/of/main", "5000000"], done.stderr


def test_worker_without_modcache_does_not_import_it(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import multiprocessing, sys\n"
        "def report(queue): queue.put('modcache' in sys.modules or 'torch' in sys.modules)\n"
        "if __name__ == '__main__':\n"
        "    import modcache\n"
        "    modcache.configure(memory=0)\n"
        "    context = multiprocessing.get_context('spawn')\n"
        "    queue = context.Queue()\n"
        "    worker = context.Process(target=report, args=(queue,))\n"
        "    worker.start()\n"
        "    print(queue.get())\n"
        "    worker.join()\n"
    )
    done = subprocess.run(
        [sys.executable, script], env=python_environment(), capture_output=True, text=True
    )
    assert done.stdout.split() == ["False"], done.stderr


def lazy_module() -> nn.Module:
    return modcache.lazy(AddOne, scope="add-one@1")


CACHED: dict[str, Callable[[], Any]] = {
    "module": lambda: modcache.cached(AddOne()),
    "dataset": lambda: modcache.CachedDataset(Numbers()),
    "stream": lambda: modcache.CachedIterableDataset(Stream(), dict, scope="stream@1"),
    "lazy module": lazy_module,
    "module in another": lambda: nn.Sequential(modcache.cached(AddOne())),
}


def pickled(kind: str, options: dict[str, str]) -> bytes:
    modcache.configure(**options)
    return pickle.dumps(CACHED[kind]())


def unpickled(text: bytes, **own: str) -> tuple[str, str, str]:
    if own:
        modcache.configure(**own)
    pickle.loads(text)
    return seen()


def unpickled_after_configure(text: bytes) -> tuple[str, str, str]:
    return unpickled(text, dir="/own")


@pytest.mark.parametrize("kind", CACHED)
def test_unpickled_object_brings_settings(kind: str, processes: ProcessRunner) -> None:
    text = processes.run(pickled, kind, {"dir": "/of/maker", "memory": "3MB"}).value
    assert processes.run(unpickled, text).value == ("/of/maker", "3000000", "on")


def test_unpickled_object_changes_no_settings_of_others(processes: ProcessRunner) -> None:
    text = processes.run(pickled, "module", {"dir": "/of/maker", "memory": "3MB"}).value
    assert processes.run(unpickled_after_configure, text).value == ("/own", "1000000000", "on")
    there = processes.run(unpickled, text, env={"MODCACHE_DIR": "/of/environment"}).value
    assert there == ("/of/environment", "3000000", "on")


def test_object_of_a_process_that_configured_nothing_brings_no_settings(
    processes: ProcessRunner, tmp_path: Path
) -> None:
    text = processes.run(pickled, "module", {}).value
    there = processes.run(unpickled, text, env={"MODCACHE_MEMORY": "5MB"}).value
    assert there == (str(tmp_path / "cache"), "5000000", "on")


def test_password_is_not_pickled(processes: ProcessRunner) -> None:
    options = {"remote": "redis://:secret@127.0.0.1:1/0", "dir": "/of/maker"}
    for kind in CACHED:
        text = processes.run(pickled, kind, options).value
        assert b"/of/maker" in text
        assert b"secret" not in text


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_object_brings_later_settings_to_a_running_worker(method: str, tmp_path: Path) -> None:
    with multiprocessing.get_context(method).Pool(1) as pool:
        pool.apply(seen)
        modcache.configure(dir=tmp_path / "later")
        module = modcache.cached(AddOne())
        assert pool.apply(seen, (module,))[0] == str(tmp_path / "later")


def remote_of_worker() -> str:
    from modcache._library.explicit import explicit_options

    return explicit_options().get("remote", "")


def test_worker_inherits_password(processes: ProcessRunner) -> None:
    assert processes.run(remote_in_worker).value == "redis://:secret@127.0.0.1:1/0"


def remote_in_worker() -> str:
    modcache.configure(remote="redis://:secret@127.0.0.1:1/0")
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(remote_of_worker)


def test_cached_module_can_be_copied() -> None:
    module = modcache.cached(AddOne())
    assert torch.equal(copy.deepcopy(module)(torch.ones(1)), torch.full((1,), 2.0))
