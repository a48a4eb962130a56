# SPDX-License-Identifier: Apache-2.0
"""What entries take on each tier, and what a hit costs there, with servers on this machine.

    PYTHONPATH=python_shim python tests/bench/remote_cost.py [sizes] [hits] [--json FILE]

``docs/scaling.md`` has what it found. Servers are redis-server and nginx on loopback, which share
the processors with what is measured.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import modcache
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "remote"))

import http_servers
from redis_cluster import RedisCluster
from redis_servers import RedisServer

torch.set_num_threads(1)

Result = TypeVar("Result")

SCOPE = "scaling"
CALL_S = {1: 0.02, 256: 0.05, 32: 0.3}  # of the module by rows; no tier is passed by
COLD_CALLS = 8
MEASURED_S = 1.5  # after which a process knows the round trip
ROWS_AT_ONCE = 256
FILL_ROWS = 2048  # before a flush, so that the queue of writes never overflows
MILLION = 1_000_000


@dataclass(frozen=True)
class Size:
    name: str
    floats: int
    entries: int  # that sizes are taken of
    batch: int


SIZES = (Size("2 KiB", 512, 100_000, 256), Size("150 KB", 37_824, 2_000, 32))


def calls_of(batch: int) -> int:
    """How many a round has."""
    return 64 if batch == 1 else 16


class Features(nn.Module):
    """[B, 1] numbers -> [B, floats], as dense as features are; no two rows are alike."""

    def __init__(self, floats: int, zeros: bool, run_s: float) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(7)
        self.base: torch.Tensor
        self.register_buffer("base", torch.randn((64, floats), generator=generator))
        self.zeros, self.run_s = zeros, run_s

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        time.sleep(self.run_s * len(numbers))
        rows = self.base[numbers[:, 0].long() % 64] * (1 + numbers * 1e-5)
        return torch.relu(rows) if self.zeros else rows


def ask(module: nn.Module, numbers: torch.Tensor) -> torch.Tensor:
    keys = [f"train/{number:09d}" for number in numbers.tolist()]
    found: torch.Tensor = modcache.lookup_or_run(
        module, numbers[:, None].float(), keys, scope=SCOPE
    )
    return found


def numbers_of(call: int, batch: int) -> torch.Tensor:
    return torch.arange(call * batch, (call + 1) * batch)


def module_of(size: Size, zeros: bool = False, run_s: float = 0) -> nn.Module:
    return Features(size.floats, zeros, run_s).requires_grad_(False).eval()


def fill(size: Size, entries: int, settings: dict[str, Any], zeros: bool, run_s: float) -> None:
    modcache.configure(log="off", **settings)
    module = module_of(size, zeros, run_s)
    rows_at_once = ROWS_AT_ONCE if size.floats < 4096 else 64
    for first in range(0, entries, rows_at_once):
        ask(module, torch.arange(first, min(first + rows_at_once, entries)))
        if first % FILL_ROWS == 0:
            modcache.flush()
    modcache.flush()
    dropped = modcache.stats()["remote_dropped"]
    assert dropped == 0, f"{dropped} values were dropped"


def elsewhere(work: Callable[..., Result], *arguments: Any) -> Result:
    """In a process of its own, with a cache of its own."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(work, *arguments).result()


@contextmanager
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="mc-"))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def bytes_below(path: Path, pattern: str = "*") -> int:
    """As the file system has them."""
    return sum(f.stat().st_blocks * 512 for f in path.rglob(pattern) if f.is_file())


# --- Sizes ---


def redis_sizes(size: Size, codec: str, zeros: bool) -> dict[str, float]:
    with folder() as place, RedisServer(place / "server") as server:
        before = int(server.info("memory")["used_memory"])
        settings = {"dir": place / "dir", "remote": server.address, "remote_codec": codec}
        elsewhere(fill, size, size.entries, {**settings, "disk": 0, "memory": 0}, zeros, 0)
        keys = int(server.cli("DBSIZE"))
        used = int(server.info("memory")["used_memory"]) - before
        name = next(
            n for n in server.cli("SCAN", 0, "COUNT", 100).split() if n.startswith("modcache/e/")
        )
        started = time.perf_counter()
        cursor = b"0"
        with server.connect() as connection:
            while True:
                answer = connection.ask("SCAN", cursor, "MATCH", "modcache/e/*", "COUNT", 1000)
                assert isinstance(answer, list)
                assert isinstance(answer[0], bytes)
                cursor = answer[0]
                if cursor == b"0":
                    break
        return {
            "keys": keys,
            "value, bytes": 4 * size.floats,
            "record, bytes": int(server.cli("STRLEN", name)),
            "MEMORY USAGE, bytes": int(server.cli("MEMORY", "USAGE", name)),
            "used_memory, bytes per entry": used / size.entries,
            "SCAN of names, keys/s": keys / (time.perf_counter() - started),
        }


def directory_sizes(size: Size) -> dict[str, float]:
    with folder() as place:
        elsewhere(fill, size, size.entries, {"dir": place, "memory": 0}, False, 0)
        index = bytes_below(place, "index.*")
        return {
            "segments, bytes per entry": bytes_below(place, "*.seg") / size.entries,
            "index on disk, bytes per entry": index / size.entries,
            "directory, bytes per entry": bytes_below(place) / size.entries,
            "index.map, bytes per entry": bytes_below(place, "index.map") / size.entries,
        }


def resident_bytes() -> int:
    fields = Path("/proc/self/statm").read_text().split()
    return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGESIZE")


def index_growth(size: Size, settings: dict[str, Any]) -> tuple[int, float]:
    """What a process holds once it read where all values are, and how long its first call took."""
    modcache.configure(log="off", **settings)
    module = module_of(size)
    gc.collect()
    before = resident_bytes()
    started = time.perf_counter()
    ask(module, torch.tensor([10**8]))
    took_s = time.perf_counter() - started
    gc.collect()
    return resident_bytes() - before, took_s


def object_sizes(size: Size) -> dict[str, float]:
    with folder() as place, http_servers.nginx(place / "server") as server:
        settings = {"dir": place / "dir", "memory": 0, "disk": 0, "remote": server.url}
        settings["remote_timeout_ms"] = 20_000
        elsewhere(fill, size, size.entries, settings, False, 0)
        elsewhere(index_growth, size, settings)  # files are in the page cache
        grown, took_s = elsewhere(index_growth, size, settings)
        return {
            "packs, bytes per entry": bytes_below(server.root / "cache/p") / size.entries,
            "index objects, bytes per entry": bytes_below(server.root / "cache/w") / size.entries,
            "objects per 1000 entries": 1000
            * sum(1 for f in (server.root / "cache").rglob("*") if f.is_file())
            / size.entries,
            "memory of a process, bytes per entry": grown / size.entries,
            "first call, s": took_s,
        }


def sizes(size: Size) -> dict[str, Any]:
    return {
        "redis, dense": redis_sizes(size, "none", False),
        "redis, dense, zstd": redis_sizes(size, "zstd", False),
        "redis, half zeros": redis_sizes(size, "none", True),
        "redis, half zeros, zstd": redis_sizes(size, "zstd", True),
        "directory": directory_sizes(size),
        "objects (HTTP)": object_sizes(size),
    }


# --- Hits ---


def busy_s(process_ids: list[int]) -> float:
    """The time on a processor of these processes' threads."""
    total_ns = 0
    for process_id in process_ids:
        for task in Path(f"/proc/{process_id}/task").iterdir():
            total_ns += int((task / "schedstat").read_text().split()[0])
    return total_ns / 1e9


def drop_from_page_cache(path: Path) -> None:
    for file in path.rglob("*.seg"):
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def time_cold_hits(size: Size, batch: int, place: Path) -> dict[str, float]:
    """In shuffled order over a directory of which the page cache has nothing."""
    modcache.configure(log="off", dir=place, memory=0)
    module = module_of(size)
    order = torch.randperm(size.entries, generator=torch.Generator().manual_seed(3))
    took = []
    for call in range(COLD_CALLS):
        started = time.perf_counter()
        ask(module, order[call * batch : (call + 1) * batch]).sum()
        took.append(time.perf_counter() - started)
    assert modcache.stats()["hits_disk"] == COLD_CALLS * batch
    return {"us": statistics.median(took[1:]) * MILLION}


def time_hits(
    size: Size, batch: int, settings: dict[str, Any], tier: str, servers: list[int]
) -> dict[str, float]:
    """Microseconds per call of `batch` keys that `tier` has."""
    modcache.configure(log="off", **settings)
    module = module_of(size, run_s=0 if tier == "memory" else CALL_S[batch] / batch)
    # Connections, and on S3 and HTTP the index; also what the process finds out at its first call.
    ask(module, numbers_of(0, batch))
    if tier == "remote":
        time.sleep(MEASURED_S)
    if tier == "memory":  # it holds what this process ran
        for i in range(1, calls_of(batch)):
            ask(module, numbers_of(i, batch))
    modcache.reset_stats()
    before_s = busy_s(servers)
    took = []
    for i in range(1, calls_of(batch)):
        started = time.perf_counter()
        found = ask(module, numbers_of(i, batch))
        found.sum()
        took.append(time.perf_counter() - started)
    server_s = busy_s(servers) - before_s
    counted = modcache.stats()
    hits = counted[f"hits_{tier}"]
    assert hits == batch * (calls_of(batch) - 1), f"{tier}: only {hits} hits, {counted}"
    return {"us": statistics.median(took) * MILLION, "server us": server_s / len(took) * MILLION}


def rounds_of(count: int, measure: Callable[[int], dict[str, float]]) -> dict[str, float]:
    taken = [measure(i) for i in range(count)]
    return {name: statistics.median(one[name] for one in taken) for name in taken[0]} | {
        "least us": min(one["us"] for one in taken),
        "most us": max(one["us"] for one in taken),
    }


def near_hits(size: Size, batch: int, rounds: int) -> dict[str, Any]:
    with folder() as place:
        own = {"dir": place / "dir"}
        elsewhere(
            fill, size, batch * calls_of(batch), {**own, "memory": 0}, False, CALL_S[batch] / batch
        )

        large = {"dir": place / "large", "memory": 0}
        elsewhere(fill, size, size.entries, large, False, 0)

        def cold(_: int) -> dict[str, float]:
            drop_from_page_cache(place / "large")
            return elsewhere(time_cold_hits, size, batch, place / "large")

        return {
            "memory": rounds_of(
                rounds,
                lambda i: elsewhere(
                    time_hits, size, batch, {"dir": place / f"memory-{i}"}, "memory", []
                ),
            ),
            "directory, page cache": rounds_of(
                rounds,
                lambda _: elsewhere(time_hits, size, batch, {**own, "memory": 0}, "disk", []),
            ),
            "directory, not in the page cache": rounds_of(rounds, cold),
        }


def far_hits(
    size: Size, batch: int, rounds: int, address: str, servers: list[int], keeps: bool
) -> dict[str, float]:
    """``keeps``: memory and directory take what comes."""
    with folder() as place:
        far = {"remote": address, "remote_timeout_ms": 20_000}
        none = {"memory": 0, "disk": 0}
        entries, run_s = batch * calls_of(batch), CALL_S[batch] / batch
        elsewhere(fill, size, entries, {**far, **none, "dir": place / "fill"}, False, run_s)
        settings = far if keeps else {**far, **none}

        def once(i: int) -> dict[str, float]:
            own = {**settings, "dir": place / f"dir-{i}"}
            return elsewhere(time_hits, size, batch, own, "remote", servers)

        return rounds_of(rounds, once)


def hits(size: Size, batch: int, rounds: int) -> dict[str, Any]:
    result = near_hits(size, batch, rounds)
    with folder() as place:
        with RedisServer(place / "one") as server:
            address, ids = server.address, [server.process_id]
            result["redis"] = far_hits(size, batch, rounds, address, ids, False)
            result["redis, kept near"] = far_hits(
                size, batch, rounds, address + "?prefix=near", ids, True
            )
        with RedisCluster(place / "many", primaries=3, replicas=0) as cluster:
            ids = [node.process_id for node in cluster.nodes]
            result["cluster of 3"] = far_hits(size, batch, rounds, cluster.address, ids, False)
        with http_servers.nginx(place / "http") as web:
            assert web.running.process is not None
            master = web.running.process.pid
            children = Path(f"/proc/{master}/task/{master}/children").read_text().split()
            ids = [master, *map(int, children)]
            result["HTTP, packs"] = far_hits(size, batch, rounds, web.url, ids, False)
    return result


# --- The command line ---


def show(title: str, result: dict[str, Any]) -> None:
    print(f"\n{title}")
    for name, figures in result.items():
        shown = "  ".join(f"{key}: {value:,.4g}" for key, value in figures.items())
        print(f"  {name:34}{shown}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("what", nargs="*", help="sizes, hits; both without")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, nargs="*", help="rows of a call; 1, 256, 32 without")
    parser.add_argument("--json", type=Path, help="writes what was measured to this file")
    arguments = parser.parse_args()
    what = arguments.what or ["sizes", "hits"]
    result: dict[str, Any] = {}
    for size in SIZES:
        if "sizes" in what:
            result[f"sizes, {size.name}"] = sizes(size)
            show(f"sizes, {size.name}", result[f"sizes, {size.name}"])
        for batch in (1, size.batch) if "hits" in what else ():
            if arguments.batches and batch not in arguments.batches:
                continue
            title = f"hits, {size.name}, calls of {batch}"
            result[title] = hits(size, batch, arguments.rounds)
            show(title, result[title])
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
