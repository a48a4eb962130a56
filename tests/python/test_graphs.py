# SPDX-License-Identifier: Apache-2.0
"""Batches of graphs with one key for each graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import modcache
import pytest
import torch
from graph_batches import (
    Batch,
    Convolution,
    Data,
    batch_of,
    graph,
    graphs,
    heard,
    looked_up,
    plain,
    said,
    warned_of,
)
from modcache._call import graph_rows
from modcache._loops.keyed_dataset import column_in

METHODS = ["nodes", "edges", "pooled"]
Counted = Callable[[], dict[str, int]]


@pytest.fixture
def runs() -> Iterator[list[list[str]]]:
    with heard() as found:
        yield found


# ----- what is found, and what runs


@pytest.mark.parametrize("method", METHODS)
def test_only_missing_graphs_run_and_all_come_back_in_the_order_of_the_batch(
    method: str, counted: Counted, runs: list[list[str]]
) -> None:
    module = Convolution()
    looked_up(module, batch_of([0, 2, 4]), [0, 2, 4], method)
    assert counted() == {"misses": 3, "stored": 3}
    for rows in ([4, 1, 0, 3, 5], [5, 3, 2], [1], [0, 0, 4]):
        found = looked_up(module, batch_of(rows), rows, method)
        assert torch.allclose(found, plain(module, batch_of(rows), method), atol=1e-6), rows
    assert counted()["misses"] == 3, "1, 3 and 5, in the first batch"
    assert ["graph 1", "graph 3", "graph 5"] in runs


@pytest.mark.parametrize("tier", ["memory", "disk"])
def test_a_second_epoch_of_other_batches_runs_nothing(
    tier: str, counted: Counted, reopen: Callable[[], None], runs: list[list[str]]
) -> None:
    module = Convolution()
    for rows in ([0, 1, 2], [3, 4, 5]):
        looked_up(module, batch_of(rows), rows, "nodes")
    if tier == "disk":
        reopen()
        graph_rows._learned.clear()  # as in another process
    runs.clear()
    counted()
    for rows in ([5, 1], [2, 0, 4], [3]):
        found = looked_up(module, batch_of(rows), rows, "nodes")
        assert torch.allclose(found, plain(module, batch_of(rows), "nodes"), atol=1e-6)
    assert runs == []
    assert counted() == {f"hits_{tier}": 6}


def test_results_of_nodes_edges_and_graphs_in_one_structure() -> None:
    module = Convolution()
    looked_up(module, batch_of([0, 1, 2]), [0, 1, 2], "every_kind")
    rows = [2, 3, 1]
    found = looked_up(module, batch_of(rows), rows, "every_kind")
    expected = plain(module, batch_of(rows), "every_kind")
    assert found["kind"] == "convolution"
    assert torch.allclose(found["edges"], expected["edges"], atol=1e-6)
    for tensor, other in zip(found["of"], expected["of"], strict=True):
        assert torch.allclose(tensor, other, atol=1e-6)


def test_graphs_of_one_size_are_cut_like_any_others(counted: Counted) -> None:
    module, equal = Convolution(), [graph(number, 3, 2) for number in range(4)]
    for rows in ([0, 1], [1, 2, 3]):
        found = looked_up(module, batch_of(rows, equal), rows, "nodes")
        assert torch.allclose(found, plain(module, batch_of(rows, equal), "nodes"), atol=1e-6)
    assert counted() == {"misses": 4, "stored": 4, "hits_memory": 1}


@pytest.mark.parametrize("edited", ["x", "edge_index", "edge_weight", "name", "y"])
def test_an_edited_graph_runs_alone(edited: str, counted: Counted, runs: list[list[str]]) -> None:
    module, rows, given = Convolution(), [0, 3, 5], graphs()
    looked_up(module, batch_of(rows, given), rows, "nodes")
    value = getattr(given[3], edited)
    if edited in ("name", "y"):  # all of a graph counts, whatever the module reads
        setattr(given[3], edited, f"{value}*" if edited == "name" else value + 1)
    else:
        setattr(given[3], edited, value.flip(-1))
    counted()
    runs.clear()
    found = looked_up(module, batch_of(rows, given), rows, "nodes")
    assert torch.allclose(found, plain(module, batch_of(rows, given), "nodes"), atol=1e-6)
    assert counted() == {"hits_memory": 2, "misses": 1, "stored": 1, "key_conflicts": 1}
    assert runs[0] == [given[3].name]


def test_numbers_that_batching_adds_are_no_part_of_a_graph(counted: Counted) -> None:
    module, given = Convolution(), graphs()
    looked_up(module, batch_of([3, 0], given), [3, 0], "nodes")
    given[3], given[1] = given[1], given[3]  # other nodes come before those of graph 0
    found = looked_up(module, batch_of([1, 0], given), [3, 0], "nodes")
    assert torch.allclose(found, plain(module, batch_of([1, 0], given), "nodes"), atol=1e-6)
    assert counted() == {"misses": 2, "stored": 2, "hits_memory": 2}


def test_the_attributes_of_graphs_have_no_order(counted: Counted) -> None:
    module, given = Convolution(), graphs()
    looked_up(module, batch_of([0, 1], given), [0, 1], "nodes")
    names = ["y", "name", "edge_weight", "edge_index", "x"]
    other = [Data(**{name: getattr(one, name) for name in names}) for one in given]
    looked_up(module, batch_of([0, 1], other), [0, 1], "nodes")
    assert counted()["hits_memory"] == 2


def test_another_argument_has_a_row_for_each_graph(counted: Counted) -> None:
    class Scaled(Convolution):
        def forward(self, batch: Any, scale: torch.Tensor, power: int = 1) -> torch.Tensor:
            return self.nodes(batch) * (scale**power)[batch.batch, None]

    module, scale = Scaled(), torch.arange(1.0, 7.0)
    for rows, power, misses in (([0, 2], 1, 2), ([2, 3, 0], 1, 1), ([2, 3], 2, 2)):
        call = (batch_of(rows), scale[rows], power)
        found = modcache.lookup_or_run(module, call, rows, scope="scaled")
        assert torch.allclose(found, module(*call), atol=1e-6)
        assert counted()["misses"] == misses


@pytest.mark.parametrize("mode", ["off", "read", "refresh", "verify"])
def test_modes(mode: str, counted: Counted) -> None:
    module, rows = Convolution(), [0, 2, 3]
    looked_up(module, batch_of([2, 3]), [2, 3], "nodes")
    counted()
    with modcache.mode(mode):  # type: ignore[arg-type, unused-ignore]
        found = looked_up(module, batch_of(rows), rows, "nodes")
    assert torch.allclose(found, plain(module, batch_of(rows), "nodes"), atol=1e-6)
    assert (
        counted()
        == {
            "off": {"bypassed_off": 3},
            "read": {"hits_memory": 2, "misses": 1},
            "refresh": {"misses": 3, "stored": 3},
            "verify": {"misses": 1},
        }[mode]
    )


def test_no_graph_is_hashed_under_mode_off(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[Any] = []
    monkeypatch.setattr("modcache._call.inputs.view_of_graphs", hashed.append)
    with modcache.mode("off"):
        looked_up(Convolution(), batch_of([0, 2]), [0, 2], "nodes")
    assert hashed == []


def test_what_verifying_finds_is_counted_by_graphs(counted: Counted) -> None:
    module = Convolution()
    looked_up(module, batch_of([2, 3]), [2, 3], "nodes")
    module.linear.bias.data += 1
    counted()
    with modcache.mode("verify"):
        looked_up(module, batch_of([2, 3]), [2, 3], "nodes")
    assert counted() == {"verify_differences": 2}


# ----- mistakes


def test_a_wrong_number_of_keys_is_an_error() -> None:
    with pytest.raises(ValueError, match="2 keys were given, but the batch has 3 graphs"):
        looked_up(Convolution(), batch_of([0, 2, 3]), [0, 2], "nodes")


def test_tensors_of_a_batch_as_arguments_are_an_error_that_names_the_cure() -> None:
    class Apart(Convolution):
        def forward(self, x: Any, edge_index: Any, batch: Any) -> torch.Tensor:
            return self.linear(x)

    batch = batch_of([0, 2])
    call = (batch.x, batch.edge_index, batch.batch)
    with pytest.raises(ValueError, match="takes the Batch of PyTorch Geometric itself"):
        modcache.lookup_or_run(Apart(), call, [0, 2], scope="apart")
    with pytest.raises(ValueError, match="one key per row") as mistake:
        modcache.lookup_or_run(Apart(), (batch.x, batch.x), [0, 2], scope="apart")
    assert "Batch" not in str(mistake.value)


@pytest.mark.parametrize("option", [{"ragged": "list"}, {"mask": torch.ones(2, 3)}])
def test_options_for_other_rows_are_an_error(option: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="not for batches of graphs"):
        looked_up(Convolution(), batch_of([0, 2]), [0, 2], "nodes", **option)


# ----- other ways to call


def test_one_key_for_the_whole_batch(counted: Counted) -> None:
    module, call = Convolution(), {"scope": "graphs", "method": "nodes"}
    for rows in ([0, 2], [0, 2], [2, 0]):
        found = modcache.lookup_or_run(module, batch_of(rows), "all", **call)
        assert torch.equal(found, plain(module, batch_of(rows), "nodes"))
    assert counted() == {"misses": 2, "stored": 2, "hits_memory": 1, "key_conflicts": 1}


def test_content_keys_are_those_of_graphs(counted: Counted) -> None:
    keys = modcache.content_keys(batch_of([0, 2, 3]))
    assert keys[::-1] == modcache.content_keys(batch_of([3, 2, 0]))
    assert len({*keys, modcache.content_key(batch_of([0, 2, 3]))}) == 4
    cached = modcache.cached(Calling(), key=modcache.content_keys, scope="graphs")
    cached(batch_of([0, 2]))
    cached(batch_of([3, 2]))
    assert counted() == {"misses": 3, "stored": 3, "hits_memory": 1}


class Calling(Convolution):
    def forward(self, batch: Any) -> torch.Tensor:
        return self.nodes(batch)


def test_in_a_block_of_keys(counted: Counted) -> None:
    cached = modcache.cached(Calling(), scope="graphs")
    for _ in range(2):
        with modcache.keys([0, 2]):
            cached(batch_of([0, 2]))
            cached(batch_of([0, 2]))  # equal graphs, in another batch
            with pytest.raises(ValueError, match="a second time"):
                cached(batch_of([0, 3]))
    assert counted() == {"misses": 2, "stored": 2, "hits_memory": 6}


def test_graphs_of_a_keyed_dataset_carry_their_keys(counted: Counted) -> None:
    cached, given = modcache.cached(Calling(), scope="graphs"), graphs()
    train, other = (modcache.KeyedDataset(given, split) for split in ("train", "other"))
    for dataset in (train, train, other):
        batch = Batch.from_data_list([dataset[row] for row in (3, 0)])
        assert column_in(batch) is batch.modcache_keys
        with modcache.keys(batch.modcache_keys):
            cached(batch)
    assert counted() == {"misses": 4, "stored": 4, "hits_memory": 2}
    assert not hasattr(given[3], "modcache_keys"), "the data set's own is left alone"
    keys = (modcache.content_keys(Batch.from_data_list([of[3]])) for of in (train, other, given))
    assert len(set(map(tuple, keys))) == 1, "the key is no part of a graph"


def test_a_fill_and_an_explanation(counted: Counted, runs: list[list[str]]) -> None:
    module = Calling()
    cached = modcache.cached(module, key="ids", scope="graphs")
    loader = [batch_of([0, 2]), batch_of([3])]
    done = modcache.fill(cached, loader, key=lambda batch: batch.y, input=lambda batch: batch)
    assert (done.rows, done.runs) == (3, 3)
    assert modcache.explain(module, batch_of([3, 0]), [3, 0], scope="graphs").status == "hit"
    found = modcache.explain(module, batch_of([3, 1]), [3, 1], scope="graphs")
    assert (found.status, found.first_missing) == ("partial", ["1"])


def test_a_lazy_module_is_loaded_at_the_first_missing_graph() -> None:
    loaded: list[Any] = []

    def load() -> Any:
        loaded.append(Calling())
        return loaded[-1]

    first = modcache.lazy(load, scope="graphs@1")
    expected = modcache.lookup_or_run(first, batch_of([0, 2]), [0, 2])
    second = modcache.lazy(load, scope="graphs@1")
    found = modcache.lookup_or_run(second, batch_of([2, 0]), [2, 0])
    assert torch.equal(found, torch.cat([expected[3:], expected[:3]]))
    assert len(loaded) == 1


def test_a_batch_that_was_not_put_together_of_graphs_is_named(capfd: Any) -> None:
    batch = batch_of([0, 2])
    del vars(batch._store)["_slice_dict"]
    looked_up(warned_of(), batch, [0, 2], "nodes")
    assert "not made by Batch.from_data_list" in said(capfd)
    assert isinstance(batch, Batch)
