# SPDX-License-Identifier: Apache-2.0
"""Streams of webdataset, torchdata and datasets hit in the next process and in the next pass."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import modcache
import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler

SAMPLES = 20  # of each shard
PROGRAM = """
import sys
import modcache, webdataset
modcache.configure(dir=sys.argv[1])
stream = webdataset.WebDataset(sys.argv[2:], shardshuffle=100).shuffle(10)
samples = modcache.CachedIterableDataset(stream, lambda sample: int(sample["cls"]))
assert sorted(samples) == list(range(40)), sorted(samples)
modcache.flush()
print(modcache.stats()["misses"])
"""


@pytest.fixture
def shards(tmp_path: Path) -> list[str]:
    """Two shards with the same keys."""
    return [str(_shard(tmp_path / f"{number}.tar", number * SAMPLES)) for number in range(2)]


def _shard(path: Path, first: int) -> Path:
    with tarfile.open(path, "w") as tar:
        for number in range(SAMPLES):
            body = str(first + number).encode()
            info = tarfile.TarInfo(f"{number:06}.cls")
            info.size = len(body)
            tar.addfile(info, io.BytesIO(body))
    return path


def label(sample: dict[str, Any]) -> int:
    return int(sample["cls"])


def test_a_web_dataset_hits_in_the_next_process(shards: list[str], tmp_path: Path) -> None:
    program = [sys.executable, "-c", PROGRAM, str(tmp_path / "cache"), *shards]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    misses = [int(subprocess.check_output(program, env=environment)) for _ in range(2)]
    assert misses == [2 * SAMPLES, 0]


PIPELINES: dict[str, Callable[[Any, list[str], str], Any]] = {
    "plain": lambda wds, shards, _: wds.WebDataset(shards, shardshuffle=False),
    "shuffled": lambda wds, shards, _: wds.WebDataset(shards, shardshuffle=9, detshuffle=True),
    "repeated": lambda wds, shards, _: wds.WebDataset(shards, shardshuffle=False).repeat(2),
    "resampled": lambda wds, shards, _: wds.WebDataset(shards, resampled=True).slice(100),
    "with a length": lambda wds, shards, _: wds.WebDataset(shards, shardshuffle=False).with_length(
        40, silent=True
    ),
    "held in memory": lambda wds, shards, _: wds.WebDataset(shards, shardshuffle=False).mcached(),
    "downloaded": lambda wds, shards, folder: wds.WebDataset(
        shards, shardshuffle=False, cache_dir=folder, cache_size=10**9
    ),
    "of steps": lambda wds, shards, _: wds.DataPipeline(
        wds.SimpleShardList(shards, seed=True), wds.tarfile_to_samples()
    ),
}


@pytest.mark.parametrize("name", PIPELINES)
def test_pipelines_of_webdataset_have_one_scope(
    name: str, shards: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    webdataset = pytest.importorskip("webdataset")

    def made() -> Any:
        return modcache.CachedIterableDataset(
            PIPELINES[name](webdataset, shards, str(tmp_path)), label
        )

    first, second = made(), made()
    assert first.scope == second.scope
    assert set(first) <= set(range(2 * SAMPLES))
    misses = modcache.stats()["misses"]
    list(first), list(second)
    list(DataLoader(first, num_workers=2, batch_size=None))
    again = modcache.CachedIterableDataset(first.dataset, label)
    assert again.scope == first.scope
    if name != "resampled":
        assert (misses, modcache.stats()["misses"]) == (2 * SAMPLES, 2 * SAMPLES)
    assert not [message for message in caplog.messages if "two samples" in message]


class Numbers(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"__key__": str(index), "cls": index}


def with_sign(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "sign": 1}


NODES: dict[str, Callable[[Any], Any]] = {
    "an iterable": lambda nodes: nodes.IterableWrapper([Numbers()[i] for i in range(SAMPLES)]),
    "random": lambda nodes: nodes.Mapper(
        nodes.SamplerWrapper(RandomSampler(Numbers())), Numbers().__getitem__
    ),
    "of a rank": lambda nodes: nodes.Mapper(
        nodes.SamplerWrapper(DistributedSampler(Numbers(), 1, 0)), Numbers().__getitem__
    ),
    "prefetched": lambda nodes: nodes.Prefetcher(
        nodes.ParallelMapper(
            nodes.IterableWrapper([Numbers()[i] for i in range(SAMPLES)]),
            with_sign, num_workers=1, method="thread",
        ),
        4,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NODES)
def test_nodes_of_torchdata_have_one_scope(name: str) -> None:
    nodes = pytest.importorskip("torchdata.nodes")
    loader = nodes.Loader(NODES[name](nodes))
    first: Any = modcache.CachedIterableDataset(loader, label)
    assert sorted(first) == sorted(first) == list(range(SAMPLES))
    for other in (loader, nodes.Loader(NODES[name](nodes))):
        second: Any = modcache.CachedIterableDataset(other, label)
        assert second.scope == first.scope
    assert modcache.stats()["misses"] == SAMPLES


def numbers(shards: list[str]) -> Any:
    for shard in shards:
        for number in range(SAMPLES):
            yield {"id": f"{shard}/{number}", "cls": number}


def test_streams_of_datasets_have_one_scope() -> None:
    datasets = pytest.importorskip("datasets")
    distributed = pytest.importorskip("datasets.distributed")
    stream = datasets.IterableDataset.from_generator(numbers, gen_kwargs={"shards": ["a", "b"]})
    ranks = [
        distributed.split_dataset_by_node(stream, rank=rank, world_size=2) for rank in range(2)
    ]
    scopes = {modcache.CachedIterableDataset(rank, label, key="id").scope for rank in ranks}
    assert len(scopes) == 1
    stream = datasets.IterableDataset.from_generator(numbers, gen_kwargs={"shards": ("a", "b")})
    shuffled = [stream.shuffle(buffer_size=5) for _ in range(4)]
    made = [modcache.CachedIterableDataset(each, label, key="id") for each in shuffled]
    for each in made:
        assert len(list(each)) == 2 * SAMPLES
    assert modcache.stats()["misses"] == 2 * SAMPLES
    assert len({each.scope for each in made}) == 1
