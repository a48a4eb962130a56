# SPDX-License-Identifier: Apache-2.0
"""modcache.fill: what a batch is, what is counted, what is said."""

from __future__ import annotations

import io
import itertools
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import modcache
import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
)

Growth = Callable[[], dict[str, int]]
ROWS = torch.arange(20.0).reshape(10, 2)
IDS = torch.arange(10)


class Encoder(nn.Module):
    """Writes the number of rows of each run to a file."""

    def __init__(self, log: Path) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 3)
        self.log = log

    def forward(self, x: torch.Tensor, times: int = 1) -> torch.Tensor:
        with self.log.open("a") as file:
            file.write(f"{len(x)}\n")
        return self.linear(x) * times


@pytest.fixture
def encoder(tmp_path: Path) -> Encoder:
    return Encoder(tmp_path / "log")


def rows_run(encoder: Encoder) -> int:
    return sum(map(int, encoder.log.read_text().split())) if encoder.log.exists() else 0


def loader_of(batch_size: int = 4, **options: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(ROWS, IDS), batch_size=batch_size, **options)


def test_everything_is_stored_and_counted(encoder: Encoder, counted: Growth) -> None:
    done = modcache.fill(encoder, loader_of(), key=1)
    assert (done.rows, done.hits, done.runs, done.stored) == (10, 0, 10, 10)
    assert done.bytes == 10 * 3 * 4
    assert done.seconds > 0
    assert done.is_complete
    counted()
    with torch.no_grad():
        modcache.lookup_or_run(encoder, ROWS, IDS)
    assert counted() == {"hits_memory": 10}


def test_a_second_fill_runs_what_is_missing(encoder: Encoder) -> None:
    with torch.no_grad():
        modcache.lookup_or_run(encoder, ROWS[2:5], IDS[2:5])
    done = modcache.fill(encoder, loader_of(), key=1)
    assert (done.rows, done.hits, done.runs) == (10, 3, 7)
    assert rows_run(encoder) == 10 + 1, "with the check run"
    done = modcache.fill(encoder, loader_of(3), key=1)
    assert (done.rows, done.hits, done.runs) == (10, 10, 0)
    assert rows_run(encoder) == 10 + 1


class Dicts(Dataset[Any]):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Any:
        return {"image": ROWS[index], "name": f"image/{index}"}


@pytest.mark.parametrize(
    ("loader", "options"),
    [
        (ROWS.split(4), {"key": modcache.content_keys}),
        (ROWS.split(4), {"key": lambda x: [f"{row[0]}" for row in x]}),
        (loader_of(), {"key": lambda batch: batch[1]}),
        (loader_of(), {"key": 1, "input": 0}),
        (loader_of(), {"key": lambda b: b[1], "input": lambda b: (b[0], 1)}),
        (DataLoader(Dicts(), batch_size=4), {"key": "name", "input": "image"}),
        (DataLoader(Dicts(), batch_size=4), {"key": "name", "input": lambda b: b["image"]}),
    ],
)
def test_what_a_batch_is(encoder: Encoder, loader: Any, options: Any) -> None:
    for runs in (10, 0):
        done = modcache.fill(encoder, loader, **options)
        assert (done.rows, done.runs) == (10, runs)
    assert rows_run(encoder) == 10 + 1, "with the check run"


def test_one_key_for_a_whole_batch(encoder: Encoder) -> None:
    done = modcache.fill(encoder, ROWS.split(4), key="content")
    assert (done.rows, done.runs, rows_run(encoder)) == (3, 3, 10)
    done = modcache.fill(encoder, [(ROWS, 7)], key=1)
    assert (done.rows, done.runs) == (1, 1)


@pytest.mark.parametrize(
    "batches",
    [
        [(ROWS, IDS)],
        [[ROWS, 1, IDS]],
        [{"x": ROWS, "ids": IDS}],
    ],
)
def test_cached_modules_have_keys_of_their_own(
    encoder: Encoder, counted: Growth, batches: Any
) -> None:
    cached = modcache.cached(encoder, key="ids", freeze=True)
    assert modcache.fill(cached, batches).runs == 10
    counted()
    cached(ROWS, ids=IDS)
    assert counted() == {"hits_memory": 10}
    # The plain module and another way to take the batch apart share the entries.
    assert modcache.fill(encoder, [(ROWS, IDS)], key=1).runs == 0
    assert modcache.fill(cached, [(IDS, ROWS)], key=0, input=1).runs == 0
    assert modcache.fill(cached, [(IDS, ROWS)], key=0, input=lambda b: (b[1], 1)).runs == 0


def test_functions_and_methods(counted: Growth) -> None:
    @modcache.cached(key="ids")
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    assert modcache.fill(doubled, [(ROWS, IDS)]).runs == 10
    counted()
    doubled(ROWS, ids=IDS)
    assert counted() == {"hits_memory": 10}
    loader = Loader()
    assert modcache.fill(loader.load, ["a", "bb"]).runs == 2
    assert modcache.fill(loader.load, ["a", "bb"]).hits == 2
    counted()
    loader.load("bb")
    assert counted() == {"hits_memory": 1}
    assert modcache.fill(shifted, [(ROWS, IDS)], key=1).runs == 10
    assert modcache.fill(shifted, [(ROWS, IDS)], key=1).runs == 0


def shifted(x: torch.Tensor) -> torch.Tensor:
    return x + 1


class Loader:
    @modcache.cached(key="name")
    def load(self, name: str) -> torch.Tensor:
        return torch.tensor(len(name))


def test_a_scope_is_used(encoder: Encoder) -> None:
    modcache.fill(encoder, loader_of(), key=1, scope="encoder@1")
    other = nn.Linear(2, 3)
    assert modcache.fill(other, loader_of(), key=1, scope="encoder@1").hits == 10


def test_loaders_with_workers_and_plain_iterables(encoder: Encoder) -> None:
    loader = loader_of(num_workers=2, multiprocessing_context="fork")
    assert modcache.fill(encoder, loader, key=1).runs == 10
    assert modcache.fill(encoder, ((ROWS[i : i + 1], [i]) for i in range(10)), key=1).hits == 10


# Ranks.


@pytest.mark.parametrize(
    "make",
    [
        loader_of,
        lambda: list(loader_of()),
        lambda: iter(list(loader_of())),
        lambda: DataLoader(
            TensorDataset(ROWS, IDS), batch_sampler=[[0, 1, 2, 3, 4], [5, 6], [7, 8, 9]]
        ),
    ],
)
def test_ranks_share_the_batches(encoder: Encoder, make: Any) -> None:
    done = [
        modcache.fill(encoder, make(), key=1, rank=rank, world_size=2, progress=False)
        for rank in range(2)
    ]
    assert sum(part.rows for part in done) == 10
    assert sum(part.runs for part in done) == 10
    assert all(0 < part.rows < 10 for part in done)


def test_a_rank_loads_no_batch_of_another() -> None:
    class Noting(Dicts):
        asked: list[int] = []  # noqa: RUF012

        def __getitem__(self, index: int) -> Any:
            self.asked.append(index)
            return super().__getitem__(index)

    loader = DataLoader(Noting(), batch_size=4)
    modcache.fill(shifted, loader, key="name", input="image", rank=1, world_size=2)
    assert Noting.asked == [4, 5, 6, 7]


def test_a_loader_that_is_split_already_is_not_split_again(encoder: Encoder) -> None:
    data = TensorDataset(ROWS, IDS)
    rows = 0
    for rank in range(2):
        sampler = DistributedSampler(data, num_replicas=2, rank=rank, shuffle=False)
        loader = DataLoader(data, batch_size=2, sampler=sampler)
        rows += modcache.fill(encoder, loader, key=1, rank=rank, world_size=2).runs
    assert rows == 10


def test_ranks_that_shuffle_would_leave_batches_out(encoder: Encoder) -> None:
    with pytest.raises(ValueError, match="shuffle=False"):
        modcache.fill(encoder, loader_of(shuffle=True), key=1, rank=0, world_size=2)
    assert modcache.fill(encoder, loader_of(shuffle=True), key=1).runs == 10
    for options, says in (
        ({"rank": 0}, "both rank"),
        ({"rank": 2, "world_size": 2}, "rank=2 is not one of 0 to"),
    ):
        with pytest.raises(ValueError, match=says):
            modcache.fill(encoder, loader_of(), key=1, **options)  # type: ignore[arg-type]


# What is said.


def test_the_bar_shows_what_happens(encoder: Encoder) -> None:
    bar = io.StringIO()
    modcache.fill(encoder, loader_of(), key=1, progress=bar)
    last = bar.getvalue().split("\r")[-1]
    for part in ("3/3", "rows/s", "0% hits", "s saved", "120 B"):
        assert part in last
    bar = io.StringIO()
    modcache.fill(encoder, loader_of(), key=1, progress=bar)
    assert "100% hits" in bar.getvalue()


def test_no_bar_where_there_is_no_terminal(
    encoder: Encoder, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    modcache.fill(encoder, loader_of(), key=1)
    assert capfd.readouterr().err == ""
    terminal = io.StringIO()
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stderr", terminal)
    modcache.fill(encoder, loader_of(), key=1, progress=False)
    modcache.fill(encoder, loader_of(), key=1, rank=1, world_size=2)
    assert terminal.getvalue() == ""
    modcache.fill(encoder, loader_of(), key=1)
    assert "3/3" in terminal.getvalue()


def test_the_summary_reads_well_and_is_data(encoder: Encoder) -> None:
    done = modcache.fill(encoder, loader_of(), key=1)
    assert str(done).startswith("filled: 10 rows, 0 hits (0%), 10 run, 120 B in ")
    assert done.as_dict()["runs"] == 10
    with pytest.raises(AttributeError):
        done.rows = 3  # type: ignore[misc]
    empty = modcache.fill(encoder, [], key=1)
    assert str(empty).startswith("filled: 0 rows, 0 hits, 0 run, 0 B")


def test_rows_that_are_not_cached_are_warned_about_once() -> None:
    bar = io.StringIO()
    with pytest.warns(UserWarning, match="4 of 4 rows .* not cached: .*no function") as warned:
        done = modcache.fill(nn.Dropout(), loader_of(), key=1, progress=bar)
    assert len([w for w in warned if "modcache.fill" in str(w.message)]) == 1
    assert (done.rows, done.hits, done.runs, done.stored) == (10, 0, 10, 0)
    assert "10 run (10 not cached)" in str(done)
    assert "10 NOT CACHED" in bar.getvalue()


def test_gradients_are_not_recorded() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert modcache.fill(nn.Linear(2, 2), loader_of(), key=1).stored == 10


# Mistakes.


@pytest.mark.parametrize(
    ("batches", "options", "error", "says"),
    [
        (3, {"key": 1}, TypeError, "loader must be a DataLoader or another iterable .* got int"),
        ([ROWS], {}, TypeError, "fill needs key="),
        ([ROWS], {"key": 1.5}, TypeError, "key must be a function .* got float"),
        ([ROWS], {"key": "id"}, ValueError, "key='id' is no item of a batch, which is a Tensor"),
        ([(ROWS, IDS)], {"key": 2}, ValueError, "key=2 is no item .* tuple of 2 items"),
        ([(ROWS, IDS)], {"key": 0}, ValueError, "pass input=1"),
        ([{"x": ROWS, "i": IDS}], {"key": "i"}, ValueError, "a dict of 'x', 'i'; pass input="),
        ([{"x": ROWS}], {"key": "i", "input": "x"}, ValueError, "dict of 'x'"),
        ([(ROWS, IDS)], {"key": 1, "input": []}, TypeError, "input must be a function"),
        ([(ROWS, IDS)], {"key": 1, "progress": "yes"}, TypeError, "progress must be"),
        ([(ROWS, IDS[:3])], {"key": 1}, ValueError, "3 keys were given"),
    ],
)
def test_mistakes_are_named(
    capfd: pytest.CaptureFixture[str], batches: Any, options: Any, error: Any, says: str
) -> None:
    with pytest.raises(error, match=says):
        modcache.fill(nn.Linear(2, 2), batches, **options)
    assert "not finished" not in capfd.readouterr().err


def test_targets_that_are_none() -> None:
    for target, says in ((3, "got int"), (nn.Linear, "got Linear")):
        with pytest.raises(TypeError, match=says):
            modcache.fill(target, [ROWS], key="content")
    cached = modcache.cached(nn.Linear(2, 2), key="ids")
    with pytest.raises(TypeError, match="must say where ids is"):
        modcache.fill(cached, [(ROWS, IDS)], input=0)


def test_what_the_loader_raises_comes_after_a_flush_and_a_summary(
    encoder: Encoder, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken() -> Any:
        yield from itertools.islice(loader_of(), 2)
        raise OSError("no such file")

    with pytest.raises(OSError, match="no such file"):
        modcache.fill(encoder, broken(), key=1)
    assert "not finished: 8 rows" in capfd.readouterr().err
    with pytest.raises(OSError, match="no such file") as caught:
        modcache.fill(encoder, broken(), key=1, progress=False)
    assert "not finished: 8 rows, 8 hits" in caught.value.__notes__[0]
    assert modcache.fill(encoder, loader_of(), key=1).runs == 2


class Full(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError("no space left on device")


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_bar_that_cannot_be_shown_does_not_end_the_fill(
    encoder: Encoder, is_closed: bool
) -> None:
    file = io.StringIO() if is_closed else Full()
    if is_closed:
        file.close()
    assert modcache.fill(encoder, loader_of(), key=1, progress=file).rows == 10


def test_an_interrupt_is_not_lost_in_a_bar_that_cannot_be_shown(encoder: Encoder) -> None:
    def interrupted() -> Any:
        yield ROWS[:4], IDS[:4]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        modcache.fill(encoder, interrupted(), key=1, progress=Full())


@pytest.mark.parametrize(
    "options",
    [
        {"sampler": SubsetRandomSampler(range(10)), "batch_size": 4},
        {"batch_sampler": BatchSampler(RandomSampler(range(10)), 4, False)},
    ],
)
def test_samplers_that_draw_an_order_are_no_loaders_for_ranks(
    encoder: Encoder, options: Any
) -> None:
    loader = DataLoader(TensorDataset(ROWS, IDS), **options)
    with pytest.raises(ValueError, match="shuffle"):
        modcache.fill(encoder, loader, key=1, rank=0, world_size=2)


def test_a_rank_is_a_number(encoder: Encoder) -> None:
    rank: Any = "0"
    with pytest.raises(TypeError, match="rank must be an int, but got str"):
        modcache.fill(encoder, loader_of(), key=1, rank=rank, world_size=2)
