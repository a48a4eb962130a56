# SPDX-License-Identifier: Apache-2.0
"""docs/recipes/pytorch-geometric.md with the real library."""

from __future__ import annotations

from typing import Any

import modcache
import pytest
import recipe
import torch
from given_pytorch_geometric import given
from modcache._identity.module_state import state_of
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GIN, GATConv, GCNConv, SAGEConv, global_mean_pool

TRAIN, VAL, EPOCHS = 14, 7, 3


def program(**changed: Any) -> tuple[torch.Tensor, int, dict[str, int]]:
    """Runs the recipe: all losses, how many graphs it classifies, and how often each was found."""
    names: dict[str, Any] = {**given(), **changed}
    torch.manual_seed(1)
    modcache.reset_stats()
    names = recipe.run("pytorch-geometric", **names)
    counts = modcache.stats()
    hits = counts["hits_memory"] + counts["hits_disk"]
    found = {"runs": counts["misses"], "stored": counts["stored"], "hits": hits}
    return torch.stack(names["losses"]).detach(), names["right"], found


def plain_loop(gnn: Any, train: Any, val: Any, **rest: Any) -> tuple[torch.Tensor, int]:
    """The same without modcache."""
    torch.manual_seed(1)
    gnn.requires_grad_(False).eval()
    head = torch.nn.Linear(rest["width"], rest["classes"])
    optimizer = torch.optim.AdamW(head.parameters(), lr=1e-2)
    losses = []

    def scores_of(batch: Any) -> Any:
        return head(global_mean_pool(gnn(batch.x, batch.edge_index), batch.batch))

    train_batches = DataLoader(train, 32, shuffle=True)
    for _ in range(rest["epochs"]):
        for batch in train_batches:
            losses.append(torch.nn.functional.cross_entropy(scores_of(batch), batch.y))
            optimizer.zero_grad()
            losses[-1].backward()
            optimizer.step()
    (batch,) = DataLoader(val, 32)
    with torch.no_grad():
        right = int((scores_of(batch).argmax(1) == batch.y).sum())
    return torch.stack(losses).detach(), right


def test_the_losses_are_those_of_the_loop_without_the_cache() -> None:
    wanted, right = plain_loop(**given())  # type: ignore[arg-type]
    with modcache.mode("off"):
        plain, right_too, counts = program()
    assert torch.equal(plain, wanted)
    assert counts == {"runs": 0, "stored": 0, "hits": 0}
    found, right_as_well, _ = program()
    assert torch.allclose(found, wanted, atol=1e-5)
    assert right == right_too == right_as_well


def test_each_graph_runs_once_and_in_a_second_program_none() -> None:
    _, _, counts = program()
    assert counts == {"runs": TRAIN + VAL, "stored": TRAIN + VAL, "hits": (EPOCHS - 1) * TRAIN}
    modcache.flush()
    _, _, counts = program()
    assert counts == {"runs": 0, "stored": 0, "hits": EPOCHS * TRAIN + VAL}


@pytest.mark.parametrize("edited", ["x", "edge_index"])
def test_an_edited_graph_runs_alone(edited: str) -> None:
    program()
    train: Any = given()["train"]
    value = getattr(train[5], edited)
    setattr(train[5], edited, value.flip(0) if edited == "x" else value[:, :-1])
    found, _, counts = program(train=train)
    assert counts == {"runs": 1, "stored": 1, "hits": EPOCHS * TRAIN + VAL - 1}
    with modcache.mode("off"):
        wanted, _, _ = program(train=train)
    assert torch.allclose(found, wanted, atol=1e-5)


# ----- what the page says of other graphs and networks


def epochs_of(module: torch.nn.Module, graphs: list[Any], **options: Any) -> dict[str, int]:
    """Compares two epochs with the plain module, and returns the counters of the second."""
    module.eval().requires_grad_(False)
    cached = modcache.cached(module, key="ids")
    for _ in range(2):
        modcache.reset_stats()
        for batch in DataLoader(graphs, 4, shuffle=True, **options):
            found, wanted = cached(batch, ids=batch.sample), module(batch)
            torch.testing.assert_close(found, wanted)
    counts = modcache.stats()
    names = ("hits_memory", "misses", "bypassed_type", "bypassed_impure")
    return {name: counts[name] for name in names if counts[name]}


class Network(torch.nn.Module):
    def __init__(self, gnn: torch.nn.Module) -> None:
        super().__init__()
        self.gnn = gnn


class Nodes(Network):
    def forward(self, batch: Any) -> Any:
        return self.gnn(batch.x, batch.edge_index)


class Followed(Network):
    def forward(self, batch: Any) -> Any:
        return global_mean_pool(self.gnn(batch.x, batch.edge_index), batch.x_batch)


def plain_graphs() -> list[Data]:
    graphs: Any = given()["train"]
    for number, graph in enumerate(graphs):
        graph.sample = number
    return list(graphs)


def test_layers_are_found_without_a_look_at_all_of_their_objects() -> None:
    for layer in (GCNConv(8, 4), GATConv(8, 4), GIN(8, 4, 2)):
        module = Nodes(layer)
        assert epochs_of(module, plain_graphs()) == {"hits_memory": TRAIN}
        batch: Any = Batch.from_data_list(plain_graphs())
        for _ in range(4):
            modcache.lookup_or_run(module, batch, batch.sample)
        assert state_of(module).known is not None


def test_batches_of_workers_and_with_followed_attributes() -> None:
    graphs = plain_graphs()
    module = Followed(GCNConv(8, 4))
    options = {"follow_batch": ["x"], "num_workers": 2}
    assert epochs_of(module, graphs, **options) == {"hits_memory": TRAIN}


def test_a_network_that_mixes_graphs_is_not_cached() -> None:
    assert epochs_of(Nodes(GIN(8, 4, 2, norm="GraphNorm")), plain_graphs()) == {
        "bypassed_type": TRAIN
    }


def test_graphs_with_several_kinds_of_nodes() -> None:
    class Kinds(Network):
        def forward(self, batch: Any) -> Any:
            nodes = self.gnn((batch["a"].x, batch["b"].x), batch["a", "to", "b"].edge_index)
            return {"b": nodes, "graphs": global_mean_pool(nodes, batch["b"].batch)}

    graphs = []
    for number in range(8):
        graph = HeteroData(sample=number)
        sizes = 2 + number % 3, 3 + number % 4
        graph["a"].x, graph["b"].x = (torch.randn(size, 8) for size in sizes)
        ends = [torch.randint(size, (4 + number % 5,)) for size in sizes]
        graph["a", "to", "b"].edge_index = torch.stack(ends)
        graphs.append(graph)
    assert epochs_of(Kinds(SAGEConv((8, 8), 4)), graphs) == {"hits_memory": 8}


class Pair(Data):
    """Two kinds of nodes in a class of one's own, which says how its edges are numbered."""

    def __inc__(self, name: str, value: Any, *rest: Any) -> Any:
        if name == "edge_index":
            return torch.tensor([[len(self.left)], [len(self.right)]])
        return super().__inc__(name, value, *rest)


def test_graphs_of_a_class_of_ones_own() -> None:
    class Sides(Network):
        def forward(self, batch: Any) -> Any:
            return self.gnn((batch.left, batch.right), batch.edge_index)

    graphs = []
    for number in range(8):
        sizes = 2 + number % 3, 3 + number % 4
        left, right = (torch.randn(size, 8) for size in sizes)
        ends = torch.stack([torch.randint(size, (4 + number % 5,)) for size in sizes])
        graphs.append(
            Pair(left=left, right=right, edge_index=ends, sample=number, num_nodes=sum(sizes))
        )
    assert epochs_of(Sides(SAGEConv((8, 8), 4)), graphs) == {"hits_memory": 8}
