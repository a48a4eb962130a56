# SPDX-License-Identifier: Apache-2.0
"""Results for batches of graphs: whose rows they have, and which are not cached."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import modcache
import pytest
import torch
from graph_batches import (
    Convolution,
    batch_of,
    graph,
    graphs,
    heard,
    looked_up,
    plain,
    said,
    warned_of,
)

Counted = Callable[[], dict[str, int]]


@pytest.fixture
def runs() -> Iterator[list[list[str]]]:
    with heard() as found:
        yield found


# ----- whose rows a result has


def test_a_module_that_mixes_graphs_is_not_cached(
    counted: Counted, capfd: Any, runs: list[list[str]]
) -> None:
    module = warned_of()
    for rows in ([0, 2, 3], [3, 2]):
        found = looked_up(module, batch_of(rows), rows, "beside_others")
        assert torch.equal(found, plain(module, batch_of(rows), "beside_others"))
    assert counted() == {"bypassed_impure": 3, "bypassed_type": 2}
    assert "another result where other graphs are beside it" in said(capfd)
    assert runs[-1] == ["graph 3", "graph 2"], "one run, without a trial"


def test_a_module_that_mixes_graphs_is_seen_at_a_single_missing_one(counted: Counted) -> None:
    module = Convolution()
    looked_up(module, batch_of([2]), [2], "beside_others")
    assert counted() == {"bypassed_impure": 1}
    looked_up(module, batch_of([2]), [2], "nodes", scope="both")
    looked_up(module, batch_of([2, 3]), [2, 3], "nodes", scope="both")
    assert counted() == {"misses": 2, "stored": 2, "hits_memory": 1}


def test_a_result_without_rows_of_graphs_is_not_cached(counted: Counted, capfd: Any) -> None:
    class Totals(Convolution):
        def first_seven(self, batch: Any) -> torch.Tensor:
            return self.nodes(batch)[:8]

        def total(self, batch: Any) -> torch.Tensor:
            return self.nodes(batch).sum()

    module, rows = Totals(), [0, 2, 3]
    for method in ("first_seven", "total"):
        found = looked_up(module, batch_of(rows), rows, method)
        assert torch.equal(found, plain(module, batch_of(rows), method))
    assert counted() == {"bypassed_type": 6}
    assert "[8, 3] for 3 graphs, which has neither a row for each graph" in said(capfd)


def test_a_result_that_is_padded_to_the_largest_graph_is_not_mixed() -> None:
    class Padded(Convolution):
        def padded(self, batch: Any) -> torch.Tensor:
            nodes = self.nodes(batch).split(batch.ptr.diff().tolist())
            return torch.nn.utils.rnn.pad_sequence(list(nodes), batch_first=True)

    module, given = Padded(), [graph(number, 3 + number // 2, 2) for number in range(4)]
    for rows in ([0, 1], [2, 3], [0, 2]):  # graphs of 3 nodes, of 4, and both
        found = looked_up(module, batch_of(rows, given), rows, "padded")
        assert torch.equal(found, plain(module, batch_of(rows, given), "padded"))


def test_as_many_edges_as_nodes_in_all_are_told_apart(counted: Counted) -> None:
    """Nodes 3 and 2, edges 2 and 3: the first sizes say nothing, and a cut by nodes mixes rows."""
    module, odd = Convolution(), [graph(0, 3, 2), graph(1, 2, 3)]
    for method in ("nodes", "edges"):
        for rows in ([0, 1], [1], [1, 0]):
            found = looked_up(module, batch_of(rows, odd), rows, method)
            assert torch.allclose(found, plain(module, batch_of(rows, odd), method), atol=1e-6)
    assert counted() == {"misses": 4, "stored": 4, "hits_memory": 6}


def test_rows_of_nodes_or_edges_that_no_run_told_apart_are_not_cut(
    counted: Counted, capfd: Any
) -> None:
    module = warned_of()
    given = [graph(number, 2 + number % 2, 2 + number % 2) for number in range(16)]
    for row in range(0, 16, 2):
        looked_up(module, batch_of([row, row + 1], given), [row, row + 1], "nodes")
    assert counted() == {"misses": 16, "stored": 16}, "either count cuts them alike"
    odd = [graph(17, 3, 2), graph(18, 2, 3)]
    found = looked_up(module, batch_of([0, 1], odd), [17, 18], "nodes")
    assert torch.equal(found, plain(module, batch_of([0, 1], odd), "nodes"))
    assert counted() == {"bypassed_type": 2}
    assert "whether its rows are those of edge_index, edge_weight, nodes, x" in said(capfd)


def test_graphs_of_one_node_are_cut_by_either_count(counted: Counted) -> None:
    module = Convolution()
    single = [graph(number, 1, 0) for number in range(3)]
    looked_up(module, batch_of([0, 1], single), [0, 1], "nodes")
    mixed = [*single[:2], graph(5, 4, 2)]
    found = looked_up(module, batch_of([2, 0, 1], mixed), [2, 0, 1], "nodes")
    assert torch.allclose(found, plain(module, batch_of([2, 0, 1], mixed), "nodes"), atol=1e-6)
    assert counted() == {"misses": 3, "stored": 3, "hits_memory": 2}


def test_a_lone_graph_beside_which_no_other_can_be_put_waits_for_one(
    counted: Counted, capfd: Any
) -> None:
    module, single = warned_of(), [graph(number, 1, 0) for number in range(2)]
    looked_up(module, batch_of([0], single), [0], "nodes")
    assert counted() == {"bypassed_type": 1}
    assert "run two different graphs in one batch before" in said(capfd)
    looked_up(module, batch_of([0, 1], single), [0, 1], "nodes")
    looked_up(module, batch_of([0], single), [0], "nodes")
    assert counted() == {"misses": 2, "stored": 2, "hits_memory": 1}


def test_a_graph_runs_once_more_at_the_first_eight_runs_alone(runs: list[list[str]]) -> None:
    module = Convolution()
    given = [graph(number, 2 + number % 3, number % 4) for number in range(40)]
    for start in range(0, 40, 4):
        rows = list(range(start, start + 4))
        looked_up(module, batch_of(rows, given), rows, "nodes")
    assert sorted(map(len, runs)) == [1] * 8 + [4] * 10


def test_a_trial_leaves_the_random_state_alone() -> None:
    class Drawing(Convolution):
        def nodes(self, batch: Any) -> torch.Tensor:
            return super().nodes(batch) + torch.rand(1)

    states = []
    for is_cached in (False, True):
        torch.manual_seed(0)
        module = Drawing()
        look = looked_up if is_cached else lambda m, batch, rows, method: m.nodes(batch)
        look(module, batch_of([0, 2]), [0, 2], "nodes")
        states.append(torch.get_rng_state())
    assert torch.equal(*states)


# ----- what is not cached


def test_a_module_that_changes_its_batch_is_not_cached(counted: Counted, capfd: Any) -> None:
    class Changing(Convolution):
        def replacing(self, batch: Any) -> torch.Tensor:
            batch.x = self.nodes(batch)
            return batch.x * 2

        def writing(self, batch: Any) -> torch.Tensor:
            batch.x.mul_(2)
            return self.nodes(batch)

    module = Changing()
    for method in ("replacing", "writing"):
        found = looked_up(module, batch_of([0, 2]), [0, 2], method)
        assert torch.equal(found, plain(module, batch_of([0, 2]), method))
        assert counted() == {"bypassed_impure": 2}
    assert "changed x of the batch" in said(capfd)


@pytest.mark.parametrize("change", ["edges", "order", "batch", "extra", "private"])
def test_a_batch_that_was_changed_is_not_cached(change: str, counted: Counted, capfd: Any) -> None:
    batch, rows = batch_of([0, 2, 3]), [0, 2, 3]
    if change == "edges":
        batch.edge_index = torch.cat([batch.edge_index, batch.edge_index.flip(0)], 1)
        batch.edge_weight = batch.edge_weight.repeat(2)
    elif change == "order":  # all edges are still there, and as many
        order = torch.arange(batch.edge_index.shape[1]).flip(0)
        batch.edge_index, batch.edge_weight = batch.edge_index[:, order], batch.edge_weight[order]
    elif change == "batch":
        batch.batch = batch.batch.flip(0)
    else:
        setattr(batch, "extra" if change == "extra" else "_extra", torch.ones(3))
    module = warned_of()
    found = looked_up(module, batch, rows, "pooled")
    assert torch.equal(found, plain(module, batch, "pooled"))
    assert counted() == {"bypassed_type": 3}
    texts = {
        "edges": "edge_index was set or changed",
        "order": "edge_index leads to nodes of other graphs",
        "private": "_extra was set or changed",
    }
    assert texts.get(change, f"{change} was set or changed") in said(capfd)


def test_values_that_were_replaced_in_a_batch_are_those_of_its_graphs(counted: Counted) -> None:
    module, rows = Convolution(), [0, 2, 3]
    looked_up(module, batch_of(rows), rows, "nodes")
    batch = batch_of(rows)
    batch.x = batch.x.clone()
    batch.x[-1] += 1  # of graph 3
    found = looked_up(module, batch, rows, "nodes")
    assert torch.allclose(found, plain(module, batch, "nodes"), atol=1e-6)
    assert counted() == {"misses": 4, "stored": 4, "hits_memory": 2, "key_conflicts": 1}


def test_values_of_unknown_classes_are_named(counted: Counted, capfd: Any) -> None:
    given = graphs()
    for one in given:
        one.note = object()
    looked_up(warned_of(), batch_of([0, 2], given), [0, 2], "nodes")
    assert counted() == {"bypassed_type": 2}
    assert "note is a object" in said(capfd)


def test_a_batch_that_requires_grad_is_not_cached(counted: Counted) -> None:
    batch = batch_of([0, 2])
    batch.x.requires_grad_()
    assert looked_up(Convolution(), batch, [0, 2], "nodes").requires_grad
    assert counted() == {"bypassed_type": 2}
    with torch.no_grad():
        looked_up(Convolution(), batch, [0, 2], "nodes")
    assert counted() == {"misses": 2, "stored": 2}


def test_a_result_that_requires_grad_is_given_back_and_not_stored(counted: Counted) -> None:
    module = Convolution().requires_grad_()
    for rows in ([0, 2], [0, 2, 3]):
        found = looked_up(module, batch_of(rows), rows, "nodes")
        assert found.requires_grad
        assert torch.equal(found, plain(module, batch_of(rows), "nodes"))
    assert counted() == {"bypassed_grad": 5}


def test_entries_of_graphs_of_other_sizes_are_not_given_out(counted: Counted) -> None:
    modcache.configure(match="none")
    module, other = Convolution(), graphs()
    looked_up(module, batch_of([0, 2, 3]), [0, 2, 3], "nodes")
    other[2] = graph(7, 6, 1)
    found = looked_up(module, batch_of([0, 2], other), [0, 2], "nodes")
    assert torch.equal(found, plain(module, batch_of([0, 2], other), "nodes"))


def test_one_key_for_two_graphs_of_a_batch_runs_all_of_it() -> None:
    module = Convolution()
    for _ in range(2):
        keys = ["a", "b", "a"]
        found = modcache.lookup_or_run(
            module, batch_of([0, 2, 3]), keys, scope=module.scope, method="nodes"
        )
        assert torch.equal(found, plain(module, batch_of([0, 2, 3]), "nodes"))
