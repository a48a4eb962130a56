# SPDX-License-Identifier: Apache-2.0
"""Streams of installed libraries: their scopes, and keys that name two samples.

The packages made here have the form of the real ones, which tests/recipes/test_streams.py uses.
"""

from __future__ import annotations

import importlib.util
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import modcache
import numpy as np
import pytest
import torch
from modcache._data import repeated_keys
from processes import python_environment
from torch.utils.data import DataLoader, RandomSampler, get_worker_info

Growth = Callable[[], dict[str, int]]
PACKAGE = """
import random


class FilterFunction:
    def __init__(self, f, *args, **kw):
        self.f, self.args, self.kw = f, args, kw

    def __call__(self, data):
        return self.f(data, *self.args, **self.kw)


def _shuffle(data, size=10, seed=None):
    yield from random.Random(seed).sample(list(data), size)


def _map(data, function):
    yield from map(function, data)


class ResampledShards:
    def __init__(self, urls):
        self.urls, self.epoch, self.rng = urls, -1, None

    def __iter__(self):
        self.epoch += 1
        self.rng = random.Random()
        yield from self.urls


class DataPipeline:
    def __init__(self, *steps):
        self.pipeline = list(steps)
        self.repetitions = 1

    def __iter__(self):
        for _ in range(self.repetitions):
            stream = iter(self.pipeline[0])
            for step in self.pipeline[1:]:
                stream = step(stream)
            yield from stream


class WebDataset(DataPipeline):
    def __init__(self, samples):
        self.seed = random.randrange(1, 10**6)
        super().__init__(ResampledShards(samples), FilterFunction(_shuffle, 10, seed=self.seed))
        self.buffer = []

    def map(self, function):
        self.pipeline.append(FilterFunction(_map, function))
        return self
"""
PROGRAM = """
import modcache
from {name} import WebDataset

def decode(sample):
    return int(sample["cls"])

stream = WebDataset([{{"__key__": f"{{i:03}}", "cls": b"%d" % i}} for i in range(10)])
samples = modcache.CachedIterableDataset(stream, decode)
assert sorted(samples) == sorted(samples) == list(range(10))
modcache.flush()
print(modcache.stats()["misses"])
"""


def installed(folder: Path, name: str) -> Path:
    """Writes the package to a folder like that of installed ones, and returns the folder."""
    folder = folder / "site-packages"
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.py").write_text(PACKAGE)
    return folder


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    def imported(name: str) -> Any:
        file = installed(tmp_path, name) / f"{name}.py"
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None
        assert spec.loader is not None
        made = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, made)
        spec.loader.exec_module(made)
        return made

    return imported


def raw(count: int = 10) -> list[dict[str, Any]]:
    return [{"__key__": f"{i:03}", "cls": str(i).encode()} for i in range(count)]


def decode(sample: dict[str, Any]) -> int:
    return int(sample["cls"])


def scope_of(stream: Any, transform: Any = decode) -> str:
    return modcache.CachedIterableDataset(stream, transform).scope


# ----- scopes


def test_a_stream_hits_in_the_next_process(tmp_path: Path) -> None:
    folder = installed(tmp_path, "webdataset")
    environment = python_environment(MODCACHE_DIR=str(tmp_path / "cache"))
    environment["PYTHONPATH"] = os.pathsep.join((environment.get("PYTHONPATH", ""), str(folder)))
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(name="webdataset"))
    misses = [
        int(subprocess.check_output([sys.executable, str(program)], env=environment))
        for _ in range(2)
    ]
    assert misses == [10, 0]


def test_what_decides_the_order_is_not_in_the_scope(library: Any) -> None:
    webdataset = library("webdataset")
    one, other = webdataset.WebDataset(raw()), webdataset.WebDataset(raw())
    other.seed, other.repetitions = one.seed + 1, 3
    before = scope_of(one)
    assert before == scope_of(other)
    list(other)  # leaves counters and a random state behind
    assert before == scope_of(other)
    assert before != scope_of(webdataset.WebDataset(raw(9)))
    assert before != scope_of(webdataset.WebDataset(raw()).map(dict))
    derived = type("Derived", (webdataset.WebDataset,), {"__module__": "webdataset"})
    assert scope_of(derived(raw())) == scope_of(derived(raw()))


def test_other_attributes_still_count(library: Any) -> None:
    webdataset = library("webdataset")
    stream = webdataset.WebDataset(raw())
    samples: Any = modcache.CachedIterableDataset(stream, decode)
    before = samples.scope
    list(samples)
    assert samples.scope == before
    stream.resolution = 256
    assert samples.scope != before


def test_a_seed_of_an_unknown_library_asks_for_a_scope(library: Any) -> None:
    stream = library("otherstreams").WebDataset(raw())
    with pytest.raises(TypeError, match=r"attribute 'seed' of WebDataset is unclear.*scope="):
        modcache.CachedIterableDataset(stream, decode)
    named: Any = modcache.CachedIterableDataset(stream, decode, scope="s")
    assert sorted(named) == list(range(10))


def test_samplers_of_torch_only_decide_the_order() -> None:
    scopes = {scope_of(RandomSampler(range(3), generator=torch.Generator())) for _ in range(2)}
    assert len(scopes) == 1


class Counting:
    """The user's own stream: it counts what it yields, and holds a buffer and an iterator."""

    def __init__(self) -> None:
        self.passes = 0
        self.samples = 0
        self.buffer: list[Any] = []
        self.factor = 1
        self.open: Any = None

    def __iter__(self) -> Iterator[Any]:
        self.passes += 1
        self.open = iter(raw())
        for sample in self.open:
            self.samples += 1
            self.buffer.append(sample)
            yield sample

    def decode(self, sample: dict[str, Any]) -> int:
        return self.factor * int(sample["cls"])


@pytest.mark.parametrize("is_method", [False, True])
def test_what_a_pass_changes_in_its_stream_is_no_other_scope(
    is_method: bool, counted: Growth
) -> None:
    stream = Counting()
    samples: Any = modcache.CachedIterableDataset(
        stream, stream.decode if is_method else decode, look_ahead=2
    )
    scope = samples.scope
    for _ in range(3):
        assert list(samples) == list(range(10))
    half = iter(samples)
    assert next(half) == 0
    assert list(samples) == list(range(10))  # while another pass is open
    del half
    assert samples.scope == scope
    assert counted()["misses"] == 10
    stream.factor, stream.open = 2, None
    assert samples.scope != scope


def test_a_change_of_the_transform_counts_during_a_pass() -> None:
    class Scale:
        def __init__(self) -> None:
            self.factor = 1.0

        def __call__(self, sample: dict[str, Any]) -> float:
            return self.factor * int(sample["cls"])

    scale = Scale()
    samples: Any = modcache.CachedIterableDataset(raw(), scale, look_ahead=1)
    list(samples)
    found = []
    for sample in samples:
        found.append(sample)
        scale.factor = 10.0
    assert found == [0.0, *(10.0 * i for i in range(1, 10))]


# ----- keys


def test_the_shard_is_part_of_the_key(caplog: pytest.LogCaptureFixture) -> None:
    samples = [
        {"__key__": "0", "__url__": url, "cls": cls} for url, cls in (("a", b"1"), ("b", b"2"))
    ]
    stream: Any = modcache.CachedIterableDataset(samples, decode, scope="s")
    assert list(stream) == list(stream) == [1, 2]
    assert modcache.contains("s", ("a", "0"))
    assert not caplog.messages


REPEATED: dict[str, list[Any]] = {
    "bytes": [b"1", b"2"],
    "text": ["1", "2"],
    "numbers": [1, 2],
    "arrays": [np.ones(3), np.zeros(3)],
    "tensors": [torch.ones(3), torch.zeros(3)],
    "lists": [[1], [2]],
    "nested": [{"x": b"1"}, {"x": b"2"}],
    "types": [1, b"1"],
}


@pytest.mark.parametrize("name", REPEATED)
@pytest.mark.parametrize("look_ahead", [1, 16])
def test_a_key_that_names_two_samples_is_warned_about_once(
    name: str, look_ahead: int, caplog: pytest.LogCaptureFixture
) -> None:
    samples = [{"__key__": "same", "v": value} for value in REPEATED[name]]
    stream: Any = modcache.CachedIterableDataset(samples, len, scope="s", look_ahead=look_ahead)
    for _ in range(3):
        list(stream)
    [message] = caplog.messages
    assert "two samples of one pass have the key 'same'" in message
    assert "Pass key=" in message


def test_a_sample_that_comes_again_is_not_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    nan = [{"__key__": "a", "__epoch__": i, "v": float("nan"), "x": np.ones(3)} for i in range(3)]
    stream: Any = modcache.CachedIterableDataset(raw() * 3 + nan, len, scope="s", variants=2)
    for epoch in range(3):
        stream.set_epoch(epoch)
        list(stream)
    assert not caplog.messages


def test_a_long_pass_is_checked_in_bounded_memory(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(repeated_keys, "_MAX_KEYS", 64)
    keys = repeated_keys.RepeatedKeys("stream").new_pass()
    assert keys is not None
    for number in range(5000):
        keys.note([str(number)], [number])
        assert len(keys._seen) <= 64
    assert not caplog.messages
    for number in range(5000):
        keys.note([str(number)], [-1])
    assert len(caplog.messages) == 1


class Same:
    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        part = 0 if worker is None else worker.id
        for i in range(4):
            yield {"__key__": f"{part}", "cls": str(i).encode()}


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_warn_once_among_them(start: str, capfd: pytest.CaptureFixture[str]) -> None:
    stream: Any = modcache.CachedIterableDataset(Same(), decode, scope="s")
    for _ in range(2 if start == "fork" else 1):
        list(DataLoader(stream, num_workers=2, batch_size=None, multiprocessing_context=start))
    assert capfd.readouterr().err.count("two samples of one pass have the key") <= 2
    assert stream._repeated._is_done[0] == 1
    copy = pickle.loads(pickle.dumps(stream))
    assert list(copy) == [0, 0, 0, 0]
